"""The CPU kernels of ``impl="fused"``, in Numba: theta to output in one pass, no sampling grid in memory.

Three kernels, each over work items that share no memory they write:

- ``forward_items``: blocks of output rows of one transform;
- ``scatter_items``, the image's gradient: blocks of channels of one image, or bands of its pixels;
- ``pull_items``, the gradient of numbers and basis: blocks of output rows.

Most small 2D warps are done by others, which take both gradients in one pass: see ``cpu.patches``.

All go through the output row by row. ``place_row`` gives a row's source positions and ``aim_row`` tells which
of its pixels have all taps in the image. Those are read by vectors along the row, channel after channel,
from offsets and weights computed once. Others, and all pixels where channels lie innermost or the kernel is
widened, are read one by one with a loop over the channels inside.

Results do not depend on the number of threads: every sum is taken in an order that the shapes alone decide.
Positions are computed in the order of ``matrices.homogeneous_rows``.

Kernels see addresses and strides (in elements), never arrays: no layout is copied or compiled by itself, and
Numba's arrays take long to compile and count their references on every slice. "Real" is the compute dtype.
In names ``p_`` is an address, ``o_`` an offset, ``s_`` a stride, ``i_`` an index.
"""

from __future__ import annotations

import ctypes
import math
import sys
import zlib
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numba import types
from numba.core import event
from torch import Tensor

from . import cpu
from .cpu.bundles import backward_bundles, forward_bundles
from .cpu.forward import forward_items
from .cpu.jit import FLAGS
from .cpu.lanes import CORNERS, LANES
from .cpu.memory import REAL, STORED
from .cpu.patches import MARGIN, room_size
from .cpu.plan import ANY, COMMON, KERNELS, KINDS, LINES, PADDINGS, PLACED, PLAN, TAPS, Planned, Variant
from .cpu.planes import backward_planes, forward_planes
from .cpu.pull import pull_items
from .cpu.scatter import scatter_items
from .cpu.threads import SMALL, spread
from .job import Job, empty_output, near_one, source_axes, transforms, w_steps


def forward(
    image: Tensor, numbers: Tensor, basis: Tensor | None, fill: Tensor | None, job: Job, several: bool = True
) -> Tensor:
    """[N, T, C, *size], or [N, C, *size] where there are not several: see ``Job``"""
    output = warped(image, transforms(numbers, image, job, several), basis, fill, job)
    return output if several else output.squeeze(1)


def warped(image: Tensor, numbers: Tensor, basis: Tensor | None, fill: Tensor | None, job: Job) -> Tensor:
    output = roomy(empty_output(image, numbers.shape[1], job.size))
    known = job, image.shape, image.stride(), output.stride(), *layout(numbers, basis)
    patched = patches_for(*known)
    if patched is not None:
        kernel = compiled(f"forward_{patched.way}", COMMON, image.dtype, numbers.dtype)
        places = image.data_ptr(), output.data_ptr(), numbers.data_ptr()
        spread(kernel, patched.plan, places, patched.items, output.numel())
        return output
    plan = planned(*known)
    arguments = (
        image.data_ptr(),
        numbers.data_ptr(),
        address(basis),
        address(fill),
        output.data_ptr(),
    )
    spread(
        compiled("forward", plan.variant, image.dtype, numbers.dtype),
        plan,
        arguments,
        plan.transforms * plan.parts,
        output.numel(),
    )
    return output


def backward(
    cotangent: Tensor,
    image: Tensor,
    numbers: Tensor,
    basis: Tensor | None,
    fill: Tensor | None,
    job: Job,
    wanted: tuple[bool, bool, bool],
    several: bool = True,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of image, numbers and basis that are wanted."""
    inner = transforms(numbers, image, job, several)
    cotangent = cotangent if several else cotangent.unsqueeze(1)
    to_image, to_numbers, to_basis = gradients(cotangent, image, inner, basis, fill, job, wanted)
    return to_image, None if to_numbers is None else to_numbers.reshape(numbers.shape), to_basis


def gradients(
    cotangent: Tensor,
    image: Tensor,
    numbers: Tensor,
    basis: Tensor | None,
    fill: Tensor | None,
    job: Job,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    to_numbers = to_basis = None
    known = job, image.shape, image.stride(), cotangent.stride(), *layout(numbers, basis)
    dtypes, work = (image.dtype, numbers.dtype), cotangent.numel()
    threads = torch.get_num_threads() if work > SMALL else 1
    to_image = roomy(torch.empty_like(image)) if wanted[0] else None
    patched = patches_for(*known, None if to_image is None else to_image.stride(), backward=True)
    if patched is not None:
        if wanted[0] or wanted[1]:
            to_numbers = back_by_patches(patched, cotangent, image, numbers, to_image, wanted[1])
        return to_image, to_numbers, None
    if to_image is not None:
        plan = planned(
            *known, to_image=to_image.stride(), direct=image.dtype == numbers.dtype, threads=threads
        )
        places = to_image.data_ptr(), cotangent.data_ptr(), numbers.data_ptr(), address(basis)
        spread(compiled("scatter", plan.variant, *dtypes), plan, places, plan.pieces, work)
    if job.kernel == "nearest":  # no slope anywhere
        to_numbers = torch.zeros_like(numbers) if wanted[1] else None
        to_basis = torch.zeros_like(basis) if basis is not None and wanted[2] else None
        return to_image, to_numbers, to_basis
    sources = image.data_ptr(), cotangent.data_ptr(), numbers.data_ptr(), address(basis), address(fill)
    if wanted[1]:
        to_numbers = torch.empty_like(numbers)
        plan = planned(*known, to_numbers=to_numbers.stride())
        partial = to_numbers
        if job.kind != "grid" and plan.parts > 1:
            partial = numbers.new_empty(*numbers.shape, plan.parts)
            plan = planned(*known, to_numbers=partial.stride())
        items = plan.transforms * plan.parts
        spread(compiled("pull", plan.variant, *dtypes), plan, (*sources, partial.data_ptr(), 0), items, work)
        if partial is not to_numbers:
            torch.sum(partial, -1, out=to_numbers)
    if basis is not None and wanted[2]:
        to_basis = torch.empty_like(basis)
        plan = planned(*known, to_basis=to_basis.stride(), threads=threads)
        spread(
            compiled("pull", plan.variant, *dtypes),
            plan,
            (*sources, 0, to_basis.data_ptr()),
            plan.parts,
            work,
        )
    return to_image, to_numbers, to_basis


def back_by_patches(
    patched: Patched, cotangent: Tensor, image: Tensor, numbers: Tensor, to_image: Tensor | None, want: bool
) -> Tensor | None:
    """Fills the image's gradient where there is room for it, and gives that of the numbers if wanted."""
    partial = numbers.new_empty(*numbers.shape, patched.plan.parts) if want else None
    kernel = compiled(f"backward_{patched.way}", COMMON, image.dtype, numbers.dtype)
    places = image.data_ptr(), cotangent.data_ptr(), numbers.data_ptr(), address(to_image), address(partial)
    spread(kernel, patched.plan, places, patched.items, cotangent.numel())
    if partial is None:
        return None
    found = partial.squeeze(-1) if patched.plan.parts == 1 else partial.sum(-1)
    return found if numbers.is_contiguous() else torch.empty_like(numbers).copy_(found)


# Memory for results

LARGE = 2**22  # bytes from which on a tensor's pages are asked to be large ones; NumPy's number
PAGE, HUGE_PAGES = 4096, 14  # MADV_HUGEPAGE of Linux


def _advice() -> Any:
    """madvise(address, bytes, advice), where there are huge pages to ask for."""
    if sys.platform != "linux":
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise


_advise = _advice()


def roomy(tensor: Tensor) -> Tensor:
    """The same tensor, nothing in it yet.

    Large memory is fresh on every call, and the first touch of a page costs more than what is computed for
    it (38 MB: 25 ms by pages of 4 KB, 9 ms by huge ones). As NumPy does for its arrays, huge ones are asked
    for; where the system has none to give nothing changes.
    """
    size = tensor.numel() * tensor.element_size()
    if size >= LARGE and _advise is not None:
        start = -(-tensor.data_ptr() // PAGE) * PAGE
        _advise(start, (tensor.data_ptr() + size - start) // PAGE * PAGE, HUGE_PAGES)
    return tensor


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def layout(numbers: Tensor, basis: Tensor | None) -> tuple[Any, ...]:
    return numbers.dtype, numbers.shape, numbers.stride(), (0, 0, 0) if basis is None else basis.stride()


BLOCK = 4096  # pixels


@lru_cache(maxsize=1024)
def planned(
    job: Job,
    shape: tuple[int, ...],
    image: tuple[int, ...],
    output: tuple[int, ...],
    real: torch.dtype,
    numbers_shape: tuple[int, ...],
    numbers: tuple[int, ...],
    basis: tuple[int, int, int],
    *,
    to_image: tuple[int, ...] | None = None,
    to_numbers: tuple[int, ...] | None = None,
    to_basis: tuple[int, int, int] | None = None,
    direct: bool = True,
    threads: int = 1,
) -> Planned:
    """The plan of a call, by everything that it rests on: shapes, strides and options."""
    batch, channels, *in_size = shape
    lengths, out = three(in_size[::-1], 1), three(job.size[::-1], 1)
    outermost = in_size[0]
    channel_strides = [image[1], output[2], *([to_image[1]] if to_image else [])]
    innermost = channels >= 8 and all(stride == 1 for stride in channel_strides)
    furthest = max(
        sum((n - 1) * s for n, s in zip(in_size, strides[2:], strict=True))
        for strides in (image, to_image or image)
    )
    # As many channels at once as the nearest cache holds; positions are computed again for the next ones.
    block = min(max(BLOCK // math.prod(lengths), 16 if innermost else 4), channels)
    if (innermost and direct) or (job.kind == "grid" and to_image is None):
        block = channels  # a grid's gradient is written, not added to
    images = batch * -(-channels // block)
    bands = min(-(-threads // images), outermost) if images else 1
    parts = min(out[1] * out[2], math.prod(out) * channels // 65536) or 1
    if to_basis is not None:
        parts = min(threads, out[1] * out[2])
    rows = numbers_shape[2] if job.kind != "grid" else 0
    scratch = channels if direct else block * -(-outermost // bands) * math.prod(in_size[1:])
    most = 2 * (math.ceil((2 if job.kernel == "bicubic" else 1) * job.limit) + 1)
    every = most ** len(in_size) + 4
    pitch = (-(-out[0] // LANES) + 1) * LANES
    words = LINES * pitch + TAPS + 12 * most + 2 * every + 8 * rows + scratch

    record = np.zeros(1, PLAN)
    plan = record[0]
    plan["kind"], plan["dims"] = KINDS[job.kind], len(in_size)
    plan["kernel"], plan["padding"] = KERNELS[job.kernel], PADDINGS[job.padding]
    plan["beyond"] = job.padding in ("zeros", "fill")
    plan["align_corners"], plan["antialias"], plan["limit"] = job.align_corners, job.antialias, job.limit
    plan["wider"] = (1 + near_one(in_size, job, real)) ** 2
    plan["by_rows"] = not job.antialias and not innermost and furthest < 2**31
    plan["innermost"], plan["direct"] = innermost, direct
    plan["batch"], plan["copies"], plan["channels"], plan["rows"] = batch, numbers_shape[1], channels, rows
    plan["columns"] = len(in_size) + 1 if job.kind == "matrix" else len(in_size)
    plan["most"], plan["all"], plan["words"], plan["thickness"] = most, every, words, -(-outermost // bands)
    plan["parts"], plan["block"], plan["bands"], plan["pitch"] = parts, block, bands, pitch
    plan["lengths"], plan["out"] = lengths, out
    plan["image"], plan["gradient"] = image_strides(image), image_strides(to_image or image)
    plan["output"] = *three(output[:2:-1], 0), output[2], output[1], output[0]
    plan["numbers"] = number_strides(job, numbers)
    plan["to_numbers"] = number_strides(job, to_numbers or numbers)
    plan["basis"], plan["to_basis"] = basis, to_basis or basis
    variant: Variant = ANY
    if plan["by_rows"] and job.kernel == "bilinear":
        variant = COMMON if job.kind == "matrix" and rows == len(in_size) else PLACED
    along, w = source_axes(in_size, job), w_steps(in_size, job)
    for a, axis in enumerate(along):
        plan["middle"][a], plan["half_span"][a], plan["still"][a] = axis.middle, axis.half_span, axis.still
        plan["steps"][a] = *three(axis.steps[:-1], 0), axis.steps[-1]
    plan["steps"][3] = *three(w[:-1], 0), w[-1]
    return Planned(
        record, record.ctypes.data, words, batch * numbers_shape[1], parts, images * bands, variant
    )


class Patched(NamedTuple):
    """How a call is done by ``patches``."""

    way: str
    plan: Planned
    items: int


FEW = 8  # channels from which on they are read side by side
PATCH = 2**20  # numbers of the largest patch: 4 MB, which two threads' share of a last-level cache holds
ENOUGH = 16  # work items; with fewer an output's rows are spread over threads
# Times that an output may be smaller than its image, forward and backward: a crop does not read all that is
# copied, and its gradient is zero elsewhere.
SMALLER = 4, 2


@lru_cache(maxsize=1024)
def patches_for(
    job: Job,
    shape: tuple[int, ...],
    image: tuple[int, ...],
    output: tuple[int, ...],
    real: torch.dtype,
    numbers_shape: tuple[int, ...],
    numbers: tuple[int, ...],
    basis: tuple[int, int, int],
    to_image: tuple[int, ...] | None = None,
    *,
    backward: bool = False,
) -> Patched | None:
    """Whether and how a call is done by patches. Shapes decide, not threads: bits do not depend on those."""
    affine = job.kind == "matrix" and numbers_shape[2] == 2 and len(shape) == 4
    plain = job.kernel == "bilinear" and job.padding == "zeros" and not job.antialias
    if not affine or not plain or any(strides[-1] != 1 for strides in (image, output, to_image or image)):
        return None
    batch, channels, height, width = shape
    pixels = (height + 2 * MARGIN) * (width + 2 * MARGIN)
    if channels < FEW:
        block, slots = 1, CORNERS if backward else 0
        if not backward and batch >= ENOUGH:  # positions are computed once for all
            block = min(channels, max(1, PATCH // pixels))
    else:
        block, slots = LANES, LANES if backward else 0
    parts = -(-channels // block)
    if pixels * max(block, slots) > PATCH or batch * parts < ENOUGH:
        return None
    if SMALLER[backward] * math.prod(job.size) * numbers_shape[1] < height * width:
        return None
    plan = planned(
        job, shape, image, output, real, numbers_shape, numbers, basis,
        to_image=to_image, to_numbers=(*(parts * stride for stride in dense(numbers_shape)), 1),
    )  # fmt: skip
    record = plan.record.copy()
    words = plan.words + room_size(job.size[1], (width, height), block, slots, real.itemsize)
    record["parts"], record["block"], record["words"] = parts, block, words
    plan = plan._replace(record=record, place=record.ctypes.data, words=words, parts=parts)
    return Patched("planes" if channels < FEW else "bundles", plan, batch * parts)


def dense(shape: tuple[int, ...]) -> list[int]:
    """The strides of a tensor without gaps."""
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def three(values: Sequence[float], rest: float) -> tuple[Any, ...]:
    """x, y, z: an image of two axes has no z."""
    return (*values, *[rest] * (3 - len(values)))


def image_strides(strides: tuple[int, ...]) -> tuple[int, ...]:
    return (*three(strides[:1:-1], 0), strides[1], strides[0])


def number_strides(job: Job, strides: tuple[int, ...]) -> tuple[int, ...]:
    """batch, copy, then row, column and part; of a grid batch, copy, layer, x, y, z, axis."""
    if job.kind == "grid":
        return (*strides[:3], *three(strides[-2:2:-1], 0), strides[-1])
    return (*strides, *[0] * (7 - len(strides)))


# Compilation


def _sources() -> tuple[int, ...]:
    """A number that changes with the text of the kernels' parts.

    Numba keeps kernels for as long as the file they are put together in, this one, does not change; and for
    each value of what they close over, which this is part of.
    """
    text = b"".join(path.read_bytes() for path in sorted(Path(cpu.__file__).parent.glob("*.py")))
    return (zlib.crc32(text),)


SOURCES = _sources()  # of the text that was imported, not of what may have taken its place since


@cache
def compiled(kernel: str, variant: Variant, stored_dtype: torch.dtype, real_dtype: torch.dtype) -> Any:
    """A kernel for these dtypes, as a C function of a call's address; kept on disk where there is a place."""
    stored, zero = STORED[stored_dtype], REAL[real_dtype]
    size, version = real_dtype.itemsize, SOURCES

    def forward(p_call: int) -> None:
        forward_items(p_call, stored, zero, variant, version)

    def scatter(p_call: int) -> None:
        scatter_items(p_call, stored, zero, variant, version)

    def pull(p_call: int) -> None:
        pull_items(p_call, stored, zero, variant, version)

    def forward_by_planes(p_call: int) -> None:
        forward_planes(p_call, stored, zero, size, version)

    def backward_by_planes(p_call: int) -> None:
        backward_planes(p_call, stored, zero, size, version)

    def forward_by_bundles(p_call: int) -> None:
        forward_bundles(p_call, stored, zero, size, version)

    def backward_by_bundles(p_call: int) -> None:
        backward_bundles(p_call, stored, zero, size, version)

    function = {
        "forward": forward,
        "scatter": scatter,
        "pull": pull,
        "forward_planes": forward_by_planes,
        "backward_planes": backward_by_planes,
        "forward_bundles": forward_by_bundles,
        "backward_bundles": backward_by_bundles,
    }[kernel]
    signature = types.void(types.int64)
    try:
        return numba.cfunc(signature, cache=True, **FLAGS)(function)
    except RuntimeError:  # neither the package nor the user's cache can be written to
        return numba.cfunc(signature, **FLAGS)(function)


PARTS = f"{__package__}.cpu."


class _Note(event.Listener):
    """Says once that kernels are being compiled: it takes seconds, and only when nothing is kept on disk."""

    said = False

    def on_start(self, event: Any) -> None:
        if not self.said and event.data["dispatcher"].py_func.__module__.startswith(PARTS):
            self.said = True
            print("spatial_transformer: compiling CPU kernels (once for each dtype)", file=sys.stderr)

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Note())
