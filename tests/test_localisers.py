"""Head and the localisers: where they start, in which precision they compute, the paper's networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_module import IMPLS, named, unsettled
from torch import nn

import spatial_transformer as st

pytestmark = pytest.mark.usefixtures("one_thread", "seed")


# Head


@pytest.mark.parametrize(
    ("family", "copies", "part"),
    [
        (st.Attention(scale=0.5), 2, 0.5),  # windows of a quarter each: side by side, half the image
        (st.Attention(scale=0.5), 4, 1.0),
        (st.Affine(), 2, 1.0),
        (st.Affine(), 4, 1.0),
        (st.Affine(), 5, 1.0),
        (st.Affine(), 6, 1.0),
        (st.ThinPlateSpline(), 4, 1.0),
        (st.Attention(), 4, 1.0),
        (st.Affine(dims=3), 8, 1.0),
        (st.Affine(dims=3), 12, 1.0),
        (st.Attention(dims=3, scale=0.5), 8, 1.0),
    ],
    ids=lambda given: named(given) if isinstance(given, st.Family) else str(given),
)
def test_tiles_cover_the_image_without_overlap(family, copies, part):
    dims = family.dims
    head = st.Head(3, family, copies=copies, start="tile")
    boxes = family.box(head(torch.rand(1, 3))[0].detach().double())  # [copies, 2**dims, dims]
    low, high = boxes.amin(1), boxes.amax(1)
    assert (low >= -1 - 1e-6).all()
    assert (high <= 1 + 1e-6).all()
    whole = 2.0**dims
    torch.testing.assert_close((high - low).prod(-1).sum().item(), part * whole, rtol=1e-5, atol=0)
    # 17 is no multiple of any number of tiles: no point lies on an edge
    along = torch.linspace(-1, 1, 2 * 17 + 1, dtype=torch.float64)[1::2] + 1e-4
    points = torch.cartesian_prod(*[along] * dims)
    inside = ((points[:, None] > low) & (points[:, None] < high)).all(-1).sum(-1)
    assert inside.max() == 1
    if part == 1:
        assert inside.min() == 1


def test_two_tiles_stand_side_by_side():
    head = st.Head(3, st.Attention(scale=0.5), copies=2, start="tile")
    assert head(torch.zeros(1, 3)).tolist() == [[[-0.5, 0.0], [0.5, 0.0]]]


def test_tiles_are_as_square_as_may_be():
    widths = st.Affine().box(st.Head(3, st.Affine(), copies=6, start="tile").bias.view(6, 6))
    extents = (widths.amax(1) - widths.amin(1)).detach()
    torch.testing.assert_close(extents, torch.tensor([[2 / 3, 1.0]]).expand(6, 2))


def test_head_starts_where_it_is_told():
    for start in (torch.tensor([0.5, 0.1, 0.2]), torch.tensor([[0.5, 0.1, 0.2]] * 2)):
        head = st.Head(4, st.Attention(), copies=2, start=start)
        found = head(torch.rand(3, 4))
        assert torch.equal(found, torch.tensor([0.5, 0.1, 0.2]).expand(3, 2, 3))
    with torch.no_grad():
        head.weight.normal_()
        head.bias.normal_()
    head.reset_parameters()
    assert torch.equal(head(torch.rand(3, 4)), found)


def head_and_features():
    head = st.Head(16, st.Affine())
    nn.init.normal_(head.weight)
    return head, torch.rand(3, 16).bfloat16()


def test_head_is_float32_under_autocast():
    head, features = head_and_features()
    expected = F.linear(features.float(), head.weight, head.bias)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.linear(features, head.weight).dtype == torch.bfloat16  # autocast is on
        theta = head(features)
    assert theta.dtype == torch.float32
    assert torch.equal(theta, expected)


def test_head_is_float32_in_a_bfloat16_module():
    head, features = head_and_features()
    head = head.bfloat16()
    theta = head(features)
    assert theta.dtype == torch.float32
    assert torch.equal(theta, F.linear(features.float(), head.weight.float(), head.bias.float()))
    assert head.double()(features.double()).dtype == torch.float64


@pytest.mark.parametrize("impl", IMPLS)
def test_the_module_under_autocast_and_in_bfloat16(impl):
    transformer = unsettled(st.SpatialTransformer(st.ConvLocaliser(1, (28, 28)), st.Affine(), impl=impl))
    image = torch.rand(2, 1, 28, 28)
    with torch.autocast("cpu", torch.bfloat16):
        warped, theta = transformer(image, return_theta=True)
    assert (warped.dtype, theta.dtype) == (torch.float32, torch.float32)
    assert torch.equal(warped, st.warp(image, theta, st.Affine(), impl=impl))
    warped, theta = transformer.bfloat16()(image.bfloat16(), return_theta=True)
    assert (warped.dtype, theta.dtype) == (torch.bfloat16, torch.float32)
    # at the float32 theta, whatever the image is
    precise = st.warp(image.bfloat16().float(), theta, st.Affine(), impl=impl)
    torch.testing.assert_close(warped.float(), precise, rtol=2**-8, atol=1e-6)


# The paper's localisers


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("size", [28, 42, 60, 84])
def test_mnist_localisers(size):
    image = torch.rand(2, 1, size, size)
    dense, conv = st.DenseLocaliser(1, (size, size)), st.ConvLocaliser(1, (size, size))
    assert (dense.out_features, conv.out_features) == (32, 20)
    assert dense(image).shape == (2, 32)
    assert conv(image).shape == (2, 20)
    # three layers of 32
    assert count(dense) == (size * size * 32 + 32) + 2 * (32 * 32 + 32)
    # halved, less 4, halved, less 4: 28 -> 14 -> 10 -> 5 -> 1, 60 -> 30 -> 26 -> 13 -> 9
    left = {28: 1, 42: 4, 60: 9, 84: 15}[size]
    # 5x5 from 1 to 20: 520; 5x5 from 20 to 20: 10,020; then 20 units
    assert count(conv) == 520 + 10_020 + (20 * left * left * 20 + 20)


def test_mnist_counts_by_hand():
    # 784 x 32 + 32 = 25,120, and twice 32 x 32 + 32 = 1,056
    assert count(st.DenseLocaliser(1, (28, 28))) == 27_232
    # 520 + 10,020, and 20 x 20 + 20 = 420
    assert count(st.ConvLocaliser(1, (28, 28))) == 10_960


def kinds(localiser):
    return [type(layer).__name__ for layer in localiser.layers]


def test_the_default_is_the_papers():
    assert kinds(st.ConvLocaliser(1, (28, 28))) == [
        "AvgPool2d", "Conv2d", "ReLU", "MaxPool2d", "Conv2d", "ReLU", "Flatten", "Linear", "ReLU",
    ]  # fmt: skip
    assert kinds(st.DenseLocaliser(1, (28, 28))) == ["Flatten", *["Linear", "ReLU"] * 3]


@pytest.mark.parametrize("size", [64, 128])
def test_svhn_localiser(size):
    localiser = st.ConvLocaliser(3, (size, size), channels=(32, 32), padding=2, hidden=(32, 32), downsample=1)
    assert localiser(torch.rand(1, 3, size, size)).shape == (1, 32)
    assert kinds(localiser) == [
        "Conv2d", "ReLU", "MaxPool2d", "Conv2d", "ReLU", "Flatten", "Linear", "ReLU", "Linear", "ReLU",
    ]  # fmt: skip
    if size == 64:
        # 5x5 from 3 to 32: 2,432; 5x5 from 32 to 32: 25,632; 32 maps of 32x32 to 32 units: 1,048,608; 1,056
        assert count(localiser) == 1_077_728


def test_colocalisation_localiser():
    localiser = st.ConvLocaliser(
        1, (84, 84), channels=(8,), kernel_size=9, stride=4, pool=(2,), hidden=(8, 8), downsample=1
    )
    assert localiser(torch.rand(1, 1, 84, 84)).shape == (1, 8)
    # 9x9 to 8: 656; 84 -> 19 -> 9, so 8 x 81 x 8 + 8 = 5,192; 8 x 8 + 8 = 72
    assert count(localiser) == 5_920


def test_volume_localiser():
    localiser = st.ConvLocaliser(
        1, (60, 60, 60), channels=(2, 2, 2), stride=2, pool=1, hidden=(32,), downsample=1
    )
    assert localiser(torch.rand(1, 1, 60, 60, 60)).shape == (1, localiser.out_features) == (1, 32)
    # 5^3 from 1 to 2: 252; twice 5^3 from 2 to 2: 502; 60 -> 28 -> 12 -> 4, so 2 x 64 x 32 + 32 = 4,128
    assert count(localiser) == 252 + 2 * 502 + 4_128


def test_localisers_of_images_that_are_not_square():
    image = torch.rand(2, 3, 28, 44)
    assert st.ConvLocaliser(3, (28, 44))(image).shape == (2, 20)
    assert st.DenseLocaliser(3, (28, 44), hidden=(7,))(image).shape == (2, 7)
    with pytest.raises(ValueError, match="takes images of"):
        st.ConvLocaliser(3, (44, 28), hidden=(7,))(torch.rand(2, 3, 60, 28))


def test_isotropic_families_tile_with_windows_inside():
    """Two crops of one scale: half the image each, side by side, neither reaching beyond it."""
    for family in (st.Attention(), st.Similarity()):
        head = st.Head(4, family, copies=2, start="tile")
        boxes = family.box(head.bias.detach().unflatten(0, (2, -1)))
        assert boxes.abs().max() <= 1
        assert boxes[0, :, 0].max() <= boxes[1, :, 0].min()
        assert boxes[0, :, 0].max() - boxes[0, :, 0].min() == 1


def test_deferred_initialisation():
    """Built on the meta device, given memory later, and reset."""
    with torch.device("meta"):
        transformer = st.SpatialTransformer(st.DenseLocaliser(1, (6, 6)), st.ThinPlateSpline())
        tiled = st.Head(4, st.Affine(), copies=4, start="tile")
        assert transformer.head(torch.empty(2, 32)).shape == (2, 32)
    assert transformer.head.bias.is_meta
    for head in (transformer.head, tiled):
        head.to_empty(device="cpu")
        head.reset_parameters()
    assert torch.equal(transformer.head.bias, st.ThinPlateSpline().identity())
    assert torch.equal(tiled.bias, st.Head(4, st.Affine(), copies=4, start="tile").bias)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: st.DenseLocaliser(1, 28), r"in_size must be \(H, W\) or \(D, H, W\), got 28"),
        (
            lambda: st.DenseLocaliser(1, (28, 0)),
            "each of in_size must be a whole number of at least 1, got 0",
        ),
        (lambda: st.DenseLocaliser(1, (8, 8), hidden=32), "hidden must name at least one layer.*got 32"),
        (lambda: st.DenseLocaliser(0, (8, 8)), "in_channels must be a whole number of at least 1, got 0"),
        (lambda: st.ConvLocaliser(1, (28, 28), channels=20), "channels must name at least one layer.*got 20"),
        (lambda: st.ConvLocaliser(1, (28, 28), kernel_size=(5, 5)), "kernel_size must be a whole number"),
        (
            lambda: st.ConvLocaliser(1, (28, 28), stride=0),
            "stride must be a whole number of at least 1, got 0",
        ),
        (lambda: st.ConvLocaliser(1, (28, 28), downsample=0), "downsample must be a whole number"),
        (lambda: st.ConvLocaliser(1, (28, 28), padding=-1), "padding must be a whole number of at least 0"),
        (lambda: st.ConvLocaliser(1, (28, 28), pool=0), "pool must be a whole number of at least 1, got 0"),
        (lambda: st.ConvLocaliser(1, (28, 28), hidden=(20, 0.5)), "each of hidden must be a whole number"),
        (lambda: st.Head(-3, st.Affine()), "in_features must be a whole number of at least 1, got -3"),
        (
            lambda: st.Head(3, st.Affine(), copies=True),
            "copies must be a whole number of at least 1, got True",
        ),
        (lambda: st.Head(3, st.Affine(), start=torch.full((6,), torch.nan)), "start must be finite"),
        (
            lambda: st.Head(3, st.Translation(), copies=4, start="tile"),
            "needs a family that can crop: Translation cannot",
        ),
    ],
)
def test_what_cannot_be_built_is_said_when_it_is_built(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("make", [st.ConvLocaliser, st.DenseLocaliser])
def test_other_images_than_it_was_made_for_are_refused_by_name(make):
    localiser = make(1, (28, 28))
    with pytest.raises(ValueError, match=r"takes images of \[N, 1, 28, 28\], got \[2, 1, 32, 32\]"):
        localiser(torch.rand(2, 1, 32, 32))
    with pytest.raises(TypeError, match=r"takes floating-point images, got torch\.uint8"):
        localiser(torch.zeros(2, 1, 28, 28, dtype=torch.uint8))
    sizes = np.array([28, 28])
    assert make(1, (sizes[0], sizes[1]))(torch.rand(2, 1, 28, 28)).shape[0] == 2
