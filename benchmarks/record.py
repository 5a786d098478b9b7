"""What a result says about itself, and how it is written."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spatial_transformer.experiments import provenance

ROOT = Path(__file__).resolve().parent.parent


def heading() -> dict[str, Any]:
    """When, of which code, with which versions."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **commit(),
        "versions": provenance.versions(),
    }


def commit() -> dict[str, Any]:
    """Which code was measured, and whether it had changes that are not committed."""
    said = os.environ.get(provenance.VARIABLE)
    if said:
        return {"commit": said, "modified": False}

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):  # not a checkout
            return None
        return done.stdout.strip()

    changes = git("status", "--porcelain", "--", "src", "benchmarks/*.py")
    return {"commit": git("rev-parse", "HEAD"), "modified": None if changes is None else bool(changes)}


def write(result: Mapping[str, Any], path: Path) -> None:
    """In one step, so that a run that is cut short leaves what was written last as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(result, file, indent=2, allow_nan=False)
            file.write("\n")
        os.chmod(temporary, 0o644)  # mkstemp's files are for their owner alone
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
