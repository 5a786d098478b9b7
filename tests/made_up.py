"""Records and probes of networks on digits: some never trained, others to be trained for a few steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from spatial_transformer.experiments import probes, results
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.data import uci_digits
from spatial_transformer.experiments.jobs import placed
from spatial_transformer.experiments.pictures import Trained
from spatial_transformer.experiments.records import Point, Record

EXPERIMENT = EXPERIMENTS["distorted-mnist"]
CELLS = {cell.name: cell for cell in EXPERIMENT.cells}
WITH, WITHOUT = "R/ST-FCN affine", "R/FCN"


def record_of(cell, seed, error, curve, **fields):
    given = {
        "experiment": cell.experiment, "cell": cell.name, "seed": seed, "status": "done", "reason": None,
        "error": error, "paper": cell.paper, "digits": uci_digits.NAME, "steps": cell.settings.steps,
        "seconds": 1.0, "device": "CPU", "commit": "c" * 40, "date": "2026-01-01", "versions": {},
        "settings": dataclasses.asdict(cell.settings), "parameters": 60_000,
        "curve": curve or [Point(1, 2.0, 80.0)], **fields,
    }  # fmt: skip
    return Record(**given)


def made_up(name, theta, predictions=(), steps=(), thetas=None):
    cell = CELLS[name]
    dim = theta.shape[1]
    thetas = np.zeros((0, 0, dim), np.float16) if thetas is None else thetas
    probe = probes.Probe(np.array(predictions, np.uint8), theta, np.array(steps, np.int64), thetas)
    return Trained(results.Result(None, record_of(cell, 0, 1.0, []), cell), probe)


def jobs_of(experiment, names, changed, folder):
    """Those cells with changed settings, to be trained on the packaged digits into a folder."""
    cells = {cell.name: cell for cell in experiment.cells}
    chosen = [
        dataclasses.replace(cells[name], settings=dataclasses.replace(cells[name].settings, **changed))
        for name in names
    ]
    named = {**changed, "digits": "UCI-digits"}
    return placed(chosen, [0], folder, folder / "runs", lambda cell: named)


def with_variant(names, changed):
    """Names of pictures, as those of runs with changed settings on the packaged digits have them."""
    variant = "-".join(f"{key}={value}" for key, value in sorted({**changed, "digits": "UCI-digits"}.items()))
    return [f"{Path(name).stem}-{variant}{Path(name).suffix}" for name in names]
