"""The homogeneous families: what a matrix on homogeneous coordinates does.

The base class is in ``family``, the families through control points are in ``control_points``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .coordinates import Size
from .family import Family, at_least_float32, two_or_three
from .matrices import frame, inverted, quaternion_product, scaled_and_shifted, scaled_quaternion, square


class Translation(Family):
    """Shifts. theta is (x, y) or (x, y, z); each can be pinned.

    >>> Translation().matrix(torch.tensor([0.5, 0.0]))
    tensor([[1.0000, 0.0000, 0.5000],
            [0.0000, 1.0000, 0.0000]])
    """

    bounded = True
    entrywise = True

    def __init__(self, dims: int = 2, **pinned: float) -> None:
        names = "xyz"[: two_or_three(dims)]
        super().__init__(dims=dims, identity=[0.0] * dims, names=names, pinned=pinned)

    def matrix(self, theta: Tensor) -> Tensor:
        shift = self.full(theta)
        return scaled_and_shifted(torch.ones_like(shift[..., 0]), shift)

    def from_matrix(self, matrix: Tensor) -> Tensor:
        return matrix[..., : self.dims, -1]


class Attention(Family):
    """Crops, the paper's equation 2. theta is (scale, x, y) or (scale, x, y, z); each can be pinned.

    ``Attention(scale=0.5)`` has theta (x, y): the windows of half the image's size of the bird experiments.
    """

    bounded = True
    entrywise = True

    def __init__(self, dims: int = 2, **pinned: float) -> None:
        names = ("scale", *"xyz"[: two_or_three(dims)])
        super().__init__(dims=dims, identity=[1.0] + [0.0] * dims, names=names, pinned=pinned)

    def matrix(self, theta: Tensor) -> Tensor:
        theta = self.full(theta)
        return scaled_and_shifted(theta[..., 0], theta[..., 1:])

    def from_matrix(self, matrix: Tensor) -> Tensor:
        scale = matrix[..., : self.dims, : self.dims].diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        return torch.cat([scale, matrix[..., : self.dims, -1]], dim=-1)

    def crop(self, centre: Sequence[float], scale: Sequence[float]) -> Tensor:
        return super().crop(centre, [min(scale)] * self.dims)  # the largest window that stays in the box


class Similarity(Family):
    """Rotation, one scale, shift: polynomial in theta, so without singularities and wrapped angles.

    2D: theta is (a, b, x, y) for ``[[a, -b], [b, a]]``, a scale of hypot(a, b) and a rotation of
    atan2(b, a). 3D: theta is (qw, qx, qy, qz, x, y, z); the quaternion need not be normalised, its
    squared norm is the scale.
    """

    bounded = True

    def __init__(self, dims: int = 2, **pinned: float) -> None:
        turn = ("a", "b") if two_or_three(dims) == 2 else ("qw", "qx", "qy", "qz")
        identity = [1.0] + [0.0] * (len(turn) - 1 + dims)
        super().__init__(dims=dims, identity=identity, names=(*turn, *"xyz"[:dims]), pinned=pinned)

    def matrix(self, theta: Tensor) -> Tensor:
        theta = self.full(theta)
        if self.dims == 2:
            a, b, x, y = theta.unbind(-1)
            return torch.stack([a, -b, x, b, a, y], dim=-1).unflatten(-1, (2, 3))
        w, i, j, k, x, y, z = theta.unbind(-1)
        entries = [
            w * w + i * i - j * j - k * k, 2 * (i * j - w * k), 2 * (i * k + w * j), x,
            2 * (i * j + w * k), w * w - i * i + j * j - k * k, 2 * (j * k - w * i), y,
            2 * (i * k - w * j), 2 * (j * k + w * i), w * w - i * i - j * j + k * k, z,
        ]  # fmt: skip
        return torch.stack(entries, dim=-1).unflatten(-1, (3, 4))

    def from_matrix(self, matrix: Tensor) -> Tensor:
        shift = matrix[..., : self.dims, -1]
        if self.dims == 2:
            return torch.cat([matrix[..., :2, 0], shift], dim=-1)
        return torch.cat([scaled_quaternion(matrix[..., :3, :3]), shift], dim=-1)

    def crop(self, centre: Sequence[float], scale: Sequence[float]) -> Tensor:
        return super().crop(centre, [min(scale)] * self.dims)

    def inverse(self, theta: Tensor) -> Tensor:
        if self.dims == 2:
            return super().inverse(theta)
        self._need_closed("inverse")
        theta = at_least_float32(theta)
        turn, shift = theta[..., :4], theta[..., 4:]
        norm = turn.square().sum(-1, keepdim=True)
        some = norm > 0
        back = turn * turn.new_tensor([1, -1, -1, -1]) / torch.where(some, norm, 1.0)
        zero = torch.zeros_like(shift)
        linear = self.matrix(torch.cat([back, zero], dim=-1))[..., :3]
        found = torch.cat([back, -(linear * shift[..., None, :]).sum(-1)], dim=-1)
        return torch.where(some, found, torch.nan)

    def compose(self, first: Tensor, then: Tensor) -> Tensor:
        if self.dims == 2:
            return super().compose(first, then)
        self._need_closed("compose")
        first, then = torch.broadcast_tensors(at_least_float32(first), at_least_float32(then))
        linear = self.matrix(first)[..., :3]
        shift = first[..., 4:] + (linear * then[..., None, 4:]).sum(-1)
        return torch.cat([quaternion_product(first[..., :4], then[..., :4]), shift], dim=-1)


class _PixelMatrices(Family):
    """What ``Affine`` and ``Projective`` share: matrices on pixels, as OpenCV takes them."""

    def from_opencv(
        self, matrix: Tensor | Any, in_size: Size, out_size: Size, *, align_corners: bool = False
    ) -> Tensor:
        """The theta that warps as ``cv2.warpAffine`` / ``warpPerspective`` do with ``matrix``.

        OpenCV's matrices map *source to target pixels*; ours pull, in normalised coordinates. Give a
        matrix made for ``cv2.WARP_INVERSE_MAP`` inverted. ``matrix``: [..., 2, 3] for ``Affine``,
        [..., 3, 3] for ``Projective`` (3D: one more), a tensor or an array. [..., num_params]
        """
        self._need_closed("from_opencv")
        given = matrix if isinstance(matrix, Tensor) else torch.from_numpy(np.array(matrix))
        expected = self.matrix(self.identity()).shape
        if given.ndim < 2 or given.shape[-2:] != expected:
            raise ValueError(
                f"matrix must be [..., {expected[0]}, {expected[1]}] for {type(self).__name__}, "
                f"got {list(given.shape)}"
            )
        given = given if given.is_floating_point() else given.to(torch.float64)
        push = square(given.to(torch.float64))
        pull = inverted(push)
        to_source = frame(in_size, align_corners).to(pull).inverse()
        theta = self.from_matrix(to_source @ pull @ frame(out_size, align_corners).to(pull))
        return theta.to(torch.promote_types(given.dtype, torch.float32))

    def to_opencv(
        self, theta: Tensor, in_size: Size, out_size: Size, *, align_corners: bool = False
    ) -> Tensor:
        """The matrix for ``cv2.warpAffine`` / ``warpPerspective`` that warps as theta does. float64"""
        pull = square(self.matrix(theta.to(torch.float64)))
        from_source = frame(in_size, align_corners).to(pull)
        push = inverted(from_source @ pull @ frame(out_size, align_corners).to(pull).inverse())
        rows = self.matrix(self.identity()).shape[0]
        return push[..., :rows, :]


class Affine(_PixelMatrices):
    """The paper's equation 1, row by row: theta_11 theta_12 theta_13 theta_21 ... in 2D and 3D.

    >>> Affine().matrix(torch.tensor([1.0, 2, 3, 4, 5, 6]))
    tensor([[1., 2., 3.],
            [4., 5., 6.]])
    """

    bounded = True
    entrywise = True
    rowwise = True

    def __init__(self, dims: int = 2, **pinned: float) -> None:
        super().__init__(
            dims=dims,
            identity=[float(a == b) for a in range(two_or_three(dims)) for b in range(dims + 1)],
            names=[f"theta_{a}{b}" for a in range(1, dims + 1) for b in range(1, dims + 2)],
            pinned=pinned,
        )

    def matrix(self, theta: Tensor) -> Tensor:
        full = self.full(theta)
        return full.reshape(*full.shape[:-1], self.dims, self.dims + 1)

    def from_matrix(self, matrix: Tensor) -> Tensor:
        return matrix[..., : self.dims, :].flatten(-2)


class Projective(_PixelMatrices):
    """Projective transformations: a square matrix, row by row, whose last number is 1."""

    entrywise = True

    def __init__(self, dims: int = 2, **pinned: float) -> None:
        side = two_or_three(dims) + 1
        super().__init__(
            dims=dims,
            identity=[float(a == b) for a in range(side) for b in range(side)][:-1],
            names=[f"theta_{a}{b}" for a in range(1, side + 1) for b in range(1, side + 1)][:-1],
            pinned=pinned,
        )

    def matrix(self, theta: Tensor) -> Tensor:
        full = self.full(theta)
        one = torch.ones_like(full[..., :1])
        return torch.cat([full, one], dim=-1).unflatten(-1, (self.dims + 1, self.dims + 1))

    def from_matrix(self, matrix: Tensor) -> Tensor:
        last = matrix[..., -1:, -1:]
        # A matrix whose last number is 0 sends the centre to infinity: theta cannot say that.
        return torch.where(last == 0, torch.nan, matrix / last).flatten(-2)[..., :-1]
