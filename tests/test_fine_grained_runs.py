"""Runs of the birds experiment: what they train on, that they learn, and go on where they were stopped."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from data_files import write_flock
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from spatial_transformer.experiments import checkpoints, measures_of_birds
from spatial_transformer.experiments.checkpoints import Checkpoint
from spatial_transformer.experiments.data import birds, places
from spatial_transformer.experiments.efficientnet_lite import SCALES, Features
from spatial_transformer.experiments.fine_grained import FAMILIES
from spatial_transformer.experiments.fine_grained_runs import FineGrainedRun, Settings
from spatial_transformer.experiments.lockstep import Lockstep
from spatial_transformer.experiments.paper.birds import EXPERIMENT

pytest.importorskip("filelock")
pytest.importorskip("safetensors")
pytestmark = pytest.mark.usefixtures("one_thread")

SIDE = 32


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
    folder = tmp_path_factory.mktemp("flock")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(places.VARIABLE, raising=False)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        write_flock(folder, species=4, each=10, trained=6)
        return birds.load(folder, say=lambda line: None)


@pytest.fixture(scope="module")
def backbone():
    torch.manual_seed(1)
    return Small()


def started(flock, backbone, seed=0, crops=0, size=SIDE, device="cpu", **changes):
    settings = Settings(**{"steps": 40, "batch": 8, "warm_up": 0.0, "localiser_rate": 0.1, **changes})
    return FineGrainedRun(settings, seed, flock, backbone, device, crops=crops, size=size, side=SIDE)


def advanced(run, steps):
    Lockstep([run]).advance(steps)
    return run


@pytest.mark.parametrize(
    ("crops", "changes"),
    [
        (0, {"norms": "frozen", "precision": "float32"}),
        (2, {"colour": 0.2, "size": 2 * SIDE}),
        (4, {"family": "affine", "size": 2 * SIDE}),
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
    changes = {"decay": 0.01, "localiser_rate": 0.01, "classifier_rate": 3.0, "steps": 6}
    run, other = (started(flock, backbone, crops=2, **changes) for _ in range(2))
    network, settings = other.network, other.settings
    rates = [
        (network.transformer, settings.localiser_rate),
        (network.streams, 1.0),
        (network.classifier, settings.classifier_rate),
    ]
    groups = [{"params": list(part.parameters()), "pace": pace, "lr": 0.1} for part, pace in rates]
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


def test_every_image_is_seen_before_any_is_seen_again(flock, backbone):
    run = started(flock, backbone, batch=7)
    rounds = [[run.next_batch() for _ in range(3)] for _ in range(3)]  # 21 of the 24, then anew
    for batches in rounds:
        assert len(torch.cat(batches).unique()) == 21
        assert torch.cat(batches).max() < 24
    assert not torch.equal(torch.cat(rounds[0]), torch.cat(rounds[1]))
    with pytest.raises(ValueError, match="batch must be at most the 24 training images, got 25"):
        started(flock, backbone, batch=25)


def test_a_run_trains_on_training_images_alone(flock, backbone):
    run = started(flock, backbone)
    assert torch.equal(run.train.labels, flock.labels[flock.train])
    assert torch.equal(run.test.labels, flock.labels[~flock.train])
    held = started(flock, backbone, held_out=1 / 3)
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


def test_an_image_and_its_mirror_image_can_be_judged_together(flock, backbone):
    one, both = (advanced(started(flock, backbone, views=views, crops=2), 2) for views in (1, 2))
    one.network.eval()
    images, mirrored = (one.views.middle(one.test, torch.arange(16), mirrored=way) for way in (False, True))
    with torch.no_grad():
        scores = one.network(images).softmax(1) + one.network(mirrored).softmax(1)
    assert torch.equal(both.tested().predictions, scores.argmax(1))
    assert not torch.equal(both.tested().predictions, one.tested().predictions)


def test_norms_are_kept_up_or_frozen(flock, backbone):
    for norms in ("updated", "frozen"):
        run = advanced(started(flock, backbone, crops=2, norms=norms), 2)
        kept = {name: value.clone() for name, value in run.network.named_buffers()}
        given = dict(backbone.named_buffers())
        moved = {not torch.equal(value, given[within(name)]) for name, value in kept.items()}
        assert moved == {norms == "updated"}
        run.tested()
        assert all(torch.equal(value, kept[name]) for name, value in run.network.named_buffers())
        assert {norm.training for norm in run.norms()} == {norms == "updated"}


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
    expected = measures_of_birds.of(FAMILIES["window"], theta, torch.tensor([[-0.5, 0], [0.5, 0]]), boxes)
    assert tested.measures == expected
    assert tested.measures["windows apart"] == pytest.approx(0.2236, abs=1e-4)
    assert tested.measures["windows apart, at the start"] == pytest.approx(0.5)
    assert started(flock, backbone).tested().measures == {}


@pytest.mark.parametrize("layout", ["channels last", "contiguous"])
def test_backbones_get_the_layout_that_is_asked_for(flock, backbone, layout):
    run = started(flock, backbone, crops=2, size=2 * SIDE, layout=layout)
    seen = []
    for module in run.network.modules():
        if isinstance(module, Small):
            module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    advanced(run, 1)
    assert len(seen) == 3
    last = [image.is_contiguous(memory_format=torch.channels_last) for image in seen]
    assert last == [layout == "channels last"] * 3


class Waits(TorchDispatchMode):
    """Notes what would wait for a device: values or shapes that the host has to know, or is to tell."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = str(function)
        if any(
            part in name for part in ("_local_scalar", "nonzero", "masked_select", "lift_fresh", "unique")
        ):
            self.found.append(name)
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("crops", [0, 2])
def test_nothing_in_a_step_waits_for_the_device(flock, backbone, crops):
    """So that it can be captured in a CUDA graph."""
    run = advanced(started(flock, backbone, crops=crops, size=2 * SIDE if crops else SIDE, colour=0.1), 1)
    with Waits() as waits:
        run.step()
    assert waits.found == []
    with Waits() as waits:
        float(run.sums[0])
    assert waits.found  # it can be noted


def test_the_rate_goes_down():
    cosine = Settings(steps=100, warm_up=0.1)
    assert cosine.rate(0) == pytest.approx(0.001)
    assert cosine.rate(9) == pytest.approx(0.01, rel=0.03)
    assert cosine.rate(50) == pytest.approx(0.005)
    assert 0 < cosine.rate(99) < 1e-5
    stages = Settings(steps=30_000, schedule="stages", warm_up=0.0, learning_rate=0.1)
    rates = [stages.rate(step) for step in (0, 9_999, 10_000, 20_000, 25_000, 29_999)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.001, 0.0001, 0.0001])


def test_each_step_has_its_own_rate(flock, backbone):
    """However many are taken at once, and after a stop."""
    run = started(flock, backbone, steps=10, momentum=0.0, decay=0.0)
    for chunk in (1, 4, 5):
        advanced(run, chunk)
    other = started(flock, backbone, steps=10, momentum=0.0, decay=0.0)
    for _ in range(10):
        before = other.weights.clone()
        rate = other.settings.rate(other.step_number)
        advanced(other, 1)
        part = other.paces[1][0]
        moved = (before - other.weights)[part] - rate * other.velocity[part]
        assert moved.abs().max() < 1e-6
    assert torch.equal(run.weights, other.weights)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be a number more than 0, got 0.0"),
        ({"localiser_rate": -1.0}, "localiser_rate must be a number of at least 0, got -1.0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"following": 0.0}, "following must be more than 0 and at most 1, got 0.0"),
        ({"norms": "none"}, "norms must be one of updated, frozen, got 'none'"),
        ({"backbone": "resnet"}, "backbone must be one of efficientnet-lite0, efficientnet-lite2, got"),
        ({"family": "spline"}, "family must be one of window, attention, affine, got 'spline'"),
        ({"views": 3}, "views must be one of 1, 2, got 3"),
        ({"least": 2.0}, "least must be more than 0 and at most 1, got 2.0"),
    ],
)
def test_settings_that_cannot_be(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Settings(), **changed)


def test_what_is_given_is_left_alone(flock, backbone):
    before = copy.deepcopy(backbone.state_dict())
    advanced(started(flock, backbone, crops=2), 2)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_the_defaults_are_those_of_the_table():
    declared, own = EXPERIMENT.settings, Settings()
    for name in ("steps", "batch", "learning_rate", "momentum", "curve", "precision"):
        assert getattr(own, name) == getattr(declared, name), name


# ---- on a GPU ----

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_captured_steps_are_steps(flock, backbone, precision):
    """What runs in a graph is what runs step by step: exactly as far as sums are in the same order."""
    options = {"crops": 2, "size": 2 * SIDE, "device": "cuda", "precision": precision, "colour": 0.1}
    alone, captured, fresh = (started(flock.to("cuda"), backbone, **options) for _ in range(3))
    advanced(captured, 5)
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
def test_the_same_images_on_every_device(flock, backbone):
    here, there = (started(flock, backbone, device=device, colour=0.1) for device in ("cpu", "cuda"))
    for _ in range(4):
        one, other = (run.next_batch() for run in (here, there))
        assert torch.equal(one, other.cpu())
        seen, also = (run.views.drawn(run.train, chosen, run.random)
                      for run, chosen in ((here, one), (there, other)))  # fmt: skip
        torch.testing.assert_close(also.cpu(), seen, rtol=0, atol=0.05)
