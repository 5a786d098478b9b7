"""What a time is held to: the least traffic there is, and how much faster than PyTorch it has to be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MEMORY = 0.05  # the most that may be held beyond inputs and results, as a share of the output


class Goal(NamedTuple):
    """For one pass of a case; None is no goal."""

    speed: float | None = None  # at least so many times PyTorch's
    floor: float | None = None  # at most so many times the floor
    memory: float = MEMORY


def traffic(image: Sequence[int], output: Sequence[int], item: int) -> dict[str, int]:
    """Bytes that a pass has to move, each once: shapes [N, C, *size] and bytes a value -> bytes by pass.

    forward: the image is read and the output written. A sample looks at 2 pixels along each axis, so of an
    image far larger than its output only that part counts: at most 2^dims values for each of the output.
    backward: the cotangent and once more that part of the image are read, and the image's gradient is
    written, all of it. thetas and their gradients are too small to count.
    """
    all_of_image, written = math.prod(image) * item, math.prod(output) * item
    read = min(all_of_image, 2 ** (len(image) - 2) * written)
    forward = read + written
    return {"forward": forward, "forward + backward": forward + written + read + all_of_image}


def floors(
    image: Sequence[int], output: Sequence[int], item: int, bytes_per_second: float
) -> dict[str, float]:
    """The seconds that its traffic takes a pass at the device's copy rate."""
    return {name: count / bytes_per_second for name, count in traffic(image, output, item).items()}


def verdicts(goal: Goal, found: Mapping[str, Any] | None) -> dict[str, bool | None]:
    """Each goal in words, and whether a contender's pass meets it (None: there was nothing to divide by).

    ``found``: its speed, times the floor and share of memory; None where it was wrong, which meets nothing.
    """
    wanted = {}
    if goal.speed is not None:
        wanted[f"{goal.speed:g}x"] = ("speed", lambda value: value >= goal.speed)
    if goal.floor is not None:
        wanted[f"{goal.floor:g}x floor"] = ("times_floor", lambda value: value <= goal.floor)
    wanted[f"{goal.memory:.0%} memory"] = ("memory_share", lambda value: value < goal.memory)
    if found is None:
        return dict.fromkeys(wanted, False)
    return {words: None if found[what] is None else met(found[what]) for words, (what, met) in wanted.items()}
