"""``reference`` is the paper: equations 1 to 7, 9 and 10 as nested loops; and ``torch`` is ``reference``."""

from __future__ import annotations

import itertools

import equations
import numpy as np
import pytest
import torch
from cases import (
    FAMILY_NAMES,
    IMPLEMENTATIONS,
    KERNELS,
    PADDINGS,
    SIZES,
    TOLERANCES,
    close,
    families,
    images,
    kernel,
    padding,
    thetas,
)

import spatial_transformer as st

OUT = {2: (4, 3), 3: (2, 3, 2)}
EXACT = TOLERANCES[torch.float64]


def loops(image, matrix, out_size, kernel_name, padding_name, align_corners):
    """One image [C, *in] through one matrix, by equations 1 (10), 3 and the kernel's. [C, *out]"""
    in_size = image.shape[1:]
    index = {
        "border": equations.border,
        "circular": equations.circular,
        "reflection": equations.reflection(align_corners),
    }.get(padding_name)
    reach = 0 if padding_name == "zeros" else 40  # as far as the thetas of these tests look
    result = np.zeros((image.shape[0], *out_size))
    for place in itertools.product(*[range(n) for n in out_size]):
        target = [
            equations.normalised(i, n, align_corners)
            for i, n in zip(reversed(place), reversed(out_size), strict=True)
        ]
        source = equations.transformed(matrix, target)
        point = [equations.pixel(x, n, align_corners) for x, n in zip(source, reversed(in_size), strict=True)]
        near = min(reach, 3 + int(max(max(-x, x - n) for x, n in zip(point, reversed(in_size), strict=True))))
        for channel in range(image.shape[0]):
            result[(channel, *place)] = equations.sampled(
                image[channel],
                point,
                equations.KERNELS[kernel_name],
                value_outside=padding("fill", image.shape[0])[channel] if padding_name == "fill" else 0.0,
                reach=max(near, 0) if padding_name != "zeros" else 0,
                index=index,
            )
    return result


def affine_and_projective(dims):
    """Matrices that crop, turn, shear, look outside and (the last) divide by w."""
    generator = np.random.default_rng(dims)
    affine = np.eye(dims, dims + 1) + generator.normal(0, 0.4, (dims, dims + 1))
    projective = np.eye(dims + 1) + generator.normal(0, 0.1, (dims + 1, dims + 1))
    projective[-1, -1] = 1.0
    return [
        (st.Affine(dims), affine, affine.ravel()),
        (st.Projective(dims), projective, projective.ravel()[:-1]),
    ]


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_name", PADDINGS)
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("dims", [2, 3])
def test_values_are_the_loops(dims, kernel_name, padding_name, align_corners, impl):
    """Equations 1, 3, 4, 5 (2D), 9, 10 (3D), through every kernel and padding."""
    channels = 2 if dims == 2 else 1
    image = images(1, channels, *SIZES[dims])
    for family, matrix, theta in affine_and_projective(dims):
        expected = loops(image[0].numpy(), matrix, OUT[dims], kernel_name, padding_name, align_corners)
        found = st.warp(
            image,
            torch.tensor(theta)[None],
            family,
            size=OUT[dims],
            kernel=kernel(kernel_name),
            padding=padding(padding_name, channels),
            align_corners=align_corners,
            impl=impl,
        )
        close(found[0], torch.from_numpy(expected), EXACT)


@pytest.mark.parametrize("dims", [2, 3])
def test_attention_is_equation_2(dims):
    numbers = [0.6, 0.1, -0.2, 0.3][: dims + 1]
    found = st.Attention(dims).matrix(torch.tensor(numbers))
    close(found, torch.tensor(equations.attention(*numbers)), (0, 1e-7))


def points_and_pixels(dims):
    """A grid of one output pixel at a place away from whole pixels."""
    generator = np.random.default_rng(7)
    size = SIZES[dims]
    for _ in range(6):
        point = [generator.uniform(-1.4, n + 0.4) for n in reversed(size)]
        coordinates = [(2 * x + 1) / n - 1 for x, n in zip(point, reversed(size), strict=True)]
        yield point, torch.tensor(coordinates, dtype=torch.float64).reshape(*[1] * (dims + 1), dims)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dims", [2, 3])
def test_derivatives_are_equations_6_and_7(dims, impl):
    image = images(1, 1, *SIZES[dims]).requires_grad_()
    for point, grid in points_and_pixels(dims):
        grid.requires_grad_()
        output = st.sample(image, grid, impl=impl)
        d_image, d_grid = torch.autograd.grad(output.sum(), (image, grid))
        close(d_image[0, 0], torch.from_numpy(equations.d_pixel(SIZES[dims], point)), EXACT)
        array = image.detach()[0, 0].numpy()
        # a coordinate of 2 is a length of pixels
        slopes = [
            equations.d_position(array, point, axis) * n / 2 for axis, n in enumerate(reversed(SIZES[dims]))
        ]
        close(d_grid.flatten(), torch.tensor(slopes, dtype=torch.float64), (0, 1e-10))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("align_corners", [False, True])
def test_at_integers_the_slope_is_the_right_hand_one(dims, align_corners, impl):
    """As ``coordinates`` says: U[m + 1] - U[m], not equation 7 to the letter."""
    size = SIZES[dims]
    image = images(1, 1, *size)
    family = st.Translation(dims)
    theta = family.identity(dtype=torch.float64)[None].requires_grad_()
    output = st.warp(image, theta, family, align_corners=align_corners, impl=impl)
    for axis, length in enumerate(reversed(size)):
        per_pixel = (length - 1 if align_corners else length) / 2
        right = torch.cat([image, torch.zeros_like(image.narrow(-1 - axis, 0, 1))], -1 - axis)
        expected = (right.narrow(-1 - axis, 1, length) - image) * per_pixel
        for place in itertools.product(*[range(n) for n in size]):
            (slope,) = torch.autograd.grad(output[(0, 0, *place)], theta, retain_graph=True)
            assert slope[0, axis].item() == pytest.approx(expected[(0, 0, *place)].item(), abs=1e-9)


def test_equation_7_to_the_letter_is_no_derivative_there():
    """The reason for the convention: a constant image has a slope by it."""
    flat = np.ones((4, 4))
    assert equations.d_position(flat, [1.0, 2.0], 0) == 1.0
    assert equations.d_position(flat, [1.5, 2.0], 0) == 0.0


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_nearest_rounds_halves_up(impl):
    """Equation 4, where PyTorch rounds to even: halving an image puts every sample on a half."""
    image = images(1, 1, 8, 6)
    theta = st.Affine().identity(dtype=torch.float64)[None]
    found = st.warp(image, theta, st.Affine(), size=(4, 3), kernel="nearest", impl=impl)
    assert torch.equal(found, image[..., 1::2, 1::2])


def test_just_below_a_half_rounds_down():
    """0.49999999999999994 + 0.5 is 1.0 in floats: equation 4 means the sum before rounding."""
    position = torch.tensor([0.49999999999999994, 0.5, -0.5, 1.5], dtype=torch.float64)
    first, _ = st.kernels.KERNELS["nearest"].plain_taps(position, axis=0)
    assert first.tolist() == [0.0, 1.0, 0.0, 2.0]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_name", PADDINGS)
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("family_name", FAMILY_NAMES)
@pytest.mark.parametrize("dims", [2, 3])
def test_torch_is_reference(dims, family_name, kernel_name, padding_name, align_corners):
    """Output and all gradients, under one random cotangent, for T = 2, with samples far outside."""
    family = families(dims, OUT[dims], align_corners)[family_name]
    image = images(2, 2, *SIZES[dims])
    theta = torch.stack([thetas(family, 2), thetas(family, 2, spread=0.7, seed=1)], 1)
    answers = []
    for impl in ("reference", "torch"):
        leaves = (image.clone().requires_grad_(), theta.clone().requires_grad_(), *family.parameters())
        output = st.warp(
            leaves[0],
            leaves[1],
            family,
            size=OUT[dims],
            kernel=kernel(kernel_name),
            padding=padding(padding_name, 2),
            align_corners=align_corners,
            impl=impl,
        )
        assert output.shape == (2, 2, 2, *OUT[dims])
        cotangent = images(*output.shape, seed=5)
        answers.append((output, *torch.autograd.grad(output, leaves, cotangent)))
    for expected, found in zip(*answers, strict=True):
        close(found, expected, (1e-10, 1e-10))
