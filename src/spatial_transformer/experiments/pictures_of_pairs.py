"""Pictures of two digits in two channels (section A.1): where each transformer looks, and what it gives."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import animations, pictures, tested_digits
from .cases import cases_title, chosen_cases, watched_of, write_answers
from .data.digits import DigitSet
from .figures import GRID, INK, entitle, panel, panels, with_lattices
from .lattices import lattice, reach
from .measures import APART, SETTLED, attended
from .pictures import Base, Trained, of_each_run
from .spec import CLASSES
from .tested_digits import class_means, first_images, given

COLOURS = (GRID, "#35a7ff")  # of each transformer: told apart on black, on white, and by most eyes


class Shown(NamedTuple):
    """The first test images, and what each transformer makes of them."""

    before: Tensor  # [N, 2, size, size]
    thetas: Tensor  # [N, T, family.num_params]
    attended: Tensor  # int64 [N, T]: the channel
    labels: Tensor  # int64 [N]: the sums
    digits: Tensor  # int64 [N, 2]: what is added


def seen(one: Trained, digits: DigitSet) -> Shown:
    """What the transformers make of the first test images."""
    fixed, theta = first_images(one, digits)
    thetas = theta.unflatten(1, (one.cell.model.transformers, one.family.num_params))
    centre = fixed.drawn.numbers["centre"] / (one.cell.data.size / 2)
    first = digits.test.labels[: len(theta)]
    added = torch.stack([first, fixed.labels - first], dim=1)
    return Shown(fixed.images, thetas, attended(one.family, thetas, centre), fixed.labels, added)


def cases(one: Trained, shown: Shown, base: Base) -> Any:
    """The right half of Table 4: both channels with the grid of each transformer on them, and below them the
    two channels that each gives. The one that it attends to has a frame."""
    count = one.cell.model.transformers
    numbers, saved = chosen_cases(one, shown.labels, base)
    made, table = panels(rows_of(one), len(numbers), 1.05, above=0.68, below=0.95)
    lattices = lattice(one.family, shown.thetas[numbers], one.cell.data.size)  # [N, T, lines, points, 2]
    half = reach(lattices, one.cell.data.size)
    for column, number, lines in zip(table.T, numbers, lattices, strict=True):
        inputs, outputs = column[:2], column[2:].reshape(count, 2)
        for channel, axes in enumerate(inputs):
            # Few lines, so that both lattices can be seen.
            image = shown.before[number, channel]
            with_lattices(axes, image, lines, half, colours=COLOURS, every=2 * count)
        for transformer, row in enumerate(outputs):
            theta = shown.thetas[number : number + 1, transformer]
            after = given(one.family, shown.before[number : number + 1], theta, one.cell.data)
            for channel, axes in enumerate(row):
                panel(axes, after[0, channel])
                if count > 1 and channel == shown.attended[number, transformer]:
                    frame(axes, COLOURS[transformer])
        label = int(shown.labels[number])
        inputs[0].set_title(str(label), fontsize=11, color=INK, pad=5)
        write_answers(column[-1], one, base, number, label)
    entitle(made, cases_title(one, len(numbers), len(shown.labels), saved, base), footer(one))
    return made


def means(one: Trained, shown: Shown) -> Any:
    """The mean of each digit, in both channels as they come in and as each transformer gives them: where it
    attends to a channel there are digits, and in the other one what lies anywhere and is blurred. The one
    that it attends to in most images has a frame."""
    count = one.cell.model.transformers
    given_by = [
        given(one.family, shown.before, shown.thetas[:, transformer], one.cell.data)
        for transformer in range(count)
    ]
    made, table = panels(rows_of(one), CLASSES, 0.95, above=0.68, below=0.56)
    most = shown.attended.mode(0).values
    for at, images in enumerate([shown.before, *given_by]):
        tiles = [class_means(images[:, i : i + 1], shown.digits[:, i]) for i in range(2)]
        for channel, row in enumerate(table[2 * at : 2 * at + 2]):
            for tile, axes in zip(tiles[channel], row, strict=True):
                # As bright in both channels: what is blurred is dim.
                panel(axes, tile, brightest=max(float(each.max()) for each in tiles))
                if at and count > 1 and channel == most[at - 1]:
                    frame(axes, COLOURS[at - 1])
    for label, axes in enumerate(table[0]):
        axes.set_title(str(label), fontsize=11, color=INK, pad=5)
    title = f"The mean of each digit in its channel, and what the {one.cell.model.name} makes of it"
    entitle(made, title, footer(one))
    return made


def animation(one: Trained, shown: Shown) -> tuple[list[Any], list[int]]:
    """A frame for each moment of training: both channels with the grids on them, and below them the two that
    each transformer gives; and for how long each is shown, in milliseconds."""
    count = one.cell.model.transformers
    numbers, kept = watched_of(one, shown.labels)
    thetas = kept.unflatten(2, (count, one.family.num_params))  # [moments, images, T, P]
    lattices = lattice(one.family, thetas, one.cell.data.size)
    half = reach(lattices, one.cell.data.size)
    images = shown.before[numbers]
    frames = []
    for moment, step in enumerate(one.probe.steps.tolist()):
        each = zip(images, lattices[moment], strict=True)
        inputs = [
            [
                animations.tile_with_lines(channel, lines, half, colours=COLOURS, every=2 * count)
                for channel in image
            ]
            for image, lines in each
        ]
        outputs = [
            given(one.family, images, thetas[moment, :, transformer], one.cell.data)
            for transformer in range(count)
        ]
        rows = [
            *zip(*inputs, strict=True),
            *(
                [animations.tile(image) for image in after[:, channel]]
                for after in outputs
                for channel in (0, 1)
            ),
        ]
        frames.append(animations.frame(rows, one.title, f"step {step:,}"))
    return frames, animations.paced(lattices)


def rows_of(one: Trained) -> list[str]:
    transformers = range(1, one.cell.model.transformers + 1)
    return [
        "first",
        "second",
        *(f"ST{number}: {name}" for number in transformers for name in ("first", "second")),
    ]


def footer(one: Trained) -> str:
    """The run, and in how many of all test images its transformers share the channels out."""
    measured = one.result.record.measures
    if not {APART, SETTLED} <= measured.keys():
        return one.footer
    return (
        f"{one.footer}\nframed: what a transformer attends to; different channels in {measured[APART]:.1f} % "
        f"of all test images, the usual way round in {measured[SETTLED]:.1f} %"
    )


def frame(axes: Any, colour: str) -> None:
    for side in axes.spines.values():
        side.set(visible=True, color=colour, linewidth=2.5)


draw = functools.partial(
    pictures.draw,
    of_images=of_each_run(
        "pairs of digits",
        {"cases": cases, "means": lambda one, shown, _: means(one, shown)},
        seen,
        animation,
        COLOURS,
    ),
    load=tested_digits.load,
)
