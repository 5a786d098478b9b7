"""Runs that come to nothing: they are recorded as failed, and the others go on."""

from __future__ import annotations

import dataclasses

import pytest
import torch

pytest.importorskip("filelock")
pytest.importorskip("safetensors.torch")

from small_runs import SMALL, jobs, stuck_at

from spatial_transformer.experiments import engine, records
from spatial_transformer.experiments.spec import DigitSettings

pytestmark = pytest.mark.usefixtures("alone_in_a_folder")

CPU = torch.device("cpu")


def test_a_diverged_run_is_recorded_as_failed(digits):
    first, second = jobs("R/FCN", "E/FCN")
    first = first._replace(
        cell=dataclasses.replace(first.cell, settings=DigitSettings(**SMALL | {"learning_rate": 1e9}))
    )
    outcome = engine.train([first, second], digits, CPU, at_once=2)
    by_cell = {record.cell: record for record in outcome.records}
    assert by_cell["E/FCN"].status == "done"
    failed = records.read(first.record)
    assert (failed.status, failed.error) == ("failed", None)
    assert failed.reason == "the loss is nan after 6 steps"
    assert failed.steps == 6
    assert not first.checkpoint.exists()


def test_a_run_stuck_at_chance_is_recorded_as_failed(digits, monkeypatch):
    stuck_at(monkeypatch, 85.0)
    (job,) = jobs("R/FCN", learning_rate=1e-9)
    (record,) = engine.train([job], digits, CPU).records
    assert record.status == "failed"
    assert record.error > 85
    assert record.reason == f"stuck at chance: {record.error:.1f} % of the answers are wrong"


@pytest.mark.parametrize(("long", "ended"), [(7, 8), (3, 6), (30, 20)])
def test_what_is_stuck_at_chance_does_not_go_on(digits, monkeypatch, long, ended):
    """After so many steps, a quarter of all at least, at the next point of the curve."""
    stuck_at(monkeypatch, 5.0)
    monkeypatch.setattr(engine, "LONG", long)
    (job,) = jobs("R/FCN", learning_rate=1e-9, steps=20, curve=10)
    (record,) = engine.train([job], digits, CPU).records
    assert (record.status, record.steps, record.curve[-1].step) == ("failed", ended, ended)
    assert not job.checkpoint.exists()
    if ended < 20:
        wrong = record.curve[-1].error
        assert record.reason == (
            f"stuck at chance: {wrong:.1f} % of the answers are wrong in training after {ended} steps"
        )
        assert record.error is None
