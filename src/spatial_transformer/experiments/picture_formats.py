"""What a picture is written as, by the suffix of its name."""

from __future__ import annotations

from pathlib import Path

# As Pillow and matplotlib both call them.
FORMATS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}


def format_of(path: Path) -> str:
    """
    >>> format_of(Path("sheet.JPG"))
    'jpeg'
    """
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"the name of a picture must end in {', '.join(FORMATS)}, got {path.name!r}")
    return FORMATS[path.suffix.lower()]
