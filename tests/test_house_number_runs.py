"""Runs on house numbers: what they train on, how they learn and go on, and what is tested."""

from __future__ import annotations

import dataclasses
import math
import pickle
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from data_files import write_numbers, write_splits
from small_runs import Waits, counted, never_stuck

pytest.importorskip("filelock")
safetensors = pytest.importorskip("safetensors.torch")
pytest.importorskip("PIL.Image")

import spatial_transformer as st  # noqa: E402
from spatial_transformer.cli import main  # noqa: E402
from spatial_transformer.experiments import (  # noqa: E402
    cluster,
    engine,
    house_number_runs,
    house_number_views,
    house_numbers,
    probes,
    records,
)
from spatial_transformer.experiments.catalogue import EXPERIMENTS  # noqa: E402
from spatial_transformer.experiments.data import svhn  # noqa: E402
from spatial_transformer.experiments.data.clutter import below  # noqa: E402
from spatial_transformer.experiments.data.random_numbers import RandomNumbers  # noqa: E402
from spatial_transformer.experiments.engine import Outcome  # noqa: E402
from spatial_transformer.experiments.house_number_runs import HouseNumberRun  # noqa: E402
from spatial_transformer.experiments.interrupts import Stopped  # noqa: E402
from spatial_transformer.experiments.jobs import placed  # noqa: E402
from spatial_transformer.experiments.lockstep import Lockstep  # noqa: E402
from spatial_transformer.experiments.paper.svhn import HouseNumberSettings  # noqa: E402

CPU = torch.device("cpu")
TINY = {
    "width": 0.03, "batch": 4, "steps": 6, "curve": 3, "localiser_start": 0, "dropout_rise": 0,
    "learning_rate": 0.01,
}  # fmt: skip
MOVED = {
    "rotation": 10.0,
    "scaling": 0.15,
    "shift": 0.08,
    "elastic": 0.02,
    "contrast": 0.2,
    "blend": 0.5,
    "erased": 0.3,
    "parts": 0.5,
    "swapped": 0.3,
}
CELLS = {cell.name: cell for cell in EXPERIMENTS["svhn"].cells}


@pytest.fixture(scope="module")
def folder(one_thread, tmp_path_factory):
    """A place with both splits."""
    return write_splits(tmp_path_factory.mktemp("svhn"), 24, 10)


@pytest.fixture(scope="module")
def numbers(folder):
    return svhn.load_set(folder)


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    never_stuck(monkeypatch, "svhn", "svhn-augmented")


def cell(name, **changes):
    (found,) = (each for each in EXPERIMENTS["svhn"].cells if each.name == name)
    return dataclasses.replace(found, settings=dataclasses.replace(found.settings, **TINY | changes))


def started(name, numbers, seed=0, device="cpu", **changes):
    run = HouseNumberRun(cell(name, **changes), seed, numbers, device)
    run.set_rate()
    return run


def unlike(run):
    """With transformers that are no identity, and another transform for each image."""
    with torch.no_grad():
        for transformer in run.network.transformers:
            weight = transformer.head.weight
            weight += torch.linspace(-0.05, 0.05, weight.numel()).view_as(weight)
            transformer.head.bias += torch.tensor([-0.3, 0.1, 0.05, -0.1, -0.2, 0.1])
    return run


def half_right(split, run):
    """The split with labels of which every other is what the network answers: of fresh networks all others
    are wrong, and so would be any number of mistakes in what is counted."""
    labels = split.labels.clone()
    with torch.no_grad():
        labels[::2] = run.network(house_numbers.normalised(split.tight[::2])).argmax(2)
    return split._replace(labels=labels)


def pixels_entering(run):
    """What the network is given in one step."""
    given = []
    hook = run.network.register_forward_pre_hook(lambda module, arguments: given.append(arguments[0]))
    run.step()
    hook.remove()
    return given[0]


# What is trained on


@pytest.mark.parametrize("size", [64, 128])
def test_a_step_sees_the_crops_that_were_drawn(size, numbers):
    run = started(f"{size}px/CNN", numbers)
    images = pixels_entering(run)
    chosen = (RandomNumbers(0).uniform(4) * 24).long()
    wanted = {64: numbers.train.tight, 128: numbers.train.loose}[size][chosen]
    assert torch.equal(images, house_numbers.normalised(wanted))
    other = started(f"{size}px/CNN", numbers)
    random = RandomNumbers(0)
    random.uniform(4)
    scores = other.network(images, random)
    labels = numbers.train.labels[chosen]
    loss, error = run.means(1)
    assert loss == pytest.approx(house_numbers.losses(scores, labels).mean().item(), rel=1e-5)
    assert error == 100 * house_numbers.wrong(scores, labels).float().mean().item()


@pytest.mark.parametrize("size", [64, 128])
def test_images_that_hardly_move_are_the_crops(size, numbers):
    settings = HouseNumberSettings(rotation=1e-6)
    found = house_number_views.augmented(numbers.train.loose[:5], size, settings, RandomNumbers(0))
    wanted = house_numbers.normalised(numbers.train.of(size)[:5])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    # A run gives what moves the crops that have something beyond.
    chosen = (RandomNumbers(0).uniform(4) * 24).long()
    wanted = house_numbers.normalised(numbers.train.of(size)[chosen])
    images = pixels_entering(started(f"{size}px/CNN", numbers, rotation=1e-6))
    torch.testing.assert_close(images, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [MOVED, {"parts": 0.5, "rotation": 5.0}, {"inversion": 0.5, "tint": 0.1}, {"swapped": 0.5}],
)
def test_nothing_in_a_step_waits_for_the_device(changes, numbers):
    """So that it can be captured in a CUDA graph."""
    run = started("64px/ST-CNN Multi", numbers, **changes)
    run.step()
    with Waits() as waits:
        run.step()
    assert waits.found == []


def test_numbers_are_blended_as_their_labels_are(numbers):
    """Mixup: against soft labels of each place, and images put together by hand."""
    run, other = (started("64px/CNN", numbers, blend=0.4, dropout=0.0) for _ in range(2))
    chosen = below(24, other.random.uniform(4))
    images, labels = house_numbers.normalised(numbers.train.tight[chosen]), numbers.train.labels[chosen]
    assert len(chosen.unique()) > 1
    share = 0.4 * other.random.uniform(4)
    before = [3, 0, 1, 2]
    mixed = (1 - share)[:, None, None, None] * images + share[:, None, None, None] * images[before]
    hard = F.one_hot(labels, 11).float()
    soft = (1 - share)[:, None, None] * hard + share[:, None, None] * hard[before]
    loss = -(other.network(mixed, other.random).log_softmax(2) * soft).sum(2).mean()
    run.set_rate()
    run.step()
    assert float(run.sums[0]) == pytest.approx(loss.item(), rel=1e-4)
    gradients = torch.autograd.grad(loss, other.parameters)
    velocity = torch.cat([gradient.flatten() for gradient in gradients]) + 0.0005 * other.weights
    torch.testing.assert_close(run.velocity, velocity, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["64px/CNN", "128px/ST-CNN Multi"])
def test_a_step_learns_some_digits_of_numbers(name, numbers):
    """Of the looser crops, with the labels of what is left: for this batch not all of every number."""
    changes = {"batch": 12, "parts": 1.0, "dropout": 0.0, "held_out": 9}
    run, other = (started(name, numbers, **changes) for _ in range(2))
    chosen = svhn.validation_split(24, 9)[0][below(15, other.random.uniform(12))]
    train = numbers.train
    shown = house_number_views.some_digits(
        train.loose[chosen], train.labels[chosen], train.boxes[chosen], 1.0, other.random
    )
    assert (shown.labels != train.labels[chosen]).any()
    size = other.cell.data.size
    images = house_number_views.moved(shown.pixels, size, other.settings, other.random, shown.window)
    scores = other.network(house_numbers.normalised(images))
    loss = house_numbers.losses(scores, shown.labels).mean()
    run.step()
    assert float(run.sums[0]) == pytest.approx(loss.item(), rel=1e-5)
    assert float(run.sums[1]) == pytest.approx(house_numbers.wrong(scores, shown.labels).float().mean())
    assert (run.test_images.shape[-1], run.images.shape[-1]) == (size, 128)


@pytest.mark.parametrize("name", ["64px/CNN", "128px/ST-CNN Multi"])
@pytest.mark.parametrize("changes", [{}, {"parts": 1.0, "shift": 0.1}])
def test_a_step_learns_digits_of_other_numbers(name, changes, numbers):
    """In the looser crops, before anything else is done to them, with the labels of what is there then."""
    changes = {"batch": 12, "swapped": 0.5, "dropout": 0.0, "held_out": 9, **changes}
    run, other = (started(name, numbers, **changes) for _ in range(2))
    chosen = svhn.validation_split(24, 9)[0][below(15, other.random.uniform(12))]
    pixels, labels, boxes = (part[chosen] for part in (other.images, other.labels, other.boxes))
    assert pixels.shape[-1] == 128
    found, read = house_number_views.swapped_digits(pixels, labels, boxes, 0.5, other.random)
    assert (read != labels).any()
    window, size = None, other.cell.data.size
    if other.settings.parts:
        found, read, window = house_number_views.some_digits(found, read, boxes, 1.0, other.random)
        found = house_number_views.moved(found, size, other.settings, other.random, window)
    scores = other.network(house_numbers.normalised(svhn.middle(found, size)))
    loss = house_numbers.losses(scores, read).mean()
    run.step()
    assert float(run.sums[0]) == pytest.approx(loss.item(), rel=1e-5)
    assert float(run.sums[1]) == pytest.approx(house_numbers.wrong(scores, read).float().mean())


@pytest.mark.parametrize("views", [1, 2])
def test_what_is_moved_is_read_off_the_looser_crops(views, numbers):
    """So that at 64 px there is something beyond the borders."""
    plain, moved = started("64px/CNN", numbers), started("64px/CNN", numbers, shift=0.1, views=views)
    assert (plain.images.shape[-1], plain.test_images.shape[-1]) == (64, 64)
    assert (moved.images.shape[-1], moved.test_images.shape[-1]) == (128, 128 if views > 1 else 64)
    # They are on the disk, and not in memory as a whole.
    on_disk = numbers.train.loose.untyped_storage().data_ptr()
    assert plain.images.untyped_storage().data_ptr() == moved.images.untyped_storage().data_ptr() == on_disk


def test_numbers_held_out_are_tested_on_and_never_trained_on(numbers):
    run = started("64px/CNN", numbers, held_out=6, batch=200)
    kept, held = svhn.validation_split(24, 6)
    assert run.trained_on == "SVHN, 6 held out"
    seen = pixels_entering(run)
    crops = house_numbers.normalised(numbers.train.tight)
    drawn = {next(n for n in range(24) if torch.equal(crops[n], image)) for image in seen}
    assert drawn == set(kept.tolist())
    known = half_right(numbers.train, run)
    run = started("64px/CNN", numbers._replace(train=known), held_out=6)
    assert 0 < held.remainder(2).sum() < 6
    assert run.tested().error == pytest.approx(100 * held.remainder(2).double().mean().item())
    with pytest.raises(ValueError, match="held_out must be less than the 24 training images, got 24"):
        started("64px/CNN", numbers, held_out=24)


def test_extra_numbers_are_trained_on_where_they_are_asked_for(numbers, folder, tmp_path):
    """And those held out are still of the others."""
    write_numbers(tmp_path / "extra", 5, seed=2)
    extra = svhn.load("extra", tmp_path)
    given = numbers._replace(extra=lambda: extra)
    run = started("64px/CNN", given, held_out=6, extra=1, batch=200)
    seen = pixels_entering(run)
    crops = house_numbers.normalised(torch.cat([numbers.train.tight, extra.tight]))
    drawn = {next(n for n in range(29) if torch.equal(crops[n], image)) for image in seen}
    kept, held = svhn.validation_split(24, 6)
    assert drawn == {*kept.tolist(), *range(24, 29)}
    assert torch.equal(run.labels[24:], extra.labels)
    assert torch.equal(run.boxes, torch.cat([numbers.train.boxes, extra.boxes]))
    assert torch.equal(run.test_labels[run.test_numbers], numbers.train.labels[held])
    with pytest.raises(FileNotFoundError, match="SVHN's extra is not here"):
        started("64px/CNN", numbers, extra=1)


# How it learns


@pytest.mark.parametrize("name", ["64px/CNN", "64px/ST-CNN Multi"])
def test_a_step_is_that_of_sgd(name, numbers):
    """Against torch's own optimiser: weights decay, but for those that transformers start at, and localisers
    learn at a tenth of the rate."""
    run, other = (unlike(started(name, numbers)) for _ in range(2))
    named = dict(other.network.named_parameters())
    starts = [p for key, p in named.items() if key.endswith("head.bias")]
    slow = [p for key, p in named.items() if key.startswith("transformers.") and "head.bias" not in key]
    fast = [p for key, p in named.items() if not key.startswith("transformers.")]
    assert len(starts) == (4 if "Multi" in name else 0)
    groups = [{"params": fast}]
    if starts:
        groups += [{"params": slow, "lr": 0.001}, {"params": starts, "lr": 0.001, "weight_decay": 0.0}]
    optimiser = torch.optim.SGD(groups, lr=0.01, momentum=0.9, weight_decay=0.0005)
    for _ in range(3):
        run.step()
        chosen = (other.random.uniform(4) * 24).long()
        images = house_numbers.normalised(numbers.train.tight[chosen])
        optimiser.zero_grad()
        scores = other.network(images, other.random)
        house_numbers.losses(scores, numbers.train.labels[chosen]).mean().backward()
        optimiser.step()
    before = unlike(started(name, numbers)).weights
    moved = (run.weights - before).abs()
    torch.testing.assert_close(run.weights, other.weights, rtol=1e-5, atol=1e-7)
    assert moved.max() > 1e-3


@pytest.mark.parametrize("name", ["64px/ST-CNN Single", "64px/ST-CNN Multi"])
def test_what_transformers_look_at_does_not_decay(name, numbers):
    """Where no gradient comes they stay at the identity, however long and strongly weights decay."""
    run = started(name, numbers, weight_decay=0.5, localiser_rate=1.0, steps=60, learning_rate=0.05)
    run.set_rate()
    for _ in range(50):
        run.move([torch.zeros_like(each) for each in run.parameters])
    assert float(run.network.places.weight.detach().abs().max()) < 0.1
    identity = torch.tensor([1.0, 0, 0, 0, 1, 0])
    for each in run.network.transformers:
        assert torch.equal(each.head.bias.detach(), identity)


def test_localisers_begin_to_learn_later(numbers, monkeypatch):
    monkeypatch.setattr(engine.probes, "moments", lambda steps: [0, steps])
    made = cell("64px/ST-CNN Multi", localiser_start=5, localiser_rate=1.0, steps=9, curve=1)
    assert engine.stops(made.settings) == [0, 3, 5, 6, 9]  # rates are set anew at each of these
    run = HouseNumberRun(made, 0, numbers, "cpu")
    heads = [each.head for each in run.network.transformers]
    before = run.network.places.weight.clone()
    together = Lockstep([run])
    for steps, learn in ((5, False), (1, True)):
        together.advance(steps)
        assert [bool(head.weight.any()) for head in heads] == [learn] * 4
        assert not torch.equal(run.network.places.weight, before)


def test_dropout_comes_in(numbers):
    """In sixteen parts, each from a step on at which rates are set anew."""
    made = cell("64px/CNN", dropout_rise=32, steps=60)
    assert {2, 4, 16, 30, 32} <= set(engine.stops(made.settings))
    run = HouseNumberRun(made, 0, numbers, "cpu")
    shares = []
    for step in (0, 1, 2, 17, 31, 32, 59):
        run.step_number = step
        run.set_rate()
        shares.append(float(run.network.dropout))
    assert shares == [0, 0, 1 / 32, 8 / 32, 15 / 32, 0.5, 0.5]
    at_once = started("64px/CNN", numbers)
    at_once.set_rate()
    assert at_once.network.dropout == 0.5
    less = started("64px/CNN", numbers, dropout=0.25)
    assert less.network.dropout == 0.25
    # Weights start for what they meet at first.
    one, other, third = (each.network.layers[5][0].weight.std().item() for each in (run, at_once, less))
    assert one / other == pytest.approx(math.sqrt(2), rel=1e-4)
    assert one / third == pytest.approx(math.sqrt(4 / 3), rel=1e-4)


@pytest.mark.parametrize("experiment", ["svhn", "svhn-augmented"])
def test_what_is_set_anew_changes_where_a_run_is_stopped_for_it(experiment):
    """Nowhere else, where nobody would notice; by the settings of the tables too, whose parts are no whole
    numbers of steps."""
    settings = EXPERIMENTS[experiment].settings
    for made in (settings, dataclasses.replace(settings, schedule="cosine", stages=300, steps=3100)):
        stops = {0, *engine.stops(made)}
        before = None
        for step in range(made.steps):
            now = made.rate(step), made.dropped(step), step >= made.localiser_start
            assert now == before or step in stops, step
            before = now


def test_a_run_whose_dropout_comes_in_goes_on_bit_for_bit(numbers):
    whole, stopped, other = (started("64px/ST-CNN Single", numbers, dropout_rise=16) for _ in range(3))
    for run, steps in ((whole, 4), (stopped, 2)):
        for _ in range(steps):
            Lockstep([run]).advance(1)
    other.load(stopped.state())
    for _ in range(2):
        Lockstep([other]).advance(1)
    assert float(other.network.dropout) == float(whole.network.dropout) > 0
    assert torch.equal(other.weights, whole.weights)


def test_a_run_learns(numbers):
    run = started("64px/ST-CNN Single", numbers, width=0.05, batch=8)
    losses = []
    for _ in range(3):
        for _ in range(10):
            run.step()
        losses.append(run.means(10)[0])
    assert losses[0] > 1.5  # eleven classes at random: 2.4
    assert losses[2] < 0.75 * losses[0]


@pytest.mark.parametrize(
    ("name", "changes"),
    [("64px/CNN", {}), ("64px/ST-CNN Multi", MOVED), ("128px/ST-CNN Single", {"held_out": 5})],
)
def test_a_run_goes_on_bit_for_bit(name, changes, numbers):
    whole, stopped, other = (started(name, numbers, **changes) for _ in range(3))
    for _ in range(4):
        whole.step()
    for _ in range(2):
        stopped.step()
    stopped.step_number = 2
    other.load(stopped.state())
    for _ in range(2):
        other.step()
    assert other.step_number == 2
    for one, another in (
        (other.weights, whole.weights),
        (other.velocity, whole.velocity),
        (other.sums, whole.sums),
    ):
        assert torch.equal(one, another)
    assert not torch.equal(whole.weights, stopped.weights)


def test_two_runs_take_their_steps_together(numbers):
    names = ["64px/CNN", "64px/ST-CNN Single"]
    alone, together = ([started(name, numbers, seed) for seed, name in enumerate(names)] for _ in range(2))
    Lockstep(together).advance(3)
    for one, other in zip(alone, together, strict=True):
        for _ in range(3):
            one.step()
        assert other.step_number == 3
        assert torch.equal(one.weights, other.weights)


# What it comes to


def test_a_test_can_be_stopped(numbers, monkeypatch):
    """Before each part of the ten images."""
    monkeypatch.setattr(house_number_runs, "AT_ONCE", 4)
    run = started("64px/CNN", numbers)
    for looks in (1, 3):
        with pytest.raises(Stopped):
            run.tested(counted(looks))
    assert run.tested(counted(4)).error == run.tested().error


@pytest.mark.parametrize("name", ["64px/CNN", "128px/ST-CNN Multi"])
def test_test_images_are_judged_by_several_views(name, numbers, monkeypatch):
    """As they are, and moved as in training, out of the looser crops; always in the same way."""
    monkeypatch.setattr(house_number_runs, "AT_ONCE", 4)
    run = unlike(started(name, numbers, views=3, rotation=20.0, shift=0.2))
    with torch.no_grad():
        run.network.places.weight *= 50  # or all chances would be alike
    random, size, expected = RandomNumbers(house_number_runs.VIEWED), run.cell.data.size, []
    for start in range(0, 10, 4):
        loose = numbers.test.loose[start : start + 4]
        views = [numbers.test.of(size)[start : start + 4].float()]
        for _ in range(2):
            theta = house_number_views.moves(len(loose), run.settings, random, of_the_whole=size / 128)
            views.append(
                st.warp(
                    loose.float(), theta, st.Affine(), size=(size, size), padding="border", impl="reference"
                )
            )
        with torch.no_grad():
            chances = [run.network(house_numbers.normalised(view)).softmax(2) for view in views]
        expected.append(sum(chances) / 3)
        assert (chances[0] - chances[1]).abs().max() > 1e-2
    random = RandomNumbers(house_number_runs.VIEWED)
    with torch.no_grad():
        found = [
            house_number_runs.judged(run.network, run.cell, numbers.test.loose[start : start + 4], random)[0]
            for start in range(0, 10, 4)
        ]
    torch.testing.assert_close(torch.cat(found), torch.cat(expected), rtol=1e-4, atol=1e-5)
    tested = run.tested()
    assert torch.equal(tested.predictions, torch.cat(found).argmax(2))
    assert torch.equal(run.tested().predictions, tested.predictions)
    assert run.first_images(2).shape == (2, 3, size, size)
    torch.testing.assert_close(run.first_images(2), house_numbers.normalised(numbers.test.of(size)[:2]))
    with torch.no_grad():
        theta = run.network.theta(house_numbers.normalised(numbers.test.of(size)))
    torch.testing.assert_close(tested.theta, theta, rtol=1e-4, atol=1e-5)  # of images as they are


@pytest.mark.parametrize("name", ["64px/CNN", "64px/ST-CNN Multi"])
def test_the_error_is_that_of_the_test_images(name, numbers, monkeypatch):
    monkeypatch.setattr(house_number_runs, "AT_ONCE", 4)  # the last part is smaller
    known = numbers._replace(test=half_right(numbers.test, unlike(started(name, numbers))))
    run = unlike(started(name, known))
    images = house_numbers.normalised(numbers.test.tight)
    with torch.no_grad():
        scores = run.network(images)
        theta = run.network.theta(images)
    tested = run.tested()
    assert torch.equal(tested.predictions, scores.argmax(2))
    assert tested.error == 50
    torch.testing.assert_close(tested.theta, theta)
    torch.testing.assert_close(run.theta(run.first_images(3)), theta[:3])
    assert run.first_images(99).shape == (10, 3, 64, 64)
    if name == "64px/CNN":
        assert tested.measures == {}
    else:
        corners = st.Affine().box(house_numbers.multiplied_out(theta).flatten(1))
        across, down = corners[:, 1] - corners[:, 0], corners[:, 3] - corners[:, 0]
        areas = (across[:, 0] * down[:, 1] - across[:, 1] * down[:, 0]).abs() / 4
        assert tested.measures["looked at"] == pytest.approx(100 * areas.median().item(), rel=1e-4)
        assert set(tested.measures) == set(EXPERIMENTS["svhn"].measures)


def test_how_far_transformers_follow_the_image():
    """The first moves what the second makes half as wide and high: to one place or another."""
    theta = torch.tensor([[1, 0, x, 0, 1, 0, 0.5, 0, 0, 0, 0.5, 0] for x in (0.1, 0.3)])
    found = house_number_runs.measures(theta)
    assert found["looked at"] == pytest.approx(25)
    assert found["follows"] == pytest.approx(5)  # 0.1 either way
    assert house_number_runs.measures(theta[:1].repeat(3, 1))["follows"] == 0
    mirrored = torch.tensor([[-0.5, 0, 0, 0, 0.5, 0]])
    assert house_number_runs.measures(mirrored)["looked at"] == pytest.approx(25)
    first = torch.tensor([[1.0, 0, 0, 0, 1, 0]]).repeat(probes.SHOWN, 1)
    assert house_number_runs.measures(torch.cat([first, first[:5] / 2]))["follows"] == 0
    assert house_number_runs.measures(torch.zeros(2, 0)) == {}


def test_views_are_those_of_all_seeds(numbers):
    """So that test errors of seeds can be compared."""
    changes = {"views": 3, "rotation": 20.0, "shift": 0.2}
    first, second = (unlike(started("64px/CNN", numbers, seed, **changes)) for seed in (0, 1))
    second.network.load_state_dict(first.network.state_dict())
    seen = []
    for run in (first, second):
        hook = run.network.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
        run.tested()
        hook.remove()
    assert len(seen) == 6
    assert all(torch.equal(*pair) for pair in zip(seen[:3], seen[3:], strict=True))


def test_images_that_are_watched_are_held_out(numbers):
    run = started("64px/CNN", numbers, held_out=6)
    held = svhn.validation_split(24, 6)[1]
    assert torch.equal(run.first_images(4), house_numbers.normalised(numbers.train.tight[held[:4]]))


def test_shares_are_those_of_the_settings(numbers, monkeypatch):
    given = []

    def noted(name, plain):
        monkeypatch.setattr(house_number_runs, name, lambda *those: given.append(those[3]) or plain(*those))

    noted("swapped_digits", house_number_views.swapped_digits)
    noted("some_digits", house_number_views.some_digits)
    started("64px/CNN", numbers, swapped=0.3, parts=0.2).step()
    assert given == [0.3, 0.2]


def test_a_stopped_run_is_continued(numbers, monkeypatch):
    monkeypatch.setattr(engine, "PATIENCE", 0.0)  # a step at a time
    (whole,) = placed([cell("64px/ST-CNN Multi")], [0], Path("results"), Path("runs"))
    engine.train([whole], numbers, CPU)
    stopped = whole._replace(record=Path("other/r.json"), checkpoint=Path("other/c"))
    looks = iter(range(2))
    outcome = engine.train([stopped], numbers, CPU, stop=lambda: next(looks, None) is None)
    assert outcome.left == [stopped]
    assert not stopped.record.exists()
    (record,) = engine.train([stopped], numbers, CPU).records
    one, other = (safetensors.load_file(job.weights) for job in (whole, stopped))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert records.read(whole.record).curve == record.curve


def test_chance_is_that_of_numbers(numbers):
    learns_nothing = cell("64px/CNN", learning_rate=1e-9).settings
    made = dataclasses.replace(CELLS["64px/CNN"], settings=learns_nothing)  # with its own notion of it
    (job,) = placed([made], [0], Path("results"), Path("runs"))
    (record,) = engine.train([job], numbers, CPU).records
    assert record.error > made.task.stuck == 95
    assert record.reason == f"stuck at chance: {record.error:.1f} % of the answers are wrong"


def test_what_goes_to_other_machines(folder, numbers, tmp_path, monkeypatch):
    """Not the images: where they are, whatever folder a process is started in."""
    given = []
    monkeypatch.setattr(
        cluster, "train", lambda jobs, data, *_, **__: given.append(data) or Outcome([], [], [], [])
    )
    monkeypatch.chdir(folder.parent)
    assert main(["train", "svhn", "--data-dir", folder.name, "--ray"]) == 0
    packed = pickle.dumps(given[0])
    assert len(packed) < 10_000 < numbers.train.loose.numel()
    monkeypatch.chdir(tmp_path)
    found = pickle.loads(packed)()
    assert torch.equal(found.train.loose, numbers.train.loose)
    assert torch.equal(found.test.labels, numbers.test.labels)


# On a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("precision", ["mixed", "float32"])
def test_captured_steps_are_steps(precision, numbers):
    names = [f"{size}px/{model}" for size in (64, 128) for model in house_numbers.MODELS]
    given = {"precision": precision, "width": 0.25, "batch": 16, **MOVED}
    alone, together = ([started(name, numbers, 1, "cuda", **given) for name in names] for _ in range(2))
    Lockstep(together).advance(3)
    for one, other in zip(alone, together, strict=True):
        for _ in range(3):
            one.step()
        assert one.random.state() == other.random.state()
        away = (one.weights - other.weights).abs().max()
        assert away < (2e-3 if precision == "mixed" else 1e-4)
        first = started(one.cell.name, numbers, 1, "cuda", **given)
        assert (one.weights - first.weights).abs().max() > 5 * away


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_dropout_that_comes_in_is_captured(numbers):
    given = {"dropout_rise": 2, "width": 0.25, "batch": 16, "precision": "float32"}
    alone, together = (started("64px/CNN", numbers, 1, "cuda", **given) for _ in range(2))
    for run in (alone, together):
        run.step_number = 1
        run.set_rate()
        assert float(run.network.dropout) == 0.25
    Lockstep([together]).advance(3)
    for _ in range(3):
        alone.step()
    assert alone.random.state() == together.random.state()
    assert (alone.weights - together.weights).abs().max() < 1e-4
