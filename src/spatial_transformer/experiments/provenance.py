"""Where a result is from: which code, which versions, which device."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy
import torch

from ..version import __version__

VARIABLE = "SPATIAL_TRANSFORMER_COMMIT"  # says it where the code is without its history


def commit() -> str:
    """The commit of this code, with ``-modified`` where it is not all committed; else its version."""
    if os.environ.get(VARIABLE):
        return os.environ[VARIABLE]

    def git(*arguments: str) -> str:
        where = Path(__file__).parent
        done = subprocess.run(["git", *arguments], cwd=where, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git(
            "ls-files", "--error-unmatch", Path(__file__).name
        )  # else it is installed inside someone's project
        return git("rev-parse", "HEAD") + ("-modified" if git("status", "--porcelain", "--", "..") else "")
    except (OSError, subprocess.CalledProcessError):
        return f"version {__version__}"


def versions() -> dict[str, str]:
    """Of all that decides what comes out."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "spatial_transformer": __version__,
    }
    for name in ("triton", "numba"):
        if importlib.util.find_spec(name) is not None:
            found[name] = installed(name)
    return found


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # on the path, but not by an installer
        return "unknown"


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        properties: Any = torch.cuda.get_device_properties(device)
        return str(properties.name)
    return f"{device.type}, {platform.machine()}, {torch.get_num_threads()} threads"
