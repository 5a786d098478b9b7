"""One co-localisation (section A.2): a spatial transformer that learns, with no label and no box, to put its
crops of some images on what they have in common.

It has the interface of ``runs.Run``, and what is said there of steps and states holds here too.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ..families import Attention
from ..localisers import ConvLocaliser, Head
from ..module import SpatialTransformer
from ..sampling import warp
from . import networks
from .arguments import UsageError
from .data.digits import DigitSet
from .data.distortions import DIGIT
from .data.one_class import one_class
from .data.random_numbers import RandomNumbers, either_way
from .encoders import anywhere, classifier, encoder
from .interrupts import Stop, Stopped
from .runs import STREAM, Resumable, Tested, held_out, joined, tensor_cores
from .spec import Cell, DigitSettings

MARGIN = 1.0  # alpha of the hinge loss
CORRECT = 0.5  # overlap above which a box is right
IMAGES = 100  # of a set
SCALES = 0.27, 0.5  # of a crop: what the encoder knows (``encoders.SCALES``), and a little more
GENTLY = 0.3  # what the scale counts for: places are to be found first
RANDOM = 4  # patches of an image at random places, of which the nearest counts
SHAKEN = 0.2, 1.25  # of its half width, and times: how a crop is moved to be seen: no more than the encoder's
GUIDANCE = 5.0  # what a better place counts for beside the hinge loss
SECOND, TINY = 0.999, 1e-8  # Adam's decay of squares, and what keeps it from dividing by zero


class Boxes(nn.Module):
    """Features to crops within the image: scale between bounds, centre where the crop fits. [N, F] -> [N, 3]

    A crop that may shrink to a point, or leave the image, ends there: all points look alike.
    """

    def __init__(self, features: int, scales: tuple[float, float]) -> None:
        super().__init__()
        self.least, self.most = scales
        self.free = Head(features, Attention(), start=torch.zeros(3))

    def forward(self, features: Tensor) -> Tensor:
        free = self.free(features)
        scale = self.least + (self.most - self.least) * torch.sigmoid(GENTLY * free[:, :1])
        return torch.cat([scale, torch.tanh(free[:, 1:]) * (1 - scale)], dim=1)


class Standardised(nn.Module):
    """A localiser of images whose pixels have mean 0 and deviation 1, over some images."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, localiser: ConvLocaliser, images: Tensor) -> None:
        super().__init__()
        deviation, mean = torch.std_mean(images, dim=(0, 2, 3), keepdim=True)
        self.localiser, self.out_features = localiser, localiser.out_features
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation.clamp(min=1 / 255))  # of images in one colour

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.localiser((images - self.mean) / self.deviation)
        return features


def transformer(images: Tensor, shown: int, scales: tuple[float, float]) -> SpatialTransformer:
    """A localiser of those images as A.2 describes it, started as those of Table 1 are. Crops are of scales
    between the two, and start midway.

    The text has fully connected layers of 8 units, and 100 thousand parameters in all. With 8 units there
    are 6 thousand; with 128 there are 100.6 thousand.
    """
    _, channels, *size = images.shape
    localiser = ConvLocaliser(
        channels, size, channels=(8,), kernel_size=9, stride=4, pool=(2,), hidden=(128, 128), downsample=1
    )
    networks.orthogonal(localiser)
    seen = Standardised(localiser, images)
    return SpatialTransformer(seen, Attention(), size=(shown, shown), head=Boxes(seen.out_features, scales))


def hinge(candidates: Tensor, others: Tensor, away: Tensor, margin: float = MARGIN) -> Tensor:
    """The loss of A.2: of C encodings of each image, beside those of the other images' crops, as a mean over
    these. [N, C, F], [N, F] and the squared distances to random patches [N, C] -> [N, C]

    A pair moves its first crop alone: the second one is met as it is. If both moved, crops would draw
    together twice as strongly as they leave the random patches, and meet where there is nothing.
    """
    others = others.detach()
    between = squares(candidates)[..., None] + squares(others) - 2 * candidates @ others.T  # [N, C, N]
    each = (between - away[..., None] + margin).clamp(min=0)
    itself = each.diagonal(dim1=0, dim2=2).T  # [N, C]
    return (each.sum(2) - itself) / (len(others) - 1)


def nearest_other(patches: Tensor) -> Tensor:
    """The squared distance of each patch to the nearest other one of its image. [N, K, F] -> [N, K]"""
    between = squares(patches[:, :, None] - patches[:, None])
    itself = torch.eye(between.shape[1], dtype=torch.bool, device=patches.device)
    return between.masked_fill(itself, torch.inf).amin(2)


def guidance(theta: Tensor, places: Tensor, lost: Tensor, patches_lost: Tensor) -> Tensor:
    """How far crops are from the random patches that would lose less in their place, as a mean.

    Of each image the best patch counts, by how much less it loses; crops that lose less than all their
    patches are left alone. The gradient of the hinge loss tells a crop nothing of what is out of its sight.
    [N, 3], [N, K, 3], [N], [N, K] -> []
    """
    least, best = patches_lost.detach().min(1)
    gain = (lost.detach() - least).clamp(min=0)
    place = places.gather(1, best[:, None, None].expand(-1, 1, 3))[:, 0]
    return (gain * squares(theta[:, 1:] - place[:, 1:])).mean()


def squares(vectors: Tensor) -> Tensor:
    return vectors.square().sum(-1)


def shaken(theta: Tensor, random: RandomNumbers) -> Tensor:
    """The crops, each moved and scaled a little at random. [N, 3] -> [N, 3]

    Crops that all have the object in the same corner are as alike as those that have it in the middle. But
    an encoder makes the same of an object that is moved only where it was trained to: in the middle, and in
    the size it was trained with.
    """
    far, times = SHAKEN
    uniform = either_way(random, len(theta), 3)
    scale, centre = theta[:, :1], theta[:, 1:]
    return torch.cat([scale * times ** uniform[:, :1], centre + far * scale * uniform[:, 1:]], dim=1)


def elsewhere(theta: Tensor, random: RandomNumbers) -> Tensor:
    """Crops of the same sizes at random places within the image. [N, 3] -> [N, RANDOM, 3]"""
    return anywhere(theta[:, None, :1].expand(-1, RANDOM, -1), random)


def box(theta: Tensor) -> Tensor:
    """(scale, x, y) as (x0, y0, x1, y1), normalised. [..., 3] -> [..., 4]"""
    scale, centre = theta[..., :1], theta[..., 1:]
    return torch.cat([centre - scale, centre + scale], dim=-1)


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """The area of the intersection of boxes divided by that of their union. [..., 4], [..., 4] -> [...]"""
    least = torch.maximum(one[..., :2], other[..., :2])
    most = torch.minimum(one[..., 2:], other[..., 2:])
    shared = (most - least).clamp(min=0).prod(-1)
    return shared / (area(one) + area(other) - shared)


def area(box: Tensor) -> Tensor:
    return (box[..., 2:] - box[..., :2]).prod(-1)


class Objective:
    """Images, a transformer and an encoder, and the step of Adam that trains the transformer."""

    def __init__(
        self,
        images: Tensor,
        network: SpatialTransformer,
        encode: nn.Module,
        random: RandomNumbers,
        *,
        batch: int,
        momentum: float,
    ) -> None:
        if not 2 <= batch <= len(images):
            raise UsageError(f"batch must be from 2 to the {len(images)} images, got {batch}")
        self.images, self.network, self.encode, self.random = images, network, encode, random
        self.batch, self.momentum = batch, momentum
        device = images.device
        self.parameters = list(network.parameters())
        self.weights = joined(self.parameters)
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.moved = torch.zeros((), device=device)  # how often: on the device, for a captured step
        self.rate = torch.zeros((), device=device)

    def step(self) -> tuple[Tensor, Tensor, Tensor]:
        """Some images, and the weights moved; the hinge loss, which images, and where their crops were."""
        chosen = self.random.uniform(len(self.images)).argsort(stable=True)[: self.batch]
        images = self.images[chosen]
        with tensor_cores(False):
            theta = self.network.theta(images)
            encoded = self.encode(self.cropped(images, shaken(theta, self.random)))
            with torch.no_grad():
                places = elsewhere(theta, self.random)
                patches = self.cropped(images, places).flatten(0, 1)
                seen = self.encode(patches).unflatten(0, (self.batch, RANDOM))
                patches_lost = hinge(seen, encoded, nearest_other(seen))
            away = squares(encoded[:, None] - seen).amin(1, keepdim=True)
            lost = hinge(encoded[:, None], encoded, away)[:, 0]
            loss = lost.mean()
            guided = loss + GUIDANCE * guidance(theta, places, lost, patches_lost)
            gradients = torch.autograd.grad(guided, self.parameters)
        with torch.no_grad():
            self.move(torch.cat([part.reshape(-1) for part in gradients]))
        return loss.detach(), chosen, theta.detach()

    def cropped(self, images: Tensor, theta: Tensor) -> Tensor:
        assert self.network.size is not None
        return warp(images, theta, self.network.family, size=self.network.size)

    def move(self, gradient: Tensor) -> None:
        """Adam, in place."""
        self.moved += 1
        self.mean.lerp_(gradient, 1 - self.momentum)
        self.square.lerp_(gradient.square(), 1 - SECOND)
        first = self.mean / (1 - self.momentum**self.moved)
        second = self.square / (1 - SECOND**self.moved)
        self.weights.sub_(self.rate * first / (second.sqrt() + TINY))


class Colocalisation(Resumable):
    """A cell of Table 5 and a seed on a device.

    folder: where the encoder is kept.
    stop: asked while it is trained, which raises ``Stopped``.
    """

    def __init__(
        self,
        cell: Cell,
        seed: int,
        digits: DigitSet,
        device: torch.device | str,
        folder: Path,
        stop: Stop = lambda: False,
    ) -> None:
        assert cell.model.digit is not None
        self.cell, self.seed, self.device = cell, seed, torch.device(device)
        self.digits = held_out(digits, cell.settings.held_out)
        self.trained_on = self.digits.name
        given = one_class(
            cell.data.kind, cell.model.digit, seed, self.digits, count=IMAGES, device=self.device
        )
        self.images, self.truth = given.images, given.drawn.numbers["box"]
        with torch.random.fork_rng(devices=[]):  # the same weights on every device
            torch.manual_seed(seed)
            self.network = transformer(self.images, DIGIT, SCALES)
        self.network.to(self.device)
        filters = networks.widest(lambda width: networks.parameters(classifier(width)), cell, 0)
        self.random = RandomNumbers(seed * STREAM, device=self.device)
        objective = self.objective = Objective(
            self.images,
            self.network,
            encoder(self.digits, filters, folder, self.device, stop=stop),
            self.random,
            batch=cell.settings.batch,
            momentum=cell.settings.momentum,
        )
        self.sums = torch.zeros(2, device=self.device)  # of losses and of wrong boxes
        self.kept = {
            "mean": objective.mean,
            "square": objective.square,
            "moved": objective.moved,
            "sums": self.sums,
        }
        self.step_number = 0

    def step(self) -> None:
        loss, chosen, theta = self.objective.step()
        wrong = (overlap(box(theta), self.truth[chosen]) <= CORRECT).float().mean()
        self.sums += torch.stack([loss, wrong])

    def set_rate(self) -> None:
        """The learning rate of the steps that follow; in place, so that a captured step takes it."""
        settings = self.cell.settings
        assert isinstance(settings, DigitSettings)
        self.objective.rate.fill_(settings.rate(self.step_number) * settings.localiser_rate)

    def tested(self, stop: Stop = lambda: False) -> Tested:
        """The boxes of all images; what is "predicted" of an image is whether its box is right."""
        if stop():
            raise Stopped
        theta = self.theta(self.images)
        right = overlap(box(theta), self.truth) > CORRECT
        return Tested(100 - 100 * int(right.sum()) / len(right), right.long(), theta, {})

    def first_images(self, count: int) -> Tensor:
        """The first images of the set. [count at most, 1, size, size]"""
        return self.images[:count]

    @torch.no_grad()
    def theta(self, images: Tensor) -> Tensor:
        """The present crops of some images. [N, 3]"""
        with tensor_cores(False):
            theta: Tensor = self.network.theta(images)
        return theta
