"""Pictures of house numbers (the right half of Table 2): where the transformers of a network look together,
which is their transforms multiplied out, and what they make of the image."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..families import Affine
from ..sampling import warp
from . import house_numbers, pictures, probes
from .cases import cases_title, chosen_cases, write_marked
from .data import svhn
from .data.svhn import NULL, HouseNumbers
from .figures import INK, entitle, panel, panels, with_lattices
from .lattices import CELLS, lattice, reach
from .pictures import Base, Trained, of_each_run
from .results import Wanted

PICTURES = ("cases", "curves")

SIDE = 1.35  # inches of an image
BESIDE = 8  # images beside one another


def written(label: Any) -> str:
    """A number as one writes it.

    >>> written([1, 0, 4, 10, 10])
    '104'
    """
    return "".join(str(int(digit)) for digit in label if digit != NULL)


def cases(one: Trained, numbers: HouseNumbers, base: Base) -> Any:
    """Numbers that the CNN misreads and the network with transformers reads, then others that it reads."""
    if len(one.probe.predictions) != len(numbers.labels):
        raise probes.ProbeError(
            f"{probes.path_of(one.result.path)} is no probe of these images: it has "
            f"{len(one.probe.predictions)} predictions, not {len(numbers.labels)}"
        )
    labels = numbers.labels[: len(one.probe.theta)]
    chosen, saved = chosen_cases(one, labels, base)
    theta = probes.transforms(one.probe.theta[chosen])
    made, table = looks(numbers.of(one.cell.data.size)[chosen], theta)
    answers = [*([base] if base else []), (one.cell.model.name.split()[-1], one.probe.predictions)]
    for (above, below), number in zip(table.T, chosen, strict=True):
        label = labels[number]
        above.set_title(written(label), fontsize=11, color=INK, pad=5)
        said = [(who, given[number]) for who, given in answers]
        write_marked(below, [(f"{who}: {written(each)}", np.array_equal(each, label)) for who, each in said])
    entitle(made, cases_title(one, len(chosen), len(labels), saved, base), one.footer)
    return made


def looks(pixels: Tensor, theta: Tensor) -> tuple[Any, Any]:
    """A figure, and its panels [2, N]: images with the box of all transforms together on them, and below
    what is to be seen through these. pixels uint8 [N, 3, size, size], theta [N, transformers * 6]"""
    together = house_numbers.multiplied_out(theta).flatten(1)
    size = pixels.shape[-1]
    made, table = panels(("input and box", "output"), len(pixels), SIDE, above=0.68, below=0.8, most=BESIDE)
    lattices = lattice(Affine(), together, size)
    half = reach(lattices, size)
    outputs = through(pixels, together)
    for (above, below), before, after, lines in zip(table.T, pixels, outputs, lattices, strict=True):
        # The border alone: a grid would hide the digits.
        with_lattices(above, before.permute(1, 2, 0), [lines], half, every=CELLS)
        panel(below, after.permute(1, 2, 0))
    return made, table


def through(pixels: Tensor, theta: Tensor) -> Tensor:
    """What a transformer makes of images; beyond them lies their mean. uint8 -> uint8 [N, 3, size, size]"""
    mean = pixels.to(torch.float32).mean((1, 2, 3), keepdim=True)
    # The reference needs no kernels to be compiled for a handful of images.
    seen = warp(pixels - mean, theta, Affine(), impl="reference") + mean
    return seen.round().clamp(0, 255).to(torch.uint8)


def load(wanted: Wanted, data_dir: Path | None) -> HouseNumbers:
    """What test images are of."""
    return svhn.load("test", data_dir)


draw = functools.partial(pictures.draw, of_images=of_each_run("house numbers", {"cases": cases}), load=load)
