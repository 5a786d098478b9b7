"""The source position of each pixel of a block, and how it changes from pixel to pixel."""

from __future__ import annotations

import triton
import triton.language as tl

from .constants import _FAR, _HORIZON, GRID, MATRIX, OFFSETS
from .transforms import _applied, _held_to_finite, _raw_number


@triton.jit
def _through_basis(p_numbers, p_basis, i_point, m_pixel, K, L, DIMS: tl.constexpr, COMPUTE: tl.constexpr):
    """The numbers' product with one layer of the basis, normalised: (x, y, z), all NaN if a number is."""
    x = tl.zeros_like(i_point).to(COMPUTE)
    y, z = x, x
    for k in range(K):
        b_basis = tl.load(p_basis + k * L.to(tl.int64) + i_point, mask=m_pixel, other=0.0)
        x += _raw_number(p_numbers + k * DIMS) * b_basis
        y += _raw_number(p_numbers + k * DIMS + 1) * b_basis
        if DIMS == 3:
            z += _raw_number(p_numbers + k * DIMS + 2) * b_basis
    return _together(x, y, z)


@triton.jit
def _together(x, y, z):
    """Coordinates that are lost together: all NaN if one is."""
    nothing = (x - x) + (y - y) + (z - z)
    return x + nothing, y + nothing, z + nothing


@triton.jit
def _held_basis(p_basis, i_point, m_pixel, L, HELD: tl.constexpr):
    """The basis at a block's pixels, in registers: HELD x [BLOCK]"""
    found = ()
    for k in tl.static_range(HELD):
        found = found + (tl.load(p_basis + k * L.to(tl.int64) + i_point, mask=m_pixel, other=0.0),)  # noqa: RUF005
    return found


@triton.jit
def _held_points(p_numbers, HELD: tl.constexpr):
    """Control points in registers, held to finite ones or NaN: x and y, HELD x []"""
    xs, ys = (), ()
    for k in tl.static_range(HELD):
        if p_numbers.dtype.element_ty == tl.float32:
            # Both in one load: threads that all read the same number are what takes the time.
            both = tl.load(p_numbers.to(tl.pointer_type(tl.int64)) + k)
            x = both.to(tl.int32).to(tl.float32, bitcast=True)
            y = (both >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        else:
            x, y = tl.load(p_numbers + 2 * k), tl.load(p_numbers + 2 * k + 1)
        xs = xs + (_held_to_finite(x),)  # noqa: RUF005
        ys = ys + (_held_to_finite(y),)  # noqa: RUF005
    return xs, ys


@triton.jit
def _through_held(points, basis, HELD: tl.constexpr):
    """As ``_through_basis``, with all in registers."""
    x = tl.zeros_like(basis[0])
    y = x
    for k in tl.static_range(HELD):
        x += points[0][k] * basis[k]
        y += points[1][k] * basis[k]
    return _together(x, y, tl.zeros_like(x))


@triton.jit
def _zeros(like, HELD: tl.constexpr):
    """HELD x [BLOCK]"""
    found = ()
    for _ in tl.static_range(HELD):
        found = found + (tl.zeros_like(like),)  # noqa: RUF005
    return found


@triton.jit
def _added(kept, basis, gradient, HELD: tl.constexpr):
    """kept[k] + basis[k] gradient"""
    found = ()
    for k in tl.static_range(HELD):
        found = found + (kept[k] + basis[k] * gradient,)  # noqa: RUF005
    return found


@triton.jit
def _positions(
    p_numbers, i_x, i_y, i_z, i_point, m_pixel, moved, matrix, ratios, halves, targets,
    KIND: tl.constexpr, PROJECTIVE: tl.constexpr, DIMS: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Centred source pixels (x, y, z) and 1 / w (0 on the horizon).

    ``moved``: what came through a basis; ``targets``: the middles of the output.
    """
    t_x, t_y = i_x.to(COMPUTE) - targets[0], i_y.to(COMPUTE) - targets[1]
    t_z = i_z.to(COMPUTE) - targets[2]
    z = tl.zeros_like(t_x)
    inverse_w = z + 1
    if KIND == MATRIX:
        x = _applied(matrix[0], t_x, t_y, t_z, DIMS)
        y = _applied(matrix[1], t_x, t_y, t_z, DIMS)
        if DIMS == 3:
            z = _applied(matrix[2], t_x, t_y, t_z, DIMS)
        if PROJECTIVE:
            w = _applied(matrix[3], t_x, t_y, t_z, DIMS)
            infinity = float("inf")
            m_seen = (tl.abs(w) > _HORIZON) & (tl.abs(w) < infinity)
            m_seen &= (tl.abs(x) < infinity) & (tl.abs(y) < infinity) & (tl.abs(z) < infinity)
            safe = tl.where(m_seen, w, 1.0)
            inverse_w = tl.where(m_seen, 1.0 / safe, 0.0)
            nowhere = float("nan")
            x = tl.where(m_seen, _divided(x, safe, COMPUTE), nowhere)
            y = tl.where(m_seen, _divided(y, safe, COMPUTE), nowhere)
            z = tl.where(m_seen, _divided(z, safe, COMPUTE), nowhere)
    elif KIND == GRID:
        p_point = p_numbers + i_point * DIMS
        # An axis without extent is pixel 0 for every coordinate, of which inf * 0 would make NaN.
        x = tl.load(p_point, mask=m_pixel, other=0.0)
        x = tl.where(halves[0] == 0, 0.0, x * halves[0])
        y = tl.load(p_point + 1, mask=m_pixel, other=0.0)
        y = tl.where(halves[1] == 0, 0.0, y * halves[1])
        if DIMS == 3:
            z = tl.load(p_point + 2, mask=m_pixel, other=0.0)
            z = tl.where(halves[2] == 0, 0.0, z * halves[2])
    else:
        # NaN is lost; along an axis without extent every coordinate is pixel 0.
        x = tl.where(halves[0] == 0, 0.0, moved[0] * halves[0])
        y = tl.where(halves[1] == 0, 0.0, moved[1] * halves[1])
        z = tl.where(halves[2] == 0, 0.0, moved[2] * halves[2])
        if KIND == OFFSETS:
            x = t_x * ratios[0] + x
            y = t_y * ratios[4] + y
            if DIMS == 3:
                z = t_z * ratios[8] + z
    return x, y, z, inverse_w


@triton.jit
def _finite(position, NOWHERE: tl.constexpr, CHECKED: tl.constexpr):
    """``reference.finite``: the position held to finite ones, and where a gradient may pass.

    Not CHECKED: it is no NaN, and far out lies nothing that has a gradient.
    """
    held = tl.minimum(tl.maximum(position, -_FAR), _FAR)
    if not CHECKED:
        return held, position == position
    m_lost = position != position
    m_kept = (position >= -_FAR) & (position <= _FAR)
    return tl.where(m_lost, NOWHERE, held), m_kept


@triton.jit
def _divided(a, b, COMPUTE: tl.constexpr):
    if tl.float64 == COMPUTE:  # noqa: SIM108
        quotient = a / b
    else:
        quotient = tl.math.div_rn(a, b)
    return quotient


@triton.jit
def _changes(
    p_numbers, p_basis, i_point, m_pixel, x, y, z, inverse_w, matrix, ratios, halves, K, L,
    AXIS: tl.constexpr,
    KIND: tl.constexpr, PROJECTIVE: tl.constexpr, DIMS: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """How the source pixel (x, y, z) changes from one output pixel to the next along AXIS."""
    c_z = tl.zeros_like(x)
    if KIND == MATRIX:
        c_x, c_y = matrix[0][AXIS] + tl.zeros_like(x), matrix[1][AXIS] + tl.zeros_like(x)
        if DIMS == 3:
            c_z += matrix[2][AXIS]
        if PROJECTIVE:
            # d(p / w) = (dp - (p / w) dw) / w
            m_seen = inverse_w != 0
            c_x = tl.where(m_seen, (c_x - x * matrix[3][AXIS]) * inverse_w, 0.0)
            c_y = tl.where(m_seen, (c_y - y * matrix[3][AXIS]) * inverse_w, 0.0)
            c_z = tl.where(m_seen, (c_z - z * matrix[3][AXIS]) * inverse_w, 0.0)
    elif KIND == GRID:
        p_point = p_numbers + ((1 + AXIS) * L.to(tl.int64) + i_point) * DIMS
        c_x = tl.load(p_point, mask=m_pixel, other=0.0)
        c_y = tl.load(p_point + 1, mask=m_pixel, other=0.0)
        if DIMS == 3:
            c_z = tl.load(p_point + 2, mask=m_pixel, other=0.0)
    else:
        p_layer = p_basis + (1 + AXIS) * K * L.to(tl.int64)
        c_x, c_y, c_z = _through_basis(p_numbers, p_layer, i_point, m_pixel, K, L, DIMS, COMPUTE)
        c_x, c_y, c_z = c_x * halves[0], c_y * halves[1], c_z * halves[2]
        if KIND == OFFSETS:
            if AXIS == 0:
                c_x += ratios[0]
            if AXIS == 1:
                c_y += ratios[4]
            if AXIS == 2:
                c_z += ratios[8]
    return c_x, c_y, c_z


@triton.jit
def _jacobian(
    p_numbers, p_basis, i_point, m_pixel, x, y, z, inverse_w, matrix, ratios, halves, K, L,
    KIND: tl.constexpr, PROJECTIVE: tl.constexpr, DIMS: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """These changes along u, v and w."""
    along_u = _changes(
        p_numbers, p_basis, i_point, m_pixel, x, y, z, inverse_w, matrix, ratios, halves, K, L,
        0, KIND, PROJECTIVE, DIMS, COMPUTE,
    )  # fmt: skip
    along_v = _changes(
        p_numbers, p_basis, i_point, m_pixel, x, y, z, inverse_w, matrix, ratios, halves, K, L,
        1, KIND, PROJECTIVE, DIMS, COMPUTE,
    )  # fmt: skip
    along_w = (tl.zeros_like(x), tl.zeros_like(x), tl.zeros_like(x))
    if DIMS == 3:
        along_w = _changes(
            p_numbers, p_basis, i_point, m_pixel, x, y, z, inverse_w, matrix, ratios, halves, K, L,
            2, KIND, PROJECTIVE, DIMS, COMPUTE,
        )  # fmt: skip
    return along_u, along_v, along_w
