"""``stn localise FOLDER``: the co-localisation of section A.2 on pictures of one's own."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..families import Attention
from ..sampling import warp
from . import networks
from .arguments import UsageError, count, folder_to_write
from .colocalisation import Objective, box, transformer
from .data.fetch import in_one_step, say
from .data.random_numbers import RandomNumbers
from .durations import duration
from .encoders import anywhere
from .extra import extra
from .interrupts import asked_to_stop
from .own_pictures import in_colour
from .statuses import INTERRUPTED
from .tasks import AUTO
from .training import device_of

SIZE, CROP = 84, 28  # pixels that pictures are resized to, and that a crop has: as in the paper
SCALES = 0.2, 0.6  # of a crop, of the picture
LEAST = 8  # pictures: of fewer there is nothing to tell what is common from what is not
BATCH, RATE, MOMENTUM = 100, 0.001, 0.9
STEPS = 600
LAST = 0.3  # of the steps have a tenth of the rate
COARSE = 4  # parts of a crop along each axis, of which colours are compared
FILTERS = (16, 32)  # of the random convolutions
WIDER, AROUND = 2.0, 56  # how many crops wide is what is looked at around them, and its pixels
DISTINCT = 0.1  # of the most that the mean differs from the background by, squared: less is background
OUTERMOST = 0.02  # of what is distinct, at each side, is left out
PATCHES = 32  # random ones of a picture, that its crop is held against in the end
COMMON = 95.0  # percent: between a dozen pictures or more with and without an object in common
SAY_EVERY = 5.0  # seconds
KINDS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif")
LINE = "#ff5a36"


class Picture(NamedTuple):
    """A file, its size in pixels (width, height), and what is trained on."""

    path: Path
    size: tuple[int, int]
    pixels: Tensor  # [3, SIZE, SIZE]


class Found(NamedTuple):
    """What training ends with."""

    boxes: Tensor  # (x0, y0, x1, y1), normalised [N, 4]
    steps: int
    alike: float  # percent: how often two crops are more alike than a crop and a random patch of its picture
    by_chance: float  # the same of crops at random places

    @property
    def words(self) -> str:
        compared = (
            f"crops of two pictures are more alike than a crop and a random patch of its picture in "
            f"{self.alike:.0f} % of comparisons ({self.by_chance:.0f} % at random places)"
        )
        doubt = "the pictures may have nothing in common that this encoder sees, or more steps are needed"
        return compared if self.alike >= COMMON else f"{compared}: {doubt}"


class Pixels(nn.Module):
    """The mean colours of a crop's parts, as a vector of length 1. [N, 3, CROP, CROP] -> [N, F]

    Pixel by pixel, crops that have the object a little beside one another are as far apart as any two, and
    among other things, or on grass and sky, there is no way from them to the object.
    """

    def forward(self, crops: Tensor) -> Tensor:
        return F.normalize(F.adaptive_avg_pool2d(crops, COARSE).flatten(1), dim=1)


class RandomConvolutions(nn.Module):
    """Convolutions that nobody trained: edges and blobs of any direction, pooled. [N, 3, ...] -> [N, F]

    Each layer is a vector of length 1, as in ``encoders.DigitEncoder``.
    """

    def __init__(self) -> None:
        super().__init__()
        first, second = FILTERS
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(before, after, 5), nn.ReLU(), nn.MaxPool2d(2))
            for before, after in ((3, first), (first, second))
        )
        networks.orthogonal(self)

    def forward(self, crops: Tensor) -> Tensor:
        activations, found = crops, []
        for layer in self.layers:
            activations = layer(activations)
            found.append(F.normalize(activations.flatten(1), dim=1))
        return torch.cat(found, dim=1)


ENCODERS: dict[str, type[nn.Module]] = {"pixels": Pixels, "random": RandomConvolutions}


def add(commands: Any) -> None:
    """Adds ``localise`` to the commands of ``stn``."""
    parser = commands.add_parser(
        "localise",
        help="find the object that the pictures of a folder have in common",
        description="Trains a spatial transformer to put a box on what the pictures of a folder have in "
        "common (section A.2 of the paper): no labels, no boxes, nothing but the pictures. Ctrl-C stops "
        "after the step in hand and writes what there is.",
        epilog="The object should be in every picture, once, upright, much the same size (a fifth to three "
        "fifths of the picture's width) and much the same look; where it lies should vary. The encoder "
        "compares crops. pixels: by their colours, in 4 x 4 parts. random: by convolutions that were never "
        "trained. Neither knows what a cat is: cats of many colours in many poses are not found.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help=f"of {LEAST} pictures at least")
    parser.add_argument(
        "--out", type=folder_to_write, default="localised", help="for boxes.json and the pictures (localised)"
    )
    parser.add_argument("--steps", type=count, default=STEPS, help=f"of training ({STEPS:,})")
    parser.add_argument("--seed", type=int, default=0, help="of weights and random patches (0)")
    parser.add_argument("--device", default=AUTO, help="auto (a GPU if there is one), cpu, cuda, cuda:1 ...")
    parser.add_argument("--encoder", choices=ENCODERS, default="pixels", help="pixels (default) or random")


def run(given: argparse.Namespace) -> int:
    """Trains, writes boxes and pictures, and gives the exit status."""
    pictures = read(given.folder)
    check_out(given.out, given.folder)
    print(f"{len(pictures)} pictures of {given.folder}, encoder {given.encoder}, {given.steps:,} steps")
    with asked_to_stop() as stop:
        found = trained(pictures, given, stop)
        interrupted = stop()
    about = {
        "encoder": given.encoder,
        "steps": found.steps,
        "seed": given.seed,
        "alike": round(found.alike, 1),
        "alike by chance": round(found.by_chance, 1),
    }
    write(pictures, found.boxes, about, given.out)
    print(f"{given.out / 'boxes.json'} and {len(pictures)} pictures beside it, after {found.steps:,} steps")
    print(found.words)
    return INTERRUPTED if interrupted else 0


def check_out(out: Path, folder: Path) -> None:
    """Before anything is trained."""
    if out.resolve() == folder.resolve():
        raise UsageError(
            f"--out must be another folder than {folder}: pictures with boxes would be read as given"
        )


def read(folder: Path) -> list[Picture]:
    """The pictures of a folder, by name; an error names what cannot be read."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder")
    paths = sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in KINDS and not path.name.startswith(".") and not path.is_dir()
    )
    if len(paths) < LEAST:
        raise ValueError(f"{folder} has {len(paths)} pictures ({', '.join(KINDS)}): {LEAST} are the least")
    found, unreadable = [], []
    for path in paths:
        try:
            found.append(opened(path))
        except ValueError as error:
            unreadable.append(str(error))
    if unreadable:
        raise ValueError("\n".join(unreadable))
    return found


def opened(path: Path) -> Picture:
    upright = in_colour(path)
    small = upright.resize((SIZE, SIZE), extra("PIL.Image").Resampling.BOX)
    pixels = torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1).float() / 255
    return Picture(path, upright.size, pixels)


def trained(pictures: list[Picture], given: argparse.Namespace, stop: Any) -> Found:
    """The box of each picture, and whether there is anything in them."""
    device = device_of(given.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(given.seed)
        images = standardised(torch.stack([picture.pixels for picture in pictures]))
        network = transformer(images, CROP, SCALES).to(device)
        encode = ENCODERS[given.encoder]().to(device).requires_grad_(False)
    images = images.to(device)
    random = RandomNumbers(given.seed, device=device)
    batch = min(BATCH, len(pictures))
    objective = Objective(images, network, encode, random, batch=batch, momentum=MOMENTUM)
    begin = last = time.monotonic()
    done = 0
    while done < given.steps and not stop():
        objective.rate.fill_(RATE if done < (1 - LAST) * given.steps else RATE / 10)
        loss, _, _ = objective.step()
        done += 1
        if time.monotonic() - last > SAY_EVERY:
            last = time.monotonic()
            left = (last - begin) / done * (given.steps - done)
            say(f"step {done:,} of {given.steps:,}, loss {float(loss):.3f}, {duration(left)} left")
    with torch.no_grad():
        theta = network.theta(images)
        shares = [alike(images, crops, encode, random) for crops in (theta, anywhere(theta[:, :1], random))]
    return Found(tightened(images.cpu(), theta.cpu()), done, *shares)


def alike(images: Tensor, theta: Tensor, encode: nn.Module, random: RandomNumbers) -> float:
    """How often crops of two pictures are more alike than the first one and a random patch of its picture, of
    all pairs and some patches, in percent.

    The loss without its margin: crops of what all pictures have in common nearly always are. Of pictures that
    have nothing in common they end up where they suit one another best, which is not much.
    """

    def encoded(places: Tensor) -> Tensor:
        found: Tensor = encode(warp(images, places, Attention(), size=(CROP, CROP)))
        return found

    crops = encoded(theta)
    # Exact, so that pictures in one colour tie.
    between = torch.cdist(crops, crops, compute_mode="donot_use_mm_for_euclid_dist")
    between.fill_diagonal_(torch.inf)  # a crop is no pair with itself
    won = 0
    for _ in range(PATCHES):
        away = (crops - encoded(anywhere(theta[:, :1], random))).norm(dim=1)
        won += int((between < away[:, None]).sum())
    return 100 * won / (PATCHES * len(crops) * (len(crops) - 1))


def tightened(images: Tensor, theta: Tensor) -> Tensor:
    """Boxes about what the crops have in common, (x0, y0, x1, y1), normalised. [N, 3] -> [N, 4]

    Crops agree up to where in them the object lies, and how large: nothing but the habits of an encoder says
    that it fills them. So the mean of the pictures around their crops is looked at: what is common stands
    out in it from the background, and where it does so is one box within all crops.
    """
    wider = torch.cat([theta[:, :1] * WIDER, theta[:, 1:]], dim=1)
    mean = warp(images, wider, Attention(), size=(AROUND, AROUND)).mean(0)  # [3, AROUND, AROUND]
    distinct = (mean - mean.flatten(1).median(1).values[:, None, None]).square().sum(0)
    if not distinct.any():  # pictures in one colour
        return box(theta)
    distinct = distinct * (distinct > DISTINCT * distinct.max())
    edges = [within(distinct.sum(axis)) * WIDER for axis in (0, 1)]  # along x, and along y
    low, high = torch.stack(edges, dim=1)
    scale, centre = theta[:, :1], theta[:, 1:]
    return torch.cat([centre + scale * low, centre + scale * high], dim=1).clamp(-1, 1)


def within(profile: Tensor) -> Tensor:
    """From where to where a profile over [-1, 1] has all but the outermost of its sum. [P] -> [2]"""
    share = F.pad(profile.cumsum(0) / profile.sum(), (1, 0))
    first = int((share <= OUTERMOST).sum()) - 1
    last = int((share < 1 - OUTERMOST).sum())
    return torch.tensor([first, last]) * 2 / len(profile) - 1


def standardised(images: Tensor) -> Tensor:
    """Of mean 0 and deviation 1 in each channel: pictures are no sparse strokes on black, as digits are."""
    deviation, mean = torch.std_mean(images, dim=(0, 2, 3), keepdim=True)
    return (images - mean) / deviation.clamp(min=1 / 255)


def write(pictures: list[Picture], boxes: Tensor, about: dict[str, Any], out: Path) -> None:
    """``boxes.json``, and each picture with its box on it."""
    files = {}
    for picture, each in zip(pictures, boxes, strict=True):
        edges = ((each + 1) / 2 * torch.tensor(picture.size * 2)).tolist()
        files[picture.path.name] = [round(edge, 1) for edge in edges]
        draw(picture, edges, out / f"{picture.path.name}.png")
    content = {**about, "box": "left, top, right, bottom in pixels", "files": files}
    with in_one_step(out / "boxes.json") as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())


def draw(picture: Picture, edges: list[float], path: Path) -> None:
    page = in_colour(picture.path)
    wide = max(2, round(max(picture.size) / 150))
    extra("PIL.ImageDraw").Draw(page).rectangle(edges, outline=LINE, width=wide)
    with in_one_step(path) as file:
        page.save(file, format="PNG")
