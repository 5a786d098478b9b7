"""Forward and backward of the networks that read house numbers: ``python -m benchmarks.house_numbers``.

The paper: "the ST-CNN Multi model is only 6% slower (forward and backward pass) than the CNN". Here the three
networks on batches of 128, dropout and the five losses included, the gradients of all parameters, no update;
beside them the same networks whose transformers are ``F.affine_grid`` and ``F.grid_sample``. Called from
Python, and replayed as a CUDA graph; in float32, with TF32, and with bfloat16 autocast. Each contender in
both memory layouts, of which its faster one counts. And as they are trained (``fast``): bfloat16 autocast,
with the convolutions, dropout and linear layers of ``fast_networks``.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spatial_transformer import SpatialTransformer
from spatial_transformer.experiments import house_numbers
from spatial_transformer.experiments.data.random_numbers import RandomNumbers
from spatial_transformer.experiments.fast_networks import fast
from spatial_transformer.experiments.house_numbers import Network
from spatial_transformer.experiments.runs import tensor_cores

from . import cuda
from .record import heading
from .steps import device_of
from .table import carry_out

FAST = "bfloat16, fast"
PRECISIONS = ("float32", "tf32", "bfloat16", FAST)
WAYS = ("graph", "eager")
LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
PLAIN = ", grid_sample"  # after the name of a network whose transformers are PyTorch's
NAMES = (*house_numbers.MODELS, *(model + PLAIN for model in house_numbers.MODELS[1:]))
ROUNDS = 5
ROUND = 0.05  # seconds after which a round has calls enough
WARM = 3  # calls before a capture or a measurement
PAPER = 6.0  # percent that ST-CNN Multi is slower than the CNN
AGREE = 1e-3  # of the largest score, in float32

Call = Callable[[], tuple[Tensor, ...]]


class GridSample(nn.Module):
    """A spatial transformer as one writes it without this library, of the parameters of one of ours."""

    def __init__(self, transformer: SpatialTransformer) -> None:
        super().__init__()
        self.localiser, self.head = transformer.localiser, transformer.head

    def forward(self, image: Tensor, *, return_theta: bool = False) -> tuple[Tensor, Tensor]:
        theta = self.head(self.localiser(image))
        with torch.autocast(image.device.type, enabled=False):  # in bfloat16 a grid is off by a pixel
            grid = F.affine_grid(theta.float().unflatten(1, (2, 3)), list(image.shape), align_corners=False)
        return F.grid_sample(image, grid, align_corners=False), theta


def network_of(name: str, size: int, device: str, **widths: Sequence[int]) -> Network:
    """A network of that name. Its transforms are a little off the identity, as those of a trained one are: at
    the identity all samples lie on pixels."""
    torch.manual_seed(0)
    network = house_numbers.build(name.removesuffix(PLAIN), size, **widths)
    with torch.no_grad():
        for transformer in network.transformers:
            transformer.head.bias += torch.tensor([-0.05, 0.03, 0.02, -0.03, -0.05, 0.02])
            transformer.head.weight.normal_(std=0.01)
    if name.endswith(PLAIN):
        network.transformers = nn.ModuleList(map(GridSample, network.transformers))  # type: ignore[arg-type]
    return network.to(device)


def check(networks: Mapping[str, Network], images: Tensor) -> None:
    """Raises where a network gives other scores with one warp than with the other."""
    for model in house_numbers.MODELS[1:]:
        with torch.no_grad(), tensor_cores(False):
            ours, plain = networks[model](images), networks[model + PLAIN](images)
        away = float((ours - plain).abs().max() / plain.abs().max())
        if not away < AGREE:
            raise RuntimeError(f"{model}: scores differ by {away:.1e} of the largest from grid_sample's")


@contextmanager
def arithmetic(precision: str, device: str) -> Iterator[None]:
    with (
        tensor_cores(precision != "float32"),
        torch.autocast(device, torch.bfloat16, enabled="bfloat16" in precision, cache_enabled=False),
    ):
        yield


def forward_backward(network: Network, images: Tensor, labels: Tensor, precision: str) -> Call:
    """The loss, and the gradients of all parameters."""
    parameters, random = list(network.parameters()), RandomNumbers(0, device=images.device)
    device = images.device.type
    measured = fast(network) if precision == FAST else network  # of the same parameters

    def call() -> tuple[Tensor, ...]:
        with arithmetic(precision, device):
            scores = measured(images, random)
        loss = house_numbers.losses(scores.float(), labels).mean()
        with tensor_cores(precision != "float32"):
            return (loss.detach(), *torch.autograd.grad(loss, parameters))

    return call


def captured(call: Call) -> Callable[[], None]:
    """Replays of a call; what they give lies where the first of them left it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def milliseconds(calls: Mapping[str, Callable[[], Any]], device: str, steps: int) -> dict[str, float]:
    """Of each, the median of rounds in which they take turns."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    rounds: dict[str, list[float]] = {name: [] for name in calls}

    def seconds(call: Callable[[], Any], times: int) -> float:
        wait()
        begin = time.perf_counter()
        for _ in range(times):
            call()
        wait()
        return (time.perf_counter() - begin) / times

    for call in calls.values():
        seconds(call, WARM)
    times = {name: min(steps, math.ceil(ROUND / seconds(call, 1))) for name, call in calls.items()}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            rounds[name].append(1000 * seconds(call, times[name]))
    return {name: statistics.median(found) for name, found in rounds.items()}


class Prepared(NamedTuple):
    """What contenders of one size are measured on: no measurement changes it."""

    networks: dict[str, Network]
    images: Tensor
    labels: Tensor


def prepared(size: int, device: str, batch: int, **widths: Sequence[int]) -> Prepared:
    networks = {name: network_of(name, size, device, **widths) for name in NAMES}
    pixels = torch.randint(256, (batch, 3, size // 8, size // 8), generator=torch.Generator().manual_seed(1))
    smooth = F.interpolate(pixels.to(device, torch.float32), (size, size), mode="bilinear")
    labels = torch.randint(
        house_numbers.CLASSES, (batch, house_numbers.DIGITS), generator=torch.Generator().manual_seed(2)
    )
    images = house_numbers.normalised(smooth)
    check(networks, images[:8])
    return Prepared(networks, images, labels.to(device))


def measured(
    given: Prepared, precision: str, way: str, device: str, steps: int
) -> dict[str, dict[str, float]]:
    """Milliseconds by contender and layout."""
    found: dict[str, dict[str, float]] = {name: {} for name in given.networks}
    for layout, memory_format in LAYOUTS.items():
        images = given.images.contiguous(memory_format=memory_format)
        calls: dict[str, Callable[[], Any]] = {
            name: forward_backward(network, images, given.labels, precision)
            for name, network in given.networks.items()
        }
        if way == "graph":
            calls = {name: captured(call) for name, call in calls.items()}
        for name, value in milliseconds(calls, device, steps).items():
            found[name][layout] = value
        calls.clear()
        if device == "cuda":
            torch.cuda.empty_cache()
    return found


def run(
    device: str,
    *,
    sizes: Sequence[int] = (64, 128),
    batch: int = 128,
    steps: int = 20,
    **widths: Sequence[int],
) -> Iterator[dict[str, Any]]:
    """The result of all sizes, precisions and ways, case by case, those of the paper's claim first; on the
    CPU of float32, called from Python, alone."""
    result: dict[str, Any] = {"suite": "house numbers", **heading(), "device": device_of(device)}
    result |= {"batch": batch, "cases": []}
    print("building the networks ...", file=sys.stderr, flush=True)
    by_size = {size: prepared(size, device, batch, **widths) for size in sizes}
    on_a_gpu = device == "cuda"
    cases = itertools.product(
        PRECISIONS if on_a_gpu else PRECISIONS[:1], WAYS if on_a_gpu else WAYS[1:], sizes
    )
    for precision, way, size in cases:
        print(f"{size} px, {precision}, {way} ...", file=sys.stderr, flush=True)
        times = measured(by_size[size], precision, way, device, steps)
        result["cases"].append({"size": size, "precision": precision, "way": way, "milliseconds": times})
        yield result


def slower(fastest: Mapping[str, float], name: str) -> float:
    """Than the CNN, in percent."""
    return 100 * (fastest[name] / fastest["CNN"] - 1)


def markdown(result: Mapping[str, Any]) -> str:
    """The result as a table: milliseconds, and how much slower than the CNN."""
    single, multi = house_numbers.MODELS[1:]
    lines = [
        "| px | precision | way | CNN, ms | Single | Multi | with grid_sample: Single | Multi |",
        "|---|---|---|---|---|---|---|---|",
    ]
    best: dict[str, list[float]] = {multi: [], multi + PLAIN: []}
    for case in result["cases"]:
        fastest = {name: min(by_layout.values()) for name, by_layout in case["milliseconds"].items()}
        shown = [
            f"{fastest[name]:.2f} ({slower(fastest, name):+.1f} %)"
            for name in (single, multi, single + PLAIN, multi + PLAIN)
        ]
        for name, values in best.items():
            values.append(slower(fastest, name))
        kept = [str(case["size"]), case["precision"], case["way"], f"{fastest['CNN']:.2f}", *shown]
        lines.append(f"| {' | '.join(kept)} |")
    ours, plain = (f"{min(values):+.1f} to {max(values):+.1f} %" for values in best.values())
    device, versions = result["device"], result["versions"]
    return "\n".join(
        [
            *lines,
            "",
            f"In brackets: slower than the CNN. ST-CNN Multi: {ours}, with grid_sample {plain}; the paper's: "
            f"{PAPER:+.0f} %.",
            f"Batch {result['batch']}; {device['name']}, torch {versions['torch']}, {result['date'][:10]}.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.house_numbers",
        description="Forward and backward of the networks that read house numbers.",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run on the CPU: no measurements")
    parser.add_argument("--steps", type=int, default=20, help="of a round, at most")
    parser.add_argument("--batch", type=int, default=128)

    def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
        if given.quick:
            return run("cpu", sizes=[32], batch=2, steps=1, filters=[4] * 8, units=[16])
        if (reason := cuda.why_not()) is not None:
            parser.error(reason)
        return run("cuda", batch=given.batch, steps=given.steps)

    carry_out(parser, argv, measure, markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
