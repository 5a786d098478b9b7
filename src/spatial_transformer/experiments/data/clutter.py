"""Translated digits (T) and translated digits among distractors (TC): sections 4.1, A.2 and A.4.

As in ``distortions``, numbers are drawn first and applied after. Places and patches are whole pixels, so a
digit arrives on its canvas bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ... import families, sampling
from ...family import Family
from .distortions import DIGIT, Drawn, one_of
from .random_numbers import RandomNumbers

CLUTTERED_SIZE = 60  # section 4.1, six distractors
COLOCALISED_SIZE = 84  # section A.2, sixteen


@dataclass(frozen=True)
class Translated:
    """T: the digit "is placed in a uniform random location in a 84 x 84 black background image" (A.2)."""

    size: int = COLOCALISED_SIZE

    family: ClassVar[Family] = families.Attention()

    def draw(self, count: int, random: RandomNumbers, *, dtype: torch.dtype = torch.float32) -> Drawn:
        place = below(self.size - DIGIT + 1, random.uniform(count, 2))
        return self.drawn(place, dtype)

    def drawn(self, place: Tensor, dtype: torch.dtype) -> Drawn:
        """What follows from the digit's upper left corner, [N, 2] as (x, y) in pixels."""
        half = self.size / 2
        centre = (place.to(dtype) + (DIGIT / 2 - half)) / half
        pull = torch.full_like(centre[:, :1], self.size / DIGIT)
        reach = DIGIT / self.size
        # The digit's frame on the canvas, normalised: x0, y0, x1, y1 as ``Family.map_boxes`` takes them.
        box = torch.cat([centre - reach, centre + reach], dim=1)
        return Drawn(torch.cat([pull, -pull * centre], dim=1), {"place": place, "box": box})

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        # Every sample lies on a pixel, up to rounding: the nearest is that pixel, exactly.
        return sampling.warp(images, drawn.theta, self.family, size=(self.size, self.size), kernel="nearest")


@dataclass(frozen=True, eq=False)
class Cluttered:
    """TC: "placing an MNIST digit in a random location in a 60 x 60 black canvas, and then inserting six
    randomly sampled 6 x 6 patches of other digit images into random locations in the image" (A.4).

    ``pool`` has the images that patches are cut from, on the device that the images are on. (That a patch
    is of the very digit it clutters happens once in as many draws as the pool has images.)
    """

    pool: Tensor  # [M, 28, 28], in the images' dtype
    size: int = CLUTTERED_SIZE
    distractors: int = 6
    patch: int = 6
    # How patches meet the digit and one another: the greater value stays ("maximum"), they add up to at most
    # 1 ("sum"), or the last one covers what was there ("cover").
    combine: str = "maximum"

    family: ClassVar[Family] = families.Attention()

    def __post_init__(self) -> None:
        one_of("combine", self.combine, ("maximum", "sum", "cover"))

    def draw(self, count: int, random: RandomNumbers, *, dtype: torch.dtype = torch.float32) -> Drawn:
        """The digit's place, and of each distractor its image in the pool, its corner there, and its spot."""
        cuts, spots = DIGIT - self.patch + 1, self.size - self.patch + 1
        uniform = random.uniform(count, 2 + 5 * self.distractors)
        translated = Translated(self.size).drawn(below(self.size - DIGIT + 1, uniform[:, :2]), dtype)
        each = uniform[:, 2:].unflatten(1, (self.distractors, 5))  # [N, distractors, 5]
        numbers = {
            "source": below(len(self.pool), each[..., 0]),
            "cut": below(cuts, each[..., 1:3]),
            "spot": below(spots, each[..., 3:]),
        }
        return Drawn(translated.theta, translated.numbers | numbers)

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        canvas = Translated(self.size).apply(images, drawn)
        return self.clutter(canvas, drawn)

    def clutter(self, canvas: Tensor, drawn: Drawn) -> Tensor:
        """Canvases [N, 1, size, size] with the patches put in."""
        source, cut, spot = (drawn.numbers[name] for name in ("source", "cut", "spot"))
        along = torch.arange(self.patch, device=canvas.device)
        read = source[..., None, None] * DIGIT**2 + square(cut, along, DIGIT)
        patches = self.pool.reshape(-1)[read].flatten(1)  # [N, distractors * patch * patch]
        written = square(spot, along, self.size).flatten(1)
        flat = canvas.flatten(1)
        if self.combine == "maximum":
            flat = flat.scatter_reduce(1, written, patches, "amax")
        elif self.combine == "sum":
            flat = flat.scatter_add(1, written, patches).clamp(max=1)
        else:
            for number in range(self.distractors):  # one by one: they may lie on one another
                part = slice(number * self.patch**2, (number + 1) * self.patch**2)
                flat = flat.scatter(1, written[:, part], patches[:, part])
        return flat.reshape(canvas.shape)


def square(corner: Tensor, along: Tensor, width: int) -> Tensor:
    """Indices, in an image of that width, of the pixels of squares at corners (x, y). [..., side, side]"""
    x, y = (corner[..., axis, None] + along for axis in (0, 1))
    return y[..., :, None] * width + x[..., None, :]


def below(count: int | Tensor, uniform: Tensor) -> Tensor:
    """Whole numbers from 0 to count - 1, from numbers uniform on [0, 1). int64"""
    return (uniform * count).long()  # (1 - 2^-24) count is at least half a step of float32 below count
