"""Export to ONNX. ``torch.export`` needs no help: call it on a module as it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .module import SpatialTransformer

# The first ONNX opset whose GridSample does volumes.
OPSET = 20

# Nodes of a graph that is rewritten: the time that onnxscript takes for that grows with their square. With
# 14,000 of them, as anti-aliasing makes, that is three quarters of an export's time, for a seventh fewer.
REWRITTEN = 5000


def export_onnx(model: nn.Module, image: Tensor, path: str | os.PathLike[str]) -> Path:
    """Writes a model that takes one image batch as an ONNX file whose batch size is free.

    ``image`` is an example batch [N, C, *in], of any N; its other sizes are fixed in the file. The model's
    mode (train or eval) is kept. Needs the extra ``export``. Gives the path. A model that cannot be
    exported raises ``RuntimeError`` and names the family, kernel and padding of its transformers.

    Anti-aliasing is written out tap by tap, and ``antialias=True`` has 256 of them in 2D, 4,096 in 3D: such
    an export takes several times as long as one without, up to a minute in 2D, and its file has thousands of
    nodes. Of a smaller limit there is less to write: ``antialias=2`` has 16 taps in 2D.

    >>> import torch, spatial_transformer as st
    >>> model = st.SpatialTransformer(st.DenseLocaliser(1, (28, 28)), st.Affine())
    >>> path = st.export_onnx(model, torch.rand(2, 1, 28, 28), "transformer.onnx")      # doctest: +SKIP
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            'export_onnx needs the extra: pip install ".[export]" in the folder of the source code'
        ) from error
    if image.shape[0] < 2:  # a batch of 1 would be taken for a constant
        image = torch.cat([image, image]) if image.shape[0] else image.new_zeros(2, *image.shape[1:])
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path must be in a folder that exists, got {str(path)!r}")
    if path.is_dir():
        raise IsADirectoryError(f"path must be a file, got the folder {str(path)!r}")
    partial = path.with_name(f".{path.name}.partial")
    try:
        program = torch.onnx.export(
            model,
            (image,),
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            input_names=["image"],
            output_names=["warped"] if isinstance(model, SpatialTransformer) else ["output"],
            optimize=False,
            verbose=False,
        )
        assert program is not None
        simplify(program)
        program.save(str(partial), external_data=False)
        partial.replace(path)
    except Exception as error:
        raise RuntimeError(f"cannot export {described(model)} to ONNX: {first_line(error)}") from error
    finally:
        partial.unlink(missing_ok=True)
    return path


def simplify(program: Any) -> None:
    """Folds constants, and drops what is there twice or for nobody; rewrites what has a shorter form, too, in
    graphs that are not too large for that."""
    if len(program.model.graph) <= REWRITTEN:
        program.optimize()
        return
    from onnx_ir.passes.common import CommonSubexpressionEliminationPass
    from onnxscript import optimizer

    optimizer.fold_constants(program.model)
    CommonSubexpressionEliminationPass()(program.model)
    optimizer.remove_unused_nodes(program.model)


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
