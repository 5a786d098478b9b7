"""The benchmarks' suite for a GPU: its cases, floors and goals, and a whole run with the CPU in its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import rounded
from torch import Tensor

from benchmarks import cpu, cuda, measure, record, run, table
from benchmarks.goals import Goal, floors, traffic, verdicts
from benchmarks.suites import CAST, COMPILED, CONTENDERS, FUSED, GPU_CASES, PEER, Case, inputs, library, truth
from benchmarks.suites import pytorch as make_pytorch

pytestmark = pytest.mark.usefixtures("one_thread")


# Its cases, on whatever there is


def names(cases: tuple[Case, ...]) -> list[str]:
    return [case.name for case in cases]


def test_gpu_cases_have_names_and_goals() -> None:
    assert len(set(names(GPU_CASES))) == len(GPU_CASES) == 32
    assert all(len(case.goals) == len(measure.PASSES) for case in GPU_CASES)
    assert all(case.way in cuda.WAYS for case in GPU_CASES)
    assert {
        "256x1x60x60-graph",
        "256x1x28x28-python-bfloat16",
        "64x3x448x448-to-224x224",
        "512x64x32x32-channels-last",
        "16x1x60x60x60-bfloat16",
        "spline-64x3x448x448-to-224x224",
    } < set(names(GPU_CASES))


@pytest.mark.parametrize("case", GPU_CASES, ids=names(GPU_CASES))
def test_what_gpu_contenders_are_fed(case: Case) -> None:
    given = inputs(case.shrunk())
    layout = torch.channels_last if case.channels_last else torch.contiguous_format
    for tensor in (given.image, given.cotangent):
        assert tensor.dtype == case.dtype
        assert tensor.is_contiguous(memory_format=layout)
        assert tensor.is_contiguous() == (not case.channels_last)
    assert given.theta.dtype == torch.float32
    assert given.image.shape == case.shrunk().shape
    assert given.cotangent.shape == case.shrunk().out_shape


@pytest.mark.parametrize("case", GPU_CASES[:16], ids=names(GPU_CASES[:16]))
def test_pytorch_is_right_in_every_gpu_case(case: Case) -> None:
    """The contenders that the library is divided by do the same work: affine, spline, 3D, other sizes."""
    small = case.shrunk()
    given = inputs(small)
    expected = measure.exact(truth(small, "cpu"), given)
    found = measure.forward_backward(make_pytorch(small, "cpu"), given)()
    assert [part.shape for part in found] == [given.cotangent.shape, given.image.shape, given.theta.shape]
    assert measure.why_wrong(measure.errors(found, expected)) is None
    halves = given.cast(torch.bfloat16)
    expected = measure.exact(truth(small, "cpu"), halves)
    found = measure.forward_backward(CONTENDERS[CAST].make(small, "cpu"), halves)()
    assert found[0].dtype == found[1].dtype == torch.bfloat16
    assert measure.why_wrong(measure.errors(found, expected), measure.tolerance(torch.bfloat16)) is None


@pytest.mark.parametrize(
    "case", [Case((2, 1, 28, 28)), Case((2, 2, 224, 224)), Case((1, 1, 60, 60, 60))], ids=str
)
def test_a_half_precision_grid_is_found_wrong(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU's grid_sample does with one, rounded here to the same and read in float32."""
    read = torch.nn.functional.grid_sample

    def grid_sample(image: Tensor, grid: Tensor, **options: Any) -> Tensor:
        return read(image, grid + (rounded(grid) - grid).detach(), **options)

    monkeypatch.setattr(torch.nn.functional, "grid_sample", grid_sample)
    given = inputs(case).cast(torch.bfloat16)
    found = measure.forward_backward(CONTENDERS[CAST].make(case, "cpu"), given)()
    errors = measure.errors(found, measure.exact(truth(case, "cpu"), given))
    assert measure.why_wrong(errors, measure.tolerance(torch.bfloat16)) is not None


def test_spline_thetas_bend() -> None:
    given = inputs(Case((200, 1, 8, 8), family="spline"))
    straight = torch.linalg.lstsq(
        torch.cat([spline_lattice(), torch.ones(16, 1)], 1).expand(200, -1, -1),
        given.theta.unflatten(1, (16, 2)),
    ).solution
    assert straight[:, :2].square().sum(1).sqrt().mean() == pytest.approx(1.0, abs=0.05)  # scales
    left = given.theta.unflatten(1, (16, 2)) - torch.cat([spline_lattice(), torch.ones(16, 1)], 1) @ straight
    assert 0.02 < left.abs().mean() < 0.03  # uniform within 0.05, less what is affine of it
    assert left.abs().max() < 0.1


def spline_lattice() -> Tensor:
    along = torch.linspace(-1, 1, 4)
    return torch.stack([along.repeat(4), along.repeat_interleave(4)], dim=1)


# Floors and goals


def test_traffic_counts_each_byte_once() -> None:
    megabyte = 4 * 16 * 3 * 1024 * 1024
    square = (16, 3, 1024, 1024)
    assert traffic(square, square, 4) == {"forward": 2 * megabyte, "forward + backward": 5 * megabyte}
    assert traffic(square, square, 2)["forward"] == megabyte
    # an output half as long along each axis looks at all of the image, one a quarter as long at a quarter
    assert traffic((1, 1, 8, 8), (1, 1, 4, 4), 1) == {"forward": 64 + 16, "forward + backward": 64 + 16 + 144}
    assert traffic((1, 1, 8, 8), (1, 1, 2, 2), 1) == {
        "forward": 16 + 4,
        "forward + backward": 20 + 4 + 16 + 64,
    }
    assert traffic((1, 1, 8, 8, 8), (1, 1, 2, 2, 2), 1)["forward"] == 64 + 8


def test_floors_are_those_of_the_design() -> None:
    """Milliseconds at 4.26 TB/s, as first measured."""
    wanted = {"64x3x224x224": 0.018, "64x3x448x448-to-224x224": 0.045, "16x3x1024x1024": 0.095}
    for case in GPU_CASES:
        if case.name in wanted:
            found = floors(case.shape, case.out_shape, 4, 4.26e12)["forward"]
            assert found * 1e3 == pytest.approx(wanted[case.name], rel=0.02)


@pytest.mark.parametrize(
    ("goal", "numbers", "expected"),
    [
        (Goal(speed=8), (8.0, 9.0, 0.01), {"8x": True, "5% memory": True}),
        (Goal(speed=8), (7.9, 1.0, 0.05), {"8x": False, "5% memory": False}),
        (Goal(speed=8), (None, 1.0, 0.0), {"8x": None, "5% memory": True}),
        (Goal(floor=2.5), (0.5, 2.5, 0.0), {"2.5x floor": True, "5% memory": True}),
        (Goal(speed=25, floor=4), (30.0, 4.1, 0.0), {"25x": True, "4x floor": False, "5% memory": True}),
        (Goal(speed=25, floor=4), None, {"25x": False, "4x floor": False, "5% memory": False}),
    ],
)
def test_goals(goal: Goal, numbers: Any, expected: dict[str, bool | None]) -> None:
    keys = ("speed", "times_floor", "memory_share")
    found = None if numbers is None else dict(zip(keys, numbers, strict=True))
    assert verdicts(goal, found) == expected


# A whole run of the GPU's suite, with the CPU in its place


@pytest.fixture(scope="module")
def gpu_result(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("gpu") / "gpu.json"
    stand_in = cuda.DEVICE._replace(
        tensors="cpu",
        why_not=lambda: None,
        describe=lambda: {"type": "cuda", "name": "a stand-in"},
        sets=lambda inputs: 3,
        prepare=cpu.prepare,
        peak=cpu.peak,
        copy_rate=lambda: 1e12,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(run.DEVICES, "cuda", stand_in)
        patch.setitem(CONTENDERS, FUSED, CONTENDERS[FUSED]._replace(make=library("torch")))
        patch.setattr(torch, "compile", lambda function, **options: function)
        status = run.main(["--suite", "gpu", "--quick", "--out", str(path)])
    assert status == 0  # PyTorch's mistakes are not ours
    found: dict[str, Any] = json.loads(path.read_text(), parse_constant=pytest.fail)
    return found


def test_every_gpu_case_runs(gpu_result: dict[str, Any]) -> None:
    assert [case["name"] for case in gpu_result["cases"]] == names(GPU_CASES)
    assert gpu_result["device"]["copy_rate"] == 1e12
    for case, given in zip(gpu_result["cases"], GPU_CASES, strict=True):
        found = case["contenders"]
        assert (CAST in found) == (case["dtype"] == "bfloat16")
        assert (COMPILED in found) == given.compiled
        eager = PEER if case["dtype"] == "float32" else CAST
        if eager == CAST:
            assert found[PEER]["wrong"]
        for kind in measure.PASSES:
            got = found[FUSED][kind]
            assert got["against"] == eager
            assert got["speed"] == pytest.approx(found[eager][kind]["median"] / got["median"])
            assert got["times_floor"] == pytest.approx(got["median"] / case["floor"][kind])
            output = torch.tensor(case["output"]).prod() * given.dtype.itemsize
            assert got["memory_share"] == pytest.approx(got["memory"] / float(output))
            assert case["goals"][kind] == verdicts(given.goals[list(measure.PASSES).index(kind)], got)


def test_the_gpu_table(gpu_result: dict[str, Any], tmp_path: Path) -> None:
    path, document = tmp_path / "gpu.json", tmp_path / "README.md"
    record.write(gpu_result, path)
    document.write_text(f"a\n<!-- {path.as_posix()}, rendered -->\nold\n<!-- end -->\nb\n")
    table.main([str(path), "--into", str(document)])
    lines = document.read_text().splitlines()
    assert "old" not in lines
    assert (lines[0], lines[-1]) == ("a", "b")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert len(rows) == 2 + 2 * len(GPU_CASES)
    assert {len(row) for row in rows} == {11}

    def row(name: str, kind: str = "forward") -> list[str]:
        return rows[2 + 2 * names(GPU_CASES).index(name) + list(measure.PASSES).index(kind)]

    photographs = row("64x3x224x224")
    assert photographs[:3] == ["2 x 3 x 16 x 16", "float32", "forward"]
    found = next(case for case in gpu_result["cases"] if case["name"] == "64x3x224x224")["contenders"]
    medians = [found[name]["forward"]["median"] for name in (PEER, COMPILED, FUSED)]
    assert photographs[3:6] == [table.milliseconds(median) for median in medians]
    assert photographs[6].startswith(f"{medians[0] / medians[2]:.2f} (")
    assert photographs[7] == f"{medians[1] / medians[2]:.2f}"
    spline = row("spline-64x3x448x448-to-224x224-bfloat16", "forward + backward")
    assert spline[:3] == ["spline, 2 x 3 x 16 x 16 -> 8 x 8", "bfloat16", "forward + backward"]
    assert row("64x64x56x56-channels-last")[0] == "2 x 4 x 16 x 16, channels last"
    assert row("256x1x60x60-graph")[0] == "2 x 1 x 16 x 16, in a CUDA graph"
    stepwise = row("256x1x28x28-python-bfloat16")
    assert stepwise[0] == "2 x 1 x 16 x 16, from Python"
    assert stepwise[3].endswith(" (cast)")
    assert stepwise[4] == stepwise[7] == "-"  # not compiled there
    assert any(f"16 cases, {PEER}: no speed; " in line for line in lines)
    assert any(
        "Goals met: " in line and " of 130," in line for line in lines
    )  # 64 rows, two have two of speed


def test_goals_in_the_table() -> None:
    assert table.goal_cell({"8x": True, "5% memory": True}) == "8x met"
    assert table.goal_cell({"25x": False, "4x floor": True, "5% memory": True}) == "25x missed, 4x floor met"
    assert table.goal_cell({"8x": None, "5% memory": False}) == "8x not known, 5% memory missed"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_its_suite_says_so(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        run.main(["--suite", "gpu", "--quick"])
    assert "there is no CUDA device" in capsys.readouterr().err
