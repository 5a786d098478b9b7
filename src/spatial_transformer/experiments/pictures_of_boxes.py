"""Pictures of co-localisations, out of records and probes: where the boxes were as training went on."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import animations, figures, pictures, probes, tested_digits
from .data.digits import DigitSet
from .data.one_class import one_class
from .extra import extra
from .figures import GRID
from .pictures import Place, Trained, file_name
from .results import Result

PICTURES = ("boxes", "animation")

ROWS, COLUMNS = 3, 6  # images, and moments of training: the paper's figure has three images
FRAMES = 10  # images of an animation
TRUE = "#35c46a"


def draw_images(
    kept: Sequence[Trained],
    found: dict[str, list[Result]],
    wanted: Collection[str],
    place: Place,
    digits: DigitSet,
    title: str,
) -> Iterator[Path]:
    for one in kept:
        name = file_name(one.cell)
        images, truth = shown(one, digits)
        if "boxes" in wanted:
            yield figures.save(boxes(one, images, truth), place(f"{name}-boxes.png"))
        if "animation" in wanted:
            path = place(f"{name}-training.gif")
            yield animations.save(*animation(one, images, truth), path, (GRID, TRUE))


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
    theta = probes.transforms(one.probe.thetas[moment])
    corners = one.family.box(theta)
    return to_pixels(torch.cat([corners[:, 0], corners[:, 2]], dim=-1), one.cell.data.size)


def moments(one: Trained) -> list[int]:
    """Some of those that a probe keeps, from the first to the last, as far apart in rank as may be."""
    last = len(one.probe.steps) - 1
    return sorted({round(last * column / (COLUMNS - 1)) for column in range(COLUMNS)})


def boxes(one: Trained, images: Tensor, truth: Tensor) -> Any:
    """Images in rows, steps in columns; a box is predicted, the dashed one true."""
    columns = moments(one)
    made, table = figures.panels([""] * ROWS, len(columns), 1.35, above=0.75, below=0.36)
    rectangle = extra("matplotlib.patches").Rectangle
    for column, moment in enumerate(columns):
        found = predicted(one, moment)
        for row in range(ROWS):
            axes = table[row, column]
            figures.panel(axes, images[row, 0])
            for edges, colour, line in ((truth[row], TRUE, "--"), (found[row], GRID, "-")):
                left, top, right, bottom = (edges - 0.5).tolist()
                axes.add_patch(
                    rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour,
                              linestyle=line, linewidth=1.8)
                )  # fmt: skip
        table[0, column].set_title(f"step {one.probe.steps[moment]:,}", fontsize=10, color=figures.INK)
    title = f"Co-localisation of the digit {one.cell.model.name}: predicted boxes, and the true ones dashed"
    figures.entitle(made, title, footer(one))
    return made


def footer(one: Trained) -> str:
    """The run and its accuracy beside the paper's, as in the table."""
    error = one.result.record.error
    right = "failed" if error is None else f"{100 - error:.0f} % of the boxes right"
    paper = "" if one.paper is None else f" (the paper's {100 - one.paper:.0f} %)"
    return f"{one.run}: {right}{paper}"


def animation(one: Trained, images: Tensor, truth: Tensor) -> tuple[list[Any], list[int]]:
    """A frame for each moment of training, and for how long each is shown, in milliseconds."""
    frames = [frame(one, images, truth, moment) for moment in range(len(one.probe.steps))]
    durations = [animations.MOVING] * len(frames)
    durations[-1] = animations.LAST
    return frames, durations


def frame(one: Trained, images: Tensor, truth: Tensor, moment: int) -> Any:
    """One picture of an animation: images in two rows, each with its true and its predicted box."""
    page, corners = animations.page(rows=2, columns=FRAMES // 2)
    pen = extra("PIL.ImageDraw").Draw(page)
    zoom = animations.TILE / one.cell.data.size
    found = predicted(one, moment)
    for number, corner in enumerate(corners):
        page.paste(animations.tile(images[number, 0]), corner)
        for edges, colour in ((truth[number], TRUE), (found[number], GRID)):
            outline = [round(value * zoom) + corner[at % 2] for at, value in enumerate(edges.tolist())]
            pen.rectangle(outline, outline=colour, width=2)
    title = f"{one.result.record.digits} {one.cell.data.kind}, digit {one.cell.model.name}"
    animations.entitle(page, title, f"step {one.probe.steps[moment]:,}")
    return page


draw = functools.partial(pictures.draw, of_images=draw_images, load=tested_digits.load)
