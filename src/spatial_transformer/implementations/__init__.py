"""The implementations by name, and which one a call takes."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

from torch import Tensor

from ..kernels import Reading
from . import operators, reference, torch_native

# In the order in which "auto" tries them.
IMPLEMENTATIONS: dict[str, ModuleType] = {"fused": operators, "torch": torch_native, "reference": reference}


class Choice(NamedTuple):
    name: str
    reason: str
    module: ModuleType


def why_not(name: str, image: Tensor, reading: Reading) -> str | None:
    """Why an implementation cannot run, or None where it can."""
    reason: str | None = IMPLEMENTATIONS[name].why_not(image, reading)
    return reason


def choose(impl: str, image: Tensor, reading: Reading) -> Choice:
    """The implementation for a call: the one named, or the first of them that can run, and why.

    Raises ``RuntimeError`` with its reason where the one named cannot run.
    """
    passed_over: list[str] = []
    for name in IMPLEMENTATIONS if impl == "auto" else (impl,):
        module = IMPLEMENTATIONS[name]
        reason = module.why_not(image, reading)
        if reason is None:
            return Choice(name, "; ".join(passed_over) if passed_over else "as asked", module)
        passed_over.append(f"not {name}: {reason}")
    raise RuntimeError(f'impl="{impl}" cannot run here: {passed_over[-1].split(": ", 1)[1]}')
