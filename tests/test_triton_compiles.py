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
    fused, convolutions = run.stdout.split("convolutions\n")
    convolutions, numbers = convolutions.split("random numbers\n")
    numbers, descent = numbers.split("descent\n")
    descent, norms = descent.split("norms\n")
    norms, depthwise = norms.split("depthwise\n")
    fast, rest, convolutions, numbers, descent, norms, depthwise = (
        [line.split() for line in part.splitlines()]
        for part in (*fused.split("the others\n"), convolutions, numbers, descent, norms, depthwise)
    )
    assert {name for name, *_ in fast} == {name for name, *_ in rest} == {"_forward", "_gather", "_backward"}
    assert (len(fast), len(rest)) == (24, 20)
    assert {name for name, *_ in convolutions} == kernels_of_convolutions()
    assert [name for name, *_ in numbers] == ["_uniform"]
    assert [name for name, *_ in descent] == ["_judged", "_descend"]
    of_norms = {"_statistics", "_followed", "_normalised", "_sums", "_summed", "_gradient"}
    assert {name for name, *_ in norms} == of_norms
    assert {name for name, *_ in depthwise} == {"_convolved", "_spread", "_correlated", "_summed"}
    # Registers that spill to memory are what a change must not bring in where speed counts.
    counted = (*fast, *convolutions, *descent, *norms, *depthwise)
    assert not [(name, int(stack)) for name, _, stack in counted if int(stack) > 0]


def kernels_of_convolutions() -> set[str]:
    """Those that start programs, by their names."""
    from spatial_transformer.experiments import fast_convolutions_triton

    return {
        name for name in vars(fast_convolutions_triton) if name.startswith(("_one_channel", "_many_channels"))
    }
