"""How each task is done: where its data come from, and what trains a cell of it.

A new kind of experiment is a file in ``paper`` that declares it and a run that trains it, and a line here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .arguments import UsageError
from .colocalisation import Colocalisation
from .data import mnist, svhn, uci_digits
from .data.places import places
from .fine_grained_runs import FineGrainedRun, load_set
from .house_number_runs import HouseNumberRun
from .interrupts import Stop
from .lockstep import Steps
from .runs import Run, Tested
from .spec import Cell

AUTO = "auto"  # the data or the device where none are asked for: the best that are here


class Dataset(Protocol):
    """What a task trains and tests on."""

    @property
    def name(self) -> str:
        """As records have it."""


Load = Callable[[], Dataset]


class Trains(Steps, Protocol):
    """One run of one cell. What ``runs`` says of steps and states holds for all of them."""

    network: Any  # nn.Module
    trained_on: str  # the data, as records name them
    names: Sequence[str]  # of the classes, where they are not digits

    def means(self, steps: int) -> tuple[float, float]:
        """The loss and the error in percent, over so many steps since this was last asked."""

    def tested(self, stop: Stop) -> Tested:
        """stop: asked before each batch, which raises ``Stopped``."""

    def first_images(self, count: int) -> Tensor:
        """The first test images, as ``theta`` takes them."""

    def theta(self, images: Tensor) -> Tensor: ...


class How(NamedTuple):
    """How a task is done."""

    # By the name that they are asked for, of ``--digits``; each is given the folder to look in first.
    data: Mapping[str, Callable[[Path | None], Dataset]]
    # A cell, a seed, the data, a device, the folder of checkpoints, and what is asked where beginning takes
    # long: whether to stop, which raises ``Stopped``.
    run: Callable[[Cell, int, Any, torch.device, Path, Stop], Trains]
    cells_on_a_gpu: int  # at once, if nothing else is asked for
    on_disk: bool = False  # gigabytes, read as they are used: other processes open them by themselves


# A network of 400,000 parameters leaves most of a GPU idle.
SMALL = 64

MNIST: Mapping[str, Callable[[Path | None], Dataset]] = {
    AUTO: mnist.load_or_stand_in,
    "mnist": mnist.load,
    "packaged": lambda data_dir: uci_digits.load(),
}

TASKS = {
    "digits": How(MNIST, lambda cell, seed, data, device, *_: Run(cell, seed, data, device), SMALL),
    "colocalisation": How(MNIST, Colocalisation, SMALL),
    "house numbers": How(
        {AUTO: svhn.load_set},
        lambda cell, seed, data, device, *_: HouseNumberRun(cell, seed, data, device),
        cells_on_a_gpu=1,
        on_disk=True,
    ),
    "birds": How(
        {AUTO: load_set},
        lambda cell, seed, data, device, *_: FineGrainedRun(cell, seed, data, device),
        cells_on_a_gpu=1,
        on_disk=True,
    ),
}

NAMES = tuple(dict.fromkeys(name for how in TASKS.values() for name in how.data))


def loaded(cell: Cell, name: str, data_dir: Path | None) -> Dataset:
    """The data that a cell's task is done on, by the name that they are asked for."""
    known = TASKS[cell.task.name].data
    if name not in known:
        raise UsageError(f"{cell.experiment} is of {cell.task.data}, and has no --digits {name}")
    return known[name](data_dir)


def sent(cell: Cell, data: Dataset, name: str, data_dir: Path | None) -> Dataset | Load:
    """What a process on another machine gets of the data that are loaded here: themselves, or what loads them
    there, from the folder that is looked in first here."""
    if not TASKS[cell.task.name].on_disk:
        return data
    return functools.partial(loaded, cell, name, places(data_dir)[0].resolve())
