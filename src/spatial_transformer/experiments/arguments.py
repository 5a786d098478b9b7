"""What is given on a command line, checked as it is read: types of arguments for ``argparse``.

A place that cannot be written to is refused here, before hours of work for what was to be written there.
"""

from __future__ import annotations

import tempfile
from argparse import ArgumentTypeError
from pathlib import Path

from .picture_formats import format_of


class UsageError(ValueError):
    """What was asked for is not to be had: a name that is not known, a value that cannot be."""


def count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def folder(text: str) -> Path:
    """A folder, or what may become one: no file, and below none."""
    path, there = found(text)
    if not there.is_dir():
        raise refused("a folder", path, there)
    return path


def folder_to_write(text: str) -> Path:
    """A folder that files can be put in, or that can be made; it is not made yet."""
    path = folder(text)
    check_writing(path)
    return path


def file_to_write(text: str) -> Path:
    """A file that can be written, maybe in the place of another; the folders above it need not be there."""
    path, there = found(text)
    if not (path.is_file() if there == path else there.is_dir()):
        raise refused("a file", path, there)
    check_writing(path.parent)
    return path


def picture_to_write(text: str) -> Path:
    """A file that can be written, of a name that says what kind of picture it is."""
    path = file_to_write(text)
    try:
        format_of(path)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return path


def file_to_read(text: str) -> Path:
    path, there = found(text)
    if there != path:
        raise ArgumentTypeError(f"must be a file: there is no {path}")
    if not path.is_file():
        raise refused("a file", path, there)
    return path


def found(text: str) -> tuple[Path, Path]:
    """A path, and what there is of it: itself, or the nearest of what is above it."""
    if not text:
        raise ArgumentTypeError("must be a path, got ''")
    path = Path(text)
    for there in (path, *path.parents):
        try:
            there.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:  # a name that is too long, a folder that may not be looked into
            raise ArgumentTypeError(f"{there}: {error.strerror}") from None
        return path, there
    raise ArgumentTypeError(f"{path} is on no disk that is here")


def refused(wanted: str, path: Path, there: Path) -> ArgumentTypeError:
    what = "a folder" if there.is_dir() else "a file" if there.is_file() else "neither a file nor a folder"
    above = "" if there == path else f"would lie in {there}, which "
    return ArgumentTypeError(f"must be {wanted}: {path} {above}is {what}")


def check_writing(folder: Path) -> None:
    """Whether files, or the folder itself, can be made: by making one without a name. Permissions do not tell
    of all that forbids it."""
    _, there = found(str(folder))
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        cannot = "cannot be written to" if there == folder else f"cannot be made in {there}"
        raise ArgumentTypeError(f"{folder} {cannot}: {error.strerror}") from None
