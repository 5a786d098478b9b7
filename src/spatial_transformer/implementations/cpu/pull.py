"""The gradient of numbers and basis: the cotangent times the slope of V, then back through the positions."""

from __future__ import annotations

import math

from ...family import HUGE
from ..reference import FAR
from .aim import aim_row, run_end
from .jit import jit, jit_blend, jit_sum
from .lanes import LANES, blend, from_lane, get_lanes, minus, plus, put_lanes, read_lanes, squares, times
from .memory import Tag, add, float64, get, int32, int64, load, put
from .plan import (
    BESIDE,
    BILINEAR,
    DEPTH,
    FILL,
    FOOT,
    GRID,
    INSIDE,
    INSIDE_PIXEL,
    MARK,
    MATRIX,
    NOWHERE,
    OFFSET,
    POSITION,
    PUSH,
    SLOPE,
    STEEP,
    STRETCH,
    TAP_SLOPE,
    TAP_WEIGHT,
    TAP_WIDTH,
    WEIGHT,
    Run,
    Variant,
    Work,
    found_line,
    line,
    line_pitch,
    next_item,
    number_at,
    output_row,
    own_memory,
    place_in,
    place_line,
    plan_of,
    share_line,
)
from .positions import centred, fill_line, place_row, settle_numbers, squared_footprint
from .taps import beside_at, beside_run, between, count_of, kept, kept_beside, pixel_taps, tap_at, whole


@jit_blend
def slope_squares(work: Work, run: Run) -> None:
    s_x, s_y, s_u, zero = work.strides[0], work.strides[1], work.strides[3], work.zero
    p, stored, s_v, s_c = work.image, work.stored, work.plan.output[0], work.plan.output[3]
    p_offset, p_x, p_y = line(work, OFFSET), line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1)
    p_push_x, p_push_y = line(work, PUSH), line(work, PUSH + 1)
    for i in range(run.first, run.last):
        o_u, o_v = run.o_u + i * s_u, run.o_v + i * s_c
        for j in range(run.start, run.stop):
            o, g = o_u + get(p_offset, j, int32(0)), load(work.output, o_v + j * s_v, stored, zero)
            a, b = load(p, o, stored, zero), load(p, o + s_x, stored, zero)
            o += s_y
            c, d = load(p, o, stored, zero), load(p, o + s_x, stored, zero)
            add(p_push_x, j, g * between(b - a, d - c, get(p_y, j, zero)))
            add(p_push_y, j, g * between(c - a, d - b, get(p_x, j, zero)))


@jit_blend
def slope_cubes(work: Work, run: Run) -> None:
    s_x, s_y, s_z, s_u = work.strides
    p, stored, zero, s_v, s_c = work.image, work.stored, work.zero, work.plan.output[0], work.plan.output[3]
    p_offset, p_x, p_y = line(work, OFFSET), line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1)
    p_z, p_push_x, p_push_y = line(work, INSIDE_PIXEL + 2), line(work, PUSH), line(work, PUSH + 1)
    p_push_z = line(work, PUSH + 2)
    for i in range(run.first, run.last):
        o_u, o_v = run.o_u + i * s_u, run.o_v + i * s_c
        for j in range(run.start, run.stop):
            o, g = o_u + get(p_offset, j, int32(0)), load(work.output, o_v + j * s_v, stored, zero)
            x, y, z = get(p_x, j, zero), get(p_y, j, zero), get(p_z, j, zero)
            a, b = load(p, o, stored, zero), load(p, o + s_x, stored, zero)
            c, d = load(p, o + s_y, stored, zero), load(p, o + s_y + s_x, stored, zero)
            o += s_z
            e, f = load(p, o, stored, zero), load(p, o + s_x, stored, zero)
            h, k = load(p, o + s_y, stored, zero), load(p, o + s_y + s_x, stored, zero)
            near, far = between(a, b, x), between(e, f, x)
            low_near, low_far = between(c, d, x), between(h, k, x)
            add(p_push_x, j, g * between(between(b - a, d - c, y), between(f - e, k - h, y), z))
            add(p_push_y, j, g * between(low_near - near, low_far - far, z))
            add(p_push_z, j, g * between(far - near, low_far - low_near, y))


@jit
def add_push(work: Work, a: int, j: int, value: Tag) -> None:
    p_push = line(work, PUSH + a)
    put_lanes(p_push, j, plus(get_lanes(p_push, j, work.zero), value))


@jit
def slope_lanes(work: Work, run: Run) -> None:
    """As ``slope_squares`` and ``slope_cubes``, LANES neighbours at once; what overlaps is zero."""
    zero, stored, p_offset = work.zero, work.stored, line(work, OFFSET)
    p_x, p_y, p_z = line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1), line(work, INSIDE_PIXEL + 2)
    for i in range(run.first, run.last):
        o_u, o_v = run.o_u + i * work.strides[3], run.o_v + i * work.plan.output[3]
        for start in range(run.start, run.stop, LANES):
            j = min(start, run.stop - LANES)
            g = from_lane(start - j, read_lanes(work.output, o_v + j, LANES, stored, zero))
            x, y = get_lanes(p_x, j, zero), get_lanes(p_y, j, zero)
            a, b, c, d = squares(work.image, o_u, p_offset, j, work.strides[1], stored, zero)
            slope_x = blend(minus(b, a), minus(d, c), y)
            if work.plan.dims == 2:
                add_push(work, 0, j, times(g, slope_x))
                add_push(work, 1, j, times(g, blend(minus(c, a), minus(d, b), x)))
            else:
                o_far, z = o_u + work.strides[2], get_lanes(p_z, j, zero)
                e, f, h, k = squares(work.image, o_far, p_offset, j, work.strides[1], stored, zero)
                near, far, low_near, low_far = blend(a, b, x), blend(e, f, x), blend(c, d, x), blend(h, k, x)
                add_push(work, 0, j, times(g, blend(slope_x, blend(minus(f, e), minus(k, h), y), z)))
                add_push(work, 1, j, times(g, blend(minus(low_near, near), minus(low_far, far), z)))
                add_push(work, 2, j, times(g, blend(minus(far, near), minus(low_far, low_near), y)))


@jit_blend
def slope_cubic(work: Work, run: Run) -> None:
    plan, zero, p_offset = work.plan, work.zero, line(work, OFFSET)
    p_weight, p_steep, p_push = line(work, WEIGHT), line(work, STEEP), line(work, PUSH)
    s_x, s_y, s_z, s_u = work.strides
    pitch = line_pitch(work)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * s_u, run.o_v + c * plan.output[3]
        for j in range(run.start, run.stop):
            g = load(work.output, o_v + j * plan.output[0], work.stored, zero)
            o_first = o_u + get(p_offset, j, int32(0))
            for k_z in range(4 if plan.dims == 3 else 1):
                value, slope_x, slope_y = zero, zero, zero
                for k_y in range(4):
                    o, along, rise = o_first + k_z * s_z + k_y * s_y, zero, zero
                    for k_x in range(4):
                        u = load(work.image, o + k_x * s_x, work.stored, zero)
                        along += get(p_weight + k_x * pitch, j, zero) * u
                        rise += get(p_steep + k_x * pitch, j, zero) * u
                    weight = get(p_weight + (4 + k_y) * pitch, j, zero)
                    value += weight * along
                    slope_x += weight * rise
                    slope_y += get(p_steep + (4 + k_y) * pitch, j, zero) * along
                layer = g * get(p_weight + (8 + k_z) * pitch, j, zero) if plan.dims == 3 else g
                add(p_push, j, layer * slope_x)
                add(p_push + pitch, j, layer * slope_y)
                if plan.dims == 3:
                    add(p_push + 2 * pitch, j, g * get(p_steep + (8 + k_z) * pitch, j, zero) * value)


@jit_blend
def slope_beside(work: Work, run: Run) -> None:
    plan, zero, s_u, s_c = work.plan, work.zero, work.strides[3], work.plan.output[3]
    for j in range(run.start, run.stop):
        o_v, push_x, push_y, push_z, filled = run.o_v + j * plan.output[0], zero, zero, zero, zero
        for c in range(run.first, run.last):
            o, g = run.o_u + c * s_u, load(work.output, o_v + c * s_c, work.stored, zero)
            push_x += g * beside_at(work, o, j, 2, 0, 0)
            push_y += g * beside_at(work, o, j, 0, 2, 0)
            if plan.dims == 3:
                push_z += g * beside_at(work, o, j, 0, 0, 2)
            if plan.padding == FILL:
                filled += g * get(work.fill, c, zero)
        if plan.padding == FILL:
            x, y, z = kept_beside(work, 0, 0, j), kept_beside(work, 1, 0, j), kept_beside(work, 2, 0, j)
            push_x -= filled * kept_beside(work, 0, 2, j) * y * z
            push_y -= filled * x * kept_beside(work, 1, 2, j) * z
            push_z -= filled * x * y * kept_beside(work, 2, 2, j)
        add(line(work, PUSH), j, push_x)
        add(line(work, PUSH + 1), j, push_y)
        if plan.dims == 3:
            add(line(work, PUSH + 2), j, push_z)


@jit_sum
def channel_sums(work: Work, run: Run, o_v: int, k: int) -> None:
    """The sums over channels of image times cotangent at four taps, which take their weights' place."""
    plan, p, stored, zero, p_place, p_share = (
        work.plan,
        work.image,
        work.stored,
        work.zero,
        place_line(work),
        share_line(work),
    )
    o_a, o_b = run.o_u + get(p_place, k, 0), run.o_u + get(p_place, k + 1, 0)
    o_c, o_d = run.o_u + get(p_place, k + 2, 0), run.o_u + get(p_place, k + 3, 0)
    a, b, c, d = zero, zero, zero, zero
    s_u, s_c = work.strides[3], plan.output[3]
    if plan.innermost:
        for i in range(run.first, run.last):
            g = load(work.output, o_v + i, stored, zero)
            a += g * load(p, o_a + i, stored, zero)
            b += g * load(p, o_b + i, stored, zero)
            c += g * load(p, o_c + i, stored, zero)
            d += g * load(p, o_d + i, stored, zero)
    else:
        for i in range(run.first, run.last):
            g, o = load(work.output, o_v + i * s_c, stored, zero), i * s_u
            a += g * load(p, o_a + o, stored, zero)
            b += g * load(p, o_b + o, stored, zero)
            c += g * load(p, o_c + o, stored, zero)
            d += g * load(p, o_d + o, stored, zero)
    put(p_share, k, a)
    put(p_share, k + 1, b)
    put(p_share, k + 2, c)
    put(p_share, k + 3, d)


@jit
def slope_pixel(work: Work, run: Run, j: int, count: int) -> None:
    plan, zero, p_share, k = work.plan, work.zero, share_line(work), 0
    o_v = run.o_v + j * plan.output[0]
    for four in range(0, count, 4):
        channel_sums(work, run, o_v, four)
    for k_z in range(count_of(work, 2)):
        for k_y in range(count_of(work, 1)):
            along, rise, spread = zero, zero, zero
            for k_x in range(count_of(work, 0)):
                u = get(p_share, k, zero)
                along += tap_at(work, TAP_WEIGHT, 0, k_x) * u
                rise += tap_at(work, TAP_SLOPE, 0, k_x) * u
                spread += tap_at(work, TAP_WIDTH, 0, k_x) * u
                k += 1
            y, z = tap_at(work, TAP_WEIGHT, 1, k_y), tap_at(work, TAP_WEIGHT, 2, k_z)
            add(line(work, PUSH), j, z * y * rise)
            add(line(work, PUSH + 1), j, z * tap_at(work, TAP_SLOPE, 1, k_y) * along)
            if plan.dims == 3:
                add(line(work, PUSH + 2), j, tap_at(work, TAP_SLOPE, 2, k_z) * y * along)
            if plan.antialias:
                add(line(work, STRETCH), j, z * y * spread)
                add(line(work, STRETCH + 1), j, z * tap_at(work, TAP_WIDTH, 1, k_y) * along)
                if plan.dims == 3:
                    add(line(work, STRETCH + 2), j, tap_at(work, TAP_WIDTH, 2, k_z) * y * along)
    if plan.padding == FILL:
        filled = zero
        for c in range(run.first, run.last):
            filled += get(work.fill, c, zero) * load(work.output, o_v + c * plan.output[3], work.stored, zero)
        for a in range(plan.dims):
            b, c = (a + 1) % 3, (a + 2) % 3
            every = whole(work, b, 0) * whole(work, c, 0)
            rest = kept(work, TAP_WEIGHT, b) * kept(work, TAP_WEIGHT, c)
            add(
                line(work, PUSH + a),
                j,
                filled * (whole(work, a, 1) * every - kept(work, TAP_SLOPE, a) * rest),
            )
            if plan.antialias:
                change = whole(work, a, 2) * every - kept(work, TAP_WIDTH, a) * rest
                add(line(work, STRETCH + a), j, filled * change)
    far = type(zero)(FAR)
    for a in range(plan.dims):
        if not -far <= get(line(work, POSITION + a), j, zero) <= far:  # held, or NaN
            put(line(work, PUSH + a), j, zero)


@jit
def slope_run(work: Work, run: Run, mark: int, variant: Variant) -> None:
    """Adds how the sum of cotangent times output changes with positions and footprints."""
    plan = work.plan
    unit = work.strides[0] == 1 and plan.output[0] == 1
    if mark == NOWHERE:
        return
    if mark == BESIDE and plan.by_rows and plan.kernel == BILINEAR:
        beside_run(work, run)
        slope_beside(work, run)
    elif mark == INSIDE and plan.kernel == BILINEAR:
        if unit and run.stop - run.start >= LANES:
            slope_lanes(work, run)
        elif plan.dims == 2:
            slope_squares(work, run)
        else:
            slope_cubes(work, run)
    elif len(variant) > 1:
        if mark == BESIDE:
            for j in range(run.start, run.stop):
                slope_pixel(work, run, j, pixel_taps(work, j))
        else:
            slope_cubic(work, run)


@jit_sum
def moments(p: int, width: int, zero: Tag) -> tuple[float, float]:
    """The sum of a line's values, and of values times pixels from the centre."""
    total, first, half = zero, zero, type(zero)(width - 1) * type(zero)(0.5)
    for j in range(width):
        value = get(p, j, zero)
        total += value
        first += value * (type(zero)(int32(j)) - half)
    return total, first


@jit_sum
def dot(p: int, q: int, o_q: int, s_q: int, width: int, zero: Tag) -> float:
    total = zero
    for j in range(width):
        total += get(p, j, zero) * get(q, o_q + j * s_q, zero)
    return total


@jit
def slope_share(work: Work, a: int, j: int) -> float:
    """The gradient of a slope over that slope, for s = sqrt(sum of slope^2) where it is followed."""
    real = type(work.zero)
    squared = squared_footprint(work, a, j)
    if squared > real(work.plan.wider) and squared <= real(work.plan.limit * work.plan.limit):
        return get(line(work, STRETCH + a), j, squared) / get(line(work, FOOT + a), j, squared)
    return real(0)


@jit
def add_found(work: Work, r: int, b: int, value: float) -> None:
    add(found_line(work), r * work.plan.columns + b, float64(value))


@jit
def depth_back(work: Work, j: int) -> None:
    """Through q = p / w and slopes (e - q f) / w: the gradient of p takes q's place, that of w takes w's."""
    plan, zero, dims = work.plan, work.zero, work.plan.dims
    w, total = get(line(work, DEPTH), j, zero), zero
    for a in range(dims):
        back = get(line(work, PUSH + a), j, zero)
        q = get(line(work, POSITION + a), j, zero) - type(zero)(plan.middle[a])
        if w == 0:
            back = zero
        else:
            share = slope_share(work, a, j) if plan.antialias else zero
            if share != 0:
                for b in range(dims):
                    slope = get(line(work, SLOPE + 3 * a + b), j, zero)
                    if abs(slope) < math.inf:
                        part = share * slope / w
                        add_found(work, a, b, part)
                        add_found(work, dims, b, -part * q)
                        back -= part * number_at(work, dims, b)
                        total -= part * slope
            back /= w
            if back != 0:  # q may be infinite where nothing flows
                total -= back * q
        put(line(work, PUSH + a), j, back)
    put(line(work, DEPTH), j, total)


@jit
def back_through_row(work: Work, i_z: int, i_y: int, variant: Variant) -> None:
    """From positions and footprints to positions and slopes; that of a matrix is added to what was found."""
    plan, zero, dims, width = work.plan, work.zero, work.plan.dims, work.plan.out[0]
    if len(variant) > 0:
        back_through_any(work)
    if plan.kind == MATRIX:
        y, z = centred(i_y, plan.out[1], zero), centred(i_z, plan.out[2], zero)
        for r in range(plan.rows):
            total, first = moments(line(work, DEPTH if r == dims else PUSH + r), width, zero)
            add_found(work, r, 0, first)
            add_found(work, r, 1, y * total)
            if dims == 3:
                add_found(work, r, 2, z * total)
            add_found(work, r, dims, total)


@jit
def back_through_any(work: Work) -> None:
    """From footprints to slopes, and through the division by w."""
    plan, zero, dims, width = work.plan, work.zero, work.plan.dims, work.plan.out[0]
    if plan.kind == MATRIX and plan.rows > dims:
        for j in range(width):
            depth_back(work, j)
    elif plan.antialias:
        for a in range(dims):
            for j in range(width):
                share = slope_share(work, a, j)
                for b in range(dims):
                    slope = get(line(work, SLOPE + 3 * a + b), j, zero)
                    put(line(work, SLOPE + 3 * a + b), j, share * slope if abs(slope) < math.inf else zero)
            for b in range(dims):
                if plan.kind == MATRIX:
                    add_found(work, a, b, moments(line(work, SLOPE + 3 * a + b), width, zero)[0])


@jit
def through_basis(work: Work, i: int) -> None:
    """The gradient of the numbers that a basis is multiplied by."""
    plan, zero, width, s_p = work.plan, work.zero, work.plan.out[0], work.plan.basis[2]
    for k in range(plan.rows):
        o = k * plan.basis[1] + i * width * s_p
        for a in range(plan.dims):
            total = float64(dot(line(work, PUSH + a), work.basis, o, s_p, width, zero))
            if plan.antialias:
                for b in range(plan.dims):
                    p_slope, o_layer = line(work, SLOPE + 3 * a + b), o + (1 + b) * plan.basis[0]
                    total += float64(dot(p_slope, work.basis, o_layer, s_p, width, zero))
            add_found(work, k, a, plan.half_span[a] * total)


@jit
def give_numbers(work: Work, p_to: int, n: int, t: int, part: int) -> None:
    """What was found, of numbers that were not changed by ``settled``."""
    plan, zero = work.plan, work.zero
    strides, to = plan.numbers, plan.to_numbers
    for r in range(plan.rows):
        for b in range(plan.columns):
            o = n * strides[0] + t * strides[1] + r * strides[2] + b * strides[3]
            value = get(found_line(work), r * plan.columns + b, 0.0)
            if plan.kind == MATRIX:
                value *= plan.steps[3 if r == plan.dims else r, 3 if b == plan.dims else b]
            if not abs(get(work.numbers, o, zero)) <= HUGE:
                value = 0.0
            o_to = n * to[0] + t * to[1] + r * to[2] + b * to[3] + part * to[4]
            put(p_to, o_to, type(zero)(value))


@jit
def give_grid(work: Work, p_to: int, n: int, t: int, i_z: int, i_y: int) -> None:
    plan, zero, to = work.plan, work.zero, work.plan.to_numbers
    o_row = n * to[0] + t * to[1] + i_z * to[5] + i_y * to[4]
    for a in range(plan.dims):
        half_span = type(zero)(plan.half_span[a])
        for j in range(plan.out[0]):
            o = o_row + j * to[3] + a * to[6]
            put(p_to, o, get(line(work, PUSH + a), j, zero) * half_span)
            if plan.antialias:
                for b in range(plan.dims):
                    put(p_to, o + (1 + b) * to[2], get(line(work, SLOPE + 3 * a + b), j, zero))


@jit
def clear_basis(work: Work, p_to: int, top: int, bottom: int) -> None:
    plan, to = work.plan, work.plan.to_basis
    for layer in range(1 + plan.dims if plan.antialias else 1):
        for k in range(plan.rows):
            for p in range(top * plan.out[0], bottom * plan.out[0]):
                put(p_to, layer * to[0] + k * to[1] + p * to[2], work.zero)


@jit
def give_basis(work: Work, p_to: int, i: int) -> None:
    plan, zero, to = work.plan, work.zero, work.plan.to_basis
    for layer in range(1 + plan.dims if plan.antialias else 1):
        for k in range(plan.rows):
            o = layer * to[0] + k * to[1] + i * plan.out[0] * to[2]
            for a in range(plan.dims):
                factor = number_at(work, k, a) * type(zero)(plan.half_span[a])
                p_back = line(work, PUSH + a if layer == 0 else SLOPE + 3 * a + layer - 1)
                for j in range(plan.out[0]):
                    add(p_to, o + j * to[2], factor * get(p_back, j, zero))


@jit
def give_row(work: Work, p_to_numbers: int, p_to_basis: int, n: int, t: int, i: int) -> None:
    """What is not a matrix' gets its gradient row by row."""
    height = work.plan.out[1]
    if p_to_basis != 0:
        give_basis(work, p_to_basis, i)
    elif work.plan.kind == GRID:
        give_grid(work, p_to_numbers, n, t, i // height, i % height)
    elif work.plan.kind != MATRIX:
        through_basis(work, i)


@jit
def pull_items(p_call: int, stored: Tag, zero: Tag, variant: Variant, version: Tag) -> None:
    """dnumbers = sum over c, p of G_c(p) dV_c(p)/dx(p) dx(p)/dnumbers, for blocks of output rows;

    or the same for the basis, for blocks of all transforms' output rows: the address of the other is 0.
    """
    plan = plan_of(p_call)
    out, dims = plan.out, plan.dims
    work = Work(
        plan,
        own_memory(p_call),
        place_in(p_call, 0),
        place_in(p_call, 1),
        place_in(p_call, 2),
        place_in(p_call, 3),
        place_in(p_call, 4),
        (plan.image[0], plan.image[1], plan.image[2], plan.image[3]),
        int64(0),
        plan.lengths[dims - 1],
        stored,
        zero,
    )
    p_to_numbers, p_to_basis = place_in(p_call, 5), place_in(p_call, 6)
    rows, item = out[1] * out[2], next_item(p_call)
    while item >= 0:
        part, start, stop = item % plan.parts, item // plan.parts, item // plan.parts + 1
        top, bottom = rows * part // plan.parts, rows * (part + 1) // plan.parts
        if p_to_basis != 0:
            start, stop = 0, plan.batch * plan.copies
            if len(variant) > 0:
                clear_basis(work, p_to_basis, top, bottom)
        for transform in range(start, stop):
            n, t = transform // plan.copies, transform % plan.copies
            lost = settle_numbers(work, n, t)
            for k in range(plan.rows * plan.columns):
                put(found_line(work), k, 0.0)
            seen = 0 if lost else plan.channels  # a transform that is lost has no gradient
            for first in range(0, seen, plan.block):
                last = min(first + plan.block, plan.channels)
                for i in range(top, bottom):
                    i_z, i_y = i // out[1], i % out[1]
                    place_row(work, n, t, i_z, i_y, lost, variant)
                    push_row(work, n, first, last, output_row(plan, n, t, i_z, i_y), variant)
                    back_through_row(work, i_z, i_y, variant)
                    if len(variant) > 0:
                        give_row(work, p_to_numbers, p_to_basis, n, t, i)
            if p_to_basis == 0 and plan.kind != GRID:
                give_numbers(work, p_to_numbers, n, t, part)
        item = next_item(p_call)


@jit
def push_row(work: Work, n: int, first: int, last: int, o_row: int, variant: Variant) -> None:
    """The gradient of a row's positions and footprints."""
    plan, start = work.plan, 0
    aim_row(work, True, variant)
    for a in range(plan.dims):
        fill_line(line(work, PUSH + a), plan.out[0], work.zero)
        if plan.antialias:
            fill_line(line(work, STRETCH + a), plan.out[0], work.zero)
    while start < plan.out[0]:
        stop = run_end(work, start)
        run = Run(start, stop, first, last, n * plan.image[4], o_row)
        slope_run(work, run, get(line(work, MARK), start, int32(0)), variant)
        start = stop
