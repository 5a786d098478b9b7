"""T_theta(G) as lines: the grid that a transformer reads its input on, to be drawn on that input."""

from __future__ import annotations

import torch
from torch import Tensor

from ..coordinates import to_pixels
from ..family import Family

CELLS, ALONG = 8, 33  # squares along each axis, and points of a line


def lattice(family: Family, theta: Tensor, size: int) -> Tensor:
    """Lines across and then down, in pixel coordinates of an input of that size.

    theta [..., P] -> [..., 2 (CELLS + 1), ALONG, 2]
    """
    place, along = torch.linspace(-1, 1, CELLS + 1), torch.linspace(-1, 1, ALONG)
    across = torch.stack(torch.meshgrid(place, along, indexing="ij"), dim=-1).flip(-1)  # y, x -> x, y
    target = torch.cat([across, across.flip(-1)])
    source = family.points(theta, target.flatten(0, 1)).unflatten(-2, target.shape[:2])
    return to_pixels(source, (size, size))


def is_border(line: int) -> bool:
    return line % (CELLS + 1) in (0, CELLS)


def is_drawn(line: int, every: int) -> bool:
    """Whether it is among every second, fourth ... line across or down; the borders are."""
    return line % (CELLS + 1) % every == 0


def reach(lattices: Tensor, size: int) -> float:
    """Half of the side of a square that holds nearly all of some lattices [..., lines, points, 2]; pixels."""
    furthest = (lattices - (size - 1) / 2).abs().amax((-3, -2, -1))
    return min(max(float(furthest.quantile(0.9)), size / 2) + 1, 0.85 * size)
