"""Which of PyTorch's modes are on: the questions that only private names of torch answer, in one place.

Checked on torch 2.11 and 2.13 by ``tests/test_modes.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def function_transform() -> bool:
    """Whether a ``torch.func`` transform (grad, jvp, vmap, ...) or a forward-mode level is open here."""
    if torch.compiler.is_compiling():  # Dynamo traces the transforms themselves
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def outside(tensor: Tensor) -> Tensor:
    """The tensor itself, where a transform that is over has left its wrapper around it."""
    found: Tensor = torch._C._functorch.unwrap_if_dead(tensor)
    return found


def capturing() -> bool:
    """Whether a CUDA graph is being captured: kernels are noted down, not run."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def tracing() -> bool:
    """Whether tensors made now may be stand-ins (compile, export, fake tensors, transforms): cache none."""
    return (
        torch.compiler.is_compiling()
        or torch.compiler.is_exporting()
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
        or function_transform()
    )


def exporting() -> bool:
    """Whether a graph is being made for elsewhere (``torch.export``, ONNX), where operators are unknown."""
    # Not `is_exporting()`: under torch 2.11 Dynamo folds it to True in `torch.compile` as well.
    return torch.compiler._is_exporting_flag


def opaque() -> bool:
    """Whether someone watches operators go by (compile, fake tensors, a dispatch mode): go through them."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0
