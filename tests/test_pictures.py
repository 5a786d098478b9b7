"""Pictures out of records and probes: what is on them is what the transformers did."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import spatial_transformer as st
from spatial_transformer import cli
from spatial_transformer.experiments import engine, networks, pictures, probes, records, results
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.data import uci_digits
from spatial_transformer.experiments.data.fixed_sets import fixed_set
from spatial_transformer.experiments.pictures import Trained
from spatial_transformer.experiments.records import Point, Record

EXPERIMENT = EXPERIMENTS["distorted-mnist"]
CELLS = {cell.name: cell for cell in EXPERIMENT.cells}
WITH, WITHOUT = "R/ST-FCN affine", "R/FCN"
CHANGED = {"steps": 300, "batch": 64, "learning_rate": 0.03, "parameters": 60_000, "curve": 20}
OPTIONS = [*(f"{name}={value}" for name, value in CHANGED.items()), "--digits", "packaged"]


@pytest.fixture(scope="module")
def digits(one_thread):
    return uci_digits.load()


def record_of(cell, seed, error, curve, **fields):
    given = {
        "experiment": cell.experiment, "cell": cell.name, "seed": seed, "status": "done", "reason": None,
        "error": error, "paper": cell.paper, "digits": uci_digits.NAME, "steps": cell.settings.steps,
        "seconds": 1.0, "device": "CPU", "commit": "c" * 40, "date": "2026-01-01", "versions": {},
        "settings": dataclasses.asdict(cell.settings), "parameters": 60_000, "curve": curve, **fields,
    }  # fmt: skip
    return Record(**given)


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """A folder of results, a record in it, and what that network hands to its classification network."""
    folder = tmp_path_factory.mktemp("results")
    settings = dataclasses.replace(EXPERIMENT.settings, **CHANGED)
    cell, plain = (dataclasses.replace(CELLS[name], settings=settings) for name in (WITH, WITHOUT))
    jobs = engine.jobs([cell, plain], [0], folder, folder / "runs", {**CHANGED, "digits": "UCI-digits"})
    engine.train(jobs[:1], digits, torch.device("cpu"))
    network = networks.build(cell)
    network.load_state_dict(safetensors.torch.load_file(jobs[0].weights))
    with torch.no_grad():
        seen = network.seen(fixed_set("R", digits).images)
    answers = (digits.test.labels + (torch.arange(300) % 3 == 0)) % 10  # every third is wrong
    records.write(record_of(plain, 0, 33.3, [Point(10, 2.0, 50.0)]), jobs[1].record)
    probes.write(probes.of(answers, torch.zeros(300, 0), []), probes.path_of(jobs[1].record))
    return folder, jobs[0].record, seen


@pytest.fixture(scope="module")
def one(trained):
    path = trained[1]
    result = results.Result(path, records.read(path), CHANGED)
    return Trained(CELLS[WITH], result, probes.read(probes.path_of(path)))


@pytest.fixture(scope="module")
def shown(one, digits):
    return pictures.seen(one, digits)


@pytest.fixture(scope="module")
def base(trained):
    return "FCN", probes.read(probes.path_of(next(trained[0].rglob("R-FCN*.json")))).predictions


def made_up(name, theta, predictions=(), steps=(), thetas=None):
    cell = CELLS[name]
    dim = theta.shape[1]
    thetas = np.zeros((0, 0, dim), np.float16) if thetas is None else thetas
    probe = probes.Probe(np.array(predictions, np.uint8), theta, np.array(steps, np.int64), thetas)
    return Trained(cell, results.Result(None, record_of(cell, 0, 1.0, []), {}), probe)


# Grids and outputs


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
    found = pictures.given(network.transformer.family, images, theta, cell.data)
    expected = st.warp(images, theta, network.transformer.family, size=(56, 56), impl="reference")
    torch.testing.assert_close(found, network.pool(expected))
    assert found.shape == (3, 1, 28, 28)


WHOLE = [name for name in networks.FAMILIES if name != "window"]  # which is of half the size


@pytest.mark.parametrize("family", WHOLE)
def test_the_identitys_lattice_is_the_image(family):
    family = networks.FAMILIES[family]()
    lines = pictures.lattice(family, family.identity(), 28)
    assert lines.shape == (18, 33, 2)
    assert torch.allclose(lines[0, :, 1], torch.tensor(-0.5), atol=1e-4)  # along the upper edge
    assert torch.allclose(lines[8, :, 1], torch.tensor(27.5), atol=1e-4)  # the lower
    assert torch.allclose(lines[9, :, 0], torch.tensor(-0.5), atol=1e-4)  # the left
    assert torch.allclose(lines[17, :, 0], torch.tensor(27.5), atol=1e-4)  # and the right
    assert torch.allclose(lines[3, [0, -1], 0], torch.tensor([-0.5, 27.5]), atol=1e-4)
    assert [number for number in range(18) if pictures.is_border(number)] == [0, 8, 9, 17]


def test_a_lattice_is_where_the_family_says():
    spline = st.ThinPlateSpline((4, 4))
    theta = spline.identity() + 0.2 * torch.randn(32, generator=torch.Generator().manual_seed(0))
    lines = pictures.lattice(spline, theta, 42)
    # The third line down, a quarter of the way along it: (x, y) of the target.
    source = spline.points(theta, torch.tensor([[2 * 8 / 32 - 1, 2 * 3 / 8 - 1]]))
    assert torch.allclose(lines[3, 8], (source[0] + 1) * 21 - 0.5, atol=1e-4)
    # A line down is the line across, mirrored at the diagonal of the target.
    assert torch.allclose(lines[9 + 2, 12], lines[3, 8], atol=1e-4)


def test_a_view_holds_most_of_the_lattices():
    square = pictures.lattice(st.Affine(), st.Affine().identity(), 28)[None]
    assert pictures.reach(square, 28) == pytest.approx(15)
    turned = pictures.lattice(st.Affine(), torch.tensor([0.6, -0.8, 0.0, 0.8, 0.6, 0.0]), 28)[None]
    assert pictures.reach(turned, 28) == pytest.approx(1.4 * 14 + 1, abs=0.01)
    assert pictures.reach(100 * turned, 28) == pytest.approx(0.85 * 28)


# Cases


def test_cases_are_those_that_the_transformer_saves(one, shown, base):
    numbers, saved = pictures.chosen_cases(one, shown.labels, base[1])
    truth = shown.labels.numpy()
    every = [n for n in range(300) if one.probe.predictions[n] == truth[n] != base[1][n]]
    assert saved == len(every) > 8
    assert all(number % 3 == 0 for number in numbers)
    assert numbers == every[:8]
    numbers, saved = pictures.chosen_cases(one, shown.labels, None)
    assert saved == 0
    assert numbers == [n for n in range(300) if one.probe.predictions[n] == truth[n]][:8]


def test_other_cases_come_after_those_that_are_saved():
    one = made_up(WITH, np.zeros((6, 6), np.float16), predictions=[0, 1, 2, 3, 9, 5])
    labels = torch.arange(6)
    base = np.array([0, 1, 2, 8, 8, 8], np.uint8)
    assert pictures.chosen_cases(one, labels, base) == ([3, 5, 0, 1, 2, 4], 2)
    assert pictures.cases_title(one, 6, 6, 2, ("FCN", base)) == (
        "Where the FCN is wrong and the ST-FCN affine is right: 2 of 6 test images, and 4 others"
    )


def test_cases_show_lattice_output_and_answers(one, shown, base):
    made = pictures.cases(one, shown, base)
    numbers, saved = pictures.chosen_cases(one, shown.labels, base[1])
    assert len(made.axes) == 16
    assert any(f"the first 8 of {saved} among 300 test images" in text.get_text() for text in made.texts)
    for column, number in enumerate(numbers):
        above, below = made.axes[column], made.axes[8 + column]
        assert np.array_equal(above.images[0].get_array(), shown.before[number, 0])
        assert np.array_equal(below.images[0].get_array(), shown.after[number, 0])
        theta = torch.from_numpy(one.probe.theta[number].astype(np.float32))
        corners = pictures.to_pixels(st.Affine().points(theta, torch.tensor([[-1.0, -1], [1, -1]])), (28, 28))
        upper = above.lines[0].get_xydata()
        np.testing.assert_allclose(upper[[0, -1]], corners, atol=1e-3)
        assert len(above.lines) == 18
        label = int(shown.labels[number])
        assert above.get_title().split()[0] == str(label)
        assert [text.get_text() for text in below.texts] == [
            f"FCN: {base[1][number]} ✗",
            f"ST-FCN: {label} ✓",
        ]


def test_the_base_network_is_of_the_same_seed_and_has_not_failed(tmp_path):
    one = made_up(WITH, np.zeros((1, 6), np.float16))
    one = one._replace(result=one.result._replace(record=record_of(CELLS[WITH], 2, 1.0, [])))
    runs = []
    for seed, failed in ((0, "nan"), (1, None), (2, None)):
        path = tmp_path / f"{seed}.json"
        status = {"status": "failed" if failed else "done", "reason": failed}
        runs.append(results.Result(path, record_of(CELLS[WITHOUT], seed, 1.0, [], **status), {}))
        probes.write(probes.of(torch.tensor([seed]), torch.zeros(1, 0), []), probes.path_of(path))
    for count, seed in ((3, 2), (2, 1)):
        name, answers = pictures.base_of(one, {WITHOUT: runs[:count]})
        assert (name, answers.tolist()) == ("FCN", [seed])
    assert pictures.base_of(one, {WITHOUT: runs[:1]}) is None
    assert pictures.base_of(one, {}) is None


def test_the_angle_of_an_affine_grid():
    turned = [[1.3 * np.cos(0.5), -1.3 * np.sin(0.5), 0, 1.3 * np.sin(0.5), 1.3 * np.cos(0.5), 0]]
    one = made_up(WITH, np.array([*turned, [1, 0, 0, -0.001, 1, 0]], np.float16))
    assert pictures.turned(one, 0) == "  (29°)"
    assert pictures.turned(one, 1) == "  (0°)"
    assert pictures.turned(made_up("R/ST-FCN spline", np.zeros((1, 32))), 0) == ""


def test_an_overview_has_some_cases_of_each_kind_of_data(one, shown, base):
    other = made_up("R/ST-FCN spline", st.ThinPlateSpline((4, 4)).identity().half().numpy()[None], [9])
    few = pictures.Shown(*(part[:1] for part in shown))
    made = pictures.overview("Distorted MNIST", [(one, shown, base), (other, few, None)])
    assert len(made.axes) == 16
    numbers, _ = pictures.chosen_cases(one, shown.labels, base[1])
    for column, number in enumerate(numbers[:4]):
        assert np.array_equal(made.axes[column].images[0].get_array(), shown.before[number, 0])
        assert np.array_equal(made.axes[8 + column].images[0].get_array(), shown.after[number, 0])
    visible = [axes.get_visible() for axes in made.axes]
    assert visible == [*[True] * 5, *[False] * 3] * 2  # there is one image of the other kind
    said = [text.get_text() for text in made.texts]
    assert said[:2] == ["R: ST-FCN affine", "R: ST-FCN spline"]
    assert said[-1].startswith("UCI digits, 300, 150,000 steps;")


# Means


def test_means_of_classes(one, shown):
    made = pictures.means(one, shown)
    assert len(made.axes) == 30
    for row, images in enumerate((shown.before, shown.after, shown.upright)):
        for label in range(10):
            expected = images[shown.labels == label].mean((0, 1))
            found = made.axes[10 * row + label].images[0].get_array()
            np.testing.assert_allclose(found, expected, atol=1e-6)
    assert not pictures.class_means(shown.before[:1], shown.labels[:1])[(shown.labels[0] + 1) % 10].any()


# Curves


def run_of(name, seed, curve, error=2.0, **fields):
    return results.Result(None, record_of(CELLS[name], seed, error, curve, **fields), {})


def test_curves_are_the_records():
    first = [Point(10, 1.0, 40.0), Point(20, 0.5, 8.0), Point(30, 0.5, 0.0)]
    second = [Point(10, 1.0, 60.0), Point(20, 0.5, 10.0)]
    runs = [
        (CELLS[WITHOUT], [run_of(WITHOUT, 0, first)]),
        (CELLS[WITH], [run_of(WITH, 0, first, 1.0), run_of(WITH, 1, second, 2.0)]),
        (CELLS["R/CNN"], [run_of("R/CNN", 0, second, None, status="failed", reason="nan")]),
    ]
    axes = pictures.curves("R", runs).axes[0]
    assert axes.get_yscale() == "log"
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines["FCN: 2.00 % (2.1 %)"] == [[10, 40], [20, 8], [30, 0]]
    assert lines["ST-FCN affine: 1.50 % (1.2 %)"] == [[10, 50], [20, 9]]  # as far as both seeds went
    assert lines["CNN: failed (1.2 %)"] == [[10, 60], [20, 10]]
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert shown == ["FCN: 2.00 % (2.1 %)", "ST-FCN affine: 1.50 % (1.2 %)", "CNN: failed (1.2 %)"]
    dots = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert dots == [[[30, 2]], [[20, 1.5]]]


def test_every_model_has_its_own_colour():
    for experiment in EXPERIMENTS.values():
        models = [model for model in experiment.models if model.digit is None]  # others have boxes, no curves
        assert len({pictures.colour_of(model) for model in models}) == len(models)


# Animations


def test_one_image_of_each_class_is_watched():
    truth = np.array([3, 3, 1, 4, 1, 0, 3])
    predictions = np.array([9, 3, 1, 4, 1, 7, 3, 5, 5])
    assert pictures.watched(truth, predictions) == [0, 1, 2, 3, 4, 5, 6]  # fewer than there is room for
    truth, predictions = (np.concatenate([[2, 2], np.arange(10), [0]]) for _ in range(2))
    assert pictures.watched(truth, predictions) == [0, 2, 3, 5, 6, 7, 8, 9]


def test_an_animation_has_a_frame_for_each_moment(one, shown, tmp_path):
    frames, durations = pictures.animation(one, shown)
    assert len(frames) == len(durations) == len(one.probe.steps) > 25
    assert durations[-1] == max(durations) >= 2000
    path = tmp_path / "animation.gif"
    pictures.save_animation(frames, durations, path)
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
    frames, _ = pictures.animation(one, shown)
    numbers = pictures.watched(shown.labels[:32].numpy(), one.probe.predictions)
    left, top = pictures.MARGIN, pictures.HEADER + pictures.TILE + pictures.GAP
    box = (left, top, left + pictures.TILE, top + pictures.TILE)
    expected = pictures.tile(shown.after[numbers[0], 0], pictures.TILE)
    # The same weights made both thetas.
    assert np.array_equal(np.asarray(frames[-1].crop(box)), np.asarray(expected))
    first = pictures.tile(shown.before[numbers[0], 0], pictures.TILE)
    assert np.abs(np.asarray(frames[0].crop(box), int) - np.asarray(first, int)).max() <= 2


def test_the_lattice_of_a_tile_is_over_the_image():
    """An identity's: its border is the image's, and half of the middle line's ink is left of the middle."""
    lines = pictures.lattice(st.Affine(), st.Affine().identity(), 28)
    tile = np.asarray(pictures.tile_with_lattice(torch.zeros(28, 28), lines, 28.0), int)
    red = tile[..., 0] - tile[..., 2] > 100
    rows, columns = (np.flatnonzero(red.any(axis)) for axis in (1, 0))
    quarter = pictures.TILE / 4
    for found in (rows, columns):
        assert abs(found.min() - quarter) <= 2
        assert abs(found.max() + 1 - 3 * quarter) <= 2


# The command


def draw(*arguments):
    return cli.main(["draw", "distorted-mnist", *map(str, arguments)])


def test_the_command_draws_what_there_is(trained, tmp_path, capsys):
    assert draw("--results", trained[0], "--out", tmp_path, *OPTIONS) == 0
    printed = capsys.readouterr().out.split()
    files = sorted(str(path) for path in tmp_path.rglob("*.*"))
    assert sorted(printed) == files
    names = [path.removeprefix(f"{tmp_path}/distorted-mnist/") for path in printed]
    cell = "R-ST-FCN-affine"
    assert names == ["R-curves.png", f"{cell}-cases.png", f"{cell}-means.png", f"{cell}-training.gif"]
    for path in printed:
        with Image.open(path) as found:
            assert found.format == ("GIF" if path.endswith("gif") else "PNG")
            assert 800 <= found.width <= 1400  # legible as wide as a page


def test_only_some_pictures(trained, tmp_path, capsys):
    arguments = ("--results", trained[0], "--out", tmp_path, *OPTIONS)
    assert draw(*arguments, "--only", "means", "--model", "st-fcn affine", "--data", "r", "--seed", "0") == 0
    assert [path.name for path in tmp_path.rglob("*.*")] == ["R-ST-FCN-affine-means.png"]
    assert draw(*arguments, "--seed", "1") == 1
    assert "there is no record of seed 1 of" in capsys.readouterr().err


def test_what_is_missing_is_said(trained, tmp_path, capsys):
    assert draw("--results", tmp_path, "--out", tmp_path) == 1
    assert ": `stn train distorted-mnist` makes them" in capsys.readouterr().err
    assert draw("--results", trained[0], "--out", tmp_path) == 1  # those there are have other settings
    assert "`stn table distorted-mnist --all` lists those that are here" in capsys.readouterr().err
    assert draw("--results", trained[0], "--out", tmp_path, "--model", "ST-FNC affine", *OPTIONS) == 1
    assert "did you mean ST-FCN affine?" in capsys.readouterr().err


def test_a_missing_probe_is_named(trained, tmp_path, capsys):
    path = tmp_path / "distorted-mnist" / trained[1].name
    records.write(records.read(trained[1]), path)
    assert draw("--results", tmp_path, "--out", tmp_path / "out", "--only", "cases", *OPTIONS) == 1
    error = capsys.readouterr().err
    assert f"{path.stem}.npz is not here" in error
    assert "there are records but no probes: `stn train distorted-mnist` makes both" in error
    assert draw("--results", tmp_path, "--out", tmp_path / "out", *OPTIONS) == 0  # curves need none
    assert [path.name for path in tmp_path.rglob("*.png")] == ["R-curves.png"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"predictions": np.zeros(10, np.uint8)}, "it has 10 predictions, not 300"),
        ({"theta": np.zeros((300, 8), np.float16)}, "theta is (300, 8)"),
    ],
)
def test_a_probe_of_something_else_is_named(trained, one, tmp_path, capsys, change, message):
    path = tmp_path / "distorted-mnist" / trained[1].name
    records.write(records.read(trained[1]), path)
    probes.write(one.probe._replace(**change), probes.path_of(path))
    assert draw("--results", tmp_path, "--out", tmp_path / "out", "--only", "cases", *OPTIONS) == 1
    error = capsys.readouterr().err
    assert f"{path.stem}.npz is no probe of" in error
    assert message in error


def test_missing_digits_are_named(one, tmp_path, capsys, monkeypatch):
    path = records.path_of(tmp_path, "distorted-mnist", WITH, 0, {})
    record = dataclasses.replace(
        one.result.record, settings=dataclasses.asdict(EXPERIMENT.settings), digits="MNIST"
    )
    records.write(record, path)
    probes.write(one.probe, probes.path_of(path))
    monkeypatch.setattr(pictures.mnist, "find", lambda *_, **__: {})
    assert draw("--results", tmp_path, "--out", tmp_path / "out", "--only", "cases") == 1
    error = capsys.readouterr().err
    assert "MNIST is not here" in error
    assert "`stn data fetch mnist` fetches it" in error


def test_pictures_of_held_out_digits_are_not_made_up(trained, tmp_path, capsys):
    path = tmp_path / "distorted-mnist" / trained[1].name
    record = records.read(trained[1])
    held = dataclasses.replace(record, settings={**record.settings, "held_out": 100})
    records.write(held, path)
    probes.write(probes.read(probes.path_of(trained[1])), probes.path_of(path))
    arguments = ("--results", tmp_path, "--out", tmp_path / "out", "--only", "cases")
    assert draw(*arguments, "held_out=100", *OPTIONS) == 1
    assert "was tested on images held out" in capsys.readouterr().err


def test_nothing_of_matplotlibs_state_is_touched(trained, tmp_path, capsys):
    import matplotlib

    before = dict(matplotlib.rcParams)
    assert draw("--results", trained[0], "--out", tmp_path, "--only", "curves", *OPTIONS) == 0
    assert dict(matplotlib.rcParams) == before
