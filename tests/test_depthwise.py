"""Convolutions with a filter for each channel in kernels of their own, against PyTorch's in float64."""

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

from spatial_transformer.experiments import efficientnet_lite

kernels = pytest.importorskip("spatial_transformer.experiments.depthwise_triton")

pytestmark = [pytest.mark.usefixtures("one_thread", "seed"), *([pytest.mark.gpu] if CUDA else [])]

WAYS = [(3, 1), (3, 2), (5, 1), (5, 2)]  # side and stride
# Less than a block of channels, wide or narrow; more than one; columns and rows that fill no tile.
SHAPES = [(2, 8, 5, 7), (1, 56, 9, 6), (2, 40, 11, 8)]


def made_maps(shape, dtype=torch.float32):
    return last(torch.randn(shape, device=DEVICE).to(dtype))


def made(channels, side, stride):
    """A convolution as a layer of the network has it."""
    return efficientnet_lite.Layer(channels, channels, side, stride=stride, groups=channels).convolution.to(
        DEVICE
    )


def twice(x, convolution):
    """Outputs and gradients by name, of the kernels and of PyTorch in float64."""
    assert kernels.why_not(x, convolution) is None
    exact, given = copy.deepcopy(convolution).double(), x.detach().requires_grad_()
    precise = x.detach().double().requires_grad_()
    found, wanted = kernels.convolved(given, convolution), exact(precise)
    sent = made_maps(wanted.shape, found.dtype)
    results = []
    for output, inputs in ((found, (given, convolution.weight)), (wanted, (precise, exact.weight))):
        gradients = torch.autograd.grad(output, inputs, sent.to(output.dtype))
        results.append(dict(zip(("output", "of x", "of weight"), (output.detach(), *gradients), strict=True)))
    return results


def compare(found, wanted, dtype):
    assert found["of weight"].dtype == torch.float32
    assert all(found[name].is_contiguous(memory_format=torch.channels_last) for name in ("output", "of x"))
    compare_each(found, wanted, dtype, sums=["of weight"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("side", "stride"), WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_gradients(shape, side, stride, dtype, poisoned):
    """Into memory that is no numbers, and nowhere beside it."""
    compare(*twice(made_maps(shape, dtype), made(shape[1], side, stride)), dtype)


@pytest.mark.parametrize(("side", "stride"), WAYS)
@pytest.mark.parametrize("size", [(5, 5), (6, 5), (8, 12), (1, 2)])
def test_sizes(size, side, stride):
    """As few pixels as there can be, an even number of them, and as many rows as one program has."""
    size = size if stride == 1 else tuple(max(each, side) for each in size)
    compare(*twice(made_maps((1, 16, *size)), made(16, side, stride)), torch.float32)


@pytest.mark.parametrize(("side", "stride"), WAYS)
def test_parts_of_several_tiles(side, stride, monkeypatch):
    """One below the other and beside each other; the last part is shorter."""
    seen = []

    def parts_of(tiles, programs):
        seen.append((tiles.strips, tiles.tiles))
        return 2, tiles.strips * tiles.tiles - 1

    monkeypatch.setattr(kernels, "parts_of", parts_of)
    compare(*twice(made_maps((3, 8, 16 * stride, 29)), made(8, side, stride)), torch.float32)
    assert min(*seen.pop()) > 1


@pytest.mark.parametrize("count", [1, 64])
@pytest.mark.parametrize("side", [1, 3, 7, 8, 14, 16, 57, 112, 500])
@pytest.mark.parametrize("channels", [8, 32, 40, 96, 144, 528, 1248, 40_000])
def test_tiles_are_all_there_is(count, side, channels):
    tiles = kernels.tiles_of(count, channels, side, side)
    assert 0 <= tiles.strips * tiles.rows - side < tiles.rows
    assert 0 <= tiles.tiles * tiles.columns - count * side < tiles.columns
    assert 0 <= tiles.blocks * tiles.channels - channels < tiles.channels <= kernels.WIDEST
    assert tiles.columns * tiles.channels == kernels.NUMBERS
    for programs in kernels.PROGRAMS.values():
        parts, each = kernels.parts_of(tiles, programs)
        assert 0 <= parts * each - tiles.strips * tiles.tiles < each
        assert parts == 1 or parts * tiles.blocks <= programs


@pytest.mark.parametrize("channels", [8, 32, 40, 144, 1248])
def test_all_of_a_block_of_weights_can_be_read(channels):
    """Also of its channels that are none."""
    taps = kernels.taps_first(made(channels, 3, 1).weight.detach())
    assert taps.shape == (9, channels)
    tiles = kernels.tiles_of(1, channels, 7, 7)
    memory = taps.untyped_storage().nbytes() // taps.element_size() - taps.storage_offset()
    assert 8 * channels + tiles.blocks * tiles.channels <= memory


def test_seven_rows_at_a_time_of_the_networks_maps():
    assert {kernels.tiles_of(64, 96, side, side).rows for side in (112, 56, 28, 14, 7)} == {7}
    assert kernels.tiles_of(64, 96, 16, 16).rows == 8
    pairs = {
        kernels.tiles_of(64, 96, side, side, rows=kernels.ROWS_OF_PAIRS).rows for side in (57, 30, 15, 9)
    }
    assert pairs == {3}


@pytest.mark.parametrize("stride", [1, 2])
def test_what_is_no_number_is_seen_where_it_counts(stride):
    x, convolution = made_maps((2, 8, 9, 9)), made(8, 3, stride)
    x[1, 3, 4, 4] = float("nan")
    seen = kernels.convolved(x, convolution).isnan()
    assert torch.equal(seen, convolution(x).isnan())
    assert seen.any()


def test_the_same_twice():
    results = []
    x, convolution = made_maps((2, 40, 9, 7), torch.bfloat16), made(40, 3, 1)
    sent = made_maps(x.shape, torch.bfloat16)
    for _ in range(2):
        given = x.detach().requires_grad_()
        output = kernels.convolved(given, convolution)
        results.append([output, *torch.autograd.grad(output, [given, convolution.weight], sent)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_gradient_that_lies_otherwise():
    x, convolution = made_maps((2, 8, 5, 6)).requires_grad_(), made(8, 3, 1)
    inputs = (x, convolution.weight)
    found = torch.autograd.grad(kernels.convolved(*inputs[:1], convolution).sum(), inputs)
    for one, other in zip(found, torch.autograd.grad(convolution(x).sum(), inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("wanted", ["both", "x", "weight", "neither"])
def test_no_gradient_is_computed_that_is_not_wanted(wanted, stride, monkeypatch):
    launched = []
    monkeypatch.setattr(kernels, "launch", lambda kernel, *_: launched.append(kernel.__name__))
    x, convolution = made_maps((2, 8, 6, 6)), made(8, 3, stride)
    x.requires_grad_(wanted in ("both", "x"))
    convolution.weight.requires_grad_(wanted in ("both", "weight"))
    found = kernels.convolved(x, convolution)
    assert found.requires_grad == (wanted != "neither")
    if found.requires_grad:
        found.sum().backward()
    by_x = ["_convolved" if stride == 1 else "_spread"] if x.requires_grad else []
    by_weight = ["_correlated", "_summed"] if convolution.weight.requires_grad else []
    assert launched == ["_convolved", *by_x, *by_weight]


def test_not_differentiable_twice():
    x, convolution = made_maps((1, 8, 5, 5)).requires_grad_(), made(8, 3, 1)
    found = kernels.convolved(x, convolution).square().sum()
    (gradient,) = torch.autograd.grad(found, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast(dtype):
    """What comes in is cast as PyTorch casts it, and its gradient back."""
    x, convolution = made_maps((2, 8, 5, 6), dtype).requires_grad_(), made(8, 3, 1)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert kernels.why_not(x, convolution) is None
        found, plain = kernels.convolved(x, convolution), convolution(x)
    assert found.dtype == plain.dtype == torch.bfloat16
    torch.testing.assert_close(found, plain, rtol=2**-5, atol=2**-5)
    gradients = torch.autograd.grad(found.float().sum(), [x, convolution.weight])
    assert [one.dtype for one in gradients] == [dtype, torch.float32]
    with torch.autocast(DEVICE, torch.float16):
        assert kernels.why_not(x, convolution) is not None


def test_what_is_left_to_pytorch():
    x, convolution = made_maps((2, 8, 6, 5), torch.bfloat16), made(8, 3, 1)
    assert kernels.why_not(x, convolution) is None
    assert kernels.why_not(x.float(), convolution) is None
    others = (x.contiguous(), x.double(), x.half(), x[:, :, :, ::2], x[:0], made_maps((2, 16, 6, 5)), x[0])
    for maps in others:
        assert kernels.why_not(maps, convolution) is not None
    assert kernels.why_not(made_maps((2, 8, 4, 6)), made(8, 5, 2)) is not None  # no pixel is left
    large, huge = (
        torch.empty(count, 8, 1, 1, device="meta", memory_format=torch.channels_last)
        for count in (2**28 - 1, 2**28)
    )
    assert kernels.why_not(large, convolution) is None
    assert kernels.why_not(huge, convolution) is not None

    def plain(channels=8, filters=8, side=3, **ways):
        return nn.Conv2d(channels, filters, side, **{"padding": 1, "groups": 8, "bias": False} | ways)

    assert kernels.why_not(x, plain()) is None
    assert kernels.why_not(x, plain(stride=2, padding=0)) is None
    for other in (
        plain(groups=1),
        plain(filters=16),
        plain(side=7, padding=3),
        plain(side=(3, 5), padding=(1, 2)),
        plain(stride=2),
        plain(stride=(1, 2)),
        plain(stride=3, padding=0),
        plain(padding=0),
        plain(padding="same"),
        plain(dilation=2),
        plain(bias=True),
        plain(padding_mode="circular"),
        plain().double(),
    ):
        assert kernels.why_not(x, other) is not None
    assert kernels.why_not(made_maps((2, 12, 6, 5)), plain(12, 12, groups=12)) is not None


# ---- in the network ----


@pytest.fixture
def anywhere(monkeypatch):
    """The kernels on every device, as on a GPU."""

    def depthwise_for(x, convolution):
        wanted = efficientnet_lite._in_kernels["depthwise"] and convolution.training
        return kernels if wanted and kernels.why_not(x, convolution) is None else None

    monkeypatch.setattr(efficientnet_lite, "depthwise_for", depthwise_for)


@pytest.mark.parametrize(("side", "stride"), WAYS)
def test_blocks(side, stride, anywhere):
    block = efficientnet_lite.Block(8, 8, side, stride, 3).to(DEVICE)
    images = made_maps((2, 8, 7, 8))
    found, wanted = (stepped(block, images, depthwise=wanted) for wanted in (True, False))
    exact = stepped(copy.deepcopy(block).double(), images.double())
    assert not torch.equal(found["depthwise.convolution.weight"], wanted["depthwise.convolution.weight"])
    for key, value in exact.items():
        # As far off as PyTorch's own, or nearly: sums in another order.
        scale = value.abs().max()
        off, allowed = ((one[key] - value).abs().max() / scale for one in (found, wanted))
        assert off <= 10 * allowed + 1e-5, key


@pytest.mark.parametrize("what", ["asked for", "tested", "contiguous", "not depthwise"])
def test_where_the_network_takes_pytorchs(what, anywhere, monkeypatch):
    groups = 1 if what == "not depthwise" else 16
    layer = efficientnet_lite.Layer(16, 16, 3, groups=groups).to(DEVICE)
    images = made_maps((2, 16, 8, 8))
    if what == "tested":
        layer.eval()
    if what == "contiguous":
        images = images.contiguous()
    monkeypatch.setattr(kernels, "convolved", lambda *_: pytest.fail("by the kernels"))
    with efficientnet_lite.depthwise_in_kernels(what != "asked for"):
        layer(images)


def test_where_the_network_takes_the_kernels(anywhere, monkeypatch):
    seen = []
    monkeypatch.setattr(kernels, "convolved", lambda x, convolution: seen.append(1) or convolution(x))
    efficientnet_lite.Layer(16, 16, 3, groups=16).to(DEVICE)(made_maps((2, 16, 8, 8)))
    assert seen == [1]


@pytest.mark.skipif(CUDA, reason="of what a CPU does")
def test_the_cpu_takes_pytorchs():
    layer = efficientnet_lite.Layer(16, 16, 3, groups=16)
    assert efficientnet_lite.depthwise_for(made_maps((2, 16, 8, 8)), layer.convolution) is None


@pytest.mark.skipif(not CUDA, reason="of what a GPU does")
def test_the_gpu_takes_the_kernels_in_training():
    layer, x = efficientnet_lite.Layer(16, 16, 3, groups=16).to(DEVICE), made_maps((2, 16, 8, 8))
    assert efficientnet_lite.depthwise_for(x, layer.convolution) is kernels
    assert efficientnet_lite.depthwise_for(x, layer.eval().convolution) is None


def test_the_switch_is_put_back():
    def fail():
        with efficientnet_lite.depthwise_in_kernels(False):
            raise KeyError(str(efficientnet_lite._in_kernels))

    with pytest.raises(KeyError, match="'norms': True, 'depthwise': False"):
        fail()
    assert efficientnet_lite._in_kernels == {"norms": True, "depthwise": True}


REAL = [
    (32, 3, 1, 112), (96, 3, 2, 113), (144, 3, 1, 56), (144, 5, 2, 59), (288, 5, 1, 28), (288, 3, 2, 29),
    (528, 3, 1, 14), (720, 5, 1, 14), (720, 5, 2, 17), (1248, 5, 1, 7), (1248, 3, 1, 7),
]  # fmt: skip


@real_sizes
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "side", "stride", "size"), REAL)
def test_real_sizes(channels, side, stride, size, dtype):
    x, convolution = made_maps((64, channels, size, size), dtype), made(channels, side, stride)
    found, wanted = twice(x, convolution)
    compare(found, wanted, dtype)
    again, _ = twice(x, convolution)
    assert torch.equal(found["output"], again["output"])


@real_sizes
@pytest.mark.parametrize(("channels", "side", "stride", "size"), REAL)
def test_the_same_twice_at_real_sizes(channels, side, stride, size):
    x = made_maps((64, channels, size, size), torch.bfloat16).requires_grad_()
    convolution, results = made(channels, side, stride), []
    sent = torch.randn_like(kernels.convolved(x, convolution))
    for _ in range(3):
        inputs = (x, convolution.weight)
        results.append(torch.autograd.grad(kernels.convolved(x, convolution), inputs, sent))
    assert all(torch.equal(a, b) for one in results[1:] for a, b in zip(results[0], one, strict=True))


@real_sizes
def test_the_whole_network_with_and_without():
    compare_whole_networks(depthwise=True)


@real_sizes
@pytest.mark.parametrize(("side", "stride"), WAYS)
def test_inside_a_graph(side, stride):
    x, convolution = made_maps((8, 96, 29, 29), torch.bfloat16).requires_grad_(), made(96, side, stride)
    sent = torch.randn_like(kernels.convolved(x, convolution))

    def step():
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            output = kernels.convolved(x, convolution)
        return [output.detach(), *torch.autograd.grad(output, [x, convolution.weight], sent)]

    step()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.mul_(2).sub_(0.5)
        convolution.weight.mul_(-3)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, step(), strict=True))


def test_zeros_around_are_those_of_the_layer():
    """Maps with the zeros of a stride around them, as norms leave them, are what the kernels are given."""
    layer = efficientnet_lite.Layer(8, 8, 5, stride=2, groups=8).to(DEVICE)
    x = made_maps((1, 8, 7, 6))
    found = kernels.convolved(last(layer.padded(x)), layer.convolution)
    wanted = F.conv2d(F.pad(x, layer.zeros(x)), layer.convolution.weight, stride=2, groups=8)
    assert found.shape == (1, 8, 4, 3)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
