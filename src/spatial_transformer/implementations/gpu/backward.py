"""The gradient of the numbers, and the image's by atomic additions, or gathered in the same launch."""

from __future__ import annotations

import triton
import triton.language as tl

from .constants import _FAR, _HUGE, BICUBIC, FILL, GRID, MATRIX, NEAREST, OFFSETS, POINTS, SIZES, WHOLE
from .gather import _gather_block
from .pixels import _along, _halves, _middles, _pixels, _ratios
from .positions import (
    _added,
    _finite,
    _held_basis,
    _held_points,
    _jacobian,
    _positions,
    _through_basis,
    _through_held,
    _zeros,
)
from .taps import _dk, _first, _footprint, _lowest, _offset, _reach, _slope, _tap, _total, _weight, _wide
from .transforms import _matrix


@triton.jit
def _add(p_gradient, p_scale, offset, b_value, mask, SCATTER: tl.constexpr):
    """Adds to the image's gradient, whole numbers of 1 / scale where the order must not matter."""
    if SCATTER == WHOLE:
        scaled = b_value.to(tl.float64) * tl.load(p_scale)
        tl.atomic_add(p_gradient + offset, tl.floor(scaled + 0.5).to(tl.int64), mask=mask, sem="relaxed")
    else:
        b_value = b_value.to(p_gradient.dtype.element_ty)
        tl.atomic_add(p_gradient + offset, b_value, mask=mask, sem="relaxed")


@triton.jit
def _add_joined(
    p_gradient, p_scale, o_left, b_left, m_left, o_right, b_right, m_right,
    SCATTER: tl.constexpr, BLOCK: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Adds two taps side by side. Where the right one is the next pixel's left one, a single addition does
    for both: atomic ones are dear, and asking a thread of the same warp is not."""
    i = tl.arange(0, BLOCK)[:, None] + tl.zeros((BLOCK, CHANNELS), tl.int32)
    before, after = tl.maximum(i - 1, 0), tl.minimum(i + 1, BLOCK - 1)
    m_join = m_left & (tl.gather(tl.where(m_right, o_right, -1), before, 0) == o_left) & (i > 0)
    b_left += tl.where(m_join, tl.gather(b_right, before, 0), 0.0)
    m_right &= (tl.gather(m_join.to(tl.int32), after, 0) == 0) | (i == BLOCK - 1)
    _add(p_gradient, p_scale, o_left, b_left, m_left, SCATTER)
    _add(p_gradient, p_scale, o_right, b_right, m_right, SCATTER)


@triton.jit
def _keep(p_sums, p_numbers, index, value, lost):
    """Leaves a number's gradient, zero where the number itself was not taken as it is."""
    m_own = (tl.abs(tl.load(p_numbers + index)) <= _HUGE) & (lost == 0)
    tl.store(p_sums + index, tl.where(m_own, value, 0.0))


@triton.jit(do_not_specialize=SIZES)
def _backward(
    p_cotangent, p_image, p_numbers, p_basis, p_fill, p_gradient, p_scale, p_sums, p_points,
    T, C, W, H, D, OW, OH, OD, K, L, numbers_each, blocks, shares, tiles, rows, m_tiles, m_rows,
    groups, programs, gathers, g_tiles, g_rows, gm_tiles, gm_rows,
    q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
    c_n, c_t, c_c, c_z, c_y, c_x,
    s_n, s_c, s_z, s_y, s_x,
    g_n, g_c, g_z, g_y, g_x,
    near,
    SCATTER: tl.constexpr, WANT_SUMS: tl.constexpr, WANT_POINTS: tl.constexpr,
    KIND: tl.constexpr, PROJECTIVE: tl.constexpr, DIMS: tl.constexpr, KERNEL: tl.constexpr,
    PADDING: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr, LIMIT: tl.constexpr,
    COMPUTE: tl.constexpr, LARGE: tl.constexpr, MANY: tl.constexpr, SINGLE: tl.constexpr, BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr, TX: tl.constexpr, TY: tl.constexpr, TZ: tl.constexpr, KEPT: tl.constexpr,
    HELD: tl.constexpr, JOINED: tl.constexpr, GATHERS: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Both gradients of small images in one launch: the first ``gathers`` programs are those of ``_gather``,
    where GATHERS says so; the others are ``_backward_share``'s."""
    i_program = tl.program_id(0)
    if GATHERS:
        if i_program < gathers:
            _gather_block(
                i_program // programs, i_program % programs, p_cotangent, p_numbers, p_gradient,
                T, C, W, H, D, OW, OH, OD, numbers_each, groups,
                g_tiles, g_rows, gm_tiles, gm_rows,
                q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
                c_n, c_t, c_c, c_z, c_y, c_x, g_n, g_c, g_z, g_y, g_x,
                PROJECTIVE, DIMS, KERNEL, ALIGN, COMPUTE, LARGE, MANY, EPS, BLOCK, CHANNELS, SINGLE,
                TX, TY, TZ,
            )  # fmt: skip
        else:
            _backward_share(
                i_program - gathers, p_cotangent, p_image, p_numbers, p_basis, p_fill, p_gradient, p_scale,
                p_sums, p_points,
                T, C, W, H, D, OW, OH, OD, K, L, numbers_each, blocks, shares, tiles, rows, m_tiles, m_rows,
                q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
                c_n, c_t, c_c, c_z, c_y, c_x, s_n, s_c, s_z, s_y, s_x, g_n, g_c, g_z, g_y, g_x, near,
                SCATTER, WANT_SUMS, WANT_POINTS, KIND, PROJECTIVE, DIMS, KERNEL, PADDING, ALIGN, WIDE, LIMIT,
                COMPUTE, LARGE, MANY, SINGLE, BLOCK, CHANNELS, TX, TY, TZ, KEPT, HELD, JOINED,
            )  # fmt: skip
    else:
        _backward_share(
            i_program, p_cotangent, p_image, p_numbers, p_basis, p_fill, p_gradient, p_scale,
            p_sums, p_points,
            T, C, W, H, D, OW, OH, OD, K, L, numbers_each, blocks, shares, tiles, rows, m_tiles, m_rows,
            q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
            c_n, c_t, c_c, c_z, c_y, c_x, s_n, s_c, s_z, s_y, s_x, g_n, g_c, g_z, g_y, g_x, near,
            SCATTER, WANT_SUMS, WANT_POINTS, KIND, PROJECTIVE, DIMS, KERNEL, PADDING, ALIGN, WIDE, LIMIT,
            COMPUTE, LARGE, MANY, SINGLE, BLOCK, CHANNELS, TX, TY, TZ, KEPT, HELD, JOINED,
        )  # fmt: skip


@triton.jit
def _backward_share(
    i_program, p_cotangent, p_image, p_numbers, p_basis, p_fill, p_gradient, p_scale, p_sums, p_points,
    T, C, W, H, D, OW, OH, OD, K, L, numbers_each, blocks, shares, tiles, rows, m_tiles, m_rows,
    q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
    c_n, c_t, c_c, c_z, c_y, c_x,
    s_n, s_c, s_z, s_y, s_x,
    g_n, g_c, g_z, g_y, g_x,
    near,
    SCATTER: tl.constexpr, WANT_SUMS: tl.constexpr, WANT_POINTS: tl.constexpr,
    KIND: tl.constexpr, PROJECTIVE: tl.constexpr, DIMS: tl.constexpr, KERNEL: tl.constexpr,
    PADDING: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr, LIMIT: tl.constexpr,
    COMPUTE: tl.constexpr, LARGE: tl.constexpr, MANY: tl.constexpr, SINGLE: tl.constexpr, BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr, TX: tl.constexpr, TY: tl.constexpr, TZ: tl.constexpr, KEPT: tl.constexpr,
    HELD: tl.constexpr, JOINED: tl.constexpr,
):  # fmt: skip
    """With g = dL/d(x, y, z), the sum over channels and taps of dV k'(x - m) k(y - n) U[n, m]:

    - sums [N * T, shares, numbers]: g summed against what the position is linear in, over every ``shares``-th
      block of an image (program_id(1) is a group of KEPT control points)
    - points [N * T, layers, L, dims]: g itself, normalised, for a grid or a basis that is trained
    - the image's gradient, by atomic additions
    """
    i_t, i_share = i_program // shares, i_program % shares
    i_n = i_t // T
    p_numbers += i_t.to(tl.int64) * numbers_each
    p_image += i_n.to(tl.int64) * s_n
    p_gradient += i_n.to(tl.int64) * g_n
    p_cotangent += i_n.to(tl.int64) * c_n + (i_t % T).to(tl.int64) * c_t
    ratios = _ratios(
        W, H, D, OW, OH, OD, q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
        ALIGN, COMPUTE,
    )  # fmt: skip
    halves, middles = _halves(W, H, D, ALIGN, COMPUTE), _middles(W, H, D, COMPUTE)
    targets = _middles(OW, OH, OD, COMPUTE)
    NOWHERE: tl.constexpr = -_FAR if PADDING <= FILL else 0.0
    CHECKED: tl.constexpr = (KIND != MATRIX) or PROJECTIVE or (PADDING > FILL)
    none = (0.0, 0.0, 0.0, 0.0)
    matrix = (none, none, none, none, 0)
    if KIND == MATRIX:
        matrix = _matrix(p_numbers, ratios, halves, middles, PROJECTIVE, DIMS, NOWHERE)
    h_x, h_y, h_z = halves
    START: tl.constexpr = -1 if KERNEL == BICUBIC else 0
    TAPS: tl.constexpr = 4 if KERNEL == BICUBIC else KERNEL + 1
    DEEP: tl.constexpr = TAPS if DIMS == 3 else 1
    SLOPES: tl.constexpr = WANT_SUMS or WANT_POINTS
    zero = tl.zeros((BLOCK,), COMPUTE)
    # Sums for a matrix: rows x, y, z, w against u, v, w, 1, a pixel of the block each until the end.
    xu, xv, xw, x1 = zero, zero, zero, zero
    yu, yv, yw, y1 = zero, zero, zero, zero
    zu, zv, zw, z1 = zero, zero, zero, zero
    wu, wv, ww, w1 = zero, zero, zero, zero
    i_kept = tl.program_id(1) * KEPT + tl.arange(0, KEPT)
    if HELD:
        points = _held_points(p_numbers, HELD)
        kept_x, kept_y = _zeros(zero, HELD), _zeros(zero, HELD)
    else:
        kept_x = tl.zeros((BLOCK, KEPT), COMPUTE)
        kept_y, kept_z = kept_x, kept_x
    for i_block in range(i_share, blocks, shares):
        i_x, i_y, i_z, m_pixel = _pixels(
            i_block, OW, OH, OD, tiles, rows, m_tiles, m_rows, DIMS, BLOCK, TX, TY, TZ, MANY
        )
        i_point = _along(_along(i_z, OH, LARGE) + i_y, OW, LARGE) + i_x
        moved = none
        if HELD:
            basis = _held_basis(p_basis, i_point, m_pixel, L, HELD)
            moved = _through_held(points, basis, HELD)
        elif (KIND == OFFSETS) or (KIND == POINTS):  # noqa: SIM109
            moved = _through_basis(p_numbers, p_basis, i_point, m_pixel, K, L, DIMS, COMPUTE)
        x, y, z, inverse_w = _positions(
            p_numbers, i_x, i_y, i_z, i_point, m_pixel, moved, matrix, ratios, halves, targets,
            KIND, PROJECTIVE, DIMS, COMPUTE,
        )  # fmt: skip
        x_at, m_x = _finite(x + middles[0], NOWHERE, CHECKED)
        y_at, m_y = _finite(y + middles[1], NOWHERE, CHECKED)
        z_at, m_z = _finite(z + middles[2], NOWHERE, CHECKED)
        m_x, m_y, m_z = m_x & m_pixel, m_y & m_pixel, m_z & m_pixel
        j_x, f_x = _first(x_at, KERNEL)
        j_y, f_y = _first(y_at, KERNEL)
        j_z, f_z = _first(z_at, KERNEL)
        o_pixel = _along(i_x, c_x, LARGE) + _along(i_y, c_y, LARGE) + _along(i_z, c_z, LARGE)
        d_x, d_y, d_z = zero, zero, zero  # dL/d(position)
        e_x, e_y, e_z = zero, zero, zero  # dL/d(footprint)
        if WIDE:
            along_u, along_v, along_w = _jacobian(
                p_numbers, p_basis, i_point, m_pixel, x, y, z, inverse_w, matrix, ratios, halves, K, L,
                KIND, PROJECTIVE, DIMS, COMPUTE,
            )  # fmt: skip
            a_x, a_y, a_z = along_u
            b_x, b_y, b_z = along_v
            c_a, c_b, c_d = along_w
            w_x, m_wx = _footprint(a_x, b_x, c_a, near, LIMIT)
            w_y, m_wy = _footprint(a_y, b_y, c_b, near, LIMIT)
            w_z, m_wz = _footprint(a_z, b_z, c_d, near, LIMIT)
            r_x, r_y = _reach(w_x, KERNEL), _reach(w_y, KERNEL)
            t_x, st_x, mt_x = _total(f_x, w_x, r_x, KERNEL)
            t_y, st_y, mt_y = _total(f_y, w_y, r_y, KERNEL)
            t_z, st_z, mt_z, r_z = zero + 1, zero, zero, r_x * 0
            low_z = r_z
            if DIMS == 3:
                r_z = _reach(w_z, KERNEL)
                t_z, st_z, mt_z = _total(f_z, w_z, r_z, KERNEL)
                low_z = _lowest(r_z, KERNEL)
        for first in range(0, CHANNELS if SINGLE else C, CHANNELS):
            i_channel = first + tl.arange(0, CHANNELS)
            m_channel = i_channel < (SINGLE if SINGLE else C)
            o_channel = _along(i_channel, s_c, LARGE)
            o_there = _along(i_channel, c_c, LARGE)
            o_gradient = _along(i_channel, g_c, LARGE)
            b_cotangent = tl.load(
                p_cotangent + (o_pixel[:, None] + o_there[None, :]),
                mask=m_pixel[:, None] & m_channel[None, :], other=0.0,
            ).to(COMPUTE)  # fmt: skip
            if WIDE:
                value_sum = zero  # dL/dV V
                for tap_z in range(low_z, r_z + 1):
                    k_z, dk_z, mk_z = zero + 1, zero, zero
                    if DIMS == 3:
                        k_z, dk_z, mk_z = _wide_all(f_z, tap_z, w_z, t_z, KERNEL)
                    for tap_y in range(_lowest(r_y, KERNEL), r_y + 1):
                        k_y, dk_y, mk_y = _wide_all(f_y, tap_y, w_y, t_y, KERNEL)
                        for tap_x in range(_lowest(r_x, KERNEL), r_x + 1):
                            k_x, dk_x, mk_x = _wide_all(f_x, tap_x, w_x, t_x, KERNEL)
                            value = _tap(
                                p_image, p_fill, j_x + tap_x, j_y + tap_y, j_z + tap_z, m_pixel,
                                o_channel, m_channel, i_channel, W, H, D, s_x, s_y, s_z,
                                PADDING, ALIGN, DIMS, COMPUTE, LARGE,
                            )  # fmt: skip
                            weight = k_x * k_y * k_z
                            if SLOPES:
                                dot = tl.sum(b_cotangent * value, 1)
                                value_sum += dot * weight
                                d_x += dot * dk_x * k_y * k_z
                                d_y += dot * k_x * dk_y * k_z
                                d_z += dot * k_x * k_y * dk_z
                                e_x += dot * mk_x * k_y * k_z
                                e_y += dot * k_x * mk_y * k_z
                                e_z += dot * k_x * k_y * mk_z
                            if SCATTER:
                                o_here, m_here = _offset(
                                    j_x + tap_x, j_y + tap_y, j_z + tap_z, W, H, D, g_x, g_y, g_z,
                                    PADDING, ALIGN, DIMS, LARGE,
                                )  # fmt: skip
                                m_add = (m_here & m_pixel & (weight != 0))[:, None] & m_channel[None, :]
                                _add(
                                    p_gradient,
                                    p_scale,
                                    o_here[:, None] + o_gradient[None, :],
                                    weight[:, None] * b_cotangent,
                                    m_add,
                                    SCATTER,
                                )
                if SLOPES:
                    # Weights are divided by their sums, which move too.
                    d_x -= value_sum * st_x / (t_x * w_x)
                    d_y -= value_sum * st_y / (t_y * w_y)
                    e_x += value_sum * mt_x / (t_x * w_x)
                    e_y += value_sum * mt_y / (t_y * w_y)
                    if DIMS == 3:
                        d_z -= value_sum * st_z / (t_z * w_z)
                        e_z += value_sum * mt_z / (t_z * w_z)
            else:
                for tap_z in range(START, START + DEEP):
                    for tap_y in tl.static_range(START, START + TAPS):
                        for tap_x in tl.static_range(START, START + TAPS):
                            k_x, k_y = _weight(f_x, tap_x, KERNEL), _weight(f_y, tap_y, KERNEL)
                            k_z = zero + 1
                            if DIMS == 3:
                                k_z = _weight(f_z, tap_z, KERNEL)
                            if SLOPES and KERNEL != NEAREST:
                                value = _tap(
                                    p_image, p_fill, j_x + tap_x, j_y + tap_y, j_z + tap_z, m_pixel,
                                    o_channel, m_channel, i_channel, W, H, D, s_x, s_y, s_z,
                                    PADDING, ALIGN, DIMS, COMPUTE, LARGE,
                                )  # fmt: skip
                                dot = tl.sum(b_cotangent * value, 1)
                                d_x += dot * _slope(f_x, tap_x, KERNEL) * k_y * k_z
                                d_y += dot * k_x * _slope(f_y, tap_y, KERNEL) * k_z
                                if DIMS == 3:
                                    d_z += dot * k_x * k_y * _slope(f_z, tap_z, KERNEL)
                            if JOINED and SCATTER:
                                if tap_x == 1:
                                    o_left, m_left = _offset(
                                        j_x, j_y + tap_y, j_z + tap_z, W, H, D, g_x, g_y, g_z,
                                        PADDING, ALIGN, DIMS, LARGE,
                                    )  # fmt: skip
                                    o_right, m_right = _offset(
                                        j_x + 1, j_y + tap_y, j_z + tap_z, W, H, D, g_x, g_y, g_z,
                                        PADDING, ALIGN, DIMS, LARGE,
                                    )  # fmt: skip
                                    b_row = (k_y * k_z)[:, None] * b_cotangent
                                    _add_joined(
                                        p_gradient,
                                        p_scale,
                                        o_left[:, None] + o_gradient[None, :],
                                        b_row * (1 - f_x)[:, None],
                                        (m_left & m_pixel)[:, None] & m_channel[None, :],
                                        o_right[:, None] + o_gradient[None, :],
                                        b_row * f_x[:, None],
                                        (m_right & m_pixel)[:, None] & m_channel[None, :],
                                        SCATTER,
                                        BLOCK,
                                        CHANNELS,
                                    )
                            elif SCATTER:
                                o_here, m_here = _offset(
                                    j_x + tap_x, j_y + tap_y, j_z + tap_z, W, H, D, g_x, g_y, g_z,
                                    PADDING, ALIGN, DIMS, LARGE,
                                )  # fmt: skip
                                m_add = (m_here & m_pixel)[:, None] & m_channel[None, :]
                                weight = k_x * k_y * k_z
                                _add(
                                    p_gradient,
                                    p_scale,
                                    o_here[:, None] + o_gradient[None, :],
                                    weight[:, None] * b_cotangent,
                                    m_add,
                                    SCATTER,
                                )
        if SLOPES:
            d_x, d_y, d_z = tl.where(m_x, d_x, 0.0), tl.where(m_y, d_y, 0.0), tl.where(m_z, d_z, 0.0)
            n_ax, n_bx, n_cx, n_ay, n_by, n_cy, n_az, n_bz, n_cz = (
                zero,
                zero,
                zero,
                zero,
                zero,
                zero,
                zero,
                zero,
                zero,
            )  # dL/d(change of x, y, z along u, v, w)
            if WIDE:
                e_x, e_y = tl.where(m_wx & m_pixel, e_x / w_x, 0.0), tl.where(m_wy & m_pixel, e_y / w_y, 0.0)
                n_ax, n_bx = _through(e_x, a_x), _through(e_x, b_x)
                n_ay, n_by = _through(e_y, a_y), _through(e_y, b_y)
                if DIMS == 3:
                    e_z = tl.where(m_wz & m_pixel, e_z / w_z, 0.0)
                    n_cx, n_cy = _through(e_x, c_a), _through(e_y, c_b)
                    n_az, n_bz, n_cz = _through(e_z, a_z), _through(e_z, b_z), _through(e_z, c_d)
            if WANT_POINTS:
                layers = 1 + DIMS if WIDE else 1
                p_layer = p_points + (i_t.to(tl.int64) * layers * L + i_point) * DIMS
                # A grid's slopes are in pixels already.
                q_x = tl.full((), 1.0, COMPUTE) if KIND == GRID else h_x
                q_y = tl.full((), 1.0, COMPUTE) if KIND == GRID else h_y
                q_z = tl.full((), 1.0, COMPUTE) if KIND == GRID else h_z
                _store_point(p_layer, d_x * h_x, d_y * h_y, d_z * h_z, m_pixel, DIMS)
                if WIDE:
                    o_layer = L.to(tl.int64) * DIMS
                    _store_point(p_layer + o_layer, n_ax * q_x, n_ay * q_y, n_az * q_z, m_pixel, DIMS)
                    _store_point(p_layer + 2 * o_layer, n_bx * q_x, n_by * q_y, n_bz * q_z, m_pixel, DIMS)
                    if DIMS == 3:
                        _store_point(p_layer + 3 * o_layer, n_cx * q_x, n_cy * q_y, n_cz * q_z, m_pixel, DIMS)
            if WANT_SUMS:
                if KIND == MATRIX:
                    t_u, t_v = i_x.to(COMPUTE) - targets[0], i_y.to(COMPUTE) - targets[1]
                    t_w = i_z.to(COMPUTE) - targets[2]
                    if PROJECTIVE:
                        m_seen = (inverse_w != 0) & m_pixel
                        x, y = tl.where(m_seen, x, 0.0), tl.where(m_seen, y, 0.0)
                        z = tl.where(m_seen, z, 0.0)
                        if WIDE:
                            # change = (row - position * row_w) / w, along each axis
                            row_w = matrix[3]
                            n_ax, n_ay, n_az = n_ax * inverse_w, n_ay * inverse_w, n_az * inverse_w
                            n_bx, n_by, n_bz = n_bx * inverse_w, n_by * inverse_w, n_bz * inverse_w
                            n_cx, n_cy, n_cz = n_cx * inverse_w, n_cy * inverse_w, n_cz * inverse_w
                            wu -= _product(n_ax, x) + _product(n_ay, y) + _product(n_az, z)
                            wv -= _product(n_bx, x) + _product(n_by, y) + _product(n_bz, z)
                            ww -= _product(n_cx, x) + _product(n_cy, y) + _product(n_cz, z)
                            d_x -= n_ax * row_w[0] + n_bx * row_w[1] + n_cx * row_w[2]
                            d_y -= n_ay * row_w[0] + n_by * row_w[1] + n_cy * row_w[2]
                            d_z -= n_az * row_w[0] + n_bz * row_w[1] + n_cz * row_w[2]
                        d_x, d_y, d_z = d_x * inverse_w, d_y * inverse_w, d_z * inverse_w
                        d_w = _product(d_x, x) + _product(d_y, y) + _product(d_z, z)
                        if WIDE:
                            # w divides the changes too
                            d_w += (
                                _product(n_ax, a_x)
                                + _product(n_ay, a_y)
                                + _product(n_az, a_z)
                                + _product(n_bx, b_x)
                                + _product(n_by, b_y)
                                + _product(n_bz, b_z)
                                + _product(n_cx, c_a)
                                + _product(n_cy, c_b)
                                + _product(n_cz, c_d)
                            )
                        wu -= d_w * t_u
                        wv -= d_w * t_v
                        ww -= d_w * t_w
                        w1 -= d_w
                    xu += d_x * t_u + n_ax
                    xv += d_x * t_v + n_bx
                    x1 += d_x
                    yu += d_y * t_u + n_ay
                    yv += d_y * t_v + n_by
                    y1 += d_y
                    if DIMS == 3:
                        xw += d_x * t_w + n_cx
                        yw += d_y * t_w + n_cy
                        zu += d_z * t_u + n_az
                        zv += d_z * t_v + n_bz
                        zw += d_z * t_w + n_cz
                        z1 += d_z
                else:
                    # Against each layer of the basis, what its product moves.
                    layers_x, layers_y = (d_x, n_ax, n_bx, n_cx), (d_y, n_ay, n_by, n_cy)
                    layers_z = (d_z, n_az, n_bz, n_cz)
                    # Were Triton to see that pixels lie side by side, it would give a thread four of them,
                    # and the control points to different warps.
                    i_apart = tl.where(m_pixel, i_point, 0)
                    o_tile = i_apart[:, None] + _along(i_kept, L, LARGE)[None, :]
                    m_tile = m_pixel[:, None] & (i_kept < K)[None, :]
                    for layer in tl.static_range(1 + DIMS if WIDE else 1):
                        p_layer = p_basis + layer * K * L.to(tl.int64)
                        if HELD:
                            if layer > 0:
                                basis = _held_basis(p_layer, i_point, m_pixel, L, HELD)
                            kept_x = _added(kept_x, basis, layers_x[layer], HELD)
                            kept_y = _added(kept_y, basis, layers_y[layer], HELD)
                        else:
                            b_basis = tl.load(p_layer + o_tile, mask=m_tile, other=0.0)
                            kept_x += b_basis * layers_x[layer][:, None]
                            kept_y += b_basis * layers_y[layer][:, None]
                            if DIMS == 3:
                                kept_z += b_basis * layers_z[layer][:, None]
    if WANT_SUMS:
        p_sums += i_program.to(tl.int64) * numbers_each
        if KIND == MATRIX:
            COLUMNS: tl.constexpr = DIMS + 1
            lost = matrix[4]
            _keep(p_sums, p_numbers, 0, tl.sum(xu, 0) * ratios[0], lost)
            _keep(p_sums, p_numbers, 1, tl.sum(xv, 0) * ratios[1], lost)
            _keep(p_sums, p_numbers, DIMS, tl.sum(x1, 0) * h_x, lost)
            _keep(p_sums, p_numbers, COLUMNS, tl.sum(yu, 0) * ratios[3], lost)
            _keep(p_sums, p_numbers, COLUMNS + 1, tl.sum(yv, 0) * ratios[4], lost)
            _keep(p_sums, p_numbers, COLUMNS + DIMS, tl.sum(y1, 0) * h_y, lost)
            if DIMS == 3:
                _keep(p_sums, p_numbers, 2, tl.sum(xw, 0) * ratios[2], lost)
                _keep(p_sums, p_numbers, COLUMNS + 2, tl.sum(yw, 0) * ratios[5], lost)
                _keep(p_sums, p_numbers, 2 * COLUMNS, tl.sum(zu, 0) * ratios[6], lost)
                _keep(p_sums, p_numbers, 2 * COLUMNS + 1, tl.sum(zv, 0) * ratios[7], lost)
                _keep(p_sums, p_numbers, 2 * COLUMNS + 2, tl.sum(zw, 0) * ratios[8], lost)
                _keep(p_sums, p_numbers, 2 * COLUMNS + 3, tl.sum(z1, 0) * h_z, lost)
            if PROJECTIVE:
                LAST: tl.constexpr = DIMS * COLUMNS
                _keep(p_sums, p_numbers, LAST, tl.sum(wu, 0) * ratios[9], lost)
                _keep(p_sums, p_numbers, LAST + 1, tl.sum(wv, 0) * ratios[10], lost)
                _keep(p_sums, p_numbers, LAST + DIMS, tl.sum(w1, 0), lost)
                if DIMS == 3:
                    _keep(p_sums, p_numbers, LAST + 2, tl.sum(ww, 0) * ratios[11], lost)
        else:
            # Whether any of the transform's numbers is NaN, those of other groups too.
            lost = K * 0
            for k in range(K * DIMS):
                number = tl.load(p_numbers + k)
                lost |= tl.where(number != number, 1, 0)
            if HELD:
                for k in tl.static_range(HELD):
                    _keep(p_sums, p_numbers, 2 * k, tl.sum(kept_x[k], 0) * h_x, lost)
                    _keep(p_sums, p_numbers, 2 * k + 1, tl.sum(kept_y[k], 0) * h_y, lost)
            else:
                _keep_point(p_sums, p_numbers, i_kept, 0, tl.sum(kept_x, 0) * h_x, lost, K, DIMS)
                _keep_point(p_sums, p_numbers, i_kept, 1, tl.sum(kept_y, 0) * h_y, lost, K, DIMS)
                if DIMS == 3:
                    _keep_point(p_sums, p_numbers, i_kept, 2, tl.sum(kept_z, 0) * h_z, lost, K, DIMS)


@triton.jit
def _wide_all(inside, tap, footprint, total, KERNEL: tl.constexpr):
    """The weight of a tap, and what its numerator's slopes in position and footprint come to."""
    d = (inside - tap) / footprint
    slope = _dk(d, KERNEL) / (total * footprint)
    m_still = footprint == 1
    # The plain kernel's slope where nothing is stretched; a footprint of 1 does not move.
    return (
        _wide(inside, tap, footprint, total, KERNEL),
        tl.where(m_still, _dk(inside - tap, KERNEL), slope),
        tl.where(m_still, 0.0, -slope * d),
    )


@triton.jit
def _through(gradient, change):
    """dL/d(change) from dL/d(footprint) / footprint."""
    return tl.where(tl.abs(change) < float("inf"), gradient * change, 0.0)


@triton.jit
def _product(gradient, factor):
    """A gradient of zero stays zero whatever it meets."""
    return tl.where(gradient == 0, 0.0, gradient * factor)


@triton.jit
def _store_point(pointer, x, y, z, mask, DIMS: tl.constexpr):
    tl.store(pointer, x, mask=mask)
    tl.store(pointer + 1, y, mask=mask)
    if DIMS == 3:
        tl.store(pointer + 2, z, mask=mask)


@triton.jit
def _keep_point(p_sums, p_numbers, i_kept, AXIS: tl.constexpr, value, lost, K, DIMS: tl.constexpr):
    """As ``_keep``, for one axis of a group of control points."""
    index, mask = i_kept * DIMS + AXIS, i_kept < K
    m_own = (tl.abs(tl.load(p_numbers + index, mask=mask, other=0.0)) <= _HUGE) & (lost == 0)
    tl.store(p_sums + index, tl.where(m_own, value, 0.0), mask=mask)
