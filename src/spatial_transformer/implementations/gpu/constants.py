"""What options are called by in kernels, and the numbers that all implementations share."""

from __future__ import annotations

import triton.language as tl

from ...family import HUGE
from ...kernels import CUBIC
from ...matrices import HORIZON
from ..reference import FAR

KERNELS = {"nearest": 0, "bilinear": 1, "bicubic": 2}
PADDINGS = {"zeros": 0, "fill": 1, "border": 2, "reflection": 3, "circular": 4}
KINDS = {"matrix": 0, "offsets": 1, "points": 2, "grid": 3}

NEAREST, BILINEAR, BICUBIC = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
FILL, BORDER = tl.constexpr(1), tl.constexpr(2)
REFLECTION, CIRCULAR = tl.constexpr(3), tl.constexpr(4)
MATRIX, OFFSETS, POINTS, GRID = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
_HUGE, _FAR = tl.constexpr(HUGE), tl.constexpr(FAR)
_HORIZON, _CUBIC = tl.constexpr(HORIZON), tl.constexpr(CUBIC)

# Arguments whose values are not compiled in, or images of other sizes would be compiled for anew.
SIZES = (
    "C", "W", "H", "D", "OW", "OH", "OD", "K", "L", "tiles", "rows", "g_tiles", "g_rows",
    "blocks", "shares", "programs", "gathers",
)  # fmt: skip

# How _backward leaves the image's gradient: not at all, by atomic additions of floats, or of whole numbers.
NO_SCATTER, FLOATS, WHOLE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
