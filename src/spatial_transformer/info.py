"""What this installation has and what its calls would do: ``st.info()``, ``stn info``."""

from __future__ import annotations

import importlib.metadata
import itertools
import platform
from typing import NamedTuple

import torch

from . import checks
from .implementations import IMPLEMENTATIONS, choose, why_not
from .kernels import KERNELS, PADDINGS, Kernel
from .version import __version__

# What the extras bring; none is imported here.
OPTIONAL = (
    "triton", "numba", "onnx", "onnxscript", "onnxruntime",
    "filelock", "h5py", "matplotlib", "pillow", "platformdirs", "safetensors",
)  # fmt: skip


def info() -> str:
    """Versions, devices, and which implementation each operation would take, and why.

    >>> print(info())                                                                 # doctest: +SKIP
    """
    lines = [
        f"spatial_transformer {__version__}",
        f"python {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"torch {torch.__version__}, numpy {version('numpy')}",
        "optional: " + ", ".join(f"{name} {version(name)}" for name in OPTIONAL),
        "",
        "devices",
        *(f"  {line}" for line in devices()),
        "",
        "implementations",
    ]
    plain = checks.reading(
        torch.empty(1, 1, 2, 2), kernel="bilinear", padding="zeros", align_corners=False, antialias=False
    )
    for name in IMPLEMENTATIONS:
        reason = why_not(name, torch.empty(1, 1, 2, 2), plain)
        lines.append(f"  {name:<10} {'available' if reason is None else f'not available: {reason}'}")
    lines += ["", 'what warp and sample take with impl="auto"']
    for device in device_names():
        lines += [f"  {row}" for row in table(device)]
    return "\n".join(lines)


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def device_names() -> list[str]:
    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def devices() -> list[str]:
    found = [f"cpu: {torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(number)
            memory = properties.total_memory / 2**30
            found.append(f"cuda:{number}: {properties.name}, {memory:.0f} GiB, CUDA {torch.version.cuda}")
    return found


class Operation(NamedTuple):
    """A kind of call, up to its padding."""

    dims: int
    kernel: str
    antialias: bool

    def __str__(self) -> str:
        return f"{self.dims}D {self.kernel}{' + antialias' if self.antialias else ''}"


def table(device: str) -> list[str]:
    """A row for each operation; the paddings that are treated alike share one."""
    own = Kernel(torch.ones_like, radius=1)
    answers: dict[tuple[Operation, str], list[str]] = {}
    for dims, kernel, antialias in itertools.product((2, 3), (*KERNELS, "Kernel"), (False, True)):
        operation = Operation(dims, kernel, antialias)
        image = torch.empty(1, 1, *[2] * dims, device=device)
        for padding in (*PADDINGS, 0.5):
            reading = checks.reading(
                image,
                kernel=own if kernel == "Kernel" else kernel,
                padding=padding,
                align_corners=False,
                antialias=antialias,
            )
            chosen = choose("auto", image, reading)
            answer = f"{chosen.name:<10} {chosen.module.how(image, reading)}"
            shown = padding if isinstance(padding, str) else "constant"
            answers.setdefault((operation, answer), []).append(shown)
    every = [*PADDINGS, "constant"]
    return [
        f"{device:<5} {operation!s:<24} {'any padding' if found == every else ', '.join(found):<26} {answer}"
        for (operation, answer), found in answers.items()
    ]
