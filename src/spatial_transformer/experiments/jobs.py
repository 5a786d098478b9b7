"""Jobs: cells and seeds with the files that belong to them, and the locks on these."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from . import records
from .extra import extra
from .spec import Cell


class Job(NamedTuple):
    """A cell and a seed, and the files that belong to them."""

    cell: Cell
    seed: int
    record: Path
    checkpoint: Path
    variant: str = ""  # what sets it apart from others of the same cell and seed

    @property
    def name(self) -> str:
        return f"{self.run}, {self.variant}" if self.variant else self.run

    @property
    def run(self) -> str:
        return f"{self.cell.name}, seed {self.seed}"

    @property
    def locks(self) -> list[Path]:
        """Beside the record and beside the checkpoint, since commands may share either folder alone: who
        writes these must hold both."""
        return [path.with_name(f".{path.name}.lock") for path in (self.record, self.checkpoint)]

    @property
    def weights(self) -> Path:
        """The trained network's."""
        return self.checkpoint.with_name(f"{self.record.stem}.safetensors")


def placed(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    results: Path,
    runs: Path,
    changed: Callable[[Cell], Mapping[str, Any]] = lambda cell: {},
) -> list[Job]:
    """A job for each cell and seed, with its places; cells with the same place are one.

    changed: what sets a cell's run apart from that of the table, by name.
    """
    found = dict[Path, Job]()
    names = varied(cells)
    for seed in seeds:
        for cell in cells:
            record = records.path_of(results, cell.experiment, cell.name, seed, dict(changed(cell)))
            checkpoint = runs / cell.experiment / f"{record.stem}.checkpoint.safetensors"
            variant = " ".join(f"{name}={getattr(cell.settings, name)}" for name in names)
            found.setdefault(record, Job(cell, seed, record, checkpoint, variant))
    return list(found.values())


def varied(cells: Sequence[Cell]) -> list[str]:
    """The settings in which some cells differ from others of the same name."""
    first = {cell.name: vars(cell.settings) for cell in reversed(cells)}
    return [
        name
        for name in vars(cells[0].settings)
        if any(vars(cell.settings)[name] != first[cell.name][name] for cell in cells)
    ]


def locked(job: Job) -> ExitStack | None:
    """The locks on a job, held until they are closed; None where another process holds one of them."""
    filelock = extra("filelock")
    for folder in (job.checkpoint.parent, job.record.parent):  # not found out after hours of training
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"{folder} cannot be written to")
    with ExitStack() as held:
        for path in job.locks:
            try:
                held.enter_context(filelock.FileLock(path).acquire(timeout=0))
            except filelock.Timeout:
                return None
        return held.pop_all()
