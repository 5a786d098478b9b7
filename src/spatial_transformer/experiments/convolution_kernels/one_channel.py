"""Convolutions of one input channel: pooled positions gather their patches.

A pooled value is the greatest of four neighbouring convolution positions, which together see a patch of
(k + 1) x (k + 1) pixels. So the patches of pooled positions are gathered, one row each, and multiplied with
the filters at their four places in the patch: a quarter of the gathering that four convolution positions
would need, and the four products are compared in registers. The row of a patch has one more column, of ones:
what it sums in the weights' gradient is the bias's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .products import CUT, _as, _dot


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
