"""The Triton kernels launched: how work is cut into programs, and what is kept from one launch to the next.

Three kernels (``gpu``):

- ``_forward``: V = sum over taps of k(x - m) k(y - n) U[n, m], one program for a block of output pixels.
- ``_gather``: dU[n, m] = sum over output pixels of k(x - m) k(y - n) dV, one program for a block of *input*
  pixels, which visits the output pixels that read it: found through the transform's rows, for a matrix and
  paddings whose outside holds no pixel of the image. No atomics, nothing to clear, the same bits every time.
- ``_backward``: the gradient of the numbers (summed over a program's share of an image, then over the
  shares) and, where ``_gather`` cannot, dU by atomic additions; under
  ``torch.use_deterministic_algorithms`` of whole numbers, whose order does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..family import settle
from ..matrices import pixel_factors, precise_product
from . import triton_cuts
from .gpu.backward import _backward
from .gpu.constants import FLOATS, KERNELS, KINDS, NO_SCATTER, PADDINGS, WHOLE
from .gpu.forward import _forward
from .gpu.gather import _gather
from .job import Job, empty_output, near_one, transforms
from .triton_cuts import Cut

# Triton's interpreter (TRITON_INTERPRET=1) runs the kernels on CPU tensors, for tests.
INTERPRETED = bool(triton.knobs.runtime.interpret)

# Versions of Triton whose launchers are known to take these arguments.
KNOWN = triton.__version__.startswith("3.6.")


class Plan:
    """The launch of a kernel for given shapes and options: everything but its tensors."""

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        numbers: tuple[Any, ...],
        options: tuple[Any, ...],
        warps: int,
    ) -> None:
        self.kernel, self.grid, self.warps = kernel, grid, warps
        self.rest = (*numbers, *options)  # in the kernel's order, after the tensors
        self.launch: Any = None  # of what a first launch compiled
        self.head: tuple[Any, ...] = ()

    def __call__(self, device: int, *tensors: Tensor | None) -> None:
        """Runs the kernel, with None for what it does not look at.

        What Triton finds out anew at every launch, tens of microseconds, is kept.
        """
        places, together = [], 0
        for tensor in tensors:
            place = 0 if tensor is None else tensor.data_ptr()
            places.append(place)
            together |= place
        aligned = together % 16 == 0  # as it was compiled for
        if aligned and self.launch is not None:
            stream = torch._C._cuda_getCurrentRawStream(device)
            # Of an address Triton's launcher does not ask the driver where it is, as it does of a tensor.
            self.launch(*self.grid, stream, *self.head, *places, *self.rest)
            return
        ran = self.kernel[self.grid](*in_every_place(tensors), *self.rest, num_warps=self.warps)
        if not aligned or not KNOWN or INTERPRETED:
            return
        if not (ran.run.global_scratch_size or ran.run.profile_scratch_size):
            self.launch = ran.run.launch
            # Function; cooperative, dependent; two scratches; metadata; three that only profilers use.
            switches = (ran.run.launch_cooperative_grid, ran.run.launch_pdl)
            self.head = (ran.function, *switches, None, None, ran.packed_metadata, None, None, None)


def in_every_place(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """Triton takes a tensor in every place; what a kernel does not look at may be any."""
    some = next(tensor for tensor in tensors if tensor is not None)
    return [some if tensor is None else tensor for tensor in tensors]


class Forward(NamedTuple):
    """What a forward pass takes."""

    plan: Plan
    shape: tuple[int, ...]  # of the output
    strides: tuple[int, ...]
    paired: bool  # whether the kernel loads control points by both coordinates at once


class Backward(NamedTuple):
    """What the gradients of a call take: launches in this order, those that are not None."""

    gather: Plan | None  # the image's gradient, gathered by itself
    scatter: Plan | None  # or added up by itself
    rest: Plan | None  # all else
    gathers: bool  # whether the image's gradient is gathered: by itself, or with the rest
    parts: tuple[int, ...] | None  # the shape of what is summed to the numbers' gradient, if it takes a sum
    points: tuple[int, ...] | None  # the shape of the points' gradient, if it is needed
    paired: bool  # as above


# What calls took, by everything that it rests on. A plan whose launcher is kept is launched with addresses
# alone, so the devices of all tensors are part of that.
_forwards: dict[Any, Forward] = {}
_backwards: dict[Any, Backward] = {}

# Plans are small; a program that never meets the same shapes twice must not keep them all.
KEPT_PLANS = 1000

Kept = TypeVar("Kept", Forward, Backward)


def keep(found: dict[Any, Kept], key: Any, value: Kept) -> Kept:
    if len(found) >= KEPT_PLANS:
        found.clear()
    found[key] = value
    return value


def fitted(cut: Cut) -> Cut:
    """A program costs the interpreter the same whatever its size: few of them, and large."""
    return cut._replace(block=max(cut.block, 256), enough=16) if INTERPRETED else cut


def extents(size: Sequence[int]) -> tuple[int, int, int]:
    """W, H, D."""
    return (size[-1], size[-2], size[-3] if len(size) == 3 else 1)


def strides(tensor: Tensor, lead: int) -> tuple[int, ...]:
    """Those of the ``lead`` first axes, then of z, y, x; z's is 0 in 2D."""
    found = tensor.stride()
    return (*found[:lead], *((0,) if tensor.ndim - lead == 2 else ()), *found[lead:])


def ratios(image: Tensor, job: Job) -> tuple[float, ...]:
    """Spans of source axes over those of target axes, row by row, and 2 over the latter."""
    rows = pixel_factors(image.shape[2:], job.size, job.align_corners)
    dims = len(job.size)
    padded = [(*row[:dims], *[0.0] * (3 - dims)) for row in rows]
    if dims == 2:
        padded.insert(2, (0.0, 0.0, 0.0))
    return tuple(number for row in padded for number in row)


def grid_for(blocks: int, transforms: int) -> tuple[int, int, int]:
    """A grid's second axis is short."""
    short = min(transforms, 65535)
    return blocks, short, -(-transforms // short)


def large(*tensors: Tensor) -> bool:
    """Whether offsets within one sample pass 2^31."""
    return any(
        sum((length - 1) * step for length, step in zip(t.shape[1:], t.stride()[1:], strict=True)) >= 2**31
        for t in tensors
    )


def common(image: Tensor, numbers: Tensor, job: Job) -> dict[str, Any]:
    """The options that the kernels share."""
    return {
        "KIND": KINDS[job.kind],
        "PROJECTIVE": job.kind == "matrix" and numbers.shape[2] == image.ndim - 1,
        "DIMS": image.ndim - 2,
        "KERNEL": KERNELS[job.kernel],
        "PADDING": PADDINGS[job.padding],
        "ALIGN": int(job.align_corners),
        "WIDE": job.antialias,
        "LIMIT": job.limit,
        "COMPUTE": tl.float64 if numbers.dtype == torch.float64 else tl.float32,
    }


def options(kernel: Any, given: dict[str, Any]) -> tuple[Any, ...]:
    """In the kernel's order."""
    return tuple(given[name] for name in kernel.arg_names if name in given)


def forward(
    image: Tensor, numbers: Tensor, basis: Tensor | None, fill: Tensor | None, job: Job, several: bool = True
) -> Tensor:
    """[N, T, C, *size], or [N, C, *size] where there are not several: see ``Job``"""
    device = image.get_device()
    if elsewhere(device):
        with torch.cuda.device(device):
            return forward(image, numbers, basis, fill, job, several)
    key = (
        device, image.shape, image.stride(), image.dtype, numbers.get_device(), numbers.shape, numbers.dtype,
        where(basis), where(fill), job, several,
    )  # fmt: skip
    course = _forwards.get(key) or keep(_forwards, key, forward_course(image, numbers, job, several))
    numbers = numbers.contiguous()
    if course.paired:
        numbers = in_pairs(numbers)
    output = image.new_empty_strided(course.shape, course.strides)
    course.plan(device, image, numbers, basis, fill, output)
    return output


def forward_course(image: Tensor, numbers: Tensor, job: Job, several: bool) -> Forward:
    numbers = transforms(numbers, image, job, several)
    outline = torch.empty_strided(image.shape, image.stride(), dtype=image.dtype, device="meta")
    output = empty_output(outline, numbers.shape[1], job.size)
    kept = held(job, numbers)
    cut = fitted(triton_cuts.forward_cut(image, job, kept))
    tiling, total = cut.tiling(job.size), image.shape[0] * numbers.shape[1]
    # Transforms of a program: they share the basis that it holds.
    each = max(1, min(EACH, total * tiling.blocks // cut.enough)) if kept else 1
    given = {
        **common(image, numbers, job),
        "LARGE": large(image, output) or numbers[0, 0].numel() >= 2**31,
        "MANY": tiling.many,
        **cut.options(image.shape[1]),
        "HELD": kept,
    }
    plan = Plan(
        _forward,
        grid_for(tiling.blocks, -(-total // each)),
        (
            total, each, numbers.shape[1], image.shape[1],
            *extents(image.shape[2:]), *extents(job.size),
            control_points(job, numbers), math.prod(job.size), numbers[0, 0].numel(),
            *tiling.numbers,
            *ratios(image, job), *strides(image, 2), *strides(output, 3)[1:],
            near_one(image.shape[2:], job, numbers.dtype),
        ),
        options(_forward, given),
        cut.warps,
    )  # fmt: skip
    result = output if several else output.squeeze(1)
    return Forward(plan, tuple(result.shape), result.stride(), kept > 0)


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
    """The gradients of image, numbers and basis, those that are wanted."""
    device = image.get_device()
    if elsewhere(device):
        with torch.cuda.device(device):
            return backward(cotangent, image, numbers, basis, fill, job, wanted, several)
    whole = torch.are_deterministic_algorithms_enabled()
    key = (
        device, image.shape, image.stride(), image.dtype, numbers.get_device(), numbers.shape, numbers.dtype,
        where(basis), where(fill), job, several, cotangent.get_device(), cotangent.stride(), wanted, whole,
    )  # fmt: skip
    course = _backwards.get(key) or keep(
        _backwards, key, backward_course(cotangent, image, numbers, job, wanted, several, whole)
    )
    numbers = numbers.contiguous()
    if course.paired:
        numbers = in_pairs(numbers)
    want_image, want_numbers, _ = wanted
    gradient = target = scale = sums = points = d_basis = None
    if course.gathers:
        gradient = torch.empty_like(image)
        if course.gather is not None:
            course.gather(device, cotangent, numbers, gradient)
    elif want_image:
        target, scale = accumulator(cotangent, image, numbers, job, whole)
    into = gradient if target is None else target
    if course.scatter is not None:
        course.scatter(device, cotangent, image, numbers, basis, fill, into, scale, None, None)
    if course.rest is not None:
        if want_numbers and job.kind != "grid":
            sums = torch.empty_like(numbers) if course.parts is None else numbers.new_empty(course.parts)
        if course.points is not None:
            points = numbers.new_empty(course.points)
        course.rest(device, cotangent, image, numbers, basis, fill, into, scale, sums, points)
    if target is not None:
        gradient = settled(target, scale, image)
    if sums is not None and course.parts is not None:
        sums = sums.sum(2).reshape(numbers.shape)
    if points is not None and job.kind == "grid":
        sums = points.reshape(numbers.shape)
    elif points is not None and basis is not None:
        d_basis = basis_gradient(transforms(numbers, image, job, several), points, basis)
    return gradient, sums, d_basis


def gatherable(image: Tensor, numbers: Tensor, job: Job) -> bool:
    """Whether the output pixels that read an input pixel can be found."""
    affine = numbers.shape[2] == image.ndim - 2
    return (
        job.kind == "matrix"
        and job.padding in ("zeros", "fill")
        and not job.antialias
        and (affine or image.ndim == 4)
    )


def backward_course(
    cotangent: Tensor,
    image: Tensor,
    numbers: Tensor,
    job: Job,
    wanted: tuple[bool, bool, bool],
    several: bool,
    whole: bool,
) -> Backward:
    """``whole``: the image's gradient is added up in whole numbers, where it is added up."""
    numbers = transforms(numbers, image, job, several)
    cotangent = cotangent if several else cotangent.unsqueeze(1)
    want_image, want_numbers, want_basis = wanted
    dims = image.ndim - 2
    want_sums = want_numbers and job.kind != "grid"
    want_points = want_basis or (want_numbers and job.kind == "grid")
    gathers = want_image and gatherable(image, numbers, job)
    at_once = gathers and want_numbers and triton_cuts.at_once(image, job)
    scatter = NO_SCATTER if gathers or not want_image else WHOLE if whole else FLOATS
    alone = rest = parts = None
    if scatter != NO_SCATTER and want_sums and groups_of(job, numbers) > 1:
        # Every group of control points would add it once more.
        alone = rest_plan(cotangent, image, numbers, job, scatter, False, False, False)[0]
        scatter = NO_SCATTER
    if scatter != NO_SCATTER or want_sums or want_points:
        rest, shares = rest_plan(cotangent, image, numbers, job, scatter, at_once, want_sums, want_points)
        if want_sums and shares > 1:
            parts = *numbers.shape[:2], shares, *numbers.shape[2:]
    layers = 1 + dims if job.antialias else 1
    return Backward(
        gather_plan(cotangent, image, numbers, job) if gathers and not at_once else None,
        alone,
        rest,
        gathers,
        parts,
        (*numbers.shape[:2], layers, *job.size, dims) if want_points else None,
        held(job, numbers) > 0,
    )


def gather_plan(cotangent: Tensor, image: Tensor, numbers: Tensor, job: Job) -> Plan:
    gradient = torch.empty_like(image, device="meta")
    cut = fitted(triton_cuts.gather_cut(gradient, job))
    tiling, groups = cut.tiling(gradient.shape[2:]), -(-gradient.shape[1] // cut.channels)
    given = {
        **common(gradient, numbers, job),
        "LARGE": large(gradient, cotangent),
        "MANY": tiling.many,
        "EPS": torch.finfo(numbers.dtype).eps,
        **cut.options(gradient.shape[1]),
    }
    return Plan(
        _gather,
        grid_for(tiling.blocks * groups, gradient.shape[0]),
        (
            *numbers.shape[:2], gradient.shape[1], *extents(gradient.shape[2:]), *extents(job.size),
            numbers[0, 0].numel(), groups, *tiling.numbers, *ratios(gradient, job),
            *strides(cotangent, 3), *strides(gradient, 2),
        ),
        options(_gather, given),
        cut.warps,
    )  # fmt: skip


# Transforms of a program at most, where they share a basis.
EACH = 4

# Control points at most whose basis, and sums against it, a thread holds in registers.
HELD = 16


def held(job: Job, numbers: Tensor) -> int:
    """The number of control points, where registers hold them; else 0."""
    count = control_points(job, numbers)
    return count if len(job.size) == 2 and count <= HELD else 0


def in_pairs(numbers: Tensor) -> Tensor:
    """Control points where both coordinates can be loaded at once."""
    return numbers.clone() if numbers.data_ptr() % 8 else numbers


def kept_points(job: Job, numbers: Tensor) -> int:
    """Control points whose sums a program of ``_backward`` keeps, where threads do not hold all of them."""
    return 1 if held(job, numbers) else min(triton.next_power_of_2(max(control_points(job, numbers), 1)), 32)


def groups_of(job: Job, numbers: Tensor) -> int:
    """What the control points are cut into for these sums."""
    count = control_points(job, numbers)
    return -(-count // kept_points(job, numbers)) if count and not held(job, numbers) else 1


def rest_plan(
    cotangent: Tensor,
    image: Tensor,
    numbers: Tensor,
    job: Job,
    scatter: tl.constexpr,
    gathers: bool,
    want_sums: bool,
    want_points: bool,
) -> tuple[Plan, int]:
    """The numbers' gradient and the points', with the image's added up or gathered; and how many shares of an
    image the numbers' is summed in."""
    batch, copies = numbers.shape[:2]
    count, points_out = control_points(job, numbers), math.prod(job.size)
    within, kept = held(job, numbers), kept_points(job, numbers)
    if gathers:
        cut = triton_cuts.at_once_cut(image, job)
    elif want_sums and count and not within:
        cut = triton_cuts.many_points_cut(image, kept)
    elif scatter != NO_SCATTER:
        cut = triton_cuts.scatter_cut(image, job, within)
    else:
        cut = triton_cuts.sums_cut(image, job, within)
    cut = fitted(cut)
    tiling, over_image = cut.tiling(job.size), cut.tiling(image.shape[2:])
    shares = max(1, min(tiling.blocks, -(-cut.enough // (batch * copies))))
    channel_groups = -(-image.shape[1] // cut.channels)
    programs = over_image.blocks * channel_groups
    gather_programs = programs * batch if gathers else 0
    written = gathers or scatter != NO_SCATTER
    target = torch.empty_like(image, device="meta") if written else image
    given = {
        **common(image, numbers, job),
        "SCATTER": scatter,
        "WANT_SUMS": want_sums,
        "WANT_POINTS": want_points,
        "LARGE": large(image, cotangent) or max(numbers[0, 0].numel(), count * points_out) >= 2**31,
        "MANY": tiling.many or (gathers and over_image.many),
        **cut.options(image.shape[1]),
        "KEPT": kept,
        "HELD": within,
        "JOINED": cut.warps == 1 and job.kernel == "bilinear" and not job.antialias,
        "GATHERS": gathers,
        "EPS": torch.finfo(numbers.dtype).eps,
    }
    plan = Plan(
        _backward,
        (gather_programs + batch * copies * shares, groups_of(job, numbers) if want_sums else 1, 1),
        (
            copies, image.shape[1], *extents(image.shape[2:]), *extents(job.size),
            count, points_out, numbers[0, 0].numel(), tiling.blocks, shares, *tiling.numbers,
            channel_groups, programs, gather_programs, *over_image.numbers, *ratios(image, job),
            *strides(cotangent, 3), *strides(image, 2), *strides(target, 2),
            near_one(image.shape[2:], job, numbers.dtype),
        ),
        options(_backward, given),
        cut.warps,
    )  # fmt: skip
    return plan, shares


def accumulator(
    cotangent: Tensor, image: Tensor, numbers: Tensor, job: Job, whole: bool
) -> tuple[Tensor, Tensor | None]:
    """What the image's gradient is added up in, and the scale of whole numbers where its order must not
    matter."""
    if not whole:
        return torch.zeros_like(image, dtype=numbers.dtype), None
    # Below 2^62 even where every output pixel reads one input pixel (bicubic weights reach 1.7 together).
    room = 61 - math.ceil(math.log2(cotangent.numel() // (image.shape[0] * image.shape[1])))
    largest = cotangent.abs().amax().to(torch.float64)
    exponent = torch.where(largest > 0, room - largest.log2().ceil(), 0.0)
    return torch.zeros_like(image, dtype=torch.int64), torch.exp2(exponent).reshape(1)


def settled(target: Tensor, scale: Tensor | None, image: Tensor) -> Tensor:
    """The image's gradient from what it was added up in."""
    if scale is not None:
        return (target / scale).to(image.dtype)
    return target.to(image.dtype)


def basis_gradient(numbers: Tensor, points: Tensor, basis: Tensor) -> Tensor:
    """[N, T, K, dims], [N, T, L, *size, dims] -> [L, K, points]"""
    held, lost = settle(numbers.flatten(2))
    held = torch.where(lost[..., None], 0.0, held).reshape(numbers.shape)
    left = held.permute(2, 0, 1, 3).flatten(1)  # [K, N * T * dims]
    layers = points.flatten(3, -2).permute(2, 0, 1, 4, 3).flatten(1, 3)  # [L, N * T * dims, points]
    return precise_product(left, layers).to(basis.dtype)


def control_points(job: Job, numbers: Tensor) -> int:
    return numbers.shape[2] if job.kind in ("offsets", "points") else 0


def where(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.get_device()


def elsewhere(device: int) -> bool:
    """Whether this is another device than the current one, on which Triton launches; -1 is the CPU."""
    return device >= 0 and device != torch.cuda.current_device()
