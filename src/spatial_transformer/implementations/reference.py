"""The paper's equations in plain tensor code: the truth that every other implementation is held to.

Every family, kernel, padding, dtype and device, derivatives of any order in both modes, ``torch.func``,
compile and export. Nobody optimises this file.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from ..antialias import footprints, grid_jacobian, widened_taps
from ..coordinates import Size, pixel_axes, span
from ..family import Family, settle
from ..kernels import Reading
from ..modes import function_transform

# Positions further out than this are held here: whole numbers of this size are exact in int64 and in floats.
FAR = 2.0**30


def why_not(image: Tensor, reading: Reading) -> str | None:
    """A sentence that says why this implementation cannot run, or None."""
    return None


def how(image: Tensor, reading: Reading) -> str:
    """What this implementation does with such a call."""
    return "plain tensor code"


def warp(image: Tensor, theta: Tensor, family: Family, size: Size, reading: Reading) -> Tensor:
    """V of equation 3 for the grid T_theta(G).

    [N, C, *in], [N, P] -> [N, C, *size]; theta [N, T, P] -> [N, T, C, *size]
    """
    if theta.ndim == 2:
        return warp(image, theta[:, None], family, size, reading).squeeze(1)
    theta, lost = settle(theta.to(compute_dtype(image, theta)))
    in_size = tuple(image.shape[2:])
    positions = family.pixels(theta, in_size, size, reading.align_corners)
    lost = lost.reshape(*lost.shape, *[1] * family.dims)
    positions = [
        torch.where(lost, torch.nan, position) if span(length, reading.align_corners) else position
        for position, length in zip(positions, reversed(in_size), strict=True)
    ]
    spans = None
    if reading.antialias:
        slopes = family.jacobian(theta, in_size, size, reading.align_corners)
        spans = footprints(slopes, reading.limit, rounded_over=0 if family.homogeneous else max(in_size))
    return arranged(read(image.to(theta.dtype), positions, spans, reading), image)


def sample(image: Tensor, grid: Tensor, reading: Reading) -> Tensor:
    """V of equation 3 for a given grid.

    [N, C, *in], [N, *out, dims] -> [N, C, *out]; a grid [N, T, *out, dims] -> [N, T, C, *out]
    """
    if grid.ndim == image.ndim:
        return sample(image, grid[:, None], reading).squeeze(1)
    grid = grid.to(compute_dtype(image, grid))
    positions = pixel_axes(grid.unbind(-1), tuple(image.shape[2:]), reading.align_corners)
    spans = None
    if reading.antialias:
        spans = footprints(grid_jacobian(positions), reading.limit, rounded_over=max(image.shape[2:]))
    return arranged(read(image.to(grid.dtype), positions, spans, reading), image)


def compute_dtype(image: Tensor, other: Tensor) -> torch.dtype:
    """Coordinates, weights and sums are float32 at least."""
    if image.dtype == torch.float64 or other.dtype == torch.float64:
        return torch.float64
    return torch.float32


def read(
    image: Tensor, positions: Sequence[Tensor], spans: Sequence[Tensor] | None, reading: Reading
) -> Tensor:
    """Equation 3 over the kernel's support. [N, C, *in], dims x [N, T, *out] pixels -> [N, C, T, *out]"""
    lengths = tuple(reversed(image.shape[2:]))
    strides = [1, *itertools.accumulate(lengths, lambda a, b: a * b)]
    beyond = reading.padding in ("zeros", "fill")  # whether there is an outside at all
    taps: list[list[tuple[Tensor, Tensor]]] = []
    all_weight = kept_weight = torch.ones((), dtype=image.dtype, device=image.device)
    for axis, position in enumerate(positions):
        position = finite(position, nan=-FAR if beyond else 0.0)
        if spans is None:
            first, weights = reading.kernel.plain_taps(position, axis)
        else:
            first, weights = widened_taps(reading.kernel, position, spans[axis], axis, reading.limit)
        base = first.to(torch.int64)
        found = []
        total = kept = torch.zeros_like(position)
        for offset, weight in weights.items():
            index, within = padded(base + offset, lengths[axis], reading)
            total = total + weight
            if beyond:
                weight = torch.where(within, weight, 0.0)
                kept = kept + weight
            found.append((index * strides[axis], weight))
        taps.append(found)
        all_weight, kept_weight = all_weight * total, kept_weight * kept
    flat = image.flatten(2)  # [N, C, pixels]
    batch, channels = flat.shape[:2]
    result = None
    for chosen in itertools.product(*reversed(taps)):  # x fastest
        index, weight = chosen[0]
        for other_index, other_weight in chosen[1:]:
            index, weight = index + other_index, weight * other_weight
        where = index.flatten(1)[:, None].expand(-1, channels, -1)
        value = flat.gather(2, where).reshape(batch, channels, *index.shape[1:]) * weight[:, None]
        result = value if result is None else result + value
    assert result is not None
    if reading.padding == "fill":
        fill = reading.fill
        if isinstance(fill, Tensor):
            fill = fill.to(result).reshape(-1, *[1] * (result.ndim - 2))
        result = result + (all_weight - kept_weight)[:, None] * fill
    return result


def finite(position: Tensor, *, nan: float) -> Tensor:
    """Positions that can be turned into whole numbers; those that were not finite get no gradient."""
    return torch.where(position.isnan(), nan, position.clamp(-FAR, FAR))


def padded(index: Tensor, length: int, reading: Reading) -> tuple[Tensor, Tensor]:
    """The pixel that a tap reads, and whether the tap lies within the image."""
    within = (index >= 0) & (index < length)
    if reading.padding == "circular":
        return index.remainder(length), within
    if reading.padding == "reflection":
        if reading.align_corners:
            period = max(2 * (length - 1), 1)
            folded = index.remainder(period)
            return torch.where(folded < length, folded, period - folded), within
        folded = index.remainder(2 * length)
        return torch.where(folded < length, folded, 2 * length - 1 - folded), within
    return index.clamp(0, length - 1), within


def arranged(result: Tensor, image: Tensor) -> Tensor:
    """[N, C, T, *out] as [N, T, C, *out] in the image's dtype and memory format."""
    result = result.to(image.dtype).transpose(1, 2)
    last = torch.channels_last if image.ndim == 4 else torch.channels_last_3d
    # Layouts cannot be asked for under vmap, and mean nothing there.
    if not function_transform() and image.is_contiguous(memory_format=last) and not image.is_contiguous():
        return result.movedim(2, -1).contiguous().movedim(-1, 2)
    return result.contiguous()
