"""The benchmark of the convolutions: every contender computes the same, and what is wrong gets no time."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("triton")

from benchmarks import convolution_blocks, convolutions
from spatial_transformer.experiments import house_numbers

CUDA = torch.cuda.is_available()
pytestmark = [pytest.mark.usefixtures("one_thread"), *([pytest.mark.gpu] if CUDA else [])]


@pytest.mark.slow
@pytest.mark.parametrize("only", ["conv1 14", "conv2 5", "conv1 42", "conv8"])
def test_every_contender_is_right_and_timed(only, tmp_path, capsys):
    path = tmp_path / "convolutions.json"
    device = "cuda" if CUDA else "cpu"
    assert convolutions.main(["--quick", "--device", device, "--only", only, "--out", str(path)]) == 0
    result = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert result["cases"]
    table = capsys.readouterr().out
    for case in result["cases"]:
        assert len(case["contenders"]) == (6 if case["inputs"] > 8 and not case["padding"] else 4)
        for name, found in case["contenders"].items():
            assert found["wrong"] is None, name
            assert found["forward"]["median"] > 0
            assert f"{found['forward + backward']['median'] * 1e6:.1f}" in table


def test_what_is_wrong_gets_no_time(monkeypatch):
    """A filter that is shifted by a pixel."""

    def off(case, method, image, weight, bias):
        return convolutions.one_channel(image, weight.roll(1, -1), bias)

    monkeypatch.setattr(convolutions, "ours", off)
    case = convolutions.smaller(next(case for case in convolutions.CASES if case.size == 14))
    device = "cuda" if CUDA else "cpu"
    found = convolutions.run(device, convolutions.QUICK, [case])["cases"][0]["contenders"]
    assert found["ours, one channel"]["wrong"]
    assert "forward" not in found["ours, one channel"]
    assert found["float32"]["wrong"] is None


def test_the_cases_are_those_of_the_networks():
    sizes = {(case.name, case.size) for case in convolutions.CASES}
    assert {("conv1", size) for size in (28, 42, 60)} <= sizes
    assert {("conv2", (size - 8) // 2) for size in (28, 42, 60)} <= sizes
    assert {("localiser's conv1", size // 2) for size in (28, 42, 60)} <= sizes
    assert {("localiser's conv2", (size // 2 - 4) // 2) for size in (28, 42, 60)} <= sizes
    padding = [case for case in convolutions.CASES if case.padding]
    maps = house_numbers.maps(64, house_numbers.FILTERS)
    assert [(case.inputs, case.size) for case in padding] == maps[:-1]
    assert [case.filters for case in padding] == list(house_numbers.FILTERS)
    assert [number for number, case in enumerate(padding) if case.pool == 2] == list(house_numbers.POOLED)


@pytest.mark.skipif(CUDA, reason="there is a CUDA device")
def test_without_a_gpu_it_says_so(capsys):
    with pytest.raises(SystemExit):
        convolutions.main([])
    assert "there is no CUDA device" in capsys.readouterr().err


def test_cases_have_kernels_whose_blocks_can_be_tried():
    """But for those of a few channels and those that pad, whose products are libraries'."""
    for case in convolutions.CASES:
        wanted = case.inputs not in (2, 3) and not case.padding
        assert convolution_blocks.has_blocks(case) == wanted
        assert f"ours, {case.methods[0]}" in convolutions.contenders(case)


@pytest.mark.parametrize(("inputs", "names"), [(1, convolution_blocks.ONE), (9, convolution_blocks.MANY)])
def test_other_blocks_give_the_same(inputs, names, monkeypatch):
    """Every few of those that are tried: blocks are no part of what is computed."""
    kernels = convolution_blocks.fast_convolutions.kernels()
    case = convolutions.Case("conv", inputs, 40, 3, 6 if inputs > 1 else 12, batch=2)
    device = "cuda" if CUDA else "cpu"
    given = convolutions.inputs(case, device)
    contender = "ours, one channel" if inputs == 1 else "ours, implicit"
    layer = convolutions.contenders(case)[contender]

    def found():
        return convolutions.call(case, contender, layer, given, True)()

    wanted = found()
    for name in names:
        now = getattr(kernels, name)
        tried = list(convolution_blocks.candidates(name, now))
        assert now in tried
        for blocks in (tried[0]._replace(filters=2 * now.filters), *tried[::5]):
            monkeypatch.setattr(kernels, name, blocks)
            for got, want in zip(found(), wanted, strict=True):
                assert (got.double() - want.double()).norm() <= 1e-3 * want.double().norm()
        monkeypatch.setattr(kernels, name, now)


@pytest.mark.skipif(CUDA, reason="there is a CUDA device")
def test_blocks_without_a_gpu(capsys):
    with pytest.raises(SystemExit):
        convolution_blocks.main([])
    assert "there is no CUDA device" in capsys.readouterr().err
