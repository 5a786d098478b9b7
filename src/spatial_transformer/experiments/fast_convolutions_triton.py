"""The kernels of ``fast_convolutions`` launched: how work is cut into programs, and what lies between them.

``convolution_kernels`` holds the kernels: ``one_channel`` for images of one channel, ``many_channels`` for
activations, which are channels-last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from .convolution_kernels.many_channels import (
    _many_channels_fold,
    _many_channels_forward,
    _many_channels_pack,
    _many_channels_pooled,
    _many_channels_unpooled,
    _many_channels_weight_gradient,
    _many_channels_weight_shares,
)
from .convolution_kernels.one_channel import (
    _one_channel_forward,
    _one_channel_image_gradient,
    _one_channel_pack,
    _one_channel_patch_gradient,
    _one_channel_weight_gradient,
    _one_channel_weight_shares,
)

# Triton's interpreter (TRITON_INTERPRET=1) runs the kernels on CPU tensors, for tests.
INTERPRETED = bool(triton.knobs.runtime.interpret)

# Programs that fill a GPU: positions are shared out over so many where a sum over them is wanted. More of
# them wait less, and leave more partial sums to be added.
PROGRAMS = 132

# Bytes of scratch at a time that the second-level cache holds beside everything else.
SCRATCH = 40 * 2**20


class Blocks(NamedTuple):
    """Of a kernel: rows and filters of a block, the depth of a step, warps, stages of loading ahead."""

    rows: int
    filters: int = 0
    depth: int = 0
    warps: int = 8
    stages: int = 2


# Worth trying on a GPU: rows 64 or 128, warps 4 or 8, filters 32 or 64, stages 2 to 4.
ONE_FORWARD = Blocks(rows=128, filters=32)
ONE_WEIGHTS = Blocks(rows=64, filters=32)
ONE_PATCHES = Blocks(rows=128, filters=32)
MANY_FORWARD = Blocks(rows=128, filters=128, depth=64, stages=3)
MANY_WEIGHTS = Blocks(rows=64, filters=128, depth=128, stages=3)
POOLED = Blocks(rows=4, warps=4)
POINTWISE = Blocks(rows=32, warps=4)
PIXELS = 256
AT_ONCE = 4096  # numbers of a pointwise program: 32 a thread


def padded(number: int, to: int) -> int:
    return -(-number // to) * to


def power_of_2(number: int) -> int:
    """At least 16, which tensor cores want of every side."""
    return max(16, triton.next_power_of_2(number))


def launch(kernel: Any, grid: tuple[int, ...], blocks: Blocks, *arguments: Any) -> None:
    """The one place where kernels start; arguments in the kernel's order."""
    kernel[grid](*arguments, num_warps=blocks.warps, num_stages=blocks.stages)


# One input channel


class OneChannel(NamedTuple):
    """The sizes of a one-channel convolution with its pooling."""

    batch: int
    height: int
    width: int
    kernel: int
    filters: int
    channels: int  # of the output in memory: the filters, and zeros up to a multiple of 8

    @property
    def pooled(self) -> tuple[int, int]:
        return (self.height - self.kernel + 1) // 2, (self.width - self.kernel + 1) // 2

    @property
    def rows(self) -> int:
        return self.batch * self.pooled[0] * self.pooled[1]

    @property
    def taps(self) -> int:
        """Columns of a patch: its pixels, the ones, and what fills it up to a power of 2."""
        return power_of_2((self.kernel + 1) ** 2 + 1)

    @property
    def image(self) -> tuple[int, int, int]:
        return self.height, self.width, self.kernel


def one_channel_forward(
    image: Tensor, weight: Tensor, bias: Tensor, sizes: OneChannel
) -> tuple[Tensor, Tensor, Tensor]:
    """[N, 1, H, W] -> [rows, channels] in bfloat16, the maxima's index, and the packed filters."""
    blocks = ONE_FORWARD
    width = padded(sizes.channels, max(blocks.filters, ONE_PATCHES.filters))  # whole blocks of either kernel
    packed = image.new_empty((4, sizes.taps, width), dtype=torch.bfloat16)
    launch(
        _one_channel_pack, (4 * sizes.taps // 16, width // blocks.filters), Blocks(16, warps=4),
        weight, packed, sizes.kernel, sizes.filters, sizes.taps, width, 16, blocks.filters,
    )  # fmt: skip
    output = image.new_empty((sizes.rows, sizes.channels), dtype=torch.bfloat16)
    index = image.new_empty((sizes.rows, sizes.channels), dtype=torch.uint8)
    launch(
        _one_channel_forward, (-(-sizes.rows // blocks.rows),), blocks,
        image, packed, bias, output, index, sizes.rows,
        *sizes.image, sizes.filters, sizes.channels, sizes.taps, width, blocks.rows, blocks.filters,
    )  # fmt: skip
    return output, index, packed


def one_channel_weight_gradient(
    image: Tensor, gradient: Tensor, index: Tensor, sizes: OneChannel
) -> tuple[Tensor, Tensor]:
    """What the maxima got, [rows, channels] in bfloat16 -> the gradients of weight and bias."""
    blocks = ONE_WEIGHTS
    width = padded(sizes.channels, blocks.filters)
    groups = width // blocks.filters
    many = -(-sizes.rows // blocks.rows)
    each = -(-many // max(1, PROGRAMS // groups))
    shares = -(-many // each)
    sums = image.new_empty((shares, 4, sizes.taps, width))
    launch(
        _one_channel_weight_shares, (shares, groups), blocks,
        image, gradient, index, sums, sizes.rows, each,
        *sizes.image, sizes.channels, sizes.taps, width, blocks.rows, blocks.filters,
    )  # fmt: skip
    weight = image.new_empty((sizes.filters, 1, sizes.kernel, sizes.kernel))
    bias = image.new_empty((sizes.filters,))
    launch(
        _one_channel_weight_gradient, (sizes.kernel**2 + 1, -(-width // 32)), Blocks(1, warps=4),
        sums, weight, bias, shares,
        sizes.kernel, sizes.filters, sizes.taps, width, triton.next_power_of_2(shares), 32,
    )  # fmt: skip
    return weight, bias


def one_channel_image_gradient(gradient: Tensor, index: Tensor, packed: Tensor, sizes: OneChannel) -> Tensor:
    """What the maxima got, [rows, channels] in bfloat16 -> the gradient of the image, [N, 1, H, W]"""
    blocks = ONE_PATCHES
    many = -(-sizes.rows // blocks.rows)
    patches = gradient.new_empty((many, (sizes.kernel + 1) ** 2, blocks.rows))
    launch(
        _one_channel_patch_gradient, (many,), blocks,
        gradient, index, packed, patches, sizes.rows,
        sizes.kernel, sizes.channels, sizes.taps, packed.shape[2], blocks.rows, blocks.filters,
    )  # fmt: skip
    image = gradient.new_empty((sizes.batch, 1, sizes.height, sizes.width), dtype=torch.float32)
    launch(
        _one_channel_image_gradient, (-(-image.numel() // PIXELS),), Blocks(1, warps=4),
        patches, image, image.numel(), *sizes.image, blocks.rows, PIXELS,
    )  # fmt: skip
    return image


# Many input channels


class ManyChannels(NamedTuple):
    """The sizes of a convolution over channels-last activations, with pooling of 1 or 2."""

    batch: int
    height: int
    width: int
    kernel: int
    inputs: int
    channels: int  # of the input in memory
    filters: int
    filters_padded: int  # to a multiple of 8
    pool: int

    @property
    def positions(self) -> tuple[int, int]:
        return self.height - self.kernel + 1, self.width - self.kernel + 1

    @property
    def rows(self) -> int:
        return self.batch * self.positions[0] * self.positions[1]

    @property
    def pooled(self) -> tuple[int, int]:
        return self.positions[0] // self.pool, self.positions[1] // self.pool

    @property
    def taps(self) -> int:
        return self.kernel**2

    @property
    def depth(self) -> int:
        """Numbers that a position sees."""
        return self.taps * self.channels

    @property
    def image(self) -> tuple[int, int, int, int]:
        return self.height, self.width, self.kernel, self.channels


def pack(weight: Tensor, sizes: ManyChannels) -> Tensor:
    """[F, C, k, k] -> [filters, (y, x, c)] in bfloat16, both padded with zeros."""
    packed = weight.new_empty((sizes.filters_padded, sizes.depth), dtype=torch.bfloat16)
    side = triton.next_power_of_2(sizes.taps)
    launch(
        _many_channels_pack, (sizes.filters_padded, -(-sizes.channels // 32)), Blocks(1, warps=4),
        weight, packed, sizes.taps, sizes.filters, sizes.inputs, sizes.channels, side, 32,
    )  # fmt: skip
    return packed


def parts_of(rows: int, kernel: int) -> int:
    """How many programs share out the rows of taps of a position: few where there are many positions."""
    blocks = -(-rows // MANY_FORWARD.rows)
    each = -(-kernel // max(1, min(kernel, 2 * PROGRAMS // blocks)))
    return -(-kernel // each)


def product(activations: Tensor, packed: Tensor, sizes: ManyChannels) -> Tensor:
    """[N, H, W, channels] -> [parts, rows, filters], whose sum over the parts is the convolution."""
    blocks = MANY_FORWARD
    parts = parts_of(sizes.rows, sizes.kernel)
    block = min(blocks.filters, power_of_2(sizes.filters_padded))
    found = activations.new_empty((parts, sizes.rows, sizes.filters_padded), dtype=torch.float32)
    launch(
        _many_channels_forward,
        (-(-sizes.rows // blocks.rows), -(-sizes.filters_padded // block), parts), blocks,
        activations, packed, found, sizes.rows,
        *sizes.image, sizes.filters_padded, -(-sizes.kernel // parts), blocks.rows, block, blocks.depth,
    )  # fmt: skip
    return found


def pooled(parts: Tensor, bias: Tensor, output: Tensor, sizes: ManyChannels) -> Tensor:
    """Sums, adds the bias, rectifies and pools into ``output`` [N, F, h, w]; gives the maxima's index."""
    rows = sizes.batch * sizes.pooled[0] * sizes.pooled[1]
    index = parts.new_empty((rows, sizes.filters_padded), dtype=torch.uint8)
    blocks, width = POOLED, power_of_2(sizes.filters_padded)
    if parts.dtype == torch.bfloat16:  # half as many bytes: as many at a time
        blocks = POOLED._replace(rows=max(POOLED.rows, AT_ONCE // (2 * width)))
    launch(
        _many_channels_pooled, (-(-rows // blocks.rows),), blocks,
        parts, bias, output, index, rows, parts.shape[0], *output.stride(),
        *sizes.positions, sizes.pool, sizes.filters, sizes.filters_padded, output.shape[1],
        blocks.rows, width,
    )  # fmt: skip
    return index


def unpooled(gradient: Tensor, index: Tensor, sizes: ManyChannels) -> tuple[Tensor, Tensor]:
    """[N, F, h, w] -> what each position got, [rows, filters] in bfloat16, and its sums, [shares, filters]"""
    down, across = (-(-side // sizes.pool) for side in sizes.positions)
    rows, width = sizes.batch * down * across, power_of_2(sizes.filters_padded)
    filling = 1 << max(1, rows // PROGRAMS).bit_length() - 1  # rows of each program, where there are few
    each = max(1, min(AT_ONCE // (sizes.pool * width), filling))
    shares = -(-rows // each)
    positions = gradient.new_empty((sizes.rows, sizes.filters_padded), dtype=torch.bfloat16)
    bias = gradient.new_empty((shares, sizes.filters_padded), dtype=torch.float32)
    launch(
        _many_channels_unpooled, (shares,), POINTWISE,
        gradient, index, positions, bias, rows, *gradient.stride(),
        *sizes.positions, sizes.pool, sizes.filters_padded, gradient.shape[1], each, width,
    )  # fmt: skip
    return positions, bias


def weight_shares(activations: Tensor, positions: Tensor, sizes: ManyChannels) -> Tensor:
    """[shares, filters, (y, x, c)], whose sum over the shares is the gradient of the packed weights."""
    blocks = MANY_WEIGHTS
    block = min(blocks.filters, power_of_2(sizes.filters_padded))
    steps = sizes.kernel * -(-sizes.kernel * sizes.channels // blocks.depth)
    groups = -(-sizes.filters_padded // block)
    many = -(-sizes.rows // blocks.rows)
    each = -(-many // max(1, 2 * PROGRAMS // (steps * groups)))
    shares = -(-many // each)
    sums = activations.new_empty((shares, sizes.filters_padded, sizes.depth), dtype=torch.float32)
    launch(
        _many_channels_weight_shares, (steps, shares, groups), blocks,
        activations, positions, sums, sizes.rows, each,
        *sizes.image, sizes.filters_padded, blocks.rows, block, blocks.depth,
    )  # fmt: skip
    return sums


def weight_gradient(sums: Tensor, bias_sums: Tensor, sizes: ManyChannels) -> tuple[Tensor, Tensor]:
    """[shares, filters, (y, x, c)] and [shares, filters] -> the gradients of weight and bias"""
    weight = sums.new_empty((sizes.filters, sizes.inputs, sizes.kernel, sizes.kernel))
    bias = sums.new_empty((sizes.filters,))
    side = triton.next_power_of_2(sizes.taps)
    launch(
        _many_channels_weight_gradient, (sizes.filters, -(-sizes.inputs // 32)), Blocks(1, warps=4),
        sums, bias_sums, weight, bias, sums.shape[0], bias_sums.shape[0],
        sizes.taps, sizes.inputs, sizes.channels, sizes.filters_padded, side, 32,
        triton.next_power_of_2(bias_sums.shape[0]),
    )  # fmt: skip
    return weight, bias


def input_gradient(positions: Tensor, packed: Tensor, sizes: ManyChannels) -> Tensor:
    """What the positions got, [rows, filters] -> the gradient of the activations, [N, H, W, channels].

    Some images at a time, so that what lies between product and fold stays in the cache.
    """
    gradient = positions.new_empty((sizes.batch, sizes.height, sizes.width, sizes.channels))
    each = sizes.rows // sizes.batch
    images = max(1, min(sizes.batch, SCRATCH // (2 * each * sizes.depth)))
    for first in range(0, sizes.batch, images):
        some = gradient[first : first + images]
        taps = positions[first * each : (first + images) * each] @ packed
        pixels, width = some.shape[0] * sizes.height * sizes.width, triton.next_power_of_2(sizes.channels)
        rows = max(POINTWISE.rows, 512 // width)
        launch(
            _many_channels_fold, (-(-pixels // rows),), POINTWISE,
            taps, some, pixels, *sizes.image, rows, width,
        )  # fmt: skip
    return gradient
