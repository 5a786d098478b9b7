"""The paper's equations as nested loops over numpy's float64, sharing nothing with the package.

Coordinates are turned into pixels by ``pixel``; every sum runs over all of the image, as printed. What is
outside (the paper says nothing: zeros) is read through ``extended``, an image laid out with its padding.
"""

from __future__ import annotations

import itertools
import math

import numpy as np


def normalised(index: int, length: int, align_corners: bool) -> float:
    """The target coordinate of a pixel: -1 to 1 over the outer edges, or over the border pixels' centres."""
    if align_corners:
        return 0.0 if length == 1 else -1 + 2 * index / (length - 1)
    return -1 + (2 * index + 1) / length


def pixel(coordinate: float, length: int, align_corners: bool) -> float:
    if align_corners:
        return (coordinate + 1) / 2 * (length - 1)
    return ((coordinate + 1) * length - 1) / 2


def transformed(matrix, point) -> list[float]:
    """Equations 1 and 10, and their projective form: M (x, y, 1)."""
    extended = [*point, 1.0]
    rows = [sum(matrix[a][b] * extended[b] for b in range(len(extended))) for a in range(len(matrix))]
    if len(rows) > len(point):
        return [value / rows[-1] for value in rows[:-1]]
    return rows


def attention(scale: float, *shift: float):
    """Equation 2."""
    dims = len(shift)
    return [[scale if a == b else 0.0 for b in range(dims)] + [shift[a]] for a in range(dims)]


def delta(x: float, m: int) -> float:
    """Equation 4's kernel."""
    return 1.0 if math.floor(x + 0.5) == m else 0.0


def tent(x: float, m: int) -> float:
    """Equation 5's kernel, and equation 9's."""
    return max(0.0, 1 - abs(x - m))


def keys(x: float, m: int) -> float:
    """Cubic convolution with a = -3/4, from its definition by pieces."""
    d, a = abs(x - m), -0.75
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def bump(x: float, m: int) -> float:
    """The ``bump`` of cases.py."""
    d = x - m
    return math.cos(d) ** 2 * math.exp(-0.3 * d) / 1.7 if -1.5 <= d < 1.5 else 0.0


KERNELS = {"nearest": delta, "bilinear": tent, "bicubic": keys, "Kernel": bump}


def sampled(image, point, kernel, value_outside=0.0, reach: int = 0, index=None):
    """Equation 3 at one source point (pixels, x first): image [*size] of one channel.

    Paddings other than zeros extend the sums by ``reach`` pixels on each side; ``index`` says which pixel a
    place outside shows, or None for ``value_outside``.
    """
    lengths = image.shape
    total = 0.0
    ranges = [range(-reach, n + reach) for n in lengths]
    for place in itertools.product(*ranges):
        weight = 1.0
        for x, m in zip(point, reversed(place), strict=True):
            weight *= kernel(x, m)
        if weight == 0.0:
            continue
        inside = all(0 <= m < n for m, n in zip(place, lengths, strict=True))
        if inside:
            value = image[place]
        elif index is None:
            value = value_outside
        else:
            value = image[tuple(index(m, n) for m, n in zip(place, lengths, strict=True))]
        total += value * weight
    return total


def border(m: int, n: int) -> int:
    return min(max(m, 0), n - 1)


def circular(m: int, n: int) -> int:
    return m % n


def reflection(align_corners: bool):
    def index(m: int, n: int) -> int:
        while not 0 <= m < n:  # fold back until inside
            if align_corners:
                if n == 1:
                    return 0
                m = -m if m < 0 else 2 * (n - 1) - m
            else:
                m = -1 - m if m < 0 else 2 * n - 1 - m
        return m

    return index


def d_pixel(size, point):
    """Equation 6 for every pixel: the derivative of V_i with respect to U_nm. [*size]"""
    result = np.zeros(size)
    for place in itertools.product(*[range(n) for n in size]):
        weight = 1.0
        for x, m in zip(point, reversed(place), strict=True):
            weight *= max(0.0, 1 - abs(x - m))
        result[place] = weight
    return result


def d_position(image, point, axis: int) -> float:
    """Equation 7: the derivative of V_i with respect to x_i (axis 0), y_i (1) or z_i (2), to the letter."""
    total = 0.0
    for place in itertools.product(*[range(n) for n in image.shape]):
        along = list(reversed(place))
        factor = 1.0
        for other, (x, m) in enumerate(zip(point, along, strict=True)):
            if other != axis:
                factor *= max(0.0, 1 - abs(x - m))
        m, x = along[axis], point[axis]
        case = 0.0 if abs(m - x) >= 1 else (1.0 if m >= x else -1.0)
        total += image[place] * factor * case
    return total
