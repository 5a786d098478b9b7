"""The fused kernels against ``reference`` in float64: output and every gradient, over one list of cases.

Two backends, both through ``st.warp`` and ``st.sample``: Numba on the CPU, and Triton, on the GPU where there
is one and in its interpreter where not. That one takes 6 to 20 ms for every program: it gets the cases that
are marked ``small``.
"""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any, NamedTuple

import pytest
import torch
from cases import DTYPES, FAMILY_NAMES, PADDINGS, TOLERANCES, close, families, images, padding, thetas

import spatial_transformer as st
from spatial_transformer.coordinates import pixel_axes, span
from spatial_transformer.implementations import operators

CUDA = torch.cuda.is_available()
F64, F32, BF16, F16 = DTYPES
KERNELS = ("nearest", "bilinear", "bicubic")
KINDS = ("Affine", "Projective", "ThinPlateSpline", "LearnedBasis", "grid")  # a family of each, and no family
IN = {2: (6, 9), 3: (4, 3, 5)}
OUT = {2: (7, 5), 3: (3, 4, 2)}

pytestmark = pytest.mark.usefixtures("one_thread", "poisoned")


# The backends


class Backend(NamedTuple):
    name: str
    device: str

    @property
    def interpreted(self) -> bool:
        return self.name == "triton" and self.device == "cpu"

    def kernels(self):
        return operators.kernels("cuda" if self.name == "triton" else "cpu")


@pytest.fixture
def numba():
    pytest.importorskip("numba")
    return Backend("numba", "cpu")


@pytest.fixture
def triton(monkeypatch):
    pytest.importorskip("triton")
    if CUDA:
        return Backend("triton", "cuda")
    from spatial_transformer.implementations import fused_triton

    assert fused_triton.INTERPRETED
    monkeypatch.setattr(operators, "kernels", lambda device_type: fused_triton)
    monkeypatch.setattr(operators, "installed", lambda package: True)
    return Backend("triton", "cpu")


BACKENDS = ("numba", pytest.param("triton", marks=[pytest.mark.gpu] if CUDA else []))


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.getfixturevalue(request.param)


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


@pytest.mark.parametrize(
    ("name", "case"),
    [("numba", case) for case in CASES]
    + [pytest.param("triton", case, marks=[pytest.mark.gpu] if CUDA else []) for case in CASES if case.small],
    ids=str,
)
def test_against_reference(name, case, request):
    backend = request.getfixturevalue(name)
    tensors = given(case, backend.device)
    found = outcome(case, tensors, "fused")
    compare(case, tensors, found)
    output, d_image, d_theta, *_ = found
    assert (output.dtype, d_image.dtype, d_theta.dtype) == (case.dtype, case.dtype, tensors.theta.dtype)
    image = tensors.image
    last = torch.channels_last if case.dims == 2 else torch.channels_last_3d
    if image.is_contiguous(memory_format=last) and not image.is_contiguous():
        assert (output.flatten(0, 1) if case.copies else output).is_contiguous(memory_format=last)
    else:
        assert output.is_contiguous()


@pytest.mark.parametrize("pad", ["zeros", "border"])
@pytest.mark.parametrize("name", ["ThinPlateSpline", "LearnedBasis"])
def test_many_control_points(name, pad, backend):
    """More than a kernel holds at once: 36 and, where that is quick, 100."""
    for lattice in ((6, 6),) if backend.interpreted else ((6, 6), (10, 10)):
        case = Case(name, padding=pad, channels=1, batch=2)
        family = st.ThinPlateSpline(lattice)
        if name == "LearnedBasis":
            family = st.LearnedBasis(lattice, case.out_size, dtype=F64)
        theta = thetas(family, 2, spread=0.05, seed=5)
        cotangent = (images(2, 1, *case.out_size, seed=7) - 0.5) * ~doubtful(case, theta, family, F64)
        tensors = Given(
            images(2, 1, *case.in_size).to(backend.device),
            theta.to(backend.device),
            family.to(backend.device),
            cotangent.to(backend.device),
        )
        compare(case, tensors, outcome(case, tensors, "fused"))


# The identity


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("family_name", [name for name in FAMILY_NAMES if not name.startswith("Learned")])
@pytest.mark.parametrize("size", [(1, 1), (2, 7), (28, 28), (63, 64), (5, 257), (3, 4, 5)])
def test_the_identity_to_the_bit_and_its_gradient(size, family_name, dtype, align_corners, backend):
    """Every sample on a pixel: theta's gradient is that of the right-hand slopes, as the reference's."""
    # Channels innermost, and footprints that are 1, go through code of their own, on the same coordinates:
    # these are tried at some sizes, and each is minutes of compilation.
    layouts = [(1, "contiguous"), (9, "channels_last")]
    readings = [*((kernel, False) for kernel in KERNELS), ("bilinear", 2)]
    if backend.interpreted:
        if size != (2, 7) or family_name not in KINDS or align_corners != (dtype == F32):
            pytest.skip("Triton's interpreter is slow")
        readings = [("bilinear", False), ("bilinear", 1.5)]
    elif size not in ((28, 28), (5, 257), (3, 4, 5)):
        layouts, readings = layouts[:1], [("bilinear", False), ("bicubic", False)]
    for channels, layout in layouts:
        family = families(len(size), size, align_corners, dtype=dtype)[family_name].to(backend.device)
        image = laid_out(images(2, channels, *size, dtype=dtype), layout)
        theta = family.identity(dtype=dtype).expand(2, -1)
        for kernel, antialias in readings:
            options = {"kernel": kernel, "align_corners": align_corners, "antialias": antialias}
            leaf = theta.to(backend.device).requires_grad_()
            output = st.warp(image.to(backend.device), leaf, family, **options, impl="fused")
            assert torch.equal(output.cpu(), image), (size, layout, kernel, antialias)
            cotangent = images(*output.shape, seed=2, dtype=dtype) - 0.5
            (found,) = torch.autograd.grad(output, leaf, cotangent.to(backend.device))
            leaf = theta.clone().cpu().requires_grad_()
            output = st.warp(image, leaf, family.cpu(), **options, impl="reference")
            (expected,) = torch.autograd.grad(output, leaf, cotangent)
            family.to(backend.device)
            scale = cotangent.abs().sum() * max(size)
            close(found.cpu(), expected, (0, 4 * torch.finfo(dtype).eps * scale))


# Outside and nowhere


@pytest.mark.parametrize("padding_name", PADDINGS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_far_outside(kernel, padding_name, backend):
    """Whole images of padding, a hundred to a billion pixels out, along one axis and along all."""
    if backend.interpreted and kernel != "bilinear":
        pytest.skip("Triton's interpreter is slow")
    family, shifts = st.Translation(), [(30.2, 0.0), (0.05, -41.3), (1e4 + 0.23, 333.1), (-1e8, 1e8)]
    theta = torch.tensor(shifts, dtype=F64)
    case = Case("Translation", kernel, padding_name, batch=len(shifts))
    image = images(len(shifts), 2, *IN[2])
    cotangent = images(len(shifts), 2, *OUT[2], seed=3) - 0.5
    tensors = Given(image.to(backend.device), theta.to(backend.device), family, cotangent.to(backend.device))
    found = [part.cpu() for part in outcome(case, tensors, "fused")]
    expected = outcome(case, tensors.exact(), "reference")
    if padding_name in ("zeros", "fill"):
        shown = torch.tensor(padding("fill", 2) if padding_name == "fill" else [0.0, 0.0], dtype=F64)
        close(found[0], shown[:, None, None].expand_as(found[0]), (0, 1e-15))
        assert not found[1].any()
        close(found[2], torch.zeros_like(found[2]), (0, 1e-14))  # a fill's slopes cancel
    # A coordinate of 1e5 pixels is exact to 1e-11; one of 1e9 pixels to 1e-7, of no use to a reflection.
    for one, other in zip(found, expected, strict=True):
        close(one[:3], other[:3], (0, 1e-7))
        assert one.isfinite().all()


BAD = [math.nan, math.inf, -math.inf, 1e30, -1e30, 3e38, 0.0]


@pytest.mark.parametrize("padding_name", PADDINGS)
@pytest.mark.parametrize("family_name", KINDS[:4])
def test_thetas_that_are_no_transform(family_name, padding_name, backend, request):
    """Finite everywhere; the other samples of the batch keep their bits."""
    if backend.device == "cuda":  # where threads otherwise add an image's gradient in any order
        request.getfixturevalue("deterministic")
    bad = [math.nan, math.inf, 3e38] if backend.interpreted else BAD
    if backend.interpreted and padding_name != PADDINGS[KINDS.index(family_name)] != "zeros":
        pytest.skip("Triton's interpreter is slow")
    family = families(2, OUT[2], dtype=F32)[family_name].to(backend.device)
    count = len(bad) + 2
    case = Case(family_name, padding=padding_name, dtype=F32, channels=1)
    image = images(count, 1, *IN[2], dtype=F32).to(backend.device)
    cotangent = images(count, 1, *OUT[2], seed=3, dtype=F32).to(backend.device)
    good = thetas(family, count, dtype=F32)
    ends = [0, -1]
    clean = outcome(case, Given(image[ends], good[ends].to(backend.device), family, cotangent[ends]), "fused")
    for place in (slice(0, 1),) if backend.interpreted else (slice(None), slice(0, 1), slice(-1, None)):
        theta = good.clone()
        for n, value in enumerate(bad):
            theta[1 + n, place] = value
        found = outcome(case, Given(image, theta.to(backend.device), family, cotangent), "fused")
        for tensor in found:
            assert tensor.isfinite().all(), place
        for tensor, other in zip(found[:3], clean[:3], strict=True):
            assert torch.equal(tensor[ends], other), place
        assert not found[2][1].any()  # of NaN


def test_a_grid_with_holes(backend):
    """NaN, infinite and huge coordinates: finite, and the other points keep their bits."""
    for padding_name in PADDINGS:
        case = Case("grid", padding=padding_name, dtype=F32)
        tensors = given(case, backend.device)
        clean = outcome(case, tensors, "fused")
        grid = tensors.theta.clone()
        grid[0, 0, 0, 0], grid[0, 2, 1] = math.nan, math.inf
        grid[0, 3, 4, 1], grid[0, 5, 2, 0] = -math.inf, 3e38
        whole = grid.isfinite().all(-1) & (grid.abs() < 1e30).all(-1)
        found = outcome(case, tensors._replace(theta=grid), "fused")
        assert all(part.isfinite().all() for part in found)
        shown = whole[:, None].expand_as(clean[0])
        assert torch.equal(found[0][shown], clean[0][shown])
        assert torch.equal(found[2][whole], clean[2][whole])


# Transforms that the gradient of the image has to find its way back through

STRANGE = {
    "scale 1/50": [0.02, 0.003, 0.1, -0.002, 0.02, -0.2],
    "scale 50": [50.0, 3.0, 0.3, -2.0, 47.0, 0.1],
    "one axis by 50, the other by 1/50": [50.0, 0.0, 0.1, 0.0, 0.021, 0.3],
    "singular: all zero": [0.0, 0.0, 0.123, 0.0, 0.0, -0.217],
    "singular: one row": [0.0, 0.0, 0.123, 0.4, 0.9, 0.1],
    "singular: rows alike": [0.5, 0.25, 0.1, 1.0, 0.5, -0.03],
    "singular: columns alike": [0.5, 0.5, 0.1, 0.7, 0.7, -0.03],
    "nearly singular": [0.5, 0.25, 0.1, 1.0, 0.5 + 1e-7, -0.03],
    "shear": [1.0, 3.7, 0.1, 0.0, 1.0, 0.05],
    "shear the other way": [0.9, 0.1, 0.1, -4.3, 1.0, 0.05],
    "flip": [-1.0, 0.0, 0.013, 0.0, 1.0, 0.027],
    "turned upside down": [-0.93, 0.01, 0.013, 0.02, -1.1, 0.027],
    "quarter turn": [0.0, -1.0, 0.013, 1.0, 0.0, 0.027],
    "in a far corner": [0.8, 0.1, 1.7, -0.1, 0.9, 1.6],
}
HORIZONS = {
    "across": [1.0, 0.1, 0.1, 0.0, 1.1, 0.05, 1.9, 0.3],
    "along a diagonal": [0.7, 0.1, 0.1, 0.2, 0.8, -0.05, 1.3, 1.4],
    "behind": [0.7, 0.1, 0.1, 0.2, 0.8, -0.05, 3.0, 0.1],
    "near an edge": [1.0, 0.0, 0.03, 0.0, 1.0, 0.02, 0.99, 0.0],
    "singular": [0.5, 0.25, 0.1, 1.0, 0.5, 0.2, 0.3, 0.15],
    "no part of the plane": [0.0, 0.0, 0.1, 0.0, 0.0, 0.2, 1.5, 0.2],
}


def check_strange(backend, family_name, numbers, kernel, pad, dtype, in_size=(9, 12), out_size=(11, 7)):
    theta = torch.tensor([numbers], dtype=dtype)
    case = Case(family_name, kernel, pad, dtype, in_size, out_size, channels=1)
    family = families(case.dims, out_size, dtype=dtype)[family_name]
    cotangent = images(1, 1, *out_size, seed=3, dtype=dtype) + 0.1
    positions = family.double().pixels(theta.double(), in_size, out_size, False)
    doubt = torch.zeros((), dtype=torch.bool)
    for position in positions:
        off = position - 0.5 if kernel == "nearest" else position
        slack = 32 * torch.finfo(dtype).eps * (position.abs() + 60 * max(in_size))
        doubt = doubt | ((off - off.round()).abs() < slack)
    assert doubt.double().mean() < 0.25
    cotangent = cotangent * ~doubt[:, None]
    tensors = Given(
        images(1, 1, *in_size, dtype=dtype).to(backend.device),
        theta.to(backend.device),
        family.to(device=backend.device, dtype=dtype),
        cotangent.to(backend.device),
    )
    found = [part.cpu().double() for part in outcome(case, tensors, "fused")]
    expected = outcome(case, tensors.exact(), "reference")
    eps, reach = torch.finfo(dtype).eps, 60 * max(in_size)
    most = max(1.0, expected[1].abs().max().item())
    if kernel != "nearest":
        close(found[0], expected[0], (0, 8 * eps * reach))
    # Image: cotangents times weights. Theta: a slope's error for every pixel, times its distance.
    close(found[1], expected[1], (0, 8 * eps * reach * most))
    steep = max(1.0, expected[2].abs().max().item())
    close(found[2], expected[2], (0, 64 * eps * reach * steep))
    return expected[1].any()


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("name", STRANGE)
def test_strange_affine_transforms(name, dtype, backend):
    for kernel, pad in itertools.product(KERNELS, ("zeros", "border")):
        if not backend.interpreted or (kernel == "bilinear" and pad == "zeros"):
            assert check_strange(backend, "Affine", STRANGE[name], kernel, pad, dtype)


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("name", HORIZONS)
def test_horizons(name, dtype, backend):
    for kernel, pad in itertools.product(KERNELS, ("zeros", "border")):
        if not backend.interpreted or (kernel == "bilinear" and pad == "zeros"):
            assert check_strange(backend, "Projective", HORIZONS[name], kernel, pad, dtype)


@pytest.mark.parametrize(
    "numbers",
    [
        [0.02, 0, 0, 0.1, 0, 0.03, 0, 0.2, 0, 0, 0.02, -0.3],
        [9.0, 1, 0, 0.1, 0, 11.0, 2, 0.2, 0.5, 0, 10.0, -0.3],
        [0.5, 0.25, 0.3, 0.1, 1.0, 0.5, 0.6, 0.2, 0.1, 0.2, 0.9, 0.03],  # singular
        [0, 0, -1.0, 0.013, 0, 1.0, 0, 0.027, 1.0, 0, 0, 0.031],
        [1.0, 1.7, 0.2, 0.1, 0, 1.0, -2.3, 0.05, 0, 0, -0.9, 0.02],
    ],
    ids=["small", "large", "singular", "turned", "sheared"],
)
def test_strange_transforms_in_3d(numbers, backend):
    for kernel in ("bilinear",) if backend.interpreted else KERNELS:
        assert check_strange(backend, "Affine", numbers, kernel, "zeros", F64, (4, 3, 5), (3, 5, 7))


@pytest.mark.parametrize("kernel", KERNELS)
def test_many_random_transforms(kernel, numba):
    """Random matrices of every size, with and without a horizon."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(40):
        scale = torch.exp(torch.empty(()).uniform_(-4, 4, generator=generator)).item()
        numbers = torch.randn(8, generator=generator).double() * scale
        numbers[6:] = torch.randn(2, generator=generator).double() / 2
        check_strange(numba, "Projective", numbers.tolist(), kernel, "zeros", F64)
        check_strange(numba, "Affine", numbers[:6].tolist(), kernel, "zeros", F64)


# T transforms, what is wanted, and the same bits again


@pytest.mark.parametrize("name", KINDS)
def test_copies_are_calls_of_their_own(name, backend):
    """An image's T outputs are those of T calls to the bit, and its gradient is their sum."""
    case = Case(name, dtype=F32, batch=2, copies=3, channels=1, padding="border")
    tensors = given(case, backend.device)
    together = outcome(case, tensors, "fused")
    alone = [
        outcome(
            case._replace(copies=0),
            tensors._replace(theta=tensors.theta[:, t], cotangent=tensors.cotangent[:, t]),
            "fused",
        )
        for t in range(3)
    ]
    for t, one in enumerate(alone):
        assert torch.equal(together[0][:, t], one[0])
        close(together[2][:, t], one[2], (1e-5, 1e-5))
    close(together[1], sum(one[1] for one in alone), (1e-5, 1e-5))


@pytest.fixture
def deterministic():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("name", KINDS)
def test_thetas_of_any_strides(name, backend, deterministic):
    """Expanded (one for the batch), transposed and strided thetas, which are not copied on the way."""
    case = Case(name, batch=2, channels=1)
    tensors = given(case, backend.device)
    strided = torch.stack([tensors.theta, tensors.theta + 1], -1)[..., 0]
    turned = tensors.theta.transpose(0, -1).contiguous().transpose(0, -1)
    expanded = tensors.theta[:1].expand_as(tensors.theta)
    for theta in (expanded,) if backend.interpreted else (expanded, strided, turned):
        plain = outcome(case, tensors._replace(theta=theta.contiguous()), "fused")
        for found, expected in zip(outcome(case, tensors._replace(theta=theta), "fused"), plain, strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("pad", ["zeros", "border"])
@pytest.mark.parametrize("name", KINDS)
def test_only_what_is_wanted(name, pad, backend, monkeypatch):
    """The kernels are told which gradients are wanted, compute those alone, and give None for the others."""
    case = Case(name, padding=pad, dtype=F32, channels=1)
    tensors = given(case, backend.device)
    asked = []
    kernels = backend.kernels()

    def watched(*arguments):
        asked.append((arguments, kernels.backward(*arguments)))
        return asked[-1][1]

    class Watched:
        forward, backward = staticmethod(kernels.forward), staticmethod(watched)

    monkeypatch.setattr(operators, "kernels", lambda device_type: Watched)
    every = outcome(case, tensors, "fused")
    learned = [] if tensors.family is None else list(tensors.family.parameters())
    leaves = [tensors.image.detach(), tensors.theta.detach(), *(p.detach() for p in learned)]
    for wanted in itertools.product((False, True), repeat=len(leaves)):
        if not any(wanted):
            continue
        image, theta = (leaf.requires_grad_(want) for leaf, want in zip(leaves[:2], wanted[:2], strict=True))
        for parameter, want in zip(learned, wanted[2:], strict=True):
            parameter.requires_grad_(want)
        asked.clear()
        output = called(case, tensors, "fused", image, theta)
        chosen = [leaf for leaf, want in zip([image, theta, *learned], wanted, strict=True) if want]
        gradients = torch.autograd.grad(output, chosen, tensors.cotangent)
        ((arguments, found),) = asked
        assert list(arguments[6]) == [*wanted, False][:3]
        assert [gradient is not None for gradient in found] == list(arguments[6])
        expected = [part for part, want in zip(every[1:], wanted, strict=True) if want]
        for one, other in zip(gradients, expected, strict=True):
            close(one, other, (1e-5, 1e-5))


def test_nothing_is_kept_where_no_gradient_is_wanted(backend):
    case = Case(dtype=F32)
    tensors = given(case, backend.device)
    assert called(case, tensors, "fused", tensors.image, tensors.theta).grad_fn is None
    leaf = tensors.theta.detach().requires_grad_()
    with torch.no_grad():
        assert called(case, tensors, "fused", tensors.image, leaf).grad_fn is None


# Paths by which an image's gradient is added up: gathered, and scattered for each reason there is.
PATHS = [
    Case("Affine"),
    Case("Projective"),
    Case("Affine", padding="border"),
    Case("Affine", padding="circular", kernel="bicubic"),
    Case("ThinPlateSpline"),
    Case("LearnedBasis", padding="reflection"),
    Case("grid", padding="fill"),
    Case("Affine", antialias=2, padding="border"),
    Case("Affine", in_size=IN[3], out_size=OUT[3], padding="border"),
    Case("Projective", in_size=IN[3], out_size=OUT[3]),
]


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("case", PATHS, ids=str)
def test_the_same_bits_in_twenty_runs(case, dtype, backend, deterministic):
    """Strong zooming out, so that many output pixels add to the same input pixel; as right as ever."""
    if backend.interpreted:
        if dtype == BF16:
            pytest.skip("Triton's interpreter is slow")
        case, runs = case._replace(dtype=dtype, channels=1), 2
    else:
        size = (200, 150) if case.dims == 2 else (20, 30, 40)
        case, runs = case._replace(dtype=dtype, out_size=size, batch=3, copies=2), 20
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        tensors = given(case, backend.device)
        first = outcome(case, tensors, "fused")
        compare(case, tensors, first)
        for _ in range(runs - 1):
            for one, other in zip(outcome(case, tensors, "fused"), first, strict=True):
                assert torch.equal(one, other)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("case", PATHS, ids=str)
def test_threads_do_not_change_the_bits(case, numba):
    """What is summed is summed in the order of the shapes alone."""
    case = case._replace(dtype=F32, out_size=(200, 150) if case.dims == 2 else (20, 30, 40), batch=3)
    tensors = given(case)
    results, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 4, 7):
            torch.set_num_threads(threads)
            results.append(outcome(case, tensors, "fused"))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        for name, one, other in zip(("output", "d image", "d theta"), result, results[0], strict=False):
            assert torch.equal(one, other), name


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e30])
def test_deterministic_sums_at_every_scale(scale, backend, deterministic):
    """Whole numbers must hold cotangents of any size, zero among them."""
    case = Case(padding="border", dtype=F32, channels=1)
    tensors = given(case, backend.device)
    expected = outcome(case, tensors.exact(), "reference")[1]
    found = outcome(case, tensors._replace(cotangent=tensors.cotangent * scale), "fused")[1]
    close(found.cpu().double() / scale, expected, (1e-5, 1e-5))
    nothing = outcome(case, tensors._replace(cotangent=tensors.cotangent * 0), "fused")[1]
    assert not nothing.any()


def test_a_kernel_of_ones_own_is_refused(backend):
    kernel = st.Kernel(lambda d: torch.exp(-d * d), radius=1)
    image, theta = (
        images(1, 1, 4, 4).to(backend.device),
        st.Affine().identity(dtype=F64)[None].to(backend.device),
    )
    with pytest.raises(RuntimeError, match=r'impl="fused" cannot run here: .* take no kernel of one\'s own'):
        st.warp(image, theta, st.Affine(), kernel=kernel, impl="fused")
    assert torch.equal(
        st.warp(image, theta, st.Affine(), kernel=kernel),
        st.warp(image, theta, st.Affine(), kernel=kernel, impl="torch"),
    )
    fill = torch.tensor([0.5], requires_grad=True, device=backend.device)
    with pytest.raises(RuntimeError, match="no gradient to the padding's value"):
        st.warp(image, theta, st.Affine(), padding=fill, impl="fused")
