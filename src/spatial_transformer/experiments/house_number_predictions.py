"""Numbers read off one's own pictures by a trained network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..families import Affine
from ..sampling import warp
from . import house_number_runs, house_numbers
from .checkpoints import Weights
from .figures import INK, entitle
from .pictures_of_house_numbers import looks, written
from .spec import Cell


def predict(
    cell: Cell, weights: Weights, images: Sequence[Tensor], names: Sequence[str]
) -> tuple[list[str], Any]:
    """The number on each picture uint8 [3, H, W] with its probability, and a figure of where the transformers
    look; None without any."""
    network = house_number_runs.build(cell)
    network.load_state_dict(weights.tensors)
    pixels = torch.stack([resized(image, cell.data.size) for image in images])
    with torch.no_grad():
        scores, theta = network(house_numbers.normalised(pixels), return_theta=True)
    likely, numbers = scores.softmax(2).max(2)
    answers = [
        f"{written(number) or 'no number'} ({100 * float(chance):.0f} % sure)"
        for number, chance in zip(numbers, likely.prod(1), strict=True)
    ]
    if not theta.shape[1]:
        return answers, None
    figure, table = looks(pixels, theta)
    for column, name, number in zip(table.T, names, numbers, strict=True):
        column[0].set_title(name, fontsize=9, color=INK, pad=5)
        column[1].set_xlabel(written(number), fontsize=13, color=INK)
    entitle(figure, cell.model.name, cell.data.kind)
    return answers, figure


def resized(image: Tensor, size: int) -> Tensor:
    """A whole picture as one of the crops: uint8 [3, H, W] -> uint8 [3, size, size]"""
    shrunk = max(image.shape[1:]) / size
    seen = warp(
        image[None].to(torch.float32),
        Affine().identity()[None],
        Affine(),
        size=(size, size),
        padding="border",
        antialias=math.ceil(shrunk) if shrunk > 1 else False,
    )
    return seen[0].round().clamp(0, 255).to(torch.uint8)
