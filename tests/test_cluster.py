"""Cells on a Ray cluster of this machine, and what becomes of one whose worker is killed."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

ray = pytest.importorskip("ray")
pytest.importorskip("filelock")
pytest.importorskip("PIL.Image")
safetensors = pytest.importorskip("safetensors.torch")

from data_files import write_splits  # noqa: E402

from spatial_transformer.experiments import checkpoints, cluster, engine, records, tasks  # noqa: E402
from spatial_transformer.experiments.arguments import UsageError  # noqa: E402
from spatial_transformer.experiments.catalogue import EXPERIMENTS, chosen  # noqa: E402
from spatial_transformer.experiments.data import svhn  # noqa: E402
from spatial_transformer.experiments.jobs import placed  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_workers():
    """A cluster of two workers, for all tests of this file: it takes seconds to begin."""
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def jobs(folder, names, **changes):
    settings = {"parameters": 80_000, "batch": 16, "steps": 40, "learning_rate": 0.1, "stages": 1, **changes}
    cells = [
        dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, **settings))
        for cell in chosen(EXPERIMENTS["distorted-mnist"])
        if cell.name in names
    ]
    return placed(cells, [0], folder / "results", folder / "runs")


def workers():
    """Processes of Ray that train, by what they call themselves."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::trained" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def test_a_killed_worker_is_replaced(two_workers, digits, tmp_path):
    """Its cell goes on from the checkpoint and ends with the weights of one that was never stopped."""
    names = ["R/FCN", "R/ST-FCN affine"]
    spread = jobs(tmp_path / "spread", names, steps=300)
    killed, steps = [], []

    def kill():
        checkpoint = spread[1].checkpoint
        while not checkpoint.exists():
            time.sleep(0.02)
        # Both train: the one that holds the locks on the second cell is known by its open files.
        lock = str(spread[1].locks[0])
        for worker in workers():
            held = [os.readlink(file) for file in Path(f"/proc/{worker}/fd").iterdir() if file.is_symlink()]
            if lock in held:
                steps.append(checkpoints.load(checkpoint).state.numbers["step"])
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    outcome = cluster.train(spread, digits, save_every=0.2)
    killer.join(10)
    assert len(killed) == 1
    assert 0 < steps[0] < 300
    assert sorted(record.cell for record in outcome.records) == names
    assert (outcome.busy, outcome.left) == ([], [])

    alone = jobs(tmp_path / "alone", names, steps=300)
    torch.set_num_threads(1)
    engine.train(alone, digits, torch.device("cpu"))
    for one, other in zip(spread, alone, strict=True):
        found, expected = records.read(one.record), records.read(other.record)
        assert (found.error, found.curve) == (expected.error, expected.curve)
        weights = [safetensors.load_file(job.weights) for job in (one, other)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


def test_stop_and_time_limit(two_workers, digits, tmp_path):
    begin = time.monotonic()
    spread = jobs(tmp_path, ["R/FCN", "E/FCN", "P/FCN"], steps=1_000_000)
    outcome = cluster.train(spread, digits, stop=lambda: time.monotonic() > begin + 6)
    assert sorted(job.cell.name for job in outcome.left) == ["E/FCN", "P/FCN", "R/FCN"]
    assert sum(job.checkpoint.exists() for job in spread) >= 1
    outcome = cluster.train(spread[:1], digits, deadline=time.monotonic() + 4)
    assert [job.cell.name for job in outcome.left] == ["R/FCN"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_of_the_command_saves(number, tmp_path):
    """Ray puts a handler of its own in the place of ours."""
    command = [
        sys.executable,
        "-m",
        "spatial_transformer.cli",
        "train",
        "distorted-mnist",
        "--digits",
        "packaged",
    ]
    command += ["--data", "R", "--model", "FCN", "batch=16", "steps=1000000", "--save-every", "5m", "--ray"]
    said = tmp_path / "said"
    with said.open("w") as file, subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file) as process:
        begin = time.monotonic()
        while "begins" not in said.read_text():
            assert time.monotonic() < begin + 120
            assert process.poll() is None, said.read_text()
            time.sleep(0.1)
        time.sleep(1)
        process.send_signal(number)
        process.wait(timeout=90)
    assert process.returncode == 130, said.read_text()
    (checkpoint,) = tmp_path.glob("runs/*/*.checkpoint.safetensors")
    assert checkpoints.load(checkpoint).state.numbers["step"] > 0


def test_a_time_limit_of_many(two_workers, digits, tmp_path):
    many = placed(
        [job.cell for job in jobs(tmp_path, ["R/FCN"], steps=1_000_000)], range(12), tmp_path, tmp_path
    )
    begin = time.monotonic()
    outcome = cluster.train(many, digits, deadline=begin + 8)
    assert len(outcome.left) == 12
    assert time.monotonic() < begin + 8 + 12


def test_how_cells_ended_is_said_here(two_workers, digits, tmp_path):
    """Not by their workers, whose last lines get lost; these have no log here at all."""
    said = []
    cluster.train(jobs(tmp_path, ["R/FCN", "R/ST-FCN affine"], steps=2), digits, "auto", say=said.append)
    first, *ends = said
    assert first == "Ray: 2 CPUs, 0 GPUs, 2 cells"
    assert sorted(line.split(",")[0] for line in ends) == ["R/FCN", "R/ST-FCN affine"]
    assert [line.rpartition(" [")[2] for line in ends] == ["1 of 2]", "2 of 2]"]


def test_what_a_task_raises_is_said_of_its_cell(two_workers, digits, tmp_path):
    (other,) = jobs(tmp_path, ["E/FCN"])
    (job,) = jobs(tmp_path, ["R/FCN"])
    job.record.mkdir(parents=True)  # which no record can be read from
    with pytest.raises(cluster.TaskError, match=r"^R/FCN, seed 0: .*Is a directory"):
        cluster.train([job, other], digits)
    assert other.record.exists()  # the others are trained nevertheless


def test_what_was_asked_wrongly_is_told_apart(two_workers, digits, tmp_path):
    """The command ends with another exit status, with workers as without."""
    (job,) = jobs(tmp_path, ["R/FCN"], parameters=10)
    with pytest.raises(UsageError, match=r"^R/FCN, seed 0: R/FCN: parameters must be at least"):
        cluster.train([job], digits)


def test_a_checkpoint_that_does_not_fit_is_named(two_workers, digits, tmp_path):
    job, other = jobs(tmp_path, ["R/FCN", "E/FCN"])
    job.checkpoint.parent.mkdir(parents=True)
    job.checkpoint.write_bytes(b"of another time")
    outcome = cluster.train([job, other], digits)
    assert [record.cell for record in outcome.records] == ["E/FCN"]
    assert [said.split(" is no")[0] for said in outcome.refused] == [f"R/FCN, seed 0: {job.checkpoint}"]


def test_workers_load_photographs_by_themselves(two_workers, tmp_path, monkeypatch):
    """From a folder that all see, whatever they are started in; what is not there is said."""
    monkeypatch.chdir(tmp_path)
    write_splits(tmp_path / "data", 4, 4)
    (cell,) = chosen(EXPERIMENTS["svhn"], ["CNN"], ["64px"])
    tiny = dataclasses.replace(cell.settings, width=0.02, batch=2, steps=2, curve=1, localiser_start=0)
    cell = dataclasses.replace(cell, settings=tiny)
    numbers = svhn.load_set("data")
    alone, spread, lost = (placed([cell], [0], tmp_path / name, tmp_path / name) for name in "abc")
    torch.set_num_threads(1)
    engine.train(alone, numbers, torch.device("cpu"))
    sent = tasks.sent(cell, numbers, tasks.AUTO, Path("data"))
    (record,) = cluster.train(spread, sent).records
    assert record.curve == records.read(alone[0].record).curve
    weights = [safetensors.load_file(job.weights) for job in (*alone, *spread)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    Path("data").rename("elsewhere")
    with pytest.raises(
        cluster.TaskError, match=r"^64px/CNN, seed 0: SVHN's train and test are not here: .*data"
    ):
        cluster.train(lost, sent)
