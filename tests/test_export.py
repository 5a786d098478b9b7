"""ONNX and ``torch.export``, with a free batch size."""

from __future__ import annotations

import pytest
import torch
from cases import close, families, images

import spatial_transformer as st
from spatial_transformer import export

SIZE = {2: (9, 8), 3: (4, 5, 6)}
OUT = {2: (6, 7), 3: (3, 4, 4)}

EXPORTED = [(2, name, {}) for name in families(2, OUT[2])]
EXPORTED += [
    (3, "Affine", {}),
    (3, "ThinPlateSpline", {}),
    (2, "Affine", {"kernel": "nearest"}),
    (2, "Affine", {"kernel": "bicubic", "padding": "border"}),
    (2, "Affine", {"padding": "reflection", "align_corners": True}),
    (2, "Affine", {"padding": "circular"}),
    (2, "Affine", {"padding": [0.1, 0.2]}),
    (2, "Affine", {"antialias": 1.5}),
    (2, "Affine", {"copies": 3}),
    (2, "Affine", {"kernel": st.Kernel(lambda d: torch.exp(-2 * d * d), radius=2)}),
]


def transformer(dims, family_name, options):
    torch.manual_seed(0)
    family = families(dims, OUT[dims], options.get("align_corners", False), dtype=torch.float32)[family_name]
    localiser = st.DenseLocaliser(2, SIZE[dims], hidden=(4,))
    module = st.SpatialTransformer(localiser, family, size=OUT[dims], **options)
    torch.nn.init.normal_(module.head.weight, std=0.05)
    return module.eval()


@pytest.mark.parametrize(("dims", "family_name", "options"), EXPORTED)
def test_onnx_runtime_agrees(dims, family_name, options, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    module = transformer(dims, family_name, options)
    path = st.export_onnx(module, images(1, 2, *SIZE[dims], dtype=torch.float32), tmp_path / "model.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]  # nothing partial, nothing beside it
    session = onnxruntime.InferenceSession(path)
    for batch in (1, 5):
        image = images(batch, 2, *SIZE[dims], seed=batch, dtype=torch.float32)
        (found,) = session.run(None, {"image": image.numpy()})
        with torch.no_grad():
            expected = module(image)
        assert expected.std() > 0.05  # something to compare
        close(torch.from_numpy(found), expected, (0, 1e-4))


def test_a_whole_model(tmp_path):
    """A transformer on the input and one on feature maps, in a network."""
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        st.SpatialTransformer(st.ConvLocaliser(1, (28, 28)), st.ThinPlateSpline()),
        torch.nn.Conv2d(1, 4, 5),
        st.SpatialTransformer(st.DenseLocaliser(4, (24, 24), hidden=(8,)), st.Attention(), size=(8, 8)),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 64, 10),
    ).eval()
    for module in model:
        if isinstance(module, st.SpatialTransformer):
            torch.nn.init.normal_(module.head.weight, std=0.05)
    path = st.export_onnx(model, images(2, 1, 28, 28, dtype=torch.float32), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(path)
    for batch in (1, 6):
        image = images(batch, 1, 28, 28, seed=batch, dtype=torch.float32)
        (found,) = session.run(None, {"image": image.numpy()})
        close(torch.from_numpy(found), model(image).detach(), (0, 1e-4))


def test_large_graphs_are_not_rewritten(tmp_path, monkeypatch):
    """Which would take minutes; constants are folded, and what is there twice or for nobody is dropped."""
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    rewritten = []
    optimize = torch.onnx.ONNXProgram.optimize
    monkeypatch.setattr(
        torch.onnx.ONNXProgram, "optimize", lambda program: rewritten.append(1) or optimize(program)
    )
    module, image = transformer(2, "Affine", {"antialias": 1.5}), images(2, 2, *SIZE[2], dtype=torch.float32)
    st.export_onnx(module, image, tmp_path / "short.onnx")
    assert rewritten == [1]
    monkeypatch.setattr(export, "REWRITTEN", 1000)  # nodes, of which there are some 1,400
    path = st.export_onnx(module, image, tmp_path / "long.onnx")
    assert rewritten == [1]
    short, long = (len(onnx.load(tmp_path / f"{name}.onnx").graph.node) for name in ("short", "long"))
    assert short < long < 1.3 * short
    (found,) = onnxruntime.InferenceSession(path).run(None, {"image": image.numpy()})
    close(torch.from_numpy(found), module(image).detach(), (0, 1e-4))


def test_places_that_cannot_be_written_are_named_at_once(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(torch.onnx, "export", None)
    module, image = transformer(2, "Affine", {}), images(2, 2, *SIZE[2], dtype=torch.float32)
    with pytest.raises(FileNotFoundError, match=r"folder that exists, got .*nowhere"):
        st.export_onnx(module, image, tmp_path / "nowhere" / "model.onnx")
    with pytest.raises(IsADirectoryError, match="path must be a file, got the folder"):
        st.export_onnx(module, image, tmp_path)


def test_what_cannot_be_exported_is_named(tmp_path):
    pytest.importorskip("onnxscript")
    bessel = st.Kernel(torch.special.bessel_j0, radius=2)  # ONNX has no such function
    module = transformer(2, "Projective", {"kernel": bessel, "padding": "border"})
    with pytest.raises(RuntimeError, match=r"Projective in 2D with kernel Kernel, padding 'border'.*bessel"):
        st.export_onnx(module, images(2, 2, *SIZE[2], dtype=torch.float32), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("dims", "family_name", "options"), [*EXPORTED[:10], EXPORTED[-2]])
def test_torch_export(dims, family_name, options):
    module = transformer(dims, family_name, options)
    image = images(3, 2, *SIZE[dims], dtype=torch.float32)
    program = torch.export.export(module, (image,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for batch in (2, 7):
        image = images(batch, 2, *SIZE[dims], seed=batch, dtype=torch.float32)
        close(program.module()(image), module(image), (0, 1e-5))
