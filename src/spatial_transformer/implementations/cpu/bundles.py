"""``patches`` of many channels: LANES of them side by side in each pixel, one pixel after the other."""

from __future__ import annotations

from .jit import jit
from .lanes import (
    LANES,
    blend,
    every,
    get_lanes,
    minus,
    plus,
    put_lanes,
    read_lanes,
    times,
    times_plus,
    total,
    transposed,
    write_lanes,
)
from .memory import Tag, get, int32, int64, put
from .patches import Room, aim_patch, first_pixel, room_in, rounded_up, zeros
from .plan import Work, found_line, next_item, output_row, own_memory, place_in, plan_of
from .planes import add_moments
from .positions import centred, settle_numbers
from .pull import give_numbers


@jit
def bundle_row(work: Work, room: Room, p: int, o: int, stride: int, many: int, width: int, p_to: int) -> None:
    """A row of a tensor, with a channel's rows a stride apart, as pixels of LANES channels."""
    pitch = rounded_up(width)
    for c in range(LANES):
        for j in range(0, width, LANES):
            value = read_lanes(p, o + c * stride + j, width - j if c < many else 0, work.stored, work.zero)
            put_lanes(room.turned, c * pitch + j, value)
    for j in range(0, width, LANES):
        transposed(room.turned, j, pitch, p_to, j * LANES, LANES, work.zero)


@jit
def unbundle_row(
    work: Work, room: Room, p: int, width: int, many: int, p_to: int, o: int, stride: int
) -> None:
    pitch = rounded_up(width)
    for j in range(0, width, LANES):
        transposed(p, j * LANES, LANES, room.turned, j, pitch, work.zero)
    for c in range(many):
        for j in range(0, width, LANES):
            value = get_lanes(room.turned, c * pitch + j, work.zero)
            write_lanes(p_to, o + c * stride + j, width - j, work.stored, value)


@jit
def fill_bundle(work: Work, room: Room, n: int, first: int, many: int, size: int) -> None:
    """Channels of an image, and the zeros around them."""
    plan, zero = work.plan, work.zero
    width, start = plan.lengths[0], first_pixel(room)
    zeros(room.patch, start * LANES, zero)
    o_u = n * plan.image[4] + first * plan.image[3]
    for i_y in range(plan.lengths[1]):
        o_to = start + i_y * room.pitch
        p_to = room.patch + o_to * LANES * size
        bundle_row(work, room, work.image, o_u + i_y * plan.image[1], plan.image[3], many, width, p_to)
        zeros(p_to + width * LANES * size, (room.pitch - width) * LANES, zero)
    o_end = start + plan.lengths[1] * room.pitch
    zeros(room.patch + o_end * LANES * size, (room.pixels - o_end) * LANES, zero)


@jit
def forward_bundles(p_call: int, stored: Tag, zero: Tag, size: int, version: Tag) -> None:
    """``forward_items`` for LANES of an image's channels."""
    plan = plan_of(p_call)
    work = Work(
        plan,
        own_memory(p_call),
        place_in(p_call, 0),
        place_in(p_call, 1),
        place_in(p_call, 2),
        0,
        0,
        (plan.image[0], plan.image[1], plan.image[2], plan.image[3]),
        int64(0),
        plan.lengths[1],
        stored,
        zero,
    )
    room = room_in(work, int64(LANES), size)
    item, pitch = next_item(p_call), room.pitch * LANES
    while item >= 0:
        n, first = item // plan.parts, item % plan.parts * LANES
        many = min(int64(LANES), plan.channels - first)
        fill_bundle(work, room, n, first, many, size)
        for t in range(plan.copies):
            lost = settle_numbers(work, n, t)
            for i_y in range(plan.out[1]):
                aim_patch(work, room, i_y, lost, LANES)
                for j in range(plan.out[0]):
                    o = int64(get(room.offset, j, int32(0)))
                    x, y = every(get(room.x, j, zero)), every(get(room.y, j, zero))
                    a, b = get_lanes(room.patch, o, zero), get_lanes(room.patch, o + LANES, zero)
                    o += pitch
                    c, d = get_lanes(room.patch, o, zero), get_lanes(room.patch, o + LANES, zero)
                    put_lanes(room.row, j * LANES, blend(blend(a, b, x), blend(c, d, x), y))
                o_v = output_row(plan, n, t, 0, i_y) + first * plan.output[3]
                unbundle_row(work, room, room.row, plan.out[0], many, work.output, o_v, plan.output[3])
        item = next_item(p_call)


@jit
def pull_bundle(work: Work, room: Room, i_y: int) -> None:
    """Adds the gradient of the matrix from a row."""
    plan, zero, pitch = work.plan, work.zero, room.pitch * LANES
    half, none = type(zero)(plan.out[0] - 1) * type(zero)(0.5), every(zero)
    sum_x, sum_y, moment_x, moment_y = none, none, none, none
    for j in range(plan.out[0]):
        o, g = int64(get(room.offset, j, int32(0))), get_lanes(room.row, j * LANES, zero)
        a, b = get_lanes(room.patch, o, zero), get_lanes(room.patch, o + LANES, zero)
        o += pitch
        c, d = get_lanes(room.patch, o, zero), get_lanes(room.patch, o + LANES, zero)
        u = every(type(zero)(int32(j)) - half)
        push_x = times(g, blend(minus(b, a), minus(d, c), every(get(room.y, j, zero))))
        push_y = times(g, blend(minus(c, a), minus(d, b), every(get(room.x, j, zero))))
        sum_x, sum_y = plus(sum_x, push_x), plus(sum_y, push_y)
        moment_x, moment_y = times_plus(push_x, u, moment_x), times_plus(push_y, u, moment_y)
    y = centred(i_y, plan.out[1], zero)
    add_moments(work, 0, total(moment_x), total(sum_x), y)
    add_moments(work, 1, total(moment_y), total(sum_y), y)


@jit
def add_lanes(p: int, o: int, value: Tag, zero: Tag) -> None:
    put_lanes(p, o, plus(get_lanes(p, o, zero), value))


@jit
def scatter_bundle(work: Work, room: Room) -> None:
    """Adds to the pixels that a row reads."""
    zero, pitch, p = work.zero, room.pitch * LANES, room.gradient
    for j in range(work.plan.out[0]):
        o, g = int64(get(room.offset, j, int32(0))), get_lanes(room.row, j * LANES, zero)
        x = every(get(room.x, j, zero))
        low = times(g, every(get(room.y, j, zero)))
        top = minus(g, low)
        right_top, right_low = times(top, x), times(low, x)
        add_lanes(p, o, minus(top, right_top), zero)
        add_lanes(p, o + LANES, right_top, zero)
        add_lanes(p, o + pitch, minus(low, right_low), zero)
        add_lanes(p, o + pitch + LANES, right_low, zero)


@jit
def backward_bundles(p_call: int, stored: Tag, zero: Tag, size: int, version: Tag) -> None:
    """``scatter_items`` and ``pull_items`` for LANES of an image's channels."""
    plan = plan_of(p_call)
    work = Work(
        plan,
        own_memory(p_call),
        place_in(p_call, 0),
        place_in(p_call, 1),
        place_in(p_call, 2),
        0,
        0,
        (plan.image[0], plan.image[1], plan.image[2], plan.image[3]),
        int64(0),
        plan.lengths[1],
        stored,
        zero,
    )
    room = room_in(work, int64(LANES), size)
    p_to_image, p_to_numbers = place_in(p_call, 3), place_in(p_call, 4)
    item = next_item(p_call)
    while item >= 0:
        n, part = item // plan.parts, item % plan.parts
        first = part * LANES
        many = min(int64(LANES), plan.channels - first)
        if p_to_numbers != 0:
            fill_bundle(work, room, n, first, many, size)
        if p_to_image != 0:
            zeros(room.gradient, room.pixels * LANES, zero)
        for t in range(plan.copies):
            lost = settle_numbers(work, n, t)
            for k in range(6):
                put(found_line(work), k, 0.0)
            for i_y in range(plan.out[1]):
                aim_patch(work, room, i_y, lost, LANES)
                o_v = output_row(plan, n, t, 0, i_y) + first * plan.output[3]
                bundle_row(work, room, work.output, o_v, plan.output[3], many, plan.out[0], room.row)
                if p_to_numbers != 0 and not lost:
                    pull_bundle(work, room, i_y)
                if p_to_image != 0:
                    scatter_bundle(work, room)
            if p_to_numbers != 0:
                give_numbers(work, p_to_numbers, n, t, part)
        if p_to_image != 0:
            o_to = n * plan.gradient[4] + first * plan.gradient[3]
            for i_y in range(plan.lengths[1]):
                p_row = room.gradient + (first_pixel(room) + i_y * room.pitch) * LANES * size
                unbundle_row(
                    work, room, p_row, plan.lengths[0], many, p_to_image, o_to + i_y * plan.gradient[1],
                    plan.gradient[3],
                )  # fmt: skip
        item = next_item(p_call)
