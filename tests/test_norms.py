"""Batch normalisation and what stands around it in a few launches, against PyTorch's in float64."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from backbone_kernels import (
    CUDA,
    DEVICE,
    DTYPES,
    compare_each,
    compare_whole_networks,
    last,
    real_sizes,
    stepped,
)
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from spatial_transformer.experiments import efficientnet_lite

kernels = pytest.importorskip("spatial_transformer.experiments.norms_triton")

pytestmark = [pytest.mark.usefixtures("one_thread", "seed"), *([pytest.mark.gpu] if CUDA else [])]

SHAPES = [
    (2, 3, 5, 7),
    (3, 24, 9, 11),
    (5, 32, 13, 17),
    (2, 144, 7, 9),
    (2, 100, 6, 7),
    (2, 1408, 3, 5),
    (2, 8, 1, 1),
]
AROUND = (1, 2, 0, 1)  # left, right, top, bottom


def made_norm(channels, momentum=0.1):
    norm = nn.BatchNorm2d(channels, eps=1e-3, momentum=momentum, device=DEVICE)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor.uniform_(0.5, 2.0)
    return norm


def made_maps(shape, dtype, mean=1.0, deviation=3.0):
    return last((mean + deviation * torch.randn(shape, device=DEVICE)).to(dtype))


def twice(x, norm, *, rectified=False, added=None, zeros=None):
    """Outputs and gradients by name, of the kernels and of PyTorch in float64."""
    exact = copy.deepcopy(norm).double()
    given = [x.detach().requires_grad_(), *([] if added is None else [added.detach().requires_grad_()])]
    precise = [each.detach().double().requires_grad_() for each in given]
    found = kernels.normalised(
        given[0],
        norm,
        rectified=rectified,
        added=None if added is None else given[1],
        zeros=zeros,
    )
    wanted = exact(precise[0])
    # Where rounding decides what the rectifier lets through, both answers are right: nothing is sent there.
    torn = (wanted.abs() < 1e-4) | ((wanted - 6).abs() < 1e-4)
    wanted = wanted.clamp(0, 6) if rectified else wanted
    wanted = F.pad(wanted if added is None else wanted + precise[1], zeros or (0, 0, 0, 0))
    sent = torch.randn(wanted.shape, device=DEVICE).masked_fill(F.pad(torn, zeros or (0, 0, 0, 0)), 0)
    sent = last(sent.to(x.dtype))
    names = ["output", "of x", *(["of added"] if added is not None else []), "of weight", "of bias"]
    results = []
    for output, inputs, one in ((found, given, norm), (wanted, precise, exact)):
        gradients = torch.autograd.grad(output, [*inputs, one.weight, one.bias], sent.to(output.dtype))
        values = dict(zip(names, (output.detach(), *gradients), strict=True))
        results.append(values | {"mean": one.running_mean, "variance": one.running_var})
        assert one.num_batches_tracked == 1
    return results


def compare(found, wanted, dtype):
    assert found["output"].is_contiguous(memory_format=torch.channels_last)
    compare_each(found, wanted, dtype, sums=("of weight", "of bias", "mean", "variance"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_gradients_and_statistics(shape, rectified, dtype):
    compare(*twice(made_maps(shape, dtype), made_norm(shape[1]), rectified=rectified), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("around", [AROUND, (0, 1, 0, 1), (1, 2, 1, 2)])
def test_zeros_around(around, rectified, dtype):
    found, *rest = twice(made_maps((3, 24, 6, 8), dtype), made_norm(24), rectified=rectified, zeros=around)
    left, right, top, bottom = around
    assert found["output"].shape == (3, 24, 6 + top + bottom, 8 + left + right)
    compare(found, *rest, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("around", [None, AROUND])
def test_something_added(around, dtype):
    x, added = (made_maps((3, 48, 5, 7), dtype) for _ in range(2))
    compare(*twice(x, made_norm(48), added=added, zeros=around), dtype)


def test_something_added_that_lies_otherwise():
    x, added = made_maps((3, 16, 5, 7), torch.float32), torch.randn(3, 16, 5, 7, device=DEVICE)
    compare(*twice(x, made_norm(16), added=added), torch.float32)


@pytest.mark.parametrize("width", [16, 24])
def test_many_parts(width):
    """More rows than all programs take at a time, and a last part that is shorter."""
    x = made_maps((3, width, 31, 45), torch.float32)
    blocks = kernels.blocks_of(x.numel() // width, width)
    assert blocks.parts > 30
    assert (blocks.parts - 1) * blocks.each < blocks.rows < blocks.parts * blocks.each
    compare(*twice(x, made_norm(width), rectified=True), torch.float32)


@pytest.mark.parametrize("rows", [1, 2, 3, 31, 32, 33, 64, 127, 3136, 802_816])
@pytest.mark.parametrize("channels", [1, 3, 16, 24, 32, 88, 96, 120, 528, 1248, 1280, 4096, 40_000])
def test_parts_are_all_the_rows(rows, channels):
    blocks = kernels.blocks_of(rows, channels)
    assert 0 <= rows - (blocks.parts - 1) * blocks.each - 1 < blocks.each  # none is empty
    assert blocks.channels == channels
    assert blocks.blocks * blocks.tile[1] >= channels
    assert blocks.tile[0] * blocks.tile[1] == kernels.NUMBERS
    assert blocks.parts <= kernels.PROGRAMS


@pytest.mark.parametrize(("mean", "deviation"), [(1e3, 0.1), (-3e4, 3.0)])
def test_a_mean_far_from_nothing_costs_no_digits(mean, deviation):
    """Sums of squares would: their differences are of the order of their own rounding."""
    x, norm = made_maps((4, 24, 31, 33), torch.float32, mean, deviation), made_norm(24, momentum=1.0)
    away = x.double().square().mean((0, 2, 3)) - x.double().mean((0, 2, 3)) ** 2
    plain = x.square().mean((0, 2, 3)) - x.mean((0, 2, 3)) ** 2
    assert ((plain - away) / away).abs().max() > 0.01
    kernels.normalised(x, norm)
    variance, mean = torch.var_mean(x.double(), (0, 2, 3))
    torch.testing.assert_close(norm.running_var.double(), variance, rtol=1e-4, atol=0)
    torch.testing.assert_close(norm.running_mean.double(), mean, rtol=2e-7, atol=0)


def test_one_far_away_among_many():
    """It may be the row that distances are taken from."""
    x, norm = made_maps((4, 24, 31, 33), torch.float32, 0.0, 1.0), made_norm(24, momentum=1.0)
    x[0, :, 0, 0] = 50.0
    kernels.normalised(x, norm)
    rounding = 50**2 * 2.0**-24  # of squares that are taken from 50 on, beside a variance of about 1
    wanted = torch.var(x.double(), (0, 2, 3))
    torch.testing.assert_close(norm.running_var.double(), wanted, rtol=rounding, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("rectified", [False, True])
def test_what_has_diverged_is_seen(bad, rectified):
    x, norm = made_maps((2, 8, 5, 5), torch.float32), made_norm(8)
    x[1, 3, 2, 2] = bad
    found = kernels.normalised(x, norm, rectified=rectified)
    assert found[:, 3].isnan().any()
    assert found[:, :3].isfinite().all()


def test_the_same_twice():
    x, sent = (made_maps((2, 40, 17, 19), torch.bfloat16) for _ in range(2))
    norm, results = made_norm(40), []
    for one in (norm, copy.deepcopy(norm)):
        given = x.detach().requires_grad_()
        output = kernels.normalised(given, one, rectified=True)
        gradients = torch.autograd.grad(output, [given, one.weight, one.bias], sent)
        results.append([output, *gradients, one.running_mean, one.running_var])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_statistics_follow_from_batch_to_batch():
    norm = made_norm(24, momentum=0.3)
    other = copy.deepcopy(norm).double()
    for _ in range(3):
        x = made_maps((2, 24, 4, 5), torch.float32)
        kernels.normalised(x, norm)
        other(x.double())
    assert norm.num_batches_tracked == other.num_batches_tracked == 3
    torch.testing.assert_close(norm.running_mean.double(), other.running_mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(norm.running_var.double(), other.running_var, rtol=1e-5, atol=1e-6)


def test_what_is_left_to_pytorch():
    x, norm = made_maps((2, 8, 4, 5), torch.bfloat16), made_norm(8)
    assert kernels.why_not(x, norm) is None
    assert kernels.why_not(x.float(), norm) is None
    for maps in (x.contiguous(), x.double(), x.half(), x[:1, :, :1, :1], x[:, :, :, ::2]):
        assert kernels.why_not(maps, norm) is not None
    huge = torch.empty(1, 8, 1, 1, device="meta").expand(2**27, 8, 1, 1)
    assert kernels.why_not(huge, norm) is not None
    without = (nn.BatchNorm2d(8, affine=False), nn.BatchNorm2d(8, track_running_stats=False))
    for other in (copy.deepcopy(norm).eval(), *without, nn.BatchNorm2d(8, momentum=None)):
        assert kernels.why_not(x, other) is not None


# ---- in the network ----


@pytest.fixture
def anywhere(monkeypatch):
    """The kernels on every device, as on a GPU."""

    def kernels_for(x, norm):
        return (
            kernels if efficientnet_lite._in_kernels["norms"] and kernels.why_not(x, norm) is None else None
        )

    monkeypatch.setattr(efficientnet_lite, "kernels_for", kernels_for)


BLOCKS = {
    "at a stride": (16, 24, 5, 2, 6),
    "with its input added": (16, 16, 3, 1, 6),
    "that does not expand": (16, 24, 3, 1, 1),
    "of neither": (16, 24, 3, 1, 6),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("side", [7, 8])
def test_blocks(name, side, anywhere):
    block = efficientnet_lite.Block(*BLOCKS[name]).to(DEVICE, torch.float32)
    images = made_maps((3, 16, side, side + 1), torch.float32)
    found, wanted = (stepped(block, images, norms=wanted) for wanted in (True, False))
    exact = stepped(copy.deepcopy(block).double(), images.double())
    for key, value in exact.items():
        # As far off as PyTorch's own, or nearly: sums in another order.
        scale = value.abs().max()
        off, allowed = ((one[key] - value).abs().max() / scale for one in (found, wanted))
        assert off <= 10 * allowed + 1e-5, key


def test_no_pass_over_the_maps_is_left(anywhere, monkeypatch):
    """Neither PyTorch's norms nor its rectifiers, sums and zeros."""
    monkeypatch.setattr(kernels, "launch", lambda *_: None)  # the interpreter copies
    block, seen = efficientnet_lite.Block(16, 16, 3, 1, 6).to(DEVICE), []
    reducing, x = efficientnet_lite.Block(16, 24, 3, 2, 6).to(DEVICE), made_maps((2, 16, 8, 8), torch.float32)

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watch(), efficientnet_lite.depthwise_in_kernels(False):
        reducing(block(x))
    passes = {"norm", "hardtanh", "clamp", "pad", "add", "clone", "copy"}
    assert {one for one in seen if any(word in one for word in passes)} == set()
    assert sum("convolution" in one for one in seen) == 6


@pytest.mark.parametrize("what", ["asked for", "frozen", "tested", "contiguous"])
def test_where_the_network_takes_pytorchs(what, anywhere, monkeypatch):
    layer, images = efficientnet_lite.Layer(16, 24).to(DEVICE), made_maps((2, 16, 8, 8), torch.float32)
    if what == "frozen":
        layer.norm.eval()
    if what == "tested":
        layer.eval()
    if what == "contiguous":
        images = images.contiguous()
    monkeypatch.setattr(kernels, "normalised", lambda *_, **__: pytest.fail("by the kernels"))
    with efficientnet_lite.norms_in_kernels(what != "asked for"):
        layer(images)


@pytest.mark.skipif(CUDA, reason="of what a CPU does")
def test_the_cpu_takes_pytorchs():
    layer = efficientnet_lite.Layer(16, 24)
    assert efficientnet_lite.kernels_for(made_maps((2, 24, 8, 8), torch.float32), layer.norm) is None


def test_the_switch_is_put_back():
    def fail():
        with efficientnet_lite.norms_in_kernels(False):
            raise KeyError(efficientnet_lite._in_kernels["norms"])

    with pytest.raises(KeyError, match="False"):
        fail()
    assert efficientnet_lite._in_kernels["norms"]


@real_sizes
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize(
    "shape", [(64, 32, 112, 112), (64, 144, 56, 56), (64, 528, 14, 14), (64, 1248, 7, 7)]
)
def test_real_sizes(shape, rectified):
    compare(
        *twice(made_maps(shape, torch.bfloat16), made_norm(shape[1]), rectified=rectified), torch.bfloat16
    )


@real_sizes
def test_the_whole_network_with_and_without():
    compare_whole_networks(norms=True)


@real_sizes
def test_inside_a_graph():
    x, norm = made_maps((8, 96, 28, 28), torch.bfloat16), made_norm(96)
    alone, given = copy.deepcopy(norm), x.detach().requires_grad_()

    def step(one):
        output = kernels.normalised(given, one, rectified=True, zeros=(0, 1, 0, 1))
        return [output, *torch.autograd.grad(output, [given, one.weight, one.bias], torch.ones_like(output))]

    step(copy.deepcopy(norm))  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(norm)
    for _ in range(3):
        graph.replay()
        wanted = step(alone)
    wanted += [alone.running_mean, alone.running_var, alone.num_batches_tracked]
    captured += [norm.running_mean, norm.running_var, norm.num_batches_tracked]
    assert alone.num_batches_tracked == 3
    assert all(torch.equal(a, b) for a, b in zip(captured, wanted, strict=True))
