"""How it is measured: errors first, then interleaved times, then memory; on any ``Device``."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .suites import Function, Inputs

# The greatest difference from the truth that still counts as right, as a share of the truth's greatest value.
# The float32 methods here stay below 6e-4 (the image's gradient at 1024 pixels); a shift by one pixel there
# is 1e-2. Half precision adds the one rounding of what is returned.
TOLERANCE = 1e-3

# A round during which other processes used more processors than this does not count: two threads that wait
# for one another on a shared processor lose whole scheduler ticks, and who waits more often loses more.
BUSY = 0.15

# The system counts the time of other processes in ticks of 0.01 s: shorter rounds than this cannot tell.
TELLING = 0.1

RESAMPLES = 1000  # of processes and rounds, for the ratio's interval

# Values that the truth is computed for at once. It keeps some thirty float64 tensors of that size.
AT_ONCE = 2**24

Call = Callable[[], tuple[Tensor, ...]]
Turn = Callable[[float], float]  # the least seconds of a turn -> seconds a call


# What is called


def forward(function: Function, inputs: Inputs) -> Call:
    image, theta, _ = inputs

    def call() -> tuple[Tensor, ...]:
        return (function(image, theta),)

    return call


def forward_backward(function: Function, inputs: Inputs) -> Call:
    """Output, and the gradients of image and theta."""
    image, theta = inputs.image.detach().requires_grad_(), inputs.theta.detach().requires_grad_()

    def call() -> tuple[Tensor, ...]:
        output = function(image, theta)
        return (output.detach(), *torch.autograd.grad(output, (image, theta), inputs.cotangent))

    return call


PASSES: dict[str, Callable[[Function, Inputs], Call]] = {
    "forward": forward,
    "forward + backward": forward_backward,
}


class Entrant(NamedTuple):
    """A contender in one case."""

    function: Function
    inputs: Inputs
    against: tuple[str, ...]  # divided by the fastest of these that is right


class Effort(NamedTuple):
    """How long each case and pass is measured."""

    processes: int = 5  # fresh ones, one after the other; 0 is this process
    rounds: int = 10  # in each process at least so many that count
    seconds: float = 2.0  # and at least so long
    patience: float = 20.0  # but no longer, however few rounds were left in peace
    turn: float = 0.1  # the least length of a contender's turn in a round


QUICK = Effort(processes=0, rounds=2, seconds=0.0, patience=0.0, turn=0.0)


class Device(NamedTuple):
    """What differs between devices."""

    tensors: str  # where they are
    effort: Effort
    why_not: Callable[[], str | None]  # a sentence that says why it cannot be measured here, or None
    describe: Callable[[], dict[str, Any]]
    sets: Callable[[Inputs], int]  # how many copies of the inputs calls go through in turn
    prepare: Callable[[str, Sequence[Call]], Turn]  # a way of timing, and a call for each set
    peak: Callable[[Call], int]  # bytes beyond inputs and results
    busy: Callable[[], float | None]  # processor seconds spent elsewhere, where that is known and matters
    copy_rate: Callable[[], float | None]  # bytes a second, read and written


# Whether it is right


def exact(truth: Function, inputs: Inputs) -> tuple[Tensor, ...]:
    """Output and gradients in float64, some images at a time."""
    largest = max(math.prod(inputs.image.shape[1:]), math.prod(inputs.cotangent.shape[1:]))
    pieces = zip(*(tensor.split(max(1, AT_ONCE // largest)) for tensor in inputs), strict=True)
    found = [forward_backward(truth, Inputs(*(t.to(torch.float64) for t in piece)))() for piece in pieces]
    return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


def errors(found: Sequence[Tensor], expected: Sequence[Tensor]) -> dict[str, float]:
    """The greatest difference of each result from the truth, as a share of the truth's greatest value."""
    names = ("output", "image's gradient", "theta's gradient")
    return {
        name: float((got.to(want.dtype) - want).abs().max() / want.abs().max())
        for name, got, want in zip(names, found, expected, strict=True)
    }


def tolerance(dtype: torch.dtype) -> float:
    """For results that the image's dtype holds: rounding to it moves a value by half its epsilon at most."""
    return TOLERANCE + (torch.finfo(dtype).eps / 2 if torch.finfo(dtype).bits < 32 else 0.0)


def why_wrong(found: Mapping[str, float], limit: float = TOLERANCE) -> str | None:
    """A sentence that says why a contender gets no speed, or None where it is right."""
    for name, error in found.items():
        if not error <= limit:  # NaN is wrong too
            return f"{name} is off by {error:.1e}, more than {limit:.0e}"
    return None


# How fast


class Times(NamedTuple):
    """Seconds a call in one process, by contender and round, and what else the machine did meanwhile."""

    seconds: dict[str, list[float]]
    dropped: int  # rounds that do not count
    others: float | None  # processors kept busy by other processes in those that do; None where not known
    failed: dict[str, str]  # contenders that could not be timed, and why


def order(names: Sequence[str], number: int) -> list[str]:
    """Who goes first changes every round, so that nobody always inherits the other's caches and heap."""
    return list(names) if number % 2 == 0 else list(reversed(names))


def interleaved(
    turns: Mapping[str, Turn], effort: Effort, busy: Callable[[], float | None], *, first: int = 0
) -> Times:
    """Rounds in which each contender takes its turn, counted from ``first``.

    Rounds disturbed by other processes are dropped whole, whatever their times. Where patience ends first,
    all count, and ``others`` tells.
    """
    names = list(turns)
    for name in names:
        turns[name](effort.turn)
    rounds: list[tuple[dict[str, float], float | None]] = []
    peaceful = 0
    gc.disable()  # as timeit does
    try:
        begin = time.perf_counter()
        while True:
            start, before = time.perf_counter(), busy()
            times = {name: turns[name](effort.turn) for name in order(names, first + len(rounds))}
            now, after = time.perf_counter(), busy()
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
        {},
    )


def timed(
    entrants: Mapping[str, Entrant], device: Device, way: str, effort: Effort, *, first: int = 0
) -> dict[str, Times]:
    """The times of every pass, in this process."""
    sets: dict[torch.dtype, list[Inputs]] = {}
    for _, inputs, _ in entrants.values():
        if inputs.image.dtype not in sets:
            more = range(device.sets(inputs) - 1)
            sets[inputs.image.dtype] = [inputs, *(Inputs(*(t.clone() for t in inputs)) for _ in more)]
    found = {}
    for kind, make in PASSES.items():
        turns, failed = {}, {}
        for name, (function, inputs, _) in entrants.items():
            try:
                calls = [make(function, one) for one in sets[inputs.image.dtype]]
                turns[name] = device.prepare(way, calls)
            except Exception as failure:  # it stays in the table, with its reason
                failed[name] = sentence(failure)
        times = interleaved(turns, effort, device.busy, first=first) if turns else Times({}, 0, None, {})
        found[kind] = times._replace(failed=failed)
    return found


def sentence(failure: Exception) -> str:
    return f"{type(failure).__name__}: {' '.join(str(failure).split())[:500]}"


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


def storages(tensors: Sequence[Tensor]) -> list[torch.UntypedStorage]:
    """The memory behind tensors, each piece once."""
    return list({t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}.values())


# All of it


def measured(
    entrants: Mapping[str, Entrant],
    truth: Function,
    device: Device,
    timings: Callable[[list[str]], list[dict[str, Times]]],
) -> dict[str, Any]:
    """One case: for each contender its errors and, where it is right, its time, speed and memory.

    ``timings`` takes the names of those that are right, and gives the times of every pass in each process.
    """
    expected: dict[torch.dtype, tuple[Tensor, ...]] = {}  # of the inputs as each dtype rounds them
    found: dict[str, Any] = {}
    for name, (function, inputs, _) in entrants.items():
        dtype = inputs.image.dtype
        found[name] = {"errors": None, "absent": None, "wrong": None, **dict.fromkeys(PASSES)}
        if dtype not in expected:
            expected[dtype] = exact(truth, inputs)
        try:
            off = errors(forward_backward(function, inputs)(), expected[dtype])
            found[name]["wrong"] = why_wrong(off, tolerance(dtype))
            found[name]["errors"] = {what: e if math.isfinite(e) else None for what, e in off.items()}
        except Exception as failure:  # a contender that cannot run stays in the table, with its reason
            # An implementation that says itself why it cannot run is no mistake of this version.
            kind = "absent" if " cannot run here: " in str(failure) else "wrong"
            found[name][kind] = sentence(failure)
    del expected
    right = [name for name in entrants if not (found[name]["wrong"] or found[name]["absent"])]
    if not right:
        return found
    processes = timings(right)
    for process in processes:
        for times in process.values():
            for name, reason in times.failed.items():
                found[name]["wrong"] = reason
    right = [name for name in right if not found[name]["wrong"]]
    for kind, make in PASSES.items():
        times = [process[kind] for process in processes]
        others = [process.others for process in times if process.others is not None]
        seconds = {name: [process.seconds[name] for process in times] for name in right}
        middle = {
            name: quartiles([value for rounds in several for value in rounds])
            for name, several in seconds.items()
        }
        for name in right:
            low, median, high = middle[name]
            peers = [peer for peer in entrants[name].against if peer in right]
            peer = min(peers, key=lambda peer: middle[peer][1], default=None)
            ratio, interval = (None, None) if peer is None else speed(seconds[peer], seconds[name])
            found[name][kind] = {
                "median": median,
                "quartiles": [low, high],
                "processes": [quartiles(rounds)[1] for rounds in seconds[name]],
                "rounds": sum(map(len, seconds[name])),
                "dropped": sum(process.dropped for process in times),
                "others": max(others, default=None),
                "against": peer,
                "speed": ratio,
                "interval": interval,
                "memory": device.peak(make(entrants[name].function, entrants[name].inputs)),
            }
    return found
