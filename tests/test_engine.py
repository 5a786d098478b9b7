"""The engine: what it trains, how it stops and goes on, and what it leaves behind."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

filelock = pytest.importorskip("filelock")
safetensors = pytest.importorskip("safetensors.torch")

from small_runs import SMALL, counted, jobs, same  # noqa: E402

from spatial_transformer.experiments import checkpoints, engine, networks, probes, provenance, records, runs  # noqa: E402
from spatial_transformer.experiments.data.fixed_sets import fixed_batches, fixed_set  # noqa: E402
from spatial_transformer.experiments.display import Lines  # noqa: E402
from spatial_transformer.experiments.lockstep import Lockstep  # noqa: E402
from spatial_transformer.experiments.runs import Run  # noqa: E402
from spatial_transformer.experiments.spec import DigitSettings  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone_in_a_folder")

CPU = torch.device("cpu")


def weights(job):
    return safetensors.load_file(job.weights)


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
    assert not stopped.checkpoint.exists()
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


class Clock:
    """In the place of ``time``: as late as it is said to be."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


def slow(kind, clock):
    """The same, which takes 100 seconds to be made."""

    class Slow(kind):
        def __init__(self, *given):
            super().__init__(*given)
            clock.now += 100

    return Slow


@pytest.fixture
def slow_steps(monkeypatch):
    """Steps that take two seconds, side by side or alone, and nothing else takes any."""
    clock, advance = Clock(), Lockstep.advance

    def slow(together, steps):
        clock.now += 2 * steps
        advance(together, steps)

    monkeypatch.setattr(Lockstep, "advance", slow)
    monkeypatch.setattr(engine, "time", clock)


@pytest.mark.usefixtures("slow_steps")
def test_the_seconds_of_steps_side_by_side_are_shared_out(digits):
    outcome = engine.train(jobs("R/FCN", "E/FCN", steps=6), digits, CPU, at_once=2)
    assert [record.seconds for record in outcome.records] == [6.0, 6.0]


@pytest.mark.usefixtures("slow_steps")
def test_the_seconds_before_a_stop_count(digits):
    (job,) = jobs("R/FCN", steps=6)
    engine.train([job], digits, CPU, stop=counted(2))
    (record,) = engine.train([job], digits, CPU).records
    assert record.seconds == 12.0


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_others_may_read_what_is_left_behind(digits):
    """As far as the umask lets them: weights are written by a library that thinks of their owner alone."""
    (job,) = jobs("R/FCN", steps=3)
    before = os.umask(0o027)
    try:
        engine.train([job], digits, CPU, stop=lambda: True)
        assert stat.S_IMODE(job.checkpoint.stat().st_mode) == 0o640
        engine.train([job], digits, CPU)
    finally:
        os.umask(before)
    for path in (job.weights, job.record, probes.path_of(job.record)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_deadline(digits):
    engine.train(jobs("R/FCN", seeds=(1,)), digits, CPU)  # kernels are compiled at the first step
    (job,) = jobs("R/FCN", steps=100_000)
    begin = time.monotonic()
    outcome = engine.train([job], digits, CPU, deadline=begin + 4)
    assert time.monotonic() < begin + 4
    assert outcome.left == [job]
    assert checkpoints.load(job.checkpoint).state.numbers["step"] > 10


def test_a_deadline_leaves_time_for_what_is_long_to_save(digits, monkeypatch):
    """Also where nothing was to be saved before it: checkpoints of large networks take seconds."""
    engine.train(jobs("R/FCN", seeds=(1,)), digits, CPU)  # kernels are compiled at the first step
    save = checkpoints.save

    def slowly(*given):
        time.sleep(1.5)
        save(*given)

    monkeypatch.setattr(checkpoints, "save", slowly)
    (job,) = jobs("R/FCN", steps=100_000)
    begin = time.monotonic()
    outcome = engine.train([job], digits, CPU, deadline=begin + 8, save_every=60)
    assert time.monotonic() < begin + 8
    assert outcome.left == [job]
    assert checkpoints.load(job.checkpoint).state.numbers["step"] > 1


@pytest.mark.parametrize("which", [0, 1])
def test_two_processes_never_train_one_cell(digits, which):
    one, other = jobs("R/FCN", "E/FCN")
    holder = "lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print('held', flush=True); input()"
    lock = one.locks[which]
    lock.parent.mkdir(parents=True)
    command = [
        sys.executable,
        "-c",
        f"import filelock, sys; {holder}",
        str(lock),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        outcome = engine.train([one, other], digits, CPU)
        assert outcome.busy == [one]
        assert [record.cell for record in outcome.records] == ["E/FCN"]
        process.communicate("\n")
    assert not one.record.exists()
    assert [record.cell for record in engine.train([one], digits, CPU).records] == ["R/FCN"]


@pytest.mark.parametrize("status", ["done", "failed"])
def test_again_is_for_what_has_failed(digits, status):
    """And not for what another process has finished meanwhile."""
    (job,) = jobs("R/FCN")
    engine.train([job], digits, CPU)
    failed = {"status": status, "error": None, "reason": "the loss is nan"} if status == "failed" else {}
    record = dataclasses.replace(records.read(job.record), date="2026-01-01", **failed)
    records.write(record, job.record)
    assert len(engine.train([job], digits, CPU, again=True).records) == 1
    assert (records.read(job.record).date == "2026-01-01") == (status == "done")


def test_a_cell_that_is_done_is_free_again(digits):
    """Also while others are still trained."""
    seen = []

    class Watcher(Lines):
        def ended(self, job, record):
            for path in first.locks:
                with filelock.FileLock(path).acquire(timeout=0):
                    seen.append(record.cell)

    first, second = jobs("R/FCN", "E/FCN")
    second = second._replace(
        cell=dataclasses.replace(second.cell, settings=DigitSettings(**SMALL | {"steps": 60}))
    )
    engine.train([first, second], digits, CPU, at_once=2, watcher=Watcher(2))
    assert seen == ["R/FCN", "R/FCN", "E/FCN", "E/FCN"]


@pytest.mark.parametrize("shared", ["record", "checkpoint"])
def test_commands_that_share_one_folder_alone_never_train_one_cell(digits, shared):
    """`--results` or `--runs`: the record, or the checkpoint and the weights, would be written by both."""
    other = {"record": Path("other/record.json"), "checkpoint": Path("other/checkpoint")}
    del other[shared]
    found = []

    class Meanwhile(Lines):
        def began(self, training):
            found.append(engine.train([job._replace(**other)], digits, CPU))

    (job,) = jobs("R/FCN")
    engine.train([job], digits, CPU, watcher=Meanwhile(1))
    assert [one.busy for one in found] == [[job._replace(**other)]]


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


def test_a_run_is_saved_before_it_is_tested(digits, monkeypatch):
    """Whatever ends the process meanwhile."""

    def killed(run, stop):
        raise KeyboardInterrupt

    (job,) = jobs("R/FCN", steps=3)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "tested", killed)
        with pytest.raises(KeyboardInterrupt):
            engine.train([job], digits, CPU)
    assert checkpoints.load(job.checkpoint).state.numbers["step"] == 3
    goes_on_with_the_test_alone(job, digits, monkeypatch)


@pytest.mark.parametrize("looks", [4, 5])
def test_a_test_can_be_stopped(looks, digits, monkeypatch):
    """Before each of its two batches; other runs are saved then."""
    monkeypatch.setattr(engine, "PATIENCE", 0.0)
    (job,), (other,) = jobs("R/FCN", steps=3), jobs("E/FCN")
    outcome = engine.train([job, other], digits, CPU, at_once=2, stop=counted(looks))
    assert (outcome.left, outcome.records) == ([job, other], [])
    assert not job.record.exists()
    assert [checkpoints.load(one.checkpoint).state.numbers["step"] for one in (job, other)] == [3, 3]
    goes_on_with_the_test_alone(job, digits, monkeypatch)


@pytest.mark.parametrize(("deadline", "tested"), [(39.0, False), (41.0, True)])
def test_a_test_keeps_to_the_deadline(deadline, tested, digits, monkeypatch):
    """Before each of its two batches it must leave time for twice what the last one took."""
    clock = Clock()

    def slow(*arguments, **options):
        for part in fixed_batches(*arguments, **options):
            clock.now += 10
            yield part

    (job,) = jobs("R/FCN", steps=3)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "time", clock)
        patch.setattr(runs, "fixed_batches", slow)
        outcome = engine.train([job], digits, CPU, deadline=deadline)
    assert [record.cell for record in outcome.records] == ["R/FCN"] * tested
    assert outcome.left == [job] * (not tested)
    if not tested:
        goes_on_with_the_test_alone(job, digits, monkeypatch)


@pytest.mark.parametrize(("deadline", "begun"), [(200.0, False), (202.0, True)])
def test_what_it_took_to_make_steps_is_kept_spare_before_others_are_begun(
    deadline, begun, digits, monkeypatch
):
    """On a GPU a graph is captured, and kernels may be compiled."""
    clock = Clock()
    monkeypatch.setattr(engine, "time", clock)
    monkeypatch.setattr(engine, "Lockstep", slow(Lockstep, clock))
    outcome = engine.train(jobs("R/FCN", "E/FCN", steps=3), digits, CPU, deadline=deadline)
    assert [record.cell for record in outcome.records] == ["R/FCN", "E/FCN"][: 1 + begun]
    assert [job.cell.name for job in outcome.left] == ["E/FCN"][begun:]
    assert clock.now < deadline
    (short,), (long,) = jobs("R/FCN", seeds=(1,), steps=3), jobs("E/FCN", seeds=(1,))
    clock.now = 0.0
    outcome = engine.train([short, long], digits, CPU, at_once=2, deadline=deadline)
    assert outcome.left == [long][begun:]
    assert begun or checkpoints.load(long.checkpoint).state.numbers["step"] == 3
    assert clock.now < deadline


@pytest.mark.parametrize(("deadline", "trained"), [(200.0, False), (202.0, True)])
def test_before_the_first_step_as_much_is_kept_spare_as_beginning_took(
    deadline, trained, digits, monkeypatch
):
    """Data are brought to the device and kernels compiled there too."""
    clock = Clock()
    monkeypatch.setattr(engine, "time", clock)
    monkeypatch.setattr(engine, "Training", slow(engine.Training, clock))
    monkeypatch.setattr(engine, "Lockstep", slow(Lockstep, clock))
    (job,) = jobs("R/FCN", steps=3)
    outcome = engine.train([job], digits, CPU, deadline=deadline)
    assert (len(outcome.records), outcome.left) == (trained, [job][trained:])
    assert clock.now < deadline


def goes_on_with_the_test_alone(job, digits, monkeypatch):
    monkeypatch.setattr(Run, "step", lambda run: pytest.fail("it takes steps"))
    (record,) = engine.train([job], digits, CPU).records
    assert (record.status, record.steps, len(record.curve)) == ("done", 3, 3)
    assert not job.checkpoint.exists()


def test_a_passed_deadline_begins_nothing(digits):
    wanted = jobs("R/FCN", "E/FCN")
    outcome = engine.train(wanted, digits, CPU, deadline=time.monotonic() - 1, watcher=Never())
    assert outcome.left == wanted


def test_a_checkpoint_older_than_a_setting_has_its_default(digits):
    (job,) = jobs("R/FCN")
    engine.train([job], digits, CPU, stop=lambda: True)
    kept = checkpoints.load(job.checkpoint)
    older = {name: value for name, value in kept.identity.items() if name != "momentum"}
    checkpoints.save(kept._replace(identity=older), job.checkpoint)
    (changed,) = jobs("R/FCN", momentum=0.5)
    (said,) = engine.train([changed._replace(checkpoint=job.checkpoint)], digits, CPU).refused
    assert "is of another run (momentum=0.9)" in said
    (record,) = engine.train([job], digits, CPU).records
    assert record.status == "done"


def test_a_checkpoint_of_another_run_is_not_gone_on_with(digits):
    (job,) = jobs("R/FCN")
    engine.train([job], digits, CPU, stop=lambda: True)
    (changed,) = jobs("R/FCN", momentum=0.5)
    (said,) = engine.train([changed], digits, CPU).refused
    assert f"{job.checkpoint} is of another run (momentum=0.9)" in said
    (other,) = jobs("R/FCN", seeds=(1,))
    (said,) = engine.train([other._replace(checkpoint=job.checkpoint)], digits, CPU).refused
    assert f"{job.checkpoint} is of another run (cell=distorted-mnist R/FCN, seed 0)" in said
    (said,) = engine.train([job], digits._replace(name="others"), CPU).refused
    assert f"{job.checkpoint} is of another run (digits=UCI digits)" in said


def test_a_checkpoint_that_does_not_fit_stops_no_other_cell(digits):
    """As one of other code may be; the file stays as it is, and the cell is free for other processes."""
    job, other = jobs("R/FCN", "E/FCN")
    engine.train([job], digits, CPU, stop=lambda: True)
    kept = checkpoints.load(job.checkpoint)
    del kept.state.tensors["velocity"]
    checkpoints.save(kept, job.checkpoint)
    before = job.checkpoint.read_bytes()
    outcome = engine.train([job, other], digits, CPU)
    assert [record.cell for record in outcome.records] == ["E/FCN"]
    assert (outcome.busy, outcome.left) == ([], [])
    (said,) = outcome.refused
    assert said.startswith(f"R/FCN, seed 0: {job.checkpoint} does not fit ('velocity')")
    assert said.endswith("remove it to begin anew")
    assert job.checkpoint.read_bytes() == before
    job.checkpoint.unlink()
    assert [record.cell for record in engine.train([job], digits, CPU).records] == ["R/FCN"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seconds": "x"}, "seconds must be float, got 'x'"),
        ({"seconds": math.nan}, "seconds must be float, got nan"),
        ({"seconds": -1.0}, "seconds must not be negative, got -1.0"),
        ({"identity": None}, "identity must be dict[str, typing.Any], got None"),
        ({"commits": None}, "commits must be list[str], got None"),
        ({"curve": {}}, "curve must be list[dict[str, typing.Any]], got {}"),
        ({"numbers": {"step": "3", "drawn": 0}}, "numbers must be dict[str, int], got {'step': '3'"),
        ({"numbers": {"step": 31, "drawn": 0}}, "step must be from 0 to 30, got 31"),
        ({"numbers": {"step": -1, "drawn": 0}}, "step must be from 0 to 30, got -1"),
        ({"numbers": {"step": 12, "drawn": 0}}, "its curve is not that of 12 steps"),
        ({"curve": [{"step": 6, "loss": "x", "error": 0.0}]}, "loss must be float, got 'x'"),
    ],
)
def test_a_checkpoint_whose_metadata_are_wrong_is_refused(changes, said, digits):
    job, other = jobs("R/FCN", "E/FCN")
    engine.train([job], digits, CPU, stop=lambda: True)
    with safetensors.safe_open(job.checkpoint, "pt") as file:
        about = json.loads(file.metadata()["run"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    checkpoints.write(tensors, job.checkpoint, {"run": json.dumps(about | changes)})
    outcome = engine.train([job, other], digits, CPU)
    (refusal,) = outcome.refused
    assert refusal.startswith(f"R/FCN, seed 0: {job.checkpoint} ")
    assert said in refusal
    assert [record.cell for record in outcome.records] == ["E/FCN"]


def test_the_learning_rate_is_that_of_each_step(digits, monkeypatch):
    """No chunk of steps goes across a change of it, also where nothing else is to be done."""
    monkeypatch.setattr(probes, "moments", lambda steps: [0, steps])
    rates = []
    step = Run.step

    def noted(run):
        rates.append(run.rate.item())
        step(run)

    monkeypatch.setattr(Run, "step", noted)
    (job,) = jobs("R/FCN", steps=32, curve=1)
    engine.train([job], digits, CPU)
    settings = job.cell.settings
    assert rates == pytest.approx([settings.rate(each) for each in range(32)])
    assert len(set(rates)) == 3


@pytest.mark.parametrize(
    "settings",
    [
        DigitSettings(),
        DigitSettings(steps=1000, curve=1),
        DigitSettings(steps=7, stages=3, curve=100),
        DigitSettings(steps=1),
    ],
)
def test_stops(settings):
    stops = engine.stops(settings)
    assert stops[-1] == settings.steps
    assert engine.curve_steps(settings) <= set(stops)
    changes = [step for step in range(1, settings.steps) if settings.rate(step) != settings.rate(step - 1)]
    assert settings.turns() == {*changes, settings.steps}
    assert set(changes) <= set(stops)


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
