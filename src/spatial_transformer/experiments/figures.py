"""Figures: pages of panels with images, lattices and words on them, saved as pictures.

They are made with matplotlib, which is imported where it is first needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from .data.fetch import in_one_step
from .extra import extra
from .lattices import is_border, is_drawn
from .picture_formats import format_of

GRID = "#ff5a36"  # seen on a black ground, on a white stroke, and on both at once
GROUND = "#2b303b"  # around an image: none of its own colours
INK, FAINT = "#20242c", "#6b7280"
RIGHT, WRONG = "#1a7f37", "#c62828"
DPI = 120
DRAWN = 48  # pictures of one's own on a page: matplotlib refuses pages of thousands

# Inches: for the names of rows, at the end, between panels, between groups of them, and for what is written
# between those that follow below.
LEFT, END, BETWEEN, APART, WRITTEN = 0.5, 0.08, 0.07, 0.3, 0.75


def figure(width: float, height: float) -> Any:
    """A figure of its own: nothing of pyplot's state is touched, and nothing is left open."""
    return extra("matplotlib.figure").Figure(figsize=(width, height), dpi=DPI, facecolor="white")


def panels(
    rows: Sequence[str], columns: int, side: float, *, above: float, below: float,
    group: int | None = None, most: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """A figure and its square panels [rows, columns], in groups of so many columns; all in inches.

    most: columns beside one another; those beyond follow below, with all their rows.
    """
    most = columns if most is None else min(most, columns)
    lefts = [LEFT + at * (side + BETWEEN) + (at // group * APART if group else 0) for at in range(most)]
    width = lefts[-1] + side + END
    block = len(rows) * (side + BETWEEN) - BETWEEN + WRITTEN
    height = above + block * -(-columns // most) - WRITTEN + below
    made = figure(width, height)
    table = np.empty((len(rows), columns), dtype=object)
    for row, name in enumerate(rows):
        for column in range(columns):
            left, top = lefts[column % most], above + column // most * block
            bottom = height - top - (row + 1) * side - row * BETWEEN
            table[row, column] = made.add_axes((left / width, bottom / height, side / width, side / height))
        for axes in table[row, ::most]:
            axes.set_ylabel(name, fontsize=10, color=INK)
    return made, table


def shortened(text: str, most: int) -> str:
    """With what is in the middle left out, so that it has so many letters at most.

    >>> shortened("a picture of our house.jpg", 15)
    'a pictu…use.jpg'
    """
    if len(text) <= most:
        return text
    first = most // 2
    return f"{text[:first]}…{text[first + 1 - most :]}"


def entitle(made: Any, title: str, footer: str) -> None:
    width, height = made.get_size_inches()
    left = LEFT / width
    made.text(left, 1 - 0.1 / height, title, va="top", fontsize=12.5, color=INK)
    made.text(left, 0.08 / height, footer, va="bottom", fontsize=8.5, color=FAINT)


def panel(axes: Any, image: Tensor, *, brightest: float = 1.0, smooth: bool = False) -> None:
    """smooth: of images that have more pixels than their place on the page."""
    shown = "hanning" if smooth else "nearest"
    axes.imshow(image.numpy(), cmap="gray", vmin=0, vmax=brightest, interpolation=shown)
    axes.set(xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_visible(False)


def with_lattices(
    axes: Any, image: Tensor, lattices: Iterable[Tensor], half: float, *,
    colours: Iterable[str] = (GRID,), every: int = 1,
) -> None:  # fmt: skip
    """An image with lattices on it, each in its colour, and as much ground around it as they need."""
    panel(axes, image)
    for lines, colour in zip(lattices, colours, strict=False):
        draw_lines(axes, lines, colour, every)
    zoom_out(axes, len(image), half)


def draw_lines(axes: Any, lines: Tensor, colour: str, every: int = 1) -> None:
    """A lattice, its border bolder; of its lines every second, fourth ... if so many are asked for."""
    for number, line in enumerate(lines.numpy()):
        if not is_drawn(number, every):
            continue
        wide, alpha = (1.9, 1.0) if is_border(number) else (0.7, 0.8)
        axes.plot(line[:, 0], line[:, 1], color=colour, linewidth=wide, alpha=alpha, solid_capstyle="round")


def zoom_out(axes: Any, size: int, half: float) -> None:
    """Shows so much to either side of the middle of an image of that size, in its pixels, on a ground."""
    axes.set_facecolor(GROUND)
    middle = (size - 1) / 2
    axes.set(xlim=(middle - half, middle + half), ylim=(middle + half, middle - half))


def save(made: Any, path: Path) -> Path:
    """Puts a figure in place in one step, as a picture of the kind that its name says; gives where it is."""
    kind = format_of(path)
    nameless = {"metadata": {"Software": None}} if kind == "png" else {}  # of matplotlib; others have none
    with in_one_step(path) as file:
        made.savefig(file, format=kind, **nameless)
    return path
