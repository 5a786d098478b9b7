"""One run on birds (sections 4.3 and A.6): what ``runs`` is for digits. A pretrained network is fine-tuned on
species alone.

All images are on the device, as bytes. A step takes the next of them in an order of its own, cuts windows out
and lets the loss go back through the network, whose dropout draws from the run's own random numbers; the
statistics of batch norms are part of the state. On a GPU, with ``precision=mixed``, layers multiply bfloat16;
weights, gradients and steps are float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..localisers import Head
from . import efficientnet_lite, measures_of_birds, mixup
from .arguments import UsageError
from .data import birds
from .data.bird_views import Photographs, Views, held_out, photographs
from .data.birds import Birds
from .data.fetch import Say, say
from .efficientnet_lite import Features
from .fine_grained import FineGrained
from .interrupts import Stop, until_stopped
from .networks import family_of
from .paper.birds import TASK, BirdSettings
from .runs import Descent, Tested, tensor_cores
from .spec import Cell

LAYOUTS = {"channels-last": torch.channels_last, "contiguous": torch.contiguous_format}
LOCALISER = "transformer."  # how the names of its parameters begin
TESTED_AT_ONCE = 64  # images


class BirdSet(NamedTuple):
    """The birds, and what describes them at first."""

    name: str
    birds: Birds
    backbone: Callable[[str], Features]  # pretrained, by name; it is copied, and left as it is


def load_set(data_dir: str | Path | None = None, *, say: Say = say) -> BirdSet:
    """The birds; it is said where there are not as many as published."""
    found = birds.load(data_dir, say=say)
    given, published = found.counts(), birds.OFFICIAL
    if given != published:
        say(
            f"this is not all of {TASK.data}: {given.train:,} images to train on and {given.test:,} to test "
            f"on, of {given.classes:,} species, and {published.train:,}, {published.test:,} and "
            f"{published.classes:,} as published"
        )
    return BirdSet(TASK.data, found, functools.partial(pretrained, data_dir=data_dir))


@functools.cache
def pretrained(name: str, data_dir: str | Path | None = None) -> Features:
    return efficientnet_lite.load(name, data_dir).features


def build(cell: Cell, backbone: Features, classes: int) -> FineGrained:
    """The cell's network, its backbones those given."""
    settings, transforms = settings_of(cell), cell.model.transformer is not None
    network = FineGrained(
        backbone,
        crops=cell.model.transformers if transforms else 0,
        size=cell.data.size,
        side=cell.data.shown,
        family=family_of(cell.model, cell.data) if transforms else None,
        classes=classes,
        dropout=settings.dropout,
        skipped=settings.skipped,
    )
    for norm in norms(network):
        norm.momentum = settings.following
    return network


def norms(network: nn.Module) -> Iterator[nn.BatchNorm2d]:
    return (module for module in network.modules() if isinstance(module, nn.BatchNorm2d))


def settings_of(cell: Cell) -> BirdSettings:
    assert isinstance(cell.settings, BirdSettings)
    return cell.settings


def views_of(settings: BirdSettings, size: int) -> Views:
    """What networks of images of that size get to see."""
    return Views(
        size,
        settings.augmentation,
        settings.least,
        settings.aspect,
        settings.rotation,
        settings.colour,
        settings.share,
        settings.shape,
    )


class FineGrainedRun(Descent):
    """A cell of Table 3 and a seed on a device."""

    def __init__(self, cell: Cell, seed: int, data: BirdSet, device: torch.device | str) -> None:
        settings = settings_of(cell)
        self.names = data.birds.classes
        super().__init__(
            cell,
            seed,
            device,
            lambda: build(cell, data.backbone(settings.backbone), len(self.names)),
            rates={LOCALISER: settings.localiser_rate, "classifier.": settings.classifier_rate},
            decay=settings.weight_decay,
        )
        self.settings = settings
        held = f", {settings.held_out:,} held out" if settings.held_out else ""
        self.trained_on = f"{data.name}{held}"
        chosen = held_out(data.birds, settings.held_out).to(self.device)
        self.train, self.test = (photographs(chosen, split, self.device) for split in ("train", "test"))
        if settings.batch > len(self.train):
            raise UsageError(
                f"batch must be at most the {len(self.train):,} training images, got {settings.batch}"
            )
        self.views = views_of(settings, cell.data.size)
        self.start = start_of(self.network)
        self.joint = torch.zeros((), device=self.device)  # 1 while the windows learn as one
        self.ties = settings.together > 0 and self.start is not None  # of one window there is nothing to tie
        if self.ties:
            with torch.no_grad():
                parts = self.network.of_each(self.network.classifier.weight)
                parts[:, 1:] = parts[:, :1]
        # Every image once before any is shown again: their order, and where the next batch begins in it.
        self.order = torch.zeros(len(self.train), dtype=torch.int64, device=self.device)
        self.place = torch.full((1,), len(self.train), device=self.device)
        self.kept |= {"order": self.order, "place": self.place}
        self.learn()

    def set_rate(self) -> None:
        super().set_rate()
        localises = self.settings.localises(self.step_number)
        self.rates[LOCALISER].fill_(self.settings.localiser_rate if localises else 0.0)
        self.joint.fill_(float(self.settings.joins(self.step_number)))

    def learn(self) -> None:
        """As it is trained; norms that are frozen keep to the statistics they have."""
        self.network.train()
        if self.settings.norms == "frozen":
            for norm in norms(self.network):
                norm.eval()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """As it is tested: with running statistics, in full precision."""
        self.network.eval()
        try:
            with torch.no_grad(), tensor_cores(False):
                yield
        finally:
            self.learn()

    def step(self) -> None:
        """One batch, and the weights moved."""
        chosen = self.next_batch()
        labels = self.train.labels[chosen]
        images = self.views.drawn(self.train, chosen, self.random)
        share = mixup.shares(self.settings.blend, len(labels), self.random)
        images = self.laid_out(mixup.blended(images, share))
        with tensor_cores(self.mixed):
            # Without a cache, which would outlive the capture that filled it.
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed, cache_enabled=False):
                descriptors, _ = self.network.descriptors_and_theta(images, self.random)
                scores = self.network.classifier(descriptors)
                loss = self.loss(scores, labels, share)
                if self.settings.alone and self.start is not None:
                    each = [self.loss(own, labels, share) for own in self.network.scores_alone(descriptors)]
                    loss = torch.lerp(loss, torch.stack(each).mean(), self.settings.alone)
            gradients = torch.autograd.grad(loss, self.parameters)
        self.move(self.tied(gradients) if self.ties else gradients)
        with torch.no_grad():
            wrong = (scores.argmax(1) != labels).sum() / len(labels)
            self.sums += torch.stack([loss.detach(), wrong])

    def tied(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the parameters, in their order; while the windows learn as one, each backbone has
        the sum of theirs, and each window's part of the classifier the mean, so that they remain the same."""
        *others, weight, bias = gradients  # the classifier's are the last
        first = len(others) - len(list(self.network.streams.parameters()))
        backbones = torch.cat([gradient.reshape(-1) for gradient in others[first:]])
        each = backbones.unflatten(0, (len(self.network.streams), -1))
        parts = self.network.of_each(weight)
        return [
            *others[:first],
            torch.lerp(each, each.sum(0), self.joint),
            torch.lerp(parts, parts.mean(1, keepdim=True), self.joint),
            bias,
        ]

    def loss(self, scores: Tensor, labels: Tensor, share: Tensor | None) -> Tensor:
        """The mean over images of the cross-entropy with their labels, smoothed and blended as they are."""
        losses = functools.partial(
            F.cross_entropy, scores, label_smoothing=self.settings.smoothing, reduction="none"
        )
        return mixup.mean_loss(losses, labels, share)

    def next_batch(self) -> Tensor:
        """The numbers of the next training images, shuffled anew where too few are left. int64 [batch]"""
        count, batch = len(self.train), self.settings.batch
        over = self.place + batch > count
        shuffled = self.random.uniform(count).argsort(stable=True)
        torch.where(over, shuffled, self.order, out=self.order)
        self.place.masked_fill_(over, 0)
        chosen = self.order[self.place + torch.arange(batch, device=self.device)]
        self.place += batch
        return chosen

    def laid_out(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=LAYOUTS[self.settings.layout])

    def tested(self, stop: Stop = lambda: False) -> Tested:
        """The network put to the test images."""
        batches = torch.arange(len(self.test), device=self.device).split(TESTED_AT_ONCE)
        with self.answering():
            parts = [
                judged(self.network, self.settings, self.cell.data.size, self.test, chosen)
                for chosen in until_stopped(batches, stop)
            ]
        chances, theta = (torch.cat(many) for many in zip(*parts, strict=True))
        predictions = chances.argmax(1)
        error = 100 * int((predictions != self.test.labels).sum()) / len(self.test)
        return Tested(error, predictions, theta, self.measures(theta))

    def measures(self, theta: Tensor) -> dict[str, float]:
        """What the windows of the test images came to; without windows nothing."""
        if self.start is None:
            return {}
        boxes = self.views.windows(self.test.sizes).normalised(self.test.boxes)
        each = theta.reshape(-1, *self.start.shape)
        return measures_of_birds.of(family_of(self.cell.model, self.cell.data), each, self.start, boxes)

    def first_images(self, count: int) -> Tensor:
        """The first test images, as the network gets to see them. [count at most, 3, size, size]"""
        chosen = torch.arange(min(count, len(self.test)), device=self.device)
        return self.laid_out(self.views.middle(self.test, chosen))

    def theta(self, images: Tensor) -> Tensor:
        """The present crops of some images. [N, crops * family.num_params]"""
        with self.answering():
            theta: Tensor = self.network.theta(images)
        return theta


def judged(
    network: FineGrained, settings: BirdSettings, size: int, given: Photographs, chosen: Tensor
) -> tuple[Tensor, Tensor]:
    """The chances that a network gives each species in some images, and its theta of them.

    [N, classes], [N, crops * family.num_params]
    """
    views, layout = views_of(settings, size), LAYOUTS[settings.layout]

    def seen(*, mirrored: bool) -> Tensor:
        return views.middle(given, chosen, mirrored=mirrored).contiguous(memory_format=layout)

    scores, theta = network.scores_and_theta(seen(mirrored=False))
    chances = scores.softmax(1)
    if settings.views == 2:
        chances = (chances + network(seen(mirrored=True)).softmax(1)) / 2
    return chances, theta


def start_of(network: FineGrained) -> Tensor | None:
    """Theta of a fresh network, the same for every image: of its last layer only the bias is not zero.
    [crops, P]; None without crops"""
    if network.transformer is None:
        return None
    head = network.transformer.head
    assert isinstance(head, Head)
    return head.bias.detach().clone().reshape(head.copies, head.num_params)
