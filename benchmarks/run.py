"""The runner: ``python -m benchmarks.run --suite cpu --out benchmarks/results/cpu.json``. See README.md."""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch

import spatial_transformer as st

from . import table
from .measure import BUSY, DEVICES, QUICK, TOLERANCE, Effort, Times, measured, timed
from .suites import CONTENDERS, SUITES, Case, inputs, truth

ROOT = Path(__file__).resolve().parent.parent


def run(
    suite_name: str, effort: Effort, *, chosen: Sequence[str] = (), quick: bool = False
) -> dict[str, Any]:
    """The result of a suite, or of the cases chosen from it by name."""
    suite = SUITES[suite_name]
    device = DEVICES[suite.device]
    contenders = {name: CONTENDERS[name] for name in suite.contenders}
    result: dict[str, Any] = {
        "suite": suite_name,
        "quick": quick,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **commit(),
        "device": device.describe(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "spatial_transformer": st.__version__,
        },
        "settings": {"dtype": "float32", "tolerance": TOLERANCE, "busy": BUSY, **effort._asdict()},
        "contenders": list(contenders),
        "cases": [],
    }
    for case in suite.cases:
        if chosen and case.name not in chosen:
            continue
        small = case.shrunk() if quick else case
        print(f"{small.name} ...", file=sys.stderr, flush=True)
        given = inputs(small)
        found = measured(given, contenders, truth, device, partial(timings, small, effort))
        result["cases"].append(
            {
                "name": case.name,
                "image": list(given.image.shape),
                "theta": list(given.theta.shape),
                "output": list(given.cotangent.shape),
                "contenders": found,
            }
        )
    return result


def timings(case: Case, effort: Effort, names: list[str]) -> list[dict[str, Times]]:
    """The times of every pass, in as many fresh processes as the effort says."""
    if effort.processes == 0:
        return [in_this_process(case, effort, names, 0)]
    fresh = multiprocessing.get_context("spawn")  # a forked one would inherit the heap
    found = []
    for number in range(effort.processes):
        with ProcessPoolExecutor(1, mp_context=fresh) as process:
            found.append(process.submit(in_this_process, case, effort, names, number).result())
    return found


def in_this_process(case: Case, effort: Effort, names: list[str], number: int) -> dict[str, Times]:
    return timed(inputs(case), {name: CONTENDERS[name] for name in names}, effort, first=number)


def commit() -> dict[str, Any]:
    """Which code was measured, and whether it had changes that are not committed."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):  # not a checkout
            return None
        return done.stdout.strip()

    changes = git("status", "--porcelain", "--", "src", "benchmarks/*.py")
    return {"commit": git("rev-parse", "HEAD"), "modified": None if changes is None else bool(changes)}


def write(result: Mapping[str, Any], path: Path) -> None:
    """In one step, so that a run that is cut short leaves the last result as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(result, file, indent=2, allow_nan=False)
            file.write("\n")
        os.chmod(temporary, 0o644)  # mkstemp's files are for their owner alone
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 1 where a contender was wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Speed and memory beside PyTorch's own functions."
    )
    parser.add_argument("--suite", choices=SUITES, default="cpu")
    parser.add_argument(
        "--cases", nargs="+", default=[], metavar="NAME", help="only these, such as 256x1x28x28"
    )
    usual = Effort()
    parser.add_argument("--processes", type=int, help=f"fresh ones for each case ({usual.processes})")
    parser.add_argument("--rounds", type=int, help=f"at least, in each process and pass ({usual.rounds})")
    parser.add_argument(
        "--seconds", type=float, help=f"at least, in each process and pass ({usual.seconds:g})"
    )
    parser.add_argument("--out", type=Path, help="write the result here, as JSON")
    parser.add_argument("--quick", action="store_true", help="a smoke run: two rounds of shrunk cases")
    given = parser.parse_args(argv)
    known = [case.name for case in SUITES[given.suite].cases]
    for name in given.cases:
        if name not in known:
            parser.error(f"--cases must be of {', '.join(known)}, got {name}")
    effort = QUICK if given.quick else usual
    if given.processes is not None:
        effort = effort._replace(processes=given.processes)
    if given.rounds is not None:
        effort = effort._replace(rounds=given.rounds)
    if given.seconds is not None:
        effort = effort._replace(seconds=given.seconds, patience=max(given.seconds, effort.patience))
    if effort.rounds < 1 or effort.processes < 0:
        parser.error("--rounds must be at least 1 and --processes at least 0")
    result = run(given.suite, effort, chosen=given.cases, quick=given.quick)
    if given.out:
        write(result, given.out)
    print(table.text(result))
    wrong = any(found["wrong"] for case in result["cases"] for found in case["contenders"].values())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
