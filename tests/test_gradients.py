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


def differentiable(dims, family_name, kernel_name, padding_name, impl, *, antialias=False, copies=None):
    """A function of image, theta and the family's parameters, and a point to differentiate it at.

    One image and one theta, or with ``copies`` two images and so many thetas of each.
    """
    family = families(dims, OUT[dims])[family_name]
    options = {
        "size": OUT[dims],
        "kernel": kernel(kernel_name),
        "padding": padding(padding_name, 2),
        "antialias": antialias,
        "impl": impl,
    }
    batch = 1 if copies is None else 2
    image = images(batch, 2, *IN[dims])
    theta = thetas(family, batch * (copies or 1), spread=0.15, seed=3)
    if copies is not None:
        theta = theta.unflatten(0, (batch, copies))
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
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dims", [2, 3])
def test_gradcheck(dims, impl, family_name, kernel_name, padding_name):
    """In image, theta and learned basis."""
    function, inputs = differentiable(dims, family_name, kernel_name, padding_name, impl)
    # fast_mode compares random projections of the same Jacobians.
    assert torch.autograd.gradcheck(function, tracked(inputs), fast_mode=True)


@pytest.mark.parametrize("padding_name", PADDINGS)
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


@pytest.mark.parametrize("padding_name", PADDINGS)
@pytest.mark.parametrize("kernel_name", ["bilinear", "bicubic"])
@pytest.mark.parametrize("family_name", ["Affine", "ThinPlateSpline"])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_gradgradcheck_in_3d(impl, family_name, kernel_name, padding_name):
    function, inputs = differentiable(3, family_name, kernel_name, padding_name, impl)
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


def check_function_transforms(function, reference, inputs):
    """jvp, jacfwd, jacrev, hessian, vmap, vmap(grad) in theta; gives the Jacobian and Hessian they match.

    Those are the reference's in plain reverse mode; what is mapped is compared with single calls.
    """
    image, theta, *learned = inputs

    def of_theta(theta):
        return function(image, theta, *learned)

    def loss(theta):
        return of_theta(theta).square().sum()

    def true_loss(theta):
        return reference(image, theta, *learned).square().sum()

    first = torch.autograd.functional.jacobian(lambda t: reference(image, t, *learned), theta)
    close(jacrev(of_theta)(theta), first, (1e-9, 1e-10))
    close(jacfwd(of_theta)(theta), first, (1e-9, 1e-10))
    tangent = images(*theta.shape, seed=9)
    value, push = jvp(of_theta, (theta,), (tangent,))
    close(value, reference(*inputs), (0, 1e-12))
    close(push, torch.tensordot(first, tangent, dims=theta.ndim), (1e-9, 1e-10))
    second = torch.autograd.functional.hessian(true_loss, theta)
    close(hessian(loss)(theta), second, (1e-8, 1e-9))

    many = torch.stack([theta, theta + 0.05, theta - 0.03])
    close(vmap(of_theta)(many), torch.stack([of_theta(t) for t in many]), (0, 1e-12))
    single = [torch.autograd.functional.jacobian(true_loss, t) for t in many]
    close(vmap(grad(loss))(many), torch.stack(single), (1e-9, 1e-10))
    return first, second


def differences(function, point, step=1e-5):
    """The Jacobian by central differences, [*output, *point]."""
    moves = step * torch.eye(point.numel(), dtype=point.dtype).reshape(-1, *point.shape)
    columns = [(function(point + move) - function(point - move)) / (2 * step) for move in moves]
    return torch.stack(columns, dim=-1).unflatten(-1, point.shape)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("family_name", FAMILY_NAMES)
@pytest.mark.parametrize("dims", [2, 3])
def test_function_transforms(dims, family_name, impl):
    function, inputs = differentiable(dims, family_name, "bilinear", "zeros", impl)
    reference, _ = differentiable(dims, family_name, "bilinear", "zeros", "reference")
    check_function_transforms(function, reference, inputs)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("dims", "family_name", "kernel_name", "padding_name", "others"),
    [
        (2, "Affine", "bicubic", "reflection", {}),
        (2, "ThinPlateSpline", "bicubic", "fill", {}),
        (2, "Projective", "bilinear", "circular", {}),
        (2, "Affine", "Kernel", "border", {}),
        (2, "Affine", "bilinear", "fill", {"copies": 3}),
        (2, "ThinPlateSpline", "bicubic", "reflection", {"copies": 2}),
        (2, "Affine", "bilinear", "zeros", {"antialias": 3}),
        (2, "Projective", "bicubic", "fill", {"antialias": 3}),
        (2, "ThinPlateSpline", "bilinear", "reflection", {"antialias": 3, "copies": 2}),
        (3, "Affine", "bicubic", "fill", {}),
        (3, "Affine", "bilinear", "reflection", {"antialias": 2, "copies": 2}),
    ],
)
def test_function_transforms_of_every_reading(dims, family_name, kernel_name, padding_name, others, impl):
    """Other kernels and paddings, anti-aliasing, several transforms an image; and reverse mode itself."""
    reading = (dims, family_name, kernel_name, padding_name)
    function, inputs = differentiable(*reading, impl, **others)
    reference, _ = differentiable(*reading, "reference", **others)
    first, second = check_function_transforms(function, reference, inputs)
    image, theta, *learned = inputs

    def gradient(theta):
        theta = theta.clone().requires_grad_()
        return torch.autograd.grad(reference(image, theta, *learned).square().sum(), theta)[0]

    # Differences over 1e-5 are exact to some 1e-10 times the third derivative, and to 1e-16 / 1e-5.
    close(first, differences(lambda t: reference(image, t, *learned), theta), (1e-6, 1e-7))
    close(second, differences(gradient, theta), (1e-6, 1e-6))


@pytest.mark.parametrize("options", [{"kernel": "bicubic", "padding": "reflection"}, {"antialias": 2}])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_maps_over_images_and_thetas(impl, options):
    """vmap over image, theta or both, in whichever axis, and its gradients, against single calls."""
    family, copies = st.Affine(), 2
    image = images(3, 2, 4, 3)
    theta = thetas(family, 3 * copies).unflatten(0, (3, copies))

    def one(image, theta):
        return st.warp(image[None], theta[None], family, size=(2, 3), impl=impl, **options)[0]

    def loss(image, theta):
        return one(image, theta).square().sum()

    def plain(image, theta):
        return st.warp(image[None], theta[None], family, size=(2, 3), impl="reference", **options)[0]

    pairs = list(zip(image, theta, strict=True))
    close(vmap(one)(image, theta), torch.stack([plain(*pair) for pair in pairs]), (0, 1e-12))
    close(
        vmap(one, in_dims=(None, 2))(image[0], theta.permute(1, 2, 0)),
        torch.stack([plain(image[0], t) for t in theta]),
        (0, 1e-12),
    )
    close(
        vmap(one, in_dims=(1, None))(image.transpose(0, 1), theta[0]),
        torch.stack([plain(u, theta[0]) for u in image]),
        (0, 1e-12),
    )
    found = vmap(grad(loss, argnums=(0, 1)))(image, theta)
    for u, t, *gradients in zip(image, theta, *found, strict=True):
        leaves = tracked((u, t))
        wanted = torch.autograd.grad(plain(*leaves).square().sum(), leaves)
        for gradient, other in zip(gradients, wanted, strict=True):
            close(gradient, other, (1e-9, 1e-10))


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
