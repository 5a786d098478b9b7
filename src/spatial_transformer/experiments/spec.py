"""What one cell of a table is. All of it is frozen, so that a record says exactly what was trained."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from .arguments import UsageError

PRECISIONS = ("mixed", "float32")
CLASSES = 10  # of digits
# Settings that came later than some of the records in results/, which have been trained with their defaults.
LATER = frozenset(
    {
        "localiser_rate",
        "schedule",
        "rate_rise",
        "views",
        "elastic",
        "shear",
        "blend",
        "erased",
        "parts",
        "swapped",
    }
)
OF_TRANSFORMERS = ("localiser_", "alone", "together")  # how settings begin that matter to no other network
FASTEST = 1e30  # a learning rate that float32 holds


@dataclass(frozen=True)
class Task:
    """What an experiment does. ``tasks`` has, by its name, how its data are loaded and what trains a cell."""

    name: str
    data: str  # what the paper trains on, as records name it
    stuck: float | None = None  # percent: more than that is wrong where a network has learnt nothing


# A network that answers at random is wrong in 90 of 100 cases.
DIGITS = Task("digits", "MNIST", stuck=85.0)


@dataclass(frozen=True)
class Model:
    """A row of a table: a classification network, with or without spatial transformers before it."""

    name: str  # as the table has it
    classifier: str  # "FCN" or "CNN"
    transformer: str | None = None  # its family: of ``networks.FAMILIES``
    transformers: int = 1  # how many of them stand side by side, if any do
    second: int | None = None  # units of an FCN's second hidden layer; None: as many as its first has
    digit: int | None = None  # that all images show, where they are of one class


@dataclass(frozen=True)
class Data:
    """A column of a table: a kind of images, and what a transformer makes of them."""

    kind: str  # of ``data.fixed_sets.KINDS``, where they are distorted digits
    size: int  # pixels of an image along each axis
    shown: int  # pixels that a transformer gives
    pooling: int = 1  # average pooling of what it gives, before the classification network
    channels: int = 1  # a digit in each; the label is the sum of the digits
    classes: int = CLASSES
    dims: int = 2  # 3: volumes, whose depth is summed up before the classification network


@dataclass(frozen=True)
class Settings:
    """How a cell is trained: what all experiments have, and each adds to as a class of its own.

    Each setting has a default of its type, a whole number, a number or a text, and can be given on the
    command line.
    """

    steps: int = 150_000
    batch: int = 256
    learning_rate: float = 0.01
    stages: int = 3  # of equal length, each but the first with a learning rate divided by ``drop``
    drop: float = 10.0
    momentum: float = 0.9
    held_out: int = 0  # training images not trained on, and tested on in the place of the test images
    curve: int = 300  # points of the curve
    precision: str = "mixed"  # on a GPU products take rounded operands; "float32": as on the CPU

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "stages", "curve"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.learning_rate <= FASTEST:
            raise ValueError(
                f"learning_rate must be a number more than 0, {FASTEST:g} at most, got {self.learning_rate}"
            )
        if not 1 <= self.drop < math.inf:
            raise ValueError(f"drop must be a number of at least 1, got {self.drop}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and less than 1, got {self.momentum}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.held_out < 0:
            raise ValueError(f"held_out must be at least 0, got {self.held_out}")

    def stage(self, step: int) -> int:
        """Which stage a step is of, both counted from 0."""
        return step * self.stages // self.steps

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        try:
            return self.learning_rate / self.drop ** self.stage(step)
        except OverflowError:  # of a drop that leaves nothing
            return 0.0

    def turns(self) -> set[int]:
        """The steps from which on something is learnt at another rate; and the last."""
        return {-(-stage * self.steps // self.stages) for stage in range(1, self.stages + 1)}

    def changed(self, given: Mapping[str, str]) -> Self:
        """With some of them given as text."""
        known = {field.name: field for field in dataclasses.fields(self)}
        values: dict[str, Any] = {}
        for name, text in given.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                meant = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
                raise UsageError(f"there is no setting {name!r}{meant}")
            kind: Any = type(known[name].default)
            try:
                values[name] = kind(text)
            except ValueError:
                wanted = "a whole number" if kind is int else "a number"
                raise UsageError(f"{name} must be {wanted}, got {text!r}") from None
        try:
            return dataclasses.replace(self, **values)
        except ValueError as error:  # a value that is out of range
            raise UsageError(str(error)) from None


def cosine(stage: int, stages: int) -> float:
    """Of the learning rate, what is left in the middle of one of equal stages: half a wave, from 1 to 0."""
    return (1 + math.cos(math.pi * (stage + 0.5) / stages)) / 2


@dataclass(frozen=True)
class DigitSettings(Settings):
    """How networks that see single digits are trained."""

    parameters: int = 400_000  # that a network has, as nearly as its widths allow
    localiser_rate: float = 1.0  # of the base learning rate

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.localiser_rate < math.inf:
            raise ValueError(f"localiser_rate must be a number of at least 0, got {self.localiser_rate}")
        if self.parameters < 1:
            raise ValueError(f"parameters must be at least 1, got {self.parameters}")


def cell_name(model: Model, data: Data) -> str:
    return f"{data.kind}/{model.name}"


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    experiment: str
    model: Model
    data: Data
    settings: Settings
    paper: float | None  # the paper's error in percent
    task: Task = DIGITS

    @property
    def name(self) -> str:
        return cell_name(self.model, self.data)

    def heeds(self, setting: str) -> bool:
        """Whether a setting makes a difference to it: those of transformers do not where there are none."""
        return self.model.transformer is not None or not setting.startswith(OF_TRANSFORMERS)


@dataclass(frozen=True)
class Claim:
    """What the paper says of a table: of each pair of cells the first errs less than the second."""

    text: str
    pairs: tuple[tuple[str, str], ...]  # of names of cells
    # Points by which the first may err more, or, below 0, must err less; None: it must err less at all.
    within: float | None = None


@dataclass(frozen=True)
class Experiment:
    """A table of the paper."""

    name: str
    title: str
    models: tuple[Model, ...]  # its rows
    data: tuple[Data, ...]  # its columns
    paper: Mapping[str, float]  # the paper's error in percent, by the name of the cell
    departures: tuple[str, ...]  # what the paper leaves open or has otherwise, a sentence each
    left_out: tuple[str, ...] = ()  # of all rows and columns, the names of cells that it does not have
    task: Task = DIGITS
    settings: Settings = DigitSettings()
    # Of some cells, of rows, by the name of the model, or of columns, by the kind of data; in this order.
    own_settings: Mapping[str, Settings] = dataclasses.field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    # Pairs of names of cells, of which it is said by how many points the second errs less than the first.
    gains: tuple[tuple[str, str], ...] = ()
    prints: str = "error"  # what its table has, in percent; "accuracy": 100 less the error
    # What is measured of the test set besides the error (``measures``): its name in records -> what it says.
    measures: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Errors that the paper's table has of others: who -> one for each column, None where there is none.
    quoted: Mapping[str, tuple[float | None, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        cells = {cell.name for cell in self.cells}
        known = cells | {model.name for model in self.models} | {data.kind for data in self.data}
        if unknown := set(self.own_settings) - known:
            raise ValueError(
                f"{self.name} has no cell, model or data {min(unknown)}, whose own settings are given"
            )
        if unknown := {name for pair in self.gains for name in pair} - cells:
            raise ValueError(f"{self.name} has no cell {min(unknown)}, whose gain is asked for")

    @property
    def cells(self) -> list[Cell]:
        return [
            Cell(self.name, model, data, self.settings_of(model, data), self.paper.get(name), self.task)
            for data in self.data
            for model in self.models
            if (name := cell_name(model, data)) not in self.left_out
        ]

    def settings_of(self, model: Model, data: Data) -> Settings:
        for name in (cell_name(model, data), model.name, data.kind):
            if name in self.own_settings:
                return self.own_settings[name]
        return self.settings
