"""What the fused kernels are asked to do, and what the two of them agree on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..antialias import NEAR_ONE
from ..coordinates import Size, span
from ..matrices import pixel_factors


class Job(NamedTuple):
    """Everything about a call that is not a tensor.

    The tensors of a call:

    - image [N, C, *in], any strides, any floating dtype
    - numbers [N, T, ...] and basis: the transformation, see ``family.Source``. Their dtype, float32 or
      float64, is the one that coordinates, weights and sums are computed in.
    - fill [C] in that dtype, for the padding "fill" alone
    - output and cotangent [N, T, C, *size] in the image's dtype

    Both implementations also take the numbers as a family gives them, a matrix's last two axes in one; with
    ``several=False``, one transform an image, none of these tensors has the axis T. Small warps are over
    before views of them are made.
    """

    kind: str  # of family.Source
    size: tuple[int, ...]  # of the output
    kernel: str  # "nearest", "bilinear" or "bicubic"
    padding: str  # one of kernels.PADDINGS, or "fill"
    align_corners: bool
    limit: float  # the widest footprint that anti-aliasing follows; 1 is none

    @property
    def antialias(self) -> bool:
        return self.limit > 1


class Axis(NamedTuple):
    """The constants of one source axis, x, y or z."""

    length: int  # of the image
    middle: float  # added to centred pixels
    half_span: float  # normalised to centred pixels; 0 for an axis without extent
    steps: tuple[float, ...]  # what a matrix's entries of this row are multiplied by: x, y (, z), shift
    still: float  # source pixels per output pixel of the same axis where nothing moves


def source_axes(in_size: Size, job: Job) -> list[Axis]:
    """Along x, y (, z)."""
    factors = pixel_factors(in_size, job.size, job.align_corners)
    return [
        Axis(length, (length - 1) / 2, span(length, job.align_corners) / 2, tuple(factors[a]), factors[a][a])
        for a, length in enumerate(reversed(in_size))
    ]


def w_steps(in_size: Size, job: Job) -> tuple[float, ...]:
    """What the entries of a projective matrix's last row are multiplied by."""
    return tuple(pixel_factors(in_size, job.size, job.align_corners)[-1])


def near_one(in_size: Size, job: Job, dtype: torch.dtype) -> float:
    """Footprints up to 1 plus this count as 1, as in ``antialias.footprints``."""
    if job.kind == "matrix":
        return NEAR_ONE
    return max(NEAR_ONE, 4 * torch.finfo(dtype).eps * max(in_size))


def channels_last(image: Tensor) -> bool:
    """Whether the image's layout, and so the output's, has its channels innermost."""
    layout = torch.channels_last if image.ndim == 4 else torch.channels_last_3d
    return image.is_contiguous(memory_format=layout) and not image.is_contiguous()


def empty_output(image: Tensor, copies: int, size: Size) -> Tensor:
    """[N, T, C, *size] in the image's dtype and layout, nothing in it."""
    batch, channels = image.shape[:2]
    if channels_last(image):
        return image.new_empty(batch, copies, *size, channels).movedim(-1, 2)
    return image.new_empty(batch, copies, channels, *size)


def transforms(numbers: Tensor, image: Tensor, job: Job, several: bool) -> Tensor:
    """The numbers of a family in the form above: [N, T, R, dims + 1] for a matrix, else [N, T, ...]."""
    if job.kind == "matrix":
        lead = numbers.shape[:2] if several else (numbers.shape[0], 1)
        return numbers.reshape(*lead, -1, image.ndim - 1)
    return numbers if several else numbers.unsqueeze(1)
