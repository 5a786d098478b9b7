"""The benchmark of training steps: it measures what trains, and its table says what was measured."""

from __future__ import annotations

import json

import pytest

from benchmarks import steps

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def result(tmp_path_factory, one_thread):
    path = tmp_path_factory.mktemp("steps") / "steps.json"
    assert steps.main(["--quick", "--out", str(path)]) == 0
    return json.loads(path.read_text(), parse_constant=pytest.fail)


def test_what_is_measured(result):
    assert [case["name"] for case in result["cases"]] == ["FCN on R", "ST-FCN affine on R"]
    for case in result["cases"]:
        assert set(case["milliseconds"]) == {"mixed, 1", "mixed, 2", "float32, 1"}
        assert all(milliseconds > 0 for milliseconds in case["milliseconds"].values())


def test_the_goals_are_those_asked_for():
    goals = {case.name: case.goal for case in steps.CASES}
    assert (goals["FCN on R"], goals["ST-FCN affine on R"]) == (0.05, 0.10)
    assert (goals["ST-CNN affine on R"], goals["ST-CNN affine on RTS"]) == (0.45, 0.60)
    assert len(steps.CELLS) == 36
    assert goals[steps.ALL] * 36 * 150_000 == pytest.approx(35 * 60_000)


def test_the_table(result):
    result["cases"][0]["milliseconds"] = {"mixed, 1": 0.2, "mixed, 12": 0.48, "float32, 1": 1.0}
    lines = steps.markdown(result).splitlines()
    assert lines[2] == "| FCN on R | 1 | 0.200 | 1.000 | 0.5 min |  |"
    assert lines[3] == "| FCN on R | 12 | 0.040 |  | 1.2 min | 0.05 met |"
    result["cases"][0]["milliseconds"]["mixed, 12"] = 0.72
    assert steps.markdown(result).splitlines()[3].endswith("| 0.05 missed |")


def test_what_does_not_train_is_not_measured(monkeypatch):
    monkeypatch.setattr(steps.Run, "means", lambda run, count: (float("nan"), 0.0))
    with pytest.raises(RuntimeError, match="R/FCN does not train"):
        steps.measured([steps.with_settings(steps.CELLS["R/FCN"], batch=8)], "cpu", 1)
