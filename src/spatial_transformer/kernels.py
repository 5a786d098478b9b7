"""k() of equation 3: the kernels by name, ``Kernel`` for any other, and ``Reading``, how an image is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# As PyTorch's and OpenCV's bicubic interpolation; Keys (1981) has -0.5.
CUBIC = -0.75

PADDINGS = ("zeros", "border", "reflection", "circular")


def box(distance: Tensor) -> Tensor:
    """Equation 4: 1 in [-1/2, 1/2), so that halves round up. Its slope is zero wherever it has one."""
    return ((distance >= -0.5) & (distance < 0.5)).to(distance.dtype) + 0 * distance


def hat(distance: Tensor) -> Tensor:
    """Equation 5: max(0, 1 - |d|), with the right-hand slope at its three corners."""
    rising = (distance >= -1) & (distance < 0)
    falling = (distance >= 0) & (distance < 1)
    return torch.where(rising, 1 + distance, torch.where(falling, 1 - distance, 0.0))


def cubic(distance: Tensor) -> Tensor:
    """Keys' cubic convolution: once differentiable, exact at integers."""
    far, squared = distance.abs(), distance * distance
    near_part = ((CUBIC + 2) * far - (CUBIC + 3)) * squared + 1
    far_part = CUBIC * (((far - 5) * far + 8) * far - 4)
    return torch.where(far < 1, near_part, torch.where(far < 2, far_part, 0.0))


class Kernel(nn.Module):
    """Any sampling kernel k of the paper's equation 3.

    ``function`` takes distances x - m in pixels (a tensor) and gives weights of the same shape, by
    differentiable tensor code; it counts as zero outside [-radius, radius) pixels. One function serves every
    axis, or give one for each of x, y (, z), the paper's Phi_x and Phi_y. A function that is an
    ``nn.Module`` trains its parameters with the rest. Weights are used as they are, not divided by their
    sum.

    >>> gaussian = Kernel(lambda d: torch.exp(-2 * d * d), radius=2)
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor] | Sequence[Callable[[Tensor], Tensor]],
        radius: float,
    ) -> None:
        super().__init__()
        functions: list[Any] = list(function) if isinstance(function, (tuple, list)) else [function]
        if len(functions) not in (1, 2, 3) or not all(callable(f) for f in functions):
            raise TypeError(f"function must be a callable, or one for each axis, got {function!r}")
        if isinstance(radius, bool) or not (isinstance(radius, (int, float)) and 0 < radius < math.inf):
            raise ValueError(f"radius must be a positive number of pixels, got {radius!r}")
        self.functions = nn.ModuleList(f for f in functions if isinstance(f, nn.Module))
        self._callables = [
            f if not isinstance(f, nn.Module) else None for f in functions
        ]  # None: the next of self.functions
        self.radius = float(radius)

    partition_of_unity = False  # whether the weights sum to one at every position
    rounds = False  # whether taps are counted from the nearest pixel instead of the one at or left

    @property
    def axes(self) -> int:
        """How many axes it has functions for: 1 means any number."""
        return len(self._callables)

    def extra_repr(self) -> str:
        return f"radius={self.radius:g}, axes={self.axes}"

    def forward(self, distance: Tensor, axis: int = 0) -> Tensor:
        """k at these distances along x, y (, z) (axis 0, 1, 2)."""
        which = axis if self.axes > 1 else 0
        function = self._callables[which]
        if function is None:
            function = self.functions[self._callables[:which].count(None)]
        # Beyond the radius the function may be undefined: it is not asked there, so that no NaN comes back.
        within = (distance >= -self.radius) & (distance < self.radius)
        value = function(torch.where(within, distance, 0.0))
        if not isinstance(value, Tensor) or value.shape != distance.shape:
            given = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"a Kernel's function must return weights of shape {list(distance.shape)}, got {given}"
            )
        return torch.where(within, value, 0.0)

    def plain_taps(self, position: Tensor, axis: int) -> tuple[Tensor, dict[int, Tensor]]:
        """The tap at or left of each position (as a float, no gradient), and weights by offset from it."""
        reach = math.ceil(self.radius)
        first = position.detach().floor()
        inside = position - first
        return first, {offset: self(inside - offset, axis) for offset in range(1 - reach, reach + 1)}


class Nearest(Kernel):
    """Equation 4."""

    partition_of_unity = True
    rounds = True

    def __init__(self) -> None:
        super().__init__(box, radius=0.5)

    def plain_taps(self, position: Tensor, axis: int) -> tuple[Tensor, dict[int, Tensor]]:
        first = position.detach().floor()
        # floor(x + 0.5), without rounding x + 0.5 first
        first = first + (position.detach() - first >= 0.5).to(first.dtype)
        return first, {0: 1 + 0 * (position - first)}  # a gradient of zero is not none


class Linear(Kernel):
    """Equation 5."""

    partition_of_unity = True

    def __init__(self) -> None:
        super().__init__(hat, radius=1)

    def plain_taps(self, position: Tensor, axis: int) -> tuple[Tensor, dict[int, Tensor]]:
        first = position.detach().floor()
        inside = position - first
        return first, {0: 1 - inside, 1: inside}  # hat(inside - 1) would round twice


class Cubic(Kernel):
    """Keys' cubic convolution."""

    partition_of_unity = True

    def __init__(self) -> None:
        super().__init__(cubic, radius=2)


KERNELS: dict[str, Kernel] = {"nearest": Nearest(), "bilinear": Linear(), "bicubic": Cubic()}
NAMES = {kernel: name for name, kernel in KERNELS.items()}


class Reading(NamedTuple):
    """How an image is read: the options of ``warp`` and ``sample``, checked."""

    kernel: Kernel
    padding: str  # one of PADDINGS, or "fill"
    fill: float | Tensor  # the value of "fill": a number, or one for each channel [C]
    align_corners: bool
    limit: float  # the widest footprint that anti-aliasing follows, in input pixels; 1 is none

    @property
    def antialias(self) -> bool:
        return self.limit > 1

    @property
    def kernel_name(self) -> str:
        return NAMES.get(self.kernel, "Kernel")
