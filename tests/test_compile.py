"""``torch.compile``: whole graphs, forward and backward, one graph for every batch size."""

from __future__ import annotations

import pytest
import torch
from cases import close, families, images

import spatial_transformer as st

torch._dynamo = pytest.importorskip("torch._dynamo")
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

SIZE = {2: (7, 6), 3: (3, 5, 6)}  # not the first batch size: equal sizes share a symbol in the graph
BATCHES = (4, 7, 16, 33)

# Each kind of family, and each of the paths that a warp can take.
COMPILED = [
    (2, "Affine", {}),
    (2, "Projective", {}),
    (2, "ThinPlateSpline", {}),
    (2, "PiecewiseAffine", {}),
    (2, "LearnedBasis", {}),
    (2, "Affine", {"copies": 2, "padding": "reflection"}),
    (2, "Affine", {"kernel": "bicubic", "padding": "circular"}),
    (2, "Attention", {"padding": [0.1, 0.2]}),
    (2, "Projective", {"antialias": 1.5, "size": (4, 4)}),
    (3, "Affine", {}),
    (3, "Similarity", {"kernel": "nearest", "padding": "border"}),
]


def transformer(dims, family_name, options):
    torch.manual_seed(0)
    family = families(dims, options.get("size", SIZE[dims]), dtype=torch.float32)[family_name]
    module = st.SpatialTransformer(st.DenseLocaliser(2, SIZE[dims], hidden=(4,)), family, **options)
    torch.nn.init.normal_(module.head.weight, std=0.05)
    return module


def step(module, image):
    """Output, and the gradients of image and parameters."""
    image = image.clone().requires_grad_()
    output = module(image)
    cotangent = images(*output.shape, seed=1, dtype=torch.float32)
    return output, torch.autograd.grad(output, [image, *module.parameters()], cotangent)


@pytest.mark.parametrize(("dims", "family_name", "options"), COMPILED)
def test_one_graph_for_every_batch(dims, family_name, options):
    torch._dynamo.reset()
    module = transformer(dims, family_name, options)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    counts = []
    for batch in BATCHES:
        image = images(batch, 2, *SIZE[dims], seed=batch, dtype=torch.float32)
        found, found_gradients = step(compiled, image)
        counts.append(counter.frame_count)
        expected, expected_gradients = step(module, image)
        close(found, expected, (1e-5, 1e-5))
        for one, other in zip(found_gradients, expected_gradients, strict=True):
            close(one, other, (1e-4, 1e-4))
    assert len(set(counts)) == 1, f"compiled again for another batch size: {counts}"


@pytest.mark.slow
def test_inductor():
    """The default backend, and the default way to a dynamic batch: one more graph after the first size."""
    torch._dynamo.reset()
    module = transformer(2, "Affine", {})
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    counts = []
    for batch in BATCHES:
        image = images(batch, 2, *SIZE[2], seed=batch, dtype=torch.float32)
        found, found_gradients = step(compiled, image)
        counts.append(counter.frame_count)
        expected, expected_gradients = step(module, image)
        close(found, expected, (1e-5, 1e-5))
        for one, other in zip(found_gradients, expected_gradients, strict=True):
            close(one, other, (1e-4, 1e-4))
    assert len(set(counts[1:])) == 1, counts


def test_autocast_and_compile():
    torch._dynamo.reset()
    module = transformer(2, "ThinPlateSpline", {})
    image = images(4, 2, *SIZE[2], dtype=torch.float32)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, theta = compiled(image, return_theta=True)
    assert theta.dtype == torch.float32
    close(found, st.warp(image, theta, module.family, impl="reference"), (1e-4, 1e-4))


def test_bases_made_while_tracing_are_not_kept():
    """A stand-in tensor in the cache would break the next eager call."""
    torch._dynamo.reset()
    family = st.ThinPlateSpline()
    image = images(2, 1, 6, 6, dtype=torch.float32)
    theta = family.identity().expand(2, -1)
    torch.compile(lambda t: st.warp(image, t, family), fullgraph=True, backend="aot_eager")(theta)
    torch.func.vmap(lambda t: st.warp(image, t, family))(theta[None])
    torch.export.export(st.SpatialTransformer(st.DenseLocaliser(1, (6, 6)), family), (image,))
    assert not family._bases
    assert torch.equal(st.warp(image, theta, family, impl="reference"), image)
    assert family._bases
