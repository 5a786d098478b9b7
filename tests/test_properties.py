"""Properties over sizes, families, dtypes, paddings and kernels.

HYPOTHESIS_PROFILE=thorough runs 2,000 random examples of each; CI runs fewer, always the same.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
from cases import (
    DTYPES,
    FAMILY_NAMES,
    IMPLEMENTATIONS,
    KERNELS,
    PADDINGS,
    close,
    families,
    images,
    kernel,
    padding,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as draws

import spatial_transformer as st

NUMBA = importlib.util.find_spec("numba") is not None

COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}
settings.register_profile("ci", max_examples=150, **COMMON)
settings.register_profile("thorough", max_examples=2000, **{**COMMON, "derandomize": False})
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@draws.composite
def calls(draw):
    """A call of ``warp``: image, theta, family, options."""
    dims = draw(draws.sampled_from([2, 2, 3]))
    longest = 9 if dims == 2 else 4
    sizes = draws.lists(draws.integers(1, longest), min_size=dims, max_size=dims).map(tuple)
    in_size, out_size = draw(sizes), draw(sizes)
    align_corners = draw(draws.booleans())
    dtype = draw(draws.sampled_from(DTYPES))
    family_name = draw(draws.sampled_from(FAMILY_NAMES))
    precise = torch.promote_types(dtype, torch.float32)
    family = families(dims, out_size, align_corners, dtype=precise)[family_name]
    batch, channels, copies = (
        draw(draws.sampled_from([1, 2, 3, 1, 2, 3, 0])),
        draw(draws.integers(1, 3)),
        draw(draws.integers(0, 2)),
    )
    seed = draw(draws.integers(0, 2**16))
    image = images(batch, channels, *in_size, seed=seed, dtype=dtype)
    if draw(draws.booleans()):
        image = image.movedim(1, -1).contiguous().movedim(-1, 1)  # channels last
    shape = (batch, copies, family.num_params) if copies else (batch, family.num_params)
    spread = draw(draws.sampled_from([0.0, 0.05, 0.5, 3.0]))
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    theta = (family.identity(dtype=torch.float64) + spread * noise).to(precise)
    options = {
        "size": out_size,
        "kernel": kernel(draw(draws.sampled_from(KERNELS))),
        "padding": padding(draw(draws.sampled_from(PADDINGS)), channels),
        "align_corners": align_corners,
        "antialias": draw(draws.sampled_from([False, False, 1.5, 2])),
    }
    return image, theta, family, options


def implementations(options):
    """Those that take such a call."""
    return IMPLEMENTATIONS if NUMBA and isinstance(options["kernel"], str) else ("reference", "torch")


def run(image, theta, family, options, impl):
    leaves = (image.detach().clone().requires_grad_(), theta.detach().clone().requires_grad_())
    output = st.warp(*leaves, family, **options, impl=impl)
    cotangent = images(*output.shape, seed=1, dtype=output.dtype)
    return (output.detach(), *torch.autograd.grad(output, leaves, cotangent))


@given(calls())
def test_implementations_agree_and_keep_their_promises(call):
    """Shape, dtype, layout, finiteness; all of them and any dtype against ``reference`` in float64."""
    image, theta, family, options = call
    copies = theta.shape[1:-1]
    found = {impl: run(image, theta, family, options, impl) for impl in implementations(options)}
    exact = run(image.double(), theta.double(), family.double(), options, "reference")
    family.to(torch.promote_types(image.dtype, torch.float32))
    for impl, (output, d_image, d_theta) in found.items():
        assert output.shape == (image.shape[0], *copies, image.shape[1], *options["size"]), impl
        assert output.dtype == d_image.dtype == image.dtype
        assert d_theta.dtype == theta.dtype
        assert d_image.shape == image.shape
        assert d_theta.shape == theta.shape
        for tensor in (output, d_image, d_theta):
            assert tensor.isfinite().all(), impl
        if not copies and image.ndim == 4:
            layout = torch.channels_last if not image.is_contiguous() else torch.contiguous_format
            assert output.is_contiguous(memory_format=layout)
    if image.dtype == torch.float64 and not near_a_step(call):
        for impl in found:
            for one, other in zip(found[impl], exact, strict=True):
                close(one, other, (1e-8, 1e-8))
    elif image.numel() and not near_a_step(call):
        # A float32 coordinate is off by up to its size times 1e-6; the slope of image and kernel is below 4,
        # and channels of a wide reach add up.
        reach = (1 + theta.abs().max().item()) * max(*image.shape[2:], *options["size"])
        slack = 4e-6 * reach * 4 + 2 * torch.finfo(image.dtype).eps * max(1.0, exact[0].abs().max().item())
        for impl in found:
            assert (found[impl][0].double() - exact[0]).abs().max() <= slack, impl


def near_a_step(call) -> bool:
    """Whether a sample lies so near to a discontinuity that rounding decides: nearest and a Kernel's edges.

    These, and the slopes of every kernel at whole pixels, which identities and outputs of size 1 sit on.
    """
    image, theta, family, options = call
    in_size = tuple(image.shape[2:])
    positions = family.double().pixels(theta.double(), in_size, options["size"], options["align_corners"])
    family.to(torch.promote_types(image.dtype, torch.float32))
    for position in positions:
        halves = 2 * position
        tolerance = 1e-3 if image.dtype != torch.float64 else 1e-6
        if bool(((halves - halves.round()).abs() < tolerance).any()) or bool((position.abs() > 1e5).any()):
            return True
    if options["antialias"]:
        # The widened kernel's support ends wherever the footprint says: its weight is continuous for the hat
        # and the cubic, a step for the box and for a Kernel.
        return not isinstance(options["kernel"], str) or options["kernel"] == "nearest"
    return False


@given(calls(), draws.integers(0, 2))
def test_samples_are_independent(call, which):
    """A batch is its images one by one, and an image's copies are its warps one by one."""
    image, theta, family, options = call
    if image.shape[0] == 0 or near_a_step(call):
        return
    row = which % image.shape[0]
    for impl in implementations(options):
        whole = st.warp(image, theta, family, **options, impl=impl)
        alone = st.warp(image[row : row + 1], theta[row : row + 1], family, **options, impl=impl)
        # Other shapes go through other loops, which may sum in another order: a few roundings of the
        # coordinate (of the size of theta times the image, times a slope below 4) and of the output.
        reach = (1 + theta.abs().max().item()) * max(*image.shape[2:], *options["size"])
        tolerance = 4 * torch.finfo(image.dtype).eps * max(1.0, whole.abs().max().item())
        tolerance += 4 * 4 * torch.finfo(theta.dtype).eps * reach
        assert (whole[row] - alone[0]).abs().max() <= tolerance
        if theta.ndim == 3:
            copy = st.warp(image, theta[:, -1], family, **options, impl=impl)
            assert (whole[:, -1] - copy).abs().max() <= tolerance


@given(
    draws.integers(1, 300),
    draws.integers(1, 300),
    draws.booleans(),
    draws.sampled_from([torch.float32, torch.float64]),
)
def test_the_identity_is_exact_at_every_size(height, width, align_corners, dtype):
    image = images(1, 1, height, width, dtype=dtype)
    theta = st.Affine().identity(dtype=dtype)[None]
    for impl in ("reference", "fused") if NUMBA else ("reference",):
        found = st.warp(image, theta, st.Affine(), align_corners=align_corners, impl=impl)
        assert torch.equal(found, image), impl


@given(calls())
def test_linear_in_the_image(call):
    """Equation 3 is linear in U (a constant padding aside)."""
    image, theta, family, options = call
    if isinstance(options["padding"], list):
        return
    image, theta = image.double(), theta.double()
    other = images(*image.shape, seed=77)
    family = family.double()
    for impl in implementations(options):
        warp = lambda u, impl=impl: st.warp(u, theta, family, **options, impl=impl)  # noqa: E731
        torch.testing.assert_close(
            warp(2 * image - other), 2 * warp(image) - warp(other), rtol=1e-9, atol=1e-9
        )


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
