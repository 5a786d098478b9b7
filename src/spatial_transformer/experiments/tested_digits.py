"""The digits that networks were tested on, found and drawn again, and what a transformer makes of them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..family import Family
from ..sampling import warp
from . import probes
from .data import mnist, uci_digits
from .data.digits import DigitSet
from .data.fixed_sets import FixedSet, fixed_set
from .pictures import PictureError, Trained
from .results import Wanted
from .spec import CLASSES, Data


def load(wanted: Wanted, data_dir: Path | None) -> DigitSet:
    if wanted.digits == uci_digits.NAME:
        return uci_digits.load()
    try:
        return mnist.load(data_dir, download=False)
    except FileNotFoundError as error:
        raise PictureError(f"{error}; `stn data fetch mnist` fetches it") from error


def first_images(one: Trained, digits: DigitSet, most: int | None = None) -> tuple[FixedSet, Tensor]:
    """The first test images, those that the probe has a theta of or fewer, and their thetas."""
    count = len(digits.test.labels)
    if len(one.probe.predictions) != count or len(one.probe.theta) > count:
        raise probes.ProbeError(
            f"{probes.path_of(one.result.path)} is no probe of {digits.name}: it has "
            f"{len(one.probe.predictions)} predictions, not {count}"
        )
    theta = probes.transforms(one.probe.theta[:most])
    return fixed_set(one.cell.data.kind, digits, count=len(theta)), theta


def given(family: Family, images: Tensor, theta: Tensor, data: Data) -> Tensor:
    """What a transformer gives to its classification network. [N, 1, shown / pooling, shown / pooling]"""
    # The reference needs no kernels to be compiled for a handful of images.
    warped = warp(images, theta, family, size=(data.shown, data.shown), impl="reference")
    return torch.nn.functional.avg_pool2d(warped, data.pooling)


def class_means(images: Tensor, labels: Tensor) -> Tensor:
    """[N, 1, H, W] -> [CLASSES, H, W]; black where there is no image of a class."""
    return torch.stack(
        [
            images[labels == label, 0].mean(0) if (labels == label).any() else torch.zeros(images.shape[2:])
            for label in range(CLASSES)
        ]
    )
