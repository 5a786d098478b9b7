"""What the kernels of either kind share: rounding to bfloat16, products, and the index of what is cut off."""

from __future__ import annotations

import triton
import triton.language as tl

# Triton's interpreter (TRITON_INTERPRET=1), which tests run the kernels in, has its own ways with bfloat16.
_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

# An index of the maximum, row by row in its 2 x 2 positions; this one where the rectifier cut it off.
CUT = tl.constexpr(4)


@triton.jit
def _as(number, dtype: tl.constexpr):
    """Float32 to float32 or bfloat16, to the nearest."""
    if _INTERPRETED and dtype == tl.bfloat16:  # Triton 3.6's interpreter cuts the lower half off
        bits = number.to(tl.uint32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        number = (bits & 0xFFFF0000).to(tl.uint32).to(tl.float32, bitcast=True)
    return number.to(dtype)


@triton.jit
def _dot(a, b, b_sum):
    """b_sum + a b: bfloat16 in, float32 out."""
    if _INTERPRETED:  # Triton 3.6's interpreter takes bfloat16 there for whole numbers
        return tl.dot(a.to(tl.float32), b.to(tl.float32), b_sum)
    return tl.dot(a, b, b_sum)
