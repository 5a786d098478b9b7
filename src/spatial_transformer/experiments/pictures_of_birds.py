"""Pictures of the birds: where each transformer looks, out of a probe and the birds' own files.

As on the right of the paper's Table 3: the windows on test images, each transformer's in its own colour.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..coordinates import to_pixels
from ..family import Family
from . import pictures, probes
from .data import birds as cub
from .data.bird_views import Photographs, Views, photographs
from .data.birds import Birds
from .extra import extra
from .figures import BETWEEN, LEFT, RIGHT, WRONG, entitle, figure, panel, zoom_out
from .lattices import reach
from .pictures import Base, Trained, of_each_run
from .probes import Probe, ProbeError
from .results import Wanted

PICTURES = ("cases", "curves")

COLOURS = ("#ff3b30", "#34d058", "#35a7ff", "#ffcc00")  # of the transformers; the paper's are red and green
ROWS, COLUMNS = 3, 6
SIDE, TEXT, ABOVE, BELOW = 1.75, 0.42, 0.5, 0.25  # inches
SEEN = 224  # pixels of an image on a picture


class Shown(NamedTuple):
    """Some test images, and what a network made of them."""

    images: Tensor  # uint8 [N, SEEN, SEEN, 3]: as the network gets to see them
    corners: Tensor  # [N, T, 4, 2]: of the windows, from -1 to 1
    boxes: Tensor | None  # [N, 4]: of the birds as (x0, y0, x1, y1), from -1 to 1, where they are known
    captions: list[tuple[str, str]]  # and their colours


def views_of(settings: Mapping[str, Any]) -> Views:
    """What a run with these settings was tested on, as large as it is shown here."""
    return Views(SEEN, share=settings["share"], shape=settings["shape"])


def shown(probe: Probe, path: Path, birds: Birds, views: Views, family: Family) -> Shown:
    """Test images as far apart as the probe has theta of them, so that species differ.

    path: of the probe, for messages.
    """
    given = photographs(birds, "test", "cpu")
    if len(probe.predictions) != len(given) or not 0 < len(probe.theta) <= len(given):
        raise ProbeError(
            f"{path} is no probe of these birds: it has {len(probe.predictions)} predictions and "
            f"{len(probe.theta)} transforms of {len(given)} test images"
        )
    if probe.theta.shape[1] == 0 or probe.theta.shape[1] % family.num_params:
        raise ProbeError(
            f"{path} is no probe of windows of {family.num_params} numbers: theta is {probe.theta.shape}"
        )
    chosen = torch.from_numpy(spread(len(probe.theta)))
    theta = probes.transforms(probe.theta[chosen.numpy()])
    answers = probe.predictions[chosen.numpy()].tolist()
    return Shown(
        as_shown(views, given, chosen),
        corners(family, theta),
        views.windows(given.sizes[chosen]).normalised(given.boxes[chosen]),
        [
            caption(species(birds.classes[label]), species(birds.classes[answer]))
            for label, answer in zip(given.labels[chosen].tolist(), answers, strict=True)
        ],
    )


def as_shown(views: Views, given: Photographs, chosen: Tensor) -> Tensor:
    """Some images as a network gets to see them. uint8 [N, SEEN, SEEN, 3]"""
    return views.middle(given, chosen).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


def corners(family: Family, theta: Tensor) -> Tensor:
    """Of windows whose parameters come one after another. [N, T * P] -> [N, T, 4, 2]"""
    return family.box(theta.unflatten(1, (-1, family.num_params)))


def spread(count: int) -> Any:
    """Numbers below ``count``, as many as there is room for and as far apart as may be. int64"""
    return np.unique(np.linspace(0, count - 1, min(count, ROWS * COLUMNS)).round().astype(np.int64))


def species(name: str) -> str:
    """
    >>> species("001.Black_footed_Albatross")
    'Black footed Albatross'
    >>> species("Heron")
    'Heron'
    """
    return name.rpartition(".")[2].replace("_", " ")


def windows(given: Shown, title: str, footer: str) -> Any:
    """The images with the windows on them, and dashed the bird's box, which no training sees, where it is
    known; below each its caption. Around the images is as much ground as windows that leave them need."""
    made, table = squares(len(given.images))
    half = reach(in_pixels(given.corners), SEEN)
    for number, axes in enumerate(table):
        panel(axes, given.images[number], smooth=True)
        if given.boxes is not None:
            (left, top), (right, bottom) = in_pixels(given.boxes[number].reshape(2, 2)).tolist()
            outline(axes, [(left, top), (right, top), (right, bottom), (left, bottom)], "white", 1.0, "--")
        for window, colour in zip(given.corners[number], COLOURS, strict=False):
            outline(axes, in_pixels(window).tolist(), colour, 2.2, "-")
        zoom_out(axes, SEEN, half)
        text, colour = given.captions[number]
        axes.set_xlabel(text, fontsize=7, color=colour, labelpad=3)
    entitle(made, title, footer)
    return made


def squares(count: int) -> tuple[Any, list[Any]]:
    """A figure, and so many panels in rows with room below each for two lines of text."""
    rows, columns = -(-count // COLUMNS), min(count, COLUMNS)
    width = 2 * LEFT + columns * (SIDE + BETWEEN) - BETWEEN
    height = ABOVE + rows * (SIDE + TEXT) + BELOW
    made = figure(width, height)
    places = [
        (LEFT + at % COLUMNS * (SIDE + BETWEEN), height - ABOVE - at // COLUMNS * (SIDE + TEXT) - SIDE)
        for at in range(count)
    ]
    shares = [(left / width, bottom / height, SIDE / width, SIDE / height) for left, bottom in places]
    return made, [made.add_axes(share) for share in shares]


def in_pixels(points: Tensor) -> Tensor:
    """Points from -1 to 1 as matplotlib counts pixels: from the middle of the first one."""
    return to_pixels(points, (SEEN, SEEN))


def outline(axes: Any, corners: Sequence[Sequence[float]], colour: str, width: float, style: str) -> None:
    polygon = extra("matplotlib.patches").Polygon
    axes.add_patch(
        polygon(corners, closed=True, fill=False, edgecolor=colour, linewidth=width, linestyle=style)
    )


def caption(true: str, predicted: str) -> tuple[str, str]:
    """The true species, and where it was taken for another one that one too; and its colour."""
    return (f"{true} ✓", RIGHT) if true == predicted else (f"{true}\n✗ {predicted}", WRONG)


def cases(one: Trained, birds: Birds, base: Base) -> Any:
    """Test images of many species, with where the transformers of a network look."""
    found = shown(
        one.probe, probes.path_of(one.result.path), birds, views_of(one.result.record.settings), one.family
    )
    title = f"Where the {one.cell.model.name} looks; dashed: the bird's box; ✗: what it took the bird for"
    return windows(found, title, one.footer)


def load(wanted: Wanted, data_dir: Path | None) -> Birds:
    """What test images are of."""
    return cub.load(data_dir)


draw = functools.partial(pictures.draw, of_images=of_each_run("birds", {"cases": cases}), load=load)
