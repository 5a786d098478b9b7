"""Numbers read off one's own pictures by a trained network."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..families import Affine
from ..sampling import warp
from . import house_number_runs
from .checkpoints import Weights
from .data.random_numbers import RandomNumbers
from .figures import DRAWN, INK, entitle, shortened
from .pictures_of_house_numbers import looks, written
from .spec import Cell

LETTERS = 18  # of a name above a picture


def predict(cell: Cell, weights: Weights, pictures: Iterable[tuple[str, Tensor]]) -> tuple[list[str], Any]:
    """The number on each picture, a name and uint8 [3, H, W], with its probability, and a figure of where the
    transformers look on the first of them; None without any."""
    network = house_number_runs.build(cell)
    network.load_state_dict(weights.tensors)
    answers, names, numbers, pixels, thetas = [], [], [], [], []
    for name, image in pictures:  # one by one: they may be many, and large
        crop = resized(image, cell.data.size)[None]
        views = RandomNumbers(house_number_runs.VIEWED)
        with torch.no_grad():
            chances, theta = house_number_runs.judged(network, cell, crop, views)
        likely, (number,) = chances.max(2)
        answers.append(f"{written(number) or 'no number'} ({100 * float(likely.prod()):.0f} % sure)")
        names.append(name)
        numbers.append(number)
        pixels.append(crop)
        thetas.append(theta)
    if cell.model.transformer is None:
        return answers, None
    figure, table = looks(*(torch.cat(many[:DRAWN]) for many in (pixels, thetas)))
    for (above, below), name, number in zip(table.T, names, numbers, strict=False):
        above.set_title(shortened(name, LETTERS), fontsize=9, color=INK, pad=5)
        below.set_xlabel(written(number), fontsize=13, color=INK)
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
