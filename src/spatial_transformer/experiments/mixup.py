"""Mixup (Zhang et al. 2018): images of a batch are blended with one another, and their losses likewise."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .data.random_numbers import RandomNumbers


def shares(most: float, count: int, random: RandomNumbers) -> Tensor | None:
    """How much of another is to be in each of so many images, up to ``most``: [count]. Without any nothing is
    drawn."""
    return most * random.uniform(count) if most else None


def blended(images: Tensor, share: Tensor | None) -> Tensor:
    """Each image with so much of the one before it in the batch, the first of the last. [N, C, H, W]"""
    return images if share is None else torch.lerp(images, images.roll(1, 0), share[:, None, None, None])


def mean_loss(losses: Callable[[Tensor], Tensor], labels: Tensor, share: Tensor | None) -> Tensor:
    """Over images: of their labels [N, ...], and by as much as was blended in of those of the others.

    losses: of all images [N], by their labels.
    """
    own = losses(labels)
    return (own if share is None else torch.lerp(own, losses(labels.roll(1, 0)), share)).mean()
