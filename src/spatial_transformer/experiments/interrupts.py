"""Ctrl-C and ``kill`` as a question asked between steps: a step is never left half done."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

Stop = Callable[[], bool]
Part = TypeVar("Part")


class Stopped(Exception):
    """What had been begun is given up, since someone said stop."""


def until_stopped(parts: Iterable[Part], stop: Stop) -> Iterator[Part]:
    """One part after another; before each it is asked whether to stop, which raises ``Stopped``."""
    for part in parts:
        if stop():
            raise Stopped
        yield part


@contextmanager
def asked_to_stop() -> Iterator[Stop]:
    """Gives a function that says whether SIGINT or SIGTERM came; a second one of them ends the process."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be caught
        yield lambda: False
        return
    asked = threading.Event()
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print("\nstopping after this step; once more to stop at once", file=sys.stderr, flush=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, handle)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
