"""How the parts of the CPU kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])

FLAGS: dict[str, Any] = {"error_model": "numpy"}
# Nobody calls a part by itself. Without the wrappers that would let one, Numba makes no machine code of it
# either: compilation takes half the time.
PART = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, **FLAGS}


def jit(function: Function) -> Function:
    """A part of a kernel. Without fast-math: NaN and infinity mean what they say."""
    return numba.njit(**PART)(function)


def jit_blend(function: Function) -> Function:
    """A part whose products and sums may be one instruction."""
    return numba.njit(fastmath={"contract"}, **PART)(function)


def jit_sum(function: Function) -> Function:
    """A part whose sums may be taken in any order, which vectors need."""
    return numba.njit(fastmath={"contract", "reassoc"}, **PART)(function)


def code(function: Callable[..., Any]) -> Any:
    """A part written in LLVM's instructions."""
    return intrinsic(function)
