"""The eight families and families of one's own: theta to matrices, grids, points and boxes, and back."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from family_cases import (
    DOUBLE,
    HOMOGENEOUS,
    IMPLS,
    LATTICES,
    SIZES,
    close,
    families,
    lattice,
    named,
    scattered,
    some,
)

import spatial_transformer as st

pytestmark = pytest.mark.usefixtures("one_thread", "seed")


every = pytest.mark.parametrize("family", families(), ids=named)
closed = pytest.mark.parametrize("family", [f for f in families() if isinstance(f, HOMOGENEOUS)], ids=named)


# theta, M_theta and B


@pytest.mark.parametrize(
    ("family", "flat", "solid"),
    [
        (st.Translation, 2, 3),
        (st.Attention, 3, 4),
        (st.Similarity, 4, 7),
        (st.Affine, 6, 12),
        (st.Projective, 8, 15),
    ],
)
def test_how_many_numbers(family, flat, solid):
    assert family().dims == 2
    assert (family().num_params, family(dims=3).num_params) == (flat, solid)
    assert family().identity().shape == (flat,)


@pytest.mark.parametrize("family", [st.ThinPlateSpline, st.PiecewiseAffine, st.LearnedBasis])
def test_how_many_numbers_for_control_points(family):
    assert family().num_params == 2 * 16  # the paper's 4 x 4
    size = {"size": (2, 3, 4)} if family is st.LearnedBasis else {}
    assert family((2, 3)).num_params == 2 * 6
    assert family((2, 3, 4), **size).num_params == 3 * 24


def test_how_many_numbers_for_a_learned_basis():
    assert st.LearnedBasis(9, (5, 4)).num_params == 18
    assert st.LearnedBasis(27, (5, 4, 3)).num_params == 81
    assert st.LearnedBasis(3, (5, 4), start="homogeneous").num_params == 6
    assert st.LearnedBasis(9, (5, 4)).B.shape == (9, 20)


def framed(family, align_corners):
    """The same family; a LearnedBasis is made for one frame."""
    if isinstance(family, st.LearnedBasis):
        start = "homogeneous" if "homogeneous" in named(family) else "spline"
        points = family.dims + 1 if start == "homogeneous" else LATTICES[family.dims]
        return st.LearnedBasis(points, family.size, start=start, align_corners=align_corners).double()
    return family


@every
@pytest.mark.parametrize("align_corners", [False, True])
def test_identity(family, align_corners):
    family, size = framed(family, align_corners), SIZES[family.dims]
    grid = family.grid(family.identity(dtype=DOUBLE), size, align_corners)
    # B of a LearnedBasis was float32 once
    close(grid, lattice(size, align_corners), atol=1e-6 if isinstance(family, st.LearnedBasis) else 1e-15)


@every
@pytest.mark.parametrize("align_corners", [False, True])
def test_matrix_times_basis_is_the_grid(family, align_corners):
    family, size = framed(family, align_corners), SIZES[family.dims]
    theta = some(family, 2, 3)
    flat = family.matrix(theta) @ family.basis(size, align_corners, dtype=DOUBLE)
    if isinstance(family, st.Projective):
        assert not torch.allclose(flat[..., -1, :], torch.ones((), dtype=DOUBLE))
        flat = flat[..., :-1, :] / flat[..., -1:, :]
    grid = family.grid(theta, size, align_corners)
    assert grid.shape == (2, 3, *size, family.dims)
    close(grid, flat.transpose(-1, -2).unflatten(-2, size))


@every
def test_the_grid_is_its_points(family):
    size, theta = SIZES[family.dims], some(family, 2, 3)
    target = lattice(size).reshape(-1, family.dims)
    found = family.points(theta, target)
    close(found.unflatten(-2, size), family.grid(theta, size))
    # points of each sample's own
    each = family.points(theta, torch.stack([target, -target])[:, None].expand(2, 3, -1, -1))
    close(each[0], found[0])
    close(each[1], family.points(theta[1], -target))


@every
def test_box_is_the_corners(family):
    theta = some(family, 2, 3)
    if family.dims == 2:
        corners = [(-1, -1), (1, -1), (1, 1), (-1, 1)]  # round
    else:
        corners = [(x, y, z) for z in (-1, 1) for y in (-1, 1) for x in (-1, 1)]
    corners = torch.tensor(corners, dtype=DOUBLE)
    box = family.box(theta)
    assert box.shape == (2, 3, 2**family.dims, family.dims)
    close(box, family.points(theta, corners))
    close(family.box(family.identity(dtype=DOUBLE)), corners, atol=1e-5)


def test_box_of_a_known_crop():
    box = st.Attention().box(torch.tensor([0.5, 0.25, -0.5]))
    assert box.tolist() == [[-0.25, -1.0], [0.75, -1.0], [0.75, 0.0], [-0.25, 0.0]]


@every
def test_coordinates_are_float32_at_least(family):
    family = copy.deepcopy(family).float()
    theta = family.identity(dtype=torch.bfloat16)
    assert theta.dtype == torch.bfloat16
    grid = family.grid(theta, SIZES[family.dims])
    box = family.box(theta)
    assert grid.dtype == box.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(family.grid(theta, SIZES[family.dims]), grid)


def test_paper_equation_2():
    matrix = st.Attention().matrix(torch.tensor([0.5, 0.1, 0.2]))
    assert torch.equal(matrix, torch.tensor([[0.5, 0, 0.1], [0, 0.5, 0.2]]))


def test_paper_equation_1():
    theta = torch.arange(12.0)
    assert torch.equal(st.Affine(dims=3).matrix(theta), theta.view(3, 4))
    assert torch.equal(st.Projective().matrix(theta[:8]), torch.tensor([[0.0, 1, 2], [3, 4, 5], [6, 7, 1]]))
    # a point at (1, 0): the first column and the last
    assert st.Affine().points(theta[:6], torch.tensor([[1.0, 0.0]])).tolist() == [[2.0, 8.0]]


# Pinned in part


@pytest.mark.parametrize(
    ("free", "pinned", "numbers"),
    [
        (st.Attention(), st.Attention(scale=0.5), {0: 0.5}),
        (st.Attention(dims=3), st.Attention(dims=3, scale=0.5, z=-0.25), {0: 0.5, 3: -0.25}),
        (st.Affine(), st.Affine(theta_12=0, theta_21=0), {1: 0.0, 3: 0.0}),
        (st.Affine(dims=3), st.Affine(dims=3, theta_34=0.5), {11: 0.5}),
        (st.Translation(), st.Translation(x=0.1), {0: 0.1}),
        (st.Similarity(), st.Similarity(b=0.3, y=0), {1: 0.3, 3: 0.0}),
        (st.Similarity(dims=3), st.Similarity(dims=3, qx=0.2), {1: 0.2}),
        (st.Projective(), st.Projective(theta_31=0.1), {6: 0.1}),
        (st.ThinPlateSpline(), st.ThinPlateSpline(x_0=-0.9, y_5=0.1), {0: -0.9, 11: 0.1}),
        (st.PiecewiseAffine((2, 3, 2)), st.PiecewiseAffine((2, 3, 2), z_11=0.8), {35: 0.8}),
        (st.LearnedBasis(9, (5, 4)), st.LearnedBasis(9, (5, 4), x_4=0.2), {8: 0.2}),
    ],
    ids=lambda given: named(given) if isinstance(given, st.Family) else "",
)
def test_pinned_numbers_leave_theta(free, pinned, numbers):
    assert pinned.num_params == free.num_params - len(numbers)
    theta = some(pinned, 2)
    whole = torch.zeros(2, free.num_params, dtype=DOUBLE)
    kept = [i for i in range(free.num_params) if i not in numbers]
    whole[:, kept] = theta
    for place, number in numbers.items():
        whole[:, place] = number
    size = SIZES[free.dims]
    close(pinned.grid(theta, size), free.grid(whole, size), atol=1e-15)
    close(pinned.full(theta), whole)
    close(pinned.free(whole), theta)
    close(pinned.identity(), free.identity()[kept])
    image = torch.rand(2, 1, *size, dtype=DOUBLE)
    for impl in IMPLS:
        close(st.warp(image, theta, pinned, impl=impl), st.warp(image, whole, free, impl=impl), atol=1e-15)


def test_none_does_not_pin():
    assert st.Attention(scale=None).num_params == 3


PINNED = [st.Attention(scale=0.5), st.Affine(theta_12=0), st.Similarity(dims=3, x=0)]


@pytest.mark.parametrize("pinned", PINNED, ids=named)
def test_pinned_families_are_not_closed(pinned):
    theta = pinned.identity()
    for method, thetas in (("inverse", [theta]), ("compose", [theta, theta])):
        with pytest.raises(ValueError, match=rf"{method}\(\) needs .*{next(iter(pinned.pinned))}"):
            getattr(pinned, method)(*thetas)


# Closed families


@closed
def test_inverse(family):
    theta = some(family, 2, 50, spread=0.2)
    back = family.inverse(theta)
    assert back.shape == theta.shape
    points = scattered(7, family.dims)
    same = points.expand(2, 50, -1, -1)
    close(family.points(back, family.points(theta, points)), same, atol=1e-9)
    close(family.points(theta, family.points(back, points)), same, atol=1e-9)
    assert not torch.allclose(back, theta, atol=1e-2)


@closed
def test_compose_on_points(family):
    first, then = some(family, 2, 50, spread=0.2), some(family, 2, 50, spread=0.2, seed=5)
    both = family.compose(first, then)
    points = scattered(7, family.dims)
    close(family.points(both, points), family.points(first, family.points(then, points)), atol=1e-10)
    one = family.compose(first[0, 0], then)  # leading axes broadcast
    close(one[0, 0], both[0, 0])
    assert one.shape == then.shape


@closed
def test_composing_with_the_inverse_is_the_identity(family):
    theta = some(family, 20, spread=0.2)
    nothing = family.compose(theta, family.inverse(theta))
    if isinstance(family, st.Similarity) and family.dims == 3:
        nothing = nothing * nothing[..., :1].sign()  # q and -q are the same rotation
    close(nothing, family.identity(dtype=DOUBLE).expand_as(theta), atol=1e-10)


def smooth(dims):
    """A picture without sharp edges, unlike itself when mirrored or turned. float64 [1, 1, *size]"""
    points = lattice((48, 52) if dims == 2 else (28, 26, 30))
    centre = torch.tensor([0.2, -0.1, 0.15], dtype=DOUBLE)[:dims]
    value = (-2 * (points - centre).square().sum(-1)).exp() * (1 + points[..., 0] - points[..., 1] / 2)
    return value[None, None]


@closed
@pytest.mark.parametrize("impl", IMPLS)
def test_compose_on_images(family, impl):
    # Both look inside the image, so that padding plays no part.
    image, dims = smooth(family.dims), family.dims
    first, then = (some(family, 1, spread=0.03, seed=s) - family.identity() for s in (0, 5))
    first += family.crop((0.0,) * dims, (0.7,) * dims)
    then += family.crop((0.3, -0.2, 0.25)[:dims], (0.6,) * dims)

    def warp(image, theta):
        return st.warp(image, theta, family, padding="border", impl=impl)

    twice = warp(warp(image, first), then)

    def error(theta):
        inner = (slice(None), slice(None), *[slice(n // 5, -(n // 5)) for n in image.shape[2:]])
        return (warp(image, theta) - twice)[inner].abs().max().item()

    right, wrong = error(family.compose(first, then)), error(family.compose(then, first))
    assert right < (0.004 if dims == 2 else 0.015)  # a bilinear kernel's h^2 / 8 times the curvature, twice
    if not isinstance(family, st.Translation):  # which commute
        assert wrong > 8 * right


@closed
def test_a_singular_theta_has_no_inverse_and_harms_no_other(family):
    theta = some(family, 3, spread=0.2)
    if isinstance(family, st.Translation):
        theta[1] = math.nan  # every finite shift can be undone
    else:
        theta[1] = 0.0
    back = family.inverse(theta)
    assert back[1].isnan().all()
    assert torch.equal(back[0], family.inverse(theta[0]))
    assert torch.equal(back[2], family.inverse(theta[2]))
    points = scattered(4, family.dims)
    mapped = family.map_points(theta, points)
    assert mapped[1].isnan().all()
    assert mapped[[0, 2]].isfinite().all()
    both = family.compose(theta, some(family, 3, seed=5))
    assert both[[0, 2]].isfinite().all()


def test_a_projective_inverse_that_the_family_does_not_hold():
    # Its inverse matrix has 0 where theta has its fixed 1.
    back = st.Projective().inverse(torch.tensor([[0.0, 0, 1, 0, 1, 0, 1, 0], [1, 0, 0, 0, 1, 0, 0, 0]]))
    assert back[0].isnan().all()
    assert torch.equal(back[1], st.Projective().identity())


@pytest.mark.parametrize("family", [st.Affine(), st.Projective(), st.Similarity(3)], ids=named)
def test_a_singular_theta_sends_no_nan_back(family):
    theta = family.identity(dtype=torch.float64).repeat(2, 1)
    theta[1] = 0.0
    if isinstance(family, st.Projective):
        theta[1, 0] = 1.0  # rank two
    theta.requires_grad_()
    family.inverse(theta)[0].sum().backward()
    assert theta.grad.isfinite().all()
    assert theta.grad[0].abs().max() > 0


# What lies in the image, mapped along with it


@every
def test_map_points_undoes_points(family):
    theta = some(family, 2, 3, spread=0.05)
    target = scattered(6, family.dims)
    source = family.points(theta, target)
    assert (source - target).abs().max() > 0.01
    close(family.map_points(theta, source), target.expand_as(source), atol=1e-7)
    # the same points for every theta
    close(family.points(theta, family.map_points(theta, target)), target.expand_as(source), atol=1e-7)
    assert family.map_points(theta[0, 0].float(), target.float()).dtype == torch.float32


@every
def test_map_boxes_bounds_the_mapped_corners(family):
    dims, theta = family.dims, some(family, 2, spread=0.05)
    low = scattered(4, dims) / 2 - 0.2
    high = low + 0.3 + torch.rand(4, dims, dtype=DOUBLE, generator=torch.Generator().manual_seed(3)) / 4
    mapped = family.map_boxes(theta, torch.cat([low, high], dim=-1))
    assert mapped.shape == (2, 4, 2 * dims)
    ends = [zip(low[number].tolist(), high[number].tolist(), strict=True) for number in range(4)]
    corners = torch.tensor([corner for pairs in ends for corner in itertools.product(*pairs)], dtype=DOUBLE)
    appear = family.map_points(theta, corners).unflatten(-2, (4, -1))
    close(mapped, torch.cat([appear.amin(-2), appear.amax(-2)], dim=-1), atol=1e-9)


def test_map_boxes_of_a_known_crop():
    # Looking at the right half, [0, 1], twice as large: x' = 2 x - 1
    theta = st.Affine().crop((0.5, 0.0), (0.5, 1.0))
    box = st.Affine().map_boxes(theta, torch.tensor([[0.25, -0.5, 0.75, 0.5]]))
    close(box, torch.tensor([[-0.5, -0.5, 0.5, 0.5]]))


def test_a_box_that_the_horizon_crosses_has_none():
    family = st.Projective()
    theta = family.identity()
    theta[6] = 0.9
    found = family.map_boxes(theta, torch.tensor([[-0.9, -0.9, 1.3, 0.9], [-0.5, -0.5, 0.5, 0.5]]))
    assert found[0].isnan().all()
    corners = family.map_points(theta, torch.tensor([[-0.5, -0.5], [-0.5, 0.5], [0.5, -0.5], [0.5, 0.5]]))
    close(found[1], torch.cat([corners.amin(0), corners.amax(0)]), atol=1e-6)


def test_a_point_that_appears_nowhere():
    flat = st.PiecewiseAffine((2, 2))
    theta = torch.tensor([[0.0, 0, 0, 0, 0, 0, 0, 0]])  # every pixel looks at the centre
    assert flat.map_points(theta, torch.tensor([[0.5, 0.5]])).isnan().all()


# Similarity


def test_similarity_2d():
    theta = some(st.Similarity(), 50, spread=1.0)
    a, b, x, y = theta.unbind(-1)
    matrix = st.Similarity().matrix(theta)
    linear, scale = matrix[..., :2], torch.hypot(a, b)
    close(linear.mT @ linear, scale.square()[:, None, None] * torch.eye(2, dtype=DOUBLE), atol=1e-10)
    close(torch.linalg.det(linear), scale.square(), atol=1e-10)
    close(matrix[..., 2], torch.stack([x, y], dim=-1))
    close(torch.atan2(linear[:, 1, 0], linear[:, 0, 0]), torch.atan2(b, a))
    quarter = st.Similarity().points(torch.tensor([0.0, 1, 0, 0]), torch.tensor([[1.0, 0.0]]))
    assert quarter.tolist() == [[0.0, 1.0]]


def test_similarity_3d():
    family = st.Similarity(dims=3)
    theta = some(family, 50, spread=1.0)
    linear, scale = family.matrix(theta)[..., :3], theta[:, :4].square().sum(-1)
    close(linear.mT @ linear, scale.square()[:, None, None] * torch.eye(3, dtype=DOUBLE), atol=1e-9)
    close(torch.linalg.det(linear), scale**3, atol=1e-7)
    close(family.matrix(theta)[..., 3], theta[:, 4:])
    close(family.matrix(torch.cat([-theta[:, :4], theta[:, 4:]], dim=-1)), family.matrix(theta))


@pytest.mark.parametrize(("axis", "start", "end"), [(0, [0, 1, 0], [0, 0, 1]), (1, [0, 0, 1], [1, 0, 0]),
                                                    (2, [1, 0, 0], [0, 1, 0])])  # fmt: skip
def test_a_quaternion_turns_by_the_right_hand(axis, start, end):
    half = math.sqrt(0.5)  # a quarter turn
    theta = torch.zeros(7, dtype=DOUBLE)
    theta[0] = theta[1 + axis] = half
    found = st.Similarity(dims=3).points(theta, torch.tensor([start], dtype=DOUBLE))
    close(found, torch.tensor([end], dtype=DOUBLE))


# Crops


@pytest.mark.parametrize(
    ("family", "scale"),
    [
        (st.Translation(), (1.0, 1.0)),
        (st.Attention(), (0.5, 0.5)),
        (st.Attention(scale=0.5), (0.5, 0.5)),
        (st.Similarity(), (0.5, 0.5)),
        (st.Affine(), (0.5, 0.25)),
        (st.Affine(theta_12=0, theta_21=0), (0.5, 0.25)),
        (st.Projective(), (0.5, 0.25)),
        (st.ThinPlateSpline(), (0.5, 0.25)),
        (st.PiecewiseAffine(), (0.5, 0.25)),
        (st.LearnedBasis(9, (5, 4)), (0.5, 0.25)),
        (st.LearnedBasis(3, (5, 4), start="homogeneous"), (0.5, 0.25)),
        (st.Translation(dims=3), (1.0, 1.0, 1.0)),
        (st.Attention(dims=3), (0.5, 0.5, 0.5)),
        (st.Similarity(dims=3), (0.5, 0.5, 0.5)),
        (st.Affine(dims=3), (0.5, 0.25, 0.75)),
        (st.Projective(dims=3), (0.5, 0.25, 0.75)),
        (st.ThinPlateSpline((2, 3, 2)), (0.5, 0.25, 0.75)),
        (st.PiecewiseAffine((2, 3, 2)), (0.5, 0.25, 0.75)),
        (st.LearnedBasis(8, (5, 4, 3)), (0.5, 0.25, 0.75)),
        (st.LearnedBasis(4, (5, 4, 3), start="homogeneous"), (0.5, 0.25, 0.75)),
    ],
    ids=lambda given: named(given) if isinstance(given, st.Family) else "",
)
def test_crop_looks_at_the_box(family, scale):
    centre = (0.25, -0.5, 0.125)[: family.dims]
    theta = family.crop(centre, scale)
    assert theta.shape == (family.num_params,)
    assert theta.dtype == torch.float32
    box = family.box(theta)
    close(box.amin(0), torch.tensor(centre) - torch.tensor(scale), atol=1e-5)
    close(box.amax(0), torch.tensor(centre) + torch.tensor(scale), atol=1e-5)
    close(box[0], torch.tensor(centre) - torch.tensor(scale), atol=1e-5)  # not mirrored or turned


# What is refused

EVERY_2D = (
    st.Affine(),
    st.Projective(),
    st.ThinPlateSpline(),
    st.PiecewiseAffine(),
    st.LearnedBasis(4, (8, 8)),
)


@pytest.mark.parametrize("family", EVERY_2D, ids=lambda family: type(family).__name__)
def test_points_and_boxes_of_other_dimensions_are_refused(family):
    theta = family.identity()[None]
    for method in (family.points, family.map_points):
        with pytest.raises(ValueError, match=r"points must be \[\.\.\., n, 2\], got \[4, 3\]"):
            method(theta, torch.rand(4, 3))
    for shape in ((4, 3), (4,)):
        with pytest.raises(ValueError, match=r"boxes must be \[\.\.\., n, 4\], got"):
            family.map_boxes(theta, torch.rand(*shape))


@pytest.mark.parametrize("size", [5, "55", (0, 5), (4.5, 5), (5,)])
def test_grids_of_no_size_are_refused(size):
    with pytest.raises(ValueError, match="size must be"):
        st.Affine().grid(torch.tensor([[1.0, 0, 0, 0, 1, 0]]), size)


def test_crops_need_a_number_for_each_axis():
    with pytest.raises(ValueError, match=r"centre must be 2 numbers, got \[0\]"):
        st.Affine().crop([0], [1])
