"""The CPU kernels of ``impl="fused"``, in Numba: theta to output in one pass, no sampling grid in memory.

Three kernels, each over work items that share no memory they write:

- ``forward_items``: blocks of output rows of one transform;
- ``scatter_items``, the image's gradient: blocks of channels of one image, or bands of its pixels;
- ``pull_items``, the gradient of numbers and basis: blocks of output rows.

All go through the output row by row. ``place_row`` gives a row's source positions and ``aim_row`` tells which
of its pixels have all taps in the image. Those are read by plain loops along the row, channel after channel,
from offsets and weights computed once. Others, and all pixels where channels lie innermost or the kernel is
widened, are read one by one with a loop over the channels inside.

Results do not depend on the number of threads: every sum is taken in an order that the shapes alone decide.
Positions are computed in the order of ``matrices.homogeneous_rows``.

Kernels see addresses and strides (in elements), never arrays: no layout is copied or compiled by itself, and
Numba's arrays take long to compile and count their references on every slice. "Real" is the compute dtype.
In names ``p_`` is an address, ``o_`` an offset, ``s_`` a stride, ``i_`` an index.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import event
from numba.extending import intrinsic
from torch import Tensor

from ..families import HUGE
from ..matrices import HORIZON
from .job import Job, empty_output, near_one, source_axes, w_steps
from .reference import FAR

Function = TypeVar("Function", bound=Callable[..., Any])
Record = Any  # of PLAN
Strides = tuple[int, int, int, int]  # x, y, z, channel
Tag = Any  # a number whose type matters, not its value
Variant = tuple[int, ...]

int32: Any = np.int32
int64: Any = np.int64
uint32: Any = np.uint32
float64: Any = np.float64

MATRIX, OFFSETS, POINTS, GRID = range(4)
NEAREST, BILINEAR, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION, CIRCULAR, FILL = range(5)
KINDS = {"matrix": MATRIX, "offsets": OFFSETS, "points": POINTS, "grid": GRID}
KERNELS = {"nearest": NEAREST, "bilinear": BILINEAR, "bicubic": BICUBIC}
PADDINGS = {"zeros": ZEROS, "border": BORDER, "reflection": REFLECTION, "circular": CIRCULAR, "fill": FILL}
CUBIC = -0.75  # of kernels.cubic

# A kernel has two variants. COMMON has the plain bilinear kernel of affine transforms alone, and is
# compiled in half the time. They are told apart by the length of a tuple, which Numba knows when it compiles.
COMMON: tuple[int, ...] = ()
ANY = (0,)

# Flags. Parts are inlined whole: what they are told then costs nothing to pass.

FLAGS: dict[str, Any] = {"error_model": "numpy"}
# Nobody calls a part by itself. Without the wrappers that would let one, Numba makes no machine code of it
# either: compilation takes half the time.
PART = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, **FLAGS}


def _jit(function: Function) -> Function:
    """A part of a kernel. Without fast-math: NaN and infinity mean what they say."""
    return numba.njit(**PART)(function)


def _jit_blend(function: Function) -> Function:
    """A part whose products and sums may be one instruction."""
    return numba.njit(fastmath={"contract"}, **PART)(function)


def _jit_sum(function: Function) -> Function:
    """A part whose sums may be taken in any order, which vectors need."""
    return numba.njit(fastmath={"contract", "reassoc"}, **PART)(function)


def _code(function: Callable[..., Any]) -> Any:
    """A part written in LLVM's instructions."""
    return intrinsic(function)


# Memory

# A tensor's type of elements is told by the type of a number, there being no half type to say it with.
STORED = {
    torch.float64: np.float64(0),
    torch.float32: np.float32(0),
    torch.bfloat16: np.uint16(0),
    torch.float16: np.int16(0),
}
REAL = {torch.float64: np.float64(0), torch.float32: np.float32(0)}
WORD, HALF, FLOAT = ir.IntType(32), ir.IntType(16), ir.FloatType()


def _pointer(builder: Any, kind: Any, address: Any, index: Any) -> Any:
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [index])


@_code
def load(typing_context: Any, address: Any, index: Any, stored: Any, real: Any) -> Any:
    """An element of a tensor, as a number of the type of ``real``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if stored == types.uint16:
            bits = builder.zext(builder.load(_pointer(builder, HALF, *arguments[:2])), WORD)
            value, found = builder.bitcast(builder.shl(bits, WORD(16)), FLOAT), types.float32
        elif stored == types.int16:
            half = builder.load(_pointer(builder, ir.HalfType(), *arguments[:2]))
            value, found = builder.fpext(half, FLOAT), types.float32
        else:
            value = builder.load(_pointer(builder, context.get_value_type(stored), *arguments[:2]))
            found = stored
        return context.cast(builder, value, found, real)

    return real(types.int64, types.int64, stored, real), generate


@_code
def load_two(typing_context: Any, address: Any, index: Any, stored: Any, real: Any) -> Any:
    """An element of a tensor and the next: of halves by one load."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, found = _pointer(builder, HALF, *arguments[:2]), types.float32
        if stored == types.uint16:
            bits = builder.load(builder.bitcast(place, WORD.as_pointer()), align=2)
            pair = [builder.shl(bits, WORD(16)), builder.and_(bits, WORD(0xFFFF0000))]
            pair = [builder.bitcast(half, FLOAT) for half in pair]
        elif stored == types.int16:
            halves = builder.load(
                builder.bitcast(place, ir.VectorType(ir.HalfType(), 2).as_pointer()), align=2
            )
            both = builder.fpext(halves, ir.VectorType(FLOAT, 2))
            pair = [builder.extract_element(both, WORD(k)) for k in (0, 1)]
        else:
            place, found = _pointer(builder, context.get_value_type(stored), *arguments[:2]), stored
            pair = [builder.load(builder.gep(place, [WORD(k)])) for k in (0, 1)]
        return context.make_tuple(
            builder, signature.return_type, [context.cast(builder, value, found, real) for value in pair]
        )

    return types.UniTuple(real, 2)(types.int64, types.int64, stored, real), generate


@_code
def is_half(typing_context: Any, stored: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.boolean, not isinstance(stored, types.Float))

    return types.boolean(stored), generate


@_code
def store(typing_context: Any, address: Any, index: Any, stored: Any, value: Any) -> Any:
    """Puts a number into a tensor, rounded to nearest even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = arguments[3]
        if stored == types.uint16:
            bits = builder.bitcast(number, WORD)
            even = builder.and_(builder.lshr(bits, WORD(16)), WORD(1))
            rounded = builder.lshr(builder.add(builder.add(bits, WORD(0x7FFF)), even), WORD(16))
            is_nan = builder.fcmp_unordered("uno", number, number)
            number, kind = builder.trunc(builder.select(is_nan, WORD(0x7FC0), rounded), HALF), HALF
        elif stored == types.int16:
            number, kind = builder.fptrunc(number, ir.HalfType()), ir.HalfType()
        else:
            kind = context.get_value_type(stored)
        builder.store(number, _pointer(builder, kind, *arguments[:2]))
        return context.get_dummy_value()

    through = stored if isinstance(stored, types.Float) else types.float32
    return types.void(types.int64, types.int64, stored, through), generate


@_code
def get(typing_context: Any, address: Any, index: Any, like: Any) -> Any:
    """A number of the type of ``like``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(builder, context.get_value_type(signature.return_type), *arguments[:2]))

    like = types.unliteral(like)
    return like(types.int64, types.int64, like), generate


@_code
def put(typing_context: Any, address: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.args[2])
        builder.store(arguments[2], _pointer(builder, kind, *arguments[:2]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.unliteral(value)), generate


@_code
def take(typing_context: Any, address: Any, amount: Any) -> Any:
    """The whole number at an address, which is more by an amount for the next thread that asks."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", place, arguments[1], "monotonic")

    return types.int64(types.int64, types.int64), generate


@_code
def pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@_jit
def pair(p: int, o: int, stride: int, stored: Tag, zero: Tag) -> tuple[float, float]:
    if stride == 1:
        return load_two(p, o, stored, zero)
    return load(p, o, stored, zero), load(p, o + stride, stored, zero)


@_jit
def add(p: int, o: int, value: float) -> None:
    put(p, o, get(p, o, value) + value)


# What a kernel is told

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

# A thread's memory, in words of 8 bytes. First lines of W words, for what is known of an output row's pixels:
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
SUMS = 42  # 3: of products with a basis, float64; later the output of a half dtype
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


@_jit
def line(work: Work, k: int) -> int:
    return work.memory + 8 * k * work.plan.out[0]


@_jit
def words(work: Work, k: int) -> int:
    return work.memory + 8 * (LINES * work.plan.out[0] + k)


@_jit
def tap_line(work: Work, what: int, a: int) -> int:
    return words(work, TAPS + (what + a) * work.plan.most)


@_jit
def place_line(work: Work) -> int:
    return words(work, TAPS + 12 * work.plan.most)


@_jit
def share_line(work: Work) -> int:
    return words(work, TAPS + 12 * work.plan.most + work.plan.all)


@_jit
def numbers_line(work: Work) -> int:
    return words(work, TAPS + 12 * work.plan.most + 2 * work.plan.all)


@_jit
def found_line(work: Work) -> int:
    return words(work, TAPS + 12 * work.plan.most + 2 * work.plan.all + 4 * work.plan.rows)


@_jit
def sums_line(work: Work) -> int:
    return words(work, TAPS + 12 * work.plan.most + 2 * work.plan.all + 8 * work.plan.rows)


@_jit
def number_at(work: Work, r: int, b: int) -> float:
    """Of the transform at hand, settled; of a matrix in pixels."""
    return get(numbers_line(work), r * work.plan.columns + b, work.zero)


# Positions


@_jit
def settled(number: float) -> float:
    """Of ``families.settle``."""
    huge = type(number)(HUGE)
    if number != number:
        return type(number)(0)
    return min(max(number, -huge), huge)


@_jit
def finite(position: float, nan: float) -> float:
    """Of ``reference.finite``."""
    far = type(position)(FAR)
    held = position if position < far else far
    held = held if held > -far else -far
    return held if position == position else nan


@_jit
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


@_jit
def centred(index: int, length: int, zero: Tag) -> float:
    """Pixels from the centre: exact."""
    return type(zero)(int32(2 * index - (length - 1))) * type(zero)(0.5)


@_jit
def matrix_row(work: Work, r: int, i_z: int, i_y: int, p_to: int, middle: float) -> None:
    """One row of a matrix times the target pixels of an output row, plus a number."""
    plan, zero, dims = work.plan, work.zero, work.plan.dims
    value = number_at(work, r, dims)
    if dims == 3:
        value = value + number_at(work, r, 2) * centred(i_z, plan.out[2], zero)
    value = value + number_at(work, r, 1) * centred(i_y, plan.out[1], zero)
    step, half = number_at(work, r, 0), type(zero)(plan.out[0] - 1) * type(zero)(0.5)
    for j in range(plan.out[0]):
        put(p_to, j, (value + step * (type(zero)(int32(j)) - half)) + middle)


@_jit
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


@_jit
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


@_jit
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


@_jit
def place_row(work: Work, n: int, t: int, i_z: int, i_y: int, lost: bool, variant: Variant) -> None:
    """The source positions of a row of output pixels; with anti-aliasing their slopes and footprints."""
    plan, zero, dims = work.plan, work.zero, work.plan.dims
    if plan.kind == MATRIX:
        for r in range(plan.rows):
            middle = type(zero)(plan.middle[r]) if plan.rows == dims else zero
            matrix_row(work, r, i_z, i_y, line(work, DEPTH if r == dims else POSITION + r), middle)
    if len(variant) > 0:
        place_any(work, n, t, i_z, i_y)
    if lost:
        for a in range(dims):
            if plan.half_span[a] != 0:
                fill_line(line(work, POSITION + a), plan.out[0], type(zero)(math.nan))


@_jit
def place_any(work: Work, n: int, t: int, i_z: int, i_y: int) -> None:
    """What is left to do where a transform is not affine, or anti-aliased."""
    plan, zero, dims = work.plan, work.zero, work.plan.dims
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
    if plan.antialias:
        for a in range(dims):
            for j in range(plan.out[0]):
                squared = squared_footprint(work, a, j)
                held = type(zero)(math.sqrt(min(squared, type(zero)(plan.limit * plan.limit))))
                put(line(work, FOOT + a), j, held if squared > type(zero)(plan.wider) else type(zero)(1))


@_jit
def fill_line(p: int, width: int, value: float) -> None:
    for j in range(width):
        put(p, j, value)


@_jit
def squared_footprint(work: Work, a: int, j: int) -> float:
    """Of ``antialias.footprints``, before it is held between 1 and the limit."""
    total = work.zero
    for b in range(work.plan.dims):
        slope = get(line(work, SLOPE + 3 * a + b), j, work.zero)
        if abs(slope) < math.inf:
            total += slope * slope
    return total


# Aim: where taps are


class Aim(NamedTuple):
    """What of an axis' pixels counts, as whole numbers of the kernel's middle tap."""

    first: int  # all taps count from here
    many: int  # on so many
    low: int  # none counts before this
    none: int  # nor after so many
    stride: int


@_jit
def aim_at(work: Work, a: int) -> Aim:
    plan = work.plan
    before, after = reach(plan.kernel)
    low, high = (work.low, work.high) if a == plan.dims - 1 else (int64(0), plan.lengths[a])
    first, many = int32(low + before), uint32(max(high - low - before - after, 0))
    lowest, none = low - after, high - low + before + after
    if not plan.beyond:  # what is outside is padded from anywhere
        lowest, none = int64(-FAR - 1), int64(2**32 - 1)
    return Aim(first, many, int32(lowest), uint32(none), int32(work.strides[a]))


@_jit
def reach(kernel: int) -> tuple[int, int]:
    """Taps before and after the middle one of a plain kernel."""
    if kernel == NEAREST:
        return 0, 0
    return (1, 2) if kernel == BICUBIC else (0, 1)


@_jit
def aimed(x: float, aim: Aim) -> tuple[float, int, bool, bool]:
    """How far right of its pixel a position is, the pixel's offset, whether all taps count, whether none."""
    far = type(x)(FAR)
    held = x if x > -far else -far  # NaN too: no whole number is made of it
    held = held if held < far else far
    left = np.floor(held)
    i = int32(left)
    inside = uint32(int32(i - aim.first)) < aim.many
    missed = uint32(int32(i - aim.low)) >= aim.none
    return held - left, int32(i * aim.stride), inside, missed


@_jit
def marked(inside: bool, missed: bool) -> int:
    mark = int32(INSIDE) if inside else int32(BESIDE)
    return int32(NOWHERE) if missed else mark


@_jit
def aim_row(work: Work, steep: bool, variant: Variant) -> None:
    """Where a row's taps are, and which of them count."""
    plan, zero, width = work.plan, work.zero, work.plan.out[0]
    p_mark, p_offset = line(work, MARK), line(work, OFFSET)
    if not plan.by_rows:
        fill_line(p_mark, width, int32(BESIDE))
        return
    if len(variant) > 0:
        weigh_row(work, steep)
    aim_x, aim_y, aim_z = aim_at(work, 0), aim_at(work, 1), aim_at(work, plan.dims - 1)
    p_x, p_y, p_z = line(work, POSITION), line(work, POSITION + 1), line(work, POSITION + 2)
    p_right, p_below, p_behind = (
        line(work, INSIDE_PIXEL),
        line(work, INSIDE_PIXEL + 1),
        line(work, INSIDE_PIXEL + 2),
    )
    before = int32(reach(plan.kernel)[0] * (work.strides[0] + work.strides[1]))
    if plan.dims == 2:
        for j in range(width):
            right, o_x, inside_x, missed_x = aimed(get(p_x, j, zero), aim_x)
            below, o_y, inside_y, missed_y = aimed(get(p_y, j, zero), aim_y)
            put(p_right, j, right)
            put(p_below, j, below)
            put(p_offset, j, int32(int32(o_x + o_y) - before))
            put(p_mark, j, marked(inside_x & inside_y, missed_x | missed_y))
    else:
        before = int32(before + reach(plan.kernel)[0] * work.strides[2])
        for j in range(width):
            right, o_x, inside_x, missed_x = aimed(get(p_x, j, zero), aim_x)
            below, o_y, inside_y, missed_y = aimed(get(p_y, j, zero), aim_y)
            behind, o_z, inside_z, missed_z = aimed(get(p_z, j, zero), aim_z)
            put(p_right, j, right)
            put(p_below, j, below)
            put(p_behind, j, behind)
            put(p_offset, j, int32(int32(int32(o_x + o_y) + o_z) - before))
            put(p_mark, j, marked(inside_x & inside_y & inside_z, missed_x | missed_y | missed_z))
    if plan.bands > 1 and not plan.beyond:
        skip_other_bands(work)


@_jit
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


@_jit
def rounded(x: float) -> float:
    """floor(x + 0.5), without rounding x + 0.5 first."""
    left = np.floor(x)
    return left + type(x)(1) if x - left >= type(x)(0.5) else left


@_jit
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


@_jit
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


@_jit
def cubic(distance: float) -> float:
    """Of ``kernels.cubic``."""
    real = type(distance)
    far, squared = abs(distance), distance * distance
    near_part = (real(CUBIC + 2) * far - real(CUBIC + 3)) * squared + real(1)
    far_part = real(CUBIC) * (((far - real(5)) * far + real(8)) * far - real(4))
    return near_part if far < real(1) else (far_part if far < real(2) else real(0))


@_jit
def cubic_slope(distance: float) -> float:
    real = type(distance)
    far = abs(distance)
    near_part = (real(3 * (CUBIC + 2)) * far - real(2 * (CUBIC + 3))) * distance
    far_part = real(CUBIC) * ((real(3) * far - real(10)) * far + real(8))
    far_part = far_part if distance >= 0 else -far_part
    return near_part if far < real(1) else (far_part if far < real(2) else real(0))


@_jit
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


@_jit
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


@_jit
def counted(work: Work, a: int) -> tuple[int, int]:
    """The pixels of an axis that count."""
    if a == work.plan.dims - 1:
        return work.low, work.high
    return int64(0), work.plan.lengths[a]


@_jit
def place_of(work: Work, a: int, j: int) -> float:
    """A position made finite."""
    nan = type(work.zero)(-FAR) if work.plan.beyond else work.zero
    return finite(get(line(work, POSITION + a), j, work.zero), nan)


# One pixel, any kernel of any width: its taps along each axis, and their products


@_jit
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


@_jit
def count_of(work: Work, a: int) -> int:
    return get(words(work, COUNT), a, 0)


@_jit
def tap_at(work: Work, what: int, a: int, k: int) -> float:
    return get(tap_line(work, what, a), k, work.zero)


@_jit
def one_tap(work: Work) -> None:
    """The axis that a 2D image lacks has one tap."""
    one = type(work.zero)(1)
    put(words(work, COUNT), 2, int64(1))
    put(tap_line(work, TAP_OFFSET, 2), 0, int64(0))
    put(tap_line(work, TAP_WEIGHT, 2), 0, one)
    put(tap_line(work, TAP_SLOPE, 2), 0, work.zero)
    put(tap_line(work, TAP_WIDTH, 2), 0, work.zero)
    put(words(work, WHOLE), 6, one)


@_jit
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


@_jit
def kept(work: Work, what: int, a: int) -> float:
    """The sum of what counts of an axis' weights, slopes or widths."""
    total = work.zero
    for k in range(count_of(work, a)):
        total += tap_at(work, what, a, k)
    return total


@_jit
def whole(work: Work, a: int, k: int) -> float:
    """The sum of all of an axis' weights (0), slopes (1) or widths (2)."""
    return get(words(work, WHOLE), 3 * a + k, work.zero)


# Pixels that a plain bilinear kernel reads partly outside: two taps along each axis


@_jit
def tap_beside(work: Work, a: int, index: int) -> tuple[int, float]:
    """The offset of a pixel that can be read, and 1 if it is the one the tap means, else 0."""
    low, high = counted(work, a)
    if not work.plan.beyond:
        index = padded(work.plan, index, work.plan.lengths[a])
    counts = (index >= low) & (index < high)
    o = int32(min(max(index, low), high - 1) * work.strides[a])
    return o, type(work.zero)(1) if counts else work.zero


@_jit
def beside_run(work: Work, run: Run) -> None:
    """The taps' offsets, weights and slopes; what was held gets no slope."""
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


@_jit_blend
def beside_axis(work: Work, a: int, k: int, j: int, first: float, second: float) -> float:
    """Two values by the weights (k = 0) or slopes (k = 2) of an axis."""
    value = get(line(work, WEIGHT + 4 * a + k), j, first) * first
    return value + get(line(work, WEIGHT + 4 * a + k + 1), j, first) * second


@_jit_blend
def beside_line(work: Work, o: int, j: int, k: int) -> float:
    p_first, p_second, whole_number = line(work, FIRST), line(work, SECOND), int32(0)
    first = load(work.image, o + get(p_first, j, whole_number), work.stored, work.zero)
    second = load(work.image, o + get(p_second, j, whole_number), work.stored, work.zero)
    return beside_axis(work, 0, k, j, first, second)


@_jit_blend
def beside_square(work: Work, o: int, j: int, k_x: int, k_y: int) -> float:
    first = beside_line(work, o + get(line(work, FIRST + 1), j, int32(0)), j, k_x)
    second = beside_line(work, o + get(line(work, SECOND + 1), j, int32(0)), j, k_x)
    return beside_axis(work, 1, k_y, j, first, second)


@_jit_blend
def beside_at(work: Work, o: int, j: int, k_x: int, k_y: int, k_z: int) -> float:
    if work.plan.dims == 2:
        return beside_square(work, o, j, k_x, k_y)
    first = beside_square(work, o + get(line(work, FIRST + 2), j, int32(0)), j, k_x, k_y)
    second = beside_square(work, o + get(line(work, SECOND + 2), j, int32(0)), j, k_x, k_y)
    return beside_axis(work, 2, k_z, j, first, second)


@_jit
def kept_beside(work: Work, a: int, k: int, j: int) -> float:
    """The sum of what counts of an axis' weights (k = 0) or slopes (k = 2); 1 for a missing axis."""
    one = type(work.zero)(1)
    return beside_axis(work, a, k, j, one, one) if a < work.plan.dims else one


# Forward: V = sum of taps


@_jit_blend
def between(u: float, v: float, share: float) -> float:
    return u + share * (v - u)


@_jit_blend
def square_at(p: int, o: int, s_x: int, s_y: int, x: float, y: float, stored: Tag) -> float:
    """Bilinear interpolation in a square of pixels."""
    a, b = pair(p, o, s_x, stored, x)
    c, d = pair(p, o + s_y, s_x, stored, x)
    return between(between(a, b, x), between(c, d, x), y)


@_jit_blend
def read_nearest(work: Work, run: Run) -> None:
    s_u, s_c, s_v, p_offset = work.strides[3], work.plan.output[3], work.plan.output[0], line(work, OFFSET)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * s_u, run.o_v + c * s_c
        for j in range(run.start, run.stop):
            value = load(work.image, o_u + get(p_offset, j, int32(0)), work.stored, work.zero)
            store(work.output, o_v + j * s_v, work.stored, value)


@_jit
def give(work: Work, o_v: int, s_v: int, j: int, value: float) -> None:
    """A value for an output pixel. Halves wait in a line, to be rounded as vectors."""
    if is_half(work.stored):
        put(line(work, SUMS), j, value)
    else:
        store(work.output, o_v + j * s_v, work.stored, value)


@_jit
def give_later(work: Work, run: Run, o_v: int, s_v: int) -> None:
    if is_half(work.stored):
        p_line = line(work, SUMS)
        for j in range(run.start, run.stop):
            store(work.output, o_v + j * s_v, work.stored, get(p_line, j, work.zero))


@_jit_blend
def read_squares(work: Work, run: Run, s_x: int, s_v: int) -> None:
    """Strides of 1 are given as such: pairs of pixels are one load then."""
    s_y, s_u, s_c, zero = work.strides[1], work.strides[3], work.plan.output[3], work.zero
    p_offset, p_x, p_y = line(work, OFFSET), line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * s_u, run.o_v + c * s_c
        for j in range(run.start, run.stop):
            o = o_u + get(p_offset, j, int32(0))
            value = square_at(work.image, o, s_x, s_y, get(p_x, j, zero), get(p_y, j, zero), work.stored)
            give(work, o_v, s_v, j, value)
        give_later(work, run, o_v, s_v)


@_jit_blend
def read_cubes(work: Work, run: Run, s_x: int, s_v: int) -> None:
    s_y, s_z, s_u, s_c, zero = (
        work.strides[1],
        work.strides[2],
        work.strides[3],
        work.plan.output[3],
        work.zero,
    )
    p_offset, p_x, p_y = line(work, OFFSET), line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1)
    p_z = line(work, INSIDE_PIXEL + 2)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * s_u, run.o_v + c * s_c
        for j in range(run.start, run.stop):
            o, x, y = o_u + get(p_offset, j, int32(0)), get(p_x, j, zero), get(p_y, j, zero)
            near = square_at(work.image, o, s_x, s_y, x, y, work.stored)
            far = square_at(work.image, o + s_z, s_x, s_y, x, y, work.stored)
            give(work, o_v, s_v, j, between(near, far, get(p_z, j, zero)))
        give_later(work, run, o_v, s_v)


@_jit_blend
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


@_jit
def line_pitch(work: Work) -> int:
    return 8 * work.plan.out[0]


@_jit_blend
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


@_jit_blend
def four_taps(work: Work, o: int, k: int) -> float:
    p_place, p_share, zero = place_line(work), share_line(work), work.zero
    first = get(p_share, k, zero) * load(work.image, o + get(p_place, k, 0), work.stored, zero)
    first += get(p_share, k + 1, zero) * load(work.image, o + get(p_place, k + 1, 0), work.stored, zero)
    second = get(p_share, k + 2, zero) * load(work.image, o + get(p_place, k + 2, 0), work.stored, zero)
    second += get(p_share, k + 3, zero) * load(work.image, o + get(p_place, k + 3, 0), work.stored, zero)
    return first + second


@_jit_blend
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


@_jit
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


@_jit
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
        if plan.dims == 2:
            if unit:
                read_squares(work, run, 1, 1)
            else:
                read_squares(work, run, work.strides[0], plan.output[0])
        elif unit:
            read_cubes(work, run, 1, 1)
        else:
            read_cubes(work, run, work.strides[0], plan.output[0])
    elif len(variant) > 0:
        if mark == BESIDE:
            for j in range(run.start, run.stop):
                read_pixel(work, run, j, pixel_taps(work, j))
        elif plan.kernel == NEAREST:
            read_nearest(work, run)
        else:
            read_cubic(work, run)


@_jit
def forward_items(p_call: int, stored: Tag, zero: Tag, variant: Variant) -> None:
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


@_jit
def output_row(plan: Record, n: int, t: int, i_z: int, i_y: int) -> int:
    return n * plan.output[5] + t * plan.output[4] + i_z * plan.output[2] + i_y * plan.output[1]


# The image's gradient, at ``work.image``: each tap gets its weight times the cotangent G.


@_jit
def put_nearest(work: Work, run: Run) -> None:
    s_u, s_c, s_v, p_offset = work.strides[3], work.plan.output[3], work.plan.output[0], line(work, OFFSET)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * s_u, run.o_v + c * s_c
        for j in range(run.start, run.stop):
            g = load(work.output, o_v + j * s_v, work.stored, work.zero)
            add(work.image, o_u + get(p_offset, j, int32(0)), g)


@_jit
def put_square(p: int, o: int, s_x: int, s_y: int, x: float, y: float, g: float) -> None:
    low = g * y
    top = g - low
    right_top, right_low = top * x, low * x
    add(p, o, top - right_top)
    add(p, o + s_x, right_top)
    add(p, o + s_y, low - right_low)
    add(p, o + s_y + s_x, right_low)


@_jit
def put_squares(work: Work, run: Run, s_x: int, s_v: int) -> None:
    s_y, s_u, s_c, zero = work.strides[1], work.strides[3], work.plan.output[3], work.zero
    p_offset, p_x, p_y = line(work, OFFSET), line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * s_u, run.o_v + c * s_c
        for j in range(run.start, run.stop):
            o, g = o_u + get(p_offset, j, int32(0)), load(work.output, o_v + j * s_v, work.stored, zero)
            put_square(work.image, o, s_x, s_y, get(p_x, j, zero), get(p_y, j, zero), g)


@_jit
def put_cubes(work: Work, run: Run, s_x: int, s_v: int) -> None:
    s_y, s_z, s_u, s_c, zero = (
        work.strides[1],
        work.strides[2],
        work.strides[3],
        work.plan.output[3],
        work.zero,
    )
    p_offset, p_x, p_y = line(work, OFFSET), line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1)
    p_z = line(work, INSIDE_PIXEL + 2)
    for c in range(run.first, run.last):
        o_u, o_v = run.o_u + c * s_u, run.o_v + c * s_c
        for j in range(run.start, run.stop):
            o, x, y = o_u + get(p_offset, j, int32(0)), get(p_x, j, zero), get(p_y, j, zero)
            g = load(work.output, o_v + j * s_v, work.stored, zero)
            far = g * get(p_z, j, zero)
            put_square(work.image, o, s_x, s_y, x, y, g - far)
            put_square(work.image, o + s_z, s_x, s_y, x, y, far)


@_jit
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


@_jit
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


@_jit
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


@_jit
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


@_jit
def put_run(work: Work, run: Run, mark: int, variant: Variant) -> None:
    """The image's gradient from neighbours in a row that are marked alike."""
    plan = work.plan
    unit = work.strides[0] == 1 and plan.output[0] == 1
    if mark == NOWHERE:
        return
    if mark == BESIDE and plan.by_rows and plan.kernel == BILINEAR:
        beside_run(work, run)
        put_beside(work, run)
    elif mark == INSIDE and plan.kernel == BILINEAR:
        if plan.dims == 2:
            if unit:
                put_squares(work, run, 1, 1)
            else:
                put_squares(work, run, work.strides[0], plan.output[0])
        elif unit:
            put_cubes(work, run, 1, 1)
        else:
            put_cubes(work, run, work.strides[0], plan.output[0])
    elif len(variant) > 0:
        if mark == BESIDE:
            for j in range(run.start, run.stop):
                put_pixel(work, run, j, pixel_taps(work, j))
        elif plan.kernel == NEAREST:
            put_nearest(work, run)
        else:
            put_cubic(work, run)


@_jit
def scatter_items(p_call: int, stored: Tag, zero: Tag, variant: Variant) -> None:
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


@_jit
def scratch_strides(plan: Record) -> Strides:
    width, height = plan.lengths[0], plan.lengths[1]
    if plan.innermost:
        return plan.block, plan.block * width, plan.block * width * height, 1
    return 1, width, width * height, plan.thickness * (width if plan.dims == 2 else width * height)


@_jit
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


@_jit
def band_row(work: Work, i: int, s_y: int, s_z: int) -> int:
    """The offset of a row of a band of pixels."""
    if work.plan.dims == 2:
        return (work.low + i) * s_y
    return (work.low + i // work.plan.lengths[1]) * s_z + i % work.plan.lengths[1] * s_y


@_jit
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


# The gradient of numbers and basis: the cotangent times the slope of V, then back through the positions


@_jit_blend
def slope_squares(work: Work, run: Run, s_x: int, s_v: int) -> None:
    s_y, s_u, s_c, zero, p, stored = (
        work.strides[1],
        work.strides[3],
        work.plan.output[3],
        work.zero,
        work.image,
        work.stored,
    )
    p_offset, p_x, p_y = line(work, OFFSET), line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1)
    p_push_x, p_push_y = line(work, PUSH), line(work, PUSH + 1)
    for i in range(run.first, run.last):
        o_u, o_v = run.o_u + i * s_u, run.o_v + i * s_c
        for j in range(run.start, run.stop):
            o, g = o_u + get(p_offset, j, int32(0)), load(work.output, o_v + j * s_v, stored, zero)
            a, b = pair(p, o, s_x, stored, zero)
            c, d = pair(p, o + s_y, s_x, stored, zero)
            add(p_push_x, j, g * between(b - a, d - c, get(p_y, j, zero)))
            add(p_push_y, j, g * between(c - a, d - b, get(p_x, j, zero)))


@_jit_blend
def slope_cubes(work: Work, run: Run, s_x: int, s_v: int) -> None:
    s_y, s_z, s_u, s_c, zero, p, stored = (
        work.strides[1],
        work.strides[2],
        work.strides[3],
        work.plan.output[3],
        work.zero,
        work.image,
        work.stored,
    )
    p_offset, p_x, p_y = line(work, OFFSET), line(work, INSIDE_PIXEL), line(work, INSIDE_PIXEL + 1)
    p_z, p_push_x, p_push_y = line(work, INSIDE_PIXEL + 2), line(work, PUSH), line(work, PUSH + 1)
    p_push_z = line(work, PUSH + 2)
    for i in range(run.first, run.last):
        o_u, o_v = run.o_u + i * s_u, run.o_v + i * s_c
        for j in range(run.start, run.stop):
            o, g = o_u + get(p_offset, j, int32(0)), load(work.output, o_v + j * s_v, stored, zero)
            x, y, z = get(p_x, j, zero), get(p_y, j, zero), get(p_z, j, zero)
            a, b = pair(p, o, s_x, stored, zero)
            c, d = pair(p, o + s_y, s_x, stored, zero)
            o += s_z
            e, f = pair(p, o, s_x, stored, zero)
            h, k = pair(p, o + s_y, s_x, stored, zero)
            near, far = between(a, b, x), between(e, f, x)
            low_near, low_far = between(c, d, x), between(h, k, x)
            add(p_push_x, j, g * between(between(b - a, d - c, y), between(f - e, k - h, y), z))
            add(p_push_y, j, g * between(low_near - near, low_far - far, z))
            add(p_push_z, j, g * between(far - near, low_far - low_near, y))


@_jit_blend
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


@_jit_blend
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


@_jit_sum
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


@_jit
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


@_jit
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
        if plan.dims == 2:
            if unit:
                slope_squares(work, run, 1, 1)
            else:
                slope_squares(work, run, work.strides[0], plan.output[0])
        elif unit:
            slope_cubes(work, run, 1, 1)
        else:
            slope_cubes(work, run, work.strides[0], plan.output[0])
    elif len(variant) > 0:
        if mark == BESIDE:
            for j in range(run.start, run.stop):
                slope_pixel(work, run, j, pixel_taps(work, j))
        else:
            slope_cubic(work, run)


@_jit_sum
def moments(p: int, width: int, zero: Tag) -> tuple[float, float]:
    """The sum of a line's values, and of values times pixels from the centre."""
    total, first, half = zero, zero, type(zero)(width - 1) * type(zero)(0.5)
    for j in range(width):
        value = get(p, j, zero)
        total += value
        first += value * (type(zero)(int32(j)) - half)
    return total, first


@_jit_sum
def dot(p: int, q: int, o_q: int, s_q: int, width: int, zero: Tag) -> float:
    total = zero
    for j in range(width):
        total += get(p, j, zero) * get(q, o_q + j * s_q, zero)
    return total


@_jit
def slope_share(work: Work, a: int, j: int) -> float:
    """The gradient of a slope over that slope, for s = sqrt(sum of slope^2) where it is followed."""
    real = type(work.zero)
    squared = squared_footprint(work, a, j)
    if squared > real(work.plan.wider) and squared <= real(work.plan.limit * work.plan.limit):
        return get(line(work, STRETCH + a), j, squared) / get(line(work, FOOT + a), j, squared)
    return real(0)


@_jit
def add_found(work: Work, r: int, b: int, value: float) -> None:
    add(found_line(work), r * work.plan.columns + b, float64(value))


@_jit
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


@_jit
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


@_jit
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


@_jit
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


@_jit
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


@_jit
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


@_jit
def clear_basis(work: Work, p_to: int, top: int, bottom: int) -> None:
    plan, to = work.plan, work.plan.to_basis
    for layer in range(1 + plan.dims if plan.antialias else 1):
        for k in range(plan.rows):
            for p in range(top * plan.out[0], bottom * plan.out[0]):
                put(p_to, layer * to[0] + k * to[1] + p * to[2], work.zero)


@_jit
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


@_jit
def give_row(work: Work, p_to_numbers: int, p_to_basis: int, n: int, t: int, i: int) -> None:
    """What is not a matrix' gets its gradient row by row."""
    height = work.plan.out[1]
    if p_to_basis != 0:
        give_basis(work, p_to_basis, i)
    elif work.plan.kind == GRID:
        give_grid(work, p_to_numbers, n, t, i // height, i % height)
    elif work.plan.kind != MATRIX:
        through_basis(work, i)


@_jit
def pull_items(p_call: int, stored: Tag, zero: Tag, variant: Variant) -> None:
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


@_jit
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


# A call, as its threads see it: the next item, how many there are, the next thread's memory, the addresses of
# the plan and of the tensors.
CALL = ctypes.c_int64 * 11


@_jit
def plan_of(p_call: int) -> Record:
    return numba.carray(pointer(get(p_call, 3, 0)), 1, PLAN)[0]  # type: ignore[attr-defined]


@_jit
def place_in(p_call: int, k: int) -> int:
    return get(p_call, 4 + k, 0)


@_jit
def own_memory(p_call: int) -> int:
    """The address of memory that no other thread has."""
    return take(p_call + 16, plan_of(p_call).words * 8)


@_jit
def next_item(p_call: int) -> int:
    """A work item that no other thread has, or -1."""
    item = take(p_call, 1)
    return item if item < get(p_call, 1, 0) else -1


# Python's side


def forward(image: Tensor, numbers: Tensor, basis: Tensor | None, fill: Tensor | None, job: Job) -> Tensor:
    """[N, T, C, *size], see ``Job``"""
    output = roomy(empty_output(image, numbers.shape[1], job.size))
    plan = planned(job, image.shape, image.stride(), output.stride(), *layout(numbers, basis))
    arguments = (
        image.data_ptr(),
        numbers.data_ptr(),
        address(basis),
        address(fill),
        output.data_ptr(),
    )
    spread(
        compiled("forward", plan.common, image.dtype, numbers.dtype),
        plan,
        arguments,
        plan.transforms * plan.parts,
        output.numel(),
    )
    return output


def backward(
    cotangent: Tensor,
    image: Tensor,
    numbers: Tensor,
    basis: Tensor | None,
    fill: Tensor | None,
    job: Job,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of image, numbers and basis that are wanted."""
    to_image = to_numbers = to_basis = None
    known = job, image.shape, image.stride(), cotangent.stride(), *layout(numbers, basis)
    dtypes, work = (image.dtype, numbers.dtype), cotangent.numel()
    threads = torch.get_num_threads() if work > SMALL else 1
    if wanted[0]:
        to_image = roomy(torch.empty_like(image))
        plan = planned(
            *known, to_image=to_image.stride(), direct=image.dtype == numbers.dtype, threads=threads
        )
        places = to_image.data_ptr(), cotangent.data_ptr(), numbers.data_ptr(), address(basis)
        spread(compiled("scatter", plan.common, *dtypes), plan, places, plan.pieces, work)
    if job.kernel == "nearest":  # no slope anywhere
        to_numbers = torch.zeros_like(numbers) if wanted[1] else None
        to_basis = torch.zeros_like(basis) if basis is not None and wanted[2] else None
        return to_image, to_numbers, to_basis
    sources = image.data_ptr(), cotangent.data_ptr(), numbers.data_ptr(), address(basis), address(fill)
    if wanted[1]:
        to_numbers = torch.empty_like(numbers)
        plan = planned(*known, to_numbers=to_numbers.stride())
        partial = to_numbers
        if job.kind != "grid" and plan.parts > 1:
            partial = numbers.new_empty(*numbers.shape, plan.parts)
            plan = planned(*known, to_numbers=partial.stride())
        items = plan.transforms * plan.parts
        spread(compiled("pull", plan.common, *dtypes), plan, (*sources, partial.data_ptr(), 0), items, work)
        if partial is not to_numbers:
            torch.sum(partial, -1, out=to_numbers)
    if basis is not None and wanted[2]:
        to_basis = torch.empty_like(basis)
        plan = planned(*known, to_basis=to_basis.stride(), threads=threads)
        spread(
            compiled("pull", plan.common, *dtypes), plan, (*sources, 0, to_basis.data_ptr()), plan.parts, work
        )
    return to_image, to_numbers, to_basis


# Memory for results

LARGE = 2**22  # bytes from which on a tensor's pages are asked to be large ones; NumPy's number
PAGE, HUGE_PAGES = 4096, 14  # MADV_HUGEPAGE of Linux


def _advice() -> Any:
    """madvise(address, bytes, advice), where there are huge pages to ask for."""
    if sys.platform != "linux":
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise


_advise = _advice()


def roomy(tensor: Tensor) -> Tensor:
    """The same tensor, nothing in it yet.

    Large memory is fresh on every call, and the first touch of a page costs more than what is computed for
    it (38 MB: 25 ms by pages of 4 KB, 9 ms by huge ones). As NumPy does for its arrays, huge ones are asked
    for; where the system has none to give nothing changes.
    """
    size = tensor.numel() * tensor.element_size()
    if size >= LARGE and _advise is not None:
        start = -(-tensor.data_ptr() // PAGE) * PAGE
        _advise(start, (tensor.data_ptr() + size - start) // PAGE * PAGE, HUGE_PAGES)
    return tensor


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def layout(numbers: Tensor, basis: Tensor | None) -> tuple[Any, ...]:
    return numbers.dtype, numbers.shape, numbers.stride(), (0, 0, 0) if basis is None else basis.stride()


BLOCK = 4096  # pixels


class Planned(NamedTuple):
    """A plan, and what of it Python needs again."""

    record: Any  # an array of one PLAN, kept for its address
    place: int  # its address
    words: int  # of 8 bytes that each thread needs
    transforms: int
    parts: int
    pieces: int  # work items of scatter_items
    common: bool  # whether the variant COMMON does


@lru_cache(maxsize=1024)
def planned(
    job: Job,
    shape: tuple[int, ...],
    image: tuple[int, ...],
    output: tuple[int, ...],
    real: torch.dtype,
    numbers_shape: tuple[int, ...],
    numbers: tuple[int, ...],
    basis: tuple[int, int, int],
    *,
    to_image: tuple[int, ...] | None = None,
    to_numbers: tuple[int, ...] | None = None,
    to_basis: tuple[int, int, int] | None = None,
    direct: bool = True,
    threads: int = 1,
) -> Planned:
    """The plan of a call, by everything that it rests on: shapes, strides and options."""
    batch, channels, *in_size = shape
    lengths, out = three(in_size[::-1], 1), three(job.size[::-1], 1)
    outermost = in_size[0]
    channel_strides = [image[1], output[2], *([to_image[1]] if to_image else [])]
    innermost = channels >= 8 and all(stride == 1 for stride in channel_strides)
    furthest = max(
        sum((n - 1) * s for n, s in zip(in_size, strides[2:], strict=True))
        for strides in (image, to_image or image)
    )
    # As many channels at once as the nearest cache holds; positions are computed again for the next ones.
    block = min(max(BLOCK // math.prod(lengths), 16 if innermost else 4), channels)
    if (innermost and direct) or (job.kind == "grid" and to_image is None):
        block = channels  # a grid's gradient is written, not added to
    images = batch * -(-channels // block)
    bands = min(-(-threads // images), outermost) if images else 1
    parts = min(out[1] * out[2], math.prod(out) * channels // 65536) or 1
    if to_basis is not None:
        parts = min(threads, out[1] * out[2])
    rows = numbers_shape[2] if job.kind != "grid" else 0
    scratch = channels if direct else block * -(-outermost // bands) * math.prod(in_size[1:])
    most = 2 * (math.ceil((2 if job.kernel == "bicubic" else 1) * job.limit) + 1)
    every = most ** len(in_size) + 4
    words = LINES * out[0] + TAPS + 12 * most + 2 * every + 8 * rows + scratch

    record = np.zeros(1, PLAN)
    plan = record[0]
    plan["kind"], plan["dims"] = KINDS[job.kind], len(in_size)
    plan["kernel"], plan["padding"] = KERNELS[job.kernel], PADDINGS[job.padding]
    plan["beyond"] = job.padding in ("zeros", "fill")
    plan["align_corners"], plan["antialias"], plan["limit"] = job.align_corners, job.antialias, job.limit
    plan["wider"] = (1 + near_one(in_size, job, real)) ** 2
    plan["by_rows"] = not job.antialias and not innermost and furthest < 2**31
    plan["innermost"], plan["direct"] = innermost, direct
    plan["batch"], plan["copies"], plan["channels"], plan["rows"] = batch, numbers_shape[1], channels, rows
    plan["columns"] = len(in_size) + 1 if job.kind == "matrix" else len(in_size)
    plan["most"], plan["all"], plan["words"], plan["thickness"] = most, every, words, -(-outermost // bands)
    plan["parts"], plan["block"], plan["bands"] = parts, block, bands
    plan["lengths"], plan["out"] = lengths, out
    plan["image"], plan["gradient"] = image_strides(image), image_strides(to_image or image)
    plan["output"] = *three(output[:2:-1], 0), output[2], output[1], output[0]
    plan["numbers"] = number_strides(job, numbers)
    plan["to_numbers"] = number_strides(job, to_numbers or numbers)
    plan["basis"], plan["to_basis"] = basis, to_basis or basis
    common = (
        bool(plan["by_rows"]) and job.kind == "matrix" and rows == len(in_size) and job.kernel == "bilinear"
    )
    along, w = source_axes(in_size, job), w_steps(in_size, job)
    for a, axis in enumerate(along):
        plan["middle"][a], plan["half_span"][a], plan["still"][a] = axis.middle, axis.half_span, axis.still
        plan["steps"][a] = *three(axis.steps[:-1], 0), axis.steps[-1]
    plan["steps"][3] = *three(w[:-1], 0), w[-1]
    return Planned(record, record.ctypes.data, words, batch * numbers_shape[1], parts, images * bands, common)


def three(values: Sequence[float], rest: float) -> tuple[Any, ...]:
    """x, y, z: an image of two axes has no z."""
    return (*values, *[rest] * (3 - len(values)))


def image_strides(strides: tuple[int, ...]) -> tuple[int, ...]:
    return (*three(strides[:1:-1], 0), strides[1], strides[0])


def number_strides(job: Job, strides: tuple[int, ...]) -> tuple[int, ...]:
    """batch, copy, then row, column and part; of a grid batch, copy, layer, x, y, z, axis."""
    if job.kind == "grid":
        return (*strides[:3], *three(strides[-2:2:-1], 0), strides[-1])
    return (*strides, *[0] * (7 - len(strides)))


# Compilation


@cache
def compiled(kernel: str, common: bool, stored_dtype: torch.dtype, real_dtype: torch.dtype) -> Any:
    """A kernel for these dtypes, as a C function of a call's address; kept on disk where there is a place."""
    stored, zero, variant = STORED[stored_dtype], REAL[real_dtype], COMMON if common else ANY

    def forward(p_call: int) -> None:
        forward_items(p_call, stored, zero, variant)

    def scatter(p_call: int) -> None:
        scatter_items(p_call, stored, zero, variant)

    def pull(p_call: int) -> None:
        pull_items(p_call, stored, zero, variant)

    function = {"forward": forward, "scatter": scatter, "pull": pull}[kernel]
    signature = types.void(types.int64)
    try:
        return numba.cfunc(signature, cache=True, **FLAGS)(function)
    except (
        RuntimeError
    ):  # "cannot cache function": neither the package nor the user's cache can be written to
        return numba.cfunc(signature, **FLAGS)(function)


class _Note(event.Listener):
    """Says once that kernels are being compiled: it takes seconds, and only when nothing is kept on disk."""

    said = False

    def on_start(self, event: Any) -> None:
        if not self.said and event.data["dispatcher"].py_func.__module__ == __name__:
            self.said = True
            print("spatial_transformer: compiling CPU kernels (once for each dtype)", file=sys.stderr)

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Note())

# Threads: PyTorch's own, by the OpenMP library that it has loaded. Others would meet its threads spinning
# after their last work (4 ms on two cores of an EPYC, torch 2.13), and Numba's layers either do not survive a
# fork or abort when two threads meet.

SMALL = 16384  # output elements that are not worth waking another thread for


def _openmp() -> Any:
    """GOMP_parallel(function, data, threads, flags), which LLVM's and Intel's libraries have too; or None."""
    try:
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


_parallel = _openmp()
_pool: ThreadPoolExecutor | None = None
_pool_threads = 0
_pool_lock = threading.Lock()


def _after_fork() -> None:
    """OpenMP's threads are not in a forked child, and it does not know; nor are those of a pool."""
    global _parallel, _pool, _pool_lock
    _parallel, _pool, _pool_lock = None, None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def spread(worker: Any, plan: Planned, places: tuple[int, ...], items: int, work: int) -> None:
    """Runs a kernel over its items, on as many threads as PyTorch may use."""
    threads = min(torch.get_num_threads(), items) if work > SMALL else 1
    memory = torch.empty(plan.words * threads, dtype=torch.float64)
    call = CALL(0, items, memory.data_ptr(), plan.place, *places)
    if threads <= 1:
        worker.ctypes(ctypes.addressof(call))
    elif _parallel is not None:
        _parallel(worker.address, call, threads, 0)
    else:
        _in_pool(worker.ctypes, ctypes.addressof(call), threads)


def _in_pool(function: Callable[[Any], None], call: Any, threads: int) -> None:
    global _pool, _pool_threads
    waiting: list[Future[None]] = []
    with _pool_lock:
        if _pool is None or _pool_threads < threads - 1:
            if _pool is not None:
                _pool.shutdown(wait=False)
            _pool, _pool_threads = ThreadPoolExecutor(threads - 1), threads - 1
        with contextlib.suppress(RuntimeError):  # no new threads while the interpreter shuts down
            waiting += [_pool.submit(function, call) for _ in range(threads - 1)]
    function(call)
    for future in waiting:
        future.result()
