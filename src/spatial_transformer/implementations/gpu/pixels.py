"""Where a block's pixels are, and the lengths of images in them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _split(i, length, magic, LARGE: tl.constexpr):
    """i // length and i % length; dividing is dear, so by a product where that is exact (``Cut.magic``)."""
    quotient = i // length if LARGE else tl.umulhi(i * 4, magic + tl.zeros_like(i))
    return quotient, i - quotient * length


@triton.jit
def _pixels(
    i_block, W, H, D, tiles, rows, m_tiles, m_rows,
    DIMS: tl.constexpr, BLOCK: tl.constexpr, TX: tl.constexpr, TY: tl.constexpr, TZ: tl.constexpr,
    LARGE: tl.constexpr,
):  # fmt: skip
    """The block's pixels (x, y, z), tile after tile, and which of them exist.

    There are ``tiles`` in a row of tiles and, in 3D, ``rows`` in a layer.
    """
    i = tl.arange(0, BLOCK)
    i_tile = i_block * (BLOCK // (TX * TY * TZ)) + i // (TX * TY * TZ)
    i_row, i_column = _split(i_tile, tiles, m_tiles, LARGE)
    i_x = i_column * TX + i % TX
    if DIMS == 2:
        i_y = i_row * TY + (i // TX) % TY
        return i_x, i_y, tl.zeros_like(i_y), (i_x < W) & (i_y < H)
    i_layer, i_row = _split(i_row, rows, m_rows, LARGE)
    i_y = i_row * TY + (i // TX) % TY
    i_z = i_layer * TZ + (i // (TX * TY)) % TZ
    return i_x, i_y, i_z, (i_x < W) & (i_y < H) & (i_z < D)


@triton.jit
def _along(index, stride, LARGE: tl.constexpr):
    """An offset, in 64 bits where 32 do not hold it."""
    return index.to(tl.int64) * stride if LARGE else index * stride


@triton.jit
def _span(length, ALIGN: tl.constexpr, COMPUTE: tl.constexpr):
    """``coordinates.span``"""
    return (length - 1 if ALIGN else length).to(COMPUTE)


@triton.jit
def _ratio(a, b, COMPUTE: tl.constexpr):
    return tl.where(b == 0, 0.0, a / tl.where(b == 0, 1.0, b)).to(COMPUTE)


@triton.jit
def _ratios(
    W, H, D, OW, OH, OD, q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
    ALIGN: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Spans of source over target axes to the last bit, and 2 over the target's, as ``pixel_factors``.

    Float32 kernels are given them, which saves the divisions; float64 numbers do not fit into arguments.
    """
    if tl.float64 == COMPUTE:
        x, y, z = _span(W, ALIGN, COMPUTE), _span(H, ALIGN, COMPUTE), _span(D, ALIGN, COMPUTE)
        u, v, w = _span(OW, ALIGN, COMPUTE), _span(OH, ALIGN, COMPUTE), _span(OD, ALIGN, COMPUTE)
        two = tl.full((), 2.0, COMPUTE)
        found = (
            _ratio(x, u, COMPUTE), _ratio(x, v, COMPUTE), _ratio(x, w, COMPUTE),
            _ratio(y, u, COMPUTE), _ratio(y, v, COMPUTE), _ratio(y, w, COMPUTE),
            _ratio(z, u, COMPUTE), _ratio(z, v, COMPUTE), _ratio(z, w, COMPUTE),
            _ratio(two, u, COMPUTE), _ratio(two, v, COMPUTE), _ratio(two, w, COMPUTE),
        )  # fmt: skip
    else:
        found = (q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww)
    return found


@triton.jit
def _halves(W, H, D, ALIGN: tl.constexpr, COMPUTE: tl.constexpr):
    """Half the spans of an image: normalised coordinates to centred pixels."""
    return _span(W, ALIGN, COMPUTE) / 2, _span(H, ALIGN, COMPUTE) / 2, _span(D, ALIGN, COMPUTE) / 2


@triton.jit
def _middles(W, H, D, COMPUTE: tl.constexpr):
    """Centred pixels to pixels."""
    return (W - 1).to(COMPUTE) / 2, (H - 1).to(COMPUTE) / 2, (D - 1).to(COMPUTE) / 2
