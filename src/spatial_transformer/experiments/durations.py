"""How long something takes: as it is said, and as it is given."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError


def duration(seconds: float) -> str:
    """
    >>> duration(7.4), duration(61), duration(4000), duration(360_000)
    ('7 s', '1 min 1 s', '1 h 7 min', '100 h 0 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def seconds_of(text: str) -> float:
    """Of a number, or of numbers with units.

    >>> seconds_of("90"), seconds_of("25m"), seconds_of("1h30m")
    (90.0, 1500.0, 5400.0)
    """
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    if parts is None or not text:
        raise ArgumentTypeError(f"must be such as 90, 25m or 1h30m, got {text!r}")
    hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return 3600.0 * hours + 60 * minutes + seconds
