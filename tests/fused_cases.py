"""What the fused kernels are asked to do in tests: the cases, their tensors, and what the reference says."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any, NamedTuple

import torch
from cases import DTYPES, FAMILY_NAMES, PADDINGS, TOLERANCES, families, images, padding, thetas

import spatial_transformer as st
from spatial_transformer.coordinates import pixel_axes, span

F64, F32, BF16, F16 = DTYPES
KERNELS = ("nearest", "bilinear", "bicubic")
KINDS = ("Affine", "Projective", "ThinPlateSpline", "LearnedBasis", "grid")  # a family of each, and no family
IN = {2: (6, 9), 3: (4, 3, 5)}
OUT = {2: (7, 5), 3: (3, 4, 2)}


# The cases


class Case(NamedTuple):
    """One call, of ``sample`` where the family is "grid"."""

    family: str = "Affine"
    kernel: str = "bilinear"
    padding: str = "zeros"
    dtype: torch.dtype = F64
    in_size: tuple[int, ...] = IN[2]
    out_size: tuple[int, ...] = OUT[2]
    batch: int = 1
    channels: int = 2
    copies: int = 0  # 0: theta has no axis for them
    align_corners: bool = False
    antialias: float = False
    layout: str = "contiguous"
    cotangent: str = "contiguous"
    spread: float = 0.1  # of theta around the identity
    theta_dtype: torch.dtype | None = None  # the image's, float32 at least
    small: bool = True

    @property
    def dims(self) -> int:
        return len(self.in_size)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "padding": padding(self.padding, self.channels),
            "align_corners": self.align_corners,
            "antialias": self.antialias,
        }

    def __str__(self) -> str:
        changed = {
            name: value
            for name, value in self._asdict().items()
            if value != self._field_defaults[name] and name != "small"
        }
        return " ".join(
            f"{name}={str(value).removeprefix('torch.').replace(' ', '')}" for name, value in changed.items()
        )


def paired(name, kernel, pad):
    """Every kind of family with every kernel, every padding with every kernel, and so on: 15 of the 75."""
    return name in KINDS and (KERNELS.index(kernel) + PADDINGS.index(pad) - KINDS.index(name)) % 5 == 0


def every_option():
    """Families x kernels x paddings in 2D; half of them align corners."""
    names = (*FAMILY_NAMES, "grid")
    for n, (name, kernel, pad) in enumerate(itertools.product(names, KERNELS, PADDINGS)):
        small = paired(name, kernel, pad) or (kernel == "bilinear" and name in KINDS)
        yield Case(name, kernel, pad, align_corners=n % 2 == 1, small=small)
        yield Case(name, kernel, pad, align_corners=n % 2 == 0, batch=2, copies=2, spread=0.6, small=False)


def every_option_in_3d():
    names = (*FAMILY_NAMES, "grid")
    for n, (name, kernel, pad) in enumerate(itertools.product(names, KERNELS, PADDINGS)):
        yield Case(
            name, kernel, pad, in_size=IN[3], out_size=OUT[3], align_corners=n % 2 == 1, channels=1 + n % 2,
            small=paired(name, kernel, pad) and (kernel != "bicubic" or name == "LearnedBasis"),
        )  # fmt: skip

    yield Case("Affine", "bicubic", in_size=(2, 3, 3), out_size=(3, 2, 2), channels=1)


def dtypes_and_layouts():
    layouts = ("contiguous", "channels_last", "sliced", "transposed", "strided", "expanded")
    for n, (dtype, layout) in enumerate(itertools.product(DTYPES, layouts)):
        for name in KINDS:
            yield Case(
                name, KERNELS[n % 3], PADDINGS[n % 5], dtype, layout=layout, batch=2, channels=3,
                small=name == KINDS[(n + n // 6) % 5],
            )  # fmt: skip
        yield Case(
            KINDS[n % 4], "bilinear", PADDINGS[n % 5], dtype, IN[3], OUT[3], layout=layout, batch=2,
            channels=9, small=layout == "channels_last",
        )  # fmt: skip
    for image, theta in itertools.permutations(DTYPES, 2):
        yield Case(dtype=image, theta_dtype=theta, small={image, theta} == {F32, F64} or image == F16)


def sizes():
    lengths = (1, 2, 7, 63, 64, 257)
    for n, (into, out) in enumerate(itertools.product(lengths, lengths)):
        # Each length along one axis with another beside it: images of 257 x 257 would only be slow.
        in_size, out_size = ((into, 5), (4, out)) if n % 2 else ((5, into), (out, 4))
        for k, name in enumerate(KINDS):
            yield Case(
                name, KERNELS[1 + (n + k) % 2], PADDINGS[(n + k) % 5], (F64, F32)[(n + k) % 2], in_size,
                out_size, align_corners=(n // 2 + k) % 2 == 1, channels=1,
                small=k == n % 5 and into < 257 and n % 3 != 2,
            )  # fmt: skip
    for length in lengths:
        for name, dtype in itertools.product(KINDS, (F64, F32)):
            yield Case(name, dtype=dtype, in_size=(length, length), out_size=(length, length), small=False)
    yield Case("Affine", dtype=F32, in_size=(64, 63), out_size=(63, 64), channels=1)
    yield Case("ThinPlateSpline", "bilinear", "border", F32, (257, 7), (7, 64), channels=1)
    yield Case("Affine", dtype=F32, in_size=(2, 1, 63), out_size=(7, 2, 1), channels=1)
    yield Case("Projective", dtype=F32, in_size=(1, 1), out_size=(1, 1))
    for n, size in enumerate([(1, 1, 1), (1, 7, 2), (2, 1, 1)]):
        for name, align_corners in itertools.product(KINDS, (False, True)):
            yield Case(
                name, in_size=size, out_size=size[::-1], align_corners=align_corners, small=name == KINDS[n]
            )


def counts():
    for batch, copies in itertools.product((0, 1, 33), (0, 1, 3)):
        for name in KINDS:
            yield Case(
                name, batch=batch, copies=copies, in_size=(3, 4), out_size=(4, 3), channels=1,
                small=batch < 33 or (name == "Affine" and not copies),
            )  # fmt: skip
    for channels in (1, 3, 4, 5, 8, 9, 17, 65):
        for layout, name in itertools.product(("contiguous", "channels_last"), KINDS):
            yield Case(
                name, dtype=F32, channels=channels, layout=layout,
                small=(channels in (3, 5, 9, 65) and name == "Affine") or (channels, name) == (5, "grid"),
            )  # fmt: skip


def antialiased():
    for n, (name, kernel, pad) in enumerate(itertools.product(KINDS, KERNELS, PADDINGS)):
        small = paired(name, kernel, pad) and kernel != "bicubic"
        yield Case(
            name, kernel, pad, out_size=(4, 3), antialias=2.5 if small else 8, channels=1 + n % 2,
            align_corners=n % 4 > 1, small=small,
        )  # fmt: skip
        yield Case(name, kernel, pad, in_size=IN[3], out_size=(2, 2, 3), antialias=2, channels=1, small=False)
    for name in KINDS:
        yield Case(name, dtype=F32, out_size=(3, 4), antialias=2, channels=1, batch=2, copies=2, small=False)
        yield Case(name, dtype=BF16, out_size=(3, 4), antialias=2, layout="channels_last", small=False)
    yield Case("Affine", "bicubic", "reflection", out_size=(4, 3), antialias=2, channels=1)
    yield Case("Projective", in_size=(3, 2, 3), out_size=(2, 1, 2), antialias=2, channels=1)
    yield Case("ThinPlateSpline", "nearest", in_size=(3, 2, 3), out_size=(2, 1, 2), antialias=1.5, channels=1)
    yield Case(
        "LearnedBasis", padding="border", in_size=(3, 2, 3), out_size=(2, 1, 2), antialias=1.5, channels=1
    )
    yield Case("grid", padding="circular", in_size=(3, 2, 3), out_size=(2, 2, 2), antialias=1.5, channels=1)


def cotangents():
    for layout, name in itertools.product(("expanded", "transposed", "channels_last", "strided"), KINDS):
        for pad in ("zeros", "border"):
            yield Case(
                name, padding=pad, dtype=F32, cotangent=layout, batch=2, copies=2, small=name == "Affine"
            )


CASES = list(
    dict.fromkeys(
        case
        for make in (
            every_option, every_option_in_3d, dtypes_and_layouts, sizes, counts, antialiased, cotangents
        )
        for case in make()
    )
)  # fmt: skip


# What a case is made of


def laid_out(values, layout):
    """The values in memory of that layout, with NaN in the gaps and beside it."""
    if layout == "contiguous":
        memory = values.new_full((values.numel() + 32,), math.nan)
        view = memory[16 : 16 + values.numel()].view(values.shape)
    elif layout == "channels_last":
        axis = 1 if values.ndim < 6 else 2
        return laid_out(values.movedim(axis, -1), "contiguous").movedim(-1, axis)
    elif layout == "transposed":
        return laid_out(values.transpose(-1, -2), "contiguous").transpose(-1, -2)
    elif layout == "expanded":
        return laid_out(values[:1, ..., :1], "sliced").expand(values.shape)
    elif layout == "sliced":
        memory = values.new_full([n + 3 for n in values.shape], math.nan)
        view = memory[tuple(slice(1, n + 1) for n in values.shape)]
    else:
        assert layout == "strided"
        memory = values.new_full([2 * n for n in values.shape], math.nan)
        view = memory[tuple(slice(None, None, 2) for _ in values.shape)]
    view.copy_(values)
    return view


class Given(NamedTuple):
    """The tensors of a call. ``theta`` is the grid where there is no family."""

    image: torch.Tensor
    theta: torch.Tensor
    family: st.Family | None
    cotangent: torch.Tensor

    def exact(self):
        """The same numbers in float64 on the CPU."""
        family = None if self.family is None else copy.deepcopy(self.family).cpu().double()
        return Given(
            *(t.cpu().double() for t in (self.image, self.theta)), family, self.cotangent.cpu().double()
        )


def given(case: Case, device: str = "cpu") -> Given:
    real = torch.promote_types(case.dtype, torch.float32)
    if case.theta_dtype is not None:
        real = torch.promote_types(real, case.theta_dtype)
    name = "Affine" if case.family == "grid" else case.family
    family = families(case.dims, case.out_size, case.align_corners, dtype=real)[name]
    count = case.batch * max(case.copies, 1)
    theta = thetas(family, count, spread=case.spread, seed=5, dtype=case.theta_dtype or real)
    if case.family == "grid":
        theta = family.grid(theta.double(), case.out_size, case.align_corners)
        theta = (theta + 0.1 * images(*theta.shape, seed=6)).to(case.theta_dtype or real)
    if case.copies:
        theta = theta.unflatten(0, (case.batch, case.copies))
    copies = (case.copies,) if case.copies else ()
    image = images(case.batch, case.channels, *case.in_size, dtype=case.dtype)
    # Of either sign, none of them near zero.
    cotangent = images(case.batch, *copies, case.channels, *case.out_size, seed=7) - 0.5
    cotangent = (cotangent + cotangent.sign() * 0.1).to(case.dtype)
    if case.cotangent != "expanded":
        cotangent *= ~doubtful(case, theta, family, real)
    return Given(
        laid_out(image.to(device), case.layout),
        theta.to(device),
        None if case.family == "grid" else family.to(device),
        laid_out(cotangent.to(device), case.cotangent),
    )


def doubtful(case: Case, theta, family, real):
    """Output pixels so near to where a kernel's slope (nearest: its value) jumps that rounding decides.

    They have no cotangent, and may be few.
    """
    theta = theta.double()
    if case.family == "grid":
        positions = pixel_axes(theta.unbind(-1), case.in_size, case.align_corners)
    else:
        positions = family.double().pixels(theta, case.in_size, case.out_size, case.align_corners)
        family.to(real)
    found = torch.zeros((), dtype=torch.bool)
    for position, length in zip(positions, reversed(case.in_size), strict=True):
        if not span(length, case.align_corners):  # pixel 0 for every coordinate
            continue
        reach = position.abs() + max(*case.in_size, *case.out_size)
        off = position - 0.5 if case.kernel == "nearest" else position
        found = found | ((off - off.round()).abs() < 32 * torch.finfo(real).eps * reach)
    found = found.expand(theta.shape[:-1] if case.family == "grid" else (*theta.shape[:-1], *case.out_size))
    assert found.sum() <= max(1, 0.02 * found.numel())
    return found.unsqueeze(-case.dims - 1)


def called(case: Case, given: Given, impl: str, image, theta):
    if given.family is None:
        return st.sample(image, theta, **case.options, impl=impl)
    return st.warp(image, theta, given.family, size=case.out_size, **case.options, impl=impl)


def outcome(case: Case, given: Given, impl: str):
    """Output and gradients of image, theta (or grid) and what the family learns; the leaves keep strides."""
    leaves = [given.image.detach().requires_grad_(), given.theta.detach().requires_grad_()]
    learned = [] if given.family is None else list(given.family.parameters())
    output = called(case, given, impl, *leaves)
    gradients = torch.autograd.grad(output, [*leaves, *learned], given.cotangent)
    return [output.detach(), *gradients]


def slacks(case: Case, given: Given):
    """(rtol, atol) of output, d image, d theta and d learned.

    ``moved`` is what rounding may move a coordinate by, in pixels; kernels' slopes are below 2. A gradient is
    a sum of terms, each a cotangent times something that a coordinate moves: it is off by ``moved`` times
    the sum of their sizes.
    """
    exact = given.exact()
    real = torch.promote_types(torch.promote_types(given.image.dtype, given.theta.dtype), torch.float32)
    moved = 8 * torch.finfo(real).eps * max(*case.in_size, *case.out_size)
    rtol, atol = TOLERANCES[case.dtype]
    weights = exact.cotangent.abs()
    image = exact.image.clone().requires_grad_()
    (reads,) = torch.autograd.grad(called(case, exact, "reference", image, exact.theta), image, weights)
    most = max(1.0, reads.abs().max().item()) if reads.numel() else 1.0
    pixels = max(case.in_size) * (case.dims + 1)  # of a source coordinate for a unit of theta, and some
    each = weights.sum(-case.dims - 1)  # [N(, T), *out]
    if case.family == "grid":
        terms = each.amax().item() if each.numel() else 0.0
    else:
        terms = each.flatten(-case.dims).sum(-1).amax().item() if each.numel() else 0.0
    together = each.flatten(0, -case.dims - 1).sum(0).amax().item() if each.numel() else 0.0
    larger = max(1.0, max(*case.in_size, *case.out_size) / 64)
    image_eps, theta_eps = (torch.finfo(t.dtype).eps for t in (given.image, given.theta))  # of the result
    return [
        (rtol, atol * larger),
        (image_eps, 2 * moved * most),
        (theta_eps, 2 * moved * pixels * terms),
        (0.0, 2 * moved * pixels * together),
    ]


def compare(case: Case, given: Given, found):
    """What an implementation found against the reference in float64."""
    expected = outcome(case, given.exact(), "reference")
    names = ("output", "d image", "d theta", "d learned")
    for name, one, other, (rtol, atol) in zip(names, found, expected, slacks(case, given), strict=False):
        one = one.cpu().double()
        assert one.isfinite().all(), name
        error = (one - other).abs() - rtol * other.abs()
        if name == "output" and case.kernel == "nearest" and case.dtype != F64:
            # Values that rounding decides: a budget of their own.
            assert (error > atol).double().mean() <= 0.02, name
            continue
        worst = error.max().item() if error.numel() else 0.0
        assert worst <= atol, f"{name}: off by {worst:.3g}, allowed {atol:.3g}"
