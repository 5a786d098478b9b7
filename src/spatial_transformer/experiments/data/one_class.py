"""The images of a co-localisation: distorted digits of one class, and where each of them is (section A.2)."""

from __future__ import annotations

import torch

from ..arguments import UsageError
from .digits import DigitSet
from .fixed_sets import KINDS, SEED, FixedSet, as_images
from .random_numbers import RandomNumbers


def one_class(
    kind: str,
    digit: int,
    seed: int,
    digits: DigitSet,
    *,
    count: int = 100,
    device: torch.device | str = "cpu",
) -> FixedSet:
    """``count`` test digits of a class, distorted; each seed draws others.

    ``drawn.numbers["box"]`` has the true boxes: the digit's 28 px frame, (x0, y0, x1, y1), normalised.
    A class with fewer digits than wanted gives some of them again, at other places.
    """
    of_class = torch.nonzero(digits.test.labels == digit)[:, 0]
    if len(of_class) == 0:
        raise UsageError(f"{digits.name} has no test digit {digit}")
    random = RandomNumbers(SEED * (seed + 1) + digit, device=device)
    order = random.uniform(len(of_class)).argsort(stable=True).cpu()
    chosen = of_class[order[torch.arange(count) % len(order)]]
    distortion = KINDS[kind](as_images(digits.train.images, device)[:, 0])
    drawn = distortion.draw(count, random)
    images = distortion.apply(as_images(digits.test.images[chosen], device), drawn)
    return FixedSet(images, digits.test.labels[chosen].to(device), drawn)
