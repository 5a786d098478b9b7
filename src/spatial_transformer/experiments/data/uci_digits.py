"""The UCI optical digits, which ship with this package: every command runs with no network at all.

1,797 digits of 8 x 8 pixels by 13 writers (``shipped/NOTICE.md`` has origin and licence), drawn up to the
20 x 20 pixels that a digit takes in MNIST's 28 x 28. They are no MNIST: whoever shows a number says which of
the two it comes from.
"""

from __future__ import annotations

import gzip
import hashlib
from importlib import resources

import numpy as np
import torch

from ... import families, sampling
from .digits import Digits, DigitSet

NAME = "UCI digits"
FILE = "shipped/digits.csv.gz"
SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
TEST = 300  # the last of them


def load() -> DigitSet:
    """1,497 digits to train on and 300 to test on, as if they were MNIST's.

    >>> load().train.images.shape
    torch.Size([1497, 28, 28])
    """
    rows = np.loadtxt(gzip.decompress(content()).decode().splitlines(), delimiter=",", dtype=np.int64)
    small = torch.from_numpy(rows[:, :64]).double().reshape(-1, 1, 8, 8) * (255 / 16)
    scale = small.new_tensor([[28 / 20, 0.0, 0.0]]).expand(len(small), 3)  # 8 px become 20 of 28
    drawn = sampling.warp(small, scale, families.Attention(), size=(28, 28), impl="reference")
    # In float64, and halves away from a rounding: the same bytes on every machine.
    images = (drawn + 1e-6).round().to(torch.uint8).squeeze(1)
    labels = torch.from_numpy(rows[:, 64])
    train, test = (Digits(images[part], labels[part]) for part in (slice(-TEST), slice(-TEST, None)))
    return DigitSet(NAME, train, test)


def content() -> bytes:
    return (resources.files(__package__) / FILE).read_bytes()


def verify() -> None:
    """Raises where the file that ships along was changed."""
    digest = hashlib.sha256(content()).hexdigest()
    if digest != SHA256:
        raise ValueError(f"{FILE} has sha256 {digest}, expected {SHA256}")
