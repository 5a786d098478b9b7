"""The source positions of a row of output pixels, in the order of ``matrices.homogeneous_rows``."""

from __future__ import annotations

import math

from ...family import HUGE
from ...matrices import HORIZON
from ..reference import FAR
from .jit import jit
from .lanes import LANES, every, minus, plus, put_lanes, ramp, times
from .memory import Tag, add, float64, get, int32, put
from .plan import (
    DEPTH,
    FOOT,
    GRID,
    MATRIX,
    OFFSETS,
    POSITION,
    SLOPE,
    SUMS,
    Variant,
    Work,
    line,
    number_at,
    numbers_line,
)


@jit
def settled(number: float) -> float:
    """Of ``family.settle``."""
    huge = type(number)(HUGE)
    if number != number:
        return type(number)(0)
    return min(max(number, -huge), huge)


@jit
def finite(position: float, nan: float) -> float:
    """Of ``reference.finite``."""
    far = type(position)(FAR)
    held = position if position < far else far
    held = held if held > -far else -far
    return held if position == position else nan


@jit
def settle_numbers(work: Work, n: int, t: int) -> bool:
    """Makes one transform's numbers finite, and tells whether they held a NaN."""
    plan, lost, p_to = work.plan, False, numbers_line(work)
    strides = plan.numbers
    for r in range(plan.rows):
        for b in range(plan.columns):
            o = n * strides[0] + t * strides[1] + r * strides[2] + b * strides[3]
            number = get(work.numbers, o, work.zero)
            lost = lost or number != number
            number = settled(number)
            if plan.kind == MATRIX:
                step = plan.steps[3 if r == plan.dims else r, 3 if b == plan.dims else b]
                number = number * type(number)(step)
            put(p_to, r * plan.columns + b, number)
    return lost


@jit
def centred(index: int, length: int, zero: Tag) -> float:
    """Pixels from the centre: exact."""
    return type(zero)(int32(2 * index - (length - 1))) * type(zero)(0.5)


@jit
def matrix_row(work: Work, r: int, i_z: int, i_y: int, p_to: int, middle: float) -> None:
    """One row of a matrix times the target pixels of an output row, plus a number."""
    plan, zero, dims = work.plan, work.zero, work.plan.dims
    value = number_at(work, r, dims)
    if dims == 3:
        value = value + number_at(work, r, 2) * centred(i_z, plan.out[2], zero)
    value = value + number_at(work, r, 1) * centred(i_y, plan.out[1], zero)
    half = every(type(zero)(plan.out[0] - 1) * type(zero)(0.5))
    value, step, middle = every(value), every(number_at(work, r, 0)), every(middle)
    for j in range(0, plan.out[0], LANES):
        u = minus(plus(ramp(zero), every(type(zero)(int32(j)))), half)
        put_lanes(p_to, j, plus(plus(value, times(step, u)), middle))


@jit
def divide_row(work: Work) -> None:
    """p / w for a row of a projective matrix, NaN on the horizon; and the slopes (e - p / w f) / w."""
    plan, zero, dims = work.plan, work.zero, work.plan.dims
    p_w, infinity, horizon = line(work, DEPTH), type(zero)(math.inf), type(zero)(HORIZON)
    for j in range(plan.out[0]):
        w = get(p_w, j, zero)
        seen = horizon < abs(w) < infinity
        for a in range(dims):
            seen = seen and abs(get(line(work, POSITION + a), j, zero)) < infinity
        if not seen:
            put(p_w, j, zero)
        for a in range(dims):
            p_a = line(work, POSITION + a)
            value = get(p_a, j, zero) / w if seen else type(zero)(math.nan)
            put(p_a, j, value + type(zero)(plan.middle[a]))
            if plan.antialias:
                for b in range(dims):
                    slope = (number_at(work, a, b) - value * number_at(work, dims, b)) / w
                    put(line(work, SLOPE + 3 * a + b), j, slope if seen else zero)


@jit
def grid_row(work: Work, n: int, t: int, i_z: int, i_y: int) -> None:
    plan, zero, strides = work.plan, work.zero, work.plan.numbers
    o_row = n * strides[0] + t * strides[1] + i_z * strides[5] + i_y * strides[4]
    for a in range(plan.dims):
        half_span, middle = type(zero)(plan.half_span[a]), type(zero)(plan.middle[a])
        p_a, o_a = line(work, POSITION + a), o_row + a * strides[6]
        for j in range(plan.out[0]):
            value = get(work.numbers, o_a + j * strides[3], zero) * half_span + middle
            put(p_a, j, value if half_span != 0 else middle)
        if plan.antialias:
            for b in range(plan.dims):
                p_b, o_b = line(work, SLOPE + 3 * a + b), o_a + (1 + b) * strides[2]
                for j in range(plan.out[0]):
                    put(p_b, j, get(work.numbers, o_b + j * strides[3], zero))


@jit
def basis_row(work: Work, i_z: int, i_y: int) -> None:
    """Numbers times basis, summed in float64; the target lattice is added to offsets."""
    plan, zero, width = work.plan, work.zero, work.plan.out[0]
    s_p, half = plan.basis[2], type(zero)(width - 1) * type(zero)(0.5)
    y, z = centred(i_y, plan.out[1], zero), centred(i_z, plan.out[2], zero)
    o_row = (i_z * plan.out[1] + i_y) * width * s_p
    for layer in range(1 + plan.dims if plan.antialias else 1):
        for a in range(plan.dims):
            p_sums = line(work, SUMS + a)
            for j in range(width):
                put(p_sums, j, 0.0)
            for k in range(plan.rows):
                number, o = (
                    float64(number_at(work, k, a)),
                    layer * plan.basis[0] + k * plan.basis[1] + o_row,
                )
                for j in range(width):
                    add(p_sums, j, number * float64(get(work.basis, o + j * s_p, zero)))
            half_span, still, middle = (
                type(zero)(plan.half_span[a]),
                type(zero)(plan.still[a]),
                type(zero)(plan.middle[a]),
            )
            for j in range(width):
                value = type(zero)(get(p_sums, j, 0.0)) * half_span
                if layer == 0:
                    if plan.kind == OFFSETS:
                        target = type(zero)(int32(j)) - half if a == 0 else (y if a == 1 else z)
                        value = target * still + value
                    put(line(work, POSITION + a), j, value + middle)
                else:
                    if plan.kind == OFFSETS and layer == 1 + a:
                        value = value + still
                    put(line(work, SLOPE + 3 * a + layer - 1), j, value)


@jit
def place_row(work: Work, n: int, t: int, i_z: int, i_y: int, lost: bool, variant: Variant) -> None:
    """The source positions of a row of output pixels; with anti-aliasing their slopes and footprints."""
    plan, zero, dims = work.plan, work.zero, work.plan.dims
    if plan.kind == MATRIX:
        for r in range(plan.rows):
            middle = type(zero)(plan.middle[r]) if plan.rows == dims else zero
            matrix_row(work, r, i_z, i_y, line(work, DEPTH if r == dims else POSITION + r), middle)
    if len(variant) > 0:
        place_any(work, n, t, i_z, i_y, variant)
    if lost:
        for a in range(dims):
            if plan.half_span[a] != 0:
                fill_line(line(work, POSITION + a), plan.out[0], type(zero)(math.nan))


@jit
def place_any(work: Work, n: int, t: int, i_z: int, i_y: int, variant: Variant) -> None:
    """What is left to do where a transform is not affine, or anti-aliased."""
    plan, dims = work.plan, work.plan.dims
    if plan.kind == GRID:
        grid_row(work, n, t, i_z, i_y)
    elif plan.kind != MATRIX:
        basis_row(work, i_z, i_y)
    elif plan.rows > dims:
        divide_row(work)
    elif plan.antialias:
        for a in range(dims):
            for b in range(dims):
                fill_line(line(work, SLOPE + 3 * a + b), plan.out[0], number_at(work, a, b))
    if len(variant) > 1 and plan.antialias:
        footprints(work)


@jit
def footprints(work: Work) -> None:
    plan, zero = work.plan, work.zero
    for a in range(plan.dims):
        for j in range(plan.out[0]):
            squared = squared_footprint(work, a, j)
            held = type(zero)(math.sqrt(min(squared, type(zero)(plan.limit * plan.limit))))
            put(line(work, FOOT + a), j, held if squared > type(zero)(plan.wider) else type(zero)(1))


@jit
def fill_line(p: int, width: int, value: float) -> None:
    for j in range(width):
        put(p, j, value)


@jit
def squared_footprint(work: Work, a: int, j: int) -> float:
    """Of ``antialias.footprints``, before it is held between 1 and the limit."""
    total = work.zero
    for b in range(work.plan.dims):
        slope = get(line(work, SLOPE + 3 * a + b), j, work.zero)
        if abs(slope) < math.inf:
            total += slope * slope
    return total
