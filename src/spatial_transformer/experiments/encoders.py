"""e() of section A.2: a digit CNN's two hidden layers and its scores, joined.

The CNN is trained once for all cells, on crops of digits among clutter, and kept beside their checkpoints.
Crops lie about the digit: an encoder of undistorted digits alone takes those that have it in a corner for
anything, and there is no way from them to the digit. Some lie anywhere, and have a class of their own where
they have no digit: otherwise the feet of all 2s may be as alike as the 2s are, and crops end there.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..families import Attention
from ..sampling import warp
from . import checkpoints, networks
from .checkpoints import Checkpoint, CheckpointError
from .data.clutter import below
from .data.digits import DigitSet
from .data.distortions import DIGIT
from .data.fetch import Say, say
from .data.fixed_sets import KINDS, as_images
from .data.random_numbers import RandomNumbers, either_way
from .extra import extra
from .interrupts import Stop, Stopped
from .runs import Resumable
from .spec import CLASSES

STEPS, BATCH, RATE, MOMENTUM = 1200, 128, 0.02, 0.9
LAST = 0.3  # of the steps have a tenth of the rate
SEED = 0
KIND = "TC84"  # of the images that crops are of
SCALES = 0.27, 0.42  # of crops, with 1/3 for the digit's frame
OFF = 0.3  # how far beside the digit their centre may be, in halves of their width
ANYWHERE = 1 / 3  # of them lie anywhere in the image
NONE, FAR = CLASSES, 0.6  # the class of those whose centre is that far from the digit's, or further
UNASKED = -100  # the class of the others among them, which ``F.cross_entropy`` leaves out
SAVE_EVERY = 30.0  # seconds between checkpoints, as of cells
LOOK_EVERY = 0.5  # seconds between looks whether to stop, while another process trains the encoder


class DigitEncoder(nn.Module):
    """[N, 1, 28, 28] -> [N, F]: each layer's activations, as a vector of length 1.

    As they are, the squared distances between two digits of a class are in the thousands, and a margin of 1
    is nothing beside them: crops of nothing at all then lose less than the true boxes do.
    """

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.network = networks.Network(None, classifier(filters))

    def forward(self, crops: Tensor) -> Tensor:
        layers = []
        activations = (crops - networks.MEAN) / networks.DEVIATION
        for layer in self.network.classifier.children():
            activations = layer(activations)
            if isinstance(layer, (nn.MaxPool2d, nn.Linear)):
                layers.append(F.normalize(activations.flatten(1), dim=1))
        return torch.cat(layers, dim=1)


def classifier(filters: int) -> nn.Sequential:
    """Of the digits, and of what is none."""
    return networks.convolutional(DIGIT, filters, classes=CLASSES + 1)


def encoder(
    digits: DigitSet,
    filters: int,
    folder: Path,
    device: torch.device,
    say: Say = say,
    stop: Stop = lambda: False,
) -> DigitEncoder:
    """The encoder, from ``folder`` or trained by the first process that gets here. Its weights are fixed.

    stop: asked between steps; what was learnt until then is kept, and ``Stopped`` raised. It is also kept
    from time to time, for who is ended unasked.
    """
    identity = {
        "digits": digits.name, "filters": filters, "steps": STEPS, "batch": BATCH, "rate": RATE,
        "momentum": MOMENTUM, "last": LAST, "seed": SEED, "kind": KIND, "scales": SCALES, "off": OFF,
        "anywhere": ANYWHERE, "far": FAR,
    }  # fmt: skip
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    path = folder / f"encoder-{key}.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        made = DigitEncoder(filters).to(device)
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder / f".{path.name}.lock", stop):
        if not path.exists():
            unfinished = path.with_suffix(".checkpoint.safetensors")
            lessons = Lessons(made.network, digits, device)
            if unfinished.exists():
                lessons.go_on(unfinished)
            left = f"{STEPS - lessons.step_number:,} of {STEPS:,} steps"
            say(f"training the encoder, a CNN on {digits.name} among clutter ({left})")

            def keep() -> None:
                checkpoints.save(Checkpoint(lessons.state(), 0.0, [], [], [], identity), unfinished)

            if not lessons.finished(stop, keep):
                keep()
                raise Stopped
            checkpoints.save_weights(made.network.state_dict(), path)
            unfinished.unlink(missing_ok=True)
    try:
        made.network.load_state_dict(extra("safetensors.torch").load_file(path))
    except (OSError, RuntimeError, extra("safetensors").SafetensorError) as error:
        raise CheckpointError(f"{path} is no encoder: {error}: remove it to train another") from error
    return made.requires_grad_(False)


@contextmanager
def alone(path: Path, stop: Stop) -> Iterator[None]:
    """A lock that is waited for until someone says stop."""
    filelock = extra("filelock")
    lock = filelock.FileLock(path)
    while not lock.is_locked:
        try:
            lock.acquire(timeout=LOOK_EVERY)
        except filelock.Timeout:
            if stop():
                raise Stopped from None
    try:
        yield
    finally:
        lock.release()


class Lessons(Resumable):
    """The training of a digit classifier, by SGD with momentum."""

    def __init__(self, network: nn.Module, digits: DigitSet, device: torch.device) -> None:
        self.network = network
        self.images, self.labels = as_images(digits.train.images, device), digits.train.labels.to(device)
        self.distortion = KINDS[KIND](self.images[:, 0])
        self.random = RandomNumbers(SEED, device=device)
        self.optimiser = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
        self.kept = {}
        for name, parameter in network.named_parameters():
            self.kept[f"velocity.{name}"] = velocity = torch.zeros_like(parameter)
            self.optimiser.state[parameter]["momentum_buffer"] = velocity
        self.step_number = 0

    def go_on(self, path: Path) -> None:
        try:
            self.load(checkpoints.load(path).state)
        except (KeyError, RuntimeError) as error:  # by other code
            raise CheckpointError(f"{path} does not fit ({error}): remove it to begin anew") from error

    def finished(self, stop: Stop = lambda: False, keep: Callable[[], None] = lambda: None) -> bool:
        """Takes the steps that are left; whether it came to the last, and nobody said stop before.

        keep: called every ``SAVE_EVERY`` seconds.
        """
        kept = time.monotonic()
        while self.step_number < STEPS:
            if stop():
                return False
            self.step()
            if time.monotonic() - kept > SAVE_EVERY:
                keep()
                kept = time.monotonic()
        return True

    def step(self) -> None:
        late = self.step_number >= round((1 - LAST) * STEPS)
        self.optimiser.param_groups[0]["lr"] = RATE / 10 if late else RATE
        chosen = below(len(self.labels), self.random.uniform(BATCH))
        drawn = self.distortion.draw(BATCH, self.random)
        places, answers = asked(self.labels[chosen], drawn.numbers["box"], self.random)
        images = self.distortion.apply(self.images[chosen], drawn)
        crops = warp(images, places, Attention(), size=(DIGIT, DIGIT))
        loss = F.cross_entropy(self.network(crops), answers, ignore_index=UNASKED)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.step_number += 1


def asked(labels: Tensor, box: Tensor, random: RandomNumbers) -> tuple[Tensor, Tensor]:
    """Crops, some anywhere and most about their digit, and their classes. [N], [N, 4] -> [N, 3], [N]"""
    places = about(box, random)
    some = round(ANYWHERE * len(box))
    moved = anywhere(places[:some, :1], random)
    off = (moved[:, 1:] - middle(box[:some])).abs().amax(1) / moved[:, 0]
    of_moved = torch.where(off >= FAR, NONE, UNASKED)
    return torch.cat([moved, places[some:]]), torch.cat([of_moved, labels[some:]])


def about(box: Tensor, random: RandomNumbers) -> Tensor:
    """Crops that lie about digits: their scales evenly spread as logarithms. [N, 4] -> [N, 3]"""
    uniform = random.uniform(len(box), 3)
    least, most = SCALES
    scale = least * (most / least) ** uniform[:, :1]
    return torch.cat([scale, middle(box) + (2 * uniform[:, 1:] - 1) * OFF * scale], dim=1)


def anywhere(scale: Tensor, random: RandomNumbers) -> Tensor:
    """Crops of these scales at random places within the image. [..., 1] -> [..., 3]"""
    place = either_way(random, *scale.shape[:-1], 2)
    return torch.cat([scale, place * (1 - scale)], dim=-1)


def middle(box: Tensor) -> Tensor:
    """[N, 4] -> [N, 2]"""
    return (box[:, :2] + box[:, 2:]) / 2
