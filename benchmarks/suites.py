"""What is measured: cases, contenders, and the suites that bring them together. To extend, add a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import spatial_transformer as st

from .goals import Goal

Function = Callable[[Tensor, Tensor], Tensor]  # image [N, C, *in], theta [N, P] -> [N, C, *size]

# Contenders, as results and tables name them. The first is the one that every other is divided by.
PEER = "PyTorch"
CAST = "PyTorch, image cast to float32"
COMPILED = "PyTorch, compiled"
TORCH = 'impl="torch"'
FUSED = 'impl="fused"'

LATTICE = (4, 4)  # of the spline's control points

# Built once, as a model builds its family once.
FAMILIES = {
    ("affine", 2): st.Affine(2),
    ("affine", 3): st.Affine(3),
    ("spline", 2): st.ThinPlateSpline(LATTICE),
}

ROTATION, SCALE, SHIFT = math.radians(30), (0.8, 1.2), 0.2  # how far thetas stray from the identity
BEND = 0.05  # and a spline's control points from there


class Case(NamedTuple):
    """An image [N, C, *in], each seen through one transformation of its own."""

    shape: tuple[int, ...]
    size: tuple[int, ...] | None = None  # of the output; the image's own if None
    family: str = "affine"
    channels_last: bool = False
    dtype: torch.dtype = torch.float32  # of the image; theta is float32
    way: str = "calls"  # how a GPU is timed: "calls", "graph" or "python" (``cuda.WAYS``)
    goals: tuple[Goal, ...] = ()  # one for each pass
    compiled: bool = False  # whether torch.compile takes part: it takes seconds a case

    @property
    def name(self) -> str:
        words = ["x".join(map(str, self.shape))]
        if self.size is not None:
            words.append("to-" + "x".join(map(str, self.size)))
        if self.family != "affine":
            words.insert(0, self.family)
        if self.channels_last:
            words.append("channels-last")
        if self.way != "calls":
            words.append(self.way)
        if self.dtype != torch.float32:
            words.append(dtype_name(self.dtype))
        return "-".join(words)

    @property
    def dims(self) -> int:
        return len(self.shape) - 2

    @property
    def out_size(self) -> tuple[int, ...]:
        return self.shape[2:] if self.size is None else self.size

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (*self.shape[:2], *self.out_size)

    def shrunk(self) -> Case:
        """The same kind of case, small enough for a smoke run."""
        batch, channels, *lengths = self.shape
        small = (min(batch, 2), min(channels, 4), *(min(length, 16) for length in lengths))
        size = None if self.size is None else tuple(min(length, 8) for length in self.size)
        return self._replace(shape=small, size=size)


class Inputs(NamedTuple):
    image: Tensor  # [N, C, *in]
    theta: Tensor  # [N, P]
    cotangent: Tensor  # [N, C, *size]: the gradient that reaches the output

    def cast(self, dtype: torch.dtype) -> Inputs:
        """With image and cotangent in another dtype; theta keeps its own."""
        return Inputs(self.image.to(dtype), self.theta, self.cotangent.to(dtype))


class Contender(NamedTuple):
    make: Callable[[Case, str], Function]  # for a case, on a device
    against: tuple[str, ...] = (PEER,)  # divided by the fastest of these that is right
    dtype: torch.dtype | None = None  # of its image, where that is not the case's
    where: Callable[[Case], bool] = lambda case: True  # which cases it takes part in


class Suite(NamedTuple):
    device: str
    cases: tuple[Case, ...]
    contenders: tuple[str, ...]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def half(case: Case) -> bool:
    return case.dtype != torch.float32


# What takes part


def library(impl: str) -> Callable[[Case, str], Function]:
    def make(case: Case, device: str) -> Function:
        family = FAMILIES[case.family, case.dims]
        return lambda image, theta: st.warp(image, theta, family, size=case.out_size, impl=impl)

    return make


def pytorch(case: Case, device: str) -> Function:
    """What one writes without this library."""
    if case.family == "affine":

        def grid(theta: Tensor) -> Tensor:
            matrix = theta.unflatten(1, (case.dims, case.dims + 1))
            return F.affine_grid(matrix, [len(theta), *case.out_shape[1:]], align_corners=False)

    else:
        basis = FAMILIES[case.family, case.dims].basis(case.out_size).T.contiguous().to(device)  # [points, K]

        def grid(theta: Tensor) -> Tensor:
            points = torch.matmul(basis, theta.unflatten(1, (-1, case.dims)))  # [N, points, dims]
            return points.unflatten(1, case.out_size)

    def call(image: Tensor, theta: Tensor) -> Tensor:
        if image.device.type == "cpu" and image.element_size() < 4:
            raise RuntimeError("on the CPU grid_sample reads outside of half-precision images")
        return F.grid_sample(image, grid(theta).to(image.dtype), align_corners=False)

    return call


def pytorch_cast(case: Case, device: str) -> Function:
    """Right in half precision, where a grid in the image's dtype is pixels off."""
    precise = pytorch(case, device)
    return lambda image, theta: precise(image.float(), theta).to(image.dtype)


def pytorch_compiled(case: Case, device: str) -> Function:
    """The eager function that is right, compiled for this case's shapes alone."""
    torch.compiler.reset()  # or the second case would be compiled for any shape
    return torch.compile((pytorch_cast if half(case) else pytorch)(case, device), dynamic=False)


def truth(case: Case, device: str) -> Function:
    """What every contender is compared with."""
    return library("reference")(case, device)


CONTENDERS: dict[str, Contender] = {
    PEER: Contender(pytorch, against=()),
    CAST: Contender(pytorch_cast, against=(), where=half),
    COMPILED: Contender(pytorch_compiled, (PEER, CAST), where=lambda case: case.compiled),
    TORCH: Contender(library("torch")),
    FUSED: Contender(library("fused"), (PEER, CAST)),
    f"{FUSED}, bfloat16": Contender(library("fused"), (FUSED,), torch.bfloat16),
    f"{FUSED}, float16": Contender(library("fused"), (FUSED,), torch.float16),
}


# Suites

CPU_CASES = (
    Case((64, 3, 224, 224)),
    Case((256, 1, 28, 28)),
    Case((1, 1, 1024, 1024)),
    Case((32, 64, 32, 32)),
    Case((4, 1, 60, 60, 60)),
    Case((2, 8, 40, 40, 40)),
)


def speeds(forward: float, both: float) -> tuple[Goal, Goal]:
    return Goal(speed=forward), Goal(speed=both)


FLOAT32_GPU_CASES = (
    *(
        Case(shape, way="graph", goals=speeds(8, 6))
        for shape in ((256, 1, 28, 28), (512, 1, 42, 42), (1024, 1, 42, 42), (256, 1, 60, 60))
    ),
    Case((256, 1, 28, 28), way="python", goals=speeds(4, 4), compiled=True),
    Case((64, 3, 224, 224), goals=speeds(6, 8), compiled=True),
    Case((64, 3, 448, 448), (224, 224), goals=(Goal(floor=2), Goal(floor=2.5))),
    Case((16, 3, 1024, 1024), goals=(Goal(floor=2), Goal(speed=25, floor=4)), compiled=True),
    Case((512, 64, 32, 32), goals=speeds(2, 2), compiled=True),
    Case((512, 64, 32, 32), channels_last=True, goals=speeds(2, 2)),
    Case((64, 64, 56, 56), goals=speeds(2, 2)),
    Case((64, 64, 56, 56), channels_last=True, goals=speeds(2, 2)),
    Case((16, 1, 60, 60, 60), goals=speeds(5, 20), compiled=True),
    Case((4, 8, 96, 96, 96), goals=speeds(5, 20)),
    Case((1024, 1, 42, 42), family="spline", goals=speeds(4, 6)),
    Case((64, 3, 448, 448), (224, 224), family="spline", goals=speeds(4, 6), compiled=True),
)

# Compiled once more in half precision; it takes too long to do so everywhere.
GPU_CASES = FLOAT32_GPU_CASES + tuple(
    case._replace(dtype=torch.bfloat16, compiled=case.shape == (64, 3, 224, 224))
    for case in FLOAT32_GPU_CASES
)

SUITES = {
    "cpu": Suite("cpu", CPU_CASES, (PEER, TORCH, FUSED, f"{FUSED}, bfloat16", f"{FUSED}, float16")),
    "gpu": Suite("cuda", GPU_CASES, (PEER, CAST, COMPILED, FUSED)),
}


# What they are fed


def inputs(case: Case, device: str = "cpu", *, seed: int = 0) -> Inputs:
    """The tensors of a case, the same on every run.

    Images are smooth and fade towards their border. Bilinear slopes jump at pixels, so on noise, or where an
    image is cut off, a sample that falls within rounding of a pixel can take a wholly different slope, and
    theta's gradient of *any* float32 method is off by per cents: that would hide the errors looked for here.
    What an image holds does not change the time it takes.
    """
    generator = torch.Generator().manual_seed(seed)
    layout = torch.contiguous_format
    if case.channels_last:
        layout = torch.channels_last if case.dims == 2 else torch.channels_last_3d

    def laid_out(shape: tuple[int, ...]) -> Tensor:
        return smooth(shape, generator, device).to(case.dtype).contiguous(memory_format=layout)

    image = laid_out(case.shape)
    theta = near_identity(case.shape[0], case.dims, generator)
    if case.family == "spline":
        theta = bent(theta, generator)
    return Inputs(image, theta.to(device), laid_out(case.out_shape))


def smooth(shape: tuple[int, ...], generator: torch.Generator, device: str = "cpu") -> Tensor:
    """Cosines along each axis, half to two waves long, under a window of sin^2. float32 [N, C, *size]"""
    image = torch.ones(1, device=device)
    for axis, length in enumerate(shape[2:], start=2):
        lead = (*shape[:2], *[1] * (len(shape) - 2))
        waves = (0.5 + 1.5 * torch.rand(lead, generator=generator)).to(device)
        phase = torch.rand(lead, generator=generator).to(device)
        along = torch.arange(1, length + 1, device=device) / (length + 1)
        along = along.reshape(-1, *[1] * (len(shape) - 1 - axis))
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


def bent(theta: Tensor, generator: torch.Generator) -> Tensor:
    """The spline's control points where affine thetas take them, each moved a little. float32 [N, 2K]"""
    spline, dims = FAMILIES["spline", 2], 2
    points = FAMILIES["affine", dims].points(theta, spline.identity().unflatten(0, (-1, dims)))
    return (points + BEND * (2 * torch.rand(points.shape, generator=generator) - 1)).flatten(1)
