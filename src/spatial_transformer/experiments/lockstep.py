"""Runs that take their steps together.

On the CPU they take turns. On a GPU the steps of all of them are captured in one CUDA graph, each on a stream
of its own: a step alone is a hundred small kernels that leave most of the device idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from .runs import State

WARM = 2  # steps before a capture: kernels are compiled, libraries choose their algorithms


class Steps(Protocol):
    """What a run must be able to do to take its steps beside others."""

    device: torch.device
    step_number: int

    def step(self) -> None: ...

    def set_rate(self) -> None: ...

    def state(self) -> State: ...

    def load(self, state: State) -> None: ...


class Lockstep:
    """Some runs on one device."""

    def __init__(self, runs: Sequence[Steps]) -> None:
        self.runs = list(runs)
        self.graph = captured(self.runs) if runs[0].device.type == "cuda" else None

    def advance(self, steps: int) -> None:
        """So many steps of each, at the learning rate of the first of them. Waits for the device."""
        for run in self.runs:
            run.set_rate()
        if self.graph is None:
            for run in self.runs:
                for _ in range(steps):
                    run.step()
        else:
            for _ in range(steps):
                self.graph.replay()
            torch.cuda.synchronize(self.runs[0].device)
        for run in self.runs:
            run.step_number += steps


def captured(runs: Sequence[Steps]) -> torch.cuda.CUDAGraph:
    """One step of each run, as a graph; the runs stand where they stood before."""
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
        streams = [torch.cuda.Stream(device) for _ in runs]
        with torch.cuda.graph(graph, stream=begin):  # its own choice is of the device that came first
            for run, stream in zip(runs, streams, strict=True):
                stream.wait_stream(begin)
                with torch.cuda.stream(stream):
                    run.step()
            for stream in streams:
                begin.wait_stream(stream)
        return graph
