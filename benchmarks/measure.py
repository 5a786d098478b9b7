"""How it is measured: errors first, then interleaved times, then memory counted by the allocator."""

from __future__ import annotations

import gc
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from .suites import PEER, Contender, Inputs

# The greatest difference from the truth that still counts as right, as a share of the truth's greatest value.
# The float32 methods here stay below 6e-4 (the image's gradient at 1024 pixels); a shift by one pixel there
# is 1e-2.
TOLERANCE = 1e-3

# A round during which other processes used more processors than this does not count: two threads that wait
# for one another on a shared processor lose whole scheduler ticks, and who waits more often loses more.
BUSY = 0.15

# The system counts the time of other processes in ticks of 0.01 s: shorter rounds than this cannot tell.
TELLING = 0.1

RESAMPLES = 1000  # of processes and rounds, for the ratio's interval

Call = Callable[[], tuple[Tensor, ...]]


# What is called


def forward(contender: Contender, inputs: Inputs) -> Call:
    image, theta, _ = inputs

    def call() -> tuple[Tensor, ...]:
        return (contender(image, theta),)

    return call


def forward_backward(contender: Contender, inputs: Inputs) -> Call:
    """Output, and the gradients of image and theta."""
    image, theta = inputs.image.detach().requires_grad_(), inputs.theta.detach().requires_grad_()

    def call() -> tuple[Tensor, ...]:
        output = contender(image, theta)
        return (output.detach(), *torch.autograd.grad(output, (image, theta), inputs.cotangent))

    return call


PASSES: dict[str, Callable[[Contender, Inputs], Call]] = {
    "forward": forward,
    "forward + backward": forward_backward,
}


# Whether it is right


def errors(contender: Contender, inputs: Inputs, expected: Sequence[Tensor]) -> dict[str, float]:
    """The greatest difference of each result from the truth, as a share of the truth's greatest value."""
    found = forward_backward(contender, inputs)()
    names = ("output", "image's gradient", "theta's gradient")
    return {
        name: float((got.to(want.dtype) - want).abs().max() / want.abs().max())
        for name, got, want in zip(names, found, expected, strict=True)
    }


def why_wrong(found: Mapping[str, float]) -> str | None:
    """A sentence that says why a contender gets no speed, or None where it is right."""
    for name, error in found.items():
        if not error <= TOLERANCE:  # NaN is wrong too
            return f"{name} is off by {error:.1e}, more than {TOLERANCE:.0e}"
    return None


# How fast


class Effort(NamedTuple):
    """How long each case and pass is measured."""

    processes: int = 5  # fresh ones, one after the other; 0 is this process
    rounds: int = 10  # in each process at least so many that count
    seconds: float = 2.0  # and at least so long
    patience: float = 20.0  # but no longer, however few rounds were left in peace
    turn: float = 0.1  # the least length of a contender's turn in a round


QUICK = Effort(processes=0, rounds=2, seconds=0.0, patience=0.0, turn=0.0)


class Times(NamedTuple):
    """Seconds a call in one process, by contender and round, and what else the machine did meanwhile."""

    seconds: dict[str, list[float]]
    dropped: int  # rounds that do not count
    others: float | None  # processors kept busy by other processes in those that do; None where not known


def order(names: Sequence[str], number: int) -> list[str]:
    """Who goes first changes every round, so that nobody always inherits the other's caches and heap."""
    return list(names) if number % 2 == 0 else list(reversed(names))


def interleaved(calls: Mapping[str, Call], effort: Effort, *, first: int = 0) -> Times:
    """Rounds in which each contender takes its turn, counted from ``first``.

    Rounds disturbed by other processes are dropped whole, whatever their times. Where patience ends first,
    all count, and ``others`` tells.
    """
    names = list(calls)
    for name in names:
        turn(calls[name], effort.turn)
    rounds: list[tuple[dict[str, float], float | None]] = []
    peaceful = 0
    gc.disable()  # as timeit does
    try:
        begin = time.perf_counter()
        while True:
            start, before = time.perf_counter(), busy_elsewhere()
            times = {name: turn(calls[name], effort.turn) for name in order(names, first + len(rounds))}
            now, after = time.perf_counter(), busy_elsewhere()
            others = None
            if before is not None and after is not None and now - start >= TELLING:
                others = max(0.0, (after - before) / (now - start))
            rounds.append((times, others))
            peaceful += others is None or others <= BUSY
            wanted = peaceful < effort.rounds or now - begin < effort.seconds
            if len(rounds) >= effort.rounds and (not wanted or now - begin >= effort.patience):
                break
    finally:
        gc.enable()
    kept = [(times, others) for times, others in rounds if others is None or others <= BUSY]
    if len(kept) < effort.rounds:
        kept = rounds
    known = [others for _, others in kept if others is not None]
    return Times(
        {name: [times[name] for times, _ in kept] for name in names},
        len(rounds) - len(kept),
        float(np.mean(known)) if known else None,
    )


def turn(call: Call, least: float) -> float:
    """Seconds a call, over as many calls as fill the turn."""
    start, count = time.perf_counter(), 0
    while True:
        call()
        count += 1
        elapsed = time.perf_counter() - start
        if elapsed >= least:
            return elapsed / count


def busy_elsewhere() -> float | None:
    """Processor seconds that this machine has spent on other processes, where the system tells (Linux)."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return busy - time.process_time()


def timed(
    inputs: Inputs, contenders: Mapping[str, Contender], effort: Effort, *, first: int = 0
) -> dict[str, Times]:
    """The times of every pass, in this process."""
    return {
        kind: interleaved({name: make(c, inputs) for name, c in contenders.items()}, effort, first=first)
        for kind, make in PASSES.items()
    }


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float(low), float(middle), float(high)


def speed(
    peer: Sequence[Sequence[float]], ours: Sequence[Sequence[float]]
) -> tuple[float, tuple[float, float]]:
    """The peer's median time over ours (above 1: we are faster), and its 95 % interval. [process][round]

    The interval is a bootstrap: processes are drawn, then rounds of each, since rounds of one process share
    its luck with memory. The two times of a round are drawn together: what load they share cancels.
    """
    processes = [np.array(both) for both in zip(peer, ours, strict=True)]  # each [2, rounds]
    generator = np.random.default_rng(0)

    def ratio(chosen: Sequence[np.ndarray[Any, Any]]) -> float:
        middle = np.median(np.concatenate(chosen, axis=1), axis=1)
        return float(middle[0] / middle[1])

    drawn = []
    for _ in range(RESAMPLES):
        some = [processes[i] for i in generator.integers(len(processes), size=len(processes))]
        drawn.append(ratio([both[:, generator.integers(both.shape[1], size=both.shape[1])] for both in some]))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return ratio(processes), (float(low), float(high))


# How much memory


def cpu_peak(call: Call) -> int:
    """The most bytes that the call holds at once beyond its inputs and what it returns.

    Counted by torch's own CPU allocator, which reports every allocation and its running total to the
    profiler: exact and the same on every run, which the resident set's size is not. What libraries allocate
    by themselves is not seen.
    """
    call()  # so that what is made once and kept is not counted
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        returned = call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    reports = [event["args"] for event in events if event.get("name") == "[memory]"]
    reports = [report for report in reports if report["Device Type"] == 0]  # the CPU
    if not reports:
        return 0
    first = min(reports, key=lambda report: int(report["Ev Idx"]))
    before = first["Total Allocated"] - first["Bytes"]
    peak = int(max(report["Total Allocated"] for report in reports) - before)
    return peak - sum(storage.nbytes() for storage in storages(returned))


def storages(tensors: Sequence[Tensor]) -> list[torch.UntypedStorage]:
    """The memory behind tensors, each piece once."""
    return list({t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}.values())


# On what


def cpu_description() -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "type": "cpu",
        "name": name,
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


class Device(NamedTuple):
    describe: Callable[[], dict[str, Any]]
    peak: Callable[[Call], int]


DEVICES = {"cpu": Device(cpu_description, cpu_peak)}


# All of it


def measured(
    inputs: Inputs,
    contenders: Mapping[str, Contender],
    truth: Contender,
    device: Device,
    timings: Callable[[list[str]], list[dict[str, Times]]],
) -> dict[str, Any]:
    """One case: for each contender its errors and, where it is right, its time, speed and memory.

    ``timings`` takes the names of those that are right, and gives the times of every pass in each process.
    """
    precise = Inputs(*(tensor.to(torch.float64) for tensor in inputs))
    expected = forward_backward(truth, precise)()
    found: dict[str, Any] = {}
    for name, contender in contenders.items():
        found[name] = {"errors": None, "wrong": None, **dict.fromkeys(PASSES)}
        try:
            off = errors(contender, inputs, expected)
            found[name]["wrong"] = why_wrong(off)
            found[name]["errors"] = {what: e if math.isfinite(e) else None for what, e in off.items()}
        except Exception as failure:  # a contender that cannot run stays in the table, with its reason
            found[name]["wrong"] = f"{type(failure).__name__}: {failure}"
    del expected, precise
    right = [name for name in contenders if found[name]["wrong"] is None]
    if not right:
        return found
    processes = timings(right)
    for kind, make in PASSES.items():
        times = [process[kind] for process in processes]
        others = [process.others for process in times if process.others is not None]
        for name in right:
            seconds = [process.seconds[name] for process in times]
            low, median, high = quartiles([value for rounds in seconds for value in rounds])
            ratio, interval = None, None
            if PEER in right and name != PEER:
                ratio, interval = speed([process.seconds[PEER] for process in times], seconds)
            found[name][kind] = {
                "median": median,
                "quartiles": [low, high],
                "processes": [quartiles(rounds)[1] for rounds in seconds],
                "rounds": sum(map(len, seconds)),
                "dropped": sum(process.dropped for process in times),
                "others": max(others, default=None),
                "speed": ratio,
                "interval": interval,
                "memory": device.peak(make(contenders[name], inputs)),
            }
    return found
