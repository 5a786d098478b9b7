"""Runs on birds: what they train on, and that they learn and go on where they were stopped."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from data_files import made_flock, write_flock
from small_runs import Waits, counted
from torch import nn

from spatial_transformer.experiments import (
    checkpoints,
    efficientnet_lite,
    engine,
    measures_of_birds,
    networks,
    records,
)
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.checkpoints import Checkpoint
from spatial_transformer.experiments.efficientnet_lite import SCALES, Features
from spatial_transformer.experiments.fine_grained_runs import BirdSet, FineGrainedRun, load_set, norms
from spatial_transformer.experiments.interrupts import Stopped
from spatial_transformer.experiments.jobs import placed
from spatial_transformer.experiments.lockstep import Lockstep
from spatial_transformer.experiments.paper.birds import BirdSettings
from spatial_transformer.experiments.spec import Cell, Data, Model

pytest.importorskip("filelock")
safetensors = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.usefixtures("one_thread")

SIDE = 32
CPU = torch.device("cpu")


class Small(nn.Module):
    """In the place of EfficientNet-Lite: as much smaller in height and width, with a norm, and fast."""

    channels = 16

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 16, 4, 4, bias=False), nn.BatchNorm2d(16)

    def forward(self, image):
        return F.max_pool2d(self.norm(self.convolution(image / 128 - 1)).relu(), 8)


@pytest.fixture(scope="module")
def flock(tmp_path_factory):
    return made_flock(tmp_path_factory.mktemp("flock"), species=4, each=10, trained=6)


@pytest.fixture(scope="module")
def backbone():
    torch.manual_seed(1)
    return Small()


def cell(crops=0, size=SIDE, family="window", **changes):
    settings = BirdSettings(**{"steps": 40, "batch": 8, "warm_up": 0.0, "localiser_rate": 0.1, **changes})
    model = Model("a network", "CNN", family if crops else None, transformers=crops or 1)
    return Cell("birds", model, Data(f"{size}px", size, SIDE, channels=3, classes=4), settings, None)


def started(flock, backbone, seed=0, device="cpu", **given):
    return FineGrainedRun(cell(**given), seed, BirdSet("birds", flock, lambda name: backbone), device)


def advanced(run, steps):
    """Step by step, so that each has its own rate."""
    together = Lockstep([run])
    for _ in range(steps):
        together.advance(1)
    return run


@pytest.mark.parametrize(
    ("crops", "changes"),
    [
        (0, {"norms": "frozen", "precision": "float32"}),
        (0, {"blend": 0.5}),
        (2, {"colour": 0.2, "size": 2 * SIDE}),
        (4, {"family": "affine", "size": 2 * SIDE, "alone": 0.5, "together": 0.1}),
    ],
)
def test_a_run_goes_on_bit_for_bit(flock, backbone, crops, changes, tmp_path):
    whole, stopped = (started(flock, backbone, crops=crops, **changes) for _ in range(2))
    advanced(whole, 5)  # over the end of the images: they are shuffled anew after three batches
    path = tmp_path / "run.safetensors"
    checkpoints.save(Checkpoint(advanced(stopped, 2).state(), 1.0, [], [], [], {}), path)
    other = started(flock, backbone, crops=crops, **changes)
    other.load(checkpoints.load(path).state)
    assert other.step_number == 2
    advanced(other, 3)
    expected, found = whole.state(), other.state()
    assert found.numbers == expected.numbers
    assert found.tensors.keys() == expected.tensors.keys()
    for name, value in expected.tensors.items():
        assert torch.equal(found.tensors[name], value), name
    assert torch.equal(whole.tested().theta, other.tested().theta)


def test_the_real_network_trains(flock):
    """EfficientNet-Lite in the place of what stands for it here."""
    run = started(flock, Features(SCALES["efficientnet-lite0"]), crops=2, size=2 * SIDE, batch=4)
    before = [parameter.detach().clone() for parameter in run.parameters]
    advanced(run, 2)
    assert 0 < run.means(2)[0] < 5
    assert all(not torch.equal(now, then) for now, then in zip(run.network.streams.parameters(),
               before[-2 - len(list(run.network.streams.parameters())) : -2], strict=True))  # fmt: skip


def test_blocks_that_are_left_out_are_those_of_the_state(flock):
    """A run that goes on leaves out what it would have; one that is tested, nothing. Nothing waits."""
    features = Features(SCALES["efficientnet-lite0"])
    changes = {"crops": 2, "size": 2 * SIDE, "batch": 4}
    whole, stopped, plain = (started(flock, features, skipped=share, **changes) for share in (0.9, 0.9, 0.0))
    state = advanced(stopped, 1).state()
    other = started(flock, features, skipped=0.9, **changes)
    other.load(state)
    for run, steps in ((whole, 2), (other, 1), (plain, 1)):
        advanced(run, steps)
    assert torch.equal(whole.weights, other.weights)
    assert not torch.equal(stopped.weights, plain.weights)
    assert stopped.random.state() - plain.random.state() == 2 * 4 * len(features.blocks)
    plain.load(other.state())
    assert torch.equal(plain.tested().predictions, other.tested().predictions)
    with Waits() as waits:
        whole.step()
    assert waits.found == []


def test_seeds_differ_and_repeat(flock, backbone):
    one, same, other = (advanced(started(flock, backbone, seed), 1) for seed in (0, 0, 1))
    assert torch.equal(one.weights, same.weights)
    assert not torch.equal(one.weights, other.weights)
    assert not torch.equal(one.order, other.order)
    fresh = [started(flock, backbone, seed).network.classifier.weight for seed in (0, 1)]
    assert not torch.equal(*fresh)


def test_dropout_is_the_settings(flock, backbone):
    losses = []
    for share in (0.0, 0.9):
        run = started(flock, backbone, dropout=share)
        advanced(run, 1)
        losses.append(run.means(1)[0])
    assert losses[1] > losses[0] + 0.1  # what is left is ten times as large


def test_a_step_is_that_of_sgd(flock, backbone):
    """Against torch's own optimiser on the same batches, each part of the network at its own rate."""
    changes = {"weight_decay": 0.01, "localiser_rate": 0.01, "classifier_rate": 3.0, "steps": 6}
    run, other = (started(flock, backbone, crops=2, **changes) for _ in range(2))
    network, settings = other.network, other.settings
    start = network.transformer.head.bias
    rates = [
        ([each for each in network.transformer.parameters() if each is not start], settings.localiser_rate),
        ([start], settings.localiser_rate),
        (network.streams.parameters(), 1.0),
        (network.classifier.parameters(), settings.classifier_rate),
    ]
    groups = [{"params": list(part), "pace": pace, "lr": 0.1} for part, pace in rates]
    groups[1]["weight_decay"] = 0.0  # a transformer that forgot where it starts would look at a point
    optimiser = torch.optim.SGD(groups, momentum=0.9, weight_decay=0.01)
    for step in range(4):
        chosen = other.next_batch()
        images = other.views.drawn(other.train, chosen, other.random)
        scores = network(images, other.random)
        for group in groups:
            group["lr"] = settings.rate(step) * group["pace"]
        for group, now in zip(optimiser.param_groups, groups, strict=True):
            group["lr"] = now["lr"]
        optimiser.zero_grad()
        F.cross_entropy(scores, other.train.labels[chosen], label_smoothing=0.1).backward()
        optimiser.step()
    advanced(run, 4)
    torch.testing.assert_close(run.weights, other.weights, rtol=1e-5, atol=1e-6)
    assert not torch.equal(run.network.transformer.head.bias.detach(), run.start.flatten())


def test_the_localiser_can_begin_to_learn_later(flock, backbone):
    """With the stage that begins after that share of the steps; rates are set anew at each of them."""
    changes = {"steps": 12, "stages": 4, "localiser_rate": 0.1, "crops": 2}
    run = started(flock, backbone, localiser_start=0.3, **changes)
    assert [run.settings.localises(step) for step in range(12)] == [False] * 6 + [True] * 6
    head = run.network.transformer.head
    before = run.network.classifier.weight.detach().clone()
    advanced(run, 6)
    assert torch.equal(head.bias.detach(), run.start.flatten())
    assert not head.weight.any()
    assert not torch.equal(run.network.classifier.weight.detach(), before)
    advanced(run, 1)
    assert head.weight.any()
    assert started(flock, backbone, **changes).settings.localises(0)


def test_images_are_blended_as_their_labels_are(flock, backbone):
    """Mixup: against soft labels, and images put together by hand. Without it nothing more is drawn."""
    run, other, plain = (started(flock, backbone, blend=blend) for blend in (0.4, 0.4, 0.0))
    chosen = other.next_batch()
    images, labels = other.views.drawn(other.train, chosen, other.random), other.train.labels[chosen]
    share = 0.4 * other.random.uniform(8)
    assert 0 < share.min() < 0.2 < share.max() < 0.4
    before = [7, *range(7)]
    mixed = (1 - share)[:, None, None, None] * images + share[:, None, None, None] * images[before]
    soft = torch.zeros(8, 4)
    for place in range(8):
        soft[place, labels[place]] += 1 - share[place]
        soft[place, labels[before[place]]] += share[place]
    scores = other.network(mixed, other.random)
    gradients = torch.autograd.grad(F.cross_entropy(scores, soft, label_smoothing=0.1), other.parameters)
    run.set_rate()
    run.step()
    velocity = torch.cat([gradient.flatten() for gradient in gradients]) + 1e-5 * other.weights
    torch.testing.assert_close(run.velocity, velocity, rtol=1e-4, atol=1e-6)
    plain.step()
    assert run.random.state() == plain.random.state() + 8


@pytest.mark.parametrize("crops", [2, 4])
def test_windows_are_judged_alone(crops, flock, backbone):
    """The classifier with the descriptors of one window as often as there are windows, and of no other; by
    labels that are blended as images are."""
    changes = {"crops": crops, "size": 2 * SIDE, "blend": 0.4}
    run, other = (started(flock, backbone, alone=alone, **changes) for alone in (0.3, 0.0))
    network, chosen = other.network, other.next_batch()
    images, labels = other.views.drawn(other.train, chosen, other.random), other.train.labels[chosen]
    share, before = 0.4 * other.random.uniform(8), [7, *range(7)]
    assert not torch.equal(labels, labels[before])
    own = (1 - share)[:, None, None, None]
    descriptors, _ = network.descriptors_and_theta(own * images + (1 - own) * images[before], other.random)
    together, parts = network.classifier(descriptors), descriptors.split(backbone.channels, dim=1)
    assert len(parts) == crops
    alone = [
        network.classifier(torch.cat([part * (crops if each is part else 0) for each in parts], dim=1))
        for part in parts
    ]
    torch.testing.assert_close(torch.stack(alone).mean(0), together)
    soft = (1 - share)[:, None] * F.one_hot(labels, 4) + share[:, None] * F.one_hot(labels[before], 4)
    loss, *each = (F.cross_entropy(scores, soft, label_smoothing=0.1) for scores in (together, *alone))
    loss = 0.7 * loss + 0.3 * sum(each) / crops
    gradients = torch.autograd.grad(loss, other.parameters)
    run.set_rate()
    run.step()
    velocity = torch.cat([gradient.flatten() for gradient in gradients]) + 1e-5 * other.weights
    torch.testing.assert_close(run.velocity, velocity, rtol=1e-4, atol=1e-6)
    assert float(run.sums[0]) == pytest.approx(loss.item(), rel=1e-5)
    assert float(run.sums[1]) == (together.argmax(1) != labels).float().mean()  # of all windows together


def test_without_windows_none_is_judged_alone(flock, backbone):
    with_it, without = (started(flock, backbone, alone=share) for share in (0.3, 0.0))
    for run in (with_it, without):
        run.set_rate()
        run.step()
    assert torch.equal(with_it.weights, without.weights)
    assert not with_it.cell.heeds("alone")
    assert cell(crops=2).heeds("alone")


@pytest.mark.parametrize("crops", [2, 4])
def test_windows_can_learn_as_one_at_first(flock, backbone, crops):
    """Each backbone by the sum of their gradients, each window's part of the classifier by the mean of the
    parts', so that they remain the same; then each by its own."""
    changes = {"steps": 12, "stages": 4, "crops": crops, "size": 2 * SIDE, "weight_decay": 0.0}
    run, other = (started(flock, backbone, together=together, **changes) for together in (0.5, 0.0))
    assert [run.settings.joins(step) for step in range(12)] == [True] * 6 + [False] * 6

    def of_windows(network):
        """The weights of each backbone, and each window's part of the classifier, as it lies in it."""
        backbones = [nn.utils.parameters_to_vector(stream.parameters()) for stream in network.streams]
        parts = network.classifier.weight.chunk(crops, dim=1)
        return torch.stack(backbones).detach(), torch.stack(parts).detach()

    def velocities(each):
        """Of what is before the backbones, of each of them, of each window's part, and of the biases."""
        parts = each.network.children()
        before, streams, last = each.velocity.clone().split(
            [sum(weights.numel() for weights in part.parameters()) for part in parts]
        )
        weights, biases = last.split([len(last) - 4, 4])
        own = torch.stack(weights.unflatten(0, (4, -1)).chunk(crops, dim=1))
        return before, streams.unflatten(0, (crops, -1)), own, biases

    (_, parts), (_, each_its_own) = (of_windows(one.network) for one in (run, other))
    assert torch.equal(parts, parts[:1].expand_as(parts))
    assert parts.std().item() == pytest.approx(each_its_own.std().item(), rel=0.2)
    with torch.no_grad():
        other.network.classifier.weight.copy_(run.network.classifier.weight)
    for each in (run, other):
        advanced(each, 1)
    found, own = velocities(run), velocities(other)
    assert min(own[1].std(dim=0).max(), own[2].std(dim=0).max()) > 0.003
    wanted = own[0], own[1].sum(0).expand_as(own[1]), own[2].mean(0).expand_as(own[2]), own[3]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    advanced(run, 5)
    for each in of_windows(run.network):
        assert torch.equal(each, each[:1].expand_as(each))
    advanced(run, 1)
    for each in of_windows(run.network):
        assert not any(torch.equal(one, each[0]) for one in each[1:])
    assert cell(crops=crops).heeds("together")
    assert not cell().heeds("together")


def test_every_image_is_seen_before_any_is_seen_again(flock, backbone):
    run = started(flock, backbone, batch=7)
    rounds = [[run.next_batch() for _ in range(3)] for _ in range(3)]  # 21 of the 24, then anew
    for batches in rounds:
        assert len(torch.cat(batches).unique()) == 21
        assert torch.cat(batches).max() < 24
    assert not torch.equal(torch.cat(rounds[0]), torch.cat(rounds[1]))
    even = started(flock, backbone, batch=8)
    assert sorted(torch.cat([even.next_batch() for _ in range(3)]).tolist()) == list(range(24))
    with pytest.raises(ValueError, match="batch must be at most the 24 training images, got 25"):
        started(flock, backbone, batch=25)


def test_a_run_trains_on_training_images_alone(flock, backbone):
    run = started(flock, backbone)
    assert sorted(run.train.starts.tolist()) == flock.starts[flock.train].tolist()
    assert sorted(run.test.starts.tolist()) == flock.starts[~flock.train].tolist()
    held = started(flock, backbone, held_out=8)
    assert (run.trained_on, held.trained_on) == ("birds", "birds, 8 held out")
    assert (len(held.train), len(held.test)) == (16, 8)
    official = set(flock.starts[flock.split("test")].tolist())
    assert official.isdisjoint(held.train.starts.tolist() + held.test.starts.tolist())


def test_a_run_learns(flock, backbone):
    run = started(flock, backbone, steps=120, learning_rate=0.05, dropout=0.0, batch=16)
    assert run.tested().error > 40  # of four species
    advanced(run, 20)
    first = run.means(20)
    advanced(run, 80)
    run.means(80)
    advanced(run, 20)
    last = run.means(20)
    assert last[0] < 0.8 * first[0]
    assert last[1] < 0.5 * first[1]
    assert run.tested().error < 30


def test_the_error_is_that_of_the_middle_views(flock, backbone, monkeypatch):
    monkeypatch.setattr("spatial_transformer.experiments.fine_grained_runs.TESTED_AT_ONCE", 7)
    run = advanced(started(flock, backbone, crops=2), 3)
    tested, network = run.tested(), run.network
    assert network.training
    network.eval()
    images = run.first_images(100)
    assert images.shape == (16, 3, SIDE, SIDE)
    torch.testing.assert_close(images, run.views.middle(run.test, torch.arange(16)))
    with torch.no_grad():
        scores = network(images)
    assert torch.equal(tested.predictions, scores.argmax(1))
    wrong = scores.argmax(1) != run.test.labels
    assert tested.error == pytest.approx(100 * wrong.double().mean().item())
    torch.testing.assert_close(tested.theta, network.theta(images).detach())
    network.train()
    torch.testing.assert_close(run.theta(images[:5]), tested.theta[:5])


def test_a_test_can_be_stopped(flock, backbone, monkeypatch):
    """Before each part of the sixteen images; the network goes on learning after it."""
    monkeypatch.setattr("spatial_transformer.experiments.fine_grained_runs.TESTED_AT_ONCE", 7)
    run = started(flock, backbone)
    for looks in (1, 3):
        with pytest.raises(Stopped):
            run.tested(counted(looks))
        assert run.network.training
    assert run.tested(counted(4)).error == run.tested().error


def test_an_image_and_its_mirror_image_can_be_judged_together(flock, backbone):
    one, both = (advanced(started(flock, backbone, views=views, crops=2), 2) for views in (1, 2))
    one.network.eval()
    images, mirrored = (one.views.middle(one.test, torch.arange(16), mirrored=way) for way in (False, True))
    with torch.no_grad():
        scores = one.network(images).softmax(1) + one.network(mirrored).softmax(1)
        theta = one.network.theta(images)
        assert not torch.equal(theta, one.network.theta(mirrored))
    found = both.tested()
    assert torch.equal(found.predictions, scores.argmax(1))
    assert not torch.equal(found.predictions, one.tested().predictions)
    torch.testing.assert_close(found.theta, theta)  # of the image as it is, whatever is measured and drawn


def test_norms_are_kept_up_or_frozen(flock, backbone):
    for way in ("updated", "frozen"):
        run = advanced(started(flock, backbone, crops=2, norms=way), 2)
        kept = {name: value.clone() for name, value in run.network.named_buffers()}
        given = dict(backbone.named_buffers())
        moved = {not torch.equal(value, given[within(name)]) for name, value in kept.items()}
        assert moved == {way == "updated"}
        run.tested()
        assert all(torch.equal(value, kept[name]) for name, value in run.network.named_buffers())
        assert {norm.training for norm in norms(run.network)} == {way == "updated"}


def test_running_statistics_follow_those_of_the_batch(flock, backbone):
    run = started(flock, backbone, following=0.25)
    norm, found = run.network.streams[0].norm, []
    norm.register_forward_pre_hook(lambda _, given: found.append(given[0].mean((0, 2, 3))))
    before = norm.running_mean.clone()
    advanced(run, 1)
    torch.testing.assert_close(norm.running_mean, 0.75 * before + 0.25 * found[0])


def within(name):
    """A buffer's name in its backbone."""
    return name[name.index("norm.") :]


def test_windows_are_measured(flock, backbone):
    run = started(flock, backbone, crops=2, size=2 * SIDE)
    with torch.no_grad():
        run.network.transformer.head.bias.copy_(torch.tensor([0.1, 0.2, -0.3, 0.0]))
    tested = run.tested()
    boxes = run.views.windows(run.test.sizes).normalised(run.test.boxes)
    theta = tested.theta.reshape(16, 2, 2)
    expected = measures_of_birds.of(
        networks.FAMILIES["window"](), theta, torch.tensor([[-0.5, 0], [0.5, 0]]), boxes
    )
    assert tested.measures == expected
    assert tested.measures["windows apart"] == pytest.approx(0.2236, abs=1e-4)
    assert tested.measures["windows apart, at the start"] == pytest.approx(0.5)
    assert started(flock, backbone).tested().measures == {}


@pytest.mark.parametrize("layout", ["channels-last", "contiguous"])
def test_backbones_get_the_layout_that_is_asked_for(flock, backbone, layout):
    run = started(flock, backbone, crops=2, size=2 * SIDE, layout=layout)
    seen = []
    for module in run.network.modules():
        if isinstance(module, Small):
            module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    advanced(run, 1)
    assert len(seen) == 3
    last = [image.is_contiguous(memory_format=torch.channels_last) for image in seen]
    assert last == [layout == "channels-last"] * 3


@pytest.mark.parametrize("crops", [0, 2])
def test_nothing_in_a_step_waits_for_the_device(flock, backbone, crops):
    """So that it can be captured in a CUDA graph."""
    changes = {
        "size": 2 * SIDE if crops else SIDE,
        "colour": 0.1,
        "blend": 0.5,
        "alone": 0.5,
        "together": 1.0,
    }
    run = advanced(started(flock, backbone, crops=crops, **changes), 1)
    with Waits() as waits:
        run.step()
    assert waits.found == []
    with Waits() as waits:
        float(run.sums[0])
    assert waits.found  # it can be noted


def test_what_is_given_is_left_alone(flock, backbone):
    before = copy.deepcopy(backbone.state_dict())
    advanced(started(flock, backbone, crops=2), 2)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_weights_are_looked_for_where_the_birds_are(tmp_path, monkeypatch):
    asked = []

    def load(name, data_dir=None):
        asked.append((name, data_dir))
        return SimpleNamespace(features="features")

    monkeypatch.setattr(efficientnet_lite, "load", load)
    write_flock(tmp_path)
    given = load_set(tmp_path, say=lambda line: None)
    assert given.backbone("efficientnet-lite0") == "features"
    assert asked == [("efficientnet-lite0", tmp_path)]


def test_the_backbone_is_the_settings(flock, backbone):
    asked = []
    given = BirdSet("birds", flock, lambda name: asked.append(name) or backbone)
    FineGrainedRun(cell(backbone="efficientnet-lite0"), 0, given, "cpu")
    assert asked == ["efficientnet-lite0"]


def test_all_norms_follow(flock, backbone):
    """Those of the localiser, too."""
    run = started(flock, backbone, crops=2, following=0.25)
    assert [norm.momentum for norm in norms(run.network)] == [0.25] * 3


def test_windows_are_measured_on_their_own_images(flock, backbone):
    run = started(flock, backbone, crops=2, size=2 * SIDE)
    head = run.network.transformer.head
    with torch.no_grad():
        head.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
        head.bias.copy_(torch.tensor([0.1, 0.2, -0.6, 0.0]))
    tested = run.tested()
    theta = tested.theta.reshape(16, 2, 2)
    boxes = run.views.windows(run.test.sizes).normalised(run.test.boxes)
    inside = [
        [bool(left <= x <= right and top <= y <= bottom) for x, y in each]
        for (left, top, right, bottom), each in zip(boxes, theta, strict=True)
    ]
    each = 100 * torch.tensor(inside).double().mean(0)
    assert each[0] != each[1]
    measured = [tested.measures[f"on the bird, window {number}"] for number in (1, 2)]
    assert measured == pytest.approx(each.tolist())
    for other in (theta.flip(0), theta.flip(1)):  # it would show if images or windows were others'
        assert measures_of_birds.of(networks.FAMILIES["window"](), other, run.start, boxes) != tested.measures


def test_no_box_is_trained_on(flock, backbone):
    """Species alone: what lies where is for the measures."""
    blind = dataclasses.replace(flock, boxes=torch.zeros_like(flock.boxes))
    runs = [started(given, backbone, crops=2, size=2 * SIDE) for given in (flock, blind)]
    one, other = (advanced(run, 3) for run in runs)
    assert torch.equal(one.weights, other.weights)
    assert one.tested().measures != other.tested().measures


# Through the engine


def test_a_stopped_run_is_continued(flock, backbone, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    given = BirdSet("birds", flock, lambda name: backbone)
    patient = dataclasses.replace(EXPERIMENTS["birds"].task, stuck=None)
    made = dataclasses.replace(cell(crops=2, size=2 * SIDE, steps=9, curve=3), task=patient)
    (whole,) = placed([made], [0], Path("results"), Path("runs"))
    engine.train([whole], given, CPU)
    monkeypatch.setattr(engine, "PATIENCE", 0.0)  # a step at a time
    stopped = whole._replace(record=Path("other/r.json"), checkpoint=Path("other/c"))
    looks = iter(range(1))  # after two steps of the three that take every image once
    outcome = engine.train([stopped], given, CPU, stop=lambda: next(looks, None) is None)
    assert outcome.left == [stopped]
    (record,) = engine.train([stopped], given, CPU).records
    one, other = (safetensors.load_file(job.weights) for job in (whole, stopped))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert records.read(whole.record).curve == record.curve


# ---- on a GPU ----

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_captured_steps_are_steps(flock, backbone, precision):
    """What runs in a graph is what runs step by step: exactly as far as sums are in the same order."""
    options = {"crops": 2, "size": 2 * SIDE, "device": "cuda", "precision": precision, "colour": 0.1}
    options |= {"blend": 0.5, "alone": 0.5, "together": 0.5}
    options["stages"] = 1  # one rate for all steps
    alone, captured, fresh = (started(flock.to("cuda"), backbone, **options) for _ in range(3))
    Lockstep([captured]).advance(5)
    alone.set_rate()
    for _ in range(5):
        alone.step()
    assert captured.step_number == 5
    assert alone.random.state() == captured.random.state()
    assert torch.equal(alone.order, captured.order)
    assert (alone.weights - captured.weights).abs().max() < (1e-4 if precision == "float32" else 1e-2)
    assert not torch.equal(captured.weights, fresh.weights)
    assert captured.tested().theta.shape == (16, 4)


@pytest.mark.gpu
@on_a_gpu
def test_every_replay_leaves_other_blocks_out(flock):
    """A captured step draws anew, as many numbers as one that is not, and the first leaves out the same."""
    features = Features(SCALES["efficientnet-lite0"])
    alone, captured = (
        started(flock.to("cuda"), features, device="cuda", batch=4, skipped=0.5, stages=1) for _ in range(2)
    )
    together = Lockstep([captured])
    together.advance(1)
    alone.set_rate()
    alone.step()
    assert captured.means(1)[0] == pytest.approx(alone.means(1)[0], rel=0.05)
    together.advance(2)
    for _ in range(2):
        alone.step()
    assert alone.random.state() == captured.random.state()


@pytest.mark.gpu
@on_a_gpu
def test_the_same_images_on_every_device(flock, backbone):
    here, there = (started(flock, backbone, device=device, colour=0.1) for device in ("cpu", "cuda"))
    for _ in range(4):
        one, other = (run.next_batch() for run in (here, there))
        assert torch.equal(one, other.cpu())
        seen, also = (run.views.drawn(run.train, chosen, run.random)
                      for run, chosen in ((here, one), (there, other)))  # fmt: skip
        torch.testing.assert_close(also.cpu(), seen, rtol=0, atol=0.05)
