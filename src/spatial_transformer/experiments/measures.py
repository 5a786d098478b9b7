"""What is measured of a trained network besides its error: whether its transformers do what the paper says.

Digits lie where they were drawn to lie, so where a transformer looks can be held against the truth.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..family import Family
from . import networks
from .spec import Cell

APART, SETTLED = "apart", "settled"
OFF_CENTRE, OFF_FRONT = "off centre", "off front"
TRUTH = ("centre", "turn")  # what is known of how digits were drawn, and made use of here


def of(cell: Cell, theta: Tensor, truth: Mapping[str, Tensor]) -> dict[str, float]:
    """The measures of a cell, by name; none of most.

    theta: of the test images, [N, transformers * family.num_params].
    truth: of their digits. "centre": in pixels from the image's, [N, 2]; of pairs [N, 2, 2], of volumes
    [N, 3]. "turn": of volumes, as a rotation [N, 3, 3]
    """
    if cell.model.transformers > 1:
        family = networks.family_of(cell.model, cell.data)
        each = theta.unflatten(1, (cell.model.transformers, family.num_params))
        return channels(attended(family, each, truth["centre"] / (cell.data.size / 2)))
    if cell.data.dims == 3:
        middle, depth = truth["centre"] / (cell.data.size / 2), truth["turn"][:, :, 2]
        line = torch.zeros_like(depth)  # that a pixel of the projection sums up, in the volume
        line[:, 2] = 1
        if cell.model.transformer is not None:
            family = networks.family_of(cell.model, cell.data)
            middle = family.map_points(theta, middle[:, None])[:, 0]
            start, end = family.points(theta, torch.stack([-line[0], line[0]])).unbind(1)
            line = end - start
        return {OFF_CENTRE: off_centre(middle, cell.data.shown), OFF_FRONT: off_front(line, depth)}
    return {}


def attended(family: Family, theta: Tensor, centre: Tensor) -> Tensor:
    """Which channel each transformer attends to: the one whose digit lies where it usually has a digit.

    That is, the point which the middle of its output looks at is compared with the centre of each channel's
    digit, less what lies between them on average: a transformer may well have its digit beside the middle.

    theta [N, T, P], centre [N, C, 2], normalised -> int64 [N, T]
    """
    middle = torch.zeros(1, 2, dtype=theta.dtype, device=theta.device)
    looked_at = family.points(theta, middle)  # [N, T, 1, 2]
    away = looked_at - centre[:, None]  # [N, T, C, 2]
    return (away - away.mean(0)).square().sum(-1).argmin(-1)


def channels(attended: Tensor) -> dict[str, float]:
    """Of two transformers, int64 [N, 2]: images in which they attend to different channels, and in which
    they do so the way round that is the more common. Percent"""
    first, second = attended.unbind(1)
    apart, straight = first != second, (first == 0) & (second == 1)
    ways = [int(straight.sum()), int((apart & ~straight).sum())]
    return {APART: 100 * sum(ways) / len(attended), SETTLED: 100 * max(ways) / len(attended)}


def off_centre(middle: Tensor, size: int) -> float:
    """How many pixels digits' centres [N, 3], as (x, y, z), are from the projection's middle: the median.

    One that appears nowhere, since its volume is flattened out, is infinitely far away; so may be the
    median, and is said to be as far as the corner then, which is where the projection ends."""
    away = (middle[:, :2] * (size / 2)).norm(dim=1).nan_to_num(torch.inf)
    return min(float(away.median()), size / 2 * 2**0.5)


def off_front(line: Tensor, depth: Tensor) -> float:
    """How many degrees lie between lines of sight and digits' depth, both [N, 3] in the volume: the median.

    In what comes out they would lie further apart, the more of the volume's depth it has in it. A volume that
    is flattened out is looked along no line, and its digit is said to be seen from aside."""
    along = torch.nn.functional.cosine_similarity(line, depth, dim=1).abs()
    return float(torch.rad2deg(torch.acos(along.clamp(max=1))).median())
