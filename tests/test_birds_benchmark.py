"""The benchmark of steps on birds: it measures what trains, and its table says what was measured."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

pytest.importorskip("numba")

from benchmarks import birds, steps
from spatial_transformer.experiments import efficientnet_lite
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.data import bird_views

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def result(tmp_path_factory, one_thread):
    path = tmp_path_factory.mktemp("birds") / "birds.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "ROUNDS", 1)
        patch.setattr(birds, "IMAGES", 200)
        patch.setattr(birds, "CASES", birds.CASES[:3])
        assert birds.main(["--quick", "--out", str(path)]) == 0
    return json.loads(path.read_text(), parse_constant=pytest.fail)


def test_what_is_measured(result):
    names = [f"{model} {size}px" for model in ("2xST-CNN", "4xST-CNN") for size in (224, 448)]
    assert [case.name for case in birds.CASES] == ["CNN 224px", *names]
    assert birds.TRAINED == ("mixed, channels-last", "mixed", "channels-last", True, True)
    assert birds.PLAIN == ("PyTorch's norms", "mixed", "channels-last", False, True)
    assert birds.CUDNN == ("cuDNN's depthwise", "mixed", "channels-last", True, False)
    assert len({way.name for way in birds.EVERY}) == 6
    measured = [(case.name, way) for case in birds.CASES for way in birds.ways_of(case)]
    assert [name for name, way in measured if way == birds.TRAINED] == ["CNN 224px", *names]
    assert [name for name, way in measured if way == birds.PLAIN] == list(birds.BESIDE)
    assert [name for name, way in measured if way == birds.CUDNN] == list(birds.BESIDE)
    assert len(measured) == 11
    assert [case["name"] for case in result["cases"]] == ["CNN 224px", *names[:2]]
    for case in result["cases"]:
        beside = ["PyTorch's norms", "cuDNN's depthwise"] if case["name"] in birds.BESIDE else []
        assert list(case["milliseconds"]) == ["mixed, channels-last", *beside]
        assert all(found > 0 for found in case["milliseconds"].values())


def test_images_lie_on_the_canvas_of_the_real_ones():
    given = birds.made_up(400, (8, 10), "cpu", "efficientnet-lite0")
    photographs = bird_views.photographs(given.birds, "train", "cpu")
    assert photographs.canvas == birds.CANVAS
    assert len(photographs) == 398
    assert (photographs.sizes == torch.tensor([8, 10])).all()
    for number in (0, 397):
        start = int(photographs.starts[number])
        seen = photographs.gathered(torch.tensor([number]))[0, :, :8, :10]
        assert torch.equal(
            seen, given.birds.pixels[start : start + 80].float().view(8, 10, 3).permute(2, 0, 1)
        )
    assert len(given.birds.pixels) == 399 * 80 + 500 * 500


def test_settings_are_those_of_the_tables_cnn(result):
    table = dataclasses.asdict(EXPERIMENTS["birds"].settings)
    assert table != dataclasses.asdict(birds.BirdSettings())
    other = {name for name, value in result["settings"].items() if value != table[name]}
    assert other == {"batch", "learning_rate", "backbone"}


def test_kernels_are_those_that_are_asked_for(monkeypatch):
    seen = []
    monkeypatch.setattr(birds, "IMAGES", 200)
    monkeypatch.setattr(birds, "timed", lambda *_: seen.append({**efficientnet_lite._in_kernels}) or 1.0)
    settings = birds.BirdSettings(batch=2, backbone="efficientnet-lite0")
    monkeypatch.setattr(birds, "CASES", birds.CASES[:1])
    list(birds.run("cpu", 1, settings, side=32, size=(40, 50)))
    assert [tuple(one.values()) for one in seen] == [(True, True), (False, True), (True, False)]
    assert list(seen[0]) == ["norms", "depthwise"]


def test_what_was_measured_before_a_cut_is_written(monkeypatch, tmp_path):
    answers = [2.0, 1.0]
    monkeypatch.setattr(birds, "IMAGES", 200)
    monkeypatch.setattr(birds, "timed", lambda *_: answers.pop())
    path = tmp_path / "birds.json"
    with pytest.raises(IndexError):
        birds.main(["--quick", "--out", str(path)])
    result = json.loads(path.read_text())
    assert result["cases"][0]["milliseconds"] == {"mixed, channels-last": 1.0, "PyTorch's norms": 2.0}
    assert "| CNN 224px | 1.0 | 2.0 |" in birds.markdown(result)


def test_the_table(result):
    names = [case.name for case in birds.CASES]
    result["cases"] = [
        {"name": name, "milliseconds": {"mixed, channels-last": milliseconds}}
        for name, milliseconds in zip(names, (10.0, 30.0, 33.0, 50.0, 60.0), strict=True)
    ]
    result["cases"][0]["milliseconds"]["PyTorch's norms"] = 99.0
    result["settings"] |= {"batch": 64, "steps": 6000}
    lines = birds.markdown(result).splitlines()
    ways = "mixed, channels-last, ms | PyTorch's norms, ms"
    assert lines[0] == f"| cell | {ways} | images a second | of 224 px | 6,000 steps |"
    assert lines[2] == "| CNN 224px | 10.0 | 99.0 | 6,400 |  | 1.0 min |"
    assert lines[4].endswith("| 33.0 |  | 1,939 | 1.10 times, 1.15 met | 3.3 min |")
    assert lines[6].endswith("| 1,067 | 1.20 times, 1.15 missed | 6.0 min |")
    assert lines[-1].startswith("Batch 64, efficientnet-lite0; CPU, torch ")


def test_what_does_not_train_is_not_measured(monkeypatch):
    monkeypatch.setattr(birds.FineGrainedRun, "means", lambda run, count: (float("nan"), 0.0))
    settings = birds.BirdSettings(batch=2, backbone="efficientnet-lite0")
    with pytest.raises(RuntimeError, match="224px/CNN does not train: its loss is nan"):
        list(birds.run("cpu", 1, settings, side=32, size=(40, 50)))


def test_what_is_timed_is_what_its_row_says(monkeypatch):
    seen = []

    def timed(runs, steps):
        (run,) = runs
        crops = run.network.transformer.copies if run.network.transformer else 0
        data, settings = run.cell.data, run.settings
        seen.append((data.size, data.shown, crops, settings.precision, settings.layout))
        return 1.0

    monkeypatch.setattr(birds, "IMAGES", 200)
    monkeypatch.setattr(birds, "timed", timed)
    settings, ways = birds.BirdSettings(batch=2, backbone="efficientnet-lite0"), birds.EVERY[2:]
    list(birds.run("cpu", 1, settings, side=32, size=(40, 50), ways=lambda case: ways))
    sizes = [(32, 32, 0), (32, 32, 2), (64, 32, 2), (32, 32, 4), (64, 32, 4)]
    assert seen == [(*size, way.precision, way.layout) for size in sizes for way in ways]
