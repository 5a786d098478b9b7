"""What networks get to see of house numbers when they are trained: digits of another number in the place of
some, some digits of a number alone, and images moved, bent, coloured and blanked at random.

A step chooses its images on the device that trains, so all is cut and warped there, and nothing waits for it.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..control_points import ThinPlateSpline
from ..families import Affine
from ..family import Family
from ..sampling import sample, warp
from . import house_numbers
from .data.clutter import below
from .data.random_numbers import RandomNumbers, either_way
from .data.svhn import DIGITS, LOOSE_GROWN, NULL, middle
from .paper.svhn import HouseNumberSettings

BENDING = ThinPlateSpline((4, 4))
MOST_CUT = 0.25  # of the width of digits that are shown, by the borders beside them


class Shown(NamedTuple):
    """Of numbers, what is to be seen and read."""

    pixels: Tensor  # uint8 [N, 3, 128, 128]: loose crops
    labels: Tensor  # int64 [N, 5]
    window: Tensor  # [N, 6]: an affine theta, whose box lies about the digits as a loose crop does about all


def swapped_digits(
    pixels: Tensor, labels: Tensor, boxes: Tensor, share: float, random: RandomNumbers
) -> tuple[Tensor, Tensor]:
    """Loose crops, uint8 [N, 3, 128, 128], and labels [N, 5]: in so large a share of the numbers about half
    of the digits are replaced, each by any digit of the number before in the batch, in its place's colours.

    Boxes [N, 5, 4] are as ``svhn.HouseNumbers`` has them, and remain those of the numbers.
    """
    put, place, read = digits_put(pixels, labels, boxes, share, random)
    put = (put + mean_in_places(pixels - put, place)).round().clamp(0, 255).to(pixels.dtype)
    return torch.where(place[:, None] > 0, put, pixels), read


def digits_put(
    pixels: Tensor, labels: Tensor, boxes: Tensor, share: float, random: RandomNumbers
) -> tuple[Tensor, Tensor, Tensor]:
    """Other numbers' digits where ``swapped_digits`` puts them, with the colours that they have
    [N, 3, 128, 128]; which place each pixel is then of, as of ``reading_grid``; and what is to be read."""
    theirs = labels.roll(1, 0)
    chance, drawn, in_share = random.uniform(3, *labels.shape).unbind(0)
    taken = (labels != NULL) & (chance < 0.5) & (in_share[:, :1] < share)
    which = below((theirs != NULL).sum(1, keepdim=True), drawn)  # [N, 5]
    digits = boxes.roll(1, 0).gather(1, which[..., None].expand_as(boxes))
    grid, place = reading_grid(boxes, digits, taken, pixels.shape[-1])
    put = sample(pixels.roll(1, 0).to(torch.float32), grid)
    return put, place, torch.where(taken, theirs.gather(1, which), labels)


def mean_in_places(values: Tensor, place: Tensor) -> Tensor:
    """The mean of values [N, C, H, W] over the pixels of each place, at all of these; places [N, H, W] are
    counted from 1 to 5, and where there is none, 0, it is 0. [N, C, H, W]"""
    number = torch.arange(1, DIGITS + 1, dtype=torch.uint8, device=place.device)[:, None]
    of_each = (place.flatten(1)[:, None] == number).to(values.dtype)  # [N, 5, H * W]
    means = values.flatten(2) @ of_each.mT / of_each.sum(2).clamp(min=1)[:, None]  # [N, C, 5]
    return (means @ of_each).view_as(values)


def reading_grid(places: Tensor, digits: Tensor, taken: Tensor, wide: int) -> tuple[Tensor, Tensor]:
    """Where an image of so many pixels along each side reads another's digits, so that each fills one of its
    places that are taken, both boxes [N, 5, 4]: [N, wide, wide, 2]; and of which place, counted from 1, each
    of its pixels is, 0 for none: uint8 [N, wide, wide].

    A digit becomes as wide and high as the place, as crops bring all numbers to one shape. Of places that are
    taken and overlap, the last is whole.
    """
    low, high = places.unflatten(2, (2, 2)).unbind(2)  # [N, 5, 2], as (x, y)
    digit_low, digit_high = digits.unflatten(2, (2, 2)).unbind(2)
    zoom = (digit_high - digit_low) / (high - low).clamp(min=1 / wide)
    centre, digit_centre = (low + high) / 2, (digit_low + digit_high) / 2
    at = (2 * torch.arange(wide, device=places.device) + 1) / wide - 1
    in_x, in_y = ((at >= low[..., None]) & (at <= high[..., None])).unbind(2)  # [N, 5, wide]
    x, y = (digit_centre[..., None] + zoom[..., None] * (at - centre[..., None])).unbind(2)
    inside = (taken[..., None, None] & in_y[..., :, None] & in_x[..., None, :]).to(torch.uint8)
    count = torch.arange(1, places.shape[1] + 1, dtype=torch.uint8, device=places.device)
    place = (inside * count[:, None, None]).amax(1)
    which = (place.long() - 1).clamp(min=0)[:, None]  # [N, 1, wide, wide]
    x_and_y = (x[..., None, :].expand_as(inside), y[..., :, None].expand_as(inside))
    return torch.stack([values.gather(1, which)[:, 0] for values in x_and_y], dim=-1), place


def some_digits(pixels: Tensor, labels: Tensor, boxes: Tensor, share: float, random: RandomNumbers) -> Shown:
    """Loose crops, labels [N, 5] and boxes [N, 5, 4], as ``svhn.HouseNumbers`` has them.

    Of so large a share of the numbers only digits from one to another in reading order, both drawn; maybe
    all of them. Beside them, halfway to the digits that are left out, the image ends: its border is repeated.

    Where digits do not stand side by side, so that borders would cut more than ``MOST_CUT`` off what is left,
    all of the number is shown.
    """
    present = labels != NULL
    count = present.sum(1, keepdim=True)
    drawn = random.uniform(3, len(labels), 1)
    ends = below(count, drawn[1:])
    first, last = ends.amin(0), ends.amax(0)  # [N, 1]
    place = torch.arange(labels.shape[1], device=labels.device).expand_as(labels)
    shown = (place >= first) & (place <= last)
    lefts, tops, rights, bottoms = boxes.unbind(2)
    left, top = least(lefts, shown), least(tops, shown)
    right, bottom = greatest(rights, shown), greatest(bottoms, shown)
    # Where the image ends; infinite where no digit is left out.
    low = (left + greatest(rights, place < first)) / 2
    high = (right + least(lefts, present & (place > last))) / 2
    lost = (low - left).clamp(min=0) + (right - high).clamp(min=0)
    taken = (drawn[0, :, 0] < share) & (lost <= MOST_CUT * (right - left))
    read = labels.gather(1, (place + first).clamp(max=labels.shape[1] - 1))
    read = read.masked_fill(place > last - first, NULL)
    low, high = low.masked_fill(~taken, -math.inf), high.masked_fill(~taken, math.inf)
    # All of a number is in the middle of its crop, and the crop about it.
    x, y = (torch.where(taken, both / 2, 0.0) for both in (left + right, top + bottom))
    wide, tall = (torch.where(taken, LOOSE_GROWN / 2 * side, 1.0) for side in (right - left, bottom - top))
    nothing = torch.zeros_like(x)
    return Shown(
        between(pixels, low, high),
        torch.where(taken[:, None], read, labels),
        torch.stack([wide, nothing, x, nothing, tall, y], dim=1),
    )


def least(values: Tensor, those: Tensor) -> Tensor:
    """The least of those of each row, infinity where there are none. [N, K] -> [N]"""
    return values.masked_fill(~those, math.inf).amin(1)


def greatest(values: Tensor, those: Tensor) -> Tensor:
    """The greatest of those of each row, minus infinity where there are none. [N, K] -> [N]"""
    return values.masked_fill(~those, -math.inf).amax(1)


def between(pixels: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Images whose columns left of ``low`` and right of ``high``, from -1 to 1, repeat those there.

    [N, 3, H, W], [N], [N]
    """
    wide = pixels.shape[-1]
    # A column's number is its centre's place in pixels, less a half.
    ends = ((low + 1) * wide / 2 - 0.5).ceil(), ((high + 1) * wide / 2 - 0.5).floor()
    from_here, to_here = (end.clamp(0, wide - 1).long()[:, None] for end in ends)
    column = torch.arange(wide, device=pixels.device).maximum(from_here).minimum(to_here)
    return pixels.gather(3, column[:, None, None].expand_as(pixels))


def augmented(
    pixels: Tensor,
    size: int,
    settings: HouseNumberSettings,
    random: RandomNumbers,
    window: Tensor | None = None,
) -> Tensor:
    """Images as a network is trained on them: uint8 [N, 3, size or LOOSE, ...] -> [N, 3, size, size].

    Moved images are read off the looser crops, of which the tighter are the middle; or the middle of what a
    ``window`` shows of them, as ``Shown`` has it.
    """
    if settings.moves or window is not None:
        pixels = moved(pixels, size, settings, random, window)
    images = house_numbers.normalised(middle(pixels, size))
    # What is less its mean turns to its negative, its contrast and its colours change, by factors alone.
    if settings.contrast:
        images = images * (settings.contrast * either_way(random, len(images), 1, 1, 1)).exp()
    if settings.tint:
        images = images * (settings.tint * either_way(random, len(images), 3, 1, 1)).exp()
    if settings.inversion:
        images = torch.where(random.uniform(len(images), 1, 1, 1) < settings.inversion, -images, images)
    if settings.erased:
        images = erased(images, settings.erased, random)
    return images


def erased(images: Tensor, most: float, random: RandomNumbers) -> Tensor:
    """Images [N, 3, size, size] with a square at their mean, 0, somewhere in each: of up to so much of the
    image's side, as far as it lies in the image."""
    side, *centre = random.uniform(3, len(images), 1).unbind(0)
    pixels = (torch.arange(images.shape[-1], device=images.device) + 0.5) / images.shape[-1]
    across, down = ((pixels - each).abs() < most / 2 * side for each in centre)
    return images.masked_fill((across[:, None, :] & down[:, :, None])[:, None], 0.0)


def moved(
    pixels: Tensor,
    size: int,
    settings: HouseNumberSettings,
    random: RandomNumbers,
    window: Tensor | None = None,
) -> Tensor:
    """Crops of that size about the middle of images of it or larger, or of what a window shows of them,
    scaled, sheared, turned, shifted and bent at random. float32 [N, 3, size, size]"""
    affine, of_the_whole = Affine(), size / pixels.shape[-1]
    family: Family = affine
    theta = moves(len(pixels), settings, random, of_the_whole=of_the_whole)
    if settings.elastic:
        theta, family = bent(theta, settings.elastic * of_the_whole, random), BENDING
        if window is not None:
            theta = affine.points(window, theta.unflatten(1, (-1, 2))).flatten(1)
    elif window is not None:
        theta = affine.compose(window, theta)
    return warp(pixels.to(torch.float32), theta, family, size=(size, size), padding="border")


def bent(theta: Tensor, elastic: float, random: RandomNumbers) -> Tensor:
    """A spline's theta, whose points are where an affine transform has them, and beside that by up to so much
    of the side of the image along each axis. [N, 6] -> [N, 32]"""
    points = Affine().points(theta, bending_points(theta.device).expand(len(theta), -1, -1))
    return (points + 2 * elastic * either_way(random, *points.shape)).flatten(1)


@functools.cache
def bending_points(device: torch.device) -> Tensor:
    """Those that a spline moves, once for a device: nothing is to wait for it in a captured step. [16, 2]"""
    return BENDING.identity(device=device).unflatten(0, (-1, 2))


def moves(count: int, settings: HouseNumberSettings, random: RandomNumbers, *, of_the_whole: float) -> Tensor:
    """Random theta whose crops lie about the middle, so large a part of the whole. [count, 6]"""
    angle, *scales_and_shifts, lean = either_way(random, 6, count).unbind(0)
    angle, lean = angle * math.radians(settings.rotation), lean * settings.shear
    across, down = ((settings.scaling * each).exp() * of_the_whole for each in scales_and_shifts[:2])
    # A side is 2 in normalised coordinates.
    right, under = (2 * settings.shift * each * of_the_whole for each in scales_and_shifts[2:])
    cos, sin = angle.cos(), angle.sin()
    leant = lean * cos - sin, lean * sin + cos
    return torch.stack([cos * across, leant[0] * down, right, sin * across, leant[1] * down, under], dim=1)
