"""Co-localisation: its loss, its boxes, its runs, its table and its pictures."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("filelock")
pytest.importorskip("safetensors")
pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

from made_up import with_variant  # noqa: E402
from small_runs import SMALL_COLOCALISATION, colocalising, counted  # noqa: E402

import spatial_transformer as st  # noqa: E402
from spatial_transformer import cli  # noqa: E402
from spatial_transformer.experiments import (  # noqa: E402
    checkpoints,
    colocalisation,
    encoders,
    engine,
    networks,
    pictures,
    pictures_of_boxes,
    probes,
    records,
    results,
    tables,
)
from spatial_transformer.experiments.catalogue import EXPERIMENTS  # noqa: E402
from spatial_transformer.experiments.checkpoints import Checkpoint  # noqa: E402
from spatial_transformer.experiments.colocalisation import Colocalisation, box, hinge, overlap  # noqa: E402
from spatial_transformer.experiments.data.one_class import one_class  # noqa: E402
from spatial_transformer.experiments.data.random_numbers import RandomNumbers  # noqa: E402
from spatial_transformer.experiments.interrupts import Stopped  # noqa: E402
from spatial_transformer.experiments.jobs import placed  # noqa: E402
from spatial_transformer.experiments.records import Point, Record  # noqa: E402
from spatial_transformer.experiments.runs import held_out  # noqa: E402

EXPERIMENT = EXPERIMENTS["colocalisation"]
CELLS = {cell.name: cell for cell in EXPERIMENT.cells}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quickly(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(encoders, "STEPS", 20)


def started(digits, seed=0, **changes):
    run = Colocalisation(colocalising("TC84/3", **changes), seed, digits, CPU, Path("runs"))
    run.objective.rate.fill_(0.003)
    return run


# The loss


def test_the_loss_is_that_of_the_equation():
    """Against a loop over triplets; candidates of an image may be others than its crop."""
    generator = torch.Generator().manual_seed(0)
    others = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    candidates = others[:, None] + torch.randn(5, 2, 7, generator=generator, dtype=torch.float64)
    away = 30 * torch.rand(5, 2, generator=generator, dtype=torch.float64)
    found, active = hinge(candidates, others, away), 0
    for n in range(5):
        for c in range(2):
            terms = [
                max(0.0, float((candidates[n, c] - others[m]).square().sum() - away[n, c]) + 1.0)
                for m in range(5)
                if m != n
            ]
            active += sum(term > 0 for term in terms)
            assert float(found[n, c]) == pytest.approx(sum(terms) / 4)
    assert 0 < active < 40  # some triplets are content and some are not


def test_a_pair_moves_its_first_crop_alone():
    crops = torch.tensor([[0.0], [1.0]], requires_grad=True)
    patches = torch.tensor([[5.0], [1.1]])  # the first is content, the second is not
    lost = hinge(crops[:, None], crops, (crops - patches).square()).mean()
    (gradient,) = torch.autograd.grad(lost, crops)
    # of (1 - 0)^2 - (1 - 1.1)^2 + 1 over two pairs, with the first crop held
    assert torch.allclose(gradient, torch.tensor([[0.0], [(2 + 0.2) / 2]]))


def test_a_patch_is_as_far_away_as_the_nearest_other_one():
    patches = torch.tensor([[[0.0], [1.0], [5.0]], [[2.0], [2.0], [0.0]]])
    assert colocalisation.nearest_other(patches).tolist() == [[1.0, 1.0, 16.0], [0.0, 0.0, 4.0]]


def test_a_crop_follows_the_patch_that_would_lose_least_in_its_place():
    theta = torch.tensor([[0.4, 0.0, 0.0], [0.3, 0.5, 0.5]], requires_grad=True)
    places = torch.tensor([[[0.4, 0.2, 0.0], [0.4, -0.2, 0.6]], [[0.3, 0.0, 0.0], [0.3, 0.1, 0.1]]])
    lost, patches_lost = torch.tensor([2.0, 0.5]), torch.tensor([[1.9, 1.5], [0.6, 0.5]])
    found = colocalisation.guidance(theta, places, lost, patches_lost)
    assert found.item() == pytest.approx(0.5 * (0.04 + 0.36) / 2)
    (gradient,) = torch.autograd.grad(found, theta)
    # towards (-0.2, 0.6), by the half that is to be gained; the second crop is better than its patches
    assert torch.allclose(gradient, torch.tensor([[0.0, 0.1, -0.3], [0.0, 0.0, 0.0]]))


def test_a_step_is_guided(digits, monkeypatch):
    """By patches of the images it is of."""
    weights = []
    for much in (0.0, 5.0):
        monkeypatch.setattr(colocalisation, "GUIDANCE", much)
        run = started(digits)
        for _ in range(2):
            run.step()
        weights.append(run.objective.weights.clone())
    assert not torch.equal(*weights)


# Boxes


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((0, 0, 2, 2), (0, 0, 2, 2), 1.0),
        ((0, 0, 2, 2), (1, 0, 3, 2), 1 / 3),
        ((0, 0, 2, 2), (1, 1, 3, 3), 1 / 7),
        ((0, 0, 4, 4), (1, 1, 3, 3), 1 / 4),
        ((0, 0, 1, 1), (2, 2, 3, 3), 0.0),
        ((0, 0, 1, 1), (2, 0, 3, 1), 0.0),
    ],
)
def test_overlap(one, other, expected):
    one, other = torch.tensor(one).float(), torch.tensor(other).float()
    assert float(overlap(one, other)) == pytest.approx(expected)
    assert float(overlap(other, one)) == pytest.approx(expected)


def test_a_crop_is_a_box():
    assert torch.equal(box(torch.tensor([0.25, 0.5, -0.5])), torch.tensor([0.25, -0.75, 0.75, -0.25]))


def test_the_true_box_holds_the_digit(digits):
    found = one_class("T84", 3, 0, digits, count=5)
    for image, edges in zip(found.images[:, 0], (found.drawn.numbers["box"] + 1) * 42, strict=True):
        left, top, right, bottom = edges.round().int().tolist()
        assert (right - left, bottom - top) == (28, 28)
        inside = image[top:bottom, left:right]
        assert inside.count_nonzero() == image.count_nonzero() > 0


def test_the_learning_rate_is_that_of_the_settings(digits):
    run = started(digits, localiser_rate=0.5, steps=10, stages=2)
    for step, rate in ((0, 0.0005), (4, 0.0005), (5, 0.00005)):
        run.step_number = step
        run.set_rate()
        assert float(run.objective.rate) == pytest.approx(rate)


def test_crops_start_midway_and_stay_within_the_image():
    images = torch.rand(4, 1, 84, 84)
    network = colocalisation.transformer(images, 28, (0.2, 0.6))
    assert torch.allclose(network.theta(images), torch.tensor([0.4, 0.0, 0.0]).expand(4, 3))
    with torch.no_grad():
        network.head.free.weight.normal_(0, 30, generator=torch.Generator().manual_seed(0))
    theta = network.theta(images)
    assert 0.2 <= theta[:, 0].min() <= theta[:, 0].max() <= 0.6
    assert (box(theta).abs() <= 1 + 1e-6).all()
    assert (theta[:, 1:].abs() > 0.1).any()


def test_crops_are_shaken_about_where_they_are():
    theta = torch.tensor([[0.2, 0.8, 0.8], [0.6, 0.0, 0.1]]).repeat(500, 1)
    found = colocalisation.shaken(theta, RandomNumbers(0))
    times, off = found[:, 0] / theta[:, 0], (found - theta)[:, 1:] / theta[:, :1]
    assert 1 / 1.25 <= times.min() < 0.81 < 1.24 < times.max() <= 1.25
    assert torch.allclose(off.std(0), torch.full((2,), 0.4 / 12**0.5), rtol=0.1)
    assert 0.19 < off.abs().max() <= 0.2 + 1e-6


class Places(nn.Module):
    """A transformer with a learnt (scale, x, y) for each image, whose number is its first pixel."""

    family, size = st.Attention(), (5, 5)

    def __init__(self, count):
        super().__init__()
        scale_x_y = torch.tensor([0.35, -0.3, -0.3]) + torch.tensor([0.1, 0.6, 0.6]) * torch.rand(count, 3)
        self.places = nn.Parameter(scale_x_y.double())

    def theta(self, images):
        return self.places[images[:, 0, 0, 0].long()]


def test_a_step_is_that_of_the_text(monkeypatch):
    """Loss and gradient beside loops over images and patches, in float64."""
    torch.manual_seed(0)
    count, batch = 7, 5
    images = torch.rand(count, 1, 12, 12, dtype=torch.float64)
    images[:, 0, 0, 0] = torch.arange(count)
    network, encode = Places(count), nn.Sequential(nn.Flatten(), nn.Linear(25, 4), nn.Tanh()).double()
    objective = colocalisation.Objective(images, network, encode, RandomNumbers(3), batch=batch, momentum=0.9)
    drawn, moved = {}, []
    for name in ("shaken", "elsewhere"):
        usual = getattr(colocalisation, name)

        def noted(theta, random, name=name, usual=usual):
            before = random.state()
            drawn[name] = usual(theta, random)
            drawn[f"{name} again"] = (usual, before)
            return drawn[name]

        monkeypatch.setattr(colocalisation, name, noted)
    monkeypatch.setattr(objective, "move", moved.append)
    loss, chosen, theta = objective.step()

    assert len(set(chosen.tolist())) == batch
    places = network.places[chosen]
    assert torch.equal(theta, places.detach())
    usual, before = drawn["shaken again"]
    random = RandomNumbers(3)
    random.set_state(before)
    crops = usual(places, random)

    def encoded(image, at):
        return encode(st.warp(images[image][None], at[None], st.Attention(), size=(5, 5)))[0]

    def squared(one, other):
        return (one - other).square().sum()

    crop = [encoded(number, crops[i]) for i, number in enumerate(chosen.tolist())]
    met = [each.detach() for each in crop]
    losses, guidance = [], []
    for i, number in enumerate(chosen.tolist()):
        around = drawn["elsewhere"][i]
        patches = [encoded(number, at).detach() for at in around]
        nearest = min(squared(crop[i], patch) for patch in patches)
        others = [j for j in range(batch) if j != i]
        losses.append(
            sum((squared(crop[i], met[j]) - nearest + 1).clamp(min=0) for j in others) / len(others)
        )
        of_patches = []
        for k, patch in enumerate(patches):
            near = min(squared(patch, other) for m, other in enumerate(patches) if m != k)
            of_patches.append(
                sum((squared(patch, met[j]) - near + 1).clamp(min=0) for j in others) / len(others)
            )
        best = min(range(len(patches)), key=lambda k: of_patches[k])
        gain = (losses[-1].detach() - of_patches[best]).clamp(min=0)
        guidance.append(gain * squared(places[i, 1:], around[best, 1:].detach()))
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(loss, expected.detach())
    assert any(each > 0 for each in guidance)
    whole = expected + colocalisation.GUIDANCE * torch.stack(guidance).mean()
    (gradient,) = torch.autograd.grad(whole, network.places)
    torch.testing.assert_close(moved[0], gradient.flatten())
    assert gradient.count_nonzero() > 0


def test_a_step_looks_at_shaken_crops(digits, monkeypatch):
    run = started(digits)
    run.step()
    still = started(digits)
    monkeypatch.setattr(
        colocalisation, "shaken", lambda theta, random: random.uniform(len(theta), 3) * 0 + theta
    )
    still.step()
    assert not torch.equal(run.objective.weights, still.objective.weights)


def test_random_patches_have_the_crops_sizes_and_lie_within_the_image():
    theta = torch.tensor([[0.2, 0.8, 0.8], [0.7, 0.0, 0.1]]).repeat(50, 1)
    found = colocalisation.elsewhere(theta, RandomNumbers(0))
    assert torch.equal(found[..., 0], theta[:, :1].expand(-1, colocalisation.RANDOM))
    edges = box(found).abs().amax((1, 2))
    assert (edges <= 1 + 1e-6).all()
    assert found[::2, :, 1:].std() > 0.4  # of a uniform one: 0.46


def test_the_localiser_is_that_of_the_text_but_for_its_units():
    network = colocalisation.transformer(torch.rand(2, 1, 84, 84), 28, colocalisation.SCALES)
    assert networks.parameters(network) == 100_627
    layers = [layer for layer in network.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    assert (layers[0].kernel_size, layers[0].stride, layers[0].out_channels) == ((9, 9), (4, 4), 8)
    assert [layer.out_features for layer in layers[1:]] == [128, 128]


def test_the_localiser_sees_standardised_pixels():
    images = torch.rand(6, 3, 84, 84) * torch.tensor([1.0, 0.1, 0.0])[:, None, None] + 0.3
    network = colocalisation.transformer(images, 28, colocalisation.SCALES)
    seen = []
    network.localiser.localiser.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    network.theta(images)
    deviation, mean = torch.std_mean(seen[0], dim=(0, 2, 3))
    assert torch.allclose(mean, torch.zeros(3), atol=1e-4)
    assert torch.allclose(deviation, torch.tensor([1.0, 1.0, 0.0]), atol=1e-4)  # the last is in one colour


def test_the_papers_numbers():
    assert all(cell.paper == 0 for name, cell in CELLS.items() if name.startswith("T84"))
    accuracies = [100 - CELLS[f"TC84/{digit}"].paper for digit in range(10)]
    assert accuracies == [81, 82, 88, 75, 94, 84, 93, 85, 89, 87]
    assert all(sentence.endswith(".") for sentence in EXPERIMENT.departures)


# Images


def test_images_of_one_class(digits):
    found = one_class("TC84", 4, 1, digits)
    assert found.images.shape == (100, 1, 84, 84)
    assert (found.labels == 4).all()
    assert torch.equal(found.images, one_class("TC84", 4, 1, digits).images)
    assert not torch.equal(found.images, one_class("TC84", 4, 2, digits).images)


def test_images_are_of_digits_that_the_encoder_has_not_seen(digits):
    blank = digits._replace(train=digits.train._replace(images=torch.zeros_like(digits.train.images)))
    found = one_class("T84", 4, 1, digits)
    assert found.images.amax((1, 2, 3)).min() > 0.5
    assert torch.equal(found.images, one_class("T84", 4, 1, blank).images)


def test_a_run_is_of_its_seed_and_of_what_is_held_out(digits):
    run = started(digits, held_out=200)
    assert run.trained_on == "UCI digits, 200 held out"
    kept = held_out(digits, 200)
    assert torch.equal(run.images, one_class("TC84", 3, 0, kept).images)
    assert not torch.equal(run.images, started(digits).images)
    other = started(digits, seed=1, held_out=200)
    assert not torch.equal(other.random.uniform(4), run.random.uniform(4))


def test_the_training_error_is_of_the_boxes_of_the_images_that_were_seen(digits, monkeypatch):
    run = started(digits)
    chosen = torch.tensor([40, 3, 77, 12, 9, 60])
    middle = (run.truth[:, :2] + run.truth[:, 2:]) / 2
    theta = torch.cat([torch.full((100, 1), 1 / 3), middle], dim=1)[chosen]
    monkeypatch.setattr(run.objective, "step", lambda: (torch.tensor(2.0), chosen, theta))
    run.step()
    assert run.means(1) == (2.0, 0.0)


# Runs


def test_a_run_goes_on_bit_for_bit(digits):
    whole, stopped, other = (started(digits) for _ in range(3))
    for _ in range(4):
        whole.step()
    for _ in range(2):
        stopped.step()
    stopped.step_number = 2
    checkpoints.save(Checkpoint(stopped.state(), 0.0, [], [], [], {}), Path("c"))
    other.load(checkpoints.load(Path("c")).state)
    assert other.step_number == 2
    for _ in range(2):
        other.step()
    for name, tensor in whole.state().tensors.items():
        assert torch.equal(tensor, other.state().tensors[name]), name
    assert not torch.equal(started(digits).objective.weights, whole.objective.weights)


def test_a_step_is_that_of_adam(digits):
    run = started(digits)
    weights = nn.Parameter(run.objective.weights.clone())
    optimiser = torch.optim.Adam([weights], lr=0.003, betas=(0.9, 0.999))
    for at in range(3):
        gradient = torch.randn(weights.shape, generator=torch.Generator().manual_seed(at))
        run.objective.move(gradient)
        weights.grad = gradient
        optimiser.step()
    torch.testing.assert_close(run.objective.weights, weights.detach(), rtol=1e-5, atol=1e-6)


def test_the_error_is_of_boxes_that_overlap_too_little(digits):
    run = started(digits)
    away = (torch.arange(100) >= 30)[:, None].float()  # the first thirty are right
    run.theta = lambda images: torch.cat(
        [torch.full((100, 1), 1 / 3), (run.truth[:, :2] + run.truth[:, 2:]) / 2 + away],
        dim=1,
    )  # fmt: skip
    assert run.tested().error == pytest.approx(70)
    for shared, error in ((0.49, 100), (0.51, 0)):  # of the union: "greater than 0.5" is right
        away = torch.tensor([2 / 3 * (1 - shared) / (1 + shared), 0])
        assert run.tested().error == error
    with pytest.raises(Stopped):
        run.tested(counted(1))


@pytest.fixture
def trained(digits):
    """Records and probes of two cells."""
    cells = [colocalising("T84/3"), colocalising("TC84/3")]
    jobs = placed(cells, [0], Path("results"), Path("runs"), lambda cell: SMALL_COLOCALISATION)
    outcome = engine.train(jobs, digits, CPU, at_once=2)
    assert [record.status for record in outcome.records] == ["done", "done"]
    return jobs


def test_a_cell_is_trained_to_its_record(trained, digits):
    record = records.read(trained[1].record)
    assert (record.cell, record.paper, record.steps, record.parameters) == ("TC84/3", 25.0, 8, 100_627)
    probe = probes.read(probes.path_of(trained[1].record))
    assert probe.theta.shape == (100, 3)
    truth = one_class("TC84", 3, 0, digits).drawn.numbers["box"]
    right = overlap(box(torch.from_numpy(probe.theta.astype(np.float32))), truth) > 0.5
    assert record.error == pytest.approx(100 - float(right.sum()))


# The table and the pictures


def test_the_table_prints_accuracies(tmp_path):
    for seed, error in enumerate((24.0, 25.0, 23.0)):
        cell = CELLS["TC84/3"]
        record = Record(
            experiment=cell.experiment, cell=cell.name, seed=seed, status="done", reason=None, error=error,
            paper=cell.paper, digits="MNIST", steps=cell.settings.steps, seconds=1.0, device="CPU",
            commit="c" * 40, date="2026-01-01", versions={}, settings=dataclasses.asdict(cell.settings),
            parameters=100627, curve=[Point(10, 1.0, 0.0)],
        )  # fmt: skip
        records.write(record, records.path_of(tmp_path, cell.experiment, cell.name, seed, {}))
        worse = dataclasses.replace(record, cell="T84/3", error=1.0, paper=0.0)
        records.write(worse, records.path_of(tmp_path, cell.experiment, "T84/3", seed, {}))
    made = tables.table(EXPERIMENT, results.of(EXPERIMENT, tmp_path))
    assert "| 3 | 99.00 ± 0.00 (3) ▼ / 100.0 | **76.00 ± 1.00** (3) / 75.0 |" in made
    assert "| 4 | - / 100.0 | - / 94.0 |" in made
    assert "**Bold**: at or above the paper's" in made


def test_pictures_show_the_boxes_of_the_probe(trained, digits):
    job = trained[0]
    result = results.Result(job.record, records.read(job.record), job.cell)
    one = pictures.Trained(result, probes.read(probes.path_of(job.record)))
    images, truth = pictures_of_boxes.shown(one, digits)
    made = pictures_of_boxes.boxes(one, images, truth)
    record = one.result.record
    assert f"{100 - record.error:.0f} % of the boxes right" in made.texts[-1].get_text()
    first = [patch.get_bbox().extents.tolist() for patch in made.axes[0].patches]
    assert first[0] == pytest.approx((truth[0] - 0.5).tolist(), abs=1e-4)
    assert first[1] == pytest.approx([25.33, 25.33, 57.67, 57.67], abs=0.02)  # in the middle
    last = made.axes[pictures_of_boxes.COLUMNS - 1].patches[1].get_bbox().extents.tolist()
    final = (box(torch.from_numpy(one.probe.theta[:1].astype(np.float32)))[0] + 1) * 42 - 0.5
    assert last == pytest.approx(final.tolist(), abs=1e-3)
    frames, durations = pictures_of_boxes.animation(one, images, truth)
    assert len(frames) == len(durations) == len(one.probe.steps)
    one = one._replace(probe=one.probe._replace(steps=np.zeros_like(one.probe.steps)))  # the same title
    first, last = (pictures_of_boxes.frame(one, images, truth, moment) for moment in (0, len(frames) - 1))
    assert (np.asarray(first) != np.asarray(last)).any()  # boxes have moved


def test_drawing_from_the_command_line(trained, capsys):
    changed = [f"{name}={value}" for name, value in SMALL_COLOCALISATION.items()]
    command = ["draw", "colocalisation", *changed, "--digits", "packaged"]
    assert cli.main([*command, "--data", "T84"]) == 0
    made = capsys.readouterr().out.split()
    names = with_variant(["T84-3-boxes.png", "T84-3-training.gif"], SMALL_COLOCALISATION)
    assert [Path(path).name for path in made] == names
    with Image.open(made[1]) as moving:
        assert moving.n_frames == len(probes.moments(8))
        green = tuple(int(pictures_of_boxes.TRUE[at : at + 2], 16) for at in (1, 3, 5))
        assert green in {colour for _, colour in moving.convert("RGB").getcolors(1 << 16)}
    assert cli.main([*command, "--only", "means"]) == 2
    assert "colocalisation has boxes, animation, got --only means" in capsys.readouterr().err
