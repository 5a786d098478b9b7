"""``stn train``: the cells of an experiment that have no record."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from . import cluster, engine, records, results, tasks
from .arguments import UsageError, count, folder, folder_to_write
from .catalogue import EXPERIMENTS, assignments, chosen
from .data.places import VARIABLE
from .display import display, say, say_refused
from .durations import duration, seconds_of
from .interrupts import asked_to_stop
from .jobs import Job, placed
from .lockstep import one_thread_each
from .spec import Cell
from .statuses import BROKEN, FAILED, INTERRUPTED, MISUSED, UNFINISHED
from .tasks import AUTO, Dataset

LARGEST_SEED = 2**32


def add(commands: Any) -> None:
    """Adds ``train`` to the commands of ``stn``."""
    parser = commands.add_parser(
        "train",
        help="train the cells of an experiment that have no record",
        description="Trains the cells of an experiment that have no record, each from its checkpoint on. "
        "Ctrl-C stops after the step in hand; the same command goes on.",
        epilog=epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiment", choices=EXPERIMENTS, metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    parser.add_argument(
        "settings",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="a setting to change; KEY=VALUE,VALUE trains with each",
    )
    parser.add_argument("--model", action="append", default=[], help="only this row; can be repeated")
    parser.add_argument("--data", action="append", default=[], help="only this column; can be repeated")
    parser.add_argument("--seed", type=seeds, default=[0], help="such as 0 or 0,1,2 (0 if not given)")
    parser.add_argument(
        "--digits", choices=tasks.NAMES, default=AUTO, help="auto: MNIST, else the packaged ones"
    )
    parser.add_argument("--device", default=AUTO, help="auto (a GPU if there is one), cpu, cuda, cuda:1 ...")
    parser.add_argument(
        "--at-once", type=count, help="cells side by side (a GPU: all small ones; the CPU: one)"
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const=cluster.LOCAL,
        type=address,
        metavar="ADDRESS",
        help="spread the cells over a Ray cluster; without an address over workers on this machine. The "
        "folders of records and checkpoints must be seen by all, and so must house numbers and birds",
    )
    parser.add_argument("--gpu-share", type=share, help="with --ray: of a GPU for each cell (an eighth)")
    parser.add_argument(
        "--time-limit", type=seconds_of, default=math.inf, help="stop before it: 90, 25m, 1h30m"
    )
    parser.add_argument(
        "--save-every", type=seconds_of, default=engine.SAVE_EVERY, help="seconds between checkpoints (30)"
    )
    parser.add_argument("--again", action="store_true", help="train anew what has failed")
    parser.add_argument("--results", type=folder_to_write, default="results", help="folder of the records")
    parser.add_argument(
        "--runs", type=folder_to_write, default="runs", help="folder of checkpoints and weights"
    )
    parser.add_argument(
        "--data-dir", type=folder, help=f"look for the data here, before ${VARIABLE} and the cache"
    )


def epilog() -> str:
    """What there is to set, by experiment, and what exit statuses mean."""
    lines = ["settings and what they are if not given:"]
    for experiment in EXPERIMENTS.values():
        known = ", ".join(f"{name}={value}" for name, value in vars(experiment.settings).items())
        for name, settings in experiment.own_settings.items():
            own = dict(vars(settings).items() - vars(experiment.settings).items())
            known += f"; {name}: {results.assigned(own)}"
        lines += textwrap.wrap(
            f"{experiment.name}: {known}", 100, initial_indent="  ", subsequent_indent="    "
        )
    statuses = (
        f"0 all is done, {BROKEN} it cannot be done (such as a record that is broken or data that are not "
        f"here), {MISUSED} what is asked for is not there, {UNFINISHED} time was up or another process is at "
        f"it, {FAILED} all is done, but a run failed or has a checkpoint that does not fit, "
        f"{INTERRUPTED} interrupted"
    )
    return "\n".join([*lines, "", *textwrap.wrap(f"exit status: {statuses}", 100)])


def run(given: argparse.Namespace) -> int:
    """Trains, and gives the exit status."""
    begin = time.monotonic()
    deadline = begin + given.time_limit
    if given.ray is not None and (given.device != AUTO or given.at_once is not None):
        raise UsageError("--ray shares out the cells by itself: it takes no --device and no --at-once")
    experiment, changes = EXPERIMENTS[given.experiment], assignments(given.settings)
    cells = [
        dataclasses.replace(cell, settings=cell.settings.changed(variant))
        for variant in variants(changes)
        for cell in chosen(experiment, given.model, given.data)
    ]
    data = tasks.loaded(cells[0], given.digits, given.data_dir)
    jobs = wanted(cells, data, given)
    if not jobs:
        print("every cell has its record; `stn table` shows them")
        return 0
    limits = {"deadline": deadline, "save_every": given.save_every, "again": given.again}
    with asked_to_stop() as stop:
        if given.ray is not None:
            outcome = cluster.train(
                jobs,
                tasks.sent(cells[0], data, given.digits, given.data_dir),
                given.ray,
                gpu_share=given.gpu_share,
                stop=stop,
                **limits,
            )
        else:
            device = device_of(given.device)
            on_a_gpu = tasks.TASKS[experiment.task.name].cells_on_a_gpu
            at_once = given.at_once or (on_a_gpu if device.type == "cuda" else 1)
            side_by_side = device.type == "cpu" and at_once > 1 and at_once >= torch.get_num_threads()
            with one_thread_each(side_by_side), display(len(jobs)) as watcher:
                outcome = engine.train(
                    jobs, data, device, at_once=at_once, stop=stop, watcher=watcher, **limits
                )
        interrupted = stop()
    for job in outcome.busy:
        say(f"{job.name}: another process trains it")
    say_refused(outcome)
    if outcome.left:
        say(f"{len(outcome.left)} of {len(jobs)} are not finished; the same command goes on with them")
    say(f"the whole command took {duration(time.monotonic() - begin)}")
    if interrupted:
        return INTERRUPTED
    if outcome.left or outcome.busy:
        return UNFINISHED
    failed = outcome.refused or any(record.status == "failed" for record in outcome.records)
    return FAILED if failed else 0


def variants(changes: Mapping[str, str]) -> list[dict[str, str]]:
    """Every combination of the values that settings are given.

    >>> variants({"steps": "500", "momentum": "0,0.9"})
    [{'steps': '500', 'momentum': '0'}, {'steps': '500', 'momentum': '0.9'}]
    """
    values = itertools.product(*(text.split(",") for text in changes.values()))
    return [dict(zip(changes, combination, strict=True)) for combination in values]


def wanted(cells: Sequence[Cell], data: Dataset, given: argparse.Namespace) -> list[Job]:
    """The jobs that have no record, or one that failed where those are wanted again."""
    found = []
    for job in jobs_of(cells, data, given.seed, given.results, given.runs):
        if job.record.exists():
            record = records.read(job.record)
            check_record(job, record, data)
            if not (given.again and record.status == "failed"):
                continue
        found.append(job)
    return found


def check_record(job: Job, record: records.Record, data: Dataset) -> None:
    """Refuses a record at a job's place that is not the job's."""
    if (record.cell, record.seed) != (job.cell.name, job.seed):
        raise records.RecordError(f"{job.record} is of {record.cell}, seed {record.seed}: move it away")
    found = results.Result(job.record, record, job.cell)
    results.check(found)
    if found.changed or found.digits != data.name:
        settings = f" with {results.assigned(found.changed)}" if found.changed else ""
        raise records.RecordError(
            f"{job.record} is of a run{settings} on {record.digits}, of older settings maybe: move it away"
        )


def jobs_of(
    cells: Sequence[Cell], data: Dataset, seeds: Sequence[int], folder: Path, runs: Path
) -> list[Job]:
    """A job for each cell and seed; what sets these runs apart from those of the table is in their names."""
    usual = {cell.name: cell for cell in EXPERIMENTS[cells[0].experiment].cells}

    def apart(cell: Cell) -> dict[str, Any]:
        changed = results.unusual(dataclasses.asdict(cell.settings), usual[cell.name])
        return results.apart(changed, data.name, cell)

    return placed(cells, seeds, folder, runs, apart)


def device_of(name: str) -> torch.device:
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {name}: {str(error).splitlines()[0]}") from None
    return device


def seeds(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers such as 0,1,2, got {text!r}") from None
    if not 0 <= min(found) <= max(found) < LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"must be from 0 to {LARGEST_SEED - 1:,}, got {text!r}")
    return sorted(set(found))


def address(text: str) -> str:
    if "=" in text:
        raise argparse.ArgumentTypeError(f"must be an address, got {text!r}: settings go before --ray")
    return text


def share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, got {text!r}")
    return found
