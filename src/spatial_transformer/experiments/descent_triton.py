"""What a step of training does besides its network, in a launch each: the loss, and the weights moved.

As operations on tensors they are fifteen, each as long as its launch takes. A step of a small network has no
more than seventy in all.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 256  # of scores at a time
NUMBERS = 1024  # of a program


def judged(scores: Tensor, labels: Tensor, sums: Tensor) -> Tensor:
    """The gradient of the mean cross-entropy by the scores. That mean, and the share of answers that are
    wrong, are added to ``sums``. [N, classes], int64 [N], [2] -> [N, classes]

    One program goes through all of them: sums have one order.
    """
    scores, (count, classes) = scores.contiguous(), scores.shape
    gradient = torch.empty_like(scores)
    kernel: Any = _judged
    kernel[(1,)](
        scores, labels.contiguous(), gradient, sums, count, classes,
        ROWS, triton.next_power_of_2(classes), num_warps=8,
    )  # fmt: skip
    return gradient


def descend(
    weights: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    rate: Tensor,
    share: Tensor | None,
    *,
    momentum: float,
    decay: float,
) -> None:
    """Moves weights that lie one behind another, in place: by the rate, times their share of it. All float32;
    rate and share are [], on the device."""
    kernel: Any = _descend
    kernel[(-(-weights.numel() // NUMBERS),)](
        weights, velocity, gradient, rate, rate if share is None else share,
        weights.numel(), momentum, decay, share is not None, NUMBERS,
    )  # fmt: skip


@triton.jit
def _judged(
    p_scores, p_labels, p_gradient, p_sums, count, classes, ROWS: tl.constexpr, CLASSES: tl.constexpr
):
    i_class = tl.arange(0, CLASSES)
    lost, wrong = tl.zeros((), tl.float32), tl.zeros((), tl.float32)
    for first in range(0, count, ROWS):
        i_row = first + tl.arange(0, ROWS)
        m_row = i_row < count
        mask = m_row[:, None] & (i_class < classes)[None, :]
        offset = i_row[:, None] * classes + i_class[None, :]
        scores = tl.load(p_scores + offset, mask=mask, other=float("-inf"))
        label = tl.load(p_labels + i_row, mask=m_row, other=0).to(tl.int32)
        m_label = i_class[None, :] == label[:, None]
        most = tl.where(m_row, tl.max(scores, 1), 0.0)
        power = tl.exp(scores - most[:, None])
        total = tl.where(m_row, tl.sum(power, 1), 1.0)
        each = most + tl.log(total) - tl.sum(tl.where(m_label & mask, scores, 0.0), 1)
        lost += tl.sum(tl.where(m_row, each, 0.0), 0)
        wrong += tl.sum(tl.where(m_row & (tl.argmax(scores, 1) != label), 1.0, 0.0), 0)
        gradient = (power / total[:, None] - tl.where(m_label, 1.0, 0.0)) / count
        tl.store(p_gradient + offset, gradient, mask=mask)
    tl.store(p_sums, tl.load(p_sums) + lost / count)
    tl.store(p_sums + 1, tl.load(p_sums + 1) + wrong / count)


@triton.jit
def _descend(
    p_weights, p_velocity, p_gradient, p_rate, p_share, count, momentum, decay,
    SHARED: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    mask = i < count
    weights = tl.load(p_weights + i, mask=mask)
    velocity = tl.load(p_velocity + i, mask=mask) * momentum
    velocity += tl.load(p_gradient + i, mask=mask) + decay * weights
    rate = tl.load(p_rate)
    if SHARED:
        rate *= tl.load(p_share)
    tl.store(p_velocity + i, velocity, mask=mask)
    tl.store(p_weights + i, weights - rate * velocity, mask=mask)
