"""Argument checks, run once at the public border. An error names the argument, the expected and the given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .antialias import DEFAULT_LIMIT
from .family import Family
from .implementations import IMPLEMENTATIONS
from .kernels import KERNELS, PADDINGS, Kernel, Reading

NUMBERS = (int, float, np.integer, np.floating)
FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def image(value: Any) -> Tensor:
    """A floating image [N, C, H, W] or [N, C, D, H, W] whose spatial axes are not empty."""
    floating("image", value)
    if value.ndim not in (4, 5):
        raise ValueError(f"image must be [N, C, H, W] or [N, C, D, H, W], got {shape(value)}")
    if 0 in value.shape and 0 in value.shape[2:]:
        raise ValueError(f"image must not be empty along its spatial axes, got {shape(value)}")
    found: Tensor = value
    return found


def family(value: Any, image: Tensor) -> Family:
    if not isinstance(value, Family):
        raise TypeError(f"family must be a Family such as st.Affine(), got {described(value)}")
    if value.dims != image.ndim - 2:
        raise ValueError(
            f"family {type(value).__name__}(dims={value.dims}) needs an image of {value.dims + 2} axes, "
            f"got image of {shape(image)}"
        )
    return value


def theta(value: Any, family: Family, image: Tensor) -> Tensor:
    """theta [N, P] or [N, T, P] for this family and image."""
    floating("theta", value)
    count = family.num_params
    if value.ndim not in (2, 3) or value.shape[-1] != count:
        raise ValueError(
            f"theta must be [N, {count}] or [N, T, {count}] for {type(family).__name__}, got {shape(value)}"
        )
    together("theta", value, image, several=value.ndim == 3)
    found: Tensor = value
    return found


def grid(value: Any, image: Tensor) -> Tensor:
    """A grid [N, *out, dims] or [N, T, *out, dims] for this image."""
    floating("grid", value)
    dims = image.ndim - 2
    if value.ndim not in (dims + 2, dims + 3) or value.shape[-1] != dims:
        out = "H', W'" if dims == 2 else "D', H', W'"
        raise ValueError(
            f"grid must be [N, {out}, {dims}] or [N, T, {out}, {dims}] for image of {shape(image)}, "
            f"got {shape(value)}"
        )
    if 0 in value.shape[-dims - 1 : -1]:
        raise ValueError(f"grid must not be empty along its spatial axes, got {shape(value)}")
    together("grid", value, image, several=value.ndim == dims + 3)
    found: Tensor = value
    return found


def together(name: str, value: Tensor, image: Tensor, *, several: bool) -> None:
    """One row for each image, at least one transform an image, on the image's device."""
    if value.shape[0] != image.shape[0]:
        raise ValueError(f"{name} must have the batch size of image, {image.shape[0]}, got {shape(value)}")
    if several and value.shape[1] == 0:
        raise ValueError(f"{name} must have at least one transform an image, got {shape(value)}")
    if value.device != image.device:
        raise ValueError(f"{name} must be on the device of image, {image.device}, got {value.device}")


def size(value: Any, image: Tensor) -> tuple[int, ...]:
    """The output's size: the image's own where None."""
    dims = image.ndim - 2
    if value is None:
        return tuple(image.shape[2:])
    if type(value) is tuple and len(value) == dims:  # as most give it: the rest takes longer than the checks
        for length in value:
            if type(length) is not int or length < 1:
                break
        else:
            return value
    if isinstance(value, (str, Tensor)) or not isinstance(value, Sequence) or len(value) != dims:
        expected = "(H, W)" if dims == 2 else "(D, H, W)"
        raise ValueError(f"size must be {expected} for image of {shape(image)}, got {described(value)}")
    for length in value:
        if isinstance(length, bool) or not isinstance(length, (int, torch.SymInt, np.integer)):
            raise TypeError(f"size must be whole numbers, got {value!r}")
        if length < 1:
            raise ValueError(f"size must be at least 1 along every axis, got {tuple(value)}")
    return tuple(int(length) if isinstance(length, np.integer) else length for length in value)


def reading(image: Tensor, *, kernel: Any, padding: Any, align_corners: Any, antialias: Any) -> Reading:
    """The options of how an image is read, in one value."""
    if not isinstance(align_corners, bool):
        raise TypeError(f"align_corners must be True or False, got {align_corners!r}")
    mode, fill = padded(padding, image)
    return Reading(kernel_of(kernel, image), mode, fill, align_corners, limit(antialias))


def kernel_of(value: Any, image: Tensor) -> Kernel:
    if isinstance(value, Kernel):
        if value.axes not in (1, image.ndim - 2):
            raise ValueError(
                f"kernel has functions for {value.axes} axes, image of {shape(image)} has {image.ndim - 2}"
            )
        return value
    if not isinstance(value, str):
        raise TypeError(f"kernel must be a name or a Kernel, got {described(value)}")
    return KERNELS[one_of("kernel", value, KERNELS)]


def padded(value: Any, image: Tensor) -> tuple[str, float | Tensor]:
    """The padding's mode, and the value of a constant one."""
    if isinstance(value, str):
        return one_of("padding", value, PADDINGS), 0.0
    if isinstance(value, NUMBERS) and not isinstance(value, bool):
        if not finite_number(value):
            raise ValueError(f"padding must be a finite number, got {value!r}")
        return "fill", float(value)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (Sequence, Tensor)):
        if isinstance(value, Tensor):  # its numbers are not looked at: that would wait for the device
            good = not value.is_complex() and value.shape in ((), (1,), image.shape[1:2])
        else:
            good = len(value) == image.shape[1] and all(finite_number(number) for number in value)
        if not good:
            raise ValueError(
                f"padding must be finite numbers, one for each of the {image.shape[1]} channels, "
                f"got {described(value)}"
            )
        dtype = None if isinstance(value, Tensor) else torch.promote_types(image.dtype, torch.float32)
        return "fill", torch.as_tensor(value, dtype=dtype, device=image.device).reshape(-1)
    raise TypeError(
        f"padding must be one of {listed(PADDINGS)}, a number, or a number for each channel, "
        f"got {described(value)}"
    )


def finite_number(value: Any) -> bool:
    # By comparison: torch.compile of 2.11 cannot trace math.isfinite.
    return isinstance(value, NUMBERS) and not isinstance(value, bool) and bool(-math.inf < value < math.inf)


def limit(value: Any) -> float:
    """The widest footprint that is followed, from the ``antialias`` argument."""
    if isinstance(value, bool):
        return DEFAULT_LIMIT if value else 1.0
    if not isinstance(value, NUMBERS) or not 1 <= value < math.inf:
        raise ValueError(
            f"antialias must be True, False or the widest footprint to follow, at least 1, got {value!r}"
        )
    return float(value)


IMPLS = ("auto", *IMPLEMENTATIONS)


def impl(value: Any) -> str:
    return one_of("impl", value, IMPLS)


def one_of(name: str, value: Any, choices: Any) -> str:
    if value not in choices:
        raise ValueError(f"{name} must be one of {listed(choices)}, got {value!r}")
    found: str = value
    return found


def floating(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {described(value)}")
    if value.dtype not in FLOATING:
        given = str(value.dtype).removeprefix("torch.")
        raise TypeError(f"{name} must be float64, float32, bfloat16 or float16, got {given}")


def listed(choices: Any) -> str:
    return ", ".join(f'"{choice}"' for choice in choices)


def shape(value: Tensor) -> str:
    return f"shape {list(value.shape)}"


def described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {shape(value)}"
    return f"{value!r} ({type(value).__name__})"
