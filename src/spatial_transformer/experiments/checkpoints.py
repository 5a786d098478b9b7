"""Where a run stands, on disk: safetensors, with what is no tensor as their metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from .data.fetch import in_one_step
from .extra import extra
from .runs import State


class Checkpoint(NamedTuple):
    """A run's state, and what its record will say of the time until then."""

    state: State
    seconds: float
    curve: list[dict[str, float]]
    settings: dict[str, Any]  # with other ones it is not gone on with


class CheckpointError(ValueError):
    """A file that is no checkpoint of this run."""


def save(checkpoint: Checkpoint, path: Path) -> None:
    about = {
        "numbers": checkpoint.state.numbers,
        "seconds": checkpoint.seconds,
        "curve": checkpoint.curve,
        "settings": checkpoint.settings,
    }
    content = extra("safetensors.torch").save(checkpoint.state.tensors, {"run": json.dumps(about)})
    with in_one_step(path) as file:
        file.write(content)


def load(path: Path) -> Checkpoint:
    try:
        with extra("safetensors").safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["run"])
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, ValueError, KeyError, TypeError, extra("safetensors").SafetensorError) as error:
        raise CheckpointError(f"{path} is no checkpoint: {error}") from error
    return Checkpoint(State(tensors, about["numbers"]), about["seconds"], about["curve"], about["settings"])
