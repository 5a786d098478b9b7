"""One run of one cell: its network, its data, and the step that trains it.

A step draws digits, distorts them, and moves the weights. Nothing in it waits for the device and all its
shapes are fixed, so it can be captured in a CUDA graph. Everything it changes is in ``state``: a run of the
same cell and seed that is loaded with it goes on, bit for bit on the CPU, as if it had never stopped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..localisers import Head
from . import measures, networks
from .arguments import UsageError
from .data.clutter import below
from .data.digits import Digits, DigitSet
from .data.fixed_sets import KINDS, as_images, fixed_batches, fixed_set
from .data.random_numbers import RandomNumbers
from .extra import with_triton
from .fast_networks import fast
from .interrupts import Stop, until_stopped
from .spec import Cell, DigitSettings

STREAM = 1_000_003  # a run's seed times this is that of its numbers: far from the fixed sets'


class State(NamedTuple):
    """All that a run has come to."""

    tensors: dict[str, Tensor]
    numbers: dict[str, int]


class Tested(NamedTuple):
    """What the present weights make of the fixed test set."""

    error: float  # percent
    predictions: Tensor  # int64 [test images]; of answers in several places [test images, places]
    theta: Tensor  # [test images, transformers * family.num_params]; without a transformer [test images, 0]
    measures: dict[str, float]  # what else the experiment asks for


class Resumable:
    """A run whose state is its network, the tensors ``kept`` beside it, and how far it has come."""

    names: Sequence[str] = ()  # of the classes, where they are not digits
    network: Any  # nn.Module
    kept: dict[str, Tensor]
    sums: Tensor  # of losses and of wrong answers, since the last ``means``
    random: RandomNumbers
    step_number: int

    def means(self, steps: int) -> tuple[float, float]:
        """The loss and the error in percent, over so many steps since this was last asked."""
        loss, wrong = (self.sums / steps).tolist()
        self.sums.zero_()
        return loss, 100 * wrong

    def state(self) -> State:
        named = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        return State(
            {name: value.detach().to("cpu", copy=True) for name, value in {**named, **self.kept}.items()},
            {"step": self.step_number, "drawn": self.random.state()},
        )

    def load(self, state: State) -> None:
        """Goes on from a state; in place, so that a captured step does too."""
        tensors = dict(state.tensors)
        with torch.no_grad():
            for name, value in self.kept.items():
                value.copy_(tensors.pop(name))
            self.network.load_state_dict(
                {name.removeprefix("network."): value for name, value in tensors.items()}
            )
        self.random.set_state(state.numbers["drawn"])
        self.step_number = state.numbers["step"]


class Descent(Resumable):
    """A network under stochastic gradient descent with momentum: what such runs have in common.

    build: makes the network, out of torch's random numbers.
    rates: times the learning rate, for parts of the network by how the names of their parameters begin.
    decay: of the weights, but for the biases of ``Head``: a transformer starts at these, and without them it
        would look at a point.
    """

    def __init__(
        self,
        cell: Cell,
        seed: int,
        device: torch.device | str,
        build: Callable[[], nn.Module],
        *,
        rates: Mapping[str, float] | None = None,
        decay: float = 0.0,
    ) -> None:
        self.cell, self.seed, self.device = cell, seed, torch.device(device)
        with torch.random.fork_rng(devices=[]):  # the same weights on every device
            torch.manual_seed(seed)
            self.network = build()
        self.network.to(self.device)
        self.mixed = self.device.type == "cuda" and cell.settings.precision == "mixed"
        self.kernels = with_triton("descent_triton", __package__) if self.mixed else None
        self.parameters = list(self.network.parameters())
        self.weights = joined(self.parameters)
        self.velocity = torch.zeros_like(self.weights)
        self.rates = {part: torch.tensor(rate, device=self.device) for part, rate in (rates or {}).items()}
        self.stretches = stretches(self.network, list(self.rates), decay)
        self.rate = torch.zeros((), device=self.device)
        self.sums = torch.zeros(2, device=self.device)
        self.kept = {"velocity": self.velocity, "sums": self.sums}  # in a state, beside the network
        self.random = RandomNumbers(seed * STREAM, device=self.device)
        self.step_number = 0

    @torch.no_grad()
    def move(self, gradients: Sequence[Tensor]) -> None:
        """The weights, down the gradients of the parameters."""
        gradient, momentum = torch.cat([part.reshape(-1) for part in gradients]), self.cell.settings.momentum
        if self.kernels is not None:
            for stretch, part, decay in self.stretches:
                some = (each[stretch] for each in (self.weights, self.velocity, gradient))
                share = None if part is None else self.rates[part]
                self.kernels.descend(*some, self.rate, share, momentum=momentum, decay=decay)
            return
        for stretch, _, decay in self.stretches:
            if decay:
                gradient[stretch].add_(self.weights[stretch], alpha=decay)
        torch.add(gradient, self.velocity, alpha=momentum, out=self.velocity)
        for stretch, part, _ in self.stretches:
            rate = self.rate if part is None else self.rate * self.rates[part]
            self.weights[stretch].addcmul_(self.velocity[stretch], rate, value=-1)

    def set_rate(self) -> None:
        """The learning rate of the steps that follow; in place, so that a captured step takes it."""
        self.rate.fill_(self.cell.settings.rate(self.step_number))


class Run(Descent):
    """A cell of distorted digits and a seed on a device."""

    def __init__(self, cell: Cell, seed: int, digits: DigitSet, device: torch.device | str) -> None:
        assert isinstance(cell.settings, DigitSettings)
        rate = cell.settings.localiser_rate  # no part of its own, where it is that of the others
        rates = {} if rate == 1 else {"transformer.": rate}
        super().__init__(cell, seed, device, lambda: networks.build(cell), rates=rates)
        self.digits = held_out(digits, cell.settings.held_out)
        self.trained_on = self.digits.name
        self.trained = fast(self.network) if self.mixed else self.network  # of the same parameters
        self.images = as_images(self.digits.train.images, self.device)
        self.labels = self.digits.train.labels.to(self.device)
        self.distortion = KINDS[cell.data.kind](self.images[:, 0])

    def step(self) -> None:
        """One batch, and the weights moved."""
        self.learn(*self.batch())

    def batch(self) -> tuple[Tensor, Tensor]:
        """The next images, distorted, and their labels."""
        settings = self.cell.settings
        chosen = below(len(self.labels), self.random.uniform(settings.batch, self.cell.data.channels))
        drawn = self.distortion.draw(settings.batch, self.random)
        return self.distortion.apply(self.images[:, 0][chosen], drawn), self.labels[chosen].sum(1)

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """The weights moved by a batch."""
        with tensor_cores(self.mixed):
            scores = self.trained(images)
            gradient = self.judged(scores.detach(), labels)
            gradients = torch.autograd.grad(scores, self.parameters, gradient)
        self.move(gradients)

    def judged(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The gradient of the loss by the scores; ``sums`` gets the loss and the share of wrong answers."""
        if self.kernels is not None:
            found: Tensor = self.kernels.judged(scores, labels, self.sums)
            return found
        scores.requires_grad_()
        loss = F.cross_entropy(scores, labels)
        (found,) = torch.autograd.grad(loss, scores)
        with torch.no_grad():
            wrong = (scores.argmax(1) != labels).sum() / len(labels)
            self.sums += torch.stack([loss, wrong])
        return found

    def sees(self) -> tuple[Any, ...]:
        """What the next batches depend on: runs that agree in it see the same ones. Waits for the device."""
        return self.trained_on, self.cell.data.kind, self.cell.settings.batch, self.seed, self.random.state()

    @torch.no_grad()
    def tested(self, stop: Stop = lambda: False) -> Tested:
        """The network put to the fixed test set."""
        count = len(self.digits.test.labels)  # the last batch begins again with the first digits
        parts = []
        batches = fixed_batches(self.cell.data.kind, self.digits, device=self.device)
        for part in until_stopped(batches, stop):
            with tensor_cores(False):
                scores, theta = self.network.scores_and_theta(part.images)
            # Where digits lie, as far as the distortion says it.
            truth = [part.drawn.numbers.get(name, theta[:, :0]) for name in measures.TRUTH]
            parts.append((scores.argmax(1), part.labels, theta, *truth))
        predictions, labels, thetas, *truth = (torch.cat(many)[:count] for many in zip(*parts, strict=True))
        error = 100 * int((predictions != labels).sum()) / count
        known = dict(zip(measures.TRUTH, truth, strict=True))
        return Tested(error, predictions, thetas, measures.of(self.cell, thetas, known))

    def first_images(self, count: int) -> Tensor:
        """The first images of the fixed test set. [count at most, channels, *size]"""
        return fixed_set(self.cell.data.kind, self.digits, count=count, device=self.device).images

    @torch.no_grad()
    def theta(self, images: Tensor) -> Tensor:
        """The present transforms of some images. [N, transformers * family.num_params]"""
        with tensor_cores(False):
            theta: Tensor = self.network.theta(images)
        return theta


@contextmanager
def tensor_cores(wanted: bool) -> Iterator[None]:
    """Whether products and convolutions of float32 on a GPU round their operands (TF32) meanwhile."""
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = wanted
        yield
    finally:
        for switch, was in zip(switches, before, strict=True):
            switch.allow_tf32 = was


def joined(parameters: list[Any]) -> Tensor:
    """The parameters laid out one behind another in one tensor, which they become parts of: an update is then
    three launches, however many they are."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    start = 0
    for parameter in parameters:
        parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return flat


class Stretch(NamedTuple):
    """Of parameters laid out one behind another, what is moved alike."""

    of: slice
    part: str | None  # of the network, by how the names of its parameters begin; None: of none
    decay: float


def stretches(network: nn.Module, parts: Sequence[str], decay: float = 0.0) -> list[Stretch]:
    """The parameters, cut where another part of the network begins, and about those that do not decay.

    >>> stretches(nn.Sequential(nn.Linear(2, 1), nn.PReLU(), nn.Linear(1, 1)), ["2."])
    [Stretch(of=slice(0, 4, None), part=None, decay=0.0), Stretch(of=slice(4, 6, None), part='2.', decay=0.0)]
    """
    spared = {f"{name}.bias" for name, module in network.named_modules() if isinstance(module, Head)}

    def alike(named: tuple[str, Tensor]) -> tuple[str | None, float]:
        name, _ = named
        part = next((part for part in parts if name.startswith(part)), None)
        return part, 0.0 if name in spared else decay

    found, start = [], 0
    for (part, its_decay), some in itertools.groupby(network.named_parameters(), key=alike):
        end = start + sum(parameter.numel() for _, parameter in some)
        found.append(Stretch(slice(start, end), part, its_decay))
        start = end
    return found


def held_out(digits: DigitSet, count: int) -> DigitSet:
    """The last ``count`` training digits in the place of the test digits; as it is for 0."""
    if count == 0:
        return digits
    train = digits.train
    if count >= len(train.labels):
        raise UsageError(
            f"held_out must be less than the {len(train.labels):,} training digits, got {count:,}"
        )
    kept, tested = (
        Digits(train.images[part], train.labels[part]) for part in (slice(-count), slice(-count, None))
    )
    return DigitSet(f"{digits.name}, {count:,} held out", kept, tested)
