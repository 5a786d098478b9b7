"""A step of training on volumes, with the fused kernels and without: ``python -m benchmarks.volume_steps``.

The whole of it, as in ``steps``: 60 x 60 x 60 voxels drawn, localised, warped, projected, classified, and
back. Without the fused kernels both warps, of the data and of the transformer, make a grid and read it by
PyTorch's own operations.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spatial_transformer import SpatialTransformer
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.data.volumes import Volumes
from spatial_transformer.experiments.runs import Run
from spatial_transformer.experiments.spec import PRECISIONS

from . import cuda
from .record import heading
from .steps import device_of, measured, with_settings
from .table import carry_out

EXPERIMENT = EXPERIMENTS["volumes"]
IMPLEMENTATIONS = ("fused", "torch")


def warp_by(run: Run, impl: str) -> None:
    """Has an implementation make all warps of a run: those of its data and of its transformer."""
    assert isinstance(run.distortion, Volumes)
    run.distortion = dataclasses.replace(run.distortion, impl=impl)
    for module in (*run.network.modules(), *run.trained.modules()):
        if isinstance(module, SpatialTransformer):
            module.impl = impl


def run(device: str, steps: int, **changes: Any) -> dict[str, Any]:
    """The result of both cells. ``changes``: of their settings."""
    settings = dataclasses.replace(EXPERIMENT.settings, **changes)
    result: dict[str, Any] = {"suite": "volume steps", **heading(), "device": device_of(device)}
    result |= {"batch": settings.batch, "steps": settings.steps, "cases": []}
    for cell in EXPERIMENT.cells:
        row: dict[str, Any] = {"name": cell.name, "milliseconds": {}}
        for precision in PRECISIONS:
            for impl in IMPLEMENTATIONS:
                print(f"{cell.name}, {precision}, {impl} ...", file=sys.stderr, flush=True)
                changed = with_settings(cell, precision=precision, **changes)
                row["milliseconds"][f"{precision}, {impl}"] = measured(
                    [changed], device, steps, lambda one, impl=impl: warp_by(one, impl)
                )
                if device == "cuda":
                    torch.cuda.empty_cache()
        result["cases"].append(row)
    return result


def markdown(result: Mapping[str, Any]) -> str:
    """The result as a table."""
    lines = [
        f"| cell | precision | fused, ms a step | without, ms | times | fused, {result['steps']:,} steps |",
        "|---|---|---|---|---|---|",
    ]
    for case in result["cases"]:
        for precision in PRECISIONS:
            fused, plain = (case["milliseconds"][f"{precision}, {impl}"] for impl in IMPLEMENTATIONS)
            minutes = f"{fused * result['steps'] / 60_000:.1f} min"
            cells = [case["name"], precision, f"{fused:.2f}", f"{plain:.2f}", f"{plain / fused:.2f}", minutes]
            lines.append(f"| {' | '.join(cells)} |")
    device, versions = result["device"], result["versions"]
    below = f"Batch {result['batch']}; {device['name']}, torch {versions['torch']}, {result['date'][:10]}."
    return "\n".join([*lines, "", below])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.volume_steps", description="Steps of training on volumes."
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=50, help="of a round")
    parser.add_argument("--batch", type=int, default=EXPERIMENT.settings.batch)

    def measure(given: argparse.Namespace) -> dict[str, Any]:
        if given.device == "cuda" and (reason := cuda.why_not()) is not None:
            parser.error(reason)
        return run(given.device, given.steps, batch=given.batch)

    carry_out(parser, argv, measure, markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
