"""``impl="fused"``: theta to output with no sampling grid in memory, by Triton (GPU) and Numba (CPU).

The kernels are two opaque operators, ``spatial_transformer::warp`` and ``::warp_backward``, with fake
implementations and no derivatives of their own; ``Warp`` and ``LeanWarp`` put them on autograd's tape. What
they cannot do (forward mode, ``torch.func``, derivatives of the second order, export) is left to the
reference's plain tensor code.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..antialias import footprints, grid_jacobian
from ..coordinates import Size, axes, pixel_axes, ratio, span
from ..family import Family, Source, settle
from ..kernels import KERNELS, NAMES, Reading
from ..matrices import pixel_slopes, precise_product, source_pixels
from ..modes import exporting, function_transform, opaque, outside
from . import reference
from .job import Job, empty_output, transforms
from .reference import compute_dtype

# Device type -> the package its kernels are written with, and what it is called.
BACKENDS = {"cuda": ("triton", "Triton"), "cpu": ("numba", "Numba")}

# Looked for once, and not when a call is traced: Dynamo does not follow the search.
INSTALLED = {package: importlib.util.find_spec(package) is not None for package, _ in BACKENDS.values()}


def why_not(image: Tensor, reading: Reading) -> str | None:
    """A sentence that says why this implementation cannot run, or None."""
    device_type = image.device.type
    if device_type not in BACKENDS:
        return f"there are no fused kernels for {device_type} tensors"
    package, name = BACKENDS[device_type]
    if not installed(package):
        return f"{name} is not installed"
    if reading.kernel not in NAMES:
        return "the fused kernels take no kernel of one's own"
    if isinstance(reading.fill, Tensor) and reading.fill.requires_grad:
        return "the fused kernels give no gradient to the padding's value"
    return None


def how(image: Tensor, reading: Reading) -> str:
    """What this implementation does with such a call."""
    return f"{BACKENDS[image.device.type][1]} kernels"


def installed(package: str) -> bool:
    return INSTALLED[package]


@cache
def kernels(device_type: str) -> ModuleType:
    """The file with a device's kernels: importing it imports Triton or Numba."""
    if device_type == "cuda":
        from . import fused_triton

        return fused_triton
    from . import fused_numba

    return fused_numba


def warp(image: Tensor, theta: Tensor, family: Family, size: Size, reading: Reading) -> Tensor:
    """[N, C, *in], [N, P] -> [N, C, *size]; theta [N, T, P] -> [N, T, C, *size]"""
    if needs_plain(image):
        return reference.warp(image, theta, family, size, reading)
    compute = compute_dtype(image, theta)
    source = family.source(
        theta if theta.dtype == compute else theta.to(compute),
        image.shape[2:],
        size,
        reading.align_corners,
        slopes=reading.antialias,
    )
    return run(image, source, tuple(size), reading, several=theta.ndim == 3)


def sample(image: Tensor, grid: Tensor, reading: Reading) -> Tensor:
    """[N, C, *in], [N, *out, dims] -> [N, C, *out]; a grid [N, T, *out, dims] -> [N, T, C, *out]"""
    if needs_plain(image):
        return reference.sample(image, grid, reading)
    grid, dims = grid.to(compute_dtype(image, grid)), image.ndim - 2
    layers = [grid]
    if reading.antialias:
        jacobian = grid_jacobian(pixel_axes(grid.unbind(-1), tuple(image.shape[2:]), reading.align_corners))
        layers += [torch.stack([row[b] for row in jacobian], dim=-1) for b in range(dims)]
    numbers = torch.stack(layers, dim=-dims - 2) if len(layers) > 1 else grid.unsqueeze(-dims - 2)
    size = tuple(grid.shape[-dims - 1 : -1])
    return run(image, Source("grid", numbers, None), size, reading, several=grid.ndim == dims + 3)


def needs_plain(image: Tensor) -> bool:
    """Whether this call is for plain tensor code: an empty one, or a mode that operators cannot serve."""
    return function_transform() or exporting() or 0 in image.shape


def run(image: Tensor, source: Source, size: tuple[int, ...], reading: Reading, *, several: bool) -> Tensor:
    kind, numbers, basis = source
    fill = None
    if reading.padding == "fill":
        value, channels = reading.fill, image.shape[1]
        if isinstance(value, Tensor):
            fill = value.to(numbers.dtype).expand(channels).contiguous()
        else:
            fill = numbers.new_full((channels,), value)
    job = Job(kind, size, reading.kernel_name, reading.padding, reading.align_corners, reading.limit)
    wanted = image.requires_grad or numbers.requires_grad or (basis is not None and basis.requires_grad)
    if not (wanted and torch.is_grad_enabled()):
        return forward(image, numbers, basis, fill, job, several)
    if opaque():
        result = Warp.apply(image, transforms(numbers, image, job, several), basis, fill, *job)
        return result if several else result.squeeze(1)
    basis = basis if basis is None else outside(basis)
    lean: Tensor = apply_lean(outside(image), outside(numbers), basis, fill, job, several)
    return lean


# The operators

LIBRARY = torch.library.Library("spatial_transformer", "FRAGMENT")

TENSORS = "Tensor image, Tensor numbers, Tensor? basis, Tensor? fill"
JOB = "str kind, SymInt[] size, str kernel, str padding, bool align_corners, float limit"
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)

LIBRARY.define(f"warp({TENSORS}, {JOB}) -> Tensor", tags=TAGS)
LIBRARY.define(
    f"warp_backward(Tensor cotangent, {TENSORS}, {JOB}, bool want_image, bool want_numbers, bool want_basis)"
    " -> (Tensor, Tensor, Tensor)",
    tags=TAGS,
)


def warp_kernel(
    image: Tensor, numbers: Tensor, basis: Tensor | None, fill: Tensor | None, *job: Any
) -> Tensor:
    with torch.autocast(image.device.type, enabled=False):
        result: Tensor = kernels(image.device.type).forward(image, numbers, basis, fill, as_job(job))
    return result


def warp_backward_kernel(
    cotangent: Tensor, image: Tensor, numbers: Tensor, basis: Tensor | None, fill: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    *job, want_image, want_numbers, want_basis = rest
    with torch.autocast(image.device.type, enabled=False):
        found = kernels(image.device.type).backward(
            cotangent, image, numbers, basis, fill, as_job(job), (want_image, want_numbers, want_basis)
        )
    # An operator always gives tensors: an empty one stands for a gradient that nobody wanted.
    return tuple(image.new_empty(0) if gradient is None else gradient for gradient in found)


def warp_fake(image: Tensor, numbers: Tensor, basis: Tensor | None, fill: Tensor | None, *job: Any) -> Tensor:
    return empty_output(image, numbers.shape[1], as_job(job).size)


def warp_backward_fake(
    cotangent: Tensor, image: Tensor, numbers: Tensor, basis: Tensor | None, fill: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    wanted = rest[-3:]
    return tuple(
        torch.empty_like(tensor) if want and tensor is not None else image.new_empty(0)
        for tensor, want in zip((image, numbers, basis), wanted, strict=True)
    )


for name, kernel, fake in (
    ("warp", warp_kernel, warp_fake),
    ("warp_backward", warp_backward_kernel, warp_backward_fake),
):
    LIBRARY.impl(name, kernel, "CPU")
    LIBRARY.impl(name, kernel, "CUDA")
    torch.library.register_fake(f"spatial_transformer::{name}", fake, lib=LIBRARY)


def as_job(values: Any) -> Job:
    kind, size, *rest = values
    return Job(kind, tuple(size), *rest)


def forward(
    image: Tensor, numbers: Tensor, basis: Tensor | None, fill: Tensor | None, job: Job, several: bool = True
) -> Tensor:
    if opaque():
        numbers = transforms(numbers, image, job, several)
        output: Tensor = torch.ops.spatial_transformer.warp(image, numbers, basis, fill, *job)
        return output if several else output.squeeze(1)
    result: Tensor = kernels(image.device.type).forward(image, numbers, basis, fill, job, several)
    return result


def backward(
    cotangent: Tensor,
    image: Tensor,
    numbers: Tensor,
    basis: Tensor | None,
    fill: Tensor | None,
    job: Job,
    wanted: tuple[bool, bool, bool],
    several: bool = True,
) -> tuple[Tensor | None, ...]:
    if opaque():
        inner = transforms(numbers, image, job, several)
        cotangent = cotangent if several else cotangent.unsqueeze(1)
        found = torch.ops.spatial_transformer.warp_backward(
            cotangent, image, inner, basis, fill, *job, *wanted
        )
        d_image, d_numbers, d_basis = (
            gradient if want else None for gradient, want in zip(found, wanted, strict=True)
        )
        return d_image, None if d_numbers is None else d_numbers.reshape(numbers.shape), d_basis
    result: tuple[Tensor | None, ...] = kernels(image.device.type).backward(
        cotangent, image, numbers, basis, fill, job, wanted, several
    )
    return result


class Warp(torch.autograd.Function):
    """The operators on autograd's tape, in a form that can be traced."""

    @staticmethod
    def forward(
        ctx: Any, image: Tensor, numbers: Tensor, basis: Tensor | None, fill: Tensor | None, *job: Any
    ) -> Tensor:
        ctx.save_for_backward(image, numbers, basis, fill)
        ctx.job = as_job(job)
        return forward(image, numbers, basis, fill, ctx.job)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        image, numbers, basis, fill = ctx.saved_tensors
        wanted = tuple(ctx.needs_input_grad[:3])
        found = backward(cotangents[0], image, numbers, basis, fill, ctx.job, wanted)
        return *found, *(None,) * (1 + len(ctx.job))


class LeanWarp(torch.autograd.Function):
    """The same for plain eager use: nothing on the tape but itself, as small warps are over in no time.

    Derivatives of the second order are those of the plain tensor code.
    """

    @staticmethod
    def forward(
        ctx: Any,
        image: Tensor,
        numbers: Tensor,
        basis: Tensor | None,
        fill: Tensor | None,
        job: Job,
        several: bool,
    ) -> Tensor:
        ctx.save_for_backward(image, numbers, basis, fill)
        ctx.job, ctx.several = job, several
        result: Tensor = kernels(image.device.type).forward(image, numbers, basis, fill, job, several)
        return result

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (image, numbers, basis, fill), (cotangent,) = ctx.saved_tensors, cotangents
        job, several, wanted = ctx.job, ctx.several, ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            leaves = [leaf for leaf, want in zip((image, numbers, basis), wanted, strict=True) if want]
            output = plain(image, transforms(numbers, image, job, several), basis, fill, job)
            cotangent = cotangent if several else cotangent.unsqueeze(1)
            found = iter(torch.autograd.grad(output, leaves, cotangent, create_graph=True))
            return *(next(found) if want else None for want in wanted), None, None, None
        d_image, d_numbers, d_basis = backward(cotangent, image, numbers, basis, fill, job, wanted, several)
        return d_image, d_numbers, d_basis, None, None, None


# ``LeanWarp.apply`` without its questions about transforms, which ``needs_plain`` has asked.
apply_lean: Any = super(torch.autograd.Function, LeanWarp).apply


def plain(image: Tensor, numbers: Tensor, basis: Tensor | None, fill: Tensor | None, job: Job) -> Tensor:
    """What the kernels compute, in plain tensor code that can be differentiated any number of times."""
    in_size, dims = tuple(image.shape[2:]), image.ndim - 2
    reading = Reading(
        KERNELS[job.kernel], job.padding, 0.0 if fill is None else fill, job.align_corners, job.limit
    )
    slopes = None
    if job.kind == "grid":
        positions = pixel_axes(numbers[:, :, 0].unbind(-1), in_size, job.align_corners)
        if job.antialias:
            slopes = [[numbers[:, :, 1 + b, ..., a] for b in range(dims)] for a in range(dims)]
    else:
        settled, lost = settle(numbers.flatten(2))
        settled = settled.reshape(numbers.shape)
        if job.kind == "matrix":
            positions = source_pixels(settled, in_size, job.size, job.align_corners)
            if job.antialias:
                slopes = pixel_slopes(settled, in_size, job.size, job.align_corners)
        else:
            assert basis is not None
            layers = through_basis(settled, basis, in_size, job)
            positions = [
                position + (length - 1) / 2
                for position, length in zip(layers[0], reversed(in_size), strict=True)
            ]
            if job.antialias:
                slopes = [[layers[1 + b][a] for b in range(dims)] for a in range(dims)]
        lost = lost.reshape(*lost.shape, *[1] * dims)
        positions = [
            torch.where(lost, torch.nan, position) if span(length, job.align_corners) else position
            for position, length in zip(positions, reversed(in_size), strict=True)
        ]
    spans = None
    if slopes is not None:
        rounded_over = 0 if job.kind == "matrix" else max(in_size)
        spans = footprints(slopes, job.limit, rounded_over=rounded_over)
    return reference.arranged(reference.read(image.to(numbers.dtype), positions, spans, reading), image)


def through_basis(numbers: Tensor, basis: Tensor, in_size: Size, job: Job) -> list[list[Tensor]]:
    """Centred source pixels and, in further layers, their slopes. [layer][axis], each [N, T, *out]"""
    found = []
    for layer, values in enumerate(basis):
        moved = precise_product(numbers.transpose(-1, -2), values).unflatten(-1, job.size)
        along = []
        for a, (into, out) in enumerate(zip(reversed(in_size), reversed(job.size), strict=True)):
            extent = span(into, job.align_corners)
            value = moved.select(2, a) * (extent / 2)
            if job.kind == "offsets":
                still = ratio(extent, span(out, job.align_corners))
                if layer == 0:
                    lattice = axes(job.size, None, dtype=numbers.dtype, device=numbers.device)
                    value = lattice[a] * still + value
                elif layer == 1 + a:
                    value = value + still
            along.append(value)
        found.append(along)
    return found
