"""The networks of sections 4.2 and A.5: a number of up to five digits, read off its image.

Three colours, 64 x 64 or 128 x 128. The CNN has 11 hidden layers and, over the last of them, a softmax layer
for each of five places; ST-CNN Single has a spatial transformer before its first convolution, and ST-CNN
Multi one before each of the first four. Learnable numbers:

                      64 px         128 px
    CNN            32,820,951     61,132,503
    ST-CNN Single  33,898,877     65,356,157
    ST-CNN Multi   37,937,903     81,584,879

Where the text leaves a choice:

- Dropout "for all layers except the first convolutional layer and localisation networks" is of what a layer
  gives, once it is pooled, and once it is transformed: localisers see maps in which nothing is missing.
- A transformer's output is as large as its input, with zeros where it looks beyond it. Images come with their
  mean taken out, therefore (``normalised``), each with its own, as Goodfellow et al. 2013 have it.
- "Randomly" is normally, with the spread that keeps signals as strong as they are through eleven layers, in
  training (``started``). Localisers start as those of Table 1 do, but for the strength of what they give
  (``transformer``).
- The loss is the mean of five (``losses``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeVar, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..families import Affine
from ..localisers import ConvLocaliser, DenseLocaliser
from ..module import SpatialTransformer
from . import networks
from .data.random_numbers import RandomNumbers
from .data.svhn import DIGITS, NULL

MODELS = ("CNN", "ST-CNN Single", "ST-CNN Multi")
COLOURS = 3
CLASSES = NULL + 1  # ten digits, and none
FILTERS = (48, 64, 128, 160, 192, 192, 192, 192)
POOLED = (0, 2, 4, 6)  # convolutions that are followed by max[2]
UNITS = (3072, 3072, 3072)
TRANSFORMERS = 4  # of ST-CNN Multi
DROPOUT = 0.5
WITHOUT_DROPOUT = 1  # so many of the first layers
FEATURES = 0.25  # how strong what localisers give starts, of what it would be
DEVIATION = 32.0  # of the training images' pixels, 0 to 255, from the mean of their image

Localiser = ConvLocaliser | DenseLocaliser
Weights = TypeVar("Weights", nn.Conv2d, nn.Linear)


class Network(nn.Module):
    """Scores of the classes at each place: [N, 3, size, size] -> [N, 5, 11].

    The transformers stand before as many of the first layers. Dropout draws from ``random``, a run's own
    stream, so that a run that is resumed drops what it would have dropped; without one nothing is dropped.
    """

    dropout: float | Tensor  # share that is dropped; a tensor where it changes as training goes on

    def __init__(
        self, transformers: Sequence[SpatialTransformer], layers: Sequence[nn.Module], features: int
    ) -> None:
        super().__init__()
        self.dropout = DROPOUT
        self.transformers = nn.ModuleList(transformers)
        self.layers = nn.ModuleList(layers)
        self.places = nn.Linear(features, DIGITS * CLASSES)  # five parallel fc[11], as one product

    @overload
    def forward(
        self, image: Tensor, random: RandomNumbers | None = None, *, return_theta: Literal[False] = False
    ) -> Tensor: ...

    @overload
    def forward(
        self, image: Tensor, random: RandomNumbers | None = None, *, return_theta: Literal[True]
    ) -> tuple[Tensor, Tensor]: ...

    def forward(
        self, image: Tensor, random: RandomNumbers | None = None, *, return_theta: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The scores, and where they are asked for the parameters of the transformers, as of ``theta``."""
        found, signal = [image.new_zeros(len(image), 0)], image
        for number, layer in enumerate(self.layers):
            if number < len(self.transformers):
                signal, theta = self.transformers[number](signal, return_theta=True)
                found.append(theta)
            if number > WITHOUT_DROPOUT:  # what comes from the layer before
                signal = networks.dropped(signal, self.dropout, random)
            signal = layer(signal)
        signal = networks.dropped(signal, self.dropout, random)
        scores = self.places(signal).unflatten(1, (DIGITS, CLASSES))
        return (scores, torch.cat(found, dim=1)) if return_theta else scores

    def theta(self, image: Tensor) -> Tensor:
        """The parameters of the transformers, one after another: [N, transformers * 6]"""
        found, signal = [image.new_zeros(len(image), 0)], image
        for transformer, layer in zip(self.transformers, self.layers, strict=False):
            signal, theta = transformer(signal, return_theta=True)
            found.append(theta)
            signal = layer(signal)
        return torch.cat(found, dim=1)


def normalised(pixels: Tensor) -> Tensor:
    """Images as networks take them, out of pixels from 0 to 255: each less its mean, over ``DEVIATION``."""
    pixels = pixels.to(torch.float32)
    return (pixels - pixels.mean((1, 2, 3), keepdim=True)) / DEVIATION


def build(
    model: str,
    size: int,
    *,
    filters: Sequence[int] = FILTERS,
    units: Sequence[int] = UNITS,
    dropout: float = DROPOUT,
) -> Network:
    """One of ``MODELS`` for images of ``size`` px, freshly initialised.

    dropout: what training begins with, and weights start for.

    >>> build("ST-CNN Multi", 64, filters=[8] * 8, units=[32]).theta(torch.rand(2, 3, 64, 64)).shape
    torch.Size([2, 24])
    """
    if size < 16 or size % 16:  # a map of odd size would lose its last row to pooling, and so its frame
        raise ValueError(f"size must be a multiple of 16, as the images are halved four times, got {size}")
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    seen = maps(size, filters)
    if model == "ST-CNN Single":
        localisers: list[Localiser] = [convolutional_localiser(size)]
    elif model == "ST-CNN Multi":
        localisers = [dense_localiser(channels, extent) for channels, extent in seen[:TRANSFORMERS]]
    else:
        localisers = []
    channels, extent = seen[-1]
    layers = [*convolutions(filters, dropout), *fully_connected(channels * extent**2, units, dropout)]
    return Network([transformer(localiser) for localiser in localisers], layers, units[-1])


def maps(size: int, filters: Sequence[int]) -> list[tuple[int, int]]:
    """Channels and size of what each convolution sees, and of what the last one gives."""
    sizes = [size]
    for number in range(len(filters)):
        sizes.append(sizes[-1] // 2 if number in POOLED else sizes[-1])
    return list(zip((COLOURS, *filters), sizes, strict=True))


def convolutions(filters: Sequence[int], dropout: float) -> list[nn.Sequential]:
    """conv[N,5,1,2] with rectifiers, and max[2] after some."""
    layers = []
    for number, (before, after) in enumerate(pairwise((COLOURS, *filters))):
        weights = started(
            nn.Conv2d(before, after, 5, padding=2), dropout if number > WITHOUT_DROPOUT else 0.0
        )
        pool = [nn.MaxPool2d(2)] if number in POOLED else []
        layers.append(nn.Sequential(weights, nn.ReLU(), *pool))
    return layers


def fully_connected(features: int, units: Sequence[int], dropout: float) -> list[nn.Sequential]:
    """fc[N] with rectifiers."""
    return [
        nn.Sequential(nn.Flatten(), started(nn.Linear(before, after), dropout), nn.ReLU())
        for before, after in pairwise((features, *units))
    ]


def started(weights: Weights, dropout: float) -> Weights:
    """A layer's weights, started so that signals keep their mean square from layer to layer in training.

    A rectifier halves it, which weights make up for. Dropout raises it: that of a half doubles it.
    """
    nn.init.kaiming_normal_(weights.weight, nonlinearity="relu")
    with torch.no_grad():
        weights.weight *= math.sqrt(1 - dropout)
    assert weights.bias is not None
    nn.init.zeros_(weights.bias)
    return weights


def convolutional_localiser(size: int) -> ConvLocaliser:
    """Of ST-CNN Single: conv[32,5,1,2]-max[2]-conv[32,5,1,2]-fc[32]-fc[32]."""
    return ConvLocaliser(COLOURS, (size, size), channels=(32, 32), padding=2, hidden=(32, 32), downsample=1)


def dense_localiser(channels: int, size: int) -> DenseLocaliser:
    """Of ST-CNN Multi: fc[32]-fc[32]."""
    return DenseLocaliser(channels, (size, size), hidden=(32, 32))


def transformer(localiser: Localiser) -> SpatialTransformer:
    """Behind a localiser whose last layer starts weak.

    A step moves theta by the square of what the localiser gives, which for images of unit deviation is some
    ten times as strong as for MNIST's digits: as it is, the first steps carry transforms away from the image.
    """
    networks.orthogonal(localiser)
    *_, last = (layer for layer in localiser.modules() if isinstance(layer, nn.Linear))
    with torch.no_grad():
        last.weight *= FEATURES
    return SpatialTransformer(localiser, Affine())


def losses(scores: Tensor, labels: Tensor) -> Tensor:
    """Of each number the mean of its five cross-entropies: scores [N, 5, 11], labels int64 [N, 5] -> [N]

    Places after the last digit count like the others, with the null class as their label. The mean, since at
    the paper's learning rate with momentum their sum throws the first steps about.
    """
    # Flat, since over further axes CUDA's cross-entropy is not deterministic.
    each = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none")
    return each.unflatten(0, labels.shape).mean(1)


def wrong(scores: Tensor, labels: Tensor) -> Tensor:
    """Which numbers are misread in any of their five places; their share is the sequence error. bool [N]"""
    return (scores.argmax(2) != labels).any(1)


def multiplied_out(theta: Tensor) -> Tensor:
    """What all transformers do together to the input image, as matrices: [N, transformers * 6] -> [N, 2, 3]

    Padded convolutions and pooling of even sizes leave what they see where it is, in normalised coordinates:
    there a transform of feature maps is one of the image, and they can be composed.
    """
    family = Affine()
    each = theta.reshape(len(theta), theta.shape[1] // family.num_params, family.num_params).unbind(1)
    none = family.identity(dtype=theta.dtype, device=theta.device).expand(len(theta), -1)
    return family.matrix(functools.reduce(family.compose, each, none))
