"""What is measured: cases, contenders, and the suites that bring them together. To extend, add a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import spatial_transformer as st

Contender = Callable[[Tensor, Tensor], Tensor]  # image [N, C, *size], theta [N, P] -> [N, C, *size]

PEER = "PyTorch"  # the contender that every other is divided by

# Built once, as a model builds its family once.
AFFINE = {2: st.Affine(2), 3: st.Affine(3)}

ROTATION, SCALE, SHIFT = math.radians(30), (0.8, 1.2), 0.2  # how far thetas stray from the identity


class Case(NamedTuple):
    """An image [N, C, *size] seen through one affine transformation each, at its own size."""

    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def dims(self) -> int:
        return len(self.shape) - 2

    def shrunk(self) -> Case:
        """The same kind of case, small enough for a smoke run."""
        batch, channels, *size = self.shape
        return Case((min(batch, 2), min(channels, 4), *(min(length, 16) for length in size)))


class Inputs(NamedTuple):
    image: Tensor  # [N, C, *size]
    theta: Tensor  # [N, P]
    cotangent: Tensor  # [N, C, *size]: the gradient that reaches the output


class Suite(NamedTuple):
    device: str
    cases: tuple[Case, ...]
    contenders: tuple[str, ...]


CPU_CASES = (
    Case((64, 3, 224, 224)),
    Case((256, 1, 28, 28)),
    Case((1, 1, 1024, 1024)),
    Case((32, 64, 32, 32)),
    Case((4, 1, 60, 60, 60)),
    Case((2, 8, 40, 40, 40)),
)


def pytorch(image: Tensor, theta: Tensor) -> Tensor:
    """What one writes without this library."""
    matrix = theta.unflatten(1, (image.ndim - 2, image.ndim - 1))
    grid = F.affine_grid(matrix, list(image.shape), align_corners=False)
    return F.grid_sample(image, grid, align_corners=False)


def library_torch(image: Tensor, theta: Tensor) -> Tensor:
    return st.warp(image, theta, AFFINE[image.ndim - 2], impl="torch")


CONTENDERS: dict[str, Contender] = {PEER: pytorch, 'impl="torch"': library_torch}

SUITES = {"cpu": Suite("cpu", CPU_CASES, (PEER, 'impl="torch"'))}


def truth(image: Tensor, theta: Tensor) -> Tensor:
    """What every contender is compared with."""
    return st.warp(image, theta, AFFINE[image.ndim - 2], impl="reference")


def inputs(case: Case, *, seed: int = 0) -> Inputs:
    """The float32 tensors of a case, the same on every run.

    Images are smooth and fade towards their border. Bilinear slopes jump at pixels, so on noise, or where an
    image is cut off, a sample that falls within rounding of a pixel can take a wholly different slope, and
    theta's gradient of *any* float32 method is off by per cents: that would hide the errors looked for here.
    What an image holds does not change the time it takes.
    """
    generator = torch.Generator().manual_seed(seed)
    return Inputs(
        smooth(case.shape, generator),
        near_identity(case.shape[0], case.dims, generator),
        smooth(case.shape, generator),
    )


def smooth(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Cosines along each axis, half to two waves long, under a window of sin^2. float32 [N, C, *size]"""
    image = torch.ones(1)
    for axis, length in enumerate(shape[2:], start=2):
        lead = (*shape[:2], *[1] * (len(shape) - 2))
        waves = 0.5 + 1.5 * torch.rand(lead, generator=generator)
        phase = torch.rand(lead, generator=generator)
        along = (torch.arange(1, length + 1) / (length + 1)).reshape(-1, *[1] * (len(shape) - 1 - axis))
        image = image * torch.cos(2 * math.pi * (waves * along + phase)) * torch.sin(math.pi * along) ** 2
    return image


def near_identity(count: int, dims: int, generator: torch.Generator) -> Tensor:
    """Rotations (one in each plane of two axes), scales along each axis, and shifts. float32 [count, P]"""

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator, dtype=torch.float64)

    linear = torch.diag_embed(uniform(*SCALE, dims))
    for a in range(dims):
        for b in range(a + 1, dims):
            angle = uniform(-ROTATION, ROTATION)
            turn = torch.eye(dims, dtype=torch.float64).repeat(count, 1, 1)
            turn[:, a, a] = turn[:, b, b] = angle.cos()
            turn[:, a, b], turn[:, b, a] = -angle.sin(), angle.sin()
            linear = turn @ linear
    return torch.cat([linear, uniform(-SHIFT, SHIFT, dims, 1)], dim=-1).flatten(1).float()
