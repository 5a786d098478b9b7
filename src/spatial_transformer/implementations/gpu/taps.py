"""k() of equation 3, as it is and stretched to a footprint, and the taps of an image that it weighs."""

from __future__ import annotations

import triton
import triton.language as tl

from .constants import _CUBIC, BILINEAR, BORDER, CIRCULAR, FILL, NEAREST, REFLECTION
from .pixels import _along

# k() of equation 3


@triton.jit
def _k(d, KERNEL: tl.constexpr):
    """The kernel at a distance of d pixels."""
    if KERNEL == NEAREST:
        return tl.where((d >= -0.5) & (d < 0.5), 1.0, 0.0).to(d.dtype)
    if KERNEL == BILINEAR:
        return tl.maximum(1 - tl.abs(d), 0.0).to(d.dtype)
    far = tl.abs(d)
    near_part = ((_CUBIC + 2) * far - (_CUBIC + 3)) * d * d + 1
    far_part = _CUBIC * (((far - 5) * far + 8) * far - 4)
    return tl.where(far < 1, near_part, tl.where(far < 2, far_part, 0.0)).to(d.dtype)


@triton.jit
def _dk(d, KERNEL: tl.constexpr):
    """The kernel's slope at d, the right-hand one at its corners."""
    if KERNEL == NEAREST:
        return tl.zeros_like(d)
    if KERNEL == BILINEAR:
        return tl.where((d >= -1) & (d < 0), 1.0, tl.where((d >= 0) & (d < 1), -1.0, 0.0)).to(d.dtype)
    far = tl.abs(d)
    near_part = (3 * (_CUBIC + 2) * far - 2 * (_CUBIC + 3)) * d
    far_part = _CUBIC * ((3 * far - 10) * far + 8)
    far_part = tl.where(d < 0, -far_part, far_part)
    return tl.where(far < 1, near_part, tl.where(far < 2, far_part, 0.0)).to(d.dtype)


@triton.jit
def _first(position, KERNEL: tl.constexpr):
    """The tap that others are counted from, and where in its pixel the position lies."""
    low = tl.floor(position)
    if KERNEL == NEAREST:
        low = tl.where(position - low >= 0.5, low + 1, low)
    return low.to(tl.int32), position - low


@triton.jit
def _weight(inside, tap, KERNEL: tl.constexpr):
    """The weight of the tap ``tap`` pixels from the first."""
    if KERNEL == NEAREST:
        return tl.zeros_like(inside) + 1
    if KERNEL == BILINEAR:
        return tl.where(tap == 0, 1 - inside, inside)
    return _k(inside - tap, KERNEL)


@triton.jit
def _slope(inside, tap, KERNEL: tl.constexpr):
    """How that weight changes with the position."""
    if KERNEL == NEAREST:
        return tl.zeros_like(inside)
    if KERNEL == BILINEAR:
        return tl.where(tap == 0, -1.0, 1.0) + tl.zeros_like(inside)
    return _dk(inside - tap, KERNEL)


# Anti-aliasing: the kernel stretched to a footprint, its weights divided by their sum


@triton.jit
def _footprint(a, b, c, near, LIMIT):
    """The length of a row of the Jacobian from 1 to the limit, and whether it follows the row there."""
    a = tl.where(tl.abs(a) < float("inf"), a, 0.0)
    b = tl.where(tl.abs(b) < float("inf"), b, 0.0)
    c = tl.where(tl.abs(c) < float("inf"), c, 0.0)
    squared = a * a + b * b + c * c
    m_wider = squared > (1 + near) * (1 + near)
    held = tl.minimum(tl.where(m_wider, squared, 1.0), LIMIT * LIMIT)
    return tl.sqrt(held), m_wider & (squared <= LIMIT * LIMIT)


@triton.jit
def _reach(footprint, KERNEL: tl.constexpr):
    """The furthest tap that any pixel of the block needs."""
    widest = tl.max(footprint, 0)
    radius = 0.5 if KERNEL == NEAREST else (1.0 if KERNEL == BILINEAR else 2.0)
    return tl.ceil(widest * radius).to(tl.int32)


@triton.jit
def _lowest(reach, KERNEL: tl.constexpr):
    return -reach if KERNEL == NEAREST else 1 - reach


@triton.jit
def _total(inside, footprint, reach, KERNEL: tl.constexpr):
    """The sum of the stretched weights, and of their slopes in d / footprint, alone and times that."""
    total = tl.zeros_like(inside)
    slopes = tl.zeros_like(inside)
    moments = tl.zeros_like(inside)
    for tap in range(_lowest(reach, KERNEL), reach + 1):
        d = (inside - tap) / footprint
        total += _k(d, KERNEL)
        slope = _dk(d, KERNEL)
        slopes += slope
        moments += slope * d
    m_still = footprint == 1
    return tl.where(m_still, 1.0, total), tl.where(m_still, 0.0, slopes), tl.where(m_still, 0.0, moments)


@triton.jit
def _wide(inside, tap, footprint, total, KERNEL: tl.constexpr):
    """The weight of a tap: the plain kernel's where nothing is stretched."""
    if KERNEL == NEAREST:
        still = tl.where(tap == 0, 1.0, 0.0) + tl.zeros_like(inside)
    elif KERNEL == BILINEAR:
        still = tl.where(tap == 0, 1 - inside, tl.where(tap == 1, inside, 0.0))
    else:
        still = _k(inside - tap, KERNEL)
    return tl.where(footprint == 1, still, _k((inside - tap) / footprint, KERNEL) / total)


# Where taps lie


@triton.jit
def _padded(index, length, PADDING: tl.constexpr, ALIGN: tl.constexpr):
    """``reference.padded``: the pixel that a tap reads, and whether there is one; if not, it may be any."""
    if PADDING == CIRCULAR:
        index = index % length
        return tl.where(index < 0, index + length, index), index == index
    if PADDING == REFLECTION:
        period = tl.maximum(2 * (length - 1), 1) if ALIGN else 2 * length
        index = index % period
        index = tl.where(index < 0, index + period, index)
        return tl.where(index < length, index, period - (0 if ALIGN else 1) - index), index == index
    if PADDING == BORDER:
        return tl.minimum(tl.maximum(index, 0), length - 1), index == index
    return index, index.to(tl.uint32, bitcast=True) < length.to(tl.uint32, bitcast=True)


@triton.jit
def _offset(
    j_x, j_y, j_z, W, H, D, s_x, s_y, s_z,
    PADDING: tl.constexpr, ALIGN: tl.constexpr, DIMS: tl.constexpr, LARGE: tl.constexpr,
):  # fmt: skip
    """Where in an image a tap lies, and whether it lies within."""
    j_x, m_within = _padded(j_x, W, PADDING, ALIGN)
    j_y, m_y = _padded(j_y, H, PADDING, ALIGN)
    m_within &= m_y
    offset = _along(j_x, s_x, LARGE) + _along(j_y, s_y, LARGE)
    if DIMS == 3:
        j_z, m_z = _padded(j_z, D, PADDING, ALIGN)
        m_within &= m_z
        offset += _along(j_z, s_z, LARGE)
    return offset, m_within


@triton.jit
def _tap(
    p_image, p_fill, j_x, j_y, j_z, m_pixel, o_channel, m_channel, i_channel,
    W, H, D, s_x, s_y, s_z,
    PADDING: tl.constexpr, ALIGN: tl.constexpr, DIMS: tl.constexpr, COMPUTE: tl.constexpr,
    LARGE: tl.constexpr,
):  # fmt: skip
    """What a tap at pixel (j_x, j_y, j_z) reads in each channel. [BLOCK, CHANNELS]"""
    offset, m_within = _offset(j_x, j_y, j_z, W, H, D, s_x, s_y, s_z, PADDING, ALIGN, DIMS, LARGE)
    m_within &= m_pixel
    mask = m_within[:, None] & m_channel[None, :]
    value = tl.load(p_image + (offset[:, None] + o_channel[None, :]), mask=mask, other=0.0).to(COMPUTE)
    if PADDING == FILL:
        b_fill = tl.load(p_fill + i_channel, mask=m_channel, other=0.0)
        value = tl.where(m_within[:, None], value, b_fill[None, :])
    return value
