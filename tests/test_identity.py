"""The identity is the identity: every family, dtype, odd and even sizes, size 1, 2D and 3D, both frames."""

from __future__ import annotations

import pytest
import torch
from cases import DTYPES, FAMILY_NAMES, HOMOGENEOUS, families, images

import spatial_transformer as st

SIZES = {
    2: [(1, 1), (1, 7), (2, 2), (5, 8), (28, 28), (63, 64), (33, 100)],
    3: [(1, 1, 1), (2, 3, 4), (7, 1, 6)],
}
CASES = [(dims, size) for dims, sizes in SIZES.items() for size in sizes]
KERNELS = ("nearest", "bilinear", "bicubic")


def coordinate_rounding(size, dtype):
    """How far a coordinate moves when a few of its roundings add up, in pixels."""
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    return 8 * eps * max(size)


@pytest.mark.parametrize("impl", ["reference", "fused"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("dims", "size"), CASES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family_name", FAMILY_NAMES)
def test_to_the_bit(family_name, dtype, dims, size, align_corners, impl):
    precise = torch.promote_types(dtype, torch.float32)
    family = families(dims, size, align_corners, dtype=precise)[family_name]
    image = images(2, 3, *size, dtype=dtype)
    theta = family.identity(dtype=precise).expand(2, -1)
    for kernel in KERNELS:
        found = st.warp(image, theta, family, kernel=kernel, align_corners=align_corners, impl=impl)
        if not family_name.startswith("LearnedBasis"):  # the splines' offsets are zero: exact too
            assert torch.equal(found, image), kernel
        else:
            # within a rounding of the coordinate (bicubic's slope is at most 2), and of the output
            slack = 4 * coordinate_rounding(size, dtype) + torch.finfo(dtype).eps
            assert (found - image).abs().max() <= slack, kernel


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("dims", "size"), CASES)
@pytest.mark.parametrize("family_name", FAMILY_NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch(dtype, family_name, dims, size, align_corners):
    """grid_sample cannot be exact: within a rounding of the coordinate, and of the output."""
    precise = torch.promote_types(dtype, torch.float32)
    family = families(dims, size, align_corners, dtype=precise)[family_name]
    image = images(2, 3, *size, dtype=dtype)
    theta = family.identity(dtype=precise).expand(2, -1)
    for kernel in KERNELS:
        found = st.warp(image, theta, family, kernel=kernel, align_corners=align_corners, impl="torch")
        if kernel == "nearest" and family_name in HOMOGENEOUS:
            assert torch.equal(found, image)
            continue
        slack = 4 * coordinate_rounding(size, dtype) + torch.finfo(dtype).eps
        assert (found - image).abs().max() <= slack, kernel


@pytest.mark.parametrize("size", [(9, 9), (28, 28), (17, 224)])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("impl", ["reference", "fused"])
def test_flips_and_quarter_turns_are_exact(size, align_corners, impl):
    image = images(1, 1, *size, dtype=torch.float32)
    flip = torch.tensor([[-1.0, 0, 0, 0, 1, 0]])
    found = st.warp(image, flip, st.Affine(), align_corners=align_corners, impl=impl)
    assert torch.equal(found, image.flip(-1))
    if size[0] == size[1]:
        turn = torch.tensor([[0.0, -1, 0, 1, 0, 0]])
        found = st.warp(image, turn, st.Affine(), align_corners=align_corners, impl=impl)
        # output (x, y) shows input (-y, x)
        assert torch.equal(found, image.rot90(1, (-2, -1)))


# A learned B is rounded itself: its samples lie on either side of their pixel in any implementation.
@pytest.mark.parametrize("family_name", [name for name in FAMILY_NAMES if not name.startswith("Learned")])
@pytest.mark.parametrize("size", [(12, 13), (28, 28), (60, 64), (224, 100)])
@pytest.mark.parametrize("impl", ["torch", "fused"])
def test_gradient_of_theta_at_the_identity_start(size, family_name, impl):
    """Against ``reference`` in float32 within 1e-3, where PyTorch's own is up to 84 % off."""
    family = families(2, size, dtype=torch.float32)[family_name]
    image = images(4, 1, *size, dtype=torch.float32)
    cotangent = torch.randn(4, 1, *size, generator=torch.Generator().manual_seed(1))
    gradients = []
    for chosen in ("reference", impl):
        theta = family.identity().expand(4, -1).clone().requires_grad_()
        output = st.warp(image, theta, family, impl=chosen)
        gradients.append(torch.autograd.grad(output, theta, cotangent)[0])
    error = (gradients[1] - gradients[0]).norm() / gradients[0].norm()
    assert error < 1e-3


@pytest.mark.parametrize("dims", [2, 3])
def test_pinned_families_and_modules_start_there(dims):
    image = images(2, 1, *[6] * dims, dtype=torch.float32)
    localiser = st.DenseLocaliser(1, (6,) * dims, hidden=(4,))
    for family in (
        st.Attention(dims, scale=1.0),
        st.Affine(dims, theta_12=0.0),
        st.ThinPlateSpline((2,) * dims),
    ):
        transformer = st.SpatialTransformer(localiser, family, impl="reference")
        assert torch.equal(transformer(image), image)
