"""What networks get to see of the birds: windows drawn at random to train on, the middle to be tested on.

A step chooses its images on the device that trains, so all is gathered and warped there, to shapes that do
not depend on the choice. Images stay as they are stored, each of its own size; one warp cuts a window out,
resizes it (smoothed where that makes it smaller) and flips it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...families import Affine
from ...sampling import warp
from ..arguments import UsageError
from .birds import Birds
from .random_numbers import RandomNumbers, either_way

SHARE = 224 / 256  # of the shorter side: A.6's "224 x 224 from 256 x S", and 448 from 512
GREY = (0.299, 0.587, 0.114)  # of red, green and blue


@dataclass(frozen=True)
class Photographs:
    """Some of the birds on a device, by numbers that are there too: nothing waits for it."""

    pixels: Tensor  # uint8 [all pixels of all images, 3]
    starts: Tensor  # int64 [N]: an image's first pixel
    sizes: Tensor  # int64 [N, 2]: height, width
    labels: Tensor  # int64 [N]
    boxes: Tensor  # float32 [N, 4]: x, y, width, height in the image's pixels
    canvas: tuple[int, int]  # height and width that hold any of them

    def __len__(self) -> int:
        return len(self.labels)

    def gathered(self, chosen: Tensor) -> Tensor:
        """Images in the upper left of the canvas, their borders replicated beyond. float32 [N, 3, H, W],
        channels last as the pixels are."""
        last = self.sizes[chosen][:, :, None] - 1
        height, width = self.canvas
        y = torch.minimum(torch.arange(height, device=chosen.device), last[:, 0])  # [N, H]
        x = torch.minimum(torch.arange(width, device=chosen.device), last[:, 1])  # [N, W]
        row = self.starts[chosen][:, None] + y * (last[:, 1] + 1)
        return self.pixels[row[:, :, None] + x[:, None]].permute(0, 3, 1, 2).to(torch.float32)


def photographs(birds: Birds, split: str, device: torch.device | str) -> Photographs:
    """Those "train" or "test", species taking turns: the first few are of as many species.

    Pixels that are on the device already are not copied.
    """
    which = birds.split(split)
    which = which[in_turn(birds.labels.cpu()[which])]
    height, width = birds.sizes.amax(0).tolist()
    starts, sizes, labels, boxes = (
        part[which.to(part.device)].to(device)
        for part in (birds.starts, birds.sizes, birds.labels, birds.boxes)
    )
    return Photographs(birds.pixels.to(device), starts, sizes, labels, boxes, (height, width))


def in_turn(labels: Tensor) -> Tensor:
    """An order in which the classes take turns, each image of a class after those before it. int64 [N]

    >>> in_turn(torch.tensor([0, 0, 0, 1, 1, 2])).tolist()
    [0, 3, 5, 1, 4, 2]
    """
    return rank(labels).argsort(stable=True)


def rank(labels: Tensor) -> Tensor:
    """How many images of its class come before each. int64 [N]"""
    order, counts = labels.argsort(stable=True), labels.bincount()
    first = counts.cumsum(0) - counts
    return torch.empty_like(labels).index_copy(0, order, torch.arange(len(labels)) - first[labels[order]])


def held_out(birds: Birds, count: int) -> Birds:
    """The training images alone, with ``count`` of them in the place of the test images: the last of each
    species, of all species the same share. What hyper-parameters are chosen on. As it is for 0."""
    if count == 0:
        return birds
    train = birds.split("train")
    if count >= len(train):
        raise UsageError(f"held_out must be less than the {len(train):,} training images, got {count:,}")
    labels = birds.labels.cpu()[train]
    sizes = labels.bincount()[labels]
    from_the_end = (sizes - rank(labels)) / sizes
    kept = torch.ones(len(train), dtype=torch.bool)
    kept[from_the_end.argsort(stable=True)[:count]] = False
    return Birds(
        birds.pixels, birds.starts[train], birds.sizes[train], birds.labels[train.to(birds.labels.device)],
        kept, birds.boxes[train], [birds.names[number] for number in train.tolist()], birds.classes,
    )  # fmt: skip


class Windows(NamedTuple):
    """Where views look, in pixels of the images, as (x, y)."""

    middle: Tensor  # [N, 2]
    extent: Tensor  # [N, 2]

    def normalised(self, boxes: Tensor) -> Tensor:
        """Boxes (x, y, width, height) of the images as (x0, y0, x1, y1) of the views, from -1 to 1. [N, 4]"""
        corners = torch.stack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1)  # [N, 2, 2]
        return ((corners - self.middle[:, None]) / (self.extent[:, None] / 2)).flatten(1)


@dataclass(frozen=True)
class Views:
    """Square views of ``size`` pixels.

    Parameters
    ----------
    augmentation: of what is trained on. "resized": windows of ``least`` to all of the image's area and of
        sides up to ``aspect`` times as long one way as the other, or as the image's are, as far as they fit,
        at any place; "sampled": as in A.6, of what is tested on, at any place. Flipped every other time.
    rotation: by up to so many degrees, either way, windows are turned when training; where they leave the
        image then, its border is repeated.
    colour: by how much of themselves brightness, contrast and saturation change when training, at most.
    share, shape: of what is tested on: the middle, a "square" of so much of the shorter side; in the shape of
        the "image", with so much of each side, pressed into the square; or, so that the "whole" of it is in
        the view, a square of so much of the longer side, maybe more than all: beyond the image its border is
        repeated. What is trained on has this shape, and is no larger.
    """

    size: int
    augmentation: str = "resized"
    least: float = 0.65
    aspect: float = 4 / 3
    rotation: float = 0.0
    colour: float = 0.0
    share: float = SHARE
    shape: str = "square"

    family = Affine()

    def drawn(self, given: Photographs, chosen: Tensor, random: RandomNumbers) -> Tensor:
        """Views to train on, of some images. float32 [N, 3, size, size] from 0 to 255"""
        drawn = random.uniform(len(chosen), 5)
        mirror = 1 - 2 * (drawn[:, 4] < 0.5).float()
        angle = None
        if self.rotation:
            angle = math.radians(self.rotation) * either_way(random, len(chosen))
        views = self.cut(given, chosen, self.windows_drawn(given.sizes[chosen], drawn), mirror, angle)
        return coloured(views, self.colour, random) if self.colour else views

    def middle(self, given: Photographs, chosen: Tensor, *, mirrored: bool = False) -> Tensor:
        """Views to be tested on. float32 [N, 3, size, size] from 0 to 255"""
        windows = self.windows(given.sizes[chosen])
        mirror = torch.full_like(windows.middle[:, 0], -1.0 if mirrored else 1.0)
        return self.cut(given, chosen, windows, mirror)

    def windows(self, sizes: Tensor) -> Windows:
        """Of the views to be tested on; sizes [N, 2] are heights and widths."""
        image = sizes.flip(1).to(torch.float32)
        return Windows(image / 2, self.share_of(image))

    def share_of(self, image: Tensor) -> Tensor:
        """Width and height of what is tested on, of those of images. [N, 2]"""
        shorter, longer = (side[:, None].expand_as(image) for side in image.aminmax(dim=1))
        return self.share * {"square": shorter, "image": image, "whole": longer}[self.shape]

    def windows_drawn(self, sizes: Tensor, drawn: Tensor) -> Windows:
        """Of views to train on; of the numbers drawn the first four are area, aspect and place. [N, 5]"""
        image = sizes.flip(1).to(torch.float32)
        if self.augmentation == "sampled":
            extent = self.share_of(image)
        else:
            share = self.least + (1 - self.least) * drawn[:, :1]
            lean = math.log(self.aspect) * (drawn[:, 1] - 0.5)
            most = self.share_of(image) if self.shape == "whole" else image
            square = image.prod(1, keepdim=True).sqrt()
            sides = share.sqrt() * (square if self.shape == "square" else most)
            extent = torch.minimum(sides * torch.stack([lean, -lean], dim=1).exp(), most)
        # Along a side that is longer than the image's, all of the image stays in the window.
        return Windows(drawn[:, 2:4] * (image - extent) + extent / 2, extent)

    def cut(
        self,
        given: Photographs,
        chosen: Tensor,
        windows: Windows,
        mirror: Tensor,
        angle: Tensor | None = None,
    ) -> Tensor:
        """What windows show; mirror [N]: -1 where it is to be mirrored; angle [N]: by which they are turned
        about their middles, in radians, from x to y."""
        height, width = given.canvas
        (x, y), (wide, high) = windows.middle.unbind(1), windows.extent.unbind(1)
        # Of pixels of the image, for half a window along each of its axes.
        right, down = mirror * wide, high
        cos, sin = (torch.ones_like(x), torch.zeros_like(x)) if angle is None else (angle.cos(), angle.sin())
        theta = torch.stack(
            [cos * right / width, -sin * down / width, 2 * x / width - 1,
             sin * right / height, cos * down / height, 2 * y / height - 1], dim=1
        )  # fmt: skip
        # Pixels of an image for one of a view.
        most = max(given.canvas) * (self.share if self.shape == "whole" else 1) / self.size
        return warp(
            given.gathered(chosen),
            theta,
            self.family,
            size=(self.size, self.size),
            padding="border",
            antialias=most if most > 1 else False,
        )


def coloured(images: Tensor, strength: float, random: RandomNumbers) -> Tensor:
    """With brightness, contrast and saturation times up to 1 - strength to 1 + strength. [N, 3, H, W]"""
    factors = 1 + strength * either_way(random, len(images), 3, 1, 1, 1)
    brightness, contrast, saturation = factors.unbind(1)
    images = images * brightness
    mean = images.mean((1, 2, 3), keepdim=True)
    images = mean + contrast * (images - mean)
    grey = sum(share * images[:, at : at + 1] for at, share in enumerate(GREY))
    return (grey + saturation * (images - grey)).clamp(0, 255)
