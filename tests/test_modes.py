"""The private names of torch in ``modes``, on whatever version this runs."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import spatial_transformer as st
from spatial_transformer.modes import exporting, function_transform, opaque, outside, tracing


def seen(mode, run):
    """What ``mode()`` said inside a function."""
    answers = []

    def function(x):
        answers.append(mode())
        return x.sum()

    run(function)
    return answers


def test_function_transforms_are_seen():
    x = torch.ones(3)
    transforms = [
        lambda f: torch.func.grad(f)(x),
        lambda f: torch.func.jvp(f, (x,), (x,)),
        lambda f: torch.func.vmap(f)(x[None]),
        lambda f: torch.func.vjp(f, x),
        lambda f: torch.func.jacfwd(f)(x),
        lambda f: torch.func.vmap(torch.func.grad(f))(x[None]),
    ]
    for run in transforms:
        assert all(seen(function_transform, run))
        assert all(seen(tracing, run))
    assert not function_transform()


def test_forward_mode_is_seen():
    with forward_ad.dual_level():
        assert function_transform()
    assert not function_transform()


def test_what_a_transform_leaves_behind():
    left, x = [], torch.rand(1, 1, 4, 4)
    torch.func.grad(lambda x: (left.append(x), x.sum())[1])(x)
    assert torch.equal(outside(left[0]), x)
    assert outside(x) is x
    theta = torch.tensor([[1.0, 0, 0, 0, 1, 0]], requires_grad=True)
    for image in (x, *left):
        output = st.warp(image, theta, st.Affine())
        assert torch.equal(output, x)
        assert torch.autograd.grad(output.sum(), theta)[0].shape == theta.shape


def test_plain_calls_are_plain():
    x = torch.ones(3, requires_grad=True)
    assert seen(function_transform, lambda f: f(x).backward()) == [False]
    assert seen(tracing, lambda f: f(x)) == [False]
    with torch.no_grad(), torch.inference_mode():
        assert not tracing()


def test_stand_ins_are_seen():
    with FakeTensorMode():
        assert tracing()
    assert not tracing()
    assert all(seen(tracing, lambda f: torch.compile(f, backend="eager")(torch.ones(3))))

    class Module(torch.nn.Module):
        def forward(self, x):
            answers.append(tracing())
            return x.sum()

    answers: list[bool] = []
    torch.export.export(Module(), (torch.ones(3),), strict=False)
    assert answers
    assert all(answers)


def test_exports_are_seen():
    class Module(torch.nn.Module):
        def forward(self, x):
            answers.append(exporting())
            return x.sum()

    answers: list[bool] = []
    torch.export.export(Module(), (torch.ones(3),), strict=False)
    assert answers
    assert all(answers)
    assert not exporting()
    assert not any(seen(exporting, lambda f: torch.compile(f, backend="eager")(torch.ones(3))))


def test_watchers_of_operators_are_seen():
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            return function(*arguments, **(options or {}))

    for watching in (Watch(), FakeTensorMode()):
        with watching:
            assert opaque()
    assert not opaque()
    assert all(seen(opaque, lambda f: torch.compile(f, backend="eager")(torch.ones(3))))
    x = torch.ones(3, requires_grad=True)
    assert seen(opaque, lambda f: f(x).backward()) == [False]
    with torch.no_grad(), torch.inference_mode():
        assert not opaque()
