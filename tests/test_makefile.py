"""``make reproduce``: which ends of ``stn train`` it goes on after."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from spatial_transformer.experiments import statuses

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def reproduced(folder, **ends):
    """Whether it says that all is well, and what it ran, with commands that end as they are told to."""
    script = f"#!/bin/sh\necho $1 $2 >> {folder}/ran\ncase $1 in\n"
    script += "".join(f"{command}) exit {status};;\n" for command, status in ends.items())
    (folder / "stn").write_text(f"{script}esac\n")
    (folder / "stn").chmod(0o755)
    command = ["make", "-o", ".venv/installed", "reproduce", f"BIN={folder}", f"REPRODUCED={folder}"]
    done = subprocess.run([*command, "TABLES=one two"], cwd=ROOT, capture_output=True, timeout=60)
    return done.returncode == 0, (folder / "ran").read_text().splitlines()


ALL = ["train one", "table one", "train two", "table two"]


@pytest.mark.parametrize("status", [0, statuses.FAILED])
def test_a_failed_run_stands_in_the_table_and_the_rest_is_done(tmp_path, status):
    assert reproduced(tmp_path, train=status) == (True, ALL)


@pytest.mark.parametrize(
    "status", [statuses.BROKEN, statuses.MISUSED, statuses.UNFINISHED, statuses.INTERRUPTED]
)
def test_anything_else_ends_it(tmp_path, status):
    assert reproduced(tmp_path, train=status) == (False, ALL[:1])


@pytest.mark.parametrize("status", [statuses.BROKEN, statuses.MISUSED])
def test_a_table_that_cannot_be_made_ends_it(tmp_path, status):
    assert reproduced(tmp_path, table=status) == (False, ALL[:2])
