"""The families through control points: where theta sends them, and what lies between."""

from __future__ import annotations

import itertools

import pytest
import torch
from family_cases import DOUBLE, SIZES, close, families, named, scattered, some

import spatial_transformer as st

pytestmark = pytest.mark.usefixtures("one_thread", "seed")


@pytest.mark.parametrize("family", [st.ThinPlateSpline, st.PiecewiseAffine])
@pytest.mark.parametrize("lattice", [(2, 2), (4, 4), (3, 5), (2, 2, 2), (2, 4, 3)])
def test_control_points_go_where_theta_says(family, lattice):
    family = family(lattice)
    theta = some(family, 3, spread=0.5)
    wanted = theta.unflatten(-1, (-1, family.dims))
    at = family.identity(dtype=DOUBLE).unflatten(-1, (-1, family.dims))
    close(family.points(theta, at), wanted)
    # the lattice is the pixels of a picture of its own size, corner to corner
    close(family.grid(theta, lattice, align_corners=True).flatten(1, -2), wanted)


@pytest.mark.parametrize("family", [f for f in families() if f.num_params > 15], ids=named)
def test_control_points_moved_by_an_affine_map_move_everything_by_it(family):
    dims = family.dims
    matrix = some(st.Affine(dims=dims), 1, spread=0.3)
    at = family.identity(dtype=DOUBLE).unflatten(-1, (-1, dims))
    theta = st.Affine(dims=dims).points(matrix, at).flatten(-2)
    tolerance = 1e-5 if isinstance(family, st.LearnedBasis) else 1e-12  # its B is float32
    points = scattered(9, dims)
    close(family.points(theta, points), st.Affine(dims=dims).points(matrix, points), atol=tolerance)
    size = SIZES[dims]
    close(family.grid(theta, size), st.Affine(dims=dims).grid(matrix, size), atol=tolerance)


@pytest.mark.parametrize(("lattice", "kernel"), [((4, 4), "thin_plate_spline"), ((3, 3, 3), "linear")])
def test_thin_plate_spline_is_scipys(lattice, kernel):
    interpolate = pytest.importorskip("scipy.interpolate")
    family = st.ThinPlateSpline(lattice)
    theta = some(family, 1, spread=0.2)[0]
    at = family.identity(dtype=DOUBLE).unflatten(-1, (-1, family.dims))
    to = theta.unflatten(-1, (-1, family.dims))
    peer = interpolate.RBFInterpolator(at.numpy(), to.numpy(), kernel=kernel, degree=1)
    points = scattered(20, family.dims)
    close(family.points(theta, points), torch.from_numpy(peer(points.numpy())), atol=1e-10)


@pytest.mark.parametrize("lattice", [(4, 3), (2, 2), (3, 2, 4)])
def test_piecewise_affine_in_every_simplex(lattice):
    """Inside a triangle (tetrahedron) between lattice points, the affine map of its corners."""
    family = st.PiecewiseAffine(lattice)
    dims = family.dims
    theta = some(family, 1, spread=0.3)[0]
    at = family.identity(dtype=DOUBLE).reshape(*lattice, dims)
    to = theta.reshape(*lattice, dims)
    shares = torch.distributions.Dirichlet(torch.ones(dims + 1, dtype=DOUBLE)).sample((5,))
    for cell in itertools.product(*[range(n - 1) for n in lattice]):
        for order in itertools.permutations(range(dims)):
            corner, path = list(cell), [tuple(cell)]
            for axis in order:  # from the least corner to the greatest, along each axis in turn
                corner[axis] += 1
                path.append(tuple(corner))
            target = shares @ torch.stack([at[vertex] for vertex in path])
            source = shares @ torch.stack([to[vertex] for vertex in path])
            close(family.points(theta, target), source)


@pytest.mark.parametrize("lattice", [(4, 3), (3, 2, 4)])
def test_piecewise_affine_is_continuous(lattice):
    family = st.PiecewiseAffine(lattice)
    theta = some(family, 1, spread=0.3)[0]
    start, end = scattered(30, family.dims, seed=2), scattered(30, family.dims, seed=3)
    along = torch.linspace(0, 1, 400, dtype=DOUBLE)[:, None, None]
    line = family.points(theta, (start + along * (end - start)).flatten(0, 1)).unflatten(0, (400, 30))
    jumps = (line[1:] - line[:-1]).norm(dim=-1)
    length = (end - start).norm(dim=-1) / 399
    # 1 + 2 x (moves of a few tenths) / (cells of 2/3 and more): no map of theirs stretches by 10
    assert (jumps < 10 * length).all()


def test_piecewise_affine_bends_at_its_edges_only():
    family = st.PiecewiseAffine((3, 3))
    theta = some(family, 1, spread=0.3)[0]

    def slope(x, y):
        at = torch.tensor([[x, y], [x + 1e-6, y], [x, y + 1e-6]], dtype=DOUBLE)
        source = family.points(theta, at)
        return (source[1:] - source[0]) / 1e-6

    close(slope(-0.7, -0.4), slope(-0.4, -0.2), atol=1e-8)  # above the diagonal of the first cell, both
    assert (slope(-0.7, -0.4) - slope(-0.4, -0.7)).abs().max() > 0.1  # below it
    assert (slope(-0.7, -0.4) - slope(0.3, -0.4)).abs().max() > 0.1  # in the next
