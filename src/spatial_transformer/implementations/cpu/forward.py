"""The output: V = sum of taps."""

from __future__ import annotations

from .aim import aim_row, run_end
from .jit import jit, jit_blend
from .lanes import LANES, blend, get_lanes, squares, write_lanes
from .memory import Tag, add, get, int32, int64, load, put, store
from .plan import (
    BESIDE,
    BILINEAR,
    FILL,
    INSIDE,
    INSIDE_PIXEL,
    MARK,
    NEAREST,
    NOWHERE,
    OFFSET,
    TAP_WEIGHT,
    WEIGHT,
    Run,
    Variant,
    Work,
    line,
    line_pitch,
    next_item,
    output_row,
    own_memory,
    place_in,
    place_line,
    plan_of,
    share_line,
    sums_line,
)
from .positions import place_row, settle_numbers
from .taps import beside_at, beside_run, between, kept, kept_beside, pixel_taps, whole


@jit_blend
def square_at(p: int, o: int, s_x: int, s_y: int, x: float, y: float, stored: Tag) -> float:
    """Bilinear interpolation in a square of pixels."""
    above = between(load(p, o, stored, x), load(p, o + s_x, stored, x), x)
    o += s_y
    return between(above, between(load(p, o, stored, x), load(p, o + s_x, stored, x), x), y)


@jit_blend
def read_nearest(work: Work, run: Run) -> None:
    s_u, s_c, s_v, p_offset = work.strides[3], work.plan.output[3], work.plan.output[0], line(work, OFFSET)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * s_u, run.o_v + c * s_c
        for j in range(run.start, run.stop):
            value = load(work.image, o_u + get(p_offset, j, int32(0)), work.stored, work.zero)
            store(work.output, o_v + j * s_v, work.stored, value)


@jit_blend
def read_squares(work: Work, run: Run) -> None:
    s_x, s_y, s_u, zero = work.strides[0], work.strides[1], work.strides[3], work.zero
    s_v, s_c = work.plan.output[0], work.plan.output[3]
    p_offset, p_x, p_y = line(work, OFFSET), line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * s_u, run.o_v + c * s_c
        for j in range(run.start, run.stop):
            o = o_u + get(p_offset, j, int32(0))
            value = square_at(work.image, o, s_x, s_y, get(p_x, j, zero), get(p_y, j, zero), work.stored)
            store(work.output, o_v + j * s_v, work.stored, value)


@jit_blend
def read_cubes(work: Work, run: Run) -> None:
    s_x, s_y, s_z, s_u = work.strides
    s_v, s_c, zero = work.plan.output[0], work.plan.output[3], work.zero
    p_offset, p_x, p_y = line(work, OFFSET), line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1)
    p_z = line(work, INSIDE_PIXEL + 2)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * s_u, run.o_v + c * s_c
        for j in range(run.start, run.stop):
            o, x, y = o_u + get(p_offset, j, int32(0)), get(p_x, j, zero), get(p_y, j, zero)
            near = square_at(work.image, o, s_x, s_y, x, y, work.stored)
            far = square_at(work.image, o + s_z, s_x, s_y, x, y, work.stored)
            store(work.output, o_v + j * s_v, work.stored, between(near, far, get(p_z, j, zero)))


@jit
def square_lanes(work: Work, o: int, j: int, x: Tag, y: Tag) -> Tag:
    corners = squares(work.image, o, line(work, OFFSET), j, work.strides[1], work.stored, work.zero)
    return blend(blend(corners[0], corners[1], x), blend(corners[2], corners[3], x), y)


@jit
def read_lanes_of(work: Work, run: Run) -> None:
    """As ``read_squares`` and ``read_cubes``, LANES neighbours at once; the last ones overlap others."""
    zero, dims = work.zero, work.plan.dims
    p_x, p_y, p_z = line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1), line(work, INSIDE_PIXEL + 2)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * work.strides[3], run.o_v + c * work.plan.output[3]
        for start in range(run.start, run.stop, LANES):
            j = min(start, run.stop - LANES)
            x, y = get_lanes(p_x, j, zero), get_lanes(p_y, j, zero)
            value = square_lanes(work, o_u, j, x, y)
            if dims == 3:
                far = square_lanes(work, o_u + work.strides[2], j, x, y)
                value = blend(value, far, get_lanes(p_z, j, zero))
            write_lanes(work.output, o_v + j, LANES, work.stored, value)


@jit_blend
def read_cubic(work: Work, run: Run) -> None:
    plan, zero, p_offset, p_weight = work.plan, work.zero, line(work, OFFSET), line(work, WEIGHT)
    s_x, s_y, s_z, s_u = work.strides
    pitch = line_pitch(work)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * s_u, run.o_v + c * plan.output[3]
        for j in range(run.start, run.stop):
            o_first, total = o_u + get(p_offset, j, int32(0)), zero
            for k_z in range(4 if plan.dims == 3 else 1):
                layer = zero
                for k_y in range(4):
                    o, value = o_first + k_z * s_z + k_y * s_y, zero
                    for k_x in range(4):
                        weight = get(p_weight + k_x * pitch, j, zero)
                        value += weight * load(work.image, o + k_x * s_x, work.stored, zero)
                    layer += get(p_weight + (4 + k_y) * pitch, j, zero) * value
                total += get(p_weight + (8 + k_z) * pitch, j, zero) * layer if plan.dims == 3 else layer
            store(work.output, o_v + j * plan.output[0], work.stored, total)


@jit_blend
def read_beside(work: Work, run: Run) -> None:
    plan, zero = work.plan, work.zero
    s_u, s_c, filled, one = work.strides[3], plan.output[3], plan.padding == FILL, type(zero)(1)
    for j in range(run.start, run.stop):
        outside, o_v = zero, run.o_v + j * plan.output[0]
        if filled:
            every = in_image = one
            for a in range(plan.dims):
                inside = get(line(work, INSIDE_PIXEL + a), j, zero)
                every *= (one - inside) + inside
                in_image *= kept_beside(work, a, 0, j)
            outside = every - in_image
        for c in range(run.first, run.last):
            value = beside_at(work, run.o_u + c * s_u, j, 0, 0, 0)
            if filled:
                value += outside * get(work.fill, c, zero)
            store(work.output, o_v + c * s_c, work.stored, value)


@jit_blend
def four_taps(work: Work, o: int, k: int) -> float:
    p_place, p_share, zero = place_line(work), share_line(work), work.zero
    first = get(p_share, k, zero) * load(work.image, o + get(p_place, k, 0), work.stored, zero)
    first += get(p_share, k + 1, zero) * load(work.image, o + get(p_place, k + 1, 0), work.stored, zero)
    second = get(p_share, k + 2, zero) * load(work.image, o + get(p_place, k + 2, 0), work.stored, zero)
    second += get(p_share, k + 3, zero) * load(work.image, o + get(p_place, k + 3, 0), work.stored, zero)
    return first + second


@jit_blend
def read_pixel(work: Work, run: Run, j: int, count: int) -> None:
    plan, zero, p_sums, s_u = work.plan, work.zero, sums_line(work), work.strides[3]
    o_v, s_c, outside = run.o_v + j * plan.output[0], plan.output[3], zero
    if plan.padding == FILL:
        outside = whole(work, 0, 0) * whole(work, 1, 0) * whole(work, 2, 0)
        outside -= kept(work, TAP_WEIGHT, 0) * kept(work, TAP_WEIGHT, 1) * kept(work, TAP_WEIGHT, 2)
    for c in range(run.first, run.last):
        put(p_sums, c, outside * get(work.fill, c, zero) if plan.padding == FILL else zero)
    if plan.innermost:
        for k in range(0, count, 4):
            for c in range(run.first, run.last):
                add(p_sums, c, four_taps(work, run.o_u + c, k))
        for c in range(run.first, run.last):
            store(work.output, o_v + c, work.stored, get(p_sums, c, zero))
    else:
        for c in range(run.first, run.last):
            total = get(p_sums, c, zero)
            for k in range(0, count, 4):
                total += four_taps(work, run.o_u + c * s_u, k)
            store(work.output, o_v + c * s_c, work.stored, total)


@jit
def read_nowhere(work: Work, run: Run) -> None:
    s_v = work.plan.output[0]
    for c in range(run.first, run.last):
        value, o = work.zero, run.o_v + c * work.plan.output[3]
        if work.plan.padding == FILL:
            value = get(work.fill, c, value)
        if s_v == 1:  # as vectors
            for j in range(run.start, run.stop):
                store(work.output, o + j, work.stored, value)
        else:
            for j in range(run.start, run.stop):
                store(work.output, o + j * s_v, work.stored, value)


@jit
def read_run(work: Work, run: Run, mark: int, variant: Variant) -> None:
    """V for neighbours in a row that are marked alike."""
    plan = work.plan
    unit = work.strides[0] == 1 and plan.output[0] == 1
    if mark == NOWHERE:
        read_nowhere(work, run)
    elif mark == BESIDE and plan.by_rows and plan.kernel == BILINEAR:
        beside_run(work, run)
        read_beside(work, run)
    elif mark == INSIDE and plan.kernel == BILINEAR:
        if unit and run.stop - run.start >= LANES:
            read_lanes_of(work, run)
        elif plan.dims == 2:
            read_squares(work, run)
        else:
            read_cubes(work, run)
    elif len(variant) > 1:
        if mark == BESIDE:
            for j in range(run.start, run.stop):
                read_pixel(work, run, j, pixel_taps(work, j))
        elif plan.kernel == NEAREST:
            read_nearest(work, run)
        else:
            read_cubic(work, run)


@jit
def forward_items(p_call: int, stored: Tag, zero: Tag, variant: Variant, version: Tag) -> None:
    """V_c(p) = sum over taps m of U_c(m) k(x(p) - m_x) k(y(p) - m_y), for blocks of output rows."""
    plan = plan_of(p_call)
    out = plan.out
    work = Work(
        plan,
        own_memory(p_call),
        place_in(p_call, 0),
        place_in(p_call, 4),
        place_in(p_call, 1),
        place_in(p_call, 2),
        place_in(p_call, 3),
        (plan.image[0], plan.image[1], plan.image[2], plan.image[3]),
        int64(0),
        plan.lengths[plan.dims - 1],
        stored,
        zero,
    )
    rows, item = out[1] * out[2], next_item(p_call)
    while item >= 0:
        n, t, part = item // (plan.copies * plan.parts), item // plan.parts % plan.copies, item % plan.parts
        lost = settle_numbers(work, n, t)
        for first in range(0, plan.channels, plan.block):
            last = min(first + plan.block, plan.channels)
            for i in range(rows * part // plan.parts, rows * (part + 1) // plan.parts):
                i_z, i_y = i // out[1], i % out[1]
                place_row(work, n, t, i_z, i_y, lost, variant)
                aim_row(work, False, variant)
                o_row, start = output_row(plan, n, t, i_z, i_y), 0
                while start < out[0]:
                    stop = run_end(work, start)
                    run = Run(start, stop, first, last, n * plan.image[4], o_row)
                    read_run(work, run, get(line(work, MARK), start, int32(0)), variant)
                    start = stop
        item = next_item(p_call)
