"""Fast convolutions against PyTorch's in float64, exact where arithmetic is.

Most tests compute with small multiples of a power of 2. bfloat16 holds them, float32 holds every sum of their
products, so outputs and gradients of the parameters have to be right to the last bit, whatever the order, and
equal maxima, of which there are many then, have to go to the same of the four places.

The kernels run on the GPU where there is one, and else in Triton's interpreter.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from spatial_transformer.experiments import fast_convolutions
from spatial_transformer.experiments.fast_convolutions import (
    few_channels,
    many_channels,
    one_channel,
    padded,
)

pytest.importorskip("triton")

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF_A_STEP = 2.0**-8  # rounding to bfloat16 moves a number by this share of it at most

pytestmark = [pytest.mark.usefixtures("one_thread", "seed"), *([pytest.mark.gpu] if CUDA else [])]

real_sizes = pytest.mark.gpu if CUDA else pytest.mark.skip(reason="too large for the interpreter")


class Case(NamedTuple):
    """A convolution, its rectifier and its pooling."""

    filters: int
    size: tuple[int, int]
    kernel: int
    inputs: int = 1
    pool: int = 2
    batch: int = 2

    def __str__(self) -> str:
        height, width = self.size
        name = f"{self.inputs}-{self.filters}x{self.kernel} {height}x{width}"
        return name + (f" pool{self.pool}" if self.pool != 2 else "")


def numbers(*shape, step=0.125, most=8, least=None):
    """Multiples of ``step``, drawn. More lie behind them in memory, for whoever reads too far."""
    least = -most if least is None else least
    drawn = torch.randint(least, most + 1, (shape[0] + 8, *shape[1:])).to(torch.float32).mul(step).to(DEVICE)
    return drawn[: shape[0]]


class Truth:
    """Output and gradients in float64, by PyTorch."""

    def __init__(self, image, weight, bias, pool, cotangent):
        image, weight, bias = (t.detach().double().requires_grad_() for t in (image, weight, bias))
        with torch.backends.cudnn.flags(enabled=False):  # some of its algorithms are not exact
            convolved = F.conv2d(image, weight, bias)
            output = F.max_pool2d(convolved.relu(), pool)
            cotangent = cotangent(output.shape)
            self.cotangent, self.output = cotangent, output.detach()
            inputs = (image, weight, bias, convolved)
            self.image, self.weight, self.bias, positions = torch.autograd.grad(
                output, inputs, cotangent.double()
            )
            # The sum of the absolute products that an element of the image's gradient is made of.
            self.image_terms = F.conv_transpose2d(positions.abs(), weight.detach().abs())


def within(found, wanted, bound):
    found = found.double()
    assert found.isfinite().all()
    assert ((found - wanted).abs() <= bound).all(), f"off by {(found - wanted).abs().max()}"


def with_channels(tensor, channels):
    """Zeros for the channels that are missing."""
    return F.pad(tensor, (0, 0, 0, 0, 0, channels - tensor.shape[1]))


# One input channel

SMALL = (
    Case(5, (24, 24), 5, batch=3),  # five shares of positions: no power of 2
    Case(17, (24, 24), 9),
    Case(5, (25, 25), 9),  # an odd last row and column, which the pooling drops
    Case(40, (28, 28), 9),  # two blocks of filters
    Case(8, (14, 15), 5),
    Case(5, (12, 9), 7, batch=3),  # 64 pixels of a patch: a power of 2 by themselves
    Case(5, (11, 12), 4),  # an even kernel
    Case(5, (10, 10), 9, batch=1),  # one pooled position
    Case(3, (8, 7), 1),
)
LARGE = (
    Case(88, (28, 28), 9, batch=256),
    Case(85, (42, 42), 9, batch=256),
    Case(90, (60, 60), 9, batch=64),
    Case(20, (14, 14), 5, batch=256),
    Case(20, (21, 21), 5, batch=256),
)


def compare_one_channel(case):
    image = numbers(case.batch, 1, *case.size).requires_grad_()
    weight = numbers(case.filters, 1, case.kernel, case.kernel).requires_grad_()
    bias = numbers(case.filters, step=2.0, most=4).requires_grad_()
    truth = Truth(image, weight, bias, 2, lambda shape: numbers(*shape))
    output = one_channel(image, weight, bias)
    assert output.dtype == torch.bfloat16
    assert output.shape[1] == padded(case.filters)
    assert output.permute(0, 2, 3, 1).is_contiguous()
    assert torch.equal(output[:, : case.filters], truth.output.to(torch.bfloat16))
    assert (output[:, case.filters :] == 0).all()
    assert 0 < (truth.output > 0).double().mean() < 1  # some are cut off, some are not
    cotangent = with_channels(truth.cotangent, output.shape[1]).to(torch.bfloat16)
    of_image, of_weight, of_bias = torch.autograd.grad(output, (image, weight, bias), cotangent)
    assert torch.equal(of_weight.double(), truth.weight)
    assert torch.equal(of_bias.double(), truth.bias)
    assert of_image.dtype == torch.float32
    # What lies between the two kernels is rounded to bfloat16; sums of it in float32 add next to nothing.
    within(of_image, truth.image, 1.01 * HALF_A_STEP * truth.image_terms)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_one_channel(case):
    compare_one_channel(case)


@real_sizes
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_one_channel_at_real_sizes(case):
    compare_one_channel(case)


def test_images_that_want_no_gradient_get_none():
    image, weight, bias = numbers(2, 1, 12, 12), numbers(5, 1, 5, 5).requires_grad_(), numbers(5)
    output = one_channel(image, weight, bias.requires_grad_())
    output.float().sum().backward()
    assert image.grad is None
    assert weight.grad.isfinite().all()
    assert bias.grad.isfinite().all()


def test_rounding_to_the_nearest():
    """Of image, weights and output, as PyTorch rounds: not to be seen where bfloat16 holds the numbers."""
    image, one, zero = torch.randn(2, 1, 12, 12), torch.ones(1, 1, 1, 1), torch.zeros(1)
    found = one_channel(image.to(DEVICE), one.to(DEVICE), zero.to(DEVICE))[:, :1].cpu()
    assert torch.equal(found, F.max_pool2d(image.bfloat16().relu(), 2))
    weight, bias = torch.randn(8, 1, 1, 1), torch.randn(8)
    found = one_channel(torch.ones(1, 1, 2, 2, device=DEVICE), weight.to(DEVICE), bias.to(DEVICE)).cpu()
    wanted = weight.bfloat16().float().flatten() + bias
    assert torch.equal(found.flatten(), wanted.relu().bfloat16())


def test_layouts_of_image_and_gradient_do_not_matter():
    image, weight, bias = numbers(2, 1, 12, 14), numbers(5, 1, 5, 5).requires_grad_(), numbers(5)
    other = torch.empty(2, 1, 14, 12, device=DEVICE).copy_(image.mT).mT.requires_grad_()
    image.requires_grad_()
    assert not other.is_contiguous()
    plain, odd = (one_channel(one, weight, bias) for one in (image, other))
    assert torch.equal(plain, odd)
    cotangent = numbers(*plain.shape).to(torch.bfloat16)
    wanted = torch.autograd.grad(plain, (image, weight), cotangent)
    spread = torch.zeros(*plain.shape, 2, device=DEVICE)  # float32, and nothing beside anything
    spread[..., 0] = cotangent
    found = torch.autograd.grad(odd, (other, weight), spread[..., 0].to(torch.bfloat16))
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_nan_goes_where_pytorch_lets_it_go():
    def wanted(*given):
        convolved = F.conv2d(*(tensor.cpu() for tensor in given))  # cuDNN may spread it
        return F.max_pool2d(convolved.relu(), 2).isnan()

    image, weight, bias = numbers(2, 1, 16, 16), numbers(5, 1, 5, 5), numbers(5)
    image[0, 0, 7, 8] = float("nan")
    image[1, 0, 0, 3] = float("nan")
    found = one_channel(image, weight, bias)[:, :5]
    assert torch.equal(found.isnan().cpu(), wanted(image, weight, bias))
    activations, weight, bias = numbers(1, 5, 6, 6), numbers(4, 5, 3, 3), numbers(4)
    activations[0, 2, 4, 5] = float("nan")  # the last position alone of the four of a pooled one
    found = many_channels(channels_last(activations), weight, bias)
    assert 0 < found.isnan().sum() < found.numel()
    assert torch.equal(found.isnan().cpu(), wanted(activations, weight, bias))
    images, weight, bias = numbers(1, 2, 10, 10), numbers(4, 2, 3, 3), numbers(4)
    images[0, 1, 4, 5] = float("nan")
    found = few_channels(images, weight, bias)
    assert 0 < found.isnan().sum() < found.numel()
    assert torch.equal(found.isnan().cpu(), wanted(images, weight, bias))


# Many input channels

SMALL_MANY = (
    Case(17, (10, 10), 7, inputs=5),
    Case(5, (11, 10), 7, inputs=17),  # an odd last row
    Case(8, (9, 12), 3, inputs=8),  # more positions than taps
    Case(20, (5, 5), 5, inputs=20, pool=1),
    Case(9, (7, 6), 3, inputs=3, pool=1, batch=3),
)
LARGE_MANY = (
    Case(88, (10, 10), 7, inputs=88, batch=256),
    Case(85, (17, 17), 7, inputs=85, batch=256),
    Case(90, (26, 26), 7, inputs=90, batch=32),
    Case(20, (5, 5), 5, inputs=20, pool=1, batch=256),
    Case(20, (13, 13), 5, inputs=20, pool=1, batch=256),
)


def channels_last(tensor):
    """bfloat16, with channels in memory up to a multiple of 8."""
    full = with_channels(tensor, padded(tensor.shape[1])).to(torch.bfloat16)
    return full.contiguous(memory_format=torch.channels_last)


def check_output(output, truth, further):
    if further:
        assert output.permute(0, 2, 3, 1).is_contiguous()
        assert torch.equal(output, with_channels(truth.output, output.shape[1]).to(torch.bfloat16))
        assert output.shape[1] == padded(truth.output.shape[1])
    else:
        assert output.is_contiguous()
        assert torch.equal(output.double(), truth.output)
    assert 0 < (truth.output > 0).double().mean() < 1


def compare_many_channels(case, method, further=False, equal=False):
    """``equal``: activations are all the same, and so are all positions of a filter."""
    small = numbers(case.batch, case.inputs, *case.size, step=0.25, most=4, least=4 if equal else 0)
    activations = channels_last(small).requires_grad_()
    weight = numbers(case.filters, case.inputs, case.kernel, case.kernel).requires_grad_()
    bias = numbers(case.filters, step=2.0, most=4).requires_grad_()
    truth = Truth(small, weight, bias, case.pool, lambda shape: numbers(*shape))
    output = many_channels(activations, weight, bias, pool=case.pool, further=further, method=method)
    check_output(output, truth, further)
    cotangent = with_channels(truth.cotangent, output.shape[1]).to(output.dtype)
    of_activations, of_weight, of_bias = torch.autograd.grad(output, (activations, weight, bias), cotangent)
    assert torch.equal(of_weight.double(), truth.weight)
    assert torch.equal(of_bias.double(), truth.bias)
    # Rounded twice: what lies between the two kernels, and their sum.
    bound = HALF_A_STEP * (1.01 * truth.image_terms + truth.image.abs())
    within(of_activations[:, : case.inputs], truth.image, bound)
    assert (of_activations[:, case.inputs :] == 0).all()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", SMALL_MANY, ids=str)
def test_many_channels(case):
    compare_many_channels(case, "implicit")


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", SMALL_MANY[1:3], ids=str)
def test_many_channels_with_a_gradient_by_cudnn(case):
    compare_many_channels(case, "mixed")


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", SMALL_MANY[2:4], ids=str)
def test_many_channels_for_a_further_convolution(case):
    compare_many_channels(case, "implicit", further=True)


def test_of_equal_maxima_the_first_gets_the_gradient():
    compare_many_channels(SMALL_MANY[2], "implicit", equal=True)


@real_sizes
@pytest.mark.parametrize("method", ["implicit", "mixed"])
@pytest.mark.parametrize("case", LARGE_MANY, ids=str)
def test_many_channels_at_real_sizes(case, method):
    compare_many_channels(case, method)


# A few input channels

SMALL_FEW = (
    Case(5, (12, 13), 9, inputs=2),
    Case(9, (7, 6), 3, inputs=3, pool=1, batch=3),
    Case(8, (8, 8), 5, inputs=4),
    Case(3, (6, 7), 1, inputs=8),
)
LARGE_FEW = (
    Case(84, (42, 42), 9, inputs=2, batch=16),
    Case(84, (20, 20), 7, inputs=3, pool=1, batch=16),
)


def compare_few_channels(case, further=False):
    images = numbers(case.batch, case.inputs, *case.size, step=0.25, most=4, least=0).requires_grad_()
    weight = numbers(case.filters, case.inputs, case.kernel, case.kernel).requires_grad_()
    bias = numbers(case.filters, step=2.0, most=4).requires_grad_()
    truth = Truth(images, weight, bias, case.pool, lambda shape: numbers(*shape))
    output = few_channels(images, weight, bias, pool=case.pool, further=further)
    check_output(output, truth, further)
    cotangent = with_channels(truth.cotangent, output.shape[1]).to(output.dtype)
    found = torch.autograd.grad(output, (images, weight, bias), cotangent)
    of_images, of_weight, of_bias = found
    assert torch.equal(of_weight.double(), truth.weight)
    assert torch.equal(of_bias.double(), truth.bias)
    # Rounded twice: what lies between product and fold, and their sum.
    within(of_images, truth.image, HALF_A_STEP * (1.01 * truth.image_terms + truth.image.abs()))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", SMALL_FEW, ids=str)
def test_few_channels(case):
    compare_few_channels(case)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", SMALL_FEW[:2], ids=str)
def test_few_channels_for_a_further_convolution(case):
    compare_few_channels(case, further=True)


@real_sizes
@pytest.mark.parametrize("case", LARGE_FEW, ids=str)
def test_few_channels_at_real_sizes(case):
    compare_few_channels(case)


@pytest.mark.parametrize(("kernel", "channels"), [(9, 2), (5, 3), (1, 8)])
def test_what_positions_see_is_copied_out_in_whole_loads(kernel, channels):
    images = torch.rand(2, channels, 11, 10, device=DEVICE).to(torch.bfloat16)
    seen = fast_convolutions.unfolded(images, kernel)
    wanted = F.unfold(images.float(), kernel).mT.unflatten(2, (channels, -1)).mT.flatten(0, 1).flatten(1)
    assert seen.shape[1] % 8 == 0
    assert torch.equal(seen[:, : channels * kernel**2].float(), wanted)
    assert (seen[:, channels * kernel**2 :] == 0).all()


def test_few_channels_round_to_the_nearest():
    images = torch.randn(1, 2, 6, 6, device=DEVICE, requires_grad=True)
    weight, bias = torch.randn(3, 2, 3, 3, device=DEVICE), torch.randn(3, device=DEVICE)
    rounded = (images.detach().bfloat16().double().requires_grad_(), weight.bfloat16().double())
    output = few_channels(images, weight, bias, pool=1)
    wanted = F.conv2d(*rounded, bias.double()).relu()
    within(output, wanted, 1e-5 * torch.ones_like(wanted))
    cotangent = torch.randn_like(output).bfloat16()
    (found,) = torch.autograd.grad(output, images, cotangent.float())
    (exact,) = torch.autograd.grad(wanted, rounded[0], cotangent.double())
    terms = F.conv_transpose2d(cotangent.double().abs() * (wanted > 0), rounded[1].abs())
    within(found, exact, HALF_A_STEP * (1.01 * terms + exact.abs()))


def test_layouts_of_images_of_few_channels_do_not_matter():
    images, weight, bias = numbers(2, 2, 8, 8), numbers(4, 2, 3, 3), numbers(4)
    last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(few_channels(images, weight, bias), few_channels(last, weight, bias))


def test_bad_images_of_few_channels_are_refused():
    images, weight, bias = numbers(1, 2, 9, 9), numbers(4, 2, 9, 9), numbers(4)
    with pytest.raises(ValueError, match="float32 of 2 channels"):
        few_channels(images.to(torch.bfloat16), weight, bias)
    with pytest.raises(ValueError, match="float32 of 2 channels"):
        few_channels(images[:, :1], weight, bias)
    with pytest.raises(ValueError, match="leave nothing"):
        few_channels(images, weight, bias)
    with pytest.raises(ValueError, match="pool must be 1 or 2"):
        few_channels(images, weight, bias, pool=3)
    with pytest.raises(ValueError, match="too large for 1 filters"):
        few_channels(images[:1, :, :1, :1].expand(1, 2, 2**14, 2**14), weight[:1, :, :1, :1], bias[:1])


def test_a_bias_alone_may_want_its_gradient():
    activations, weight, bias = channels_last(numbers(2, 5, 6, 6)), numbers(4, 5, 3, 3), numbers(4)
    truth = Truth(activations[:, :5], weight, bias, 2, lambda shape: numbers(*shape))
    output = many_channels(activations, weight, bias.requires_grad_())
    (of_bias,) = torch.autograd.grad(output, (bias,), truth.cotangent)
    assert torch.equal(of_bias.double(), truth.bias)
    output = few_channels(activations[:, :5].float(), weight, bias)
    (of_bias,) = torch.autograd.grad(output, (bias,), truth.cotangent)
    assert torch.equal(of_bias.double(), truth.bias)


def test_the_scratch_may_hold_some_images_at_a_time(monkeypatch):
    case = SMALL_MANY[0]._replace(batch=3)
    monkeypatch.setattr(fast_convolutions.kernels(), "SCRATCH", 2 * (2 * 16 * 49 * 8))
    compare_many_channels(case, "implicit")


def test_one_program_may_take_every_row_of_taps(monkeypatch):
    assert fast_convolutions.kernels().parts_of(4096, 7) == 7
    assert fast_convolutions.kernels().parts_of(256 * 121, 7) == 1
    monkeypatch.setattr(fast_convolutions.kernels(), "parts_of", lambda rows, kernel: 2)
    compare_many_channels(SMALL_MANY[0], "implicit")


@pytest.mark.parametrize("further", [False, True], ids=["last", "further"])
def test_many_channels_by_cudnn(further):
    """Its maxima are those of rounded numbers, so its gradients are compared without pooling."""
    activations = channels_last(torch.rand(2, 5, 10, 10, device=DEVICE)).requires_grad_()
    weight = torch.randn(9, 5, 7, 7, device=DEVICE).requires_grad_()
    bias = torch.randn(9, device=DEVICE).requires_grad_()
    truth = Truth(activations[:, :5], weight, bias, 2, lambda shape: torch.zeros(shape, device=DEVICE))
    output = many_channels(activations, weight, bias, further=further, method="cudnn")
    assert output.shape[1] == (16 if further else 9)
    within(output[:, :9], truth.output, 0.02 * truth.output.max())
    truth = Truth(activations[:, :5], weight, bias, 1, lambda shape: torch.ones(shape, device=DEVICE))
    output = many_channels(activations, weight, bias, pool=1, further=further, method="cudnn")
    cotangent = with_channels(truth.cotangent, output.shape[1]).to(output.dtype)
    found = torch.autograd.grad(output, (activations, weight, bias), cotangent)
    for got, wanted in zip(found, (truth.image, truth.weight, truth.bias), strict=True):
        got = got[:, :5] if got.ndim == 4 else got
        within(got, wanted, 0.02 * wanted.abs().max())


# What is refused


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"image": torch.zeros(2, 3, 12, 12)}, ValueError, r"\[N, 1, H, W\]"),
        ({"image": torch.zeros(2, 1, 12, 12, dtype=torch.float64)}, TypeError, "float32"),
        ({"image": torch.zeros(2, 1, 5, 12)}, ValueError, "nothing to pool"),
        ({"image": torch.zeros(0, 1, 12, 12)}, ValueError, "an image"),
        ({"weight": torch.zeros(4, 1, 5, 4)}, ValueError, "square"),
        ({"weight": torch.zeros(4, 1, 13, 13)}, ValueError, "at most 11"),
        ({"weight": torch.zeros(4, 1, 5, 5, dtype=torch.bfloat16)}, TypeError, "float32"),
        ({"bias": torch.zeros(5)}, ValueError, r"\[4\]"),
        ({"bias": torch.zeros(4, device="meta")}, ValueError, "one device"),
    ],
)
def test_one_channel_refuses(changed, error, words):
    given = {
        "image": torch.zeros(2, 1, 12, 12), "weight": torch.zeros(4, 1, 5, 5), "bias": torch.zeros(4)
    } | changed  # fmt: skip
    with pytest.raises(error, match=words):
        one_channel(**given)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"activations": torch.zeros(2, 8, 6, 6)}, "bfloat16 of 8 channels"),
        ({"activations": torch.zeros(2, 5, 6, 6, dtype=torch.bfloat16)}, "bfloat16 of 8 channels"),
        ({"activations": torch.zeros(2, 8, 3, 3, dtype=torch.bfloat16)}, "leave nothing"),
        ({"pool": 3}, "pool must be 1 or 2"),
        ({"method": "winograd"}, "method must be one of"),
    ],
)
def test_many_channels_refuses(changed, words):
    given = {
        "activations": torch.zeros(2, 8, 6, 6, dtype=torch.bfloat16),
        "weight": torch.zeros(4, 5, 3, 3),
        "bias": torch.zeros(4),
    } | changed
    with pytest.raises(ValueError, match=words):
        many_channels(**given)


def test_without_a_gpu_or_the_interpreter_it_says_so(monkeypatch):
    monkeypatch.setattr(fast_convolutions.kernels(), "INTERPRETED", False)
    with pytest.raises(RuntimeError, match="CUDA"):
        one_channel(torch.zeros(2, 1, 12, 12), torch.zeros(4, 1, 5, 5), torch.zeros(4))
