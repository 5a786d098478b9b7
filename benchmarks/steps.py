"""How long a step of training takes: ``python -m benchmarks.steps --out RESULT.json``.

The whole of it: digits drawn and distorted, forward, backward, update, batch 256, in a CUDA graph. A cell
alone, in both precisions; a dozen of the same side by side, and all cells of both tables, in the mixed one.
(Digits in three dimensions have a benchmark of their own, ``benchmarks.volume_steps``.)
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.data import uci_digits
from spatial_transformer.experiments.lockstep import Lockstep
from spatial_transformer.experiments.runs import Descent, Run
from spatial_transformer.experiments.spec import PRECISIONS, Cell

from . import cuda
from .record import heading
from .table import carry_out

TABLES = ("distorted-mnist", "cluttered-mnist")
CELLS = {cell.name: cell for name in TABLES for cell in EXPERIMENTS[name].cells}
AT_ONCE = 12
ROUNDS = 5
ALL = "all 36 cells"


class Case(NamedTuple):
    """Some cells, and the milliseconds that a step of one of them may take, on an H200, in its share."""

    name: str
    cells: tuple[str, ...]
    goal: float | None = None


CASES = (
    Case("FCN on R", ("R/FCN",), 0.05),
    Case("ST-FCN affine on R", ("R/ST-FCN affine",), 0.10),
    Case("CNN on R", ("R/CNN",)),
    Case("ST-CNN affine on R", ("R/ST-CNN affine",), 0.45),
    Case("CNN on RTS", ("RTS/CNN",)),
    Case("ST-CNN affine on RTS", ("RTS/ST-CNN affine",), 0.60),
    Case("ST-CNN spline on E", ("E/ST-CNN spline",)),
    Case("CNN on TC", ("TC/CNN",)),
    Case("ST-CNN on TC", ("TC/ST-CNN",)),
    Case(ALL, tuple(CELLS), 35 * 60_000 / 150_000 / len(CELLS)),  # one seed in 35 minutes
)


def measured(
    cells: Sequence[Cell], device: str, steps: int, prepare: Callable[[Run], None] = lambda run: None
) -> float:
    """Milliseconds of a step of all, the median of rounds. ``prepare``: done to each run before its first."""
    digits = uci_digits.load()
    # Of the same cell several seeds, as they are trained: cells of a column and a seed see the same batches.
    runs = [Run(cell, list(cells[:i]).count(cell), digits, device) for i, cell in enumerate(cells)]
    for each in runs:
        prepare(each)
    return timed(runs, steps)


def timed(runs: Sequence[Descent], steps: int) -> float:
    """Milliseconds of a step of all, the median of rounds."""
    together = Lockstep(runs)
    together.advance(2)
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        together.advance(steps)
        rounds.append((time.perf_counter() - begin) / steps)
    for run in runs:
        loss, _ = run.means(2 + ROUNDS * steps)
        if not 0 < loss < 20:
            raise RuntimeError(f"{run.cell.name} does not train: its loss is {loss}")
    return 1000 * statistics.median(rounds)


def run(
    device: str, steps: int, cases: Sequence[Case], counts: Sequence[int], **changes: Any
) -> dict[str, Any]:
    """The result of all cases. ``counts``: how many of one cell, side by side."""
    result: dict[str, Any] = {"suite": "steps", **heading(), "device": device_of(device), "cases": []}
    for case in cases:
        row: dict[str, Any] = {"name": case.name, "goal": case.goal, "milliseconds": {}}
        for precision in PRECISIONS:
            for count in counts if len(case.cells) == 1 else [1]:
                cells = [
                    with_settings(CELLS[name], precision=precision, **changes) for name in case.cells
                ] * count
                if precision == "float32" and len(cells) > 1:
                    continue  # slow, and nothing is trained so
                found = measured(cells, device, steps)
                row["milliseconds"][f"{precision}, {len(cells)}"] = found
                said = f"{case.name}, {precision}, {count} at once: {found:.3f} ms"
                print(said, file=sys.stderr, flush=True)
                if device == "cuda":
                    torch.cuda.empty_cache()
        result["cases"].append(row)
    return result


def with_settings(cell: Cell, **changes: Any) -> Cell:
    return dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, **changes))


def device_of(device: str) -> dict[str, Any]:
    return {**(cuda.describe() if device == "cuda" else {"name": "CPU"}), "kind": device}


def markdown(result: Mapping[str, Any]) -> str:
    """The result as a table: milliseconds of a step, in a cell's share."""
    lines = [
        "| cells | at once | mixed, ms each | float32, ms each | mixed, all 150,000 steps of all | goal |",
        "|---|---|---|---|---|---|",
    ]
    for case in result["cases"]:
        found = case["milliseconds"]
        counts = sorted({int(key.split(", ")[1]) for key in found})
        for count in counts:
            mixed, plain = (found.get(f"{precision}, {count}") for precision in PRECISIONS)
            goal = ""
            if case["goal"] is not None and count == counts[-1]:
                goal = f"{case['goal']:.2f} {'met' if mixed / count <= case['goal'] else 'missed'}"
            minutes = f"{mixed * 150_000 / 60_000:.1f} min"
            slow = "" if plain is None else f"{plain:.3f}"  # of one cell
            cells = [case["name"], str(count), f"{mixed / count:.3f}", slow, minutes, goal]
            lines.append(f"| {' | '.join(cells)} |")
    device, versions = result["device"], result["versions"]
    return "\n".join([*lines, "", f"{device['name']}, torch {versions['torch']}, {result['date'][:10]}."])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description="Steps of training.")
    parser.add_argument("--quick", action="store_true", help="a smoke run on the CPU: no measurements")
    parser.add_argument("--steps", type=int, default=100, help="of a round")

    def measure(given: argparse.Namespace) -> dict[str, Any]:
        if given.quick:
            return run("cpu", 1, [CASES[0], CASES[1]], [1, 2], batch=8)
        if (reason := cuda.why_not()) is not None:
            parser.error(reason)
        return run("cuda", given.steps, CASES, [1, AT_ONCE])

    carry_out(parser, argv, measure, markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
