"""The image's gradient, gathered: each pixel of the image visits the output pixels that read it."""

from __future__ import annotations

import triton
import triton.language as tl

from .constants import _HORIZON, BILINEAR, NEAREST, SIZES
from .pixels import _along, _halves, _middles, _pixels, _ratios
from .positions import _divided
from .taps import _k
from .transforms import _matrix


@triton.jit
def _steep(slope, radius):
    """1 / slope, held to where numbers stay finite, and how far radius reaches through it."""
    inverse = 1.0 / tl.where(tl.abs(slope) < 1e-20, 1e-20, slope)
    return inverse, radius * tl.abs(inverse)


@triton.jit
def _below(slope, rest, low, high):
    """low and high narrowed to where slope * u + rest < 0."""
    steep = tl.where(tl.abs(slope) < 1e-20, 1e-20, slope)
    edge = -rest / steep
    return tl.where(steep > 0, low, tl.maximum(low, edge)), tl.where(steep > 0, tl.minimum(high, edge), high)


@triton.jit
def _whole(low, high, middle, length):
    """The first and last index of centred pixels from low to high; last < first where there is none."""
    low = tl.minimum(tl.maximum(low + middle - 0.01, 0.0), length.to(low.dtype))
    high = tl.maximum(tl.minimum(high + middle + 0.01, (length - 1).to(high.dtype)), -1.0)
    return tl.ceil(low).to(tl.int32), tl.floor(high).to(tl.int32)


@triton.jit
def _range(middle, half, centre, length):
    """The indices within ``half`` of a centred pixel, all of them where that is no number: first, last, and
    the most there are for any pixel."""
    m_known = half < length.to(half.dtype)
    first, last = _whole(middle - half, middle + half, centre, length)
    first, last = tl.where(m_known, first, 0), tl.where(m_known, last, length - 1)
    most = tl.where(m_known, tl.floor(2 * tl.where(m_known, half, 0.0) + 0.03).to(tl.int32) + 1, length)
    return first, last, tl.minimum(most, length)


@triton.jit(do_not_specialize=SIZES)
def _gather(
    p_cotangent, p_numbers, p_gradient,
    images, T, C, W, H, D, OW, OH, OD, numbers_each, groups, tiles, rows, m_tiles, m_rows,
    q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
    c_n, c_t, c_c, c_z, c_y, c_x,
    g_n, g_c, g_z, g_y, g_x,
    PROJECTIVE: tl.constexpr, DIMS: tl.constexpr, KERNEL: tl.constexpr, ALIGN: tl.constexpr,
    COMPUTE: tl.constexpr, LARGE: tl.constexpr, MANY: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr, SINGLE: tl.constexpr, TX: tl.constexpr, TY: tl.constexpr, TZ: tl.constexpr,
):  # fmt: skip
    """``_gather_block``, of the image, block and channels that are this program's."""
    i_n = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    if i_n >= images:
        return
    _gather_block(
        i_n, tl.program_id(0), p_cotangent, p_numbers, p_gradient,
        T, C, W, H, D, OW, OH, OD, numbers_each, groups, tiles, rows, m_tiles, m_rows,
        q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
        c_n, c_t, c_c, c_z, c_y, c_x, g_n, g_c, g_z, g_y, g_x,
        PROJECTIVE, DIMS, KERNEL, ALIGN, COMPUTE, LARGE, MANY, EPS, BLOCK, CHANNELS, SINGLE, TX, TY, TZ,
    )  # fmt: skip


@triton.jit
def _gather_block(
    i_n, i_block, p_cotangent, p_numbers, p_gradient,
    T, C, W, H, D, OW, OH, OD, numbers_each, groups, tiles, rows, m_tiles, m_rows,
    q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
    c_n, c_t, c_c, c_z, c_y, c_x,
    g_n, g_c, g_z, g_y, g_x,
    PROJECTIVE: tl.constexpr, DIMS: tl.constexpr, KERNEL: tl.constexpr, ALIGN: tl.constexpr,
    COMPUTE: tl.constexpr, LARGE: tl.constexpr, MANY: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr, SINGLE: tl.constexpr, TX: tl.constexpr, TY: tl.constexpr, TZ: tl.constexpr,
):  # fmt: skip
    """dU[c, n, m] = sum over output pixels of k(x - m) k(y - n) dV[c], for a block of input pixels.

    The output pixels that read pixel (m, n) lie in a parallelogram. Its rows come from the inverse (all rows
    where there is none), and in a row the pixels come from the transform's own rows: |x - m| < radius is an
    interval. Both are taken a little too wide; k() decides. ``groups`` of channels that are not SINGLE follow
    one another: they read the same places.
    """
    i_channel = tl.arange(0, CHANNELS)
    if not SINGLE:
        i_channel += i_block % groups * CHANNELS
        i_block = i_block // groups
    ratios = _ratios(
        W, H, D, OW, OH, OD, q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
        ALIGN, COMPUTE,
    )  # fmt: skip
    halves, middles = _halves(W, H, D, ALIGN, COMPUTE), _middles(W, H, D, COMPUTE)
    mid_u, mid_v, mid_w = _middles(OW, OH, OD, COMPUTE)
    i_x, i_y, i_z, m_pixel = _pixels(
        i_block, W, H, D, tiles, rows, m_tiles, m_rows, DIMS, BLOCK, TX, TY, TZ, MANY
    )
    x, y = i_x.to(COMPUTE) - middles[0], i_y.to(COMPUTE) - middles[1]
    z = i_z.to(COMPUTE) - middles[2]
    RADIUS: tl.constexpr = 0.5 if KERNEL == NEAREST else (1.0 if KERNEL == BILINEAR else 2.0)
    m_channel = i_channel < (SINGLE if SINGLE else C)
    o_channel = _along(i_channel, c_c, LARGE)
    b_sum = tl.zeros((BLOCK, CHANNELS), COMPUTE)
    for t in range(T):
        i_t = i_n * T + t
        p_there = p_cotangent + i_n.to(tl.int64) * c_n + (i_t % T).to(tl.int64) * c_t
        row_x, row_y, row_z, row_w, lost = _matrix(
            p_numbers + i_t.to(tl.int64) * numbers_each, ratios, halves, middles, PROJECTIVE, DIMS, 0.0
        )
        # How far rounding may move a position.
        near_x = tl.abs(row_x[0]) * mid_u + tl.abs(row_x[1]) * mid_v + tl.abs(row_x[3]) + W
        near_y = tl.abs(row_y[0]) * mid_u + tl.abs(row_y[1]) * mid_v + tl.abs(row_y[3]) + H
        a, b, c, d = row_x[0], row_x[1], row_y[0], row_y[1]
        # The parallelogram's rows, of which there are ``heights`` at most; in 3D its layers too.
        depths = 1
        first_w, last_w = tl.zeros_like(i_x), tl.zeros_like(i_x)
        if DIMS == 3:
            near_x += tl.abs(row_x[2]) * mid_w
            near_y += tl.abs(row_y[2]) * mid_w
            near_z = tl.abs(row_z[0]) * mid_u + tl.abs(row_z[1]) * mid_v + tl.abs(row_z[2]) * mid_w
            near_z += tl.abs(row_z[3]) + D
            radius = RADIUS + 16 * EPS * tl.maximum(tl.maximum(near_x, near_y), near_z)
            e, f, g, h, i = row_x[2], row_y[2], row_z[0], row_z[1], row_z[2]
            # Rows v and w of the inverse of (a b e; c d f; g h i), by cofactors.
            v_0, v_1, v_2 = f * g - c * i, a * i - e * g, c * e - a * f
            w_0, w_1, w_2 = c * h - d * g, b * g - a * h, a * d - b * c
            det = e * w_0 + f * w_1 + i * w_2
            sure = tl.abs(e) * (tl.abs(c * h) + tl.abs(d * g)) + tl.abs(f) * (tl.abs(b * g) + tl.abs(a * h))
            sure += tl.abs(i) * (tl.abs(a * d) + tl.abs(b * c))
            inverse = 1.0 / det
            slack = 8 * EPS * sure * tl.abs(inverse)
            half_v = radius * (tl.abs(v_0) + tl.abs(v_1) + tl.abs(v_2)) * tl.abs(inverse) + slack * OH
            half_w = radius * (tl.abs(w_0) + tl.abs(w_1) + tl.abs(w_2)) * tl.abs(inverse) + slack * OD
            p, q, r = x - row_x[3], y - row_y[3], z - row_z[3]
            middle_v = (v_0 * p + v_1 * q + v_2 * r) * inverse
            first_v, last_v, heights = _range(middle_v, half_v, mid_v, OH)
            middle_w = (w_0 * p + w_1 * q + w_2 * r) * inverse
            first_w, last_w, depths = _range(middle_w, half_w, mid_w, OD)
        elif PROJECTIVE:
            g, h, i = row_w[0], row_w[1], row_w[3]
            near_w = tl.abs(g) * mid_u + tl.abs(h) * mid_v + tl.abs(i)
            slack_x = 16 * EPS * (near_x + (middles[0] + 3) * near_w)
            slack_y = 16 * EPS * (near_y + (middles[1] + 3) * near_w)
            first_v, last_v = _projective_rows(
                row_x, row_y, row_w, x, y, RADIUS + 0.01, middles[0], middles[1], mid_v, OH, EPS
            )
            last_v = tl.where(m_pixel, last_v, -1)
            heights = tl.maximum(tl.max(last_v - first_v, 0) + 1, 0)
            radius = RADIUS + slack_x
        else:
            radius = RADIUS + 16 * EPS * tl.maximum(near_x, near_y)
            inverse = 1.0 / (a * d - b * c)
            slack = 8 * EPS * (tl.abs(a * d) + tl.abs(b * c)) * tl.abs(inverse)
            half_v = radius * (tl.abs(a) + tl.abs(c)) * tl.abs(inverse) + slack * OH
            middle_v = (a * (y - row_y[3]) - c * (x - row_x[3])) * inverse
            first_v, last_v, heights = _range(middle_v, half_v, mid_v, OH)
        # In a row: |a u + rest| < radius, for x, y and z.
        steep_x, reach_x = _steep(a, radius)
        steep_y, reach_y = _steep(c, radius)
        steep_z, reach_z = _steep(row_z[0], radius)
        most = tl.minimum(reach_x, reach_y)
        if DIMS == 3:
            most = tl.minimum(most, reach_z)
        widths = tl.minimum(2 * most + 0.03, (OW - 1).to(COMPUTE)).to(tl.int32) + 1
        heights = tl.where(lost != 0, 0, heights)
        for j_w in range(depths):
            i_w = first_w + j_w
            t_w = i_w.to(COMPUTE) - mid_w
            for j_v in range(heights):
                i_v = first_v + j_v
                t_v = i_v.to(COMPUTE) - mid_v
                m_row = m_pixel & (i_v <= last_v)
                if DIMS == 3:
                    m_row &= i_w <= last_w
                # What a row adds to each position but for a u, in the forward kernel's order.
                rest_x, rest_y, rest_z = row_x[3], row_y[3], row_z[3]
                if DIMS == 3:
                    rest_x, rest_y = rest_x + row_x[2] * t_w, rest_y + row_y[2] * t_w
                    rest_z = rest_z + row_z[2] * t_w + row_z[1] * t_v
                rest_x, rest_y = rest_x + b * t_v, rest_y + d * t_v
                o_row = _along(i_v, c_y, LARGE)
                if DIMS == 3:
                    o_row += _along(i_w, c_z, LARGE)
                if PROJECTIVE:
                    rest_w = row_w[1] * t_v + row_w[3]
                    # w > 0 and w < 0 apart: multiplied out, |x / w - m| < radius is linear in u for each.
                    for sign in tl.static_range(-1, 2, 2):
                        far_x, close_x = x + sign * RADIUS, x - sign * RADIUS
                        far_y, close_y = y + sign * RADIUS, y - sign * RADIUS
                        low, high = -mid_u + tl.zeros_like(x), mid_u + tl.zeros_like(x)
                        low, high = _below(a - far_x * g, rest_x - far_x * rest_w - slack_x, low, high)
                        low, high = _below(close_x * g - a, close_x * rest_w - rest_x - slack_x, low, high)
                        low, high = _below(c - far_y * g, rest_y - far_y * rest_w - slack_y, low, high)
                        low, high = _below(close_y * g - c, close_y * rest_w - rest_y - slack_y, low, high)
                        low, high = _below(-sign * g + tl.zeros_like(x), -sign * rest_w, low, high)
                        first_u, last_u = _whole(low, high, mid_u, OW)
                        last_u = tl.where(m_row, last_u, -1)
                        for j_u in range(tl.max(last_u - first_u, 0) + 1):
                            i_u = first_u + j_u
                            t_u = i_u.to(COMPUTE) - mid_u
                            w = row_w[0] * t_u + rest_w
                            m_seen = (tl.abs(w) > _HORIZON) & (w * sign > 0)
                            safe = tl.where(m_seen, w, 1.0)
                            weight = _k(_divided(a * t_u + rest_x, safe, COMPUTE) - x, KERNEL)
                            weight *= _k(_divided(c * t_u + rest_y, safe, COMPUTE) - y, KERNEL)
                            mask = m_seen & (i_u <= last_u) & (weight != 0)
                            b_there = _read(
                                p_there, o_row + _along(i_u, c_x, LARGE), mask, o_channel, m_channel, COMPUTE
                            )
                            b_sum += b_there * weight[:, None]
                else:
                    least = (x - rest_x) * steep_x - reach_x
                    greatest = (x - rest_x) * steep_x + reach_x
                    least = tl.maximum(least, (y - rest_y) * steep_y - reach_y)
                    greatest = tl.minimum(greatest, (y - rest_y) * steep_y + reach_y)
                    if DIMS == 3:
                        least = tl.maximum(least, (z - rest_z) * steep_z - reach_z)
                        greatest = tl.minimum(greatest, (z - rest_z) * steep_z + reach_z)
                    first_u, last_u = _whole(least, greatest, mid_u, OW)
                    last_u = tl.where(m_row, last_u, -1)
                    for j_u in range(widths):
                        i_u = first_u + j_u
                        t_u = i_u.to(COMPUTE) - mid_u
                        weight = _k(a * t_u + rest_x - x, KERNEL) * _k(c * t_u + rest_y - y, KERNEL)
                        if DIMS == 3:
                            weight *= _k(row_z[0] * t_u + rest_z - z, KERNEL)
                        mask = (i_u <= last_u) & (weight != 0)
                        b_there = _read(
                            p_there, o_row + _along(i_u, c_x, LARGE), mask, o_channel, m_channel, COMPUTE
                        )
                        b_sum += b_there * weight[:, None]
    offset = _along(i_x, g_x, LARGE) + _along(i_y, g_y, LARGE) + _along(i_z, g_z, LARGE)
    p_here = p_gradient + i_n.to(tl.int64) * g_n + (offset[:, None] + _along(i_channel, g_c, LARGE)[None, :])
    tl.store(p_here, b_sum.to(p_gradient.dtype.element_ty), mask=m_pixel[:, None] & m_channel[None, :])


@triton.jit
def _read(pointer, offset, mask, o_channel, m_channel, COMPUTE: tl.constexpr):
    """Pixels in each channel, [BLOCK, CHANNELS]; 0 where masked."""
    mask = mask[:, None] & m_channel[None, :]
    return tl.load(pointer + (offset[:, None] + o_channel[None, :]), mask=mask, other=0.0).to(COMPUTE)


@triton.jit
def _projective_rows(row_x, row_y, row_w, x, y, radius, mid_x, mid_y, mid_v, OH, EPS: tl.constexpr):
    """The rows that the square of ``radius`` around pixel (x, y) comes from: all where a corner of it comes
    from nowhere near."""
    a, b, c = row_x[0], row_x[1], row_x[3]
    d, e, f = row_y[0], row_y[1], row_y[3]
    g, h, i = row_w[0], row_w[1], row_w[3]
    # Rows v and w of the adjugate, and what their rounding may come to.
    v_0, v_1, v_2 = f * g - d * i, a * i - c * g, c * d - a * f
    w_0, w_1, w_2 = d * h - e * g, b * g - a * h, a * e - b * d
    reach_x, reach_y = mid_x + 3, mid_y + 3
    off_v = (tl.abs(f * g) + tl.abs(d * i)) * reach_x + (tl.abs(a * i) + tl.abs(c * g)) * reach_y
    off_v = 8 * EPS * (off_v + tl.abs(c * d) + tl.abs(a * f))
    off_w = (tl.abs(d * h) + tl.abs(e * g)) * reach_x + (tl.abs(b * g) + tl.abs(a * h)) * reach_y
    off_w = 8 * EPS * (off_w + tl.abs(a * e) + tl.abs(b * d))
    low, high = tl.zeros_like(x) + float("inf"), tl.zeros_like(x) - float("inf")
    positive, negative = x == x, x == x
    for corner in tl.static_range(4):
        at_x = x + (radius if corner % 2 else -radius)
        at_y = y + (radius if corner // 2 else -radius)
        w = w_0 * at_x + w_1 * at_y + w_2
        v = v_0 * at_x + v_1 * at_y + v_2
        positive &= w > 10 * off_w
        negative &= w < -10 * off_w
        row = v / w
        slack = (off_v + tl.abs(row) * off_w) / tl.abs(w)
        low, high = tl.minimum(low, row - slack), tl.maximum(high, row + slack)
    m_known = (positive | negative) & (low == low) & (high == high)
    first, last = _whole(tl.where(m_known, low, 0.0), tl.where(m_known, high, 0.0), mid_v, OH)
    return tl.where(m_known, first, 0), tl.where(m_known, last, OH - 1)
