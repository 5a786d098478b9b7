"""Convolutions that pad, with rectifiers and max-pooling, as larger networks have them: ``surrounded``; and
``flattened``, for the linear layers after them.

As in ``fast_convolutions`` all can be captured in a CUDA graph, once it has been called before, and all sums
have a fixed order but those of cuDNN's products.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .fast_convolutions import (
    MULTIPLE,
    check,
    check_device,
    check_pool,
    few_channels,
    kernels,
    padded,
    room,
)


def surrounded(input: Tensor, weight: Tensor, bias: Tensor, *, padding: int, pool: int = 2) -> Tensor:
    """max_pool2d(relu(conv2d(input, weight, bias, padding=padding)), pool), where ``pool`` is 1 or 2, in
    bfloat16 channels last; weight and bias are float32, the input what it may be.

    The product is cuDNN's, and what follows it one pass through memory each way; as PyTorch's operations it
    is four there and five back. Images of few channels are taken in blocks of 2 x 2 pixels where their
    pooling is of such, or else padded, for ``few_channels``.
    """
    if input.ndim == 4 and input.shape[1] != weight.shape[1]:
        raise ValueError(f"input must be of {weight.shape[1]} channels, got {list(input.shape)}")
    with torch.autocast(input.device.type, enabled=False):  # it would round sums that are to be float32
        few = weight.shape[1] <= MULTIPLE
        in_blocks = few and comes_in_blocks(input, weight, padding, pool)
        if few and not in_blocks:
            images = F.pad(input.float(), (padding,) * 4)
            return few_channels(images, weight, bias, pool=pool, further=True)[:, : weight.shape[0]]
        check(input, weight, bias, own_product=False)
        check_pool(input, weight, pool, "input", padding)
        check_device(input)
        if in_blocks:
            input, weight = blocks_of(input), spread(weight)
            padding = weight.shape[-1] // 2
        input, weight = (
            each.to(torch.bfloat16, memory_format=torch.channels_last) for each in (input, weight)
        )
        found: Tensor = Ending.apply(F.conv2d(input, weight, padding=padding), bias, pool)
        return found


class Ending(torch.autograd.Function):
    """Bias, rectifier and pooling: bfloat16 [N, F, H, W] -> [N, F, h, w], channels last.

    Or [N, 4 F, h, w], the four of each of the pooled positions beside each other.
    """

    @staticmethod
    def forward(ctx: Any, convolved: Tensor, bias: Tensor, pool: int) -> Tensor:
        batch, channels, height, width = convolved.shape
        filters = len(bias)
        # Four positions on end are two rows of two.
        positions = (height, width) if channels == filters else (2 * height * width, 2)
        sizes = kernels().ManyChannels(batch, *positions, 1, filters, filters, filters, filters, pool)
        rows = convolved.permute(0, 2, 3, 1).reshape(1, sizes.rows, filters)
        output = room(convolved, sizes, further=True)
        ctx.save_for_backward(kernels().pooled(rows, bias.contiguous(), output, sizes))
        ctx.sizes, ctx.convolved = sizes, (batch, height, width, channels)
        return output if channels == filters else output.reshape(batch, filters, height, width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (index,) = ctx.saved_tensors
        gradient = gradient.reshape(*gradient.shape[:2], *ctx.sizes.pooled)
        positions, bias_sums = kernels().unpooled(gradient, index, ctx.sizes)
        return positions.view(ctx.convolved).permute(0, 3, 1, 2), bias_sums.sum(0), None


# Images in blocks of 2 x 2 pixels
#
# Three colours are too few for tensor cores. In blocks of 2 x 2 pixels an image is of half the size and has
# 12 channels, and its convolution one of blocks with blocks, of a kernel that reaches as far: what it gives
# at a block is what the former gave at its four pixels, which are what pooling takes together.


def comes_in_blocks(images: Tensor, weight: Tensor, padding: int, pool: int) -> bool:
    kernel = weight.shape[-1]
    even = images.ndim == 4 and images.shape[2] % 2 == images.shape[3] % 2 == 0
    return even and pool == 2 and kernel % 2 == 1 and padding == kernel // 2


def blocks_of(images: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, (c, y, x) and zeros up to a multiple of 8, H / 2, W / 2]"""
    missing = padded(4 * images.shape[1]) - 4 * images.shape[1]
    return F.pad(F.pixel_unshuffle(images, 2), (0, 0, 0, 0, 0, missing))


def spread(weight: Tensor) -> Tensor:
    """The weight by which blocks are convolved: [F, C, k, k] -> [(y, x, F), channels of a block, K, K]

    Where a filter stands at one of the four pixels of a block, it lies in the frame of K x K blocks about it
    so many pixels further on; the rest of the frame is zero.
    """
    found: Tensor = Spread.apply(weight)
    return found


class Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.shape = weight.shape
        there, _ = taps(weight.shape[1], weight.shape[2], weight.device)
        found = F.pad(weight.flatten(1), (0, 1))[:, there]  # [F, 4, channels of a block, K, K]
        return found.transpose(0, 1).flatten(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        filters, channels, kernel, _ = ctx.shape
        _, back = taps(channels, kernel, gradient.device)
        of_each = gradient.unflatten(0, (4, filters)).transpose(0, 1).flatten(1)
        found: Tensor = of_each[:, back].sum(1).view(ctx.shape)
        return found


@functools.cache
def taps(channels: int, kernel: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which number of a filter, flattened, is where in its spread, [4, channels of a block, K, K], and where
    there is none the one after its last; and where in the spread each is, [4, channels * kernel**2]."""
    reach = kernel // 2
    blocks = -(-reach // 2)  # that the frame has on either side of the middle one
    frame = 2 * (2 * blocks + 1)
    numbers = torch.arange(channels * kernel**2).view(1, channels, kernel, kernel)
    none = numbers.numel()
    there = []
    for y in (0, 1):
        for x in (0, 1):
            above, left = 2 * blocks - reach + y, 2 * blocks - reach + x
            sides = (left, frame - kernel - left, above, frame - kernel - above)
            there.append(blocks_of(F.pad(numbers, sides, value=none)))
    found = torch.cat(there)
    found[:, 4 * channels :] = none
    back = found.flatten().argsort(stable=True)[: 4 * none].view(none, 4).T
    return found.to(device), back.to(device)


# Linear layers of what is flattened


def flattened(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """linear(input.flatten(1), weight, bias)

    Where the input is channels last, the weight's columns are put in its order if they are fewer numbers,
    and neither the input is copied nor its gradient.
    """
    last = input.ndim == 4 and input.is_contiguous(memory_format=torch.channels_last)
    fits = weight.shape[1] == input[0].numel() and len(weight) < len(input)
    if not last or input.is_contiguous() or not fits:
        return F.linear(input.flatten(1), weight, bias)
    kind = input.device.type
    rounds = torch.is_autocast_enabled(kind) and weight.dtype == torch.float32
    dtype = torch.get_autocast_dtype(kind) if rounds else weight.dtype
    weight = weight.unflatten(1, input.shape[1:]).to(dtype, memory_format=torch.channels_last)
    return F.linear(input.permute(0, 2, 3, 1).flatten(1), weight.permute(0, 2, 3, 1).flatten(1), bias)
