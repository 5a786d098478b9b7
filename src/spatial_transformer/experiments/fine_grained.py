"""The networks of sections 4.3 and A.6: birds, described whole or by crops that a transformer chooses."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..family import Family
from ..localisers import Head, tiles
from ..module import SpatialTransformer
from .data.random_numbers import RandomNumbers
from .efficientnet_lite import MEAN, REDUCTION, Features
from .networks import FAMILIES, dropped, orthogonal

SPECIES = 200
SIDE = 224  # of what a backbone gets to see
UNITS = 128  # of the localiser's own layers
HALF = 0.5  # of the image's width and height: a crop, or where it can be of any size, the start of it
DROPOUT = 0.7


class FineGrained(nn.Module):
    """RGB pixels from 0 to 255, [N, 3, size, size] -> [N, classes]: descriptors of crops, each by a backbone
    of its own, joined and classified by one layer. Without crops it is the CNN on the whole image.

    Parameters
    ----------
    backbone: copied for each crop and for the localiser, with its weights.
    crops: how many a shared localiser chooses: 2 or 4 in the paper, 0 for the CNN.
    size: of the images that crops are taken from; where it is a multiple of ``side``, such as 448, the
        localiser gets them reduced to that.
    side: of the crops.
    family: of what crops are; windows of half the image's size unless it is given. So large are they all at
        the start, and lie where boxes would that tile the image: four of them do.
    dropout: the share of the descriptors' numbers that ``forward`` leaves out, where it is given ``random``.
    skipped: likewise, the share of images that the backbones' last blocks are left out for, as ``Features``
        has it; not those of the localiser, whose windows would jump.
    """

    def __init__(
        self,
        backbone: Features,
        *,
        crops: int = 0,
        size: int = SIDE,
        side: int = SIDE,
        family: Family | None = None,
        classes: int = SPECIES,
        dropout: float = DROPOUT,
        skipped: float = 0.0,
    ) -> None:
        super().__init__()
        self.transformer: SpatialTransformer | None = None
        if crops:
            family = FAMILIES["window"]() if family is None else family
            start = torch.stack([family.crop(centre, [HALF, HALF]) for centre, _ in tiles(crops, 2)])
            # Crops that leave the image see what backbones take for nothing.
            self.transformer = SpatialTransformer(
                PartLocaliser(backbone, size, side),
                family,
                head=Head(UNITS, family, copies=crops, start=start),
                size=(side, side),
                padding=MEAN,
            )
        self.streams = nn.ModuleList(copy.deepcopy(backbone) for _ in range(crops or 1))
        self.dropout, self.skipped = dropout, skipped
        self.classifier = nn.Linear(len(self.streams) * backbone.channels, classes)

    def forward(self, image: Tensor, random: RandomNumbers | None = None) -> Tensor:
        """The scores: for training with dropout, of a run's own random numbers, and otherwise without."""
        return self.scores_and_theta(image, random)[0]

    def scores_and_theta(self, image: Tensor, random: RandomNumbers | None = None) -> tuple[Tensor, Tensor]:
        """Both by one pass of the localiser: [N, classes], and theta as ``theta`` gives it."""
        descriptors, theta = self.descriptors_and_theta(image, random)
        return self.classifier(descriptors), theta

    def descriptors_and_theta(
        self, image: Tensor, random: RandomNumbers | None = None
    ) -> tuple[Tensor, Tensor]:
        """What is classified, one crop's descriptor after another [N, streams * channels]; and theta."""
        seen, theta = self.seen_and_theta(image)
        how = (random, self.skipped) if self.skipped else ()
        each = [
            stream(laid_out_as(image, crop), *how).mean((2, 3))
            for stream, crop in zip(self.streams, seen.unbind(1), strict=True)
        ]
        return dropped(torch.cat(each, dim=1), self.dropout, random), theta

    def scores_alone(self, descriptors: Tensor) -> Tensor:
        """What each crop would say if the others all said the same: [streams, N, classes].

        Scores are sums over crops, so that the mean of these is the scores.
        """
        count = len(self.streams)
        each, weights = (self.of_each(both).unbind(1) for both in (descriptors, self.classifier.weight))
        parts = [
            F.linear(own, count * weight, self.classifier.bias)
            for own, weight in zip(each, weights, strict=True)
        ]
        return torch.stack(parts)

    def of_each(self, joined: Tensor) -> Tensor:
        """Each crop's part of descriptors, or of the classifier's weights.

        [N, streams * channels] -> [N, streams, channels]
        """
        return joined.unflatten(1, (len(self.streams), -1))

    def seen(self, image: Tensor) -> Tensor:
        """What the backbones get to see. [N, streams, 3, side, side]"""
        return self.seen_and_theta(image)[0]

    def seen_and_theta(self, image: Tensor) -> tuple[Tensor, Tensor]:
        if self.transformer is None:
            return image[:, None], self.theta(image)
        crops, theta = self.transformer(image, return_theta=True)
        return crops if self.transformer.copies > 1 else crops[:, None], theta.flatten(1)

    def theta(self, image: Tensor) -> Tensor:
        """The crops' parameters, one crop after another: [N, crops * family.num_params]; [N, 0] without."""
        if self.transformer is None:
            return image.new_zeros(len(image), 0)
        return self.transformer.theta(image).flatten(1)


class PartLocaliser(nn.Module):
    """The localisation network that all crops share: a backbone without its last pooling, "to preserve the
    spatial information", a 1 x 1 convolution and a fully connected layer. [N, 3, size, size] -> [N, 128]"""

    out_features = UNITS

    def __init__(self, backbone: Features, size: int, side: int) -> None:
        super().__init__()
        if size % side or side % REDUCTION:
            raise ValueError(
                f"size must be a multiple of side, and side one of {REDUCTION}, got {size} and {side}"
            )
        self.reduce = nn.AvgPool2d(size // side) if size > side else nn.Identity()
        self.backbone = copy.deepcopy(backbone)
        self.layers = nn.Sequential(
            nn.Conv2d(backbone.channels, UNITS, 1), nn.ReLU(),
            nn.Flatten(),
            nn.Linear(UNITS * (side // REDUCTION) ** 2, UNITS), nn.ReLU(),
        )  # fmt: skip
        orthogonal(self.layers)

    def forward(self, image: Tensor) -> Tensor:
        features: Tensor = self.layers(self.backbone(self.reduce(image)))
        return features


def laid_out_as(image: Tensor, crop: Tensor) -> Tensor:
    """A crop in the memory format of the image it is of: convolutions keep to what they are given."""
    last = image.is_contiguous(memory_format=torch.channels_last)
    return crop.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
