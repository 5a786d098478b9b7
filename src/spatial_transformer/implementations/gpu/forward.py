"""The output: each pixel sums its taps."""

from __future__ import annotations

import triton
import triton.language as tl

from .constants import _FAR, BICUBIC, FILL, MATRIX, OFFSETS, POINTS, SIZES
from .pixels import _along, _halves, _middles, _pixels, _ratios
from .positions import (
    _finite,
    _held_basis,
    _held_points,
    _jacobian,
    _positions,
    _through_basis,
    _through_held,
)
from .taps import _first, _footprint, _lowest, _reach, _tap, _total, _weight, _wide
from .transforms import _matrix


@triton.jit(do_not_specialize=SIZES)
def _forward(
    p_image, p_numbers, p_basis, p_fill, p_output,
    transforms, each, T, C, W, H, D, OW, OH, OD, K, L, numbers_each, tiles, rows, m_tiles, m_rows,
    q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
    s_n, s_c, s_z, s_y, s_x,
    o_t, o_c, o_z, o_y, o_x,
    near,
    KIND: tl.constexpr, PROJECTIVE: tl.constexpr, DIMS: tl.constexpr, KERNEL: tl.constexpr,
    PADDING: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr, LIMIT: tl.constexpr,
    COMPUTE: tl.constexpr, LARGE: tl.constexpr, MANY: tl.constexpr, SINGLE: tl.constexpr, BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr, TX: tl.constexpr, TY: tl.constexpr, TZ: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """V[c] = sum over taps (m, n) of k(x - m) k(y - n) U[c, n, m], for a block of output pixels.

    L is the number of output pixels; ``numbers_each`` how many numbers a transform has. Where HELD, the
    number of control points, is not 0, a program does so for ``each`` transforms and reads the basis once.
    """
    i_first = (tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)) * each
    if i_first >= transforms:
        return
    i_x, i_y, i_z, m_pixel = _pixels(
        tl.program_id(0), OW, OH, OD, tiles, rows, m_tiles, m_rows, DIMS, BLOCK, TX, TY, TZ, MANY
    )
    i_point = _along(_along(i_z, OH, LARGE) + i_y, OW, LARGE) + i_x
    if HELD:
        basis = _held_basis(p_basis, i_point, m_pixel, L, HELD)
        for i in range(tl.minimum(each, transforms - i_first)):
            _forward_block(
                i_first + i, i_x, i_y, i_z, i_point, m_pixel, basis,
                p_image, p_numbers, p_basis, p_fill, p_output,
                T, C, W, H, D, OW, OH, OD, K, L, numbers_each,
                q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
                s_n, s_c, s_z, s_y, s_x, o_t, o_c, o_z, o_y, o_x, near,
                KIND, PROJECTIVE, DIMS, KERNEL, PADDING, ALIGN, WIDE, LIMIT, COMPUTE, LARGE, SINGLE, BLOCK,
                CHANNELS, HELD,
            )  # fmt: skip
    else:
        _forward_block(
            i_first, i_x, i_y, i_z, i_point, m_pixel, (), p_image, p_numbers, p_basis, p_fill, p_output,
            T, C, W, H, D, OW, OH, OD, K, L, numbers_each,
            q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
            s_n, s_c, s_z, s_y, s_x, o_t, o_c, o_z, o_y, o_x, near,
            KIND, PROJECTIVE, DIMS, KERNEL, PADDING, ALIGN, WIDE, LIMIT, COMPUTE, LARGE, SINGLE, BLOCK,
            CHANNELS, HELD,
        )  # fmt: skip


@triton.jit
def _forward_block(
    i_t, i_x, i_y, i_z, i_point, m_pixel, basis, p_image, p_numbers, p_basis, p_fill, p_output,
    T, C, W, H, D, OW, OH, OD, K, L, numbers_each,
    q_xu, q_xv, q_xw, q_yu, q_yv, q_yw, q_zu, q_zv, q_zw, q_wu, q_wv, q_ww,
    s_n, s_c, s_z, s_y, s_x, o_t, o_c, o_z, o_y, o_x, near,
    KIND: tl.constexpr, PROJECTIVE: tl.constexpr, DIMS: tl.constexpr, KERNEL: tl.constexpr,
    PADDING: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr, LIMIT: tl.constexpr,
    COMPUTE: tl.constexpr, LARGE: tl.constexpr, SINGLE: tl.constexpr, BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """The same for one transform."""
    i_n = i_t // T
    p_numbers += i_t.to(tl.int64) * numbers_each
    p_image += i_n.to(tl.int64) * s_n
    p_output += i_t.to(tl.int64) * o_t
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
    moved = none
    if HELD:
        moved = _through_held(_held_points(p_numbers, HELD), basis, HELD)
    elif (KIND == OFFSETS) or (KIND == POINTS):  # noqa: SIM109
        moved = _through_basis(p_numbers, p_basis, i_point, m_pixel, K, L, DIMS, COMPUTE)
    x, y, z, inverse_w = _positions(
        p_numbers, i_x, i_y, i_z, i_point, m_pixel, moved, matrix, ratios, halves, targets,
        KIND, PROJECTIVE, DIMS, COMPUTE,
    )  # fmt: skip
    x_at, _ = _finite(x + middles[0], NOWHERE, CHECKED)
    y_at, _ = _finite(y + middles[1], NOWHERE, CHECKED)
    z_at, _ = _finite(z + middles[2], NOWHERE, CHECKED)
    j_x, f_x = _first(x_at, KERNEL)
    j_y, f_y = _first(y_at, KERNEL)
    j_z, f_z = _first(z_at, KERNEL)
    o_pixel = _along(i_x, o_x, LARGE) + _along(i_y, o_y, LARGE) + _along(i_z, o_z, LARGE)
    if WIDE:
        along_u, along_v, along_w = _jacobian(
            p_numbers, p_basis, i_point, m_pixel, x, y, z, inverse_w, matrix, ratios, halves, K, L,
            KIND, PROJECTIVE, DIMS, COMPUTE,
        )  # fmt: skip
        a_x, a_y, a_z = along_u
        b_x, b_y, b_z = along_v
        c_x, c_y, c_z = along_w
        w_x, _ = _footprint(a_x, b_x, c_x, near, LIMIT)
        w_y, _ = _footprint(a_y, b_y, c_y, near, LIMIT)
        r_x, r_y = _reach(w_x, KERNEL), _reach(w_y, KERNEL)
        t_x, _, _ = _total(f_x, w_x, r_x, KERNEL)
        t_y, _, _ = _total(f_y, w_y, r_y, KERNEL)
        w_z, t_z, r_z = tl.zeros_like(w_x) + 1, tl.zeros_like(t_x) + 1, r_x * 0
        low_z = r_z
        if DIMS == 3:
            w_z, _ = _footprint(a_z, b_z, c_z, near, LIMIT)
            r_z = _reach(w_z, KERNEL)
            t_z, _, _ = _total(f_z, w_z, r_z, KERNEL)
            low_z = _lowest(r_z, KERNEL)
    START: tl.constexpr = -1 if KERNEL == BICUBIC else 0
    TAPS: tl.constexpr = 4 if KERNEL == BICUBIC else KERNEL + 1
    DEEP: tl.constexpr = TAPS if DIMS == 3 else 1
    for first in range(0, CHANNELS if SINGLE else C, CHANNELS):
        i_channel = first + tl.arange(0, CHANNELS)
        m_channel = i_channel < (SINGLE if SINGLE else C)
        o_channel = _along(i_channel, s_c, LARGE)
        b_sum = tl.zeros((BLOCK, CHANNELS), COMPUTE)
        if WIDE:
            for tap_z in range(low_z, r_z + 1):
                for tap_y in range(_lowest(r_y, KERNEL), r_y + 1):
                    weight_yz = _wide(f_y, tap_y, w_y, t_y, KERNEL)
                    if DIMS == 3:
                        weight_yz *= _wide(f_z, tap_z, w_z, t_z, KERNEL)
                    for tap_x in range(_lowest(r_x, KERNEL), r_x + 1):
                        value = _tap(
                            p_image, p_fill, j_x + tap_x, j_y + tap_y, j_z + tap_z, m_pixel,
                            o_channel, m_channel, i_channel, W, H, D, s_x, s_y, s_z,
                            PADDING, ALIGN, DIMS, COMPUTE, LARGE,
                        )  # fmt: skip
                        weight = weight_yz * _wide(f_x, tap_x, w_x, t_x, KERNEL)
                        b_sum += weight[:, None] * value
        else:
            for tap_z in range(START, START + DEEP):
                for tap_y in tl.static_range(START, START + TAPS):
                    for tap_x in tl.static_range(START, START + TAPS):
                        value = _tap(
                            p_image, p_fill, j_x + tap_x, j_y + tap_y, j_z + tap_z, m_pixel,
                            o_channel, m_channel, i_channel, W, H, D, s_x, s_y, s_z,
                            PADDING, ALIGN, DIMS, COMPUTE, LARGE,
                        )  # fmt: skip
                        weight = _weight(f_x, tap_x, KERNEL) * _weight(f_y, tap_y, KERNEL)
                        if DIMS == 3:
                            weight *= _weight(f_z, tap_z, KERNEL)
                        b_sum += weight[:, None] * value
        o_out = _along(i_channel, o_c, LARGE)
        p_here = p_output + (o_pixel[:, None] + o_out[None, :])
        tl.store(p_here, b_sum.to(p_output.dtype.element_ty), mask=m_pixel[:, None] & m_channel[None, :])
