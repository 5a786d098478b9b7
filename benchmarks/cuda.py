"""What is particular to CUDA devices: events and graphs, the allocator's peak, the copy rate."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .measure import Call, Device, Effort, Inputs, Turn, storages

ROW = 1e-3  # seconds of calls in a row between two events, so that the events' own time does not count
MOST = 16  # calls in such a row
READINGS = 50  # rows in a turn, at most
IN_GRAPH = 64  # calls in a captured graph
STEPS = 50  # calls from Python between looks at the clock

# The host has to be ahead of the device, or its launches are timed. A row waits behind a kernel that spins
# for longer than the host needs to enqueue the row.
CYCLES = 2.0e9  # a second of spinning: no clock here is faster
SLACK = 50e-6
LONGEST = 0.05
LATE = 20  # rows of a turn that may be found not enqueued: the spinning doubles each time

SETS = 64  # copies of the inputs at most
BEYOND_CACHE = 3  # they fill the second-level cache so many times

COPY = 2**30  # bytes copied to find the copy rate

BLOCK = 512  # bytes that the allocator rounds up to


def why_not() -> str | None:
    return None if torch.cuda.is_available() else "there is no CUDA device"


def properties() -> Any:
    return torch.cuda.get_device_properties(torch.cuda.current_device())


def describe() -> dict[str, Any]:
    found = properties()
    return {
        "type": "cuda",
        "name": found.name,
        "memory": found.total_memory,
        "multiprocessors": found.multi_processor_count,
        "second_level_cache": found.L2_cache_size,
        "capability": f"{found.major}.{found.minor}",
        "cuda": torch.version.cuda,
    }


def sets(inputs: Inputs) -> int:
    """Copies that the second-level cache cannot hold: or it would serve small cases, and large ones not."""
    held = sum(tensor.numel() * tensor.element_size() for tensor in inputs)
    return max(2, min(SETS, math.ceil(BEYOND_CACHE * properties().L2_cache_size / held)))


# Ways of timing


def in_rows(calls: Sequence[Callable[[], Any]], each: int = 1) -> Turn:
    """The device's own time, by events around rows of calls that it finds enqueued.

    ``each``: how many of what is timed one call holds.
    """
    around = itertools.cycle(calls)
    for call in calls:
        call()
    torch.cuda.synchronize()
    row = max(1, min(MOST, int(ROW / trial(around, len(calls))[1])))
    cover = min(LONGEST, SLACK + 2 * trial(around, row)[0])

    def reading() -> float | None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(cover * CYCLES))
        start.record()
        for _ in range(row):
            next(around)()
        end.record()
        late = start.query()  # the device has begun before the host was done
        end.synchronize()
        return None if late else start.elapsed_time(end) * 1e-3 / row / each

    def turn(least: float) -> float:
        nonlocal cover
        found: list[float] = []
        late = 0
        begin = time.perf_counter()
        while not found or (len(found) < READINGS and time.perf_counter() - begin < least):
            seconds = reading()
            if seconds is not None:
                found.append(seconds)
                continue
            late += 1
            if late > LATE:
                raise RuntimeError("the device never finds calls enqueued: do they wait for it?")
            cover = min(LONGEST, 2 * cover)
        return statistics.median(found)

    turn(0.0)  # a contender that cannot be timed so fails here, and not amid the others
    return turn


def trial(around: Any, count: int) -> tuple[float, float]:
    """Seconds that the host needs to launch so many calls, and seconds a call until all are done."""
    begin = time.perf_counter()
    for _ in range(count):
        next(around)()
    launched = time.perf_counter()
    torch.cuda.synchronize()
    return launched - begin, (time.perf_counter() - begin) / count


def in_graph(calls: Sequence[Call]) -> Turn:
    """The same for replays of a graph that holds many calls: no launches from Python at all."""
    return in_rows([captured(calls, IN_GRAPH)], each=IN_GRAPH)


def captured(calls: Sequence[Call], count: int) -> Callable[[], None]:
    """A replay of ``count`` calls, checked to give what the last of them gives by itself."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # whatever is compiled, tuned or kept at first calls is, before the capture
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    returned: tuple[Tensor, ...] = ()
    with torch.cuda.graph(graph):
        for number in range(count):
            returned = calls[number % len(calls)]()
    graph.replay()
    for found, wanted in zip(returned, calls[(count - 1) % len(calls)](), strict=True):
        # Sums by atomics differ in their order; a graph that misses a kernel differs altogether.
        if not (found - wanted).abs().max() <= 1e-2 * wanted.abs().max():
            raise RuntimeError("a replayed graph gives something else")
    return keeping(graph.replay, calls)


def keeping(replay: Callable[[], None], owners: object) -> Callable[[], None]:
    """A replay that keeps those alive who own what its graph reads: the next capture frees unused memory."""

    def kept() -> None:
        replay()

    kept.owners = owners  # type: ignore[attr-defined]
    return kept


def from_python(calls: Sequence[Call]) -> Turn:
    """The wall clock's time of calls one after the other, the device waited for at the end alone."""
    around = itertools.cycle(calls)
    for call in calls:
        call()
    torch.cuda.synchronize()

    def turn(least: float) -> float:
        begin, count = time.perf_counter(), 0
        while count == 0 or time.perf_counter() - begin < least:
            for _ in range(STEPS):
                next(around)()
            count += STEPS
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count

    return turn


WAYS: dict[str, Callable[[Sequence[Call]], Turn]] = {
    "calls": in_rows,
    "graph": in_graph,
    "python": from_python,
}


def prepare(way: str, calls: Sequence[Call]) -> Turn:
    return WAYS[way](calls)


# Memory


def peak(call: Call) -> int:
    """The most bytes that torch's allocator holds at once beyond the call's inputs and what it returns."""
    call()  # so that what is made once and kept is not counted
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    returned = call()
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated() - before
    return most - sum(-(-storage.nbytes() // BLOCK) * BLOCK for storage in storages(returned))


def copy_rate() -> float:
    """Bytes a second that a large copy within the device reads and writes together."""
    size = min(COPY, torch.cuda.mem_get_info()[0] // 8)
    source = torch.zeros(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / in_rows([lambda: target.copy_(source)])(0.1)


DEVICE = Device(
    tensors="cuda",
    effort=Effort(processes=0, rounds=12, seconds=0.0, patience=10.0, turn=0.01),
    why_not=why_not,
    describe=describe,
    sets=sets,
    prepare=prepare,
    peak=peak,
    busy=lambda: None,  # whoever uses the processors does not disturb the device
    copy_rate=copy_rate,
)
