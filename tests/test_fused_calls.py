"""One call of the fused kernels beside another: T transforms are T calls, and the same bits come again.

On both backends, as in ``test_fused``.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from cases import close, images
from fused_cases import BF16, F32, F64, IN, KINDS, OUT, Case, called, compare, given, outcome

import spatial_transformer as st
from spatial_transformer.implementations import operators

pytestmark = pytest.mark.usefixtures("one_thread", "poisoned")


# T transforms, and what is wanted


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
