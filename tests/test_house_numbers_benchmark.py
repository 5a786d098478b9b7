"""The benchmark of house numbers: what is compared, and that a wrong result gets no time."""

from __future__ import annotations

import json
import time

import pytest
import torch

pytest.importorskip("numba")

from benchmarks import house_numbers as benchmark
from spatial_transformer.experiments import house_numbers
from spatial_transformer.experiments.data.random_numbers import RandomNumbers

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"filters": [4] * 8, "units": [16]}


def test_what_is_measured(tmp_path, capsys):
    path = tmp_path / "result.json"
    assert benchmark.main(["--quick", "--out", str(path)]) == 0
    result = json.loads(path.read_text(), parse_constant=pytest.fail)
    (case,) = result["cases"]
    assert (case["size"], case["precision"], case["way"]) == (32, "float32", "eager")
    assert set(case["milliseconds"]) == {
        "CNN", "ST-CNN Single", "ST-CNN Multi", "ST-CNN Single, grid_sample", "ST-CNN Multi, grid_sample",
    }  # fmt: skip
    for by_layout in case["milliseconds"].values():
        assert set(by_layout) == {"contiguous", "channels last"}
        assert all(value > 0 for value in by_layout.values())
    capsys.readouterr()


def test_a_run_that_is_cut_short_leaves_what_it_had(tmp_path, monkeypatch):
    cases = iter([{"CNN": {"contiguous": 2.0}}, KeyboardInterrupt])

    def measured(*given):
        found = next(cases)
        if found is KeyboardInterrupt:
            raise found
        return found

    growing = benchmark.run("cpu", sizes=[32, 64], batch=2, **SMALL)
    monkeypatch.setattr(benchmark, "measured", measured)
    monkeypatch.setattr(benchmark, "run", lambda *given, **options: growing)
    path = tmp_path / "result.json"
    with pytest.raises(KeyboardInterrupt):
        benchmark.main(["--quick", "--out", str(path)])
    (case,) = json.loads(path.read_text())["cases"]
    assert (case["size"], case["milliseconds"]) == (32, {"CNN": {"contiguous": 2.0}})


def test_what_the_claim_is_of_comes_first(monkeypatch):
    """Each size is built once; float32 in a graph, then called from Python, at both sizes."""
    built, given = [], []
    monkeypatch.setattr(benchmark, "device_of", lambda device: {"name": device})
    monkeypatch.setattr(benchmark, "prepared", lambda size, *rest, **widths: built.append(size) or size)
    monkeypatch.setattr(benchmark, "measured", lambda *those: given.append(those[:3]) or {})
    *_, result = benchmark.run("cuda", sizes=[64, 128])
    assert built == [64, 128]
    assert given[:4] == [(size, "float32", way) for way in ("graph", "eager") for size in (64, 128)]
    cases = [(case["size"], case["precision"], case["way"]) for case in result["cases"]]
    assert cases == given
    assert len(set(cases)) == 16


def test_the_table():
    """The faster layout counts."""
    names = (
        "CNN",
        "ST-CNN Single",
        "ST-CNN Multi",
        "ST-CNN Single, grid_sample",
        "ST-CNN Multi, grid_sample",
    )
    times = {
        name: {"contiguous": 9.0, "channels last": value}
        for name, value in zip(names, (4.0, 4.1, 4.2, 4.4, 5.0), strict=True)
    }
    case = {"size": 64, "precision": "bfloat16", "way": "graph", "milliseconds": times}
    other = {name: {"contiguous": value["channels last"] - 2} for name, value in times.items()}
    result = {
        "cases": [case, {**case, "size": 128, "milliseconds": other}],
        "batch": 128, "device": {"name": "a device"}, "versions": {"torch": "2"}, "date": "2026-01-01T00",
    }  # fmt: skip
    lines = benchmark.markdown(result).splitlines()
    assert lines[2] == (
        "| 64 | bfloat16 | graph | 4.00 | 4.10 (+2.5 %) | 4.20 (+5.0 %) | 4.40 (+10.0 %) | 5.00 (+25.0 %) |"
    )
    assert "ST-CNN Multi: +5.0 to +10.0 %, with grid_sample +25.0 to +50.0 %; the paper's: +6 %." in lines[-2]
    assert lines[-1] == "Batch 128; a device, torch 2, 2026-01-01."


@pytest.mark.parametrize("model", house_numbers.MODELS[1:])
def test_both_networks_compute_the_same(model):
    """The same parameters, scores and gradients; one of them has no warp of ours."""
    networks = [benchmark.network_of(name, 32, "cpu", **SMALL) for name in (model, model + benchmark.PLAIN)]
    for one, other in zip(*(each.state_dict().items() for each in networks), strict=True):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1])
    images = house_numbers.normalised(torch.randint(256, (3, 3, 32, 32)))
    labels = torch.randint(11, (3, 5))
    found = [benchmark.forward_backward(each, images, labels, "float32")() for each in networks]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert all(part.abs().max() > 0 for part in found[0])
    assert len(networks[1].transformers) == {"ST-CNN Single": 1, "ST-CNN Multi": 4}[model]
    assert all(isinstance(each, benchmark.GridSample) for each in networks[1].transformers)


def test_what_is_trained_is_measured_too(monkeypatch):
    network = benchmark.network_of("ST-CNN Multi", 32, "cpu", **SMALL)
    images, labels = torch.randn(2, 3, 32, 32), torch.zeros(2, 5, dtype=torch.int64)
    made = []
    monkeypatch.setattr(benchmark, "fast", lambda given: made.append(given) or given)
    found = {
        precision: benchmark.forward_backward(network, images, labels, precision)()[0]
        for precision in benchmark.PRECISIONS
    }
    assert made == [network]  # in one of them
    assert found["float32"] == found["tf32"]
    assert found["bfloat16"] == found[benchmark.FAST] != found["float32"]


def test_rounds_have_calls_enough_and_no_more():
    calls = {"slow": [], "quick": []}

    def slow():
        calls["slow"].append(time.sleep(1.5 * benchmark.ROUND))

    found = benchmark.milliseconds({"slow": slow, "quick": lambda: calls["quick"].append(1)}, "cpu", 20)
    assert {name: len(made) - benchmark.WARM - 1 for name, made in calls.items()} == {
        "slow": benchmark.ROUNDS, "quick": 20 * benchmark.ROUNDS,
    }  # fmt: skip
    assert found["slow"] > 1000 * benchmark.ROUND > found["quick"]


def test_dropout_is_part_of_it():
    network = benchmark.network_of("CNN", 32, "cpu", **SMALL)
    images, labels = torch.randn(2, 3, 32, 32), torch.zeros(2, 5, dtype=torch.int64)
    call = benchmark.forward_backward(network, images, labels, "float32")
    wanted = house_numbers.losses(network(images, RandomNumbers(0)), labels).mean()
    assert call()[0] == wanted
    assert call()[0] != wanted  # drawn on


def test_a_wrong_warp_gets_no_time(monkeypatch):
    networks = {name: benchmark.network_of(name, 32, "cpu", **SMALL) for name in benchmark.NAMES}
    images = house_numbers.normalised(torch.randint(256, (2, 3, 32, 32)))
    benchmark.check(networks, images)
    with torch.no_grad():
        networks["ST-CNN Multi"].transformers[2].head.bias[2] += 0.1
    with pytest.raises(RuntimeError, match="ST-CNN Multi: scores differ"):
        benchmark.check(networks, images)


def test_nothing_is_measured_of_networks_that_disagree(monkeypatch):
    plain = benchmark.GridSample.forward

    def other(self, image, **given):
        warped, theta = plain(self, image, **given)
        return 1.1 * warped, theta

    monkeypatch.setattr(benchmark.GridSample, "forward", other)
    with pytest.raises(RuntimeError, match="scores differ"):
        benchmark.prepared(32, "cpu", 2, **SMALL)


def test_what_contenders_are_given(monkeypatch):
    """Images as networks take them, in both layouts; transformers a little off the identity."""
    given = benchmark.prepared(32, "cpu", 4, **SMALL)
    torch.testing.assert_close(given.images.mean((1, 2, 3)), torch.zeros(4), rtol=0, atol=1e-5)
    assert 0.5 < given.images.std() < 3
    off = torch.tensor([-0.05, 0.03, 0.02, -0.03, -0.05, 0.02])
    for network in given.networks.values():
        for each in network.transformers:
            torch.testing.assert_close(each.head.bias.detach() - torch.tensor([1.0, 0, 0, 0, 1, 0]), off)
    seen = []

    def forward_backward(network, images, *rest):
        seen.append(images)
        return lambda: ()

    monkeypatch.setattr(benchmark, "forward_backward", forward_backward)
    benchmark.measured(given, "float32", "eager", "cpu", 1)
    last = [images.is_contiguous(memory_format=torch.channels_last) for images in seen]
    assert last == [False] * 5 + [True] * 5


def test_gradients_are_of_all_parameters():
    network = benchmark.network_of("ST-CNN Multi", 32, "cpu", **SMALL)
    images, labels = torch.randn(2, 3, 32, 32), torch.zeros(2, 5, dtype=torch.int64)
    _, *gradients = benchmark.forward_backward(network, images, labels, "float32")()
    assert [each.shape for each in gradients] == [each.shape for each in network.parameters()]


def test_the_median_counts(monkeypatch):
    now, takes = [0.0], iter([1, 1, 1, 1, 2, 3, 4, 5, 100])  # to warm up, to count by, and five rounds
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: now[0])

    def call():
        now[0] += next(takes)

    assert benchmark.milliseconds({"one": call}, "cpu", 20) == {"one": 4000}


@pytest.mark.parametrize("precision", benchmark.PRECISIONS)
def test_float32_alone_has_no_tensor_cores(precision):
    with benchmark.arithmetic(precision, "cpu"):
        allowed = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    assert allowed == (precision != "float32",) * 2


def test_the_batch_that_is_asked_for(monkeypatch):
    given = []
    monkeypatch.setattr(benchmark.cuda, "why_not", lambda: None)
    monkeypatch.setattr(benchmark, "run", lambda device, **options: given.append((device, options)))
    monkeypatch.setattr(
        benchmark, "carry_out", lambda parser, argv, measure, _: measure(parser.parse_args(argv))
    )
    benchmark.main(["--batch", "7", "--steps", "3"])
    assert given == [("cuda", {"batch": 7, "steps": 3})]
