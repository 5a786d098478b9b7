"""Dropout in one launch each way.

As operations on tensors the bits of random numbers are spread over as many words as a signal has numbers, and
gone through five times, before it is multiplied.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from .convolution_kernels.products import _as
from .data.random_numbers import BITS

NUMBERS = 2048  # of a program

_ALL = tl.constexpr(2.0**BITS)


def dropped(signal: Tensor, numbers: Tensor, bits: int, share: float | Tensor) -> Tensor:
    """``networks.dropped`` by random numbers of which each serves 24 / bits places."""
    found: Tensor = Dropped.apply(signal, numbers, bits, share)
    return found


class Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, signal: Tensor, numbers: Tensor, bits: int, share: float | Tensor) -> Tensor:
        ctx.save_for_backward(numbers)
        ctx.bits, ctx.share = bits, share  # which changes between steps alone
        return thinned(signal, numbers, bits, share)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (numbers,) = ctx.saved_tensors
        return thinned(gradient, numbers, ctx.bits, ctx.share), None, None, None


def thinned(signal: Tensor, numbers: Tensor, bits: int, share: float | Tensor) -> Tensor:
    """In the order in which ``networks.dropped`` goes through a signal: maps channels last."""
    rows = signal.movedim(1, -1).contiguous()
    found = torch.empty_like(rows)
    on_device = isinstance(share, Tensor)
    kernel: Any = _thinned
    kernel[(-(-rows.numel() // NUMBERS),)](
        rows, numbers, found, rows.numel(), share if on_device else numbers, 0.0 if on_device else share,
        on_device, bits, BITS // bits, NUMBERS,
    )  # fmt: skip
    return found.movedim(-1, 1)


@triton.jit
def _thinned(
    p_signal, p_numbers, p_found, count, p_share, share,
    ON_DEVICE: tl.constexpr, BITS: tl.constexpr, EACH: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    if ON_DEVICE:
        share = tl.load(p_share)
    i_place = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    m_place = i_place < count
    b_word = (tl.load(p_numbers + i_place // EACH, mask=m_place, other=0.0) * _ALL).to(tl.int32)
    b_drawn = (b_word >> (i_place % EACH * BITS)) & ((1 << BITS) - 1)
    b_signal = tl.load(p_signal + i_place, mask=m_place, other=0.0).to(tl.float32)
    b_found = tl.where(b_drawn.to(tl.float32) >= share * (1 << BITS), b_signal / (1 - share), 0.0)
    tl.store(p_found + i_place, _as(b_found, p_found.dtype.element_ty), mask=m_place)
