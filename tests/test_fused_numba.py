"""The CPU kernels against the plain tensor code of ``operators.plain``, which says what they compute."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import spatial_transformer as st
from spatial_transformer.implementations import operators
from spatial_transformer.implementations.job import Job
from tests import cases

fused = pytest.importorskip("spatial_transformer.implementations.fused_numba", exc_type=ImportError)
fused_threads = pytest.importorskip("spatial_transformer.implementations.cpu.threads", exc_type=ImportError)

IN = {2: (7, 6), 3: (4, 5, 6)}
OUT = {2: (5, 8), 3: (4, 3, 5)}
KINDS = ("affine", "projective", "offsets", "points", "grid")
# Sums of a few hundred terms of order one.
TOLERANCES = {torch.float64: 1e-11, torch.float32: 2e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def tensors(
    kind, dims, job, *, batch=2, copies=2, channels=3, size=None, scale=1.0, dtype=torch.float64, seed=0
):
    """image, numbers, basis and fill of a call; ``scale`` is that of the footprints."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    image = torch.rand(batch, channels, *(size or IN[dims]), generator=generator, dtype=torch.float64).to(
        dtype
    )
    real = torch.float64 if dtype == torch.float64 else torch.float32
    layers, basis = 1 + dims if job.antialias else 1, None
    if kind in ("affine", "projective"):
        rows = dims + (kind == "projective")
        eye = torch.eye(rows, dims + 1, dtype=torch.float64) * scale
        if kind == "projective":
            eye[-1, -1] = 1
        numbers = eye + 0.15 * normal(batch, copies, rows, dims + 1)
    elif kind == "grid":
        numbers = 0.7 * normal(batch, copies, layers, *job.size, dims)
        numbers[:, :, 1:] *= scale
    else:
        numbers = 0.4 * normal(batch, copies, 5, dims)
        basis = 0.4 * normal(layers, 5, math.prod(job.size)).to(real)
        basis[1:] *= scale
    fill = (
        torch.rand(channels, generator=generator, dtype=torch.float64).to(real)
        if job.padding == "fill"
        else None
    )
    return image, numbers.to(real), basis, fill


def job_of(kind, dims, kernel="bilinear", padding="zeros", align_corners=False, limit=1.0, size=None):
    named = "matrix" if kind in ("affine", "projective") else kind
    return Job(named, size or OUT[dims], kernel, padding, align_corners, limit)


def both(image, numbers, basis, fill, job, cotangent=None):
    """(output and gradients of the kernels, those of plain tensor code)"""
    leaves = [
        t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (image, numbers)
    ]
    leaves += [basis.detach().clone().requires_grad_()] if basis is not None else []
    expected = operators.plain(leaves[0], leaves[1], leaves[2] if basis is not None else None, fill, job)
    if cotangent is None:
        generator = torch.Generator().manual_seed(1)
        cotangent = torch.rand(expected.shape, generator=generator, dtype=torch.float64).to(expected.dtype)
    found = fused.forward(image, numbers, basis, fill, job)
    gradients = fused.backward(cotangent, image, numbers, basis, fill, job, (True, True, basis is not None))
    wanted = torch.autograd.grad(expected, leaves, cotangent)
    return [found, *(g for g in gradients if g is not None)], [expected.detach(), *wanted]


def agree(found, expected, tolerance):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.isfinite().all()
        scale = 1 + b.abs().max().item()
        torch.testing.assert_close(a / scale, b / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", ["nearest", "bilinear", "bicubic"])
def test_agrees_with_plain_tensor_code(kernel, kind, dims):
    for padding in cases.PADDINGS:
        for align_corners in (False, True):
            for limit, scale in ((1.0, 1.0), (2.5, 1.0), (2.5, 2.2)):
                job = job_of(kind, dims, kernel, padding, align_corners, limit)
                agree(*both(*tensors(kind, dims, job, scale=scale), job), 1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dims", [2, 3])
def test_every_dtype(dtype, dims):
    for kind in KINDS:
        for kernel in ("bilinear", "bicubic"):
            job = job_of(kind, dims, kernel, "fill")
            found, expected = both(*tensors(kind, dims, job, dtype=dtype), job)
            agree(found[:2], expected[:2], TOLERANCES[dtype])
            agree(found[2:], expected[2:], TOLERANCES[torch.float32])


def test_a_float32_image_is_read_in_float64_when_theta_is():
    job = job_of("affine", 2)
    image, numbers, basis, fill = tensors("affine", 2, job)
    found, expected = both(image.float(), numbers, basis, fill, job)
    agree(found, expected, 1e-6)
    torch.testing.assert_close(found[2], expected[2], rtol=1e-12, atol=1e-12)


def test_halves_are_rounded_to_nearest_even():
    job = job_of("affine", 2, size=(3, 7))
    numbers = torch.tensor([[[[1.0, 0, 1 / 7], [0, 1, 0]]]])  # half a pixel right: means of neighbours
    for dtype in (torch.bfloat16, torch.float16):
        image = torch.randn(1, 1, 3, 7, dtype=torch.float32).to(dtype) * 3
        found = fused.forward(image, numbers, None, None, job)
        assert torch.equal(found, operators.plain(image, numbers, None, None, job))
        odd = (
            torch.tensor([math.inf, -math.inf, math.nan, 1e-7, 65504, -0.0, 3e-5])
            .to(dtype)
            .expand(1, 1, 3, 7)
        )
        kept = fused.forward(
            odd, numbers * torch.tensor([1, 1, 0.0]), None, None, job._replace(kernel="nearest")
        )
        assert torch.equal(kept.nan_to_num(1.5), odd[:, None].nan_to_num(1.5))


@pytest.mark.parametrize("channels", [2, 9, 24])
@pytest.mark.parametrize("dims", [2, 3])
def test_layouts(dims, channels):
    last = torch.channels_last if dims == 2 else torch.channels_last_3d
    for kernel in ("nearest", "bilinear", "bicubic"):
        for limit in (1.0, 2.0):
            job = job_of("affine", dims, kernel, "border", limit=limit)
            image, *rest = tensors("affine", dims, job, channels=channels, dtype=torch.float32)
            expected = both(image, *rest, job)[1]
            found = both(image.contiguous(memory_format=last), *rest, job)[0]
            agree(found, expected, 2e-4)
            assert found[0].movedim(2, -1).is_contiguous()  # the output keeps the layout
            assert found[1].is_contiguous(memory_format=last)
            strange = torch.empty(*image.shape[::-1], dtype=image.dtype).permute(*reversed(range(image.ndim)))
            agree(both(strange.copy_(image), *rest, job)[0], expected, 2e-4)
            wide = image.repeat_interleave(2, dim=-1)[..., ::2]
            agree(both(wide, *rest, job)[0], expected, 2e-4)


def test_strides_of_numbers_and_cotangents():
    for kind in KINDS:
        job = job_of(kind, 2)
        image, numbers, basis, fill = tensors(kind, 2, job)
        cotangent = torch.rand(2, 2, 3, *job.size, dtype=torch.float64)
        expected = both(image, numbers, basis, fill, job, cotangent)[1]
        back = tuple(reversed(range(numbers.ndim)))
        strange = numbers.permute(back).contiguous().permute(back)
        slanted = cotangent.permute(4, 2, 0, 3, 1).contiguous().permute(2, 4, 1, 3, 0)
        agree(both(image, strange, basis, fill, job, slanted)[0], expected, 1e-11)
        flat = torch.full((), 0.3, dtype=torch.float64).expand_as(cotangent)
        agree(
            *both(image[:1].expand_as(image), numbers[:1].expand_as(numbers), basis, fill, job, flat), 1e-11
        )


@pytest.mark.parametrize("padding", cases.PADDINGS)
@pytest.mark.parametrize("limit", [1.0, 2.0])
def test_what_is_not_finite(padding, limit):
    for dtype in (torch.float64, torch.float32):
        for kernel in ("nearest", "bilinear", "bicubic"):
            for kind in KINDS:
                job = job_of(kind, 2, kernel, padding, limit=limit)
                image, numbers, basis, fill = tensors(kind, 2, job, batch=8, dtype=dtype)
                clean = both(image, numbers, None if basis is None else basis, fill, job)[0]
                flat = numbers.clone()
                for n, bad in enumerate((math.nan, math.inf, -math.inf, 1e30, -1e12, 3e9)):
                    flat[n, 0].view(-1)[n % flat[n, 0].numel()] = bad
                found, expected = both(image, flat, basis, fill, job)
                for value in found:
                    assert value.isfinite().all()
                if limit == 1 and dtype == torch.float64:  # positions of 1e8 are rounded to 1e-8
                    agree(found[:1], expected[:1], 1e-6)
                # What had nothing bad in it is bit for bit the same.
                assert torch.equal(found[0][6:], clean[0][6:])
                assert torch.equal(found[0][:, 1], clean[0][:, 1])
                assert torch.equal(found[1][6:], clean[1][6:])
                assert torch.equal(found[2][6:], clean[2][6:])


def test_projective_horizon():
    job = job_of("projective", 2, size=(16, 16))
    image, numbers, *rest = tensors("projective", 2, job, size=(16, 16))
    numbers[0, 0, 2] = torch.tensor([1.0, 0, 0])  # w is zero in the middle
    numbers[0, 1, 2] = torch.tensor([0.0, 0, 0])
    numbers[1, 0, 2] = torch.tensor([1e-13, 0, 1e-13])
    for padding in ("zeros", "border"):
        for limit in (1.0, 4.0):
            one = job._replace(padding=padding, limit=limit)
            agree(*both(image, numbers, *rest, one), 1e-9)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_identity_and_flips_are_exact(dtype):
    for size in ((28, 28), (7, 5), (1, 9), (3, 4, 5)):
        dims = len(size)
        image = torch.randn(2, 3, *size).to(dtype)
        real = torch.float64 if dtype == torch.float64 else torch.float32
        for kernel in ("nearest", "bilinear", "bicubic"):
            for align_corners in (False, True):
                job = job_of("affine", dims, kernel, align_corners=align_corners, size=size)
                numbers = torch.eye(dims, dims + 1, dtype=real).expand(2, 1, -1, -1)
                assert torch.equal(fused.forward(image, numbers, None, None, job)[:, 0], image)
                flipped = fused.forward(image, numbers * -1, None, None, job)[:, 0]
                axes = [a for a in range(2, 2 + dims) if image.shape[a] > 1]
                assert torch.equal(flipped, image.flip(axes))


def test_slopes_at_whole_pixels_are_right_hand_ones():
    job = job_of("affine", 2, size=(6, 7))
    image, numbers, *rest = tensors("affine", 2, job, size=(6, 7))
    identity = torch.eye(2, 3, dtype=torch.float64).expand_as(numbers)
    agree(*both(image, identity, *rest, job), 1e-11)


# Shapes that are done by patches, channel by channel or many side by side: rows longer and shorter than the
# vectors, images smaller than their margin, several transforms of an image.
PATCHES = [
    ("planes", (16, 1, 28, 28), (28, 28), 1),
    ("planes", (8, 3, 5, 7), (9, 37), 2),
    ("planes", (17, 2, 1, 1), (3, 3), 1),
    ("planes", (16, 1, 31, 16), (16, 16), 1),
    ("bundles", (4, 64, 32, 32), (32, 32), 1),
    ("bundles", (16, 9, 5, 7), (9, 37), 2),
    ("bundles", (16, 20, 1, 3), (4, 17), 1),
]


def patch_call(shape, size, copies, dtype=torch.float32, *, align_corners=False):
    job = job_of("affine", 2, align_corners=align_corners, size=size)
    batch, channels, *lengths = shape
    image, numbers, *rest = tensors(
        "affine", 2, job, batch=batch, copies=copies, channels=channels, size=tuple(lengths), dtype=dtype
    )
    numbers[batch // 2 :] *= 1.7  # so that a good part is outside
    return image, numbers, *rest, job


def way_of(image, numbers, job, *, backward=False):
    output = fused.empty_output(image, numbers.shape[1], job.size)
    known = job, image.shape, image.stride(), output.stride(), *fused.layout(numbers, None)
    found = fused.patches_for(*known, backward=backward)
    return found and found.way


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("way", "shape", "size", "copies"), PATCHES, ids=str)
def test_patches(way, shape, size, copies):
    for align_corners in (False, True):
        for dtype in cases.DTYPES:
            *call, job = patch_call(shape, size, copies, dtype, align_corners=align_corners)
            assert way_of(call[0], call[1], job) == way_of(call[0], call[1], job, backward=True) == way
            found, expected = both(*call, job)
            agree(found, expected, TOLERANCES[dtype])
            if dtype in (torch.bfloat16, torch.float16):  # sums are not rounded to a half on their way
                agree(found[2:], expected[2:], TOLERANCES[torch.float32])


@pytest.mark.parametrize(("way", "shape", "size", "copies"), PATCHES, ids=str)
def test_patches_where_something_is_not_finite(way, shape, size, copies):
    for dtype in (torch.float64, torch.float32):
        image, numbers, *rest, job = patch_call(shape, size, copies, dtype)
        clean = both(image, numbers, *rest, job)[0]
        bad = numbers.clone()
        for n, value in enumerate((math.nan, math.inf, 1e30)):
            bad[n, 0, n % 2, n] = value
        found, expected = both(image, bad, *rest, job)
        assert all(value.isfinite().all() for value in found)
        agree(found[:2], expected[:2], 1e-6)
        assert all(torch.equal(a[3:], b[3:]) for a, b in zip(found, clean, strict=True))
        assert torch.equal(found[0][:, 1:], clean[0][:, 1:])


def test_patches_of_one_pixel_stay_where_they_are():
    """An axis without extent has one place, whatever theta: its gradient comes through where theta is NaN."""
    image, numbers, *rest, job = patch_call((16, 1, 1, 1), (2, 2), 1, torch.float64, align_corners=True)
    numbers[0] = math.nan
    assert way_of(image, numbers, job) == "planes"
    found, expected = both(image, numbers, *rest, job)
    agree(found[:2], expected[:2], 1e-11)
    assert found[1][0].item() != 0
    assert (found[2][0] == 0).all()


def test_small_crops_of_large_images_are_not_patched():
    for length, forward, backward in ((64, "planes", "planes"), (32, "planes", None), (16, None, None)):
        image, numbers, *_, job = patch_call((16, 1, 64, 64), (length, length), 1)
        assert way_of(image, numbers, job) == forward
        assert way_of(image, numbers, job, backward=True) == backward


@pytest.mark.parametrize("channels", [1, 9])
def test_patches_identity_is_exact(channels):
    for dtype in cases.DTYPES:
        for size in ((28, 28), (7, 5), (1, 33)):
            image = torch.randn(16, channels, *size).to(dtype)
            real = torch.float64 if dtype == torch.float64 else torch.float32
            numbers = torch.eye(2, 3, dtype=real).expand(16, 1, -1, -1)
            job = job_of("affine", 2, size=size)
            assert way_of(image, numbers, job)
            assert torch.equal(fused.forward(image, numbers, None, None, job)[:, 0], image)
            axes = [a for a in (2, 3) if image.shape[a] > 1]
            assert torch.equal(fused.forward(image, -numbers, None, None, job)[:, 0], image.flip(axes))
            cotangent = torch.randn(16, 1, channels, *size).to(dtype)
            back = fused.backward(cotangent, image, numbers, None, None, job, (True, False, False))[0]
            assert torch.equal(back, cotangent[:, 0])


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("channels", [3, 20])
def test_patches_give_what_is_wanted_and_read_no_further(channels):
    *call, job = patch_call((16, channels, 11, 13), (10, 19), 2)
    image, numbers, basis, fill = call
    # Inside larger ones that are NaN: the rows' ends are where vectors would go too far.
    wide = torch.full((16, channels, 13, 15), math.nan)
    wide[:, :, 1:-1, 1:-1] = image
    shown = wide[:, :, 1:-1, 1:-1]
    cotangent = torch.rand(16, 2, channels, 10, 19, generator=torch.Generator().manual_seed(3))
    framed = torch.full((16, 2, channels, 12, 21), math.nan)
    framed[..., 1:-1, 1:-1] = cotangent
    both_wanted = fused.backward(cotangent, image, numbers, basis, fill, job, (True, True, False))
    slanted = numbers.transpose(0, 3).contiguous().transpose(0, 3)
    of_slanted = fused.backward(cotangent, image, slanted, basis, fill, job, (True, True, False))[1]
    assert torch.equal(of_slanted, both_wanted[1])
    assert of_slanted.stride() == torch.empty_like(slanted).stride()  # as its fake implementation says
    assert torch.equal(
        fused.forward(shown, numbers, basis, fill, job), fused.forward(image, numbers, basis, fill, job)
    )
    for wanted in ((True, True, False), (True, False, False), (False, True, False), (False, False, False)):
        found = fused.backward(framed[..., 1:-1, 1:-1], shown, numbers, basis, fill, job, wanted)
        for gradient, expected, want in zip(found, both_wanted, wanted, strict=True):
            assert (gradient is not None) == want
            assert not want or torch.equal(gradient, expected)


def big_call(
    kind="affine", dims=2, shape=(1, 3, 96, 80), dtype=torch.float32, kernel="bilinear", padding="zeros"
):
    job = job_of(kind, dims, kernel, padding, size=shape[2:])
    image, numbers, basis, fill = tensors(
        kind, dims, job, batch=shape[0], channels=shape[1], copies=1, size=shape[2:], dtype=dtype
    )
    cotangent = torch.rand(image[:, None].shape, generator=torch.Generator().manual_seed(2)).to(dtype)

    def run():
        wanted = (True, True, basis is not None)
        gradients = fused.backward(cotangent, image, numbers, basis, fill, job, wanted)
        return [fused.forward(image, numbers, basis, fill, job), *(g for g in gradients if g is not None)]

    return run


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "shape", [(1, 3, 96, 80), (1, 1, 17, 160, 9), (5, 9, 40, 40), (16, 3, 30, 40), (8, 24, 30, 40)], ids=str
)
@pytest.mark.parametrize("pool", [False, True])
def test_the_same_bits_with_every_number_of_threads(shape, pool, threads, monkeypatch):
    if pool:
        monkeypatch.setattr(fused_threads, "_parallel", None)
    for kind in KINDS:
        for padding in ("zeros", "border"):
            for dtype in (torch.float32, torch.bfloat16):
                run = big_call(kind, len(shape) - 2, shape, dtype, padding=padding)
                threads(1)
                expected = run()
                for count in (2, 3, 7):
                    threads(count)
                    assert all(torch.equal(a, b) for a, b in zip(run(), expected, strict=True))


def test_the_same_bits_every_run():
    run = big_call(shape=(3, 4, 64, 64))
    expected = run()
    for _ in range(20):
        assert all(torch.equal(a, b) for a, b in zip(run(), expected, strict=True))


@pytest.mark.parametrize("pool", [False, True])
def test_several_threads_at_once(pool, monkeypatch):
    if pool:
        monkeypatch.setattr(fused_threads, "_parallel", None)
    calls = [big_call(shape=(2, 3, 64, 64 + k)) for k in range(4)]
    expected = [run() for run in calls]
    wrong = []

    def work(k):
        for _ in range(20):
            if not all(torch.equal(a, b) for a, b in zip(calls[k](), expected[k], strict=True)):
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_only_wanted_gradients(monkeypatch):
    ran = []
    spread = fused.spread
    monkeypatch.setattr(fused, "spread", lambda worker, *rest: (ran.append(worker), spread(worker, *rest)))
    job = job_of("points", 2)
    image, numbers, basis, fill = tensors("points", 2, job)
    cotangent = torch.rand(2, 2, 3, *job.size, dtype=torch.float64)
    dtypes = torch.float64, torch.float64
    kernels = {k: fused.compiled(k, fused.PLACED, *dtypes) for k in ("scatter", "pull")}
    for wanted, expected in (
        ((True, False, False), ["scatter"]),
        ((False, True, False), ["pull"]),
        ((False, False, True), ["pull"]),
        ((False, False, False), []),
    ):
        ran.clear()
        found = fused.backward(cotangent, image, numbers, basis, fill, job, wanted)
        assert [g is not None for g in found] == list(wanted)
        assert ran == [kernels[name] for name in expected]


def test_no_numba(monkeypatch):
    monkeypatch.setattr(operators, "installed", lambda package: package != "numba")
    image, theta = torch.rand(1, 1, 4, 4), torch.tensor([[1.0, 0, 0, 0, 1, 0]])
    with pytest.raises(RuntimeError, match="Numba is not installed"):
        st.warp(image, theta, st.Affine(), impl="fused")
    assert (
        st.implementations.choose(
            "auto",
            image,
            st.checks.reading(
                image, kernel="bilinear", padding="zeros", align_corners=False, antialias=False
            ),
        ).name
        == "torch"
    )


# In processes of their own

CALL = """
import torch, spatial_transformer as st
from spatial_transformer.implementations import fused_numba
image = torch.rand(2, 3, 64, 64, requires_grad=True)
theta = torch.tensor([[1.0, 0.1, 0, 0.1, 1, 0]] * 2, requires_grad=True)
def call():
    return st.warp(image, theta, st.Affine(), impl="fused")
"""


def python(code, *, path=None, **environment):
    env = {**os.environ, **environment, "PYTHONPATH": str(path or Path(st.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_forked_workers_after_threads_in_the_parent():
    python(
        CALL
        + """
torch.set_num_threads(2)
expected = call().detach()
expected.sum()
class Warped(torch.utils.data.Dataset):
    def __init__(self, threads): self.threads = threads
    def __len__(self): return 4
    def __getitem__(self, k):
        if self.threads: torch.set_num_threads(self.threads)
        out = call(); out.sum().backward()
        return out.detach()
for threads in (0, 2):
    loader = torch.utils.data.DataLoader(
        Warped(threads), num_workers=2, batch_size=None, multiprocessing_context="fork", timeout=60)
    assert all(torch.equal(out, expected) for out in loader)
import os
child = os.fork()
if child == 0:
    torch.set_num_threads(3)
    os._exit(0 if torch.equal(call().detach(), expected) else 1)
assert os.waitpid(child, 0)[1] == 0
call().sum().backward()
"""
    )


@pytest.mark.slow
def test_kernels_are_kept_on_disk(tmp_path):
    code = (
        CALL
        + "with torch.no_grad(): call()\n"
        + "kernel = 'forward', fused_numba.COMMON, torch.float32, torch.float32\n"
        + "print(fused_numba.compiled(*kernel).cache_hits)"
    )
    first = python(code, NUMBA_CACHE_DIR=str(tmp_path))
    assert "compiling CPU kernels" in first.stderr
    assert first.stdout.split() == ["0"]
    second = python(code, NUMBA_CACHE_DIR=str(tmp_path))
    assert "compiling" not in second.stderr
    assert second.stdout.split() == ["1"]


@pytest.mark.slow
def test_an_install_that_cannot_be_written_to(tmp_path):
    """Numba keeps the kernels in the user's cache then, and we do without where there is none."""
    package = tmp_path / "package" / "spatial_transformer"
    shutil.copytree(
        Path(st.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "experiments")
    )
    (package / "implementations" / "__pycache__").touch()  # a file in its place stops the superuser, too
    code = CALL + "with torch.no_grad(): call()\nprint(fused_numba.__file__)"
    home = tmp_path / "cache"
    home.mkdir()
    first = python(code, path=tmp_path / "package", XDG_CACHE_HOME=str(home), HOME=str(home))
    assert first.stdout.startswith(str(package))
    assert "compiling CPU kernels" in first.stderr
    assert list(home.rglob("*.nbi"))
    assert (
        "compiling"
        not in python(code, path=tmp_path / "package", XDG_CACHE_HOME=str(home), HOME=str(home)).stderr
    )
    nowhere = str(
        tmp_path / "package" / "spatial_transformer" / "implementations" / "__pycache__" / "nowhere"
    )
    assert python(code, path=tmp_path / "package", XDG_CACHE_HOME=nowhere, HOME=nowhere).stdout
