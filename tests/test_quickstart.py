"""The quick start, shortened: it trains both networks, says both errors, draws, and goes on when stopped."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from small_runs import never_stuck

pytest.importorskip("filelock")
pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

from spatial_transformer.cli import main  # noqa: E402
from spatial_transformer.experiments import provenance, quickstart, records, statuses  # noqa: E402
from spatial_transformer.experiments.data import uci_digits  # noqa: E402
from spatial_transformer.experiments.spec import DigitSettings  # noqa: E402

COMMAND = ["quickstart", "--digits", "packaged"]


@pytest.fixture
def short(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = DigitSettings(steps=60, batch=32, learning_rate=0.05, parameters=100_000, curve=10)
    never_stuck(monkeypatch, quickstart.EXPERIMENT)
    monkeypatch.setitem(quickstart.SETTINGS, uci_digits.NAME, settings)


def test_the_quick_start(short, capsys):
    assert main(COMMAND) == 0
    said = capsys.readouterr().out
    made = map(records.read, records.paths("distorted-mnist", Path("quickstart")))
    errors = {record.cell: record.error for record in made}
    assert set(errors) == {"RTS/FCN", "RTS/ST-FCN affine"}
    assert re.search(rf"without a spatial transformer +{errors['RTS/FCN']:.2f} % wrong", said)
    assert re.search(rf"with a spatial transformer +{errors['RTS/ST-FCN affine']:.2f} % wrong", said)
    (picture,) = Path("quickstart").rglob("*.png")
    assert str(picture) in said
    assert Image.open(picture).size[0] > 600
    before = picture.stat().st_mtime_ns
    assert main(COMMAND) == 0  # nothing is trained a second time
    again = capsys.readouterr().out
    assert "begins" not in again
    assert again.splitlines()[-3:-1] == said.splitlines()[-3:-1]
    assert picture.stat().st_mtime_ns > before


def test_a_stopped_quick_start_goes_on(short, capsys, monkeypatch):
    trained = quickstart.engine.train
    monkeypatch.setattr(
        quickstart.engine,
        "train",
        lambda *given, **options: trained(*given, **{**options, "stop": lambda: True}),
    )
    assert main(COMMAND) == 130
    assert "not finished; the same command goes on" in capsys.readouterr().out
    monkeypatch.setattr(quickstart.engine, "train", trained)
    assert main(COMMAND) == 0
    assert "goes on after step 1" in capsys.readouterr().out


def test_a_checkpoint_that_does_not_fit_is_named(short, capsys):
    """And nothing is drawn of half a comparison."""
    checkpoint = Path("quickstart/runs/distorted-mnist") / (
        "RTS-FCN-batch=32-curve=10-digits=UCI-digits-learning_rate=0.05-parameters=100000-steps=60-seed0"
        ".checkpoint.safetensors"
    )
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"of another time")
    assert main(COMMAND) == statuses.FAILED
    said = capsys.readouterr().err
    assert said.startswith(f"stn: RTS/FCN, seed 0: {checkpoint} is no checkpoint")
    assert not list(Path("quickstart").rglob("*.png"))


def test_each_of_the_two_has_one_thread(short, monkeypatch):
    """OpenMP's threads spin while they wait: on a CPU that is not idle hardly a step was taken."""
    seen, trained = [], quickstart.engine.train
    monkeypatch.setattr(
        quickstart.engine,
        "train",
        lambda *given, **options: seen.append(torch.get_num_threads()) or trained(*given, **options),
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    assert main(COMMAND) == 0
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert (seen, after) == ([1], 2)


def test_the_commit_of_this_code(monkeypatch, tmp_path):
    monkeypatch.delenv(provenance.VARIABLE, raising=False)
    here = Path(provenance.__file__).parent
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True)
    if head.returncode == 0:
        assert provenance.commit().removesuffix("-modified") == head.stdout.strip()
    monkeypatch.setenv(provenance.VARIABLE, "abc")
    assert provenance.commit() == "abc"
    monkeypatch.delenv(provenance.VARIABLE)
    monkeypatch.setenv("PATH", str(tmp_path))  # no git
    assert provenance.commit().startswith("version ")
