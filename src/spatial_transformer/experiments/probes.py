"""What a trained network did with the test images, for pictures: a small file beside the record.

The images themselves are not in it: the fixed test set is drawn again where a picture is made.
"""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .data.fetch import in_one_step

SHOWN = 1000  # test images, from the first, whose transforms are kept: enough for some that a CNN gets wrong
WATCHED = 32  # test images, from the first, whose transforms are kept as training goes on
MOMENTS = 48  # how often


class Probe(NamedTuple):
    """Arrays of numpy; without a transformer a theta has no numbers, and there are no moments."""

    predictions: Any  # uint8 [test images], or [test images, places], of the final weights
    theta: Any  # float16 [SHOWN at most, family.num_params], of the final weights
    steps: Any  # int64 [moments]: how many steps the weights had been moved for
    thetas: Any  # float16 [moments, WATCHED at most, family.num_params]


class ProbeError(ValueError):
    """A file that is no probe; the message names it."""


@functools.lru_cache
def moments(steps: int) -> list[int]:
    """The steps after which to look: ever further apart, from the first weights to the last.

    >>> moments(100)[:6], moments(100)[-1]
    ([0, 1, 2, 3, 4, 5], 100)
    """
    spread = np.geomspace(1, steps, MOMENTS - 1).round().astype(int).tolist()
    return sorted({0, *spread})


def of(predictions: Tensor, theta: Tensor, watched: Sequence[tuple[int, Tensor]]) -> Probe:
    dim = theta.shape[1]
    thetas = [kept.half().cpu().numpy() for _, kept in watched]
    return Probe(
        predictions.cpu().numpy().astype(np.uint8),
        theta.half().cpu().numpy(),
        np.array([step for step, _ in watched], dtype=np.int64),
        np.stack(thetas) if thetas else np.zeros((0, 0, dim), dtype=np.float16),
    )


def transforms(kept: Any) -> Tensor:
    """Some of the thetas of a probe as families take them: half precision is for keeping alone. float32"""
    return torch.from_numpy(kept.astype(np.float32))


def path_of(record: Path) -> Path:
    """Where the probe of a record is kept."""
    return record.with_suffix(".npz")


def write(probe: Probe, path: Path) -> None:
    """Puts a probe in place in one step."""
    with in_one_step(path) as file:
        np.savez_compressed(file, **probe._asdict())


def read(path: Path) -> Probe:
    """A probe, or an error that names the file and what is wrong with it. Nothing is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            probe = Probe(**{name: arrays[name] for name in Probe._fields})
        dimensions = [array.ndim for array in probe]
        if dimensions not in ([1, 2, 1, 3], [2, 2, 1, 3]):
            raise ValueError(f"its arrays have {dimensions} dimensions")
        if len(probe.steps) != len(probe.thetas):
            raise ValueError(f"{len(probe.steps)} moments, but thetas of {len(probe.thetas)}")
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ProbeError(f"{path} is no probe: {error}") from error
    return probe
