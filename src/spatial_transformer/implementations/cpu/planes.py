"""``patches`` of few channels: one plane after the other, LANES pixels of a row at once."""

from __future__ import annotations

from .jit import jit
from .lanes import (
    CORNERS,
    LANES,
    add_corners,
    along,
    blend,
    corner_of,
    every,
    four_times,
    get_lanes,
    plus,
    put_lanes,
    read_lanes,
    shares,
    slopes,
    squares,
    times,
    times_plus,
    weights,
    write_lanes,
)
from .memory import Tag, get, int32, int64, put
from .patches import SLACK, Room, aim_patch, first_pixel, room_in, zeros
from .plan import Work, found_line, next_item, output_row, own_memory, place_in, plan_of
from .positions import centred, settle_numbers
from .pull import add_found, give_numbers


@jit
def fill_plane(work: Work, room: Room, n: int, c: int, p_plane: int) -> None:
    """A channel of an image, and the zeros around it."""
    plan, zero = work.plan, work.zero
    width, first = plan.lengths[0], first_pixel(room)
    zeros(p_plane, first, zero)
    o_u = n * plan.image[4] + c * plan.image[3]
    for i_y in range(plan.lengths[1]):
        o_row, o_to = o_u + i_y * plan.image[1], first + i_y * room.pitch
        for i_x in range(0, width, LANES):  # zeros beyond the row: the next one overwrites them
            put_lanes(
                p_plane, o_to + i_x, read_lanes(work.image, o_row + i_x, width - i_x, work.stored, zero)
            )
        for k in range(room.pitch - width):
            put(p_plane, o_to + width + k, zero)
    o_end = first + plan.lengths[1] * room.pitch
    for k in range(o_end, room.pixels, LANES):
        put_lanes(p_plane, k, every(zero))


@jit
def forward_planes(p_call: int, stored: Tag, zero: Tag, size: int, version: Tag) -> None:
    """``forward_items`` for blocks of an image's channels."""
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
    room = room_in(work, plan.block, size)
    width, item = plan.out[0], next_item(p_call)
    plane = (room.pixels + SLACK) * size
    while item >= 0:
        n, first = item // plan.parts, item % plan.parts * plan.block
        many = min(plan.block, plan.channels - first)
        for c in range(many):
            fill_plane(work, room, n, first + c, room.patch + c * plane)
        for t in range(plan.copies):
            lost = settle_numbers(work, n, t)
            for i_y in range(plan.out[1]):
                aim_patch(work, room, i_y, lost, 1)
                o_row = output_row(plan, n, t, 0, i_y)
                for c in range(many):
                    o_v = o_row + (first + c) * plan.output[3]
                    for j in range(0, width, LANES):
                        corners = squares(room.patch + c * plane, 0, room.offset, j, room.pitch, zero, zero)
                        x, y = get_lanes(room.x, j, zero), get_lanes(room.y, j, zero)
                        above = blend(corners[0], corners[1], x)
                        value = blend(above, blend(corners[2], corners[3], x), y)
                        write_lanes(work.output, o_v + j, width - j, stored, value)
        item = next_item(p_call)


@jit
def read_cotangent(work: Work, room: Room, o_v: int) -> None:
    for j in range(0, work.plan.out[0], LANES):
        value = read_lanes(work.output, o_v + j, work.plan.out[0] - j, work.stored, work.zero)
        put_lanes(room.row, j, value)


@jit
def pull_plane(work: Work, room: Room, i_y: int) -> None:
    """Adds the gradient of the matrix from a row."""
    plan, zero = work.plan, work.zero
    y, half = centred(i_y, plan.out[1], zero), type(zero)(plan.out[0] - 1) * type(zero)(0.5)
    sums, moments = four_times(zero), four_times(zero)
    for j in range(plan.out[0]):
        slope = slopes(room.patch, get(room.offset, j, int32(0)), room.pitch, zero)
        share = times(shares(get(room.x, j, zero), get(room.y, j, zero)), four_times(get(room.row, j, zero)))
        push = times(slope, share)
        sums = plus(sums, push)
        moments = times_plus(push, four_times(type(zero)(int32(j)) - half), moments)
    add_moments(work, 0, along(moments)[0], along(sums)[0], y)
    add_moments(work, 1, along(moments)[1], along(sums)[1], y)


@jit
def add_moments(work: Work, r: int, by_u: float, alone: float, y: float) -> None:
    add_found(work, r, 0, by_u)
    add_found(work, r, 1, y * alone)
    add_found(work, r, 2, alone)


@jit
def scatter_plane(work: Work, room: Room) -> None:
    """Adds to the squares that a row reads, each in its own place: neighbours do not wait for one another."""
    zero = work.zero
    for j in range(work.plan.out[0]):
        share = weights(shares(get(room.x, j, zero), get(room.y, j, zero)))
        value = times(share, four_times(get(room.row, j, zero)))
        add_corners(room.gradient, get(room.offset, j, int32(0)), value)


@jit
def give_plane(work: Work, room: Room, p_to: int, o_to: int) -> None:
    """A pixel's gradient: its share of the four squares that it is a corner of."""
    plan, zero, p = work.plan, work.zero, room.gradient
    width, first = plan.lengths[0], first_pixel(room)
    for i_y in range(plan.lengths[1]):
        o_row, o_u = o_to + i_y * plan.gradient[1], first + i_y * room.pitch
        for i_x in range(0, width, LANES):
            o = o_u + i_x
            value = plus(corner_of(p, o, 0, zero), corner_of(p, o - 1, 1, zero))
            above = o - room.pitch
            value = plus(value, plus(corner_of(p, above, 2, zero), corner_of(p, above - 1, 3, zero)))
            write_lanes(p_to, o_row + i_x, width - i_x, work.stored, value)


@jit
def backward_planes(p_call: int, stored: Tag, zero: Tag, size: int, version: Tag) -> None:
    """``scatter_items`` and ``pull_items`` for single channels of an image."""
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
    room = room_in(work, 1, size)
    p_to_image, p_to_numbers = place_in(p_call, 3), place_in(p_call, 4)
    item = next_item(p_call)
    while item >= 0:
        n, c = item // plan.channels, item % plan.channels
        if p_to_numbers != 0:
            fill_plane(work, room, n, c, room.patch)
        if p_to_image != 0:
            zeros(room.gradient, CORNERS * room.pixels, zero)
        for t in range(plan.copies):
            lost = settle_numbers(work, n, t)
            for k in range(6):
                put(found_line(work), k, 0.0)
            for i_y in range(plan.out[1]):
                aim_patch(work, room, i_y, lost, 1)
                read_cotangent(work, room, output_row(plan, n, t, 0, i_y) + c * plan.output[3])
                if p_to_numbers != 0 and not lost:
                    pull_plane(work, room, i_y)
                if p_to_image != 0:
                    scatter_plane(work, room)
            if p_to_numbers != 0:
                give_numbers(work, p_to_numbers, n, t, c)
        if p_to_image != 0:
            give_plane(work, room, p_to_image, n * plan.gradient[4] + c * plan.gradient[3])
        item = next_item(p_call)
