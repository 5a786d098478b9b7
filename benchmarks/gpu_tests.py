"""The tests on a GPU, and a record of what they gave: ``python -m benchmarks.gpu_tests``.

Takes the Python, torch and pytest that are there (pytest may lie unpacked on PYTHONPATH). Most of the time
goes into compiling kernels, one at a time in a process: with pytest-xdist as many processes share the tests
as there are processors, but for those that must be alone (they measure time, or take most of the memory).
The rest of the tests follows, with the versions that are there. These three parts are recorded one beside
the other, each with its date and commit, and ``--part`` runs one of them again. Arguments after ``--`` go to
pytest.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from . import cuda
from .record import ROOT, heading, write

OUTCOMES = ("passed", "failed", "skipped", "errors")
MOST = 2000  # characters of a failure


class Counts:
    """A plugin of pytest that counts outcomes: of all tests, and of those that need the device."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self.gpu: Counter[str] = Counter()
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        # A test is reported at set-up, call and tear-down; it passes at its call alone.
        if report.passed and report.when != "call":
            return
        outcome = "errors" if report.failed and report.when != "call" else report.outcome
        self.tests[outcome] += 1
        if "gpu" in report.keywords:
            self.gpu[outcome] += 1
        if report.failed:  # said at once: who waits for minutes wants to know
            self.failures.append(report.nodeid)
            print(f"\n{report.nodeid}\n{report.longreprtext[-MOST:]}", flush=True)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.tests["errors"] += 1
            self.failures.append(report.nodeid)


def run(arguments: Sequence[str]) -> dict[str, Any]:
    """One run of pytest, counted."""
    counts, begin = Counts(), time.perf_counter()
    status = int(pytest.main(list(arguments), plugins=[counts]))
    return {
        **heading(),
        "pytest": pytest.__version__,
        "device": cuda.describe() if cuda.why_not() is None else None,
        "arguments": list(arguments),
        "status": status,
        "seconds": round(time.perf_counter() - begin, 1),
        "tests": {outcome: counts.tests[outcome] for outcome in OUTCOMES},
        "gpu": {outcome: counts.gpu[outcome] for outcome in OUTCOMES},
        "failures": sorted(counts.failures),
    }


def parts(processes: int) -> dict[str, list[str]]:
    """What needs the device, side by side in so many processes where pytest can and then alone; the rest."""
    if processes < 2 or importlib.util.find_spec("xdist") is None:
        shared: list[str] = []
    else:
        shared = ["-n", str(processes), "--dist", "worksteal"]
    return {
        "together": ["-m", "gpu and not alone", *shared],
        "alone": ["-m", "alone"],
        "elsewhere": ["-m", "not gpu and not slow and not network", *shared],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The worst of pytest's statuses; 2 where there is no device."""
    known = parts(processes=1)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_tests", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu_tests.json")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that share the tests")
    parser.add_argument("--part", choices=known, help="this alone; the record keeps the others as they were")
    parser.add_argument("pytest", nargs="*", default=[], help="arguments of pytest, after --")
    given = parser.parse_args(argv)
    reason = cuda.why_not()
    if reason is not None:
        parser.error(reason)
    wanted = [given.part] if given.part else list(known)
    before = json.loads(given.out.read_text()) if given.part and given.out.exists() else {}
    found = dict(before)
    for part in wanted:
        found[part] = run([*parts(given.processes)[part], *given.pytest])
        write(found, given.out)  # what has been seen is not lost with what follows
        print(f"{part}: {found[part]['tests']}, of them on the device {found[part]['gpu']}")
    return max(found[part]["status"] for part in wanted)


if __name__ == "__main__":
    sys.exit(main())
