"""How long a step of the birds experiment takes: ``python -m benchmarks.birds --out RESULT.json``.

The whole of it: images drawn, cut out and flipped, forward, backward, update, in a CUDA graph. Sampling from
448 px is to cost next to nothing beyond 224 (the paper: "without any impact in performance"), since crops are
of 224 px either way. Beside it, for some cells, the same with PyTorch's batch norms in the place of
``norms_triton``'s, and with cuDNN's depthwise convolutions in the place of ``depthwise_triton``'s; with
``--all`` for every cell, and in every precision and layout. Neither what images show nor what weights are
changes the time: both are made up here, images of the reduced set's most common size on a canvas for its
largest. The result is written after every measurement.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from spatial_transformer.experiments.data.birds import Birds
from spatial_transformer.experiments.efficientnet_lite import (
    SCALES,
    Features,
    depthwise_in_kernels,
    norms_in_kernels,
)
from spatial_transformer.experiments.fine_grained import SIDE, SPECIES
from spatial_transformer.experiments.fine_grained_runs import LAYOUTS, BirdSet, FineGrainedRun
from spatial_transformer.experiments.paper.birds import EXPERIMENT, BirdSettings
from spatial_transformer.experiments.spec import PRECISIONS, Cell, Data, Model

from . import cuda
from .record import heading
from .steps import device_of, timed
from .table import carry_out

IMAGES = 1000
CANVAS = (500, 500)  # height and width that hold any image of the reduced set
GOAL = 1.15  # times the model's time on 224 px that it may take on 448


class Case(NamedTuple):
    """What is timed; ``zoom``: how many times larger than a crop its images are."""

    name: str
    crops: int
    zoom: int

    def cell(self, settings: BirdSettings, side: int) -> Cell:
        name, kind = self.name.split()
        model = Model(name, "CNN", "window" if self.crops else None, transformers=self.crops or 1)
        data = Data(kind, self.zoom * side, side, channels=3, classes=SPECIES)
        return Cell("birds", model, data, settings, paper=None)


CASES = (
    Case("CNN 224px", 0, 1),
    Case("2xST-CNN 224px", 2, 1),
    Case("2xST-CNN 448px", 2, 2),
    Case("4xST-CNN 224px", 4, 1),
    Case("4xST-CNN 448px", 4, 2),
)


class Way(NamedTuple):
    """How a case is computed: whether norms are ``norms_triton``'s, and depthwise convolutions
    ``depthwise_triton``'s, where they can be."""

    name: str
    precision: str
    layout: str
    norms: bool = True
    depthwise: bool = True


COMBINATIONS = [(precision, layout) for precision in PRECISIONS for layout in LAYOUTS]
# The first is what is trained with.
TRAINED = Way(", ".join(COMBINATIONS[0]), *COMBINATIONS[0])
PLAIN = Way("PyTorch's norms", *COMBINATIONS[0], norms=False)
CUDNN = Way("cuDNN's depthwise", *COMBINATIONS[0], depthwise=False)
EVERY = (TRAINED, PLAIN, CUDNN, *(Way(", ".join(each), *each) for each in COMBINATIONS[1:]))
BESIDE = ("CNN 224px", "2xST-CNN 448px", "4xST-CNN 448px")  # that are also computed with those two


def ways_of(case: Case) -> Sequence[Way]:
    return (TRAINED, PLAIN, CUDNN) if case.name in BESIDE else (TRAINED,)


def changed(**settings: Any) -> BirdSettings:
    """The settings of the table's CNN, but for these: of all networks the same."""
    assert isinstance(EXPERIMENT.settings, BirdSettings)
    return dataclasses.replace(EXPERIMENT.settings, **settings)


def made_up(count: int, size: tuple[int, int], device: str, backbone: str) -> BirdSet:
    """Birds of noise, to train on but for the last species; random weights. All of them are of one size, but
    for the last, which is as large as their canvas."""
    sizes = torch.tensor([size, CANVAS])[(torch.arange(count) == count - 1).long()]
    areas = sizes.prod(1)
    ends = areas.cumsum(0)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (int(ends[-1]), 3), dtype=torch.uint8, generator=generator).to(device)
    labels = torch.arange(count) % SPECIES
    birds = Birds(
        pixels,
        ends - areas,
        sizes,
        labels.to(device),
        labels < SPECIES - 1,
        torch.cat([torch.zeros(count, 2), sizes.flip(1).float()], dim=1),
        [str(number) for number in range(count)],
        [f"{number:03d}.Bird" for number in range(SPECIES)],
    )
    torch.manual_seed(0)
    features = Features(SCALES[backbone])
    return BirdSet("noise", birds, lambda name: features)


def run(
    device: str,
    steps: int,
    settings: BirdSettings,
    *,
    side: int = SIDE,
    size: tuple[int, int] = (320, 427),
    ways: Callable[[Case], Sequence[Way]] = ways_of,
) -> Iterator[dict[str, Any]]:
    """The result of all cases, as far as it goes after each measurement. size: height and width of images."""
    result: dict[str, Any] = {"suite": "birds", **heading(), "device": device_of(device)}
    result |= {"settings": dataclasses.asdict(settings), "side": side, "cases": []}
    birds = made_up(IMAGES, size, device, settings.backbone)
    for case in CASES:
        row: dict[str, Any] = {"name": case.name, "milliseconds": {}, "memory": {}}
        result["cases"].append(row)
        for way in ways(case):
            print(f"{case.name}, {way.name} ...", file=sys.stderr, flush=True)
            given = dataclasses.replace(settings, precision=way.precision, layout=way.layout)
            if device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            one = FineGrainedRun(case.cell(given, side), 0, birds, device)
            with norms_in_kernels(way.norms), depthwise_in_kernels(way.depthwise):
                row["milliseconds"][way.name] = timed([one], steps)
            if device == "cuda":
                row["memory"][way.name] = torch.cuda.max_memory_reserved()
            del one
            yield result


def markdown(result: Mapping[str, Any]) -> str:
    """The result as a table: milliseconds of a step in each way, and of the first how long a cell takes."""
    ways = list(dict.fromkeys(way for case in result["cases"] for way in case["milliseconds"]))
    settings = result["settings"]
    header = ["cell", *(f"{way}, ms" for way in ways), "images a second", "of 224 px"]
    header += [f"{settings['steps']:,} steps"]
    lines = [header, ["---"] * len(header)]
    first = {case["name"]: case["milliseconds"][ways[0]] for case in result["cases"]}
    for case in result["cases"]:
        trained = first[case["name"]]
        base = first.get(case["name"].replace("448", "224"))
        times = ""
        if "448" in case["name"] and base is not None:
            times = f"{trained / base:.2f} times, {GOAL} {'met' if trained <= GOAL * base else 'missed'}"
        lines.append(
            [
                case["name"],
                *(f"{found:.1f}" if (found := case["milliseconds"].get(way)) else "" for way in ways),
                f"{1000 * settings['batch'] / trained:,.0f}",
                times,
                f"{trained * settings['steps'] / 60_000:.1f} min",
            ]
        )
    device, versions = result["device"], result["versions"]
    below = (
        f"Batch {settings['batch']}, {settings['backbone']}; {device['name']}, torch {versions['torch']}, "
        f"{result['date'][:10]}."
    )
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", below])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.birds", description="Steps of training on birds."
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run on the CPU: no measurements")
    parser.add_argument("--all", action="store_true", help="every cell in every precision and layout too")
    parser.add_argument("--steps", type=int, default=10, help="of a round")
    parser.add_argument("--batch", type=int, default=BirdSettings.batch)

    def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
        if given.quick:
            # Two images of 32 px leave a norm two numbers: networks diverge at the rate of training.
            settings = changed(batch=2, learning_rate=1e-5, backbone="efficientnet-lite0")
            return run("cpu", 1, settings, side=32, size=(40, 50))
        if (reason := cuda.why_not()) is not None:
            parser.error(reason)
        ways = (lambda case: EVERY) if given.all else ways_of
        return run("cuda", given.steps, changed(batch=given.batch), ways=ways)

    carry_out(parser, argv, measure, markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
