"""Runs that take their steps together.

On the CPU they take turns; where torch may use one thread only, each has a thread of its own. On a GPU the
steps of all of them are captured in one CUDA graph, each on a stream of its own: a step alone is a hundred
small kernels that leave most of the device idle. Half of these make the batch, and are done once for all runs
that see the same: the cells of a column, of one seed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from .data.random_numbers import RandomNumbers
from .runs import State, tensor_cores

WARM = 2  # steps before a capture: kernels are compiled, libraries choose their algorithms


class Steps(Protocol):
    """What a run must be able to do to take its steps beside others."""

    device: torch.device
    step_number: int

    def step(self) -> None: ...

    def set_rate(self) -> None: ...

    def state(self) -> State: ...

    def load(self, state: State) -> None: ...


@runtime_checkable
class Seeing(Steps, Protocol):
    """A run whose step is a batch, for which alone it draws random numbers, and what is learnt of it."""

    random: RandomNumbers

    def sees(self) -> tuple[Any, ...]: ...

    def batch(self) -> tuple[Tensor, Tensor]: ...

    def learn(self, images: Tensor, labels: Tensor) -> None: ...


class Lockstep:
    """Some runs on one device."""

    def __init__(self, runs: Sequence[Steps]) -> None:
        self.runs = list(runs)
        self.groups = seeing_the_same(self.runs)
        on_a_gpu = runs[0].device.type == "cuda"
        self.graph = captured(self.groups) if on_a_gpu else None
        alone = on_a_gpu or len(runs) == 1 or torch.get_num_threads() > 1
        self.threads = (
            None if alone else ThreadPoolExecutor(len(runs) - 1, "run", torch.set_num_threads, (1,))
        )

    def advance(self, steps: int) -> None:
        """So many steps of each, at the learning rate of the first of them. Waits for the device."""
        for run in self.runs:
            run.set_rate()
        if self.threads is not None:
            with tensor_cores(False):  # as each of them has it; what was before is not theirs to put back
                for _ in range(steps):
                    step_of_all(self.groups, self.threads)
        elif self.graph is None:
            for group in self.groups:
                for _ in range(steps):
                    step(group)
        else:
            for _ in range(steps):
                self.graph.replay()
            torch.cuda.synchronize(self.runs[0].device)
        for run in self.runs:
            run.step_number += steps


def seeing_the_same(runs: Sequence[Steps]) -> list[Sequence[Steps]]:
    """Runs grouped by what they see; those of which that is not known are alone."""
    groups: dict[Any, list[Steps]] = {}
    for run in runs:
        groups.setdefault(run.sees() if isinstance(run, Seeing) else id(run), []).append(run)
    return list(groups.values())


def step(group: Sequence[Steps]) -> None:
    """One step of runs that see the same."""
    first, *others = group
    if not others:
        first.step()
        return
    assert isinstance(first, Seeing)
    images, labels = first.batch()
    first.learn(images, labels)
    for other in others:
        follow(other, first, images, labels)


def step_of_all(groups: Sequence[Sequence[Steps]], threads: ThreadPoolExecutor) -> None:
    """One step of each run, side by side: the first in this thread, each of the others in one of its own."""
    work: list[Callable[[], None]] = []
    for first, *others in groups:
        if not others:
            work.append(first.step)
            continue
        assert isinstance(first, Seeing)
        images, labels = first.batch()
        work.append(functools.partial(first.learn, images, labels))
        work += [functools.partial(follow, other, first, images, labels) for other in others]
    waited_for = [threads.submit(task) for task in work[1:]]
    work[0]()
    for task in waited_for:
        task.result()


@contextmanager
def one_thread_each(wanted: bool = True) -> Iterator[None]:
    """Runs on the CPU have one thread each meanwhile, and do not wait for one another's.

    OpenMP's threads spin while they wait: on a CPU that others use too they mostly wait for one that does not
    get its turn.
    """
    before = torch.get_num_threads()
    try:
        if wanted:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def follow(run: Steps, first: Seeing, images: Tensor, labels: Tensor) -> None:
    """A step of a run on the batch that another has drawn."""
    assert isinstance(run, Seeing)
    run.random.follow(first.random)
    run.learn(images, labels)


def captured(groups: Sequence[Sequence[Steps]]) -> torch.cuda.CUDAGraph:
    """One step of each run, as a graph; the runs stand where they stood before."""
    runs = [run for group in groups for run in group]
    device = runs[0].device
    with torch.cuda.device(device):  # where memory is taken and kernels are launched
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for run in runs:
                before = run.state()
                for _ in range(WARM):
                    run.step()
                run.load(before)
        torch.cuda.current_stream(device).wait_stream(side)
        torch.cuda.synchronize(device)
        graph, begin = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
        batches = []  # kept, or what comes after in the first run's stream would take their memory
        ends = []
        with torch.cuda.graph(graph, stream=begin):  # its own choice is of the device that came first
            for first, *others in groups:
                streams = [torch.cuda.Stream(device) for _ in range(1 + len(others))]
                streams[0].wait_stream(begin)
                with torch.cuda.stream(streams[0]):
                    if not others:
                        first.step()
                    else:
                        assert isinstance(first, Seeing)
                        batch = first.batch()
                        batches.append(batch)
                        for other, stream in zip(others, streams[1:], strict=True):
                            stream.wait_stream(streams[0])
                            with torch.cuda.stream(stream):
                                follow(other, first, *batch)
                        first.learn(*batch)
                ends += streams
            for stream in ends:
                begin.wait_stream(stream)
        return graph
