"""The birds' networks: crops that tile the image at the start, each described by a backbone of its own."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spatial_transformer as st
from spatial_transformer.experiments.data.random_numbers import RandomNumbers
from spatial_transformer.experiments.efficientnet_lite import SCALES, Features
from spatial_transformer.experiments.fine_grained import FineGrained
from spatial_transformer.experiments.networks import dropped, parameters

pytestmark = pytest.mark.usefixtures("one_thread", "seed")

SIDE = 32  # the least that a backbone leaves a pixel of
TILES = {
    1: [0.0, 0.0],
    2: [-0.5, 0.0, 0.5, 0.0],
    4: [-0.5, -0.5, 0.5, -0.5, -0.5, 0.5, 0.5, 0.5],
}


@pytest.fixture(scope="module")
def backbone():
    """Of norms that know what pixels are like: as they start, an image would change next to nothing."""
    torch.manual_seed(1)
    made = Features(SCALES["efficientnet-lite0"])
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    made(images(4 * SIDE, 4))
    return made


def images(size, count=2):
    return 255 * torch.rand(count, 3, size, size)


def moved(network):
    """The same with a head whose theta depends on the image, as after some training."""
    with torch.no_grad():
        network.transformer.head.weight.normal_(std=0.1)
    return network


@pytest.mark.parametrize("size", [SIDE, 2 * SIDE])
@pytest.mark.parametrize("crops", [1, 2, 4])
def test_shapes(backbone, crops, size):
    network = FineGrained(backbone, crops=crops, size=size, side=SIDE).eval()
    image = images(size)
    with torch.no_grad():
        assert network(image).shape == (2, 200)
        assert network.seen(image).shape == (2, crops, 3, SIDE, SIDE)
        assert network.theta(image).shape == (2, 2 * crops)


def test_the_cnn_describes_the_whole_image(backbone):
    network = FineGrained(backbone).eval()
    image = images(2 * SIDE)  # of one pixel of features the mean is as good as the most
    with torch.no_grad():
        descriptor = copy.deepcopy(backbone).eval()(image).mean((2, 3))
        torch.testing.assert_close(network(image), network.classifier(descriptor))
    assert network.theta(image).shape == (2, 0)
    assert parameters(network) == parameters(backbone) + 1280 * 200 + 200


@pytest.mark.parametrize("crops", [2, 4])
def test_layers_are_the_papers(backbone, crops):
    """Section A.6: a backbone for each crop and one for the localiser; on this 1 x 1 to 128, 128, 2N."""
    with torch.device("meta"):
        network = FineGrained(Features(SCALES["efficientnet-lite0"]), crops=crops, size=448)
    localiser = (1280 * 128 + 128) + (7 * 7 * 128 * 128 + 128) + (128 * 2 * crops + 2 * crops)
    expected = (crops + 1) * parameters(backbone) + localiser + crops * 1280 * 200 + 200
    assert parameters(network) == expected


def test_the_localisers_own_layers_start_orthogonal(backbone):
    """So that rectifiers pass on as much as they get, and theta depends on the image from the start."""
    layers = FineGrained(backbone, crops=2, side=SIDE, size=SIDE).transformer.localiser.layers
    for layer in (each for each in layers if hasattr(each, "weight")):
        weight = layer.weight.detach().flatten(1)
        torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(128), rtol=0, atol=1e-4)
        assert not layer.bias.any()


@pytest.mark.parametrize("crops", [1, 2, 4])
def test_crops_tile_the_image_at_the_start(backbone, crops):
    network = FineGrained(backbone, crops=crops, size=2 * SIDE, side=SIDE).eval()
    image = images(2 * SIDE)
    with torch.no_grad():
        assert network.theta(image).tolist() == [TILES[crops]] * 2
        seen = network.seen(image)
    if crops == 4:  # at twice the side they are the image's quarters, pixel for pixel
        rows = [torch.cat([seen[:, row], seen[:, row + 1]], dim=3) for row in (0, 2)]
        torch.testing.assert_close(torch.cat(rows, dim=2), image, rtol=0, atol=1e-2)


@pytest.mark.parametrize("crops", [2, 4])
@pytest.mark.parametrize("family", [st.Attention(), st.Affine()])
def test_crops_of_any_size_start_as_those_of_half_the_image_do(backbone, crops, family):
    """Rows of a table are compared: they are not to begin with other windows."""
    half, free = (
        FineGrained(backbone, crops=crops, size=2 * SIDE, side=SIDE, family=given).eval()
        for given in (None, family)
    )
    image = images(2 * SIDE)
    with torch.no_grad():
        torch.testing.assert_close(free.seen(image), half.seen(image), rtol=0, atol=1e-3)


def test_crops_are_what_warp_gives(backbone):
    """Of the image in full, not of what the localiser sees; beyond the image they are a backbone's zero."""
    network = moved(FineGrained(backbone, crops=2, size=2 * SIDE, side=SIDE)).eval()
    with torch.no_grad():
        network.transformer.head.bias.copy_(torch.tensor([-1.5, 0.2, 0.4, -0.1]))
    image = images(2 * SIDE)
    with torch.no_grad():
        theta = network.theta(image).unflatten(1, (2, 2))
        assert (theta[0] != theta[1]).any()
        family = st.Attention(scale=0.5)
        expected = st.warp(image, theta, family, size=(SIDE, SIDE), padding=127.0, impl="reference")
        torch.testing.assert_close(network.seen(image), expected, rtol=0, atol=1e-2)
        assert (expected[:, 0, :, :, 0] == 127).all()


def test_each_crop_has_its_own_backbone(backbone):
    network = FineGrained(backbone, crops=2, size=SIDE, side=SIDE).eval()
    image = images(SIDE)
    with torch.no_grad():
        network.streams[1].head.norm.bias.fill_(1.0)
        first, second = network.seen(image).unbind(1)
        each = [network.streams[0](first), network.streams[1](second)]
        expected = network.classifier(torch.cat([features.mean((2, 3)) for features in each], dim=1))
        torch.testing.assert_close(network(image), expected)
    assert (backbone.head.norm.bias == 0).all()  # what was given is left alone


def test_the_localiser_gets_the_image_halved(backbone):
    network = FineGrained(backbone, crops=2, size=2 * SIDE, side=SIDE).eval()
    seen = []
    network.transformer.localiser.backbone.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    image = images(2 * SIDE)
    with torch.no_grad():
        network(image)
    halved = F.interpolate(image, scale_factor=0.5, mode="bilinear")
    torch.testing.assert_close(seen[0], halved)


def test_gradients_reach_the_localiser(backbone):
    """Its head at the start, all of it once the head's weights are no longer zero."""
    network = FineGrained(backbone, crops=2, size=2 * SIDE, side=SIDE).train()
    image, labels = images(2 * SIDE, 4), torch.arange(4)
    transformer = network.transformer
    F.cross_entropy(network(image), labels).backward()
    assert (transformer.head.bias.grad != 0).all()
    assert transformer.head.weight.grad.abs().max() > 0
    moved(network).zero_grad()
    F.cross_entropy(network(image), labels).backward()
    for part in (transformer.localiser.backbone.stem, transformer.localiser.layers, *network.streams):
        assert all(parameter.grad.abs().max() > 0 for parameter in part.parameters())


def test_dropout_takes_a_runs_own_numbers(backbone):
    network = FineGrained(backbone, crops=2, size=SIDE, side=SIDE).eval()
    image = images(SIDE)
    with torch.no_grad():
        once, again, other = (network(image, RandomNumbers(seed)) for seed in (0, 0, 1))
        assert torch.equal(once, again)
        assert not torch.equal(once, other)
        assert torch.equal(network(image), network(image))


def test_dropout_keeps_the_mean():
    thinned = dropped(torch.ones(100, 1000), 0.7, RandomNumbers(0))
    assert thinned.unique().tolist() == [0.0, pytest.approx(1 / 0.3)]
    assert (thinned == 0).float().mean() == pytest.approx(0.7, abs=0.01)
    assert thinned.mean() == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("family", [st.Attention(), st.Affine()])
def test_other_families(backbone, family):
    """ "We also experimented with more complex transformations (location and scale, as well as affine)"."""
    network = FineGrained(backbone, crops=4, size=2 * SIDE, side=SIDE, family=family).eval()
    image = images(2 * SIDE)
    with torch.no_grad():
        assert network.theta(image).shape == (2, 4 * family.num_params)
        torch.testing.assert_close(network.seen(image)[:, 3], image[:, :, SIDE:, SIDE:], rtol=0, atol=1e-2)


@pytest.mark.parametrize(("size", "side"), [(300, 224), (200, 200), (224, 448)])
def test_sizes_that_do_not_fit(backbone, size, side):
    with pytest.raises(ValueError, match=rf"size must be a multiple of side.* got {size} and {side}"):
        FineGrained(backbone, crops=2, size=size, side=side)


def test_the_localisers_own_layers_are_rectified(backbone):
    localiser = FineGrained(backbone, crops=2, size=SIDE, side=SIDE).eval().transformer.localiser
    image = images(SIDE)
    with torch.no_grad():
        maps = localiser.backbone(image)
        reduced = torch.einsum("nchw,dc->ndhw", maps, localiser.layers[0].weight[:, :, 0, 0]).clamp(0)
        expected = (reduced.flatten(1) @ localiser.layers[3].weight.T).clamp(0)
        torch.testing.assert_close(localiser(image), expected, rtol=1e-4, atol=1e-3)
    assert (reduced == 0).any()
    assert (expected == 0).any()
    assert (expected > 0).any()


def test_dropout_is_the_papers():
    with torch.device("meta"):
        assert FineGrained(Features(SCALES["efficientnet-lite0"])).dropout == 0.7
