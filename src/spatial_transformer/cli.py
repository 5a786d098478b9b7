"""The command ``stn``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .info import info
from .version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit status."""
    parser = argparse.ArgumentParser(prog="stn", description="Spatial Transformer Networks for PyTorch.")
    parser.add_argument("--version", action="version", version=f"spatial_transformer {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "info", help="versions, devices, and which implementation each operation would take, and why"
    )
    parser.parse_args(arguments)
    try:
        print(info(), flush=True)
    except BrokenPipeError:  # `stn info | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
