"""Families written outside the package: through matrix() and through points()."""

from __future__ import annotations

import pytest
import torch
from family_cases import DOUBLE, IMPLS, SIZES, close, lattice, named, scattered, some

import spatial_transformer as st

pytestmark = pytest.mark.usefixtures("one_thread", "seed")


# Families of one's own


class Shear(st.Family):
    """Through matrix(): the example of Family's docstring."""

    def __init__(self, **pinned):
        super().__init__(dims=2, identity=[0.0], names=["shear"], pinned=pinned)

    def matrix(self, theta):
        shear = self.full(theta)[..., 0]
        zero, one = torch.zeros_like(shear), torch.ones_like(shear)
        return torch.stack([one, shear, zero, zero, one, zero], -1).unflatten(-1, (2, 3))


class Swirl(st.Family):
    """Through points() alone: turns by an angle that falls off from the centre."""

    def __init__(self):
        super().__init__(dims=2, identity=[0.0])

    def points(self, theta, points):
        x, y = points.unbind(-1)
        angle = theta[..., :1] * (1 - x * x - y * y)
        return torch.stack([x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()], dim=-1)


class Tilt(st.Family):
    """Through a square matrix(), so divided by w."""

    def __init__(self):
        super().__init__(dims=2, identity=[0.0])

    def matrix(self, theta):
        matrix = torch.eye(3, dtype=theta.dtype, device=theta.device).repeat(*theta.shape[:-1], 1, 1)
        return matrix + torch.nn.functional.pad(theta[..., None], (0, 2, 2, 0))


class Zoom(st.Family):
    """Attention's scale again, through points()."""

    def __init__(self, dims):
        super().__init__(dims=dims, identity=[1.0])

    def points(self, theta, points):
        return theta[..., None] * points


OWN = [Shear(), Swirl(), Tilt(), Zoom(dims=2), Zoom(dims=3)]
own = pytest.mark.parametrize("family", OWN, ids=named)


@own
def test_ones_own_grid_and_box(family):
    size, theta = SIZES[family.dims], some(family, 2, 3, spread=0.3)
    target = lattice(size)
    points = family.points(theta, target.reshape(-1, family.dims))
    close(family.grid(theta, size), points.unflatten(-2, size))
    close(family.grid(family.identity(dtype=DOUBLE), size), target)
    assert family.box(theta).shape == (2, 3, 2**family.dims, family.dims)
    at = scattered(5, family.dims)
    close(family.map_points(theta, family.points(theta, at)), at.expand(2, 3, -1, -1), atol=1e-8)
    with pytest.raises(NotImplementedError):
        family.crop((0.0,) * family.dims, (1.0,) * family.dims)


@own
@pytest.mark.parametrize("antialias", [False, True])
def test_ones_own_in_warp(family, antialias):
    image = torch.rand(2, 2, *SIZES[family.dims], dtype=DOUBLE)
    theta = some(family, 2, 3, spread=0.3)
    out = (4, 3, 5)[: family.dims]
    ours, *others = (st.warp(image, theta, family, size=out, antialias=antialias, impl=i) for i in IMPLS)
    assert ours.shape == (2, 3, 2, *out)
    for theirs in others:
        close(ours, theirs, atol=1e-12)
    if not antialias:  # where sample() takes the footprint from the grid
        close(ours, st.sample(image, family.grid(theta, out), impl="reference"), atol=1e-12)


@own
@pytest.mark.parametrize("impl", IMPLS)
def test_ones_own_gradients(family, impl):
    image = torch.rand(1, 1, *SIZES[family.dims], dtype=DOUBLE, requires_grad=True)
    theta = some(family, 1, spread=0.3, seed=2).requires_grad_()
    out = (3, 2, 3)[: family.dims]

    def warp(image, theta):
        return st.warp(image, theta, family, size=out, padding="border", impl=impl)

    assert torch.autograd.gradcheck(warp, (image, theta))


@own
def test_ones_own_antialiased_gradients(family):
    image = torch.rand(1, 1, *SIZES[family.dims], dtype=DOUBLE)
    theta = some(family, 1, spread=0.3, seed=2).requires_grad_()
    out = (3, 2, 2)[: family.dims]

    def warp(theta):
        return st.warp(image, theta, family, size=out, padding="border", antialias=3)

    assert torch.autograd.gradcheck(warp, theta)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("impl", IMPLS)
def test_anti_aliasing_through_points_is_that_through_a_matrix(dims, impl):
    image = torch.rand(1, 1, *(12, 13, 9)[:dims], dtype=DOUBLE)
    theta = torch.tensor([[1.7]], dtype=DOUBLE)
    attention = torch.tensor([[1.7] + [0.0] * dims], dtype=DOUBLE)
    options = {"size": (4, 5, 3)[:dims], "antialias": True, "impl": impl}
    widened = st.warp(image, theta, Zoom(dims), **options)
    close(widened, st.warp(image, attention, st.Attention(dims=dims), **options), atol=1e-10)
    assert (widened - st.warp(image, theta, Zoom(dims), **options | {"antialias": False})).abs().max() > 0.05


@own
def test_ones_own_in_a_module(family):
    size = SIZES[family.dims]
    transformer = st.SpatialTransformer(st.DenseLocaliser(1, size), family)
    image = torch.rand(2, 1, *size)
    close(transformer(image), image, atol=1e-5)
    (transformer(image) * torch.rand_like(image)).sum().backward()
    assert transformer.head.weight.grad.abs().max() > 0


def test_ones_own_pinned():
    theta = torch.zeros(2, 0)
    pinned = Shear(shear=0.5)
    assert pinned.num_params == 0
    close(pinned.grid(theta, (5, 4)), Shear().grid(torch.full((2, 1), 0.5), (5, 4)))
