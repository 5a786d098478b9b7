"""Draws docs/families.png: what each family does to a picture, and what anti-aliasing is for.

python docs/draw_families.py          (needs matplotlib, of the extra `experiments`)
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

import spatial_transformer as st

SIZE = (96, 96)
BLUE, GREY = "#1f5fbf", "#555555"


def glyph(text: str, size: tuple[int, int]) -> Tensor:
    """White text on black. [1, 1, *size]"""
    figure = Figure(figsize=(size[1] / 50, size[0] / 50), dpi=50, facecolor="black")
    canvas = FigureCanvasAgg(figure)
    figure.text(0.5, 0.46, text, color="white", fontsize=96, ha="center", va="center", weight="bold")
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., 0]
    return torch.from_numpy(pixels / 255.0).float()[None, None]


def zone_plate(side: int) -> Tensor:
    """Rings that get finer outwards, up to one pixel. [1, 1, side, side]"""
    along = torch.linspace(-1, 1, side)
    squared = along**2 + along[:, None] ** 2
    return (0.5 + 0.5 * torch.cos(squared * side * torch.pi / 4))[None, None]


def examples() -> list[tuple[str, st.Family, Tensor]]:
    """A name, a family and a theta for each column."""
    spline, pieces = st.ThinPlateSpline((4, 4)), st.PiecewiseAffine((3, 3))
    generator = torch.Generator().manual_seed(4)
    bent = spline.identity() * 0.8 + 0.13 * torch.randn(spline.num_params, generator=generator)
    creased = pieces.identity() * 0.85 + 0.16 * torch.randn(pieces.num_params, generator=generator)
    return [
        ("Attention", st.Attention(), torch.tensor([0.55, 0.1, -0.15])),
        ("Similarity", st.Similarity(), torch.tensor([0.65, 0.4, 0.0, 0.0])),
        ("Affine", st.Affine(), torch.tensor([0.8, 0.45, 0.0, -0.1, 0.75, 0.05])),
        ("Projective", st.Projective(), torch.tensor([0.75, 0.1, 0.05, 0.1, 0.8, 0.0, 0.25, -0.2])),
        ("PiecewiseAffine", pieces, creased),
        ("ThinPlateSpline", spline, bent),
    ]


def show(axes: plt.Axes, image: Tensor, title: str = "") -> None:
    axes.imshow(image[0, 0], cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    axes.set_title(title, fontsize=10, color=GREY)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)


def draw(path: Path) -> None:
    columns = examples()
    figure, table = plt.subplots(2, len(columns) + 2, figsize=(13.2, 3.7), layout="constrained", dpi=110)
    image = glyph("5", SIZE)
    for (name, family, theta), (above, below) in zip(columns, table.T[:-2], strict=True):
        show(above, image, name)
        grid = st.coordinates.to_pixels(family.grid(theta[None], (13, 13), align_corners=True), SIZE)[0]
        for lines in (grid, grid.transpose(0, 1)):
            above.plot(lines[..., 0].T, lines[..., 1].T, color=BLUE, linewidth=0.6, clip_on=False)
        above.set_xlim(-6, SIZE[1] + 5)
        above.set_ylim(SIZE[0] + 5, -6)
        show(below, st.warp(image, theta[None], family, antialias=True))
    table[0, 0].set_ylabel("input and sampling grid", fontsize=9, color=GREY)
    table[1, 0].set_ylabel("output", fontsize=9, color=GREY)

    plate = zone_plate(256)
    identity = st.Affine().identity()[None]
    for antialias, title, pair in (
        (False, "shrunk 5x, plain", table[:, -2]),
        (5, "shrunk, antialias", table[:, -1]),
    ):
        show(pair[0], plate, title)
        show(pair[1], st.warp(plate, identity, st.Affine(), size=(51, 51), antialias=antialias))
    figure.savefig(path, facecolor="white")


if __name__ == "__main__":
    draw(Path(__file__).with_name("families.png"))
