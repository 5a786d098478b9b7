"""Animations: frames of tiles with a line of words above them, saved as GIF.

They are made with Pillow, which is imported where it is first needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .data.fetch import in_one_step
from .extra import extra
from .figures import GRID, GROUND, INK
from .lattices import is_border, is_drawn

TILE, GAP, MARGIN = 104, 6, 12  # pixels
HEADER, FOOTER = 34, 10
SMOOTH = 2  # times as large, and then made smaller
STILL, MOVING, LAST = 60, 130, 3000  # milliseconds that a frame is shown
MOVED = 0.15  # pixels of the input by which lines move that are not still


def page(rows: int, columns: int) -> tuple[Any, list[tuple[int, int]]]:
    """A white picture with room for tiles, and their upper left corners, row by row."""
    width = 2 * MARGIN + columns * TILE + (columns - 1) * GAP
    height = HEADER + rows * TILE + (rows - 1) * GAP + FOOTER
    corners = [
        (MARGIN + column * (TILE + GAP), HEADER + row * (TILE + GAP))
        for row in range(rows)
        for column in range(columns)
    ]
    return extra("PIL.Image").new("RGB", (width, height), "white"), corners


def entitle(page: Any, title: str, counter: str) -> None:
    pen, font = extra("PIL.ImageDraw").Draw(page), extra("PIL.ImageFont").load_default(17)
    middle = HEADER / 2
    pen.text((MARGIN, middle), title, INK, font, anchor="lm")
    pen.text((page.width - MARGIN, middle), counter, INK, font, anchor="rm")


def frame(rows: Sequence[Sequence[Any]], title: str, counter: str) -> Any:
    """Rows of tiles, as many in each, and words above them."""
    found, corners = page(len(rows), len(rows[0]))
    for each, corner in zip(itertools.chain(*rows), corners, strict=True):
        found.paste(each, corner)
    entitle(found, title, counter)
    return found


def paced(lines: Tensor) -> list[int]:
    """How long frames are shown, in milliseconds: longer where lines move, and the first and last ones.

    lines: at each moment, in pixels. [moments, ...]
    """
    away = (lines[1:] - lines[:-1]).abs().flatten(1).amax(1)
    durations = [6 * MOVING, *(MOVING if each > MOVED else STILL for each in away.tolist())]
    durations[-1] = LAST
    return durations


def tile(image: Tensor, side: int = TILE) -> Any:
    """An image [H, W] as a picture of so many pixels."""
    pixels = (image * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    image_module = extra("PIL.Image")
    return image_module.fromarray(pixels).resize((side, side), image_module.Resampling.BICUBIC).convert("RGB")


def tile_with_lines(
    image: Tensor, bundles: Iterable[Tensor], half: float, *,
    colours: Iterable[str] = (GRID,), every: int = 1, bold: Callable[[int], bool] = is_border,
) -> Any:  # fmt: skip
    """An image [H, W] with bundles of lines on it, each in its colour: lattices, or something else of which
    ``bold`` knows the bolder lines. Of lattices every second, fourth ... line, if so many are asked for.

    half: so many pixels of the image are shown to either side of its middle.
    """
    image_module, draw_module = extra("PIL.Image"), extra("PIL.ImageDraw")
    large = SMOOTH * TILE
    page = image_module.new("RGB", (large, large), GROUND)
    size = image.shape[-1]
    scale = large / (2 * half)  # of a pixel of the image
    corner = half - size / 2  # of the image, in its pixels, from the tile's
    page.paste(tile(image, round(size * scale)), (round(corner * scale), round(corner * scale)))
    pen = draw_module.Draw(page)
    for lines, colour in zip(bundles, colours, strict=False):
        for number, line in enumerate((lines + 0.5 + corner) * scale):
            if is_drawn(number, every):
                wide = 2 * SMOOTH if bold(number) else SMOOTH // 2
                pen.line([tuple(point) for point in line.tolist()], colour, width=wide, joint="curve")
    return page.resize((TILE, TILE), image_module.Resampling.LANCZOS)


def palette(*colours_of_lines: str) -> Any:
    """The colours of an animation: greys, and those of lines mixed with what they may lie on."""
    *lines, ground = (
        [int(text[at : at + 2], 16) for at in (1, 3, 5)] for text in (*colours_of_lines, GROUND)
    )
    greys = [[round(level * 255 / 31)] * 3 for level in range(32)]
    under = [*greys[::6], greys[-1], ground]
    mixed = [
        [round(part * over + (1 - part) * below) for over, below in zip(line, each, strict=True)]
        for line in lines
        for each in under
        for part in (0.2, 0.4, 0.6, 0.8)
    ]
    colours = [*greys, *lines, ground, *mixed]
    found = extra("PIL.Image").new("P", (1, 1))
    found.putpalette([value for colour in colours for value in colour])
    return found


def save(frames: Sequence[Any], durations: Sequence[int], path: Path, lines: Sequence[str] = (GRID,)) -> Path:
    """Puts an animation in place in one step, and gives where it is.

    lines: their colours.
    """
    colours, plainly = palette(*lines), extra("PIL.Image").Dither.NONE
    plain = [each.quantize(palette=colours, dither=plainly) for each in frames]
    with in_one_step(path) as file:
        plain[0].save(
            file, format="GIF", save_all=True, append_images=plain[1:], duration=list(durations), loop=0
        )
    return path
