"""The fixed sets, the same on every device; and batches that a CUDA graph can capture."""

from __future__ import annotations

import hashlib

import pytest
import torch
from data_files import mnist_here
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from spatial_transformer.experiments.data.distortions import (
    Drawn,
    Elastic,
    _corner_signs,
    canvas_lattice,
    control_lattice,
    field_basis,
)
from spatial_transformer.experiments.data.fixed_sets import BATCH, KINDS, as_images, fixed_batches, fixed_set
from spatial_transformer.experiments.data.random_numbers import RandomNumbers
from spatial_transformer.experiments.data.volumes import block_half

pytestmark = pytest.mark.usefixtures("one_thread")

DOUBLE = torch.float64
KEPT = (_corner_signs, canvas_lattice, control_lattice, field_basis, block_half)  # constant tensors


# Of the shipped digits, in float64: sha256 of the thetas to 1e-5, and of the first 20 images as bytes.
DIGESTS = {
    "R": ("007c5d10e19ecebe", "53455c4f4f6a1c0d", 1119),
    "RTS": ("e4488c38e5c8ebf5", "838f5b4e554596a2", 1119),
    "P": ("f2597fdc79a8513d", "12b777387a6b9108", 1119),
    "E": ("2efe4264f163d159", "214666e7e7965ddc", 1119),
    "TC": ("c9db38b8d64ebca8", "614ca62e968f251a", 1119),
    "T84": ("0b665320abcd06b0", "a48007fdacc2d44c", 1119),
    "TC84": ("283c381b63d69f5b", "9c31b697066337b5", 1119),
    "addition": ("be7ec8f1c56fbf90", "276a82ff5f502a0b", 2238),
    "3D": ("a4e78342f513f043", "8737984fc095a7ef", 1119),
}


def digest(values):
    return hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_sets_stay_what_they_are(digits, kind):
    part = next(fixed_batches(kind, digits, dtype=DOUBLE))
    assert pinned(part) == DIGESTS[kind]


def pinned(part):
    thetas = (part.drawn.theta * 1e5).round().long()
    pictures = (part.images[:20] * 255).round().to(torch.uint8)
    return digest(thetas), digest(pictures), int(part.labels.sum())


# The same of MNIST, where it is here.
MNIST_DIGESTS = {
    "R": ("007c5d10e19ecebe", "813379b45cd1469c", 1098),
    "RTS": ("e4488c38e5c8ebf5", "b765045033c72f36", 1098),
    "P": ("f2597fdc79a8513d", "68134e6d5c8aab98", 1098),
    "E": ("2efe4264f163d159", "c1cd1c2ca5f29143", 1098),
    "TC": ("c9db38b8d64ebca8", "b2aec326b1f3b06b", 1098),
    "T84": ("0b665320abcd06b0", "a1147c3e00e71c13", 1098),
    "TC84": ("283c381b63d69f5b", "4c55d1b189a048ef", 1098),
    "addition": ("be7ec8f1c56fbf90", "1152863f0416a004", 2163),
    "3D": ("a4e78342f513f043", "e4153d3834a73773", 1098),
}


@pytest.mark.parametrize("kind", KINDS)
def test_mnists_fixed_sets_stay_what_they_are(kind):
    part = next(fixed_batches(kind, mnist_here(), dtype=DOUBLE))
    assert pinned(part) == MNIST_DIGESTS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_float64_up_to_rounding(digits, kind):
    single, double = (
        next(iter(fixed_batches(kind, digits, dtype=dtype))) for dtype in (torch.float32, DOUBLE)
    )
    torch.testing.assert_close(single.drawn.theta.double(), double.drawn.theta, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(single.images.double(), double.images, rtol=0, atol=2e-3)


class Launches(TorchDispatchMode):
    """Counts operators that compute, and notes those that wait for the device or fetch from the host."""

    WAITS = ("_local_scalar_dense", "lift_fresh", "nonzero", "item", "masked_select", "unique")
    VIEWS = ("view", "reshape", "unsqueeze", "squeeze", "select", "slice", "expand", "permute", "transpose")
    FREE = (*VIEWS, "t", "unbind", "_unsafe_view", "alias", "detach", "empty", "empty_like", "promote_types")

    def __init__(self):
        super().__init__()
        self.count, self.waited = 0, []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.overloadpacket.__name__
        self.count += name not in self.FREE
        if name in self.WAITS:
            self.waited.append(name)
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_can_be_captured_and_takes_few_launches(images, kind):
    """In a CUDA graph nothing may wait, and a small kernel's launch is most of its time."""
    given = images[:8].reshape(4, 2, 28, 28) if kind == "addition" else images[:4]
    distortion, random = KINDS[kind](images[:, 0]), RandomNumbers(0)
    distortion.apply(given, distortion.draw(4, random))  # keeps what is always the same
    with torch.no_grad(), Launches() as launches:
        distortion.apply(given, distortion.draw(4, random))
    assert launches.waited == []
    assert 20 < launches.count <= (36 if kind in ("RTS", "addition") else 44 if kind == "E" else 56)


@pytest.mark.parametrize("kind", ["P", "E", "E pull", "3D"])
def test_what_is_kept_in_inference_mode_can_be_trained_through(images, kind):
    """Images, numbers and thetas may need gradients; what is always the same was first made without."""
    distortion = Elastic(direction="pull") if kind == "E pull" else KINDS[kind](images[:, 0])
    for kept in KEPT:
        kept.held.clear()
    with torch.inference_mode():
        distortion.apply(images[:2], distortion.draw(2, RandomNumbers(0)))
    drawn = distortion.draw(2, RandomNumbers(0))
    numbers = {name: value.requires_grad_() for name, value in drawn.numbers.items()}
    theta = drawn.theta.requires_grad_()
    given = images[:2].clone().requires_grad_()
    distortion.apply(given, Drawn(theta, numbers)).sum().backward()
    assert given.grad.abs().sum() > 0
    for kept in KEPT:
        assert not any(tensor.is_inference() for tensor in kept.held.values())
    assert any(kept.held for kept in KEPT)


def test_what_is_made_of_stand_ins_is_not_kept():
    canvas_lattice.held.clear()
    with FakeTensorMode():
        canvas_lattice(28, DOUBLE, torch.device("cpu"))
    assert canvas_lattice.held == {}
    found = canvas_lattice(28, DOUBLE, torch.device("cpu"))
    assert found is canvas_lattice(28, DOUBLE, torch.device("cpu"))


def test_a_fixed_set_is_its_batches(digits):
    whole = fixed_set("RTS", digits)
    parts = list(fixed_batches("RTS", digits))
    assert len(whole.labels) == 300
    assert [len(part.labels) for part in parts] == [BATCH, BATCH]
    assert torch.equal(whole.images[BATCH:], parts[1].images[: 300 - BATCH])
    assert torch.equal(whole.labels, digits.test.labels)
    assert torch.equal(parts[1].labels[300 - BATCH :], digits.test.labels[: 2 * BATCH - 300])
    assert torch.equal(fixed_set("RTS", digits, count=7).images, whole.images[:7])
    assert not torch.equal(fixed_set("RTS", digits, count=7, seed=1).images, whole.images[:7])


def test_addition_has_sums(digits):
    found = fixed_set("addition", digits)
    assert (found.labels.min(), found.labels.max()) == (0, 18)
    random = RandomNumbers(1506_02025)
    other = (random.uniform(BATCH, 1) * 300).long()[:, 0]
    assert torch.equal(found.labels[:BATCH], digits.test.labels[:BATCH] + digits.test.labels[other])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_the_gpu_gives_the_same_set(digits, kind):
    here, there = (next(fixed_batches(kind, digits, device=device)) for device in ("cpu", "cuda"))
    torch.testing.assert_close(there.drawn.theta.cpu(), here.drawn.theta, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(there.images.cpu(), here.images, rtol=0, atol=2e-3)
    assert torch.equal(there.labels.cpu(), here.labels)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_every_replay_of_a_graph_draws_a_new_batch(digits, kind):
    count = 8
    given = as_images(digits.test.images[: 2 * count], "cuda")
    given = given.reshape(count, 2, 28, 28) if kind == "addition" else given[:count]
    distortion = KINDS[kind](as_images(digits.train.images, "cuda")[:, 0])
    random, plain = RandomNumbers(3, device="cuda"), RandomNumbers(3, device="cuda")
    distortion.apply(given, distortion.draw(count, random))
    distortion.apply(given, distortion.draw(count, plain))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = distortion.apply(given, distortion.draw(count, random))
    for _ in range(3):
        graph.replay()
        torch.testing.assert_close(found, distortion.apply(given, distortion.draw(count, plain)))
