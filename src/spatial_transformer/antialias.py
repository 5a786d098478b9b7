"""Anti-aliasing: the footprint of an output pixel in the input, and the kernel widened to it.

The paper warns (section 3.4) that downsampling with a small kernel aliases. The local scale of the transform
at an output pixel, along an axis of the input, is the length of that axis' row of the Jacobian d(source
pixel) / d(target pixel): how many input pixels one output pixel spans there. The kernel is stretched by it,
k(d / s), and its weights are divided by their sum (a ``Kernel`` of one's own, whose sum may mean something,
by s). Everything is differentiable in image and theta.

How many taps that takes is settled by the options alone, never by theta: footprints are followed up to a
limit, and stay at it beyond. A scale below 1 (magnification) or within 1e-5 of it is 1, where the kernel is
the plain one, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .coordinates import differences
from .kernels import Kernel

DEFAULT_LIMIT = 8.0
NEAR_ONE = 1e-5


def footprints(jacobian: Sequence[Sequence[Tensor]], limit: float, *, rounded_over: int = 0) -> list[Tensor]:
    """Input pixels that an output pixel spans along x, y (, z), from 1 to ``limit``.

    ``rounded_over``: where slopes are differences of coordinates, the pixels that these run over; what
    such coordinates' rounding makes of a scale of 1 counts as 1 too.
    """
    found = []
    near = max(NEAR_ONE, 4 * torch.finfo(jacobian[0][0].dtype).eps * rounded_over)
    for row in jacobian:
        # What is not finite is no downsampling, and must not meet a gradient of zero on the way back.
        finite = [torch.where(slope.isfinite(), slope, 0.0) for slope in row]
        squared = torch.stack(torch.broadcast_tensors(*[slope * slope for slope in finite])).sum(0)
        # Compared before the root, whose slope at zero is infinite.
        wider = squared > (1 + near) ** 2
        found.append(torch.where(wider, squared, 1.0).clamp(max=limit * limit).sqrt())
    return found


def grid_jacobian(positions: Sequence[Tensor]) -> list[list[Tensor]]:
    """The slopes of given source positions between neighbouring output pixels. Each [N, T, *out]"""
    dims = len(positions)
    return [[differences(position, dim=-1 - b) for b in range(dims)] for position in positions]


def widened_taps(
    kernel: Kernel, position: Tensor, footprint: Tensor, axis: int, limit: float
) -> tuple[Tensor, dict[int, Tensor]]:
    """As ``Kernel.plain_taps``, for the kernel stretched to ``footprint`` along an axis."""
    first, plain = kernel.plain_taps(position, axis)
    inside = position - first
    reach = math.ceil(kernel.radius * limit)
    lowest = -reach if kernel.rounds else 1 - reach  # inside is from -1/2 to 1/2 there, else from 0 to 1
    stretched = {offset: kernel((inside - offset) / footprint, axis) for offset in range(lowest, reach + 1)}
    total = footprint
    if kernel.partition_of_unity:
        total = torch.zeros_like(inside)
        for weight in stretched.values():  # one by one: the order of a sum over an axis depends on the shape
            total = total + weight
    still = footprint == 1
    zero = torch.zeros_like(inside)
    # Where nothing is widened the other branch must not carry a 0 / 0 back.
    divisor = torch.where(still, 1.0, total)
    return first, {
        offset: torch.where(still, plain.get(offset, zero), weight / divisor)
        for offset, weight in stretched.items()
    }
