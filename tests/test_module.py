"""SpatialTransformer and what it is made of: the start, copies, localisers, training, and a module's life."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import spatial_transformer as st
from spatial_transformer.control_points import KEPT_BASES

IMPLS = ("reference", "torch", "fused")
SIZES = {2: (9, 8), 3: (5, 6, 7)}


pytestmark = pytest.mark.usefixtures("one_thread", "seed")


def families(dims):
    lattice, size = {2: (4, 4), 3: (2, 3, 2)}[dims], SIZES[dims]
    homogeneous = (st.Translation, st.Attention, st.Similarity, st.Affine, st.Projective)
    return [
        *[family(dims=dims) for family in homogeneous],
        st.ThinPlateSpline(lattice),
        st.PiecewiseAffine(lattice),
        st.LearnedBasis(lattice, size),
        st.LearnedBasis(dims + 1, size, start="homogeneous"),
    ]


def named(family):
    return f"{type(family).__name__}{family.dims}d"


every = pytest.mark.parametrize("family", [*families(2), *families(3)], ids=named)


def unsettled(transformer):
    """With a head that no longer gives the identity."""
    with torch.no_grad():
        transformer.head.weight.normal_(std=0.05)
        transformer.head.bias.add_(0.03 * torch.randn_like(transformer.head.bias))
    return transformer


def small(family=None, channels=1, **options):
    family = family or st.Affine()
    localiser = st.DenseLocaliser(channels, SIZES[family.dims], hidden=(8,))
    return st.SpatialTransformer(localiser, family, **options)


# The start


@every
def test_starts_as_the_identity(family):
    image = torch.rand(3, 2, *SIZES[family.dims])
    for impl in IMPLS:
        warped, theta = small(family, channels=2, impl=impl)(image, return_theta=True)
        assert torch.equal(theta, family.identity().expand(3, -1))
        if impl == "reference" and not isinstance(family, st.LearnedBasis):  # whose B is rounded
            assert torch.equal(warped, image)
        torch.testing.assert_close(warped, image, rtol=0, atol=1e-4)


@every
def test_every_parameter_learns_from_the_start_on(family):
    # zero weights in the head stop the first gradient on its way to the localiser, not the second
    transformer = small(family)
    image = torch.rand(2, 1, *SIZES[family.dims])
    optimiser = torch.optim.SGD(transformer.parameters(), lr=0.01)
    for _ in range(2):
        optimiser.zero_grad()
        (transformer(image) * torch.rand_like(image)).sum().backward()
        optimiser.step()
    assert all(parameter.grad.isfinite().all() for parameter in transformer.parameters())
    assert all(parameter.grad.any() for parameter in transformer.parameters())


# Copies, sizes, series


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("family", [st.Affine(), st.ThinPlateSpline(), st.Attention(dims=3)], ids=named)
def test_copies_are_separate_warps(family, impl):
    transformer = unsettled(small(family, channels=3, copies=4, impl=impl))
    image = torch.rand(2, 3, *SIZES[family.dims])
    warped, theta = transformer(image, return_theta=True)
    assert warped.shape == (2, 4, 3, *SIZES[family.dims])
    assert theta.shape == (2, 4, family.num_params)
    for number in range(4):
        alone = st.warp(image, theta[:, number], family, impl=impl)
        torch.testing.assert_close(warped[:, number], alone, rtol=0, atol=1e-6)
    assert (warped[:, 0] - warped[:, 1]).abs().max() > 1e-3


def test_one_copy_has_no_axis_of_its_own():
    transformer = small(copies=1)
    warped, theta = transformer(torch.rand(2, 1, *SIZES[2]), return_theta=True)
    assert (warped.shape, theta.shape) == ((2, 1, *SIZES[2]), (2, 6))


@pytest.mark.parametrize(("dims", "size"), [(2, (5, 12)), (3, (3, 9, 4))])
def test_size_unlike_the_inputs(dims, size):
    family = st.Affine(dims=dims)
    transformer = unsettled(small(family, size=size))
    image = torch.rand(2, 1, *SIZES[dims])
    warped, theta = transformer(image, return_theta=True)
    assert warped.shape == (2, 1, *size)
    assert torch.equal(warped, st.warp(image, theta, family, size=size))


def test_the_options_reach_the_warp():
    options = {"size": (4, 5), "kernel": "bicubic", "padding": "circular", "align_corners": True,
               "antialias": 3, "impl": "reference"}  # fmt: skip
    transformer = unsettled(small(**options))
    image = torch.rand(2, 1, *SIZES[2])
    warped, theta = transformer(image, return_theta=True)
    assert torch.equal(warped, st.warp(image, theta, st.Affine(), **options))
    defaults = {"kernel": "bilinear", "padding": "zeros", "align_corners": False, "antialias": False}
    for name, default in defaults.items():  # each of them counts here
        assert not torch.equal(warped, st.warp(image, theta, st.Affine(), **options | {name: default}))


def test_return_theta():
    transformer = unsettled(small())
    image = torch.rand(2, 1, *SIZES[2])
    warped, theta = transformer(image, return_theta=True)
    assert torch.equal(transformer(image), warped)
    assert torch.equal(transformer.theta(image), theta)
    assert torch.equal(theta, transformer.head(transformer.localiser(image)))


def test_in_series():
    first, then = small(size=(7, 10)), st.SpatialTransformer(st.DenseLocaliser(1, (7, 10)), st.Attention())
    both = nn.Sequential(first, nn.Identity(), then)
    image = torch.rand(2, 1, *SIZES[2])
    torch.testing.assert_close(both(image), first(image), rtol=0, atol=1e-4)
    unsettled(first), unsettled(then)
    middle = first(image)
    assert torch.equal(both(image), st.warp(middle, then.theta(middle), st.Attention()))
    both(image).sum().backward()
    assert first.head.bias.grad.any()


def test_deep_in_a_network():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), small(channels=4), nn.Flatten(), nn.Linear(4 * 9 * 8, 2))
    model(torch.rand(2, 1, 11, 10)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


# Any module can localise


class Found(nn.Module):
    def __init__(self, out_features=None):
        super().__init__()
        if out_features is not None:
            self.out_features = out_features

    def forward(self, image):
        return image.flatten(1)[:, :5]


def test_features_are_given_or_read_off():
    image = torch.rand(2, 1, *SIZES[2])
    for transformer in (
        st.SpatialTransformer(Found(), st.Affine(), features=5),
        st.SpatialTransformer(Found(out_features=5), st.Affine()),
        st.SpatialTransformer(Found(out_features=99), st.Affine(), features=5),  # what is given counts
        st.SpatialTransformer(nn.Sequential(nn.Flatten(), nn.Linear(72, 5)), st.Affine(), features=5),
    ):
        assert transformer.head.in_features == 5
        torch.testing.assert_close(transformer(image), image, rtol=0, atol=1e-4)


def test_a_localiser_that_gives_theta_by_itself():
    class Theta(nn.Module):
        def forward(self, image):
            return torch.tensor([[0.5, 0.25, 0.0]]).expand(len(image), 3)

    transformer = st.SpatialTransformer(Theta(), st.Attention(), head=nn.Identity())
    image = torch.rand(2, 1, *SIZES[2])
    warped, theta = transformer(image, return_theta=True)
    assert theta.tolist() == [[0.5, 0.25, 0.0]] * 2
    assert torch.equal(warped, st.warp(image, theta, st.Attention()))
    assert list(transformer.parameters()) == []


def test_ones_own_head():
    head = st.Head(5, st.Affine(), copies=3, start=torch.arange(18.0).view(3, 6))
    transformer = st.SpatialTransformer(Found(), st.Affine(), head=head)
    assert transformer.copies == 3
    assert torch.equal(transformer.theta(torch.rand(2, 1, *SIZES[2]))[1], torch.arange(18.0).view(3, 6))


# param_groups


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        shared = st.DenseLocaliser(1, SIZES[2], hidden=(8,))
        self.first = st.SpatialTransformer(shared, st.Affine())
        self.second = nn.Sequential(st.SpatialTransformer(shared, st.Attention()))
        # a localiser that has a transformer of its own
        self.nested = st.SpatialTransformer(
            nn.Sequential(small(), st.DenseLocaliser(1, SIZES[2])), st.LearnedBasis(16, SIZES[2]), features=32
        )
        self.classifier = nn.Linear(72, 2)


def test_param_groups():
    model = Model()
    rest, own = st.param_groups(model, lr=0.1, localiser_lr=0.01)
    assert (rest["lr"], own["lr"]) == (0.1, 0.01)
    together = [*rest["params"], *own["params"]]
    assert len({id(p) for p in together}) == len(together)
    assert {id(p) for p in together} == {id(p) for p in model.parameters()}
    # B belongs to the family, not to the network that finds theta
    others = [model.nested.family.B, *model.classifier.parameters()]
    assert {id(p) for p in rest["params"]} == {id(p) for p in others}
    names = {id(p): name for name, p in model.named_parameters()}
    assert all("localiser" in names[id(p)] or "head" in names[id(p)] for p in own["params"])


def test_param_groups_of_models_that_lack_one():
    for model, rate in ((nn.Linear(3, 2), 0.1), (small(), 0.01)):
        (group,) = st.param_groups(model, lr=0.1, localiser_lr=0.01)
        assert group["lr"] == rate
        assert [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]


def test_param_groups_in_an_optimiser():
    model = nn.Sequential(unsettled(small()), nn.Flatten(), nn.Linear(72, 1))
    before = copy.deepcopy(model)
    optimiser = torch.optim.SGD(st.param_groups(model, lr=0.1, localiser_lr=0.01))
    model(torch.rand(4, 1, *SIZES[2])).sum().backward()
    optimiser.step()
    for (name, new), old in zip(model.named_parameters(), before.parameters(), strict=True):
        rate = 0.01 if name.startswith("0.") else 0.1
        torch.testing.assert_close(new, old - rate * new.grad)
        assert new.grad.any()


# Training


def blobs(count, size=16):
    """One bright spot each, near the middle, brighter on one side. [count, 1, size, size]"""
    along = torch.linspace(-1, 1, size)
    x, y = along[None, None, :], along[None, :, None]
    cx, cy = (0.5 * torch.rand(count, 1, 1) - 0.25 for _ in range(2))
    return ((-6 * ((x - cx) ** 2 + 2 * (y - cy) ** 2)).exp() * (1 + x))[:, None]


def trained(model, make, steps, optimiser):
    """The mean loss over the first and the last ten steps."""
    losses = []
    for _ in range(steps):
        given, wanted = make()
        loss = F.mse_loss(model(given), wanted)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return sum(losses[:10]) / 10, sum(losses[-10:]) / 10


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    ("family", "theta"),
    [(st.Translation(), [0.3, -0.2]), (st.Affine(), [0.8, -0.5, 0.1, 0.5, 0.8, -0.1])],
    ids=["shift", "rotation"],
)
def test_learns_to_undo_a_fixed_transform(family, theta, impl):
    transformer = st.SpatialTransformer(st.DenseLocaliser(1, (16, 16), hidden=(16,)), family, impl=impl)

    def make():
        image = blobs(16)
        return st.warp(image, torch.tensor([theta]).expand(16, -1), family), image

    before, after = trained(transformer, make, 200, torch.optim.Adam(transformer.parameters(), lr=5e-3))
    assert after < before / 10


def test_learns_with_plain_gradient_descent():
    transformer = st.SpatialTransformer(st.DenseLocaliser(1, (16, 16), hidden=(16,)), st.Translation())

    def make():
        image = blobs(16)
        return st.warp(image, torch.tensor([[0.3, -0.2]]).expand(16, -1), st.Translation()), image

    before, after = trained(transformer, make, 200, torch.optim.SGD(transformer.parameters(), lr=0.5))
    assert after < before / 10


def test_learns_what_differs_from_image_to_image():
    """The localiser has to look: every image is shifted elsewhere."""
    transformer = st.SpatialTransformer(st.DenseLocaliser(1, (16, 16), hidden=(32, 32)), st.Translation())
    wanted = blobs(1).expand(32, 1, 16, 16)

    def make():
        return st.warp(wanted, 0.6 * torch.rand(32, 2) - 0.3, st.Translation(), padding="border"), wanted

    before, after = trained(transformer, make, 300, torch.optim.Adam(transformer.parameters(), lr=3e-3))
    assert after < before / 10


class Bump(nn.Module):
    def __init__(self):
        super().__init__()
        self.width = nn.Parameter(torch.tensor(1.0))

    def forward(self, distance):
        return torch.exp(-((distance * self.width) ** 2))


@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_a_kernel_that_learns(impl):
    across, down = Bump(), Bump()
    transformer = small(kernel=st.Kernel([across, down], radius=2), impl=impl)
    assert {id(across.width), id(down.width)} <= {id(p) for p in transformer.parameters()}
    assert "Kernel" in repr(transformer)
    image = torch.rand(2, 1, *SIZES[2])
    # a wider kernel along x, the same along y
    across.width.data.fill_(0.7)
    wanted = transformer(image).detach()
    across.width.data.fill_(1.0)
    optimiser = torch.optim.Adam([across.width, down.width], lr=0.03)
    before, after = trained(transformer, lambda: (image, wanted), 80, optimiser)
    assert after < before / 10
    assert abs(across.width.item() - 0.7) < 0.05
    assert abs(down.width.item() - 1) < 0.05
    assert down.width.grad is not None  # it was asked along y


@pytest.mark.parametrize("impl", IMPLS)
def test_a_basis_that_learns(impl):
    family = st.LearnedBasis(16, (16, 16))
    transformer = st.SpatialTransformer(st.DenseLocaliser(1, (16, 16), hidden=(8,)), family, impl=impl)
    assert any(parameter is family.B for parameter in transformer.parameters())

    def make():
        image = blobs(16)
        return st.warp(image, torch.tensor([[0.2, -0.1]]).expand(16, -1), st.Translation()), image

    # theta stays the identity: all that moves the picture is B
    before, after = trained(transformer, make, 150, torch.optim.Adam([family.B], lr=3e-3))
    assert family.B.grad.any()
    assert after < before / 10


# A module's life

CACHING = [st.ThinPlateSpline((4, 4)), st.PiecewiseAffine((3, 4)), st.ThinPlateSpline((2, 3, 2))]
caching = pytest.mark.parametrize("family", CACHING, ids=named)


def filled(family):
    """A transformer whose family has met this size, plain and anti-aliased, in two precisions."""
    transformer = unsettled(small(copy.deepcopy(family), antialias=2))
    image = torch.rand(2, 1, *SIZES[family.dims])
    transformer(image)
    transformer.family.grid(transformer.family.identity(dtype=torch.float64), SIZES[family.dims])
    assert len(transformer.family._bases) >= 2
    return transformer, image


@caching
def test_bases_are_not_in_the_state(family):
    transformer, image = filled(family)
    state = transformer.state_dict()
    assert all(name.startswith(("localiser.", "head.")) for name in state)
    fresh = small(copy.deepcopy(family), antialias=2)
    assert not torch.equal(fresh(image), transformer(image))
    fresh.load_state_dict(state, strict=True)
    assert torch.equal(fresh(image), transformer(image))
    assert state.keys() == small(copy.deepcopy(family)).state_dict().keys()


def saved(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    return buffer


@caching
def test_copies_and_pickles(family):
    transformer, image = filled(family)
    expected = transformer(image)
    buffer = saved(transformer)
    buffer.seek(0)
    for twin in (
        copy.deepcopy(transformer),
        pickle.loads(pickle.dumps(transformer)),
        torch.load(buffer, weights_only=False),
    ):
        assert torch.equal(twin(image), expected)
        assert twin.family is not transformer.family
        assert twin.family._bases is not transformer.family._bases
    fresh = unsettled(small(copy.deepcopy(family), antialias=2))
    assert len(pickle.dumps(transformer)) <= len(pickle.dumps(fresh)) + 200  # no basis travels along


@caching
def test_moves_keep_results_right(family):
    transformer, image = filled(family)
    family, size = transformer.family, SIZES[family.dims]
    theta = transformer.theta(image).detach()
    single, double = family.grid(theta, size), family.grid(theta.double(), size)
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-6)
    for move in (transformer.double, transformer.bfloat16, transformer.half, transformer.float):
        move()
        # the lattice and the bases must not have been rounded on the way
        assert torch.equal(family.grid(theta, size), single)
        assert torch.equal(family.grid(theta.double(), size), double)
        assert torch.equal(family.identity(), type(family)(family.lattice).identity())
    transformer.to("cpu", torch.float64)
    assert torch.equal(family.grid(theta.double(), size), double)


@caching
def test_the_module_in_double_precision(family):
    transformer, image = filled(family)
    single = transformer(image)
    double = transformer.double()(image.double())
    assert double.dtype == torch.float64
    torch.testing.assert_close(double, single.double(), rtol=0, atol=1e-4)


@caching
def test_caches_stay_small(family):
    family = copy.deepcopy(family)
    for number in range(3 * KEPT_BASES):
        size = [4 + number, *SIZES[family.dims][1:]]
        family.grid(family.identity(), size)
        assert len(family._bases) <= KEPT_BASES
    again = family.grid(family.identity(), SIZES[family.dims])  # computed anew where it was dropped
    assert torch.equal(again, copy.deepcopy(family).grid(family.identity(), SIZES[family.dims]))


@caching
def test_a_kept_basis_is_used_again(family, monkeypatch):
    family = copy.deepcopy(family)
    theta = family.identity() + 0.1
    first = family.grid(theta, SIZES[family.dims])

    def refuse(points):
        raise AssertionError("solved per batch")

    monkeypatch.setattr(family, "basis_at", refuse)
    assert torch.equal(family.grid(theta, SIZES[family.dims]), first)


@caching
def test_a_basis_met_in_inference_mode_trains_later(family):
    transformer = small(copy.deepcopy(family), antialias=2)
    image = torch.rand(2, 1, *SIZES[family.dims])
    with torch.inference_mode():
        transformer(image)
    transformer(image).sum().backward()
    assert transformer.head.bias.grad.isfinite().all()


@caching
def test_a_basis_met_without_gradients_trains_later(family):
    transformer = small(copy.deepcopy(family))
    image = torch.rand(2, 1, *SIZES[family.dims])
    with torch.no_grad():
        transformer(image)
    (transformer(image) * torch.rand_like(image)).sum().backward()
    assert transformer.head.bias.grad.any()


def tensors_within(thing):
    if isinstance(thing, torch.Tensor):
        return [thing]
    values = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
    return list(itertools.chain.from_iterable(tensors_within(value) for value in values))


@pytest.mark.parametrize("dims", [2, 3])
def test_homogeneous_families_keep_nothing(dims):
    for family in families(dims)[:5]:
        small(family, antialias=2)(torch.rand(2, 1, *SIZES[dims]))
        family.box(family.identity())
        assert tensors_within(vars(family)) == []
        assert family.state_dict() == {}


@every
def test_every_family_pickles(family):
    transformer = unsettled(small(family))
    image = torch.rand(2, 1, *SIZES[family.dims])
    for twin in (copy.deepcopy(transformer), pickle.loads(pickle.dumps(transformer))):
        assert torch.equal(twin(image), transformer(image))
        assert {id(p) for p in twin.parameters()}.isdisjoint(id(p) for p in transformer.parameters())


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("family", [st.Affine(), st.ThinPlateSpline()], ids=named)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(family, impl, reentrant):
    transformer = unsettled(small(family, impl=impl))
    image = torch.rand(2, 1, *SIZES[2], requires_grad=True)
    weight = torch.rand(2, 1, *SIZES[2])

    def gradients(forward):
        transformer.zero_grad()
        image.grad = None
        (forward(image) * weight).sum().backward()
        return [image.grad, *[p.grad.clone() for p in transformer.parameters()]]

    plain = gradients(transformer)
    again = gradients(lambda given: checkpoint(transformer, given, use_reentrant=reentrant))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert all(gradient.any() for gradient in plain)


def test_evaluation_changes_nothing():
    transformer = unsettled(small())
    image = torch.rand(2, 1, *SIZES[2])
    assert torch.equal(transformer.train()(image), transformer.eval()(image))


def test_a_quarter_turn():
    head = st.Head(5, st.Similarity(), start=torch.tensor([0.0, 1.0, 0.0, 0.0]))  # source = (-y, x)
    transformer = st.SpatialTransformer(Found(), st.Similarity(), head=head, impl="reference")
    image = torch.rand(1, 1, 6, 6)
    assert torch.equal(transformer(image), torch.rot90(image, 1, (2, 3)))


# What a module is held to


def test_a_fill_that_is_a_tensor_moves_with_the_module():
    transformer = st.SpatialTransformer(
        st.DenseLocaliser(3, (4, 4)), st.Affine(), padding=torch.tensor([0.1, 0.2, 0.3])
    )
    assert transformer.double().padding.dtype == torch.float64
    assert "padding" not in transformer.state_dict()
    assert transformer(torch.rand(2, 3, 4, 4, dtype=torch.float64)).shape == (2, 3, 4, 4)


def test_copies_are_held_to():
    localiser = nn.Sequential(nn.Flatten(), nn.Linear(16, 6))
    transformer = st.SpatialTransformer(localiser, st.Affine(), head=nn.Identity(), copies=4)
    with pytest.raises(ValueError, match=r"theta must be \[N, 4, 6\] for copies=4, got \[2, 6\]"):
        transformer(torch.rand(2, 1, 4, 4))
    with pytest.raises(ValueError, match="copies must be a whole number of at least 1, got -3"):
        st.SpatialTransformer(localiser, st.Affine(), head=nn.Identity(), copies=-3)
    with pytest.raises(TypeError, match="head must be a module, got"):
        st.SpatialTransformer(localiser, st.Affine(), head="identity")


def test_a_learned_basis_of_another_size_is_refused_when_the_module_is_made():
    with pytest.raises(ValueError, match=r"size=\(8, 8\).*got size=\(9, 9\)"):
        st.SpatialTransformer(st.DenseLocaliser(1, (8, 8)), st.LearnedBasis(16, (8, 8)), size=(9, 9))


def test_a_learned_basis_is_reset():
    family = st.LearnedBasis(16, (6, 6))
    first = family.B.detach().clone()
    nn.init.normal_(family.B)
    family.reset_parameters()
    assert torch.equal(family.B, first)


def test_bases_in_use_stay_and_threads_do_not_meet():
    """The least recently used goes; four threads on more sizes than are kept."""
    family = st.ThinPlateSpline()
    sizes = [(4, width) for width in range(4, 4 + 2 * KEPT_BASES)]
    theta = family.identity()[None]
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda size: family.grid(theta, size), sizes * 8):
            pass
    kept = family._basis((4, 4), False, torch.device("cpu"))
    for size in sizes[1:]:
        family.grid(theta, size)
        assert family._basis((4, 4), False, torch.device("cpu")) is kept
