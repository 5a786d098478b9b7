"""What is particular to the CPU: its clock, its load, its allocator, its name."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from .measure import Call, Device, Effort, Turn, storages


def prepare(way: str, calls: Sequence[Call]) -> Turn:
    return partial(turn, calls[0])


def turn(call: Call, least: float) -> float:
    """Seconds a call, over as many calls as fill the turn."""
    start, count = time.perf_counter(), 0
    while True:
        call()
        count += 1
        elapsed = time.perf_counter() - start
        if elapsed >= least:
            return elapsed / count


def busy_elsewhere() -> float | None:
    """Processor seconds that this machine has spent on other processes, where the system tells (Linux)."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return busy - time.process_time()


def peak(call: Call) -> int:
    """The most bytes that the call holds at once beyond its inputs and what it returns.

    Counted by torch's own CPU allocator, which reports every allocation and its running total to the
    profiler: exact and the same on every run, which the resident set's size is not. What libraries allocate
    by themselves is not seen.
    """
    call()  # so that what is made once and kept is not counted
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        returned = call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    reports = [event["args"] for event in events if event.get("name") == "[memory]"]
    reports = [report for report in reports if report["Device Type"] == 0]  # the CPU
    if not reports:
        return 0
    first = min(reports, key=lambda report: int(report["Ev Idx"]))
    before = first["Total Allocated"] - first["Bytes"]
    most = int(max(report["Total Allocated"] for report in reports) - before)
    return most - sum(storage.nbytes() for storage in storages(returned))


def describe() -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "type": "cpu",
        "name": name,
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


DEVICE = Device(
    tensors="cpu",
    effort=Effort(),
    why_not=lambda: None,
    describe=describe,
    sets=lambda inputs: 1,
    prepare=prepare,
    peak=peak,
    busy=busy_elsewhere,
    copy_rate=lambda: None,
)
