"""Families through control points: theta is where in the *source* each point of a target lattice lies.

T_theta = M_theta B with M_theta the K source points and B a basis over the target grid, which the size of
the grid and the lattice fix. A basis is computed in float64, once for a size.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .coordinates import (
    Size,
    axes,
    control_lattice,
    differences,
    half_pixel_steps,
    lattice,
    pixel_axes,
    ratio,
    span,
)
from .family import Family, Source, at_least_float32
from .matrices import precise_product
from .modes import capturing, tracing

# Bases, slopes and lattices that are kept, by size, device and dtype; a transformer meets one or two sizes.
KEPT_BASES = 16

_keeping = threading.Lock()  # one for all: it is held for a few microseconds


class ControlPoints(Family):
    """A family of the form M_theta B whose theta is K source points, (x, y) or (x, y, z) one after another.

    A subclass says what B is anywhere in the target, ``basis_at``. Its basis must reproduce the lattice
    (control points left in place leave every point in place): then only their *offsets* are multiplied
    with B, and the identity is exact.
    """

    def __init__(self, lattice: Size, pinned: dict[str, float]) -> None:
        if not whole_numbers(lattice, least=2):
            raise ValueError(
                f"lattice must be two (2D) or three (3D) whole numbers of at least 2, got {lattice!r}"
            )
        dims = len(lattice)
        at = control_lattice(lattice)
        super().__init__(
            dims=dims,
            identity=at.flatten().tolist(),
            names=[f"{axis}_{k}" for k in range(len(at)) for axis in "xyz"[:dims]],
            pinned=pinned,
        )
        self.lattice = tuple(lattice)
        # A plain tensor, not a buffer: `.to(bfloat16)` must not round it.
        self._control = at  # float64 [K, dims]
        self._bases: OrderedDict[Any, Tensor] = OrderedDict()

    def extra_repr(self) -> str:
        return f"lattice={self.lattice}, {super().extra_repr()}"

    def basis_at(self, points: Tensor) -> Tensor:
        """B at target points. float64 [..., n, dims] -> [..., n, K]"""
        raise NotImplementedError

    # Bases are kept beside the module's state: not in state_dict, not in pickles and copies.

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bases": OrderedDict()}

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        self._bases.clear()
        return super()._apply(fn, recurse)

    def _kept(self, key: Any, compute: Callable[[], Tensor]) -> Tensor:
        if tracing():
            return compute()
        found = self._bases.get(key)
        if found is None:
            # Not an inference tensor: the same basis may be trained through later.
            with torch.inference_mode(False), torch.no_grad():
                found = compute()
            if capturing():  # its contents will exist when the graph is replayed, not before
                return found
        with _keeping:
            self._bases[key] = found
            self._bases.move_to_end(key)
            while len(self._bases) > KEPT_BASES:
                self._bases.popitem(last=False)
        return found

    def _basis(self, size: Size, align_corners: bool, device: torch.device) -> Tensor:
        """B over a target grid. float64 [K, points]"""

        def compute() -> Tensor:
            target = lattice(size, align_corners, dtype=torch.float64, device=device)
            return self.basis_at(target.reshape(-1, self.dims)).T.contiguous()

        return self._kept(("basis", tuple(size), align_corners, device), compute)

    def _slopes(self, size: Size, align_corners: bool, device: torch.device) -> Tensor:
        """How B changes over an output pixel, along x, y (, z). float64 [dims, K, points]"""

        def compute() -> Tensor:
            target = lattice(size, align_corners, dtype=torch.float64, device=device)
            target = target.reshape(-1, self.dims)
            return torch.stack(
                [
                    (self.basis_at(target + step) - self.basis_at(target - step)).T
                    for step in half_pixel_steps(size, align_corners, like=target)
                ]
            )

        return self._kept(("slopes", tuple(size), align_corners, device), compute)

    # T_theta = M_theta B

    def matrix(self, theta: Tensor) -> Tensor:
        """The K source points. [..., dims, K]"""
        return self.full(theta).unflatten(-1, (-1, self.dims)).transpose(-1, -2)

    def basis(
        self,
        size: Size,
        align_corners: bool = False,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """B over a target grid of ``size``, row after row. [K, points]"""
        return self._basis(size, align_corners, torch.device(device)).to(dtype)

    def offsets(self, theta: Tensor) -> Tensor:
        """How far the source points are from where the identity has them. [..., dims, K]"""
        # The lattice in theta's own rounding: the identity's offsets are exactly zero.
        control = self._kept(("control", theta.device, theta.dtype), lambda: self._control.to(theta))
        return self.matrix(theta) - control.T

    def grid(self, theta: Tensor, size: Size, align_corners: bool = False) -> Tensor:
        self._check_size(size)
        theta = at_least_float32(theta)
        moved = precise_product(self.offsets(theta), self._basis(size, align_corners, theta.device))
        target = lattice(size, align_corners, dtype=theta.dtype, device=theta.device)
        return target + moved.to(theta.dtype).transpose(-1, -2).unflatten(-2, tuple(size))

    def points(self, theta: Tensor, points: Tensor) -> Tensor:
        theta = at_least_float32(theta)
        self._check_points(points)
        basis = self.basis_at(points.to(torch.float64)).transpose(-1, -2)
        moved = precise_product(self.offsets(theta), basis).to(theta.dtype)
        return points.to(theta.dtype) + moved.transpose(-1, -2)

    def pixels(self, theta: Tensor, in_size: Size, out_size: Size, align_corners: bool) -> list[Tensor]:
        moved = precise_product(self.offsets(theta), self._basis(out_size, align_corners, theta.device))
        moved = moved.to(theta.dtype).unflatten(-1, tuple(out_size))
        along = axes(out_size, None, dtype=theta.dtype, device=theta.device)
        found = []
        for a, (into, out) in enumerate(zip(reversed(in_size), reversed(out_size), strict=True)):
            extent = span(into, align_corners)
            still = along[a] * ratio(extent, span(out, align_corners)) + (into - 1) / 2
            found.append(still + moved.select(-self.dims - 1, a) * (extent / 2))
        return found

    def jacobian(
        self, theta: Tensor, in_size: Size, out_size: Size, align_corners: bool
    ) -> list[list[Tensor]]:
        slopes = self._slopes(out_size, align_corners, theta.device)
        offsets = self.offsets(theta)
        columns = []
        for b, out in enumerate(reversed(out_size)):
            moved = precise_product(offsets, slopes[b]).to(theta.dtype).unflatten(-1, tuple(out_size))
            still = ratio(2.0, span(out, align_corners))
            columns.append(
                [moved.select(-self.dims - 1, a) + (still if a == b else 0.0) for a in range(self.dims)]
            )
        return [
            [column[a] * (span(into, align_corners) / 2) for column in columns]
            for a, into in enumerate(reversed(in_size))
        ]

    def source(
        self, theta: Tensor, in_size: Size, out_size: Size, align_corners: bool, *, slopes: bool
    ) -> Source:
        device, dtype = theta.device, theta.dtype

        def layers() -> Tensor:
            basis = self._basis(out_size, align_corners, device)[None]
            if slopes:
                basis = torch.cat([basis, self._slopes(out_size, align_corners, device)])
            return basis.to(dtype)

        basis = self._kept(("layers", tuple(out_size), align_corners, slopes, device, dtype), layers)
        return Source("offsets", self.offsets(theta).transpose(-1, -2), basis)

    def crop(self, centre: Sequence[float], scale: Sequence[float]) -> Tensor:
        return self.free(placed(self._control, centre, scale).flatten()).to(torch.float32)


class ThinPlateSpline(ControlPoints):
    """The smoothest map through K control points: r^2 log r in 2D, r in 3D, and an affine part.

    theta is the source positions of the points of a target lattice spread evenly over [-1, 1], row after
    row; the paper's 16 points are ``lattice=(4, 4)``.
    """

    def __init__(self, lattice: Size = (4, 4), **pinned: float) -> None:
        super().__init__(lattice, pinned)
        count, dims = self._control.shape
        affine = torch.cat([torch.ones(count, 1, dtype=torch.float64, device="cpu"), self._control], dim=1)
        system = torch.zeros(count + dims + 1, count + dims + 1, dtype=torch.float64, device="cpu")
        system[:count, :count] = self._radial(self._control)
        system[:count, count:] = affine
        system[count:, :count] = affine.T
        # Solved once for a lattice: the spline's weights for a unit move of each point. [K + dims + 1, K]
        self._weights = torch.linalg.inv(system)[:, :count].contiguous()

    def _radial(self, points: Tensor) -> Tensor:
        squared = (points[..., :, None, :] - self._control.to(points.device)).square().sum(-1)  # [..., n, K]
        away = squared > 0
        safe = torch.where(away, squared, 1.0)  # the slope of both functions is zero or undefined at 0
        return squared * safe.log() / 2 if self.dims == 2 else torch.where(away, safe.sqrt(), 0.0)

    def basis_at(self, points: Tensor) -> Tensor:
        terms = torch.cat([self._radial(points), torch.ones_like(points[..., :1]), points], dim=-1)
        return terms @ self._weights.to(points.device)


class PiecewiseAffine(ControlPoints):
    """Affine in each triangle (3D: tetrahedron) between the points of a lattice: linear in theta.

    A cell is cut along its diagonal from the least to the greatest corner (3D: into the six tetrahedra
    around it). Beyond the lattice its outermost pieces go on.
    """

    def __init__(self, lattice: Size = (4, 4), **pinned: float) -> None:
        super().__init__(lattice, pinned)

    def basis_at(self, points: Tensor) -> Tensor:
        corner = torch.zeros(points.shape[:-1], dtype=torch.int64, device=points.device)
        inside, strides, stride = [], [], 1
        for position, count in zip(points.unbind(-1), reversed(self.lattice), strict=True):
            position = (position + 1) * ((count - 1) / 2)
            cell = position.detach().floor().clamp(0, count - 2)
            inside.append(position - cell)
            corner = corner + cell.to(torch.int64) * stride
            strides.append(stride)
            stride *= count
        # From the cell's least corner to its greatest, one axis at a time, the axis furthest in first.
        depth, order = torch.stack(inside, dim=-1).sort(dim=-1, descending=True)
        steps = torch.zeros_like(order)
        for axis, stride in enumerate(strides):
            steps = torch.where(order == axis, stride, steps)
        vertices = corner[..., None] + torch.cat([torch.zeros_like(order[..., :1]), steps.cumsum(-1)], dim=-1)
        one, zero = torch.ones_like(depth[..., :1]), torch.zeros_like(depth[..., :1])
        ladder = torch.cat([one, depth, zero], dim=-1)
        weights = ladder[..., :-1] - ladder[..., 1:]
        empty = points.new_zeros(*points.shape[:-1], len(self._control))
        return empty.scatter_add(-1, vertices, weights)


class LearnedBasis(Family):
    """M_theta B with B a trained parameter: the paper's "learn B for the task at hand".

    B starts as the thin plate spline's basis of a lattice of ``points`` (a number that is a square (3D:
    a cube), or the lattice itself), or, with ``start="homogeneous"``, as the homogeneous grid, when theta
    is an affine matrix row by row and ``points`` is dims + 1. It belongs to one output ``size``
    and one ``align_corners``.
    """

    def __init__(
        self,
        points: int | Size = 16,
        size: Size = (28, 28),
        *,
        start: str = "spline",
        align_corners: bool = False,
        dtype: torch.dtype = torch.float32,
        **pinned: float,
    ) -> None:
        if not whole_numbers(size, least=1):
            raise ValueError(f"size must be (H, W) or (D, H, W), at least 1 along every axis, got {size!r}")
        size, dims = tuple(size), len(size)
        spline: ThinPlateSpline | None = None
        if start == "homogeneous":
            if points != dims + 1:
                raise ValueError(
                    f'points must be {dims + 1} for start="homogeneous" in {dims}D, got {points!r}'
                )
            identity = [float(a == b) for b in range(dims + 1) for a in range(dims)]
        elif start == "spline":
            spline = ThinPlateSpline(points_lattice(points, dims))
            identity = spline._control.flatten().tolist()
        else:
            raise ValueError(f'start must be "spline" or "homogeneous", got {start!r}')
        count = len(identity) // dims
        super().__init__(
            dims=dims,
            identity=identity,
            names=[f"{axis}_{k}" for k in range(count) for axis in "xyz"[:dims]],
            pinned=pinned,
        )
        self.size, self.align_corners, self.start = size, align_corners, start
        self._spline = spline
        self.B = nn.Parameter(torch.empty(count, math.prod(size), dtype=dtype))  # [K, points]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """B back to its start."""
        target = lattice(self.size, self.align_corners, dtype=torch.float64, device=torch.device("cpu"))
        target = target.reshape(-1, self.dims)
        if self._spline is not None:
            first = self._spline.basis_at(target)
        else:
            first = torch.cat([target, torch.ones_like(target[:, :1])], dim=1)
        with torch.no_grad():
            self.B.copy_(first.T)

    def extra_repr(self) -> str:
        return f"size={self.size}, align_corners={self.align_corners}, {super().extra_repr()}"

    def matrix(self, theta: Tensor) -> Tensor:
        """The K source points. [..., dims, K]"""
        return self.full(theta).unflatten(-1, (-1, self.dims)).transpose(-1, -2)

    def basis(
        self,
        size: Size,
        align_corners: bool = False,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """B, if ``size`` and ``align_corners`` are its own. [K, points]"""
        if tuple(size) != self.size or align_corners != self.align_corners:
            raise ValueError(
                f"this LearnedBasis is for size={self.size}, align_corners={self.align_corners}; "
                f"got size={tuple(size)}, align_corners={align_corners}"
            )
        return self.B.to(dtype=dtype, device=device)

    def grid(self, theta: Tensor, size: Size, align_corners: bool = False) -> Tensor:
        theta = at_least_float32(theta)
        source = precise_product(self.matrix(theta), self.basis(size, align_corners, dtype=theta.dtype))
        return source.transpose(-1, -2).unflatten(-2, tuple(size))

    def points(self, theta: Tensor, points: Tensor) -> Tensor:
        """As ``Family.points``: between the grid's points B is interpolated, beyond them it goes on."""
        theta = at_least_float32(theta)
        self._check_points(points)
        points = points.to(theta.dtype)
        fields = self.B.to(theta.dtype).unflatten(-1, self.size)  # [K, *size]
        basis = torch.zeros((), dtype=theta.dtype, device=theta.device)
        cells: list[tuple[Tensor, Tensor, int]] = []
        for pixel, length in zip(
            pixel_axes(points.unbind(-1), self.size, self.align_corners), reversed(self.size), strict=True
        ):
            low = pixel.detach().floor().clamp(0, max(length - 2, 0))
            cells.append(
                (low.to(torch.int64), pixel - low if length > 1 else torch.zeros_like(pixel), length)
            )
        for choice in range(2**self.dims):
            weight, index, stride = torch.ones_like(cells[0][1]), torch.zeros_like(cells[0][0]), 1
            for axis, (low, inside, length) in enumerate(cells):
                upper = choice >> axis & 1
                weight = weight * (inside if upper else 1 - inside)
                index = index + (low + (upper if length > 1 else 0)) * stride
                stride *= length
            basis = basis + weight[..., None, :] * fields.flatten(1)[:, index].movedim(0, -2)
        return precise_product(self.matrix(theta), basis).transpose(-1, -2)

    def _half_pixel_differences(
        self, theta: Tensor, in_size: Size, out_size: Size, align_corners: bool
    ) -> list[list[Tensor]]:
        """B is known at the grid's points only: central differences between them, one-sided at the rim."""
        fields = self.basis(out_size, align_corners, dtype=theta.dtype).unflatten(-1, tuple(out_size))
        matrix = self.matrix(theta)
        columns = []
        for axis in range(self.dims):
            change = differences(fields, dim=-1 - axis).flatten(1)
            columns.append(precise_product(matrix, change).unflatten(-1, tuple(out_size)))
        return [
            [column.select(-self.dims - 1, a) * (span(into, align_corners) / 2) for column in columns]
            for a, into in enumerate(reversed(in_size))
        ]

    def source(
        self, theta: Tensor, in_size: Size, out_size: Size, align_corners: bool, *, slopes: bool
    ) -> Source:
        basis = self.basis(out_size, align_corners, dtype=theta.dtype)[None]
        if slopes:
            fields = basis.unflatten(-1, tuple(out_size))
            steps = [differences(fields, dim=-1 - axis).flatten(2) for axis in range(self.dims)]
            basis = torch.cat([basis, *steps])
        return Source("points", self.full(theta).unflatten(-1, (-1, self.dims)), basis)

    def crop(self, centre: Sequence[float], scale: Sequence[float]) -> Tensor:
        points = torch.tensor(self._identity, dtype=torch.float64, device="cpu").unflatten(0, (-1, self.dims))
        if self.start == "homogeneous":  # the last column is the shift, the others are scaled
            placed_points = placed(points, [0.0] * self.dims, scale)
            placed_points[-1] = torch.tensor(centre, dtype=torch.float64, device="cpu")
        else:
            placed_points = placed(points, centre, scale)
        return self.free(placed_points.flatten()).to(torch.float32)


def placed(points: Tensor, centre: Sequence[float], scale: Sequence[float]) -> Tensor:
    """Points of [-1, 1]^dims in a box. float64 [K, dims]"""
    stretch, shift = (torch.tensor(value, dtype=torch.float64, device="cpu") for value in (scale, centre))
    return points * stretch + shift


def whole_numbers(value: Any, *, least: int) -> bool:
    """Whether these are two or three whole numbers of at least ``least``."""
    return (
        isinstance(value, Sequence)
        and len(value) in (2, 3)
        and all(isinstance(n, int) and n >= least for n in value)
    )


def points_lattice(points: int | Size, dims: int) -> tuple[int, ...]:
    """The lattice of a number of control points, which must be a square (3D: a cube)."""
    if not isinstance(points, int):
        return tuple(points)
    side = round(math.pow(max(points, 0), 1 / dims))
    if side**dims != points:
        raise ValueError(f"points must be {'a square' if dims == 2 else 'a cube'} or a lattice, got {points}")
    return (side,) * dims
