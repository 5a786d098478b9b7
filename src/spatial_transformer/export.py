"""Export to ONNX. ``torch.export`` needs no help: call it on a module as it is."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from .module import SpatialTransformer

# The first ONNX opset whose GridSample does volumes.
OPSET = 20


def export_onnx(model: nn.Module, image: Tensor, path: str | os.PathLike[str]) -> Path:
    """Writes a model that takes one image batch as an ONNX file whose batch size is free.

    ``image`` is an example batch [N, C, *in], of any N; its other sizes are fixed in the file. The model's
    mode (train or eval) is kept. Needs the extra ``export``. Gives the path. A model that cannot be
    exported raises ``RuntimeError`` and names the family, kernel and padding of its transformers.

    >>> import torch, spatial_transformer as st
    >>> model = st.SpatialTransformer(st.DenseLocaliser(1, (28, 28)), st.Affine())
    >>> path = st.export_onnx(model, torch.rand(2, 1, 28, 28), "transformer.onnx")      # doctest: +SKIP
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("export_onnx needs the extra: pip install spatial_transformer[export]") from error
    if image.shape[0] < 2:  # a batch of 1 would be taken for a constant
        image = torch.cat([image, image]) if image.shape[0] else image.new_zeros(2, *image.shape[1:])
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path must be in a folder that exists, got {str(path)!r}")
    partial = path.with_name(f".{path.name}.partial")
    try:
        torch.onnx.export(
            model,
            (image,),
            str(partial),
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            input_names=["image"],
            output_names=["warped"] if isinstance(model, SpatialTransformer) else ["output"],
            external_data=False,
            verbose=False,
        )
        partial.replace(path)
    except Exception as error:
        raise RuntimeError(f"cannot export {described(model)} to ONNX: {first_line(error)}") from error
    finally:
        partial.unlink(missing_ok=True)
    return path


def described(model: nn.Module) -> str:
    """The model and the combinations of its transformers, by name."""
    parts = [
        f"{type(module.family).__name__} in {module.family.dims}D with kernel "
        f"{module.kernel if isinstance(module.kernel, str) else 'Kernel'}, padding {module.padding!r}"
        + (f", antialias={module.antialias}" if module.antialias else "")
        for module in model.modules()
        if isinstance(module, SpatialTransformer)
    ]
    return f"{type(model).__name__} ({'; '.join(parts)})" if parts else type(model).__name__


def first_line(error: BaseException) -> str:
    """What went wrong, without the exporter's pages of advice: the innermost cause's first line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]
