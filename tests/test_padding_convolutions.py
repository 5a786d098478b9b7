"""Convolutions that pad, what follows them in one pass, and dropout in one launch.

The kernels run on the GPU where there is one, and else in Triton's interpreter.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spatial_transformer.experiments import fast_networks, house_numbers, networks, padding_convolutions
from spatial_transformer.experiments.data.random_numbers import RandomNumbers
from spatial_transformer.experiments.fast_networks import fast
from spatial_transformer.experiments.padding_convolutions import Ending, surrounded

pytest.importorskip("triton")
from spatial_transformer.experiments import dropout_triton

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
real_sizes = pytest.mark.gpu if CUDA else pytest.mark.skip(reason="too large for the interpreter")

pytestmark = [pytest.mark.usefixtures("one_thread", "seed"), *([pytest.mark.gpu] if CUDA else [])]


def maps(*shape):
    """bfloat16, channels last, with many equal numbers."""
    drawn = torch.randint(-6, 7, shape, device=DEVICE).div(4).to(torch.bfloat16)
    return drawn.contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("shape", "pool"),
    [((2, 12, 6, 8), 2), ((3, 48, 4, 4), 1), ((1, 5, 7, 5), 2), ((2, 192, 2, 2), 2)],
    ids=str,
)
def test_what_follows_a_convolution(shape, pool):
    """To the last bit: sums of a few numbers of a few bits."""
    convolved = maps(*shape).requires_grad_()
    bias = torch.randint(-4, 5, (shape[1],), device=DEVICE).div(4).requires_grad_()
    found = Ending.apply(convolved, bias, pool)
    wanted = F.max_pool2d((convolved.float() + bias[:, None, None]).relu(), pool)
    assert torch.equal(found.float(), wanted)
    assert found.dtype == torch.bfloat16
    assert found.permute(0, 2, 3, 1).is_contiguous()
    cotangent = maps(*wanted.shape)
    got = torch.autograd.grad(found, (convolved, bias), cotangent)
    want = torch.autograd.grad(wanted, (convolved, bias), cotangent.float())
    assert got[0].dtype == torch.bfloat16
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(mine.float(), theirs.float())


@pytest.mark.parametrize(
    ("channels", "pool", "height"), [(1, 1, 8), (3, 1, 8), (16, 1, 8), (16, 2, 8), (1, 2, 7), (3, 2, 7)]
)
def test_surrounded_by_zeros(channels, pool, height):
    image = torch.randn(2, channels, height, 6, device=DEVICE, requires_grad=True)
    weight = torch.randn(7, channels, 5, 5, device=DEVICE).mul(0.1).requires_grad_()
    bias = torch.randn(7, device=DEVICE, requires_grad=True)
    found = surrounded(image, weight, bias, padding=2, pool=pool)
    exact = [each.detach().bfloat16().double().requires_grad_() for each in (image, weight)]
    exact.append(bias.detach().double().requires_grad_())
    wanted = F.max_pool2d(F.conv2d(*exact, padding=2).relu(), pool)
    assert found.shape == wanted.shape
    assert (found - wanted).norm() < 0.01 * wanted.norm()
    cotangent = torch.randn_like(wanted)
    got = torch.autograd.grad(found, (image, weight, bias), cotangent.bfloat16())
    want = torch.autograd.grad(wanted, exact, cotangent)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - theirs).norm() < 0.03 * theirs.norm()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("channels", "kernel"), [(1, 3), (3, 5), (2, 7), (1, 9)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_images_in_blocks(channels, kernel, layout, monkeypatch):
    """To the last bit, of whole numbers: with others roundings choose between maxima."""
    monkeypatch.setattr(padding_convolutions, "few_channels", None)  # not by it
    image = torch.randint(-2, 3, (2, channels, 8, 6), device=DEVICE).float().contiguous(memory_format=layout)
    weight = torch.randint(-1, 2, (7, channels, kernel, kernel), device=DEVICE).float()
    bias = torch.randint(-4, 5, (7,), device=DEVICE).float()
    given = [each.requires_grad_() for each in (image, weight, bias)]
    found = surrounded(*given, padding=kernel // 2)
    wanted = F.max_pool2d(F.conv2d(*given, padding=kernel // 2).relu(), 2)
    assert torch.equal(found.float(), wanted)
    assert found.permute(0, 2, 3, 1).is_contiguous()
    cotangent = torch.randint(-1, 2, wanted.shape, device=DEVICE).float()
    got = torch.autograd.grad(found, given, cotangent.bfloat16())
    for mine, theirs in zip(got, torch.autograd.grad(wanted, given, cotangent), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("size", [(3, 2, 2), (1, 4, 4), (5, 1, 1)], ids=str)
@pytest.mark.parametrize("units", [2, 20])  # fewer than images, and more
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_flattened(size, units, last, mixed):
    input = torch.randn(4, *size, device=DEVICE)
    if last:
        input = input.contiguous(memory_format=torch.channels_last)
    linear = nn.Linear(input[0].numel(), units, device=DEVICE)
    given = (input.requires_grad_(), linear.weight, linear.bias)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=mixed, cache_enabled=False):
        found, wanted = padding_convolutions.flattened(*given), linear(input.flatten(1))
    assert found.dtype == wanted.dtype == (torch.bfloat16 if mixed else torch.float32)
    cotangent = torch.randn_like(wanted)
    for mine, theirs in zip(
        (found, *torch.autograd.grad(found, given, cotangent)),
        (wanted, *torch.autograd.grad(wanted, given, cotangent)),
        strict=True,
    ):
        assert mine.dtype == theirs.dtype
        assert (mine - theirs).norm() <= (0.01 if mixed else 1e-6) * theirs.norm()


@pytest.mark.parametrize(("channels", "pool"), [(3, 2), (3, 1), (16, 2)])
def test_autocast_does_not_round_what_is_not_to_be(channels, pool):
    image, weight = (
        torch.randn(2, channels, 8, 6, device=DEVICE),
        torch.randn(7, channels, 5, 5, device=DEVICE),
    )
    bias = torch.randn(7, device=DEVICE)  # which would be rounded
    plain = surrounded(image, weight, bias, padding=2, pool=pool)
    with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
        mixed = surrounded(image, weight, bias, padding=2, pool=pool)
    assert torch.equal(plain, mixed)


def test_a_network_that_pads_gives_what_its_layers_would():
    layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)).to(DEVICE)
    image = torch.randn(2, 3, 8, 8, device=DEVICE)
    assert fast(layers)(image).dtype == layers(image).dtype == torch.float32
    with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
        assert fast(layers)(image).dtype == layers(image).dtype == torch.bfloat16


def test_linear_layers_in_double_precision_stay_so():
    input = torch.randn(4, 3, 2, 2, device=DEVICE, dtype=torch.float64)
    linear = nn.Linear(12, 2, device=DEVICE, dtype=torch.float64)
    with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
        found = padding_convolutions.flattened(
            input.contiguous(memory_format=torch.channels_last), linear.weight, linear.bias
        )
    torch.testing.assert_close(found, linear(input.flatten(1)))


def test_linear_layers_of_another_size_say_what_torch_says():
    input = maps(4, 3, 2, 2).float().contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        padding_convolutions.flattened(input, torch.randn(2, 13, device=DEVICE), None)


def test_flattening_does_not_copy_what_is_channels_last(monkeypatch):
    """But for what the weight gives: nothing of the size of the input is made."""
    input = maps(6, 8, 4, 4).requires_grad_()
    weight = torch.randn(2, 8 * 4 * 4, device=DEVICE).bfloat16()
    seen = []
    monkeypatch.setattr(padding_convolutions.F, "linear", lambda *given: seen.append(given) or given[0].sum())
    padding_convolutions.flattened(input, weight, None)
    assert seen[0][0].data_ptr() == input.data_ptr()
    assert torch.equal(seen[0][1], weight.view(2, 8, 4, 4).permute(0, 2, 3, 1).flatten(1))


def test_bad_input_is_refused():
    weight, bias = torch.zeros(4, 16, 5, 5, device=DEVICE), torch.zeros(4, device=DEVICE)
    with pytest.raises(ValueError, match="pool must be 1 or 2, got 3"):
        surrounded(torch.zeros(1, 16, 8, 8, device=DEVICE), weight, bias, padding=2, pool=3)
    with pytest.raises(ValueError, match="leave nothing"):
        surrounded(torch.zeros(1, 16, 1, 1, device=DEVICE), weight, bias, padding=2)
    for channels in (3, 4, 17):
        with pytest.raises(ValueError, match="must be of 16 channels"):
            surrounded(torch.zeros(1, channels, 8, 8, device=DEVICE), weight, bias, padding=2)
    with pytest.raises(ValueError, match="must be of 4 channels"):  # padded to 16 in blocks, as three are
        surrounded(torch.zeros(1, 3, 8, 8, device=DEVICE), weight[:, :4], bias, padding=2)


@pytest.mark.parametrize("size", [64, 128])
def test_no_layer_of_the_whole_network_is_too_large(size):
    """Of a batch of 128, in shape alone."""
    seen = house_numbers.maps(size, house_numbers.FILTERS)
    for (channels, extent), filters in zip(seen[1:], house_numbers.FILTERS[1:], strict=False):
        input = torch.zeros(1, device=DEVICE).expand(128, channels, extent, extent)
        weight = torch.zeros(1, device=DEVICE).expand(filters, channels, 5, 5)
        bias = torch.zeros(filters, device=DEVICE)
        padding_convolutions.check(input, weight, bias, own_product=False)
    with pytest.raises(ValueError, match="too large for 192 filters"):
        padding_convolutions.check(input[:1].expand(2**20, -1, -1, -1), weight, bias, own_product=False)


@real_sizes
def test_the_whole_network_at_its_largest():
    network = house_numbers.build("ST-CNN Multi", 128).to(DEVICE)
    quick, images = fast(network), torch.randn(128, 3, 128, 128, device=DEVICE)
    found = []
    for each in (quick, network):
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            scores = each(images)
        gradients = torch.autograd.grad(scores.float().square().sum(), list(each.parameters()))
        found.append((scores.float(), torch.cat([gradient.flatten() for gradient in gradients])))
    for mine, theirs in zip(*found, strict=True):
        assert (mine - theirs).norm() < 0.1 * theirs.norm()


def networks_of(model):
    network = house_numbers.build(model, 16, filters=[10, 8, 12, 9, 8, 8, 8, 8], units=[24, 24]).to(DEVICE)
    for transformer in network.transformers:
        transformer.impl = "reference"
    return network, fast(network)


@pytest.mark.parametrize("model", house_numbers.MODELS)
def test_house_numbers_are_read_fast(model):
    """As autocast reads them, within what roundings do; dropout takes the same numbers."""
    network, quick = networks_of(model)
    plain = copy.deepcopy(network).double()
    images = torch.randn(4, 3, 16, 16, device=DEVICE)
    cotangent = torch.randn(4, 5, 11, device=DEVICE)
    found, numbers = {}, {}
    for name, each, dtype in (("fast", quick, torch.float32), ("plain", plain, torch.float64)):
        numbers[name] = RandomNumbers(0, device=DEVICE)
        mixed = torch.autocast(DEVICE, torch.bfloat16, enabled=name == "fast", cache_enabled=False)
        with mixed:
            scores = each(images.to(dtype), numbers[name])
        gradients = torch.autograd.grad(scores, list(each.parameters()), cotangent.to(scores.dtype))
        found[name] = scores.double(), torch.cat([g.double().flatten() for g in gradients])
    assert numbers["fast"].state() == numbers["plain"].state() > 0
    for mine, theirs in zip(found["fast"], found["plain"], strict=True):
        assert 0 < (mine - theirs).norm() < 0.1 * theirs.norm()


def test_which_layers_are_fast():
    _, quick = networks_of("ST-CNN Single")
    layers = [*quick.layers[:8], quick.transformers[0].localiser.layers]
    assert all(type(layer).__name__ == "FastSequential" for layer in layers)
    kinds = [type(stage).__name__ for layer in layers for stage in fast_networks.stages(layer)]
    assert "Conv2d" not in kinds


def test_without_autocast_stages_that_pad_give_float32():
    layers = nn.Sequential(nn.Conv2d(3, 9, 5, padding=2), nn.ReLU(), nn.Conv2d(9, 4, 3, padding=1), nn.ReLU())
    image = torch.randn(2, 3, 6, 6, device=DEVICE)
    layers = layers.to(DEVICE)
    found, wanted = fast(layers)(image), layers(image)
    assert found.dtype == torch.float32
    assert not torch.equal(found, wanted)
    assert (found - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.parametrize("mixed", [False, True])
def test_stages_that_pad_and_stages_that_do_not(mixed):
    """What one gives the other takes, whatever the number of channels."""
    layers = nn.Sequential(
        nn.Conv2d(1, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 11, 3, padding=1), nn.ReLU(),
        nn.Conv2d(11, 3, 3), nn.ReLU(),
    ).to(DEVICE)  # fmt: skip
    image = torch.randn(2, 1, 12, 12, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=mixed):
        found, wanted = fast(layers)(image), layers(image)
    assert (found - wanted).norm() < 0.02 * wanted.norm()


# Dropout


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("share", [0.5, 0.3, torch.tensor(0.25)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5), (2, 7, 9, 11), (4, 600)], ids=str)
def test_dropout_in_one_launch(shape, dtype, share):
    """What the operations on tensors drop, to the last bit, of either layout and of the gradient too."""
    bits = networks.COARSE if isinstance(share, torch.Tensor) else 1 if share == 0.5 else 24
    signal = torch.randn(shape).to(dtype)
    count = -(-signal.numel() // (24 // bits))
    numbers = RandomNumbers(0).uniform(count)
    wanted = networks.dropped(signal, share, RandomNumbers(0))
    assert 0 < (wanted == 0).double().mean() < 1
    signal, numbers, wanted = signal.to(DEVICE), numbers.to(DEVICE), wanted.to(DEVICE)
    share = share.to(DEVICE) if isinstance(share, torch.Tensor) else share
    layouts = [torch.contiguous_format, *([torch.channels_last] if len(shape) == 4 else [])]
    for layout in layouts:
        given = signal.contiguous(memory_format=layout).requires_grad_()
        found = dropout_triton.dropped(given, numbers, bits, share)
        assert found.dtype == dtype
        torch.testing.assert_close(found, wanted, rtol=0 if share == 0.5 else 2.0**-7, atol=0)
        (gradient,) = torch.autograd.grad(found, given, torch.ones_like(found))
        assert torch.equal(gradient == 0, wanted == 0)
        assert (gradient[gradient != 0] - 1 / (1 - share)).abs().max() < 0.01


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize("share", [0.5, 0.3])
def test_dropout_is_the_same_on_every_device(share):
    signal = torch.randn(4, 6, 10, 10)
    random = [RandomNumbers(3, device=device) for device in ("cpu", "cuda")]
    ours, theirs = (networks.dropped(signal.to(each.device), share, each).cpu() for each in random)
    torch.testing.assert_close(theirs, ours, rtol=1e-6, atol=0)
    assert random[0].state() == random[1].state()
