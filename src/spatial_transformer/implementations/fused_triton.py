"""The Triton kernels launched: how work is cut into programs, and what is kept from one launch to the next.

Three kernels (``triton_kernels``):

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
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..families import settle
from ..matrices import pixel_factors, precise_product
from . import triton_cuts
from .job import Job, empty_output, near_one
from .triton_cuts import Cut
from .triton_kernels import (
    FLOATS,
    KERNELS,
    KINDS,
    NO_SCATTER,
    PADDINGS,
    WHOLE,
    _backward,
    _forward,
    _gather,
)

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
        shares: int = 1,  # that an image is cut into
    ) -> None:
        self.kernel, self.grid, self.warps, self.shares = kernel, grid, warps, shares
        self.rest = (*numbers, *options)  # in the kernel's order, after the tensors
        self.launch: Any = None  # of what a first launch compiled
        self.head: tuple[Any, ...] = ()

    def __call__(self, device: int, *tensors: Tensor) -> None:
        """Runs the kernel. What Triton finds out anew at every launch, tens of microseconds, is kept."""
        aligned = True  # as it was compiled for
        for tensor in tensors:
            aligned = aligned and tensor.data_ptr() % 16 == 0
        if aligned and self.launch is not None:
            stream = torch._C._cuda_getCurrentRawStream(device)
            self.launch(*self.grid, stream, *self.head, *tensors, *self.rest)
            return
        ran = self.kernel[self.grid](*tensors, *self.rest, num_warps=self.warps)
        if not aligned or not KNOWN or INTERPRETED:
            return
        if not (ran.run.global_scratch_size or ran.run.profile_scratch_size):
            self.launch = ran.run.launch
            # Function; cooperative, dependent; two scratches; metadata; three that only profilers use.
            switches = (ran.run.launch_cooperative_grid, ran.run.launch_pdl)
            self.head = (ran.function, *switches, None, None, ran.packed_metadata, None, None, None)


_plans: dict[Any, Plan] = {}

# Plans are small; a program that never meets the same shapes twice must not keep them all.
KEPT_PLANS = 1000


def planned(key: Any, make: Callable[[], Plan]) -> Plan:
    """A plan made and kept."""
    if len(_plans) >= KEPT_PLANS:
        _plans.clear()
    found = _plans[key] = make()
    return found


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


def forward(image: Tensor, numbers: Tensor, basis: Tensor | None, fill: Tensor | None, job: Job) -> Tensor:
    """[N, C, *in] -> [N, T, C, *size]"""
    if elsewhere(image):
        with torch.cuda.device(image.device):
            return forward(image, numbers, basis, fill, job)
    numbers = aligned(numbers, job)
    output = empty_output(image, numbers.shape[1], job.size)

    def make() -> Plan:
        kept = held(job, numbers)
        cut = fitted(triton_cuts.forward_cut(image, job, kept))
        tiling, transforms = cut.tiling(job.size), image.shape[0] * numbers.shape[1]
        # Transforms of a program: they share the basis that it holds.
        each = max(1, min(EACH, transforms * tiling.blocks // cut.enough)) if kept else 1
        given = {
            **common(image, numbers, job),
            "LARGE": large(image, output) or numbers[0, 0].numel() >= 2**31,
            "MANY": tiling.many,
            **cut.options(image.shape[1]),
            "HELD": kept,
        }
        return Plan(
            _forward,
            grid_for(tiling.blocks, -(-transforms // each)),
            (
                transforms, each, numbers.shape[1], image.shape[1],
                *extents(image.shape[2:]), *extents(job.size),
                control_points(job, numbers), math.prod(job.size), numbers[0, 0].numel(),
                *tiling.numbers,
                *ratios(image, job), *strides(image, 2), *strides(output, 3)[1:],
                near_one(image.shape[2:], job, numbers.dtype),
            ),
            options(_forward, given),
            cut.warps,
        )  # fmt: skip

    key = (
        "forward", image.device.index, image.shape, image.stride(), image.dtype,
        numbers.shape, numbers.dtype, job,
    )  # fmt: skip
    plan = _plans.get(key) or planned(key, make)
    plan(image.device.index, image, numbers, or_any(basis, numbers), or_any(fill, numbers), output)
    return output


def backward(
    cotangent: Tensor,
    image: Tensor,
    numbers: Tensor,
    basis: Tensor | None,
    fill: Tensor | None,
    job: Job,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of image, numbers and basis, those that are wanted."""
    if elsewhere(image):
        with torch.cuda.device(image.device):
            return backward(cotangent, image, numbers, basis, fill, job, wanted)
    numbers = aligned(numbers, job)
    want_image, want_numbers, want_basis = wanted
    gathers = want_image and gatherable(image, numbers, job)
    gradient = target = scale = None
    at_once = gathers and want_numbers and triton_cuts.at_once(image, job)
    if gathers:
        gradient = torch.empty_like(image)
        if not at_once:
            gather(cotangent, numbers, gradient, job)
    elif want_image:
        target, scale = accumulator(cotangent, image, numbers, job)
    if target is None and not (want_numbers or want_basis):
        return gradient, None, None
    sums, points = accumulate(
        cotangent, image, numbers, basis, fill, job, gradient if at_once else target, scale, at_once,
        want_numbers, want_basis,
    )  # fmt: skip
    if target is not None:
        gradient = settled(target, scale, image)
    d_basis = None
    if want_basis and basis is not None and points is not None:
        d_basis = basis_gradient(numbers, points, basis)
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


def gather(cotangent: Tensor, numbers: Tensor, gradient: Tensor, job: Job) -> None:
    def make() -> Plan:
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

    key = (
        "gather", gradient.device.index, gradient.shape, gradient.stride(), gradient.dtype,
        cotangent.stride(), numbers.shape, numbers.dtype, job,
    )  # fmt: skip
    plan = _plans.get(key) or planned(key, make)
    plan(gradient.device.index, cotangent, numbers, gradient)


# Transforms of a program at most, where they share a basis.
EACH = 4

# Control points at most whose basis, and sums against it, a thread holds in registers.
HELD = 16


def held(job: Job, numbers: Tensor) -> int:
    """The number of control points, where registers hold them; else 0."""
    count = control_points(job, numbers)
    return count if len(job.size) == 2 and count <= HELD else 0


def aligned(numbers: Tensor, job: Job) -> Tensor:
    """Numbers that follow one another; control points where both coordinates can be loaded at once."""
    numbers = numbers.contiguous()
    return numbers.clone() if held(job, numbers) and numbers.data_ptr() % 8 else numbers


def accumulate(
    cotangent: Tensor,
    image: Tensor,
    numbers: Tensor,
    basis: Tensor | None,
    fill: Tensor | None,
    job: Job,
    target: Tensor | None,
    scale: Tensor | None,
    gathers: bool,
    want_numbers: bool,
    want_basis: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The numbers' gradient, and the points' for a basis; adds the image's to ``target``, or gathers it."""
    batch, copies = numbers.shape[:2]
    dims, count, points_out = image.ndim - 2, control_points(job, numbers), math.prod(job.size)
    want_sums = want_numbers and job.kind != "grid"
    want_points = want_basis or (want_numbers and job.kind == "grid")
    within = held(job, numbers)
    kept = 1 if within else min(triton.next_power_of_2(max(count, 1)), 32)
    groups = -(-count // kept) if want_sums and count and not within else 1
    if groups > 1 and target is not None:  # every group of control points would add it once more
        accumulate(cotangent, image, numbers, basis, fill, job, target, scale, False, False, False)
        target = scale = None
    scatter = NO_SCATTER if target is None or gathers else FLOATS if scale is None else WHOLE

    def make() -> Plan:
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
        return Plan(
            _backward,
            (gather_programs + batch * copies * shares, groups, 1),
            (
                copies, image.shape[1], *extents(image.shape[2:]), *extents(job.size),
                count, points_out, numbers[0, 0].numel(), tiling.blocks, shares, *tiling.numbers,
                channel_groups, programs, gather_programs, *over_image.numbers, *ratios(image, job),
                *strides(cotangent, 3), *strides(image, 2), *strides(or_any(target, image), 2),
                near_one(image.shape[2:], job, numbers.dtype),
            ),
            options(_backward, given),
            cut.warps,
            shares,
        )  # fmt: skip

    key = (
        "backward", image.device.index, image.shape, image.stride(), image.dtype, cotangent.stride(),
        numbers.shape, numbers.dtype, job, want_sums, want_points, scatter.value, gathers,
    )  # fmt: skip
    plan = _plans.get(key) or planned(key, make)
    shares = plan.shares
    sums = points = None
    if want_sums:
        sums = numbers.new_empty(batch, copies, shares, *numbers.shape[2:])
    if want_points:
        layers = 1 + dims if job.antialias else 1
        points = numbers.new_empty(batch, copies, layers, *job.size, dims)
    plan(
        image.device.index, cotangent, image, numbers, or_any(basis, numbers), or_any(fill, numbers),
        or_any(target, image), or_any(scale, numbers), or_any(sums, numbers), or_any(points, numbers),
    )  # fmt: skip
    if sums is not None:
        sums = sums.squeeze(2) if shares == 1 else sums.sum(2)
    elif want_numbers:
        sums = points
    return sums, points


def accumulator(cotangent: Tensor, image: Tensor, numbers: Tensor, job: Job) -> tuple[Tensor, Tensor | None]:
    """What the image's gradient is added up in, and the scale of whole numbers where its order must not
    matter."""
    if not torch.are_deterministic_algorithms_enabled():
        return torch.zeros_like(image, dtype=numbers.dtype), None
    # Below 2^62 even where every output pixel reads one input pixel (bicubic weights reach 1.7 together).
    room = 61 - math.ceil(math.log2(math.prod(job.size) * numbers.shape[1]))
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


def or_any(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel takes a tensor in every place; what it does not look at may be any."""
    return other if tensor is None else tensor


def elsewhere(image: Tensor) -> bool:
    """Whether the image is on another device than the current one, on which Triton launches."""
    return image.device.type == "cuda" and image.device.index != torch.cuda.current_device()
