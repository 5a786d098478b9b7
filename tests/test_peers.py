"""Comparisons with those who never saw this code: OpenCV, SciPy, and PyTorch where it is right."""

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import ndimage
from scipy.interpolate import RBFInterpolator

import spatial_transformer as st

IMPLS = ("reference", "torch", "fused")
every_impl = pytest.mark.parametrize("impl", IMPLS)
both_corners = pytest.mark.parametrize("align_corners", [False, True])

# OpenCV 5 interpolates float32 images of 1, 3 or 4 channels with exact weights, in float32 arithmetic
# (float64 images and those of 2 channels still take the old path, weights in 1/32 px). A coordinate of up
# to 100 px then is off by 100 * 2^-24 = 6e-6 px, and the images here change by 1 a pixel at most.
OPENCV = 1e-5

# float64, coordinates and sums of a few roundings; the torch implementation leans by 4 of them.
EXACT = 1e-12

IN, OUT = (23, 17), (13, 21)  # (H, W), neither square nor alike

AFFINE = {
    "turned": np.array([[1.1, 0.25, -3.3], [-0.15, 0.9, 2.2]]),
    "turned far": cv2.getRotationMatrix2D((4.5, 13.0), 130, 1.3),
    "flipped, shrunk": np.array([[-0.55, 0.1, 14.3], [0.05, 0.6, -1.7]]),
}
PROJECTIVE = {
    "affine": np.vstack([AFFINE["turned"], [0, 0, 1]]),
    "tilted": np.array([[1.1, 0.2, -3.3], [-0.15, 0.9, 2.2], [0.004, -0.006, 1]]),
    "from corners, not scaled to a last 1": 2.5
    * cv2.getPerspectiveTransform(
        np.float32([[0, 0], [16, 0], [16, 22], [0, 22]]), np.float32([[2, 1], [19, -2], [15, 12], [-3, 9]])
    ),
}
OPENCV_CASES = [
    *[pytest.param(st.Affine(), cv2.warpAffine, m, id=f"affine {name}") for name, m in AFFINE.items()],
    *[
        pytest.param(st.Projective(), cv2.warpPerspective, m, id=f"projective {name}")
        for name, m in PROJECTIVE.items()
    ],
]
all_opencv = pytest.mark.parametrize(("family", "peer", "matrix"), OPENCV_CASES)


def noise(*shape, seed=0):
    """Uniform noise: no symmetry that could hide a flip or a swap of axes. float64"""
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def normal(*shape, seed=0):
    """Normal noise. float64"""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def photo(size=IN, seed=0):
    """An image as OpenCV wants it, [H, W, 3] float32, and the same as [1, 3, H, W] float64."""
    image = noise(*size, 3, seed=seed).float()
    return image.numpy(), image.double().permute(2, 0, 1)[None].contiguous()


def through_opencv(peer, image, matrix, flags=cv2.INTER_LINEAR, out=OUT, **border):
    """What cv2.warpAffine or cv2.warpPerspective make of an image, as [1, 3, H, W]."""
    result = peer(image, np.asarray(matrix), out[::-1], flags=flags, **border)  # OpenCV's sizes are (W, H)
    return torch.from_numpy(result).double().permute(2, 0, 1)[None]


def close(ours, theirs, atol):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


# OpenCV


@every_impl
@both_corners
@all_opencv
def test_from_opencv_warps_as_opencv(family, peer, matrix, align_corners, impl):
    picture, image = photo()
    theta = family.from_opencv(matrix, IN, OUT, align_corners=align_corners)
    ours = st.warp(image, theta[None], family, size=OUT, align_corners=align_corners, impl=impl)
    close(ours, through_opencv(peer, picture, matrix), OPENCV)


@every_impl
@both_corners
@pytest.mark.parametrize("padding", ["fill", "border", "reflection", "circular"])
@pytest.mark.parametrize("kernel", ["bilinear", "bicubic"])
def test_opencv_paddings_and_kernels(kernel, padding, align_corners, impl):
    picture, image = photo(seed=1)
    matrix = PROJECTIVE["tilted"]
    border = {
        "fill": (cv2.BORDER_CONSTANT, [0.9, -0.3, 0.1]),
        "border": (cv2.BORDER_REPLICATE, 0),
        "reflection": (cv2.BORDER_REFLECT_101 if align_corners else cv2.BORDER_REFLECT, 0),
        "circular": (cv2.BORDER_WRAP, 0),
    }
    mode, value = border[padding]
    flags = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}[kernel]
    theirs = through_opencv(cv2.warpPerspective, picture, matrix, flags, borderMode=mode, borderValue=value)
    family = st.Projective()
    theta = family.from_opencv(matrix, IN, OUT, align_corners=align_corners)
    ours = st.warp(
        image,
        theta[None],
        family,
        size=OUT,
        kernel=kernel,
        padding=value if padding == "fill" else padding,
        align_corners=align_corners,
        impl=impl,
    )
    close(ours, theirs, OPENCV)


@every_impl
@all_opencv
def test_opencv_nearest(family, peer, matrix, impl):
    picture, image = photo(seed=2)
    theta = family.from_opencv(matrix, IN, OUT)[None]
    ours = st.warp(image, theta, family, size=OUT, kernel="nearest", impl=impl)
    theirs = through_opencv(peer, picture, matrix, cv2.INTER_NEAREST)
    # Where a position lies within OpenCV's float32 roundings of a half, either pixel is right.
    grid = family.grid(theta, OUT)
    pixels = (grid + 1) * torch.tensor(IN[::-1]) / 2 - 0.5
    clear = (((pixels % 1) - 0.5).abs() > OPENCV).all(-1)[:, None]
    assert clear.double().mean() > 0.99
    close(torch.where(clear, ours, 0.0), torch.where(clear, theirs, 0.0), 0)


@every_impl
@both_corners
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_to_opencv_warps_as_ours(dtype, align_corners, impl):
    picture, image = photo(seed=3)
    affine = torch.tensor([0.7, -0.4, 0.15, 0.3, 0.9, -0.2], dtype=dtype)
    tilted = torch.tensor([0.7, -0.4, 0.15, 0.3, 0.9, -0.2, 0.1, -0.25], dtype=dtype)
    for family, theta, peer in [
        (st.Affine(), affine, cv2.warpAffine),
        (st.Projective(), tilted, cv2.warpPerspective),
    ]:
        matrix = family.to_opencv(theta, IN, OUT, align_corners=align_corners)
        assert matrix.dtype == torch.float64
        ours = st.warp(image, theta[None], family, size=OUT, align_corners=align_corners, impl=impl)
        close(ours, through_opencv(peer, picture, matrix.numpy()), OPENCV)


@both_corners
@pytest.mark.parametrize("family", [st.Affine(), st.Projective()], ids=["affine", "projective"])
def test_opencv_batches_and_round_trip(family, align_corners):
    sizes = {"in_size": IN, "out_size": OUT, "align_corners": align_corners}
    thetas = family.identity(dtype=torch.float64) + 0.2 * normal(4, 3, family.num_params)
    matrices = family.to_opencv(thetas, **sizes)
    assert matrices.shape == (4, 3, 2 if family.num_params == 6 else 3, 3)
    close(matrices[2, 1], family.to_opencv(thetas[2, 1], **sizes), 1e-12)  # entries of up to some hundreds
    back = family.from_opencv(matrices, **sizes)
    close(back, thetas, 1e-11)  # two inverses of matrices whose condition reaches some thousands
    close(back[3, 2], family.from_opencv(matrices[3, 2], **sizes), 1e-13)  # the same sums in another order


@pytest.mark.parametrize("family", [st.Affine(), st.Projective()], ids=["affine", "projective"])
def test_opencv_takes_arrays_and_tensors(family):
    given = np.array(PROJECTIVE["tilted"])[: 2 if family.num_params == 6 else 3]
    from_array = family.from_opencv(given, IN, OUT)
    assert from_array.dtype == torch.float64
    assert torch.equal(from_array, family.from_opencv(torch.from_numpy(given), IN, OUT))
    single = given.astype(np.float32)
    from_single = family.from_opencv(single, IN, OUT)
    assert from_single.dtype == torch.float32
    # Computed in float64 and rounded once.
    assert torch.equal(from_single, family.from_opencv(single.astype(np.float64), IN, OUT).float())
    whole = np.eye(3, dtype=np.int64)[: given.shape[0]]
    whole[0, 2] = 3
    assert torch.equal(
        family.from_opencv(whole, IN, OUT), family.from_opencv(whole.astype(np.float64), IN, OUT)
    )


# SciPy: positions and values

# ours -> SciPy's, for align_corners=False and True. "constant" fades to cval over the last pixel only from
# within; "grid-constant" is an image on an infinite plane of cval, as ours.
SCIPY_MODES = {
    "zeros": ("grid-constant", "grid-constant"),
    "fill": ("grid-constant", "grid-constant"),
    "border": ("nearest", "nearest"),
    "reflection": ("reflect", "mirror"),
    "circular": ("grid-wrap", "grid-wrap"),
}
SIZES = {2: ((6, 9), (8, 5)), 3: ((4, 6, 5), (5, 3, 4))}  # in, out
FILL = -0.7


def normalised(pixels, size, align_corners):
    """Pixel coordinates (x, y (, z)) as normalised ones, straight from the definition of the frame."""
    lengths = torch.tensor(size[::-1], dtype=torch.float64)
    if align_corners:
        return 2 * pixels / (lengths - 1) - 1
    return (2 * pixels + 1) / lengths - 1


@every_impl
@both_corners
@pytest.mark.parametrize("padding", SCIPY_MODES)
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("dims", [2, 3])
def test_map_coordinates(dims, order, padding, align_corners, impl):
    size, out = SIZES[dims]
    image = noise(2, *size)
    extent = torch.tensor(size[::-1], dtype=torch.float64)
    pixels = (noise(*out, dims, seed=1) * 4 - 1.5) * extent  # from 1.5 images before to 1.5 behind
    index = pixels.flip(-1).movedim(-1, 0).numpy()
    theirs = torch.stack(
        [
            torch.from_numpy(
                ndimage.map_coordinates(
                    channel.numpy(),
                    index,
                    order=order,
                    mode=SCIPY_MODES[padding][align_corners],
                    cval=FILL if padding == "fill" else 0.0,
                )
            )
            for channel in image
        ]
    )
    ours = st.sample(
        image[None],
        normalised(pixels, size, align_corners)[None],
        kernel=("nearest", "bilinear")[order],
        padding=FILL if padding == "fill" else padding,
        align_corners=align_corners,
        impl=impl,
    )
    close(ours[0], theirs, EXACT)


@every_impl
@both_corners
@pytest.mark.parametrize("padding", SCIPY_MODES)
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("dims", [2, 3])
def test_affine_transform(dims, order, padding, align_corners, impl):
    size, out = SIZES[dims]
    image = noise(*size)
    linear = 1.1 * torch.eye(dims, dtype=torch.float64) + 0.4 * normal(dims, dims, seed=2)  # z, y, x
    shift = 1.5 * normal(dims, seed=3)
    theirs = ndimage.affine_transform(
        image.numpy(),
        linear.numpy(),
        shift.numpy(),
        output_shape=out,
        order=order,
        mode=SCIPY_MODES[padding][align_corners],
        cval=FILL if padding == "fill" else 0.0,
    )
    # The same map of pixels between the normalised frames, x first.
    into, outof = (torch.tensor(s[::-1], dtype=torch.float64) for s in (size, out))
    linear, shift = linear.flip(0, 1), shift.flip(0)
    into_span, out_span = (into - 1, outof - 1) if align_corners else (into, outof)
    moved = (linear @ ((outof - 1) / 2) + shift - (into - 1) / 2) * 2 / into_span
    theta = torch.cat([linear * out_span / into_span[:, None], moved[:, None]], dim=1).flatten()
    ours = st.warp(
        image[None, None],
        theta[None],
        st.Affine(dims),
        size=out,
        kernel=("nearest", "bilinear")[order],
        padding=FILL if padding == "fill" else padding,
        align_corners=align_corners,
        impl=impl,
    )
    close(ours[0, 0], torch.from_numpy(theirs), EXACT)


@every_impl
@both_corners
def test_nearest_rounds_halves_up(align_corners, impl):
    image = noise(1, 2, 9, 17) if align_corners else noise(1, 2, 8, 16)  # frames in which halves are exact
    height, width = image.shape[2:]
    y, x = torch.meshgrid(
        torch.arange(-1, height).double() + 0.5, torch.arange(-1, width).double() + 0.5, indexing="ij"
    )
    grid = normalised(torch.stack([x, y], -1), (height, width), align_corners)[None]
    ours = st.sample(image, grid, kernel="nearest", padding="border", align_corners=align_corners, impl=impl)
    rows = torch.floor(y + 0.5).long().clamp(max=height - 1)
    columns = torch.floor(x + 0.5).long().clamp(max=width - 1)
    assert torch.equal(ours, image[:, :, rows, columns])


@every_impl
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nearest_halving_takes_the_upper_pixels(dtype, impl):
    image = noise(1, 1, 26, 14).to(dtype)  # sample j lies at 2j + 1/2
    theta = st.Affine().identity(dtype=dtype)[None]
    ours = st.warp(image, theta, st.Affine(), size=(13, 7), kernel="nearest", impl=impl)
    assert torch.equal(ours, image[:, :, 1::2, 1::2])


# SciPy: splines

# ours -> SciPy's: solves of some tens of equations whose condition is at most a few thousands.
SPLINE = 1e-11


def control_points(lattice):
    """The target points of a spline, row after row, x first. [K, dims]"""
    along = [np.linspace(-1, 1, count) for count in lattice]
    return np.stack([axis.ravel() for axis in np.meshgrid(*along, indexing="ij")][::-1], -1)


def moved_points(lattice, seed=0):
    """Where those points are in the source. [K, dims]"""
    at = control_points(lattice)
    return at + 0.2 * normal(*at.shape, seed=seed).numpy()


@pytest.mark.parametrize("lattice", [(4, 4), (3, 5), (2, 2), (2, 3, 4), (3, 3, 3)], ids=str)
@both_corners
def test_thin_plate_spline(lattice, align_corners):
    dims = len(lattice)
    source = moved_points(lattice)
    kernel = "thin_plate_spline" if dims == 2 else "linear"  # r^2 log r, and r
    peer = RBFInterpolator(control_points(lattice), source, kernel=kernel, degree=1)
    family, theta = st.ThinPlateSpline(lattice), torch.from_numpy(source).flatten()
    anywhere = 3 * noise(50, dims, seed=1) - 1.5  # also beyond the lattice
    close(family.points(theta, anywhere), torch.from_numpy(peer(anywhere.numpy())), SPLINE)
    size = SIZES[dims][1]
    pixels = np.stack([axis.ravel() for axis in np.indices(size)][::-1], -1)
    target = normalised(torch.from_numpy(pixels).double(), size, align_corners).numpy()
    close(
        family.grid(theta[None], size, align_corners),
        torch.from_numpy(peer(target)).reshape(1, *size, dims),
        SPLINE,
    )


@every_impl
@both_corners
@pytest.mark.parametrize("lattice", [(3, 5), (2, 3, 3)], ids=str)
def test_thin_plate_spline_warp(lattice, align_corners, impl):
    size, out = SIZES[len(lattice)]
    image, source = noise(*size), moved_points(lattice, seed=4)
    kernel = "thin_plate_spline" if len(lattice) == 2 else "linear"
    pixels = np.stack([axis.ravel() for axis in np.indices(out)][::-1], -1)
    target = normalised(torch.from_numpy(pixels).double(), out, align_corners).numpy()
    found = RBFInterpolator(control_points(lattice), source, kernel=kernel, degree=1)(target)
    span = np.array(size[::-1]) - (1 if align_corners else 0)
    index = (found * span / 2 + (np.array(size[::-1]) - 1) / 2)[:, ::-1].T
    theirs = ndimage.map_coordinates(image.numpy(), index, order=1, mode="grid-constant").reshape(out)
    ours = st.warp(
        image[None, None],
        torch.from_numpy(source).flatten()[None],
        st.ThinPlateSpline(lattice),
        size=out,
        align_corners=align_corners,
        impl=impl,
    )
    close(ours[0, 0], torch.from_numpy(theirs), 10 * SPLINE)  # the spline's error times half the image's size


# PyTorch, away from integers and never in half precision


@pytest.mark.filterwarnings("ignore:Since version 1.3.0")  # (1, 7) with align_corners: it warns, and is right
@both_corners
@pytest.mark.parametrize("size", [(5, 8), (1, 7), (3, 4, 6)], ids=str)
def test_affine_grid(size, align_corners):
    dims = len(size)
    theta = normal(3, dims * (dims + 1))
    theirs = F.affine_grid(theta.reshape(3, dims, dims + 1), [3, 1, *size], align_corners=align_corners)
    close(st.Affine(dims).grid(theta, size, align_corners), theirs, EXACT)


def value_and_gradients(function, *inputs):
    """A function's value, and its gradients under one random cotangent."""
    inputs = [value.clone().requires_grad_() for value in inputs]
    value = function(*inputs)
    return value.detach(), *torch.autograd.grad(value, inputs, normal(*value.shape, seed=9))


GRID_SAMPLE = [(2, "bilinear"), (2, "bicubic"), (3, "bilinear")]
grid_sample_paddings = pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
# As EXACT, for gradients: sums of a hundred terms, times half the image's size.
GRADIENT = 1e-11


@every_impl
@both_corners
@grid_sample_paddings
@pytest.mark.parametrize(("dims", "kernel"), GRID_SAMPLE)
def test_grid_sample_of_affine_grid(dims, kernel, padding, align_corners, impl):
    size, out = SIZES[dims]
    family = st.Affine(dims)
    image = normal(3, 2, *size)
    # Far from the identity, whose samples lie on integers, and partly outside.
    theta = family.identity(dtype=torch.float64) + 0.5 * normal(3, family.num_params, seed=1)

    def peer(image, theta):
        grid = F.affine_grid(theta.reshape(3, dims, dims + 1), [3, 2, *out], align_corners=align_corners)
        return F.grid_sample(image, grid, mode=kernel, padding_mode=padding, align_corners=align_corners)

    def ours(image, theta):
        return st.warp(
            image,
            theta,
            family,
            size=out,
            kernel=kernel,
            padding=padding,
            align_corners=align_corners,
            impl=impl,
        )

    value, image_gradient, theta_gradient = value_and_gradients(ours, image, theta)
    their_value, their_image_gradient, their_theta_gradient = value_and_gradients(peer, image, theta)
    close(value, their_value, EXACT)
    close(image_gradient, their_image_gradient, GRADIENT)
    close(theta_gradient, their_theta_gradient, GRADIENT)
    assert their_theta_gradient.abs().amin() > 1e-3  # none of them is compared for nothing


@every_impl
@both_corners
@grid_sample_paddings
@pytest.mark.parametrize(("dims", "kernel"), GRID_SAMPLE)
def test_grid_sample(dims, kernel, padding, align_corners, impl):
    size, out = SIZES[dims]
    image, grid = normal(2, 3, *size), 3 * noise(2, *out, dims, seed=1) - 1.5

    def peer(image, grid):
        return F.grid_sample(image, grid, mode=kernel, padding_mode=padding, align_corners=align_corners)

    def ours(image, grid):
        return st.sample(image, grid, kernel=kernel, padding=padding, align_corners=align_corners, impl=impl)

    value, image_gradient, grid_gradient = value_and_gradients(ours, image, grid)
    their_value, their_image_gradient, their_grid_gradient = value_and_gradients(peer, image, grid)
    close(value, their_value, EXACT)
    close(image_gradient, their_image_gradient, GRADIENT)
    close(grid_gradient, their_grid_gradient, GRADIENT)


@every_impl
def test_grid_sample_nearest_away_from_halves(impl):
    image, grid = noise(2, 3, 6, 9), 3 * noise(2, 8, 5, 2, seed=1) - 1.5
    theirs = F.grid_sample(image, grid, mode="nearest", align_corners=False)
    assert torch.equal(st.sample(image, grid, kernel="nearest", impl=impl), theirs)


# PyTorch's anti-aliased resize


def natural(size, seed=0):
    """A natural-looking image: noise smoothed at several scales, under a few sharp edges. [1, 1, *size]"""
    total = torch.zeros(1, 1, *size, dtype=torch.float64)
    for scale in (1, 3, 9):
        rough = noise(1, 1, *size, seed=seed + scale)
        total += F.avg_pool2d(rough, 2 * scale + 1, 1, scale, count_include_pad=False) * scale**0.5
    total[..., : size[0] // 3, size[1] // 4 :] += 0.8
    total += 0.7 * (torch.arange(size[0])[:, None] + 2 * torch.arange(size[1]) > 1.3 * size[1])
    return (total - total.min()) / (total.max() - total.min())


@every_impl
@pytest.mark.parametrize(
    ("size", "out"),
    [((64, 44), (32, 22)), ((99, 66), (30, 20)), ((96, 128), (12, 16)), ((48, 66), (24, 20))],
    ids=["by 2", "by 3.3", "by 8", "by 2 and 3.3"],
)
@pytest.mark.parametrize("content", ["noise", "natural"])
def test_interpolate_antialias(content, size, out, impl):
    image = noise(1, 1, *size) if content == "noise" else natural(size)
    ours = st.warp(
        image,
        st.Affine().identity(dtype=torch.float64)[None],
        st.Affine(),
        size=out,
        antialias=True,
        impl=impl,
    )
    theirs = F.interpolate(image, size=out, mode="bilinear", antialias=True)
    # A widened hat reaches one output pixel to either side, and F.interpolate renormalises at the border.
    inside = (..., slice(1, -1), slice(1, -1))
    close(ours[inside], theirs[inside], EXACT)  # the very same weights, so far below the 0.02 promised
    plain = F.interpolate(image, size=out, mode="bilinear")
    assert (plain[inside] - theirs[inside]).abs().max() > 0.05  # there is something to smooth
