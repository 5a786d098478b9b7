"""What tests of the kernels of backbones share: maps, tolerances, and networks with some of these kernels."""

from __future__ import annotations

import copy
import statistics

import pytest
import torch

from spatial_transformer.experiments import efficientnet_lite
from spatial_transformer.experiments.efficientnet_lite import SCALES, Features

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"

real_sizes = pytest.mark.gpu if CUDA else pytest.mark.skip(reason="too large for the interpreter")

# Of what is rounded once from float32; bfloat16 has 8 bits, which only outputs are rounded to.
TOLERANCES = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2**-8, 1e-5)}
DTYPES = list(TOLERANCES)


def last(tensor):
    return tensor.contiguous(memory_format=torch.channels_last)


def compare_each(found, wanted, dtype, sums):
    """Values by name with those in float64. sums: the names of those that are not rounded to the dtype."""
    rtol, atol = TOLERANCES[dtype]
    assert found["output"].dtype == found["of x"].dtype == dtype
    for name in found:
        one, other = found[name].double(), wanted[name]
        summed = name in sums
        torch.testing.assert_close(
            one,
            other,
            rtol=1e-5 if summed else rtol,
            atol=1e-5 * other.abs().max().item() if summed else atol,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def stepped(network, images, *, norms=False, depthwise=False, autocast=False):
    """Outputs, gradients and statistics by name, of a network that stays as it is, in these kernels."""
    network = copy.deepcopy(network)
    with (
        efficientnet_lite.norms_in_kernels(norms),
        efficientnet_lite.depthwise_in_kernels(depthwise),
        torch.autocast(DEVICE, torch.bfloat16, enabled=autocast, cache_enabled=False),
    ):
        output = network(images)
        loss = (output.float() * torch.linspace(-1, 1, output.numel(), device=DEVICE).view_as(output)).sum()
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    names = [name for name, _ in network.named_parameters()]
    return {
        "output": output.detach(),
        **dict(zip(names, gradients, strict=True)),
        **dict(network.named_buffers()),
    }


def compare_whole_networks(**in_kernels):
    """Under autocast, as it is trained: off by no more than its rounding to bfloat16 is."""
    network = Features(SCALES["efficientnet-lite2"]).to(DEVICE)
    images = last(255 * torch.rand(16, 3, 224, 224, device=DEVICE))
    exact = stepped(network, images)
    found, plain = (stepped(network, images, **wanted, autocast=True) for wanted in (in_kernels, {}))
    times = []
    for key, value in exact.items():
        off, allowed = ((one[key].double() - value).norm().item() for one in (found, plain))
        times += [off / allowed] if allowed else []
    assert statistics.median(times) < 1.2
    assert max(times) < 3
