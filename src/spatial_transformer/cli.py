"""The command ``stn``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .experiments import reports
from .experiments.data import commands as data
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
    data.add(commands)
    reports.add(commands)
    given = parser.parse_args(arguments)
    try:
        if given.command in reports.COMMANDS:
            return reports.run(given)
        return data.run(given) if given.command == "data" else print_info()
    except BrokenPipeError:  # `stn info | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:  # a second start goes on from what is complete
        print("stn: interrupted", file=sys.stderr)
        return 130
    except (OSError, ValueError, ImportError) as error:  # what a user can mend, without a traceback
        print(f"stn: {error}", file=sys.stderr)
        return 1


def print_info() -> int:
    print(info(), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
