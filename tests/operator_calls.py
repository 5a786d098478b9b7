"""What the tests of the operators share: calls of the fused kernels, and modules that make them."""

from __future__ import annotations

import torch
from cases import families, images, padding, thetas

import spatial_transformer as st

IN, OUT = {2: (6, 5), 3: (3, 4, 3)}, {2: (4, 7), 3: (2, 3, 4)}
F64, F32 = torch.float64, torch.float32


def a_call(
    name="Affine", dims=2, *, kernel="bilinear", pad="zeros", dtype=F64, copies=None, antialias=False, batch=2
):
    """Image, theta, family and the options of a call."""
    family = families(dims, OUT[dims], dtype=dtype)[name]
    image = images(batch, 2, *IN[dims], dtype=dtype)
    theta = thetas(family, batch * (copies or 1), spread=0.15, seed=3, dtype=dtype)
    if copies:
        theta = theta.unflatten(0, (batch, copies))
    options = {"size": OUT[dims], "kernel": kernel, "padding": padding(pad, 2), "antialias": antialias}
    return image, theta, family, options


def gradients(output, leaves):
    cotangent = images(*output.shape, seed=7, dtype=output.dtype) - 0.5
    return torch.autograd.grad(output, leaves, cotangent)


def transformer(name, dims, options, impl="fused"):
    torch.manual_seed(0)
    family = families(dims, IN[dims], dtype=F32)[name]
    module = st.SpatialTransformer(st.DenseLocaliser(2, IN[dims], hidden=(4,)), family, impl=impl, **options)
    torch.nn.init.normal_(module.head.weight, std=0.05)
    return module


def step(module, image):
    image = image.clone().requires_grad_()
    output = module(image)
    return [output, *gradients(output, [image, *module.parameters()])]
