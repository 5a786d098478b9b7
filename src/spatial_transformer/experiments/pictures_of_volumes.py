"""Pictures of digits in three dimensions (section A.3): volumes as they lie, transformed, and projected."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..coordinates import to_pixels
from ..family import Family
from ..sampling import warp
from . import animations, pictures, tested_digits
from .cases import cases_title, chosen_cases, watched_of, write_answers
from .data.digits import DigitSet
from .data.fixed_sets import BATCH
from .figures import GRID, INK, entitle, panel, panels, zoom_out
from .measures import OFF_CENTRE, OFF_FRONT
from .pictures import Base, Trained, of_each_run
from .spec import CLASSES
from .tested_digits import class_means, first_images

FURTHEST = 1.5  # times the side of a volume, that is shown to either side of its middle at most
# Of a volume [1, D, H, W]: the axis that a view sums up, and which of x, y, z lie across and down on it.
VIEWS = {"front": (1, (0, 1)), "above": (2, (0, 2))}
# Of the corners of a box, x changing fastest: those that an edge joins.
EDGES = [(a, a | bit) for a in range(8) for bit in (1, 2, 4) if not a & bit]


class Shown(NamedTuple):
    """The first test volumes, as far as one batch goes, and what the transformer makes of them."""

    before: Tensor  # [N, 1, size, size, size]
    theta: Tensor  # [N, 12]
    labels: Tensor  # int64 [N]


def seen(one: Trained, digits: DigitSet) -> Shown:
    fixed, theta = first_images(one, digits, BATCH)
    return Shown(fixed.images, theta, fixed.labels)


def cases(one: Trained, shown: Shown, base: Base) -> Any:
    """Volumes seen from the front and from above, with the box that the transformer reads, and what it makes
    of them, from above and from the front: the last is what the classification network gets."""
    numbers, saved = chosen_cases(one, shown.labels, base)
    rows = (
        "input,\nfrom the front",
        "input,\nfrom above",
        "output,\nfrom above",
        "output summed:\nprojection",
    )
    made, table = panels(rows, len(numbers), 1.2, above=0.68, below=0.95)
    size = one.cell.data.size
    boxes = {view: [box(one.family, shown.theta[number], size, view) for number in numbers] for view in VIEWS}
    for row, view in zip(table[:2], ("front", "above"), strict=True):
        half = around(boxes[view], size)  # a box may be far deeper than it is wide
        for axes, number, edges in zip(row, numbers, boxes[view], strict=True):
            projected(axes, shown.before[number], view)
            for edge in edges:
                axes.plot(*edge.T, color=GRID, linewidth=1.2, solid_capstyle="round")
            zoom_out(axes, size, half)
    for column, number in zip(table.T, numbers, strict=True):
        after = given(one, shown, slice(number, number + 1))[0]
        for axes, view in zip(column[2:], ("above", "front"), strict=True):
            projected(axes, after, view)
        label = int(shown.labels[number])
        column[0].set_title(str(label), fontsize=11, color=INK, pad=5)
        write_answers(column[-1], one, base, number, label)
    entitle(made, cases_title(one, len(numbers), len(shown.labels), saved, base), footer(one))
    return made


def means(one: Trained, shown: Shown) -> Any:
    """The mean of each digit's volumes summed along the depth, as they lie and as they come out."""
    rows = {"input": shown.before, "output": given(one, shown, slice(None))}
    made, table = panels(tuple(rows), CLASSES, 0.95, above=0.68, below=0.56)
    for volumes, row in zip(rows.values(), table, strict=True):
        tiles = class_means(volumes.sum(VIEWS["front"][0] + 1), shown.labels)
        for tile, axes in zip(tiles, row, strict=True):
            panel(axes, tile, brightest=max(float(tiles.max()), 1e-6))
    for label, axes in enumerate(table[0]):
        axes.set_title(str(label), fontsize=11, color=INK, pad=5)
    count, name = len(shown.labels), one.cell.model.name
    title = (
        f"The mean projection of each digit before and after the transformer of the {name}, {count} volumes"
    )
    entitle(made, title, footer(one))
    return made


def animation(one: Trained, shown: Shown) -> tuple[list[Any], list[int]]:
    """A frame for each moment of training: volumes from the front with the box that is read, and below them
    their projections; and for how long each is shown, in milliseconds."""
    numbers, thetas = watched_of(one, shown.labels)
    size, front = one.cell.data.size, VIEWS["front"][0] + 1  # of a batch
    edges = [[box(one.family, theta, size, "front") for theta in moment] for moment in thetas]
    boxes = torch.from_numpy(np.array(edges))  # [moments, images, edges, ends, 2]
    half = around(boxes.flatten(0, 1), size)
    before = shown.before[numbers]
    inputs = [image / brightest(image) for image in before.sum(front)[:, 0]]
    frames = []
    for moment, step in enumerate(one.probe.steps.tolist()):
        after = warp(before, thetas[moment], one.family, size=(one.cell.data.shown,) * 3)
        rows = [
            [
                animations.tile_with_lines(image, [lines], half, bold=lambda _: True)
                for image, lines in zip(inputs, boxes[moment], strict=True)
            ],
            [animations.tile(image / brightest(image)) for image in after.sum(front)[:, 0]],
        ]
        frames.append(animations.frame(rows, one.title, f"step {step:,}"))
    return frames, animations.paced(boxes)


def given(one: Trained, shown: Shown, which: slice) -> Tensor:
    """What the transformer makes of some of the volumes. [N, 1, size, size, size]"""
    size = (one.cell.data.shown,) * 3
    return warp(shown.before[which], shown.theta[which], one.family, size=size)


def footer(one: Trained) -> str:
    """The run, and how its projections lie, of all test volumes."""
    measured, said = one.result.record.measures, []
    if OFF_CENTRE in measured:
        said.append(f"the digit {measured[OFF_CENTRE]:.1f} px from the middle of its projection")
    if OFF_FRONT in measured:
        said.append(f"{measured[OFF_FRONT]:.0f}° between its depth and the line of sight")
    return f"{one.footer}\nmedians of all test volumes: {', and '.join(said)}" if said else one.footer


def around(boxes: Iterable[Any], size: int) -> float:
    """Half of the side of a square that holds all boxes, unless they reach far beyond the volume; pixels."""
    furthest = max(float(abs(edges - (size - 1) / 2).max()) for edges in boxes)
    return min(max(furthest, size / 2) + 2, FURTHEST * size)


def projected(axes: Any, volume: Tensor, view: str) -> None:
    """A volume [1, D, H, W] summed up along an axis, as bright as it goes."""
    image = volume.sum(VIEWS[view][0])[0]
    panel(axes, image, brightest=brightest(image))


def brightest(image: Tensor) -> float:
    """What is white on it; also where all is black."""
    return max(float(image.max()), 1e-6)


def box(family: Family, theta: Tensor, size: int, view: str) -> Any:
    """The edges of the region that theta reads, in a view of a volume of that size, in pixels. [12, 2, 2]"""
    corners = to_pixels(family.box(theta), (size,) * 3)  # [8, 3] as (x, y, z)
    return corners[torch.tensor(EDGES)][..., list(VIEWS[view][1])].numpy()


draw = functools.partial(
    pictures.draw,
    of_images=of_each_run(
        "volumes", {"cases": cases, "means": lambda one, shown, _: means(one, shown)}, seen, animation
    ),
    load=tested_digits.load,
)
