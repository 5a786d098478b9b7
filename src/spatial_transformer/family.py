"""What a family of transformations is, T_theta = M_theta B: the base class of all of them.

See ``coordinates`` for the conventions (theta maps output to input coordinates). ``families`` has those that
a matrix says, ``control_points`` those through control points.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .coordinates import Size, half_pixel_steps, lattice, pixel_axes, span
from .matrices import (
    divided,
    homogeneous_grid,
    homogeneous_rows,
    inverted,
    pixel_slopes,
    precise_product,
    source_pixels,
    square,
)

# Finite thetas beyond this are held here: powers and sums of a few of them stay finite in float32.
HUGE = 1e18


class Source(NamedTuple):
    """Where the output's pixels come from, in a form that needs no grid in memory (see ``Family.source``)."""

    kind: str  # "matrix", "offsets", "points" or "grid"
    numbers: Tensor
    basis: Tensor | None


class Family(nn.Module):
    """A set of transformations with parameters theta, ``[..., num_params]``.

    To write one's own, give ``dims`` and the identity's numbers to ``__init__``, and define one of

    - ``matrix(theta)``, for what a matrix does to homogeneous coordinates: ``[..., dims, dims + 1]``, or
      ``[..., dims + 1, dims + 1]`` for a projective one;
    - ``points(theta, points)``, for anything else: target points ``[..., n, dims]`` to source points, in
      normalised coordinates.

    Everything else (grids, boxes, warps, anti-aliasing, modules, export) follows from that:

    >>> class Shear(Family):
    ...     def __init__(self):
    ...         super().__init__(dims=2, identity=[0.0], names=["shear"])
    ...     def matrix(self, theta):
    ...         shear = self.full(theta)[..., 0]
    ...         zero, one = torch.zeros_like(shear), torch.ones_like(shear)
    ...         return torch.stack([one, shear, zero, zero, one, zero], -1).unflatten(-1, (2, 3))
    >>> Shear().box(torch.tensor([0.5]))
    tensor([[-1.5000, -1.0000],
            [ 0.5000, -1.0000],
            [ 1.5000,  1.0000],
            [-0.5000,  1.0000]])

    Parameters
    ----------
    dims: 2 or 3.
    identity: the numbers of theta that leave an image as it is.
    names: a name for each of them, by which it can be pinned.
    pinned: name -> value of the numbers that are fixed, and so are not part of theta.
    """

    homogeneous: bool = True  # whether matrix() acts on homogeneous coordinates and says everything
    bounded: bool = False  # whether every theta up to 1e18 has a matrix whose entries are far from infinite
    entrywise: bool = (
        False  # whether the matrix's entries are numbers of theta, their negatives and constants
    )
    rowwise: bool = False  # whether theta is the matrix itself, row by row

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.homogeneous = cls.points is Family.points
        for promise in ("bounded", "entrywise", "rowwise"):  # never inherited: matrix() may be another
            setattr(cls, promise, bool(cls.__dict__.get(promise, False)))

    def __init__(
        self,
        *,
        dims: int,
        identity: Sequence[float],
        names: Sequence[str] = (),
        pinned: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        two_or_three(dims)
        names = tuple(names) or tuple(f"theta_{i}" for i in range(len(identity)))
        if len(names) != len(identity):
            raise ValueError(
                f"names must be one for each of the {len(identity)} numbers of identity, got {list(names)}"
            )
        pinned = {name: value for name, value in (pinned or {}).items() if value is not None}
        for name, value in pinned.items():
            if name not in names:
                raise TypeError(
                    f"{type(self).__name__} has no parameter {name!r} to pin; it has {', '.join(names)}"
                )
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
                raise TypeError(f"{name} must be a finite number to be pinned, got {value!r}")
        self.dims = dims
        self.names = names
        self.pinned = {name: float(value) for name, value in pinned.items()}
        self._identity = tuple(float(number) for number in identity)

    @property
    def num_params(self) -> int:
        """How many numbers theta has: those that are not pinned."""
        return len(self.names) - len(self.pinned)

    def extra_repr(self) -> str:
        fixed = [f"{name}={value:g}" for name, value in self.pinned.items()]
        return ", ".join([f"dims={self.dims}", f"num_params={self.num_params}", *fixed])

    # theta

    def identity(
        self, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
    ) -> Tensor:
        """The theta that leaves an image as it is (as far as the pinned numbers let it). [num_params]"""
        return self.free(torch.tensor(self._identity, dtype=dtype, device=device))

    def full(self, theta: Tensor) -> Tensor:
        """theta with the pinned numbers put in. [..., num_params] -> [..., len(names)]"""
        if theta.shape[-1] != self.num_params:
            raise ValueError(
                f"theta must be [..., {self.num_params}] for {type(self).__name__}, got {list(theta.shape)}"
            )
        if not self.pinned:
            return theta
        numbers = iter(theta.unbind(-1))
        return torch.stack(
            [
                theta.new_full(theta.shape[:-1], self.pinned[name]) if name in self.pinned else next(numbers)
                for name in self.names
            ],
            dim=-1,
        )

    def free(self, full: Tensor) -> Tensor:
        """The numbers that are not pinned. [..., len(names)] -> [..., num_params]"""
        if not self.pinned:
            return full
        kept = [
            number
            for number, name in zip(full.unbind(-1), self.names, strict=True)
            if name not in self.pinned
        ]
        return torch.stack(kept, dim=-1) if kept else full[..., :0]

    # T_theta = M_theta B

    def matrix(self, theta: Tensor) -> Tensor:
        """M_theta. [..., dims, dims + 1], or [..., dims + 1, dims + 1] where it divides by w"""
        raise NotImplementedError(f"{type(self).__name__} defines neither matrix() nor points()")

    def basis(
        self,
        size: Size,
        align_corners: bool = False,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """B: the target grid in homogeneous coordinates, row after row. [dims + 1, points]"""
        if not self.homogeneous:
            raise NotImplementedError(f"{type(self).__name__} is not of the form M_theta B")
        flat = lattice(size, align_corners, dtype=dtype, device=torch.device(device)).reshape(-1, self.dims)
        return torch.cat([flat, torch.ones_like(flat[:, :1])], dim=1).T

    def grid(self, theta: Tensor, size: Size, align_corners: bool = False) -> Tensor:
        """The sampling grid T_theta(G), in normalised source coordinates. [..., *size, dims]

        >>> import torch, spatial_transformer as st
        >>> st.Affine().grid(torch.tensor([[1.0, 0, 0, 0, 1, 0]]), size=(1, 2))
        tensor([[[[-0.5000,  0.0000],
                  [ 0.5000,  0.0000]]]])
        """
        theta = at_least_float32(theta)
        self._check_size(size)
        if self.homogeneous:
            return homogeneous_grid(self.matrix(theta), size, align_corners)
        target = lattice(size, align_corners, dtype=theta.dtype, device=theta.device)
        return self.points(theta, target.reshape(-1, self.dims)).unflatten(-2, tuple(size))

    def points(self, theta: Tensor, points: Tensor) -> Tensor:
        """Target points to source points, in normalised coordinates. [..., n, dims] -> [..., n, dims]"""
        theta = at_least_float32(theta)
        self._check_points(points)
        rows = homogeneous_rows(self.matrix(theta), points.to(theta.dtype).unbind(-1), trailing=1)
        return torch.stack(divided(rows, self.dims), dim=-1)

    def box(self, theta: Tensor) -> Tensor:
        """The source region that the output looks at, as the corners of its outline. [..., 2**dims, dims]

        In 2D the corners go round; in 3D x changes fastest.
        """
        if self.dims == 2:
            corners: list[tuple[int, ...]] = [(-1, -1), (1, -1), (1, 1), (-1, 1)]
        else:
            corners = [c[::-1] for c in itertools.product((-1, 1), repeat=3)]
        theta = at_least_float32(theta)
        return self.points(theta, torch.tensor(corners, dtype=theta.dtype, device=theta.device))

    # Closed families

    def from_matrix(self, matrix: Tensor) -> Tensor:
        """The numbers (before pinning) of a member given as a square matrix. [..., len(names)]"""
        raise NotImplementedError(f"{type(self).__name__} cannot be made from a matrix")

    def inverse(self, theta: Tensor) -> Tensor:
        """The theta that undoes theta: NaN where there is none. [..., num_params]"""
        self._need_closed("inverse")
        return self.from_matrix(inverted(square(self.matrix(at_least_float32(theta)))))

    def compose(self, first: Tensor, then: Tensor) -> Tensor:
        """The one theta that does both: ``warp(U, compose(first, then)) == warp(warp(U, first), then)``."""
        self._need_closed("compose")
        outer, inner = (
            square(self.matrix(at_least_float32(first))),
            square(self.matrix(at_least_float32(then))),
        )
        return self.from_matrix(precise_product(outer, inner))

    def crop(self, centre: Sequence[float], scale: Sequence[float]) -> Tensor:
        """The theta that looks at a box, as nearly as the family can. float32 [num_params]

        ``centre`` and ``scale`` are one number for each of x, y (, z), in normalised coordinates;
        ``scale`` 1 is the whole image.
        """
        for name, given in (("centre", centre), ("scale", scale)):
            if len(given) != self.dims:
                raise ValueError(f"{name} must be {self.dims} numbers, got {given!r}")
        matrix = torch.diag(torch.tensor([*scale, 1.0], dtype=torch.float32, device="cpu"))
        matrix[:-1, -1] = torch.tensor(centre, dtype=torch.float32, device="cpu")
        return self.free(self.from_matrix(matrix))

    def _check_size(self, size: Size) -> None:
        if isinstance(size, str) or not isinstance(size, Sequence) or len(size) != self.dims:
            expected = "(H, W)" if self.dims == 2 else "(D, H, W)"
            raise ValueError(f"size must be {expected} for {type(self).__name__}, got {size!r}")
        if any(isinstance(length, float) or length < 1 for length in size):
            raise ValueError(f"size must be whole numbers of at least 1, got {tuple(size)}")

    def _check_points(self, points: Tensor) -> None:
        if points.ndim < 2 or points.shape[-1] != self.dims:
            raise ValueError(f"points must be [..., n, {self.dims}], got {list(points.shape)}")

    def _need_closed(self, method: str) -> None:
        if type(self).from_matrix is Family.from_matrix:
            raise NotImplementedError(f"{type(self).__name__} is not closed: it has no {method}()")
        if self.pinned:
            raise ValueError(
                f"{method}() needs a family without pinned numbers: {type(self).__name__} with "
                f"{', '.join(self.pinned)} fixed is not closed"
            )

    # What lies in the image, mapped along with it

    def map_points(self, theta: Tensor, points: Tensor) -> Tensor:
        """Source points to where they appear in the output: the inverse of ``points``. [..., n, dims]

        In normalised coordinates (see ``coordinates.to_normalised``). NaN where a point appears nowhere.
        """
        theta = at_least_float32(theta)
        self._check_points(points)
        if not self.homogeneous:
            precise = theta.to(torch.float64)
            return solved(
                lambda target: self.points(precise, target), points.to(precise.dtype), lead=theta.shape[:-1]
            ).to(theta.dtype)
        points = points.to(theta.dtype)
        rows = homogeneous_rows(inverted(square(self.matrix(theta))), points.unbind(-1), trailing=1)
        return torch.stack(divided(rows, self.dims), dim=-1)

    def map_boxes(self, theta: Tensor, boxes: Tensor) -> Tensor:
        """Source boxes to the upright boxes around where their corners appear. [..., n, 2 * dims] -> the same

        A box is its least and its greatest corner, (x0, y0, x1, y1) or (x0, y0, z0, x1, y1, z1), in
        normalised coordinates. NaN for a box that a projective horizon crosses: it has no such box.
        """
        if boxes.ndim < 2 or boxes.shape[-1] != 2 * self.dims:
            raise ValueError(f"boxes must be [..., n, {2 * self.dims}], got {list(boxes.shape)}")
        low_high = boxes.unflatten(-1, (2, self.dims))  # [..., n, 2, dims]
        corners = torch.stack(
            [
                torch.stack([low_high[..., pick, axis] for axis, pick in enumerate(choice)], dim=-1)
                for choice in itertools.product((0, 1), repeat=self.dims)
            ],
            dim=-2,
        )  # [..., n, 2**dims, dims]
        count = corners.shape[-2]
        flat = corners.flatten(-3, -2)
        found = self.map_points(theta, flat).unflatten(-2, (-1, count))
        upright = torch.cat([found.amin(-2), found.amax(-2)], dim=-1)
        if not self.homogeneous or self.matrix(theta).shape[-2] == self.dims:
            return upright
        inverse = inverted(self.matrix(at_least_float32(theta)))
        w = homogeneous_rows(inverse, flat.to(inverse.dtype).unbind(-1), trailing=1)[-1].unflatten(
            -1, (-1, count)
        )
        return torch.where((w.amin(-1) * w.amax(-1) > 0)[..., None], upright, torch.nan)

    # What the implementations ask for

    def pixels(self, theta: Tensor, in_size: Size, out_size: Size, align_corners: bool) -> list[Tensor]:
        """Source pixel coordinates of every output pixel, along x, y (, z). Each [..., *out_size]"""
        if not self.homogeneous:
            return pixel_axes(self.grid(theta, out_size, align_corners).unbind(-1), in_size, align_corners)
        return source_pixels(self.matrix(theta), in_size, out_size, align_corners)

    def jacobian(
        self, theta: Tensor, in_size: Size, out_size: Size, align_corners: bool
    ) -> list[list[Tensor]]:
        """Source pixels per output pixel, ``[source axis][target axis]``: they broadcast over out_size."""
        if not self.homogeneous:
            return self._half_pixel_differences(theta, in_size, out_size, align_corners)
        return pixel_slopes(self.matrix(theta), in_size, out_size, align_corners)

    def source(
        self, theta: Tensor, in_size: Size, out_size: Size, align_corners: bool, *, slopes: bool
    ) -> Source:
        """What the fused kernels compute source positions from; ``slopes``: with what anti-aliasing needs.

        - "matrix": numbers [..., R, dims + 1], as ``matrix``, or these two axes in one.
        - "offsets": numbers [..., K, dims] and basis [L, K, points]: the target lattice plus their product.
        - "points": the same, without the lattice.
        - "grid": numbers [..., L, *out_size, dims], as ``grid``.

        L is 1; with slopes it is 1 + dims, and the further layers say how source positions change from one
        output pixel to the next along x, y (, z): normalised in a basis, in source pixels in a grid. A
        transform whose numbers hold a NaN is lost as a whole ("grid": point by point).
        """
        if self.rowwise:  # a reshape would cost autograd more than a small warp takes
            return Source("matrix", self.full(theta) if self.pinned else theta, None)
        if self.homogeneous and self.entrywise:
            return Source("matrix", self.matrix(theta), None)
        theta, lost = settle(theta)
        if self.homogeneous:
            matrix = self.matrix(theta)
            return Source("matrix", torch.where(lost[..., None, None], torch.nan, matrix), None)
        layers = [self.grid(theta, out_size, align_corners)]
        if slopes:
            jacobian = self.jacobian(theta, in_size, out_size, align_corners)
            layers += [torch.stack([row[b] for row in jacobian], dim=-1) for b in range(self.dims)]
        grid = torch.stack(layers, dim=-self.dims - 2) if slopes else layers[0].unsqueeze(-self.dims - 2)
        lost = lost.reshape(*lost.shape, *[1] * (self.dims + 2))
        return Source("grid", torch.where(lost, torch.nan, grid), None)

    def _half_pixel_differences(
        self, theta: Tensor, in_size: Size, out_size: Size, align_corners: bool
    ) -> list[list[Tensor]]:
        """What lies between the middles of an output pixel's opposite sides."""
        target = lattice(out_size, align_corners, dtype=theta.dtype, device=theta.device).reshape(
            -1, self.dims
        )
        columns = []
        for step in half_pixel_steps(out_size, align_corners, like=target):
            between = self.points(theta, target + step) - self.points(theta, target - step)
            columns.append(between.unflatten(-2, tuple(out_size)).unbind(-1))
        return [
            [column[a] * (span(length, align_corners) / 2) for column in columns]
            for a, length in enumerate(reversed(in_size))
        ]


def two_or_three(dims: int) -> int:
    if dims not in (2, 3) or not isinstance(dims, int):
        raise ValueError(f"dims must be 2 or 3, got {dims!r}")
    return dims


def settle(theta: Tensor) -> tuple[Tensor, Tensor]:
    """theta made finite, and which of them held a NaN: [..., P] -> [..., P], [...]

    What is changed gets no gradient, so that no zero meets an infinity on the way back.
    """
    lost = theta.isnan()
    return torch.where(lost, 0.0, theta.clamp(-HUGE, HUGE)), lost.any(-1)


def at_least_float32(theta: Tensor) -> Tensor:
    return theta.to(torch.promote_types(theta.dtype, torch.float32))


def solved(
    forward: Callable[[Tensor], Tensor], wanted: Tensor, *, lead: Sequence[int], steps: int = 30
) -> Tensor:
    """x with ``forward(x) == wanted`` by Newton's method, NaN where there is none. float64 [..., n, dims]"""
    dims, reach = wanted.shape[-1], 1e-6
    found = wanted.expand(*torch.broadcast_shapes(tuple(lead), wanted.shape[:-2]), *wanted.shape[-2:])
    for _ in range(steps):
        columns = []
        for axis in range(dims):
            step = torch.zeros(dims, dtype=wanted.dtype, device=wanted.device)
            step[axis] = reach
            columns.append((forward(found + step) - forward(found - step)) / (2 * reach))
        slope = torch.stack(columns, dim=-1)
        move = (inverted(slope) @ (wanted - forward(found))[..., None]).squeeze(-1)
        found = found + move.nan_to_num(0.0).clamp(-0.5, 0.5)  # a full step may leave the image
    missed = ~((forward(found) - wanted).abs().amax(-1, keepdim=True) < 1e-9)
    return torch.where(missed, torch.nan, found)
