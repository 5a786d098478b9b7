"""Cases: which test images a picture has, and what networks with and without a transformer say of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from . import probes
from .figures import RIGHT, WRONG
from .pictures import Base, Trained

CASES = 8  # images on a picture


def chosen_cases(one: Trained, labels: Tensor, base: Base) -> tuple[list[int], int]:
    """Test images that the base network gets wrong and the transformer's right, then others that are right;
    and how many of the first sort there are.

    labels: [N], or [N, places] where an answer is of several digits.
    """
    right = is_right(one.probe.predictions, labels)
    saved = right & ~is_right(base[1], labels) if base else np.zeros_like(right)
    order = [*np.flatnonzero(saved), *np.flatnonzero(right & ~saved), *np.flatnonzero(~right)]
    return [int(number) for number in order[:CASES]], int(saved.sum())


def is_right(answers: Any, labels: Tensor) -> Any:
    """Of the first answers, as many as there are labels. bool [N]"""
    same = answers[: len(labels)] == labels.numpy()
    return same if same.ndim == 1 else same.all(1)


def watched(truth: Any, predictions: Any) -> list[int]:
    """One image of each class, as far as there are any, in the order of the test set; in the end right."""
    right = [int(number) for number in np.flatnonzero(predictions[: len(truth)] == truth)]
    first = [number for number in right if truth[number] not in truth[[n for n in right if n < number]]]
    others = [number for number in [*right, *range(len(truth))] if number not in first]
    return sorted([*first, *dict.fromkeys(others)][:CASES])


def watched_of(one: Trained, labels: Tensor) -> tuple[list[int], Tensor]:
    """The images that are watched as training goes on, and their thetas. [moments, images, P]"""
    numbers = watched(labels[: one.probe.thetas.shape[1]].numpy(), one.probe.predictions)
    return numbers, probes.transforms(one.probe.thetas[:, numbers])


def cases_title(one: Trained, count: int, total: int, saved: int, base: Base) -> str:
    name = one.cell.model.name
    if base is None or not saved:
        return f"What the {name} makes of its input"
    title = f"Where the {base[0]} is wrong and the {name} is right"
    if saved > count:
        return f"{title}: the first {count} of {saved} among {total:,} test images"
    others = f", and {count - saved} other{'s' if count > saved + 1 else ''}" if saved < count else ""
    return f"{title}: {saved} of {total:,} test images{others}"


def write_answers(below: Any, one: Trained, base: Base, number: int, label: int) -> None:
    """What the networks say of a test image, below a panel."""
    answers = [*([base] if base else []), (one.cell.model.name.split()[0], one.probe.predictions)]
    write_marked(below, [(f"{who}: {said[number]}", said[number] == label) for who, said in answers])


def write_marked(below: Any, lines: Sequence[tuple[str, bool]]) -> None:
    """Answers, and whether they are right, line by line below a panel."""
    size = 10 if max(len(text) for text, _ in lines) <= 10 else 8.5  # of points: not into the next column
    for row, (text, right) in enumerate(lines):
        below.annotate(
            f"{text} {'✓' if right else '✗'}",
            (0.5, 0), (0, -4 - 14 * row), xycoords="axes fraction", textcoords="offset points",
            ha="center", va="top", fontsize=size, color=RIGHT if right else WRONG,
        )  # fmt: skip
