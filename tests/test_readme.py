"""The code that the documents show runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import spatial_transformer as st

ROOT = Path(__file__).parent.parent


def blocks(document: str) -> list[str]:
    found = re.findall(
        r"^```python\n(.*?)^```", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE
    )
    assert found, f"{document} shows no code"
    return found


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_the_code_runs(document):
    """Block after block, in one namespace, as a reader would type them."""
    names: dict[str, object] = {}
    for block in blocks(document):
        exec(compile(block, document, "exec"), names)
    if document == "README.md":
        assert names["warped"].shape == (16, 1, 28, 28)
        assert names["theta"].shape == (16, 6)
        assert names["localiser"].layers[1].weight.grad is not None
        # the identity start, as the comment says
        torch.testing.assert_close(names["warped"], names["digits"], rtol=0, atol=1e-4)


def test_the_example_is_short():
    assert len([line for line in blocks("README.md")[0].splitlines() if line]) <= 10


def test_every_public_name_is_in_the_readme_or_the_changelog():
    text = (ROOT / "README.md").read_text() + (ROOT / "CHANGELOG.md").read_text()
    assert [name for name in st.__all__ if name not in text] == []


def test_links_lead_somewhere():
    for document in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md"):
        text = (ROOT / document).read_text()
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
            assert ((ROOT / document).parent / target).exists(), f"{document} links to {target}"


def test_versions_agree():
    assert f"version: {st.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert st.__version__ in (ROOT / "CHANGELOG.md").read_text()
