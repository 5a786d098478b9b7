"""The examples in the documentation."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import spatial_transformer as st

pytestmark = pytest.mark.usefixtures("one_thread", "seed")

MODULES = sorted(m.name for m in pkgutil.walk_packages(st.__path__, "spatial_transformer."))


@pytest.mark.parametrize("name", ["spatial_transformer", *MODULES])
def test_doctests(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("spatial_transformer"):
            raise
        pytest.skip(f"needs {missing.name}")
    found = doctest.testmod(module)
    assert found.failed == 0
    if name.rsplit(".")[-1] in ("coordinates", "family", "families", "sampling", "module"):
        assert found.attempted > 0  # the examples are seen at all
