"""The image's gradient, at ``work.image``: each tap gets its weight times the cotangent G."""

from __future__ import annotations

from .aim import aim_row, run_end
from .jit import jit
from .lanes import LANES, put_lanes, read_lanes
from .memory import Tag, add, get, int32, load, put, store
from .plan import (
    BESIDE,
    BILINEAR,
    FIRST,
    INSIDE,
    INSIDE_PIXEL,
    MARK,
    NEAREST,
    NOWHERE,
    OFFSET,
    SECOND,
    STEEP,
    SUMS,
    WEIGHT,
    Record,
    Run,
    Strides,
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
from .taps import beside_run, pixel_taps


@jit
def put_nearest(work: Work, run: Run) -> None:
    s_u, s_c, s_v, p_offset = work.strides[3], work.plan.output[3], work.plan.output[0], line(work, OFFSET)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * s_u, run.o_v + c * s_c
        for j in range(run.start, run.stop):
            g = load(work.output, o_v + j * s_v, work.stored, work.zero)
            add(work.image, o_u + get(p_offset, j, int32(0)), g)


@jit
def put_square(p: int, o: int, s_x: int, s_y: int, x: float, y: float, g: float) -> None:
    low = g * y
    top = g - low
    right_top, right_low = top * x, low * x
    add(p, o, top - right_top)
    add(p, o + s_x, right_top)
    add(p, o + s_y, low - right_low)
    add(p, o + s_y + s_x, right_low)


@jit
def cotangent_line(work: Work, run: Run, o_v: int) -> int:
    """The cotangent of a run as real numbers, in a line: halves are converted as vectors."""
    p_line, s_v = line(work, SUMS), work.plan.output[0]
    if s_v == 1:
        for j in range(run.start, run.stop, LANES):
            put_lanes(p_line, j, read_lanes(work.output, o_v + j, run.stop - j, work.stored, work.zero))
    else:
        for j in range(run.start, run.stop):
            put(p_line, j, load(work.output, o_v + j * s_v, work.stored, work.zero))
    return p_line


@jit
def put_squares(work: Work, run: Run, s_x: int) -> None:
    s_y, s_u, s_c, zero = work.strides[1], work.strides[3], work.plan.output[3], work.zero
    p_offset, p_x, p_y = line(work, OFFSET), line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1)
    for c in range(run.first, run.last):
        o_u, p_g = run.o_u + c * s_u, cotangent_line(work, run, run.o_v + c * s_c)
        for j in range(run.start, run.stop):
            o, g = o_u + get(p_offset, j, int32(0)), get(p_g, j, zero)
            put_square(work.image, o, s_x, s_y, get(p_x, j, zero), get(p_y, j, zero), g)


@jit
def put_cubes(work: Work, run: Run, s_x: int) -> None:
    s_y, s_z, s_u, s_c = work.strides[1], work.strides[2], work.strides[3], work.plan.output[3]
    p_offset, p_x, p_y = line(work, OFFSET), line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1)
    p_z, zero = line(work, INSIDE_PIXEL + 2), work.zero
    for c in range(run.first, run.last):
        o_u, p_g = run.o_u + c * s_u, cotangent_line(work, run, run.o_v + c * s_c)
        for j in range(run.start, run.stop):
            o, x, y = o_u + get(p_offset, j, int32(0)), get(p_x, j, zero), get(p_y, j, zero)
            g = get(p_g, j, zero)
            far = g * get(p_z, j, zero)
            put_square(work.image, o, s_x, s_y, x, y, g - far)
            put_square(work.image, o + s_z, s_x, s_y, x, y, far)


@jit
def put_cubic(work: Work, run: Run) -> None:
    plan, zero, p_offset, p_weight = work.plan, work.zero, line(work, OFFSET), line(work, WEIGHT)
    s_x, s_y, s_z, s_u = work.strides
    pitch = line_pitch(work)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * s_u, run.o_v + c * plan.output[3]
        for j in range(run.start, run.stop):
            g = load(work.output, o_v + j * plan.output[0], work.stored, zero)
            o_first = o_u + get(p_offset, j, int32(0))
            for k_z in range(4 if plan.dims == 3 else 1):
                layer = get(p_weight + (8 + k_z) * pitch, j, zero) if plan.dims == 3 else type(zero)(1)
                for k_y in range(4):
                    o = o_first + k_z * s_z + k_y * s_y
                    side = layer * get(p_weight + (4 + k_y) * pitch, j, zero)
                    for k_x in range(4):  # rounded as by put_pixel
                        add(work.image, o + k_x * s_x, side * get(p_weight + k_x * pitch, j, zero) * g)


@jit
def put_beside_square(work: Work, o: int, j: int, g: float) -> None:
    """As ``put_square``, rounding for rounding, for the taps that count."""
    zero, p_first, p_second = work.zero, line(work, FIRST), line(work, SECOND)
    left, right = get(line(work, STEEP), j, zero), get(line(work, STEEP + 1), j, zero)
    above, below = get(line(work, STEEP + 2), j, zero), get(line(work, STEEP + 3), j, zero)
    x, y = get(line(work, INSIDE_PIXEL), j, zero), get(line(work, INSIDE_PIXEL + 1), j, zero)
    low = g * y
    top = g - low
    right_top, right_low = top * x, low * x
    o_top = o + get(line(work, FIRST + 1), j, int32(0))
    o_low = o + get(line(work, SECOND + 1), j, int32(0))
    o_left, o_right = get(p_first, j, int32(0)), get(p_second, j, int32(0))
    add(work.image, o_top + o_left, (top - right_top) * (above * left))
    add(work.image, o_top + o_right, right_top * (above * right))
    add(work.image, o_low + o_left, (low - right_low) * (below * left))
    add(work.image, o_low + o_right, right_low * (below * right))


@jit
def put_beside(work: Work, run: Run) -> None:
    plan, zero, s_u, s_c = work.plan, work.zero, work.strides[3], work.plan.output[3]
    for j in range(run.start, run.stop):
        o_v = run.o_v + j * plan.output[0]
        for c in range(run.first, run.last):
            o, g = run.o_u + c * s_u, load(work.output, o_v + c * s_c, work.stored, zero)
            if plan.dims == 2:
                put_beside_square(work, o, j, g)
            else:
                far = g * get(line(work, INSIDE_PIXEL + 2), j, zero)
                o_near = o + get(line(work, FIRST + 2), j, int32(0))
                o_far = o + get(line(work, SECOND + 2), j, int32(0))
                put_beside_square(work, o_near, j, (g - far) * get(line(work, STEEP + 4), j, zero))
                put_beside_square(work, o_far, j, far * get(line(work, STEEP + 5), j, zero))


@jit
def put_pixel(work: Work, run: Run, j: int, count: int) -> None:
    plan, zero, p_place, p_share = work.plan, work.zero, place_line(work), share_line(work)
    o_v, s_c, s_u = run.o_v + j * plan.output[0], plan.output[3], work.strides[3]
    if plan.innermost:
        for k in range(count):
            o, weight = run.o_u + get(p_place, k, 0), get(p_share, k, zero)
            for c in range(run.first, run.last):
                add(work.image, o + c, weight * load(work.output, o_v + c, work.stored, zero))
    else:
        for c in range(run.first, run.last):
            o, g = run.o_u + c * s_u, load(work.output, o_v + c * s_c, work.stored, zero)
            for k in range(count):
                add(work.image, o + get(p_place, k, 0), get(p_share, k, zero) * g)


@jit
def put_run(work: Work, run: Run, mark: int, variant: Variant) -> None:
    """The image's gradient from neighbours in a row that are marked alike."""
    plan = work.plan
    if mark == NOWHERE:
        return
    if mark == BESIDE and plan.by_rows and plan.kernel == BILINEAR:
        beside_run(work, run)
        put_beside(work, run)
    elif mark == INSIDE and plan.kernel == BILINEAR:
        if plan.dims == 2:
            if work.strides[0] == 1:
                put_squares(work, run, 1)
            else:
                put_squares(work, run, work.strides[0])
        elif work.strides[0] == 1:
            put_cubes(work, run, 1)
        else:
            put_cubes(work, run, work.strides[0])
    elif len(variant) > 1:
        if mark == BESIDE:
            for j in range(run.start, run.stop):
                put_pixel(work, run, j, pixel_taps(work, j))
        elif plan.kernel == NEAREST:
            put_nearest(work, run)
        else:
            put_cubic(work, run)


@jit
def scatter_items(p_call: int, stored: Tag, zero: Tag, variant: Variant, version: Tag) -> None:
    """dU_c(m) = sum over p of G_c(p) k(x(p) - m_x) k(y(p) - m_y), for blocks of channels and bands of pixels.

    Each pixel's sum is taken in the order of the output, however the image is cut. What is not stored as real
    is summed in a scratch that is, and rounded once.
    """
    plan, memory = plan_of(p_call), own_memory(p_call)
    out, outermost, gradient = plan.out, plan.dims - 1, plan.gradient
    length, blocks = plan.lengths[outermost], (plan.channels + plan.block - 1) // plan.block
    strides = gradient[0], gradient[1], gradient[2], gradient[3]
    if not plan.direct:
        strides = scratch_strides(plan)
    item = next_item(p_call)
    while item >= 0:
        n, block, band = item // (blocks * plan.bands), item // plan.bands % blocks, item % plan.bands
        low, high = length * band // plan.bands, length * (band + 1) // plan.bands
        first = block * plan.block
        last = min(first + plan.block, plan.channels)
        work = Work(
            plan,
            memory,
            place_in(p_call, 0),
            place_in(p_call, 1),
            place_in(p_call, 2),
            place_in(p_call, 3),
            0,
            strides,
            low,
            high,
            stored,
            zero,
        )
        o_u = n * gradient[4]
        if not plan.direct:
            work = Work(
                plan,
                memory,
                sums_line(work),
                work.output,
                work.numbers,
                work.basis,
                0,
                strides,
                low,
                high,
                stored,
                zero,
            )
            o_u = -low * strides[outermost] - first * strides[3]
        clear(work, o_u, first, last)
        for t in range(plan.copies):
            lost = settle_numbers(work, n, t)
            for i in range(out[1] * out[2]):
                i_z, i_y = i // out[1], i % out[1]
                place_row(work, n, t, i_z, i_y, lost, variant)
                aim_row(work, False, variant)
                o_row, start = output_row(plan, n, t, i_z, i_y), 0
                while start < out[0]:
                    stop = run_end(work, start)
                    mark = get(line(work, MARK), start, int32(0))
                    put_run(work, Run(start, stop, first, last, o_u, o_row), mark, variant)
                    start = stop
        if not plan.direct:
            round_off(work, o_u, place_in(p_call, 0), n * gradient[4], first, last)
        item = next_item(p_call)


@jit
def scratch_strides(plan: Record) -> Strides:
    width, height = plan.lengths[0], plan.lengths[1]
    if plan.innermost:
        return plan.block, plan.block * width, plan.block * width * height, 1
    return 1, width, width * height, plan.thickness * (width if plan.dims == 2 else width * height)


@jit
def clear(work: Work, o_u: int, first: int, last: int) -> None:
    """Zeros in a band of pixels."""
    plan, width, s_x, s_c = work.plan, work.plan.lengths[0], work.strides[0], work.strides[3]
    for i in range((work.high - work.low) * (1 if plan.dims == 2 else plan.lengths[1])):
        o = o_u + band_row(work, i, work.strides[1], work.strides[2])
        if plan.innermost:
            for i_x in range(width):
                for c in range(first, last):
                    put(work.image, o + i_x * s_x + c, work.zero)
        else:
            for c in range(first, last):
                for i_x in range(width):
                    put(work.image, o + c * s_c + i_x * s_x, work.zero)


@jit
def band_row(work: Work, i: int, s_y: int, s_z: int) -> int:
    """The offset of a row of a band of pixels."""
    if work.plan.dims == 2:
        return (work.low + i) * s_y
    return (work.low + i // work.plan.lengths[1]) * s_z + i % work.plan.lengths[1] * s_y


@jit
def round_off(work: Work, o_u: int, p_to: int, o_to: int, first: int, last: int) -> None:
    """The scratch's sums into a band of the image's gradient."""
    plan, width, s_x, s_c = work.plan, work.plan.lengths[0], work.strides[0], work.strides[3]
    t_x, t_c = plan.gradient[0], plan.gradient[3]
    for i in range((work.high - work.low) * (1 if plan.dims == 2 else plan.lengths[1])):
        o = o_u + band_row(work, i, work.strides[1], work.strides[2])
        to = o_to + band_row(work, i, plan.gradient[1], plan.gradient[2])
        if plan.innermost:
            for i_x in range(width):
                for c in range(first, last):
                    store(
                        p_to, to + i_x * t_x + c, work.stored, get(work.image, o + i_x * s_x + c, work.zero)
                    )
        else:
            for c in range(first, last):
                for i_x in range(width):
                    value = get(work.image, o + c * s_c + i_x * s_x, work.zero)
                    store(p_to, to + c * t_c + i_x * t_x, work.stored, value)
