"""The records that a table or a picture is made of."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import records
from .data import uci_digits
from .records import Record, RecordError
from .spec import LATER, Cell, Experiment


class Result(NamedTuple):
    """A record, where it is, and what was done otherwise than the experiment says."""

    path: Path
    record: Record
    cell: Cell  # as the experiment has it

    @property
    def changed(self) -> dict[str, Any]:
        """Settings."""
        return unusual(self.record.settings, self.cell)

    @property
    def digits(self) -> str:
        """Which data; "MNIST, 10,000 held out" are MNIST, and a changed setting."""
        return self.record.digits.split(",")[0]


class Wanted(NamedTuple):
    """Which records count."""

    settings: Mapping[str, Any]  # for those cells that do not have them so anyway
    digits: str

    def counts(self, result: Result) -> bool:
        settings = dataclasses.asdict(result.cell.settings) | dict(self.settings)
        return result.changed == unusual(settings, result.cell) and result.digits == self.digits

    @property
    def options(self) -> str:
        """As they are given on the command line, a space before each."""
        settings = f" {assigned(self.settings)}" if self.settings else ""
        return settings + (" --digits packaged" if self.digits == uci_digits.NAME else "")


def as_the_paper(of: Experiment | Cell) -> Wanted:
    """What stands beside the paper's numbers."""
    return Wanted({}, of.task.data)


def assigned(changed: Mapping[str, Any]) -> str:
    """
    >>> assigned({"steps": 3000, "batch": 64})
    'batch=64 steps=3000'
    """
    return " ".join(f"{name}={value}" for name, value in sorted(changed.items()))


def apart(changed: Mapping[str, Any], digits: str, of: Experiment | Cell) -> dict[str, Any]:
    """What sets runs apart from those of the table, as the names of their files have it."""
    return {**changed, **({} if digits == of.task.data else {"digits": re.sub(r"\W+", "-", digits)})}


def asked(experiment: Experiment, settings: Mapping[str, Any], digits: str) -> Wanted:
    """The records of runs with some settings; those that all cells have anyway are not said."""
    usual = [vars(cell.settings) for cell in experiment.cells]
    return Wanted(
        {
            name: value
            for name, value in settings.items()
            if any(name not in known or value != known[name] for known in usual)
        },
        digits,
    )


def unusual(settings: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """Those settings that are not the cell's own. A record that is older than a setting has its default: what
    was done before there was a choice. Without a transformer those of transformers are as good as any."""
    known = dataclasses.asdict(cell.settings)
    given = {field.name: field.default for field in dataclasses.fields(cell.settings)} | dict(settings)
    return {name: value for name, value in given.items() if value != known[name] and cell.heeds(name)}


def of(experiment: Experiment, folder: Path) -> list[Result]:
    """All results of an experiment. What is no record of it, or is there twice, is refused by name."""
    cells = {cell.name: cell for cell in experiment.cells}
    found = []
    seen: dict[tuple[Any, ...], Path] = {}
    for path in records.paths(experiment.name, folder):
        record = records.read(path)
        if record.experiment != experiment.name or record.cell not in cells:
            raise RecordError(f"{path} is of {record.experiment} {record.cell}, no cell of {experiment.name}")
        result = Result(path, record, cells[record.cell])
        check(result)
        run = (record.cell, record.seed, record.digits, assigned(result.changed))
        if run in seen:
            raise RecordError(f"{path} is of the same run as {seen[run]}: {record.cell}, seed {record.seed}")
        seen[run] = path
        found.append(result)
    return found


def check(result: Result) -> None:
    """Refuses by name a record that does not agree with its own name, or with what its experiment says."""
    path, record, cell = result
    begin, end = "-".join(cell.name.replace("/", " ").split()), f"-seed{record.seed}"
    if not (path.stem.startswith(f"{begin}-") and path.stem.endswith(end)):
        raise RecordError(
            f"{path} is of {cell.name}, seed {record.seed}: "
            f"its name must begin with {begin} and end with {end}"
        )
    if record.paper != cell.paper:
        raise RecordError(
            f"{path} is no record: paper must be {cell.paper} as of {cell.name}, got {record.paper}"
        )
    try:
        check_settings(record.settings, cell)
    except ValueError as error:
        raise RecordError(f"{path} is no record: {error}") from error


def check_settings(settings: Mapping[str, Any], cell: Cell) -> None:
    """Raises where a record's settings are not those that its experiment has, each of its type and range."""
    kinds = typing.get_type_hints(type(cell.settings))
    for what, names in (
        ("lack", set(kinds) - set(settings) - LATER),
        ("have no", set(settings) - set(kinds)),
    ):
        if names:
            raise ValueError(f"settings of {cell.experiment} {what} {', '.join(sorted(names))}")
    for name, value in settings.items():
        if not records.fits(value, kinds[name]):
            raise ValueError(f"{name} of the settings must be {kinds[name].__name__}, got {value!r}")
    type(cell.settings)(**settings)  # which refuses what is out of range


def by_cell(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Results by the names of their cells, seed by seed."""
    found: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: result.record.seed):
        found.setdefault(result.record.cell, []).append(result)
    return found
