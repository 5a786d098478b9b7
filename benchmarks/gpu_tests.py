"""The tests on a GPU, and a record of what they gave: ``python -m benchmarks.gpu_tests``.

Takes the Python, torch and pytest that are there (pytest may lie unpacked on PYTHONPATH). Arguments after
``--`` go to pytest.
"""

from __future__ import annotations

import argparse
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
SELECTED = ("-m", "(gpu or not slow) and not network")


class Counts:
    """A plugin of pytest that counts outcomes: of all tests, and of those that need the device."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self.gpu: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        # A test is reported at set-up, call and tear-down; it passes at its call alone.
        if report.passed and report.when != "call":
            return
        outcome = "errors" if report.failed and report.when != "call" else report.outcome
        self.tests[outcome] += 1
        if "gpu" in report.keywords:
            self.gpu[outcome] += 1

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.tests["errors"] += 1


def run(arguments: Sequence[str]) -> dict[str, Any]:
    counts, begin = Counts(), time.perf_counter()
    status = int(pytest.main([*arguments], plugins=[counts]))
    return {
        **heading(),
        "pytest": pytest.__version__,
        "device": cuda.describe() if cuda.why_not() is None else None,
        "arguments": list(arguments),
        "status": status,
        "seconds": round(time.perf_counter() - begin, 1),
        "tests": {outcome: counts.tests[outcome] for outcome in OUTCOMES},
        "gpu": {outcome: counts.gpu[outcome] for outcome in OUTCOMES},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """pytest's status; 2 where there is no device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_tests", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu_tests.json")
    parser.add_argument("pytest", nargs="*", default=[], help="arguments of pytest, after --")
    given = parser.parse_args(argv)
    reason = cuda.why_not()
    if reason is not None:
        parser.error(reason)
    result = run([*SELECTED, *given.pytest])
    write(result, given.out)
    print(f"{given.out}: {result['tests']}, of them on the device {result['gpu']}")
    return int(result["status"])


if __name__ == "__main__":
    sys.exit(main())
