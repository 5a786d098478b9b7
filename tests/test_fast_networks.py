"""Networks on fast convolutions: the same function of the same parameters, and the same bits each run.

The kernels run on the GPU where there is one, and else in Triton's interpreter.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spatial_transformer as st
from spatial_transformer.experiments import fast_convolutions, fast_networks, networks
from spatial_transformer.experiments.fast_networks import fast

pytest.importorskip("triton")

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"

pytestmark = [pytest.mark.usefixtures("one_thread", "seed"), *([pytest.mark.gpu] if CUDA else [])]

real_sizes = pytest.mark.gpu if CUDA else pytest.mark.skip(reason="too large for the interpreter")


def gradients(network, image, cotangent):
    image = image.clone().requires_grad_()
    output = network(image)
    return output, torch.autograd.grad(output, (image, *network.parameters()), cotangent)


def whole():
    transformer = st.SpatialTransformer(
        st.ConvLocaliser(1, (24, 24), kernel_size=3), st.Affine(), impl="reference"
    )
    return networks.Network(transformer, networks.convolutional(24, 8))


NETWORKS = {
    "CNN": lambda: networks.convolutional(24, 10),
    "CNN of two channels": lambda: networks.convolutional(24, 10, channels=2),
    "localiser": lambda: st.ConvLocaliser(1, (32, 32)),
    "ST-CNN": whole,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    network = NETWORKS[name]().to(DEVICE)
    quick = fast(network)
    size = 32 if name == "localiser" else 24
    image = torch.rand(2, 2 if "two" in name else 1, size, size, device=DEVICE)
    plain = copy.deepcopy(network).double()
    cotangent = torch.randn_like(plain(image.double()))
    wanted, wanted_gradients = gradients(plain, image.double(), cotangent)
    found, found_gradients = gradients(quick, image, cotangent.float())
    assert found.dtype == torch.float32
    assert (found - wanted).norm() <= 0.02 * wanted.norm()
    assert not torch.equal(found, network(image))  # or it was not fast
    for got, want in zip(found_gradients, wanted_gradients, strict=True):
        # Roundings let some maxima go to a neighbour: a few in a hundred, each as large as the gradient.
        assert (got - want).norm() <= 0.3 * want.norm() + 1e-6


def test_the_projection_of_a_volume():
    """60 px, one channel: its CNN is fast, and the same function."""
    network = networks.ProjectingNetwork(None, networks.convolutional(60, 4)).to(DEVICE)
    volume = torch.rand(1, 1, 5, 60, 60, device=DEVICE)
    quick, wanted = fast(network), network(volume)
    assert type(quick.classifier).__name__ == "FastSequential"
    assert not torch.equal(quick(volume), wanted)
    assert (quick(volume) - wanted).norm() <= 0.02 * wanted.norm()


def test_fast_shares_parameters_and_names():
    network = whole()
    quick = fast(network)
    assert list(quick.state_dict()) == list(network.state_dict())
    assert all(a is b for a, b in zip(quick.parameters(), network.parameters(), strict=True))
    kinds = [type(m).__name__ for m in quick.modules()]
    assert kinds.count("FastSequential") == 2  # classifier and localiser
    assert "FastSequential" not in [type(m).__name__ for m in network.modules()]
    assert fast(network.eval()).training is False
    assert not any(module.training for module in fast(network).modules())


def kinds_of(layers):
    return [type(stage).__name__ for stage in fast_networks.stages(nn.Sequential(*layers))]


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2}, {"padding": (1, 2)}, {"padding": "same"}, {"padding": 1, "padding_mode": "reflect"},
        {"dilation": 2}, {"bias": False}, {"kernel_size": (9, 7)}, {"kernel_size": 13}, {"in_channels": 9},
    ],
    ids=str,
)  # fmt: skip
def test_other_convolutions_stay_as_they_are(options):
    convolution = nn.Conv2d(**({"in_channels": 1, "out_channels": 4, "kernel_size": 9} | options))
    assert kinds_of([convolution, nn.ReLU(), nn.MaxPool2d(2)]) == ["Conv2d", "ReLU", "MaxPool2d"]


@pytest.mark.parametrize(
    "pooling", [nn.MaxPool2d(3), nn.MaxPool2d(2, stride=1), nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(2)]
)
def test_other_poolings_stay_as_they_are(pooling):
    layers = [nn.Conv2d(1, 4, 9), nn.ReLU(), pooling]
    assert kinds_of(layers) == ["Conv2d", "ReLU", type(pooling).__name__]


def test_stages():
    assert kinds_of(networks.convolutional(28, 8)) == ["Stage", "Stage", "Flat"]
    two = networks.convolutional(28, 8, channels=2)  # of two digits
    assert kinds_of(two) == ["Stage", "Stage", "Flat"]
    unpooled = [nn.Conv2d(2, 4, 5), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()]
    assert kinds_of(unpooled) == ["Conv2d", "ReLU", "Conv2d", "ReLU"]
    localiser = st.ConvLocaliser(1, (28, 28)).layers
    assert kinds_of(localiser) == ["AvgPool2d", "Stage", "Stage", "Flat", "ReLU"]
    apart = [nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(), nn.Conv2d(4, 4, 3), nn.ReLU()]
    assert kinds_of(apart) == ["Stage", "Dropout", "Conv2d", "ReLU"]
    grouped = [nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, groups=2), nn.ReLU()]
    assert kinds_of(grouped) == ["Stage", "Conv2d", "ReLU"]
    assert kinds_of([nn.Flatten(2), nn.Linear(4, 4)]) == ["Flatten", "Linear"]
    assert kinds_of([nn.Flatten(), nn.ReLU()]) == ["Flatten", "ReLU"]


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Conv2d(1, 1, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Conv2d(3, 4, 5), nn.ReLU(), nn.MaxPool2d(2)],
    ],
    ids=["padded, then few channels", "one filter", "one channel", "few channels"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_images_may_be_rounded_already(layers, dtype):
    """As they are under autocast, behind another layer."""
    network = nn.Sequential(*layers).to(DEVICE)
    image = torch.rand(2, layers[0].in_channels, 14, 14, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
        found, wanted = fast(network)(image.to(dtype)), network(image.to(dtype))
    assert (found - wanted).abs().max() <= 0.05


def test_a_stage_before_another_layer_gives_float32():
    network = nn.Sequential(nn.Conv2d(1, 5, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()).to(DEVICE)
    image = torch.rand(2, 1, 12, 12, device=DEVICE)
    found = fast(network)(image)
    assert found.dtype == torch.float32
    assert (found - network(image)).abs().max() <= 0.02


def test_networks_without_convolutions_are_as_they_were():
    network = networks.fully_connected(12, 8)
    image = torch.rand(2, 1, 12, 12)
    assert torch.equal(fast(network)(image), network(image))


# On a GPU alone


def step(network, image):
    """Scores and every gradient of a batch."""
    scores = network(image)
    return (scores.detach(), *torch.autograd.grad(scores.square().mean(), list(network.parameters())))


@pytest.fixture(params=["ST-CNN on R", "CNN on RTS", "CNN on addition"])
def trained(request):
    """A network of the paper, and a batch: between them every method that training takes."""
    if "ST" in request.param:
        transformer = st.SpatialTransformer(st.ConvLocaliser(1, (28, 28)), st.Affine())
        network = networks.Network(transformer, networks.convolutional(28, 88)).cuda()
        return fast(network), torch.rand(256, 1, 28, 28, device="cuda")
    channels = 2 if "addition" in request.param else 1
    network = networks.Network(None, networks.convolutional(42, 84, channels=channels)).cuda()
    return fast(network), torch.rand(256, channels, 42, 42, device="cuda")


@real_sizes
def test_large_maps_are_computed_by_the_method_for_many_positions(monkeypatch):
    taken = []
    by_cudnn = fast_convolutions.input_gradient_by_cudnn
    monkeypatch.setattr(
        fast_convolutions, "input_gradient_by_cudnn", lambda *given: taken.append(1) or by_cudnn(*given)
    )
    for size in (28, 42):
        network = fast(networks.convolutional(size, 8).cuda())
        step(network, torch.rand(2, 1, size, size, device="cuda"))
        assert len(taken) == (size == 42)


@real_sizes
def test_the_same_bits_every_time(trained):
    first = step(*trained)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, step(*trained), strict=True))


@real_sizes
def test_a_captured_graph_gives_the_same(trained):
    network, image = trained
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step(network, image)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(network, image)
    image.copy_(torch.rand_like(image))
    graph.replay()
    wanted = step(network, image)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
