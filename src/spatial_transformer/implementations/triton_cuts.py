"""How the Triton kernels cut their work into programs: what was fastest on an H200."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import triton
from torch import Tensor

from .job import Job, channels_last


class Tiling(NamedTuple):
    """The tiles of an image."""

    blocks: int
    tiles: int  # in a row of tiles
    rows: int  # of tiles, in a layer
    many: bool  # more than products can divide

    @property
    def numbers(self) -> tuple[int, ...]:
        """The kernels' arguments: with magic, i // n is the upper half of 4 i magic, for i n < 2^30."""
        return self.tiles, self.rows, -(-(2**30) // self.tiles), -(-(2**30) // self.rows)


class Cut(NamedTuple):
    """Pixels and channels in a block, warps, the tile of a block's pixels, and enough programs."""

    block: int
    channels: int
    warps: int
    tile: tuple[int, int, int]  # x, y, z
    enough: int = 2048  # programs that keep a GPU busy: images are cut into shares until there are so many

    def tiling(self, size: Sequence[int]) -> Tiling:
        """Over pixels of ``size``, (H, W) or (D, H, W)."""
        tx, ty, tz = self.tile
        tiles, rows = -(-size[-1] // tx), -(-size[-2] // ty)
        total = tiles * rows * (-(-size[0] // tz) if len(size) == 3 else 1)
        blocks = -(-total // (self.block // (tx * ty * tz)))
        return Tiling(blocks, tiles, rows, total * max(tiles, rows) >= 2**30)

    def options(self, channels: int) -> dict[str, int]:
        """What of it is compiled in; SINGLE is the number of channels if one block holds all, else 0."""
        single = channels if self.channels >= channels else 0
        tx, ty, tz = self.tile
        sizes = {"BLOCK": self.block, "CHANNELS": self.channels, "SINGLE": single}
        return {**sizes, "TX": tx, "TY": ty, "TZ": tz}


def forward_cut(image: Tensor, job: Job, held: int) -> Cut:
    """Contiguous images want many pixels and few channels in a block, rows of 16 (a warp then meets few banks
    of the cache twice), and few registers where much is in flight. ``held``: control points in registers."""
    flat, channels = image.ndim == 4, image.shape[1]
    if job.antialias:
        return antialias_cut(image)
    if channels_last(image):
        cut = last_cut(image, 4)
        return cut._replace(block=min(cut.block, 256), enough=1024) if held else cut
    if channels == 1 and not flat:
        return Cut(256, 1, 2, (16, 1, 2))
    if channels == 1:
        return Cut(256 if held else 1024, 1, 4, (16, 2, 1), 1024)
    return Cut(128, few(channels), 2 if held else 4, tile(image), 1024)


def gather_cut(image: Tensor, job: Job) -> Cut:
    flat, channels = image.ndim == 4, image.shape[1]
    if channels_last(image):
        return last_cut(image, 4)
    if channels == 1:
        return Cut(1024, 1, 4, (16, 2, 1)) if flat else Cut(256, 1, 2, (16, 1, 2))
    if channels > 4:
        return Cut(128, 8, 2 if flat else 4, tile(image))
    return Cut(256, few(channels), 2 if flat else 4, tile(image))


def at_once(image: Tensor, job: Job) -> bool:
    """Whether to launch ``_gather`` together with the sums: the device then does not idle between them, but
    both have the registers that the greedier needs."""
    lead = image.shape[0] * image.shape[1]
    pixels = lead * max(math.prod(image.shape[2:]), math.prod(job.size))
    return image.ndim == 4 and image.shape[1] <= 4 and not channels_last(image) and pixels <= 2**24


def at_once_cut(image: Tensor, job: Job) -> Cut:
    if image.shape[1] > 1:
        return Cut(256, few(image.shape[1]), 2, (16, 2, 1))
    if image.shape[0] * math.prod(job.size) <= 2**20:
        return Cut(1024, 1, 8, (16, 2, 1), 256)
    return Cut(256, 1, 4, (16, 2, 1), 256)


def sums_cut(image: Tensor, job: Job, held: int) -> Cut:
    """For the gradient of the numbers alone."""
    flat, channels = image.ndim == 4, image.shape[1]
    if job.antialias:
        return antialias_cut(image)
    if channels_last(image):
        return last_held_cut(image) if held else last_cut(image, 8)
    if held:
        return Cut(32, few(channels), 1, (16, 2, 1), 4096)
    if channels == 1 and not flat:
        return Cut(128, 1, 2, (32, 1, 1))
    if channels == 1:
        return Cut(256, 1, 2, (16, 2, 1)) if math.prod(job.size) > 1024 else Cut(1024, 1, 4, (16, 2, 1))
    return Cut(256, few(channels), 2 if flat and channels > 4 else 4, tile(image))


def scatter_cut(image: Tensor, job: Job, held: int) -> Cut:
    """One warp, in which neighbours can join what they add, but where an image shrinks: they then add to
    different pixels."""
    flat, channels = image.ndim == 4, image.shape[1]
    if job.antialias:
        return antialias_cut(image)
    if channels_last(image):
        return last_held_cut(image) if held else last_cut(image, 8)
    if held and channels > 1 and math.prod(image.shape[2:]) >= 2 * math.prod(job.size):
        return Cut(128, few(channels), 4, (16, 2, 1), 8192)
    rows_of_16 = held or (flat and image.shape[-1] < 64)
    return Cut(32, few(channels), 1, (16, 2, 1) if rows_of_16 else (32, 1, 1), 4096)


def antialias_cut(image: Tensor) -> Cut:
    return Cut(128, few(image.shape[1]), 4, tile(image))


def last_cut(image: Tensor, warps: int) -> Cut:
    """For images whose channels are innermost."""
    together = min(triton.next_power_of_2(image.shape[1]), 64)
    return Cut(2048 // together, together, warps, (8, 4, 1) if image.ndim == 4 else (8, 2, 2))


def last_held_cut(image: Tensor) -> Cut:
    cut = last_cut(image, 4)
    return cut._replace(block=min(cut.block, 128))


def many_points_cut(image: Tensor, kept: int) -> Cut:
    """For more control points than a thread holds: ``kept`` of them and pixels, in a block's registers."""
    return Cut(max(min(256, 2048 // kept), 32), few(image.shape[1]), 4, tile(image), 1024)


def few(channels: int) -> int:
    return min(triton.next_power_of_2(channels), 4)


def tile(image: Tensor) -> tuple[int, int, int]:
    return (16, 2, 1) if image.ndim == 4 else (8, 2, 2)
