"""The fused kernels in Triton: source positions in registers, gradients of the numbers summed in the kernel.

One program takes a block of pixels of one image. A block is made of small tiles (8 x 4 pixels in 2D), so that
the threads of a warp read a compact patch of the image however the transform turns it. ``triton_cuts`` says
how large blocks are, ``fused_triton`` launches.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..families import HUGE
from ..kernels import CUBIC
from ..matrices import HORIZON
from .reference import FAR

KERNELS = {"nearest": 0, "bilinear": 1, "bicubic": 2}
PADDINGS = {"zeros": 0, "fill": 1, "border": 2, "reflection": 3, "circular": 4}
KINDS = {"matrix": 0, "offsets": 1, "points": 2, "grid": 3}

NEAREST, BILINEAR, BICUBIC = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
ZEROS, FILL, BORDER = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
REFLECTION, CIRCULAR = tl.constexpr(3), tl.constexpr(4)
MATRIX, OFFSETS, POINTS, GRID = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
_HUGE, _FAR = tl.constexpr(HUGE), tl.constexpr(FAR)
_HORIZON, _CUBIC = tl.constexpr(HORIZON), tl.constexpr(CUBIC)

# Arguments whose values are not compiled in, or images of other sizes would be compiled for anew.
SIZES = (
    "C", "W", "H", "D", "OW", "OH", "OD", "K", "L", "tiles", "rows", "g_tiles", "g_rows",
    "blocks", "shares", "programs", "gathers",
)  # fmt: skip

# How _backward leaves the image's gradient: not at all, by atomic additions of floats, or of whole numbers.
NO_SCATTER, FLOATS, WHOLE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


# Where pixels are


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


@triton.jit
def _held_to_finite(number):
    """Numbers up to HUGE, and NaN."""
    number = tl.maximum(number, -_HUGE, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(number, _HUGE, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _raw_number(pointer):
    """A number of the transform held to finite ones, or NaN."""
    return _held_to_finite(tl.load(pointer))


@triton.jit
def _number(pointer):
    """A number of the transform held to finite ones, 0 for NaN, and 1 if it was."""
    number = _raw_number(pointer)
    m_lost = number != number
    return tl.where(m_lost, 0.0, number), tl.where(m_lost, 1, 0)


@triton.jit
def _row(p_row, ratios, ROW: tl.constexpr, half, DIMS: tl.constexpr):
    """A row of the matrix in centred pixels, (x, y, z, shift), and 1 if it held a NaN."""
    a, lost_a = _number(p_row)
    b, lost_b = _number(p_row + 1)
    c, lost_c = _number(p_row + DIMS)
    lost = lost_a | lost_b | lost_c
    z = tl.zeros_like(a)
    if DIMS == 3:
        z, lost_z = _number(p_row + 2)
        lost |= lost_z
        z *= ratios[3 * ROW + 2]
    return (a * ratios[3 * ROW], b * ratios[3 * ROW + 1], z, c * half), lost


@triton.jit
def _held(row, lost, nowhere):
    """A row of a transform that is not lost as it is; one that is lost gives ``nowhere`` for every pixel."""
    m_lost = lost != 0
    return (
        tl.where(m_lost, 0.0, row[0]),
        tl.where(m_lost, 0.0, row[1]),
        tl.where(m_lost, 0.0, row[2]),
        tl.where(m_lost, nowhere, row[3]),
    )


@triton.jit
def _matrix(
    p_numbers, ratios, halves, middles, PROJECTIVE: tl.constexpr, DIMS: tl.constexpr,
    NOWHERE: tl.constexpr,
):  # fmt: skip
    """The rows x, y, z, w of a transform in centred pixels, and 1 if it is lost."""
    row_x, lost = _row(p_numbers, ratios, 0, halves[0], DIMS)
    row_y, lost_y = _row(p_numbers + (DIMS + 1), ratios, 1, halves[1], DIMS)
    lost |= lost_y
    row_z, row_w = row_x, row_x
    if DIMS == 3:
        row_z, lost_z = _row(p_numbers + 2 * (DIMS + 1), ratios, 2, halves[2], DIMS)
        lost |= lost_z
    if PROJECTIVE:
        row_w, lost_w = _row(p_numbers + DIMS * (DIMS + 1), ratios, 3, 1.0, DIMS)
        lost |= lost_w
        row_w = _held(row_w, lost, 1.0)
    # Along an axis without extent every coordinate is pixel 0.
    row_x = _held(row_x, lost, tl.where(halves[0] == 0, 0.0, NOWHERE - middles[0]))
    row_y = _held(row_y, lost, tl.where(halves[1] == 0, 0.0, NOWHERE - middles[1]))
    if DIMS == 3:
        row_z = _held(row_z, lost, tl.where(halves[2] == 0, 0.0, NOWHERE - middles[2]))
    return row_x, row_y, row_z, row_w, lost


@triton.jit
def _applied(row, x, y, z, DIMS: tl.constexpr):
    """A row of the matrix times a pixel, summed in the reference's order."""
    value = row[3]
    if DIMS == 3:
        value = value + row[2] * z
    value = value + row[1] * y
    return value + row[0] * x


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
def _padded(index, length, PADDING: tl.constexpr, ALIGN: tl.constexpr):
    """``reference.padded``: the pixel that a tap reads, and whether there is one; if not, it may be any."""
    if PADDING == CIRCULAR:
        index = index % length
        return tl.where(index < 0, index + length, index), index == index
    if PADDING == REFLECTION:
        period = tl.maximum(2 * (length - 1), 1) if ALIGN else 2 * length
        index = index % period
        index = tl.where(index < 0, index + period, index)
        return tl.where(index < length, index, period - (0 if ALIGN else 1) - index), index == index
    if PADDING == BORDER:
        return tl.minimum(tl.maximum(index, 0), length - 1), index == index
    return index, index.to(tl.uint32, bitcast=True) < length.to(tl.uint32, bitcast=True)


# k() of equation 3


@triton.jit
def _k(d, KERNEL: tl.constexpr):
    """The kernel at a distance of d pixels."""
    if KERNEL == NEAREST:
        return tl.where((d >= -0.5) & (d < 0.5), 1.0, 0.0).to(d.dtype)
    if KERNEL == BILINEAR:
        return tl.maximum(1 - tl.abs(d), 0.0).to(d.dtype)
    far = tl.abs(d)
    near_part = ((_CUBIC + 2) * far - (_CUBIC + 3)) * d * d + 1
    far_part = _CUBIC * (((far - 5) * far + 8) * far - 4)
    return tl.where(far < 1, near_part, tl.where(far < 2, far_part, 0.0)).to(d.dtype)


@triton.jit
def _dk(d, KERNEL: tl.constexpr):
    """The kernel's slope at d, the right-hand one at its corners."""
    if KERNEL == NEAREST:
        return tl.zeros_like(d)
    if KERNEL == BILINEAR:
        return tl.where((d >= -1) & (d < 0), 1.0, tl.where((d >= 0) & (d < 1), -1.0, 0.0)).to(d.dtype)
    far = tl.abs(d)
    near_part = (3 * (_CUBIC + 2) * far - 2 * (_CUBIC + 3)) * d
    far_part = _CUBIC * ((3 * far - 10) * far + 8)
    far_part = tl.where(d < 0, -far_part, far_part)
    return tl.where(far < 1, near_part, tl.where(far < 2, far_part, 0.0)).to(d.dtype)


@triton.jit
def _first(position, KERNEL: tl.constexpr):
    """The tap that others are counted from, and where in its pixel the position lies."""
    low = tl.floor(position)
    if KERNEL == NEAREST:
        low = tl.where(position - low >= 0.5, low + 1, low)
    return low.to(tl.int32), position - low


@triton.jit
def _weight(inside, tap, KERNEL: tl.constexpr):
    """The weight of the tap ``tap`` pixels from the first."""
    if KERNEL == NEAREST:
        return tl.zeros_like(inside) + 1
    if KERNEL == BILINEAR:
        return tl.where(tap == 0, 1 - inside, inside)
    return _k(inside - tap, KERNEL)


@triton.jit
def _slope(inside, tap, KERNEL: tl.constexpr):
    """How that weight changes with the position."""
    if KERNEL == NEAREST:
        return tl.zeros_like(inside)
    if KERNEL == BILINEAR:
        return tl.where(tap == 0, -1.0, 1.0) + tl.zeros_like(inside)
    return _dk(inside - tap, KERNEL)


# Anti-aliasing: the kernel stretched to a footprint, its weights divided by their sum


@triton.jit
def _footprint(a, b, c, near, LIMIT):
    """The length of a row of the Jacobian from 1 to the limit, and whether it follows the row there."""
    a = tl.where(tl.abs(a) < float("inf"), a, 0.0)
    b = tl.where(tl.abs(b) < float("inf"), b, 0.0)
    c = tl.where(tl.abs(c) < float("inf"), c, 0.0)
    squared = a * a + b * b + c * c
    m_wider = squared > (1 + near) * (1 + near)
    held = tl.minimum(tl.where(m_wider, squared, 1.0), LIMIT * LIMIT)
    return tl.sqrt(held), m_wider & (squared <= LIMIT * LIMIT)


@triton.jit
def _reach(footprint, KERNEL: tl.constexpr):
    """The furthest tap that any pixel of the block needs."""
    widest = tl.max(footprint, 0)
    radius = 0.5 if KERNEL == NEAREST else (1.0 if KERNEL == BILINEAR else 2.0)
    return tl.ceil(widest * radius).to(tl.int32)


@triton.jit
def _lowest(reach, KERNEL: tl.constexpr):
    return -reach if KERNEL == NEAREST else 1 - reach


@triton.jit
def _total(inside, footprint, reach, KERNEL: tl.constexpr):
    """The sum of the stretched weights, and of their slopes in d / footprint, alone and times that."""
    total = tl.zeros_like(inside)
    slopes = tl.zeros_like(inside)
    moments = tl.zeros_like(inside)
    for tap in range(_lowest(reach, KERNEL), reach + 1):
        d = (inside - tap) / footprint
        total += _k(d, KERNEL)
        slope = _dk(d, KERNEL)
        slopes += slope
        moments += slope * d
    m_still = footprint == 1
    return tl.where(m_still, 1.0, total), tl.where(m_still, 0.0, slopes), tl.where(m_still, 0.0, moments)


@triton.jit
def _wide(inside, tap, footprint, total, KERNEL: tl.constexpr):
    """The weight of a tap: the plain kernel's where nothing is stretched."""
    if KERNEL == NEAREST:
        still = tl.where(tap == 0, 1.0, 0.0) + tl.zeros_like(inside)
    elif KERNEL == BILINEAR:
        still = tl.where(tap == 0, 1 - inside, tl.where(tap == 1, inside, 0.0))
    else:
        still = _k(inside - tap, KERNEL)
    return tl.where(footprint == 1, still, _k((inside - tap) / footprint, KERNEL) / total)


# The source position of each pixel of a block


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


@triton.jit
def _offset(
    j_x, j_y, j_z, W, H, D, s_x, s_y, s_z,
    PADDING: tl.constexpr, ALIGN: tl.constexpr, DIMS: tl.constexpr, LARGE: tl.constexpr,
):  # fmt: skip
    """Where in an image a tap lies, and whether it lies within."""
    j_x, m_within = _padded(j_x, W, PADDING, ALIGN)
    j_y, m_y = _padded(j_y, H, PADDING, ALIGN)
    m_within &= m_y
    offset = _along(j_x, s_x, LARGE) + _along(j_y, s_y, LARGE)
    if DIMS == 3:
        j_z, m_z = _padded(j_z, D, PADDING, ALIGN)
        m_within &= m_z
        offset += _along(j_z, s_z, LARGE)
    return offset, m_within


@triton.jit
def _tap(
    p_image, p_fill, j_x, j_y, j_z, m_pixel, o_channel, m_channel, i_channel,
    W, H, D, s_x, s_y, s_z,
    PADDING: tl.constexpr, ALIGN: tl.constexpr, DIMS: tl.constexpr, COMPUTE: tl.constexpr,
    LARGE: tl.constexpr,
):  # fmt: skip
    """What a tap at pixel (j_x, j_y, j_z) reads in each channel. [BLOCK, CHANNELS]"""
    offset, m_within = _offset(j_x, j_y, j_z, W, H, D, s_x, s_y, s_z, PADDING, ALIGN, DIMS, LARGE)
    m_within &= m_pixel
    mask = m_within[:, None] & m_channel[None, :]
    value = tl.load(p_image + (offset[:, None] + o_channel[None, :]), mask=mask, other=0.0).to(COMPUTE)
    if PADDING == FILL:
        b_fill = tl.load(p_fill + i_channel, mask=m_channel, other=0.0)
        value = tl.where(m_within[:, None], value, b_fill[None, :])
    return value


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


# The image's gradient, gathered


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
def _along(index, stride, LARGE: tl.constexpr):
    """An offset, in 64 bits where 32 do not hold it."""
    return index.to(tl.int64) * stride if LARGE else index * stride


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


# The gradient of the numbers, and the image's by atomic additions


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
