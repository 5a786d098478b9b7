"""The command ``stn``."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence

import torch

from .experiments import localise, predicting, quickstart, reports, training
from .experiments.arguments import UsageError
from .experiments.data import commands as data
from .experiments.extra import extra
from .experiments.statuses import BROKEN, INTERRUPTED, MISUSED
from .info import info
from .version import __version__

# Of what a file system says, that which speaks of something else than a user did.
WORDS: dict[type[OSError], str] = {
    FileExistsError: "must be a folder, and is a file",
    IsADirectoryError: "must be a file, and is a folder",
}

# What takes less memory, of training.
SMALLER = "; a smaller batch takes less, and so do fewer cells --at-once"

# What a command cannot end without: asked for before there is work to be lost.
NEEDS = {"train": ("filelock", "safetensors"), "quickstart": ("filelock", "safetensors", "matplotlib")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit status."""
    parser = argparse.ArgumentParser(prog="stn", description="Spatial Transformer Networks for PyTorch.")
    parser.add_argument("--version", action="version", version=f"spatial_transformer {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "info", help="versions, devices, and which implementation each operation would take, and why"
    )
    data.add(commands)
    quickstart.add(commands)
    training.add(commands)
    reports.add(commands)
    predicting.add(commands)
    localise.add(commands)
    given, rest = parser.parse_known_args(arguments)
    if rest and hasattr(given, "settings") and not any(word.startswith("-") for word in rest):
        given.settings += rest  # `stn train EXPERIMENT --seed 1 steps=10`: argparse leaves them over
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    runs = {
        "info": print_info,
        "data": data.run,
        "quickstart": quickstart.run,
        "train": training.run,
        "predict": predicting.run,
        "localise": localise.run,
    }
    run = {**runs, **dict.fromkeys(reports.COMMANDS, reports.run)}[given.command]
    try:
        for module in NEEDS.get(given.command, ()):
            extra(module)
        return run(given)
    except BrokenPipeError:  # `stn info | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:  # a second start goes on from what is complete
        print("stn: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (MemoryError, RuntimeError) as error:
        if not of_memory(error):
            raise
        less = SMALLER if given.command == "train" else ""
        print(f"stn: there is not enough memory{wanted_memory(error)}{less}", file=sys.stderr)
        return BROKEN
    except (OSError, ValueError, ImportError) as error:  # what a user can mend, without a traceback
        print(f"stn: {said(error)}", file=sys.stderr)
        return MISUSED if isinstance(error, UsageError) else BROKEN


def of_memory(error: Exception) -> bool:
    """Whether there was too little of it; what torch says of the CPU's is a RuntimeError like any other."""
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or re.search("DefaultCPUAllocator|out of memory", str(error)) is not None


def wanted_memory(error: Exception) -> str:
    """How much was asked for, as far as that was said."""
    found = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", str(error))
    return f": {found[1]} were asked for at once" if found else ""


def said(error: Exception) -> str:
    """An error in words; what a file system says comes behind the path that it is of."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        path = error.filename if error.filename2 is None else error.filename2
        return f"{path}: {WORDS.get(type(error), error.strerror)}"
    return str(error)


def print_info(given: argparse.Namespace) -> int:
    print(info(), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
