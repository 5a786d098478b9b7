"""Where data is looked for, and where it is put."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from ..extra import extra

VARIABLE = "SPATIAL_TRANSFORMER_DATA"


def places(data_dir: str | Path | None = None) -> list[Path]:
    """The folders in which data is looked for: ``data_dir``, then the variable's, then the user's cache."""
    found = [Path(os.path.expanduser(given)) for given in (data_dir, os.environ.get(VARIABLE)) if given]
    if not found or importlib.util.find_spec("platformdirs") is not None:
        found.append(Path(extra("platformdirs").user_cache_dir("spatial_transformer")))
    return found


def home(data_dir: str | Path | None = None) -> Path:
    """Where what is fetched or derived is put: the first of the places that can be written to."""
    found = places(data_dir)
    return next(filter(writable, found), found[0])  # where there is none, the error is about the first


def writable(folder: Path) -> bool:
    """Whether files can be put into a folder, which is made for that if it is not there."""
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def look(candidates: Sequence[str], data_dir: str | Path | None = None) -> list[Path]:
    """What exists of these paths, relative to each of the places, in the order looked for."""
    paths = [place / candidate for place in places(data_dir) for candidate in candidates]
    return [path for path in paths if path.exists()]


def looked(data_dir: str | Path | None = None) -> str:
    """The places in words, for messages."""
    return ", ".join(str(place) for place in places(data_dir))
