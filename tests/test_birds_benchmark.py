"""The benchmark of steps on birds: it measures what trains, and its table says what was measured."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("numba")

from benchmarks import birds, steps

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
    assert birds.WAYS[0] == ("mixed", "channels-last")
    assert len(birds.WAYS) == 4
    assert [case["name"] for case in result["cases"]] == ["CNN 224px", *names[:2]]
    for case in result["cases"]:
        assert case["milliseconds"]["mixed, channels-last"] > 0


def test_the_table(result):
    names = [case.name for case in birds.CASES]
    result["cases"] = [
        {"name": name, "milliseconds": {"mixed, channels-last": milliseconds, "float32, contiguous": 99.0}}
        for name, milliseconds in zip(names, (10.0, 30.0, 33.0, 50.0, 60.0), strict=True)
    ]
    result["settings"] |= {"batch": 64, "steps": 6000}
    lines = birds.markdown(result).splitlines()
    ways = "mixed, channels-last, ms | float32, contiguous, ms"
    assert lines[0] == f"| cell | {ways} | images a second | of 224 px | 6,000 steps |"
    assert lines[2] == "| CNN 224px | 10.0 | 99.0 | 6,400 |  | 1.0 min |"
    assert lines[4].endswith("| 1,939 | 1.10 times, 1.15 met | 3.3 min |")
    assert lines[6].endswith("| 1,067 | 1.20 times, 1.15 missed | 6.0 min |")
    assert lines[-1].startswith("Batch 64, efficientnet-lite0; CPU, torch ")


def test_what_does_not_train_is_not_measured(monkeypatch):
    monkeypatch.setattr(birds.FineGrainedRun, "means", lambda run, count: (float("nan"), 0.0))
    settings = birds.BirdSettings(batch=2, backbone="efficientnet-lite0")
    with pytest.raises(RuntimeError, match="224px/CNN does not train: its loss is nan"):
        birds.run("cpu", 1, settings, side=32, size=(40, 50))
