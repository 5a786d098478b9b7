"""Training as one sees it: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .catalogue import EXPERIMENTS
from .durations import duration
from .engine import Outcome, Training, Watcher
from .extra import extra
from .jobs import Job
from .records import Record
from .results import Result, as_the_paper

QUIET = 30.0  # seconds between lines
WIDEST = 10_000  # columns: more than any table has
SMOOTH = 0.2  # what the last look counts for in the speed


class Pace:
    """How fast it goes, and how long it will take."""

    def __init__(self) -> None:
        self.per_step = 0.0  # seconds of a step of all
        self.runs = 0

    def went_on(self, under_way: Sequence[Training], steps: int, seconds: float) -> None:
        if len(under_way) != self.runs or steps == 1:  # another speed; at first kernels are compiled
            self.runs, self.per_step = len(under_way), seconds / steps
        else:
            self.per_step += SMOOTH * (seconds / steps - self.per_step)

    def __str__(self) -> str:
        milliseconds = 1000 * self.per_step
        return f"{milliseconds:.3g} ms a step" if milliseconds < 100 else f"{milliseconds:,.0f} ms a step"

    def images(self, under_way: Sequence[Training]) -> str:
        count = sum(training.settings.batch for training in under_way)
        return f"{count / max(self.per_step, 1e-9):,.0f} images a second"

    def left(self, under_way: Sequence[Training]) -> str:
        """Until the last of those under way is done."""
        most = max((training.settings.steps - training.run.step_number for training in under_way), default=0)
        return duration(most * self.per_step)


def result(name: str, record: Record) -> str:
    """A run and its record in a line."""
    if record.status == "failed":
        return f"{name}: FAILED, {record.reason}"
    experiment = EXPERIMENTS[record.experiment]
    cell = next(cell for cell in experiment.cells if cell.name == record.cell)
    as_it = as_the_paper(experiment).counts(Result(Path(), record, cell))
    paper = f" (the paper's: {record.paper} %)" if record.paper is not None and as_it else ""
    return f"{name}: {record.error:.2f} % of {record.digits} wrong{paper}, {duration(record.seconds)}"


def say(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:  # nobody reads on (`| head`): that is no reason to stop training
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_refused(outcome: Outcome) -> None:
    """Names the checkpoints that are not gone on from, as errors are."""
    for refusal in outcome.refused:
        print(f"stn: {refusal}", file=sys.stderr)


class Lines(AbstractContextManager["Lines"]):
    """A line now and then, for logs."""

    def __init__(self, total: int, say: Callable[[str], None] = say) -> None:
        self.total, self.done, self.say = total, 0, say
        self.pace, self.last = Pace(), time.monotonic()

    def __exit__(self, *error: object) -> None:
        return None

    def began(self, training: Training) -> None:
        step = training.run.step_number
        self.say(f"{training.job.name}: {f'goes on after step {step:,}' if step else 'begins'}")

    def went_on(self, under_way: Sequence[Training], steps: int, seconds: float) -> None:
        self.pace.went_on(under_way, steps, seconds)
        if time.monotonic() - self.last < QUIET:
            return
        self.last = time.monotonic()
        for training in under_way:
            self.say(f"{training.job.name}: {standing(training)}")
        self.say(f"{self.pace}, {self.pace.images(under_way)}, {self.pace.left(under_way)} left")

    def ended(self, job: Job, record: Record) -> None:
        self.done += 1
        self.say(f"{result(job.name, record)} [{self.done} of {self.total}]")


def standing(training: Training) -> str:
    """Where a run is, in a line."""
    point = training.curve[-1] if training.curve else None
    step = f"step {training.run.step_number:,} of {training.settings.steps:,}"
    return step + (f", loss {point.loss:.4f}, error {point.error:.2f} %" if point else "")


class Table(AbstractContextManager["Table"]):
    """A table that is drawn anew twice a second."""

    def __init__(self, total: int, console: Any = None) -> None:
        self.total, self.pace = total, Pace()
        self.ended_records: list[Record] = []
        self.under_way: Sequence[Training] = ()
        self.console = console or extra("rich").get_console()
        self.live = extra("rich.live").Live(
            console=self.console, refresh_per_second=2, get_renderable=self.drawn
        )

    def __enter__(self) -> Table:
        self.live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.under_way = ()
        self.live.__exit__(*error)

    def began(self, training: Training) -> None:
        self.under_way = [*self.under_way, training]

    def went_on(self, under_way: Sequence[Training], steps: int, seconds: float) -> None:
        self.under_way = list(under_way)
        self.pace.went_on(under_way, steps, seconds)

    def ended(self, job: Job, record: Record) -> None:
        self.ended_records.append(record)
        style = "red" if record.status == "failed" else "green"
        self.console.print(extra("rich.text").Text(result(job.name, record), style=style))

    def drawn(self) -> Any:
        """The table, without its bars where the terminal is too narrow for them, or lines."""
        options = self.console.options.update(max_width=WIDEST)
        for table in (self.table(bars=True), self.table(bars=False)):
            natural = extra("rich.measure").Measurement.get(self.console, options, table).maximum
            if natural <= self.console.width:
                return table
        lines = [f"{training.job.name}: {standing(training)}" for training in self.under_way]
        return extra("rich.text").Text("\n".join([self.title, *lines] if self.title else lines))

    @property
    def title(self) -> str:
        if not (self.under_way and self.pace.per_step):
            return ""
        pace = f"{self.pace}, {self.pace.images(self.under_way)}, {self.pace.left(self.under_way)} left"
        return f"{len(self.ended_records)} of {self.total} done; {pace}"

    def table(self, *, bars: bool) -> Any:
        # The title above: of a table higher than the terminal the lower end is cut off.
        table = extra("rich.table").Table(title=self.title or None, box=None, pad_edge=False)
        table.add_column("cell")
        if bars:
            table.add_column("", width=24)
        for title in ("step", "loss", "error, %"):
            table.add_column(title, justify="right")
        for training in self.under_way:
            point = training.curve[-1] if training.curve else None
            step, steps = training.run.step_number, training.settings.steps
            bar = extra("rich.progress_bar").ProgressBar(total=steps, completed=step)
            table.add_row(
                training.job.name,
                *([bar] if bars else []),
                f"{step:,} / {steps:,}",
                f"{point.loss:.4f}" if point else "",
                f"{point.error:.2f}" if point else "",
            )
        return table


def display(total: int) -> AbstractContextManager[Watcher]:
    """What suits the place that standard output goes to."""
    return Table(total) if sys.stdout.isatty() else Lines(total)
