"""Tensors as kernels see them: addresses, with elements of any floating dtype.

Kernels see addresses and strides (in elements), never arrays: no layout is copied or compiled by itself, and
Numba's arrays take long to compile and count their references on every slice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from .jit import code, jit

int32: Any = np.int32
int64: Any = np.int64
uint32: Any = np.uint32
float64: Any = np.float64

Tag = Any  # a number whose type matters, not its value

# A tensor's type of elements is told by the type of a number, there being no half type to say it with.
STORED = {
    torch.float64: np.float64(0),
    torch.float32: np.float32(0),
    torch.bfloat16: np.uint16(0),
    torch.float16: np.int16(0),
}
REAL = {torch.float64: np.float64(0), torch.float32: np.float32(0)}
WORD, HALF, FLOAT = ir.IntType(32), ir.IntType(16), ir.FloatType()


def element_pointer(builder: Any, kind: Any, address: Any, index: Any) -> Any:
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [index])


@code
def load(typing_context: Any, address: Any, index: Any, stored: Any, real: Any) -> Any:
    """An element of a tensor, as a number of the type of ``real``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if stored == types.uint16:
            bits = builder.zext(builder.load(element_pointer(builder, HALF, *arguments[:2])), WORD)
            value, found = builder.bitcast(builder.shl(bits, WORD(16)), FLOAT), types.float32
        elif stored == types.int16:
            half = builder.load(element_pointer(builder, ir.HalfType(), *arguments[:2]))
            value, found = builder.fpext(half, FLOAT), types.float32
        else:
            value = builder.load(element_pointer(builder, context.get_value_type(stored), *arguments[:2]))
            found = stored
        return context.cast(builder, value, found, real)

    return real(types.int64, types.int64, stored, real), generate


@code
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
        builder.store(number, element_pointer(builder, kind, *arguments[:2]))
        return context.get_dummy_value()

    through = stored if isinstance(stored, types.Float) else types.float32
    return types.void(types.int64, types.int64, stored, through), generate


@code
def get(typing_context: Any, address: Any, index: Any, like: Any) -> Any:
    """A number of the type of ``like``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(
            element_pointer(builder, context.get_value_type(signature.return_type), *arguments[:2])
        )

    like = types.unliteral(like)
    return like(types.int64, types.int64, like), generate


@code
def put(typing_context: Any, address: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.args[2])
        builder.store(arguments[2], element_pointer(builder, kind, *arguments[:2]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.unliteral(value)), generate


@code
def take(typing_context: Any, address: Any, amount: Any) -> Any:
    """The whole number at an address, which is more by an amount for the next thread that asks."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", place, arguments[1], "monotonic")

    return types.int64(types.int64, types.int64), generate


@code
def pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@jit
def add(p: int, o: int, value: float) -> None:
    put(p, o, get(p, o, value) + value)
