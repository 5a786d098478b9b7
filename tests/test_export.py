"""ONNX and ``torch.export``, with a free batch size."""

from __future__ import annotations

import pytest
import torch
from cases import close, families, images

import spatial_transformer as st

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
