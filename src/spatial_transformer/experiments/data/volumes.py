"""Digits in three dimensions: "extruded and randomly placed inside a 60 x 60 x 60 volume" (A.3).

As in ``distortions``, numbers are drawn first and applied after. How deep a digit is, how far it turns and
where it may lie are not in the text: they are the fields below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ... import families, sampling
from ...family import Family
from .constants import kept
from .distortions import DIGIT, Drawn
from .random_numbers import RandomNumbers


@dataclass(frozen=True)
class Volumes:
    """Digits [N, 1, 28, 28], extruded, turned about each axis and moved: [N, 1, size, size, size].

    The centre is uniform over where the turned block of 28 x 28 x depth fits.
    """

    size: int = 60
    depth: int = 16
    degrees: float = 45.0  # at most, to either side, about each of x, y, z in turn
    impl: str = "auto"  # as in ``warp``

    family: ClassVar[Family] = families.Affine(3)

    def draw(self, count: int, random: RandomNumbers, *, dtype: torch.dtype = torch.float32) -> Drawn:
        uniform = 2 * random.uniform(count, 6).to(dtype) - 1
        angles = uniform[:, :3] * math.radians(self.degrees)
        turn = turned(angles)  # digit to volume [N, 3, 3]
        half = block_half(self.depth, dtype, angles.device)  # [3]
        reach = (turn.abs() * half).sum(-1)  # of the turned block, along each axis [N, 3]
        centre = uniform[:, 3:] * (self.size / 2 - reach)  # voxels from the volume's
        back = turn.transpose(1, 2)
        shift = -(back * centre[:, None, :]).sum(-1, keepdim=True)
        theta = torch.cat([back * (self.size / 2), shift], dim=2) / half[:, None]
        return Drawn(theta.flatten(1), {"angles": angles, "centre": centre, "turn": turn})

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        block = images[:, :, None].expand(-1, -1, self.depth, -1, -1)
        return sampling.warp(block, drawn.theta, self.family, size=(self.size,) * 3, impl=self.impl)


def turned(angles: Tensor) -> Tensor:
    """The rotation about x, then y, then z. [N, 3] -> [N, 3, 3]"""
    (a, b, c), (i, j, k) = torch.cos(angles).unbind(1), torch.sin(angles).unbind(1)
    entries = [
        b * c, i * j * c - a * k, a * j * c + i * k,
        b * k, i * j * k + a * c, a * j * k - i * c,
        -j, i * b, a * b,
    ]  # fmt: skip
    return torch.stack(entries, dim=1).unflatten(1, (3, 3))


@kept
def block_half(depth: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Half of the extruded digit's extent along x, y, z. [3]"""
    return torch.tensor([DIGIT / 2, DIGIT / 2, depth / 2], dtype=dtype, device=device)
