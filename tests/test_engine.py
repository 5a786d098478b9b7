"""The engine: what it trains, how it stops and goes on, and what it leaves behind."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

filelock = pytest.importorskip("filelock")
safetensors = pytest.importorskip("safetensors.torch")

from made_up import record_of  # noqa: E402

from spatial_transformer.cli import main  # noqa: E402
from spatial_transformer.experiments import checkpoints, engine, networks, probes, provenance, records  # noqa: E402
from spatial_transformer.experiments.catalogue import EXPERIMENTS, chosen  # noqa: E402
from spatial_transformer.experiments.data import uci_digits  # noqa: E402
from spatial_transformer.experiments.data.fixed_sets import fixed_set  # noqa: E402
from spatial_transformer.experiments.display import Lines, Table, duration, result  # noqa: E402
from spatial_transformer.experiments.interrupts import asked_to_stop  # noqa: E402
from spatial_transformer.experiments.lockstep import Lockstep  # noqa: E402
from spatial_transformer.experiments.runs import Run  # noqa: E402
from spatial_transformer.experiments.spec import DigitSettings  # noqa: E402
from spatial_transformer.experiments.training import span  # noqa: E402

CPU = torch.device("cpu")
SMALL = {"parameters": 80_000, "batch": 16, "steps": 30, "learning_rate": 0.02, "curve": 5}
TRAIN = ["train", "distorted-mnist", "--digits", "packaged", "--data", "R"]


@pytest.fixture(scope="module")
def digits(one_thread):
    return uci_digits.load()


@pytest.fixture(autouse=True)
def alone_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stuck_at(monkeypatch, None)  # some dozen steps teach next to nothing


def stuck_at(monkeypatch, error):
    experiment = EXPERIMENTS["distorted-mnist"]
    task = dataclasses.replace(experiment.task, stuck=error)
    monkeypatch.setitem(EXPERIMENTS, experiment.name, dataclasses.replace(experiment, task=task))


def jobs(*names, seeds=(0,), **changes):
    cells = [
        dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, **{**SMALL, **changes}))
        for cell in chosen(EXPERIMENTS["distorted-mnist"])
        if cell.name in names
    ]
    assert len(cells) == len(names)
    return engine.jobs(cells, seeds, Path("results"), Path("runs"))


def weights(job):
    return safetensors.load_file(job.weights)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def counted(looks):
    """A stop that says yes at the so many-th look."""
    seen = iter(range(looks - 1))
    return lambda: next(seen, None) is None


def test_a_cell_is_trained_to_its_record(digits):
    (job,) = jobs("R/ST-FCN affine", steps=60)
    outcome = engine.train([job], digits, CPU)
    (record,) = outcome.records
    assert (outcome.busy, outcome.left) == ([], [])
    assert records.read(job.record) == record
    assert (record.cell, record.seed, record.status, record.steps) == ("R/ST-FCN affine", 0, "done", 60)
    assert (record.paper, record.digits) == (1.2, "UCI digits")
    assert record.settings == dataclasses.asdict(job.cell.settings)
    assert [point.step for point in record.curve] == [12, 24, 36, 48, 60]
    assert record.curve[-1].loss < record.curve[0].loss
    assert record.seconds > 0
    assert not job.checkpoint.exists()

    # The error is that of the weights that are kept, on the fixed test set.
    network = networks.build(job.cell)
    network.load_state_dict(weights(job))
    assert record.parameters == networks.parameters(network)
    test = fixed_set("R", digits)
    with torch.no_grad():
        predictions = network(test.images).argmax(1)
        theta = network.theta(test.images)
    assert record.error == pytest.approx(100 * (predictions != test.labels).double().mean().item())
    probe = probes.read(probes.path_of(job.record))
    assert np.array_equal(probe.predictions, predictions)
    assert np.array_equal(probe.theta, theta[: probes.SHOWN].half())
    assert probe.steps.tolist() == probes.moments(60)
    assert np.array_equal(probe.thetas[0], np.tile([1, 0, 0, 0, 1, 0], (probes.WATCHED, 1)))  # the identity
    assert np.array_equal(probe.thetas[-1], theta[: probes.WATCHED].half())


def test_what_has_a_record_is_not_trained(digits):
    (job,) = jobs("R/FCN")
    engine.train([job], digits, CPU)
    before = job.record.stat().st_mtime_ns
    outcome = engine.train([job], digits, CPU)
    assert [record.cell for record in outcome.records] == ["R/FCN"]
    assert job.record.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", ["R/FCN", "RTS/ST-FCN spline"])
def test_a_stopped_run_ends_with_the_same_weights(name, digits, monkeypatch):
    (whole,) = jobs(name)
    engine.train([whole], digits, CPU)
    (stopped,) = (job._replace(record=Path("other/r.json"), checkpoint=Path("other/c")) for job in [whole])
    monkeypatch.setattr(engine, "PATIENCE", 0.0)  # a step at a time
    for looks in (1, 4, 9):
        outcome = engine.train([stopped], digits, CPU, stop=counted(looks))
        assert outcome.left == [stopped]
        assert stopped.checkpoint.exists()
        assert not stopped.record.exists()
    assert checkpoints.load(stopped.checkpoint).state.numbers["step"] == 14
    monkeypatch.setenv(provenance.VARIABLE, "another")
    (record,) = engine.train([stopped], digits, CPU).records
    assert record.commit == f"{records.read(whole.record).commit}, another"
    assert same(weights(stopped), weights(whole))
    expected = records.read(whole.record)
    assert (record.error, record.curve) == (expected.error, expected.curve)
    found, wanted = (probes.read(probes.path_of(job.record)) for job in (stopped, whole))
    assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_cells_side_by_side_are_what_they_are_alone(digits):
    alone = jobs("R/FCN", "R/ST-FCN affine", "E/FCN", seeds=(0, 1))
    for job in alone:
        engine.train([job], digits, CPU)
    together = [
        job._replace(record=Path("t") / job.record.name, checkpoint=Path("t") / job.checkpoint.name)
        for job in alone
    ]
    outcome = engine.train(together, digits, CPU, at_once=4)
    assert len(outcome.records) == 6
    for one, other in zip(alone, together, strict=True):
        assert same(weights(one), weights(other))
        assert records.read(one.record).curve == records.read(other.record).curve


def test_a_deadline(digits):
    engine.train(jobs("R/FCN", seeds=(1,)), digits, CPU)  # kernels are compiled at the first step
    (job,) = jobs("R/FCN", steps=100_000)
    begin = time.monotonic()
    outcome = engine.train([job], digits, CPU, deadline=begin + 4)
    assert time.monotonic() < begin + 4
    assert outcome.left == [job]
    assert checkpoints.load(job.checkpoint).state.numbers["step"] > 10


def test_two_processes_never_train_one_cell(digits):
    one, other = jobs("R/FCN", "E/FCN")
    holder = "lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print('held', flush=True); input()"
    one.lock.parent.mkdir(parents=True)
    command = [
        sys.executable,
        "-c",
        f"import filelock, sys; {holder}",
        str(one.lock),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        outcome = engine.train([one, other], digits, CPU)
        assert outcome.busy == [one]
        assert [record.cell for record in outcome.records] == ["E/FCN"]
        process.communicate("\n")
    assert not one.record.exists()
    assert [record.cell for record in engine.train([one], digits, CPU).records] == ["R/FCN"]


def test_a_cell_that_is_done_is_free_again(digits):
    """Also while others are still trained."""
    seen = []

    class Watcher(Lines):
        def ended(self, job, record):
            other = filelock.FileLock(first.lock)
            with other.acquire(timeout=0):
                seen.append(record.cell)

    first, second = jobs("R/FCN", "E/FCN")
    second = second._replace(
        cell=dataclasses.replace(second.cell, settings=DigitSettings(**SMALL | {"steps": 60}))
    )
    engine.train([first, second], digits, CPU, at_once=2, watcher=Watcher(2))
    assert seen == ["R/FCN", "E/FCN"]


def test_runs_of_different_lengths_side_by_side(digits):
    """None jumps over a point of its curve, a change of its rate or its end, whichever comes first."""
    (long,), (short,) = jobs("R/FCN", steps=50), jobs("E/FCN", steps=30)
    alone = {}
    for job in (long, short):
        other = job._replace(
            record=Path("alone") / job.record.name, checkpoint=Path("alone") / job.checkpoint.name
        )
        (alone[job.cell.name],) = engine.train([other], digits, CPU).records
    found = engine.train([long, short], digits, CPU, at_once=2).records
    assert [(record.cell, record.steps) for record in found] == [("E/FCN", 30), ("R/FCN", 50)]
    for record in found:
        assert record.curve == alone[record.cell].curve
        assert record.error == alone[record.cell].error


def test_a_point_of_the_curve_is_the_mean_since_the_last(digits):
    """Of losses that each step adds to the sums."""
    (job,) = jobs("R/FCN", steps=20, curve=4)
    training = engine.Training(job, digits, CPU)
    for step in range(1, 21):
        training.run.sums += torch.tensor([float(step), step / 100])
        training.run.step_number = step
        training.note()
    assert [(point.step, point.loss, round(point.error, 3)) for point in training.curve] == [
        (5, 3.0, 3.0), (10, 8.0, 8.0), (15, 13.0, 13.0), (20, 18.0, 18.0),
    ]  # fmt: skip


def test_a_folder_that_cannot_be_written_is_found_out_first(digits):
    (job,) = jobs("R/FCN")
    Path("results").write_text("no folder")
    with pytest.raises(OSError, match="results"):
        engine.train([job], digits, CPU, watcher=Never())


class Never:
    """A watcher that must not see anything begin."""

    def began(self, training):
        pytest.fail("it begins")


def test_a_run_stopped_at_its_last_step_is_finished_by_the_next(digits, monkeypatch):
    monkeypatch.setattr(engine, "PATIENCE", 0.0)
    (job,) = jobs("R/FCN", steps=3)
    assert engine.train([job], digits, CPU, stop=counted(3)).left == [job]
    assert checkpoints.load(job.checkpoint).state.numbers["step"] == 3
    (record,) = engine.train([job], digits, CPU).records
    assert (record.status, record.steps, len(record.curve)) == ("done", 3, 3)


def test_a_passed_deadline_begins_nothing(digits):
    wanted = jobs("R/FCN", "E/FCN")
    outcome = engine.train(wanted, digits, CPU, deadline=time.monotonic() - 1, watcher=Never())
    assert outcome.left == wanted


def test_a_diverged_run_is_recorded_as_failed(digits):
    first, second = jobs("R/FCN", "E/FCN")
    first = first._replace(
        cell=dataclasses.replace(first.cell, settings=DigitSettings(**SMALL | {"learning_rate": 1e9}))
    )
    outcome = engine.train([first, second], digits, CPU, at_once=2)
    by_cell = {record.cell: record for record in outcome.records}
    assert by_cell["E/FCN"].status == "done"
    failed = records.read(first.record)
    assert (failed.status, failed.error) == ("failed", None)
    assert failed.reason == "the loss is nan after 6 steps"
    assert failed.steps == 6
    assert not first.checkpoint.exists()


def test_a_run_stuck_at_chance_is_recorded_as_failed(digits, monkeypatch):
    stuck_at(monkeypatch, 85.0)
    (job,) = jobs("R/FCN", learning_rate=1e-9)
    (record,) = engine.train([job], digits, CPU).records
    assert record.status == "failed"
    assert record.error > 85
    assert record.reason == f"stuck at chance: {record.error:.1f} % of the answers are wrong"


def test_a_checkpoint_of_another_run_is_not_gone_on_with(digits):
    (job,) = jobs("R/FCN")
    engine.train([job], digits, CPU, stop=lambda: True)
    (changed,) = jobs("R/FCN", momentum=0.5)
    with pytest.raises(checkpoints.CheckpointError, match=r"another run \(momentum=0.9\)"):
        engine.train([changed], digits, CPU)
    (other,) = jobs("R/FCN", seeds=(1,))
    with pytest.raises(
        checkpoints.CheckpointError, match=r"another run \(cell=distorted-mnist R/FCN, seed 0\)"
    ):
        engine.train([other._replace(checkpoint=job.checkpoint)], digits, CPU)
    kept = checkpoints.load(job.checkpoint)
    del kept.state.tensors["velocity"]
    checkpoints.save(kept, job.checkpoint)
    with pytest.raises(checkpoints.CheckpointError, match=r"does not fit .* remove it to begin anew"):
        engine.train([job], digits, CPU)


def test_the_learning_rate_is_that_of_each_step(digits, monkeypatch):
    """No chunk of steps goes across a change of it."""
    rates = []
    step = Run.step

    def noted(run):
        rates.append(run.rate.item())
        step(run)

    monkeypatch.setattr(Run, "step", noted)
    (job,) = jobs("R/FCN", steps=31, curve=1)
    engine.train([job], digits, CPU)
    settings = job.cell.settings
    assert rates == pytest.approx([settings.rate(each) for each in range(31)])
    assert len(set(rates)) == 3


@pytest.mark.parametrize(
    "settings", [DigitSettings(), DigitSettings(steps=7, stages=3, curve=100), DigitSettings(steps=1)]
)
def test_stops(settings):
    stops = engine.stops(settings)
    assert stops[-1] == settings.steps
    assert engine.curve_steps(settings) <= set(stops)
    changes = [step for step in range(1, settings.steps) if settings.rate(step) != settings.rate(step - 1)]
    assert set(changes) <= set(stops)


# ---- stn train ----


def started(*arguments):
    """``stn train`` in a process of its own, in this folder."""
    command = [sys.executable, "-m", "spatial_transformer.cli", *TRAIN, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def small(**changes):
    return [f"{key}={value}" for key, value in {**SMALL, **changes}.items()]


def until(condition, seconds=120.0):
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() < begin + seconds
        time.sleep(0.02)


def found(pattern):
    (path,) = Path().glob(pattern)
    return path


@pytest.mark.slow
def test_kill_minus_9_loses_little(digits):
    options = ["--model", "ST-FCN affine", *small(steps=400)]
    assert main([*TRAIN, *options, "--results", "whole", "--runs", "whole-runs"]) == 0
    with started(*options, "--save-every", "0.2") as process:
        until(lambda: list(Path("runs").rglob("*.checkpoint.safetensors")))
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    step = checkpoints.load(found("runs/*/*.checkpoint.safetensors")).state.numbers["step"]
    assert 0 < step < 400
    assert not list(Path("results").rglob("*.json"))
    assert main([*TRAIN, *options]) == 0
    one, other = (
        safetensors.load_file(found(f"{runs}/*/*seed0.safetensors")) for runs in ("runs", "whole-runs")
    )
    assert same(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves(number):
    with started("--model", "FCN", *small(steps=100_000)) as process:
        assert process.stdout.readline() == "R/FCN, seed 0: begins\n"
        time.sleep(0.5)
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert "1 of 1 are not finished; the same command goes on with them" in said
    assert checkpoints.load(found("runs/*/*.checkpoint.safetensors")).state.numbers["step"] > 0


@pytest.mark.slow
def test_nobody_reading_does_not_stop_it():
    """`stn train ... | head -1`"""
    with started("--model", "FCN", "--seed", "0,1", *small(learning_rate=0.2, stages=1)) as process:
        process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=120)
    assert process.returncode == 0
    assert len(list(Path("results").rglob("*.json"))) == 2


def test_the_command(capsys):
    options = ["--model", "fcn", "--seed", "0,1", *small()]
    assert main([*TRAIN, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "R/FCN, seed 0: begins"
    assert "[2 of 2]" in lines[-1]
    assert len(list(Path("results/distorted-mnist").glob("*.json"))) == 2
    assert main([*TRAIN, *options]) == 0
    assert capsys.readouterr().out == "every cell has its record; `stn table` shows them\n"


def test_settings_after_options(capsys):
    assert main([*TRAIN, "--model", "FCN", *small(), "--seed", "3", "momentum=0.5"]) == 0
    record = records.read(found("results/*/*.json"))
    assert (record.seed, record.settings["momentum"], record.settings["steps"]) == (3, 0.5, 30)


def test_records_of_changed_runs_are_told_apart():
    assert main([*TRAIN, "--model", "FCN", *small()]) == 0
    assert main([*TRAIN, "--model", "FCN", *small(momentum=0.5)]) == 0
    assert len(list(Path("results").rglob("*.json"))) == 2
    assert all("digits=UCI-digits" in path.name for path in Path("results").rglob("*.json"))


def test_several_values_of_settings(capsys):
    """Each combination is a run; those that differ in nothing to a network are one."""
    models = ["--model", "FCN", "--model", "ST-FCN affine"]
    given = [*small(learning_rate="0.01,0.02", steps="20,30"), "localiser_rate=0.1,1"]
    assert main([*TRAIN, *models, *given, "--at-once", "3"]) == 0
    out = capsys.readouterr().out
    assert "R/ST-FCN affine, seed 0, steps=20 learning_rate=0.02 localiser_rate=0.1: begins" in out
    assert "[12 of 12]" in out
    found = [records.read(path) for path in Path("results").rglob("*.json")]
    names = ("steps", "learning_rate", "localiser_rate")
    runs = sorted((record.cell, *(record.settings[name] for name in names)) for record in found)
    assert runs == [
        *(("R/FCN", steps, rate, 0.1) for steps in (20, 30) for rate in (0.01, 0.02)),
        *(("R/ST-FCN affine", *of) for of in itertools.product((20, 30), (0.01, 0.02), (0.1, 1.0))),
    ]
    assert main([*TRAIN, *models, *given]) == 0
    assert "every cell has its record" in capsys.readouterr().out


def test_one_of_several_values_goes_on_alone():
    both = ["--model", "FCN", *small(momentum="0.5,0.9", steps=100_000)]
    assert main([*TRAIN, *both, "--at-once", "2", "--time-limit", "4"]) == 3
    kept = sorted(Path("runs").rglob("*.checkpoint.safetensors"))
    assert len(kept) == 2
    before = [checkpoints.load(path).state.numbers["step"] for path in kept]
    one = ["--model", "FCN", *small(momentum="0.9", steps=100_000), "--time-limit", "4"]
    assert main([*TRAIN, *one, "localiser_rate=0.1"]) == 3  # which is nothing to it
    after = [checkpoints.load(path).state.numbers["step"] for path in kept]
    assert 0 < before[0] == after[0]
    assert 0 < before[1] < after[1]


def test_a_record_of_another_run_in_a_place_is_named(capsys):
    """As those are that were made before an experiment's settings changed."""
    options = [*TRAIN, "--model", "FCN", *small()]
    assert main(options) == 0
    path = found("results/*/*.json")
    record = records.read(path)
    for changed, said in (
        ({"settings": {**record.settings, "momentum": 0.5}}, "is of a run with momentum=0.5 on UCI digits"),
        ({"digits": "MNIST"}, "is of a run on MNIST"),
        ({"seed": 3}, "is of R/FCN, seed 3: move it away"),
    ):
        records.write(dataclasses.replace(record, **changed), path)
        capsys.readouterr()
        assert main(options) == 1
        assert f"{path} {said}" in capsys.readouterr().err


def test_failed_runs_and_again(capsys):
    options = ["--model", "FCN", *small(learning_rate=1e9)]
    assert main([*TRAIN, *options]) == 1
    assert "FAILED, the loss is nan" in capsys.readouterr().out
    assert main([*TRAIN, *options]) == 0
    assert "every cell has its record" in capsys.readouterr().out
    kept = found("results/*/*.json").read_bytes()
    assert main([*TRAIN, *options, "--again", "--device", "abacus"]) == 1
    assert found("results/*/*.json").read_bytes() == kept  # a failure stays until there is another record
    capsys.readouterr()
    assert main([*TRAIN, *options, "--again"]) == 1
    assert "begins" in capsys.readouterr().out


def test_a_time_limit(capsys):
    assert main([*TRAIN, "--model", "FCN", *small(steps=100_000), "--time-limit", "4"]) == 3
    assert "1 of 1 are not finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["step=3"], "there is no setting 'step'; did you mean steps?"),
        (["steps=3", "steps=4"], "steps is given twice; several values are steps=3,4"),
        (["learning_rate=1e39"], "learning_rate must be a number more than 0, 1e+30 at most, got 1e+39"),
        (["drop=1e-300"], "drop must be a number of at least 1, got 1e-300"),
        (["--ray", "--device", "cpu"], "--ray shares out the cells by itself: it takes no --device"),
        (["--ray", "--at-once", "2"], "and no --at-once"),
        (["steps=3,,4"], "steps must be a whole number, got ''"),
        (["steps=many"], "steps must be a whole number, got 'many'"),
        (["steps"], "a setting must be given as KEY=VALUE, got 'steps'"),
        (["--model", "ST-FCN afine"], "did you mean ST-FCN affine?"),
        (["--data", "RST"], "data must be one of R, RTS, P, E, got 'RST'; did you mean RTS?"),
        (["--device", "abacus"], "--device abacus:"),
        (["drop=inf"], "drop must be a number of at least 1, got inf"),
        (["parameters=10"], "parameters must be at least"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    assert main(["train", "distorted-mnist", "--digits", "packaged", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seed", "a"],
        ["--seed", "-1"],
        ["--seed", str(2**32)],
        ["--time-limit", "soon"],
        ["--at-once", "0"],
        ["--ray", "steps=3"],
    ],
)
def test_arguments_that_do_not_parse(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*TRAIN, *arguments])


def test_spans():
    assert [span(text) for text in ("90", "1.5", "25m", "1h30m", "1h1m1s")] == [90, 1.5, 1500, 5400, 3661]


# ---- what is shown ----


def test_the_papers_error_stands_beside_what_is_trained_as_it_says():
    (cell,) = chosen(EXPERIMENTS["distorted-mnist"], ["FCN"], ["R"])
    real = record_of(cell, 0, 2.0, [], digits="MNIST")
    assert result("R/FCN", real) == "R/FCN: 2.00 % of MNIST wrong (the paper's: 2.1 %), 1 s"
    short = dataclasses.replace(real, settings={**real.settings, "steps": 30})
    for other in (record_of(cell, 0, 2.0, []), short):
        assert "the paper's" not in result("R/FCN", other)


def test_lines(digits, monkeypatch):
    monkeypatch.setattr("spatial_transformer.experiments.display.QUIET", 0.0)
    said = []
    (job,) = jobs("R/FCN")
    with Lines(1, said.append) as watcher:
        (record,) = engine.train([job], digits, CPU, watcher=watcher).records
    assert said[0] == "R/FCN, seed 0: begins"
    assert any("R/FCN, seed 0: step 30 of 30, loss" in line for line in said)
    assert any("images a second" in line for line in said)
    assert said[-1].startswith(f"R/FCN, seed 0: {record.error:.2f} % of UCI digits wrong")


def test_the_live_table(digits):
    console = pytest.importorskip("rich.console").Console(width=120, file=io.StringIO(), record=True)
    seen = []

    class Seen(Table):
        def went_on(self, under_way, steps, seconds):
            super().went_on(under_way, steps, seconds)
            console.print(self.drawn())
            seen.append(console.export_text())

    with Seen(1, console) as watcher:
        engine.train(jobs("R/FCN"), digits, CPU, watcher=watcher)
    assert "R/FCN, seed 0" in seen[-1]
    assert "30 / 30" in seen[-1]
    assert "0 of 1 done" in seen[-1]
    assert "images a second" in seen[-1]
    assert "% of UCI digits wrong" in console.file.getvalue()


def test_durations():
    assert [duration(seconds) for seconds in (0.4, 59.4, 61, 3661)] == ["0 s", "59 s", "1:01", "1:01:01"]


def test_signals_are_given_back():
    before = signal.getsignal(signal.SIGINT)
    with asked_to_stop() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_captured_steps_are_steps(digits):
    """What runs in a graph, side by side, is what runs alone, step by step."""
    names = ["R/FCN", "RTS/ST-FCN affine", "P/ST-CNN projective", "E/ST-CNN spline", "E/CNN"]
    cells = [job.cell for job in jobs(*names, parameters=150_000)]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    alone, together = ([Run(cell, 1, digits, "cuda") for cell in cells] for _ in range(2))
    side_by_side = Lockstep(together)
    assert [len(group) for group in side_by_side.groups] == [1, 1, 1, 2]  # those on E share their batches
    side_by_side.advance(5)
    for one, other in zip(alone, together, strict=True):
        one.set_rate()
        for _ in range(5):
            one.step()
        assert other.step_number == 5
        assert one.random.state() == other.random.state()
        assert (one.weights - other.weights).abs().max() < 1e-4
        assert not torch.equal(other.weights, Run(other.cell, 1, digits, "cuda").weights)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_cells_on_a_gpu(digits):
    wanted = jobs("R/FCN", "R/ST-FCN affine", "E/ST-CNN spline", seeds=(0, 1), parameters=150_000, steps=60)
    device = torch.device("cuda")
    first = engine.train(wanted, digits, device, at_once=8, stop=counted(6))
    assert len(first.left) == 6
    outcome = engine.train(wanted, digits, device, at_once=8)
    assert [record.status for record in outcome.records] == ["done"] * 6
    assert all(math.isfinite(point.loss) for record in outcome.records for point in record.curve)
