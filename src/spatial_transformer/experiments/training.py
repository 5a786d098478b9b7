"""``stn train``: the cells of an experiment that have no record."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from . import engine, records
from .catalogue import EXPERIMENTS, chosen
from .data import mnist, uci_digits
from .data.digits import DigitSet
from .data.places import VARIABLE
from .display import display
from .interrupts import asked_to_stop
from .spec import Cell, Settings

FAILED, UNFINISHED, INTERRUPTED = 1, 3, 130  # exit statuses
CELLS_ON_A_GPU = 64  # at once, at most


def add(commands: Any) -> None:
    """Adds ``train`` to the commands of ``stn``."""
    known = ", ".join(f"{field.name}={field.default}" for field in dataclasses.fields(Settings))
    parser = commands.add_parser(
        "train",
        help="train the cells of an experiment that have no record",
        description="Trains the cells of an experiment that have no record, each from its checkpoint on. "
        "Ctrl-C stops after the step in hand; the same command goes on.",
        epilog=f"Settings and what they are if not given: {known}. Exit status: 0 all is done, {FAILED} a "
        f"run failed, {UNFINISHED} time was up or another process is at it, {INTERRUPTED} interrupted.",
    )
    parser.add_argument("experiment", choices=EXPERIMENTS, metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="a setting to change")
    parser.add_argument("--model", action="append", default=[], help="only this row; can be repeated")
    parser.add_argument("--data", action="append", default=[], help="only this column; can be repeated")
    parser.add_argument("--seed", type=seeds, default=[0], help="such as 0 or 0,1,2 (0 if not given)")
    parser.add_argument(
        "--digits", choices=DIGITS, default="auto", help="auto: MNIST, else the packaged ones"
    )
    parser.add_argument(
        "--device", default="auto", help="auto (a GPU if there is one), cpu, cuda, cuda:1 ..."
    )
    parser.add_argument("--at-once", type=positive, help="cells side by side (a GPU: all; the CPU: one)")
    parser.add_argument("--time-limit", type=span, default=math.inf, help="stop before it: 90, 25m, 1h30m")
    parser.add_argument(
        "--save-every", type=span, default=engine.SAVE_EVERY, help="seconds between checkpoints (30)"
    )
    parser.add_argument("--again", action="store_true", help="train anew what has failed")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the records")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of checkpoints and weights")
    parser.add_argument(
        "--data-dir", type=Path, help=f"look for MNIST here, before ${VARIABLE} and the cache"
    )


def run(given: argparse.Namespace) -> int:
    """Trains, and gives the exit status."""
    deadline = time.monotonic() + given.time_limit
    experiment, changes = EXPERIMENTS[given.experiment], overrides(given.settings)
    settings = experiment.settings.changed(changes)
    cells = [
        dataclasses.replace(cell, settings=settings) for cell in chosen(experiment, given.model, given.data)
    ]
    device = device_of(given.device)
    digits = DIGITS[given.digits](given.data_dir)
    jobs = wanted(cells, digits, given)
    if not jobs:
        print("every cell has its record; `stn table` shows them")
        return 0
    at_once = given.at_once or (CELLS_ON_A_GPU if device.type == "cuda" else 1)
    with asked_to_stop() as stop, display(len(jobs)) as watcher:
        outcome = engine.train(
            jobs,
            digits,
            device,
            at_once=at_once,
            deadline=deadline,
            save_every=given.save_every,
            stop=stop,
            watcher=watcher,
        )
        interrupted = stop()
    for job in outcome.busy:
        print(f"{job.name}: another process trains it")
    if outcome.left:
        print(f"{len(outcome.left)} of {len(jobs)} are not finished; the same command goes on with them")
    if interrupted:
        return INTERRUPTED
    if outcome.left or outcome.busy:
        return UNFINISHED
    return FAILED if any(record.status == "failed" for record in outcome.records) else 0


def wanted(cells: Sequence[Cell], digits: DigitSet, given: argparse.Namespace) -> list[engine.Job]:
    """The jobs that have no record, or one that failed where those are wanted again."""
    default = EXPERIMENTS[given.experiment].settings
    changed = {
        field.name: value
        for field in dataclasses.fields(default)
        if (value := getattr(cells[0].settings, field.name)) != getattr(default, field.name)
    }
    if digits.name != mnist.NAME:  # never taken for the table's
        changed["digits"] = re.sub(r"\W+", "-", digits.name)
    found = []
    for job in engine.jobs(cells, given.seed, given.results, given.runs, changed):
        if job.record.exists():
            if not given.again or records.read(job.record).status != "failed":
                continue
            job.record.unlink()
        found.append(job)
    return found


def overrides(given: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE, each."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"a setting must be given as KEY=VALUE, got {text!r}")
        found[key.strip().replace("-", "_")] = value.strip()
    return found


# What to train on, by the name it is asked for.
DIGITS: dict[str, Any] = {
    "auto": mnist.load_or_stand_in,
    "mnist": mnist.load,
    "packaged": lambda data_dir: uci_digits.load(),
}


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {name}: {str(error).splitlines()[0]}") from None
    return device


def seeds(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers such as 0,1,2, got {text!r}") from None
    if min(found) < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {text!r}")
    return sorted(set(found))


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def span(text: str) -> float:
    """Seconds: of a number, or of numbers with units.

    >>> span("90"), span("25m"), span("1h30m")
    (90.0, 1500.0, 5400.0)
    """
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    if parts is None or not text:
        raise argparse.ArgumentTypeError(f"must be such as 90, 25m or 1h30m, got {text!r}")
    hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return 3600.0 * hours + 60 * minutes + seconds
