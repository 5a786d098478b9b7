"""The random numbers: the published generator, uniform, independent, and alike on every device."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from spatial_transformer.experiments.data.random_numbers import GOLDEN, WORD, RandomNumbers, mixed

pytestmark = pytest.mark.usefixtures("one_thread")


def test_it_is_splitmix64():
    """The first numbers of seed 1234567, as published with other implementations."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [mixed(1234567 + (i + 1) * GOLDEN) for i in range(4)] == published


def test_tensors_compute_what_whole_numbers_do():
    random = RandomNumbers(seed=7)
    found = random.uniform(1000).double() * 2**24
    words = [mixed(random._key + i * GOLDEN) for i in range(1000)]
    # the highest 24 bits; read as signed and moved up by half, which turns the first of them over
    assert found.tolist() == [(word + WORD // 2) % WORD >> 40 for word in words]


def test_draws_go_on_where_the_last_ended():
    whole, parts = RandomNumbers(seed=3), RandomNumbers(seed=3)
    expected = whole.uniform(4, 25)
    assert torch.equal(torch.cat([parts.uniform(10), parts.uniform(90)]), expected.flatten())
    assert whole.state() == parts.state() == 100
    again = RandomNumbers(seed=3)
    counter = again._counter
    again.set_state(10)
    assert again._counter is counter  # a captured graph reads that one
    assert torch.equal(again.uniform(90), expected.flatten()[10:])
    assert again.state() == 100


def test_a_stream_begun_in_inference_mode_goes_on_outside():
    plain = RandomNumbers(seed=4)
    with torch.inference_mode():
        random = RandomNumbers(seed=4)
        assert torch.equal(random.uniform(5), plain.uniform(5))
    weight = torch.ones(5, requires_grad=True)
    found = random.uniform(5)  # of as many numbers, and from where it was
    assert torch.equal(found, plain.uniform(5))
    (weight * found).sum().backward()
    assert torch.equal(weight.grad, found)
    random.set_state(0)
    assert random.state() == 0


def test_seeds_differ():
    first = torch.stack([RandomNumbers(seed).uniform(2000) for seed in range(-3, 30)])
    assert torch.corrcoef(first).triu(1).abs().max() < 0.1
    assert len(first.unique()) > 0.99 * first.numel()
    # neighbouring seeds are not one stream, shifted
    assert not set(first[3].tolist()) & set(first[4, :5].tolist())


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_uniform(seed):
    found = RandomNumbers(seed).uniform(200_000)
    assert found.dtype == torch.float32
    assert found.min() >= 0
    assert found.max() < 1
    assert stats.kstest(found.double().numpy(), "uniform").pvalue > 1e-3
    low_bits = (found.double() * 2**24).long() % 256
    assert stats.chisquare(low_bits.bincount(minlength=256).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 9, 33])
def test_numbers_of_an_image_are_independent(lag):
    """Pairs at the distances at which a distortion's numbers lie, in 32 x 32 cells."""
    found = RandomNumbers(11).uniform(300_000)
    cells = (found[:-lag] * 32).long() * 32 + (found[lag:] * 32).long()
    assert stats.chisquare(cells.bincount(minlength=1024).numpy()).pvalue > 1e-3


def test_normal():
    found = RandomNumbers(5).normal(200_000)
    assert stats.kstest(found.double().numpy(), "norm").pvalue > 1e-3
    assert found.isfinite().all()
    assert abs(found.std() - 1) < 0.01


@pytest.mark.parametrize("shape", [(1,), (1024,), (3, 5), (1025,), (2, 0)], ids=str)
def test_in_one_launch_as_by_operations(shape):
    kernels = pytest.importorskip("spatial_transformer.experiments.data.random_numbers_triton")
    if not (torch.cuda.is_available() or kernels.INTERPRETED):
        pytest.skip("there is no CUDA device, nor Triton's interpreter (TRITON_INTERPRET=1)")
    plain = RandomNumbers(12)
    for drawn in (0, 7, 2**60):
        plain.set_state(drawn)
        counter = plain._counter.to("cuda" if torch.cuda.is_available() else "cpu", copy=True)
        assert torch.equal(kernels.uniform(counter, shape).cpu(), plain.uniform(*shape))
    torch.set_default_dtype(torch.float64)
    try:
        assert kernels.uniform(counter, shape).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_gpu_draws_the_same():
    here, there = RandomNumbers(9), RandomNumbers(9, device="cuda")
    for shape in ((5,), (33, 256)):
        assert torch.equal(here.uniform(*shape), there.uniform(*shape).cpu())
    torch.testing.assert_close(here.normal(1000), there.normal(1000).cpu(), rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_every_replay_of_a_graph_draws_anew():
    random, plain = RandomNumbers(9, device="cuda"), RandomNumbers(9)
    random.uniform(100)
    plain.uniform(100)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = random.uniform(100)
    for _ in range(3):
        graph.replay()
        assert torch.equal(found.cpu(), plain.uniform(100))
