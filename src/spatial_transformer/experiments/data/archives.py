"""Tar and zip files. A member that would leave its folder, or is anything but a plain file, is refused."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, cast

from ..extra import extra

CHUNK = 1 << 20
KINDS = (".tar", ".tar.gz", ".tgz", ".zip")
MARK = ".unpacked-from"  # a file in what is unpacked: the archive's name, size and time


class ArchiveError(ValueError):
    """An archive that is broken, or that holds what must not be unpacked."""


def unpack(archive: Path, folder: Path, *, say: Callable[[str], None] = lambda line: None) -> Path:
    """All members of an archive under ``folder``, which appears when they are complete, or not at all.

    Of two processes that ask at once one unpacks, and the other waits. An archive that has changed since is
    unpacked anew, in place of what it held before.
    """
    if holds(folder, archive):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with extra("filelock").FileLock(folder.parent / f".{folder.name}.lock"):
        if not holds(folder, archive):
            for part in folder.parent.glob(f".{folder.name}.*.part"):  # of a process that was killed
                shutil.rmtree(part)
            say(f"unpacking {archive} into {folder}")
            unpack_into(folder, archive)
    return folder


def holds(folder: Path, archive: Path) -> bool:
    """Whether a folder was unpacked from an archive, as that is now."""
    mark = folder / MARK
    return mark.is_file() and mark.read_text() == known_by(archive)


def known_by(archive: Path) -> str:
    stat = archive.stat()
    return f"{archive.name} {stat.st_size} {stat.st_mtime_ns}"


def unpack_into(folder: Path, archive: Path) -> None:
    mark = known_by(archive)  # as it is before it is read: what changes meanwhile is unpacked once more
    part = Path(tempfile.mkdtemp(".part", f".{folder.name}.", folder.parent))
    try:
        with naming(archive):
            for name, content in members(archive):
                target = part / name
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    file = target.open("wb")
                except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
                    raise ArchiveError(f"{archive} holds {name!r} as a file and as a folder") from error
                with file:
                    shutil.copyfileobj(content, file)
        (part / MARK).write_text(mark)
        part.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def compare(archive: Path, folder: Path) -> None:
    """Raises where an archive is broken, or a folder is not what it unpacks to."""
    same: dict[str, bool] = {}  # of members of one name the last counts
    with naming(archive):
        for name, content in members(archive):
            same[name] = (folder / name).is_file() and equal(content, folder / name)
    for name, whole in same.items():
        if not whole:
            raise ArchiveError(f"{folder / name} is not what {archive} holds")


def equal(content: IO[bytes], path: Path) -> bool:
    with path.open("rb") as file:
        while True:
            wanted = content.read(CHUNK)
            if wanted != file.read(len(wanted) or 1):
                return False
            if not wanted:
                return True


def members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files of an archive, one after another, each with its path in it."""
    return zip_members(archive) if archive.suffix in (".zip", ".whl") else tar_members(archive)


@contextmanager
def naming(archive: Path) -> Iterator[None]:
    """Whatever shows that an archive is broken becomes one error, which names it."""
    try:
        yield
    except (
        tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError,
        RuntimeError,  # zipfile's, of a member that is encrypted or packed in a way it does not know
    ) as error:  # fmt: skip
        raise ArchiveError(f"{archive} is broken: {error}") from error


def tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            safe(member.name, archive)
            if member.isdir():
                continue
            if not member.isreg():  # links (hard ones too), devices, pipes
                raise ArchiveError(f"{archive} holds {member.name!r}, which is not a plain file")
            yield member.name, cast(IO[bytes], tar.extractfile(member))


def zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            safe(member.filename, archive)
            if member.is_dir():
                continue
            kind = (member.external_attr >> 16) & 0o170000  # as Unix has it; 0 where nothing is said
            if kind not in (0, 0o100000):
                raise ArchiveError(f"{archive} holds {member.filename!r}, which is not a plain file")
            with file.open(member) as content:
                yield member.filename, content


def safe(name: str, archive: Path) -> None:
    """Raises where a path is absolute, climbs out of its folder, or means something else on Windows."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        raise ArchiveError(f"{archive} holds {name!r}, a path that leaves its folder")


def member(archive: Path, name: str, sha256: str) -> bytes:
    """The bytes of one member of a zip file or wheel, if they are the ones expected."""
    with naming(archive), zipfile.ZipFile(archive) as file:
        if name not in file.namelist():
            raise ArchiveError(f"{archive} has no member {name}")
        content = file.read(name)
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise ArchiveError(f"{name} in {archive} has sha256 {digest}, expected {sha256}")
    return content
