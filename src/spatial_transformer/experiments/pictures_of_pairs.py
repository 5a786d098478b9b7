"""Pictures of two digits in two channels (section A.1): where each transformer looks, and what it gives."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from torch import Tensor

from . import pictures, tested_digits
from .cases import cases_title, chosen_cases, write_answers
from .data.digits import DigitSet
from .figures import GRID, INK, entitle, panel, panels, with_lattices
from .lattices import lattice, reach
from .measures import attended
from .pictures import Base, Trained, cases_alone
from .tested_digits import first_images, given

COLOURS = (GRID, "#35a7ff")  # of each transformer: told apart on black, on white, and by most eyes


class Shown(NamedTuple):
    """The first test images, and what each transformer makes of them."""

    before: Tensor  # [N, 2, size, size]
    thetas: Tensor  # [N, T, family.num_params]
    attended: Tensor  # int64 [N, T]: the channel
    labels: Tensor  # int64 [N]: the sums


def seen(one: Trained, digits: DigitSet) -> Shown:
    """What the transformers make of the first test images."""
    fixed, theta = first_images(one, digits)
    thetas = theta.unflatten(1, (one.cell.model.transformers, one.family.num_params))
    centre = fixed.drawn.numbers["centre"] / (one.cell.data.size / 2)
    return Shown(fixed.images, thetas, attended(one.family, thetas, centre), fixed.labels)


def cases(one: Trained, shown: Shown, base: Base) -> Any:
    """The right half of Table 4: both channels with the grid of each transformer on them, and below them the
    two channels that each gives. The one that it attends to has a frame."""
    count = one.cell.model.transformers
    numbers, saved = chosen_cases(one, shown.labels, base)
    names = [f"ST{number + 1}: {channel}" for number in range(count) for channel in ("first", "second")]
    made, table = panels(["first", "second", *names], len(numbers), 1.05, above=0.68, below=0.8)
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
                if channel == shown.attended[number, transformer]:
                    frame(axes, COLOURS[transformer])
        label = int(shown.labels[number])
        inputs[0].set_title(str(label), fontsize=11, color=INK, pad=5)
        write_answers(column[-1], one, base, number, label)
    entitle(made, cases_title(one, len(numbers), len(shown.labels), saved, base), one.footer)
    return made


def frame(axes: Any, colour: str) -> None:
    for side in axes.spines.values():
        side.set(visible=True, color=colour, linewidth=2.5)


def draw_cases(one: Trained, digits: DigitSet, base: Base) -> Any:
    return cases(one, seen(one, digits), base)


draw = functools.partial(
    pictures.draw, of_images=cases_alone("pairs of digits", draw_cases), load=tested_digits.load
)
