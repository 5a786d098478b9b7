"""``stn train``: what it takes, how it stops and goes on, and what it shows meanwhile."""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("filelock")
safetensors = pytest.importorskip("safetensors.torch")

from made_up import record_of  # noqa: E402
from small_runs import SMALL, jobs, same  # noqa: E402

from spatial_transformer.cli import main  # noqa: E402
from spatial_transformer.experiments import checkpoints, engine, records, statuses  # noqa: E402
from spatial_transformer.experiments.catalogue import EXPERIMENTS, chosen  # noqa: E402
from spatial_transformer.experiments.data import mnist  # noqa: E402
from spatial_transformer.experiments.display import Lines, Table, result  # noqa: E402
from spatial_transformer.experiments.durations import duration, seconds_of  # noqa: E402
from spatial_transformer.experiments.interrupts import asked_to_stop  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone_in_a_folder", "one_thread")

CPU = torch.device("cpu")
TRAIN = ["train", "distorted-mnist", "--digits", "packaged", "--data", "R"]


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
    assert "[2 of 2]" in lines[-2]
    assert re.fullmatch(r"the whole command took \d+ s", lines[-1])
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


@pytest.mark.parametrize(("at_once", "threads"), [("1", 2), ("2", 1), ("3", 1)])
def test_cells_that_fill_the_cpu_have_one_thread_each(at_once, threads, monkeypatch):
    seen, trained = [], engine.train
    monkeypatch.setattr(
        engine,
        "train",
        lambda *given, **options: seen.append(torch.get_num_threads()) or trained(*given, **options),
    )
    torch.set_num_threads(2)
    assert main([*TRAIN, "--model", "FCN", "--seed", "0,1", *small(steps=2), "--at-once", at_once]) == 0
    after = torch.get_num_threads()
    torch.set_num_threads(1)
    assert (seen, after) == ([threads], 2)


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
        ({"paper": 9.9}, "is no record: paper must be 2.1 as of R/FCN, got 9.9"),
        ({"settings": {"steps": 30}}, "is no record: settings of distorted-mnist lack batch"),
    ):
        records.write(dataclasses.replace(record, **changed), path)
        capsys.readouterr()
        assert main(options) == statuses.BROKEN
        assert f"{path} {said}" in capsys.readouterr().err


def test_failed_runs_and_again(capsys):
    options = ["--model", "FCN", *small(learning_rate=1e9)]
    assert main([*TRAIN, *options]) == statuses.FAILED
    assert "FAILED, the loss is nan" in capsys.readouterr().out
    assert main([*TRAIN, *options]) == 0
    assert "every cell has its record" in capsys.readouterr().out
    kept = found("results/*/*.json").read_bytes()
    assert main([*TRAIN, *options, "--again", "--device", "abacus"]) == statuses.MISUSED
    assert found("results/*/*.json").read_bytes() == kept  # a failure stays until there is another record
    capsys.readouterr()
    assert main([*TRAIN, *options, "--again"]) == statuses.FAILED
    assert "begins" in capsys.readouterr().out


def test_a_cell_that_another_process_trains(capsys, monkeypatch):
    monkeypatch.setattr(engine, "locked", lambda job: None)
    assert main([*TRAIN, "--model", "FCN", *small()]) == statuses.UNFINISHED
    assert "R/FCN, seed 0: another process trains it" in capsys.readouterr().out


def test_a_checkpoint_that_does_not_fit_is_named(capsys):
    """And the other seed is trained."""
    options = [*TRAIN, "--model", "FCN", *small(), "--seed"]
    assert main([*options, "0"]) == 0
    weights = found("runs/*/*.safetensors")
    checkpoint = weights.rename(weights.with_suffix(".checkpoint.safetensors"))
    found("results/*/*.json").unlink()
    capsys.readouterr()
    assert main([*options, "0,1"]) == statuses.FAILED
    said = capsys.readouterr()
    assert f"stn: R/FCN, seed 0: {checkpoint} is no checkpoint" in said.err
    assert "R/FCN, seed 1" in said.out
    assert [records.read(path).seed for path in Path("results").rglob("*.json")] == [1]
    checkpoint.unlink()
    assert main([*options, "0,1"]) == 0


def test_a_time_limit(capsys):
    assert main([*TRAIN, "--model", "FCN", *small(steps=100_000), "--time-limit", "4"]) == 3
    *_, left, took = capsys.readouterr().out.splitlines()
    assert "1 of 1 are not finished" in left
    assert re.fullmatch(r"the whole command took [1-9]\d* s", took)


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
    assert main(["train", "distorted-mnist", "--digits", "packaged", *arguments]) == statuses.MISUSED
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("experiment", "count", "message"),
    [
        *(
            (experiment.name, 1497, "held_out must be less than the 1,497 training digits, got 1,497")
            for experiment in EXPERIMENTS.values()
            if experiment.task.data == mnist.NAME
        ),
        ("colocalisation", 1, "UCI digits, 1 held out has no test digit 0"),
    ],
)
def test_so_many_digits_cannot_be_held_out(experiment, count, message, capsys):
    given = ["train", experiment, "--digits", "packaged", f"held_out={count}"]
    assert main(given) == statuses.MISUSED
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


def test_the_help_says_what_it_ends_with(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split()).split("exit status: ")[1]
    known = {value for name, value in vars(statuses).items() if name.isupper()}
    assert {int(number) for number in re.findall(r"\b\d+\b", said)} == {0, *known}
    assert f"{statuses.FAILED} all is done, but a run failed" in said


def test_times_as_they_are_given():
    assert [seconds_of(text) for text in ("90", "1.5", "25m", "1h30m", "1h1m1s")] == [
        90,
        1.5,
        1500,
        5400,
        3661,
    ]


def test_too_little_memory_is_said(capsys):
    """Of a batch whose numbers alone are 80 TB."""
    assert main([*TRAIN, "--model", "FCN", *small(batch=10**13)]) == statuses.BROKEN
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.match(
        r"stn: there is not enough memory: \d+ bytes were asked for at once; a smaller batch", said
    )


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")])
def test_so_is_that_of_a_gpu(error, capsys, monkeypatch):
    def broken(*given, **options):
        raise error

    monkeypatch.setattr(engine, "train", broken)
    assert main([*TRAIN, "--model", "FCN", *small()]) == statuses.BROKEN
    assert capsys.readouterr().err == (
        "stn: there is not enough memory; a smaller batch takes less, and so do fewer cells --at-once\n"
    )


def test_other_errors_of_torch_are_not_hidden(monkeypatch):
    def broken(*given, **options):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(engine, "train", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        main([*TRAIN, "--model", "FCN", *small()])


# ---- what is shown ----


def test_the_papers_error_stands_beside_what_is_trained_as_it_says():
    (cell,) = chosen(EXPERIMENTS["distorted-mnist"], ["FCN"], ["R"])
    real = record_of(cell, 0, 2.0, [], digits="MNIST")
    assert result("R/FCN", real) == "R/FCN: 2.00 % of MNIST wrong (the paper's: 2.1 %), 1 s"
    short = dataclasses.replace(real, steps=30, settings={**real.settings, "steps": 30})
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


@pytest.mark.parametrize("width", [20, 40, 70])
def test_a_narrow_terminal_has_all_but_the_bar(digits, width):
    console = pytest.importorskip("rich.console").Console(width=width, file=io.StringIO(), record=True)
    seen = []

    class Seen(Table):
        def went_on(self, under_way, steps, seconds):
            super().went_on(under_way, steps, seconds)
            console.print(self.drawn())
            seen.append(" ".join(console.export_text().split()))

    with Seen(1, console) as watcher:
        (record,) = engine.train(jobs("R/ST-FCN affine"), digits, CPU, watcher=watcher).records
    point = record.curve[-1]
    words = ["R/ST-FCN affine, seed 0", "30", f"{point.loss:.4f}", f"{point.error:.2f}", "0 of 1 done"]
    assert [word for word in words if word not in seen[-1]] == []
    assert "━" not in seen[-1]


def test_durations():
    said = {
        0.4: "0 s",
        59.4: "59 s",
        59.6: "1 min 0 s",
        3599.4: "59 min 59 s",
        3599.6: "1 h 0 min",
        3661: "1 h 1 min",
    }
    assert {seconds: duration(seconds) for seconds in said} == said


def test_signals_are_given_back():
    before = signal.getsignal(signal.SIGINT)
    with asked_to_stop() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
