"""One run on house numbers (section A.5): what ``runs`` is for digits.

All images are on the device, as bytes. A step draws some, moves them about where that is asked for, and takes
their mean out; the five losses of ``house_numbers`` go back through the network, whose dropout draws from the
run's own random numbers. On a GPU, with ``precision=mixed``, layers multiply bfloat16; weights, gradients and
steps are float32.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ..families import Affine
from . import house_numbers, mixup, probes
from .arguments import UsageError
from .data.clutter import below
from .data.random_numbers import RandomNumbers
from .data.svhn import LOOSE, HouseNumberSet, middle, validation_split
from .fast_networks import fast
from .house_number_views import augmented, moved, some_digits, swapped_digits
from .interrupts import Stop, until_stopped
from .paper.svhn import HouseNumberSettings
from .runs import Descent, Tested, tensor_cores
from .spec import Cell

AT_ONCE = 256  # test images
VIEWED = 0  # seed of how test images are moved
LOCALISERS = "transformers."  # how the names of their parameters begin


def build(cell: Cell) -> house_numbers.Network:
    """The cell's network, freshly initialised."""
    assert isinstance(cell.settings, HouseNumberSettings)
    filters, units = (
        [max(1, round(cell.settings.width * count)) for count in counts]
        for counts in (house_numbers.FILTERS, house_numbers.UNITS)
    )
    return house_numbers.build(
        cell.model.name,
        cell.data.size,
        filters=filters,
        units=units,
        dropout=cell.settings.dropout * cell.settings.dropped(0),
    )


class HouseNumberRun(Descent):
    """A cell of Table 2 and a seed on a device."""

    def __init__(self, cell: Cell, seed: int, data: HouseNumberSet, device: torch.device | str) -> None:
        settings = cell.settings
        assert isinstance(settings, HouseNumberSettings)
        super().__init__(
            cell,
            seed,
            device,
            lambda: build(cell),
            rates={LOCALISERS: settings.localiser_rate},
            decay=settings.weight_decay,
        )
        self.settings = settings
        self.network.dropout = settings.dropout
        if settings.dropout_rise:
            self.network.dropout = torch.zeros((), device=self.device)  # as of ``set_rate``
        self.trained = fast(self.network) if self.mixed else self.network  # of the same parameters
        self.trained_on = data.name
        train, test = data.train, data.test
        trained, tested = torch.arange(len(train.labels)), torch.arange(len(test.labels))
        if settings.held_out:
            if settings.held_out >= len(train.labels):
                raise UsageError(
                    f"held_out must be less than the {len(train.labels):,} training images, got "
                    f"{settings.held_out:,}"
                )
            self.trained_on = f"{data.name}, {settings.held_out:,} held out"
            test, (trained, tested) = train, validation_split(len(train.labels), settings.held_out)
        # What is moved has something beyond its borders; digits' boxes are in the looser crops.
        loose = settings.moves or settings.parts or settings.swapped
        size = LOOSE if loose else cell.data.size
        splits = [train, data.extra()] if settings.extra else [train]
        self.images = joined([split.of(size).to(self.device) for split in splits])
        self.labels = joined([split.labels.to(self.device) for split in splits])
        self.boxes = joined([split.boxes.to(self.device) for split in splits])
        if settings.extra:
            trained = torch.cat([trained, torch.arange(len(train.labels), len(self.labels))])
        # Which of these are trained on, and which test images are tested on.
        self.train_numbers, self.test_numbers = trained.to(self.device), tested.to(self.device)
        self.test_images = test.of(LOOSE if settings.views > 1 else cell.data.size).to(self.device)
        self.test_labels = test.labels.to(self.device)

    def step(self) -> None:
        """One batch, and the weights moved."""
        places = below(len(self.train_numbers), self.random.uniform(self.settings.batch))
        chosen = self.train_numbers[places]
        pixels, labels, boxes = self.images[chosen], self.labels[chosen], self.boxes[chosen]
        window = None
        if self.settings.swapped:
            pixels, labels = swapped_digits(pixels, labels, boxes, self.settings.swapped, self.random)
        if self.settings.parts:
            pixels, labels, window = some_digits(pixels, labels, boxes, self.settings.parts, self.random)
        images = augmented(pixels, self.cell.data.size, self.settings, self.random, window)
        share = mixup.shares(self.settings.blend, len(labels), self.random)
        images = mixup.blended(images, share)
        if self.mixed:
            images = images.contiguous(memory_format=torch.channels_last)
        with tensor_cores(self.mixed):
            # Without a cache, which would outlive the capture that filled it.
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed, cache_enabled=False):
                scores = self.trained(images, self.random)
            losses = functools.partial(house_numbers.losses, scores.to(torch.float32))
            loss = mixup.mean_loss(losses, labels, share)
            gradients = torch.autograd.grad(loss, self.parameters)
        self.move(gradients)
        with torch.no_grad():
            misread = house_numbers.wrong(scores, labels).to(torch.float32).mean()
            self.sums += torch.stack([loss.detach(), misread])

    def set_rate(self) -> None:
        super().set_rate()
        learn = self.step_number >= self.settings.localiser_start
        self.rates[LOCALISERS].fill_(self.settings.localiser_rate if learn else 0.0)
        if isinstance(self.network.dropout, Tensor):
            self.network.dropout.fill_(self.settings.dropout * self.settings.dropped(self.step_number))

    @torch.no_grad()
    def tested(self, stop: Stop = lambda: False) -> Tested:
        """The network put to the test images, once."""
        parts, random = [], RandomNumbers(VIEWED, device=self.device)
        for numbers in until_stopped(self.test_numbers.split(AT_ONCE), stop):
            with tensor_cores(False):
                parts.append(judged(self.network, self.cell, self.test_images[numbers], random))
        chances, theta = (torch.cat(many) for many in zip(*parts, strict=True))
        misread = int(house_numbers.wrong(chances, self.test_labels[self.test_numbers]).sum())
        return Tested(100 * misread / len(chances), chances.argmax(2), theta, measures(theta))

    def first_images(self, count: int) -> Tensor:
        """The first test images, as the network takes them. [count at most, 3, size, size]"""
        return house_numbers.normalised(
            middle(self.test_images[self.test_numbers[:count]], self.cell.data.size)
        )

    @torch.no_grad()
    def theta(self, images: Tensor) -> Tensor:
        """The present transforms of some images. [N, transformers * 6]"""
        with tensor_cores(False):
            theta: Tensor = self.network.theta(images)
        return theta


def joined(parts: list[Tensor]) -> Tensor:
    """Images or labels of some splits; of one no copy, as crops are read off the disk as they are used."""
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def judged(
    network: house_numbers.Network, cell: Cell, pixels: Tensor, random: RandomNumbers
) -> tuple[Tensor, Tensor]:
    """The chances that a network gives each class at each place of some images, uint8 [N, 3, ...] of its size
    or larger, by as many views as the settings say; and its theta of them as they are.

    [N, 5, 11], [N, transformers * 6]
    """
    settings, size = cell.settings, cell.data.size
    assert isinstance(settings, HouseNumberSettings)
    scores, theta = network(house_numbers.normalised(middle(pixels, size)), return_theta=True)
    chances = scores.softmax(2)
    for _ in range(settings.views - 1):
        view = house_numbers.normalised(moved(pixels, size, settings, random))
        chances = chances + network(view).softmax(2)
    return chances / settings.views, theta


def measures(theta: Tensor) -> dict[str, float]:
    """What the transforms of test images came to; without transformers nothing. [N, transformers * 6]"""
    if not theta.shape[1]:
        return {}
    together = house_numbers.multiplied_out(theta.cpu())
    areas = torch.linalg.det(together[:, :, :2]).abs()
    corners = Affine().box(together[: probes.SHOWN].flatten(1))  # of an image that is 2 wide
    away = (corners - corners.mean(0)).square().sum(2).mean().sqrt()
    return {"looked at": 100 * float(areas.median()), "follows": 50 * float(away)}
