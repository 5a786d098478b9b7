"""Where a run stands, on disk: safetensors, with what is no tensor as their metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from .data.fetch import in_one_step
from .extra import extra
from .records import fits
from .runs import State

WATCHED = "watched."  # before the step of what was watched, in the name of its tensor
METADATA: dict[str, Any] = {  # and their types
    "numbers": dict[str, int],
    "seconds": float,
    "curve": list[dict[str, Any]],
    "watched": list[int],
    "commits": list[str],
    "identity": dict[str, Any],
}


class Checkpoint(NamedTuple):
    """A run's state, and what its record and its probe will say of the time until then."""

    state: State
    seconds: float
    curve: list[dict[str, Any]]
    watched: list[tuple[int, Tensor]]
    commits: list[str]  # of the code that trained until then
    identity: dict[str, Any]  # with another one it is not gone on with


class CheckpointError(ValueError):
    """A file that is no checkpoint of this run; the message names it."""


def save(checkpoint: Checkpoint, path: Path) -> None:
    about = {
        "numbers": checkpoint.state.numbers,
        "seconds": checkpoint.seconds,
        "curve": checkpoint.curve,
        "watched": [step for step, _ in checkpoint.watched],
        "commits": checkpoint.commits,
        "identity": checkpoint.identity,
    }
    watched = {f"{WATCHED}{step}": theta for step, theta in checkpoint.watched}
    write({**checkpoint.state.tensors, **watched}, path, {"run": json.dumps(about)})


def load(path: Path) -> Checkpoint:
    try:
        with extra("safetensors").safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["run"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        for name, kind in METADATA.items():
            if not fits(about[name], kind):
                wanted = kind.__name__ if isinstance(kind, type) else kind
                raise TypeError(f"{name} must be {wanted}, got {about[name]!r}")
        if about["seconds"] < 0:
            raise ValueError(f"seconds must not be negative, got {about['seconds']}")
        watched = [(step, tensors.pop(f"{WATCHED}{step}")) for step in about["watched"]]
        state = State(tensors, about["numbers"])
        commits, identity = about["commits"], about["identity"]
        return Checkpoint(state, about["seconds"], about["curve"], watched, commits, identity)
    except (OSError, ValueError, KeyError, TypeError, extra("safetensors").SafetensorError) as error:
        raise CheckpointError(f"{path} is no checkpoint: {error}") from error


class Weights(NamedTuple):
    """A trained network's, and what is needed to make one that they fit."""

    tensors: dict[str, Tensor]
    experiment: str
    cell: str
    settings: dict[str, Any]
    names: Sequence[str] = ()  # of the classes, where they are not digits


def save_weights(tensors: Mapping[str, Tensor], path: Path, about: Mapping[str, Any] | None = None) -> None:
    """A trained network's weights; ``about``: the rest of ``Weights``, for ``load_weights``."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write(plain, path, None if about is None else {"network": json.dumps(about)})


def load_weights(path: Path) -> Weights:
    try:
        with extra("safetensors").safe_open(path, "pt") as file:
            about = file.metadata() or {}
            if "run" in about:
                raise ValueError("it is of a run that has not ended")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        return Weights(tensors, **json.loads(about["network"]))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, extra("safetensors").SafetensorError) as error:
        raise CheckpointError(f"{path} has no weights of a trained network: {error}") from error


def write(tensors: Mapping[str, Tensor], path: Path, about: dict[str, str] | None = None) -> None:
    """Puts tensors in place in one step."""
    with in_one_step(path) as file:
        # Straight from the tensors, which may be large: their bytes are not gathered in memory first. It puts
        # a file of its own under the name, for its owner alone, which has to reach the disk as well.
        try:
            extra("safetensors.torch").save_file(dict(tensors), file.name, about)
        except extra("safetensors").SafetensorError as error:  # a full disk, say
            raise OSError(f"{path} cannot be written: {error}") from error
        with open(file.name, "rb") as written:
            os.chmod(file.name, os.fstat(file.fileno()).st_mode & 0o777)
            os.fsync(written.fileno())
