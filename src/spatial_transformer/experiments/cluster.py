"""The cells of an experiment spread over a Ray cluster: a task each, with the same records as on one machine.

Records and checkpoints lie in folders that all machines see. A task whose worker dies is begun again
elsewhere by Ray, and goes on from its checkpoint. Digits travel with the tasks; what is larger is loaded by
each worker, from a folder that all machines see.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from . import engine
from .arguments import UsageError
from .display import Lines
from .engine import Outcome
from .extra import extra
from .interrupts import Stop, asked_to_stop
from .jobs import Job
from .records import Record
from .tasks import Dataset, Load

LOCAL = "local"  # what Ray calls workers of its own on this machine
RETRIES = 10  # how often a task is begun again when its worker died
GPU_SHARE = 1 / 8  # of a GPU that a cell takes: it leaves most of one idle
LOOK_EVERY = 1.0  # seconds
GRACE = 60.0  # seconds for cells to be saved, once someone said stop

Say = Callable[[str], None]


class TaskError(ValueError):
    """What went wrong with a task; the message names its cell."""


class Underway(Lines):
    """What a worker says of its cell. How it ended is said where the cells are given out: the last lines of a
    worker get lost when Ray is done."""

    def ended(self, job: Job, record: Record) -> None:
        pass


@contextmanager
def connected(address: str) -> Any:
    """Ray, for as long as this lasts."""
    ray = extra("ray", extra="cluster")
    mine = not ray.is_initialized()
    if mine:
        handler = signal.getsignal(signal.SIGTERM)
        ray.init(address=address, include_dashboard=False, log_to_driver=True)
        if signal.getsignal(signal.SIGTERM) is not handler:  # Ray has put one there that ends the process
            signal.signal(signal.SIGTERM, handler)
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()


def train(
    jobs: Sequence[Job],
    data: Dataset | Load,
    address: str = LOCAL,
    *,
    again: bool = False,
    gpu_share: float | None = None,
    deadline: float = math.inf,
    save_every: float = engine.SAVE_EVERY,
    stop: Stop = lambda: False,
    say: Say = print,
) -> Outcome:
    """Trains what has no record yet, as ``engine.train`` does.

    data: what is trained on, or what each worker loads it with.
    gpu_share: of a GPU that a cell takes; if it is not given, an eighth where the cluster has GPUs.
    """
    outcome, errors, lines = Outcome([], [], [], []), list[ValueError](), Lines(len(jobs), say)
    with connected(address) as ray:
        resources = ray.cluster_resources()
        share = gpu_share if gpu_share is not None else GPU_SHARE if resources.get("GPU", 0) else 0
        say(f"Ray: {resources.get('CPU', 0):g} CPUs, {resources.get('GPU', 0):g} GPUs, {len(jobs)} cells")
        task = ray.remote(num_cpus=1, num_gpus=share, max_retries=RETRIES)(trained)
        shared, ends = ray.put(data), time.time() + (deadline - time.monotonic())
        pending = {task.remote(absolute(job), shared, ends, save_every, again): job for job in jobs}
        until = math.inf
        while pending and time.monotonic() < until:
            if until == math.inf and (stop() or time.monotonic() > deadline):
                until = time.monotonic() + GRACE
                for one in pending:
                    ray.cancel(one)  # SIGINT, where it runs: it saves, and says that it is not finished
            done, _ = ray.wait(list(pending), timeout=LOOK_EVERY)
            for one in done:
                job = pending.pop(one)
                try:
                    found = ray.get(one)
                except ray.exceptions.TaskCancelledError:  # before it began
                    outcome.left.append(job)
                    continue
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None) or error
                    kind = UsageError if isinstance(cause, UsageError) else TaskError
                    errors.append(kind(f"{job.name}: {cause}"))
                    say(str(errors[-1]))
                    continue
                for record in found.records:
                    outcome.records.append(record)
                    lines.ended(job, record)
                outcome.busy.extend(job for _ in found.busy)
                outcome.left.extend(job for _ in found.left)
                outcome.refused.extend(found.refused)
        outcome.left.extend(pending.values())
    if errors:  # once the others are done
        raise errors[0]
    return outcome


def absolute(job: Job) -> Job:
    """With places that mean the same in every working folder."""
    return job._replace(record=job.record.resolve(), checkpoint=job.checkpoint.resolve())


def trained(job: Job, data: Dataset | Load, ends: float, save_every: float, again: bool) -> Outcome:
    """One job, on a worker.

    ends: of ``time.time()``, which machines agree on as ``time.monotonic()`` they do not.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # Ray shows a task its GPUs alone
    torch.set_num_threads(1)
    deadline = time.monotonic() + (ends - time.time())
    with asked_to_stop() as stop, Underway(1) as watcher:
        return engine.train(
            [job],
            data() if callable(data) else data,
            device,
            again=again,
            deadline=deadline,
            save_every=save_every,
            stop=stop,
            watcher=watcher,
        )
