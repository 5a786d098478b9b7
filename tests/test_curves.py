"""Training curves: lines and dots are what the records say."""

from __future__ import annotations

import dataclasses

from made_up import CELLS, WITH, WITHOUT, record_of

from spatial_transformer.experiments import curves, results
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.data import uci_digits
from spatial_transformer.experiments.records import Point


def run_of(name, seed, curve, error=2.0, digits="MNIST", **fields):
    record = record_of(CELLS[name], seed, error, curve, digits=digits, **fields)
    return results.Result(None, record, CELLS[name])


def test_curves_are_the_records():
    first = [Point(10, 1.0, 40.0), Point(20, 0.5, 8.0), Point(30, 0.5, 0.0)]
    second = [Point(10, 1.0, 60.0), Point(20, 0.5, 10.0)]
    runs = [
        (CELLS[WITHOUT], [run_of(WITHOUT, 0, first)]),
        (CELLS[WITH], [run_of(WITH, 0, first, 1.0), run_of(WITH, 1, second, 2.0)]),
        (CELLS["R/CNN"], [run_of("R/CNN", 0, second, None, status="failed", reason="nan")]),
    ]
    axes = curves.curves("R", runs).axes[0]
    assert axes.get_yscale() == "log"
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines["FCN: 2.00 % (2.1 %)"] == [[10, 40], [20, 8], [30, 0]]
    assert lines["ST-FCN affine: 1.50 % (1.2 %)"] == [[10, 50], [20, 9]]  # as far as both seeds went
    assert lines["CNN: failed (1.2 %)"] == [[10, 60], [20, 10]]
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert shown == ["FCN: 2.00 % (2.1 %)", "ST-FCN affine: 1.50 % (1.2 %)", "CNN: failed (1.2 %)"]
    assert axes.get_legend().get_title().get_text() == "test error (the paper's)"
    dots = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert dots == [[[30, 2]], [[20, 1.5]]]


def test_the_papers_error_stands_beside_what_is_trained_as_it_says():
    settings = {**dataclasses.asdict(CELLS[WITHOUT].settings), "steps": 300}
    for other in ({"digits": uci_digits.NAME}, {"settings": settings, "steps": 300}):
        runs = [(CELLS[WITHOUT], [run_of(WITHOUT, 0, [Point(10, 1.0, 40.0)], **other)])]
        legend = curves.curves("R", runs).axes[0].get_legend()
        assert [text.get_text() for text in legend.get_texts()] == ["FCN: 2.00 %"]
        assert legend.get_title().get_text() == "test error"


def test_every_model_has_its_own_colour():
    for experiment in EXPERIMENTS.values():
        models = [model for model in experiment.models if model.digit is None]  # others have boxes, no curves
        assert len({curves.colour_of(model) for model in models}) == len(models)
