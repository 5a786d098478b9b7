"""How the benchmarks time a GPU, on clocks that are made up."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import cuda, measure


class Gpu:
    """A host and a device with clocks of their own, in place of ``torch.cuda``."""

    def __init__(self, launch: float, kernel: float) -> None:
        self.launch, self.kernel = launch, kernel
        self.host = self.device = 0.0  # now, and when the device will have done what was enqueued
        self.recorded: list[float] | None = None  # kernels in the graph that is being captured
        self.Stream = self.current_stream = lambda: SimpleNamespace(wait_stream=lambda other: None)
        self.stream = lambda stream: contextlib.nullcontext()

    def call(self) -> tuple[Tensor, ...]:
        self.host += self.launch
        if self.recorded is None:
            self.enqueue(self.kernel)
        else:
            self.recorded.append(self.kernel)
        return (torch.ones(2),)

    def enqueue(self, seconds: float) -> None:
        self.device = max(self.device, self.host) + seconds

    def _sleep(self, cycles: int) -> None:
        self.enqueue(cycles / cuda.CYCLES)

    def synchronize(self) -> None:
        self.host = max(self.host, self.device)

    def Event(self, enable_timing: bool) -> Any:
        assert enable_timing
        event = SimpleNamespace(at=0.0)

        def record() -> None:
            event.at = max(self.device, self.host)

        def wait() -> None:
            self.host = max(self.host, event.at)

        event.record, event.synchronize = record, wait
        event.query = lambda: self.host >= event.at
        event.elapsed_time = lambda end: 1e3 * (end.at - event.at)
        return event

    def CUDAGraph(self) -> Any:
        graph = SimpleNamespace(kernels=[])

        def replay() -> None:
            self.host += 10e-6
            for seconds in graph.kernels:
                self.enqueue(seconds)

        graph.replay = replay
        return graph

    @contextlib.contextmanager
    def graph(self, graph: Any) -> Iterator[None]:
        self.recorded = graph.kernels
        yield
        self.recorded = None


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(launch: float, kernel: float) -> Gpu:
        gpu = Gpu(launch, kernel)
        monkeypatch.setattr(cuda, "torch", SimpleNamespace(cuda=gpu, zeros=torch.zeros))
        monkeypatch.setattr(cuda.time, "perf_counter", lambda: gpu.host)
        return gpu

    return make


@pytest.mark.parametrize(("launch", "kernel"), [(2e-4, 5e-6), (2e-4, 5e-4), (1e-5, 3e-2)])
def test_calls_are_timed_on_the_device(fake: Any, launch: float, kernel: float) -> None:
    """However long the host takes to launch them; calls from Python take the longer of the two."""
    gpu = fake(launch, kernel)
    assert cuda.in_rows([gpu.call] * 3)(0.01) == pytest.approx(kernel)
    assert cuda.from_python([gpu.call] * 3)(0.01) == pytest.approx(max(launch, kernel), rel=0.1)
    assert cuda.in_graph([gpu.call] * 3)(0.01) == pytest.approx(kernel)


def test_a_late_host_is_noticed(fake: Any) -> None:
    """Readings that the device did not find enqueued do not count, and the next wait longer."""
    gpu = fake(1e-4, 1e-5)
    turn = cuda.in_rows([gpu.call])
    gpu.launch = 1e-3  # slower than when it was tried
    assert turn(0.0) == pytest.approx(1e-5)

    def waits() -> tuple[Tensor, ...]:
        found = gpu.call()
        gpu.synchronize()
        return found

    with pytest.raises(RuntimeError, match="do they wait for it"):
        cuda.in_rows([waits])


def test_a_turn_has_several_readings(fake: Any) -> None:
    gpu = fake(1e-5, 1e-3)
    kernels = itertools.cycle([2e-3, 2e-3, 9e-3])  # one in three is disturbed

    def uneven() -> tuple[Tensor, ...]:
        gpu.kernel = next(kernels)
        return gpu.call()

    assert cuda.in_rows([uneven])(0.2) == pytest.approx(2e-3)


def test_a_graph_has_to_give_what_its_calls_give(fake: Any) -> None:
    gpu = fake(1e-5, 1e-5)
    calls = 0

    def stale() -> tuple[Tensor, ...]:
        nonlocal calls
        calls += 1
        return (torch.full((2,), 1.0 if gpu.recorded is None else 2.0),)

    with pytest.raises(RuntimeError, match="gives something else"):
        cuda.captured([stale] * 2, 5)
    assert calls == 2 + 5 + 1  # first calls, those captured, and the one compared with


def test_sets_are_larger_than_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "properties", lambda: SimpleNamespace(L2_cache_size=50 * 2**20))
    for shape, count in (((64, 3, 224, 224), 3), ((16, 3, 1024, 1024), 2), ((256, 1, 28, 28), 64)):
        image = torch.empty(1).expand(shape)  # so large without its memory
        assert cuda.sets(measure.Inputs(image, torch.empty(0), image)) == count


def test_the_copy_rate_counts_reads_and_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (8 * 1000, 0))
    monkeypatch.setattr(torch, "zeros", lambda size, **_: torch.empty(size))
    monkeypatch.setattr(cuda, "in_rows", lambda calls: calls[0]() is not None and (lambda least: 0.5))
    assert cuda.copy_rate() == 2 * 1000 / 0.5


def test_the_gpus_memory_is_that_of_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """1000 floats beyond 3 results: blocks of 512 bytes."""
    held, most = [7000], [0]

    def call() -> tuple[Tensor, ...]:
        most[0] = held[0] + 4096 + 3 * 512
        return torch.empty(128), torch.empty(1), torch.empty(100)

    for name, value in {
        "synchronize": lambda: None,
        "reset_peak_memory_stats": lambda: most.__setitem__(0, held[0]),
        "memory_allocated": lambda: held[0],
        "max_memory_allocated": lambda: most[0],
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    assert cuda.peak(call) == 4096
