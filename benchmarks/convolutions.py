"""How fast the convolutions of the networks are: ``python -m benchmarks.convolutions --device cuda``.

Convolution, bias, rectifier and pooling, forward and backward, inside a CUDA graph. As everywhere here a
contender that is wrong gets no time: outputs and gradients are compared with PyTorch's in float64.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from spatial_transformer.experiments.fast_convolutions import (
    METHODS,
    MULTIPLE,
    few_channels,
    many_channels,
    one_channel,
    padded,
)
from spatial_transformer.experiments.padding_convolutions import surrounded

from . import cpu, cuda
from .measure import QUICK, Call, Device, Effort, interleaved, quartiles, sentence
from .record import heading
from .table import carry_out

DEVICES: dict[str, Device] = {"cpu": cpu.DEVICE, "cuda": cuda.DEVICE}
EFFORT = cuda.DEVICE.effort._replace(rounds=6)

IN_GRAPH = 16  # calls in a captured graph

# Shares of the truth, by norms. Roundings let one maximum in a hundred go to a neighbour, whose gradient is
# then all wrong: by norm a tenth. A tap that is missed or shifted is far more.
OUTPUT, GRADIENTS = 2e-2, 2.5e-1

TF32 = "TF32"

PASSES = ("forward", "forward + backward")


class Case(NamedTuple):
    """A convolution of the networks."""

    name: str
    inputs: int
    filters: int
    kernel: int
    size: int
    pool: int = 2
    image: bool = True  # whether what goes in wants its gradient
    batch: int = 256
    padding: int = 0

    @property
    def of_images(self) -> bool:
        """Whether images go in, float32 and of few channels."""
        return self.inputs <= MULTIPLE

    @property
    def methods(self) -> Sequence[str]:
        """What ours are called."""
        if self.padding:
            return ["padded"]
        if self.of_images:
            return ["one channel" if self.inputs == 1 else "few channels"]
        return METHODS


CASES = (
    Case("conv1", 1, 88, 9, 28),
    Case("conv1", 1, 88, 9, 28, image=False),
    Case("conv1", 1, 85, 9, 28),
    Case("conv1", 1, 88, 9, 42, image=False),
    Case("conv1", 1, 88, 9, 60, image=False),
    Case("conv1", 2, 88, 9, 42, image=False),
    Case("conv2", 88, 88, 7, 10),
    Case("conv2", 85, 85, 7, 10),
    Case("conv2", 88, 88, 7, 17),
    Case("conv2", 88, 88, 7, 26),
    Case("localiser's conv1", 1, 20, 5, 14, image=False),
    Case("localiser's conv1", 1, 20, 5, 21, image=False),
    Case("localiser's conv1", 1, 20, 5, 30, image=False),
    Case("localiser's conv2", 20, 20, 5, 5, pool=1),
    Case("localiser's conv2", 20, 20, 5, 8, pool=1),
    Case("localiser's conv2", 20, 20, 5, 13, pool=1),
    *(
        Case(f"house numbers' conv{number}", inputs, filters, 5, size, pool, batch=128, padding=2)
        for number, (inputs, filters, size, pool) in enumerate(
            [
                (3, 48, 64, 2),
                (48, 64, 32, 1),
                (64, 128, 32, 2),
                (128, 160, 16, 1),
                (160, 192, 16, 2),
                (192, 192, 8, 1),
                (192, 192, 8, 2),
                (192, 192, 4, 1),
            ],
            start=1,
        )
    ),
)


class Inputs(NamedTuple):
    image: Tensor  # [N, C, H, W]
    weight: Tensor
    bias: Tensor
    cotangent: Tensor


Layer = Callable[[Tensor, Tensor, Tensor], Tensor]


def inputs(case: Case, device: str) -> Inputs:
    """As drawn on the CPU, and of numbers that bfloat16 holds where the layer before would have rounded."""
    random = torch.Generator().manual_seed(0)
    image = torch.rand(case.batch, case.inputs, case.size, case.size, generator=random)
    image = image if case.of_images else image.bfloat16().float()
    bound = 1 / (case.inputs**0.5 * case.kernel)
    weight = (
        2 * torch.rand(case.filters, case.inputs, case.kernel, case.kernel, generator=random) - 1
    ) * bound
    bias = (2 * torch.rand(case.filters, generator=random) - 1) * bound
    left = (case.size + 2 * case.padding - case.kernel + 1) // case.pool
    cotangent = torch.randn(case.batch, case.filters, left, left, generator=random).bfloat16().float()
    return Inputs(*(tensor.to(device) for tensor in (image, weight, bias, cotangent)))


def pooled(convolved: Tensor, case: Case) -> Tensor:
    return F.max_pool2d(convolved.relu(), 2) if case.pool == 2 else convolved.relu()


@contextlib.contextmanager
def cudnn(tf32: bool) -> Iterator[None]:
    """cuDNN's fastest algorithm. The backward pass looks at this too, when it runs."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=tf32):
        yield


def by_pytorch(case: Case, image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return pooled(F.conv2d(image, weight, bias, padding=case.padding), case)


def in_bfloat16(case: Case, image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    weight = weight.to(torch.bfloat16, memory_format=torch.channels_last)
    image = image.to(torch.bfloat16, memory_format=torch.channels_last)
    return pooled(F.conv2d(image, weight, bias.to(torch.bfloat16), padding=case.padding), case)


def ours(case: Case, method: str, image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if case.padding:
        return surrounded(image, weight, bias, padding=case.padding, pool=case.pool)
    if case.inputs == 1:
        return one_channel(image, weight, bias)
    if case.of_images:
        return few_channels(image, weight, bias, pool=case.pool, further=True)
    return many_channels(image, weight, bias, pool=case.pool, method=method)


def contenders(case: Case) -> dict[str, Layer]:
    found: dict[str, Layer] = {
        "float32": partial(by_pytorch, case),
        TF32: partial(by_pytorch, case),
        "bfloat16": partial(in_bfloat16, case),
    }
    return found | {f"ours, {method}": partial(ours, case, method) for method in case.methods}


def call(case: Case, name: str, layer: Layer, given: Inputs, backward: bool) -> Call:
    """Each gets its input and its gradient in the layout and dtype that the layers around it would give."""
    image, weight, bias = (t.detach().clone().requires_grad_() for t in given[:3])
    if not case.of_images and name not in ("float32", TF32):
        channels = padded(case.inputs) if name.startswith("ours") and not case.padding else case.inputs
        full = F.pad(image.detach(), (0, 0, 0, 0, 0, channels - case.inputs)).bfloat16()
        image = full.contiguous(memory_format=torch.channels_last).requires_grad_()
    wanted = (image, weight, bias) if case.image else (weight, bias)
    image.requires_grad_(case.image)
    with torch.no_grad():
        output = layer(image, weight, bias)
    missing = output.shape[1] - case.filters
    cotangent = F.pad(given.cotangent, (0, 0, 0, 0, 0, missing)).to(output.dtype)
    if output.is_contiguous(memory_format=torch.channels_last):
        cotangent = cotangent.contiguous(memory_format=torch.channels_last)

    def found() -> tuple[Tensor, ...]:
        with cudnn(name == TF32), torch.set_grad_enabled(backward):
            output = layer(image, weight, bias)
            gradients = torch.autograd.grad(output, wanted, cotangent) if backward else ()
        return (output.detach(), *gradients)

    return found


def truth(case: Case, given: Inputs) -> tuple[Tensor, ...]:
    return call(case, "float32", partial(by_pytorch, case), Inputs(*(t.double() for t in given)), True)()


def errors(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> tuple[float, float]:
    """Of the output, and of the worst gradient, as shares of the truth's norm."""
    off = []
    for got, want in zip(found, wanted, strict=True):
        if got.ndim == 4:
            got = got[:, : want.shape[1]]
        off.append(float((got.double() - want).norm() / want.norm()))
    return off[0], max(off[1:])


def run(device: str, effort: Effort, cases: Sequence[Case] = CASES) -> dict[str, Any]:
    """The result of all cases."""
    result: dict[str, Any] = {
        "suite": "convolutions",
        **heading(),
        "device": {**DEVICES[device].describe(), "kind": device},
        "settings": {"output": OUTPUT, "gradients": GRADIENTS, "in_graph": IN_GRAPH, **effort._asdict()},
        "cases": [],
    }
    for case in cases:
        print(f"{case.name} {case.size} px ...", file=sys.stderr, flush=True)
        given = inputs(case, device)
        wanted = truth(case, given)
        found: dict[str, dict[str, Any]] = {}
        for name, layer in contenders(case).items():
            found[name] = {"error": None, "wrong": None}
            try:
                output, gradients = errors(call(case, name, layer, given, True)(), wanted)
                found[name]["error"] = [output, gradients]
                if not (output <= OUTPUT and gradients <= GRADIENTS):
                    found[name]["wrong"] = f"output off by {output:.1e}, gradients by {gradients:.1e}"
            except Exception as failure:  # it stays in the table, with its reason
                found[name]["wrong"] = sentence(failure)
        del wanted
        for kind in PASSES:
            turns = {}
            for name, layer in contenders(case).items():
                if found[name]["wrong"]:
                    continue
                calls = [call(case, name, layer, given, kind != "forward")]
                if device == "cpu":
                    turns[name] = cpu.prepare("calls", calls)
                else:
                    turns[name] = cuda.in_rows([cuda.captured(calls, IN_GRAPH)], each=IN_GRAPH)
            times = interleaved(turns, effort, DEVICES[device].busy) if turns else None
            for name in turns:
                assert times is not None
                low, middle, high = quartiles(times.seconds[name])
                found[name][kind] = {"median": middle, "quartiles": [low, high]}
            del turns
        result["cases"].append({**case._asdict(), "contenders": found})
        if device == "cuda":
            torch.cuda.empty_cache()
    return result


def markdown(result: Mapping[str, Any]) -> str:
    """Microseconds forward / forward and backward, a row for each case."""
    names = list(dict.fromkeys(name for case in result["cases"] for name in case["contenders"]))
    rows = [f"| convolution | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for case in result["cases"]:
        what = f"{case['name']} {case['inputs']} to {case['filters']}, {case['kernel']} x {case['kernel']}"
        what += f" at {case['size']} px" + ("" if case["image"] else ", no gradient of the image")
        rows.append(f"| {what} | {' | '.join(cell(case['contenders'].get(name)) for name in names)} |")
    device, versions = result["device"], result["versions"]
    where = f"{device['name']}, torch {versions['torch']}, {result['date'][:10]}."
    return "\n".join([*rows, "", f"Microseconds forward / forward and backward. {where}"])


def cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    if found["wrong"]:
        return str(found["wrong"])
    return " / ".join(f"{found[kind]['median'] * 1e6:.1f}" for kind in PASSES)


def smaller(case: Case) -> Case:
    """For a smoke run: kernel and size stay, which say what is computed where."""
    return case._replace(batch=1, filters=5, inputs=min(case.inputs, MULTIPLE + 1))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convolutions", description="The speed of the convolutions."
    )
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument("--only", help="the cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="a smoke run: no measurements")

    def measure(given: argparse.Namespace) -> dict[str, Any]:
        if (reason := DEVICES[given.device].why_not()) is not None:
            parser.error(f"--device {given.device} cannot run here: {reason}")
        cases = [case for case in CASES if given.only is None or given.only in f"{case.name} {case.size}"]
        cases = [smaller(case) for case in cases] if given.quick else cases
        return run(given.device, QUICK if given.quick else EFFORT, cases)

    result = carry_out(parser, argv, measure, markdown)
    wrong = [
        name
        for case in (result["cases"] if result else [])
        for name, found in case["contenders"].items()
        if found["wrong"] and name.startswith("ours")
    ]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
