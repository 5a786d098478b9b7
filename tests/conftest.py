"""Fixtures that several files use."""

from __future__ import annotations

import importlib.util
import math
import os
from typing import NamedTuple

import pytest
import torch

CUDA = torch.cuda.is_available()
NUMBA = importlib.util.find_spec("numba") is not None

if not CUDA:
    # Triton reads it when kernels are defined: its interpreter then runs them on CPU tensors.
    os.environ["TRITON_INTERPRET"] = "1"
# cuBLAS asks for it before it is first used, where algorithms have to be deterministic.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

pytest.register_assert_rewrite("fused_cases")  # its asserts say what they compared, as those of tests do


def pytest_collection_modifyitems(config, items):
    """Leaves out what the fused kernels refuse: kernels of one's own, and the CPU without Numba."""
    kept, left_out = [], []
    for item in items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        fused = given.get("impl") == "fused"
        own = given.get("kernel_name") == "Kernel" or isinstance(given.get("kernel"), torch.nn.Module)
        (left_out if fused and own else kept).append(item)
        if fused and not NUMBA and "gpu" not in item.keywords:
            item.add_marker(pytest.mark.skip(reason="Numba is not installed"))
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.fixture(scope="module")
def one_thread():
    """Tensors this small only make threads wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits(one_thread):
    """Those that are packaged."""
    from spatial_transformer.experiments.data import uci_digits

    return uci_digits.load()


@pytest.fixture(scope="module")
def images(digits):
    """All digits, [1797, 1, 28, 28]"""
    from spatial_transformer.experiments.data.fixed_sets import as_images

    return as_images(torch.cat([digits.train.images, digits.test.images]), "cpu")


@pytest.fixture
def alone_in_a_folder(tmp_path, monkeypatch):
    """Where runs of some dozen steps, which teach next to nothing, are not taken for stuck."""
    from small_runs import stuck_at

    monkeypatch.chdir(tmp_path)
    stuck_at(monkeypatch, None)


@pytest.fixture
def seed():
    torch.manual_seed(0)


GUARD = 64  # elements on either side of a poisoned tensor: keeps it aligned


def poison(dtype: torch.dtype) -> float:
    return math.nan if dtype.is_floating_point else torch.iinfo(dtype).max if dtype != torch.bool else 1


@pytest.fixture
def poisoned(monkeypatch):
    """Fresh memory holds NaN (integers: their largest), and so does what lies beside it: who writes too
    little leaves NaN in a result, and who writes too far is told at the end."""
    empty, guards = torch.empty, []

    def guarded(shape, strides, dtype, device):
        length = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        memory = empty(length + 2 * GUARD, dtype=dtype, device=device).fill_(poison(dtype))
        guards.append((memory[:GUARD], memory[GUARD + length :]))
        return memory.as_strided(shape, strides, GUARD)

    def poisoned_empty(*size, dtype=None, device=None, **options):
        made = empty(*size, dtype=dtype, device=device, **options)
        if made.layout != torch.strided or made.device.type == "meta" or set(options) - {"memory_format"}:
            return made
        return guarded(made.shape, made.stride(), made.dtype, made.device)

    def poisoned_like(tensor, *, dtype=None, device=None):
        plain = empty_like(tensor, dtype=dtype, device=device)
        if plain.device.type == "meta":
            return plain
        return guarded(plain.shape, plain.stride(), plain.dtype, plain.device)

    def poisoned_new(tensor, *size, dtype=None, device=None):
        return poisoned_empty(*size, dtype=dtype or tensor.dtype, device=device or tensor.device)

    def poisoned_strided(tensor, shape, strides):
        return guarded(shape, strides, tensor.dtype, tensor.device)

    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty", poisoned_empty)
    monkeypatch.setattr(torch, "empty_like", poisoned_like)
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned_new)
    monkeypatch.setattr(torch.Tensor, "new_empty_strided", poisoned_strided)
    yield
    monkeypatch.undo()
    for pair in guards:
        for guard in pair:
            kept = guard.isnan() if guard.is_floating_point() else guard == poison(guard.dtype)
            assert kept.all(), "something wrote beside a tensor"


# The backends of the fused kernels


class Backend(NamedTuple):
    name: str
    device: str

    @property
    def interpreted(self) -> bool:
        return self.name == "triton" and self.device == "cpu"

    def kernels(self):
        from spatial_transformer.implementations import operators

        return operators.kernels("cuda" if self.name == "triton" else "cpu")


@pytest.fixture
def numba():
    pytest.importorskip("numba")
    return Backend("numba", "cpu")


@pytest.fixture
def triton(monkeypatch):
    pytest.importorskip("triton")
    if CUDA:
        return Backend("triton", "cuda")
    from spatial_transformer.implementations import fused_triton, operators

    assert fused_triton.INTERPRETED
    monkeypatch.setattr(operators, "kernels", lambda device_type: fused_triton)
    monkeypatch.setattr(operators, "installed", lambda package: True)
    return Backend("triton", "cpu")


BACKENDS = ("numba", pytest.param("triton", marks=[pytest.mark.gpu] if CUDA else []))


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def deterministic():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)
