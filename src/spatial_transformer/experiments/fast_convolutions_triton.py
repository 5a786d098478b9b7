"""The kernels of ``fast_convolutions``: bfloat16 products on tensor cores, summed in float32, and no atomics.

*One input channel* (``_one_channel_...``). A pooled value is the greatest of four neighbouring convolution
positions, which together see a patch of (k + 1) x (k + 1) pixels. So the patches of pooled positions are
gathered, one row each, and multiplied with the filters at their four places in the patch: a quarter of the
gathering that four convolution positions would need, and the four products are compared in registers. The
row of a patch has one more column, of ones: what it sums in the weights' gradient is the bias's.

*Many input channels* (``_many_channels_...``). Activations are channels-last, so that a row of k taps is one
run of k x C numbers, and a convolution position's k runs are read where they lie (an implicit product). The
gradient of the activations is a plain product of what the positions get and the filters, folded back.

Rows are positions in the order n, y, x. Sizes of images and filters are compiled in: a network has few.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Triton's interpreter (TRITON_INTERPRET=1) runs the kernels on CPU tensors, for tests.
INTERPRETED = bool(triton.knobs.runtime.interpret)
_INTERPRETED = tl.constexpr(INTERPRETED)

# An index of the maximum, row by row in its 2 x 2 positions; this one where the rectifier cut it off.
CUT = tl.constexpr(4)

# Programs that fill a GPU: positions are shared out over so many where a sum over them is wanted. More of
# them wait less, and leave more partial sums to be added.
PROGRAMS = 132

# Bytes of scratch at a time that the second-level cache holds beside everything else.
SCRATCH = 40 * 2**20


class Blocks(NamedTuple):
    """Of a kernel: rows and filters of a block, the depth of a step, warps, stages of loading ahead."""

    rows: int
    filters: int = 0
    depth: int = 0
    warps: int = 8
    stages: int = 2


# Worth trying on a GPU: rows 64 or 128, warps 4 or 8, filters 32 or 64, stages 2 to 4.
ONE_FORWARD = Blocks(rows=128, filters=32)
ONE_WEIGHTS = Blocks(rows=64, filters=32)
ONE_PATCHES = Blocks(rows=128, filters=32)
MANY_FORWARD = Blocks(rows=128, filters=128, depth=64, stages=3)
MANY_WEIGHTS = Blocks(rows=64, filters=128, depth=128, stages=3)
POOLED = Blocks(rows=4, warps=4)
POINTWISE = Blocks(rows=32, warps=4)
PIXELS = 256


def padded(number: int, to: int) -> int:
    return -(-number // to) * to


def power_of_2(number: int) -> int:
    """At least 16, which tensor cores want of every side."""
    return max(16, triton.next_power_of_2(number))


def launch(kernel: Any, grid: tuple[int, ...], blocks: Blocks, *arguments: Any) -> None:
    """The one place where kernels start; arguments in the kernel's order."""
    kernel[grid](*arguments, num_warps=blocks.warps, num_stages=blocks.stages)


@triton.jit
def _as(number, dtype: tl.constexpr):
    """Float32 to float32 or bfloat16, to the nearest."""
    if _INTERPRETED and dtype == tl.bfloat16:  # Triton 3.6's interpreter cuts the lower half off
        bits = number.to(tl.uint32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        number = (bits & 0xFFFF0000).to(tl.uint32).to(tl.float32, bitcast=True)
    return number.to(dtype)


@triton.jit
def _dot(a, b, b_sum):
    """b_sum + a b: bfloat16 in, float32 out."""
    if _INTERPRETED:  # Triton 3.6's interpreter takes bfloat16 there for whole numbers
        return tl.dot(a.to(tl.float32), b.to(tl.float32), b_sum)
    return tl.dot(a, b, b_sum)


# One input channel


@triton.jit
def _patches(
    p_image, i_row, rows, H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """[rows of the block, TAPS]: the patch under each pooled position, then a one, then anything.

    What lies beyond the last row or tap reads a pixel of some patch all the same: nothing has to be masked,
    for what it is multiplied with is zero, or it is not stored.
    """
    PH: tl.constexpr = (H - K + 1) // 2
    PW: tl.constexpr = (W - K + 1) // 2
    i_row = tl.minimum(i_row, rows - 1)
    i_image, i_place = i_row // (PH * PW), i_row % (PH * PW)
    o_patch = i_image * (H * W) + 2 * (i_place // PW) * W + 2 * (i_place % PW)
    i_tap = tl.arange(0, TAPS)
    o_tap = tl.where(i_tap < (K + 1) * (K + 1), (i_tap // (K + 1)) * W + i_tap % (K + 1), i_tap % 2)
    if W % 2 == 0 and K % 2 == 1:  # pairs of taps lie side by side, at even places: one load for both
        o_tap = tl.multiple_of(tl.max_contiguous(o_tap, 2), 2)
    b_patch = tl.load(p_image + (o_patch[:, None] + o_tap[None, :]))
    return _as(tl.where((i_tap == (K + 1) * (K + 1))[None, :], 1.0, b_patch), tl.bfloat16)


@triton.jit
def _one_channel_pack(
    p_weight, p_packed,
    K: tl.constexpr, FILTERS: tl.constexpr, TAPS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """packed[q, (u, v), f] = weight[f, u - dy(q), v - dx(q)], and zero where that is no tap."""
    i_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i_shift, i_tap = i_row // TAPS, i_row % TAPS
    i_filter = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    u = i_tap // (K + 1) - i_shift // 2
    v = i_tap % (K + 1) - i_shift % 2
    m_tap = (u >= 0) & (u < K) & (v >= 0) & (v < K)
    m_weight = m_tap[:, None] & (i_filter < FILTERS)[None, :]
    o_weight = (u * K + v)[:, None] + (i_filter * (K * K))[None, :]
    b_weight = _as(tl.load(p_weight + o_weight, mask=m_weight, other=0.0), tl.bfloat16)
    o_packed = i_row[:, None] * WIDTH + i_filter[None, :]
    tl.store(p_packed + o_packed, b_weight, mask=(i_filter < WIDTH)[None, :])


@triton.jit
def _one_channel_forward(
    p_image, p_packed, p_bias, p_output, p_index, rows,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, FILTERS: tl.constexpr, CHANNELS: tl.constexpr,
    TAPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """output[row, f] = max(0, bias[f] + max over q of patch[row] . packed[q, :, f])"""
    i_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    b_patch = _patches(p_image, i_row, rows, H, W, K, TAPS)
    i_tap = tl.arange(0, TAPS)
    b_none = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in tl.range(0, WIDTH, BLOCK):
        i_filter = first + tl.arange(0, BLOCK)
        p_filters = p_packed + (i_tap[:, None] * WIDTH + i_filter[None, :])
        b_best = _dot(b_patch, tl.load(p_filters), b_none)
        b_index = tl.zeros((ROWS, BLOCK), tl.int8)
        for q in tl.static_range(1, 4):
            b_other = _dot(b_patch, tl.load(p_filters + q * TAPS * WIDTH), b_none)
            m_better = b_other > b_best  # as MaxPool2d: the first. A NaN in the patch is in all four.
            b_best = tl.where(m_better, b_other, b_best)
            b_index = tl.where(m_better, q, b_index).to(tl.int8)
        b_value = b_best + tl.load(p_bias + i_filter, mask=i_filter < FILTERS, other=0.0)[None, :]
        m_cut = b_value <= 0.0
        o_output = i_row[:, None] * CHANNELS + i_filter[None, :]
        m_output = (i_row < rows)[:, None] & (i_filter < CHANNELS)[None, :]
        tl.store(p_output + o_output, _as(tl.where(m_cut, 0.0, b_value), tl.bfloat16), mask=m_output)
        tl.store(p_index + o_output, tl.where(m_cut, CUT, b_index).to(tl.uint8), mask=m_output)


@triton.jit
def _pooled_gradient(
    p_gradient, p_index, i_row, rows, i_filter, CHANNELS: tl.constexpr,
):  # fmt: skip
    """[rows of the block, filters of the block]: what the maxima get, and which of the four they are."""
    o_row = i_row[:, None] * CHANNELS + i_filter[None, :]
    m_row = (i_row < rows)[:, None] & (i_filter < CHANNELS)[None, :]
    b_gradient = tl.load(p_gradient + o_row, mask=m_row, other=0.0)
    return b_gradient, tl.load(p_index + o_row, mask=m_row, other=CUT)


@triton.jit
def _one_channel_weight_shares(
    p_image, p_gradient, p_index, p_sums, rows, blocks_each,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, CHANNELS: tl.constexpr,
    TAPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sums[share, q, tap, f] = sum over the share's rows of patch[row, tap] gradient[row, f] of maximum q"""
    i_filter = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    b_sum_0 = tl.zeros((TAPS, BLOCK), tl.float32)
    b_sum_1 = tl.zeros((TAPS, BLOCK), tl.float32)
    b_sum_2 = tl.zeros((TAPS, BLOCK), tl.float32)
    b_sum_3 = tl.zeros((TAPS, BLOCK), tl.float32)
    for i_block in tl.range(0, blocks_each):
        i_row = (tl.program_id(0) * blocks_each + i_block) * ROWS + tl.arange(0, ROWS)
        b_patch = tl.trans(_patches(p_image, i_row, rows, H, W, K, TAPS))
        b_gradient, b_index = _pooled_gradient(p_gradient, p_index, i_row, rows, i_filter, CHANNELS)
        none = tl.zeros_like(b_gradient)
        b_sum_0 = _dot(b_patch, tl.where(b_index == 0, b_gradient, none), b_sum_0)
        b_sum_1 = _dot(b_patch, tl.where(b_index == 1, b_gradient, none), b_sum_1)
        b_sum_2 = _dot(b_patch, tl.where(b_index == 2, b_gradient, none), b_sum_2)
        b_sum_3 = _dot(b_patch, tl.where(b_index == 3, b_gradient, none), b_sum_3)
    i_tap = tl.arange(0, TAPS)
    p_sums += tl.program_id(0) * (4 * TAPS * WIDTH) + i_tap[:, None] * WIDTH + i_filter[None, :]
    m_sums = (i_tap <= (K + 1) * (K + 1))[:, None] & (i_filter < WIDTH)[None, :]
    tl.store(p_sums, b_sum_0, mask=m_sums)
    tl.store(p_sums + TAPS * WIDTH, b_sum_1, mask=m_sums)
    tl.store(p_sums + 2 * TAPS * WIDTH, b_sum_2, mask=m_sums)
    tl.store(p_sums + 3 * TAPS * WIDTH, b_sum_3, mask=m_sums)


@triton.jit
def _one_channel_weight_gradient(
    p_sums, p_weight, p_bias, shares,
    K: tl.constexpr, FILTERS: tl.constexpr, TAPS: tl.constexpr, WIDTH: tl.constexpr,
    SHARES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """weight[f, y, x] = sum over shares and q of sums[share, q, (y + dy(q), x + dx(q)), f]; last the bias."""
    i_tap = tl.program_id(0)
    i_filter = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    i_share = tl.arange(0, SHARES)
    o_sums = i_share[:, None] * (4 * TAPS * WIDTH) + i_filter[None, :]
    m_sums = (i_share < shares)[:, None] & (i_filter < WIDTH)[None, :]
    b_sum = tl.zeros((SHARES, BLOCK), tl.float32)
    for q in tl.static_range(4):
        i_patch = (i_tap // K + q // 2) * (K + 1) + i_tap % K + q % 2
        i_patch = tl.where(i_tap < K * K, i_patch, (K + 1) * (K + 1))
        b_sum += tl.load(p_sums + (q * TAPS + i_patch) * WIDTH + o_sums, mask=m_sums, other=0.0)
    b_total = tl.sum(b_sum, 0)
    m_filter = i_filter < FILTERS
    tl.store(p_weight + i_filter * (K * K) + i_tap, b_total, mask=m_filter & (i_tap < K * K))
    tl.store(p_bias + i_filter, b_total, mask=m_filter & (i_tap == K * K))


@triton.jit
def _one_channel_patch_gradient(
    p_gradient, p_index, p_packed, p_patches, rows,
    K: tl.constexpr, CHANNELS: tl.constexpr,
    TAPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """patches[block, tap, row] = sum over f of packed[q, tap, f] gradient[row, f], q its maximum's.

    Tap by tap, so that ``_one_channel_image_gradient`` finds neighbouring pixels side by side.
    """
    i_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i_tap = tl.arange(0, TAPS)
    b_sum = tl.zeros((TAPS, ROWS), tl.float32)
    for first in tl.range(0, WIDTH, BLOCK):
        i_filter = first + tl.arange(0, BLOCK)
        p_filters = p_packed + (i_tap[:, None] * WIDTH + i_filter[None, :])
        b_gradient, b_index = _pooled_gradient(p_gradient, p_index, i_row, rows, i_filter, CHANNELS)
        for q in tl.static_range(4):
            b_mine = tl.where(b_index == q, b_gradient, tl.zeros_like(b_gradient))
            b_sum = _dot(tl.load(p_filters + q * TAPS * WIDTH), tl.trans(b_mine), b_sum)
    o_patch = (tl.program_id(0) * ((K + 1) * (K + 1)) + i_tap[:, None]) * ROWS + tl.arange(0, ROWS)[None, :]
    tl.store(p_patches + o_patch, _as(b_sum, tl.bfloat16), mask=(i_tap < (K + 1) * (K + 1))[:, None])


@triton.jit
def _one_channel_image_gradient(
    p_patches, p_image, pixels,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """image[n, y, x] = sum over the patches that it lies in."""
    PH: tl.constexpr = (H - K + 1) // 2
    PW: tl.constexpr = (W - K + 1) // 2
    i_pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i_image, i_place = i_pixel // (H * W), i_pixel % (H * W)
    y, x = i_place // W, i_place % W
    b_sum = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(K // 2 + 1):
        i_y, u = y // 2 - i, y % 2 + 2 * i
        m_y = (i_pixel < pixels) & (i_y >= 0) & (i_y < PH) & (u <= K)
        for j in tl.static_range(K // 2 + 1):
            i_x, v = x // 2 - j, x % 2 + 2 * j
            m_tap = m_y & (i_x >= 0) & (i_x < PW) & (v <= K)
            i_row = (i_image * PH + i_y) * PW + i_x
            o_patch = ((i_row // ROWS) * ((K + 1) * (K + 1)) + u * (K + 1) + v) * ROWS + i_row % ROWS
            b_sum += tl.load(p_patches + o_patch, mask=m_tap, other=0.0).to(tl.float32)
    tl.store(p_image + i_pixel, b_sum, mask=i_pixel < pixels)


# Many input channels


@triton.jit
def _many_channels_pack(
    p_weight, p_packed,
    TAPS: tl.constexpr, FILTERS: tl.constexpr, INPUTS: tl.constexpr, CHANNELS: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """packed[f, tap, c] = weight[f, c, tap], and zero where there is no such filter or channel."""
    i_filter = tl.program_id(0)
    i_channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    i_tap = tl.arange(0, SIDE)
    m_weight = (i_channel < INPUTS)[:, None] & (i_tap < TAPS)[None, :] & (i_filter < FILTERS)
    o_weight = (i_filter * INPUTS + i_channel[:, None]) * TAPS + i_tap[None, :]
    b_weight = _as(tl.load(p_weight + o_weight, mask=m_weight, other=0.0), tl.bfloat16)
    o_packed = (i_filter * TAPS + i_tap[None, :]) * CHANNELS + i_channel[:, None]
    tl.store(p_packed + o_packed, b_weight, mask=(i_channel < CHANNELS)[:, None] & (i_tap < TAPS)[None, :])


@triton.jit
def _place(i_row, H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, CHANNELS: tl.constexpr):
    """Where in the activations a convolution position's first run of taps begins."""
    OH: tl.constexpr = H - K + 1
    OW: tl.constexpr = W - K + 1
    i_image, i_place = i_row // (OH * OW), i_row % (OH * OW)
    return ((i_image * H + i_place // OW) * W + i_place % OW) * CHANNELS


@triton.jit
def _many_channels_forward(
    p_input, p_packed, p_parts, rows,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    EACH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """parts[part, row, f] = sum over the part's EACH rows of taps of run[row] . packed[f]"""
    RUN: tl.constexpr = K * CHANNELS
    STEPS: tl.constexpr = (RUN + DEPTH - 1) // DEPTH
    i_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i_filter = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    o_row = _place(tl.minimum(i_row, rows - 1), H, W, K, CHANNELS)
    first = tl.program_id(2) * EACH
    last = tl.minimum(first + EACH, K)
    b_sum = tl.zeros((ROWS, BLOCK), tl.float32)
    for i_step in tl.range(0, (last - first) * STEPS):
        i_run = first + i_step // STEPS
        i_within = (i_step % STEPS) * DEPTH + tl.arange(0, DEPTH)
        m_within = i_within < RUN
        b_input = tl.load(
            p_input + (o_row[:, None] + (i_run * (W * CHANNELS) + i_within)[None, :]),
            mask=m_within[None, :], other=0.0,
        )  # fmt: skip
        b_filters = tl.load(
            p_packed + (i_filter[None, :] * (K * RUN) + (i_run * RUN + i_within)[:, None]),
            mask=m_within[:, None] & (i_filter < WIDTH)[None, :], other=0.0,
        )  # fmt: skip
        b_sum = _dot(b_input, b_filters, b_sum)
    o_parts = (tl.program_id(2) * rows + i_row[:, None]) * WIDTH + i_filter[None, :]
    tl.store(p_parts + o_parts, b_sum, mask=(i_row < rows)[:, None] & (i_filter < WIDTH)[None, :])


@triton.jit
def _many_channels_pooled(
    p_parts, p_bias, p_output, p_index, rows, parts, n_stride, f_stride, y_stride, x_stride,
    OH: tl.constexpr, OW: tl.constexpr, POOL: tl.constexpr, FILTERS: tl.constexpr, WIDTH: tl.constexpr,
    STORED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """output[n, f, y, x] = max(0, bias[f] + max over its positions of the sum of the parts), and which.

    ``rows`` are the pooled ones.
    """
    PH: tl.constexpr = OH // POOL
    PW: tl.constexpr = OW // POOL
    positions = rows // (PH * PW) * (OH * OW)
    i_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i_filter = tl.arange(0, BLOCK)
    m_row = (i_row < rows)[:, None] & (i_filter < WIDTH)[None, :]
    i_image, i_place = i_row // (PH * PW), i_row % (PH * PW)
    y, x = i_place // PW, i_place % PW
    b_best = tl.full((ROWS, BLOCK), float("-inf"), tl.float32)
    b_index = tl.zeros((ROWS, BLOCK), tl.int32)
    for q in tl.static_range(POOL * POOL):
        i_position = (i_image * OH + POOL * y + q // POOL) * OW + POOL * x + q % POOL
        o_part = i_position[:, None] * WIDTH + i_filter[None, :]
        b_value = tl.zeros((ROWS, BLOCK), tl.float32)
        for i_part in tl.range(0, parts):
            b_value += tl.load(p_parts + i_part * positions * WIDTH + o_part, mask=m_row, other=0.0)
        m_better = (b_value > b_best) | (b_value != b_value)  # as MaxPool2d: the first, and NaN over all
        b_best = tl.where(m_better, b_value, b_best)
        b_index = tl.where(m_better, q, b_index)
    b_best += tl.load(p_bias + i_filter, mask=i_filter < FILTERS, other=0.0)[None, :]
    m_cut = b_best <= 0.0
    b_best = tl.where(m_cut, 0.0, b_best)
    o_output = i_image * n_stride + y * y_stride + x * x_stride
    p_output += o_output[:, None] + (i_filter * f_stride)[None, :]
    tl.store(p_output, _as(b_best, p_output.dtype.element_ty), mask=m_row & (i_filter < STORED)[None, :])
    o_index = i_row[:, None] * WIDTH + i_filter[None, :]
    tl.store(p_index + o_index, tl.where(m_cut, CUT, b_index).to(tl.uint8), mask=m_row)


@triton.jit
def _many_channels_unpooled(
    p_gradient, p_index, p_positions, p_bias, rows, n_stride, f_stride, y_stride, x_stride,
    OH: tl.constexpr, OW: tl.constexpr, POOL: tl.constexpr, WIDTH: tl.constexpr, STORED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """positions[row, f] = what the maximum got where it was this row's, else 0; bias[block, f] is its sum.

    ``rows`` are the convolution's; those that the pooling dropped get nothing.
    """
    PH: tl.constexpr = OH // POOL
    PW: tl.constexpr = OW // POOL
    i_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i_filter = tl.arange(0, BLOCK)
    i_image, i_place = i_row // (OH * OW), i_row % (OH * OW)
    y, x = i_place // OW, i_place % OW
    i_q = (y % POOL) * POOL + x % POOL
    y, x = y // POOL, x // POOL
    m_row = ((i_row < rows) & (y < PH) & (x < PW))[:, None]
    o_index = ((i_image * PH + y) * PW + x)[:, None] * WIDTH + i_filter[None, :]
    b_index = tl.load(p_index + o_index, mask=m_row & (i_filter < WIDTH)[None, :], other=CUT)
    o_gradient = (i_image * n_stride + y * y_stride + x * x_stride)[:, None] + (i_filter * f_stride)[None, :]
    m_gradient = m_row & (i_filter < STORED)[None, :] & (b_index == i_q[:, None])
    b_gradient = tl.load(p_gradient + o_gradient, mask=m_gradient, other=0.0).to(tl.float32)
    o_position = i_row[:, None] * WIDTH + i_filter[None, :]
    m_position = (i_row < rows)[:, None] & (i_filter < WIDTH)[None, :]
    tl.store(p_positions + o_position, _as(b_gradient, tl.bfloat16), mask=m_position)
    tl.store(p_bias + tl.program_id(0) * WIDTH + i_filter, tl.sum(b_gradient, 0), mask=i_filter < WIDTH)


@triton.jit
def _many_channels_weight_shares(
    p_input, p_positions, p_sums, rows, blocks_each,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """sums[share, f, (y, x, c)] = sum over the share's rows of positions[row, f] run[row, (y, x, c)]"""
    RUN: tl.constexpr = K * CHANNELS
    STEPS: tl.constexpr = (RUN + DEPTH - 1) // DEPTH
    i_run = tl.program_id(0) // STEPS
    i_within = (tl.program_id(0) % STEPS) * DEPTH + tl.arange(0, DEPTH)
    i_filter = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    m_within, m_filter = i_within < RUN, i_filter < WIDTH
    o_within = i_run * (W * CHANNELS) + i_within
    b_sum = tl.zeros((BLOCK, DEPTH), tl.float32)
    for i_block in tl.range(0, blocks_each):
        i_row = (tl.program_id(1) * blocks_each + i_block) * ROWS + tl.arange(0, ROWS)
        m_row = (i_row < rows)[:, None]
        o_row = _place(i_row, H, W, K, CHANNELS)
        b_input = tl.load(
            p_input + (o_row[:, None] + o_within[None, :]), mask=m_row & m_within[None, :], other=0.0
        )
        b_position = tl.load(
            p_positions + (i_row[:, None] * WIDTH + i_filter[None, :]),
            mask=m_row & m_filter[None, :], other=0.0,
        )  # fmt: skip
        b_sum = _dot(tl.trans(b_position), b_input, b_sum)
    o_sums = (tl.program_id(1) * WIDTH + i_filter[:, None]) * (K * RUN) + (i_run * RUN + i_within)[None, :]
    tl.store(p_sums + o_sums, b_sum, mask=m_filter[:, None] & m_within[None, :])


@triton.jit
def _many_channels_weight_gradient(
    p_sums, p_bias_sums, p_weight, p_bias, shares, bias_shares,
    TAPS: tl.constexpr, INPUTS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """weight[f, c, tap] = sum over shares of sums[share, f, tap, c], and the bias's likewise"""
    i_filter = tl.program_id(0)
    i_channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    i_tap = tl.arange(0, SIDE)
    m_weight = (i_channel < INPUTS)[None, :] & (i_tap < TAPS)[:, None]
    o_sums = (i_filter * TAPS + i_tap[:, None]) * CHANNELS + i_channel[None, :]
    b_sum = tl.zeros((SIDE, BLOCK), tl.float32)
    for i_share in tl.range(0, shares):
        b_sum += tl.load(p_sums + i_share * (WIDTH * TAPS * CHANNELS) + o_sums, mask=m_weight, other=0.0)
    o_weight = (i_filter * INPUTS + i_channel[None, :]) * TAPS + i_tap[:, None]
    tl.store(p_weight + o_weight, b_sum, mask=m_weight)
    if tl.program_id(1) == 0:
        i_sum = tl.arange(0, BIAS)
        b_bias = tl.load(p_bias_sums + i_sum * WIDTH + i_filter, mask=i_sum < bias_shares, other=0.0)
        tl.store(p_bias + i_filter, tl.sum(b_bias, 0))


@triton.jit
def _many_channels_fold(
    p_taps, p_input, pixels,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """input[n, y, x, c] = sum over taps (u, v) of taps[(n, y - u, x - v), u, v, c], where that position is.

    Along each axis either the taps are gone through or the positions, whichever are fewer.
    """
    OH: tl.constexpr = H - K + 1
    OW: tl.constexpr = W - K + 1
    i_pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i_channel = tl.arange(0, BLOCK)
    m_pixel = i_pixel < pixels
    m_channel = (i_channel < CHANNELS)[None, :]
    i_image, i_place = i_pixel // (H * W), i_pixel % (H * W)
    y, x = i_place // W, i_place % W
    b_sum = tl.zeros((ROWS, BLOCK), tl.float32)
    for i in tl.static_range(min(K, OH)):
        i_y = y - i if K < OH else i + tl.zeros_like(y)
        u = y - i_y
        m_y = m_pixel & (i_y >= 0) & (i_y < OH) & (u >= 0) & (u < K)
        for j in tl.range(0, min(K, OW)):
            i_x = x - j if K < OW else j + tl.zeros_like(x)
            v = x - i_x
            m_tap = m_y & (i_x >= 0) & (i_x < OW) & (v >= 0) & (v < K)
            o_tap = (((i_image * OH + i_y) * OW + i_x) * (K * K) + u * K + v) * CHANNELS
            p_tap = p_taps + (o_tap[:, None] + i_channel[None, :])
            b_sum += tl.load(p_tap, mask=m_tap[:, None] & m_channel, other=0.0).to(tl.float32)
    o_input = i_pixel[:, None] * CHANNELS + i_channel[None, :]
    tl.store(p_input + o_input, _as(b_sum, tl.bfloat16), mask=m_pixel[:, None] & m_channel)


# Launches for one input channel


class OneChannel(NamedTuple):
    """The sizes of a one-channel convolution with its pooling."""

    batch: int
    height: int
    width: int
    kernel: int
    filters: int
    channels: int  # of the output in memory: the filters, and zeros up to a multiple of 8

    @property
    def pooled(self) -> tuple[int, int]:
        return (self.height - self.kernel + 1) // 2, (self.width - self.kernel + 1) // 2

    @property
    def rows(self) -> int:
        return self.batch * self.pooled[0] * self.pooled[1]

    @property
    def taps(self) -> int:
        """Columns of a patch: its pixels, the ones, and what fills it up to a power of 2."""
        return power_of_2((self.kernel + 1) ** 2 + 1)

    @property
    def image(self) -> tuple[int, int, int]:
        return self.height, self.width, self.kernel


def one_channel_forward(
    image: Tensor, weight: Tensor, bias: Tensor, sizes: OneChannel
) -> tuple[Tensor, Tensor, Tensor]:
    """[N, 1, H, W] -> [rows, channels] in bfloat16, the maxima's index, and the packed filters."""
    blocks = ONE_FORWARD
    width = padded(sizes.channels, max(blocks.filters, ONE_PATCHES.filters))  # whole blocks of either kernel
    packed = image.new_empty((4, sizes.taps, width), dtype=torch.bfloat16)
    launch(
        _one_channel_pack, (4 * sizes.taps // 16, width // blocks.filters), Blocks(16, warps=4),
        weight, packed, sizes.kernel, sizes.filters, sizes.taps, width, 16, blocks.filters,
    )  # fmt: skip
    output = image.new_empty((sizes.rows, sizes.channels), dtype=torch.bfloat16)
    index = image.new_empty((sizes.rows, sizes.channels), dtype=torch.uint8)
    launch(
        _one_channel_forward, (-(-sizes.rows // blocks.rows),), blocks,
        image, packed, bias, output, index, sizes.rows,
        *sizes.image, sizes.filters, sizes.channels, sizes.taps, width, blocks.rows, blocks.filters,
    )  # fmt: skip
    return output, index, packed


def one_channel_weight_gradient(
    image: Tensor, gradient: Tensor, index: Tensor, sizes: OneChannel
) -> tuple[Tensor, Tensor]:
    """What the maxima got, [rows, channels] in bfloat16 -> the gradients of weight and bias."""
    blocks = ONE_WEIGHTS
    width = padded(sizes.channels, blocks.filters)
    groups = width // blocks.filters
    many = -(-sizes.rows // blocks.rows)
    each = -(-many // max(1, PROGRAMS // groups))
    shares = -(-many // each)
    sums = image.new_empty((shares, 4, sizes.taps, width))
    launch(
        _one_channel_weight_shares, (shares, groups), blocks,
        image, gradient, index, sums, sizes.rows, each,
        *sizes.image, sizes.channels, sizes.taps, width, blocks.rows, blocks.filters,
    )  # fmt: skip
    weight = image.new_empty((sizes.filters, 1, sizes.kernel, sizes.kernel))
    bias = image.new_empty((sizes.filters,))
    launch(
        _one_channel_weight_gradient, (sizes.kernel**2 + 1, -(-width // 32)), Blocks(1, warps=4),
        sums, weight, bias, shares,
        sizes.kernel, sizes.filters, sizes.taps, width, triton.next_power_of_2(shares), 32,
    )  # fmt: skip
    return weight, bias


def one_channel_image_gradient(gradient: Tensor, index: Tensor, packed: Tensor, sizes: OneChannel) -> Tensor:
    """What the maxima got, [rows, channels] in bfloat16 -> the gradient of the image, [N, 1, H, W]"""
    blocks = ONE_PATCHES
    many = -(-sizes.rows // blocks.rows)
    patches = gradient.new_empty((many, (sizes.kernel + 1) ** 2, blocks.rows))
    launch(
        _one_channel_patch_gradient, (many,), blocks,
        gradient, index, packed, patches, sizes.rows,
        sizes.kernel, sizes.channels, sizes.taps, packed.shape[2], blocks.rows, blocks.filters,
    )  # fmt: skip
    image = gradient.new_empty((sizes.batch, 1, sizes.height, sizes.width), dtype=torch.float32)
    launch(
        _one_channel_image_gradient, (-(-image.numel() // PIXELS),), Blocks(1, warps=4),
        patches, image, image.numel(), *sizes.image, blocks.rows, PIXELS,
    )  # fmt: skip
    return image


# Launches for many input channels


class ManyChannels(NamedTuple):
    """The sizes of a convolution over channels-last activations, with pooling of 1 or 2."""

    batch: int
    height: int
    width: int
    kernel: int
    inputs: int
    channels: int  # of the input in memory
    filters: int
    filters_padded: int  # to a multiple of 8
    pool: int

    @property
    def positions(self) -> tuple[int, int]:
        return self.height - self.kernel + 1, self.width - self.kernel + 1

    @property
    def rows(self) -> int:
        return self.batch * self.positions[0] * self.positions[1]

    @property
    def pooled(self) -> tuple[int, int]:
        return self.positions[0] // self.pool, self.positions[1] // self.pool

    @property
    def taps(self) -> int:
        return self.kernel**2

    @property
    def depth(self) -> int:
        """Numbers that a position sees."""
        return self.taps * self.channels

    @property
    def image(self) -> tuple[int, int, int, int]:
        return self.height, self.width, self.kernel, self.channels


def pack(weight: Tensor, sizes: ManyChannels) -> Tensor:
    """[F, C, k, k] -> [filters, (y, x, c)] in bfloat16, both padded with zeros."""
    packed = weight.new_empty((sizes.filters_padded, sizes.depth), dtype=torch.bfloat16)
    side = triton.next_power_of_2(sizes.taps)
    launch(
        _many_channels_pack, (sizes.filters_padded, -(-sizes.channels // 32)), Blocks(1, warps=4),
        weight, packed, sizes.taps, sizes.filters, sizes.inputs, sizes.channels, side, 32,
    )  # fmt: skip
    return packed


def parts_of(rows: int, kernel: int) -> int:
    """How many programs share out the rows of taps of a position: few where there are many positions."""
    blocks = -(-rows // MANY_FORWARD.rows)
    each = -(-kernel // max(1, min(kernel, 2 * PROGRAMS // blocks)))
    return -(-kernel // each)


def product(activations: Tensor, packed: Tensor, sizes: ManyChannels) -> Tensor:
    """[N, H, W, channels] -> [parts, rows, filters], whose sum over the parts is the convolution."""
    blocks = MANY_FORWARD
    parts = parts_of(sizes.rows, sizes.kernel)
    block = min(blocks.filters, power_of_2(sizes.filters_padded))
    found = activations.new_empty((parts, sizes.rows, sizes.filters_padded), dtype=torch.float32)
    launch(
        _many_channels_forward,
        (-(-sizes.rows // blocks.rows), -(-sizes.filters_padded // block), parts), blocks,
        activations, packed, found, sizes.rows,
        *sizes.image, sizes.filters_padded, -(-sizes.kernel // parts), blocks.rows, block, blocks.depth,
    )  # fmt: skip
    return found


def pooled(parts: Tensor, bias: Tensor, output: Tensor, sizes: ManyChannels) -> Tensor:
    """Sums, adds the bias, rectifies and pools into ``output`` [N, F, h, w]; gives the maxima's index."""
    rows = sizes.batch * sizes.pooled[0] * sizes.pooled[1]
    index = parts.new_empty((rows, sizes.filters_padded), dtype=torch.uint8)
    launch(
        _many_channels_pooled, (-(-rows // POOLED.rows),), POOLED,
        parts, bias, output, index, rows, parts.shape[0], *output.stride(),
        *sizes.positions, sizes.pool, sizes.filters, sizes.filters_padded, output.shape[1],
        POOLED.rows, power_of_2(sizes.filters_padded),
    )  # fmt: skip
    return index


def unpooled(gradient: Tensor, index: Tensor, sizes: ManyChannels) -> tuple[Tensor, Tensor]:
    """[N, F, h, w] -> what each position got, [rows, filters] in bfloat16, and its sums, [shares, filters]"""
    blocks = -(-sizes.rows // POINTWISE.rows)
    positions = gradient.new_empty((sizes.rows, sizes.filters_padded), dtype=torch.bfloat16)
    bias = gradient.new_empty((blocks, sizes.filters_padded), dtype=torch.float32)
    launch(
        _many_channels_unpooled, (blocks,), POINTWISE,
        gradient, index, positions, bias, sizes.rows, *gradient.stride(),
        *sizes.positions, sizes.pool, sizes.filters_padded, gradient.shape[1],
        POINTWISE.rows, power_of_2(sizes.filters_padded),
    )  # fmt: skip
    return positions, bias


def weight_shares(activations: Tensor, positions: Tensor, sizes: ManyChannels) -> Tensor:
    """[shares, filters, (y, x, c)], whose sum over the shares is the gradient of the packed weights."""
    blocks = MANY_WEIGHTS
    block = min(blocks.filters, power_of_2(sizes.filters_padded))
    steps = sizes.kernel * -(-sizes.kernel * sizes.channels // blocks.depth)
    groups = -(-sizes.filters_padded // block)
    many = -(-sizes.rows // blocks.rows)
    each = -(-many // max(1, 2 * PROGRAMS // (steps * groups)))
    shares = -(-many // each)
    sums = activations.new_empty((shares, sizes.filters_padded, sizes.depth), dtype=torch.float32)
    launch(
        _many_channels_weight_shares, (steps, shares, groups), blocks,
        activations, positions, sums, sizes.rows, each,
        *sizes.image, sizes.filters_padded, blocks.rows, block, blocks.depth,
    )  # fmt: skip
    return sums


def weight_gradient(sums: Tensor, bias_sums: Tensor, sizes: ManyChannels) -> tuple[Tensor, Tensor]:
    """[shares, filters, (y, x, c)] and [shares, filters] -> the gradients of weight and bias"""
    weight = sums.new_empty((sizes.filters, sizes.inputs, sizes.kernel, sizes.kernel))
    bias = sums.new_empty((sizes.filters,))
    side = triton.next_power_of_2(sizes.taps)
    launch(
        _many_channels_weight_gradient, (sizes.filters, -(-sizes.inputs // 32)), Blocks(1, warps=4),
        sums, bias_sums, weight, bias, sums.shape[0], bias_sums.shape[0],
        sizes.taps, sizes.inputs, sizes.channels, sizes.filters_padded, side, 32,
        triton.next_power_of_2(bias_sums.shape[0]),
    )  # fmt: skip
    return weight, bias


def input_gradient(positions: Tensor, packed: Tensor, sizes: ManyChannels) -> Tensor:
    """What the positions got, [rows, filters] -> the gradient of the activations, [N, H, W, channels].

    Some images at a time, so that what lies between product and fold stays in the cache.
    """
    gradient = positions.new_empty((sizes.batch, sizes.height, sizes.width, sizes.channels))
    each = sizes.rows // sizes.batch
    images = max(1, min(sizes.batch, SCRATCH // (2 * each * sizes.depth)))
    for first in range(0, sizes.batch, images):
        some = gradient[first : first + images]
        taps = positions[first * each : (first + images) * each] @ packed
        pixels = some.shape[0] * sizes.height * sizes.width
        launch(
            _many_channels_fold, (-(-pixels // POINTWISE.rows),), POINTWISE,
            taps, some, pixels, *sizes.image, POINTWISE.rows, power_of_2(sizes.channels),
        )  # fmt: skip
    return gradient
