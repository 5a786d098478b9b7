"""Anti-aliasing: against images whose right answer is known, by hand, and plain where nothing shrinks."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import spatial_transformer as st

IMPLS = ("reference", "torch", "fused")
every_impl = pytest.mark.parametrize("impl", IMPLS)
both_corners = pytest.mark.parametrize("align_corners", [False, True])

# float64 sums of up to 1024 terms of size 1.
EXACT = 1e-12

# A hat widened to the footprint reaches one output pixel to either side: beyond lies padding.
INSIDE = (..., slice(1, -1), slice(1, -1))


def noise(*shape, seed=0):
    """Uniform noise. float64"""
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def normal(*shape, seed=0):
    """Normal noise. float64"""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(ours, theirs, atol):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def checkerboard(*size):
    """Zeros and ones in turn along every axis. [1, 1, *size]"""
    parity = sum(torch.meshgrid(*[torch.arange(length) for length in size], indexing="ij"))
    return (parity % 2).double()[None, None]


def zone_plate(size):
    """Rings from no frequency in the middle to the highest a pixel can hold at the rim. [1, 1, size, size]"""
    along = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    squared = along[:, None] ** 2 + along**2
    return (0.5 + 0.5 * torch.cos(math.pi * squared / size))[None, None]


def shrunk(image, size, *, shift=0.0, align_corners=False, **options):
    """The whole image at another size, read ``shift`` input pixels further along every axis."""
    spans = [length - 1 if align_corners else length for length in reversed(image.shape[2:])]
    theta = torch.tensor([[2 * shift / span for span in spans]], dtype=image.dtype)
    family = st.Translation(image.ndim - 2)
    return st.warp(image, theta, family, size=size, align_corners=align_corners, **options)


# Images whose right answer is known


@every_impl
@pytest.mark.parametrize("shift", [0, 0.25, 0.5])
@pytest.mark.parametrize(
    ("size", "out", "align_corners"),
    [
        pytest.param((128, 96), (16, 12), False, id="by 8"),
        pytest.param((121, 97), (16, 13), True, id="by 8, corners"),
        pytest.param((128, 96), (16, 12), True, id="by 8.5 and 8.6, held at 8, corners"),
    ],
)
def test_checkerboard_is_grey(size, out, align_corners, shift, impl):
    result = shrunk(
        checkerboard(*size), out, shift=shift, align_corners=align_corners, antialias=True, impl=impl
    )
    # A hat of a whole number of periods cancels the board exactly; 0.02 is what is promised.
    close(result[INSIDE], torch.full_like(result, 0.5)[INSIDE], EXACT)
    plain = shrunk(checkerboard(*size), out, shift=0.25, align_corners=align_corners, impl=impl)
    assert (plain - 0.5)[INSIDE].abs().max() > 0.1


@pytest.mark.parametrize(("size", "out"), [(53, 10), (37, 10), (50, 20)], ids=["by 5.3", "by 3.7", "by 2.5"])
def test_checkerboard_between_whole_factors(size, out):
    result = shrunk(checkerboard(size, size), (out, out), antialias=True)
    # By Poisson's formula a hat of width s leaves at most sum_n sinc^2(s (n + 1/2)) <= 1 / s^2 of an
    # alternating row; of the board the product of two, half of it for an amplitude of 1/2.
    bound = 0.5 * (out / size) ** 4
    assert (result - 0.5)[INSIDE].abs().max() < bound


@every_impl
@pytest.mark.parametrize("shift", [0, 0.25, 0.5])
def test_checkerboard_3d(shift, impl):
    board = checkerboard(32, 24, 40)
    inside = (..., *[slice(1, -1)] * 3)
    result = shrunk(board, (8, 6, 10), shift=shift, antialias=4, impl=impl)
    close(result[inside], torch.full_like(result, 0.5)[inside], EXACT)  # as in 2D
    plain = shrunk(board, (8, 6, 10), shift=0.5, impl=impl)  # every sample on a pixel of one colour
    close((plain - 0.5)[inside].abs(), torch.full_like(plain, 0.5)[inside], EXACT)


@every_impl
@pytest.mark.parametrize("name", ["zone plate", "noise"])
def test_reduction_by_8_is_near_the_area_mean(name, impl):
    image = zone_plate(256) if name == "zone plate" else noise(1, 1, 256, 256)
    mean = F.avg_pool2d(image, 8)

    def rms(**options):
        return (shrunk(image, (32, 32), impl=impl, **options) - mean)[INSIDE].square().mean().sqrt()

    # A hat is no box: on noise they differ by sqrt((1/64 + 1/144 - 2 (3/32)^2) / 12) = 0.020.
    assert rms(antialias=True) < 0.03
    assert rms() > 0.1


@both_corners
@pytest.mark.parametrize("kernel", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("padding", ["border", "reflection", "circular", 0.3])
def test_constant_stays_constant(padding, kernel, align_corners):
    image = torch.full((4, 2, 13, 10), 0.3, dtype=torch.float64)
    # A shrink by 1.3 to 2.6, one by 20 (beyond the limit), a turned and sheared one, and a magnification.
    theta = torch.tensor(
        [[1, 0, 0, 0, 1, 0], [9, 0, 0.2, 0, 8, 0], [2, -1.3, 0.4, 0.7, 1.6, 0], [0.3, 0.1, 0, 0, 0.2, 0.5]],
        dtype=torch.float64,
    )
    options = {"kernel": kernel, "padding": padding, "align_corners": align_corners, "antialias": 5}
    result = st.warp(image, theta, st.Affine(), size=(5, 8), **options)
    close(result, torch.full_like(result, 0.3), EXACT)


# By hand


def hat(distance):
    return max(0.0, 1 - abs(distance))


def widened(position, footprint):
    """The widened hat's weights by pixel, those outside the image included: they sum to one."""
    reach = range(math.floor(position - footprint) - 1, math.ceil(position + footprint) + 2)
    weights = {m: hat((position - m) / footprint) for m in reach}
    total = sum(weights.values())
    return {m: weight / total for m, weight in weights.items() if weight}


def read_by_hand(image, positions, jacobian, limit):
    """V of equation 3 for the widened hat, zeros outside, pixel after pixel.

    image [H, W]; positions [H', W', 2] (x, y) in input pixels, jacobian [H', W', 2, 2] their slopes: input
    axis, output axis.
    """
    height, width = image.shape
    result = np.zeros(positions.shape[:2])
    for i, j in np.ndindex(result.shape):
        x, y = positions[i, j]
        across, down = (min(max(math.hypot(*row), 1.0), limit) for row in jacobian[i, j])
        for n, weight_y in widened(y, down).items():
            for m, weight_x in widened(x, across).items():
                if 0 <= n < height and 0 <= m < width:
                    result[i, j] += image[n, m] * weight_y * weight_x
    return torch.from_numpy(result)


def affine_by_hand(theta, size, out, align_corners):
    """Positions and Jacobian for ``read_by_hand``, of an affine theta [2, 3]."""
    linear, shift = theta.numpy()[:, :2], theta.numpy()[:, 2]
    size, out = np.array(size[::-1]), np.array(out[::-1])  # x first
    less = 1 if align_corners else 0
    y, x = np.mgrid[: out[1], : out[0]]
    target = (2 * np.stack([x, y], -1) - (out - 1)) / (out - less)
    positions = (target @ linear.T + shift) * (size - less) / 2 + (size - 1) / 2
    jacobian = linear * (size - less)[:, None] / (out - less)
    return positions, np.broadcast_to(jacobian, (*positions.shape, 2))


@every_impl
@both_corners
@pytest.mark.parametrize("seed", range(3))
def test_widened_hat_by_hand(seed, align_corners, impl):
    image, out = noise(14, 11, seed=seed), (5, 6)
    theta = torch.eye(2, 3, dtype=torch.float64) + 0.4 * normal(2, 3, seed=seed)
    options = {"size": out, "align_corners": align_corners, "antialias": True, "impl": impl}
    ours = st.warp(image[None, None], theta.reshape(1, 6), st.Affine(), **options)
    hand = affine_by_hand(theta, (14, 11), out, align_corners)
    close(ours[0, 0], read_by_hand(image.numpy(), *hand, limit=8), EXACT)


@both_corners
def test_projective_footprints_by_hand(align_corners):
    family, size, out = st.Projective(), (17, 14), (5, 6)
    image = noise(*size)
    theta = torch.tensor([1.1, 0.2, 0.1, -0.3, 0.9, 0.05, 0.3, -0.25], dtype=torch.float64)
    less = 1 if align_corners else 0
    span_in, span_out = torch.tensor([size[1], size[0]]) - less, torch.tensor([out[1], out[0]]) - less
    y, x = torch.meshgrid(torch.arange(5.0), torch.arange(6.0), indexing="ij")
    target = (2 * torch.stack([x, y], -1).double() - torch.tensor([5, 4])) / span_out

    def pixel(point):
        return family.points(theta, point[None])[0] * span_in / 2 + torch.tensor([13, 16]) / 2

    positions = torch.stack([pixel(point) for point in target.reshape(-1, 2)]).reshape(5, 6, 2)
    slopes = [
        torch.autograd.functional.jacobian(pixel, point) * 2 / span_out for point in target.reshape(-1, 2)
    ]
    jacobian = torch.stack(slopes).reshape(5, 6, 2, 2)
    assert jacobian.norm(dim=-1).std() > 0.2  # footprints differ from pixel to pixel
    ours = st.warp(
        image[None, None], theta[None], family, size=out, align_corners=align_corners, antialias=True
    )
    close(ours[0, 0], read_by_hand(image.numpy(), positions.numpy(), jacobian.numpy(), limit=8), EXACT)


CONTROL = {
    "ThinPlateSpline": st.ThinPlateSpline((3, 4)),
    "PiecewiseAffine": st.PiecewiseAffine((3, 4)),
    "ThinPlateSpline 3D": st.ThinPlateSpline((2, 3, 3)),
    "PiecewiseAffine 3D": st.PiecewiseAffine((2, 3, 3)),
}


@both_corners
@pytest.mark.parametrize("name", CONTROL)
def test_control_point_footprints_by_half_pixels(name, align_corners):
    """What lies between the middles of an output pixel's opposite sides, against a grid of half pixels."""
    family = CONTROL[name]
    dims = family.dims
    size, out = ((17, 14), (5, 6)) if dims == 2 else ((6, 7, 5), (3, 2, 3))
    image, theta = noise(1, 2, *size), family.identity(dtype=torch.float64)
    theta = (theta + 0.15 * normal(*theta.shape))[None]
    less = 1 if align_corners else 0
    span_in = torch.tensor(size[::-1]) - less
    target = st.Affine(dims).grid(st.Affine(dims).identity(dtype=torch.float64), out, align_corners)
    columns = []
    for axis, length in enumerate(reversed(out)):
        half = torch.zeros(dims, dtype=torch.float64)
        half[axis] = 1 / (length - less)
        ahead, behind = (family.points(theta, (target + s * half).reshape(-1, dims)) for s in (1, -1))
        columns.append((ahead - behind)[0] * span_in / 2)
    footprint = torch.stack(columns, -1).norm(dim=-1)
    assert footprint.std(0).amin() > 0.05  # they differ from pixel to pixel
    options = {"align_corners": align_corners, "antialias": 6 if dims == 2 else 4}
    ours = st.warp(image, theta, family, size=out, **options)
    # Pixel after pixel: an affine transform with that footprint along every axis, and no other slope.
    where = family.points(theta, target.reshape(-1, dims))[0]
    for k, (point, width) in enumerate(zip(where, footprint, strict=True)):
        steps = torch.diag(width * 2 / span_in)
        middle = point.expand(*[3] * dims, dims)
        offsets = torch.stack(
            torch.meshgrid(*[torch.arange(-1.0, 2)] * dims, indexing="ij")[::-1], -1
        ).double()
        around = st.sample(image, (middle + offsets @ steps)[None], **options)
        close(around[(0, slice(None), *[1] * dims)], ours.flatten(2)[0, :, k], EXACT)


AFFINE_AS = {
    "Projective": st.Projective(),
    "ThinPlateSpline": st.ThinPlateSpline((3, 4)),
    "PiecewiseAffine": st.PiecewiseAffine((3, 4)),
    "LearnedBasis": st.LearnedBasis((2, 3), (5, 6)).double(),
    "LearnedBasis homogeneous": st.LearnedBasis(3, (5, 6), start="homogeneous").double(),
}


@pytest.mark.parametrize("name", AFFINE_AS)
def test_families_agree_on_an_affine_map(name):
    family, image = AFFINE_AS[name], noise(1, 2, 14, 17)
    affine = torch.tensor([[1.2, 0.3, 0.1], [-0.4, 0.9, -0.05]], dtype=torch.float64)
    if name == "Projective":
        theta = torch.cat([affine.flatten(), torch.zeros(2, dtype=torch.float64)])
    elif name.endswith("homogeneous"):
        theta = affine.T.flatten()  # the columns are the source points
    else:
        points = family.identity(dtype=torch.float64).reshape(-1, 2)
        theta = (points @ affine[:, :2].T + affine[:, 2]).flatten()
    options = {"size": (5, 6), "antialias": True}
    # A LearnedBasis starts out rounded to float32: a position of some 10 px is right to 1e-6 px.
    tolerance = 1e-5 if name.startswith("LearnedBasis") else 1e-11  # 1e-11: the spline's solve
    close(
        st.warp(image, theta[None], family, **options),
        st.warp(image, affine.reshape(1, 6), st.Affine(), **options),
        tolerance,
    )


@every_impl
@pytest.mark.parametrize(("antialias", "limit"), [(4, 4), (2.5, 2.5), (True, 8), (40, 16)])
def test_beyond_the_limit_the_footprint_stays(antialias, limit, impl):
    row = noise(1, 1, 1, 160)  # one axis shrinks by 16; the other has one pixel and does not
    ours = shrunk(row, (1, 10), antialias=antialias, impl=impl)
    theirs = [
        sum(row[0, 0, 0, m].item() * w for m, w in widened(16 * j + 7.5, limit).items() if 0 <= m < 160)
        for j in range(10)
    ]
    close(ours[0, 0, 0], torch.tensor(theirs, dtype=torch.float64), EXACT)


@every_impl
@pytest.mark.parametrize("kernel", ["nearest", "bilinear", "bicubic"])
def test_limit_changes_nothing_below_it(kernel, impl):
    image = noise(1, 1, 15, 12)
    narrow, wide = (shrunk(image, (10, 8), kernel=kernel, antialias=n, impl=impl) for n in (2, 8))
    close(narrow, wide, EXACT)  # the taps beyond weigh nothing; the others may be added in another order
    assert (narrow - shrunk(image, (10, 8), kernel=kernel, antialias=1.2, impl=impl)).abs().max() > 0.01


def test_own_kernel_is_divided_by_its_footprint():
    gaussian = st.Kernel(lambda d: torch.exp(-d * d), radius=3)
    row = noise(1, 1, 1, 60)
    ours = shrunk(row, (1, 20), kernel=gaussian, antialias=4)  # by 3
    far = np.arange(60)[None] - (3 * np.arange(20)[:, None] + 1)
    weights = np.where((-far >= -9) & (-far < 9), np.exp(-((far / 3) ** 2)), 0.0) / 3
    # The other axis has one pixel, where this kernel weighs k(0) = 1.
    close(ours[0, 0, 0], torch.from_numpy(weights @ row[0, 0, 0].numpy()), EXACT)


@every_impl
@both_corners
@pytest.mark.parametrize("dims", [2, 3])
def test_sample_of_an_affine_grid_agrees_with_warp(dims, align_corners, impl):
    size, out = ((13, 17), (5, 6)) if dims == 2 else ((7, 8, 9), (3, 4, 5))
    image, family = noise(2, 3, *size), st.Affine(dims)
    theta = family.identity(dtype=torch.float64) + 0.1 * normal(2, family.num_params)
    options = {"align_corners": align_corners, "antialias": 4 if dims == 2 else 2.5, "impl": impl}
    grid = family.grid(theta, out, align_corners)
    # Differences of an affine grid are its Jacobian, at the rim too.
    close(st.sample(image, grid, **options), st.warp(image, theta, family, size=out, **options), EXACT)


def test_several_transforms_of_an_image():
    image, theta = noise(2, 3, 12, 14), st.Affine().identity(dtype=torch.float64) + 0.3 * normal(2, 4, 6)
    together = st.warp(image, theta, st.Affine(), size=(4, 5), antialias=4)
    apart = [st.warp(image, theta[:, t], st.Affine(), size=(4, 5), antialias=4) for t in range(4)]
    close(together, torch.stack(apart, dim=1), EXACT)  # a sum over taps depends on the shape in its last bit


# Where nothing shrinks it is plain sampling, bit for bit

GAUSSIAN = st.Kernel(lambda d: torch.exp(-2 * d * d), radius=2)
# The limit sets the number of taps: the wide kernels get less of it, to be quick.
KERNELS = {"bilinear": True, "nearest": True, "bicubic": 2, GAUSSIAN: 2}
all_kernels = pytest.mark.parametrize("kernel", KERNELS, ids=["bilinear", "nearest", "bicubic", "Kernel"])
both_dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def value_and_gradients(image, theta, family, **options):
    """What ``st.warp`` gives, and its gradients under one random cotangent."""
    image, theta = image.clone().requires_grad_(), theta.clone().requires_grad_()
    value = st.warp(image, theta, family, **options)
    cotangent = normal(*value.shape, seed=9).to(value.dtype)
    return value.detach(), *torch.autograd.grad(value, [image, theta], cotangent)


def check_plain(image, theta, family, antialias, impl, **options):
    """antialias changes no bit of the value and of both gradients.

    The torch implementation has its anti-aliasing from the reference, but for plain sampling it may take
    ``F.grid_sample``, which rounds otherwise: it is held to the reference's bits, and to its own within
    some roundings of a position. The fused kernels sum in another order than the reference: they are held
    to it within so many roundings.
    """
    found = value_and_gradients(image, theta, family, antialias=antialias, impl=impl, **options)
    plain = value_and_gradients(image, theta, family, impl="reference", **options)
    # A lean of 4 roundings, as many of its own, 6 px from middle to rim, slopes of up to 6 a pixel.
    slack = 8 * 6 * 6 * torch.finfo(image.dtype).eps
    for ours, theirs in zip(found, plain, strict=True):
        if impl == "fused":
            close(ours, theirs, slack * theirs.abs().max().clamp(min=1).item())
        else:
            assert torch.equal(ours, theirs)
    if impl != "reference":
        own = st.warp(image, theta, family, impl=impl, **options)
        close(found[0], own, slack)


def turned(angle):
    """The theta of ``Similarity`` that turns by an angle in degrees, and shifts by less than a pixel."""
    return [math.cos(math.radians(angle)), math.sin(math.radians(angle)), 0.03, -0.05]


PLAIN = {
    "identity": (st.Affine(), [1, 0, 0, 0, 1, 0]),
    "shift": (st.Affine(), [1, 0, 0.31, 0, 1, -0.17]),
    "whole pixels": (st.Translation(), [2 * 3 / 11, -2 * 2 / 11]),
    "magnified": (st.Attention(), [0.37, 0.2, -0.1]),
    "magnified, sheared": (st.Affine(), [0.6, 0.3, 0.1, -0.2, 0.5, 0]),
    "flipped": (st.Affine(), [-1, 0, 0, 0, 1, 0]),
    **{f"turned by {angle}": (st.Similarity(), turned(angle)) for angle in (7, 45, 90, 133.7, 270)},
    "turned, to six digits": (st.Similarity(), [0.877583, 0.479426, 0.03, -0.05]),  # a shrink by 1.0000006
    "turned, affine": (st.Affine(), [math.cos(1), -math.sin(1), 0, math.sin(1), math.cos(1), 0.1]),
}


@every_impl
@both_dtypes
@all_kernels
@pytest.mark.parametrize("name", PLAIN)
def test_plain_where_nothing_shrinks(name, kernel, dtype, impl):
    family, numbers = PLAIN[name]
    image, theta = normal(1, 2, 11, 11).to(dtype), torch.tensor([numbers], dtype=dtype)
    check_plain(image, theta, family, KERNELS[kernel], impl, kernel=kernel)


FAMILIES = {
    **{
        f"{family.__name__} {dims}D": family(dims)
        for family in (st.Translation, st.Attention, st.Similarity, st.Affine, st.Projective)
        for dims in (2, 3)
    },
    "ThinPlateSpline 2D": st.ThinPlateSpline((4, 4)),
    "ThinPlateSpline 3D": st.ThinPlateSpline((2, 3, 2)),
    "PiecewiseAffine 2D": st.PiecewiseAffine((3, 4)),
    "PiecewiseAffine 3D": st.PiecewiseAffine((2, 3, 2)),
    "LearnedBasis 2D": st.LearnedBasis(9, (9, 12)),
    "LearnedBasis 3D": st.LearnedBasis(8, (5, 4, 6)),
}


@every_impl
@both_dtypes
@pytest.mark.parametrize("name", FAMILIES)
def test_plain_at_every_familys_identity(name, dtype, impl):
    family = FAMILIES[name]
    image = normal(1, 2, *((9, 12) if family.dims == 2 else (5, 4, 6))).to(dtype)
    theta = family.identity(dtype=dtype)[None]
    check_plain(image, theta, family, 4 if family.dims == 2 else 1.7, impl)


def test_little_shrinking_is_followed():
    """What counts as none is a shrink by 1.00001, not by 1.001."""
    image, theta = normal(1, 1, 11, 11), torch.tensor([[1.001, 0, 0, 0, 1.001, 0]], dtype=torch.float64)
    ours = st.warp(image, theta, st.Affine(), antialias=2)
    hand = affine_by_hand(theta.reshape(2, 3), (11, 11), (11, 11), False)
    close(ours[0, 0], read_by_hand(image[0, 0].numpy(), *hand, limit=2), EXACT)


# Derivatives


def shrinking(family, seed=0):
    """The family's crop of a bit more than the image, with noise so that no tap meets a kernel's corner."""
    theta = family.crop([0.05, -0.1, 0.02][: family.dims], [1.03, 1.1, 0.97][: family.dims]).double()
    return (theta + 0.04 * normal(*theta.shape, seed=seed))[None].requires_grad_()


def check_gradients(function, inputs, **options):
    # Central differences of 1e-6 in float64: their rounding is 1e-10, their curvature 1e-12 times the third
    # derivative; the default tolerances are far looser.
    assert torch.autograd.gradcheck(function, inputs, eps=1e-6, atol=1e-7, rtol=1e-5, **options)


GRADCHECK = {
    "Affine": st.Affine(),
    "Projective": st.Projective(),
    "ThinPlateSpline": st.ThinPlateSpline((3, 3)),
    "PiecewiseAffine": st.PiecewiseAffine((3, 2)),
}


@every_impl
@all_kernels
@pytest.mark.parametrize("name", GRADCHECK)
def test_gradients(name, kernel, impl):
    image, family = normal(1, 1, 5, 6).requires_grad_(), GRADCHECK[name]
    options = {"size": (3, 3), "kernel": kernel, "antialias": 2.6, "impl": impl}
    check_gradients(
        lambda image, theta: st.warp(image, theta, family, **options),
        (image, shrinking(family)),
        fast_mode=impl != "reference",  # along one random direction only
    )


@pytest.mark.parametrize("start", ["spline", "homogeneous"])
def test_gradients_of_a_learned_basis(start):
    points = 4 if start == "spline" else 3
    family = st.LearnedBasis(points, (3, 4), start=start).double()
    with torch.no_grad():
        family.B += 0.02 * normal(*family.B.shape, seed=3)
    image = normal(1, 1, 5, 7).requires_grad_()
    # gradcheck moves B where it lies, so the family sees it.
    check_gradients(
        lambda image, theta, basis: st.warp(image, theta, family, size=(3, 4), antialias=2.6),
        (image, shrinking(family), family.B),
    )


@pytest.mark.parametrize("kernel", ["bilinear", "bicubic"])
def test_gradients_3d(kernel):
    image, family = normal(1, 1, 4, 5, 4).requires_grad_(), st.Affine(3)
    options = {"size": (2, 2, 2), "kernel": kernel, "antialias": 2.6}
    check_gradients(
        lambda image, theta: st.warp(image, theta, family, **options),
        (image, shrinking(family)),
        fast_mode=True,  # there are up to 12^3 taps
    )


class Bell(torch.nn.Module):
    """A Gaussian whose width is learned."""

    def __init__(self):
        super().__init__()
        self.sharpness = torch.nn.Parameter(torch.tensor(0.9, dtype=torch.float64))

    def forward(self, distance):
        return torch.exp(-self.sharpness * distance * distance)


def test_gradients_of_a_learned_kernel():
    bell, family = Bell(), st.Affine()
    kernel = st.Kernel(bell, radius=2)
    check_gradients(
        lambda image, theta, sharpness: st.warp(
            image, theta, family, size=(3, 3), kernel=kernel, antialias=2.6
        ),
        (normal(1, 1, 5, 6).requires_grad_(), shrinking(family), bell.sharpness),
    )


@pytest.mark.parametrize(
    ("dims", "padding", "impl"),
    [
        *itertools.product([2], ["zeros", "border", "reflection", "circular", 0.6], IMPLS),
        (3, "zeros", "reference"),
        (3, 0.6, "torch"),
    ],
)
def test_gradients_of_sample(dims, padding, impl):
    size, out = ((5, 7), (3, 4)) if dims == 2 else ((4, 5, 4), (2, 2, 2))
    family = st.Affine(dims)
    grid = family.grid(shrinking(family).detach(), out) + 0.03 * normal(1, *out, dims, seed=5)
    check_gradients(
        lambda image, grid: st.sample(image, grid, padding=padding, antialias=2.6, impl=impl),
        (normal(1, 1, *size).requires_grad_(), grid.requires_grad_()),
        fast_mode=dims == 3 or impl != "reference",
    )


@pytest.mark.parametrize("name", GRADCHECK)
def test_gradients_reach_beyond_the_plain_taps(name):
    """The cases above do shrink: an output pixel hears of more than the four pixels of a bilinear read."""
    family = GRADCHECK[name]
    image = normal(1, 1, 5, 6).requires_grad_()
    result = st.warp(image, shrinking(family).detach(), family, size=(3, 3), antialias=2.6)
    heard = [
        torch.autograd.grad(result[0, 0, i, j], image, retain_graph=True)[0].count_nonzero()
        for i, j in itertools.product(range(3), repeat=2)
    ]
    assert min(heard) > 4


@pytest.mark.parametrize("impl", ["reference", "torch"])
@pytest.mark.parametrize("antialias", [False, 2])
def test_a_kernel_is_not_asked_beyond_its_radius(antialias, impl):
    """A root that is undefined there gives no NaN on the way back."""
    arc = st.Kernel(lambda d: torch.sqrt(2.26 - d * d), radius=1.5)
    image = torch.rand(1, 1, 9, 9, dtype=torch.float64)
    theta = torch.tensor([[1.3, 0.1, 0.013, -0.1, 1.2, 0.027]], dtype=torch.float64, requires_grad=True)
    st.warp(
        image, theta, st.Affine(), size=(6, 6), kernel=arc, antialias=antialias, impl=impl
    ).sum().backward()
    assert theta.grad.isfinite().all()
    assert theta.grad.abs().max() > 0


@pytest.mark.parametrize("size", [(300, 500), (1024, 64)])
def test_rounded_slopes_of_an_identity_are_plain(size):
    """Differences of a learned B in float32 are off by more than 1e-5 at these sizes."""
    image, family = torch.rand(1, 1, *size), st.LearnedBasis(16, size)
    plain, widened = (
        st.warp(image, family.identity()[None], family, antialias=antialias, impl="reference")
        for antialias in (False, 2)
    )
    assert torch.equal(plain, widened)


@pytest.mark.parametrize("side", [128, 512])
def test_rounded_slopes_of_a_rotation_are_plain(side):
    """So are those of a float32 grid."""
    image = torch.rand(1, 1, side, side)
    grid = st.Similarity().grid(torch.tensor([[0.8, 0.6, 0.0, 0.0]]), (side, side))
    plain, widened = (
        st.sample(image, grid, antialias=antialias, impl="reference") for antialias in (False, 2)
    )
    assert torch.equal(plain, widened)
