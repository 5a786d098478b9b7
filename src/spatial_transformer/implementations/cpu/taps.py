"""The taps of single pixels: of any kernel of any width, and of a bilinear one partly outside the image."""

from __future__ import annotations

import math

import numpy as np

from ..reference import FAR
from .aim import counted, kernel_at, padded, place_of, reach, rounded
from .jit import jit, jit_blend
from .lanes import (
    LANES,
    every,
    floor_lanes,
    get_lanes,
    held_lanes,
    held_whole,
    minus,
    plus,
    put_lanes,
    real_lanes,
    times,
    whole_lanes,
    within,
)
from .memory import get, int32, int64, load, put, uint32
from .plan import (
    BICUBIC,
    BILINEAR,
    COUNT,
    FIRST,
    FOOT,
    INSIDE_PIXEL,
    NEAREST,
    POSITION,
    SECOND,
    STEEP,
    TAP_OFFSET,
    TAP_SLOPE,
    TAP_WEIGHT,
    TAP_WIDTH,
    WEIGHT,
    WHOLE,
    Run,
    Work,
    line,
    place_line,
    share_line,
    tap_line,
    words,
)

# One pixel, any kernel of any width: its taps along each axis, and their products


@jit
def axis_taps(work: Work, a: int, j: int) -> None:
    """The taps that count: k((x - m) / s), over their sum where s is not 1; plain k where it is."""
    plan, zero, kernel = work.plan, work.zero, work.plan.kernel
    real = type(zero)
    place = place_of(work, a, j)
    left = rounded(place) if kernel == NEAREST else np.floor(place)
    inside, base = place - left, int64(left)
    foot = get(line(work, FOOT + a), j, zero) if plan.antialias else real(1)
    plain = foot == real(1)
    before, after = reach(kernel)
    total, total_slope, total_width = real(1), zero, zero
    if not plain:
        radius = real(0.5) if kernel == NEAREST else real(after)
        widest = int64(math.ceil(radius * real(plan.limit)))
        before = -max(int64(math.floor(inside - radius * foot)), -widest)
        after = min(int64(math.ceil(inside + radius * foot)), widest)
        total = zero
        for k in range(-before, after + 1):
            distance = (inside - real(k)) / foot
            tap, slope = kernel_at(kernel, distance)
            total += tap
            total_slope += slope / foot
            total_width -= slope * distance / foot
    p_whole, p_offset, p_weight = (
        words(work, WHOLE),
        tap_line(work, TAP_OFFSET, a),
        tap_line(work, TAP_WEIGHT, a),
    )
    p_slope, p_width = tap_line(work, TAP_SLOPE, a), tap_line(work, TAP_WIDTH, a)
    whole, whole_slope, whole_width, count = zero, zero, zero, 0
    low, high = counted(work, a)
    for k in range(-before, after + 1):
        width = zero
        if not plain:
            distance = (inside - real(k)) / foot
            tap, slope = kernel_at(kernel, distance)
            slope /= foot
            tap, width = tap / total, -slope * distance
            slope = (slope - tap * total_slope) / total
            width = (width - tap * total_width) / total
        elif kernel == BILINEAR:
            tap, slope = (inside, real(1)) if k == 1 else (real(1) - inside, real(-1))
        elif kernel == BICUBIC:
            tap, slope = kernel_at(kernel, inside - real(k))
        else:
            tap, slope = real(1), zero
        whole += tap
        whole_slope += slope
        whole_width += width
        index = padded(plan, base + k, plan.lengths[a])
        if low <= index < high:
            put(p_offset, count, index * work.strides[a])
            put(p_weight, count, tap)
            put(p_slope, count, slope)
            put(p_width, count, width)
            count += 1
    put(words(work, COUNT), a, int64(count))
    put(p_whole, 3 * a, whole)
    put(p_whole, 3 * a + 1, whole_slope)
    put(p_whole, 3 * a + 2, whole_width)


@jit
def count_of(work: Work, a: int) -> int:
    return get(words(work, COUNT), a, 0)


@jit
def tap_at(work: Work, what: int, a: int, k: int) -> float:
    return get(tap_line(work, what, a), k, work.zero)


@jit
def one_tap(work: Work) -> None:
    """The axis that a 2D image lacks has one tap."""
    one = type(work.zero)(1)
    put(words(work, COUNT), 2, int64(1))
    put(tap_line(work, TAP_OFFSET, 2), 0, int64(0))
    put(tap_line(work, TAP_WEIGHT, 2), 0, one)
    put(tap_line(work, TAP_SLOPE, 2), 0, work.zero)
    put(tap_line(work, TAP_WIDTH, 2), 0, work.zero)
    put(words(work, WHOLE), 6, one)


@jit
def pixel_taps(work: Work, j: int) -> int:
    """The products of an output pixel's taps, x fastest, filled up to a multiple of four with zeros."""
    for a in range(work.plan.dims):
        axis_taps(work, a, j)
    if work.plan.dims == 2:
        one_tap(work)
    p_place, p_share, count = place_line(work), share_line(work), 0
    for k_z in range(count_of(work, 2)):
        for k_y in range(count_of(work, 1)):
            o = get(tap_line(work, TAP_OFFSET, 2), k_z, 0) + get(tap_line(work, TAP_OFFSET, 1), k_y, 0)
            side = tap_at(work, TAP_WEIGHT, 2, k_z) * tap_at(work, TAP_WEIGHT, 1, k_y)
            for k_x in range(count_of(work, 0)):
                put(p_place, count, o + get(tap_line(work, TAP_OFFSET, 0), k_x, 0))
                put(p_share, count, side * tap_at(work, TAP_WEIGHT, 0, k_x))
                count += 1
    while count % 4:
        put(p_place, count, get(p_place, 0, 0))
        put(p_share, count, work.zero)
        count += 1
    return count


@jit
def kept(work: Work, what: int, a: int) -> float:
    """The sum of what counts of an axis' weights, slopes or widths."""
    total = work.zero
    for k in range(count_of(work, a)):
        total += tap_at(work, what, a, k)
    return total


@jit
def whole(work: Work, a: int, k: int) -> float:
    """The sum of all of an axis' weights (0), slopes (1) or widths (2)."""
    return get(words(work, WHOLE), 3 * a + k, work.zero)


# Pixels that a plain bilinear kernel reads partly outside: two taps along each axis


@jit
def tap_beside(work: Work, a: int, index: int) -> tuple[int, float]:
    """The offset of a pixel that can be read, and 1 if it is the one the tap means, else 0."""
    low, high = counted(work, a)
    if not work.plan.beyond:
        index = padded(work.plan, index, work.plan.lengths[a])
    counts = (index >= low) & (index < high)
    o = int32(min(max(index, low), high - 1) * work.strides[a])
    return o, type(work.zero)(1) if counts else work.zero


@jit
def beside_run(work: Work, run: Run) -> None:
    """The taps' offsets, weights and slopes; what was held gets no slope."""
    if work.plan.beyond:
        beside_zeros(work, run)
    else:
        beside_padded(work, run)


@jit
def beside_zeros(work: Work, run: Run) -> None:
    """Where taps outside do not count. Vectors may reach beyond the run: nobody reads these lines there."""
    zero, far = work.zero, every(type(work.zero)(FAR))
    one, none = every(type(zero)(1)), every(zero)
    for a in range(work.plan.dims):
        low, high = counted(work, a)
        first, many, last, stride = (
            int32(low),
            uint32(high - low),
            int32(high - 1),
            every(int32(work.strides[a])),
        )
        for j in range(run.start, run.stop, LANES):
            x = held_lanes(get_lanes(line(work, POSITION + a), j, zero), minus(none, far), far)
            left = floor_lanes(x)
            inside, i = minus(x, left), whole_lanes(left)
            right = plus(i, every(int32(1)))
            of_left = real_lanes(within(i, first, many), zero)
            of_right = real_lanes(within(right, first, many), zero)
            put_lanes(line(work, FIRST + a), j, times(held_whole(i, first, last), stride))
            put_lanes(line(work, SECOND + a), j, times(held_whole(right, first, last), stride))
            put_lanes(line(work, INSIDE_PIXEL + a), j, inside)
            put_lanes(line(work, STEEP + 2 * a), j, of_left)
            put_lanes(line(work, STEEP + 2 * a + 1), j, of_right)
            put_lanes(line(work, WEIGHT + 4 * a), j, times(of_left, minus(one, inside)))
            put_lanes(line(work, WEIGHT + 4 * a + 1), j, times(of_right, inside))
            put_lanes(line(work, WEIGHT + 4 * a + 2), j, minus(none, of_left))
            put_lanes(line(work, WEIGHT + 4 * a + 3), j, of_right)


@jit
def beside_padded(work: Work, run: Run) -> None:
    far, one_whole = type(work.zero)(FAR), type(work.zero)(1)
    for a in range(work.plan.dims):
        p_first, p_second, p_inside = (
            line(work, FIRST + a),
            line(work, SECOND + a),
            line(work, INSIDE_PIXEL + a),
        )
        for j in range(run.start, run.stop):
            place = place_of(work, a, j)
            left = np.floor(place)
            inside, i = place - left, int64(left)
            o_first, first = tap_beside(work, a, i)
            o_second, second = tap_beside(work, a, i + 1)
            put(line(work, STEEP + 2 * a), j, first)
            put(line(work, STEEP + 2 * a + 1), j, second)
            put(p_first, j, o_first)
            put(p_second, j, o_second)
            put(p_inside, j, inside)
            moves = -far <= get(line(work, POSITION + a), j, far) <= far
            put(line(work, WEIGHT + 4 * a), j, first * (one_whole - inside))
            put(line(work, WEIGHT + 4 * a + 1), j, second * inside)
            put(line(work, WEIGHT + 4 * a + 2), j, -first if moves else work.zero)
            put(line(work, WEIGHT + 4 * a + 3), j, second if moves else work.zero)


@jit_blend
def beside_axis(work: Work, a: int, k: int, j: int, first: float, second: float) -> float:
    """Two values by the weights (k = 0) or slopes (k = 2) of an axis."""
    value = get(line(work, WEIGHT + 4 * a + k), j, first) * first
    return value + get(line(work, WEIGHT + 4 * a + k + 1), j, first) * second


@jit_blend
def beside_line(work: Work, o: int, j: int, k: int) -> float:
    p_first, p_second, whole_number = line(work, FIRST), line(work, SECOND), int32(0)
    first = load(work.image, o + get(p_first, j, whole_number), work.stored, work.zero)
    second = load(work.image, o + get(p_second, j, whole_number), work.stored, work.zero)
    return beside_axis(work, 0, k, j, first, second)


@jit_blend
def beside_square(work: Work, o: int, j: int, k_x: int, k_y: int) -> float:
    first = beside_line(work, o + get(line(work, FIRST + 1), j, int32(0)), j, k_x)
    second = beside_line(work, o + get(line(work, SECOND + 1), j, int32(0)), j, k_x)
    return beside_axis(work, 1, k_y, j, first, second)


@jit_blend
def beside_at(work: Work, o: int, j: int, k_x: int, k_y: int, k_z: int) -> float:
    if work.plan.dims == 2:
        return beside_square(work, o, j, k_x, k_y)
    first = beside_square(work, o + get(line(work, FIRST + 2), j, int32(0)), j, k_x, k_y)
    second = beside_square(work, o + get(line(work, SECOND + 2), j, int32(0)), j, k_x, k_y)
    return beside_axis(work, 2, k_z, j, first, second)


@jit
def kept_beside(work: Work, a: int, k: int, j: int) -> float:
    """The sum of what counts of an axis' weights (k = 0) or slopes (k = 2); 1 for a missing axis."""
    one = type(work.zero)(1)
    return beside_axis(work, a, k, j, one, one) if a < work.plan.dims else one


@jit_blend
def between(u: float, v: float, share: float) -> float:
    return u + share * (v - u)
