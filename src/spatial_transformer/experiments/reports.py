"""``stn table`` and ``stn draw``: what the records say, as tables and as pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from . import (
    catalogue,
    pictures_of_birds,
    pictures_of_boxes,
    pictures_of_digits,
    pictures_of_house_numbers,
    pictures_of_pairs,
    pictures_of_volumes,
    results,
    tables,
)
from .arguments import UsageError, file_to_write, folder, folder_to_write
from .data import mnist, uci_digits
from .data.fetch import say
from .data.places import VARIABLE
from .results import Wanted
from .spec import Experiment

COMMANDS = ("table", "draw")
# By task, what has its PICTURES and its draw().
DRAWN_BY: dict[str, Any] = {
    "digits": pictures_of_digits,
    "colocalisation": pictures_of_boxes,
    "house numbers": pictures_of_house_numbers,
    "birds": pictures_of_birds,
}
# The draw() of an experiment whose images are not one digit on a plane, in place of its task's.
OTHERWISE = {"addition": pictures_of_pairs.draw, "volumes": pictures_of_volumes.draw}
FILES = {"training": "animation"}  # what a picture's file is called -> the picture, where the two differ
DIGITS = {"mnist": mnist.NAME, "packaged": uci_digits.NAME}


def add(commands: Any) -> None:
    """Adds ``table`` and ``draw`` to the commands of ``stn``."""
    table = commands.add_parser("table", help="a table of the paper, with our numbers beside its own")
    draw = commands.add_parser("draw", help="pictures of what trained networks do")
    for parser in (table, draw):
        names = ", ".join(catalogue.EXPERIMENTS)
        parser.add_argument("experiment", choices=catalogue.EXPERIMENTS, metavar="EXPERIMENT", help=names)
        parser.add_argument("--results", type=folder, default="results", help="where the records are")
        parser.add_argument(
            "settings", nargs="*", default=[], metavar="KEY=VALUE", help="of runs with these changed"
        )
        parser.add_argument("--digits", choices=DIGITS, help="of runs on these (mnist)")
    table.add_argument("--brief", action="store_true", help="the table alone")
    table.add_argument("--all", action="store_true", help="every run in a list, whatever its settings")
    table.add_argument(
        "--out", type=file_to_write, metavar="FILE.md", help="also written here, or in its place there"
    )
    draw.add_argument("--model", action="append", default=[], help="only this row; can be repeated")
    draw.add_argument("--data", action="append", default=[], help="only this column; can be repeated")
    draw.add_argument("--seed", type=int, help="of this run; of the first there is if not given")
    draw.add_argument(
        "--only",
        action="append",
        default=[],
        type=lambda text: FILES.get(text, text),
        choices=dict.fromkeys(name for each in DRAWN_BY.values() for name in each.PICTURES),
        help="only this; can be repeated. The animation, or training, is the file that ends in -training.gif",
    )
    draw.add_argument("--out", type=folder_to_write, default="pictures", help="the folder to write to")
    draw.add_argument("--data-dir", type=folder, help=f"look here first, before ${VARIABLE} and the cache")


def run(given: argparse.Namespace) -> int:
    """Runs one of the two commands and gives its exit status."""
    experiment = catalogue.EXPERIMENTS[given.experiment]
    if not given.results.is_dir():
        say(f"there is no folder {given.results}, and so no record")
    wanted = asked(experiment, given.settings, given.digits)
    found = results.of(experiment, given.results)
    return {"table": table, "draw": draw}[given.command](experiment, found, wanted, given)


def asked(experiment: Experiment, given: Sequence[str], digits: str | None) -> Wanted:
    """Settings and digits as the command line has them."""
    if digits is not None and experiment.task.data not in DIGITS.values():
        raise UsageError(f"{experiment.name} is of {experiment.task.data}, and has no --digits {digits}")
    data = experiment.task.data if digits is None else DIGITS[digits]
    changes = catalogue.assignments(given)
    settings = vars(experiment.settings.changed(changes))
    return results.asked(experiment, {name: settings[name] for name in changes}, data)


def table(
    experiment: Experiment, found: list[results.Result], wanted: Wanted, given: argparse.Namespace
) -> int:
    made = tables.listing(found) if given.all else tables.table(experiment, found, wanted, brief=given.brief)
    print(made)
    if given.out is not None:
        command = tables.command(experiment, wanted, brief=given.brief, every=given.all)
        tables.put(made, command, given.out)
    return 0


def draw(
    experiment: Experiment, found: list[results.Result], wanted: Wanted, given: argparse.Namespace
) -> int:
    cells = catalogue.chosen(experiment, given.model, given.data)
    by = DRAWN_BY[experiment.task.name]
    known, draw = by.PICTURES, OTHERWISE.get(experiment.name, by.draw)
    if unknown := set(given.only) - set(known):
        raise UsageError(f"{experiment.name} has {', '.join(known)}, got --only {min(unknown)}")
    made = draw(
        experiment,
        cells,
        found,
        wanted,
        seed=given.seed,
        only=given.only or known,
        out=given.out,
        data_dir=given.data_dir,
    )
    for path in made:
        print(path, flush=True)
    return 0
