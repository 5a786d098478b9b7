"""The networks that read house numbers, their loss, and what their transformers do together."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from cases import images
from torch import nn

import spatial_transformer as st
from spatial_transformer.experiments import house_numbers, networks
from spatial_transformer.experiments.data import svhn
from spatial_transformer.experiments.data.random_numbers import RandomNumbers
from spatial_transformer.experiments.networks import parameters

pytestmark = pytest.mark.usefixtures("one_thread", "seed")

MODELS = house_numbers.MODELS
TRANSFORMERS = {"CNN": 0, "ST-CNN Single": 1, "ST-CNN Multi": 4}
SMALL = {"filters": (6, 7, 8, 9, 10, 11, 12, 13), "units": (40, 30, 20)}


def small(model, size=32):
    return house_numbers.build(model, size, **SMALL)


def small_images(count=2, size=32):
    return images(count, 3, size, size, dtype=torch.float32)


def unlike(network):
    """The network with transformers that are no identity, each another."""
    with torch.no_grad():
        for transformer in network.transformers:
            transformer.head.weight.normal_(std=0.1)
            transformer.head.bias += 0.1 * torch.randn(6)
    return network


def first(given):
    """Without the theta that comes with it."""
    return given[0] if isinstance(given, tuple) else given


def entering(network, kinds, *given):
    """What enters the modules of some kinds, by their names, and what leaves them."""
    seen = {}
    named = {name: module for name, module in network.named_modules() if isinstance(module, kinds)}
    hooks = [
        module.register_forward_hook(lambda _, a, out, name=name: seen.update({name: (a[0], first(out))}))
        for name, module in named.items()
    ]
    network(*given)
    for hook in hooks:
        hook.remove()
    return seen


# The text


def notation(module):
    """A layer as section A.5 writes it."""
    if isinstance(module, nn.Conv2d):
        (w, w2), (s, s2), (p, p2) = module.kernel_size, module.stride, module.padding
        assert (w, s, p) == (w2, s2, p2)
        return f"conv[{module.out_channels},{w},{s},{p}]"
    if isinstance(module, nn.Linear):
        return f"fc[{module.out_features}]"
    if isinstance(module, nn.MaxPool2d):
        assert module.kernel_size == module.stride
        return f"max[{module.kernel_size}]"
    return {nn.ReLU: "rectified", nn.Flatten: None}[type(module)]


def written(module):
    """Layers in the order in which they stand, and that a rectifier follows every one with weights."""
    found = [notation(part) for part in module.modules() if not list(part.children())]
    found = [layer for layer in found if layer is not None]
    rectified = [layer for layer, after in itertools.pairwise(found) if after == "rectified"]
    plain = [layer for layer in found if layer != "rectified"]
    assert rectified == [layer for layer in plain if not layer.startswith("max")]
    return "-".join(plain)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("model", MODELS)
def test_layers_are_those_of_the_text(model, size):
    with torch.device("meta"):
        network = house_numbers.build(model, size)
    assert written(network.layers) == (
        "conv[48,5,1,2]-max[2]-conv[64,5,1,2]-conv[128,5,1,2]-max[2]-conv[160,5,1,2]-conv[192,5,1,2]-max[2]-"
        "conv[192,5,1,2]-conv[192,5,1,2]-max[2]-conv[192,5,1,2]-fc[3072]-fc[3072]-fc[3072]"
    )
    assert len(network.layers) == 11
    localisers = [written(transformer.localiser) for transformer in network.transformers]
    assert (
        localisers
        == {
            "CNN": [],
            "ST-CNN Single": ["conv[32,5,1,2]-max[2]-conv[32,5,1,2]-fc[32]-fc[32]"],
            "ST-CNN Multi": ["fc[32]-fc[32]"] * 4,
        }[model]
    )
    for transformer in network.transformers:
        assert isinstance(transformer.family, st.Affine)
        assert (transformer.kernel, transformer.padding, transformer.size) == ("bilinear", "zeros", None)


@pytest.mark.parametrize("size", [64, 128])
def test_shapes_of_what_layers_and_transformers_see(size):
    with torch.device("meta"):
        network = house_numbers.build("ST-CNN Multi", size)
        image = torch.empty(2, 3, size, size)
        seen = entering(network, (nn.Conv2d, st.SpatialTransformer, nn.Linear), image)
    shapes = {name: (list(one.shape[1:]), list(out.shape[1:])) for name, (one, out) in seen.items()}
    full, half, quarter, eighth, last = (size // 2**n for n in range(5))
    maps = [
        [3, full, full], [48, half, half], [64, half, half], [128, quarter, quarter],
        [160, quarter, quarter], [192, eighth, eighth], [192, eighth, eighth], [192, last, last],
    ]  # fmt: skip
    assert [shapes[f"layers.{n}.0"][0] for n in range(8)] == maps
    assert [shapes[f"transformers.{n}"] for n in range(4)] == [(shape, shape) for shape in maps[:4]]
    assert shapes["layers.8.1"] == ([192 * last**2], [3072])
    assert shapes["places"] == ([3072], [55])
    assert network(image).shape == (2, 5, 11)


def test_counts_by_hand():
    """As the file states them."""
    # 5x5 from 3 to 48, to 64, to 128, to 160, to 192, and three times from 192 to 192
    convolved = 3_648 + 76_864 + 204_928 + 512_160 + 768_192 + 3 * 921_792
    # 192 maps of 4x4 or 8x8 to 3072 units, twice 3072 to 3072; five times 3072 to 11
    rest = {
        size: (192 * n * n + 1 + 2 * 3_073) * 3_072 + 5 * (3_072 + 1) * 11 for size, n in [(64, 4), (128, 8)]
    }
    head = 33 * 6
    wanted = {}
    for size in (64, 128):
        pixels = size * size
        single = 2_432 + 25_632 + (32 * pixels // 4 + 1 + 33) * 32 + head
        numbers = 3 * pixels + 48 * pixels // 4 + 64 * pixels // 4 + 128 * pixels // 16
        multi = (numbers + 4 * (1 + 33)) * 32 + 4 * head
        plain = convolved + rest[size]
        wanted |= {("CNN", size): plain, ("ST-CNN Single", size): plain + single}
        wanted |= {("ST-CNN Multi", size): plain + multi}
    with torch.device("meta"):
        found = {cell: parameters(house_numbers.build(*cell)) for cell in wanted}
    assert found == wanted
    for model in MODELS:
        row = " ".join([model, *(f"{found[model, size]:,}" for size in (64, 128))])
        assert row in " ".join(house_numbers.__doc__.split())


@pytest.mark.parametrize(
    ("model", "size", "said"),
    [("CNN", 72, "multiple of 16"), ("CNN", 0, "multiple of 16"), ("ST-CNN", 64, "one of CNN")],
)
def test_what_cannot_be_built(model, size, said):
    with pytest.raises(ValueError, match=said):
        house_numbers.build(model, size)


# The start


@pytest.mark.parametrize("model", ["ST-CNN Single", "ST-CNN Multi"])
@pytest.mark.parametrize("drops", [False, True])
def test_transformers_start_as_the_identity(model, drops):
    plain, network = small("CNN"), small(model)
    missing, unexpected = network.load_state_dict(plain.state_dict(), strict=False)
    assert all(name.startswith("transformers.") for name in missing)
    assert unexpected == []
    image = small_images()
    scores, wanted = (each(image, RandomNumbers(3) if drops else None) for each in (network, plain))
    assert torch.equal(scores, wanted)
    assert not torch.equal(unlike(network)(image), plain(image))
    assert network.theta(image).shape == (2, 6 * TRANSFORMERS[model])


@pytest.mark.parametrize("model", ["ST-CNN Single", "ST-CNN Multi"])
def test_what_localisers_give_starts_weak(model):
    """As strong as weights make it that keep what rectifiers pass on, but for the last, a quarter of it."""
    for transformer in house_numbers.build(model, 32, filters=[6] * 8, units=[40]).transformers:
        layers = [part for part in transformer.localiser.modules() if isinstance(part, nn.Linear)]
        squares = [(layer.weight @ layer.weight.T).diagonal() for layer in layers]
        torch.testing.assert_close(squares[0], torch.full((32,), 2.0))
        torch.testing.assert_close(squares[1], torch.full((32,), 2.0 / 16))


def test_signals_keep_their_strength_in_training():
    """Their mean square, but for what pooling adds and the zeros around small maps take: with weights as
    for rectifiers alone it would be hundreds of times as large, with PyTorch's own nothing would be left."""
    network = house_numbers.build("CNN", 32, filters=[48] * 8, units=[256] * 3)
    seen = entering(network, (nn.Conv2d, nn.Linear), torch.randn(16, 3, 32, 32), RandomNumbers(0))
    squares = [given.square().mean().item() for given, _ in seen.values()]
    assert len(squares) == 12
    assert all(0.2 < square < 40 for square in squares)


@pytest.mark.parametrize("model", ["ST-CNN Single", "ST-CNN Multi"])
def test_gradients_reach_every_localiser(model):
    network, image = small(model), small_images(4)
    labels = torch.randint(11, (4, 5))

    def gradients():
        network.zero_grad()
        house_numbers.losses(network(image, RandomNumbers(0)), labels).mean().backward()
        return {name: float(p.grad.abs().max()) for name, p in network.named_parameters()}

    first = gradients()
    heads = {name for name in first if ".head." in name}
    assert len(heads) == 2 * TRANSFORMERS[model]
    # From weights of zero none comes down to the layers under them, until these have moved.
    assert all(first[name] > 0 for name in first if ".localiser." not in name)
    assert all(first[name] == 0 for name in first if ".localiser." in name)
    unlike(network)
    assert min(gradients().values()) > 0


# Dropout


def apart(dropped, whole):
    """How many times stronger what is left is, as mean and deviation, and how much is left."""
    there = whole > 0
    assert (dropped[~there] == 0).all()
    times = dropped[there] / whole[there]
    kept = times > 0
    return times[kept].mean().item(), times[kept].std().item(), kept.float().mean().item()


def test_dropout_is_of_all_layers_but_the_first():
    network = house_numbers.build("CNN", 32, filters=[24] * 8, units=[400] * 3)
    image = images(16, 3, 32, 32, dtype=torch.float32)
    seen = list(entering(network, (nn.Conv2d, nn.Linear), image, RandomNumbers(0)).values())
    assert len(seen) == 12
    assert torch.equal(seen[0][0], image)
    for number, ((_, given), (taken, _)) in enumerate(itertools.pairwise(seen)):
        whole = F.relu(given)
        whole = F.max_pool2d(whole, 2) if number in (0, 2, 4, 6) else whole
        whole = whole.reshape(taken.shape)
        if number == 0:
            assert torch.equal(taken, whole)
        else:
            strength, spread, kept = apart(taken, whole)
            assert (strength, spread) == pytest.approx((2, 0), abs=1e-5)
            assert kept == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("model", ["ST-CNN Single", "ST-CNN Multi"])
def test_localisers_have_no_dropout(model):
    network, image = unlike(small(model)), small_images()
    kinds = (nn.Conv2d, nn.Linear, st.ConvLocaliser, st.DenseLocaliser)
    with_it, without = (entering(network, kinds, image, random) for random in (RandomNumbers(0), None))
    for name, (given, left) in with_it.items():
        if name.endswith(".localiser"):
            number = int(name.split(".")[1])
            if number:
                before = F.relu(with_it[f"layers.{number - 1}.0"][1])
                before = F.max_pool2d(before, 2) if number in (1, 3) else before
                assert torch.equal(given, before)
            assert torch.equal(left, dict(network.named_modules())[name](given))
    # while the third convolution, behind a transformer or not, sees half of its input
    assert not torch.equal(with_it["layers.2.0"][0], without["layers.2.0"][0])


def test_dropout_goes_on_where_its_stream_stands():
    network, image = small("ST-CNN Multi"), small_images()
    random = RandomNumbers(5)
    network(image, random)
    drawn = random.state()
    wanted = network(image, random)
    again = RandomNumbers(5)
    assert not torch.equal(network(image, again), wanted)
    again.set_state(drawn)
    assert torch.equal(network(image, again), wanted)
    assert torch.equal(network(image), network(image))


@pytest.mark.parametrize("shape", [(3, 5), (48, 1000), (0, 4)])
def test_half_is_dropped_each_place_on_its_own(shape):
    random = RandomNumbers(1)
    left = networks.dropped(torch.ones(shape, dtype=torch.float64), 0.5, random)
    assert random.state() == -(-left.numel() // 24)  # one number for 24 places
    assert left.shape == shape
    assert left.dtype == torch.float64
    assert set(left.unique().tolist()) <= {0.0, 2.0}
    if left.numel() > 1000:
        assert left.mean().item() == pytest.approx(1, abs=0.02)
        flat = left.flatten() - 1
        for away in (1, 2, 5, 23, 24, 25, 48):  # also of one random number, and of neighbouring ones
            assert (flat[away:] * flat[:-away]).mean().abs() < 0.02
        assert flat.reshape(-1, 24).mean(0).abs().max() < 0.1


@pytest.mark.parametrize("share", [0.0, 0.125, 0.5])
def test_a_share_on_the_device_is_dropped(share):
    """In place of one that is known beforehand: it can change between the steps of a captured graph."""
    random = RandomNumbers(1)
    left = networks.dropped(torch.ones(48, 1000), torch.tensor(share), random)
    assert random.state() == 16_000  # one number for three places
    assert left.unique().tolist() == pytest.approx([0.0, 1 / (1 - share)] if share else [1.0])
    assert (left == 0).double().mean().item() == pytest.approx(share, abs=0.01)
    halves = torch.ones(4, 1, dtype=torch.bfloat16)
    assert networks.dropped(halves, torch.tensor(share), random).dtype == torch.bfloat16


def test_signals_keep_their_strength_where_training_begins_without_dropout():
    network = house_numbers.build("CNN", 32, filters=[48] * 8, units=[256] * 3, dropout=0.0)
    seen = entering(network, (nn.Conv2d, nn.Linear), torch.randn(16, 3, 32, 32))
    squares = [given.square().mean().item() for given, _ in seen.values()]
    assert all(0.05 < square < 10 for square in squares)  # else the last would be of 0.001


# Loss and error


def some_scores(count=64):
    """Scores, and labels as the data has them: digits, then nulls. Many are read rightly."""
    lengths = torch.randint(1, 6, (count, 1))
    labels = torch.where(torch.arange(5) < lengths, torch.randint(10, (count, 5)), svhn.NULL)
    return torch.randn(count, 5, 11) + 4 * F.one_hot(labels, 11), labels


def test_the_loss_is_a_fifth_of_minus_the_log_of_the_numbers_probability():
    scores, labels = some_scores()
    found = house_numbers.losses(scores, labels)
    for number, (each, label) in enumerate(zip(scores.softmax(2), labels.tolist(), strict=True)):
        probability = torch.stack([each[place, digit] for place, digit in enumerate(label)]).prod()
        torch.testing.assert_close(found[number], -probability.log() / 5)


def test_the_sequence_error_by_a_plain_loop():
    scores, labels = some_scores()
    found = []
    for each, label in zip(scores.tolist(), labels.tolist(), strict=True):
        read = [max(range(11), key=lambda digit, place=place: place[digit]) for place in each]
        found.append(read != label)
    assert house_numbers.wrong(scores, labels).tolist() == found
    assert 0 < sum(found) < len(found)


# Transforms multiplied out


def test_transforms_are_multiplied_out_in_their_order():
    network = unlike(small("ST-CNN Multi"))
    theta = network.theta(small_images(3))
    found = house_numbers.multiplied_out(theta)
    assert found.shape == (3, 2, 3)
    last = torch.tensor([[0.0, 0, 1]]).expand(3, 1, 3)
    one, two, three, four = (torch.cat([part.unflatten(1, (2, 3)), last], 1) for part in theta.split(6, 1))
    torch.testing.assert_close(found, (one @ two @ three @ four)[:, :2])
    assert not torch.allclose(found, (four @ three @ two @ one)[:, :2], atol=1e-2)


def test_transforms_of_feature_maps_are_transforms_of_the_image():
    """A ramp of coordinates, warped and pooled by hand as the network's first layers warp and pool, says
    where on the image each place looks."""
    network = unlike(small("ST-CNN Multi"))
    with torch.no_grad():
        for transformer in network.transformers:  # looking inwards, so that no zeros come in
            transformer.head.weight *= 0.1
            transformer.head.bias *= 0.7
    image = small_images(3, 32)
    theta = network.theta(image)
    ramp = st.Affine().identity().expand(3, -1)
    ramp = st.Affine().grid(ramp, (32, 32)).permute(0, 3, 1, 2)
    for number, each in enumerate(theta.split(6, 1)):
        ramp = st.warp(ramp, each, st.Affine())
        if number in house_numbers.POOLED:
            ramp = F.avg_pool2d(ramp, 2)  # the middle of what max-pooling picks from
    wanted = st.Affine().grid(house_numbers.multiplied_out(theta).flatten(1), (8, 8)).permute(0, 3, 1, 2)
    torch.testing.assert_close(ramp, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("model", ["CNN", "ST-CNN Single"])
def test_of_fewer_transforms(model):
    network, image = unlike(small(model)), small_images()
    found = house_numbers.multiplied_out(network.theta(image))
    if model == "CNN":
        assert torch.equal(found, torch.eye(2, 3).expand(2, 2, 3))
    else:
        assert torch.equal(found.flatten(1), network.transformers[0].theta(image))


# Training


def test_what_networks_take():
    pixels = torch.randint(256, (3, 3, 16, 16), dtype=torch.uint8)
    found = house_numbers.normalised(pixels)
    for each, image in zip(found, pixels.double(), strict=True):
        torch.testing.assert_close(each.double(), (image - image.mean()) / 32, rtol=0, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_scores_and_transforms_in_one_pass(model):
    network, image = unlike(small(model)), small_images()
    scores, theta = network(image, return_theta=True)
    assert torch.equal(scores, network(image))
    assert torch.equal(theta, network.theta(image))


def blobs(count):
    """Images of a few soft spots each, the mean taken out."""
    spots = F.interpolate(torch.randn(count, 3, 4, 4), size=(32, 32), mode="bicubic")
    return spots - spots.mean((1, 2, 3), keepdim=True)


@pytest.mark.parametrize("model", MODELS)
def test_eight_numbers_are_learnt_by_heart(model):
    network = house_numbers.build(model, 32, filters=[12] * 8, units=[64] * 3)
    image, (_, labels) = blobs(8), some_scores(8)
    before = network.theta(image)
    assert house_numbers.wrong(network(image), labels).all()
    # Without dropout, in which a network this narrow drowns, and so by Adam: the start is made for dropout.
    optimiser = torch.optim.Adam(st.param_groups(network, lr=0.001, localiser_lr=0.0001))
    for _ in range(200):
        optimiser.zero_grad()
        house_numbers.losses(network(image), labels).mean().backward()
        optimiser.step()
    assert not house_numbers.wrong(network(image), labels).any()
    moved = (network.theta(image) - before).abs().unflatten(1, (-1, 6)).amax((0, 2))
    assert (moved > 0).all()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_weights_start_for_the_dropout_before_them(dropout):
    """Which what the first layer gives does not meet."""
    network = house_numbers.build("CNN", 32, filters=[48] * 8, units=[512] * 3, dropout=dropout)
    weighted = [part for part in network.layers.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    for number, layer in enumerate(weighted):
        kept, entering = 1 - dropout if number > 1 else 1.0, layer.weight[0].numel()
        assert layer.weight.square().mean().item() == pytest.approx(2 * kept / entering, rel=0.1), number
        assert not layer.bias.any()
