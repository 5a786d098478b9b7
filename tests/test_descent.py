"""The loss and the descent in a launch each, against PyTorch's, and training with them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from spatial_transformer.experiments import runs
from spatial_transformer.experiments.data import uci_digits
from spatial_transformer.experiments.paper import distorted_mnist

kernels = pytest.importorskip("spatial_transformer.experiments.descent_triton")

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"

pytestmark = [pytest.mark.usefixtures("one_thread", "seed"), *([pytest.mark.gpu] if CUDA else [])]


@pytest.mark.parametrize(("count", "classes"), [(1, 2), (7, 10), (256, 19), (300, 10)])
def test_the_loss_its_gradient_and_the_wrong_answers(count, classes):
    scores = (3 * torch.randn(count, classes, device=DEVICE)).requires_grad_()
    labels = torch.randint(classes, (count,), device=DEVICE)
    sums = torch.tensor([2.0, 0.5], device=DEVICE)
    found = kernels.judged(scores.detach(), labels, sums)
    loss = F.cross_entropy(scores.double(), labels)
    (wanted,) = torch.autograd.grad(loss, scores)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-8)
    wrong = (scores.argmax(1) != labels).double().mean()
    torch.testing.assert_close(sums.double(), torch.stack([2 + loss, 0.5 + wrong]), rtol=1e-5, atol=1e-6)


def test_of_equal_scores_the_first_is_the_answer():
    scores, sums = torch.zeros(2, 3, device=DEVICE), torch.zeros(2, device=DEVICE)
    kernels.judged(scores, torch.tensor([0, 1], device=DEVICE), sums)
    assert sums[1] == 0.5


def test_large_scores_do_not_overflow():
    scores = torch.tensor([[1e4, -1e4, 0.0]], device=DEVICE)
    sums = torch.zeros(2, device=DEVICE)
    found = kernels.judged(scores, torch.tensor([2], device=DEVICE), sums)
    assert sums.tolist() == [1e4, 1.0]
    assert found.tolist() == [[1.0, 0.0, -1.0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_has_diverged_is_seen(bad):
    scores, sums = torch.zeros(3, 4, device=DEVICE), torch.zeros(2, device=DEVICE)
    scores[1, 2] = bad
    kernels.judged(scores, torch.tensor([0, 1, 2], device=DEVICE), sums)
    assert sums[0].isnan()


def test_scores_may_lie_anyhow():
    scores, labels = torch.randn(5, 8, device=DEVICE), torch.arange(5, device=DEVICE)
    sums = [torch.zeros(2, device=DEVICE) for _ in range(2)]
    wide = torch.stack([scores, scores], dim=2)[:, :, 0]
    assert not wide.is_contiguous()
    found = [kernels.judged(given, labels, into) for given, into in zip((scores, wide), sums, strict=True)]
    assert torch.equal(*found)
    assert torch.equal(*sums)


@pytest.mark.parametrize("share", [None, 0.25])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_the_descent(share, decay):
    weights, velocity, gradient = (torch.randn(2500, device=DEVICE) for _ in range(3))
    rate = torch.tensor(0.1, device=DEVICE)
    part = None if share is None else torch.tensor(share, device=DEVICE)
    faster = 0.9 * velocity.double() + gradient.double() + decay * weights.double()
    moved = weights.double() - 0.1 * (share or 1) * faster
    given = [each[100:2300] for each in (weights, velocity, gradient)]  # no whole number of blocks
    before = weights.clone()
    kernels.descend(*given, rate, part, momentum=0.9, decay=decay)
    torch.testing.assert_close(velocity[100:2300].double(), faster[100:2300], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights[100:2300].double(), moved[100:2300], rtol=1e-5, atol=1e-6)
    assert torch.equal(weights[:100], before[:100])
    assert torch.equal(weights[2300:], before[2300:])


@pytest.mark.parametrize("localiser_rate", [1.0, 0.25])
def test_training_with_them_is_training_without(localiser_rate):
    """The same steps but for roundings."""
    cell = next(cell for cell in distorted_mnist.EXPERIMENT.cells if cell.name == "R/ST-FCN affine")
    settings = dataclasses.replace(cell.settings, batch=8, localiser_rate=localiser_rate, parameters=80_000)
    cell = dataclasses.replace(cell, settings=settings)
    plain, fast = (runs.Run(cell, 0, uci_digits.load(), DEVICE) for _ in range(2))
    plain.kernels, fast.kernels = None, kernels
    for run in (plain, fast):
        run.set_rate()
        for _ in range(3):
            run.step()
    torch.testing.assert_close(fast.weights, plain.weights, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(fast.velocity, plain.velocity, rtol=1e-2, atol=1e-4)
    torch.testing.assert_close(fast.sums, plain.sums, rtol=1e-4, atol=1e-4)
