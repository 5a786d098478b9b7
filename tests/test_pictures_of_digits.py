"""Pictures of digits: what is on them is what the transformers did."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.torch
import torch
from made_up import CELLS, EXPERIMENT, WITH, WITHOUT, jobs_of, made_up, record_of, with_variant
from PIL import Image

import spatial_transformer as st
from spatial_transformer import cli
from spatial_transformer.coordinates import to_pixels
from spatial_transformer.experiments import (
    animations,
    engine,
    networks,
    probes,
    records,
    results,
    tested_digits,
)
from spatial_transformer.experiments import pictures_of_digits as drawn
from spatial_transformer.experiments.cases import chosen_cases, watched
from spatial_transformer.experiments.data.fixed_sets import fixed_set
from spatial_transformer.experiments.pictures import Trained
from spatial_transformer.experiments.records import Point

CHANGED = {"steps": 300, "batch": 64, "learning_rate": 0.03, "parameters": 60_000, "curve": 20}
OPTIONS = [*(f"{name}={value}" for name, value in CHANGED.items()), "--digits", "packaged"]


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """A folder of results, a record in it, and what that network hands to its classification network."""
    folder = tmp_path_factory.mktemp("results")
    jobs = jobs_of(EXPERIMENT, (WITH, WITHOUT), CHANGED, folder)
    engine.train(jobs[:1], digits, torch.device("cpu"))
    network = networks.build(jobs[0].cell)
    network.load_state_dict(safetensors.torch.load_file(jobs[0].weights))
    with torch.no_grad():
        seen = network.seen(fixed_set("R", digits).images)
    answers = (digits.test.labels + (torch.arange(300) % 3 == 0)) % 10  # every third is wrong
    records.write(record_of(jobs[1].cell, 0, 33.3, [Point(10, 2.0, 50.0)]), jobs[1].record)
    probes.write(probes.of(answers, torch.zeros(300, 0), []), probes.path_of(jobs[1].record))
    return folder, jobs[0].record, seen


@pytest.fixture(scope="module")
def one(trained):
    path = trained[1]
    result = results.Result(path, records.read(path), CELLS[WITH])
    return Trained(result, probes.read(probes.path_of(path)))


@pytest.fixture(scope="module")
def shown(one, digits):
    return drawn.seen(one, digits)


@pytest.fixture(scope="module")
def base(trained):
    return "FCN", probes.read(probes.path_of(next(trained[0].rglob("R-FCN*.json")))).predictions


# Outputs


def test_outputs_are_what_the_network_saw(trained, shown, digits):
    """Within what half precision leaves of theta."""
    assert shown.after.shape == (300, 1, 28, 28)
    assert (shown.after - trained[2]).abs().mean() < 1e-3
    assert records.read(trained[1]).error < 60  # it has learnt something
    assert (shown.after - shown.before).abs().mean() > 0.02
    assert torch.equal(shown.labels, digits.test.labels)
    assert torch.equal((shown.upright[:, 0] * 255).round().to(torch.uint8), digits.test.images)


@pytest.mark.parametrize("name", ["RTS/ST-FCN affine", "RTS/ST-CNN spline"])
def test_outputs_are_pooled(name):
    cell = CELLS[name]
    network = networks.build(cell)
    images = torch.rand(3, 1, 42, 42)
    theta = network.transformer.theta(images).detach() * 0.7
    found = tested_digits.given(network.transformer.family, images, theta, cell.data)
    expected = st.warp(images, theta, network.transformer.family, size=(56, 56), impl="reference")
    torch.testing.assert_close(found, network.pool(expected))
    assert found.shape == (3, 1, 28, 28)


# Cases


def test_cases_are_those_that_the_transformer_saves(one, shown, base):
    numbers, saved = chosen_cases(one, shown.labels, base)
    truth = shown.labels.numpy()
    every = [n for n in range(300) if one.probe.predictions[n] == truth[n] != base[1][n]]
    assert saved == len(every) > 8
    assert all(number % 3 == 0 for number in numbers)
    assert numbers == every[:8]
    numbers, saved = chosen_cases(one, shown.labels, None)
    assert saved == 0
    assert numbers == [n for n in range(300) if one.probe.predictions[n] == truth[n]][:8]


def test_cases_show_lattice_output_and_answers(one, shown, base):
    made = drawn.cases(one, shown, base)
    numbers, saved = chosen_cases(one, shown.labels, base)
    assert len(made.axes) == 16
    assert any(f"the first 8 of {saved} among 300 test images" in text.get_text() for text in made.texts)
    for column, number in enumerate(numbers):
        above, below = made.axes[column], made.axes[8 + column]
        assert np.array_equal(above.images[0].get_array(), shown.before[number, 0])
        assert np.array_equal(below.images[0].get_array(), shown.after[number, 0])
        theta = torch.from_numpy(one.probe.theta[number].astype(np.float32))
        corners = to_pixels(st.Affine().points(theta, torch.tensor([[-1.0, -1], [1, -1]])), (28, 28))
        upper = above.lines[0].get_xydata()
        np.testing.assert_allclose(upper[[0, -1]], corners, atol=1e-3)
        assert len(above.lines) == 18
        label = int(shown.labels[number])
        assert above.get_title().split()[0] == str(label)
        assert [text.get_text() for text in below.texts] == [
            f"FCN: {base[1][number]} ✗",
            f"ST-FCN: {label} ✓",
        ]


def test_the_angle_of_an_affine_grid():
    turned = [[1.3 * np.cos(0.5), -1.3 * np.sin(0.5), 0, 1.3 * np.sin(0.5), 1.3 * np.cos(0.5), 0]]
    one = made_up(WITH, np.array([*turned, [1, 0, 0, -0.001, 1, 0]], np.float16))
    assert drawn.turned(one, 0) == "  (29°)"
    assert drawn.turned(one, 1) == "  (0°)"
    assert drawn.turned(made_up("R/ST-FCN spline", np.zeros((1, 32))), 0) == ""


def test_an_overview_has_some_cases_of_each_kind_of_data(one, shown, base):
    other = made_up("R/ST-FCN spline", st.ThinPlateSpline((4, 4)).identity().half().numpy()[None], [9])
    few = drawn.Shown(*(part[:1] for part in shown))
    made = drawn.overview("Distorted MNIST", [(one, shown, base), (other, few, None)])
    assert len(made.axes) == 16
    numbers, _ = chosen_cases(one, shown.labels, base)
    for column, number in enumerate(numbers[:4]):
        assert np.array_equal(made.axes[column].images[0].get_array(), shown.before[number, 0])
        assert np.array_equal(made.axes[8 + column].images[0].get_array(), shown.after[number, 0])
    visible = [axes.get_visible() for axes in made.axes]
    assert visible == [*[True] * 5, *[False] * 3] * 2  # there is one image of the other kind
    said = [text.get_text() for text in made.texts]
    assert said[:2] == ["R: ST-FCN affine", "R: ST-FCN spline"]
    assert said[-1] == "UCI digits, 300, 150,000 steps; above: label, angle of an affine grid; below: answers"
    others = drawn.overview("Distorted MNIST", [(other, few, None)] * 2)
    assert others.texts[-1].get_text() == "UCI digits, 150,000 steps; above: label; below: answers"


def test_the_overview_has_what_errs_least_over_all_seeds(tmp_path, monkeypatch):
    kinds = ("R/ST-FCN affine", "R/ST-FCN spline", "P/ST-FCN affine")
    kept = [made_up(name, np.zeros((1, 6))) for name in kinds]

    def runs(name, *errors):
        return [
            results.Result(tmp_path, record_of(CELLS[name], seed, error, []), CELLS[name])
            for seed, error in enumerate(errors)
        ]

    found = {
        kinds[0]: runs(kinds[0], 1.0, 3.0),
        kinds[1]: runs(kinds[1], 1.5, 2.0),
        kinds[2]: runs(kinds[2], 9.0),
    }
    shown = []
    for name in ("seen", "base_of"):
        monkeypatch.setattr(drawn, name, lambda *given: None)
    monkeypatch.setattr(drawn, "overview", lambda title, columns: shown.extend(columns))
    monkeypatch.setattr(drawn.figures, "save", lambda made, path: path)
    assert list(drawn.draw_images(kept, found, ["overview"], tmp_path.joinpath, None, "Digits"))
    assert [one.cell.name for one, _, _ in shown] == [kinds[1], kinds[2]]


# Means


def test_means_of_classes(one, shown):
    made = drawn.means(one, shown)
    assert len(made.axes) == 30
    for row, images in enumerate((shown.before, shown.after, shown.upright)):
        for label in range(10):
            expected = images[shown.labels == label].mean((0, 1))
            found = made.axes[10 * row + label].images[0].get_array()
            np.testing.assert_allclose(found, expected, atol=1e-6)
    assert not drawn.class_means(shown.before[:1], shown.labels[:1])[(shown.labels[0] + 1) % 10].any()


def test_how_much_of_the_rotation_is_undone(digits):
    fixed = fixed_set("R", digits)
    answers = fixed.labels.numpy()
    back, none = st.Affine().inverse(fixed.drawn.theta), st.Affine().identity()
    shown = drawn.seen(made_up(WITH, back.half().numpy(), answers), digits)
    for share in (1.0, 0.5, 0.0, -0.2):
        turns = share * shown.angles
        theta = torch.stack(
            [turns.cos(), -turns.sin(), torch.zeros_like(turns), turns.sin(), turns.cos()], dim=1
        )
        theta = torch.cat([theta, torch.full((len(turns), 1), 0.1)], dim=1)
        one = made_up(WITH, theta.half().numpy(), answers)
        assert drawn.undone(one, shown) == pytest.approx(share, abs=0.01)
        said = drawn.means(one, shown).texts[-1].get_text()
        assert said.endswith(f"test images\nthe grids undo {share:.2f} of the digits' rotation")
    whole = made_up(WITH, back.half().numpy(), answers)
    assert drawn.undone(whole, shown) == pytest.approx(1, abs=0.01)
    bent = made_up("R/ST-FCN spline", np.zeros((300, 32), np.float16), answers)
    assert drawn.undone(bent, shown) is None
    skewed = made_up("P/ST-FCN affine", none.half().numpy()[None].repeat(300, 0), answers)
    flat = drawn.seen(skewed, digits)
    assert drawn.undone(skewed, flat) is None
    assert "rotation" not in drawn.means(skewed, flat).texts[-1].get_text()


# Animations


def test_an_animation_has_a_frame_for_each_moment(one, shown, tmp_path):
    frames, durations = drawn.animation(one, shown)
    assert len(frames) == len(durations) == len(one.probe.steps) > 25
    assert durations[-1] == max(durations) >= 2000
    path = tmp_path / "animation.gif"
    animations.save(frames, durations, path)
    assert path.stat().st_size < 2_000_000
    with Image.open(path) as found:
        assert found.n_frames == len(one.probe.steps)
        assert found.size == frames[0].size
        assert found.info["loop"] == 0
        for number in (0, found.n_frames - 1):
            found.seek(number)
            assert found.info["duration"] == durations[number]
            apart = np.abs(np.asarray(found.convert("RGB"), float) - np.asarray(frames[number], float))
            assert apart.mean() < 6  # of 255: colours are few


def test_an_animation_ends_with_the_final_transforms(one, shown):
    frames, _ = drawn.animation(one, shown)
    numbers = watched(shown.labels[:32].numpy(), one.probe.predictions)
    left, top = animations.MARGIN, animations.HEADER + animations.TILE + animations.GAP
    box = (left, top, left + animations.TILE, top + animations.TILE)
    expected = animations.tile(shown.after[numbers[0], 0])
    # The same weights made both thetas.
    assert np.array_equal(np.asarray(frames[-1].crop(box)), np.asarray(expected))
    first = animations.tile(shown.before[numbers[0], 0])
    assert np.abs(np.asarray(frames[0].crop(box), int) - np.asarray(first, int)).max() <= 2


# The command


def test_the_command_draws_what_there_is(trained, tmp_path, capsys):
    arguments = ["--results", str(trained[0]), "--out", str(tmp_path), *OPTIONS]
    assert cli.main(["draw", "distorted-mnist", *arguments]) == 0
    printed = capsys.readouterr().out.split()
    files = sorted(str(path) for path in tmp_path.rglob("*.*"))
    assert sorted(printed) == files
    names = [path.removeprefix(f"{tmp_path}/distorted-mnist/") for path in printed]
    cell = "R-ST-FCN-affine"
    made = ["R-curves.png", f"{cell}-cases.png", f"{cell}-means.png", f"{cell}-training.gif"]
    assert names == with_variant(made, CHANGED)
    for path in printed:
        with Image.open(path) as found:
            assert found.format == ("GIF" if path.endswith("gif") else "PNG")
            assert 800 <= found.width <= 1400  # legible as wide as a page


@pytest.mark.parametrize("name", ["animation", "training"])
def test_the_animation_is_asked_for_by_its_name_or_by_that_of_its_file(trained, tmp_path, capsys, name):
    arguments = ["--results", str(trained[0]), "--out", str(tmp_path), "--only", name, *OPTIONS]
    assert cli.main(["draw", "distorted-mnist", *arguments]) == 0
    assert [path.name for path in tmp_path.rglob("*.*")] == with_variant(
        ["R-ST-FCN-affine-training.gif"], CHANGED
    )
