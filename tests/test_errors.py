"""Wrong arguments: the error's type, and that it names the argument, what is expected and what was given."""

from __future__ import annotations

import contextlib
import math
import types

import numpy as np
import pytest
import torch
from torch import nn

import spatial_transformer as st
from spatial_transformer import implementations
from spatial_transformer.implementations import operators

IMAGE = torch.rand(2, 3, 5, 6)
THETA = st.Affine().identity().expand(2, 6)
GRID = st.Affine().grid(THETA, (4, 7))
VOLUME = torch.rand(2, 3, 4, 5, 6)


def warp(**changed):
    given = {"image": IMAGE, "theta": THETA, "family": st.Affine()} | changed
    return st.warp(given.pop("image"), given.pop("theta"), given.pop("family"), **given)


def sample(**changed):
    given = {"image": IMAGE, "grid": GRID} | changed
    return st.sample(given.pop("image"), given.pop("grid"), **given)


def raises(error, name, expected, given, call, *args, **kwargs):
    """The three pieces of a message, each asked for by itself."""
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert type(caught.value) is error
    message = str(caught.value)
    for piece in (name, expected, given):
        assert piece in message, f"{piece!r} is not in {message!r}"


def cases(*rows):
    """Rows of (id, error, argument, value, expected, given)."""
    return pytest.mark.parametrize(
        ("error", "name", "value", "expected", "given"),
        [row[1:] for row in rows],
        ids=[row[0] for row in rows],
    )


def test_the_calls_that_are_broken_below_work():
    assert warp().shape == (2, 3, 5, 6)
    assert sample().shape == (2, 3, 4, 7)


FLOATS = "float64, float32, bfloat16 or float16"
LAYOUTS = "[N, C, H, W] or [N, C, D, H, W]"
NAMES = '"zeros", "border", "reflection", "circular"'


@pytest.mark.parametrize("call", [warp, sample])
@cases(
    ("rank 2", ValueError, "image", IMAGE[0, 0], LAYOUTS, "[5, 6]"),
    ("rank 3", ValueError, "image", IMAGE[0], LAYOUTS, "[3, 5, 6]"),
    ("rank 6", ValueError, "image", VOLUME[None], LAYOUTS, "[1, 2, 3, 4, 5, 6]"),
    ("uint8", TypeError, "image", IMAGE.to(torch.uint8), FLOATS, "uint8"),
    ("int64", TypeError, "image", IMAGE.long(), FLOATS, "int64"),
    ("bool", TypeError, "image", IMAGE > 0.5, FLOATS, "bool"),
    ("complex", TypeError, "image", IMAGE.to(torch.complex64), FLOATS, "complex64"),
    ("list", TypeError, "image", [[1.0]], "a tensor", "list"),
    ("array", TypeError, "image", np.zeros((2, 3, 5, 6), "float32"), "a tensor", "ndarray"),
    ("None", TypeError, "image", None, "a tensor", "None"),
    ("no rows", ValueError, "image", IMAGE[:, :, :0], "not be empty", "[2, 3, 0, 6]"),
    ("no columns", ValueError, "image", IMAGE[..., :0], "not be empty", "[2, 3, 5, 0]"),
    ("no slices", ValueError, "image", VOLUME[:, :, :0], "not be empty", "[2, 3, 0, 5, 6]"),
    ("kernel name", ValueError, "kernel", "cubic", '"nearest", "bilinear", "bicubic"', "'cubic'"),
    ("kernel function", TypeError, "kernel", torch.abs, "a Kernel", "method"),
    ("kernel None", TypeError, "kernel", None, "a Kernel", "None"),
    ("kernel axes", ValueError, "kernel", st.Kernel([torch.abs] * 3, radius=1), "has 2", "3 axes"),
    ("padding name", ValueError, "padding", "wrap", NAMES, "'wrap'"),
    ("padding None", TypeError, "padding", None, NAMES, "None"),
    ("padding bool", TypeError, "padding", True, "a number", "True"),
    ("padding inf", ValueError, "padding", math.inf, "finite", "inf"),
    ("padding nan", ValueError, "padding", math.nan, "finite", "nan"),
    ("fill inf", ValueError, "padding", [0.0, math.inf, 0.0], "finite", "inf"),
    ("fill nan", ValueError, "padding", (math.nan, 0.0, 0.0), "finite", "nan"),  # a tensor's may be anywhere
    ("fill for 2 of 3", ValueError, "padding", [0.0, 1.0], "3 channels", "[0.0, 1.0]"),
    ("fill for 4 of 3", ValueError, "padding", torch.zeros(4), "3 channels", "[4]"),
    ("fill of rank 2", ValueError, "padding", torch.zeros(3, 1), "3 channels", "[3, 1]"),
    ("fill of text", ValueError, "padding", ["a", "b", "c"], "3 channels", "['a', 'b', 'c']"),
    ("fill ragged", ValueError, "padding", [[1.0], [2.0, 3.0]], "3 channels", "[[1.0], [2.0, 3.0]]"),
    ("fill complex", ValueError, "padding", torch.ones(3, dtype=torch.complex64), "3 channels", "[3]"),
    ("align_corners", TypeError, "align_corners", None, "True or False", "None"),
    ("align_corners int", TypeError, "align_corners", 1, "True or False", "got 1"),
    ("antialias 0", ValueError, "antialias", 0, "at least 1", "got 0"),
    ("antialias 0.5", ValueError, "antialias", 0.5, "at least 1", "got 0.5"),
    ("antialias -2", ValueError, "antialias", -2, "at least 1", "-2"),
    ("antialias nan", ValueError, "antialias", math.nan, "at least 1", "nan"),
    ("antialias inf", ValueError, "antialias", math.inf, "at least 1", "inf"),
    ("antialias text", ValueError, "antialias", "yes", "at least 1", "'yes'"),
    ("impl name", ValueError, "impl", "cuda", '"auto", "fused", "torch", "reference"', "'cuda'"),
    ("impl None", ValueError, "impl", None, '"auto", "fused", "torch", "reference"', "None"),
)
def test_arguments_of_both(call, error, name, value, expected, given):
    raises(error, name, expected, given, call, **{name: value})


LENGTHS = "[N, 6] or [N, T, 6] for Affine"


@cases(
    ("short", ValueError, "theta", THETA[:, :5], LENGTHS, "[2, 5]"),
    ("long", ValueError, "theta", torch.zeros(2, 7), LENGTHS, "[2, 7]"),
    ("rank 1", ValueError, "theta", THETA[0], LENGTHS, "[6]"),
    ("rank 4", ValueError, "theta", torch.zeros(2, 1, 1, 6), LENGTHS, "[2, 1, 1, 6]"),
    ("a matrix", ValueError, "theta", torch.zeros(2, 2, 3), LENGTHS, "[2, 2, 3]"),
    ("int", TypeError, "theta", THETA.long(), FLOATS, "int64"),
    ("complex", TypeError, "theta", THETA.to(torch.complex64), FLOATS, "complex64"),
    ("list", TypeError, "theta", [1.0], "a tensor", "list"),
    ("batch 3", ValueError, "theta", torch.zeros(3, 6), "batch size of image, 2", "[3, 6]"),
    ("batch 1", ValueError, "theta", torch.zeros(1, 6), "batch size of image, 2", "[1, 6]"),
    ("batch 3 of 4", ValueError, "theta", torch.zeros(3, 4, 6), "batch size of image, 2", "[3, 4, 6]"),
    ("no transforms", ValueError, "theta", torch.zeros(2, 0, 6), "at least one transform", "[2, 0, 6]"),
    ("device", ValueError, "theta", THETA.to("meta"), "device of image, cpu", "meta"),
    ("class", TypeError, "family", st.Affine, "a Family such as st.Affine()", "class"),
    ("name", TypeError, "family", "affine", "a Family such as st.Affine()", "'affine'"),
    ("module", TypeError, "family", nn.Identity(), "a Family such as st.Affine()", "Identity"),
    ("dims", ValueError, "family", st.Affine(dims=3), "5 axes", "[2, 3, 5, 6]"),
    ("size of 1", ValueError, "size", (4,), "(H, W)", "(4,)"),
    ("size of 3", ValueError, "size", (4, 4, 4), "(H, W)", "(4, 4, 4)"),
    ("size a number", ValueError, "size", 4, "(H, W)", "got 4"),
    ("size text", ValueError, "size", "44", "(H, W)", "'44'"),
    ("size tensor", ValueError, "size", torch.tensor([4, 4]), "(H, W)", "a tensor"),
    ("size float", TypeError, "size", (4.0, 4), "whole numbers", "(4.0, 4)"),
    ("size bool", TypeError, "size", (True, 4), "whole numbers", "(True, 4)"),
    ("size negative", ValueError, "size", (-4, 4), "at least 1", "(-4, 4)"),
    ("size empty", ValueError, "size", [4, 0], "at least 1", "(4, 0)"),
)
def test_arguments_of_warp(error, name, value, expected, given):
    raises(error, name, expected, given, warp, **{name: value})


def test_arguments_of_warp_in_3d():
    raises(ValueError, "family", "4 axes", "[2, 3, 4, 5, 6]", warp, image=VOLUME)
    family = st.Affine(dims=3)
    solid = {"image": VOLUME, "family": family, "theta": family.identity().expand(2, 12)}
    assert warp(**solid).shape == VOLUME.shape
    raises(ValueError, "size", "(D, H, W)", "(4, 4)", warp, **solid, size=(4, 4))
    raises(ValueError, "theta", "[N, 12]", "[2, 6]", warp, **solid | {"theta": THETA})


GRIDS = "[N, H', W', 2] or [N, T, H', W', 2]"


@cases(
    ("3D points", ValueError, "grid", torch.zeros(2, 4, 7, 3), GRIDS, "[2, 4, 7, 3]"),
    ("rank 3", ValueError, "grid", GRID[0], GRIDS, "[4, 7, 2]"),
    ("rank 6", ValueError, "grid", GRID[None, None], GRIDS, "[1, 1, 2, 4, 7, 2]"),
    ("int", TypeError, "grid", GRID.long(), FLOATS, "int64"),
    ("list", TypeError, "grid", [1.0], "a tensor", "list"),
    ("batch", ValueError, "grid", GRID[:1], "batch size of image, 2", "[1, 4, 7, 2]"),
    ("no rows", ValueError, "grid", GRID[:, :0], "not be empty", "[2, 0, 7, 2]"),
    ("no columns", ValueError, "grid", GRID[:, :, :0], "not be empty", "[2, 4, 0, 2]"),
    ("no transforms", ValueError, "grid", GRID[:, None][:, :0], "at least one transform", "[2, 0, 4, 7, 2]"),
    ("device", ValueError, "grid", GRID.to("meta"), "device of image, cpu", "meta"),
)
def test_arguments_of_sample(error, name, value, expected, given):
    raises(error, name, expected, given, sample, **{name: value})


def test_arguments_of_sample_in_3d():
    raises(ValueError, "grid", "[N, D', H', W', 3]", "[2, 4, 7, 2]", sample, image=VOLUME)


def test_an_image_on_another_device():
    raises(ValueError, "theta", "device of image, meta", "cpu", warp, image=IMAGE.to("meta"))
    raises(ValueError, "grid", "device of image, meta", "cpu", sample, image=IMAGE.to("meta"))


@pytest.mark.parametrize("call", [warp, sample])
def test_a_kernel_that_changes_the_shape(call):
    kernel = st.Kernel(lambda d: d.sum(-1), radius=1)
    with pytest.raises(ValueError, match=r"function must return weights of shape \[.*\], got \[") as caught:
        call(kernel=kernel)
    assert "Kernel" in str(caught.value)


@pytest.mark.parametrize("call", [warp, sample])
def test_an_implementation_that_cannot_run_says_why(call, monkeypatch):
    full_moon = types.SimpleNamespace(why_not=lambda *given: "the moon is full")
    monkeypatch.setitem(implementations.IMPLEMENTATIONS, "fused", full_moon)
    raises(RuntimeError, 'impl="fused"', "cannot run", "the moon is full", call, impl="fused")
    assert torch.equal(call(impl="auto"), call(impl="torch"))  # which may fall back


@pytest.mark.parametrize("call", [warp, sample])
def test_what_the_fused_kernels_refuse(call, monkeypatch):
    own = st.Kernel(lambda d: torch.exp(-d * d), radius=1)
    monkeypatch.setattr(operators, "installed", lambda package: True)
    refuses = [RuntimeError, 'impl="fused"', "cannot run"]
    raises(*refuses, "no kernel of one's own", call, impl="fused", kernel=own)
    fill = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    raises(*refuses, "gradient to the padding's value", call, impl="fused", padding=fill)
    monkeypatch.setattr(operators, "installed", lambda package: False)
    raises(*refuses, "Numba is not installed", call, impl="fused")
    assert torch.equal(call(impl="auto"), call(impl="torch"))


# Batch 0

IMPLS = list(implementations.IMPLEMENTATIONS)
PADDINGS = ["zeros", "border", "reflection", "circular", 0.5, (0.1, 0.2, 0.3)]
KERNELS = ["nearest", "bilinear", "bicubic", st.Kernel(lambda d: torch.exp(-d * d), radius=1.5)]


@contextlib.contextmanager
def skipping_what_it_cannot(impl):
    """The fused kernels may refuse; the other two do everything."""
    try:
        yield
    except RuntimeError as error:
        if impl == "fused" and "cannot run here" in str(error):
            pytest.skip(str(error))
        raise


def differentiated(result, *inputs):
    gradients = torch.autograd.grad(result.sum(), inputs)
    assert [g.shape for g in gradients] == [i.shape for i in inputs]


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("padding", PADDINGS, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=["nearest", "bilinear", "bicubic", "Kernel"])
def test_batch_0(impl, dims, kernel, padding):
    options = {"kernel": kernel, "padding": padding, "impl": impl}
    family, out = st.Affine(dims=dims), (2, 5, 4)[:dims]
    image = torch.rand(0, 3, *(4, 3, 5)[:dims], requires_grad=True)
    for copies in ((), (2,)):
        theta = torch.zeros(0, *copies, family.num_params, requires_grad=True)
        with skipping_what_it_cannot(impl):
            warped = st.warp(image, theta, family, size=out, **options)
        assert warped.shape == (0, *copies, 3, *out)
        differentiated(warped, image, theta)
        grid = torch.zeros(0, *copies, *out, dims, requires_grad=True)
        sampled = st.sample(image, grid, **options)
        assert sampled.shape == (0, *copies, 3, *out)
        differentiated(sampled, image, grid)


FAMILIES = [
    family(dims=dims)
    for dims in (2, 3)
    for family in (st.Translation, st.Attention, st.Similarity, st.Affine, st.Projective)
] + [
    family
    for lattice, size in (((3, 4), (4, 3)), ((2, 3, 2), (4, 3, 5)))
    for family in (st.ThinPlateSpline(lattice), st.PiecewiseAffine(lattice), st.LearnedBasis(lattice, size))
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{type(family).__name__}{family.dims}d")
def test_batch_0_of_every_family(family):
    size = (4, 3, 5)[: family.dims]
    image = torch.rand(0, 2, *size, requires_grad=True)
    theta = torch.zeros(0, family.num_params, requires_grad=True)
    for antialias in (False, 2):
        warped = st.warp(image, theta, family, antialias=antialias)
        assert warped.shape == image.shape
        differentiated(warped, image, theta)
    assert family.box(theta).shape == (0, 2**family.dims, family.dims)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("copies", [1, 3])
def test_batch_0_through_the_module(impl, copies):
    localiser = st.ConvLocaliser(1, (28, 28))
    transformer = st.SpatialTransformer(localiser, st.Affine(), copies=copies, impl=impl)
    image = torch.rand(0, 1, 28, 28, requires_grad=True)
    with skipping_what_it_cannot(impl):
        warped = transformer(image)
    assert warped.shape == ((0, 1, 28, 28) if copies == 1 else (0, copies, 1, 28, 28))
    warped.sum().backward()
    assert image.grad.shape == image.shape
    assert all(not p.grad.any() for p in transformer.parameters())


# Constructors

BOTH = (st.Affine, st.Projective)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        (st.Translation, "x, y"),
        (st.Attention, "scale, x, y"),
        (st.Similarity, "a, b, x, y"),
        (st.Affine, "theta_11, theta_12, theta_13, theta_21, theta_22, theta_23"),
        (st.Projective, "theta_31, theta_32"),
        (st.ThinPlateSpline, "x_0, y_0, x_1"),
        (st.PiecewiseAffine, "x_15, y_15"),
        (st.LearnedBasis, "x_15, y_15"),
    ],
)
def test_pinned_numbers_of_every_family(family, names):
    raises(TypeError, family.__name__, names, "'zoom'", family, zoom=0.5)
    first = family().names[0]
    raises(TypeError, first, "a finite number", "'half'", family, **{first: "half"})
    raises(TypeError, first, "a finite number", "tensor(1.)", family, **{first: torch.tensor(1.0)})
    raises(TypeError, first, "a finite number", "[1.0]", family, **{first: [1.0]})


@pytest.mark.parametrize("family", [st.Translation, st.Attention, st.Similarity, st.Affine, st.Projective])
@pytest.mark.parametrize("dims", [1, 4])
def test_dims(family, dims):
    raises(ValueError, "dims", "2 or 3", f"got {dims}", family, dims=dims)


@pytest.mark.parametrize("family", [st.ThinPlateSpline, st.PiecewiseAffine])
@pytest.mark.parametrize("lattice", [(4,), (4, 4, 4, 4), (1, 4), (0, 4), (4.0, 4)])
def test_lattices(family, lattice):
    raises(ValueError, "lattice", "whole numbers of at least 2", str(lattice), family, lattice)


def test_a_family_of_ones_own():
    raises(ValueError, "dims", "2 or 3", "got 5", st.Family, dims=5, identity=[0.0])
    raises(ValueError, "names", "2 numbers", "['a']", st.Family, dims=2, identity=[0.0, 1.0], names=["a"])

    class Nothing(st.Family):
        pass

    nothing = Nothing(dims=2, identity=[0.0])
    with pytest.raises(NotImplementedError, match=r"Nothing defines neither matrix\(\) nor points\(\)"):
        nothing.box(torch.zeros(1))


@pytest.mark.parametrize("family", [st.ThinPlateSpline(), st.PiecewiseAffine(), st.LearnedBasis(16, (4, 4))])
def test_families_that_are_not_closed(family):
    for call in (lambda: family.inverse(family.identity()), lambda: family.compose(*[family.identity()] * 2)):
        with pytest.raises(NotImplementedError, match=rf"{type(family).__name__} is not closed"):
            call()


@pytest.mark.parametrize("family", BOTH)
def test_opencv_matrices(family):
    expected = {st.Affine: "[..., 2, 3]", st.Projective: "[..., 3, 3]"}[family]
    raises(ValueError, "matrix", expected, "[4, 4]", family().from_opencv, torch.eye(4), (4, 4), (4, 4))


@pytest.mark.parametrize(
    ("error", "name", "expected", "given", "function", "radius"),
    [
        (TypeError, "function", "callable", "got 3", 3, 1),
        (TypeError, "function", "callable", "got None", None, 1),
        (TypeError, "function", "callable", "[]", [], 1),
        (TypeError, "function", "callable", "[3]", [3], 1),
        (TypeError, "function", "one for each axis", "built-in method abs", [torch.abs] * 4, 1),
        (ValueError, "radius", "positive", "got 0", torch.abs, 0),
        (ValueError, "radius", "positive", "-1", torch.abs, -1),
        (ValueError, "radius", "positive", "inf", torch.abs, math.inf),
        (ValueError, "radius", "positive", "nan", torch.abs, math.nan),
        (ValueError, "radius", "positive", "'2'", torch.abs, "2"),
    ],
)
def test_kernels(error, name, expected, given, function, radius):
    raises(error, name, expected, given, st.Kernel, function, radius)


@pytest.mark.parametrize(
    ("name", "expected", "given", "arguments"),
    [
        ("copies", "at least 1", "got 0", {"copies": 0}),
        ("start", '"identity", "tile" or a tensor', "'middle'", {"start": "middle"}),
        ("start", '"identity", "tile" or a tensor', "None", {"start": None}),
        ("start", "[6] or [1, 6]", "[5]", {"start": torch.zeros(5)}),
        ("start", "[6] or [2, 6]", "[3, 6]", {"start": torch.zeros(3, 6), "copies": 2}),
        ("family", "not pinned", "nothing to learn", {"family": st.Translation(x=0, y=0)}),
    ],
)
def test_heads(name, expected, given, arguments):
    raises(ValueError, name, expected, given, lambda family, **more: st.Head(8, family, **more),
           **{"family": st.Affine()} | arguments)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected", "given", "arguments"),
    [
        # 12 halved is 6; 2 after the first convolution, 1 after pooling: too little for the second
        ("in_size", "too small", "(12, 12)", {"in_size": (12, 12)}),
        ("in_size", "too small", "(28, 8)", {"in_size": (28, 8)}),
        ("in_size", "too small", "(28, 28, 8)", {"in_size": (28, 28, 8)}),
        ("in_size", "too small", "(8, 8)", {"in_size": (8, 8), "kernel_size": 9, "stride": 4}),
        ("in_size", "(H, W) or (D, H, W)", "(28,)", {"in_size": (28,)}),
        ("pool", "2 convolutions", "(2,)", {"pool": (2,)}),
        ("channels", "at least one layer", "got ()", {"channels": ()}),
        ("hidden", "at least one layer", "got ()", {"hidden": ()}),
    ],
)
def test_conv_localisers(name, expected, given, arguments):
    raises(ValueError, name, expected, given, st.ConvLocaliser, 1, **{"in_size": (28, 28)} | arguments)


def test_the_smallest_conv_localiser_works():
    # 26 -> 13 -> 9 -> 4: one pixel less than a 5x5 takes
    raises(ValueError, "in_size", "too small", "(26, 26)", st.ConvLocaliser, 1, (26, 26))
    assert st.ConvLocaliser(1, (28, 28))(torch.rand(2, 1, 28, 28)).shape == (2, 20)  # 14 -> 10 -> 5 -> 1


def test_a_dense_localiser_without_layers():
    raises(ValueError, "hidden", "at least one layer", "got ()", st.DenseLocaliser, 1, (28, 28), hidden=())


@pytest.mark.parametrize(
    ("name", "expected", "given", "arguments"),
    [
        ("points", "a square", "got 15", {"points": 15, "size": (4, 4)}),
        ("points", "a cube", "got 16", {"points": 16, "size": (4, 4, 4)}),
        ("points", "a square", "got -4", {"points": -4, "size": (4, 4)}),
        ("points", "must be 3", "got 16", {"points": 16, "size": (4, 4), "start": "homogeneous"}),
        ("points", "must be 4", "got 3", {"points": 3, "size": (4, 4, 4), "start": "homogeneous"}),
        ("start", '"spline" or "homogeneous"', "'random'", {"start": "random"}),
        ("size", "(H, W) or (D, H, W)", "(28,)", {"size": (28,)}),
        ("size", "at least 1", "(0, 4)", {"size": (0, 4)}),
    ],
)
def test_learned_bases(name, expected, given, arguments):
    raises(ValueError, name, expected, given, st.LearnedBasis, **arguments)


def test_a_learned_basis_of_another_size():
    family = st.LearnedBasis(16, (4, 5))
    theta = family.identity().expand(2, -1)
    call = {"theta": theta, "family": family}
    assert warp(**call, size=(4, 5)).shape == (2, 3, 4, 5)
    raises(ValueError, "size", "(4, 5)", "(5, 6)", warp, **call)
    raises(ValueError, "align_corners", "align_corners=False", "align_corners=True", warp, **call,
           size=(4, 5), align_corners=True)  # fmt: skip
    raises(ValueError, "size", "(4, 5)", "(5, 4)", family.grid, theta, (5, 4))
    raises(ValueError, "size", "(4, 5)", "(5, 4)", family.basis, (5, 4))


class Silent(nn.Module):
    def forward(self, image):
        return image.flatten(1)[:, :4]


def build(localiser=None, family=None, **options):
    return st.SpatialTransformer(localiser or st.DenseLocaliser(3, (5, 6)), family or st.Affine(), **options)


@pytest.mark.parametrize(
    ("error", "name", "expected", "given", "arguments"),
    [
        (TypeError, "localiser", "a module", "'conv'", {"localiser": "conv"}),
        (TypeError, "family", "a Family", "class", {"family": st.Affine}),
        (ValueError, "features", "out_features", "Silent", {"localiser": Silent()}),
        (ValueError, "head", "1 x 6", "1 x 3", {"head": st.Head(32, st.Attention())}),
        (ValueError, "head", "copies=3", "2 x 6", {"head": st.Head(32, st.Affine(), copies=2), "copies": 3}),
        (ValueError, "copies", "at least 1", "got 0", {"copies": 0}),
        (ValueError, "impl", '"auto", "fused"', "'gpu'", {"impl": "gpu"}),
        (ValueError, "antialias", "at least 1", "0.5", {"antialias": 0.5}),
    ],
)
def test_the_module(error, name, expected, given, arguments):
    raises(error, name, expected, given, build, **arguments)


def test_what_a_localiser_gives_is_checked_too():
    transformer = build(Silent(), head=nn.Identity())  # 4 numbers, of 6
    raises(ValueError, "theta", "[N, 6]", "[2, 4]", transformer, IMAGE)


@pytest.mark.parametrize(
    "family", [st.Translation(), st.Attention(scale=0.5), st.Affine(), st.ThinPlateSpline()]
)
@pytest.mark.parametrize("surplus", [-1, 1])
def test_theta_of_the_wrong_length_in_a_familys_own_methods(family, surplus):
    given = family.num_params + surplus
    raises(
        ValueError,
        "theta",
        f"[..., {family.num_params}]",
        f"[1, {given}]",
        family.grid,
        torch.zeros(1, given),
        (2, 2),
    )


@pytest.mark.parametrize(
    ("argument", "expected", "given", "options"),
    [
        ("kernel", "bilinear", "'cubic'", {"kernel": "cubic"}),
        ("padding", "circular", "'wrap'", {"padding": "wrap"}),
        ("align_corners", "True or False", "3", {"align_corners": 3}),
        ("size", "(H, W)", "(2, 2, 2)", {"size": (2, 2, 2)}),
        ("size", "(H, W)", "5", {"size": 5}),
        ("antialias", "at least 1", "0.5", {"antialias": 0.5}),
        ("impl", "reference", "'fast'", {"impl": "fast"}),
    ],
)
def test_a_modules_options_are_checked_when_it_is_made(argument, expected, given, options):
    localiser = st.DenseLocaliser(1, (4, 4))
    with pytest.raises((ValueError, TypeError)) as caught:
        st.SpatialTransformer(localiser, st.Affine(), **options)
    for piece in (argument, expected, given):
        assert piece in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "given", "make"),
    [
        ("dims", "'2'", lambda: st.Affine(dims="2")),
        ("dims", "4", lambda: st.Similarity(dims=4)),
        ("dims", "2.0", lambda: st.Projective(dims=2.0)),
        ("lattice", "4", lambda: st.ThinPlateSpline(lattice=4)),
        ("size", "28", lambda: st.LearnedBasis(16, 28)),
        ("size", "2.5", lambda: st.LearnedBasis(16, (2.5, 3))),
        ("scale", "nan", lambda: st.Attention(scale=float("nan"))),
        ("scale", "True", lambda: st.Attention(scale=True)),
        ("radius", "True", lambda: st.Kernel(torch.ones_like, radius=True)),
        ("family", "'affine'", lambda: st.Head(3, "affine")),
        ("copies", "1.5", lambda: st.Head(3, st.Affine(), copies=1.5)),
        ("in_size", "(1, 1)", lambda: st.ConvLocaliser(1, (1, 1), padding=3)),
    ],
)
def test_constructors_name_what_is_wrong(argument, given, make):
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    assert argument in str(caught.value)
    assert given in str(caught.value)


def test_numbers_of_numpys():
    image, theta = torch.rand(1, 2, 4, 4), st.Affine().identity()[None]
    found = st.warp(image, theta, st.Affine(), size=(np.int64(3), 3), padding=np.array([0.1, 0.2]))
    assert torch.equal(found, st.warp(image, theta, st.Affine(), size=(3, 3), padding=[0.1, 0.2]))
    assert st.Attention(scale=np.float32(0.5)).pinned == {"scale": 0.5}
    st.warp(image, theta, st.Affine(), padding=np.float32(0.5), antialias=np.float64(2))


def test_sizes_and_points_of_the_wrong_dimensions():
    theta = st.Affine().identity()[None]
    raises(ValueError, "size", "(H, W)", "(3, 3, 3)", st.Affine().grid, theta, (3, 3, 3))
    spline = st.ThinPlateSpline()
    raises(ValueError, "size", "(H, W)", "(3,)", spline.grid, spline.identity()[None], (3,))
    raises(ValueError, "points", "[..., n, 2]", "[5, 3]", st.Affine().points, theta, torch.zeros(5, 3))
    raises(ValueError, "in_size", "(H, W)", "28", st.ConvLocaliser, 1, 28)


def test_export_to_a_folder_that_is_not_there(tmp_path):
    pytest.importorskip("onnxscript")
    module = st.SpatialTransformer(st.DenseLocaliser(1, (4, 4)), st.Affine())
    path = tmp_path / "nowhere" / "model.onnx"
    raises(
        FileNotFoundError, "path", "exists", "nowhere", st.export_onnx, module, torch.rand(2, 1, 4, 4), path
    )
