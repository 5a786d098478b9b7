"""Street View House Numbers, full numbers (Netzer et al. 2011; for non-commercial use only).

The official archives ``train.tar.gz``, ``test.tar.gz`` and ``extra.tar.gz``, or the folders they unpack to,
in a folder ``svhn`` of one of the places or in the place itself: ``train/1.png`` and so on beside
``train/digitStruct.mat``, or ``digitStruct.json``, its usual public conversion. They are not fetched: their
terms are to be agreed to at http://ufldl.stanford.edu/housenumbers.

**Labels** are up to five digits and the null class 10 after them. The files' label 10 is the digit 0. Digits
are in the files' order, from left to right but for a handful of numbers that are mistaken either way.

**Crops** follow Goodfellow et al. 2013 and Ba et al. 2014: the box around all digits grown by 30 % along each
axis, brought to 64 x 64; and the looser one, twice as wide and high, to 128 x 128, whose middle is the first.
Where a crop leaves the image the image's border is replicated.

**Left out**, and counted: numbers of more than five digits, and numbers with no digit, with a box that has no
area, or with a box that lies wholly outside the image. A box that sticks out of the image is taken as it is.
An image that is missing or cannot be read is an error, as is a label that is no digit.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ... import families, sampling
from ..extra import extra
from . import archives
from .caches import apart, cached, kept, known_as
from .fetch import Say, in_one_step, say
from .places import home, look, looked
from .random_numbers import RandomNumbers

NAME = "SVHN"
ORIGIN = "http://ufldl.stanford.edu/housenumbers"
SPLITS = ("train", "test", "extra")
FOLDERS = ("svhn", "SVHN", ".")
UNPACKED = "svhn/unpacked"
CACHE = "svhn/cache"
DIGITS = 5  # that a label holds
NULL = 10  # the class of the places after the last digit
LOOSE, TIGHT = 128, 64
GROWN = 1.3  # the tight crop's extent, in boxes around all digits
LOOSE_GROWN = GROWN * LOOSE / TIGHT  # the loose one's
VALIDATION = 5000
SPLIT_SEED = 2011
VERSION = 4  # of what is cached
OFFICIAL = {"train": 33_402, "test": 13_068, "extra": 202_353}  # numbers, as published


class SvhnError(ValueError):
    """Files that are not what SVHN's are."""


class Box(NamedTuple):
    """A digit, in pixels of its image."""

    label: float
    left: float
    top: float
    width: float
    height: float


class Entry(NamedTuple):
    """What the files say about one image."""

    name: str
    boxes: tuple[Box, ...]


def middle(crops: Tensor, size: int) -> Tensor:
    """What lies in the middle of crops. [N, 3, size, size]"""
    edge = (crops.shape[-1] - size) // 2
    return crops[:, :, edge : edge + size, edge : edge + size]


class HouseNumbers(NamedTuple):
    """One split. The loose crops are read from the disk as they are used."""

    loose: Tensor  # uint8 [N, 3, 128, 128]
    labels: Tensor  # int64 [N, 5]
    lengths: Tensor  # int64 [N]
    boxes: Tensor  # float32 [N, 5, 4]: of each digit left, top, right and bottom, as ``boxes_in_crop`` has it
    names: list[str]  # of the images
    left_out: list[str]  # one sentence for each number that is not among them

    @property
    def tight(self) -> Tensor:
        """The middle of the loose crops. uint8 [N, 3, 64, 64]"""
        return middle(self.loose, TIGHT)

    def of(self, size: int) -> Tensor:
        """The crops of one of the two sizes. uint8 [N, 3, size, size]"""
        return {LOOSE: self.loose, TIGHT: self.tight}[size]


class HouseNumberSet(NamedTuple):
    """What networks are trained and tested on, and what it is called in records."""

    name: str
    train: HouseNumbers
    test: HouseNumbers
    extra: Callable[[], HouseNumbers]  # loaded where it is asked for, and raises where it is not here


def load_set(data_dir: str | Path | None = None, *, say: Say = say) -> HouseNumberSet:
    """All splits; it is said where one is not as large as published."""
    needed = ("train", "test")
    if missing := [split for split in needed if where(split, data_dir) is None]:
        raise FileNotFoundError(not_here(missing, data_dir))
    train, test = (counted(split, data_dir, say) for split in needed)
    return HouseNumberSet(NAME, train, test, functools.partial(counted, "extra", data_dir, say))


def not_here(splits: Sequence[str], data_dir: str | Path | None) -> str:
    """What is missing, where it was looked for, and where there is some."""
    names, are = " and ".join(splits), "is" if len(splits) == 1 else "are"
    either = " and no ".join(f"{split} or {split}.tar.gz" for split in splits)
    archives_of_them = " and ".join(f"{split}.tar.gz" for split in splits)
    return (
        f"SVHN's {names} {are} not here: no {either}, alone or in svhn, in {looked(data_dir)}; get "
        f"{archives_of_them} from {ORIGIN}"
    )


def counted(split: str, data_dir: str | Path | None, say: Say) -> HouseNumbers:
    numbers = load(split, data_dir, say=say)
    given, published = len(numbers.names) + len(numbers.left_out), OFFICIAL[split]
    if given != published:
        say(f"this is not all of SVHN: {split} has {given:,} numbers, and {published:,} as published")
    return numbers


def load(split: str, data_dir: str | Path | None = None, *, say: Say = say) -> HouseNumbers:
    """One split: parsed and cropped at the first call, from the cache at later ones.

    >>> load("train").tight.shape                                                     # doctest: +SKIP
    torch.Size([33401, 3, 64, 64])
    """
    folder = find(split, data_dir, say=say)
    if folder is None:
        raise FileNotFoundError(not_here([split], data_dir))
    structure = structure_file(folder)
    return cached(
        cache_path(split, folder),
        opened,
        lambda crops, index: build(folder, read_structure(structure), crops, index, say),
        source=folder,
        lock=f".{split}.lock",
        data_dir=data_dir,
        say=say,
    )


class Checked(NamedTuple):
    """What a split's files hold, read anew."""

    numbers: int
    left_out: list[str]
    cached: bool  # whether there is a cache, which was seen to agree with them


def check(split: str, data_dir: str | Path | None = None, *, say: Say = say) -> Checked:
    """Reads all of a split's files again, cuts every crop again, and compares the cache where there is one.

    Raises where anything is broken, missing, or not what the cache has. Nothing is written, but for an
    archive that is unpacked.
    """
    found, folder = where(split, data_dir), find(split, data_dir, say=say)
    if found is None or folder is None:
        raise FileNotFoundError(f"no {split} or {split}.tar.gz in {looked(data_dir)}")
    broken: list[str] = []
    cache = kept(cache_path(split, folder), opened, data_dir, broken.append)
    if broken:
        raise SvhnError("; ".join(broken))
    say(f"reading {found} again" + (", beside what is cached of it" if cache else ""))
    if found.is_file():
        archives.compare(found, folder.parent)
    entries = read_structure(structure_file(folder))
    all_there(folder, entries)
    left_out: list[str] = []
    count = 0
    with one_thread():
        for entry, image in decoded(folder, entries, left_out):
            if cache is not None:
                agree(cache, count, entry, image, folder)
            count += 1
    if cache is not None and (count, left_out) != (len(cache.names), cache.left_out):
        raise SvhnError(f"{folder} has {count:,} numbers to use, and its cache {len(cache.names):,}")
    return Checked(len(entries), left_out, cache is not None)


def agree(cache: HouseNumbers, place: int, entry: Entry, image: np.ndarray[Any, Any], folder: Path) -> None:
    """Raises where the cache has something else at a place than a number and its crop."""
    if place >= len(cache.names) or cache.names[place] != entry.name:
        raise SvhnError(f"the cache of {folder} does not have {entry.name} where it should be")
    length = int(cache.lengths[place])
    if length != len(entry.boxes) or cache.labels[place].tolist() != label(entry):
        raise SvhnError(f"the cache of {folder} has another label of {entry.name}")
    if not torch.equal(cache.boxes[place], torch.tensor(boxes_in_crop(entry))):
        raise SvhnError(f"the cache of {folder} has other boxes of {entry.name}")
    reason = apart(cache.loose[place], cropped(image, entry))
    if reason is not None:
        raise SvhnError(f"the cache of {folder} has another crop of {entry.name}, {reason}")


def validation_split(count: int, held_out: int = VALIDATION) -> tuple[Tensor, Tensor]:
    """Which of ``count`` training images are trained on, and which are held out; always the same ones."""
    order = RandomNumbers(SPLIT_SEED).uniform(count).sort(stable=True).indices
    return order[held_out:].sort().values, order[:held_out].sort().values


# Where it is


def where(split: str, data_dir: str | Path | None = None) -> Path | None:
    """A split's folder, or else its archive; None where there is neither."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    folders = [folder / split for folder in look(FOLDERS, data_dir)]
    tars = [folder.with_name(f"{split}{kind}") for folder in folders for kind in archives.KINDS]
    unpacked = [path / split for path in look([f"{UNPACKED}/{split}"], data_dir)]  # whose archive may be gone
    found = [folder for folder in folders if structure_file(folder) is not None]
    found += [tar for tar in tars if tar.is_file()]
    return next(iter(found + [folder for folder in unpacked if structure_file(folder) is not None]), None)


def find(split: str, data_dir: str | Path | None = None, *, say: Say = say) -> Path | None:
    """The folder with a split's images, unpacked if need be; None where there is none."""
    found = where(split, data_dir)
    if found is None or found.is_dir():
        return found
    path = f"{UNPACKED}/{split}"
    held = [folder for folder in look([path], data_dir) if archives.holds(folder, found)]
    return (held[0] if held else archives.unpack(found, home(data_dir) / path, say=say)) / split


def structure_file(folder: Path) -> Path | None:
    """The file with the boxes; the conversion first, which is read in a second and not in a minute."""
    for name in ("digitStruct.json", "digitStruct.mat"):
        if (folder / name).is_file():
            return folder / name
    return None


def cache_path(split: str, folder: Path) -> str:
    return f"{CACHE}/{split}-{fingerprint(folder, structure_file(folder))}.npy"


def fingerprint(folder: Path, structure: Path | None) -> str:
    """What the cache depends on: the boxes, and which images there are, of which size and time."""
    if structure is None:
        raise SvhnError(f"{folder} has neither digitStruct.mat nor digitStruct.json")
    digest = hashlib.sha256(f"{VERSION} {structure.suffix}".encode())
    digest.update(structure.read_bytes())
    images = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".png"):
                with suppress(FileNotFoundError):  # a link to nothing: it is missing when it is read
                    images.append((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns))
    images.sort()
    digest.update(repr(images).encode())
    return digest.hexdigest()[:16]


# What the files say


def read_structure(structure: Path | None) -> list[Entry]:
    assert structure is not None
    read = read_json if structure.suffix == ".json" else read_mat
    try:
        entries = read(structure)
    except (LookupError, TypeError, ValueError, OSError, RuntimeError) as error:
        raise SvhnError(f"{structure} is broken: {error!r}") from error
    if not entries:
        raise SvhnError(f"{structure} names no image")
    return entries


def read_json(path: Path) -> list[Entry]:
    rows = json.loads(path.read_text("utf-8"))
    return [
        Entry(
            str(row["filename"]),
            tuple(Box(*(float(box[field]) for field in Box._fields)) for box in row["boxes"]),
        )
        for row in rows
    ]


def read_mat(path: Path) -> list[Entry]:
    """MATLAB's version 7.3, which is HDF5: fields are references, or for one digit the number itself."""
    with extra("h5py").File(io.BytesIO(path.read_bytes()), "r") as file:
        names, boxes = file["digitStruct/name"], file["digitStruct/bbox"]
        if len(names) != len(boxes):
            raise ValueError(f"{len(names)} names, {len(boxes)} boxes")
        entries = []
        for name, box in zip(names[:, 0], boxes[:, 0], strict=True):
            columns = [values(file, file[box][field]) for field in Box._fields]
            text = "".join(chr(code) for code in file[name][:].flatten())
            entries.append(Entry(text, tuple(Box(*row) for row in zip(*columns, strict=True))))
        return entries


def values(file: Any, field: Any) -> list[float]:
    held = field[:].flatten()
    if len(held) == 1 and held.dtype.kind == "f":
        return [float(held[0])]
    return [float(np.ravel(file[reference][:])[0]) for reference in held]


def digits(entry: Entry) -> list[int]:
    """The digits as they are filed, in reading order."""
    found = []
    for box in entry.boxes:
        if box.label not in range(11):
            raise SvhnError(f"{entry.name}: label must be a digit, or 10 for 0, got {box.label:g}")
        found.append(int(box.label) % 10)
    return found


def label(entry: Entry) -> list[int]:
    """The digits, and the null class in the places after them."""
    return (digits(entry) + [NULL] * DIGITS)[:DIGITS]


def why_left_out(entry: Entry, size: tuple[int, int] | None = None) -> str | None:
    """A sentence that says why a number is not used, or None; with the image's (width, height) if known."""
    if not entry.boxes:
        return f"{entry.name}: no digit"
    if len(entry.boxes) > DIGITS:
        return f"{entry.name}: {len(entry.boxes)} digits"
    for box in entry.boxes:
        area = box.left + box.width > box.left and box.top + box.height > box.top  # as far as floats tell
        if not all(map(math.isfinite, box)) or not area:
            return f"{entry.name}: a box without area"
        if size is not None and not (-box.width < box.left < size[0] and -box.height < box.top < size[1]):
            return f"{entry.name}: a box outside the image"
    return None


# Crops


def build(folder: Path, entries: Sequence[Entry], crops: Path, index: Path, say: Say) -> None:
    """Writes the cache: what is known of each number, and last the crops."""
    all_there(folder, entries)
    say(f"cropping {len(entries):,} house numbers of {folder} into {crops.parent}, once")
    left_out: list[str] = []
    used: list[Entry] = []
    with in_one_step(crops) as file, one_thread():
        start = header(len(entries))
        file.write(start)
        for entry, image in decoded(folder, entries, left_out):
            used.append(entry)
            file.write(cropped(image, entry).numpy().tobytes())
        file.seek(0)
        file.write(header(len(used), len(start)))
        with in_one_step(index) as other:
            np.savez(
                other,
                labels=np.array([label(entry) for entry in used], np.int64).reshape(-1, DIGITS),
                lengths=np.array([len(entry.boxes) for entry in used], np.int64),
                boxes=np.array([boxes_in_crop(entry) for entry in used], np.float32).reshape(-1, DIGITS, 4),
                names=np.array([entry.name for entry in used], np.str_),
                left_out=np.array(left_out, np.str_),
                source=np.array(known_as(folder)),
            )


def all_there(folder: Path, entries: Sequence[Entry]) -> None:
    """Raises where images that are listed are not in their folder."""
    present = {path.name for path in folder.iterdir()}
    missing = [entry.name for entry in entries if entry.name not in present]
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise SvhnError(f"{len(missing)} of {len(entries)} images are missing in {folder}: {shown}")


@contextmanager
def one_thread() -> Iterator[None]:
    """One image is too small to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def header(count: int, length: int | None = None) -> bytes:
    """How a .npy file of so many crops begins; of ``length`` bytes, where that is given."""
    shape = {"descr": "|u1", "fortran_order": False, "shape": (count, 3, LOOSE, LOOSE)}
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, shape)  # padded to a multiple of 64: a few digits do not matter
    made = out.getvalue()
    assert length is None or len(made) == length
    return made


def decoded(
    folder: Path, entries: Sequence[Entry], left_out: list[str]
) -> Iterator[tuple[Entry, np.ndarray[Any, Any]]]:
    """The images [H, W, 3] of the numbers that are used; the others are added to ``left_out``."""
    images = extra("PIL.Image")
    for entry in entries:
        digits(entry)  # a label that is none is an error, whatever else
        reason = why_left_out(entry)
        if reason is None:
            try:
                with images.open(folder / entry.name) as file:
                    image = np.array(file.convert("RGB"))
            except (OSError, SyntaxError, ValueError, images.DecompressionBombError) as error:
                # SyntaxError is Pillow's for a broken PNG
                raise SvhnError(f"{folder / entry.name} cannot be read: {error}") from error
            reason = why_left_out(entry, (image.shape[1], image.shape[0]))
        if reason is not None:
            left_out.append(reason)
            continue
        yield entry, image


def cropped(image: np.ndarray[Any, Any], entry: Entry) -> Tensor:
    """The loose crop of one number. uint8 [3, 128, 128]"""
    height, width = image.shape[:2]
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].to(torch.float32)
    theta = crop_theta(entry, width, height)
    # Image pixels for one of the crop. Time and memory go with them: a box far larger than the image is
    # smoothed as one of the image's size would be.
    shrunk = max(min(theta[0], LOOSE_GROWN) * width, min(theta[4], LOOSE_GROWN) * height) / LOOSE
    seen = sampling.warp(
        pixels,
        torch.tensor([theta], dtype=torch.float32),
        families.Affine(),
        size=(LOOSE, LOOSE),
        padding="border",
        antialias=math.ceil(shrunk) if shrunk > 1 else False,
    )
    return seen[0].round().clamp(0, 255).to(torch.uint8)


def crop_theta(entry: Entry, width: int, height: int) -> list[float]:
    """The affine theta whose box is the loose crop: both of the grown box's sides, doubled."""
    left, top, right, bottom = around(entry)
    return [
        LOOSE_GROWN * (right - left) / width, 0.0, (left + right) / width - 1,
        0.0, LOOSE_GROWN * (bottom - top) / height, (top + bottom) / height - 1,
    ]  # fmt: skip


def around(entry: Entry) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the box around all digits, in pixels of the image."""
    left, top = (min(getattr(box, side) for box in entry.boxes) for side in ("left", "top"))
    right = max(box.left + box.width for box in entry.boxes)
    bottom = max(box.top + box.height for box in entry.boxes)
    return left, top, right, bottom


def boxes_in_crop(entry: Entry) -> list[list[float]]:
    """Left, top, right and bottom of each digit in the loose crop, whose corners are (-1, -1) and (1, 1);
    zeros after the last. [5][4]"""
    left, top, right, bottom = around(entry)

    def place(at: float, low: float, high: float) -> float:
        return (2 * at - low - high) / (LOOSE_GROWN * (high - low))

    found = [
        [
            place(box.left, left, right),
            place(box.top, top, bottom),
            place(box.left + box.width, left, right),
            place(box.top + box.height, top, bottom),
        ]
        for box in entry.boxes
    ]
    return found + [[0.0] * 4] * (DIGITS - len(found))


def opened(crops: Path, index: Path) -> HouseNumbers:
    with np.load(index) as file:
        held = dict(file)
    loose = np.load(crops, mmap_mode="c")  # written to in memory alone
    if loose.shape != (len(held["labels"]), 3, LOOSE, LOOSE):
        raise SvhnError(f"crops of shape {loose.shape} for {len(held['labels'])} labels")
    return HouseNumbers(
        torch.from_numpy(loose),
        torch.from_numpy(held["labels"]),
        torch.from_numpy(held["lengths"]),
        torch.from_numpy(held["boxes"]),
        held["names"].tolist(),
        held["left_out"].tolist(),
    )
