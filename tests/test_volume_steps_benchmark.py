"""The benchmark of steps on volumes: with and without the fused kernels, and nothing else is different."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("numba")

from benchmarks import steps, volume_steps
from spatial_transformer.experiments.data import uci_digits
from spatial_transformer.experiments.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = {f"{precision}, {impl}" for precision in ("mixed", "float32") for impl in ("fused", "torch")}


def test_what_is_measured(tmp_path, capsys):
    path = tmp_path / "result.json"
    arguments = ["--device", "cpu", "--batch", "2", "--steps", "1"]
    assert volume_steps.main([*arguments, "--out", str(path)]) == 0
    result = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert [case["name"] for case in result["cases"]] == ["3D/CNN", "3D/ST-CNN"]
    assert all(set(case["milliseconds"]) == NAMES for case in result["cases"])
    assert all(value > 0 for case in result["cases"] for value in case["milliseconds"].values())
    result["cases"][1]["milliseconds"]["mixed, fused"] = 3.0
    result["cases"][1]["milliseconds"]["mixed, torch"] = 12.0
    assert volume_steps.markdown(result).splitlines()[4] == (
        "| 3D/ST-CNN | mixed | 3.00 | 12.00 | 4.00 | 2.0 min |"
    )
    assert volume_steps.markdown(result).splitlines()[-1].startswith("Batch 2; CPU")
    capsys.readouterr()


def test_both_warps_are_made_by_the_implementation(monkeypatch):
    (cell,) = (cell for cell in volume_steps.EXPERIMENT.cells if cell.name == "3D/ST-CNN")
    run = Run(steps.with_settings(cell, batch=2), 0, uci_digits.load(), "cpu")
    asked = []

    def choose(impl, *given):
        asked.append(impl)
        return real(impl, *given)

    from spatial_transformer import sampling

    real = sampling.choose
    monkeypatch.setattr(sampling, "choose", choose)
    losses = {}
    for impl in volume_steps.IMPLEMENTATIONS:
        asked.clear()
        run.random.set_state(0)
        volume_steps.warp_by(run, impl)
        run.step()  # at a learning rate of 0
        losses[impl] = run.means(1)[0]
        assert asked == [impl, impl]
    assert losses["fused"] == pytest.approx(losses["torch"], rel=1e-4)
