"""One run of the birds experiment (sections 4.3 and A.6): a pretrained network fine-tuned on species alone.

It has the interface of ``runs.Run``, and what is said there of steps and states holds here too. The schedule
lies on the device, step by step, so that a captured step finds its own learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..localisers import Head
from . import measures_of_birds
from .data.bird_views import SHARE, Photographs, Views, held_out, photographs
from .data.birds import Birds
from .data.random_numbers import RandomNumbers
from .efficientnet_lite import SCALES, Features
from .fine_grained import FAMILIES, LOCALISER_RATE, SIDE, FineGrained
from .networks import parameters
from .runs import STREAM, State, Tested, joined, tensor_cores
from .spec import PRECISIONS

SCHEDULES = ("cosine", "stages")
NORMS = ("updated", "frozen")
LAYOUTS = {"channels last": torch.channels_last, "contiguous": torch.contiguous_format}
DROPS = (1 / 3, 2 / 3, 5 / 6)  # of "10k, 20k, and 25k iterations" of 30k, each by a factor of 10
TESTED_AT_ONCE = 64  # images


@dataclass(frozen=True)
class Settings:
    """How a network is trained and tested."""

    steps: int = 6000
    batch: int = 64
    learning_rate: float = 0.01  # of the backbones that describe
    schedule: str = "cosine"  # down to 0; "stages": A.6's three drops by ten
    warm_up: float = 0.05  # share of the steps during which the rate rises to where the schedule has it
    classifier_rate: float = 5.0  # times the learning rate: it alone starts at random
    localiser_rate: float = LOCALISER_RATE  # times the learning rate
    momentum: float = 0.9
    decay: float = 1e-5  # of weights
    dropout: float = 0.4
    smoothing: float = 0.1  # of labels
    norms: str = "updated"  # statistics of the batch, and running ones kept up; "frozen": ImageNet's
    following: float = 0.1  # share of a batch's statistics in the running ones
    backbone: str = "efficientnet-lite2"
    family: str = "window"  # of the crops
    augmentation: str = "resized"  # as all down to ``shape``: of ``data.bird_views.Views``
    least: float = 0.65
    aspect: float = 4 / 3
    colour: float = 0.0
    share: float = SHARE
    shape: str = "square"
    views: int = 1  # that a test image is judged by: 2 are the image and its mirror image
    held_out: float = 0.0  # share of each species' training images, tested on in the place of the test images
    curve: int = 100  # points of the curve
    precision: str = "mixed"  # on a GPU bfloat16 where autocast has it; "float32": as on the CPU
    layout: str = "channels last"  # of images and of all that is made of them

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "curve"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "classifier_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number more than 0, got {getattr(self, name)}")
        for name in ("localiser_rate", "decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number of at least 0, got {getattr(self, name)}")
        if not 0 < self.following <= 1:
            raise ValueError(f"following must be more than 0 and at most 1, got {self.following}")
        for name in ("warm_up", "momentum", "dropout", "smoothing", "held_out"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and less than 1, got {getattr(self, name)}")
        choices = {
            "schedule": SCHEDULES,
            "norms": NORMS,
            "backbone": SCALES,
            "family": FAMILIES,
            "precision": PRECISIONS,
            "layout": LAYOUTS,
            "views": (1, 2),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(str, known))}, got {getattr(self, name)!r}"
                )
        self.views_of(SIDE)  # says what is wrong with the others

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        done = step / self.steps
        rising = min(1.0, (step + 1) / (self.warm_up * self.steps)) if self.warm_up else 1.0
        if self.schedule == "stages":
            return rising * self.learning_rate / 10 ** sum(done >= drop for drop in DROPS)
        return rising * self.learning_rate * (1 + math.cos(math.pi * done)) / 2

    def views_of(self, size: int) -> Views:
        return Views(size, self.augmentation, self.least, self.aspect, self.colour, self.share, self.shape)


class FineGrainedRun:
    """A network, its settings and a seed on a device.

    Parameters
    ----------
    crops, size, side: as in ``FineGrained``.
    birds: all of them; where they are on the device already, runs share their pixels.
    backbone: pretrained; it is copied.
    """

    def __init__(
        self,
        settings: Settings,
        seed: int,
        birds: Birds,
        backbone: Features,
        device: torch.device | str,
        *,
        crops: int = 0,
        size: int = SIDE,
        side: int = SIDE,
    ) -> None:
        self.settings, self.seed, self.device = settings, seed, torch.device(device)
        chosen = held_out(birds, settings.held_out)
        self.train, self.test = (photographs(chosen, split, device) for split in ("train", "test"))
        if settings.batch > len(self.train):
            raise ValueError(
                f"batch must be at most the {len(self.train):,} training images, got {settings.batch}"
            )
        self.views = settings.views_of(size)
        with torch.random.fork_rng(devices=[]):  # the same weights on every device
            torch.manual_seed(seed)
            self.network = FineGrained(
                backbone,
                crops=crops,
                size=size,
                side=side,
                family=FAMILIES[settings.family],
                classes=len(birds.classes),
                dropout=settings.dropout,
            )
        for norm in self.norms():
            norm.momentum = settings.following
        self.network.to(self.device)
        self.learn()
        self.mixed = self.device.type == "cuda" and settings.precision == "mixed"
        self.parameters = list(self.network.parameters())
        self.weights = joined(self.parameters)
        self.velocity = torch.zeros_like(self.weights)
        self.paces = list(self.parts())
        self.start = start_of(self.network)
        self.rates = torch.tensor([settings.rate(step) for step in range(settings.steps)], device=self.device)
        self.at = torch.zeros(1, dtype=torch.int64, device=self.device)  # which of them is next
        # Of losses and of wrong answers, since the last ``means``.
        self.sums = torch.zeros(2, device=self.device)
        self.random = RandomNumbers(seed * STREAM, device=self.device)
        # Every image once before any is shown again: their order, and where the next batch begins in it.
        self.order = torch.zeros(len(self.train), dtype=torch.int64, device=self.device)
        self.place = torch.full((1,), len(self.train), device=self.device)
        self.step_number = 0

    def parts(self) -> Iterator[tuple[slice, float]]:
        """The parts of the weights, and how many times the learning rate each moves at."""
        network, settings, start = self.network, self.settings, 0
        for part, pace in (
            (network.transformer, settings.localiser_rate),
            (network.streams, 1.0),
            (network.classifier, settings.classifier_rate),
        ):
            end = start + (0 if part is None else parameters(part))
            yield slice(start, end), pace
            start = end

    def norms(self) -> Iterator[nn.BatchNorm2d]:
        return (module for module in self.network.modules() if isinstance(module, nn.BatchNorm2d))

    def learn(self) -> None:
        """As it is trained; norms that are frozen keep to the statistics they have."""
        self.network.train()
        if self.settings.norms == "frozen":
            for norm in self.norms():
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
        images = self.laid_out(self.views.drawn(self.train, chosen, self.random))
        with tensor_cores(self.mixed):
            # Casts are not kept: they would be a captured step's own memory.
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed, cache_enabled=False):
                scores = self.network(images, self.random)
                loss = F.cross_entropy(scores, labels, label_smoothing=self.settings.smoothing)
            gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            self.move(torch.cat([part.reshape(-1) for part in gradients]))
            wrong = (scores.argmax(1) != labels).sum() / len(labels)
            self.sums += torch.stack([loss.detach(), wrong])

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

    def move(self, gradient: Tensor) -> None:
        """A step of SGD, in place."""
        rate = self.rates.index_select(0, self.at.clamp(max=len(self.rates) - 1))
        gradient.add_(self.weights, alpha=self.settings.decay)
        torch.add(gradient, self.velocity, alpha=self.settings.momentum, out=self.velocity)
        for part, pace in self.paces:
            self.weights[part].addcmul_(self.velocity[part], rate, value=-pace)
        self.at += 1

    def laid_out(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=LAYOUTS[self.settings.layout])

    def means(self, steps: int) -> tuple[float, float]:
        """The loss and the error in percent, over so many steps since this was last asked."""
        loss, wrong = (self.sums / steps).tolist()
        self.sums.zero_()
        return loss, 100 * wrong

    def set_rate(self) -> None:
        """Where in the schedule the steps that follow begin; in place, so that a captured step takes it."""
        self.at.fill_(self.step_number)

    def tested(self) -> Tested:
        """The network put to the test images."""
        parts = []
        with self.answering():
            for chosen in torch.arange(len(self.test), device=self.device).split(TESTED_AT_ONCE):
                scores, theta = self.network.scores_and_theta(self.seen(self.test, chosen))
                if self.settings.views == 2:
                    other = self.network(self.seen(self.test, chosen, mirrored=True))
                    scores = scores.softmax(1) + other.softmax(1)
                parts.append((scores.argmax(1), theta))
        predictions, theta = (torch.cat(many) for many in zip(*parts, strict=True))
        error = 100 * int((predictions != self.test.labels).sum()) / len(self.test)
        return Tested(error, predictions, theta, self.measures(theta))

    def measures(self, theta: Tensor) -> dict[str, float]:
        """What the windows of the test images came to; without windows nothing."""
        if self.start is None:
            return {}
        boxes = self.views.windows(self.test.sizes).normalised(self.test.boxes)
        each = theta.reshape(-1, *self.start.shape)
        return measures_of_birds.of(FAMILIES[self.settings.family], each, self.start, boxes)

    def seen(self, given: Photographs, chosen: Tensor, *, mirrored: bool = False) -> Tensor:
        return self.laid_out(self.views.middle(given, chosen, mirrored=mirrored))

    def first_images(self, count: int) -> Tensor:
        """The first test images, as the network gets to see them. [count at most, 3, size, size]"""
        return self.seen(self.test, torch.arange(min(count, len(self.test)), device=self.device))

    def theta(self, images: Tensor) -> Tensor:
        """The present crops of some images. [N, crops * family.num_params]"""
        with self.answering():
            return self.network.theta(images)

    def state(self) -> State:
        named = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        own = {name: getattr(self, name) for name in OWN}
        return State(
            {name: value.detach().cpu().clone() for name, value in {**named, **own}.items()},
            {"step": self.step_number, "drawn": self.random.state()},
        )

    def load(self, state: State) -> None:
        """Goes on from a state; in place, so that a captured step does too."""
        tensors = dict(state.tensors)
        with torch.no_grad():
            for name in OWN:
                getattr(self, name).copy_(tensors.pop(name))
            self.network.load_state_dict(
                {name.removeprefix("network."): value for name, value in tensors.items()}
            )
        self.random.set_state(state.numbers["drawn"])
        self.step_number = state.numbers["step"]
        self.set_rate()


OWN = ("velocity", "sums", "order", "place")  # what a state has beside the network


def start_of(network: FineGrained) -> Tensor | None:
    """Theta of a fresh network, the same for every image: of its last layer only the bias is not zero.
    [crops, P]; None without crops"""
    if network.transformer is None:
        return None
    head = network.transformer.head
    assert isinstance(head, Head)
    return head.bias.detach().clone().reshape(head.copies, head.num_params)
