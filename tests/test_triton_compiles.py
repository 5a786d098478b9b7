"""The Triton kernels compile for a GPU: no GPU is needed for that, and the interpreter does not tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("compile_kernels.py")


@pytest.mark.slow
def test_every_kernel_compiles():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    fast, rest = ([line.split() for line in part.splitlines()] for part in run.stdout.split("the others\n"))
    assert {name for name, *_ in fast} == {name for name, *_ in rest} == {"_forward", "_gather", "_backward"}
    assert (len(fast), len(rest)) == (24, 20)
    # Registers that spill to memory are what a change must not bring in where speed counts.
    assert not [(name, int(stack)) for name, _, stack in fast if int(stack) > 0]
