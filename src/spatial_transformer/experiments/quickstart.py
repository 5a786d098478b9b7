"""``stn quickstart``: a network with and without a spatial transformer, side by side, in minutes."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import torch

from . import engine, pictures_of_digits, results
from .arguments import folder, folder_to_write
from .catalogue import EXPERIMENTS, chosen
from .data import mnist, uci_digits
from .data.places import VARIABLE
from .display import display, say_refused
from .durations import duration
from .interrupts import asked_to_stop
from .lockstep import one_thread_each
from .spec import DigitSettings
from .statuses import FAILED, INTERRUPTED, UNFINISHED
from .tasks import AUTO
from .training import jobs_of

EXPERIMENT, KIND, WITHOUT, WITH = "distorted-mnist", "RTS", "FCN", "ST-FCN affine"

# Short of the paper's schedule, but where the difference is plain: by the digits at hand. Where the localiser
# learns faster than the classification network, it comes to turn digits in so few steps, too.
SETTINGS = {
    mnist.NAME: DigitSettings(steps=14_000, batch=128, learning_rate=0.005, localiser_rate=3.0),
    uci_digits.NAME: DigitSettings(steps=6000, batch=128, learning_rate=0.02),
}


def add(commands: Any) -> None:
    """Adds ``quickstart`` to the commands of ``stn``."""
    parser = commands.add_parser(
        "quickstart",
        help="train a network with and without a spatial transformer, in minutes on a CPU",
        description="Trains a fully connected network on rotated, translated and scaled digits, with and "
        "without a spatial transformer before it, and draws what the transformer does.",
    )
    parser.add_argument(
        "--out", type=folder_to_write, default="quickstart", help="folder of all that is made"
    )
    parser.add_argument(
        "--digits", choices=(AUTO, "packaged"), default=AUTO, help="auto: MNIST if it can be had"
    )
    parser.add_argument(
        "--data-dir", type=folder, help=f"look for MNIST here, before ${VARIABLE} and the cache"
    )


def run(given: argparse.Namespace) -> int:
    """Trains, says the two errors, draws, and gives the exit status."""
    digits = uci_digits.load() if given.digits == "packaged" else mnist.load_or_stand_in(given.data_dir)
    experiment = EXPERIMENTS[EXPERIMENT]
    settings = SETTINGS[digits.name]
    cells = [
        dataclasses.replace(cell, settings=settings) for cell in chosen(experiment, [WITHOUT, WITH], [KIND])
    ]
    jobs = jobs_of(cells, digits, [0], given.out, given.out / "runs")
    with asked_to_stop() as stop, one_thread_each(), display(len(jobs)) as watcher:
        outcome = engine.train(jobs, digits, torch.device("cpu"), at_once=2, stop=stop, watcher=watcher)
    say_refused(outcome)
    if outcome.left:
        print("not finished; the same command goes on")
        return INTERRUPTED
    if outcome.busy:
        print(f"another process trains in {given.out}")
        return UNFINISHED
    if outcome.refused:
        return FAILED
    errors = {record.cell.split("/")[1]: record for record in outcome.records}
    print(f"\n{digits.name}, {len(digits.test.labels):,} test digits rotated, translated and scaled:")
    for name, what in ((WITHOUT, "without"), (WITH, "with")):
        record = errors[name]
        error = f"{record.error:5.2f} % wrong" if record.status == "done" else f"failed: {record.reason}"
        print(f"  {what + ' a spatial transformer':<30} {error}, {duration(record.seconds)}")
    wanted = results.asked(experiment, dataclasses.asdict(settings), digits.name)
    made = pictures_of_digits.draw(
        experiment,
        cells,
        results.of(experiment, given.out),
        wanted,
        only=["cases"],
        out=given.out,
        data_dir=given.data_dir,
    )
    for path in made:
        print(f"  {path}: inputs, the grids they are read on, and what comes out")
    return FAILED if any(record.status == "failed" for record in outcome.records) else 0
