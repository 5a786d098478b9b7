"""On ``F.grid_sample`` where that is right, and on the reference's plain tensor code where it is not.

What ``grid_sample`` gets wrong and how it is kept from it:

- A half-precision image or grid (wrong, and out of bounds on the CPU): it only ever sees float32 and float64.
- NaN and infinite coordinates (NaN outputs, crashes): made finite before.
- The identity in float32: no normalised grid makes it exact, and samples that fall a rounding to the left
  of their pixel take the slope of the wrong side. The grid leans up by a few roundings, so that all fall to
  the right.
- ``nearest`` rounds halves to even; forward mode, ``torch.func``, constant and circular padding, bicubic in
  3D, and anti-aliasing do not exist: plain tensor code.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..coordinates import Size, pixel_axes
from ..family import Family, settle
from ..kernels import Reading
from ..matrices import homogeneous_grid
from ..modes import function_transform
from . import reference
from .reference import arranged, compute_dtype

# In units of the dtype's epsilon: more than grid_sample's own rounding of a coordinate in [-1, 1].
LEAN = 4.0

# Normalised coordinates beyond this are far outside; up to it, pixels fit grid_sample's 32-bit integers.
FAR = 1e6

# Whether grid_sample's own backward can be differentiated: seen on 2.13, raises on 2.11.
TWICE_DIFFERENTIABLE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)

# How grid_sample's backward operators number them.
ATEN_KERNELS = {"bilinear": 0, "bicubic": 2}
ATEN_PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}


def why_not(image: Tensor, reading: Reading) -> str | None:
    """A sentence that says why this implementation cannot run, or None."""
    return None


def how(image: Tensor, reading: Reading) -> str:
    """What this implementation does with such a call."""
    reason = why_plain(image, reading)
    return "F.grid_sample" if reason is None else f"{reference.how(image, reading)}: {reason}"


def why_plain(image: Tensor, reading: Reading) -> str | None:
    """A sentence that says why ``F.grid_sample`` cannot do this, or None where it can."""
    dims, kernel = image.ndim - 2, reading.kernel_name
    if reading.antialias:
        return "grid_sample has no anti-aliasing"
    if kernel == "nearest":
        return "grid_sample rounds halves to even, the paper's equation 4 rounds them up"
    if kernel == "Kernel":
        return "grid_sample takes no kernel of one's own"
    if kernel == "bicubic" and dims == 3:
        return "grid_sample has no bicubic kernel in 3D"
    if reading.padding in ("circular", "fill"):
        return f"grid_sample has no {'constant' if reading.padding == 'fill' else 'circular'} padding"
    if function_transform():
        return "grid_sample has no forward mode and no complete torch.func support"
    if 0 in image.shape:
        return "the batch is empty"
    return None


def warp(image: Tensor, theta: Tensor, family: Family, size: Size, reading: Reading) -> Tensor:
    """[N, C, *in], [N, P] -> [N, C, *size]; theta [N, T, P] -> [N, T, C, *size]"""
    if why_plain(image, reading) is not None:
        return reference.warp(image, theta, family, size, reading)
    if theta.ndim == 2:
        return warp(image, theta[:, None], family, size, reading).squeeze(1)
    grid = sampling_grid(theta.to(compute_dtype(image, theta)), family, size, reading)
    return arranged(native(image.to(grid.dtype), grid, reading), image)


def sampling_grid(theta: Tensor, family: Family, size: Size, reading: Reading) -> Tensor:
    """T_theta(G), leaning up and finite. What it is made of is let go before ``grid_sample`` needs memory."""
    theta, lost = settle(theta)
    lean, elsewhere = LEAN * torch.finfo(theta.dtype).eps, nowhere(reading)
    if family.bounded and family.homogeneous:
        # A settled theta has a finite grid here, and one that was lost a constant: no pass over the grid.
        matrix = family.matrix(theta).masked_fill(lost[..., None, None], 0.0)
        shift = theta.new_full(lost.shape, lean).masked_fill(lost, elsewhere)
        return homogeneous_grid(matrix, size, reading.align_corners, shift=shift)
    grid = tame(family.grid(theta, size, reading.align_corners) + lean, elsewhere)
    return torch.where(lost.reshape(*lost.shape, *[1] * (family.dims + 1)), elsewhere, grid)


def sample(image: Tensor, grid: Tensor, reading: Reading) -> Tensor:
    """[N, C, *in], [N, *out, dims] -> [N, C, *out]; a grid [N, T, *out, dims] -> [N, T, C, *out]"""
    if why_plain(image, reading) is not None:
        return reference.sample(image, grid, reading)
    if grid.ndim == image.ndim:
        return sample(image, grid[:, None], reading).squeeze(1)
    grid = grid.to(compute_dtype(image, grid))
    lean = LEAN * torch.finfo(grid.dtype).eps
    return arranged(native(image.to(grid.dtype), tame(grid + lean, nowhere(reading)), reading), image)


def native(image: Tensor, grid: Tensor, reading: Reading) -> Tensor:
    """``F.grid_sample`` for T grids an image, laid one below the other: the image is never repeated."""
    copies, first = grid.shape[1], grid.shape[2]
    below = grid.flatten(1, 2)
    if TWICE_DIFFERENTIABLE or torch.compiler.is_compiling():
        result = grid_sample(image, below, reading)
    else:
        result = GridSample.apply(image, below, reading)
    return result.reshape(*result.shape[:2], copies, first, *result.shape[3:])  # from [N, C, T * first, ...]


def grid_sample(image: Tensor, grid: Tensor, reading: Reading) -> Tensor:
    return F.grid_sample(
        image,
        grid,
        mode=reading.kernel_name,
        padding_mode=reading.padding,
        align_corners=reading.align_corners,
    )


class GridSample(torch.autograd.Function):
    """``grid_sample`` whose backward can be differentiated again, for the versions of torch that raise there.

    The backward of the backward is that of the plain tensor code. Can go with torch 2.11.
    """

    @staticmethod
    def forward(ctx: Any, image: Tensor, grid: Tensor, reading: Reading) -> Tensor:
        ctx.save_for_backward(image, grid)
        ctx.reading = reading
        return grid_sample(image, grid, reading)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (image, grid), reading, (cotangent,) = ctx.saved_tensors, ctx.reading, cotangents
        wanted = ctx.needs_input_grad[:2]
        if not torch.is_grad_enabled():
            dims = image.ndim - 2
            operator = (
                torch.ops.aten.grid_sampler_2d_backward
                if dims == 2
                else torch.ops.aten.grid_sampler_3d_backward
            )
            kernel, padding = ATEN_KERNELS[reading.kernel_name], ATEN_PADDINGS[reading.padding]
            d_image, d_grid = operator(cotangent, image, grid, kernel, padding, reading.align_corners, wanted)
            return d_image if wanted[0] else None, d_grid if wanted[1] else None, None
        positions = pixel_axes(grid[:, None].unbind(-1), tuple(image.shape[2:]), reading.align_corners)
        output = reference.read(image, positions, None, reading).squeeze(2)
        leaves = [leaf for leaf, want in zip((image, grid), wanted, strict=True) if want]
        found = iter(torch.autograd.grad(output, leaves, cotangent, create_graph=True))
        return next(found) if wanted[0] else None, next(found) if wanted[1] else None, None


def nowhere(reading: Reading) -> float:
    """What a NaN coordinate becomes: outside under zeros, at the edge of pixel 0 under the other paddings."""
    return -FAR if reading.padding == "zeros" else -1.0


def tame(position: Tensor, nan: float) -> Tensor:
    """Finite coordinates; those that were not get no gradient."""
    return torch.where(position.isnan(), nan, position.clamp(-FAR, FAR))
