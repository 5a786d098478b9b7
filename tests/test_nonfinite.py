"""NaN, infinite, singular and huge thetas: finite everywhere, the other samples untouched, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
from cases import FAMILY_NAMES, IMPLEMENTATIONS, PADDINGS, can, families, images, kernel, padding, thetas

import spatial_transformer as st

SIZE = {2: (7, 6), 3: (4, 3, 5)}
BAD = [math.nan, math.inf, -math.inf, 1e30, -1e30, 3e38, 0.0, 1e-30]
KERNELS = ("nearest", "bilinear", "bicubic", "Kernel")


def outcome(image, theta, family, **options):
    """Output and gradients of image, theta and learned parameters."""
    leaves = (image.clone().requires_grad_(), theta.clone().requires_grad_(), *family.parameters())
    output = st.warp(leaves[0], leaves[1], family, **options)
    cotangent = images(*output.shape, seed=3, dtype=output.dtype)
    return (output.detach(), *torch.autograd.grad(output, leaves, cotangent))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("padding_name", PADDINGS)
@pytest.mark.parametrize("family_name", FAMILY_NAMES)
@pytest.mark.parametrize(("dims", "dtype"), [(2, torch.float32), (3, torch.float32), (2, torch.float64)])
def test_whole_thetas_and_single_numbers(dims, dtype, family_name, padding_name, impl):
    family = families(dims, SIZE[dims], dtype=dtype)[family_name]
    image = images(3, 2, *SIZE[dims], dtype=dtype)
    good = thetas(family, 3, dtype=dtype)
    kernels = KERNELS if (dims, dtype) == (2, torch.float32) else ("bilinear",)
    kernels = [name for name in kernels if can(impl, name)]
    for kernel_name in kernels:
        options = {"kernel": kernel(kernel_name), "padding": padding(padding_name, 2), "impl": impl}
        clean = outcome(image, good, family, **options)
        for value in BAD:
            for places in (slice(None), slice(0, 1), slice(-1, None)):
                theta = good.clone()
                theta[1, places] = value
                found = outcome(image, theta, family, **options)
                for name, tensor in zip(("output", "d image", "d theta", "d learned"), found, strict=False):
                    assert tensor.isfinite().all(), (kernel_name, value, places, name)
                for expected, tensor in zip(clean[:3], found[:3], strict=True):
                    assert torch.equal(tensor[[0, 2]], expected[[0, 2]]), (kernel_name, value, places)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("align_corners", [False, True])
def test_what_a_nan_shows(dims, align_corners, impl):
    """Outside under zeros and fill; pixel 0, without gradient, under the others."""
    image = images(1, 2, *SIZE[dims])
    corner = image[(0, slice(None), *[0] * dims)]
    for family_name, family in families(dims, SIZE[dims], align_corners).items():
        theta = torch.full((1, family.num_params), math.nan, dtype=torch.float64)
        for padding_name in PADDINGS:
            given = padding(padding_name, 2)
            output, d_image, d_theta, *_ = outcome(
                image, theta, family, padding=given, align_corners=align_corners, impl=impl
            )
            constant = {"zeros": [0.0, 0.0], "fill": padding("fill", 2)}.get(padding_name)
            shown = corner if constant is None else torch.tensor(constant, dtype=torch.float64)
            expected = shown.reshape(2, *[1] * dims).expand_as(output[0])
            torch.testing.assert_close(
                output[0], expected, rtol=0, atol=1e-12, msg=f"{family_name} {padding_name}"
            )
            assert torch.equal(d_theta, torch.zeros_like(d_theta))
            if padding_name in ("zeros", "fill"):
                assert torch.equal(d_image, torch.zeros_like(d_image))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("padding_name", PADDINGS)
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("dims", [2, 3])
def test_grids_with_holes(dims, kernel_name, padding_name, impl):
    """``sample``: bad coordinates here and there; the other pixels keep their bits and their gradients."""
    size = SIZE[dims]
    image = images(1, 2, *size, dtype=torch.float32)
    good = st.Affine(dims).grid(thetas(st.Affine(dims), 1, dtype=torch.float32), size)
    bad = good.clone()
    flat = bad.reshape(-1, dims)
    for row, value in enumerate([math.nan, math.inf, -math.inf, 1e30, -3e38]):
        flat[3 * row, row % dims] = value
    holes = (bad != good).any(-1)[0]
    assert holes.sum() == 5
    options = {"kernel": kernel(kernel_name), "padding": padding(padding_name, 2), "impl": impl}
    answers = []
    for grid in (good, bad):
        leaves = (image.clone().requires_grad_(), grid.clone().requires_grad_())
        output = st.sample(*leaves, **options)
        answers.append((output, *torch.autograd.grad(output.sum(), leaves)))
    for tensor in answers[1]:
        assert tensor.isfinite().all()
    assert torch.equal(answers[1][0][..., ~holes], answers[0][0][..., ~holes])
    assert torch.equal(answers[1][2][0][~holes], answers[0][2][0][~holes])


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("padding_name", PADDINGS)
def test_a_horizon_through_the_image(padding_name, impl):
    """A projective w that passes zero, on pixels and between them."""
    image = images(1, 1, 9, 9, dtype=torch.float32)
    for tilt in (1.0, 1.5, 9 / 2, -3.0, 1e8):
        theta = torch.tensor([[1.0, 0, 0, 0, 1, 0, tilt, 0.0]])
        for tensor in outcome(image, theta, st.Projective(), padding=padding(padding_name, 1), impl=impl):
            assert tensor.isfinite().all()


@pytest.mark.parametrize("padding_name", ["zeros", "reflection", "fill"])
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("family_name", FAMILY_NAMES)
def test_antialiased(family_name, dims, padding_name):
    family = families(dims, (3,) * dims, dtype=torch.float32)[family_name]
    image = images(3, 1, *SIZE[dims], dtype=torch.float32)
    good = thetas(family, 3, dtype=torch.float32)
    options = {"size": (3,) * dims, "antialias": 1.6, "padding": padding(padding_name, 1)}
    clean = outcome(image, good, family, **options)
    for value in BAD:
        theta = good.clone()
        theta[1] = value
        found = outcome(image, theta, family, **options)
        for tensor in found:
            assert tensor.isfinite().all(), value
        for expected, tensor in zip(clean[:3], found[:3], strict=True):
            assert torch.equal(tensor[[0, 2]], expected[[0, 2]]), value


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_singular(impl):
    """A theta that looks at a line or a point is an ordinary one."""
    image = images(1, 1, 6, 6)
    point = torch.tensor([[0.0, 0, 0.1, 0, 0, -0.2]], dtype=torch.float64)
    output, *gradients = outcome(image, point, st.Affine(), impl=impl)
    assert (output - output.flatten()[0]).abs().max() < 1e-12
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_inverse_of_a_singular_theta_is_nan_for_that_sample_alone():
    theta = thetas(st.Affine(), 3)
    expected = st.Affine().inverse(theta)
    theta[1] = 0.0
    found = st.Affine().inverse(theta)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


class Exponential(st.Family):
    """A family of one's own whose matrix is infinite for thetas that are not."""

    def __init__(self):
        super().__init__(dims=2, identity=[0.0, 0.0, 0.0])

    def matrix(self, theta):
        scale, x, y = self.full(theta).unbind(-1)
        zero = torch.zeros_like(scale)
        return torch.stack([scale.exp(), zero, x, zero, scale.exp(), y], -1).unflatten(-1, (2, 3))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("padding_name", PADDINGS)
def test_a_family_of_ones_own_that_overflows(padding_name, impl):
    """grid_sample would leave the image's memory. (theta's own gradient is exp's: 0 times infinity.)"""
    image = images(3, 2, 64, 64, dtype=torch.float32).requires_grad_()
    good = torch.tensor([[0.1, 0.0, 0.1]] * 3)
    theta = good.clone()
    theta[1, 0] = 100.0
    options = {"padding": padding(padding_name, 2), "impl": impl}
    output = st.warp(image, theta, Exponential(), **options)
    (gradient,) = torch.autograd.grad(output.sum(), image)
    assert output.isfinite().all()
    assert gradient.isfinite().all()
    assert torch.equal(output[[0, 2]], st.warp(image, good, Exponential(), **options)[[0, 2]])
    assert not Exponential.bounded


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("padding_name", PADDINGS)
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("dims", [2, 3])
def test_antialiased_grids_with_holes(dims, kernel_name, padding_name, impl):
    size = SIZE[dims]
    image = images(1, 2, *size, dtype=torch.float32).requires_grad_()
    grid = 1.5 * st.Affine(dims).grid(thetas(st.Affine(dims), 1, dtype=torch.float32), (3,) * dims)
    for row, value in enumerate([math.nan, math.inf, 3e38]):
        grid.view(-1, dims)[2 * row, row % dims] = value
    grid.requires_grad_()
    options = {"kernel": kernel(kernel_name), "padding": padding(padding_name, 2), "impl": impl}
    output = st.sample(image, grid, antialias=2, **options)
    for tensor in (output, *torch.autograd.grad(output.sum(), (image, grid))):
        assert tensor.isfinite().all()
