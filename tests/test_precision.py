"""Half precision and autocast: coordinates are float32 at least, and grid_sample never sees a half."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cases import IMPLEMENTATIONS, close, families, images, thetas

import spatial_transformer as st

HALVES = (torch.bfloat16, torch.float16)


def rotation(degrees: float, dtype=torch.float64):
    angle = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    zero = torch.zeros_like(angle)
    return torch.stack([angle.cos(), -angle.sin(), zero, angle.sin(), angle.cos(), zero])[None].to(dtype)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("mode", ["autocast bfloat16", "autocast float16", *HALVES])
@pytest.mark.parametrize("degrees", [0.0, 30.0])
def test_coordinate_error_at_width_1024(degrees, mode, impl):
    """Under 1e-3 px, where PyTorch is 1.5 to 4.6 px off in bfloat16.

    The coordinates that each family computes for a half image or under autocast, read off images that hold
    their own coordinates.
    """
    size = (8, 1024)
    for name, family in families(2, size, dtype=torch.float32).items():
        theta = family.identity()[None]
        if name == "Affine":
            theta = rotation(degrees, torch.float32)
        elif degrees:  # away from the identity, where the splines' offsets are zero in any precision
            theta = thetas(family, 1, spread=0.02, dtype=torch.float32)
        exact = st.coordinates.to_pixels(family.double().grid(theta.double(), size), size)
        family.float()
        x, y = exact[0].unbind(-1)
        inside = (x >= 0) & (x <= 1023) & (y >= 0) & (y <= 7)
        assert inside.sum() > 8
        columns = torch.arange(1024.0).expand(1, 1, *size)
        if isinstance(mode, str):
            with torch.autocast("cpu", dtype=getattr(torch, mode.split()[1])):
                found = st.warp(columns, theta, family, padding="border", impl=impl)
            error = (found[0, 0] - x)[inside].abs().max()
            assert error < 1e-3, name
        else:
            # A half image cannot hold 1024 columns: one period of eight columns after another, so that the
            # output's own rounding stays far below a column.
            image = (torch.arange(1024) % 8).to(mode).expand(1, 1, *size)
            found = st.warp(image, theta, family, padding="border", impl=impl).double()[0, 0]
            rising = inside & (x % 8 < 7)  # where the ramp does not fall back
            rounding = torch.finfo(mode).eps / 2 * (x % 8).clamp(min=2**-7)
            assert ((found - x % 8).abs() <= 1e-3 + rounding)[rising].all(), name


def waves(channels, size, dtype):
    """A smooth image: in noise the slope jumps at every pixel, and a coordinate's rounding decides it."""
    x = torch.arange(size, dtype=torch.float64) / 6
    y = torch.arange(size, dtype=torch.float64)[:, None] / 9
    return torch.stack([torch.sin(x + y * (c + 1)) + torch.cos(y - x) for c in range(channels)])[None].to(
        dtype
    )


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size", [256, 1024])
def test_large_half_images(size, dtype, layout, impl):
    """Values and gradients, in both layouts: where PyTorch's CPU sampler leaves the image's memory."""
    image = waves(2, size, dtype).contiguous(memory_format=layout)
    theta = rotation(20.0, torch.float32) * 0.9
    # The error of a theta that is slightly off: its gradient is a sum that does not cancel.
    off = theta.double() + torch.tensor([[0.002, -0.003, 0.001, 0.002, 0.001, -0.002]])
    plain = image.double()
    cotangent = st.warp(plain, theta.double(), st.Affine()) - st.warp(plain, off, st.Affine())
    cotangent = cotangent.to(dtype).double()
    answers = []
    for given, chosen in ((image, impl), (image.double(), "reference")):
        leaves = (given.requires_grad_(), theta.clone().requires_grad_())
        output = st.warp(*leaves, st.Affine(), impl=chosen)
        answers.append((output, *torch.autograd.grad(output, leaves, cotangent.to(given.dtype))))
    found, exact = answers
    assert found[0].dtype == dtype
    assert found[0].is_contiguous(memory_format=layout)
    eps = torch.finfo(dtype).eps
    # One rounding of the result, and a coordinate's 1e-4 px times the slope.
    close(found[0].double(), exact[0], (eps, 1e-3))
    close(found[1].double(), exact[1], (eps, 1e-3))
    assert (found[2] - exact[2]).norm() / exact[2].norm() < 1e-3


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("theta_dtype", [torch.float64, torch.float32, *HALVES])
@pytest.mark.parametrize("image_dtype", [torch.float64, torch.float32, *HALVES])
def test_mixed_dtypes(image_dtype, theta_dtype, impl):
    """theta may be of another dtype than the image; output and gradients have each their own."""
    image = images(1, 2, 7, 6, dtype=image_dtype).requires_grad_()
    theta = torch.tensor(
        [[0.75, 0.25, 0.125, -0.25, 1.0, 0.0]], dtype=theta_dtype
    ).requires_grad_()  # exact in all
    output = st.warp(image, theta, st.Affine(), impl=impl)
    output.sum().backward()
    assert (output.dtype, image.grad.dtype, theta.grad.dtype) == (image_dtype, image_dtype, theta_dtype)
    exact = st.warp(image.detach().double(), theta.detach().double(), st.Affine(), impl="reference")
    close(output.double(), exact, (torch.finfo(image_dtype).eps, 1e-5))


def test_theta_is_float32_under_autocast():
    transformer = st.SpatialTransformer(st.ConvLocaliser(1, (28, 28)), st.Affine())
    torch.nn.init.normal_(transformer.head.weight, std=0.1)
    image = images(2, 1, 28, 28, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        warped, theta = transformer(image, return_theta=True)
        features = transformer.localiser(image)
    assert features.dtype == torch.bfloat16  # the localiser itself does run in bfloat16
    assert theta.dtype == torch.float32
    expected = F.linear(features.double(), transformer.head.weight.double(), transformer.head.bias.double())
    close(theta.double(), expected, (1e-6, 1e-6))
    close(warped, st.warp(image, theta, st.Affine(), impl="reference"), (0, 1e-4))


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_matrix_product_switches_do_not_reach_coordinates(precision):
    """TF32 and bfloat16 products are for networks, not for coordinates."""
    before = torch.get_float32_matmul_precision()
    family = st.ThinPlateSpline()
    theta = (family.identity() + 0.1 * torch.randn(1, 32, generator=torch.Generator().manual_seed(0))).float()
    exact = family.grid(theta.double(), (8, 1024))
    try:
        torch.set_float32_matmul_precision(precision)
        found = family.grid(theta, (8, 1024))
    finally:
        torch.set_float32_matmul_precision(before)
    assert (found - exact).abs().max() * 512 < 1e-3
