"""Pictures of two digits in two channels (section A.1): where each transformer looks, and what it gives."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import probes
from .data.digits import DigitSet
from .data.fixed_sets import fixed_set
from .measures import attended
from .pictures import (
    GRID,
    GROUND,
    INK,
    PictureError,
    Trained,
    base_of,
    cases_title,
    chosen_cases,
    draw_lines,
    entitle,
    given,
    lattice,
    panel,
    panels,
    reach,
    save,
    write_answers,
    zoom_out,
)
from .results import Result

COLOURS = (GRID, "#35a7ff")  # of each transformer: told apart on black, on white, and by most eyes


class Shown(NamedTuple):
    """The first test images, and what each transformer makes of them."""

    before: Tensor  # [N, 2, size, size]
    thetas: Tensor  # [N, T, family.num_params]
    attended: Tensor  # int64 [N, T]: the channel
    labels: Tensor  # int64 [N]: the sums


def draw_images(
    kept: Sequence[Trained],
    found: dict[str, list[Result]],
    pictures: Collection[str],
    folder: Path,
    digits: DigitSet,
    title: str,
) -> Iterator[Path]:
    """Cases alone: pairs have no mean, and one column no overview."""
    if "cases" not in pictures:
        raise PictureError(f"there are cases and curves of pairs of digits, no {', '.join(pictures)}")
    for one in kept:
        path = folder / f"{one.cell.name.replace('/', ' ').replace(' ', '-')}-cases.png"
        save(cases(one, seen(one, digits), base_of(one, found)), path)
        yield path


def seen(one: Trained, digits: DigitSet) -> Shown:
    """What the transformers make of the first test images."""
    theta = torch.from_numpy(one.probe.theta.astype(np.float32))
    thetas = theta.unflatten(1, (one.cell.model.transformers, one.family.num_params))
    fixed = fixed_set(one.cell.data.kind, digits, count=len(theta))
    if len(fixed.labels) < len(theta) or len(one.probe.predictions) != len(digits.test.labels):
        raise probes.ProbeError(
            f"{probes.path_of(one.result.path)} is no probe of {digits.name}: it has "
            f"{len(one.probe.predictions)} predictions, not {len(digits.test.labels)}"
        )
    centre = fixed.drawn.numbers["centre"] / (one.cell.data.size / 2)
    return Shown(fixed.images, thetas, attended(one.family, thetas, centre), fixed.labels)


def cases(one: Trained, shown: Shown, base: tuple[str, Any] | None) -> Any:
    """The right half of Table 4: both channels with the grid of each transformer on them, and below them the
    two channels that each gives. The one that it attends to has a frame."""
    count = one.cell.model.transformers
    numbers, saved = chosen_cases(one, shown.labels, base[1] if base else None)
    names = [f"ST{number + 1}: {channel}" for number in range(count) for channel in ("first", "second")]
    made, table = panels(["first", "second", *names], len(numbers), 1.05, above=0.68, below=0.8)
    lattices = [
        [lattice(one.family, theta, one.cell.data.size) for theta in shown.thetas[number]]
        for number in numbers
    ]
    half = reach(torch.stack([lines for each in lattices for lines in each]), one.cell.data.size)
    for column, number, lines in zip(table.T, numbers, lattices, strict=True):
        inputs, outputs = column[:2], column[2:].reshape(count, 2)
        for channel, axes in enumerate(inputs):
            axes.set_facecolor(GROUND)
            panel(axes, shown.before[number, channel])
            for each, colour in zip(lines, COLOURS, strict=False):
                draw_lines(axes, each, colour, every=2 * count)  # so that both can be seen
            zoom_out(axes, one.cell.data.size, half)
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
