"""Cells trained: from their checkpoints on, until they are done or someone says stop.

A cell's record is written when it is done or has failed. Until then its checkpoint is, at least once a minute
and before it is tested: whatever ends the process loses no more. Locks keep two processes off one cell.
"""

from __future__ import annotations

import bisect
import dataclasses
import datetime
import functools
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from . import checkpoints, networks, probes, provenance, records, tasks
from .checkpoints import Checkpoint, CheckpointError
from .interrupts import Stop, Stopped
from .jobs import Job, locked
from .lockstep import Lockstep
from .records import Point, Record
from .spec import Settings
from .tasks import Dataset

SAVE_EVERY = 30.0  # seconds
PATIENCE = 0.5  # seconds between looks at the clock
# What is at chance in training after a quarter of its steps, and so many, does not learn any more: it is
# where no gradient leads out, as after first steps that were too large.
LONG = 5000


class Training:
    """A job under way."""

    def __init__(self, job: Job, data: Dataset, device: torch.device, stop: Stop = lambda: False) -> None:
        how = tasks.TASKS[job.cell.task.name]
        self.job, self.run = job, how.run(job.cell, job.seed, data, device, job.checkpoint.parent, stop)
        self.identity = {
            "cell": f"{job.cell.experiment} {job.run}",
            "digits": self.run.trained_on,
            **{name: value for name, value in vars(job.cell.settings).items() if job.cell.heeds(name)},
        }
        self.commits = [provenance.commit()]  # of the code that trains, not of what it has become by the end
        self.seconds = 0.0  # of steps; where several runs take theirs at once, a share of the time
        self.curve: list[Point] = []
        self.watched: list[tuple[int, Tensor]] = []
        transforms = job.cell.model.transformer is not None
        self.images = self.run.first_images(probes.WATCHED) if transforms else None  # that are watched
        self.failure: str | None = None
        self.saved: int | None = None  # the step of its checkpoint
        if job.checkpoint.exists():
            self.go_on(checkpoints.load(job.checkpoint))
        else:
            self.watch()

    def go_on(self, kept: Checkpoint) -> None:
        # Older than a setting, it has its default, as records have: what was done before there was a choice.
        defaults = {field.name: field.default for field in dataclasses.fields(self.settings)}
        before = {name: value for name, value in defaults.items() if name in self.identity} | kept.identity
        if before != self.identity:
            raise CheckpointError(
                f"{self.job.checkpoint} is of another run ({differences(before, self.identity)}): "
                "remove it to begin anew"
            )
        try:
            step, steps = kept.state.numbers["step"], self.settings.steps
            if not 0 <= step <= steps:
                raise ValueError(f"step must be from 0 to {steps}, got {step}")
            self.curve = [Point(**point) for point in kept.curve]
            if [point.step for point in self.curve] != sorted(
                at for at in curve_steps(self.settings) if at <= step
            ):
                raise ValueError(f"its curve is not that of {step} steps")
            self.run.load(kept.state)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:  # by other code, of another network
            raise CheckpointError(
                f"{self.job.checkpoint} does not fit ({error}): remove it to begin anew"
            ) from error
        self.seconds, self.watched, self.saved = kept.seconds, kept.watched, self.run.step_number
        self.commits = list(dict.fromkeys([*kept.commits, *self.commits]))

    @property
    def settings(self) -> Settings:
        return self.job.cell.settings

    @property
    def until_stop(self) -> int:
        """How many steps it can take before something is to be done."""
        all_stops, step = stops(self.settings), self.run.step_number
        return all_stops[bisect.bisect_right(all_stops, step)] - step

    @property
    def over(self) -> bool:
        return self.failure is not None or self.run.step_number == self.settings.steps

    def note(self) -> None:
        """What is to be noted down at this step, if anything is."""
        step = self.run.step_number
        if step in curve_steps(self.settings):
            loss, error = self.run.means(step - (self.curve[-1].step if self.curve else 0))
            if not math.isfinite(loss):
                self.failure = f"the loss is {loss} after {step:,} steps"
                return
            self.curve.append(Point(step, loss, error))
            stuck = self.job.cell.task.stuck
            if stuck is not None and error > stuck and step >= max(LONG, self.settings.steps / 4):
                self.failure = (
                    f"stuck at chance: {error:.1f} % of the answers are wrong in training after "
                    f"{step:,} steps"
                )
                return
        if step in probes.moments(self.settings.steps):
            self.watch()

    def watch(self) -> None:
        if self.images is not None:
            self.watched.append((self.run.step_number, self.run.theta(self.images).cpu()))

    def save(self) -> None:
        """Writes a checkpoint, unless it would be the last one again."""
        if self.saved == self.run.step_number:
            return
        curve = [dataclasses.asdict(point) for point in self.curve]
        state = Checkpoint(self.run.state(), self.seconds, curve, self.watched, self.commits, self.identity)
        checkpoints.save(state, self.job.checkpoint)
        self.saved = self.run.step_number

    def finish(self, stop: Stop) -> Record:
        """The record, written; last of all, since it says that the rest is there.

        stop: asked while it is tested, which raises ``Stopped``; it is saved by then.
        """
        job, run, error, measures = self.job, self.run, None, dict[str, float]()
        if self.failure is None:
            self.save()  # a test takes minutes on a CPU
            tested = run.tested(stop)
            error, measures = tested.error, tested.measures
            if job.cell.task.stuck is not None and error > job.cell.task.stuck:
                self.failure = f"stuck at chance: {error:.1f} % of the answers are wrong"
            about = {
                "experiment": job.cell.experiment,
                "cell": job.cell.name,
                "settings": dataclasses.asdict(self.settings),
                "names": list(run.names),
            }
            checkpoints.save_weights(run.network.state_dict(), job.weights, about)
            theta = tested.theta[: probes.SHOWN]
            probes.write(probes.of(tested.predictions, theta, self.watched), probes.path_of(job.record))
        record = Record(
            experiment=job.cell.experiment,
            cell=job.cell.name,
            seed=job.seed,
            status="done" if self.failure is None else "failed",
            reason=self.failure,
            error=error,
            paper=job.cell.paper,
            digits=run.trained_on,
            steps=run.step_number,
            seconds=round(self.seconds, 1),
            device=provenance.device_name(run.device),
            commit=", ".join(self.commits),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            versions=provenance.versions(),
            settings=dataclasses.asdict(job.cell.settings),
            parameters=networks.parameters(run.network),
            curve=self.curve,
            measures=measures,
        )
        records.write(record, job.record)
        job.checkpoint.unlink(missing_ok=True)
        return record


@functools.lru_cache
def curve_steps(settings: Settings) -> frozenset[int]:
    """The steps after which the curve gets a point."""
    points = min(settings.curve, settings.steps)
    return frozenset(point * settings.steps // points for point in range(1, points + 1))


@functools.lru_cache
def stops(settings: Settings) -> list[int]:
    """The steps after which something is to be done: a point, a look, another learning rate."""
    return sorted(curve_steps(settings) | settings.turns() | {*probes.moments(settings.steps)})


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    names = sorted({*one, *other})
    return ", ".join(f"{name}={one.get(name)}" for name in names if one.get(name) != other.get(name))


class Watcher(Protocol):
    """Who looks on."""

    def began(self, training: Training) -> None:
        """A job has begun, or goes on."""

    def went_on(self, under_way: Sequence[Training], steps: int, seconds: float) -> None:
        """All took so many steps in so much time."""

    def ended(self, job: Job, record: Record) -> None:
        """A job is done, or has failed."""


class Nobody:
    """Who does not look on."""

    def began(self, training: Training) -> None:
        pass

    def went_on(self, under_way: Sequence[Training], steps: int, seconds: float) -> None:
        pass

    def ended(self, job: Job, record: Record) -> None:
        pass


class Outcome(NamedTuple):
    """What came of some jobs."""

    records: list[Record]
    busy: list[Job]  # another process trains them
    left: list[Job]  # not finished, since someone said stop
    refused: list[str]  # a sentence for each job whose checkpoint is not gone on from


def train(
    jobs: Sequence[Job],
    data: Dataset,
    device: torch.device,
    *,
    at_once: int = 1,
    again: bool = False,
    deadline: float = math.inf,
    save_every: float = SAVE_EVERY,
    stop: Stop = lambda: False,
    watcher: Watcher | None = None,
) -> Outcome:
    """Trains what has no record yet.

    at_once: how many cells train side by side.
    again: what has failed is trained anew; its record stays until there is another.
    deadline: of ``time.monotonic()``, by which all is to be saved.
    save_every: seconds between checkpoints.
    stop: asked between steps, and between batches of a test.
    """
    limits, saved = Limits(deadline, stop), time.monotonic()
    with Trainer(jobs, data, device, at_once, again, limits, watcher or Nobody()) as trainer:
        try:
            while trainer.ready():
                limits.check(trainer.advance())
                # Before a deadline the first time comes at once: only then is it known how long it takes.
                untried = deadline < math.inf and limits.saving == 0
                if untried or time.monotonic() - saved > save_every:
                    trainer.save()
                    saved = time.monotonic()
        except Stopped:
            trainer.save()
        return trainer.outcome()


class Limits:
    """When to stop: where someone says so, and before a deadline, early enough for what is in hand and for
    checkpoints."""

    def __init__(self, deadline: float, stop: Stop) -> None:
        self.deadline, self.stop = deadline, stop
        self.saving = 0.0  # seconds that the last checkpoints took

    def leave(self, seconds: float = 0.0, at_first: float = 0.0) -> bool:
        """Whether there is time for what takes about so many seconds, and so many more at first."""
        spare = at_first + 2 * (self.saving + max(PATIENCE, seconds))
        return time.monotonic() + spare <= self.deadline

    def check(self, seconds: float) -> None:
        """Raises ``Stopped`` unless there is time for what took so many seconds once more."""
        if self.stop() or not self.leave(seconds):
            raise Stopped

    def between_parts(self) -> Stop:
        """To be asked before each of some parts that take about as long as one another."""
        asked = time.monotonic()

        def stop() -> bool:
            nonlocal asked
            before, asked = asked, time.monotonic()
            return self.stop() or not self.leave(asked - before)

        return stop


class Trainer(ExitStack):
    """The jobs under way, those that wait for their turn, and what came of the others."""

    def __init__(
        self,
        jobs: Sequence[Job],
        data: Dataset,
        device: torch.device,
        at_once: int,
        again: bool,
        limits: Limits,
        watcher: Watcher,
    ) -> None:
        super().__init__()
        self.data, self.device, self.at_once, self.again = data, device, at_once, again
        self.limits, self.watcher = limits, watcher
        self.waiting, self.under_way = deque(jobs), list[Training]()
        self.records, self.busy, self.refused = list[Record](), list[Job](), list[str]()
        self.locks: dict[Path, ExitStack] = {}
        self.together: Lockstep | None = None  # made anew when others are under way
        self.making = 0.0  # seconds that this took at most, with a first step: kernels are compiled
        self.started = time.monotonic()
        self.chunk = 1  # steps between looks at the clock

    def ready(self) -> bool:
        """Finishes what is over and begins what there is room and time for; whether anything is under way.

        Raises ``Stopped`` where a test or a beginning is, or others are under way than before and there is no
        time to make their steps.
        """
        while True:
            for training in [training for training in self.under_way if training.over]:
                self.finish(training)
            # Before steps were ever made, what it took to begin is all that tells how long that will take.
            making = self.making or time.monotonic() - self.started
            time_left = self.limits.leave(at_first=making)
            if not self.waiting or len(self.under_way) >= self.at_once or not time_left:
                break
            self.begin(self.waiting[0])
            self.waiting.popleft()
        if self.under_way and self.together is None and not time_left:
            raise Stopped
        return bool(self.under_way)

    def begin(self, job: Job) -> None:
        """Begins a job, or goes on with it; unless another process is at it, or was before."""
        locks = locked(job)
        if locks is None:
            self.busy.append(job)
            return
        self.callback(locks.close)
        if job.record.exists():  # maybe by another process since it was looked for
            record = records.read(job.record)
            if not self.again or record.status != "failed":
                self.records.append(record)
                locks.close()
                return
        try:
            training = Training(job, self.data, self.device, self.limits.between_parts())
        except CheckpointError as error:  # of this job alone: the others go on
            self.refused.append(f"{job.name}: {error}")
            locks.close()
            return
        self.locks[job.record] = locks
        self.under_way.append(training)
        self.together = None
        self.watcher.began(self.under_way[-1])

    def finish(self, training: Training) -> None:
        self.records.append(training.finish(self.limits.between_parts()))
        self.under_way.remove(training)
        self.locks.pop(training.job.record).close()
        self.together = None
        self.watcher.ended(training.job, self.records[-1])

    def advance(self) -> float:
        """Some steps of all, as many as take about ``PATIENCE``. Seconds"""
        asked, new = time.monotonic(), self.together is None
        if self.together is None:
            self.together, self.chunk = Lockstep([training.run for training in self.under_way]), 1
        steps = min(self.chunk, *(training.until_stop for training in self.under_way))
        begin = time.monotonic()
        self.together.advance(steps)
        end = time.monotonic()
        seconds = end - begin
        if new:
            self.making = max(self.making, end - asked)
        self.chunk = max(1, min(2 * self.chunk, int(PATIENCE * steps / max(seconds, 1e-6))))
        for training in self.under_way:
            training.seconds += seconds / len(self.under_way)
            training.note()
        self.watcher.went_on(self.under_way, steps, seconds)
        return seconds

    def save(self) -> None:
        """All that are under way; one that has failed would only fail again."""
        begin = time.monotonic()
        for training in self.under_way:
            if training.failure is None:
                training.save()
        self.limits.saving = time.monotonic() - begin

    def outcome(self) -> Outcome:
        left = [*(one.job for one in self.under_way), *self.waiting]
        return Outcome(self.records, self.busy, left, self.refused)
