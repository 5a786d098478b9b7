"""What is measured of the birds' windows: whether they lie on the bird, and how far from one another.

No box is used in training. A window of half the image's size that tiles the image is where a transformer
starts, so the same is measured of these, for comparison.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..family import Family

ON_BIRD, APART, AT_START = "on the bird", "windows apart", "at the start"


def of(family: Family, theta: Tensor, start: Tensor, boxes: Tensor) -> dict[str, float]:
    """The measures by name; those of the start have its name behind theirs.

    theta: of the test images, [N, T, P]; start: of all images alike, [T, P].
    boxes: of the birds as (x0, y0, x1, y1) in what the network gets to see, from -1 to 1. [N, 4]
    """
    now, then = (centres(family, each) for each in (theta, start.expand(len(theta), -1, -1)))
    first = {f"{name}, {AT_START}": value for name, value in measured(then, boxes).items()}
    return measured(now, boxes) | first


def measured(middles: Tensor, boxes: Tensor) -> dict[str, float]:
    """Of the windows' centres [N, T, 2]: all together and each window by itself."""
    each = 100 * within(middles, boxes).double().mean(0)  # [T]
    found = {ON_BIRD: float(each.mean())}
    found |= {f"{ON_BIRD}, window {number}": value for number, value in enumerate(each.tolist(), start=1)}
    return found | ({APART: apart(middles)} if middles.shape[1] > 1 else {})


def centres(family: Family, theta: Tensor) -> Tensor:
    """Where the middle of each window lies. [N, T, P] -> [N, T, 2]"""
    return family.points(theta, theta.new_zeros(1, 2))[:, :, 0]


def within(points: Tensor, boxes: Tensor) -> Tensor:
    """Which points [N, T, 2] lie in their image's box [N, 4]. bool [N, T]"""
    least, most = boxes[:, None, :2], boxes[:, None, 2:]
    return ((points >= least) & (points <= most)).all(-1)


def apart(points: Tensor) -> float:
    """The mean distance between two points of an image [N, T, 2], in widths of the image."""
    first, second = torch.triu_indices(points.shape[1], points.shape[1], offset=1)
    return float((points[:, first] - points[:, second]).norm(dim=-1).double().mean()) / 2
