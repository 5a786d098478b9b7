"""Pictures of co-localisations, out of records and probes: where the boxes were as training went on."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import pictures
from .data.digits import DigitSet
from .data.one_class import one_class
from .extra import extra
from .pictures import Trained
from .results import Result

PICTURES = ("boxes", "animation")

ROWS, COLUMNS = 3, 6  # images, and moments of training: the paper's figure has three images
FRAMES = 10  # images of an animation
TRUE = "#35c46a"


def draw_images(
    kept: Sequence[Trained],
    found: dict[str, list[Result]],
    wanted: Collection[str],
    folder: Path,
    digits: DigitSet,
    title: str,
) -> Iterator[Path]:
    for one in kept:
        name = pictures.file_name(one.cell)
        images, truth = shown(one, digits)
        if "boxes" in wanted:
            path = folder / f"{name}-boxes.png"
            pictures.save(boxes(one, images, truth), path)
            yield path
        if "animation" in wanted:
            path = folder / f"{name}-training.gif"
            pictures.save_animation(*animation(one, images, truth), path, (pictures.GRID, TRUE))
            yield path


def shown(one: Trained, digits: DigitSet) -> tuple[Tensor, Tensor]:
    """The images of a run, drawn again, and the true boxes in their pixels. [N, 1, size, size], [N, 4]"""
    assert one.cell.model.digit is not None
    given = one_class(one.cell.data.kind, one.cell.model.digit, one.result.record.seed, digits)
    return given.images, to_pixels(given.drawn.numbers["box"], one.cell.data.size)


def to_pixels(normalised: Tensor, size: int) -> Tensor:
    """A box's outline, counted from the upper left corner of the image."""
    return (normalised + 1) * (size / 2)


def predicted(one: Trained, moment: int) -> Tensor:
    """The boxes of the watched images at a moment, in pixels. [images, 4]"""
    theta = torch.from_numpy(one.probe.thetas[moment].astype(np.float32))
    corners = one.family.box(theta)
    return to_pixels(torch.cat([corners[:, 0], corners[:, 2]], dim=-1), one.cell.data.size)


def moments(one: Trained) -> list[int]:
    """Some of those that a probe keeps, from the first to the last, as far apart in rank as may be."""
    last = len(one.probe.steps) - 1
    return sorted({round(last * column / (COLUMNS - 1)) for column in range(COLUMNS)})


def boxes(one: Trained, images: Tensor, truth: Tensor) -> Any:
    """Images in rows, steps in columns; a box is predicted, the dashed one true."""
    columns = moments(one)
    made, table = pictures.panels([""] * ROWS, len(columns), 1.35, above=0.75, below=0.36)
    rectangle = extra("matplotlib.patches").Rectangle
    for column, moment in enumerate(columns):
        found = predicted(one, moment)
        for row in range(ROWS):
            axes = table[row, column]
            pictures.panel(axes, images[row, 0])
            for edges, colour, line in ((truth[row], TRUE, "--"), (found[row], pictures.GRID, "-")):
                left, top, right, bottom = (edges - 0.5).tolist()
                axes.add_patch(
                    rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour,
                              linestyle=line, linewidth=1.8)
                )  # fmt: skip
        table[0, column].set_title(f"step {one.probe.steps[moment]:,}", fontsize=10, color=pictures.INK)
    title = f"Co-localisation of the digit {one.cell.model.name}: predicted boxes, and the true ones dashed"
    pictures.entitle(made, title, one.footer)
    return made


def animation(one: Trained, images: Tensor, truth: Tensor) -> tuple[list[Any], list[int]]:
    """A frame for each moment of training, and for how long each is shown, in milliseconds."""
    frames = [frame(one, images, truth, moment) for moment in range(len(one.probe.steps))]
    durations = [pictures.MOVING] * len(frames)
    durations[-1] = pictures.LAST
    return frames, durations


def frame(one: Trained, images: Tensor, truth: Tensor, moment: int) -> Any:
    image_module, draw_module, font_module = map(extra, ("PIL.Image", "PIL.ImageDraw", "PIL.ImageFont"))
    side, gap, margin, header = pictures.TILE, pictures.GAP, pictures.MARGIN, pictures.HEADER
    across = FRAMES // 2
    width = 2 * margin + across * side + (across - 1) * gap
    page = image_module.new("RGB", (width, header + 2 * side + gap + pictures.FOOTER), "white")
    pen = draw_module.Draw(page)
    zoom = side / one.cell.data.size
    found = predicted(one, moment)
    for number in range(FRAMES):
        corner = margin + number % across * (side + gap), header + number // across * (side + gap)
        page.paste(pictures.tile(images[number, 0], side), corner)
        for edges, colour in ((truth[number], TRUE), (found[number], pictures.GRID)):
            outline = [round(value * zoom) + corner[at % 2] for at, value in enumerate(edges.tolist())]
            pen.rectangle(outline, outline=colour, width=2)
    fonts = font_module.load_default(17)
    title = f"{one.result.record.digits} {one.cell.data.kind}, digit {one.cell.model.name}"
    pen.text((margin, header / 2), title, pictures.INK, fonts, anchor="lm")
    counter = f"step {one.probe.steps[moment]:,}"
    pen.text((width - margin, header / 2), counter, pictures.INK, fonts, anchor="rm")
    return page


draw = functools.partial(pictures.draw, of_images=draw_images)
