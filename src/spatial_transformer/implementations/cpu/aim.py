"""Where the taps of positions are, which of them count, and what they weigh."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..reference import FAR
from .jit import jit
from .lanes import (
    LANES,
    both_of,
    every,
    floor_lanes,
    get_lanes,
    held_lanes,
    minus,
    plus,
    put_lanes,
    times,
    whole_lanes,
    within,
)
from .memory import Tag, get, int32, int64, put, uint32
from .plan import (
    BESIDE,
    BICUBIC,
    BILINEAR,
    BORDER,
    CIRCULAR,
    CUBIC,
    INSIDE_PIXEL,
    MARK,
    NEAREST,
    NOWHERE,
    OFFSET,
    POSITION,
    STEEP,
    WEIGHT,
    Record,
    Variant,
    Work,
    line,
)
from .positions import fill_line, finite


class Aim(NamedTuple):
    """What of an axis' pixels counts, as whole numbers of the kernel's middle tap."""

    first: int  # all taps count from here
    many: int  # on so many
    low: int  # none counts before this
    none: int  # nor after so many
    stride: int
    far: float  # FAR as a real number


@jit
def aim_at(work: Work, a: int) -> Aim:
    plan = work.plan
    before, after = reach(plan.kernel)
    low, high = (work.low, work.high) if a == plan.dims - 1 else (int64(0), plan.lengths[a])
    first, many = int32(low + before), uint32(max(high - low - before - after, 0))
    lowest, none = low - after, high - low + before + after
    if not plan.beyond:  # what is outside is padded from anywhere
        lowest, none = int64(-FAR - 1), int64(2**32 - 1)
    far = type(work.zero)(FAR)
    return Aim(first, many, int32(lowest), uint32(none), int32(work.strides[a]), far)


@jit
def reach(kernel: int) -> tuple[int, int]:
    """Taps before and after the middle one of a plain kernel."""
    if kernel == NEAREST:
        return 0, 0
    return (1, 2) if kernel == BICUBIC else (0, 1)


@jit
def aimed(x: Tag, aim: Aim) -> tuple[Tag, Tag, Tag, Tag]:
    """How far right of their pixels positions are, those' offsets, whether all taps count, whether any."""
    x = held_lanes(x, every(-aim.far), every(aim.far))  # NaN too: no whole number is made of it
    left = floor_lanes(x)
    i = whole_lanes(left)
    inside, some = within(i, aim.first, aim.many), within(i, aim.low, aim.none)
    return minus(x, left), times(i, every(aim.stride)), inside, some


@jit
def marked(inside: Tag, some: Tag) -> Tag:
    """INSIDE, BESIDE or NOWHERE; what is inside counts."""
    return minus(minus(every(int32(NOWHERE)), some), inside)


@jit
def aim_row(work: Work, steep: bool, variant: Variant) -> None:
    """Where a row's taps are, and which of them count."""
    plan, zero, width = work.plan, work.zero, work.plan.out[0]
    p_mark, p_offset = line(work, MARK), line(work, OFFSET)
    if not plan.by_rows:
        fill_line(p_mark, width, int32(BESIDE))
        return
    if len(variant) > 1:
        weigh_row(work, steep)
    aim_x, aim_y, aim_z = aim_at(work, 0), aim_at(work, 1), aim_at(work, plan.dims - 1)
    p_x, p_y, p_z = line(work, POSITION), line(work, POSITION + 1), line(work, POSITION + 2)
    p_right, p_below, p_behind = (
        line(work, INSIDE_PIXEL),
        line(work, INSIDE_PIXEL + 1),
        line(work, INSIDE_PIXEL + 2),
    )
    before = int32(reach(plan.kernel)[0] * (work.strides[0] + work.strides[1]))
    if plan.dims == 3:
        before = int32(before + reach(plan.kernel)[0] * work.strides[2])
    for j in range(0, width, LANES):
        right, o_x, inside_x, some_x = aimed(get_lanes(p_x, j, zero), aim_x)
        below, o_y, inside_y, some_y = aimed(get_lanes(p_y, j, zero), aim_y)
        put_lanes(p_right, j, right)
        put_lanes(p_below, j, below)
        o = minus(plus(o_x, o_y), every(before))
        inside, some = both_of(inside_x, inside_y), both_of(some_x, some_y)
        if plan.dims == 3:
            behind, o_z, inside_z, some_z = aimed(get_lanes(p_z, j, zero), aim_z)
            put_lanes(p_behind, j, behind)
            o, inside, some = plus(o, o_z), both_of(inside, inside_z), both_of(some, some_z)
        put_lanes(p_offset, j, o)
        put_lanes(p_mark, j, marked(inside, some))
    if plan.bands > 1 and not plan.beyond:
        skip_other_bands(work)


@jit
def weigh_row(work: Work, steep: bool) -> None:
    """Positions of a nearest kernel rounded; the weights and slopes of a bicubic one, for pixels inside."""
    plan, zero = work.plan, work.zero
    for a in range(plan.dims):
        p_a = line(work, POSITION + a)
        for j in range(plan.out[0]):
            x = get(p_a, j, zero)
            if plan.kernel == NEAREST:
                put(p_a, j, rounded(x))
            elif plan.kernel == BICUBIC:
                inside = x - np.floor(x)
                for k in range(4):
                    put(line(work, WEIGHT + 4 * a + k), j, cubic(inside - type(zero)(k - 1)))
                    if steep:
                        put(line(work, STEEP + 4 * a + k), j, cubic_slope(inside - type(zero)(k - 1)))


@jit
def rounded(x: float) -> float:
    """floor(x + 0.5), without rounding x + 0.5 first."""
    left = np.floor(x)
    return left + type(x)(1) if x - left >= type(x)(0.5) else left


@jit
def skip_other_bands(work: Work) -> None:
    """What is inside the image but in another band counts for nothing, whatever the padding."""
    before, after = reach(work.plan.kernel)
    outermost = work.plan.dims - 1
    p_outermost, p_mark, length = (
        line(work, POSITION + outermost),
        line(work, MARK),
        work.plan.lengths[outermost],
    )
    for j in range(work.plan.out[0]):
        x = get(p_outermost, j, work.zero)
        if before <= x < length - after and not work.low - after <= x < work.high + before:
            put(p_mark, j, int32(NOWHERE))


@jit
def run_end(work: Work, start: int) -> int:
    """Where the pixels that are marked as this one end."""
    p_mark, size, one = line(work, MARK), work.plan.out[0], int32(0)
    mark, stop = get(p_mark, start, one), start + 1
    while stop + 16 <= size:  # as vectors, where the run is long
        others = int32(0)
        for k in range(16):
            others |= get(p_mark, stop + k, one) ^ mark
        if others != 0:
            break
        stop += 16
    while stop < size and get(p_mark, stop, one) == mark:
        stop += 1
    return stop


# The kernels of equation 3


@jit
def cubic(distance: float) -> float:
    """Of ``kernels.cubic``."""
    real = type(distance)
    far, squared = abs(distance), distance * distance
    near_part = (real(CUBIC + 2) * far - real(CUBIC + 3)) * squared + real(1)
    far_part = real(CUBIC) * (((far - real(5)) * far + real(8)) * far - real(4))
    return near_part if far < real(1) else (far_part if far < real(2) else real(0))


@jit
def cubic_slope(distance: float) -> float:
    real = type(distance)
    far = abs(distance)
    near_part = (real(3 * (CUBIC + 2)) * far - real(2 * (CUBIC + 3))) * distance
    far_part = real(CUBIC) * ((real(3) * far - real(10)) * far + real(8))
    far_part = far_part if distance >= 0 else -far_part
    return near_part if far < real(1) else (far_part if far < real(2) else real(0))


@jit
def kernel_at(kernel: int, distance: float) -> tuple[float, float]:
    """k and its slope; halves round up, and corners have the right-hand slope."""
    real = type(distance)
    if kernel == BICUBIC:
        return cubic(distance), cubic_slope(distance)
    if kernel == BILINEAR:
        if distance < real(-1) or distance >= real(1):
            return real(0), real(0)
        if distance < 0:
            return real(1) + distance, real(1)
        return real(1) - distance, real(-1)
    return real(1) if real(-0.5) <= distance < real(0.5) else real(0), real(0)


@jit
def padded(plan: Record, index: int, length: int) -> int:
    """Of ``reference.padded``: the pixel that a tap reads, -1 where it is outside."""
    if 0 <= index < length:
        return index
    if plan.beyond:
        return -1
    if plan.padding == BORDER:
        return 0 if index < 0 else length - 1
    if plan.padding == CIRCULAR:
        return index % length
    if plan.align_corners:
        period = max(2 * (length - 1), 1)
        folded = index % period
        return folded if folded < length else period - folded
    folded = index % (2 * length)
    return folded if folded < length else 2 * length - 1 - folded


@jit
def counted(work: Work, a: int) -> tuple[int, int]:
    """The pixels of an axis that count."""
    if a == work.plan.dims - 1:
        return work.low, work.high
    return int64(0), work.plan.lengths[a]


@jit
def place_of(work: Work, a: int, j: int) -> float:
    """A position made finite."""
    nan = type(work.zero)(-FAR) if work.plan.beyond else work.zero
    return finite(get(line(work, POSITION + a), j, work.zero), nan)
