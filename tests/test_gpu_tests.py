"""``benchmarks.gpu_tests``: the tests on a GPU, counted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_tests


def test_outcomes_are_counted(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(
        """
import pytest
gpu = pytest.mark.gpu

@pytest.fixture
def broken():
    raise ValueError

@gpu
@pytest.mark.parametrize("n", range(3))
def test_passes(n): pass

def test_passes_too(): pass

@gpu
def test_fails(): assert False

@gpu
@pytest.mark.skip(reason="why not")
def test_skips(): pass

def test_breaks(broken): pass
"""
    )
    plain = ["-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-p", "no:warnings"]
    found = gpu_tests.run([*plain, str(file)])
    assert found["tests"] == {"passed": 4, "failed": 1, "skipped": 1, "errors": 1}
    assert found["gpu"] == {"passed": 3, "failed": 1, "skipped": 1, "errors": 0}
    assert found["status"] == 1
    assert [name.split("::")[1] for name in found["failures"]] == ["test_breaks", "test_fails"]
    assert found["versions"]["torch"] == torch.__version__
    json.dumps(found, allow_nan=False)


def test_tests_that_must_be_alone_are(monkeypatch: pytest.MonkeyPatch) -> None:
    together, alone, elsewhere = gpu_tests.parts(processes=8).values()
    assert together == ["-m", "gpu and not alone", "-n", "8", "--dist", "worksteal"]
    assert alone == ["-m", "alone"]
    assert elsewhere == ["-m", "not gpu and not slow and not network", "-n", "8", "--dist", "worksteal"]
    assert gpu_tests.parts(processes=1)["together"] == together[:2]
    monkeypatch.setattr(gpu_tests.importlib.util, "find_spec", lambda name: None)
    assert gpu_tests.parts(processes=8)["together"] == together[:2]


def test_a_part_is_run_again_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, statuses = tmp_path / "gpu_tests.json", iter([0, 1, 0, 0])

    def run(arguments: list[str]) -> dict[str, Any]:
        return {"status": next(statuses), "arguments": arguments, "tests": {}, "gpu": {}}

    monkeypatch.setattr(gpu_tests, "run", run)
    monkeypatch.setattr(gpu_tests.cuda, "why_not", lambda: None)
    assert gpu_tests.main(["--out", str(out), "--", "-x"]) == 1
    first = json.loads(out.read_text())
    assert {part: first[part]["status"] for part in first} == {"together": 0, "alone": 1, "elsewhere": 0}
    assert all(first[part]["arguments"][-1] == "-x" for part in first)
    assert gpu_tests.main(["--out", str(out), "--part", "alone"]) == 0
    second = json.loads(out.read_text())
    assert second["together"] == first["together"]
    assert second["alone"]["status"] == 0
