"""Which blocks suit the fast convolutions' kernels: ``python -m benchmarks.convolution_blocks``, on a GPU.

For each case, what every kernel of a step takes, and then the step with other blocks of one kernel at a time,
the fastest first. What is found goes into the constants of ``fast_convolutions_triton`` by hand.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from spatial_transformer.experiments import fast_convolutions

from . import cuda
from .convolutions import CASES, IN_GRAPH, Case, call, contenders, inputs
from .measure import Call, sentence

TURN = 0.01  # seconds that a candidate is timed for

ONE = ("ONE_FORWARD", "ONE_WEIGHTS", "ONE_PATCHES")
MANY = ("MANY_FORWARD", "MANY_WEIGHTS")


def candidates(name: str, now: Any) -> Iterator[Any]:
    """Other blocks for a kernel, the present ones among them."""
    depths, stages = ((64, 128), (2, 3)) if name in MANY else ((now.depth,), (1, 2, 3))
    for rows, depth, warps, ahead in itertools.product((64, 128), depths, (4, 8), stages):
        yield now._replace(rows=rows, depth=depth, warps=warps, stages=ahead)


def has_blocks(case: Case) -> bool:
    """Of a few channels, and of those that pad, the products are libraries'."""
    return case.methods[0] in ("one channel", "implicit")


def step(case: Case) -> Call:
    name = f"ours, {case.methods[0]}"
    return call(case, name, contenders(case)[name], inputs(case, "cuda"), True)


def seconds(one: Call) -> float:
    return cuda.in_rows([cuda.captured([one], IN_GRAPH)], each=IN_GRAPH)(TURN)


def by_kernel(one: Call) -> dict[str, float]:
    """Microseconds of every kernel of a step, by name, as the profiler sees them."""
    for _ in range(3):
        one()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(20):
            one()
        torch.cuda.synchronize()
    found = {event.key: event.device_time_total / 20 for event in profiler.key_averages()}
    return {name: time for name, time in found.items() if time > 0}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convolution_blocks")
    parser.add_argument("--only", default="", help="the cases whose name and size contain this")
    parser.add_argument("--profile", action="store_true", help="no other blocks")
    given = parser.parse_args(argv)
    reason = cuda.why_not()
    if reason is not None:
        parser.error(reason)
    kernels = fast_convolutions.kernels()
    for case in CASES:
        if given.only not in f"{case.name} {case.size}" or not has_blocks(case):
            continue
        one = step(case)
        print(f"\n{case}\n  a step: {seconds(one) * 1e6:.1f} us", flush=True)
        for name, time in sorted(by_kernel(one).items(), key=lambda pair: -pair[1]):
            print(f"  {time:8.1f} us  {name[:90]}", flush=True)
        for name in () if given.profile else ONE if case.inputs == 1 else MANY:
            now = getattr(kernels, name)
            found = []
            for blocks in candidates(name, now):
                setattr(kernels, name, blocks)
                try:
                    found.append((seconds(one), blocks))
                except Exception as failure:  # too much shared memory, for example
                    print(f"  {name} {tuple(blocks)}: {sentence(failure)[:100]}", flush=True)
            setattr(kernels, name, now)
            for time, blocks in sorted(found)[:5]:
                mark = " (now)" if blocks == now else ""
                print(f"  {name}: {time * 1e6:.1f} us with {blocks}{mark}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
