"""What a trained cell leaves behind: a JSON file with all that a table, a plot or a doubt may ask for."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import math
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .data.fetch import in_one_step


class RecordError(ValueError):
    """A file that is no record; the message names it."""


@dataclass(frozen=True)
class Point:
    """Of a curve: means over the steps since the point before."""

    step: int
    loss: float
    error: float  # percent of the training batches

    def __post_init__(self) -> None:
        check(self)
        check_percentage(self.error)


@dataclass(frozen=True)
class Record:
    """One run of one cell."""

    experiment: str
    cell: str  # such as "R/ST-CNN affine"
    seed: int
    status: str  # "done" or "failed"
    reason: str | None  # why it failed
    error: float | None  # percent of the fixed test set, of the final weights; None where there are none
    paper: float | None  # the paper's
    digits: str  # the data: "MNIST", or what stood in for it, "SVHN" and so on
    steps: int
    seconds: float  # of its steps alone; of steps that several runs take side by side, its share
    device: str
    commit: str
    date: str  # such as "2026-01-31"
    versions: dict[str, str]
    settings: dict[str, Any]
    parameters: int
    curve: list[Point]
    measures: dict[str, float] = field(default_factory=dict)  # of the test set, where there are any

    def __post_init__(self) -> None:
        check(self)
        if self.status not in ("done", "failed"):
            raise ValueError(f"status must be 'done' or 'failed', got {self.status!r}")
        if (self.status == "failed") != (self.reason is not None):
            raise ValueError(f"reason must be given where a run failed, and only there, got {self.reason!r}")
        if self.status == "done" and self.error is None:
            raise ValueError("error must be given where a run is done, got None")
        if self.error is not None:
            check_percentage(self.error)
        for name in ("seed", "steps", "seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.parameters < 1:
            raise ValueError(f"parameters must be at least 1, got {self.parameters}")
        for name in ("digits", "device", "commit"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} must be given, got {getattr(self, name)!r}")
        check_date(self.date)
        wanted: Any = self.settings.get("steps")
        if not fits(wanted, int):
            raise ValueError(f"settings must have steps, a whole number, got {wanted!r}")
        if self.steps > wanted or (self.status == "done" and self.steps < wanted):
            raise ValueError(
                f"steps must be the {wanted} of the settings, or fewer where a run failed, got {self.steps}"
            )
        for before, step in itertools.pairwise([0, *(point.step for point in self.curve)]):
            if not before < step <= self.steps:
                raise ValueError(
                    f"steps of the curve must ascend from 1 to {self.steps}, got {step} after {before}"
                )
        if self.status == "done" and not self.curve:
            raise ValueError("the curve of a run that is done must have points, got none")


def check(value: Any) -> None:
    """Raises where a field of a dataclass is not of its type."""
    for name, kind in typing.get_type_hints(type(value)).items():
        given = getattr(value, name)
        if not fits(given, kind):
            raise TypeError(
                f"{name} must be {kind if typing.get_args(kind) else kind.__name__}, got {given!r}"
            )


def check_date(text: str) -> None:
    try:
        written = datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        written = None
    if written != text:
        raise ValueError(f"date must be such as 2026-01-31, got {text!r}")


def check_percentage(error: float) -> None:
    if not 0 <= error <= 100:
        raise ValueError(f"error must be a percentage, got {error}")


def fits(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if kind is float:  # JSON has no other way to write 2.0; what is no number has no place in a record
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return any(fits(value, one) for one in arguments)
    if origin is list:
        return isinstance(value, list) and all(fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            fits(key, arguments[0]) and fits(item, arguments[1]) for key, item in value.items()
        )
    return isinstance(value, kind)


def read(path: Path) -> Record:
    """A record, or an error that names the file and what is wrong with it."""
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise TypeError(f"a record must be an object, got {type(content).__name__}")
        known = {field.name for field in dataclasses.fields(Record)}
        for what, names in (("lacks", known - set(content)), ("does not know", set(content) - known)):
            if names:
                raise ValueError(f"a record {what} {', '.join(sorted(names))}")
        content["curve"] = [Point(**point) for point in content["curve"]]
        return Record(**content)
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path} is no record: {error}") from error


def write(record: Record, path: Path) -> None:
    """Puts a record in place in one step."""
    with in_one_step(path) as file:
        file.write((json.dumps(dataclasses.asdict(record), indent=1, allow_nan=False) + "\n").encode())


def path_of(folder: Path, experiment: str, cell: str, seed: int, changed: dict[str, Any]) -> Path:
    """Where a record is kept; runs with changed settings are not taken for the others."""
    parts = [*cell.replace("/", " ").split(), *(f"{key}={value}" for key, value in sorted(changed.items()))]
    return folder / experiment / f"{'-'.join(parts)}-seed{seed}.json"


def paths(experiment: str, folder: Path) -> list[Path]:
    """Where all records of an experiment are."""
    return sorted((folder / experiment).glob("*.json"))
