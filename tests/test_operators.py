"""How PyTorch sees the fused kernels, on the CPU: operators, autograd, modes, processes.

Every row of the design's table of registrations, each against ``reference``; what is compiled and exported is
in ``test_operators_in_graphs``.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import subprocess
import sys

import pytest
import torch
from cases import FAMILY_NAMES, close, images, padding
from operator_calls import F32, F64, IN, a_call, gradients, step, transformer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils.checkpoint import checkpoint

import spatial_transformer as st
from spatial_transformer import checks
from spatial_transformer.implementations import choose, operators, torch_native
from spatial_transformer.implementations.job import Job

pytest.importorskip("numba")
pytestmark = pytest.mark.usefixtures("one_thread")

OPERATORS = torch.ops.spatial_transformer


# The operators themselves

KINDS = ("Affine", "Projective", "ThinPlateSpline", "LearnedBasis", "grid")


def arguments(kind, dims=2, *, pad="fill", antialias=False, dtype=F32):
    """Those of the operator ``warp``."""
    image, theta, family, options = a_call("Affine" if kind == "grid" else kind, dims, dtype=dtype, copies=2)
    size = options["size"]
    real = torch.promote_types(dtype, F32)
    fill = torch.tensor(padding("fill", 2), dtype=real) if pad == "fill" else None
    if kind == "grid":
        numbers, basis, form = family.grid(theta.to(real), size).unsqueeze(2), None, "grid"
        if antialias:
            numbers = torch.cat([numbers, *[2 * torch.rand_like(numbers)] * dims], 2)
    else:
        source = family.source(theta.to(real), IN[dims], size, False, slopes=antialias)
        numbers, basis, form = source.numbers.detach(), source.basis, source.kind
    basis = None if basis is None else basis.detach()
    job = Job(form, size, "bilinear", pad, False, 2.0 if antialias else 1.0)
    return image, operators.transforms(numbers, image, job, several=True), basis, fill, *job


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("pad", ["zeros", "fill", "border"])
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_opcheck(kind, dims, pad, antialias):
    given = arguments(kind, dims, pad=pad, antialias=antialias)
    torch.library.opcheck(OPERATORS.warp.default, given)
    cotangent = images(*OPERATORS.warp(*given).shape, seed=1, dtype=F32)
    for wanted in itertools.product((False, True), repeat=3):
        torch.library.opcheck(OPERATORS.warp_backward.default, (cotangent, *given, *wanted))


@pytest.mark.parametrize("dtype", [F64, F32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced", "expanded"])
def test_opcheck_of_dtypes_and_layouts(layout, dtype):
    image, *rest = arguments("Affine", dtype=dtype)
    if layout == "channels_last":
        image = image.contiguous(memory_format=torch.channels_last)
    elif layout == "sliced":
        image = torch.stack([image, image], -1)[..., 0]
    elif layout == "expanded":
        image = image[:1].expand_as(image)
    torch.library.opcheck(OPERATORS.warp.default, (image, *rest))
    output = OPERATORS.warp(image, *rest)
    for cotangent in (torch.ones_like(output), output.new_ones(()).expand_as(output)):
        torch.library.opcheck(OPERATORS.warp_backward.default, (cotangent, image, *rest, True, True, False))


def test_an_unwanted_gradient_is_empty():
    given = arguments("LearnedBasis")
    cotangent = torch.ones_like(OPERATORS.warp(*given))
    for wanted in itertools.product((False, True), repeat=3):
        found = OPERATORS.warp_backward(cotangent, *given, *wanted)
        for gradient, want, tensor in zip(found, wanted, given, strict=False):
            assert gradient.shape == (tensor.shape if want else (0,))


@pytest.mark.parametrize("kind", KINDS[:4])
def test_fake_tensors(kind):
    """Shapes, dtypes and strides without numbers, forward and backward."""
    image, theta, family, options = a_call(kind, dtype=F32, copies=3)
    image = image.contiguous(memory_format=torch.channels_last)
    real = [t.clone().requires_grad_() for t in (image, theta)]
    expected = st.warp(*real, family, **options, impl="fused")
    expected_gradients = torch.autograd.grad(expected.sum(), real)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [mode.from_tensor(t).requires_grad_() for t in (image, theta)]
        found = st.warp(*fake, family, **options, impl="fused")
        found_gradients = torch.autograd.grad(found.sum(), fake)
    for one, other in zip((found, *found_gradients), (expected, *expected_gradients), strict=True):
        assert (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
        assert one.stride() == other.stride()


def test_operators_and_direct_calls_are_the_same():
    """Plain calls go past the dispatcher; what a dispatch mode watches does not."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            seen.append(str(function))
            return function(*arguments, **(options or {}))

    image, theta, family, options = a_call(dtype=F32)
    theta.requires_grad_()
    direct = st.warp(image, theta, family, **options, impl="fused")
    seen: list[str] = []
    with Watch():
        watched = st.warp(image, theta, family, **options, impl="fused")
        (found,) = torch.autograd.grad(watched.sum(), theta)
    assert torch.equal(watched, direct)
    assert torch.equal(found, torch.autograd.grad(direct.sum(), theta)[0])
    assert [name for name in seen if name.startswith("spatial_transformer")] == [
        "spatial_transformer.warp.default",
        "spatial_transformer.warp_backward.default",
    ]


# Derivatives

READINGS = [
    ("bilinear", "zeros", {}),
    ("bicubic", "fill", {}),
    ("bilinear", "reflection", {"antialias": 3}),
    ("bicubic", "circular", {"copies": 2}),
]


@pytest.mark.parametrize(("kernel", "pad", "others"), READINGS)
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_double_backward_is_the_references(name, dims, kernel, pad, others):
    """Through image, theta and what is learned: first, second and mixed derivatives."""
    if (
        dims == 3
        and (kernel == "bicubic" or "antialias" in others)
        and name not in ("Affine", "LearnedBasis")
    ):
        pytest.skip("the same code as the other families'")
    image, theta, family, options = a_call(name, dims, kernel=kernel, pad=pad, batch=1, **others)
    answers = []
    for impl in ("reference", "fused"):
        leaves = [image.clone().requires_grad_(), theta.clone().requires_grad_(), *family.parameters()]
        output = st.warp(*leaves[:2], family, **options, impl=impl)
        cotangent = (images(*output.shape, seed=7) - 0.5).requires_grad_()
        first = torch.autograd.grad(output, leaves, cotangent, create_graph=True)
        loss = sum((g * images(*g.shape, seed=8)).sum() for g in first)
        answers.append([output, *first, *torch.autograd.grad(loss, [*leaves, cotangent])])
    for found, expected in zip(answers[1], answers[0], strict=True):
        close(found, expected, (1e-9, 1e-9))


def test_third_order():
    image, theta, family, options = a_call("Projective", kernel="bicubic", batch=1)

    def loss(scale, impl):
        return st.warp(image, scale * theta, family, **options, impl=impl).square().sum()

    one = torch.tensor(1.0, dtype=F64)
    found, expected = (grad(grad(grad(loss)))(one, impl) for impl in ("fused", "reference"))
    close(found, expected, (1e-9, 1e-9))
    leaf = torch.tensor(1.0, dtype=F64, requires_grad=True)
    value = st.warp(image, leaf * theta, family, **options, impl="fused").square().sum()
    for _ in range(3):
        (value,) = torch.autograd.grad(value, leaf, create_graph=True)
    close(value, expected, (1e-9, 1e-9))


def test_gradgradcheck():
    image, theta, family, options = a_call("ThinPlateSpline", pad="border", batch=1)
    leaves = image.requires_grad_(), theta.requires_grad_()

    def warp(image, theta):
        return st.warp(image, theta, family, **options, impl="fused")

    assert torch.autograd.gradgradcheck(warp, leaves)


@pytest.mark.parametrize(("kernel", "pad", "others"), READINGS)
@pytest.mark.parametrize("name", ["Affine", "Projective", "ThinPlateSpline", "LearnedBasis"])
def test_function_transforms(name, kernel, pad, others):
    """jvp, jacfwd, jacrev, hessian, vmap, vmap(grad), vmap(jacrev), grad of grad: the reference's numbers."""
    image, theta, family, options = a_call(name, kernel=kernel, pad=pad, **others)
    tangents = images(*image.shape, seed=4), images(*theta.shape, seed=5)
    many = torch.stack([theta, theta + 0.05, theta - 0.03])

    def answers(impl):
        def warp(image, theta):
            return st.warp(image, theta, family, **options, impl=impl)

        def loss(image, theta):
            return warp(image, theta).square().sum()

        return [
            *jvp(warp, (image, theta), tangents),
            jacfwd(warp, argnums=1)(image, theta),
            jacrev(warp, argnums=1)(image, theta),
            *jacrev(loss, argnums=(0, 1))(image, theta),
            hessian(loss, argnums=1)(image, theta),
            vmap(warp, in_dims=(None, 0))(image, many),
            vmap(grad(loss, argnums=1), in_dims=(None, 0))(image, many),
            vmap(jacrev(warp, argnums=1), in_dims=(None, 0))(image, many),
            grad(lambda t: grad(loss, argnums=1)(image, t).square().sum())(theta),
        ]

    for found, expected in zip(answers("fused"), answers("reference"), strict=True):
        assert found.abs().max() > 0
        close(found, expected, (1e-9, 1e-9))


def test_maps_with_autograd_inside_and_outside():
    """vmap whose result is differentiated, and functional calls of a module."""
    image, theta, family, options = a_call(dtype=F64)
    leaf = theta.clone().requires_grad_()
    output = vmap(lambda u, t: st.warp(u[None], t[None], family, **options, impl="fused")[0])(image, leaf)
    (found,) = gradients(output, leaf)
    leaf = theta.clone().requires_grad_()
    (expected,) = gradients(st.warp(image, leaf, family, **options, impl="reference"), leaf)
    close(found, expected, (1e-10, 1e-10))


# Modes


@pytest.mark.parametrize("name", [*KINDS[:4], "Similarity", "PiecewiseAffine"])
@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_leaves_coordinates_exact(name, compiled):
    """bfloat16 autocast, in float32 calls: the same bits forward, the same gradients."""
    image, theta, family, options = a_call(name, dtype=F32)
    leaves = image.requires_grad_(), theta.requires_grad_()

    def call(image, theta):
        return st.warp(image, theta, family, **options, impl="fused")

    plain = call(*leaves)
    expected = gradients(plain, leaves)
    if compiled:
        torch._dynamo.reset()
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = call(*leaves)
        inside = gradients(output, leaves)
    assert output.dtype == F32
    close(output, plain, (0, 1e-6 if compiled else 0))
    for found in (inside, gradients(call(*leaves), leaves)):
        for one, other in zip(found, expected, strict=True):
            close(one, other, (1e-5, 1e-5))


def test_inference_mode():
    image, theta, family, options = a_call(dtype=F32)
    expected = st.warp(image, theta, family, **options, impl="fused")
    with torch.inference_mode():
        assert torch.equal(st.warp(image, theta, family, **options, impl="fused"), expected)


@pytest.mark.parametrize("name", ["Affine", "ThinPlateSpline", "LearnedBasis"])
def test_copies_and_pickles(name):
    module = transformer(name, 2, {})
    image = images(3, 2, *IN[2], dtype=F32)
    expected = step(module, image)  # and its caches are full
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        for found, wanted in zip(step(other, image), expected, strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["Affine", "ThinPlateSpline", "LearnedBasis"])
def test_checkpoints(name, reentrant):
    """Activations computed again on the way back."""
    module = transformer(name, 2, {})
    image = images(3, 2, *IN[2], dtype=F32)
    answers = []
    for run in (module, lambda u: checkpoint(module, u, use_reentrant=reentrant)):
        module.zero_grad()
        leaf = image.clone().requires_grad_()
        run(leaf).square().sum().backward()
        answers.append([leaf.grad, *(p.grad.clone() for p in module.parameters())])
    for found, expected in zip(*answers, strict=True):
        assert torch.equal(found, expected)


def test_a_graph_that_is_kept():
    """Twice backward through one output; and an image changed in between is noticed."""
    image, theta, family, options = a_call()
    leaf = theta.requires_grad_()
    output = st.warp(image, leaf, family, **options, impl="fused").sum()
    first = torch.autograd.grad(output, leaf, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(output, leaf, retain_graph=True)[0], first)
    image.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(output, leaf)


# Processes

WORKER = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import spatial_transformer as st

def module():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        st.SpatialTransformer(st.DenseLocaliser(1, (8, 7), hidden=(4,)), st.ThinPlateSpline(), impl="fused"),
        torch.nn.Flatten(),
        torch.nn.Linear(56, 3),
    )
    torch.nn.init.normal_(model[0].head.weight, std=0.05)
    return model

def batch():
    return torch.rand(6, 1, 8, 7, generator=torch.Generator().manual_seed(1))

def loss(model, image):
    return model(image).square().mean()

def work(rank, path, queue, done):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(module())
    for _ in range(2):
        model.zero_grad()
        loss(model, batch()[3 * rank : 3 * rank + 3]).backward()
    queue.put((rank, [p.grad.numpy().copy() for p in model.parameters()]))
    done.wait(200)  # one that leaves while the other is still in a collective can take it down
    del model
    dist.destroy_process_group()

if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue, done = context.Queue(), context.Event()
    workers = [context.Process(target=work, args=(rank, sys.argv[1], queue, done)) for rank in range(2)]
    for worker in workers:
        worker.start()
    found = dict(queue.get(timeout=200) for _ in workers)
    done.set()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    model = module()
    loss(model, batch()).backward()
    for rank in range(2):
        for one, parameter in zip(found[rank], model.parameters()):
            torch.testing.assert_close(torch.from_numpy(one), parameter.grad, rtol=1e-5, atol=1e-6)
            assert parameter.grad.any()
    print("equal")
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed package")
def test_two_processes_train_as_one(tmp_path):
    """DistributedDataParallel over gloo: the gradients of one process with the whole batch."""
    script = tmp_path / "train.py"
    script.write_text(WORKER)
    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "meeting")], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert "equal" in ran.stdout


def test_forked_workers():
    """A DataLoader's workers are forked, after this process has used its threads."""
    image, theta, family, options = a_call(dtype=F32)
    expected = st.warp(image, theta, family, **options, impl="fused")

    class Warped(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return st.warp(image, theta, family, **options, impl="fused")[index]

    loader = torch.utils.data.DataLoader(Warped(), num_workers=1, multiprocessing_context="fork", timeout=60)
    for found, wanted in zip(loader, expected, strict=True):
        assert torch.equal(found[0], wanted)


# What is there and what is not


def reading(image, **options):
    given = {"kernel": "bilinear", "padding": "zeros", "align_corners": False, "antialias": False, **options}
    return checks.reading(image, **given)


PROBE = """
import sys
import torch
before = set(sys.modules)
import spatial_transformer as st
image, theta = torch.rand(1, 1, 4, 4), torch.tensor([[1.0, 0, 0, 0, 1, 0]])
for impl in ("torch", "reference"):
    st.warp(image, theta, st.Affine(), impl=impl)
st.info()
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(new & {"triton", "numba", "llvmlite"}))
st.warp(image, theta, st.Affine(), impl="fused")
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(new & {"triton", "numba"}))
"""


def test_kernels_are_imported_when_they_run():
    """Nothing of Triton or Numba by importing the package or asking what there is; on the CPU Numba alone."""
    ran = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["[]", "['numba']"]


MISSING = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("triton", "numba"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in ("triton", "numba") else found(name, *rest)
import torch
sys.meta_path.insert(0, Missing())
import spatial_transformer as st
image, theta = torch.rand(2, 1, 4, 4), torch.tensor([[1.0, 0.1, 0, 0, 1, 0]] * 2)
assert torch.equal(st.warp(image, theta, st.Affine()), st.warp(image, theta, st.Affine(), impl="torch"))
print(st.info())
try:
    st.warp(image, theta, st.Affine(), impl="fused")
except RuntimeError as error:
    print(error)
"""


def test_a_machine_without_them():
    ran = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    lines = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert "fused not available: Numba is not installed" in lines
    assert lines[-1] == 'impl="fused" cannot run here: Numba is not installed'
    assert any(line.startswith("cpu 2D bilinear zeros, border, reflection torch") for line in lines)


def test_choices(monkeypatch):
    image = torch.rand(1, 1, 4, 4)
    chosen = choose("auto", image, reading(image))
    assert (chosen.name, chosen.module, chosen.reason) == ("fused", operators, "as asked")
    assert operators.how(image, reading(image)) == "Numba kernels"
    meta = image.to("meta")
    assert (
        choose("auto", meta, reading(meta)).reason == "not fused: there are no fused kernels for meta tensors"
    )
    monkeypatch.setattr(operators, "installed", lambda package: False)
    chosen = choose("auto", image, reading(image))
    assert (chosen.name, chosen.module) == ("torch", torch_native)
    assert chosen.reason == "not fused: Numba is not installed"
    with pytest.raises(RuntimeError, match='impl="fused" cannot run here: Numba is not installed'):
        choose("fused", image, reading(image))
