"""The encoder of co-localisation: what it is trained on, once for all, and how that stops and goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

filelock = pytest.importorskip("filelock")
pytest.importorskip("safetensors")

from small_runs import colocalising, counted, same  # noqa: E402

from spatial_transformer.experiments import checkpoints, encoders, engine, networks  # noqa: E402
from spatial_transformer.experiments.checkpoints import CheckpointError  # noqa: E402
from spatial_transformer.experiments.colocalisation import Colocalisation  # noqa: E402
from spatial_transformer.experiments.data.one_class import one_class  # noqa: E402
from spatial_transformer.experiments.data.random_numbers import RandomNumbers  # noqa: E402
from spatial_transformer.experiments.interrupts import Stopped  # noqa: E402
from spatial_transformer.experiments.jobs import placed  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quickly(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(encoders, "STEPS", 20)


def test_the_encoder_sees_standardised_crops():
    encoder, seen = encoders.DigitEncoder(4), []
    first = next(layer for layer in encoder.network.classifier if isinstance(layer, nn.Conv2d))
    first.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    crops = torch.rand(3, 1, 28, 28)
    encoder(crops)
    assert torch.equal(seen[0], (crops - networks.MEAN) / networks.DEVIATION)


def test_the_encoder_is_trained_once(digits, monkeypatch):
    first = encoders.encoder(digits, 4, Path("runs"), CPU)
    monkeypatch.setattr(encoders, "Lessons", None)
    again = encoders.encoder(digits, 4, Path("runs"), CPU)
    crops = torch.rand(3, 1, 28, 28)
    assert torch.equal(first(crops), again(crops))
    assert first(crops).shape == (3, 4 * 100 + 4 * 4 + 11)
    assert torch.allclose(first(crops).square().sum(1), torch.tensor(3.0))  # three layers of length 1
    (path,) = Path("runs").glob("encoder-*.safetensors")
    path.write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"encoder-.*is no encoder.*remove it to train another"):
        encoders.encoder(digits, 4, Path("runs"), CPU)


def test_a_stopped_encoder_goes_on_bit_for_bit(digits):
    """Across the change of its learning rate too."""
    whole = encoders.encoder(digits, 4, Path("whole"), CPU)
    said = []
    for looks in (8, 10):
        with pytest.raises(Stopped):
            encoders.encoder(digits, 4, Path("runs"), CPU, said.append, counted(looks))
        assert [path.suffixes for path in Path("runs").glob("encoder-*")] == [[".checkpoint", ".safetensors"]]
    stopped = encoders.encoder(digits, 4, Path("runs"), CPU, said.append)
    assert [line[line.index("(") :] for line in said] == [
        "(20 of 20 steps)",
        "(13 of 20 steps)",
        "(4 of 20 steps)",
    ]
    assert same(stopped.state_dict(), whole.state_dict())
    assert [path.suffixes for path in Path("runs").glob("encoder-*")] == [[".safetensors"]]


def test_an_encoder_whose_process_is_killed_goes_on_from_what_was_kept(digits, monkeypatch):
    whole = encoders.encoder(digits, 4, Path("whole"), CPU)
    monkeypatch.setattr(encoders, "SAVE_EVERY", -1.0)  # after every step
    step, said = encoders.Lessons.step, []

    def until_killed(lessons):
        if lessons.step_number == 12:
            raise KeyboardInterrupt
        step(lessons)

    monkeypatch.setattr(encoders.Lessons, "step", until_killed)
    with pytest.raises(KeyboardInterrupt):
        encoders.encoder(digits, 4, Path("runs"), CPU)
    monkeypatch.setattr(encoders.Lessons, "step", step)
    found = encoders.encoder(digits, 4, Path("runs"), CPU, said.append)
    assert "(8 of 20 steps)" in said[0]
    assert same(found.state_dict(), whole.state_dict())


def test_an_unfinished_encoder_that_does_not_fit_is_named(digits):
    with pytest.raises(Stopped):
        encoders.encoder(digits, 4, Path("runs"), CPU, stop=counted(3))
    (path,) = Path("runs").glob("encoder-*.checkpoint.safetensors")
    kept = checkpoints.load(path)
    kept.state.tensors.popitem()
    checkpoints.save(kept, path)
    with pytest.raises(CheckpointError, match=r"encoder-.* does not fit .*: remove it to begin anew"):
        encoders.encoder(digits, 4, Path("runs"), CPU)


def test_who_waits_for_the_encoder_of_another_process_can_be_stopped(digits, monkeypatch):
    monkeypatch.setattr(encoders, "LOOK_EVERY", 0.01)
    with pytest.raises(Stopped):
        encoders.encoder(digits, 4, Path("runs"), CPU, stop=counted(3))
    (lock,) = Path("runs").glob(".encoder-*.lock")
    with filelock.FileLock(lock), pytest.raises(Stopped):
        encoders.encoder(digits, 4, Path("runs"), CPU, stop=counted(3))


@pytest.mark.parametrize("by", ["stop", "deadline"])
def test_cells_are_left_where_their_encoder_is_stopped(digits, monkeypatch, by):
    wanted = placed([colocalising("T84/3"), colocalising("TC84/3")], [0], Path("results"), Path("runs"))
    monkeypatch.setattr(encoders, "STEPS", 2000)
    begin = time.monotonic()
    limit = {"stop": counted(5)} if by == "stop" else {"deadline": begin + 3}
    outcome = engine.train(wanted, digits, CPU, at_once=2, **limit)
    assert time.monotonic() < begin + 3
    assert (outcome.left, outcome.records, outcome.refused) == (wanted, [], [])


def test_what_is_under_way_is_saved_where_the_encoder_of_another_cell_is_stopped(digits, monkeypatch):
    """With `parameters=6000,9000` there are two encoders."""
    cells = [colocalising("T84/3"), colocalising("T84/3", parameters=9000)]
    Colocalisation(cells[0], 0, digits, CPU, Path("runs/colocalisation"))
    wanted = placed(cells, [0], Path("results"), Path("runs"), lambda cell: vars(cell.settings))
    outcome = engine.train(wanted, digits, CPU, at_once=2, stop=lambda: True)
    assert outcome.left == wanted
    assert [job.checkpoint.exists() for job in wanted] == [True, False]


@pytest.mark.slow
def test_an_interrupt_stops_the_encoder():
    command = ["train", "colocalisation", "--digits", "packaged", "--model", "3", "--data", "T84", "--device"]
    process = subprocess.Popen(
        [sys.executable, "-m", "spatial_transformer.cli", *command, "cpu"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    with process:
        said = ""
        while "training the encoder" not in said:
            said = process.stdout.readline()
            assert said, "it has ended"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=20)[0]
    assert process.returncode == 130
    assert "1 of 1 are not finished; the same command goes on with them" in said
    (kept,) = Path("runs").rglob("encoder-*.checkpoint.safetensors")
    assert checkpoints.load(kept).state.numbers["step"] > 0


def test_the_encoder_is_trained_on_crops_about_digits(digits):
    seen = []
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 11))
    network.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    encoders.Lessons(network, digits, CPU).step()
    assert seen[0].shape == (encoders.BATCH, 1, 28, 28)
    assert (seen[0][:, :, :3].amax((1, 2, 3)) > 0).float().mean() > 0.3  # clutter: digits end further in
    truth = one_class("T84", 3, 0, digits).drawn.numbers["box"].repeat(10, 1)
    crops = encoders.about(truth, RandomNumbers(0))
    least, most = encoders.SCALES
    assert least <= crops[:, 0].min() < least + 0.01 < most - 0.01 < crops[:, 0].max() <= most
    off = (crops[:, 1:] - (truth[:, :2] + truth[:, 2:]) / 2) / crops[:, :1]
    assert 0.9 * encoders.OFF < off.abs().max() <= encoders.OFF + 1e-6


def test_what_is_no_digit_has_a_class_of_its_own(digits):
    truth = one_class("T84", 3, 0, digits).drawn.numbers["box"].repeat(10, 1)
    crops, answers = encoders.asked(torch.full((1000,), 3), truth, RandomNumbers(0))
    off = ((crops[:, 1:] - encoders.middle(truth)) / crops[:, :1]).abs().amax(1)
    assert ((answers == 3) == (torch.arange(1000) >= 333)).all()  # a third lies anywhere
    assert (off[answers == 3] <= encoders.OFF + 1e-6).all()
    assert ((answers == 10) == (off >= encoders.FAR)).all()
    assert (off[answers == encoders.UNASKED] < encoders.FAR).all()
    assert (answers == encoders.UNASKED).sum() > 10
    edges = crops[:333, 1:].abs() + crops[:333, :1]
    assert 0.95 < edges.max() <= 1 + 1e-6  # within the image, and all of it


def test_the_encoder_learns_what_is_no_digit(digits, monkeypatch):
    """Of blank pictures with no digits near them it says so, after a few steps that say nothing else."""
    monkeypatch.setattr(encoders, "ANYWHERE", 1.0)
    made = encoders.DigitEncoder(4)
    assert encoders.Lessons(made.network, digits, CPU).finished()
    assert (made.network(torch.zeros(3, 1, 28, 28)).argmax(1) == encoders.NONE).all()


@pytest.mark.parametrize("changed", [{"FAR": 0.7}, {"ANYWHERE": 0.25}, {"OFF": 0.2}])
def test_an_encoder_trained_otherwise_is_another(digits, monkeypatch, changed):
    encoders.encoder(digits, 4, Path("runs"), CPU)
    for name, value in changed.items():
        monkeypatch.setattr(encoders, name, value)
    encoders.encoder(digits, 4, Path("runs"), CPU)
    assert len(list(Path("runs").glob("encoder-*.safetensors"))) == 2


def test_an_encoder_of_other_digits_is_another(digits):
    encoders.encoder(digits, 4, Path("runs"), CPU)
    encoders.encoder(digits._replace(name="others"), 4, Path("runs"), CPU)
    assert len(list(Path("runs").glob("encoder-*.safetensors"))) == 2
