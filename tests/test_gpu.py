"""On a CUDA device: every implementation against ``reference`` in float64 on the CPU."""

from __future__ import annotations

import math
import statistics

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


# Every family with every padding; every kernel with every padding for one family of each kind. More of them
# would say little more, and each has kernels of its own to compile.
READINGS = [(family, "bilinear", pad) for family in FAMILY_NAMES for pad in PADDINGS] + [
    (family, kernel, pad)
    for family in ("Affine", "ThinPlateSpline")
    for kernel in KERNELS
    if kernel != "bilinear"
    for pad in PADDINGS
]


@pytest.mark.parametrize(("family_name", "kernel_name", "padding_name"), READINGS)
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
            slack = 8 * 2**-23 * max(size) * 4 if chosen == "torch" else 0.0
            assert (output.cpu() - image).abs().max() <= slack
            cotangent = images(*output.shape, seed=2, dtype=torch.float32).to(device)
            gradients.append(torch.autograd.grad(output, theta, cotangent)[0].cpu())
        assert (gradients[1] - gradients[0]).norm() / gradients[0].norm() < 1e-3


@pytest.mark.parametrize("options", [{}, {"kernel": "nearest"}, {"padding": "circular"}, {"antialias": 2}])
@pytest.mark.parametrize("family_name", ["Affine", "Projective", "ThinPlateSpline", "PiecewiseAffine"])
@pytest.mark.parametrize("impl", ["torch", "fused"])
def test_cuda_graph(impl, family_name, options):
    """A training step of a module is captured and replayed on other data."""
    torch.manual_seed(0)
    family = families(2, (10, 10), dtype=torch.float32)[family_name]
    localiser = st.DenseLocaliser(1, (10, 10), hidden=(4,))
    module = st.SpatialTransformer(localiser, family, impl=impl, **options).cuda()
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


@pytest.mark.parametrize("copies", [1, 3])
def test_cuda_graph_of_a_grid(copies):
    """``sample`` and its gradients, captured and replayed on other data."""
    image, grid = torch.rand(2, 3, 16, 16, device="cuda"), torch.rand(2, copies, 9, 8, 2, device="cuda")
    image, grid = image.requires_grad_(), grid.requires_grad_()

    def step():
        output = st.sample(image, grid, padding="border", impl="fused")
        return output, *torch.autograd.grad(output.square().sum(), (image, grid))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    with torch.no_grad():
        image.copy_(torch.rand_like(image))
        grid.copy_(2 * torch.rand_like(grid) - 1)
    graph.replay()
    for one, other in zip(found, step(), strict=True):
        close(one, other, (1e-4, 1e-4))


@pytest.mark.parametrize("impl", ["torch", "fused"])
def test_compiled(impl):
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = st.SpatialTransformer(st.ConvLocaliser(1, (28, 28)), st.ThinPlateSpline(), impl=impl).cuda()
    torch.nn.init.normal_(module.head.weight, std=0.05)
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for batch in (4, 9, 33):
        image = torch.rand(batch, 1, 28, 28, device="cuda", requires_grad=True)
        outputs = [run(image) for run in (compiled, module)]
        close(outputs[0], outputs[1], (1e-3, 1e-3))  # convolutions of the localiser may differ
        outputs[0].sum().backward()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_compiled_among_other_layers(layout):
    """Inductor between our operators, forward and backward, with graphs of its own."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    transformer = st.SpatialTransformer(
        st.DenseLocaliser(4, (28, 28), hidden=(4,)), st.Affine(), padding="border", impl="fused"
    )
    torch.nn.init.normal_(transformer.head.weight, std=0.05)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), transformer, torch.nn.Tanh()).cuda()
    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    image = torch.rand(8, 1, 28, 28, device="cuda").contiguous(memory_format=layout)
    answers = []
    for run in (model, compiled, compiled, compiled):
        model.zero_grad()
        output = run(image)
        output.square().mean().backward()
        answers.append([output.detach().clone(), *(p.grad.clone() for p in model.parameters())])
    for found in answers[1:]:
        for one, other in zip(found, answers[0], strict=True):
            close(one, other, (1e-2, 1e-3))  # convolutions in TF32 may differ


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("family_name", "options"),
    [
        ("Affine", {}),
        ("Projective", {}),
        ("Affine", {"padding": "border"}),
        ("Affine", {"padding": "circular", "kernel": "bicubic"}),
        ("Affine", {"antialias": 2}),
        ("ThinPlateSpline", {}),
        ("LearnedBasis", {"padding": "reflection"}),
    ],
)
def test_the_same_bits_in_twenty_runs(family_name, options, dtype):
    """Thousands of programs at once; an output much larger than the image, so that they meet."""
    size = (150, 130)
    family = families(2, size, dtype=torch.float32)[family_name].cuda()
    image = images(16, 3, 20, 24, dtype=dtype).cuda()
    theta = thetas(family, 16 * 2, dtype=torch.float32).cuda().unflatten(0, (16, 2))
    torch.use_deterministic_algorithms(True)
    try:
        first = outcome(image, theta, family, size=size, impl="fused", **options)
        for _ in range(19):
            for one, other in zip(
                outcome(image, theta, family, size=size, impl="fused", **options), first, strict=True
            ):
                assert torch.equal(one, other)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.alone
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("family_name", "shape", "options"),
    [
        ("Affine", (256, 1, 28, 28), {}),
        ("Affine", (64, 3, 224, 224), {}),
        ("Affine", (64, 3, 224, 224), {"padding": "border"}),
        ("Affine", (16, 64, 56, 56), {"padding": "reflection"}),
        ("ThinPlateSpline", (1024, 1, 42, 42), {}),
        ("ThinPlateSpline", (64, 3, 448, 448), {"size": (224, 224)}),
        ("Affine", (16, 3, 224, 224), {"size": (112, 112), "antialias": True}),
    ],
)
def test_the_same_bits_cost_at_most_three_times_as_much(family_name, shape, options, dtype):
    family = families(2, options.get("size", shape[2:]), dtype=torch.float32)[family_name].cuda()
    image = images(*shape, dtype=torch.float32).to("cuda", dtype).requires_grad_()
    theta = thetas(family, shape[0], dtype=torch.float32).cuda().requires_grad_()

    def step():
        output = st.warp(image, theta, family, impl="fused", **options)
        return torch.autograd.grad(output, (image, theta), output.detach())

    def seconds():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    medians = []
    for same_bits in (False, True):
        torch.use_deterministic_algorithms(same_bits)
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(10):
                    step()
        finally:
            torch.use_deterministic_algorithms(False)
        medians.append(statistics.median([seconds() for _ in range(12)][2:]))
    print(f"{family_name} {shape} {options} {dtype}: {medians[1] / medians[0]:.2f} times")
    assert medians[1] <= 3 * medians[0]


def test_another_device_and_stream():
    """The kernels run on the current stream, and on the image's device."""
    image = torch.rand(4, 3, 300, 300, device="cuda")
    theta = thetas(st.Affine(), 4, dtype=torch.float32).cuda()
    expected = st.warp(image, theta, st.Affine(), impl="fused")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        late = torch.zeros_like(image)
        torch.cuda._sleep(20_000_000)
        late.copy_(image)
        found = st.warp(late, theta, st.Affine(), impl="fused")
    side.synchronize()
    assert torch.equal(found, expected)
    if torch.cuda.device_count() > 1:
        found = st.warp(image.to("cuda:1"), theta.to("cuda:1"), st.Affine(), impl="fused")
        assert torch.equal(found.cpu(), expected.cpu())


# Beyond 2^31 elements

SIDE = 3 * 2**14  # 2.4e9 pixels; crops of 96 px have coordinates that are exact in float32
roomy = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] < 40 * 2**30, reason="needs 40 GiB"
)


def pattern(side, dtype):
    """An image whose pixels tell where they are, made row by row."""
    image = torch.empty(1, 1, side, side, dtype=dtype, device="cuda")
    columns = torch.arange(side, device="cuda")
    for start in range(0, side, 1000):
        rows = torch.arange(start, min(start + 1000, side), device="cuda")[:, None]
        image[0, 0, start : start + 1000] = ((columns + 3 * rows) % 251).to(dtype)
    return image


@pytest.mark.alone
@roomy
@pytest.mark.parametrize("pad", ["zeros", "border"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_image_beyond_32_bits(dtype, pad):
    """A crop from the far corner, and its gradient, which lands there alone."""
    image = pattern(SIDE, dtype).requires_grad_()
    crop = 96
    shift = 1 - crop / SIDE  # the crop's edges on those of the image
    theta = torch.tensor([[crop / SIDE, shift, shift]], device="cuda").requires_grad_()
    output = st.warp(image, theta, st.Attention(), size=(crop, crop), padding=pad, impl="fused")
    corner = image[..., -crop:, -crop:]
    assert torch.equal(output, corner)
    cotangent = (1 + torch.rand_like(output)).to(dtype)
    d_image, d_theta = torch.autograd.grad(output, (image, theta), cotangent)
    assert torch.equal(d_image[..., -crop:, -crop:], cotangent)
    assert d_image.count_nonzero() == crop * crop
    exact = corner.detach().double().requires_grad_()
    alone = torch.tensor([[1.0, 0, 0]], dtype=torch.float64, device="cuda").requires_grad_()
    expected = st.warp(exact, alone, st.Attention(), padding="border", impl="reference")
    (expected,) = torch.autograd.grad(expected, alone, cotangent.double())
    if pad == "border":  # shifts are in units of the whole image
        close(d_theta[:, 1:].double(), expected[:, 1:] * (SIDE / crop), (1e-4, 1.0))
    assert d_theta.isfinite().all()


@pytest.mark.alone
@roomy
def test_a_batch_beyond_32_bits():
    image = torch.randint(0, 251, (40, 1, 8192, 8192), dtype=torch.uint8, device="cuda").to(torch.bfloat16)
    image.requires_grad_()
    theta = st.Affine().identity().expand(40, -1).cuda()
    output = st.warp(image, theta, st.Affine(), impl="fused")
    assert torch.equal(output, image)
    (gradient,) = torch.autograd.grad(output, image, image.detach())
    assert torch.equal(gradient, image)


@pytest.mark.alone
@roomy
def test_an_output_beyond_32_bits():
    """A few pixels magnified to 2.4e9."""
    image = (images(1, 1, 8, 8) * 200).to(torch.bfloat16).cuda()
    theta = st.Affine().identity(dtype=torch.float64)[None].cuda()
    output = st.warp(image, theta, st.Affine(), size=(SIDE, SIDE), kernel="nearest", impl="fused")
    step = SIDE // 8
    for y in range(8):
        for x in range(8):
            tile = output[0, 0, y * step : (y + 1) * step, x * step : (x + 1) * step]
            assert (tile == image[0, 0, y, x]).all(), (y, x)


def test_info_names_the_device():
    assert torch.cuda.get_device_name() in st.info()
    lines = [" ".join(line.split()) for line in st.info().splitlines()]
    assert "cuda 2D bilinear any padding fused Triton kernels" in lines


def test_devices_that_differ_are_named():
    with pytest.raises(ValueError, match=r"theta must be on the device of image, cuda:0, got cpu"):
        st.warp(torch.rand(1, 1, 4, 4, device="cuda"), st.Affine().identity()[None], st.Affine())


def test_a_basis_left_on_the_cpu_is_named_at_every_call():
    """Not only when a kernel is first launched: later launches are given addresses."""
    image = torch.rand(2, 1, 8, 8, device="cuda")
    learned = {device: st.LearnedBasis(points=4, size=(8, 8)).to(device) for device in ("cuda", "cpu")}
    theta = learned["cuda"].identity(device="cuda").repeat(2, 1)
    for _ in range(2):
        st.warp(image, theta, learned["cuda"], impl="fused")
        with pytest.raises(ValueError, match="cpu tensor"):
            st.warp(image, theta, learned["cpu"], impl="fused")
