"""What every set of digits is: images and labels, for training and for testing."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Digits(NamedTuple):
    """Images of single digits."""

    images: Tensor  # uint8 [N, 28, 28]
    labels: Tensor  # int64 [N]


class DigitSet(NamedTuple):
    """A set of digits, and what it is called in records and messages."""

    name: str
    train: Digits
    test: Digits
