"""How fast batches of distorted digits are made: ``python -m benchmarks.data --out RESULT.json``.

Numbers drawn and applied, from the digits to the batch. On a GPU inside a CUDA graph, whose replays draw
anew. As everywhere here a contender that is wrong gets no time: the first batch of a seed is compared with
the same in float64 on the CPU. *PyTorch* is the same formulas with ``torch.rand``, ``F.affine_grid`` and
``F.grid_sample``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from spatial_transformer.experiments.data import uci_digits
from spatial_transformer.experiments.data.distortions import Distortion, Drawn
from spatial_transformer.experiments.data.fixed_sets import KINDS, as_images
from spatial_transformer.experiments.data.random_numbers import RandomNumbers

from . import cpu, cuda
from .measure import BUSY, QUICK, Device, Effort, Turn, interleaved, quartiles
from .record import heading
from .table import carry_out, milliseconds

DEVICES: dict[str, Device] = {"cpu": cpu.DEVICE, "cuda": cuda.DEVICE}
EFFORT = {"cpu": Effort(processes=0, rounds=10, seconds=2.0, patience=10.0), "cuda": cuda.DEVICE.effort}

IN_GRAPH = 16  # batches in a captured graph
SEED = 1
TOLERANCE = 5e-3  # of values from 0 to 1: E's steps carry a rounding along

OURS, PEER = "ours", "PyTorch"


class Case(NamedTuple):
    """A batch, and what it may take: seconds in a CUDA graph on an H200, on two cores seconds an image."""

    kind: str
    count: int
    cuda: float | None = None
    cpu: float | None = None
    peer: bool = False

    def goal(self, device: str) -> float | None:
        """Seconds that the whole batch may take."""
        if device == "cuda":
            return self.cuda
        return None if self.cpu is None else self.cpu * self.count


CASES = (
    Case("R", 256),
    Case("RTS", 256, cuda=0.15e-3, cpu=1 / 20_000, peer=True),
    Case("P", 256),
    Case("E", 256, cuda=0.15e-3),
    Case("TC", 256),
    Case("addition", 256),
    Case("3D", 32, cuda=2e-3, peer=True),
)

Make = Callable[[], Tensor]


class TorchNumbers(RandomNumbers):
    """torch's own generator in the place of ours."""

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, device=self.device)


def applied_by_torch(distortion: Any, images: Tensor, drawn: Drawn) -> Tensor:
    """An affine distortion as one would write it with ``affine_grid`` and ``grid_sample``."""
    matrix = distortion.family.matrix(drawn.theta)
    if matrix.shape[1] == 3:
        images = images[:, :, None].expand(-1, -1, distortion.depth, -1, -1)
    size = [distortion.size] * matrix.shape[1]
    grid = F.affine_grid(matrix, [*images.shape[:2], *size], align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


APPLIED: dict[str, Callable[[Distortion, Tensor, Drawn], Tensor]] = {
    OURS: lambda distortion, images, drawn: distortion.apply(images, drawn),
    PEER: applied_by_torch,
}
NUMBERS: dict[str, type[RandomNumbers]] = {OURS: RandomNumbers, PEER: TorchNumbers}


class Batch:
    """What makes the batches of a case, by one contender, on one device."""

    def __init__(self, case: Case, name: str, device: str, dtype: torch.dtype = torch.float32) -> None:
        digits = uci_digits.load()
        channels = 2 if case.kind == "addition" else 1
        many = digits.train.images.repeat(2, 1, 1)[: case.count * channels]
        self.case, self.name, self.dtype = case, name, dtype
        self.images = as_images(many, device, dtype).reshape(case.count, channels, 28, 28)
        self.distortion = KINDS[case.kind](as_images(digits.train.images, device, dtype)[:, 0])

    def made(self, random: RandomNumbers) -> Tensor:
        drawn = self.distortion.draw(self.case.count, random, dtype=self.dtype)
        return APPLIED[self.name](self.distortion, self.images, drawn)


def error(case: Case, name: str, device: str) -> float:
    """The greatest difference of a seed's first batch from the same in float64 on the CPU."""
    found = Batch(case, name, device).made(RandomNumbers(SEED, device=device)).double().cpu()
    truth = Batch(case, OURS, "cpu", torch.float64).made(RandomNumbers(SEED))
    return float((found - truth).abs().max())


def turn(case: Case, name: str, device: str) -> Turn:
    """Takes turns at making batches, one after the other."""
    batch = Batch(case, name, device)
    random = NUMBERS[name](SEED, device=device)
    if device == "cpu":
        return partial(cpu.turn, lambda: (batch.made(random),))
    return cuda.in_rows([captured(batch, random)], each=IN_GRAPH)


def captured(batch: Batch, random: RandomNumbers) -> Callable[[], None]:
    """A replay of several batches, each of new numbers; checked to give what calls give."""
    for _ in range(3):
        batch.made(random)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_GRAPH):
            found = batch.made(random)
    replay = cuda.keeping(graph.replay, (batch, random))
    if isinstance(random, TorchNumbers):
        return replay
    plain = RandomNumbers(random.seed, device=random.device)
    plain.set_state(random.state())
    for _ in range(2):  # twice: the second replay has to go on where the first ended
        graph.replay()
        for _ in range(IN_GRAPH):
            wanted = batch.made(plain)
        if not (found - wanted).abs().max() <= TOLERANCE:
            raise RuntimeError("a replayed graph gives something else")
    return replay


def run(device: str, effort: Effort, cases: Sequence[Case] = CASES) -> dict[str, Any]:
    """The result of all cases."""
    result: dict[str, Any] = {
        "suite": "data",
        **heading(),
        "device": {**DEVICES[device].describe(), "kind": device},
        "settings": {"tolerance": TOLERANCE, "in_graph": IN_GRAPH, **effort._asdict()},
        "cases": [],
    }
    for case in cases:
        print(f"{case.kind} ...", file=sys.stderr, flush=True)
        names = [OURS, PEER] if case.peer else [OURS]
        with torch.no_grad():
            errors = {name: error(case, name, device) for name in names}
            right = [name for name in names if errors[name] <= TOLERANCE]
            turns = {name: turn(case, name, device) for name in right}
            times = interleaved(turns, effort, DEVICES[device].busy)
        found = {}
        for name in names:
            row: dict[str, Any] = {"error": errors[name], "wrong": name not in right}
            if name in right:
                low, middle, high = quartiles(times.seconds[name])
                row |= {"median": middle, "quartiles": [low, high], "images_per_second": case.count / middle}
            found[name] = row
        goal = case.goal(device)
        met = None if goal is None else OURS in right and found[OURS]["median"] <= goal
        result["cases"].append(
            {
                "kind": case.kind,
                "count": case.count,
                "goal": goal,
                "met": met,
                "others": times.others,
                "contenders": found,
            }
        )
    return result


def markdown(result: Mapping[str, Any]) -> str:
    """The result as a table, and a line that says where it is from."""
    rows = ["| set | batch | ours, ms | images a second | PyTorch, ms | goal |", "|---|---|---|---|---|---|"]
    for case in result["cases"]:
        ours, peer = (case["contenders"].get(name) for name in (OURS, PEER))
        goal = "" if case["goal"] is None else f"{milliseconds(case['goal'])} ms "
        verdict = "" if case["met"] is None else "met" if case["met"] else "missed"
        speed = "" if ours["wrong"] else f"{ours['images_per_second']:,.0f}"
        kind = case["kind"] + ("\\*" if (case["others"] or 0) > BUSY else "")
        cells = [kind, str(case["count"]), cell(ours), speed, cell(peer), f"{goal}{verdict}".strip()]
        rows.append(f"| {' | '.join(cells)} |")
    device, versions = result["device"], result["versions"]
    threads = f", {device['threads']} threads" if "threads" in device else ", in a CUDA graph"
    rows += ["", f"{device['name']}{threads}, torch {versions['torch']}, {result['date'][:10]}."]
    if any((case["others"] or 0) > BUSY for case in result["cases"]):
        rows[-1] += " \\*: other processes kept the machine busy meanwhile; it is faster when it is quiet."
    return "\n".join(rows)


def cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    if found["wrong"]:
        return f"wrong by {found['error']:.1e}"
    low, high = found["quartiles"]
    return f"{milliseconds(found['median'])} ({milliseconds(low)} to {milliseconds(high)})"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description="The speed of the data.")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--quick", action="store_true", help="a smoke run: no measurements")

    def measure(given: argparse.Namespace) -> dict[str, Any]:
        if (reason := DEVICES[given.device].why_not()) is not None:
            parser.error(f"--device {given.device} cannot run here: {reason}")
        cases = [case._replace(count=4) for case in CASES] if given.quick else CASES
        return run(given.device, QUICK if given.quick else EFFORT[given.device], cases)

    result = carry_out(parser, argv, measure, markdown)
    return 1 if result and any(case["contenders"][OURS]["wrong"] for case in result["cases"]) else 0


if __name__ == "__main__":
    sys.exit(main())
