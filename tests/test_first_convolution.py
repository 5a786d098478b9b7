"""The first convolution: PyTorch's in all, whatever way its gradient by the image takes."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spatial_transformer.experiments import first_convolution, house_numbers
from spatial_transformer.experiments.first_convolution import FirstConvolution, comes_in_blocks


def both(layer, image):
    """Output and gradients of a layer and of PyTorch's with its weights."""
    plain = nn.Conv2d(
        layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding,
        layer.dilation, layer.groups, layer.bias is not None, layer.padding_mode,
    ).to(layer.weight.dtype)  # fmt: skip
    plain.load_state_dict(layer.state_dict())
    found = []
    for each in (layer, plain):
        given = image.detach().clone().requires_grad_(image.requires_grad)
        output = each(given)
        gradient = torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(3))
        inputs = [given, *each.parameters()] if image.requires_grad else list(each.parameters())
        found.append([output, *torch.autograd.grad(output, inputs, gradient)])
    return found


@pytest.fixture
def shortcuts(monkeypatch):
    """How often the gradient was taken in blocks."""
    calls, by_image = [], first_convolution.by_image
    monkeypatch.setattr(first_convolution, "by_image", lambda *given: calls.append(1) or by_image(*given))
    return calls


@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "size", "bias"),
    [(3, 48, 5, (16, 16), True), (1, 7, 3, (8, 12), True), (2, 5, 7, (4, 8), False), (8, 3, 1, (4, 4), True)],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_pytorchs(channels, filters, kernel, size, bias, layout, shortcuts):
    torch.manual_seed(0)
    layer = FirstConvolution(channels, filters, kernel, padding=kernel // 2, bias=bias).double()
    image = torch.randn(2, channels, *size, dtype=torch.double).to(memory_format=layout).requires_grad_()
    ours, wanted = both(layer.to(memory_format=layout), image)
    assert shortcuts == [1]
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "shape", "wants"),
    [
        ({"padding": 2}, (2, 3, 8, 8), False),  # the CNN, whose image nothing learns from
        ({"padding": 2}, (2, 3, 8, 10), True),
        ({"padding": 2}, (2, 3, 6, 8), True),
        ({"padding": 2}, (3, 8, 8), True),
        ({"padding": 2}, (0, 3, 8, 8), True),
        ({"padding": 1}, (2, 3, 8, 8), True),
        ({"padding": 2, "stride": 2}, (2, 3, 8, 8), True),
        ({"padding": 2, "dilation": 2}, (2, 3, 8, 8), True),
        ({"padding": 2, "groups": 3}, (2, 3, 8, 8), True),
        ({"padding": 2, "padding_mode": "circular"}, (2, 3, 8, 8), True),
        ({"padding": 2, "in_channels": 9}, (2, 9, 8, 8), True),
        ({"padding": (2, 1), "kernel_size": (5, 3)}, (2, 3, 8, 8), True),
    ],
)
def test_whatever_else_is_left_to_pytorch(options, shape, wants, shortcuts):
    torch.manual_seed(0)
    layer = FirstConvolution(**{"in_channels": 3, "out_channels": 6, "kernel_size": 5} | options).double()
    ours, wanted = both(layer, torch.randn(shape, dtype=torch.double).requires_grad_(wants))
    assert shortcuts == []
    assert all(torch.equal(one, other) for one, other in zip(ours, wanted, strict=True))


def test_nothing_is_prepared_where_no_gradient_is_wanted():
    layer, image = FirstConvolution(3, 6, 5, padding=2), torch.rand(2, 3, 8, 8, requires_grad=True)
    assert comes_in_blocks(layer, image)
    with torch.no_grad():
        assert not comes_in_blocks(layer, image)
    with torch.autocast("cpu", torch.bfloat16):
        assert not comes_in_blocks(layer, image)
        assert layer(image).dtype == torch.bfloat16


@pytest.mark.parametrize("model", house_numbers.MODELS)
def test_networks_of_house_numbers_have_it(model, shortcuts):
    """Where a transformer stands before it, that learns from it; and it is saved as PyTorch's is."""
    torch.manual_seed(0)
    network = house_numbers.build(model, 16, filters=[4] * 8, units=[8]).double()
    for transformer in network.transformers:  # not at the identity, where samples lie on pixels
        nn.init.normal_(transformer.head.weight, std=0.02)
    plain = copy.deepcopy(network)
    first = plain.layers[0][0]
    plain.layers[0][0] = nn.Conv2d(3, 4, 5, padding=2).double()
    plain.layers[0][0].load_state_dict(first.state_dict())
    assert plain.state_dict().keys() == network.state_dict().keys()
    images, labels = torch.randn(3, 3, 16, 16, dtype=torch.double), torch.randint(11, (3, 5))
    for each in (network, plain):
        house_numbers.losses(each(images), labels).mean().backward()
    assert len(shortcuts) == (model != "CNN")
    for one, other in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("size", [64, 128])
def test_on_a_gpu(size):
    layer = FirstConvolution(3, 48, 5, padding=2, device="cuda")
    image, gradient = (torch.randn(16, count, size, size, device="cuda") for count in (3, 48))
    image.requires_grad_()
    (found,) = torch.autograd.grad(layer(image), image, gradient)
    wide = (each.detach().double() for each in (image, layer.weight, gradient))
    given, weight, gradient = wide
    (wanted,) = torch.autograd.grad(F.conv2d(given.requires_grad_(), weight, padding=2), given, gradient)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
