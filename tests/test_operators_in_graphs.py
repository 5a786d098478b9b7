"""The fused kernels in graphs that PyTorch makes of a module, compiled and exported, on the CPU.

The compiled ones hold our operators, the exported ones none of them.
"""

from __future__ import annotations

import pytest
import torch
from cases import close, images
from operator_calls import F32, IN, gradients, step, transformer

import spatial_transformer as st

pytest.importorskip("numba")
pytestmark = pytest.mark.usefixtures("one_thread")


# Compiling


def operators_in(graphs):
    return {
        str(node.target)
        for graph in graphs
        for node in graph.graph.nodes
        if node.op == "call_function" and "spatial_transformer" in str(node.target)
    }


class Graphs:
    """A backend that keeps the graphs of forward and backward and runs them as they are."""

    def __init__(self):
        self.forward, self.backward, self.frames = [], [], 0

    def __call__(self, module, example):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        self.frames += 1

        def keep(graphs):
            return lambda graph, inputs: (graphs.append(graph), make_boxed_func(graph.forward))[1]

        return aot_autograd(fw_compiler=keep(self.forward), bw_compiler=keep(self.backward))(module, example)


COMPILED = [
    ("Affine", 2, {}),
    ("Projective", 2, {"padding": "circular"}),
    ("ThinPlateSpline", 2, {"padding": "border"}),
    ("LearnedBasis", 2, {"kernel": "bicubic"}),
    ("Affine", 2, {"antialias": 1.5, "padding": [0.1, 0.2], "copies": 2}),
    ("Affine", 3, {"kernel": "nearest"}),
]


@pytest.mark.parametrize(("name", "dims", "options"), COMPILED)
def test_compiled(name, dims, options):
    """One whole graph for every batch size, with our operators in it, forward and backward."""
    torch._dynamo.reset()
    module, graphs = transformer(name, dims, options), Graphs()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=graphs)
    frames = []  # numbers among the options are taken up in a second start of the first compilation
    for batch in (11, 7, 16, 33):  # at first none of the other sizes: equal sizes share a symbol
        image = images(batch, 2, *IN[dims], seed=batch, dtype=F32)
        for found, expected in zip(step(compiled, image), step(module, image), strict=True):
            close(found, expected, (1e-4, 1e-4))
        frames.append(graphs.frames)
    assert len(set(frames)) == 1, f"compiled again for another batch size: {frames}"
    assert operators_in(graphs.forward) == {"spatial_transformer.warp.default"}
    assert operators_in(graphs.backward) == {"spatial_transformer.warp_backward.default"}
    together = [str(node.target) for graph in graphs.forward for node in graph.graph.nodes]
    assert not [target for target in together if "gather" in target or "grid_sampler" in target]


def test_a_compiled_sample():
    torch._dynamo.reset()
    graphs = Graphs()
    sample = torch.compile(
        lambda image, grid: st.sample(image, grid, impl="fused", padding="border"),
        fullgraph=True,
        dynamic=True,
        backend=graphs,
    )
    for batch in (11, 5):
        image = images(batch, 2, 6, 5, dtype=F32).requires_grad_()
        grid = (2 * images(batch, 3, 7, 2, seed=1, dtype=F32) - 1).requires_grad_()
        answers = [
            [output, *gradients(output, (image, grid))]
            for output in (sample(image, grid), st.sample(image, grid, padding="border", impl="reference"))
        ]
        for found, expected in zip(*answers, strict=True):
            close(found, expected, (1e-4, 1e-4))
    assert graphs.frames == 1
    assert operators_in(graphs.forward) == {"spatial_transformer.warp.default"}


def test_compiled_layouts():
    """A graph's outputs have the strides that its fake tensors said."""
    torch._dynamo.reset()
    module = transformer("Affine", 2, {})
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    image = images(3, 2, *IN[2], dtype=F32).contiguous(memory_format=torch.channels_last)
    for found, expected in zip(step(compiled, image), step(module, image), strict=True):
        assert found.stride() == expected.stride()
        close(found, expected, (1e-4, 1e-4))
    assert compiled(image).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_inductor(layout):
    """The default backend, the operator between code that it generates and may lay out as it likes."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 3, padding=1),
        torch.nn.ReLU(),
        st.SpatialTransformer(st.DenseLocaliser(3, IN[2], hidden=(4,)), st.Affine(), impl="fused"),
        torch.nn.Conv2d(3, 2, 1),
        torch.nn.Tanh(),
    )
    torch.nn.init.normal_(model[2].head.weight, std=0.05)
    compiled = torch.compile(model, fullgraph=True)
    for batch in (4, 7, 16):
        image = images(batch, 2, *IN[2], seed=batch, dtype=F32).contiguous(memory_format=layout)
        for found, expected in zip(step(compiled, image), step(model, image), strict=True):
            close(found, expected, (1e-4, 1e-4))


# Exporting


@pytest.mark.parametrize(("name", "dims", "options"), COMPILED)
@pytest.mark.parametrize("strict", [False, True])
def test_exported_graphs_are_plain(name, dims, options, strict):
    module = transformer(name, dims, options).eval()
    image = images(3, 2, *IN[dims], dtype=F32)
    program = torch.export.export(
        module, (image,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=strict
    )
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert targets
    assert not [target for target in targets if "spatial_transformer" in target]
    for batch in (2, 5):
        image = images(batch, 2, *IN[dims], seed=batch, dtype=F32)
        close(program.module()(image), module(image), (0, 1e-5))


def test_onnx(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    module = transformer("Projective", 2, {"padding": "border"}).eval()
    path = st.export_onnx(module, images(2, 2, *IN[2], dtype=F32), tmp_path / "model.onnx")
    domains = {node.domain for node in onnx.load(path).graph.node}
    assert domains <= {"", "ai.onnx"}
    image = images(5, 2, *IN[2], seed=1, dtype=F32)
    (found,) = onnxruntime.InferenceSession(path).run(None, {"image": image.numpy()})
    close(torch.from_numpy(found), module(image).detach(), (0, 1e-4))
