"""Convolutions with a filter for each channel, at a stride of 1 or 2, and their gradients.

Products are few for each number that is read, so that what counts is how often numbers are read and made
float32. Programs have columns of pixels, of several images where these are narrow, and go down some rows of
them: an input is read once for each column of taps, not for each tap, and meets all rows that it belongs to.

Maps lie channels last. Sums over pixels are of parts of them, then of the parts, in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .convolution_kernels.products import _as

KERNELS = (3, 5)
MULTIPLE = 8  # of channels: then 16 bytes of bfloat16 are read at once
WIDEST = 64  # channels of a block: a line of memory
WARPS = 4
NUMBERS = 1024  # in a row of a program's: eight, or 16 bytes of bfloat16, for each thread
# With a sum for each tap there is room for four in registers.
NUMBERS_OF_WEIGHTS = {3: 1024, 5: 512}
# Rows of a program: of maps of images of 224 px seven are no row too many, of pairs of rows with zeros three.
ROWS, ROWS_OF_PAIRS = (7, 8, 4), (4, 3)
ROWS_OF_WEIGHTS = 14  # at most
# By kernel size and stride, about as many programs as an H200 has room for at once, on any device: sums have
# one order.
PROGRAMS = {(3, 1): 512, (3, 2): 512, (5, 1): 396, (5, 2): 264}
FINISHED = 16  # numbers of a program that brings parts together

# Registers of a thread, where the compiler takes more than leave room for another program and need not. Of
# float32 it needs them.
REGISTERS_OF_PAIRS = 128
REGISTERS_OF_WEIGHTS = {(3, 1): 128, (3, 2): 128, (5, 1): 168}


class Maps(NamedTuple):
    """Sizes of a convolution's input (``height``, ``width``) and output (``tall``, ``wide``). Kernels take
    channels in multiples, so that they know their alignment."""

    count: int
    some: int  # channels, in multiples
    height: int
    width: int
    tall: int
    wide: int

    @property
    def channels(self) -> int:
        return self.some * MULTIPLE


class Tiles(NamedTuple):
    """How pixels are gone through: in tiles of rows, columns of all images, and channels."""

    rows: int
    columns: int
    channels: int
    strips: int  # tiles one below the other
    tiles: int  # beside each other
    blocks: int  # of channels

    @property
    def shape(self) -> tuple[int, int, int]:
        return self[:3]

    @property
    def grid(self) -> tuple[int]:
        return (self.strips * self.tiles * self.blocks,)


def tiles_of(
    count: int, channels: int, tall: int, wide: int, numbers: int = NUMBERS, rows: Sequence[int] = ROWS
) -> Tiles:
    """Of pixels, ``count`` times ``tall`` by ``wide``. Blocks are the widest, unless a quarter more channels
    than there are would be gone through; of the numbers of ``rows``, that by which the fewest too many are.
    """
    block = WIDEST if -(-channels // WIDEST) * WIDEST <= 1.25 * channels else WIDEST // 2
    deep = min(rows, key=lambda each: -(-tall // each) * each)
    columns = numbers // block
    return Tiles(deep, columns, block, -(-tall // deep), -(-(count * wide) // columns), -(-channels // block))


def why_not(x: Tensor, convolution: nn.Conv2d) -> str | None:
    """What of a convolution and its input these kernels do not do; None where they do all of it."""
    channels, side, stride = convolution.in_channels, convolution.kernel_size[0], convolution.stride[0]
    if not convolution.groups == channels == convolution.out_channels or channels % MULTIPLE:
        return f"filters are not one for each channel, in multiples of {MULTIPLE}"
    if convolution.kernel_size not in [(each, each) for each in KERNELS]:
        return f"filters are of {convolution.kernel_size}"
    around = side // 2 if stride == 1 else 0
    ways = (convolution.stride, convolution.padding, convolution.dilation, convolution.padding_mode)
    if stride not in (1, 2) or ways != ((stride, stride), (around, around), (1, 1), "zeros"):
        return "neither is the stride 1 with zeros around, nor 2 without"
    if convolution.bias is not None or convolution.weight.dtype != torch.float32:
        return "there is a bias, or weights are not float32"
    if x.ndim != 4 or x.shape[1] != channels or computed_in(x) not in (torch.bfloat16, torch.float32):
        return f"the input is {computed_in(x)} of {tuple(x.shape)}"
    if not x.is_contiguous(memory_format=torch.channels_last):
        return "maps do not lie channels last"
    # The output has no more numbers than the input.
    if not x.numel() or x.numel() >= 2**31 or min(x.shape[2:]) + 2 * around < side:
        return "maps are too small or too large"
    return None


def computed_in(x: Tensor) -> torch.dtype:
    """The dtype that PyTorch would convolve in: autocast's, where it is on, but for float64."""
    kind = x.device.type
    casts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if casts and x.dtype != torch.float64 else x.dtype


def convolved(x: Tensor, convolution: nn.Conv2d) -> Tensor:
    """``convolution(x)`` where ``why_not`` has nothing to say; weights are not rounded to the input's dtype.
    [N, C, H, W] -> [N, C, H', W']"""
    found: Tensor = Convolved.apply(x.to(computed_in(x)), convolution.weight, convolution.stride[0])
    return found


class Convolved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        side = weight.shape[-1]
        around = side // 2 if stride == 1 else 0
        count, channels, height, width = x.shape
        tall, wide = ((each + 2 * around - side) // stride + 1 for each in (height, width))
        maps = Maps(count, channels // MULTIPLE, height, width, tall, wide)
        taps = taps_first(weight.detach())
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x if needs[1] else None, taps if needs[0] else None)
        ctx.maps, ctx.ways = maps, (side, stride, around)
        return by_output(x, taps, maps, *ctx.ways)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, taps), maps, ways = ctx.saved_tensors, ctx.maps, ctx.ways
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        of_x = None if taps is None else by_input(gradient, taps, maps, *ways)
        of_weight = None if x is None else by_weights(gradient, x, maps, *ways)
        return of_x, of_weight, None


def taps_first(weight: Tensor) -> Tensor:
    """[C, 1, k, k] -> [k k, C]: neighbouring channels are read at once. Beyond the end there is memory for a
    block of channels that are none, which is read and comes to nothing: no mask is needed."""
    numbers = weight.numel()
    taps = weight.new_empty(numbers + WIDEST)[:numbers].view(-1, len(weight))
    return taps.copy_(weight.flatten(1).t())


def unwritten(like: Tensor, height: int, width: int) -> Tensor:
    """Maps of that size, channels last. [N, C, height, width]"""
    size = (*like.shape[:2], height, width)
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def by_output(
    x: Tensor, taps: Tensor, maps: Maps, side: int, stride: int, around: int, *, turned: bool = False
) -> Tensor:
    """What ``_convolved`` gives. [N, C, H', W']"""
    found = unwritten(x, maps.tall, maps.wide)
    tiles = tiles_of(maps.count, maps.channels, maps.tall, maps.wide)
    launch(
        _convolved, tiles.grid, None,
        x, taps, found, *maps, tiles.strips, tiles.blocks,
        MULTIPLE, side, stride, around, turned, *tiles.shape,
    )  # fmt: skip
    return found


def by_input(gradient: Tensor, taps: Tensor, maps: Maps, side: int, stride: int, around: int) -> Tensor:
    """[N, C, H, W]"""
    if stride == 1:  # a convolution with the taps turned by half a turn, since zeros are as many on all sides
        return by_output(gradient, taps, maps, side, stride, around, turned=True)
    count, _, height, width, *_ = maps
    found = unwritten(gradient, height, width)
    pairs = -(-height // 2), -(-width // 2)
    tiles = tiles_of(count, maps.channels, *pairs, rows=ROWS_OF_PAIRS)
    launch(
        _spread, tiles.grid, REGISTERS_OF_PAIRS if gradient.dtype == torch.bfloat16 else None,
        gradient, taps, found, *maps, pairs[1], tiles.strips, tiles.blocks, MULTIPLE, side, *tiles.shape,
    )  # fmt: skip
    return found


def by_weights(gradient: Tensor, x: Tensor, maps: Maps, side: int, stride: int, around: int) -> Tensor:
    """float32 [C, 1, k, k]"""
    rows = -(-maps.height // stride)
    deep = -(-rows // -(-rows // ROWS_OF_WEIGHTS))
    tiles = tiles_of(maps.count, maps.channels, rows, maps.wide, NUMBERS_OF_WEIGHTS[side], (deep,))
    parts, each = parts_of(tiles, PROGRAMS[side, stride])
    sums = gradient.new_empty(parts, side * side, maps.channels, dtype=torch.float32)
    registers = REGISTERS_OF_WEIGHTS.get((side, stride)) if x.dtype == torch.bfloat16 else None
    launch(
        _correlated, (parts * tiles.blocks,), registers,
        x, gradient, sums, *maps, tiles.strips, tiles.blocks, deep, each,
        MULTIPLE, side, stride, around, *tiles.shape[1:],
    )  # fmt: skip
    found = gradient.new_empty(maps.channels, 1, side, side, dtype=torch.float32)
    at_once = max(32, triton.next_power_of_2(parts))  # few different ones: it is compiled for each
    launch(
        _summed, (-(-found.numel() // FINISHED),), None,
        sums, found, parts, maps.channels, side * side, at_once, FINISHED,
    )  # fmt: skip
    return found


def parts_of(tiles: Tiles, programs: int) -> tuple[int, int]:
    """How many parts there are of a block's tiles, none of them empty, and how many tiles of a part."""
    whole = tiles.strips * tiles.tiles
    each = -(-whole // max(1, programs // tiles.blocks))
    return -(-whole // each), each


def launch(kernel: Any, grid: tuple[int, ...], registers: int | None, *arguments: Any) -> None:
    kernel[grid](*arguments, num_warps=WARPS, maxnreg=registers)


# Sizes differ from map to map: no kernel is compiled for some of them alone.
SIZES = ["count", "some", "height", "width", "tall", "wide", "strips", "blocks"]


@triton.jit(do_not_specialize=SIZES)
def _convolved(
    p_x, p_taps, p_found, count, some, height, width, tall, wide, strips, blocks,
    MULTIPLE: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr, AROUND: tl.constexpr,
    TURNED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """found[y, x] = sum over v, u of taps[v, u] given[STRIDE y + v - AROUND, STRIDE x + u - AROUND]; TURNED:
    of taps[SIDE - 1 - v, SIDE - 1 - u]."""
    channels = some * MULTIPLE
    i_channel, m_channel = _channels(channels, blocks, CHANNELS)
    top = tl.program_id(0) // blocks % strips * ROWS
    i_image, i_x, m_column = _columns(tl.program_id(0) // blocks // strips, count, wide, COLUMNS)
    i_given = (i_image * height * width + i_x * STRIDE)[:, None] * channels + i_channel[None, :]
    b_found = _zeros(ROWS, COLUMNS, CHANNELS)
    for u in tl.range(SIDE, num_stages=1):
        i_from = i_x * STRIDE + u - AROUND
        m_given = (m_column & (i_from >= 0) & (i_from < width))[:, None] & m_channel
        b_taps = ()
        for v in tl.static_range(SIDE):
            if TURNED:
                p_tap = p_taps + (SIDE * SIDE - 1 - v * SIDE - u) * channels
            else:
                p_tap = p_taps + (v * SIDE + u) * channels
            b_taps += (_everywhere(p_tap, i_channel, COLUMNS),)
        for row in tl.static_range(STRIDE * (ROWS - 1) + SIDE):
            y = top * STRIDE + row - AROUND
            m_row = m_given & (y >= 0) & (y < height)
            p_row = p_x + (y * width + u - AROUND) * channels
            b_given = tl.load(p_row + i_given, mask=m_row, other=0.0).to(tl.float32)
            b_next = ()
            for r in tl.static_range(ROWS):
                if row >= STRIDE * r and row < STRIDE * r + SIDE:
                    b_next += (b_found[r] + b_given * b_taps[row - STRIDE * r],)
                else:
                    b_next += (b_found[r],)
            b_found = b_next
    i_found = (i_image * tall * wide + i_x)[:, None] * channels + i_channel[None, :]
    m_found = m_column[:, None] & m_channel
    for r in tl.static_range(ROWS):
        p_row = p_found + (top + r) * wide * channels
        b_row = _as(b_found[r], p_found.dtype.element_ty)
        tl.store(p_row + i_found, b_row, mask=m_found & (top + r < tall))


@triton.jit(do_not_specialize=[*SIZES, "half"])
def _spread(
    p_gradient, p_taps, p_found, count, some, height, width, tall, wide, half, strips, blocks,
    MULTIPLE: tl.constexpr, SIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """By the input at a stride of 2, two by two of its pixels: found[2 y + p, 2 x + q] = sum over t, s of
    taps[2 t + p, 2 s + q] gradient[y - t, x - s]. half: pairs of a row."""
    channels = some * MULTIPLE
    i_channel, m_channel = _channels(channels, blocks, CHANNELS)
    top = tl.program_id(0) // blocks % strips * ROWS
    i_image, i_x, m_column = _columns(tl.program_id(0) // blocks // strips, count, half, COLUMNS)
    i_given = (i_image * tall * wide + i_x)[:, None] * channels + i_channel[None, :]
    i_found = (i_image * height * width + 2 * i_x)[:, None] * channels + i_channel[None, :]
    ABOVE: tl.constexpr = SIDE // 2  # rows above its own that a pair takes from
    for q in tl.static_range(2):
        b_found = _zeros(2 * ROWS, COLUMNS, CHANNELS)
        for s in tl.range((SIDE + 1 - q) // 2, num_stages=1):
            m_given = (m_column & (i_x >= s) & (i_x - s < wide))[:, None] & m_channel
            b_taps = ()
            for v in tl.static_range(SIDE):
                p_tap = p_taps + (v * SIDE + 2 * s + q) * channels
                b_taps += (_everywhere(p_tap, i_channel, COLUMNS),)
            for row in tl.static_range(ROWS + ABOVE):
                y = top + row - ABOVE
                p_row = p_gradient + (y * wide - s) * channels
                m_row = m_given & (y >= 0) & (y < tall)
                b_given = tl.load(p_row + i_given, mask=m_row, other=0.0).to(tl.float32)
                b_next = ()
                for r in tl.static_range(2 * ROWS):
                    if r >= 2 * (row - ABOVE) and r < 2 * (row - ABOVE) + SIDE:
                        b_next += (b_found[r] + b_given * b_taps[r - 2 * (row - ABOVE)],)
                    else:
                        b_next += (b_found[r],)
                b_found = b_next
        m_found = (m_column & (2 * i_x + q < width))[:, None] & m_channel
        for r in tl.static_range(2 * ROWS):
            p_row = p_found + ((2 * top + r) * width + q) * channels
            b_row = _as(b_found[r], p_found.dtype.element_ty)
            tl.store(p_row + i_found, b_row, mask=m_found & (2 * top + r < height))


@triton.jit(do_not_specialize=[*SIZES, "deep", "each"])
def _correlated(
    p_x, p_gradient, p_sums, count, some, height, width, tall, wide, strips, blocks, deep, each,
    MULTIPLE: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr, AROUND: tl.constexpr,
    COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """By the weights, of a part of the tiles: sums[v, u] = sum over y, x of
    gradient[y, x] given[STRIDE y + v - AROUND, STRIDE x + u - AROUND].

    deep: rows of the input in a tile, or pairs of them at a stride of 2; each: tiles of a part. A row meets
    the rows of the gradient around it, of which one comes and one goes from row to row."""
    channels = some * MULTIPLE
    i_channel, m_channel = _channels(channels, blocks, CHANNELS)
    i_part = tl.program_id(0) // blocks
    MET: tl.constexpr = (SIDE + STRIDE - 1) // STRIDE  # rows of the gradient
    # Two rows in a turn move fewer numbers from register to register, where there is room for them.
    TURN: tl.constexpr = 2 if SIDE == 5 and STRIDE == 1 else 1
    b_sums = _zeros(SIDE * SIDE, COLUMNS, CHANNELS)  # of one column of taps after the other
    for tile in tl.range(i_part * each, i_part * each + each, num_stages=1):
        first = tile % strips * deep
        i_image, i_x, m_column = _columns(tile // strips, count, wide, COLUMNS)
        i_sent = (i_image * tall * wide + i_x)[:, None] * channels + i_channel[None, :]
        m_sent = m_column[:, None] & m_channel
        i_given = (i_image * height * width + i_x * STRIDE - AROUND)[:, None] * channels + i_channel[None, :]
        m_given = ()
        for u in tl.static_range(SIDE):
            i_from = i_x * STRIDE + u - AROUND
            m_given += ((m_column & (i_from >= 0) & (i_from < width))[:, None] & m_channel,)
        b_before = ()
        for t in tl.static_range(1, MET):
            y = first + AROUND - t
            b_row = _row(p_gradient, y, y >= 0, tall, wide * channels, i_sent, m_sent)
            b_before += (b_row.to(tl.float32),)
        # Rows are read one ahead, so that they are on their way meanwhile.
        b_sent = _row(p_gradient, first + AROUND, True, tall, wide * channels, i_sent, m_sent)
        b_given = _rows(p_x, first, True, height, width, channels, i_given, m_given, SIDE, STRIDE)
        for row in tl.range(first, first + deep, num_stages=1, loop_unroll_factor=TURN):
            b_met, b_here = (b_sent.to(tl.float32),), b_given
            b_met += b_before
            more = row + 1 < first + deep
            b_sent = _row(p_gradient, row + 1 + AROUND, more, tall, wide * channels, i_sent, m_sent)
            b_given = _rows(p_x, row + 1, more, height, width, channels, i_given, m_given, SIDE, STRIDE)
            b_next = ()
            for u in tl.static_range(SIDE):
                for v in tl.static_range(SIDE):
                    b_one = b_here[v % STRIDE * SIDE + u].to(tl.float32)
                    b_next += (b_sums[u * SIDE + v] + b_one * b_met[v // STRIDE],)
            b_sums, b_before = b_next, b_met[: MET - 1]
    for u in tl.static_range(SIDE):
        for v in tl.static_range(SIDE):
            p_sum = p_sums + (i_part * SIDE * SIDE + v * SIDE + u) * channels + i_channel[None, :]
            tl.store(p_sum, tl.sum(b_sums[u * SIDE + v], 0, keep_dims=True), mask=m_channel)


@triton.jit
def _channels(channels, blocks, CHANNELS: tl.constexpr):
    """Those of a program's block, and as a row which of them there are."""
    i_channel = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    return i_channel, (i_channel < channels)[None, :]


@triton.jit
def _columns(tile, count, wide, COLUMNS: tl.constexpr):
    """The image and the place in its rows of each column of a tile, and which of them there are."""
    i_column = tile * COLUMNS + tl.arange(0, COLUMNS)
    return i_column // wide, i_column % wide, i_column < count * wide


@triton.jit
def _row(p_maps, y, wanted, height, step, i_first, m_columns):
    """A row of a tile where it is wanted and there is one, zeros elsewhere. step: from row to row."""
    return tl.load(p_maps + y * step + i_first, mask=m_columns & (wanted & (y < height)), other=0.0)


@triton.jit
def _rows(
    p_x, row, wanted, height, width, channels, i_given, m_given, SIDE: tl.constexpr, STRIDE: tl.constexpr
):
    """What a column of taps after the other meets of a row, or of a pair of them."""
    b_all = ()
    for p in tl.static_range(STRIDE):
        for u in tl.static_range(SIDE):
            y, p_from = STRIDE * row + p, p_x + u * channels
            b_all += (_row(p_from, y, wanted, height, width * channels, i_given, m_given[u]),)
    return b_all


@triton.jit(do_not_specialize=["parts", "channels", "taps"])
def _summed(p_sums, p_found, parts, channels, taps, PARTS: tl.constexpr, NUMBERS: tl.constexpr):
    """The parts' sums brought together: [parts, taps, C] -> [C, taps]"""
    i_number = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    m_number = i_number < taps * channels
    i_part = tl.arange(0, PARTS)
    i_given = i_part[:, None] * (taps * channels) + i_number[None, :]
    b_all = tl.load(p_sums + i_given, mask=(i_part < parts)[:, None] & m_number[None, :], other=0.0)
    i_found = i_number % channels * taps + i_number // channels
    tl.store(p_found + i_found, tl.sum(b_all, 0), mask=m_number)


@triton.jit
def _zeros(NUMBER: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr):
    """So many tiles of them: a tensor of several rows would not let one of them be taken."""
    b_all = ()
    for _ in tl.static_range(NUMBER):
        b_all += (tl.zeros((COLUMNS, CHANNELS), tl.float32),)
    return b_all


@triton.jit
def _everywhere(p_numbers, i_channel, COLUMNS: tl.constexpr):
    """A number for each channel, in every column: as a tile it is read into the registers that need it, as a
    row it would come there by way of shared memory."""
    return tl.load(p_numbers + (tl.zeros((COLUMNS, 1), tl.int32) + i_channel[None, :]))
