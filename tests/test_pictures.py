"""The door that all pictures go through: which are made of what there is, and what is said of the rest.

Records and probes are made up; ``test_pictures_of_digits`` has trained ones.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from made_up import CELLS, WITH, WITHOUT, made_up, record_of, with_variant

from spatial_transformer import cli
from spatial_transformer.experiments import pictures, probes, records, results, tested_digits
from spatial_transformer.experiments.data import uci_digits
from spatial_transformer.experiments.records import Point

pytestmark = pytest.mark.usefixtures("one_thread")
OPTIONS = ["steps=300", "--digits", "packaged"]
CURVE = [Point(10, 2.0, 50.0)]


def changed(name):
    """A cell of fewer steps than the experiment's."""
    cell = CELLS[name]
    return dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, steps=300))


RECORD = record_of(changed(WITH), 0, 1.0, CURVE)


@pytest.fixture(scope="module")
def probe():
    """Of a transformer that does nothing, and a network that is always right."""
    answers = uci_digits.load().test.labels
    theta = torch.eye(2, 3).flatten().expand(len(answers), 6)
    return probes.of(answers, theta, [(0, theta[:32]), (300, theta[:32])])


@pytest.fixture(scope="module")
def folder(probe, tmp_path_factory):
    """Results: of a network with a transformer, and of the one without it."""
    place = tmp_path_factory.mktemp("results")
    write(RECORD, probe, place)
    write(record_of(changed(WITHOUT), 0, 33.3, CURVE), probe._replace(theta=probe.theta[:, :0]), place)
    return place


def write(record, probe, folder):
    """Puts a record, and its probe if there is one, among the results, and gives the record's path."""
    path = records.path_of(folder, record.experiment, record.cell, record.seed, {})
    records.write(record, path)
    if probe is not None:
        probes.write(probe, probes.path_of(path))
    return path


def draw(*arguments):
    return cli.main(["draw", "distorted-mnist", *map(str, arguments)])


def test_the_base_network_is_of_the_same_seed_and_has_not_failed(tmp_path):
    one = made_up(WITH, np.zeros((1, 6), np.float16))
    one = one._replace(result=one.result._replace(record=record_of(CELLS[WITH], 2, 1.0, [])))
    runs = []
    for seed, failed in ((0, "nan"), (1, None), (2, None)):
        path = tmp_path / f"{seed}.json"
        status = {"status": "failed" if failed else "done", "reason": failed}
        runs.append(results.Result(path, record_of(CELLS[WITHOUT], seed, 1.0, [], **status), CELLS[WITHOUT]))
        probes.write(probes.of(torch.tensor([seed]), torch.zeros(1, 0), []), probes.path_of(path))
    for count, seed in ((3, 2), (2, 1)):
        name, answers = pictures.base_of(one, {WITHOUT: runs[:count]})
        assert (name, answers.tolist()) == ("FCN", [seed])
    assert pictures.base_of(one, {WITHOUT: runs[:1]}) is None
    assert pictures.base_of(one, {}) is None


def test_only_some_pictures(folder, tmp_path, capsys):
    arguments = ("--results", folder, "--out", tmp_path, *OPTIONS)
    assert draw(*arguments, "--only", "means", "--model", "st-fcn affine", "--data", "r", "--seed", "0") == 0
    names = with_variant(["R-ST-FCN-affine-means.png"], {"steps": 300})
    assert [path.name for path in tmp_path.rglob("*.*")] == names
    assert draw(*arguments, "--seed", "1") == 1
    assert "there is no record of seed 1 of" in capsys.readouterr().err


def test_pictures_of_another_seed_do_not_take_the_place_of_the_first(probe, tmp_path):
    for seed in (0, 1):
        write(dataclasses.replace(RECORD, seed=seed), probe, tmp_path)
        given = ["--results", tmp_path, "--out", tmp_path, *OPTIONS, "--only", "means", "--only", "curves"]
        assert draw(*given, "--seed", seed) == 0
    first = with_variant(["R-ST-FCN-affine-means.png", "R-curves.png"], {"steps": 300})
    second = [name.replace(".png", "-seed1.png") for name in first]
    assert sorted(path.name for path in tmp_path.rglob("*.png")) == sorted(first + second)


def test_what_is_missing_is_said(folder, tmp_path, capsys):
    assert draw("--results", tmp_path, "--out", tmp_path) == 1
    assert ": `stn train distorted-mnist` makes them" in capsys.readouterr().err
    assert draw("--results", folder, "--out", tmp_path) == 1  # those there are have other settings
    assert "`stn table distorted-mnist --all` lists those that are here" in capsys.readouterr().err
    assert draw("--results", folder, "--out", tmp_path, "--model", "ST-FNC affine", *OPTIONS) == 2
    assert "did you mean ST-FCN affine?" in capsys.readouterr().err


def test_a_missing_probe_is_named(tmp_path, capsys):
    path = write(RECORD, None, tmp_path)
    assert draw("--results", tmp_path, "--out", tmp_path / "out", "--only", "cases", *OPTIONS) == 1
    error = capsys.readouterr().err
    assert f"{path.stem}.npz is not here" in error
    assert "there are records but no probes: `stn train distorted-mnist` makes both" in error
    assert draw("--results", tmp_path, "--out", tmp_path / "out", *OPTIONS) == 0  # curves need none
    assert [path.name for path in tmp_path.rglob("*.png")] == with_variant(["R-curves.png"], {"steps": 300})


def test_pictures_of_other_runs_do_not_take_the_place_of_the_tables(tmp_path, capsys):
    for seed, (cell, digits) in enumerate(
        [(CELLS[WITH], "MNIST"), (changed(WITH), "MNIST"), (CELLS[WITH], uci_digits.NAME)]
    ):
        write(record_of(cell, seed, 1.0, CURVE, digits=digits), None, tmp_path)
    for options in ([], ["steps=300"], ["--digits", "packaged"]):
        assert draw("--results", tmp_path, "--out", tmp_path / "out", "--only", "curves", *options) == 0
    assert sorted(path.name for path in (tmp_path / "out").rglob("*.png")) == [
        "R-curves-digits=UCI-digits.png",
        "R-curves-steps=300.png",
        "R-curves.png",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"predictions": np.zeros(10, np.uint8)}, "it has 10 predictions, not 300"),
        ({"theta": np.zeros((300, 8), np.float16)}, "theta is (300, 8)"),
    ],
)
def test_a_probe_of_something_else_is_named(probe, tmp_path, capsys, change, message):
    path = write(RECORD, probe._replace(**change), tmp_path)
    assert draw("--results", tmp_path, "--out", tmp_path / "out", "--only", "cases", *OPTIONS) == 1
    error = capsys.readouterr().err
    assert f"{path.stem}.npz is no probe of" in error
    assert message in error


def test_missing_digits_are_named(probe, tmp_path, capsys, monkeypatch):
    write(record_of(CELLS[WITH], 0, 1.0, CURVE, digits="MNIST"), probe, tmp_path)
    monkeypatch.setattr(tested_digits.mnist, "find", lambda *_, **__: {})
    assert draw("--results", tmp_path, "--out", tmp_path / "out", "--only", "cases") == 1
    error = capsys.readouterr().err
    assert "MNIST is not here" in error
    assert "`stn data fetch mnist` fetches it" in error


def test_pictures_of_held_out_digits_are_not_made_up(probe, tmp_path, capsys):
    held = dataclasses.replace(RECORD, settings={**RECORD.settings, "held_out": 100})
    write(held, probe, tmp_path)
    arguments = ("--results", tmp_path, "--out", tmp_path / "out", "--only", "cases")
    assert draw(*arguments, "held_out=100", *OPTIONS) == 1
    assert "was tested on images held out" in capsys.readouterr().err


def test_nothing_of_matplotlibs_state_is_touched(folder, tmp_path, capsys):
    import matplotlib

    before = dict(matplotlib.rcParams)
    assert draw("--results", folder, "--out", tmp_path, "--only", "curves", *OPTIONS) == 0
    assert dict(matplotlib.rcParams) == before
