"""Fixed test sets: drawn once from one seed, so that every model meets the same images.

``KINDS`` has the paper's distortions by the names of its tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .clutter import COLOCALISED_SIZE, Cluttered, Translated, below
from .digits import DigitSet
from .distortions import (
    DIGIT,
    Added,
    Distortion,
    Drawn,
    Elastic,
    Projected,
    Rotated,
    RotatedTranslatedScaled,
)
from .random_numbers import RandomNumbers
from .volumes import Volumes

SEED = 1506_02025  # the paper's number on arXiv
BATCH = 250  # images made at once; it decides which numbers an image gets, so it is part of the sets

# Each takes the images that distractors are cut from.
KINDS: dict[str, Callable[[Tensor], Distortion]] = {
    "R": lambda pool: Rotated(),
    "RTS": lambda pool: RotatedTranslatedScaled(),
    "P": lambda pool: Projected(),
    "E": lambda pool: Elastic(),
    "TC": lambda pool: Cluttered(pool),
    "T84": lambda pool: Translated(COLOCALISED_SIZE),
    "TC84": lambda pool: Cluttered(pool, size=COLOCALISED_SIZE, distractors=16),
    "addition": lambda pool: Added(),
    "3D": lambda pool: Volumes(),
}


class FixedSet(NamedTuple):
    """Distorted test digits, what they show, and what was drawn for them."""

    images: Tensor  # [N, C, *size]
    labels: Tensor  # int64 [N]; of "addition" the sums
    drawn: Drawn


def fixed_set(kind: str, digits: DigitSet, *, count: int | None = None, **options: Any) -> FixedSet:
    """The fixed test set of a kind: an image for each digit to test on, or the first ``count`` of them.

    The options are those of ``fixed_batches``. Of "3D" all 10,000 take 8.6 GB: go through its batches.

    >>> from spatial_transformer.experiments.data import uci_digits
    >>> fixed_set("RTS", uci_digits.load()).images.shape
    torch.Size([300, 1, 42, 42])
    """
    if count is not None and count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    total = len(digits.test.labels) if count is None else min(count, len(digits.test.labels))
    parts = list(itertools.islice(fixed_batches(kind, digits, **options), -(-total // BATCH)))
    names = parts[0].drawn.numbers
    return FixedSet(
        torch.cat([part.images for part in parts])[:total],
        torch.cat([part.labels for part in parts])[:total],
        Drawn(
            torch.cat([part.drawn.theta for part in parts])[:total],
            {name: torch.cat([part.drawn.numbers[name] for part in parts])[:total] for name in names},
        ),
    )


def fixed_batches(
    kind: str,
    digits: DigitSet,
    *,
    seed: int = SEED,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Iterator[FixedSet]:
    """The fixed test set of a kind, batch after batch; the last one begins again with the first digits.

    Distractors are cut from the digits to train on, as section A.2 says. In "addition" each digit is met by
    one that is drawn.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    distortion = KINDS[kind](as_images(digits.train.images, device, dtype)[:, 0])
    random = RandomNumbers(seed, device=device)
    images, labels = digits.test.images.to(device), digits.test.labels.to(device)
    for start in range(0, len(labels), BATCH):
        some = torch.arange(start, start + BATCH, device=labels.device)[:, None] % len(labels)
        if kind == "addition":
            other = below(len(labels), random.uniform(BATCH, 1))
            some = torch.cat([some, other], dim=1)
        drawn = distortion.draw(BATCH, random, dtype=dtype)
        given = as_images(images[some.flatten()], device, dtype).reshape(BATCH, -1, DIGIT, DIGIT)
        yield FixedSet(distortion.apply(given, drawn), labels[some].sum(1), drawn)


def as_images(images: Tensor, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 [N, 28, 28] as values from 0 to 1. [N, 1, 28, 28]"""
    return images.to(device)[:, None].to(dtype) / 255
