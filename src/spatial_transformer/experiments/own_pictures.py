"""Pictures of one's own, whatever camera or program they are from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .extra import extra

GREY = (128, 128, 128, 255)  # behind what is transparent


def in_colour(path: Path) -> Any:
    """A picture upright, as Pillow's RGB; a file that is none raises a ValueError that names it."""
    # What Pillow raises of broken files: RuntimeError of AVIF and DDS, SyntaxError of PNG, and others.
    broken = (OSError, ValueError, SyntaxError, RuntimeError, MemoryError)
    try:
        return converted(path)
    except (*broken, extra("PIL.Image").DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as a picture: {error}") from error


def converted(path: Path) -> Any:
    """Levels beyond 8 bits are spread from the darkest to the brightest that there is, where Pillow would cut
    them off; what lies behind a transparent pixel is grey, whatever it holds."""
    image_module = extra("PIL.Image")
    with image_module.open(path) as file:
        upright = extra("PIL.ImageOps").exif_transpose(file)
    if upright.mode.startswith(("I", "F")):
        levels = np.asarray(upright, dtype=np.float64)
        darkest, brightest = levels.min(), levels.max()
        if not np.isfinite([darkest, brightest]).all():
            raise ValueError("it has pixels that are no numbers")
        spread = (levels - darkest) * (255 / max(brightest - darkest, 1e-12))
        upright = image_module.fromarray(spread.round().astype(np.uint8))
    if upright.has_transparency_data:
        clear = upright.convert("RGBA")
        ground = image_module.new("RGBA", clear.size, GREY)
        upright = image_module.alpha_composite(ground, clear)
    return upright.convert("RGB")
