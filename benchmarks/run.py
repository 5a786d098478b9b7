"""The runner: ``python -m benchmarks.run --suite cpu --out benchmarks/results/cpu.json``. See README.md."""

from __future__ import annotations

import argparse
import fnmatch
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from . import cpu, cuda, table
from .goals import floors, verdicts
from .measure import BUSY, PASSES, QUICK, TOLERANCE, Device, Effort, Entrant, Times, measured, timed
from .record import heading, write
from .suites import CONTENDERS, FUSED, SUITES, Case, Inputs, Suite, dtype_name, inputs, truth

DEVICES: dict[str, Device] = {"cpu": cpu.DEVICE, "cuda": cuda.DEVICE}


def run(
    suite_name: str,
    effort: Effort,
    *,
    chosen: Sequence[str] = (),
    quick: bool = False,
    save: Callable[[Mapping[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """The result of a suite, or of its cases whose names fit the patterns; saved after every case."""
    suite = SUITES[suite_name]
    device = DEVICES[suite.device]
    rate = device.copy_rate()
    result: dict[str, Any] = {
        "suite": suite_name,
        "quick": quick,
        "finished": False,
        **heading(),
        "device": {**device.describe(), **({} if rate is None else {"copy_rate": rate})},
        "settings": {"tolerance": TOLERANCE, "busy": BUSY, **effort._asdict()},
        "contenders": list(suite.contenders),
        "against": {name: CONTENDERS[name].against for name in suite.contenders},
        "cases": [],
    }
    for case in suite.cases:
        if chosen and not any(fnmatch.fnmatchcase(case.name, pattern) for pattern in chosen):
            continue
        small = case.shrunk() if quick else case
        begin = time.perf_counter()
        print(f"{small.name} ...", end="", file=sys.stderr, flush=True)
        taking_part = entrants(small, suite.contenders, inputs(small, device.tensors), device)
        found = measured(
            taking_part,
            truth(small, device.tensors),
            device,
            partial(timings, small, suite, effort, device, taking_part),
        )
        result["cases"].append({**described(case, small, taking_part), "contenders": found})
        if rate is not None:
            hold_to_goals(small, found, rate, result["cases"][-1])
        print(f" {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
        save(result)
    result["finished"] = True
    save(result)
    return result


def entrants(case: Case, names: Sequence[str], given: Inputs, device: Device) -> dict[str, Entrant]:
    """Those of the contenders that take part in a case."""
    found = {}
    for name in names:
        contender = CONTENDERS[name]
        if contender.where(case):
            own = given if contender.dtype is None else given.cast(contender.dtype)
            found[name] = Entrant(contender.make(case, device.tensors), own, contender.against)
    return found


def described(case: Case, small: Case, taking_part: Mapping[str, Entrant]) -> dict[str, Any]:
    given = next(iter(taking_part.values())).inputs
    return {
        "name": case.name,
        "image": list(small.shape),
        "theta": list(given.theta.shape),
        "output": list(small.out_shape),
        "family": small.family,
        "dtype": dtype_name(small.dtype),
        "channels_last": small.channels_last,
        "way": small.way,
    }


def hold_to_goals(case: Case, found: dict[str, Any], rate: float, into: dict[str, Any]) -> None:
    """Add the floor, each contender's distance from it and share of memory, and what the goals say."""
    item = case.dtype.itemsize
    output = math.prod(case.out_shape) * item
    into["floor"] = floors(case.shape, case.out_shape, item, rate)
    for contender in found.values():
        for kind in PASSES:
            if contender[kind] is not None:
                contender[kind]["times_floor"] = contender[kind]["median"] / into["floor"][kind]
                contender[kind]["memory_share"] = contender[kind]["memory"] / output
    into["goals"] = {
        kind: verdicts(goal, found[FUSED][kind])
        for kind, goal in zip(PASSES, case.goals, strict=True)
        if FUSED in found and not found[FUSED]["absent"]
    }


def timings(
    case: Case,
    suite: Suite,
    effort: Effort,
    device: Device,
    taking_part: Mapping[str, Entrant],
    names: list[str],
) -> list[dict[str, Times]]:
    """The times of every pass, in as many fresh processes as the effort says."""
    if effort.processes == 0:
        return [timed({name: taking_part[name] for name in names}, device, case.way, effort)]
    fresh = multiprocessing.get_context("spawn")  # a forked one would inherit the heap
    found = []
    for number in range(effort.processes):
        with ProcessPoolExecutor(1, mp_context=fresh) as process:
            arguments = (case, suite.device, effort, names, number)
            found.append(process.submit(in_this_process, *arguments).result())
    return found


def in_this_process(
    case: Case, device_name: str, effort: Effort, names: list[str], number: int
) -> dict[str, Times]:
    device = DEVICES[device_name]
    taking_part = entrants(case, names, inputs(case, device.tensors), device)
    return timed(taking_part, device, case.way, effort, first=number)


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 1 where one of the library's contenders was wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Speed and memory beside PyTorch's own functions."
    )
    parser.add_argument("--suite", choices=SUITES, default="cpu")
    parser.add_argument(
        "--cases", nargs="+", default=[], metavar="NAME", help="only these, such as 256x1x28x28 or '*graph*'"
    )
    parser.add_argument("--processes", type=int, help="fresh ones for each case; 0 is this one")
    parser.add_argument("--rounds", type=int, help="at least, in each process and pass")
    parser.add_argument("--seconds", type=float, help="at least, in each process and pass")
    parser.add_argument("--out", type=Path, help="write the result here, as JSON, after every case")
    parser.add_argument("--quick", action="store_true", help="a smoke run: two rounds of shrunk cases")
    given = parser.parse_args(argv)
    suite = SUITES[given.suite]
    device = DEVICES[suite.device]
    known = [case.name for case in suite.cases]
    for pattern in given.cases:
        if not fnmatch.filter(known, pattern):
            parser.error(f"--cases must be of {', '.join(known)}, got {pattern}")
    reason = device.why_not()
    if reason is not None:
        parser.error(f"--suite {given.suite} cannot run here: {reason}")
    effort = QUICK if given.quick else device.effort
    if given.processes is not None:
        effort = effort._replace(processes=given.processes)
    if given.rounds is not None:
        effort = effort._replace(rounds=given.rounds)
    if given.seconds is not None:
        effort = effort._replace(seconds=given.seconds, patience=max(given.seconds, effort.patience))
    if effort.rounds < 1 or effort.processes < 0:
        parser.error("--rounds must be at least 1 and --processes at least 0")
    save = (lambda result: write(result, given.out)) if given.out else (lambda result: None)
    result = run(given.suite, effort, chosen=given.cases, quick=given.quick, save=save)
    print(table.text(result))
    ours = [
        found
        for case in result["cases"]
        for name, found in case["contenders"].items()
        if name.startswith("impl=")
    ]
    return 1 if any(found["wrong"] for found in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
