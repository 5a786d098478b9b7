"""What is derived once and kept: a large file and, beside it, its index (.npz)."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..extra import extra
from .fetch import Say, sweep
from .places import home, look

Held = TypeVar("Held")

# What numpy raises of a file of its own that was cut short, or changed.
BROKEN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


def cached(
    path: str,
    opened: Callable[[Path, Path], Held],
    build: Callable[[Path, Path], None],
    *,
    lock: str,
    data_dir: str | Path | None,
    say: Say,
) -> Held:
    """What the large file and its index hold: from any of the places, else built in the first by one process.

    path: of the large file in a place. It is written last: where it is, the index is too.
    opened, build: read and write the two; ``opened`` raises where they do not fit one another.
    lock: the name of the file that processes which build it lock.
    """
    held = kept(path, opened, data_dir, say)
    if held is not None:  # with nothing written, not even a lock
        return held
    file = home(data_dir) / path
    index = file.with_suffix(".npz")
    file.parent.mkdir(parents=True, exist_ok=True)
    with extra("filelock").FileLock(file.with_name(lock)):
        held = kept(path, opened, data_dir, lambda line: None)  # what is broken was named before
        if held is None:
            sweep(file)
            sweep(index)
            build(file, index)
            held = opened(file, index)
    return held


def kept(
    path: str, opened: Callable[[Path, Path], Held], data_dir: str | Path | None, say: Say
) -> Held | None:
    """What one of the places holds; what is broken is named and passed over."""
    for file in look([path], data_dir):
        try:
            return opened(file, file.with_suffix(".npz"))
        except BROKEN as error:
            say(f"{file} is broken ({error}) and is not used")
    return None
