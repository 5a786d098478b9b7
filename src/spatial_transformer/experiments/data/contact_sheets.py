"""A page of images of each set, to be looked at: ``stn data show``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..arguments import UsageError
from ..extra import extra
from ..picture_formats import format_of
from . import birds, mnist, svhn, uci_digits
from .digits import DigitSet
from .fetch import in_one_step
from .fixed_sets import BATCH, as_images, fixed_set

GAP = 2  # pixels between tiles
BACKGROUND = (0.25, 0.3, 0.4)  # none of the images' own colours, so that their edges are seen
BLUE, GREEN = (0.2, 0.5, 1.0), (0.2, 0.9, 0.4)
TILE = 84  # pixels, of images of different sizes side by side
PAGE = 1100  # pixels that a sheet is about as wide as


class Asked(NamedTuple):
    """What a sheet is to show."""

    kind: str | None = None
    size: int | None = None
    split: str = "test"
    columns: int = 16
    rows: int = 4
    data_dir: str | Path | None = None


def show(name: str, asked: Asked, out: Path) -> str:
    """Writes the sheet of a set, as a picture of the kind that its name says, and gives its caption."""
    kind = format_of(out)
    if name not in SHEETS:
        raise UsageError(f"set must be one of {', '.join(SHEETS)}, got {name!r}")
    for option, value, sets in (("kind", asked.kind, WITH_KINDS), ("size", asked.size, WITH_SIZES)):
        if value is not None and name not in sets:
            raise UsageError(f"{name} has no --{option}; {', '.join(sets)} have")
    sheet, caption = SHEETS[name](asked)
    pixels = (sheet * 255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    image = extra("PIL.Image").fromarray(pixels)
    with in_one_step(out) as file:
        image.save(file, format=kind, optimize=True)
    return caption


# Tiles


def page(tiles: Tensor, columns: int) -> Tensor:
    """Images [N, 3, H, W] from 0 to 1, side by side and row by row, as large as fits. [3, H', W']"""
    count, _, height, width = tiles.shape
    enlarge = max(1, round(PAGE / (columns * width)))
    tiles = tiles.repeat_interleave(enlarge, -1).repeat_interleave(enlarge, -2)
    high, wide = height * enlarge + GAP, width * enlarge + GAP
    rows = -(-count // columns)
    sheet = torch.tensor(BACKGROUND)[:, None, None].repeat(1, rows * high + GAP, columns * wide + GAP)
    for number, tile in enumerate(tiles):
        top, left = number // columns * high + GAP, number % columns * wide + GAP
        sheet[:, top : top + high - GAP, left : left + wide - GAP] = tile
    return sheet


def grey(images: Tensor) -> Tensor:
    """[N, 1, H, W] as colours."""
    return images.expand(-1, 3, -1, -1)


def outlined(images: Tensor, boxes: Tensor, colour: tuple[float, float, float]) -> Tensor:
    """Colours [N, 3, H, W] with the outlines of boxes [N, 4], normalised, drawn inside of them."""
    images, ink = images.clone(), torch.tensor(colour)[:, None, None]
    height, width = images.shape[2:]
    extent = torch.tensor([width, height, width, height])
    for image, box in zip(images, ((boxes + 1) / 2 * extent).round().long().tolist(), strict=True):
        x0, y0, x1, y1 = box
        image[:, y0:y1, [x0, x1 - 1]] = ink
        image[:, [y0, y1 - 1], x0:x1] = ink
    return images


def alternating(first: Tensor, second: Tensor, columns: int) -> Tensor:
    """A row of the first, a row of the second below it, and so on; the smaller ones centred."""
    size = max(first.shape[-1], second.shape[-1])
    rows = []
    for start in range(0, len(first), columns):
        rows += [centred(images[start : start + columns], size) for images in (first, second)]
    return torch.cat(rows)


def centred(images: Tensor, size: int) -> Tensor:
    edge = size - images.shape[-1]
    before = edge // 2
    framed = torch.tensor(BACKGROUND)[None, :, None, None].repeat(len(images), 1, size, size)
    framed[:, :, before : before + images.shape[-2], before : before + images.shape[-1]] = images
    return framed


# Sheets: what is asked -> the page and its caption


def of_digits(digits: DigitSet, asked: Asked) -> tuple[Tensor, str]:
    part = {"train": digits.train, "test": digits.test}[chosen("split", asked.split, ("test", "train"))]
    tiles = grey(as_images(part.images[: asked.columns * asked.rows], "cpu"))
    return page(tiles, asked.columns), f"{digits.name}, {asked.split}"


def distorted(asked: Asked, kinds: tuple[str, ...]) -> tuple[Tensor, str]:
    """Digits, and below each what the distortion makes of it."""
    kind = chosen("kind", asked.kind, kinds)
    digits = mnist.load_or_stand_in(asked.data_dir)
    found = fixed_set(kind, digits, count=min(asked.columns * max(1, asked.rows // 2), BATCH))
    before = grey(as_images(digits.test.images[: len(found.labels)], "cpu"))
    tiles = alternating(before, grey(found.images), asked.columns)
    return page(tiles, asked.columns), f"{digits.name} and its {kind}"


def every_distortion(asked: Asked) -> tuple[Tensor, str]:
    """Digits in a row, and below them a row for each of R, RTS, P, E and TC, all brought to one size."""
    digits = mnist.load_or_stand_in(asked.data_dir)
    count = min(asked.columns, BATCH)
    rows = {digits.name: as_images(digits.test.images[:count], "cpu")}
    rows |= {kind: fixed_set(kind, digits, count=count).images for kind in ("R", "RTS", "P", "E", "TC")}
    tiles = []
    for name, images in rows.items():
        seen = torch.nn.functional.interpolate(images, size=(TILE, TILE), mode="bilinear")
        tiles += [written(name)[None], grey(seen)]
    return page(torch.cat(tiles), count + 1), f"{digits.name}; R, RTS, P, E, TC"


def written(text: str) -> Tensor:
    """A tile with a word on it. [3, TILE, TILE]"""
    background = tuple(round(255 * value) for value in BACKGROUND)
    image = extra("PIL.Image").new("RGB", (TILE, TILE), background)
    font = extra("PIL.ImageFont").load_default(TILE // 5)
    middle = (TILE / 2, TILE / 2)
    extra("PIL.ImageDraw").Draw(image).text(middle, text, "white", font, anchor="mm")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def placed(asked: Asked, kinds: dict[str, str]) -> tuple[Tensor, str]:
    """Digits on their canvases, with the true boxes."""
    kind = kinds[chosen("kind", asked.kind, tuple(kinds))]
    digits = mnist.load_or_stand_in(asked.data_dir)
    found = fixed_set(kind, digits, count=min(asked.columns * asked.rows, BATCH))
    tiles = outlined(grey(found.images), found.drawn.numbers["box"], BLUE)
    return page(tiles, asked.columns), f"{digits.name} {kind}, the true box in blue"


def added(asked: Asked) -> tuple[Tensor, str]:
    """The two channels of each pair, with a bar between them."""
    digits = mnist.load_or_stand_in(asked.data_dir)
    columns = max(1, asked.columns // 2)
    found = fixed_set("addition", digits, count=min(columns * asked.rows, BATCH))
    bar = torch.tensor(BLUE)[None, :, None, None].expand(len(found.labels), 3, found.images.shape[-2], 2)
    tiles = torch.cat([grey(found.images[:, :1]), bar, grey(found.images[:, 1:])], dim=-1)
    sums = ", ".join(map(str, found.labels[:columns].tolist()))
    return page(tiles, columns), f"{digits.name} pairs; sums of the first row: {sums}"


def volumes(asked: Asked) -> tuple[Tensor, str]:
    """Each volume summed along z (as seen from the front), and below it along y (from above)."""
    digits = mnist.load_or_stand_in(asked.data_dir)
    columns = min(asked.columns, 12)
    found = fixed_set("3D", digits, count=min(columns * max(1, asked.rows // 2), BATCH)).images
    front, above = (found.sum(axis) for axis in (2, 3))
    front, above = (grey(view / view.amax((2, 3), keepdim=True)) for view in (front, above))
    caption = f"{digits.name} in 60 x 60 x 60, from the front and from above"
    return page(alternating(front, above, columns), columns), caption


def house_numbers(asked: Asked) -> tuple[Tensor, str]:
    size = int(chosen("size", str(asked.size or svhn.TIGHT), (str(svhn.TIGHT), str(svhn.LOOSE))))
    found = svhn.load(asked.split, asked.data_dir)
    crops = found.loose if size == svhn.LOOSE else found.tight
    columns = min(asked.columns, PAGE // size)
    tiles = crops[: columns * asked.rows].float() / 255
    if size == svhn.LOOSE:
        middle = torch.tensor([-0.5, -0.5, 0.5, 0.5]).expand(len(tiles), 4)
        tiles = outlined(tiles, middle, GREEN)
    rows = found.labels[:columns].tolist()
    shown = ", ".join("".join(str(digit) for digit in row if digit != svhn.NULL) for row in rows)
    return page(tiles, columns), f"SVHN {asked.split}, {size} px; labels of the first row: {shown}"


def bird_crops(asked: Asked) -> tuple[Tensor, str]:
    size = int(chosen("size", str(asked.size or 224), ("224", "448")))
    found = birds.load(asked.data_dir)
    columns = min(asked.columns, max(1, PAGE // size))
    some = found.split(asked.split)
    picked = some[torch.linspace(0, len(some) - 1, columns * asked.rows).long()]
    tiles = birds.Crops(256 if size == 224 else 512, size)(found, picked) / 255
    return page(tiles, columns), f"CUB-200-2011 {asked.split}, centre crops of {size} px"


def chosen(option: str, given: str | None, known: tuple[str, ...]) -> str:
    if given is None:
        return known[0]
    if given not in known:
        raise UsageError(f"--{option} must be one of {', '.join(known)}, got {given!r}")
    return given


WITH_KINDS = ("distorted-mnist", "cluttered-mnist", "colocalisation")
WITH_SIZES = ("svhn", "birds")

Sheet = Callable[[Asked], tuple[Tensor, str]]

SHEETS: dict[str, Sheet] = {
    "mnist": lambda asked: of_digits(mnist.load_or_stand_in(asked.data_dir), asked),
    "uci-digits": lambda asked: of_digits(uci_digits.load(), asked),
    "distortions": every_distortion,
    "distorted-mnist": lambda asked: distorted(asked, ("RTS", "R", "P", "E")),
    "cluttered-mnist": lambda asked: placed(asked, {"TC": "TC"}),
    "colocalisation": lambda asked: placed(asked, {"TC": "TC84", "T": "T84"}),
    "addition": added,
    "volumes": volumes,
    "svhn": house_numbers,
    "birds": bird_crops,
}
