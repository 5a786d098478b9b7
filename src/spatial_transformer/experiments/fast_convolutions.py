"""Convolution, rectifier and max-pooling as one operation on tensor cores, for training many small networks.

Of float32 numbers, in products of bfloat16 that are summed in float32: ``one_channel`` is for images of one
channel, ``few_channels`` for those of some more, and ``many_channels`` for what comes after. Nothing here
waits for the device or is read by the host, so that all of it can be captured in a CUDA graph, and sums have
a fixed order: the same bits each run. ``padding_convolutions`` has those that pad.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Of a one-channel convolution: a patch of more pixels than 12 x 12 does not fit into a program.
LARGEST_KERNEL = 11

# Channels in memory are a multiple of this: loads of 16 bytes then never cross a pixel's border.
MULTIPLE = 8

# How convolutions over many channels are computed:
# - "implicit": by own kernels that read the activations where they lie;
# - "mixed": likewise, but the activations' gradient by cuDNN, which computes (H W) / (positions) times as
#   much and leaves no scratch: for many positions;
# - "cudnn": by PyTorch's own, in bfloat16 and channels last.
METHODS = ("implicit", "mixed", "cudnn")
MANY_POSITIONS = (
    64  # of an image: from there on "mixed" is the faster (by 1.1 with 81, 1.9 with 121, 2.5 with 400)
)


def kernels() -> Any:
    """The kernels, imported when they are first needed: they need Triton."""
    return importlib.import_module(".fast_convolutions_triton", __package__)


def padded(channels: int) -> int:
    """Channels in memory."""
    return -(-channels // MULTIPLE) * MULTIPLE


# One input channel


def one_channel(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max_pool2d(relu(conv2d(image, weight, bias)), 2) of images of one channel, in bfloat16 channels last.

    [N, 1, H, W], [F, 1, k, k], [F] in float32 -> [N, C, h, w], where C is F up to a multiple of 8, and the
    channels from F on are zero: what ``many_channels`` takes.
    """
    check(image, weight, bias)
    if image.shape[1] != 1:
        raise ValueError(f"image must be [N, 1, H, W], got {list(image.shape)}")
    if weight.shape[-1] > LARGEST_KERNEL:
        raise ValueError(f"weight must be of at most {LARGEST_KERNEL} px, got {list(weight.shape)}")
    if image.dtype != torch.float32:
        raise TypeError(f"image must be float32, got {image.dtype}")
    if min(image.shape[2:]) < weight.shape[-1] + 1:
        raise ValueError(f"image of {list(image.shape)} leaves nothing to pool of {list(weight.shape)}")
    check_device(image)
    found: Tensor = OneChannel.apply(image, weight, bias)
    return found


class OneChannel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        batch, _, height, width = image.shape
        channels = padded(weight.shape[0])
        sizes = kernels().OneChannel(batch, height, width, weight.shape[-1], weight.shape[0], channels)
        image = image.contiguous()
        output, index, packed = kernels().one_channel_forward(
            image, weight.contiguous(), bias.contiguous(), sizes
        )
        ctx.save_for_backward(image, index, packed)
        ctx.sizes = sizes
        found: Tensor = output.view(batch, *sizes.pooled, channels).permute(0, 3, 1, 2)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        image, index, packed = ctx.saved_tensors
        rows = gradient.permute(0, 2, 3, 1).reshape(index.shape).to(torch.bfloat16).contiguous()
        of_image = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_image = kernels().one_channel_image_gradient(rows, index, packed, ctx.sizes)
        if any(ctx.needs_input_grad[1:]):
            of_weight, of_bias = kernels().one_channel_weight_gradient(image, rows, index, ctx.sizes)
        return of_image, of_weight, of_bias


# Many input channels


def many_channels(
    activations: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    pool: int = 2,
    further: bool = False,
    method: str | None = None,
) -> Tensor:
    """max_pool2d(relu(conv2d(activations, weight, bias)), pool), where ``pool`` is 1 or 2.

    [N, C, H, W] as ``one_channel`` gives them, whose channels beyond the weight's are zero; [F, C', k, k] and
    [F] in float32 -> [N, F, h, w] in float32; ``further``: as ``one_channel`` gives them, for another such
    convolution. ``method``: one of METHODS; None: what suits the sizes.
    """
    check(activations, weight, bias)
    if method is None:
        height, width = (side - weight.shape[-1] + 1 for side in activations.shape[2:])
        method = "mixed" if activations.is_cuda and height * width >= MANY_POSITIONS else "implicit"
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    if activations.dtype != torch.bfloat16 or activations.shape[1] != padded(weight.shape[1]):
        raise ValueError(
            f"activations must be bfloat16 of {padded(weight.shape[1])} channels, "
            f"got {activations.dtype} {list(activations.shape)}"
        )
    check_pool(activations, weight, pool, "activations")
    check_device(activations)
    if method == "cudnn":
        return by_cudnn(activations, weight, bias, pool, further)
    found: Tensor = ManyChannels.apply(activations, weight, bias, pool, further, method)
    return found


def by_cudnn(activations: Tensor, weight: Tensor, bias: Tensor, pool: int, further: bool) -> Tensor:
    missing = activations.shape[1] - weight.shape[1]
    extra = padded(weight.shape[0]) - weight.shape[0] if further else 0
    if missing or extra:
        weight, bias = F.pad(weight, (0, 0, 0, 0, 0, missing, 0, extra)), F.pad(bias, (0, extra))
    weight = weight.to(torch.bfloat16, memory_format=torch.channels_last)
    found = F.conv2d(activations, weight, bias.to(torch.bfloat16)).relu()
    found = F.max_pool2d(found, 2) if pool == 2 else found
    return found if further else found.float()


class ManyChannels(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, activations: Tensor, weight: Tensor, bias: Tensor, pool: int, further: bool, method: str
    ) -> Tensor:
        batch, channels, height, width = activations.shape
        filters, inputs, kernel, _ = weight.shape
        sizes = kernels().ManyChannels(
            batch, height, width, kernel, inputs, channels, filters, padded(filters), pool
        )
        activations = activations.permute(0, 2, 3, 1).contiguous()  # [N, H, W, C]
        packed = kernels().pack(weight.contiguous(), sizes)
        parts = kernels().product(activations, packed, sizes)
        output = room(activations, sizes, further)
        index = kernels().pooled(parts, bias.contiguous(), output, sizes)
        ctx.save_for_backward(activations, index, packed)
        ctx.sizes, ctx.method = sizes, method
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        activations, index, packed = ctx.saved_tensors
        positions, bias_sums = kernels().unpooled(gradient, index, ctx.sizes)
        of_activations = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            if ctx.method == "mixed":
                of_activations = input_gradient_by_cudnn(positions, activations, packed, ctx.sizes.kernel)
            else:
                found = kernels().input_gradient(positions, packed, ctx.sizes)
                of_activations = found.permute(0, 3, 1, 2)
        if any(ctx.needs_input_grad[1:3]):
            sums = kernels().weight_shares(activations, positions, ctx.sizes)
            of_weight, of_bias = kernels().weight_gradient(sums, bias_sums, ctx.sizes)
        return of_activations, of_weight, of_bias, None, None, None


def input_gradient_by_cudnn(positions: Tensor, activations: Tensor, packed: Tensor, kernel: int) -> Tensor:
    """What the positions got, [positions, F] -> the gradient of the activations, [N, C, H, W]"""
    batch, height, width, channels = activations.shape
    got = positions.view(batch, height - kernel + 1, width - kernel + 1, -1)
    weight = packed.view(-1, kernel, kernel, channels)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        found: Tensor = torch.ops.aten.convolution_backward(
            *(tensor.permute(0, 3, 1, 2) for tensor in (got, activations, weight)),
            None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False],
        )[0]  # fmt: skip
    return found


# A few input channels


def few_channels(
    images: Tensor, weight: Tensor, bias: Tensor, *, pool: int = 2, further: bool = False
) -> Tensor:
    """What ``many_channels`` computes, of images: [N, C, H, W] and all else in float32.

    What each position sees is copied out, once for both passes, and all is products of matrices: for so few
    channels the kernels for many are too wide.
    """
    check(images, weight, bias)
    if images.dtype != torch.float32 or images.shape[1] != weight.shape[1]:
        raise ValueError(
            f"images must be float32 of {weight.shape[1]} channels, got {images.dtype} {list(images.shape)}"
        )
    check_pool(images, weight, pool, "images")
    check_device(images)
    found: Tensor = FewChannels.apply(images, weight, bias, pool, further)
    return found


class FewChannels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, pool: int, further: bool) -> Tensor:
        batch, inputs, height, width = images.shape
        filters, _, kernel, _ = weight.shape
        channels = inputs if inputs <= 2 else -(-inputs // 4) * 4  # in memory: copied in whole loads
        sizes = kernels().ManyChannels(
            batch, height, width, kernel, inputs, channels, filters, padded(filters), pool
        )
        pixels = images.new_zeros((batch, channels, height, width), dtype=torch.bfloat16)
        pixels[:, :inputs] = images
        seen, packed = unfolded(pixels, kernel), kernels().pack(weight.contiguous(), sizes)
        columns = F.pad(packed, (0, seen.shape[1] - packed.shape[1])).T
        output = room(seen, sizes, further)
        index = kernels().pooled(product(seen, columns)[None], bias.contiguous(), output, sizes)
        ctx.save_for_backward(seen, index, packed)
        ctx.sizes = sizes
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        seen, index, packed = ctx.saved_tensors
        sizes = ctx.sizes
        positions, bias_sums = kernels().unpooled(gradient, index, sizes)
        of_images = of_weight = None
        if ctx.needs_input_grad[0]:
            found = kernels().input_gradient(positions, packed, sizes)
            of_images = found[..., : sizes.inputs].permute(0, 3, 1, 2).float()
        if ctx.needs_input_grad[1]:
            sums = product(positions.T, seen)[: sizes.filters, : sizes.depth]
            taps = sums.view(sizes.filters, sizes.kernel, sizes.kernel, sizes.channels)
            of_weight = taps[..., : sizes.inputs].permute(0, 3, 1, 2)
        return of_images, of_weight, bias_sums.sum(0)[: sizes.filters], None, None


def unfolded(images: Tensor, kernel: int) -> Tensor:
    """[N, C, H, W] in bfloat16 -> [positions, (y, x, c)]: what each position sees, and zeros up to a multiple
    of 8 numbers."""
    pixels = images.permute(0, 2, 3, 1).contiguous()
    batch, height, width, channels = pixels.shape
    rows, columns = height - kernel + 1, width - kernel + 1
    seen = images.new_empty((batch * rows * columns, padded(channels * kernel**2)))
    seen[:, channels * kernel**2 :] = 0
    # Several channels at a time: fewer elements to copy.
    wide = {0: torch.int64, 2: torch.int32}.get(channels % 4, torch.bfloat16)
    pixels, into = pixels.view(wide), seen.view(wide)
    each = pixels.shape[3]
    by_image, by_row, by_pixel, _ = pixels.stride()
    found = pixels.as_strided(
        (batch, rows, columns, kernel, kernel * each), (by_image, by_row, by_pixel, by_row, 1)
    )
    into[:, : kernel**2 * each].view(found.shape).copy_(found)
    return seen


def product(left: Tensor, right: Tensor) -> Tensor:
    """Of bfloat16 matrices, in float32."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


# What they share


def room(like: Tensor, sizes: Any, further: bool) -> Tensor:
    """For [N, F, h, w]; ``further``: for what ``many_channels`` takes."""
    if not further:
        return like.new_empty((sizes.batch, sizes.filters, *sizes.pooled), dtype=torch.float32)
    stored = like.new_empty((sizes.batch, *sizes.pooled, sizes.filters_padded), dtype=torch.bfloat16)
    return stored.permute(0, 3, 1, 2)


def check(input: Tensor, weight: Tensor, bias: Tensor, *, own_product: bool = True) -> None:
    """What all kinds ask for. own_product: whether it is computed by own kernels, and not by cuDNN."""
    if input.ndim != 4 or weight.ndim != 4 or weight.shape[2] != weight.shape[3]:
        raise ValueError(
            f"expected [N, C, H, W] and a square weight [F, C, k, k], got {list(input.shape)} "
            f"and {list(weight.shape)}"
        )
    if bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must be [{weight.shape[0]}], got {list(bias.shape)}")
    if weight.dtype != torch.float32 or bias.dtype != torch.float32:
        raise TypeError(f"weight and bias must be float32, got {weight.dtype} and {bias.dtype}")
    if len({input.device, weight.device, bias.device}) > 1:
        raise ValueError(
            f"input, weight and bias must be on one device: {input.device}, {weight.device}, {bias.device}"
        )
    filters, pixels = weight.shape[0], input.shape[0] * input.shape[2] * input.shape[3]
    each = max(input.shape[1] * filters, padded(filters)) if own_product else padded(filters)
    if pixels * each >= 2**31:  # offsets are of 32 bits
        raise ValueError(f"input of {list(input.shape)} is too large for {filters} filters")
    if input.shape[0] == 0:
        raise ValueError("input must hold an image")


def check_pool(input: Tensor, weight: Tensor, pool: int, what: str, padding: int = 0) -> None:
    if pool not in (1, 2):
        raise ValueError(f"pool must be 1 or 2, got {pool!r}")
    if min(input.shape[2:]) + 2 * padding < weight.shape[-1] + pool - 1:
        raise ValueError(f"{what} of {list(input.shape)} leave nothing of {list(weight.shape)}")


def check_device(input: Tensor) -> None:
    if input.device.type != "cuda" and not kernels().INTERPRETED:
        raise RuntimeError(f"fast convolutions need a CUDA device, got tensors on {input.device}")
