"""What is derived once and kept: a large file and, beside it, its index (.npz).

Their name ends in a key, which changes with the source and with what is made of it. The index says which
folder that was, as its array ``source``: what was derived from the same folder under another key is of no
use any more, and is removed when the new one is complete. What another folder gave stays.
"""

from __future__ import annotations

import glob
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from torch import Tensor

from ..extra import extra
from .fetch import Say, sweep
from .places import home, look

Held = TypeVar("Held")

KEY = re.compile("[0-9a-f]{16}")  # that a name ends in, after a dash
ROUNDING = 2  # levels of 255 by which another version of a decoder, or another warp, may differ

# What numpy raises of a file of its own that was cut short, or changed.
BROKEN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


def cached(
    path: str,
    opened: Callable[[Path, Path], Held],
    build: Callable[[Path, Path], None],
    *,
    source: Path,
    lock: str,
    data_dir: str | Path | None,
    say: Say,
) -> Held:
    """What the large file and its index hold: from any of the places, else built in the first by one process.

    path: of the large file in a place. It is written last: where it is, the index is too.
    opened, build: read and write the two; ``opened`` raises where they do not fit one another.
    source: the folder it is derived from, which ``build`` writes into the index.
    lock: the name of the file that processes which build it, under any key, lock.
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
            for suffix in (file.suffix, index.suffix):  # of any key: nobody else is building
                sweep(file.parent, f"{glob.escape(kind(file))}-*{suffix}")
            build(file, index)
            held = opened(file, index)
            for old in superseded(file, source):
                remove(old, say)
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


# What has become useless


def superseded(file: Path, source: Path) -> Iterator[Path]:
    """The large files beside ``file`` that the same source once gave, under another key."""
    for index in sorted(file.parent.glob(f"{glob.escape(kind(file))}-*.npz")):
        key = index.stem.removeprefix(f"{kind(file)}-")
        if index.stem != file.stem and KEY.fullmatch(key) and made_from(index) == known_as(source):
            yield index.with_suffix(file.suffix)


def remove(file: Path, say: Say) -> None:
    """Removes a large file and then its index: who is interrupted between the two finds the index again."""
    for path in (file, file.with_suffix(".npz")):
        try:
            path.unlink(missing_ok=True)  # of a link, the link
        except OSError as error:  # Windows does not remove what another process has open
            say(f"{path} is of no use any more and could not be removed: {error}")
            return


def made_from(index: Path) -> str | None:
    """The folder that an index names; None where it cannot be read, or names none."""
    try:
        with np.load(index) as file:
            return str(file["source"])
    except BROKEN:
        return None


def known_as(source: Path) -> str:
    """A folder by its one name, whatever links lead to it."""
    return os.path.realpath(source)


def kind(file: Path) -> str:
    """A name without its key: all that has it is built under one lock."""
    return file.stem.rpartition("-")[0]


# Whether it is right


def apart(held: Tensor, wanted: Tensor) -> str | None:
    """A phrase that says how an image that is kept differs from the one of the source, or None."""
    if held.shape != wanted.shape:
        return f"of shape {tuple(held.shape)} and not {tuple(wanted.shape)}"
    levels = int((held.short() - wanted.short()).abs().max())
    return f"up to {levels} levels apart" if levels > ROUNDING else None
