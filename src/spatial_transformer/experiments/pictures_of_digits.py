"""Pictures of distorted digits (section 4.1): grids on test images, what comes out, means, and animations.

The images are those of the fixed test set, drawn again; grids and outputs come from the thetas that a probe
keeps. Each picture is made by one function and saved by another, so that what is on it can be asked for.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..families import Affine
from . import animations, figures, pictures, probes, tested_digits
from .cases import CASES, cases_title, chosen_cases, watched_of, write_answers
from .data.digits import DigitSet
from .data.fixed_sets import as_images
from .figures import INK, entitle, panel, panels, with_lattices
from .lattices import lattice, reach
from .pictures import Base, Place, Trained, base_of, error_of, file_name
from .results import Result
from .spec import CLASSES
from .tested_digits import class_means, first_images, given

AFFINE = Affine()
PICTURES = ("overview", "cases", "curves", "means", "animation")


class Shown(NamedTuple):
    """The first test images, and what a transformer makes of them."""

    before: Tensor  # [N, 1, size, size]
    after: Tensor  # [N, 1, shown / pooling, shown / pooling]: what the classification network gets to see
    upright: Tensor  # [N, 1, 28, 28]: the digits themselves
    labels: Tensor  # int64 [N]
    angles: Tensor  # [N], of the grids that would undo the digits' rotation; none of digits that have none


def draw_images(
    kept: Sequence[Trained],
    found: dict[str, list[Result]],
    wanted: Collection[str],
    place: Place,
    digits: DigitSet,
    title: str,
) -> Iterator[Path]:
    best: dict[str, tuple[Trained, Shown, Base]] = {}  # by kind of data: what errs least, all seeds together
    errors = {name: statistics.mean(map(error_of, runs)) for name, runs in found.items()}
    for one in kept:
        name = file_name(one.cell)
        shown, base = seen(one, digits), base_of(one, found)
        if "cases" in wanted:
            yield figures.save(cases(one, shown, base), place(f"{name}-cases.png"))
        if "means" in wanted:
            yield figures.save(means(one, shown), place(f"{name}-means.png"))
        if "animation" in wanted and len(one.probe.steps):
            yield animations.save(*animation(one, shown), place(f"{name}-training.gif"))
        kind = one.cell.data.kind
        if kind not in best or errors[one.cell.name] < errors[best[kind][0].cell.name]:
            best[kind] = one, shown, base
    if "overview" in wanted and len(best) > 1:
        yield figures.save(overview(title, list(best.values())), place("overview.png"))


def seen(one: Trained, digits: DigitSet) -> Shown:
    """What a transformer makes of the first test images."""
    fixed, theta = first_images(one, digits)
    upright = as_images(digits.test.images[: len(theta)], "cpu")
    after = given(one.family, fixed.images, theta, one.cell.data)
    rotated = "angle" in fixed.drawn.numbers
    angles = angle(AFFINE.inverse(fixed.drawn.theta)) if rotated else torch.full((len(theta),), math.nan)
    return Shown(fixed.images, after, upright, fixed.labels, angles)


# Cases


def cases(one: Trained, shown: Shown, base: Base) -> Any:
    """The right half of Table 1: inputs with the grids on them, and below them the outputs."""
    numbers, saved = chosen_cases(one, shown.labels, base)
    made, table = panels(("input and grid", "output"), len(numbers), 1.2, above=0.68, below=0.8)
    draw_cases(table.T, one, shown, base, numbers)
    entitle(made, cases_title(one, len(numbers), len(shown.labels), saved, base), one.footer)
    return made


def draw_cases(pairs: Any, one: Trained, shown: Shown, base: Base, numbers: Sequence[int]) -> None:
    """Some test images on a pair of panels each."""
    theta = probes.transforms(one.probe.theta[numbers])
    lattices = lattice(one.family, theta, one.cell.data.size)
    half = reach(lattices, one.cell.data.size)
    for (above, below), number, lines in zip(pairs, numbers, lattices, strict=True):
        with_lattices(above, shown.before[number, 0], [lines], half)
        panel(below, shown.after[number, 0])
        label = int(shown.labels[number])
        above.set_title(f"{label}{turned(one, number)}", fontsize=11, color=INK, pad=5)
        write_answers(below, one, base, number, label)


def overview(title: str, columns: Sequence[tuple[Trained, Shown, Base]]) -> Any:
    """Cases of several kinds of data side by side, as in the paper."""
    each = max(2, CASES // len(columns))
    rows, count = ("input and grid", "output"), each * len(columns)
    made, table = panels(rows, count, 1.0, above=1.0, below=0.78, group=each)
    height = made.get_size_inches()[1]
    for at, (one, shown, base) in enumerate(columns):
        numbers = chosen_cases(one, shown.labels, base)[0][:each]
        pairs = table.T[each * at : each * at + len(numbers)]
        draw_cases(pairs, one, shown, base, numbers)
        heading = f"{one.cell.data.kind}: {one.cell.model.name}"
        left = table[0, each * at].get_position().x0
        made.text(left, 1 - 0.48 / height, heading, va="top", fontsize=11, color=INK, weight="bold")
    for axes in made.axes:
        if not axes.images:  # fewer test images than there is room for
            axes.set_visible(False)
    runs = [one.result.record for one, _, _ in columns]
    steps = ", ".join(dict.fromkeys(f"{record.steps:,}" for record in runs))
    turns = any(one.cell.model.transformer == "affine" for one, _, _ in columns)
    above = "label, angle of an affine grid" if turns else "label"
    footer = f"{runs[0].digits}, {steps} steps; above: {above}; below: answers"
    entitle(made, f"{title}: what spatial transformers make of test images", footer)
    return made


def turned(one: Trained, number: int) -> str:
    """By which angle an affine transformation turns its grid; nothing of other families."""
    if one.cell.model.transformer != "affine":
        return ""
    theta = probes.transforms(one.probe.theta[number])
    return f"  ({round(math.degrees(angle(theta).item()))}°)"


def angle(theta: Tensor) -> Tensor:
    """By which an affine transformation turns its grid, in radians: [..., 6] -> [...]"""
    a, b, _, c, d, _ = theta.unbind(-1)
    return torch.atan2(c - b, a + d)


def undone(one: Trained, shown: Shown) -> float | None:
    """Which part of the digits' rotation an affine transformer undoes: the slope of its grids' angles over
    those that would undo all of it. None of other families, and of digits that are not rotated."""
    if one.cell.model.transformer != "affine" or bool(shown.angles.isnan().any()):
        return None
    found = angle(probes.transforms(one.probe.theta[: len(shown.angles)]))
    away = shown.angles - shown.angles.mean()
    return float((away * found).sum() / away.square().sum())


# Means


def means(one: Trained, shown: Shown) -> Any:
    """The mean of each class: as the network gets it, as the transformer hands it on, and as it was."""
    rows = {"input": shown.before, "output": shown.after, "undistorted": shown.upright}
    footer, part = f"{one.footer}; means of {len(shown.labels):,} test images", undone(one, shown)
    if part is not None:
        footer += f"\nthe grids undo {part:.2f} of the digits' rotation"
    below = 0.36 if part is None else 0.56
    made, table = panels(tuple(rows), CLASSES, 0.95, above=0.48, below=below)
    for images, line in zip(rows.values(), table, strict=True):
        tiles = class_means(images, shown.labels)
        for tile, axes in zip(tiles, line, strict=True):
            panel(axes, tile, brightest=float(tiles.max()))
    title = f"The mean of each digit before and after the transformer of the {one.cell.model.name}"
    entitle(made, title, footer)
    return made


# Animations


def animation(one: Trained, shown: Shown) -> tuple[list[Any], list[int]]:
    """A frame for each moment of training, inputs with grids on them and below them the outputs; and for how
    long each is shown, in milliseconds."""
    numbers, thetas = watched_of(one, shown.labels)
    lattices = lattice(one.family, thetas, one.cell.data.size)  # [moments, images, lines, points, 2]
    half = reach(lattices, one.cell.data.size)
    images = shown.before[numbers]
    frames = []
    for moment, step in enumerate(one.probe.steps.tolist()):
        outputs = given(one.family, images, thetas[moment], one.cell.data)
        rows = [
            [
                animations.tile_with_lines(image, [lines], half)
                for image, lines in zip(images[:, 0], lattices[moment], strict=True)
            ],
            [animations.tile(output) for output in outputs[:, 0]],
        ]
        frames.append(animations.frame(rows, one.title, f"step {step:,}"))
    return frames, animations.paced(lattices)


draw = functools.partial(pictures.draw, of_images=draw_images, load=tested_digits.load)
