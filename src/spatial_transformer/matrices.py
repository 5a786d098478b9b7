"""Matrices on homogeneous coordinates: applied to points and grids, inverted, taken to pixels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .coordinates import Size, axes, ratio, span
from .modes import tracing

# A projective w closer to zero than this is on the horizon, where nothing is seen and no gradient flows.
HORIZON = 1e-12


def precise_product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` in float64: global switches and autocast may round float32 products to TF32 or bfloat16."""
    return (a.to(torch.float64) @ b.to(torch.float64)).to(torch.promote_types(a.dtype, b.dtype))


def homogeneous_rows(
    matrix: Tensor,
    along: Sequence[Tensor],
    *,
    trailing: int,
    factors: Sequence[Sequence[float]] | None = None,
) -> list[Tensor]:
    """The rows of ``matrix @ (x, y, 1)``, with coordinates that broadcast over ``trailing`` axes.

    ``factors`` multiply the entries. Elementwise, so exact where the entries are 0, 1 and -1, and out of
    reach of the switches that make matrix products coarse.
    """
    lead = matrix.shape[:-2]

    def entry(a: int, b: int) -> Tensor:
        number = matrix[..., a, b]
        if factors is not None and factors[a][b] != 1:
            number = number * factors[a][b]
        return number.reshape(*lead, *[1] * trailing)

    rows = []
    for a in range(matrix.shape[-2]):
        value = entry(a, len(along))
        for b in reversed(range(len(along))):  # x last: only that sum runs over the whole grid
            value = value + entry(a, b) * along[b]
        rows.append(value)
    return rows


def homogeneous_grid(
    matrix: Tensor, size: Size, align_corners: bool, *, shift: Tensor | None = None
) -> Tensor:
    """Normalised source coordinates of a matrix's sampling grid. [..., R, dims + 1] -> [..., *size, dims]

    ``shift`` [...] is added to every coordinate of an affine matrix's grid, without another pass over it.
    """
    dims = len(size)
    along = axes(size, align_corners, dtype=matrix.dtype, device=matrix.device, trailing=1)
    *columns, value = matrix.reshape(*matrix.shape[:-2], *[1] * dims, *matrix.shape[-2:]).unbind(-1)
    if shift is not None:
        value = value + shift.reshape(*shift.shape, *[1] * (dims + 1))
    for column, position in zip(reversed(columns[1:]), reversed(along[1:]), strict=True):
        value = value + column * position
    value = pairwise_sum(value, columns[0] * along[0])  # x last: only this sum runs over the whole grid
    if matrix.shape[-2] == dims:
        return value
    return torch.stack(divided(value.unbind(-1), dims), dim=-1)


def pairwise_sum(a: Tensor, b: Tensor) -> Tensor:
    """``a + b``. On the CPU pairs are added as complex numbers: loops over a last axis of 2 are slow."""
    a, b = a.contiguous(), b.contiguous()  # both are small, the sum is not
    if a.shape[-1] != 2 or a.device.type != "cpu" or tracing():
        return a + b
    return torch.view_as_real(torch.view_as_complex(a) + torch.view_as_complex(b))


def visible(rows: Sequence[Tensor], dims: int) -> Tensor:
    """Where w is away from zero and all is finite."""
    w = rows[dims].abs()
    seen = (w > HORIZON) & (w < torch.inf)
    for value in rows[:dims]:
        seen = seen & (value.abs() < torch.inf)
    return seen


def divided(rows: Sequence[Tensor], dims: int) -> list[Tensor]:
    """Coordinates from rows: divided by w where there is one, NaN (without gradient) on the horizon."""
    if len(rows) == dims:
        return list(rows)
    seen = visible(rows, dims)
    safe_w = torch.where(seen, rows[dims], 1.0)
    return [torch.where(seen, torch.where(seen, value, 0.0) / safe_w, torch.nan) for value in rows[:dims]]


def pixel_factors(in_size: Size, out_size: Size, align_corners: bool) -> list[list[float]]:
    """What turns a normalised matrix's entries into those that map centred pixels to centred pixels."""
    spans_in = [span(n, align_corners) for n in reversed(in_size)]
    spans_out = [span(n, align_corners) for n in reversed(out_size)]
    rows = [[*(ratio(s, t) for t in spans_out), s / 2] for s in spans_in]
    return [*rows, [*(ratio(2.0, t) for t in spans_out), 1.0]]


def source_pixels(matrix: Tensor, in_size: Size, out_size: Size, align_corners: bool) -> list[Tensor]:
    """Source pixel coordinates of every output pixel, along x, y (, z). Each [..., *out_size]"""
    dims = len(out_size)
    rows = pixel_rows(matrix, in_size, out_size, align_corners)
    middle = [(length - 1) / 2 for length in reversed(in_size)]
    return [value + middle[a] for a, value in enumerate(divided(rows, dims))]


def pixel_rows(matrix: Tensor, in_size: Size, out_size: Size, align_corners: bool) -> list[Tensor]:
    """The matrix applied to centred output pixels, giving centred source pixels (and w)."""
    along = axes(out_size, None, dtype=matrix.dtype, device=matrix.device)
    factors = pixel_factors(in_size, out_size, align_corners)
    return homogeneous_rows(matrix, along, trailing=len(out_size), factors=factors)


def pixel_slopes(matrix: Tensor, in_size: Size, out_size: Size, align_corners: bool) -> list[list[Tensor]]:
    """Source pixels per output pixel, ``[source axis][target axis]``: they broadcast over out_size."""
    dims = len(out_size)
    factors = pixel_factors(in_size, out_size, align_corners)

    def entry(a: int, b: int) -> Tensor:
        return (matrix[..., a, b] * factors[a][b]).reshape(*matrix.shape[:-2], *[1] * dims)

    if matrix.shape[-2] == dims:
        return [[entry(a, b) for b in range(dims)] for a in range(dims)]
    # d(p / w) = (dp - (p / w) dw) / w
    rows = pixel_rows(matrix, in_size, out_size, align_corners)
    seen = visible(rows, dims)
    safe_w = torch.where(seen, rows[dims], 1.0)
    return [
        [
            torch.where(seen, entry(a, b) - torch.where(seen, rows[a], 0.0) / safe_w * entry(dims, b), 0.0)
            / safe_w
            for b in range(dims)
        ]
        for a in range(dims)
    ]


def scaled_and_shifted(scale: Tensor, shift: Tensor) -> Tensor:
    """``[scale * I | shift]``: [...], [..., dims] -> [..., dims, dims + 1]"""
    dims = shift.shape[-1]
    zero = torch.zeros_like(scale)
    rows = [
        torch.stack([*(scale if a == b else zero for b in range(dims)), shift[..., a]], dim=-1)
        for a in range(dims)
    ]
    return torch.stack(rows, dim=-2)


def square(matrix: Tensor) -> Tensor:
    """With the last row (0, ..., 0, 1) where a matrix has none. [..., dims + 1, dims + 1]"""
    if matrix.shape[-2] == matrix.shape[-1]:
        return matrix
    row = matrix[..., :1, :]
    bottom = torch.cat([torch.zeros_like(row[..., :-1]), torch.ones_like(row[..., -1:])], dim=-1)
    return torch.cat([matrix, bottom], dim=-2)


def inverted(matrix: Tensor) -> Tensor:
    """Inverses, computed in float64; NaN for those that have none, and no harm to the others."""
    finite = matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    eye = torch.eye(matrix.shape[-1], dtype=torch.float64, device=matrix.device)
    with torch.no_grad():
        _, info = torch.linalg.inv_ex(torch.where(finite, matrix.to(torch.float64), eye))
    # Replaced before they are inverted: those that have none must send no NaN back.
    good = finite & (info == 0)[..., None, None]
    inverse = torch.linalg.inv_ex(torch.where(good, matrix.to(torch.float64), eye)).inverse
    return torch.where(good, inverse, torch.nan).to(matrix.dtype)


def frame(size: Size, align_corners: bool) -> Tensor:
    """The matrix from normalised to pixel coordinates. float64 [dims + 1, dims + 1]"""
    spans = [span(n, align_corners) for n in reversed(size)]
    if 0 in spans:
        raise ValueError(f"size {tuple(size)} has an axis without extent under align_corners=True")
    matrix = torch.diag(torch.tensor([*(s / 2 for s in spans), 1.0], dtype=torch.float64))
    matrix[:-1, -1] = torch.tensor([(n - 1) / 2 for n in reversed(size)], dtype=torch.float64)
    return matrix


def quaternion_product(p: Tensor, q: Tensor) -> Tensor:
    a, b, c, d = p.unbind(-1)
    w, x, y, z = q.unbind(-1)
    return torch.stack(
        [
            a * w - b * x - c * y - d * z,
            a * x + b * w + c * z - d * y,
            a * y - b * z + c * w + d * x,
            a * z + b * y - c * x + d * w,
        ],
        dim=-1,
    )


def scaled_quaternion(linear: Tensor) -> Tensor:
    """The quaternion of a rotation times a scale, its squared norm the scale. [..., 3, 3] -> [..., 4]"""
    m = linear
    trace = m[..., 0, 0] + m[..., 1, 1] + m[..., 2, 2]
    scale = m.square().sum((-2, -1)).div(3).sqrt()
    rows = []  # row k is 4 q_k q: take the one with the largest q_k, which no cancellation has touched
    diagonal = [trace, *(2 * m[..., k, k] - trace for k in range(3))]
    twist = [m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]]
    both = {
        (0, 1): m[..., 0, 1] + m[..., 1, 0],
        (0, 2): m[..., 0, 2] + m[..., 2, 0],
        (1, 2): m[..., 1, 2] + m[..., 2, 1],
    }
    rows.append(torch.stack([scale + diagonal[0], *twist], dim=-1))
    for k in range(3):
        row = [twist[k]]
        for other in range(3):
            row.append(scale + diagonal[k + 1] if other == k else both[min(k, other), max(k, other)])
        rows.append(torch.stack(row, dim=-1))
    candidates = torch.stack(rows, dim=-2)  # [..., 4, 4]
    best = torch.stack(diagonal, dim=-1).argmax(-1)
    picked = torch.take_along_dim(candidates, best[..., None, None], dim=-2).squeeze(-2)
    length = picked.square().sum(-1, keepdim=True).sqrt()
    return picked / length * scale[..., None].sqrt()
