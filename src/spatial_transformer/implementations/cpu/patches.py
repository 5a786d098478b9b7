"""Affine bilinear warps of 2D images with zeros outside, from copies of them that a core's cache holds.

A patch is some channels of an image as real numbers, with MARGIN zeros around. A position is held inside it:
what is outside of the image reads zeros, gives its gradient to nobody, and needs no other code. Halves are
converted once, not at each tap.

A thread's patches and lines are in what is left of its memory: see ``Room``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .jit import jit
from .lanes import (
    LANES,
    every,
    floor_lanes,
    held_lanes,
    minus,
    plus,
    put_lanes,
    ramp,
    times,
    whole_lanes,
)
from .memory import Tag, int32
from .plan import Work, number_at, sums_line
from .positions import centred

MARGIN = 2  # a square of four pixels on the far side of the border's first zero reads zeros alone
SLACK = 4 * LANES  # numbers after each part of a room: vectors may start at its last one


class Room(NamedTuple):
    """Addresses in a thread's memory; sizes in real numbers."""

    x: int  # lines of an output row: how far right of its pixel each position is
    y: int  # and below
    offset: int  # of that pixel in the patch, int32
    row: int  # numbers of the row, channels innermost where there are several
    turned: int  # the same, channels outermost
    patch: int
    gradient: int
    pitch: int  # of the patch's rows, in pixels
    pixels: int  # of the patch


@jit
def rounded_up(count: int) -> int:
    return (count + LANES - 1) // LANES * LANES


@jit
def room_in(work: Work, channels: int, size: int) -> Room:
    """A room for patches of so many channels at once; a real number has ``size`` bytes."""
    plan = work.plan
    longest = rounded_up(max(plan.out[0], plan.lengths[0])) + SLACK
    pitch = plan.lengths[0] + 2 * MARGIN
    pixels = pitch * (plan.lengths[1] + 2 * MARGIN)
    start = (sums_line(work) + 63) // 64 * 64
    step = longest * size
    row = start + 3 * step
    turned = row + step * channels
    patch = turned + step * channels
    gradient = patch + (pixels * channels + SLACK * channels) * size
    return Room(start, start + step, start + 2 * step, row, turned, patch, gradient, pitch, pixels)


def room_size(out_width: int, lengths: tuple[int, ...], channels: int, slots: int, size: int) -> int:
    """The words of 8 bytes that ``room_in`` needs; the gradient takes ``slots`` numbers a pixel."""
    longest = -(-max(out_width, lengths[0]) // LANES) * LANES + SLACK
    pixels = (lengths[0] + 2 * MARGIN) * (lengths[1] + 2 * MARGIN)
    numbers = longest * (3 + 2 * channels) + (pixels + SLACK) * (channels + slots)
    return -(-numbers * size // 8) + 16


@jit
def zeros(p: int, count: int, zero: Tag) -> None:
    for k in range(0, count, LANES):
        put_lanes(p, k, every(zero))


@jit
def first_pixel(room: Room) -> int:
    """Where the image starts in its patch."""
    return MARGIN * room.pitch + MARGIN


class Line(NamedTuple):
    """One coordinate of a row's positions: (value + step * pixels from the centre) + middle."""

    value: float
    step: float
    middle: float
    high: float  # positions beyond are held there


@jit
def line_of(work: Work, a: int, i_y: int, lost: bool) -> Line:
    """As ``positions.matrix_row``."""
    plan, zero = work.plan, work.zero
    value = number_at(work, a, 2) + number_at(work, a, 1) * centred(i_y, plan.out[1], zero)
    if lost and plan.half_span[a] != 0:
        value = type(zero)(math.nan)
    return Line(value, number_at(work, a, 0), type(zero)(plan.middle[a]), type(zero)(plan.lengths[a]))


@jit
def aim_patch(work: Work, room: Room, i_y: int, lost: bool, unit: int) -> None:
    """Offsets, in steps of ``unit``, and distances from their pixels of a row's positions."""
    zero = work.zero
    along_x, along_y = line_of(work, 0, i_y, lost), line_of(work, 1, i_y, lost)
    half, low = type(zero)(work.plan.out[0] - 1) * type(zero)(0.5), every(type(zero)(-MARGIN))
    pitch, first = every(int32(room.pitch * unit)), every(int32(first_pixel(room) * unit))
    for j in range(0, work.plan.out[0], LANES):
        u = minus(plus(ramp(zero), every(type(zero)(int32(j)))), every(half))
        x = plus(plus(every(along_x.value), times(every(along_x.step), u)), every(along_x.middle))
        y = plus(plus(every(along_y.value), times(every(along_y.step), u)), every(along_y.middle))
        x, y = held_lanes(x, low, every(along_x.high)), held_lanes(y, low, every(along_y.high))
        left, top = floor_lanes(x), floor_lanes(y)
        put_lanes(room.x, j, minus(x, left))
        put_lanes(room.y, j, minus(y, top))
        o = plus(times(whole_lanes(top), pitch), times(whole_lanes(left), every(int32(unit))))
        put_lanes(room.offset, j, plus(o, first))
