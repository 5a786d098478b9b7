"""The benchmark of the data: what it measures is right, and its table says what was measured."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import data

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def result(tmp_path_factory, one_thread):
    path = tmp_path_factory.mktemp("data") / "data.json"
    assert data.main(["--quick", "--out", str(path)]) == 0
    return json.loads(path.read_text(), parse_constant=pytest.fail)


def test_every_case_is_right_and_timed(result):
    assert [case["kind"] for case in result["cases"]] == [case.kind for case in data.CASES]
    for case, given in zip(result["cases"], data.CASES, strict=True):
        assert (data.PEER in case["contenders"]) == given.peer
        for found in case["contenders"].values():
            assert found["error"] <= data.TOLERANCE
            assert found["images_per_second"] == pytest.approx(4 / found["median"])
        if case["goal"] is not None:
            assert case["met"] == (case["contenders"][data.OURS]["median"] <= case["goal"])


def test_the_goals_are_those_of_the_design():
    goals = {case.kind: case for case in data.CASES}
    assert goals["RTS"].goal("cuda") == goals["E"].goal("cuda") == 0.15e-3
    assert goals["3D"].goal("cuda") == 2e-3
    assert (goals["RTS"].count, goals["E"].count, goals["3D"].count) == (256, 256, 32)
    assert 256 / goals["RTS"].goal("cpu") == pytest.approx(20_000)


def test_what_is_wrong_gets_no_time(monkeypatch):
    def off(distortion, images, drawn):
        return distortion.apply(images, drawn) + 0.01

    monkeypatch.setitem(data.APPLIED, data.PEER, off)
    case = next(case for case in data.CASES if case.kind == "RTS")._replace(count=4)
    found = data.run("cpu", data.QUICK, [case])["cases"][0]["contenders"]
    assert found[data.PEER]["wrong"]
    assert "median" not in found[data.PEER]
    assert not found[data.OURS]["wrong"]


def test_the_table(result, tmp_path, capsys):
    lines = data.markdown(result).splitlines()
    assert len([line for line in lines if line.startswith("|")]) == 2 + len(data.CASES)
    row = next(line for line in lines if line.startswith("| RTS |"))
    ours = result["cases"][1]["contenders"][data.OURS]
    assert f"{ours['images_per_second']:,.0f}" in row
    document, saved = tmp_path / "data.md", tmp_path / "data.json"
    saved.write_text(json.dumps(result))
    document.write_text(f"a\n<!-- {saved.as_posix()}, rendered -->\nold\n<!-- end -->\nb\n")
    assert data.main(["--table", str(saved), "--into", str(document)]) == 0
    assert row in document.read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so(capsys):
    with pytest.raises(SystemExit):
        data.main(["--device", "cuda"])
    assert "there is no CUDA device" in capsys.readouterr().err
