"""The fused kernels against ``reference`` in float64: output and every gradient, over one list of cases.

Two backends, both through ``st.warp`` and ``st.sample``: Numba on the CPU, and Triton, on the GPU where there
is one and in its interpreter where not. That one takes 6 to 20 ms for every program: it gets the cases that
are marked ``small``.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from cases import FAMILY_NAMES, PADDINGS, close, families, images, padding, thetas
from fused_cases import (
    CASES,
    F32,
    F64,
    IN,
    KERNELS,
    KINDS,
    OUT,
    Case,
    Given,
    compare,
    doubtful,
    given,
    laid_out,
    outcome,
)

import spatial_transformer as st

CUDA = torch.cuda.is_available()

pytestmark = pytest.mark.usefixtures("one_thread", "poisoned")


@pytest.mark.parametrize(
    ("name", "case"),
    [("numba", case) for case in CASES]
    + [pytest.param("triton", case, marks=[pytest.mark.gpu] if CUDA else []) for case in CASES if case.small],
    ids=str,
)
def test_against_reference(name, case, request):
    backend = request.getfixturevalue(name)
    tensors = given(case, backend.device)
    found = outcome(case, tensors, "fused")
    compare(case, tensors, found)
    output, d_image, d_theta, *_ = found
    assert (output.dtype, d_image.dtype, d_theta.dtype) == (case.dtype, case.dtype, tensors.theta.dtype)
    image = tensors.image
    last = torch.channels_last if case.dims == 2 else torch.channels_last_3d
    if image.is_contiguous(memory_format=last) and not image.is_contiguous():
        assert (output.flatten(0, 1) if case.copies else output).is_contiguous(memory_format=last)
    else:
        assert output.is_contiguous()


@pytest.mark.parametrize("pad", ["zeros", "border"])
@pytest.mark.parametrize("name", ["ThinPlateSpline", "LearnedBasis"])
def test_many_control_points(name, pad, backend):
    """More than a kernel holds at once: 36 and, where that is quick, 100."""
    for lattice in ((6, 6),) if backend.interpreted else ((6, 6), (10, 10)):
        case = Case(name, padding=pad, channels=1, batch=2)
        family = st.ThinPlateSpline(lattice)
        if name == "LearnedBasis":
            family = st.LearnedBasis(lattice, case.out_size, dtype=F64)
        theta = thetas(family, 2, spread=0.05, seed=5)
        cotangent = (images(2, 1, *case.out_size, seed=7) - 0.5) * ~doubtful(case, theta, family, F64)
        tensors = Given(
            images(2, 1, *case.in_size).to(backend.device),
            theta.to(backend.device),
            family.to(backend.device),
            cotangent.to(backend.device),
        )
        compare(case, tensors, outcome(case, tensors, "fused"))


# The identity


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("family_name", [name for name in FAMILY_NAMES if not name.startswith("Learned")])
@pytest.mark.parametrize("size", [(1, 1), (2, 7), (28, 28), (63, 64), (5, 257), (3, 4, 5)])
def test_the_identity_to_the_bit_and_its_gradient(size, family_name, dtype, align_corners, backend):
    """Every sample on a pixel: theta's gradient is that of the right-hand slopes, as the reference's."""
    # Channels innermost, and footprints that are 1, go through code of their own, on the same coordinates:
    # these are tried at some sizes, and each is minutes of compilation.
    layouts = [(1, "contiguous"), (9, "channels_last")]
    readings = [*((kernel, False) for kernel in KERNELS), ("bilinear", 2)]
    if backend.interpreted:
        if size != (2, 7) or family_name not in KINDS or align_corners != (dtype == F32):
            pytest.skip("Triton's interpreter is slow")
        readings = [("bilinear", False), ("bilinear", 1.5)]
    elif size not in ((28, 28), (5, 257), (3, 4, 5)):
        layouts, readings = layouts[:1], [("bilinear", False), ("bicubic", False)]
    for channels, layout in layouts:
        family = families(len(size), size, align_corners, dtype=dtype)[family_name].to(backend.device)
        image = laid_out(images(2, channels, *size, dtype=dtype), layout)
        theta = family.identity(dtype=dtype).expand(2, -1)
        for kernel, antialias in readings:
            options = {"kernel": kernel, "align_corners": align_corners, "antialias": antialias}
            leaf = theta.to(backend.device).requires_grad_()
            output = st.warp(image.to(backend.device), leaf, family, **options, impl="fused")
            assert torch.equal(output.cpu(), image), (size, layout, kernel, antialias)
            cotangent = images(*output.shape, seed=2, dtype=dtype) - 0.5
            (found,) = torch.autograd.grad(output, leaf, cotangent.to(backend.device))
            leaf = theta.clone().cpu().requires_grad_()
            output = st.warp(image, leaf, family.cpu(), **options, impl="reference")
            (expected,) = torch.autograd.grad(output, leaf, cotangent)
            family.to(backend.device)
            scale = cotangent.abs().sum() * max(size)
            close(found.cpu(), expected, (0, 4 * torch.finfo(dtype).eps * scale))


# Outside and nowhere


@pytest.mark.parametrize("padding_name", PADDINGS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_far_outside(kernel, padding_name, backend):
    """Whole images of padding, a hundred to a billion pixels out, along one axis and along all."""
    if backend.interpreted and kernel != "bilinear":
        pytest.skip("Triton's interpreter is slow")
    family, shifts = st.Translation(), [(30.2, 0.0), (0.05, -41.3), (1e4 + 0.23, 333.1), (-1e8, 1e8)]
    theta = torch.tensor(shifts, dtype=F64)
    case = Case("Translation", kernel, padding_name, batch=len(shifts))
    image = images(len(shifts), 2, *IN[2])
    cotangent = images(len(shifts), 2, *OUT[2], seed=3) - 0.5
    tensors = Given(image.to(backend.device), theta.to(backend.device), family, cotangent.to(backend.device))
    found = [part.cpu() for part in outcome(case, tensors, "fused")]
    expected = outcome(case, tensors.exact(), "reference")
    if padding_name in ("zeros", "fill"):
        shown = torch.tensor(padding("fill", 2) if padding_name == "fill" else [0.0, 0.0], dtype=F64)
        close(found[0], shown[:, None, None].expand_as(found[0]), (0, 1e-15))
        assert not found[1].any()
        close(found[2], torch.zeros_like(found[2]), (0, 1e-14))  # a fill's slopes cancel
    # A coordinate of 1e5 pixels is exact to 1e-11; one of 1e9 pixels to 1e-7, of no use to a reflection.
    for one, other in zip(found, expected, strict=True):
        close(one[:3], other[:3], (0, 1e-7))
        assert one.isfinite().all()


BAD = [math.nan, math.inf, -math.inf, 1e30, -1e30, 3e38, 0.0]


@pytest.mark.parametrize("padding_name", PADDINGS)
@pytest.mark.parametrize("family_name", KINDS[:4])
def test_thetas_that_are_no_transform(family_name, padding_name, backend, request):
    """Finite everywhere; the other samples of the batch keep their bits."""
    if backend.device == "cuda":  # where threads otherwise add an image's gradient in any order
        request.getfixturevalue("deterministic")
    bad = [math.nan, math.inf, 3e38] if backend.interpreted else BAD
    if backend.interpreted and padding_name != PADDINGS[KINDS.index(family_name)] != "zeros":
        pytest.skip("Triton's interpreter is slow")
    family = families(2, OUT[2], dtype=F32)[family_name].to(backend.device)
    count = len(bad) + 2
    case = Case(family_name, padding=padding_name, dtype=F32, channels=1)
    image = images(count, 1, *IN[2], dtype=F32).to(backend.device)
    cotangent = images(count, 1, *OUT[2], seed=3, dtype=F32).to(backend.device)
    good = thetas(family, count, dtype=F32)
    ends = [0, -1]
    clean = outcome(case, Given(image[ends], good[ends].to(backend.device), family, cotangent[ends]), "fused")
    for place in (slice(0, 1),) if backend.interpreted else (slice(None), slice(0, 1), slice(-1, None)):
        theta = good.clone()
        for n, value in enumerate(bad):
            theta[1 + n, place] = value
        found = outcome(case, Given(image, theta.to(backend.device), family, cotangent), "fused")
        for tensor in found:
            assert tensor.isfinite().all(), place
        for tensor, other in zip(found[:3], clean[:3], strict=True):
            assert torch.equal(tensor[ends], other), place
        assert not found[2][1].any()  # of NaN


def test_a_grid_with_holes(backend):
    """NaN, infinite and huge coordinates: finite, and the other points keep their bits."""
    for padding_name in PADDINGS:
        case = Case("grid", padding=padding_name, dtype=F32)
        tensors = given(case, backend.device)
        clean = outcome(case, tensors, "fused")
        grid = tensors.theta.clone()
        grid[0, 0, 0, 0], grid[0, 2, 1] = math.nan, math.inf
        grid[0, 3, 4, 1], grid[0, 5, 2, 0] = -math.inf, 3e38
        whole = grid.isfinite().all(-1) & (grid.abs() < 1e30).all(-1)
        found = outcome(case, tensors._replace(theta=grid), "fused")
        assert all(part.isfinite().all() for part in found)
        shown = whole[:, None].expand_as(clean[0])
        assert torch.equal(found[0][shown], clean[0][shown])
        assert torch.equal(found[2][whole], clean[2][whole])


# Transforms that the gradient of the image has to find its way back through

STRANGE = {
    "scale 1/50": [0.02, 0.003, 0.1, -0.002, 0.02, -0.2],
    "scale 50": [50.0, 3.0, 0.3, -2.0, 47.0, 0.1],
    "one axis by 50, the other by 1/50": [50.0, 0.0, 0.1, 0.0, 0.021, 0.3],
    "singular: all zero": [0.0, 0.0, 0.123, 0.0, 0.0, -0.217],
    "singular: one row": [0.0, 0.0, 0.123, 0.4, 0.9, 0.1],
    "singular: rows alike": [0.5, 0.25, 0.1, 1.0, 0.5, -0.03],
    "singular: columns alike": [0.5, 0.5, 0.1, 0.7, 0.7, -0.03],
    "nearly singular": [0.5, 0.25, 0.1, 1.0, 0.5 + 1e-7, -0.03],
    "shear": [1.0, 3.7, 0.1, 0.0, 1.0, 0.05],
    "shear the other way": [0.9, 0.1, 0.1, -4.3, 1.0, 0.05],
    "flip": [-1.0, 0.0, 0.013, 0.0, 1.0, 0.027],
    "turned upside down": [-0.93, 0.01, 0.013, 0.02, -1.1, 0.027],
    "quarter turn": [0.0, -1.0, 0.013, 1.0, 0.0, 0.027],
    "in a far corner": [0.8, 0.1, 1.7, -0.1, 0.9, 1.6],
}
HORIZONS = {
    "across": [1.0, 0.1, 0.1, 0.0, 1.1, 0.05, 1.9, 0.3],
    "along a diagonal": [0.7, 0.1, 0.1, 0.2, 0.8, -0.05, 1.3, 1.4],
    "behind": [0.7, 0.1, 0.1, 0.2, 0.8, -0.05, 3.0, 0.1],
    "near an edge": [1.0, 0.0, 0.03, 0.0, 1.0, 0.02, 0.99, 0.0],
    "singular": [0.5, 0.25, 0.1, 1.0, 0.5, 0.2, 0.3, 0.15],
    "no part of the plane": [0.0, 0.0, 0.1, 0.0, 0.0, 0.2, 1.5, 0.2],
}


def check_strange(backend, family_name, numbers, kernel, pad, dtype, in_size=(9, 12), out_size=(11, 7)):
    theta = torch.tensor([numbers], dtype=dtype)
    case = Case(family_name, kernel, pad, dtype, in_size, out_size, channels=1)
    family = families(case.dims, out_size, dtype=dtype)[family_name]
    cotangent = images(1, 1, *out_size, seed=3, dtype=dtype) + 0.1
    positions = family.double().pixels(theta.double(), in_size, out_size, False)
    doubt = torch.zeros((), dtype=torch.bool)
    for position in positions:
        off = position - 0.5 if kernel == "nearest" else position
        slack = 32 * torch.finfo(dtype).eps * (position.abs() + 60 * max(in_size))
        doubt = doubt | ((off - off.round()).abs() < slack)
    assert doubt.double().mean() < 0.25
    cotangent = cotangent * ~doubt[:, None]
    tensors = Given(
        images(1, 1, *in_size, dtype=dtype).to(backend.device),
        theta.to(backend.device),
        family.to(device=backend.device, dtype=dtype),
        cotangent.to(backend.device),
    )
    found = [part.cpu().double() for part in outcome(case, tensors, "fused")]
    expected = outcome(case, tensors.exact(), "reference")
    eps, reach = torch.finfo(dtype).eps, 60 * max(in_size)
    most = max(1.0, expected[1].abs().max().item())
    if kernel != "nearest":
        close(found[0], expected[0], (0, 8 * eps * reach))
    # Image: cotangents times weights. Theta: a slope's error for every pixel, times its distance.
    close(found[1], expected[1], (0, 8 * eps * reach * most))
    steep = max(1.0, expected[2].abs().max().item())
    close(found[2], expected[2], (0, 64 * eps * reach * steep))
    return expected[1].any()


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("name", STRANGE)
def test_strange_affine_transforms(name, dtype, backend):
    for kernel, pad in itertools.product(KERNELS, ("zeros", "border")):
        if not backend.interpreted or (kernel == "bilinear" and pad == "zeros"):
            assert check_strange(backend, "Affine", STRANGE[name], kernel, pad, dtype)


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("name", HORIZONS)
def test_horizons(name, dtype, backend):
    for kernel, pad in itertools.product(KERNELS, ("zeros", "border")):
        if not backend.interpreted or (kernel == "bilinear" and pad == "zeros"):
            assert check_strange(backend, "Projective", HORIZONS[name], kernel, pad, dtype)


@pytest.mark.parametrize(
    "numbers",
    [
        [0.02, 0, 0, 0.1, 0, 0.03, 0, 0.2, 0, 0, 0.02, -0.3],
        [9.0, 1, 0, 0.1, 0, 11.0, 2, 0.2, 0.5, 0, 10.0, -0.3],
        [0.5, 0.25, 0.3, 0.1, 1.0, 0.5, 0.6, 0.2, 0.1, 0.2, 0.9, 0.03],  # singular
        [0, 0, -1.0, 0.013, 0, 1.0, 0, 0.027, 1.0, 0, 0, 0.031],
        [1.0, 1.7, 0.2, 0.1, 0, 1.0, -2.3, 0.05, 0, 0, -0.9, 0.02],
    ],
    ids=["small", "large", "singular", "turned", "sheared"],
)
def test_strange_transforms_in_3d(numbers, backend):
    for kernel in ("bilinear",) if backend.interpreted else KERNELS:
        assert check_strange(backend, "Affine", numbers, kernel, "zeros", F64, (4, 3, 5), (3, 5, 7))


@pytest.mark.parametrize("kernel", KERNELS)
def test_many_random_transforms(kernel, numba):
    """Random matrices of every size, with and without a horizon."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(40):
        scale = torch.exp(torch.empty(()).uniform_(-4, 4, generator=generator)).item()
        numbers = torch.randn(8, generator=generator).double() * scale
        numbers[6:] = torch.randn(2, generator=generator).double() / 2
        check_strange(numba, "Projective", numbers.tolist(), kernel, "zeros", F64)
        check_strange(numba, "Affine", numbers[:6].tolist(), kernel, "zeros", F64)
