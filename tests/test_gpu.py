"""On a CUDA device: every implementation against ``reference`` in float64 on the CPU."""

from __future__ import annotations

import math

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
    thetas,
)

import spatial_transformer as st

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

IN = {2: (13, 10), 3: (5, 6, 7)}
OUT = {2: (9, 11), 3: (4, 5, 3)}


def outcome(image, theta, family, **options):
    leaves = (image.clone().requires_grad_(), theta.clone().requires_grad_(), *family.parameters())
    output = st.warp(leaves[0], leaves[1], family, **options)
    cotangent = images(*output.shape, seed=4).to(output)
    return [part.detach().cpu() for part in (output, *torch.autograd.grad(output, leaves, cotangent))]


@pytest.mark.parametrize("padding_name", PADDINGS)
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("family_name", FAMILY_NAMES)
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_float64(impl, dims, family_name, kernel_name, padding_name):
    family = families(dims, OUT[dims])[family_name]
    image, theta = (
        images(2, 2, *IN[dims]),
        torch.stack([thetas(family, 2), thetas(family, 2, spread=0.6, seed=1)], 1),
    )
    options = {"size": OUT[dims], "kernel": kernel(kernel_name), "padding": padding(padding_name, 2)}
    expected = outcome(image, theta, family, **options, impl="reference")
    found = outcome(image.cuda(), theta.cuda(), family.cuda(), **options, impl=impl)
    for one, other in zip(found, expected, strict=True):
        close(one, other, (1e-9, 1e-10))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family_name", ["Affine", "Projective", "ThinPlateSpline"])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_every_dtype_and_layout_with_the_coarse_switches_on(impl, family_name, dtype, layout):
    """TF32 products and autocast on: coordinates at 1024 px stay within 1e-3 px."""
    size = (16, 1024)
    precise = torch.promote_types(dtype, torch.float32)
    family = families(2, size, dtype=precise)[family_name]
    columns = torch.arange(256, dtype=dtype).repeat(4).expand(1, 2, *size).contiguous(memory_format=layout)
    theta = thetas(family, 1, spread=0.02, dtype=precise)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            found = st.warp(columns.cuda(), theta.cuda(), family.cuda(), padding="border", impl=impl).cpu()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=layout)
    family = family.cpu().double()
    exact = st.warp(columns.double(), theta.double(), family, padding="border", impl="reference")
    # where the ramp jumps back from 255 to 0 a thousandth of a pixel is a quarter of a value
    pixels = family.pixels(theta.double(), size, size, False)[0]
    smooth = (pixels % 256 < 255)[:, None].expand_as(exact)
    # 1e-3 px, and one rounding of the output
    slack = 1e-3 + torch.finfo(dtype).eps * exact.abs()
    assert ((found.double() - exact).abs() <= slack)[smooth].all()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("padding_name", PADDINGS)
@pytest.mark.parametrize("family_name", FAMILY_NAMES)
def test_bad_thetas(family_name, padding_name, impl):
    family = families(2, (7, 6), dtype=torch.float32)[family_name].cuda()
    image, good = (
        images(3, 2, 7, 6, dtype=torch.float32).cuda(),
        thetas(family, 3, dtype=torch.float32).cuda(),
    )
    options = {"padding": padding(padding_name, 2), "impl": impl}
    clean = st.warp(image, good, family, **options)
    for value in (math.nan, math.inf, -math.inf, 1e30):
        theta = good.clone()
        theta[1] = value
        for part in outcome(image, theta, family, **options):
            assert part.isfinite().all()
        assert torch.equal(st.warp(image, theta, family, **options)[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_identity_and_its_gradient(impl):
    for size in ((28, 28), (63, 224)):
        image = images(4, 1, *size, dtype=torch.float32)
        gradients = []
        for device, chosen in (("cpu", "reference"), ("cuda", impl)):
            theta = st.Affine().identity().expand(4, -1).to(device).requires_grad_()
            output = st.warp(image.to(device), theta, st.Affine(), impl=chosen)
            slack = 0.0 if chosen == "reference" else 8 * 2**-23 * max(size) * 4
            assert (output.cpu() - image).abs().max() <= slack
            cotangent = images(*output.shape, seed=2, dtype=torch.float32).to(device)
            gradients.append(torch.autograd.grad(output, theta, cotangent)[0].cpu())
        assert (gradients[1] - gradients[0]).norm() / gradients[0].norm() < 1e-3


@pytest.mark.parametrize("options", [{}, {"kernel": "nearest"}, {"padding": "circular"}, {"antialias": 2}])
@pytest.mark.parametrize("family_name", ["Affine", "Projective", "ThinPlateSpline", "PiecewiseAffine"])
def test_cuda_graph(family_name, options):
    """A training step of a module is captured and replayed on other data."""
    torch.manual_seed(0)
    family = families(2, (10, 10), dtype=torch.float32)[family_name]
    module = st.SpatialTransformer(st.DenseLocaliser(1, (10, 10), hidden=(4,)), family, **options).cuda()
    torch.nn.init.normal_(module.head.weight, std=0.05)
    image = torch.rand(4, 1, 10, 10, device="cuda")
    parameters = list(module.parameters())

    def step():
        output = module(image)
        return output, torch.autograd.grad(output.square().sum(), parameters, allow_unused=True)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output, gradients = step()
    image.copy_(torch.rand(4, 1, 10, 10))
    graph.replay()
    expected, expected_gradients = step()
    close(output, expected, (1e-6, 1e-6))
    for one, other in zip(gradients, expected_gradients, strict=True):
        close(one, other, (1e-3, 1e-3))  # sums by atomics: their order differs


def test_compiled():
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = st.SpatialTransformer(st.ConvLocaliser(1, (28, 28)), st.ThinPlateSpline()).cuda()
    torch.nn.init.normal_(module.head.weight, std=0.05)
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for batch in (4, 9, 33):
        image = torch.rand(batch, 1, 28, 28, device="cuda", requires_grad=True)
        outputs = [run(image) for run in (compiled, module)]
        close(outputs[0], outputs[1], (1e-3, 1e-3))  # convolutions of the localiser may differ
        outputs[0].sum().backward()


def test_info_names_the_device():
    assert torch.cuda.get_device_name() in st.info()
    assert "cuda  2D bilinear" in st.info()


def test_devices_that_differ_are_named():
    with pytest.raises(ValueError, match=r"theta must be on the device of image, cuda:0, got cpu"):
        st.warp(torch.rand(1, 1, 4, 4, device="cuda"), st.Affine().identity()[None], st.Affine())
