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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, cast

from ..extra import extra

KINDS = (".tar", ".tar.gz", ".tgz", ".zip")


class ArchiveError(ValueError):
    """An archive that is broken, or that holds what must not be unpacked."""


def unpack(archive: Path, folder: Path) -> Path:
    """All members of an archive under ``folder``, which appears when they are complete, or not at all.

    Of two processes that ask at once one unpacks, and the other waits.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with extra("filelock").FileLock(folder.parent / f".{folder.name}.lock"):
        if not folder.exists():
            unpack_into(folder, archive)
    return folder


def unpack_into(folder: Path, archive: Path) -> None:
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with naming(archive):
            for name, content in members(archive):
                target = part / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file)
        part.chmod(0o755)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


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
    drive = any(":" in part for part in path.parts[:1])  # "." alone, as `tar .` begins, has no parts
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or drive:
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
