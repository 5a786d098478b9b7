"""Pictures of what trained networks do, out of their records and probes: ``stn draw``.

The images are those of the fixed test set, drawn again; grids and outputs come from the thetas that a probe
keeps. Each picture is made by one function and saved by another, so that what is on it can be asked for.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..coordinates import to_pixels
from ..families import Family
from ..sampling import warp
from . import probes
from .data import mnist, uci_digits
from .data.digits import DigitSet
from .data.fetch import Say, in_one_step, say
from .data.fixed_sets import FixedSet, as_images, fixed_set
from .extra import extra
from .networks import family_of
from .probes import Probe
from .results import Result, Wanted, as_the_paper, by_cell
from .spec import CLASSES, Cell, Data, Experiment, Model

PICTURES = ("overview", "cases", "curves", "means", "animation")

CASES = 8  # images on a picture
CELLS, ALONG = 8, 33  # of a lattice: squares along each axis, points of a line
GRID = "#ff5a36"  # seen on a black ground, on a white stroke, and on both at once
GROUND = "#2b303b"  # around an image: none of its own colours
INK, FAINT = "#20242c", "#6b7280"
RIGHT, WRONG = "#1a7f37", "#c62828"
DPI = 120

# By classification network, alone and behind each family; and by how many transformers there are.
COLOURS: dict[tuple[str, int], dict[str | None, str]] = {
    ("FCN", 1): {None: "#a3a3a3", "affine": "#f0a848", "projective": "#e06c1f", "spline": "#a8321a"},
    ("CNN", 1): {None: "#3d3d3d", "affine": "#7ab8ea", "projective": "#2f7fc4", "spline": "#143f86"},
    ("FCN", 2): {"affine": "#79c285", "projective": "#2f9347", "spline": "#12572b"},
    ("CNN", 2): {"window": "#2f7fc4", "attention": "#79c285", "affine": "#2f9347"},
    ("CNN", 4): {"affine": "#143f86", "window": "#143f86"},
}


class PictureError(ValueError):
    """A picture that cannot be made; the message says what is missing, and what makes it."""


class Trained(NamedTuple):
    """A cell with a transformer, a run of it, and what its network did with the test images."""

    cell: Cell
    result: Result
    probe: Probe

    @property
    def family(self) -> Family:
        return family_of(self.cell.model, self.cell.data)

    @property
    def error(self) -> float:
        """Of the test set; of a run that failed 100 %."""
        return 100.0 if self.result.record.error is None else self.result.record.error

    @property
    def footer(self) -> str:
        record = self.result.record
        error = "failed" if record.error is None else f"test error {record.error:.2f} %"
        compared = self.cell.paper is not None and as_the_paper(self.cell).counts(self.result)
        paper = f" (the paper's {self.cell.paper:.1f} %)" if compared else ""
        return f"{record.digits} {self.cell.name}, seed {record.seed}, {record.steps:,} steps: {error}{paper}"


class Shown(NamedTuple):
    """The first test images, and what a transformer makes of them."""

    before: Tensor  # [N, 1, size, size]
    after: Tensor  # [N, 1, shown / pooling, shown / pooling]: what the classification network gets to see
    upright: Tensor  # [N, 1, 28, 28]: the digits themselves
    labels: Tensor  # int64 [N]


Base = tuple[str, Any] | None  # the network without a transformer: its name and its answers


def draw(
    experiment: Experiment,
    cells: Sequence[Cell],
    results: Sequence[Result],
    wanted: Wanted,
    *,
    seed: int | None = None,
    only: Collection[str] = PICTURES,
    out: Path,
    data_dir: Path | None = None,
    say: Say = say,
    of_images: ImagePictures | None = None,
    load: Callable[[Wanted, Path | None], Any] | None = None,
) -> Iterator[Path]:
    """Makes all pictures of some cells that can be made, and gives where they are, one after the other.

    of_images: what makes those that show test images; ``draw_images`` if None.
    load: finds the data that it is given; ``loaded`` if None.
    """
    found = by_cell(one for one in results if wanted.counts(one) and seed in (None, one.record.seed))
    having = [cell for cell in cells if cell.name in found]
    if not having:
        raise PictureError(missing(experiment, cells, wanted, seed))
    folder = out / experiment.name
    if "curves" in only:
        for data in experiment.data:
            runs = [(cell, found[cell.name]) for cell in having if cell.data == data]
            if any(one.record.curve for _, results in runs for one in results):
                path = folder / f"{data.kind}-curves.png"
                save(curves(f"{experiment.title} {data.kind}", runs), path)
                yield path
    others = [picture for picture in dict.fromkeys(only) if picture != "curves"]
    kept = [one for cell in having if others and (one := opened(cell, found[cell.name], say))]
    if kept:
        make, given = of_images or draw_images, (load or loaded)(wanted, data_dir)
        yield from make(kept, found, others, folder, given, experiment.title)
    elif others and "curves" not in only:
        if not any(cell.model.transformer for cell in having):
            names = ", ".join(cell.name for cell in having)
            raise PictureError(f"{names}: no transformer, so that curves are all there is to draw")
        raise PictureError(f"there are records but no probes: `stn train {experiment.name}` makes both")


# Trained cells, all results by cell, which pictures, the folder, the data, the experiment's title.
ImagePictures = Callable[
    [Sequence[Trained], dict[str, list[Result]], Collection[str], Path, Any, str], Iterator[Path]
]


def draw_images(
    kept: Sequence[Trained],
    found: dict[str, list[Result]],
    pictures: Collection[str],
    folder: Path,
    digits: DigitSet,
    title: str,
) -> Iterator[Path]:
    best: dict[str, tuple[Trained, Shown, Base]] = {}  # by kind of data
    for one in kept:
        name = file_name(one.cell)
        shown, base = seen(one, digits), base_of(one, found)
        if "cases" in pictures:
            path = folder / f"{name}-cases.png"
            save(cases(one, shown, base), path)
            yield path
        if "means" in pictures:
            path = folder / f"{name}-means.png"
            save(means(one, shown), path)
            yield path
        if "animation" in pictures and len(one.probe.steps):
            path = folder / f"{name}-training.gif"
            save_animation(*animation(one, shown), path)
            yield path
        kind = one.cell.data.kind
        if kind not in best or one.error < best[kind][0].error:
            best[kind] = one, shown, base
    if "overview" in pictures and len(best) > 1:
        path = folder / "overview.png"
        save(overview(title, list(best.values())), path)
        yield path


def cases_alone(what: str, picture: Callable[[Trained, Any, Base], Any]) -> ImagePictures:
    """Makes pictures of cases; of others it says that there are none."""

    def draw_images(
        kept: Sequence[Trained],
        found: dict[str, list[Result]],
        pictures: Collection[str],
        folder: Path,
        data: Any,
        title: str,
    ) -> Iterator[Path]:
        if "cases" not in pictures:
            raise PictureError(f"there are cases and curves of {what}, no {', '.join(pictures)}")
        for one in kept:
            path = folder / f"{file_name(one.cell)}-cases.png"
            save(picture(one, data, base_of(one, found)), path)
            yield path

    return draw_images


def file_name(cell: Cell) -> str:
    return cell.name.replace("/", " ").replace(" ", "-")


# What there is


def missing(experiment: Experiment, cells: Sequence[Cell], wanted: Wanted, seed: int | None) -> str:
    names = ", ".join(cell.name for cell in cells[:3]) + (", ..." if len(cells) > 3 else "")
    which = f" of seed {seed}" if seed is not None else ""
    return (
        f"there is no record{which} of {names}: `stn train {experiment.name}{wanted.options}` makes them, "
        f"`stn table {experiment.name} --all` lists those that are here"
    )


def opened(cell: Cell, results: Sequence[Result], say: Say) -> Trained | None:
    """The first run of a cell with a transformer that has a probe; what lacks one is said."""
    if cell.model.transformer is None:
        return None
    for result in results:
        path = probes.path_of(result.path)
        if result.record.settings.get("held_out"):
            say(f"{result.path} was tested on images held out: there are no pictures of these")
        elif path.exists():
            probe = probes.read(path)
            numbers = cell.model.transformers * family_of(cell.model, cell.data).num_params
            if probe.theta.shape[1] != numbers:
                raise probes.ProbeError(f"{path} is no probe of {cell.name}: theta is {probe.theta.shape}")
            return Trained(cell, result, probe)
        else:
            say(f"{path} is not here: there are no pictures of {cell.name}, seed {result.record.seed}")
    return None


def base_of(one: Trained, found: dict[str, list[Result]]) -> Base:
    """The name of the network without a transformer, and its answers; of the same seed where there is one."""
    name = one.cell.model.classifier
    runs = [run for run in found.get(f"{one.cell.data.kind}/{name}", []) if run.record.status == "done"]
    runs.sort(key=lambda run: run.record.seed != one.result.record.seed)
    paths = [path for run in runs if (path := probes.path_of(run.path)).exists()]
    return (name, probes.read(paths[0]).predictions) if paths else None


def loaded(wanted: Wanted, data_dir: Path | None) -> DigitSet:
    if wanted.digits == uci_digits.NAME:
        return uci_digits.load()
    try:
        return mnist.load(data_dir, download=False)
    except FileNotFoundError as error:
        raise PictureError(f"{error}; `stn data fetch mnist` fetches it") from error


def first_images(one: Trained, digits: DigitSet, most: int | None = None) -> tuple[FixedSet, Tensor]:
    """The first test images, those that the probe has a theta of or fewer, and their thetas."""
    count = len(digits.test.labels)
    if len(one.probe.predictions) != count or len(one.probe.theta) > count:
        raise probes.ProbeError(
            f"{probes.path_of(one.result.path)} is no probe of {digits.name}: it has "
            f"{len(one.probe.predictions)} predictions, not {count}"
        )
    theta = torch.from_numpy(one.probe.theta[:most].astype(np.float32))
    return fixed_set(one.cell.data.kind, digits, count=len(theta)), theta


def seen(one: Trained, digits: DigitSet) -> Shown:
    """What a transformer makes of the first test images."""
    fixed, theta = first_images(one, digits)
    upright = as_images(digits.test.images[: len(theta)], "cpu")
    return Shown(fixed.images, given(one.family, fixed.images, theta, one.cell.data), upright, fixed.labels)


def given(family: Family, images: Tensor, theta: Tensor, data: Data) -> Tensor:
    """What a transformer gives to its classification network. [N, 1, shown / pooling, shown / pooling]"""
    # The reference needs no kernels to be compiled for a handful of images.
    warped = warp(images, theta, family, size=(data.shown, data.shown), impl="reference")
    return torch.nn.functional.avg_pool2d(warped, data.pooling)


def lattice(family: Family, theta: Tensor, size: int) -> Tensor:
    """T_theta(G) as lines, across and then down: pixel coordinates of the input. [2 (CELLS + 1), ALONG, 2]"""
    place, along = torch.linspace(-1, 1, CELLS + 1), torch.linspace(-1, 1, ALONG)
    across = torch.stack(torch.meshgrid(place, along, indexing="ij"), dim=-1).flip(-1)  # y, x -> x, y
    target = torch.cat([across, across.flip(-1)])
    source = family.points(theta, target.reshape(-1, 2)).reshape(target.shape)
    return to_pixels(source, (size, size))


def is_border(line: int) -> bool:
    return line % (CELLS + 1) in (0, CELLS)


def reach(lattices: Tensor, size: int) -> float:
    """Half of the side of a square that holds nearly all of the lattices [N, lines, points, 2], in pixels."""
    furthest = (lattices - (size - 1) / 2).abs().amax((1, 2, 3))
    return min(max(float(furthest.quantile(0.9)), size / 2) + 1, 0.85 * size)


# Panels


# Inches: for the names of rows, at the end, between panels, and between groups of them.
LEFT, END, BETWEEN, APART = 0.5, 0.08, 0.07, 0.3


def figure(width: float, height: float) -> Any:
    """A figure of its own: nothing of pyplot's state is touched, and nothing is left open."""
    return extra("matplotlib.figure").Figure(figsize=(width, height), dpi=DPI, facecolor="white")


def panels(
    rows: Sequence[str], columns: int, side: float, *, above: float, below: float, group: int | None = None
) -> tuple[Any, Any]:
    """A figure and its square panels [rows, columns], in groups of so many columns; all in inches."""
    lefts = [LEFT + at * (side + BETWEEN) + (at // group * APART if group else 0) for at in range(columns)]
    width = lefts[-1] + side + END
    height = above + len(rows) * (side + BETWEEN) - BETWEEN + below
    made = figure(width, height)
    table = np.empty((len(rows), columns), dtype=object)
    for row, name in enumerate(rows):
        bottom = height - above - (row + 1) * side - row * BETWEEN
        for column, left in enumerate(lefts):
            table[row, column] = made.add_axes((left / width, bottom / height, side / width, side / height))
        table[row, 0].set_ylabel(name, fontsize=10, color=INK)
    return made, table


def entitle(made: Any, title: str, footer: str) -> None:
    width, height = made.get_size_inches()
    left = LEFT / width
    made.text(left, 1 - 0.1 / height, title, va="top", fontsize=12.5, color=INK)
    made.text(left, 0.08 / height, footer, va="bottom", fontsize=8.5, color=FAINT)


def panel(axes: Any, image: Tensor, *, brightest: float = 1.0) -> None:
    axes.imshow(image.numpy(), cmap="gray", vmin=0, vmax=brightest, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_visible(False)


def with_lattice(axes: Any, image: Tensor, lines: Tensor, half: float) -> None:
    """An image with a lattice on it, and as much ground around it as the lattice needs."""
    axes.set_facecolor(GROUND)
    panel(axes, image)
    draw_lines(axes, lines, GRID)
    zoom_out(axes, image.shape[-1], half)


def draw_lines(axes: Any, lines: Tensor, colour: str, every: int = 1) -> None:
    """A lattice, its border bolder; of its lines every second, fourth ... if so many are asked for."""
    for number, line in enumerate(lines.numpy()):
        if number % (CELLS + 1) % every:
            continue
        wide, alpha = (1.9, 1.0) if is_border(number) else (0.7, 0.8)
        axes.plot(line[:, 0], line[:, 1], color=colour, linewidth=wide, alpha=alpha, solid_capstyle="round")


def zoom_out(axes: Any, size: int, half: float) -> None:
    """Shows so much to either side of the middle of an image of that size, in its pixels."""
    middle = (size - 1) / 2
    axes.set(xlim=(middle - half, middle + half), ylim=(middle + half, middle - half))


def save(made: Any, path: Path) -> None:
    with in_one_step(path) as file:
        made.savefig(file, format="png", metadata={"Software": None})


# Cases


def chosen_cases(one: Trained, labels: Tensor, base: Any | None) -> tuple[list[int], int]:
    """Test images that the base network gets wrong and the transformer's right, then others that are right;
    and how many of the first sort there are."""
    truth = labels.numpy()
    right = one.probe.predictions[: len(truth)] == truth
    saved = right & (base[: len(truth)] != truth) if base is not None else np.zeros_like(right)
    order = [*np.flatnonzero(saved), *np.flatnonzero(right & ~saved), *np.flatnonzero(~right)]
    return [int(number) for number in order[:CASES]], int(saved.sum())


def lattices_of(one: Trained, numbers: Sequence[int]) -> Tensor:
    """Those of some test images. [N, lines, points, 2]"""
    theta = torch.from_numpy(one.probe.theta[numbers].astype(np.float32))
    return torch.stack([lattice(one.family, each, one.cell.data.size) for each in theta])


def cases(one: Trained, shown: Shown, base: Base) -> Any:
    """The right half of Table 1: inputs with the grids on them, and below them the outputs."""
    numbers, saved = chosen_cases(one, shown.labels, base[1] if base else None)
    made, table = panels(("input and grid", "output"), len(numbers), 1.2, above=0.68, below=0.8)
    draw_cases(table.T, one, shown, base, numbers)
    entitle(made, cases_title(one, len(numbers), len(shown.labels), saved, base), one.footer)
    return made


def draw_cases(pairs: Any, one: Trained, shown: Shown, base: Base, numbers: Sequence[int]) -> None:
    """Some test images on a pair of panels each."""
    lattices = lattices_of(one, numbers)
    half = reach(lattices, one.cell.data.size)
    for (above, below), number, lines in zip(pairs, numbers, lattices, strict=True):
        with_lattice(above, shown.before[number, 0], lines, half)
        panel(below, shown.after[number, 0])
        label = int(shown.labels[number])
        above.set_title(f"{label}{turned(one, number)}", fontsize=11, color=INK, pad=5)
        write_answers(below, one, base, number, label)


def write_answers(below: Any, one: Trained, base: Base, number: int, label: int) -> None:
    """What the networks say of a test image, below a panel."""
    answers = [(base[0], int(base[1][number]))] if base else []
    answers.append((one.cell.model.name.split()[0], int(one.probe.predictions[number])))
    for row, (who, answer) in enumerate(answers):
        text, colour = (f"{who}: {answer} ✓", RIGHT) if answer == label else (f"{who}: {answer} ✗", WRONG)
        below.annotate(
            text, (0.5, 0), (0, -4 - 14 * row), xycoords="axes fraction", textcoords="offset points",
            ha="center", va="top", fontsize=10, color=colour,
        )  # fmt: skip


def cases_title(one: Trained, count: int, total: int, saved: int, base: Base) -> str:
    name = one.cell.model.name
    if base is None or not saved:
        return f"What the {name} makes of its input"
    title = f"Where the {base[0]} is wrong and the {name} is right"
    if saved > count:
        return f"{title}: the first {count} of {saved} among {total:,} test images"
    others = f", and {count - saved} other{'s' if count > saved + 1 else ''}" if saved < count else ""
    return f"{title}: {saved} of {total:,} test images{others}"


def overview(title: str, columns: Sequence[tuple[Trained, Shown, Base]]) -> Any:
    """Cases of several kinds of data side by side, as in the paper."""
    each = max(2, CASES // len(columns))
    rows, count = ("input and grid", "output"), each * len(columns)
    made, table = panels(rows, count, 1.0, above=1.0, below=0.78, group=each)
    height = made.get_size_inches()[1]
    for at, (one, shown, base) in enumerate(columns):
        numbers = chosen_cases(one, shown.labels, base[1] if base else None)[0][:each]
        pairs = table.T[each * at : each * at + len(numbers)]
        draw_cases(pairs, one, shown, base, numbers)
        heading = f"{one.cell.data.kind}: {one.cell.model.name}"
        left = table[0, each * at].get_position().x0
        made.text(left, 1 - 0.48 / height, heading, va="top", fontsize=11, color=INK, weight="bold")
    for axes in made.axes:
        if not axes.images:  # fewer test images than there is room for
            axes.set_visible(False)
    runs = [one.result.record for one, _, _ in columns]
    steps = ", ".join(dict.fromkeys(f"{record.steps:,}" for record in runs))
    footer = f"{runs[0].digits}, {steps} steps; above: label, angle of an affine grid; below: answers"
    entitle(made, f"{title}: what spatial transformers make of test images", footer)
    return made


def turned(one: Trained, number: int) -> str:
    """By which angle an affine transformation turns its grid; nothing of other families."""
    if one.cell.model.transformer != "affine":
        return ""
    theta = torch.from_numpy(one.probe.theta[number].astype(np.float32))
    (a, b, _), (c, d, _) = one.family.matrix(theta).tolist()
    return f"  ({round(math.degrees(math.atan2(c - b, a + d)))}°)"


# Means


def class_means(images: Tensor, labels: Tensor) -> Tensor:
    """[N, 1, H, W] -> [CLASSES, H, W]; black where there is no image of a class."""
    return torch.stack(
        [
            images[labels == label, 0].mean(0) if (labels == label).any() else torch.zeros(images.shape[2:])
            for label in range(CLASSES)
        ]
    )


def means(one: Trained, shown: Shown) -> Any:
    """The mean of each class: as the network gets it, as the transformer hands it on, and as it was."""
    rows = {"input": shown.before, "output": shown.after, "undistorted": shown.upright}
    made, table = panels(tuple(rows), CLASSES, 0.95, above=0.48, below=0.36)
    for images, line in zip(rows.values(), table, strict=True):
        tiles = class_means(images, shown.labels)
        for tile, axes in zip(tiles, line, strict=True):
            panel(axes, tile, brightest=float(tiles.max()))
    title = f"The mean of each digit before and after the transformer of the {one.cell.model.name}"
    entitle(made, title, f"{one.footer}; means of {len(shown.labels):,} test images")
    return made


# Curves


def curves(title: str, runs: Sequence[tuple[Cell, Sequence[Result]]]) -> Any:
    """Training error over steps, a line for each model (the mean of its seeds); dots are test errors."""
    made = figure(8.9, 4.3)
    axes = made.subplots(gridspec_kw={"left": 0.085, "right": 0.66, "top": 0.88, "bottom": 0.135})
    for cell, results in runs:
        records = [result.record for result in results]
        colour = colour_of(cell.model)
        steps, errors = mean_curve(results)
        done = [record.error for record in records if record.status == "done" and record.error is not None]
        ours = f"{statistics.mean(done):.2f} %" if done else "failed"
        paper = "" if cell.paper is None else f" ({cell.paper:.1f} %)"
        label = f"{cell.model.name}: {ours}{paper}"
        axes.plot(steps, errors, color=colour, linewidth=1.4, label=label, zorder=2)
        if done and steps:
            axes.plot(steps[-1], statistics.mean(done), "o", color=colour, markersize=6,
                      markeredgecolor="white", zorder=3, clip_on=False)  # fmt: skip
    axes.set_yscale("log", nonpositive="mask")
    ticker = extra("matplotlib.ticker")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlim(left=0)
    axes.set_xlabel("steps", fontsize=10, color=INK)
    axes.set_ylabel("error in percent", fontsize=10, color=INK)
    axes.grid(which="major", color="#e3e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9, which="both", length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    legend_title = "test error (the paper's)" if any(cell.paper for cell, _ in runs) else "test error"
    legend = axes.legend(
        loc="upper left", bbox_to_anchor=(1.02, 1.02), fontsize=9.5, frameon=False, labelcolor=INK,
        title=legend_title, title_fontsize=9.5, alignment="left", handlelength=1.6,
    )  # fmt: skip
    legend.get_title().set_color(FAINT)
    made.text(0.085, 0.965, f"{title}: training error", va="top", fontsize=12.5, color=INK)
    note = "lines: training batches\ndots: test set"
    made.text(0.68, 0.04, note, va="bottom", fontsize=9, color=FAINT, linespacing=1.4)
    return made


def colour_of(model: Model) -> str:
    return COLOURS[model.classifier, model.transformers][model.transformer]


def mean_curve(results: Sequence[Result]) -> tuple[list[int], list[float]]:
    """Steps and errors, means of the seeds as far as all of them went."""
    points = list(zip(*(result.record.curve for result in results if result.record.curve), strict=False))
    steps = [each[0].step for each in points]
    return steps, [statistics.mean(point.error for point in each) for each in points]


# Animations

TILE, GAP, MARGIN = 104, 6, 12  # pixels
HEADER, FOOTER = 34, 10
SMOOTH = 2  # times as large, and then made smaller
STILL, MOVING, LAST = 60, 130, 3000  # milliseconds that a frame is shown
MOVED = 0.15  # pixels of the input by which a lattice moves that is not still


def animation(one: Trained, shown: Shown) -> tuple[list[Any], list[int]]:
    """A frame for each moment of training, and for how long each is shown, in milliseconds."""
    truth = shown.labels[: one.probe.thetas.shape[1]].numpy()
    numbers = watched(truth, one.probe.predictions)
    thetas = torch.from_numpy(one.probe.thetas[:, numbers].astype(np.float32))
    size = one.cell.data.size
    flat = torch.stack([lattice(one.family, each, size) for each in thetas.flatten(0, 1)])
    lattices = flat.unflatten(0, thetas.shape[:2])
    half = reach(flat, size)
    images = shown.before[numbers]
    frames, durations = [], []
    for moment, step in enumerate(one.probe.steps.tolist()):
        outputs = given(one.family, images, thetas[moment], one.cell.data)
        frames.append(frame(one, images, lattices[moment], outputs, half, f"step {step:,}"))
        moves = moment > 0 and float((lattices[moment] - lattices[moment - 1]).abs().max()) > MOVED
        durations.append(MOVING if moves else STILL)
    durations[0] = 6 * MOVING
    durations[-1] = LAST
    return frames, durations


def watched(truth: Any, predictions: Any) -> list[int]:
    """One image of each class, as far as there are any, in the order of the test set; in the end right."""
    right = [int(number) for number in np.flatnonzero(predictions[: len(truth)] == truth)]
    first = [number for number in right if truth[number] not in truth[[n for n in right if n < number]]]
    others = [number for number in [*right, *range(len(truth))] if number not in first]
    return sorted([*first, *dict.fromkeys(others)][:CASES])


def frame(one: Trained, images: Tensor, lattices: Tensor, outputs: Tensor, half: float, counter: str) -> Any:
    """One picture of an animation."""
    image_module, draw_module, font_module = map(extra, ("PIL.Image", "PIL.ImageDraw", "PIL.ImageFont"))
    columns = len(images)
    width = 2 * MARGIN + columns * TILE + (columns - 1) * GAP
    height = HEADER + 2 * TILE + GAP + FOOTER
    page = image_module.new("RGB", (width, height), "white")
    for column in range(columns):
        left = MARGIN + column * (TILE + GAP)
        page.paste(tile_with_lattice(images[column, 0], lattices[column], half), (left, HEADER))
        page.paste(tile(outputs[column, 0], TILE), (left, HEADER + TILE + GAP))
    pen = draw_module.Draw(page)
    fonts = font_module.load_default(17)
    middle = HEADER / 2
    title = f"{one.cell.model.name} on {one.result.record.digits} {one.cell.data.kind}"
    pen.text((MARGIN, middle), title, INK, fonts, anchor="lm")
    pen.text((width - MARGIN, middle), counter, INK, fonts, anchor="rm")
    return page


def tile(image: Tensor, side: int) -> Any:
    """An image [H, W] as a picture of so many pixels."""
    pixels = (image * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    image_module = extra("PIL.Image")
    return image_module.fromarray(pixels).resize((side, side), image_module.Resampling.BICUBIC).convert("RGB")


def tile_with_lattice(image: Tensor, lines: Tensor, half: float) -> Any:
    image_module, draw_module = extra("PIL.Image"), extra("PIL.ImageDraw")
    large = SMOOTH * TILE
    page = image_module.new("RGB", (large, large), GROUND)
    size = image.shape[-1]
    scale = large / (2 * half)  # of a pixel of the image
    corner = half - size / 2  # of the image, in its pixels, from the tile's
    page.paste(tile(image, round(size * scale)), (round(corner * scale), round(corner * scale)))
    pen = draw_module.Draw(page)
    for number, line in enumerate((lines + 0.5 + corner) * scale):
        wide = 2 * SMOOTH if is_border(number) else SMOOTH // 2
        pen.line([tuple(point) for point in line.tolist()], GRID, width=wide, joint="curve")
    return page.resize((TILE, TILE), image_module.Resampling.LANCZOS)


def palette(*colours_of_lines: str) -> Any:
    """The colours of an animation: greys, and those of lines mixed with what they may lie on."""
    *lines, ground = (
        [int(text[at : at + 2], 16) for at in (1, 3, 5)] for text in (*colours_of_lines, GROUND)
    )
    greys = [[round(level * 255 / 31)] * 3 for level in range(32)]
    under = [*greys[::6], greys[-1], ground]
    mixed = [
        [round(part * over + (1 - part) * below) for over, below in zip(line, each, strict=True)]
        for line in lines
        for each in under
        for part in (0.2, 0.4, 0.6, 0.8)
    ]
    colours = [*greys, *lines, ground, *mixed]
    found = extra("PIL.Image").new("P", (1, 1))
    found.putpalette([value for colour in colours for value in colour])
    return found


def save_animation(
    frames: Sequence[Any], durations: Sequence[int], path: Path, lines: Sequence[str] = (GRID,)
) -> None:
    colours, plainly = palette(*lines), extra("PIL.Image").Dither.NONE
    plain = [each.quantize(palette=colours, dither=plainly) for each in frames]
    with in_one_step(path) as file:
        plain[0].save(
            file, format="GIF", save_all=True, append_images=plain[1:], duration=list(durations), loop=0
        )
