"""The packages of the extra ``experiments``, imported where they are first needed."""

from __future__ import annotations

import importlib
from typing import Any


def extra(module: str) -> Any:
    """The module of that name, or an error that says how to get it.

    >>> extra("filelock").FileLock                                                    # doctest: +SKIP
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{module} is not installed; the experiments need the extra: "
            "pip install spatial_transformer[experiments]"
        ) from error
