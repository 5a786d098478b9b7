"""A transform's numbers as the rows of a matrix between pixels."""

from __future__ import annotations

import triton
import triton.language as tl

from .constants import _HUGE


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
