"""The benchmarks' runner: what it refuses, how it meters, what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import rounded
from torch import Tensor

from benchmarks import cpu, measure, record, run, table
from benchmarks.suites import (
    CONTENDERS,
    CPU_CASES,
    FUSED,
    PEER,
    TORCH,
    Case,
    Contender,
    Function,
    inputs,
    library,
    near_identity,
    truth,
)
from benchmarks.suites import pytorch as make_pytorch

ROOT = Path(__file__).resolve().parent.parent
SMALL = Case((2, 3, 9, 11))

pytorch = make_pytorch(SMALL, "cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors on several threads wait for one another far longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def measured(
    functions: dict[str, Function],
    *,
    dtype: torch.dtype = torch.float32,
    against: tuple[str, ...] = (PEER,),
    device: measure.Device = cpu.DEVICE,
) -> dict[str, Any]:
    given = inputs(SMALL).cast(dtype)
    entrants = {name: measure.Entrant(function, given, against) for name, function in functions.items()}
    entrants[PEER] = entrants[PEER]._replace(against=())

    def timings(names: list[str]) -> list[dict[str, measure.Times]]:
        return [measure.timed({name: entrants[name] for name in names}, device, "calls", measure.QUICK)]

    return measure.measured(entrants, truth(SMALL, "cpu"), device, timings)


# What it writes


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a smoke run from the command line writes."""
    path = tmp_path_factory.mktemp("benchmarks") / "new" / "cpu.json"
    command = [sys.executable, "-m", "benchmarks.run", "--suite", "cpu", "--quick", "--out", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(path.read_text(), parse_constant=pytest.fail)  # NaN is not JSON
    assert table.text(found) in done.stdout
    assert [file.name for file in path.parent.iterdir()] == ["cpu.json"]
    return found


def test_a_run_records_where_and_what(result: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert result["suite"] == "cpu"
    assert result["quick"] is True
    assert result["finished"] is True
    assert result["date"].startswith("20")
    assert result["commit"] is None or len(result["commit"]) == 40
    monkeypatch.setenv("SPATIAL_TRANSFORMER_COMMIT", "a" * 40)
    assert record.commit() == {"commit": "a" * 40, "modified": False}
    assert result["device"]["name"]
    assert result["device"]["threads"] == 1
    assert result["versions"]["torch"] == torch.__version__
    assert {"python", "torch", "numpy", "spatial_transformer"} <= set(result["versions"])
    assert result["settings"]["tolerance"] == measure.TOLERANCE
    assert [case["name"] for case in result["cases"]] == [case.name for case in CPU_CASES]


def test_a_run_records_every_number(result: dict[str, Any]) -> None:
    for case in result["cases"]:
        assert case["output"] == case["image"]
        assert case["theta"][0] == case["image"][0]
        assert list(case["contenders"]) == result["contenders"]
        for name, found in case["contenders"].items():
            assert found["wrong"] is None
            if found["absent"]:  # an extra that is not installed
                assert name.startswith(FUSED)
                assert all(found[kind] is None for kind in measure.PASSES)
                continue
            assert set(found["errors"]) == {"output", "image's gradient", "theta's gradient"}
            dtype = CONTENDERS[name].dtype or torch.float32
            assert all(0 < error < measure.tolerance(dtype) for error in found["errors"].values())
            for kind in measure.PASSES:
                got = found[kind]
                low, high = got["quartiles"]
                assert 0 < low <= got["median"] <= high
                assert got["rounds"] == 2
                assert got["processes"] == [got["median"]]
                assert got["memory"] > 0 or name.startswith(FUSED)  # which may need nothing beyond
                if name == PEER:
                    assert got["speed"] is got["against"] is None
                else:
                    assert got["against"] == (PEER if name in (TORCH, FUSED) else FUSED)
                    peer = case["contenders"][got["against"]][kind]
                    assert got["speed"] == pytest.approx(peer["median"] / got["median"])
                    assert got["interval"][0] <= got["speed"] <= got["interval"][1]


def test_the_table_has_a_row_for_each_case_and_pass(
    result: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "cpu.json"
    record.write(result, path)
    table.main([str(path)])
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    rows = rows[: 2 + len(CPU_CASES) * len(measure.PASSES)]  # those of the first table
    assert {len(row) for row in rows} == {10}
    assert rows[0][4] == 'impl="fused", ms'
    found = result["cases"][1]["contenders"][TORCH]["forward"]
    row = rows[2 + 2]
    assert row[:2] == ["2 x 1 x 16 x 16", "forward"]
    assert row[3].startswith(table.milliseconds(found["median"]))
    assert row[5].startswith(f"{found['speed']:.2f} (")
    assert row[8] == f"{found['memory'] / 1e6:.2f}"
    assert any("smoke run" in line for line in lines)


def test_half_precision_has_a_table_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divided by the same implementation in float32, on inputs rounded alike."""
    plain = library("torch")
    for name in run.SUITES["cpu"].contenders:
        if name.startswith(FUSED):
            monkeypatch.setitem(CONTENDERS, name, CONTENDERS[name]._replace(make=plain))
    result = run.run("cpu", measure.QUICK, chosen=["256x1x28x28"], quick=True)
    (case,) = result["cases"]
    for name in (f"{FUSED}, bfloat16", f"{FUSED}, float16"):
        found = case["contenders"][name]
        assert found["wrong"] is None
        ratio = case["contenders"][FUSED]["forward"]["median"] / found["forward"]["median"]
        assert found["forward"]["speed"] == pytest.approx(ratio)
    first, second = table.tables(result)
    assert first[0][2:5] == ["PyTorch, ms", 'impl="torch", ms', 'impl="fused", ms']
    assert second[0][2:7] == [
        'impl="fused", ms',
        'impl="fused", bfloat16, ms',
        'impl="fused", float16, ms',
        'speed of impl="fused", bfloat16',
        'speed of impl="fused", float16',
    ]
    assert len(second[1]) == len(measure.PASSES)
    assert "speed is a table's first contender's median" in table.markdown(result)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.00012344, "0.123"), (0.0012344, "1.23"), (0.0999, "99.9"), (1.2344, "1234")]
)
def test_times_have_three_digits(seconds: float, shown: str) -> None:
    assert table.milliseconds(seconds) == shown


def test_a_failed_write_leaves_the_last_result(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    record.write({"cases": []}, path)
    with pytest.raises(TypeError):
        record.write({"cases": object()}, path)
    assert json.loads(path.read_text()) == {"cases": []}
    assert [file.name for file in tmp_path.iterdir()] == ["cpu.json"]


def test_a_result_is_saved_after_every_case() -> None:
    """A machine can be taken away at any time."""
    saved = []
    run.run(
        "cpu", measure.QUICK, chosen=["256*", "32x*"], quick=True, save=lambda r: saved.append(json.dumps(r))
    )
    found = [json.loads(one) for one in saved]
    assert [(len(one["cases"]), one["finished"]) for one in found] == [(1, False), (2, False), (2, True)]
    assert "cut short" in table.text(found[0])
    assert "cut short" not in table.text(found[-1])


# What it refuses


def fails(image: Tensor, theta: Tensor) -> Tensor:
    raise RuntimeError("cannot run")


@pytest.mark.parametrize(
    ("contender", "reason"),
    [
        (lambda image, theta: 1.002 * pytorch(image, theta), "output is off by 2.0e-03"),
        (
            lambda image, theta: pytorch(1.002 * image - 0.002 * image.detach(), theta),
            "image's gradient is off",
        ),
        (
            lambda image, theta: pytorch(image, 1.002 * theta - 0.002 * theta.detach()),
            "theta's gradient is off",
        ),
        (lambda image, theta: pytorch(image, theta) * torch.nan, "output is off by nan"),
        (lambda image, theta: pytorch(image, theta.detach()), "RuntimeError: "),
        (fails, "RuntimeError: cannot run"),
    ],
    ids=["output", "image gradient", "theta gradient", "nan", "no gradient", "raises"],
)
def test_a_wrong_contender_gets_no_speed(contender: Function, reason: str) -> None:
    found = measured({PEER: pytorch, "wrong": contender})
    assert found["wrong"]["wrong"].startswith(reason)
    assert all(found["wrong"][kind] is None for kind in measure.PASSES)
    json.dumps(found, allow_nan=False)
    assert found[PEER]["wrong"] is None
    assert all(found[PEER][kind]["median"] > 0 for kind in measure.PASSES)


def test_a_wrong_contender_stays_in_the_table(result: dict[str, Any]) -> None:
    found = measured({PEER: pytorch, "wrong": fails})
    case = {"name": SMALL.name, "image": list(SMALL.shape), "contenders": found}
    against = {PEER: [], "wrong": [PEER]}
    shown = table.text({**result, "contenders": list(found), "against": against, "cases": [case, case]})
    assert shown.count("  wrong  ") == 2 * len(measure.PASSES)
    assert "2x3x9x11, wrong: no speed, RuntimeError: cannot run." in shown


def test_nothing_is_divided_by_a_wrong_peer() -> None:
    found = measured({PEER: fails, "right": pytorch})
    assert found["right"]["forward"]["median"] > 0
    assert found["right"]["forward"]["speed"] is None


def test_the_fastest_peer_that_is_right_divides(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {PEER: 1.0, "wrong": 0.1, "fast": 2.0, "slow": 3.0, "ours": 0.5}
    functions = {name: lambda image, theta: pytorch(image, theta) for name in seconds}
    functions["wrong"] = lambda image, theta: 2 * pytorch(image, theta)
    times = {name: [value] * 2 for name, value in seconds.items()}
    monkeypatch.setattr(measure, "interleaved", lambda *_, **__: measure.Times(times, 0, None, {}))
    found = measured(functions, against=("wrong", "slow", "fast"))
    assert found["ours"]["forward"]["against"] == "fast"
    assert found["ours"]["forward"]["speed"] == 4.0


def test_one_that_cannot_be_timed_is_out() -> None:
    """Such as one that breaks a graph's capture: the others go on."""

    prepared = iter([True, True, True, False])  # the second contender's backward pass fails

    def prepare(way: str, calls: Any) -> measure.Turn:
        if not next(prepared):
            raise RuntimeError("capture failed")
        return cpu.prepare(way, calls)

    found = measured({PEER: pytorch, "second": pytorch}, device=cpu.DEVICE._replace(prepare=prepare))
    assert found["second"]["wrong"] == "RuntimeError: capture failed"
    assert all(found["second"][kind] is None for kind in measure.PASSES)
    assert all(found[PEER][kind]["median"] > 0 for kind in measure.PASSES)


def test_what_is_not_installed_is_not_wrong(result: dict[str, Any]) -> None:
    def absent(image: Tensor, theta: Tensor) -> Tensor:
        raise RuntimeError('impl="fused" cannot run here: Numba is not installed')

    found = measured({PEER: pytorch, "absent": absent})
    assert found["absent"]["wrong"] is None
    assert found["absent"]["absent"].endswith("Numba is not installed")
    case = {"name": SMALL.name, "image": list(SMALL.shape), "contenders": found}
    contenders = {"contenders": list(found), "against": {PEER: [], "absent": [PEER]}}
    assert table.tables({**result, **contenders, "cases": [case]}) == []
    assert "Numba is not installed" in table.text({**result, **contenders, "cases": [case]})


@pytest.mark.parametrize(
    ("function", "right"),
    [
        (lambda image, theta: pytorch(image.float(), theta).to(image.dtype), True),
        (lambda image, theta: 1.005 * pytorch(image.float(), theta), False),
        (lambda image, theta: pytorch(image.float(), theta + (rounded(theta) - theta).detach()), False),
        (lambda image, theta: pytorch(image, theta), False),  # refused: reads outside of the image
    ],
    ids=["rounded once", "a per cent off", "theta rounded", "half grid_sample on the CPU"],
)
def test_half_precision_may_round_once(function: Function, right: bool) -> None:
    wrong = measured({PEER: pytorch, "half": function}, dtype=torch.bfloat16)["half"]["wrong"]
    assert (wrong is None) == right, wrong


def test_the_truth_is_that_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(Case((5, 2, 7, 6)))
    whole = measure.exact(truth(SMALL._replace(shape=(5, 2, 7, 6)), "cpu"), given)
    monkeypatch.setattr(measure, "AT_ONCE", 2 * 2 * 7 * 6)
    for one, other in zip(measure.exact(truth(Case((5, 2, 7, 6)), "cpu"), given), whole, strict=True):
        assert torch.equal(one, other)


def test_the_runner_fails_where_a_contender_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    arguments = ["--quick", "--cases", "256x1x28x28"]
    assert run.main(arguments) == 0
    for name, status in ((TORCH, 1), (PEER, 0)):  # a mistake of PyTorch's is not ours
        with monkeypatch.context() as patch:
            patch.setitem(CONTENDERS, name, Contender(lambda case, device: fails))
            assert run.main(arguments) == status
    assert "no speed" in capsys.readouterr().out


def test_unknown_cases_are_named(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        run.main(["--quick", "--cases", "256x1x28x28", "3x3"])
    assert "got 3x3" in capsys.readouterr().err


# How it times


def test_who_goes_first_alternates() -> None:
    turns = []

    def call(name: str) -> tuple[Tensor, ...]:
        turns.append(name)
        return ()

    calls = {name: partial(cpu.turn, partial(call, name)) for name in "abc"}
    times = measure.interleaved(calls, measure.QUICK._replace(rounds=3), lambda: None)
    assert "".join(turns) == "abc" + "abc" + "cba" + "abc"  # once to warm up
    turns.clear()
    measure.interleaved(calls, measure.QUICK, lambda: None, first=1)  # as a second process does
    assert "".join(turns) == "abc" + "cba" + "abc"
    assert all(len(seconds) == 3 for seconds in times.seconds.values())


def test_a_turn_gives_the_time_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(cpu.time, "perf_counter", lambda: float(next(clock)))
    assert cpu.turn(lambda: (), least=4.0) == 1.0


@pytest.mark.parametrize("load", [0.0, 1.0])
def test_disturbed_rounds_do_not_count(monkeypatch: pytest.MonkeyPatch, load: float) -> None:
    """A machine on which a process runs during the first three rounds (load 1), by a clock of our own."""
    now = busy = 0.0

    def call() -> tuple[Tensor, ...]:
        nonlocal now, busy
        disturbed = load > 0 and now < 6.5
        now += 2.0 if disturbed else 1.0
        busy += 2.0 * load if disturbed else 0.0
        return ()

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now)
    turns = {"a": partial(cpu.turn, call)}
    effort = measure.Effort(rounds=4, seconds=0.0, patience=100.0, turn=0.5)
    times = measure.interleaved(turns, effort, lambda: busy)
    assert times.seconds == {"a": [1.0] * 4}
    assert times.dropped == 3 * load
    assert times.others == 0.0
    now = busy = 0.0
    times = measure.interleaved(
        turns, effort._replace(patience=0.0), lambda: busy
    )  # no time to wait for peace
    assert times.dropped == 0
    assert times.others == pytest.approx(0.75 * load)


def test_speed_is_the_peers_time_over_ours() -> None:
    ours = [[1.0, 1.1, 0.9], [1.0, 1.05]]
    ratio, (low, high) = measure.speed([[2 * seconds for seconds in rounds] for rounds in ours], ours)
    assert ratio == low == high == 2.0  # what load both share cancels
    ratio, (low, high) = measure.speed([[0.5, 0.4, 0.6], [0.5, 0.7]], ours)  # a loss is a loss
    assert ratio == 0.5
    assert low < ratio < high


def test_the_interval_spans_the_luck_of_processes() -> None:
    """Many rounds that agree within each process are no certainty where processes disagree."""
    ours = [[1.0] * 20] * 4
    _, (low, high) = measure.speed([[1.0] * 20, [2.0] * 20, [2.0] * 20, [3.0] * 20], ours)
    assert (low, high) == (1.0, 3.0)


def test_each_process_is_a_fresh_one(monkeypatch: pytest.MonkeyPatch) -> None:
    effort = measure.QUICK._replace(processes=2, rounds=1)
    suite = run.SUITES["cpu"]
    found = run.timings(SMALL, suite, effort, cpu.DEVICE, {}, [PEER])
    assert [list(process) for process in found] == [list(measure.PASSES)] * 2
    assert all(len(process["forward"].seconds[PEER]) == 1 for process in found)
    monkeypatch.setitem(CONTENDERS, "known here alone", Contender(make_pytorch))
    with pytest.raises(KeyError):  # a fork of this process would know it too
        run.timings(SMALL, suite, effort._replace(processes=1), cpu.DEVICE, {}, ["known here alone"])


# How it counts memory


def floats(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.float32)


def test_the_meter_counts_what_is_freed_again() -> None:
    def call() -> tuple[Tensor, ...]:
        first = floats(1000)
        second = floats(500)
        del first
        last = floats(100)
        del second
        return (last,)

    # At most 1500 numbers at once, 100 of which the result would have needed anyway.
    assert cpu.peak(call) == 4 * (1000 + 500 - 100)


@pytest.mark.parametrize("beyond", [0, 1, 12345])
def test_the_meter_counts_what_lives_beside_the_result(beyond: int) -> None:
    def call() -> tuple[Tensor, ...]:
        kept, extra = floats(777), floats(beyond)
        result = floats(1000)
        del extra
        return result, kept, result[:10]  # a view is no second result

    assert cpu.peak(call) == 4 * beyond


def test_the_meter_counts_whatever_else_is_alive() -> None:
    alive = [floats(5000)]

    def call() -> tuple[Tensor, ...]:
        alive.append(floats(10))  # what is kept counts
        floats(300)
        return ()

    assert cpu.peak(call) == 4 * (10 + 300)


def test_the_meter_gives_the_same_every_time() -> None:
    call = measure.forward_backward(pytorch, inputs(SMALL))
    assert len({cpu.peak(call) for _ in range(3)}) == 1


# What it feeds


@pytest.mark.parametrize("dims", [2, 3])
def test_thetas_stay_near_the_identity(dims: int) -> None:
    matrix = near_identity(500, dims, torch.Generator().manual_seed(0)).unflatten(1, (dims, dims + 1))
    shift, scales = matrix[..., -1], matrix[..., :-1].norm(dim=1)  # rotations keep the columns' lengths
    assert 0.19 < shift.abs().max() <= 0.2
    assert 0.8 <= scales.min() < 0.81
    assert 1.19 < scales.max() <= 1.2 + 1e-6
    if dims == 2:
        angles = torch.atan2(matrix[:, 1, 0], matrix[:, 0, 0]).rad2deg().abs()
        assert 29 < angles.max() <= 30


def test_inputs_are_the_same_every_time() -> None:
    assert all(torch.equal(a, b) for a, b in zip(inputs(SMALL), inputs(SMALL), strict=True))
