"""What a kernel is told, and how a thread's own memory is laid out."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numba
import numpy as np

from .jit import jit
from .memory import Tag, get, pointer, take

Record = Any  # of PLAN
Strides = tuple[int, int, int, int]  # x, y, z, channel
Variant = tuple[int, ...]

MATRIX, OFFSETS, POINTS, GRID = range(4)
NEAREST, BILINEAR, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION, CIRCULAR, FILL = range(5)
KINDS = {"matrix": MATRIX, "offsets": OFFSETS, "points": POINTS, "grid": GRID}
KERNELS = {"nearest": NEAREST, "bilinear": BILINEAR, "bicubic": BICUBIC}
PADDINGS = {"zeros": ZEROS, "border": BORDER, "reflection": REFLECTION, "circular": CIRCULAR, "fill": FILL}
CUBIC = -0.75  # of kernels.cubic

# A kernel has three variants, told apart by the length of a tuple, which Numba knows when it compiles. COMMON
# has the plain bilinear kernel of affine transforms alone, PLACED that of any positions; each is compiled in
# a good half of the next one's time.
COMMON: tuple[int, ...] = ()
PLACED = (0,)
ANY = (0, 0)

# Everything about a call that is not an address. Axes are in the order x, y, z; strides count elements.
PLAN = np.dtype(
    [
        ("kind", "i8"),
        ("dims", "i8"),
        ("kernel", "i8"),
        ("padding", "i8"),
        ("beyond", "i8"),  # whether there is an outside: zeros and fill
        ("align_corners", "i8"),
        ("antialias", "i8"),
        ("limit", "f8"),
        ("wider", "f8"),  # squared footprints up to this count as 1
        ("by_rows", "i8"),  # whether pixels are read by rows
        ("innermost", "i8"),  # whether channels lie innermost
        ("batch", "i8"),
        ("copies", "i8"),
        ("channels", "i8"),
        ("rows", "i8"),  # R of a matrix, K of points
        ("columns", "i8"),
        ("parts", "i8"),  # blocks of rows that an output is cut into
        ("block", "i8"),  # channels that are read together
        ("bands", "i8"),  # what an image's outermost axis is cut into by scatter_items
        ("thickness", "i8"),  # of the thickest band
        ("direct", "i8"),  # whether it adds in the gradient itself, which is real
        ("most", "i8"),  # taps along an axis
        ("all", "i8"),  # taps of a pixel
        ("words", "i8"),  # of a thread's memory
        ("pitch", "i8"),  # of its lines
        ("lengths", "i8", 3),  # of the image
        ("out", "i8", 3),
        ("image", "i8", 5),  # strides: x, y, z, channel, batch
        ("gradient", "i8", 5),
        ("output", "i8", 6),  # of the output or its cotangent: x, y, z, channel, copy, batch
        ("numbers", "i8", 7),  # see number_strides
        ("to_numbers", "i8", 7),
        ("basis", "i8", 3),  # layer, number, point
        ("to_basis", "i8", 3),
        ("middle", "f8", 3),  # of job.Axis
        ("half_span", "f8", 3),
        ("still", "f8", 3),
        ("steps", "f8", (4, 4)),  # rows x, y, z, w; columns x, y, z, shift
    ],
    align=True,
)


class Planned(NamedTuple):
    """A plan, and what of it Python needs again."""

    record: Any  # an array of one PLAN, kept for its address
    place: int  # its address
    words: int  # of 8 bytes that each thread needs
    transforms: int
    parts: int
    pieces: int  # work items of scatter_items
    variant: Variant  # the least one that does


# A thread's memory, in words of 8 bytes. First lines of ``pitch`` words, for what is known of an output row's
# pixels; vectors that start at the last one have room.
POSITION = 0  # 3: source pixels, not yet made finite
INSIDE_PIXEL = 3  # 3: how far right of the pixel at or left of it
OFFSET = 6  # int32: of the lowest tap
MARK = 7  # int32: one of
INSIDE, BESIDE, NOWHERE = range(3)  # all taps are in the image; some or all are padded; none counts
DEPTH = 8  # of a projective matrix: w, 0 on the horizon; later its gradient
PUSH = 9  # 3: the gradient of the position
WEIGHT = (
    12  # 12: of a bicubic kernel, at 4 a + k; of a bilinear one that is BESIDE its two weights, two slopes
)
STEEP = 24  # 12: slopes of a bicubic kernel; of a bilinear one that is BESIDE whether its two taps count
FIRST, SECOND = 36, 39  # 3 each, int32: offsets of the two taps of a bilinear kernel that is BESIDE
SUMS = 42  # 3: of products with a basis, float64; later a cotangent
SLOPE = 45  # 9: of position a per output pixel along b, at 3 a + b; later their gradient
FOOT = 54  # 3: the footprint
STRETCH = 57  # 3: its gradient
LINES = 60
# Then, of one output pixel: how many taps an axis has, and the weight, slope and width of all of them.
COUNT, WHOLE = 0, 3
TAPS = 12
TAP_OFFSET, TAP_WEIGHT, TAP_SLOPE, TAP_WIDTH = 0, 3, 6, 9  # 3 times ``most`` each; offsets int64
# Their products' offsets and weights, ``all`` each; a transform's numbers and the gradient of these, float64,
# 4 ``rows`` each; and what is left, for sums over channels or those of an image's gradient.


class Work(NamedTuple):
    """What one thread works on."""

    plan: Record
    memory: int
    image: int  # the addresses of U, or of its gradient
    output: int  # of V, or of its cotangent G
    numbers: int
    basis: int
    fill: int
    strides: Strides  # of what is at ``image``
    low: int  # pixels of the image's outermost axis that count: from here
    high: int  # to here
    stored: Tag  # as the output's elements
    zero: Tag  # real


class Run(NamedTuple):
    """Neighbours in a row of the output, and channels."""

    start: int
    stop: int
    first: int
    last: int
    o_u: int  # of the image
    o_v: int  # of the output's row


@jit
def line(work: Work, k: int) -> int:
    return work.memory + 8 * k * work.plan.pitch


@jit
def words(work: Work, k: int) -> int:
    return work.memory + 8 * (LINES * work.plan.pitch + k)


@jit
def tap_line(work: Work, what: int, a: int) -> int:
    return words(work, TAPS + (what + a) * work.plan.most)


@jit
def place_line(work: Work) -> int:
    return words(work, TAPS + 12 * work.plan.most)


@jit
def share_line(work: Work) -> int:
    return words(work, TAPS + 12 * work.plan.most + work.plan.all)


@jit
def numbers_line(work: Work) -> int:
    return words(work, TAPS + 12 * work.plan.most + 2 * work.plan.all)


@jit
def found_line(work: Work) -> int:
    return words(work, TAPS + 12 * work.plan.most + 2 * work.plan.all + 4 * work.plan.rows)


@jit
def sums_line(work: Work) -> int:
    return words(work, TAPS + 12 * work.plan.most + 2 * work.plan.all + 8 * work.plan.rows)


@jit
def number_at(work: Work, r: int, b: int) -> float:
    """Of the transform at hand, settled; of a matrix in pixels."""
    return get(numbers_line(work), r * work.plan.columns + b, work.zero)


# A call, as its threads see it: the next item, how many there are, the next thread's memory, the addresses of
# the plan and of the tensors.
CALL = ctypes.c_int64 * 11


@jit
def plan_of(p_call: int) -> Record:
    return numba.carray(pointer(get(p_call, 3, 0)), 1, PLAN)[0]  # type: ignore[attr-defined]


@jit
def place_in(p_call: int, k: int) -> int:
    return get(p_call, 4 + k, 0)


@jit
def own_memory(p_call: int) -> int:
    """The address of memory that no other thread has."""
    return take(p_call + 16, plan_of(p_call).words * 8)


@jit
def next_item(p_call: int) -> int:
    """A work item that no other thread has, or -1."""
    item = take(p_call, 1)
    return item if item < get(p_call, 1, 0) else -1


@jit
def output_row(plan: Record, n: int, t: int, i_z: int, i_y: int) -> int:
    return n * plan.output[5] + t * plan.output[4] + i_z * plan.output[2] + i_y * plan.output[1]


@jit
def line_pitch(work: Work) -> int:
    return 8 * work.plan.pitch
