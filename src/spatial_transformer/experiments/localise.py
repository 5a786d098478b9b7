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

from . import networks
from .colocalisation import Objective, box, transformer
from .data.commands import count
from .data.fetch import in_one_step, say
from .data.random_numbers import RandomNumbers
from .display import duration
from .extra import extra
from .interrupts import asked_to_stop
from .training import INTERRUPTED, device_of

SIZE, CROP = 84, 28  # pixels that pictures are resized to, and that a crop has: as in the paper
LEAST = 8  # pictures: of fewer there is nothing to tell what is common from what is not
BATCH, RATE, MOMENTUM = 32, 0.001, 0.9
STEPS = 3000
LAST = 0.3  # of the steps have a tenth of the rate
FILTERS = (16, 32)  # of the random convolutions
SAY_EVERY = 5.0  # seconds
KINDS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif")
LINE = "#ff5a36"


class Picture(NamedTuple):
    """A file, its size in pixels (width, height), and what is trained on."""

    path: Path
    size: tuple[int, int]
    pixels: Tensor  # [3, SIZE, SIZE]


class Pixels(nn.Module):
    """Colours as a vector of length 1. [N, 3, CROP, CROP] -> [N, F]"""

    def forward(self, crops: Tensor) -> Tensor:
        return F.normalize(crops.flatten(1), dim=1)


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


ENCODERS: dict[str, type[nn.Module]] = {"random": RandomConvolutions, "pixels": Pixels}


def add(commands: Any) -> None:
    """Adds ``localise`` to the commands of ``stn``."""
    parser = commands.add_parser(
        "localise",
        help="find the object that the pictures of a folder have in common",
        description="Trains a spatial transformer to put a box on what the pictures of a folder have in "
        "common (section A.2 of the paper): no labels, no boxes, nothing but the pictures. Ctrl-C stops "
        "after the step in hand and writes what there is.",
        epilog="The encoder compares crops. random: convolutions that were never trained, which tell shapes "
        "and colours apart and need no download. pixels: the crops themselves. The digit CNN of the paper's "
        "experiment knows digits only, and is not offered.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help=f"of {LEAST} pictures at least")
    parser.add_argument(
        "--out", type=Path, default=Path("localised"), help="for boxes.json and the pictures (localised)"
    )
    parser.add_argument("--steps", type=count, default=STEPS, help=f"of training ({STEPS:,})")
    parser.add_argument("--seed", type=int, default=0, help="of weights and random patches (0)")
    parser.add_argument(
        "--device", default="auto", help="auto (a GPU if there is one), cpu, cuda, cuda:1 ..."
    )
    parser.add_argument("--encoder", choices=ENCODERS, default="random", help="random (default) or pixels")


def run(given: argparse.Namespace) -> int:
    """Trains, writes boxes and pictures, and gives the exit status."""
    pictures = read(given.folder)
    print(f"{len(pictures)} pictures of {given.folder}, encoder {given.encoder}, {given.steps:,} steps")
    with asked_to_stop() as stop:
        theta, steps = trained(pictures, given, stop)
        interrupted = stop()
    about = {"encoder": given.encoder, "steps": steps, "seed": given.seed}
    write(pictures, theta, about, given.out)
    print(f"{given.out / 'boxes.json'} and {len(pictures)} pictures beside it, after {steps:,} steps")
    return INTERRUPTED if interrupted else 0


def read(folder: Path) -> list[Picture]:
    """The pictures of a folder, by name; an error names what cannot be read."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in KINDS)
    if len(paths) < LEAST:
        raise ValueError(f"{folder} has {len(paths)} pictures ({', '.join(KINDS)}): {LEAST} are the least")
    return [opened(path) for path in paths]


def opened(path: Path) -> Picture:
    image_module = extra("PIL.Image")
    try:
        with image_module.open(path) as file:
            upright = extra("PIL.ImageOps").exif_transpose(file).convert("RGB")
    except (OSError, ValueError, SyntaxError, image_module.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as a picture: {error}") from error
    small = upright.resize((SIZE, SIZE), image_module.Resampling.BOX)
    pixels = torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1).float() / 255
    return Picture(path, upright.size, pixels)


def trained(pictures: list[Picture], given: argparse.Namespace, stop: Any) -> tuple[Tensor, int]:
    """The crop of each picture, and after how many steps. [N, 3]"""
    device = device_of(given.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(given.seed)
        network = transformer(3, SIZE, CROP).to(device)
        encode = ENCODERS[given.encoder]().to(device).requires_grad_(False)
    images = standardised(torch.stack([picture.pixels for picture in pictures])).to(device)
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
        return network.theta(images).cpu(), done


def standardised(images: Tensor) -> Tensor:
    """Of mean 0 and deviation 1 in each channel: pictures are no sparse strokes on black, as digits are."""
    deviation, mean = torch.std_mean(images, dim=(0, 2, 3), keepdim=True)
    return (images - mean) / deviation.clamp(min=1 / 255)


def write(pictures: list[Picture], theta: Tensor, about: dict[str, Any], out: Path) -> None:
    """``boxes.json``, and each picture with its box on it."""
    boxes = {}
    for picture, crop in zip(pictures, theta, strict=True):
        edges = ((box(crop) + 1) / 2 * torch.tensor(picture.size * 2)).tolist()
        boxes[picture.path.name] = {"box": [round(edge, 1) for edge in edges], "theta": crop.tolist()}
        draw(picture, edges, out / f"{picture.path.name}.png")
    content = {**about, "box": "left, top, right, bottom in pixels", "files": boxes}
    with in_one_step(out / "boxes.json") as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())


def draw(picture: Picture, edges: list[float], path: Path) -> None:
    with extra("PIL.Image").open(picture.path) as file:
        page = extra("PIL.ImageOps").exif_transpose(file).convert("RGB")
    wide = max(2, round(max(picture.size) / 150))
    extra("PIL.ImageDraw").Draw(page).rectangle(edges, outline=LINE, width=wide)
    with in_one_step(path) as file:
        page.save(file, format="PNG")
