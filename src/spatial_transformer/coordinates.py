"""Frames and lattices: the conventions of this package, stated once.

**Pull.** theta maps *output* (target) coordinates to *input* (source) coordinates, as in the paper's
equation 1: ``source = T_theta(target)``. A theta that shrinks coordinates zooms into the image.

**Order.** Coordinates are (x, y) or (x, y, z) along the last axis. Sizes and images are in PyTorch's
order, (H, W) or (D, H, W); only coordinates are (x, y, z).

**Frame.** Coordinates are normalised to [-1, 1] over the extent of the image:

    align_corners=False (default)      -1 |  a  |  b  |  c  | 1     the outer edges of the border pixels
    align_corners=True                    | -1  |  0  |  1  |       their centres

An axis of size 1 with ``align_corners=True`` has no extent: every coordinate means pixel 0.

**Pixels.** Pixel coordinates have the centre of pixel m at m. Internally they are *counted from the
centre of the image*, ``j - (W - 1) / 2``: these numbers are exact in every float dtype that holds W, which
is what makes the identity transform exact bit for bit.

**Paddings**, for a row ``a b c``:

    zeros                          0 0 | a b c | 0 0
    a number f                     f f | a b c | f f
    border                         a a | a b c | c c
    circular                       b c | a b c | a b
    reflection                     b a | a b c | c b      (align_corners=False: about the outer edge)
                                   c b | a b c | b a      (align_corners=True: about the border pixel)

**At integer positions** the derivative of the bilinear kernel is the right-hand one. The paper's equation
7, read to the letter, gives ``+U`` of that very pixel there, which is no derivative of equation 5 (a
constant image would have a slope); away from integers the two agree. Equation 6 as printed sums over n and
m; the derivative with respect to one pixel U_nm is the summand. This matters: the identity start of a
spatial transformer puts every sample on an integer.

**Not finite.** A theta that holds a NaN has NaN coordinates. A NaN coordinate is outside the image under
zeros and fill, and reads pixel 0 under the other paddings; its gradient is zero. Infinite and huge
coordinates are outside. Every output and gradient stays finite, and the other samples of the batch are
bit for bit what they would be without it (for finite images: a tap of weight zero on an infinite pixel
may give NaN).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

Size = Sequence[int]  # (H, W) or (D, H, W)


def span(size: int, align_corners: bool) -> int:
    """The length in pixels of normalised -1 to 1 along an axis of ``size`` pixels."""
    return size - 1 if align_corners else size


def ratio(numerator: float, span: int) -> float:
    """``numerator / span``, and 0 for an axis without extent."""
    return numerator / span if span else 0.0


def axes(
    size: Size,
    align_corners: bool | None,
    *,
    dtype: torch.dtype,
    device: torch.device | None = None,
    trailing: int = 0,
) -> list[Tensor]:
    """The coordinates of a lattice along x, y (, z), each shaped to broadcast over ``size``.

    Normalised coordinates, or centred pixels where ``align_corners`` is None; ``trailing`` more axes of
    size 1 follow.
    """
    found = []
    for axis, length in enumerate(reversed(size)):  # x is the last axis of the image
        half_pixels = torch.arange(
            1 - length, length, 2, dtype=dtype, device=device
        )  # from the centre: exact
        step = 0.5 if align_corners is None else ratio(1.0, span(length, align_corners))
        found.append((half_pixels * step).reshape(-1, *[1] * (axis + trailing)))
    return found


def lattice(
    size: Size, align_corners: bool, *, dtype: torch.dtype, device: torch.device | None = None
) -> Tensor:
    """Normalised coordinates of every pixel of an image of ``size``, x first. [*size, dims]"""
    along = axes(size, align_corners, dtype=dtype, device=device)
    return torch.stack([position.expand(*size) for position in along], dim=-1)


def control_lattice(points: Size) -> Tensor:
    """Control points spread evenly over [-1, 1], the last axis of ``points`` fastest. float64 [K, dims]"""
    along = [[-1.0 + 2.0 * i / (n - 1) for i in range(n)] for n in points]
    return torch.tensor([p[::-1] for p in itertools.product(*along)], dtype=torch.float64, device="cpu")


def to_pixels(coordinates: Tensor, size: Size, align_corners: bool = False) -> Tensor:
    """Normalised coordinates [..., dims] as pixel coordinates of an image of ``size``.

    >>> to_pixels(torch.tensor([[-1.0, 1.0]]), size=(4, 6))
    tensor([[-0.5000,  3.5000]])
    """
    return torch.stack(pixel_axes(coordinates.unbind(-1), size, align_corners), dim=-1)


def to_normalised(pixels: Tensor, size: Size, align_corners: bool = False) -> Tensor:
    """Pixel coordinates [..., dims] in an image of ``size`` as normalised coordinates.

    >>> to_normalised(torch.tensor([[-0.5, 3.5]]), size=(4, 6))
    tensor([[-1.,  1.]])
    """
    along = [
        (position - (length - 1) / 2) * ratio(2.0, span(length, align_corners))
        for position, length in zip(pixels.unbind(-1), reversed(size), strict=True)
    ]
    return torch.stack(along, dim=-1)


def pixel_axes(coordinates: Sequence[Tensor], size: Size, align_corners: bool) -> list[Tensor]:
    """Normalised coordinates along x, y (, z) as pixel coordinates, with no constant to copy to a device."""
    found = []
    for position, length in zip(coordinates, reversed(size), strict=True):
        extent = span(length, align_corners)
        if not extent:  # pixel 0 for every coordinate, of which inf * 0 would make NaN
            position = position.nan_to_num(0.0, 0.0, 0.0)
        found.append(position * (extent / 2) + (length - 1) / 2)
    return found


def differences(values: Tensor, dim: int) -> Tensor:
    """Change per step along an axis: central inside, one-sided at the ends, zero along an axis of size 1."""
    length = values.shape[dim]
    if length == 1:
        return torch.zeros_like(values)
    step = values.narrow(dim, 1, length - 1) - values.narrow(dim, 0, length - 1)
    middle = (step.narrow(dim, 1, length - 2) + step.narrow(dim, 0, length - 2)) / 2
    return torch.cat([step.narrow(dim, 0, 1), middle, step.narrow(dim, length - 2, 1)], dim=dim)


def half_pixel_steps(size: Size, align_corners: bool, *, like: Tensor) -> list[Tensor]:
    """From a pixel's centre to the middle of its side, along x, y (, z), normalised. [dims] each"""
    dims = len(size)
    steps = []
    for axis, length in enumerate(reversed(size)):
        step = torch.zeros(dims, dtype=like.dtype, device=like.device)
        step[axis] = ratio(1.0, span(length, align_corners))
        steps.append(step)
    return steps
