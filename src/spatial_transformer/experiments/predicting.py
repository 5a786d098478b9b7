"""``stn predict``: what a trained network says of one's own pictures, and where its transformers look."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import bird_predictions, checkpoints, figures, house_number_predictions
from .arguments import UsageError, file_to_read, picture_to_write
from .catalogue import EXPERIMENTS
from .checkpoints import CheckpointError, Weights
from .own_pictures import in_colour
from .spec import Cell
from .statuses import BROKEN

# A cell, its weights, names and pictures uint8 [3, H, W] -> an answer for each, in words, and a figure of
# where the transformers look on the first ``DRAWN``, None where there are none. RuntimeError where the
# weights do not fit.
Predicts = Callable[[Cell, Weights, Iterable[tuple[str, Tensor]]], tuple[list[str], Any]]

# By task.
PREDICTS: dict[str, Predicts] = {
    "house numbers": house_number_predictions.predict,
    "birds": bird_predictions.predict,
}

MESSAGE = 240  # letters of why weights do not fit


def add(commands: Any) -> None:
    """Adds ``predict`` to the commands of ``stn``."""
    parser = commands.add_parser(
        "predict",
        help="what a trained network says of one's own pictures",
        description="Prints what a trained network says of each picture, and draws where its transformers "
        "look. A house number is to be cropped with a little around it (for a network of 64 px), or with as "
        "much again on each side (128 px). A bird is looked for in the middle of the picture.",
    )
    parser.add_argument(
        "weights",
        type=file_to_read,
        metavar="WEIGHTS",
        help="that `stn train` left, runs/birds/....safetensors",
    )
    parser.add_argument("images", type=file_to_read, nargs="+", metavar="IMAGE")
    # Of a network without a transformer nothing is drawn, and the working folder need not be written to.
    default = Path("predictions.png")
    parser.add_argument("--out", type=picture_to_write, default=default, help="the picture to draw")


def run(given: argparse.Namespace) -> int:
    """Predicts, and gives the exit status; pictures that cannot be read are named after the other answers."""
    weights = checkpoints.load_weights(given.weights)
    try:
        cell = cell_of(weights)
    except (LookupError, TypeError, ValueError) as error:  # by other code
        raise CheckpointError(f"{given.weights} is of no known network: {error}") from error
    if cell.task.name not in PREDICTS:
        known = ", ".join(name for name, one in EXPERIMENTS.items() if one.task.name in PREDICTS)
        raise ValueError(f"{given.weights} is of {cell.experiment}: there are predictions of {known} alone")
    read = [path.resolve() for path in (given.weights, *given.images)]
    if cell.model.transformer is not None and given.out.resolve() in read:
        raise UsageError(f"--out must be a file of its own: {given.out} is one of those to read")
    if not all(bool(values.isfinite().all()) for values in weights.tensors.values()):
        raise CheckpointError(f"{given.weights} is broken: it has weights that are no numbers")
    readable, broken = list[Path](), list[ValueError]()

    def pictures() -> Iterator[tuple[str, Tensor]]:
        for path in given.images:  # as they are needed: photographs are large
            try:
                picture = opened(path)
            except ValueError as error:
                broken.append(error)
            else:
                readable.append(path)
                yield path.name, picture
        if not readable:
            raise ValueError("\n".join(map(str, broken)))

    try:
        answers, figure = PREDICTS[cell.task.name](cell, weights, pictures())
    except RuntimeError as error:
        # torch lists all weights, which are hundreds.
        why = textwrap.shorten(str(error), MESSAGE, placeholder=" ...")
        raise CheckpointError(f"{given.weights} does not fit {cell.name}: {why}") from error
    for path, answer in zip(readable, answers, strict=True):
        print(f"{path}: {answer}")
    if figure is not None:
        figures.save(figure, given.out)
        more = len(readable) - figures.DRAWN
        print(f"{given.out} (without the last {more:,})" if more > 0 else given.out)
    for reason in broken:
        print(f"stn: {reason}", file=sys.stderr)
    return BROKEN if broken else 0


def cell_of(weights: Weights) -> Cell:
    """The cell that weights are of, with the settings it was trained with."""
    cells = {cell.name: cell for cell in EXPERIMENTS[weights.experiment].cells}
    cell = cells[weights.cell]
    return dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, **weights.settings))


def opened(path: Path) -> Tensor:
    """A picture as networks take it. uint8 [3, H, W]"""
    return torch.from_numpy(np.array(in_colour(path))).permute(2, 0, 1)
