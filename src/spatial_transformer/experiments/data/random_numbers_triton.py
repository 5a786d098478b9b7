"""``RandomNumbers.uniform`` in one launch.

As operations on tensors a draw is a dozen of them, each as long as its launch takes. A step of a small
network has no more than a hundred in all.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .random_numbers import BITS, GOLDEN, MIX, signed

# Triton's interpreter (TRITON_INTERPRET=1) runs the kernel on CPU tensors, for tests.
INTERPRETED = bool(triton.knobs.runtime.interpret)

_GOLDEN = tl.constexpr(signed(GOLDEN))
_FIRST_SHIFT, _SECOND_SHIFT = (tl.constexpr(shift) for shift, _ in MIX)
_FIRST_MASK, _SECOND_MASK = (tl.constexpr((1 << (64 - shift)) - 1) for shift, _ in MIX)
_FIRST_FACTOR, _SECOND_FACTOR = (tl.constexpr(signed(factor)) for _, factor in MIX)
_LAST_SHIFT, _STEP = tl.constexpr(64 - BITS), tl.constexpr(2.0**-BITS)

NUMBERS = 1024  # of a program


def uniform(counter: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The numbers from the counter on, int64 []; it stays where it is. float32 [*shape]"""
    found = torch.empty(shape, dtype=torch.float32, device=counter.device)  # whatever the default is
    count = found.numel()
    kernel: Any = _uniform
    if count:
        kernel[(-(-count // NUMBERS),)](counter, found, count, NUMBERS)
    return found


@triton.jit
def _uniform(counter, found, count, NUMBERS: tl.constexpr):
    number = tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
    word = tl.load(counter) + number * _GOLDEN
    word = _mixed(word, _FIRST_SHIFT, _FIRST_MASK, _FIRST_FACTOR)
    word = _mixed(word, _SECOND_SHIFT, _SECOND_MASK, _SECOND_FACTOR)
    tl.store(found + number, 0.5 + (word >> _LAST_SHIFT).to(tl.float32) * _STEP, mask=number < count)


@triton.jit
def _mixed(word, shift: tl.constexpr, mask: tl.constexpr, factor: tl.constexpr):
    """>> drags the sign along, which the mask takes off."""
    return (word ^ ((word >> shift) & mask)) * factor
