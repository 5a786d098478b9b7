"""The packages of the extras that experiments need, imported where they are first needed."""

from __future__ import annotations

import importlib.util
from typing import Any


def extra(module: str, extra: str = "experiments") -> Any:
    """The module of that name, or an error that says how to get it.

    >>> extra("filelock").FileLock                                                    # doctest: +SKIP
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{module} is not installed; the experiments need the extra: "
            f'pip install ".[{extra}]" in the folder of the source code'
        ) from error


def with_triton(name: str, package: str | None) -> Any:
    """A module of that package whose kernels need Triton; None where there is no Triton."""
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module(f".{name}", package)
