"""Batch normalisation in training, with what stands around it: a rectifier up to six, an input added to it,
and the zeros that the next convolution wants.

As operations on tensors each of them goes through the maps once more, in both directions. Here maps are read
twice and written once forward, for the statistics and for what is made of them; backward they are read twice,
the gradient too, and one is written. What the rectifier cut off is found anew from its input: nothing else is
kept.

Maps lie channels last: rows of channels. Sums are of parts of the rows, then of the parts, in one order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .convolution_kernels.products import _as

NUMBERS = 4096  # of a program at a time
# About as many programs as an H200 has room for at once, on any device: sums have one order. A power of two.
PROGRAMS = 512
MULTIPLE = 8  # of channels: then 16 bytes of bfloat16 are read at once
FINISHED = 16  # channels of a program that brings parts together

_SIX = tl.constexpr(6.0)


class Blocks(NamedTuple):
    """How maps are gone through. Kernels take channels in multiples, so that they know their alignment."""

    rows: int
    some: int  # channels, in multiples
    multiple: int
    tile: tuple[int, int]  # rows and channels of a program at a time
    blocks: int  # of channels
    parts: int  # of the rows
    each: int  # rows of a part

    @property
    def channels(self) -> int:
        return self.some * self.multiple


def blocks_of(rows: int, channels: int) -> Blocks:
    """Blocks of 64 channels, a line of memory, unless a quarter more than there are would be gone through."""
    multiple = MULTIPLE if channels % MULTIPLE == 0 else 1
    width = next((width for width in (64, 32) if -(-channels // width) * width <= 1.25 * channels), 32)
    width = min(width, max(16, triton.next_power_of_2(channels)))
    tile, blocks = (NUMBERS // width, width), -(-channels // width)
    # No part is empty, or of less than half a tile while there is more than one.
    parts = max(1, min(PROGRAMS // blocks, rows // (tile[0] // 2)))
    each = -(-rows // parts)
    return Blocks(rows, channels // multiple, multiple, tile, blocks, -(-rows // each), each)


def why_not(x: Tensor, norm: nn.BatchNorm2d) -> str | None:
    """What of a norm and its input these kernels do not do; None where they do all of it."""
    if not norm.training or not norm.track_running_stats or norm.momentum is None or not norm.affine:
        return "the norm does not take a batch's statistics with weights, and follow them at a fixed rate"
    if x.dtype not in (torch.bfloat16, torch.float32):
        return f"maps are {x.dtype}"
    if not x.is_contiguous(memory_format=torch.channels_last):
        return "maps do not lie channels last"
    if x.numel() // x.shape[1] < 2 or 2 * x.numel() >= 2**31:  # twice: with zeros around, and within int32
        return "maps are too small or too large"
    return None


def normalised(
    x: Tensor,
    norm: nn.BatchNorm2d,
    *,
    rectified: bool = False,
    added: Tensor | None = None,
    zeros: tuple[int, int, int, int] | None = None,
) -> Tensor:
    """What ``norm`` makes of a batch, whose running statistics follow; then what is asked for of: cut off
    below 0 and above 6, something added, zeros put around, so many left, right, above and below; where
    ``why_not`` has nothing to say. [N, C, H, W]
    """
    if added is not None:
        added = added.to(x.dtype).contiguous(memory_format=torch.channels_last)
    around = zeros or (0, 0, 0, 0)
    found: Tensor = Normalised.apply(x, norm.weight, norm.bias, added, norm, rectified, around)
    return found


class Normalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        added: Tensor | None,
        norm: nn.BatchNorm2d,
        rectified: bool,
        zeros: tuple[int, int, int, int],
    ) -> Tensor:
        blocks = blocks_of(x.numel() // x.shape[1], x.shape[1])
        mean, scale = statistics(x, norm, blocks)
        ctx.save_for_backward(x, weight, bias, mean, scale)
        ctx.blocks, ctx.rectified, ctx.zeros = blocks, rectified, zeros
        (count, channels, height, width), (left, right, top, bottom) = x.shape, zeros
        tall, wide = height + top + bottom, width + left + right
        found = torch.empty(
            count, channels, tall, wide, dtype=x.dtype, device=x.device, memory_format=torch.channels_last
        )
        rows = count * tall * wide
        launch(
            _normalised, (blocks.blocks, -(-rows // blocks.tile[0])), 4,
            x, mean, scale, weight, bias, x if added is None else added, found,
            rows, blocks.some, height, width, top, left, tall, wide,
            blocks.multiple, rectified, added is not None, any(zeros), *blocks.tile,
        )  # fmt: skip
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, scale = ctx.saved_tensors
        blocks, (left, right, top, bottom) = ctx.blocks, ctx.zeros
        height, width = x.shape[2:]
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        place = (height, width, top, left, height + top + bottom, width + left + right)
        ways = (blocks.multiple, ctx.rectified, any(ctx.zeros), *blocks.tile)
        # By the bias and by the weight: sums of the gradient, and of it times what was normalised.
        sums = x.new_empty(2, blocks.parts, blocks.channels, dtype=torch.float32)
        launch(
            _sums, (blocks.blocks, blocks.parts), 8,
            x, gradient, mean, scale, weight, bias, sums[0], sums[1],
            blocks.rows, blocks.each, blocks.some, *place, *ways,
        )  # fmt: skip
        of_weight, of_bias = torch.empty_like(weight), torch.empty_like(bias)
        launch(
            _summed, (-(-blocks.channels // FINISHED),), 8,
            sums[0], sums[1], of_bias, of_weight, blocks.parts, blocks.some,
            blocks.multiple, at_once(blocks), FINISHED,
        )  # fmt: skip
        of_x = torch.empty_like(x)
        launch(
            _gradient, (blocks.blocks, -(-blocks.rows // blocks.tile[0])), 4,
            x, gradient, mean, scale, weight, bias, of_bias, of_weight, of_x,
            blocks.rows, blocks.some, *place, *ways,
        )  # fmt: skip
        of_added = (
            gradient[:, :, top : top + height, left : left + width] if ctx.needs_input_grad[3] else None
        )
        return of_x, of_weight, of_bias, of_added, None, None, None


def statistics(x: Tensor, norm: nn.BatchNorm2d, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Of each channel the mean, and one over the deviation; ``norm``'s own follow them. float32 [C] each"""
    assert norm.momentum is not None
    parts = x.new_empty(2, blocks.parts, blocks.channels, dtype=torch.float32)
    launch(
        _statistics, (blocks.blocks, blocks.parts), 8,
        x, parts[0], parts[1], blocks.rows, blocks.each, blocks.some, blocks.multiple, *blocks.tile,
    )  # fmt: skip
    mean, scale = x.new_empty(2, blocks.channels, dtype=torch.float32)
    launch(
        _followed, (-(-blocks.channels // FINISHED),), 8,
        parts[0], parts[1], mean, scale, norm.running_mean, norm.running_var, norm.num_batches_tracked,
        blocks.rows, blocks.parts, blocks.each, blocks.some, float(norm.momentum), float(norm.eps),
        blocks.multiple, at_once(blocks), FINISHED,
    )  # fmt: skip
    return mean, scale


def at_once(blocks: Blocks) -> int:
    """Parts that are brought together: few different numbers, for each of which a kernel is compiled."""
    return int(max(32, triton.next_power_of_2(blocks.parts)))


def launch(kernel: Any, grid: tuple[int, ...], warps: int, *arguments: Any) -> None:
    kernel[grid](*arguments, num_warps=warps)


# Loops have stages, so that the next tiles are on their way meanwhile: the compiler waits for each load
# otherwise before it begins the next.
#
# Numbers of rows and the like differ from map to map: no kernel is compiled for some of them alone.


@triton.jit(do_not_specialize=["rows", "each", "some"])
def _statistics(
    p_x, p_means, p_squares, rows, each, some,
    MULTIPLE: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Of a part of the rows: the mean, and the sum of the squared distances from it. Distances are taken from
    the part's first row before they are squared: what all have in common is nothing to lose digits by."""
    channels = some * MULTIPLE
    i_channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    m_channel = i_channel < channels
    first = tl.program_id(1) * each
    last = tl.minimum(first + each, rows)
    b_first = tl.load(p_x + first * channels + i_channel, mask=m_channel, other=0.0).to(tl.float32)
    b_sum, b_square = tl.zeros((ROWS, CHANNELS), tl.float32), tl.zeros((ROWS, CHANNELS), tl.float32)
    for start in tl.range(first, last, ROWS, num_stages=3):
        i_row = start + tl.arange(0, ROWS)
        mask = (i_row < last)[:, None] & m_channel[None, :]
        b_x = tl.load(p_x + i_row[:, None] * channels + i_channel[None, :], mask=mask, other=0.0)
        b_away = tl.where(mask, b_x.to(tl.float32) - b_first[None, :], 0.0)
        b_sum += b_away
        b_square += b_away * b_away
    b_total = tl.sum(b_sum, 0)
    b_mean = b_total / (last - first)
    i_found = tl.program_id(1) * channels + i_channel
    tl.store(p_means + i_found, b_first + b_mean, mask=m_channel)
    tl.store(p_squares + i_found, tl.sum(b_square, 0) - b_total * b_mean, mask=m_channel)


@triton.jit(do_not_specialize=["rows", "parts", "each", "some"])
def _followed(
    p_means, p_squares, p_mean, p_scale, p_running_mean, p_running_variance, p_tracked,
    rows, parts, each, some, following, epsilon,
    MULTIPLE: tl.constexpr, PARTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The parts brought together, and the running statistics moved as ``nn.BatchNorm2d`` moves them: by the
    variance over one row fewer."""
    channels = some * MULTIPLE
    i_channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    m_channel = i_channel < channels
    i_part = tl.arange(0, PARTS)
    mask = (i_part < parts)[:, None] & m_channel[None, :]
    i_given = i_part[:, None] * channels + i_channel[None, :]
    b_means = tl.load(p_means + i_given, mask=mask, other=0.0)
    b_squares = tl.load(p_squares + i_given, mask=mask, other=0.0)
    b_count = tl.minimum(rows - i_part * each, each).to(tl.float32)[:, None]
    b_first = tl.load(p_means + i_channel, mask=m_channel, other=0.0)
    b_away = tl.where(mask, b_count * (b_means - b_first[None, :]), 0.0)
    b_mean = b_first + tl.sum(b_away, 0) / rows
    b_away = b_means - b_mean[None, :]
    b_square = tl.sum(tl.where(mask, b_squares + b_count * b_away * b_away, 0.0), 0)
    tl.store(p_mean + i_channel, b_mean, mask=m_channel)
    tl.store(p_scale + i_channel, 1 / tl.sqrt_rn(b_square / rows + epsilon), mask=m_channel)
    b_running = tl.load(p_running_mean + i_channel, mask=m_channel)
    tl.store(p_running_mean + i_channel, b_running + following * (b_mean - b_running), mask=m_channel)
    b_running = tl.load(p_running_variance + i_channel, mask=m_channel)
    b_running += following * (b_square / (rows - 1) - b_running)
    tl.store(p_running_variance + i_channel, b_running, mask=m_channel)
    if tl.program_id(0) == 0:
        tl.store(p_tracked, tl.load(p_tracked) + 1)


@triton.jit(do_not_specialize=["rows", "some", "height", "width", "top", "left", "tall", "wide"])
def _normalised(
    p_x, p_mean, p_scale, p_weight, p_bias, p_added, p_found,
    rows, some, height, width, top, left, tall, wide,
    MULTIPLE: tl.constexpr, RECTIFIED: tl.constexpr, ADDED: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Rows of the output, zeros among them."""
    channels = some * MULTIPLE
    i_channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    m_channel = i_channel < channels
    i_row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    mask = (i_row < rows)[:, None] & m_channel[None, :]
    i_given, m_given = i_row, mask
    if PADDED:
        i_y, i_x = i_row // wide % tall - top, i_row % wide - left
        m_row = (i_y >= 0) & (i_y < height) & (i_x >= 0) & (i_x < width)
        i_given = (i_row // (wide * tall) * height + i_y) * width + i_x
        m_given = mask & m_row[:, None]
    i_given = i_given[:, None] * channels + i_channel[None, :]
    b_x = tl.load(p_x + i_given, mask=m_given, other=0.0).to(tl.float32)
    b_even = (b_x - _of(p_mean, i_channel, m_channel)) * _of(p_scale, i_channel, m_channel)
    b_found = b_even * _of(p_weight, i_channel, m_channel) + _of(p_bias, i_channel, m_channel)
    if RECTIFIED:
        # Numbers that are none stay so, which a minimum and a maximum would hide.
        b_found = tl.where(b_found < 0, 0.0, tl.where(b_found > _SIX, _SIX, b_found))
    if ADDED:
        b_found += tl.load(p_added + i_given, mask=m_given, other=0.0).to(tl.float32)
    if PADDED:
        b_found = tl.where(m_given, b_found, 0.0)
    i_found = i_row[:, None] * channels + i_channel[None, :]
    tl.store(p_found + i_found, _as(b_found, p_found.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "each", "some", "height", "width", "top", "left", "tall", "wide"])
def _sums(
    p_x, p_gradient, p_mean, p_scale, p_weight, p_bias, p_plain, p_times,
    rows, each, some, height, width, top, left, tall, wide,
    MULTIPLE: tl.constexpr, RECTIFIED: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Of a part of the rows: sums of the gradient where the rectifier lets it through, and of it times what
    was normalised."""
    channels = some * MULTIPLE
    i_channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    m_channel = i_channel < channels
    first = tl.program_id(1) * each
    last = tl.minimum(first + each, rows)
    b_mean, b_scale = _of(p_mean, i_channel, m_channel), _of(p_scale, i_channel, m_channel)
    b_weight, b_bias = _of(p_weight, i_channel, m_channel), _of(p_bias, i_channel, m_channel)
    b_plain, b_times = tl.zeros((ROWS, CHANNELS), tl.float32), tl.zeros((ROWS, CHANNELS), tl.float32)
    for start in tl.range(first, last, ROWS, num_stages=3):
        i_row = start + tl.arange(0, ROWS)
        mask = (i_row < last)[:, None] & m_channel[None, :]
        i_given = i_row[:, None] * channels + i_channel[None, :]
        b_x = tl.load(p_x + i_given, mask=mask, other=0.0).to(tl.float32)
        i_given = _around(i_row, height, width, top, left, tall, wide, PADDED)[:, None] * channels
        b_gradient = tl.load(p_gradient + i_given + i_channel[None, :], mask=mask, other=0.0).to(tl.float32)
        b_even = (b_x - b_mean) * b_scale
        if RECTIFIED:
            b_gradient = _let_through(b_gradient, b_even * b_weight + b_bias)
        b_plain += b_gradient
        b_times += b_gradient * b_even
    i_found = tl.program_id(1) * channels + i_channel
    tl.store(p_plain + i_found, tl.sum(b_plain, 0), mask=m_channel)
    tl.store(p_times + i_found, tl.sum(b_times, 0), mask=m_channel)


@triton.jit(do_not_specialize=["parts", "some"])
def _summed(
    p_plain, p_times, p_of_bias, p_of_weight, parts, some,
    MULTIPLE: tl.constexpr, PARTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The parts' sums brought together."""
    channels = some * MULTIPLE
    i_channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    m_channel = i_channel < channels
    i_part = tl.arange(0, PARTS)
    mask = (i_part < parts)[:, None] & m_channel[None, :]
    i_given = i_part[:, None] * channels + i_channel[None, :]
    b_plain = tl.load(p_plain + i_given, mask=mask, other=0.0)
    b_times = tl.load(p_times + i_given, mask=mask, other=0.0)
    tl.store(p_of_bias + i_channel, tl.sum(b_plain, 0), mask=m_channel)
    tl.store(p_of_weight + i_channel, tl.sum(b_times, 0), mask=m_channel)


@triton.jit(do_not_specialize=["rows", "some", "height", "width", "top", "left", "tall", "wide"])
def _gradient(
    p_x, p_gradient, p_mean, p_scale, p_weight, p_bias, p_of_bias, p_of_weight, p_of_x,
    rows, some, height, width, top, left, tall, wide,
    MULTIPLE: tl.constexpr, RECTIFIED: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """By the input: the gradient less what the mean and the deviation, which all rows share, take of it."""
    channels = some * MULTIPLE
    i_channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    m_channel = i_channel < channels
    i_row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    mask = (i_row < rows)[:, None] & m_channel[None, :]
    i_x = i_row[:, None] * channels + i_channel[None, :]
    b_x = tl.load(p_x + i_x, mask=mask, other=0.0).to(tl.float32)
    i_given = _around(i_row, height, width, top, left, tall, wide, PADDED)[:, None] * channels
    b_gradient = tl.load(p_gradient + i_given + i_channel[None, :], mask=mask, other=0.0).to(tl.float32)
    b_scale, b_weight = _of(p_scale, i_channel, m_channel), _of(p_weight, i_channel, m_channel)
    b_even = (b_x - _of(p_mean, i_channel, m_channel)) * b_scale
    if RECTIFIED:
        b_gradient = _let_through(b_gradient, b_even * b_weight + _of(p_bias, i_channel, m_channel))
    b_common = _of(p_of_bias, i_channel, m_channel) / rows
    b_slope = _of(p_of_weight, i_channel, m_channel) / rows
    b_found = b_weight * b_scale * (b_gradient - b_common - b_even * b_slope)
    tl.store(p_of_x + i_x, _as(b_found, p_of_x.dtype.element_ty), mask=mask)


@triton.jit
def _around(i_row, height, width, top, left, tall, wide, PADDED: tl.constexpr):
    """Rows of a map -> of the map with zeros around it."""
    if PADDED:
        i_y, i_x = i_row // width % height, i_row % width
        i_row = (i_row // (width * height) * tall + i_y + top) * wide + i_x + left
    return i_row


@triton.jit
def _of(p_numbers, i_channel, m_channel):
    """A row of one number for each channel."""
    return tl.load(p_numbers + i_channel, mask=m_channel, other=0.0)[None, :]


@triton.jit
def _let_through(b_gradient, b_affine):
    """The gradient where the rectifier cut nothing off."""
    return tl.where((b_affine > 0) & (b_affine < _SIX), b_gradient, 0.0)
