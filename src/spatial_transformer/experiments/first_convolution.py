"""The first convolution behind a spatial transformer, which learns from the gradient by the image.

By an image of three colours that gradient is a product with three columns, where the tiles of a GPU's
libraries have 32 or more. In blocks of 4 x 4 pixels it has 48: each block is a sum over the positions that it
contributed to, 8 x 8 for a kernel of 5 x 5, and so a convolution in strides of a block.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BLOCK = 4  # pixels along each side
FEW = 8  # channels, up to which it pays


class FirstConvolution(nn.Conv2d):
    """``nn.Conv2d`` in all, but for how the gradient by an image of few channels is computed."""

    def forward(self, input: Tensor) -> Tensor:
        if not comes_in_blocks(self, input):
            return super().forward(input)
        found: Tensor = Convolved.apply(input, self.weight, self.bias)
        return found


def comes_in_blocks(layer: nn.Conv2d, input: Tensor) -> bool:
    """Whether a gradient by the input is wanted, and is one of whole blocks."""
    if not (input.requires_grad and torch.is_grad_enabled()) or input.is_meta:
        return False
    kernel = layer.kernel_size[0]
    same = layer.kernel_size == (kernel, kernel) and layer.padding == (kernel // 2,) * 2 and kernel % 2 == 1
    plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
    whole = input.ndim == 4 and input.shape[2] % BLOCK == input.shape[3] % BLOCK == 0 and input.numel() > 0
    alike = input.dtype == layer.weight.dtype and not torch.is_autocast_enabled(input.device.type)
    return same and plain and whole and alike and layer.in_channels <= FEW


class Convolved(torch.autograd.Function):
    """conv2d(input, weight, bias) with as much padding as the output takes to be as large as the input."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.bias = None if bias is None else list(bias.shape)
        return F.conv2d(input, weight, bias, padding=weight.shape[-1] // 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        input, weight = ctx.saved_tensors
        _, of_weight, of_bias = torch.ops.aten.convolution_backward(
            gradient, input, weight, ctx.bias, [1, 1], [weight.shape[-1] // 2] * 2, [1, 1], False, [0, 0], 1,
            [False, True, ctx.bias is not None],
        )  # fmt: skip
        return by_image(gradient, weight), of_weight, of_bias


def by_image(gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient by the image: [N, F, H, W], [F, C, k, k] -> [N, C, H, W]"""
    kernel = weight.shape[-1]
    blocks = F.pad(weight.flatten(2), (0, 1))[:, :, taps(kernel, weight.device)]  # [F, C, 16, K, K]
    blocks = blocks.permute(1, 2, 0, 3, 4).flatten(0, 1)
    return F.pixel_shuffle(F.conv2d(gradient, blocks, stride=BLOCK, padding=kernel // 2), BLOCK)


@functools.cache
def taps(kernel: int, device: torch.device) -> Tensor:
    """Which number of a filter, flattened, stands between a pixel of a block and a position that it reaches,
    and where there is none the one after its last. [pixels of a block, K, K] with K = kernel + 3"""
    numbers = torch.arange(kernel**2).view(kernel, kernel).flip(0, 1)
    rest = BLOCK - 1
    each = [
        F.pad(numbers, (x, rest - x, y, rest - y), value=kernel**2)
        for y in range(BLOCK)
        for x in range(BLOCK)
    ]
    return torch.stack(each).to(device)
