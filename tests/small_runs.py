"""Jobs small enough to be trained in a second."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spatial_transformer.experiments.catalogue import EXPERIMENTS, chosen
from spatial_transformer.experiments.jobs import placed

SMALL = {"parameters": 80_000, "batch": 16, "steps": 30, "learning_rate": 0.02, "curve": 5}
SMALL_COLOCALISATION = {"steps": 8, "batch": 6, "parameters": 6000, "curve": 4}


def stuck_at(monkeypatch, error, *names):
    """A run of these experiments that errs more has learnt nothing."""
    for name in names or ("distorted-mnist",):
        task = dataclasses.replace(EXPERIMENTS[name].task, stuck=error)
        monkeypatch.setitem(EXPERIMENTS, name, dataclasses.replace(EXPERIMENTS[name], task=task))


def never_stuck(monkeypatch, *names):
    """Some steps teach next to nothing."""
    stuck_at(monkeypatch, None, *names)


def jobs(*names, seeds=(0,), **changes):
    cells = [
        dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, **{**SMALL, **changes}))
        for cell in chosen(EXPERIMENTS["distorted-mnist"])
        if cell.name in names
    ]
    assert len(cells) == len(names)
    return placed(cells, seeds, Path("results"), Path("runs"))


def colocalising(name, **changes):
    """A cell of co-localisation."""
    (cell,) = (cell for cell in EXPERIMENTS["colocalisation"].cells if cell.name == name)
    settings = dataclasses.replace(cell.settings, **{**SMALL_COLOCALISATION, **changes})
    return dataclasses.replace(cell, settings=settings)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def counted(looks):
    """A stop that says yes at the so many-th look."""
    seen = iter(range(looks - 1))
    return lambda: next(seen, None) is None


class Waits(TorchDispatchMode):
    """Notes what would wait for a device: values or shapes that the host has to know, or makes tensors of.

    Copies from the host to a device cannot be seen on a CPU: the tests of captured steps, on a GPU, see them.
    """

    NAMES = (
        "_local_scalar",
        "nonzero",
        "masked_select",
        "lift_fresh",
        "unique",
        "bincount",
        "repeat_interleave",
    )

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = str(function)
        by_mask = name.startswith(("aten.index.", "aten.index_put")) and any(
            place is not None and place.dtype in (torch.bool, torch.uint8) for place in arguments[1]
        )
        if by_mask or any(part in name for part in self.NAMES):
            self.found.append(name)
        return function(*arguments, **(options or {}))
