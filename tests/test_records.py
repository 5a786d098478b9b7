"""Records: written, read back, and refused where they are none."""

from __future__ import annotations

import dataclasses
import json

import pytest

from spatial_transformer.experiments import records
from spatial_transformer.experiments.records import Point, Record, RecordError

RECORD = Record(
    experiment="distorted-mnist",
    cell="R/ST-CNN affine",
    seed=0,
    status="done",
    reason=None,
    error=0.71,
    paper=0.7,
    digits="MNIST",
    steps=150_000,
    seconds=1234.5,
    device="a device",
    commit="0" * 40,
    date="2026-01-01",
    versions={"torch": "2.13"},
    settings={"steps": 150_000, "learning_rate": 0.01},
    parameters=400_000,
    curve=[Point(500, 1.5, 40.0), Point(1000, 0.5, 10)],
)


def curve(*steps):
    return [{"step": step, "loss": 0.1, "error": 1} for step in steps]


def test_a_record_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "deep" / "record.json"
    records.write(RECORD, path)
    assert records.read(path) == RECORD
    assert [file.name for file in path.parent.iterdir()] == ["record.json"]


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Record)])
def test_a_record_has_it_all(tmp_path, name):
    path = tmp_path / "record.json"
    content = dataclasses.asdict(RECORD)
    del content[name]
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=rf"record\.json is no record: a record lacks {name}"):
        records.read(path)


def test_measures_are_kept(tmp_path):
    path = tmp_path / "record.json"
    measured = dataclasses.replace(RECORD, measures={"apart": 93.5})
    records.write(measured, path)
    assert records.read(path) == measured


def test_a_failed_run_has_a_record(tmp_path):
    failed = dataclasses.replace(RECORD, status="failed", reason="the loss is nan", error=None, steps=1000)
    records.write(failed, tmp_path / "record.json")
    assert records.read(tmp_path / "record.json") == failed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": "0"}, "seed must be int, got '0'"),
        ({"seed": True}, "seed must be int, got True"),
        ({"error": None}, "error must be given where a run is done"),
        ({"error": "low"}, "error must be float | None, got 'low'"),
        ({"error": 101}, "error must be a percentage, got 101"),
        ({"status": "well"}, "status must be 'done' or 'failed', got 'well'"),
        ({"status": "failed"}, "reason must be given where a run failed"),
        ({"reason": "why"}, "reason must be given where a run failed, and only there"),
        ({"curve": [{"step": 1, "loss": 0.1}]}, "error"),
        ({"curve": [{"step": 1.5, "loss": 0.1, "error": 1}]}, "step must be int, got 1.5"),
        ({"curve": 3}, "is no record"),
        ({"versions": {"torch": 2}}, "versions must be dict[str, str], got {'torch': 2}"),
        ({"seconds": -1}, "seconds must not be negative, got -1"),
        ({"seed": -1}, "seed must not be negative, got -1"),
        ({"parameters": 0}, "parameters must be at least 1, got 0"),
        ({"commit": ""}, "commit must be given, got ''"),
        ({"device": " "}, "device must be given, got ' '"),
        ({"digits": ""}, "digits must be given, got ''"),
        ({"date": "yesterday"}, "date must be such as 2026-01-31, got 'yesterday'"),
        ({"date": "2026-02-30"}, "date must be such as 2026-01-31, got '2026-02-30'"),
        ({"date": "20260131"}, "date must be such as 2026-01-31"),
        ({"curve": []}, "the curve of a run that is done must have points, got none"),
        ({"settings": {}}, "settings must have steps, a whole number, got None"),
        (
            {"steps": 149_999},
            "steps must be the 150000 of the settings, or fewer where a run failed, got 149999",
        ),
        ({"steps": 150_001}, "steps must be the 150000 of the settings"),
        ({"settings": {"steps": "many"}}, "settings must have steps, a whole number, got 'many'"),
        ({"curve": curve(500, 500)}, "steps of the curve must ascend from 1 to 150000, got 500 after 500"),
        ({"curve": curve(1000, 500)}, "steps of the curve must ascend"),
        ({"curve": curve(0, 500)}, "steps of the curve must ascend from 1"),
        ({"curve": curve(500, 150_001)}, "steps of the curve must ascend from 1 to 150000"),
        ({"curve": [{"step": 1, "loss": 0.1, "error": 100.5}]}, "error must be a percentage, got 100.5"),
        ({"curve": [{"step": 1, "loss": 0.1, "error": -1}]}, "error must be a percentage, got -1"),
        ({"measures": {"apart": "most"}}, "measures must be dict[str, float], got {'apart': 'most'}"),
        ({"colour": "red"}, "does not know colour"),
    ],
)
def test_what_is_no_record_is_refused_by_name(tmp_path, change, message):
    path = tmp_path / "R-CNN-seed0.json"
    path.write_text(json.dumps({**dataclasses.asdict(RECORD), **change}))
    with pytest.raises(RecordError) as raised:
        records.read(path)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "3", '{"experiment": "x"', "{}", '{"error": NaN}'])
def test_broken_files_are_refused_by_name(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"broken\.json is no record"):
        records.read(path)


def test_numbers_that_are_none_are_not_written(tmp_path):
    with pytest.raises(TypeError, match="loss must be float, got nan"):
        Point(1, float("nan"), 0.0)


def test_where_records_are(tmp_path):
    place = records.path_of(tmp_path, "distorted-mnist", "R/ST-CNN affine", 2, {})
    assert place == tmp_path / "distorted-mnist" / "R-ST-CNN-affine-seed2.json"
    changed = records.path_of(tmp_path, "distorted-mnist", "R/CNN", 0, {"steps": 30, "batch": 8})
    assert changed.name == "R-CNN-batch=8-steps=30-seed0.json"
    records.write(RECORD, place)
    assert [records.read(path) for path in records.paths("distorted-mnist", tmp_path)] == [RECORD]
    assert records.paths("birds", tmp_path) == []
