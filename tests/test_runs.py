"""Runs: they learn, and go on from where they were stopped."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch

from spatial_transformer import SpatialTransformer
from spatial_transformer.experiments import checkpoints, measures
from spatial_transformer.experiments.checkpoints import Checkpoint, CheckpointError
from spatial_transformer.experiments.data import fixed_sets
from spatial_transformer.experiments.data.fixed_sets import fixed_set
from spatial_transformer.experiments.lockstep import Lockstep
from spatial_transformer.experiments.paper import addition, cluttered_mnist, distorted_mnist, volumes
from spatial_transformer.experiments.runs import Run, held_out

CELLS = {
    cell.name: cell
    for table in (distorted_mnist, cluttered_mnist, addition, volumes)
    for cell in table.EXPERIMENT.cells
}


def small(name, **changes):
    """A cell with a small network and small batches."""
    cell = CELLS[name]
    given = {"parameters": 150_000, "batch": 32, "steps": 60, **changes}
    return dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, **given))


def started(name, digits, seed=0, rate=0.01, **changes):
    run = Run(small(name, **changes), seed, digits, "cpu")
    run.rate.fill_(rate)
    return run


def first_of(digits, count):
    """With so many test digits."""
    test = digits.test
    return digits._replace(test=test._replace(images=test.images[:count], labels=test.labels[:count]))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("R/FCN", {}),
        ("RTS/ST-CNN affine", {}),
        ("E/ST-FCN spline", {}),
        ("P/CNN", {}),
        ("TC/ST-FCN", {}),
        ("addition/2xST-FCN spline", {"parameters": 300_000}),
        ("3D/ST-CNN", {"batch": 2, "parameters": 120_000}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_run_goes_on_bit_for_bit(name, changes, digits, tmp_path):
    whole, stopped = started(name, digits, **changes), started(name, digits, **changes)
    for _ in range(4):
        whole.step()
    for _ in range(2):
        stopped.step()
    stopped.step_number = 2
    path = tmp_path / "run.safetensors"
    checkpoints.save(Checkpoint(stopped.state(), 1.5, [], [], ["abc"], {"steps": 60}), path)
    kept = checkpoints.load(path)
    assert (kept.seconds, kept.curve, kept.identity) == (1.5, [], {"steps": 60})
    other = started(name, digits, **changes)
    other.load(kept.state)
    assert other.step_number == 2
    for _ in range(2):
        other.step()
    assert torch.equal(other.weights, whole.weights)
    assert torch.equal(other.sums, whole.sums)
    assert torch.equal(other.velocity, whole.velocity)


def test_runs_that_see_the_same_share_their_batches(digits):
    """And are, to the bit, what they are alone; those that stand elsewhere or see other things are alone."""
    names = ["R/FCN", "R/ST-FCN affine", "RTS/FCN", "R/ST-FCN affine", "R/FCN"]
    seeds = [0, 0, 0, 1, 0]

    def some():
        runs = [Run(small(name), seed, digits, "cpu") for name, seed in zip(names, seeds, strict=True)]
        runs[4].step()  # it is a step ahead
        return runs

    alone, side_by_side = some(), some()
    drawn = []
    for run in side_by_side:
        run.batch = lambda run=run, batch=run.batch: drawn.append(run) or batch()
    together = Lockstep(side_by_side)
    assert [len(group) for group in together.groups] == [2, 1, 1, 1]
    together.advance(3)
    assert [drawn.count(run) for run in side_by_side] == [3, 0, 3, 3, 3]
    for one, other in zip(alone, side_by_side, strict=True):
        one.set_rate()
        for _ in range(3):
            one.step()
        assert torch.equal(one.weights, other.weights)
        assert torch.equal(one.sums, other.sums)
        assert one.random.state() == other.random.state()


def test_with_one_thread_of_torchs_each_run_has_its_own(digits):
    """With more they take turns: all would wait for threads of all."""
    runs = [started(name, digits) for name in ("R/FCN", "R/ST-FCN affine", "RTS/FCN")]
    used = []
    for run in runs:
        run.learn = lambda *batch, learn=run.learn: used.append(threading.current_thread()) or learn(*batch)
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    assert torch.get_num_threads() == 1
    Lockstep(runs).advance(5)
    assert len(used) == 15
    assert 2 <= len(set(used)) <= 3
    assert threading.main_thread() in used
    assert [switch.allow_tf32 for switch in switches] == before
    used.clear()
    torch.set_num_threads(2)
    Lockstep(runs).advance(1)
    torch.set_num_threads(1)
    assert set(used) == {threading.main_thread()}


def test_what_goes_wrong_in_a_thread_is_raised(digits):
    runs = [started(name, digits) for name in ("R/FCN", "R/ST-FCN affine")]

    def broken(*batch):
        raise ArithmeticError("no")

    runs[1].learn = broken
    with pytest.raises(ArithmeticError, match="no"):
        Lockstep(runs).advance(1)


@pytest.mark.parametrize("change", [{"batch": 16}, {"held_out": 100}], ids=str)
def test_runs_with_other_batches_do_not_share_them(change, digits):
    assert started("R/FCN", digits).sees() == started("R/ST-FCN affine", digits).sees()
    assert started("R/FCN", digits).sees() != started("R/ST-FCN affine", digits, **change).sees()


def test_seeds_differ_and_repeat(digits):
    runs = [started("R/FCN", digits, seed) for seed in (0, 0, 1)]
    for run in runs:
        run.step()
    assert torch.equal(runs[0].weights, runs[1].weights)
    assert not torch.equal(runs[0].weights, runs[2].weights)
    # and not only by their first weights
    assert not torch.equal(runs[0].random.uniform(8), runs[2].random.uniform(8))


def test_the_network_is_the_weights(digits):
    run = started("R/ST-FCN affine", digits)
    before = [parameter.detach().clone() for parameter in run.parameters]
    run.step()
    moved = [not torch.equal(a, b) for a, b in zip(run.parameters, before, strict=True)]
    assert all(moved[-6:])  # of the classification network
    run.weights.zero_()
    assert all(not parameter.any() for parameter in run.parameters)


@pytest.mark.parametrize(
    ("name", "localiser_rate"), [("R/FCN", 1.0), ("R/ST-FCN affine", 1.0), ("R/ST-FCN affine", 0.3)]
)
def test_a_step_is_that_of_sgd(name, localiser_rate, digits):
    """Against torch's own optimiser on the same batches, localisers at their own rate."""
    run, other = (started(name, digits, localiser_rate=localiser_rate) for _ in range(2))
    parts = [{"params": list(other.network.classifier.parameters())}]
    if other.network.transformer is not None:
        parts.append({"params": list(other.network.transformer.parameters()), "lr": 0.01 * localiser_rate})
    optimiser = torch.optim.SGD(parts, lr=0.01, momentum=0.9)
    for _ in range(3):
        run.step()
        settings = other.cell.settings
        chosen = (other.random.uniform(settings.batch) * len(other.labels)).long()
        drawn = other.distortion.draw(settings.batch, other.random)
        scores = other.network(other.distortion.apply(other.images[chosen], drawn))
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(scores, other.labels[chosen]).backward()
        optimiser.step()
    torch.testing.assert_close(run.weights, other.weights, rtol=1e-6, atol=1e-7)


def test_a_run_learns(digits):
    run = started("R/FCN", digits, rate=0.05, batch=64)
    for _ in range(20):
        run.step()
    first = run.means(20)
    for _ in range(180):
        run.step()
    run.means(160)
    for _ in range(20):
        run.step()
    last = run.means(20)
    assert last[0] < 0.6 * first[0]
    assert last[1] < 0.6 * first[1]
    assert run.tested().error < 50


def test_the_error_is_that_of_the_fixed_set(digits):
    run = started("RTS/FCN", digits)
    fixed = fixed_set("RTS", digits)
    wrong = run.network(fixed.images).argmax(1) != fixed.labels
    assert run.tested().error == pytest.approx(100 * wrong.double().mean().item())
    assert len(fixed.labels) == 300


@pytest.mark.parametrize(("name", "shape"), [("addition/FCN", (2, 42, 42)), ("3D/CNN", (1, 60, 60, 60))])
def test_what_a_run_trains_on(name, shape, digits):
    """The images of the digits that were chosen, and of several digits the label is the sum."""
    run = started(name, digits, batch=3, parameters=300_000)
    given = []
    run.trained.register_forward_pre_hook(lambda module, images: given.append(images[0]))
    run.step()
    run.random.set_state(0)
    chosen = (run.random.uniform(3, shape[0]) * len(digits.train.labels)).long()
    drawn = run.distortion.draw(3, run.random)
    assert given[0].shape == (3, *shape)
    digit_images = digits.train.images[chosen] / 255  # [3, channels, 28, 28]
    torch.testing.assert_close(given[0], run.distortion.apply(digit_images, drawn), rtol=0, atol=1e-5)
    scores = started(name, digits, batch=3, parameters=300_000).network(given[0])
    expected = torch.nn.functional.cross_entropy(scores, digits.train.labels[chosen].sum(1))
    assert run.means(1)[0] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "localisers"),
    [("R/FCN", 0), ("RTS/ST-CNN affine", 1), ("addition/2xST-FCN spline", 2), ("3D/ST-CNN", 1)],
)
def test_a_test_is_one_pass(name, localisers, digits, monkeypatch):
    """Scores and theta, to the bit, of localisers that each see every image once."""
    monkeypatch.setattr(fixed_sets, "BATCH", 8)
    few = first_of(digits, 16)
    run = started(name, few, parameters=300_000, batch=2)
    for _ in range(2):
        run.step()
    images = run.first_images(16)
    with torch.no_grad():
        answers = torch.cat([run.network(some).argmax(1) for some in images.split(8)])
        theta = torch.cat([run.network.theta(some) for some in images.split(8)])
    assert localisers == 0 or (theta[0] != theta[1]).any()
    seen = []
    each = [part for part in run.network.modules() if isinstance(part, SpatialTransformer)]
    for transformer in each:
        transformer.localiser.register_forward_hook(lambda module, given, made: seen.append(len(given[0])))
    tested = run.tested()
    assert (len(each), seen) == (localisers, [8] * 2 * localisers)
    assert torch.equal(tested.predictions, answers)
    assert torch.equal(tested.theta, theta)


def test_pairs_are_tested_on_their_sums_and_measured(digits):
    run = started("addition/2xST-FCN affine", digits, parameters=300_000)
    fixed = fixed_set("addition", digits)
    tested = run.tested()
    wrong = run.network(fixed.images).argmax(1) != fixed.labels
    assert tested.error == pytest.approx(100 * wrong.double().mean().item())
    assert tested.theta.shape == (300, 12)
    assert tested.measures == {"apart": 0, "settled": 0}  # both look at the whole image yet
    with torch.no_grad():  # the second's own way of looking, which depends on the image
        run.network.transformer.each[1].head.weight.normal_(generator=torch.Generator().manual_seed(0))
    expected = measures.of(run.cell, run.theta(fixed.images), fixed.drawn.numbers)
    assert run.tested().measures == pytest.approx(expected)
    assert 20 < expected["apart"] < 80
    assert started("addition/ST-FCN affine", digits).tested().measures == {}


@pytest.mark.parametrize("name", ["3D/CNN", "3D/ST-CNN"])
def test_volumes_are_tested_and_measured(name, digits, monkeypatch):
    monkeypatch.setattr(fixed_sets, "BATCH", 8)
    few = first_of(digits, 12)
    run = started(name, few, batch=2, parameters=120_000)
    fixed = fixed_set("3D", few)
    tested = run.tested()
    wrong = run.network(fixed.images).argmax(1) != fixed.labels
    assert tested.error == pytest.approx(100 * wrong.double().mean().item())
    away = fixed.drawn.numbers["centre"][:, :2].norm(dim=1).median()
    tilted = torch.rad2deg(torch.acos(fixed.drawn.numbers["turn"][:, 2, 2])).median()
    assert tested.measures == {
        "off centre": pytest.approx(away.item(), rel=1e-4),
        "off front": pytest.approx(tilted.item(), rel=1e-3),
    }


def test_a_run_trains_on_none_that_are_held_out(digits):
    run = Run(small("R/FCN", held_out=100), 0, digits, "cpu")
    assert len(run.images) == len(run.labels) == len(digits.train.labels) - 100
    assert torch.equal(run.labels, digits.train.labels[:-100])
    assert torch.equal(run.digits.test.labels, digits.train.labels[-100:])
    assert run.trained_on == "UCI digits, 100 held out"


def test_held_out_digits_are_not_trained_on(digits):
    found = held_out(digits, 100)
    assert len(found.train.labels) == 1397
    assert torch.equal(found.test.images, digits.train.images[-100:])
    assert held_out(digits, 0) is digits
    assert found.name != digits.name
    with pytest.raises(ValueError, match="held_out must be less than the 1,497 training digits, got 1,497"):
        held_out(digits, 1497)


def test_what_is_no_checkpoint_is_named(tmp_path):
    path = tmp_path / "run.safetensors"
    for content in (b"", b"not one", (8).to_bytes(8, "little") + b"{}      "):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"run\.safetensors is no checkpoint"):
            checkpoints.load(path)
