"""The door that all pictures go through: records and probes come in, files come out. ``stn draw``

What there is of the runs that were asked for is found here, and training curves are drawn; what shows test
images is a matter of the experiment (``pictures_of_digits`` and the files beside it).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..family import Family
from . import animations, probes
from .arguments import UsageError
from .curves import curves
from .data.fetch import Say, say
from .figures import GRID, save
from .networks import family_of
from .probes import Probe
from .results import Result, Wanted, apart, as_the_paper, assigned, by_cell
from .spec import Cell, Experiment


class PictureError(ValueError):
    """A picture that cannot be made; the message says what is missing, and what makes it."""


class Trained(NamedTuple):
    """A run of a cell with a transformer, and what its network did with the test images."""

    result: Result
    probe: Probe

    @property
    def cell(self) -> Cell:
        return self.result.cell

    @property
    def family(self) -> Family:
        return family_of(self.cell.model, self.cell.data)

    @property
    def title(self) -> str:
        return f"{self.cell.model.name} on {self.result.record.digits} {self.cell.data.kind}"

    @property
    def paper(self) -> float | None:
        """The paper's error, where it may stand beside this run's."""
        return self.cell.paper if as_the_paper(self.cell).counts(self.result) else None

    @property
    def run(self) -> str:
        record = self.result.record
        return f"{record.digits} {self.cell.name}, seed {record.seed}, {record.steps:,} steps"

    @property
    def footer(self) -> str:
        record = self.result.record
        error = "failed" if record.error is None else f"test error {record.error:.2f} %"
        paper = "" if self.paper is None else f" (the paper's {self.paper:.1f} %)"
        return f"{self.run}: {error}{paper}"


def error_of(run: Result) -> float:
    """On the test set; of a run that failed 100 %."""
    return 100.0 if run.record.error is None else run.record.error


Base = tuple[str, Any] | None  # the network without a transformer: its name and its answers
Place = Callable[[str], Path]  # of the picture of a name
# Trained cells, all results by cell, which pictures, their places, the data, the experiment's title.
ImagePictures = Callable[
    [Sequence[Trained], dict[str, list[Result]], Collection[str], Place, Any, str], Iterator[Path]
]


def draw(
    experiment: Experiment,
    cells: Sequence[Cell],
    results: Sequence[Result],
    wanted: Wanted,
    *,
    seed: int | None = None,
    only: Collection[str],
    out: Path,
    data_dir: Path | None = None,
    say: Say = say,
    of_images: ImagePictures,
    load: Callable[[Wanted, Path | None], Any],
) -> Iterator[Path]:
    """Makes all pictures of some cells that can be made, and gives where they are, one after the other.

    of_images: makes those that show test images.
    load: finds the data that these are of.
    """
    found = by_cell(one for one in results if wanted.counts(one) and seed in (None, one.record.seed))
    having = [cell for cell in cells if cell.name in found]
    if not having:
        raise PictureError(missing(experiment, cells, wanted, seed))
    variant = assigned(apart(wanted.settings, wanted.digits, experiment)).split()
    if seed:
        variant.append(f"seed{seed}")

    def place(name: str) -> Path:
        """Those of changed runs do not take the place of the table's, nor another seed's that of seed 0's."""
        stem, ending = name.rsplit(".", 1)
        return out / experiment.name / f"{'-'.join([stem, *variant])}.{ending}"

    if "curves" in only:
        for data in experiment.data:
            runs = [(cell, found[cell.name]) for cell in having if cell.data == data]
            if any(one.record.curve for _, results in runs for one in results):
                kind = f" {data.kind}" if len(experiment.data) > 1 else ""
                made = curves(f"{experiment.title}{kind}", runs)
                yield save(made, place(f"{data.kind}-curves.png"))
    others = [picture for picture in dict.fromkeys(only) if picture != "curves"]
    kept = [one for cell in having if others and (one := opened(cell, found[cell.name], say))]
    if kept:
        yield from of_images(kept, found, others, place, load(wanted, data_dir), experiment.title)
    elif others and "curves" not in only:
        if not any(cell.model.transformer for cell in having):
            names = ", ".join(cell.name for cell in having)
            raise PictureError(f"{names}: no transformer, so that curves are all there is to draw")
        raise PictureError(f"there are records but no probes: `stn train {experiment.name}` makes both")


def of_each_run(
    what: str,
    made_by: Mapping[str, Callable[[Trained, Any, Base], Any]],
    seen: Callable[[Trained, Any], Any] = lambda one, data: data,
    moving: Callable[[Trained, Any], tuple[list[Any], list[int]]] | None = None,
    lines: Sequence[str] = (GRID,),
) -> ImagePictures:
    """Makes pictures of one run each, by what they are called; of others it says that there are none.

    seen: what all pictures of a run are made of, out of the data.
    moving: the frames of the animation of its training, if there is one, and for how long each is shown.
    lines: the colours of lines on these.
    """
    known = [*made_by, *([] if moving is None else ["animation"])]

    def draw_images(
        kept: Sequence[Trained],
        found: dict[str, list[Result]],
        pictures: Collection[str],
        place: Place,
        data: Any,
        title: str,
    ) -> Iterator[Path]:
        if not set(pictures) & set(known):
            raise UsageError(f"there are {', '.join(known)} and curves of {what}, no {', '.join(pictures)}")
        for one in kept:
            shown, base = seen(one, data), base_of(one, found)
            for name, make in made_by.items():
                if name in pictures:
                    yield save(make(one, shown, base), place(f"{file_name(one.cell)}-{name}.png"))
            if moving is not None and "animation" in pictures and len(one.probe.steps):
                path = place(f"{file_name(one.cell)}-training.gif")
                yield animations.save(*moving(one, shown), path, lines)

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
            return Trained(result, probe)
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
