"""Caltech-UCSD Birds 200-2011 (Wah et al. 2011; for non-commercial research and education).

The official archive ``CUB_200_2011.tgz``, or the folder ``CUB_200_2011`` it unpacks to, in one of the places
or in its folder ``cub``. It is not fetched: its terms are to be agreed to where it is to be had (``ORIGIN``).

Images are decoded once, to one file of pixels; one whose shorter side is over 512 is reduced to that first.
A batch is gathered from there and resized, cropped and flipped in one warp, on whatever device the pixels are
on: section A.6's "224 x 224 from 256 x S and 448 x 448 from 512 x S where S is the largest image side".

Boxes are for evaluation alone; some of the official ones stick out of their image and are left as they are.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ... import families, sampling
from ..extra import extra
from . import archives
from .caches import apart, cached, kept, known_as
from .fetch import Remote, Say, in_one_step, say, why_broken
from .places import home, look, looked
from .random_numbers import RandomNumbers

NAME = "CUB_200_2011"
ORIGIN = "https://www.vision.caltech.edu/datasets/cub_200_2011"
UNPACKED = "cub/unpacked"
CACHE = "cub/cache"
FOLDERS = (NAME, f"cub/{NAME}")
ARCHIVES = tuple(f"{folder}{NAME}{kind}" for folder in ("", "cub/") for kind in archives.KINDS)
LISTS = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt", "classes.txt")
LONGEST = 512  # of a cached image's shorter side
TOGETHER = 64  # images decoded at once
VERSION = 1  # of what is cached

# The archive as published; one of another size is somebody's own, and is judged by what it holds.
OFFICIAL_ARCHIVE = Remote(
    f"{NAME}.tgz", 1_150_585_339, "0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081", ()
)


class BirdsError(ValueError):
    """Files that are not what CUB-200-2011's are."""


class Lists(NamedTuple):
    """What the text files say; rows are images in the order of their ids."""

    names: list[str]
    labels: np.ndarray[Any, Any]  # int64 [N], from 0
    train: np.ndarray[Any, Any]  # bool [N]
    boxes: np.ndarray[Any, Any]  # float32 [N, 4]: x, y, width, height in the image's pixels
    classes: list[str]


class Counts(NamedTuple):
    """How much there is."""

    images: int
    train: int
    test: int
    classes: int


OFFICIAL = Counts(11_788, 5_994, 5_794, 200)  # as published


@dataclass(frozen=True)
class Birds:
    """All images, decoded. Pixels are read from the disk as they are used, until ``to`` moves them."""

    pixels: Tensor  # uint8 [all pixels of all images, 3]
    starts: Tensor  # int64 [N]: an image's first pixel
    sizes: Tensor  # int64 [N, 2]: height, width
    labels: Tensor  # int64 [N], 0 to 199
    train: Tensor  # bool [N]: the official split
    boxes: Tensor  # float32 [N, 4]: x, y, width, height in the decoded image's pixels
    names: list[str]
    classes: list[str]

    def counts(self) -> Counts:
        """How many there are."""
        train = int(self.train.sum())
        return Counts(len(self.names), train, len(self.names) - train, len(self.classes))

    def split(self, name: str) -> Tensor:
        """Which images are for "train", and which for "test". int64"""
        if name not in ("train", "test"):
            raise ValueError(f"name must be 'train' or 'test', got {name!r}")
        return torch.where(self.train == (name == "train"))[0]

    def to(self, device: torch.device | str) -> Birds:
        """The same with the pixels and labels on a device; what shapes depend on stays with the host."""
        return Birds(
            self.pixels.to(device), self.starts, self.sizes, self.labels.to(device), self.train, self.boxes,
            self.names, self.classes,
        )  # fmt: skip

    def image(self, index: int) -> Tensor:
        """One image. uint8 [3, H, W]"""
        height, width = self.sizes[index].tolist()
        start = int(self.starts[index])
        return self.pixels[start : start + height * width].reshape(height, width, 3).permute(2, 0, 1)

    def gathered(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images side by side: [N, 3, H, W] with H and W those of the largest, and their sizes [N, 2].

        An image lies in the upper left; beyond it its border is replicated. ``indices`` are the host's.
        """
        sizes, device = self.sizes[indices], self.pixels.device
        high, wide = sizes.amax(0).tolist()
        last = (sizes - 1).to(device, non_blocking=True)[:, :, None]
        y = torch.minimum(torch.arange(high, device=device), last[:, 0])  # [N, H]
        x = torch.minimum(torch.arange(wide, device=device), last[:, 1])  # [N, W]
        start = self.starts[indices].to(device, non_blocking=True)[:, None]
        at = (start + y * (last[:, 1] + 1))[:, :, None] + x[:, None, :]
        return self.pixels[at].permute(0, 3, 1, 2), sizes


@dataclass(frozen=True)
class Crops:
    """Crops of ``size`` from images whose shorter side is brought to ``side``: 224 of 256, or 448 of 512."""

    side: int = 256
    size: int = 224

    family = families.Affine()

    def __call__(self, birds: Birds, indices: Tensor, random: RandomNumbers | None = None) -> Tensor:
        """float32 [N, 3, size, size] from 0 to 255: at random places and flipped at random, or centred."""
        images, sizes = birds.gathered(indices)
        drawn = None if random is None else random.uniform(len(indices), 3)
        theta = self.theta(sizes.to(images.device), tuple(images.shape[2:]), drawn)
        # No image is reduced by more than the cached side is longer; those that grow need no smoothing.
        limit = LONGEST / self.side
        return sampling.warp(
            images.to(torch.float32),
            theta,
            self.family,
            size=(self.size, self.size),
            padding="border",
            antialias=limit if limit > 1 else False,
        )

    def theta(self, sizes: Tensor, canvas: tuple[int, ...], drawn: Tensor | None) -> Tensor:
        """Where crops look. sizes [N, 2], numbers uniform on [0, 1) [N, 3] -> [N, 6]

        The three numbers are the place along x, along y, and whether it is flipped; None is the centre.
        """
        extent = sizes.flip(1).to(torch.float32)  # width, height
        zoom = self.side / extent.amin(1, keepdim=True)
        window = self.size / zoom  # of the crop, in image pixels [N, 1]
        place = 0.5 if drawn is None else drawn[:, :2]
        middle = place * (extent - window) + window / 2  # [N, 2]
        whole = torch.tensor([canvas[1], canvas[0]], dtype=torch.float32, device=sizes.device)
        scale, shift = window / whole, 2 * middle / whole - 1
        turn = torch.ones_like(scale[:, 0]) if drawn is None else 1 - 2 * (drawn[:, 2] < 0.5).float()
        zero = torch.zeros_like(turn)
        return torch.stack([turn * scale[:, 0], zero, shift[:, 0], zero, scale[:, 1], shift[:, 1]], dim=1)


def load(data_dir: str | Path | None = None, *, say: Say = say) -> Birds:
    """All 11,788 images: decoded at the first call, from the cache at later ones.

    >>> Crops()(load(), load().split("test")[:8]).shape                               # doctest: +SKIP
    torch.Size([8, 3, 224, 224])
    """
    folder = find(data_dir, say=say)
    if folder is None:
        raise FileNotFoundError(
            f"CUB-200-2011 is not here: no {NAME} or {NAME}.tgz in {looked(data_dir)}; get "
            f"{NAME}.tgz from {ORIGIN}"
        )
    lists = read_lists(folder)
    return cached(
        cache_path(folder, lists),
        lambda pixels, index: opened(lists, pixels, index),
        lambda pixels, index: build(folder, lists, pixels, index, say),
        source=folder,
        lock=".lock",
        data_dir=data_dir,
        say=say,
    )


class Checked(NamedTuple):
    """What the files hold, read anew."""

    counts: Counts
    cached: bool  # whether there is a cache, which was seen to agree with them
    official_archive: bool


def check(data_dir: str | Path | None = None, *, say: Say = say) -> Checked:
    """Reads the lists and every image again, and compares the cache where there is one.

    Raises where anything is broken, missing, or not what the cache has. Nothing is written, but for an
    archive that is unpacked.
    """
    found = where(data_dir)
    official = found is not None and found.is_file() and is_official(found)
    folder = find(data_dir, say=say)
    if found is None or folder is None:
        raise FileNotFoundError(f"no {NAME} or {NAME}.tgz in {looked(data_dir)}")
    lists = read_lists(folder)
    broken: list[str] = []
    path = cache_path(folder, lists)
    cache = kept(path, lambda pixels, index: opened(lists, pixels, index), data_dir, broken.append)
    if broken:
        raise BirdsError("; ".join(broken))
    say(f"reading {found} again" + (", beside what is cached of it" if cache else ""))
    if found.is_file():
        archives.compare(found, folder.parent)
    all_there(folder, lists)
    for place, (image, scale) in enumerate(decoded([folder / "images" / name for name in lists.names])):
        if cache is None:
            continue
        reason = apart(cache.image(place), torch.from_numpy(image).permute(2, 0, 1))
        if reason is not None:
            raise BirdsError(f"the cache of {folder} has another image of {lists.names[place]}, {reason}")
        if not np.allclose(cache.boxes[place].numpy(), lists.boxes[place] * np.float32(scale)):
            raise BirdsError(f"the cache of {folder} has another scale of {lists.names[place]}")
    train = int(lists.train.sum())
    counts = Counts(len(lists.names), train, len(lists.names) - train, len(lists.classes))
    return Checked(counts, cache is not None, official)


def is_official(archive: Path) -> bool:
    """Whether it is the published archive; raises where it is as long, and something else."""
    if archive.stat().st_size != OFFICIAL_ARCHIVE.size:
        return False
    reason = why_broken(archive, OFFICIAL_ARCHIVE)
    if reason is not None:
        raise BirdsError(f"{archive} is broken: {reason}")
    return True


# Where it is, and what its lists say


def where(data_dir: str | Path | None = None) -> Path | None:
    """The folder with the lists, or else the archive; None where there is neither."""
    folders, unpacked = (
        [folder for folder in look(paths, data_dir) if (folder / LISTS[0]).is_file()]
        for paths in (FOLDERS, [f"{UNPACKED}/{NAME}"])
    )
    return next(iter(folders + look(ARCHIVES, data_dir) + unpacked), None)  # its archive may be gone


def find(data_dir: str | Path | None = None, *, say: Say = say) -> Path | None:
    """The folder with the lists, unpacked if need be; None where there is none."""
    found = where(data_dir)
    if found is None or found.is_dir():
        return found
    held = [folder for folder in look([UNPACKED], data_dir) if archives.holds(folder, found)]
    return (held[0] if held else archives.unpack(found, home(data_dir) / UNPACKED, say=say)) / NAME


def read_lists(folder: Path) -> Lists:
    tables = {name: table(folder / name) for name in LISTS}
    ids = list(tables["images.txt"])
    for name in LISTS[1:4]:
        if sorted(tables[name]) != sorted(ids):
            raise BirdsError(f"{folder / name} and images.txt do not name the same images")
    classes = tables["classes.txt"]
    if not all(number.isdecimal() for number in classes):
        raise BirdsError(f"{folder / 'classes.txt'} is broken: ids have to be numbers")
    if not set(tables["train_test_split.txt"].values()) <= {"0", "1"}:
        raise BirdsError(f"{folder / 'train_test_split.txt'} is broken: every image is 1, to train on, or 0")
    order = {number: place for place, number in enumerate(sorted(classes, key=int))}
    given = tables["image_class_labels.txt"]
    for number in ids:
        if given[number] not in order:
            raise BirdsError(f"image {number} is of class {given[number]}, which classes.txt does not have")
    try:
        boxes = np.array([tables["bounding_boxes.txt"][number].split() for number in ids], np.float32)
        boxes = boxes.reshape(len(ids), 4)
    except ValueError as error:
        raise BirdsError(f"{folder / 'bounding_boxes.txt'} is broken: {error}") from error
    if not np.isfinite(boxes).all():
        raise BirdsError(f"{folder / 'bounding_boxes.txt'} is broken: a box has a side that is no number")
    return Lists(
        [inside(tables["images.txt"][number], folder) for number in ids],
        np.array([order[given[number]] for number in ids], np.int64),
        np.array([tables["train_test_split.txt"][number] == "1" for number in ids]),
        boxes,
        [classes[number] for number in order],
    )


def inside(name: str, folder: Path) -> str:
    """A path below ``images``, and nowhere else."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise BirdsError(f"{folder / 'images.txt'} names {name!r}, a path that leaves its folder")
    return name


def table(path: Path) -> dict[str, str]:
    """A list of an id and something on each line."""
    if not path.is_file():
        raise BirdsError(f"{path} is missing")
    try:
        rows = [line.split(maxsplit=1) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise BirdsError(f"{path} is broken: {error}") from error
    if not rows or any(len(row) != 2 for row in rows):
        raise BirdsError(f"{path} is broken: every line has to have an id and a value")
    found = {number: value.strip() for number, value in rows}
    if len(found) < len(rows):
        raise BirdsError(f"{path} is broken: an id is there twice")
    return found


def cache_path(folder: Path, lists: Lists) -> str:
    return f"{CACHE}/images-{fingerprint(folder, lists)}.bin"


def fingerprint(folder: Path, lists: Lists) -> str:
    """What the cache depends on: the list of images, and the sizes and times of those that it names.

    They are looked up by their names, so that a class's folder, or all of them, may be a link.
    """
    digest = hashlib.sha256(f"{VERSION} {LONGEST}".encode())
    digest.update((folder / LISTS[0]).read_bytes())
    for name in lists.names:
        try:
            stat = os.stat(os.path.join(folder, "images", name))
        except OSError:  # missing: it is named when it is read
            continue
        digest.update(repr((name, stat.st_size, stat.st_mtime_ns)).encode())
    return digest.hexdigest()[:16]


# Decoding


def build(folder: Path, lists: Lists, pixels: Path, index: Path, say: Say) -> None:
    """Writes the cache: the size of each image, and last the pixels."""
    all_there(folder, lists)
    say(f"decoding {len(lists.names):,} images of {folder} into {pixels.parent}, once")
    sizes, scales = [], []
    with in_one_step(pixels) as file:
        for image, scale in decoded([folder / "images" / name for name in lists.names]):
            file.write(image.tobytes())
            sizes.append(image.shape[:2])
            scales.append(scale)
        with in_one_step(index) as other:
            np.savez(
                other,
                sizes=np.array(sizes, np.int64),
                scales=np.array(scales, np.float32),
                source=np.array(known_as(folder)),
            )


def all_there(folder: Path, lists: Lists) -> None:
    """Raises where images that are listed are not in their folder."""
    missing = [name for name in lists.names if not (folder / "images" / name).is_file()]
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise BirdsError(f"{len(missing)} of {len(lists.names)} images are missing in {folder}: {shown}")


def decoded(paths: Sequence[Path]) -> Iterator[tuple[np.ndarray[Any, Any], float]]:
    """Images [H, W, 3], and by how much each was reduced; some at a time, by as many threads as there are."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(paths), TOGETHER):
            yield from pool.map(decode, paths[start : start + TOGETHER])


def decode(path: Path) -> tuple[np.ndarray[Any, Any], float]:
    images = extra("PIL.Image")
    try:
        with images.open(path) as file:
            image = file.convert("RGB")
    except (OSError, SyntaxError, ValueError, images.DecompressionBombError) as error:
        raise BirdsError(f"{path} cannot be read: {error}") from error
    scale = min(1.0, LONGEST / min(image.size))
    if scale < 1:
        image = image.resize([round(scale * side) for side in image.size], images.Resampling.LANCZOS)
    return np.array(image), scale


def opened(lists: Lists, pixels: Path, index: Path) -> Birds:
    with np.load(index) as file:
        held: Mapping[str, Any] = dict(file)
    sizes = torch.from_numpy(held["sizes"])
    if sizes.shape != (len(lists.names), 2):
        raise BirdsError(f"sizes of shape {tuple(sizes.shape)} for {len(lists.names)} images")
    areas = sizes.prod(1)
    given, expected = pixels.stat().st_size, 3 * int(areas.sum())
    if given != expected:
        raise BirdsError(f"{given:,} bytes, expected {expected:,}")
    memory = np.memmap(pixels, np.uint8, mode="c").reshape(-1, 3)  # written to in memory alone
    return Birds(
        torch.from_numpy(memory),
        areas.cumsum(0) - areas,
        sizes,
        torch.from_numpy(lists.labels),
        torch.from_numpy(lists.train),
        torch.from_numpy(lists.boxes * held["scales"][:, None]),
        lists.names,
        lists.classes,
    )
