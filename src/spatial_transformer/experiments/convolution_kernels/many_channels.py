"""Convolutions of many input channels: positions read their taps where they lie.

Activations are channels-last, so that a row of k taps is one run of k x C numbers, and a convolution
position's k runs are read where they lie (an implicit product). The gradient of the activations is a plain
product of what the positions get and the filters, folded back.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .products import CUT, _as, _dot


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
            p_part = p_parts + i_part * positions * WIDTH + o_part
            b_value += tl.load(p_part, mask=m_row, other=0.0).to(tl.float32)
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

    ``rows`` are the pooled ones, and as many more as have positions that the pooling dropped: these get
    nothing.
    """
    PH: tl.constexpr = OH // POOL
    PW: tl.constexpr = OW // POOL
    ALL_H: tl.constexpr = (OH + POOL - 1) // POOL
    ALL_W: tl.constexpr = (OW + POOL - 1) // POOL
    i_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i_filter = tl.arange(0, BLOCK)
    i_image, i_place = i_row // (ALL_H * ALL_W), i_row % (ALL_H * ALL_W)
    y, x = i_place // ALL_W, i_place % ALL_W
    m_row, m_filter = i_row < rows, (i_filter < WIDTH)[None, :]
    m_pooled = (m_row & (y < PH) & (x < PW))[:, None]
    o_index = ((i_image * PH + y) * PW + x)[:, None] * WIDTH + i_filter[None, :]
    b_index = tl.load(p_index + o_index, mask=m_pooled & m_filter, other=CUT)
    o_gradient = (i_image * n_stride + y * y_stride + x * x_stride)[:, None] + (i_filter * f_stride)[None, :]
    m_gradient = m_pooled & (i_filter < STORED)[None, :] & (b_index != CUT)
    b_gradient = tl.load(p_gradient + o_gradient, mask=m_gradient, other=0.0).to(tl.float32)
    for q in tl.static_range(POOL * POOL):
        i_y, i_x = POOL * y + q // POOL, POOL * x + q % POOL
        o_position = ((i_image * OH + i_y) * OW + i_x)[:, None] * WIDTH + i_filter[None, :]
        m_position = (m_row & (i_y < OH) & (i_x < OW))[:, None] & m_filter
        b_position = tl.where(b_index == q, b_gradient, 0.0)
        tl.store(p_positions + o_position, _as(b_position, tl.bfloat16), mask=m_position)
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
