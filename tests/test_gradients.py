"""Derivatives: first and second order, forward and reverse mode, under ``torch.func``."""

from __future__ import annotations

import pytest
import torch
from cases import (
    FAMILY_NAMES,
    IMPLEMENTATIONS,
    KERNELS,
    PADDINGS,
    close,
    families,
    images,
    kernel,
    padding,
    thetas,
)
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

import spatial_transformer as st

IN = {2: (4, 3), 3: (3, 2, 3)}
OUT = {2: (2, 3), 3: (2, 2, 1)}


def differentiable(dims, family_name, kernel_name, padding_name, impl):
    """A function of image, theta and the family's parameters, and a point to differentiate it at."""
    family = families(dims, OUT[dims])[family_name]
    options = {
        "size": OUT[dims],
        "kernel": kernel(kernel_name),
        "padding": padding(padding_name, 2),
        "impl": impl,
    }
    image = images(1, 2, *IN[dims])
    theta = thetas(family, 1, spread=0.15, seed=3)
    learned = [parameter.detach().clone() for parameter in family.parameters()]

    class Call(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.family = family

        def forward(self, image, theta):
            return st.warp(image, theta, self.family, **options)

    call = Call()

    def function(image, theta, *learned):
        named = dict(zip([name for name, _ in call.named_parameters()], learned, strict=True))
        return functional_call(call, named, (image, theta))

    return function, (image, theta, *learned)


def tracked(inputs):
    return tuple(value.clone().requires_grad_() for value in inputs)


def names_in_graph(output):
    names, waiting = set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None:
            names.add(node.name())
            waiting += [parent for parent, _ in node.next_functions]
    return names


@pytest.mark.parametrize("padding_name", PADDINGS)
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("family_name", FAMILY_NAMES)
@pytest.mark.parametrize(("dims", "impl"), [(2, "reference"), (2, "torch"), (3, "reference"), (3, "torch")])
def test_gradcheck(dims, impl, family_name, kernel_name, padding_name):
    """In image, theta and learned basis."""
    function, inputs = differentiable(dims, family_name, kernel_name, padding_name, impl)
    # fast_mode compares random projections of the same Jacobians.
    assert torch.autograd.gradcheck(function, tracked(inputs), fast_mode=True)


@pytest.mark.parametrize("padding_name", ["zeros", "border", "fill"])
@pytest.mark.parametrize("kernel_name", ["bilinear", "bicubic", "Kernel"])
@pytest.mark.parametrize("family_name", FAMILY_NAMES)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_gradgradcheck(impl, family_name, kernel_name, padding_name):
    function, inputs = differentiable(2, family_name, kernel_name, padding_name, impl)
    assert torch.autograd.gradgradcheck(function, tracked(inputs), fast_mode=True)


@pytest.mark.parametrize("padding_name", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(("dims", "kernel_name"), [(2, "bilinear"), (2, "bicubic"), (3, "bilinear")])
def test_where_grid_sample_is_differentiable_once(dims, kernel_name, padding_name, monkeypatch):
    """The way round torch 2.11, taken on any version: first and second derivatives, each if wanted."""
    from spatial_transformer.implementations import torch_native

    monkeypatch.setattr(torch_native, "TWICE_DIFFERENTIABLE", False)
    function, inputs = differentiable(dims, "Affine", kernel_name, padding_name, "torch")
    assert "GridSampleBackward" in names_in_graph(function(*tracked(inputs)))
    assert torch.autograd.gradcheck(function, tracked(inputs))
    assert torch.autograd.gradgradcheck(function, tracked(inputs), fast_mode=True)
    for wanted in (0, 1):
        leaves = [value.clone().requires_grad_(number == wanted) for number, value in enumerate(inputs)]
        (found,) = torch.autograd.grad(function(*leaves).sum(), leaves[wanted])
        (twice,) = torch.autograd.grad(function(*leaves).sum(), leaves[wanted], create_graph=True)
        close(found, twice, (1e-9, 1e-10))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("kernel_name", ["bilinear", "bicubic"])
def test_gradgradcheck_in_3d(impl, kernel_name):
    function, inputs = differentiable(3, "Affine", kernel_name, "zeros", impl)
    assert torch.autograd.gradgradcheck(function, tracked(inputs), fast_mode=True)


def test_kernel_parameters_get_gradients():
    class Gaussian(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.width = torch.nn.Parameter(torch.tensor(0.8, dtype=torch.float64))

        def forward(self, distance):
            return torch.exp(-((distance / self.width) ** 2))

    wide, narrow = Gaussian(), Gaussian()
    own = st.Kernel([wide, narrow], radius=2)
    image, theta = images(1, 1, 4, 5), thetas(st.Affine(), 1)

    def function(width_x, width_y):
        named = {"functions.0.width": width_x, "functions.1.width": width_y}

        class Call(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.functions = own.functions

            def forward(self):
                return st.warp(image, theta, st.Affine(), kernel=own)

        return functional_call(Call(), named, ())

    assert [name for name, _ in own.named_parameters()] == ["functions.0.width", "functions.1.width"]
    widths = tuple(torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in (0.8, 0.7))
    assert torch.autograd.gradcheck(function, widths)
    first, second = torch.autograd.grad(function(*widths).square().sum(), widths)
    assert first.abs() > 1e-3
    assert second.abs() > 1e-3
    assert not torch.isclose(first, second)  # one for each axis


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("family_name", FAMILY_NAMES)
@pytest.mark.parametrize("dims", [2, 3])
def test_function_transforms(dims, family_name, impl):
    """jvp, jacfwd, jacrev, hessian, vmap, vmap(grad), each against plain reverse mode."""
    function, inputs = differentiable(dims, family_name, "bilinear", "zeros", impl)
    reference, _ = differentiable(dims, family_name, "bilinear", "zeros", "reference")
    theta = inputs[1]

    def of_theta(theta):
        return function(inputs[0], theta, *inputs[2:])

    expected = torch.autograd.functional.jacobian(lambda t: reference(inputs[0], t, *inputs[2:]), theta)
    close(jacrev(of_theta)(theta), expected, (1e-9, 1e-10))
    close(jacfwd(of_theta)(theta), expected, (1e-9, 1e-10))
    tangent = images(*theta.shape, seed=9)
    value, push = jvp(of_theta, (theta,), (tangent,))
    close(value, reference(*inputs), (0, 1e-12))
    close(push, torch.einsum("...np,np->...", expected, tangent), (1e-9, 1e-10))

    def loss(theta):
        return of_theta(theta).square().sum()

    second = torch.autograd.functional.hessian(
        lambda t: reference(inputs[0], t, *inputs[2:]).square().sum(), theta
    )
    close(hessian(loss)(theta), second, (1e-8, 1e-9))

    many = torch.stack([theta, theta + 0.05, theta - 0.03])
    close(vmap(of_theta)(many), torch.stack([of_theta(t) for t in many]), (0, 1e-12))
    close(vmap(grad(loss))(many), torch.stack([grad(loss)(t) for t in many]), (1e-9, 1e-10))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_transforms_of_the_image(impl):
    """The same in the image, and vmap over both with the mapped axis inside."""
    theta, family = thetas(st.Affine(), 3), st.Affine()
    image = images(3, 2, 4, 3)

    def one(image, theta):
        return st.warp(image[None], theta[None], family, impl=impl)[0]

    batched = st.warp(image, theta, family, impl="reference")
    close(vmap(one)(image, theta), batched, (0, 1e-12))
    close(
        vmap(one, in_dims=(3, None))(image.permute(1, 2, 3, 0), theta[0])[1],
        one(image[1], theta[0]),
        (0, 1e-12),
    )
    expected = torch.autograd.functional.jacobian(lambda u: one(u, theta[0]), image[0])
    for transform in (jacfwd, jacrev):
        close(transform(one)(image[0], theta[0]), expected, (0, 1e-12))

    def loss(image, theta):
        return one(image, theta).square().sum()

    per_sample = vmap(grad(loss, argnums=(0, 1)))(image, theta)
    whole = torch.func.grad(
        lambda u, t: st.warp(u, t, family, impl="reference").square().sum(), argnums=(0, 1)
    )
    for found, wanted in zip(per_sample, whole(image, theta), strict=True):
        close(found, wanted, (1e-9, 1e-10))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_forward_mode_level(impl):
    """Dual numbers outside ``torch.func``."""
    from torch.autograd import forward_ad

    image, theta = images(1, 2, 4, 3), thetas(st.Affine(), 1)
    tangent = images(1, 6, seed=2)
    with forward_ad.dual_level():
        output = st.warp(image, forward_ad.make_dual(theta, tangent), st.Affine(), impl=impl)
        push = forward_ad.unpack_dual(output).tangent
    expected = torch.autograd.functional.jvp(lambda t: st.warp(image, t, st.Affine()), theta, tangent)[1]
    close(push, expected, (1e-9, 1e-10))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_gradient_of_zero_is_not_none(impl):
    """nearest has slope zero: a localiser under it trains nowhere, but does not break the training loop."""
    theta = thetas(st.Affine(), 1).requires_grad_()
    st.warp(images(1, 1, 4, 4), theta, st.Affine(), kernel="nearest", impl=impl).sum().backward()
    assert torch.equal(theta.grad, torch.zeros_like(theta))
