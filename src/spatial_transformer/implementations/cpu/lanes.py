"""Vectors of numbers, written down as such: LANES pixels or channels at once.

Loops along rows of a few dozen pixels are mostly what the compiler's vectors leave over. These have no rest:
rows are computed up to the next multiple of LANES, and stored as far as they go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

from .jit import code, jit
from .memory import FLOAT, HALF, WORD, Tag, element_pointer

LANES = 16
CORNERS = 4  # of a square of pixels: above left, above right, below left, below right

BITS = ir.VectorType(WORD, LANES)


class Lanes(types.Type):
    """So many numbers of a type, in a register."""

    def __init__(self, element: Any, count: int) -> None:
        self.element, self.count = element, count
        super().__init__(name=f"Lanes({element}, {count})")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        element = manager.lookup(kind.element).get_value_type()
        super().__init__(manager, kind, ir.VectorType(element, kind.count))


def vector_of(context: Any, element: Any, count: int = LANES) -> Any:
    return ir.VectorType(context.get_value_type(element), count)


def vector_pointer(builder: Any, kind: Any, address: Any, index: Any) -> Any:
    """Where a vector is that starts at an element."""
    return builder.bitcast(element_pointer(builder, kind.element, address, index), kind.as_pointer())


def constant(kind: Any, values: Sequence[float]) -> Any:
    return ir.Constant(kind, list(values))


def size_of(kind: Any) -> int:
    return {ir.DoubleType(): 8, HALF: 2, ir.HalfType(): 2}.get(kind, 4)


def called(builder: Any, name: str, kind: Any, *arguments: Any) -> Any:
    """An intrinsic of LLVM that takes and gives vectors of one type."""
    element = "f64" if isinstance(kind.element, ir.DoubleType) else "f32"
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, [kind] * len(arguments)),
        f"llvm.{name}.v{kind.count}{element}",
    )
    return builder.call(function, arguments)


def shuffled(builder: Any, first: Any, second: Any, places: Sequence[int]) -> Any:
    return builder.shuffle_vector(first, second, constant(ir.VectorType(WORD, len(places)), places))


def broadcast(builder: Any, kind: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, WORD(0))
    return shuffled(builder, one, ir.Constant(kind, ir.Undefined), [0] * kind.count)


# Making them


@code
def every(typing_context: Any, value: Any) -> Any:
    """A number in each of LANES lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return broadcast(builder, vector_of(context, signature.return_type.element), arguments[0])

    value = types.unliteral(value)
    return Lanes(value, LANES)(value), generate


@code
def ramp(typing_context: Any, zero: Any) -> Any:
    """0, 1, 2, ..."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return constant(vector_of(context, zero), range(LANES))

    return Lanes(zero, LANES)(zero), generate


@code
def get_lanes(typing_context: Any, address: Any, index: Any, like: Any) -> Any:
    """LANES numbers of the type of ``like``, from one of them on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = vector_of(context, signature.return_type.element)
        return builder.load(vector_pointer(builder, kind, *arguments[:2]), align=size_of(kind.element))

    like = types.unliteral(like)
    return Lanes(like, LANES)(types.int64, types.int64, like), generate


@code
def put_lanes(typing_context: Any, address: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = arguments[2].type
        place = vector_pointer(builder, kind, *arguments[:2])
        builder.store(arguments[2], place, align=size_of(kind.element))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value), generate


# Arithmetic


def _pointwise(of_reals: str, of_integers: str | None = None) -> Callable[..., Any]:
    def typed(typing_context: Any, first: Any, second: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            name = of_integers if of_integers and isinstance(first.element, types.Integer) else of_reals
            return getattr(builder, name)(*arguments)

        return first(first, second), generate

    return typed


plus = code(_pointwise("fadd", "add"))
minus = code(_pointwise("fsub", "sub"))
times = code(_pointwise("fmul", "mul"))
both_of = code(_pointwise("and_", "and_"))


@code
def times_plus(typing_context: Any, first: Any, second: Any, third: Any) -> Any:
    """first * second + third, rounded once where the machine can."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return called(builder, "fmuladd", arguments[0].type, *arguments)

    return first(first, first, first), generate


@jit
def blend(first: Tag, second: Tag, share: Tag) -> Tag:
    return times_plus(share, minus(second, first), first)


@code
def floor_lanes(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return called(builder, "floor", arguments[0].type, *arguments)

    return value(value), generate


@code
def held_lanes(typing_context: Any, value: Any, low: Any, high: Any) -> Any:
    """Between two bounds; NaN is the lower one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, low, high = arguments
        value = builder.select(builder.fcmp_ordered(">", value, low), value, low)
        return builder.select(builder.fcmp_ordered("<", value, high), value, high)

    return value(value, value, value), generate


@code
def whole_lanes(typing_context: Any, value: Any) -> Any:
    """int32 of numbers that are whole."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fptosi(arguments[0], ir.VectorType(WORD, arguments[0].type.count))

    return Lanes(types.int32, value.count)(value), generate


@code
def real_lanes(typing_context: Any, value: Any, zero: Any) -> Any:
    """Real numbers of whole ones."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.sitofp(arguments[0], vector_of(context, zero, value.count))

    return Lanes(zero, value.count)(value, zero), generate


@code
def within(typing_context: Any, value: Any, first: Any, many: Any) -> Any:
    """1 for the ``many`` (uint32) whole numbers from ``first`` (int32) on, else 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, first, many = arguments
        beyond = builder.sub(value, broadcast(builder, value.type, first))
        return builder.zext(
            builder.icmp_unsigned("<", beyond, broadcast(builder, value.type, many)), value.type
        )

    return value(value, types.int32, types.uint32), generate


@code
def held_whole(typing_context: Any, value: Any, low: Any, high: Any) -> Any:
    """Whole numbers between two bounds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = arguments[0]
        low, high = (broadcast(builder, value.type, bound) for bound in arguments[1:])
        value = builder.select(builder.icmp_signed(">", value, low), value, low)
        return builder.select(builder.icmp_signed("<", value, high), value, high)

    return value(value, types.int32, types.int32), generate


@code
def total(typing_context: Any, value: Any) -> Any:
    """The sum of all lanes, halves added to halves."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (rest,) = arguments
        while rest.type.count > 1:
            half = rest.type.count // 2
            low = shuffled(builder, rest, rest, range(half))
            rest = builder.fadd(low, shuffled(builder, rest, rest, range(half, 2 * half)))
        return builder.extract_element(rest, WORD(0))

    return value.element(value), generate


# Tensors: any floating dtype


def lanes_before(builder: Any, count: Any) -> Any:
    """The mask of as many lanes."""
    limit = broadcast(builder, BITS, builder.trunc(count, WORD))
    return builder.icmp_signed("<", constant(BITS, range(LANES)), limit)


def masked(builder: Any, name: str, kind: Any, result: Any, arguments: Any) -> Any:
    element = {ir.DoubleType(): "f64", FLOAT: "f32", HALF: "i16", ir.HalfType(): "f16"}[kind.element]
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(result, [argument.type for argument in arguments]),
        f"llvm.masked.{name}.v{LANES}{element}.p0v{LANES}{element}",
    )
    return builder.call(function, arguments)


def stored_kind(context: Any, stored: Any) -> Any:
    element = {types.uint16: HALF, types.int16: ir.HalfType()}.get(stored)
    return ir.VectorType(element or context.get_value_type(stored), LANES)


@code
def read_lanes(typing_context: Any, address: Any, index: Any, count: Any, stored: Any, real: Any) -> Any:
    """``count`` neighbouring elements of a tensor as real numbers, zero in the lanes beyond."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, index, count = arguments[:3]
        kind, found = stored_kind(context, stored), vector_of(context, real)
        place, align = vector_pointer(builder, kind, address, index), size_of(kind.element)
        result = cgutils.alloca_once(builder, kind)
        with builder.if_else(builder.icmp_signed(">=", count, count.type(LANES))) as (all_of_them, some):
            with all_of_them:
                builder.store(builder.load(place, align=align), result)
            with some:
                arguments = place, WORD(align), lanes_before(builder, count), ir.Constant(kind, None)
                builder.store(masked(builder, "load", kind, kind, arguments), result)
        value = builder.load(result)
        if stored == types.uint16:
            bits = builder.shl(builder.zext(value, BITS), constant(BITS, [16] * LANES))
            value = builder.bitcast(bits, ir.VectorType(FLOAT, LANES))
        elif stored == types.int16:
            value = builder.fpext(value, ir.VectorType(FLOAT, LANES))
        return value if value.type == found else builder.fpext(value, found)

    arguments = types.int64, types.int64, types.int64, stored, real
    return Lanes(real, LANES)(*arguments), generate


@code
def write_lanes(typing_context: Any, address: Any, index: Any, count: Any, stored: Any, value: Any) -> Any:
    """Puts the first ``count`` lanes into a tensor, rounded to nearest even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, index, count, _, number = arguments
        kind = stored_kind(context, stored)
        if stored in (types.uint16, types.int16) and isinstance(number.type.element, ir.DoubleType):
            number = builder.fptrunc(number, ir.VectorType(FLOAT, LANES))
        if stored == types.uint16:
            bits = builder.bitcast(number, BITS)
            sixteen, one = constant(BITS, [16] * LANES), constant(BITS, [1] * LANES)
            even = builder.and_(builder.lshr(bits, sixteen), one)
            up = builder.add(builder.add(bits, constant(BITS, [0x7FFF] * LANES)), even)
            is_nan = builder.fcmp_unordered("uno", number, number)
            nan = constant(BITS, [0x7FC0] * LANES)
            number = builder.trunc(builder.select(is_nan, nan, builder.lshr(up, sixteen)), kind)
        elif number.type != kind:
            number = builder.fptrunc(number, kind)
        place, align = vector_pointer(builder, kind, address, index), size_of(kind.element)
        with builder.if_else(builder.icmp_signed(">=", count, count.type(LANES))) as (all_of_them, some):
            with all_of_them:
                builder.store(number, place, align=align)
            with some:
                arguments = number, place, WORD(align), lanes_before(builder, count)
                masked(builder, "store", kind, ir.VoidType(), arguments)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, stored, value), generate


@code
def transposed(
    typing_context: Any, p_from: Any, o_from: Any, s_from: Any, p_to: Any, o_to: Any, s_to: Any, like: Any
) -> Any:
    """Puts LANES rows of as many numbers, some stride apart, as columns."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        p_from, o_from, s_from, p_to, o_to, s_to, _ = arguments
        kind = vector_of(context, signature.args[-1])
        align = size_of(kind.element)

        def at(p: Any, o: Any, stride: Any, k: int) -> Any:
            return vector_pointer(builder, kind, p, builder.add(o, builder.mul(stride, stride.type(k))))

        rows = [builder.load(at(p_from, o_from, s_from, k), align=align) for k in range(LANES)]
        # Each step swaps the off-diagonal quarters of blocks half as large.
        half = LANES // 2
        while half:
            for k in range(LANES):
                if not k & half:
                    first, second = rows[k], rows[k + half]
                    low = [i if not i & half else LANES + i - half for i in range(LANES)]
                    high = [i + half if not i & half else LANES + i for i in range(LANES)]
                    rows[k] = shuffled(builder, first, second, low)
                    rows[k + half] = shuffled(builder, first, second, high)
            half //= 2
        for k, row in enumerate(rows):
            builder.store(row, at(p_to, o_to, s_to, k), align=align)
        return context.get_dummy_value()

    like = types.unliteral(like)
    integer = types.int64
    return types.void(integer, integer, integer, integer, integer, integer, like), generate


@code
def from_lane(typing_context: Any, first: Any, value: Any) -> Any:
    """Zero in the lanes before one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = arguments[1].type
        return builder.select(lanes_before(builder, arguments[0]), ir.Constant(kind, None), arguments[1])

    return value(types.int64, value), generate


# Squares of pixels


@code
def squares(
    typing_context: Any, address: Any, o: Any, p_offset: Any, j: Any, pitch: Any, stored: Any, real: Any
) -> Any:
    """The corners of LANES squares of pixels, whose offsets (int32) stand from the j-th on in a line."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, o, p_offset, j, pitch = arguments[:5]
        line = element_pointer(builder, WORD, p_offset, j)
        offsets = [builder.load(builder.gep(line, [WORD(k)]), align=4) for k in range(LANES)]
        offsets = [builder.add(o, builder.sext(offset, o.type)) for offset in offsets]
        element = stored_kind(context, stored).element
        corners = []
        for places in (offsets, [builder.add(offset, pitch) for offset in offsets]):
            pointers = [element_pointer(builder, element, address, place) for place in places]
            corners += neighbours(builder, pointers, element, stored == types.uint16)
        kind = vector_of(context, real)
        corners = [corner if corner.type == kind else builder.fpext(corner, kind) for corner in corners]
        return context.make_tuple(builder, signature.return_type, corners)

    integer = types.int64
    arguments = integer, integer, integer, integer, integer, stored, real
    return types.UniTuple(Lanes(real, LANES), CORNERS)(*arguments), generate


def neighbours(builder: Any, pointers: Sequence[Any], element: Any, is_bfloat: bool) -> list[Any]:
    """The elements at LANES addresses, and those right of them: by one load for both, but for float64."""
    size, floats = size_of(element), ir.VectorType(FLOAT, LANES)
    if size == 8:
        kind = ir.VectorType(element, LANES)
        found = [ir.Constant(kind, ir.Undefined), ir.Constant(kind, ir.Undefined)]
        for k, pointer in enumerate(pointers):
            for side in (0, 1):
                value = builder.load(builder.gep(pointer, [WORD(side)]), align=size)
                found[side] = builder.insert_element(found[side], value, WORD(k))
        return found
    if size == 4:
        pair, halves = ir.DoubleType(), []
        for part in (pointers[: LANES // 2], pointers[LANES // 2 :]):
            halves.append(builder.bitcast(loaded(builder, part, pair, size), floats))
        return [shuffled(builder, halves[0], halves[1], range(side, 2 * LANES, 2)) for side in (0, 1)]
    both = loaded(builder, pointers, WORD, size)
    sixteen = constant(BITS, [16] * LANES)
    if is_bfloat:  # the upper half of a float32
        right = builder.and_(both, constant(BITS, [0xFFFF0000] * LANES))
        return [builder.bitcast(half, floats) for half in (builder.shl(both, sixteen), right)]
    words = [builder.trunc(half, ir.VectorType(HALF, LANES)) for half in (both, builder.lshr(both, sixteen))]
    return [builder.fpext(builder.bitcast(word, ir.VectorType(element, LANES)), floats) for word in words]


def loaded(builder: Any, pointers: Sequence[Any], kind: Any, align: int) -> Any:
    """A vector of what is at some addresses."""
    vector = ir.Constant(ir.VectorType(kind, len(pointers)), ir.Undefined)
    for k, pointer in enumerate(pointers):
        value = builder.load(builder.bitcast(pointer, kind.as_pointer()), align=align)
        vector = builder.insert_element(vector, value, WORD(k))
    return vector


@code
def four_times(typing_context: Any, value: Any) -> Any:
    """A number for each corner."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return broadcast(builder, vector_of(context, signature.return_type.element, CORNERS), arguments[0])

    value = types.unliteral(value)
    return Lanes(value, CORNERS)(value), generate


@code
def shares(typing_context: Any, x: Any, y: Any) -> Any:
    """1 - y, y, 1 - x, x"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = vector_of(context, signature.return_type.element, CORNERS)
        value = shuffled(
            builder,
            broadcast(builder, kind, arguments[1]),
            broadcast(builder, kind, arguments[0]),
            [0, 0, 4, 4],
        )
        signs, ones = constant(kind, [-1, 1, -1, 1]), constant(kind, [1, 0, 1, 0])
        return called(builder, "fmuladd", kind, value, signs, ones)

    return Lanes(x, CORNERS)(x, x), generate


@code
def weights(typing_context: Any, shares: Any) -> Any:
    """What a bilinear kernel gives the corners of a square, from ``shares``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        along_y = shuffled(builder, value, value, [0, 0, 1, 1])
        return builder.fmul(along_y, shuffled(builder, value, value, [2, 3, 2, 3]))

    return shares(shares), generate


@code
def slopes(typing_context: Any, address: Any, index: Any, pitch: Any, like: Any) -> Any:
    """Of a square with corners a, b, c, d: b - a and d - c along x, c - a and d - b along y."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, index, pitch, _ = arguments
        element = context.get_value_type(signature.args[-1])
        two = ir.VectorType(element, 2)
        above = builder.load(vector_pointer(builder, two, address, index), align=size_of(element))
        below = vector_pointer(builder, two, address, builder.add(index, pitch))
        corners = shuffled(builder, above, builder.load(below, align=size_of(element)), range(CORNERS))
        after = shuffled(builder, corners, corners, [1, 3, 2, 3])
        return builder.fsub(after, shuffled(builder, corners, corners, [0, 2, 0, 1]))

    like = types.unliteral(like)
    return Lanes(like, CORNERS)(types.int64, types.int64, types.int64, like), generate


@code
def along(typing_context: Any, value: Any) -> Any:
    """Sums of what ``slopes`` gave: along x, along y."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        parts = [builder.extract_element(arguments[0], WORD(k)) for k in range(CORNERS)]
        pair = [builder.fadd(parts[0], parts[1]), builder.fadd(parts[2], parts[3])]
        return context.make_tuple(builder, signature.return_type, pair)

    return types.UniTuple(value.element, 2)(value), generate


@code
def add_corners(typing_context: Any, address: Any, index: Any, value: Any) -> Any:
    """Adds to the four numbers of a square."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, index, value = arguments
        index = builder.mul(index, index.type(CORNERS))
        place, align = vector_pointer(builder, value.type, address, index), size_of(value.type.element)
        builder.store(builder.fadd(builder.load(place, align=align), value), place, align=align)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value), generate


@code
def corner_of(typing_context: Any, address: Any, index: Any, corner: Any, like: Any) -> Any:
    """One number each of LANES neighbouring squares."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, index, corner, _ = arguments
        kind = vector_of(context, signature.return_type.element, CORNERS * LANES)
        first = builder.add(builder.mul(index, index.type(CORNERS)), corner)
        value = builder.load(vector_pointer(builder, kind, address, first), align=size_of(kind.element))
        return shuffled(builder, value, value, range(0, CORNERS * LANES, CORNERS))

    like = types.unliteral(like)
    return Lanes(like, LANES)(types.int64, types.int64, types.int64, like), generate
