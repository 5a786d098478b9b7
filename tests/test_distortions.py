"""The distortions against the sentences of the paper's appendix."""

from __future__ import annotations

import math

import pytest
import torch
from data_files import mnist_here
from scipy import stats

import spatial_transformer as st
from spatial_transformer.coordinates import control_lattice, lattice, to_normalised
from spatial_transformer.experiments.data import uci_digits
from spatial_transformer.experiments.data.clutter import Cluttered, Translated, below
from spatial_transformer.experiments.data.distortions import (
    Added,
    Drawn,
    Elastic,
    Projected,
    Rotated,
    RotatedTranslatedScaled,
    square_to,
)
from spatial_transformer.experiments.data.fixed_sets import KINDS, as_images, fixed_batches, fixed_set
from spatial_transformer.experiments.data.random_numbers import RandomNumbers
from spatial_transformer.experiments.data.volumes import Volumes, turned

pytestmark = pytest.mark.usefixtures("one_thread")

MANY = 20_000  # draws that statistics are taken over
DOUBLE = torch.float64


@pytest.fixture(scope="module")
def smooth():
    """Blobs within a circle, wide enough that being read twice by interpolation changes them little."""
    along = torch.arange(28.0) - 13.5
    y, x = along[:, None], along
    centres = RandomNumbers(1).uniform(64, 3, 2, 1, 1) * 12 - 6
    blobs = torch.exp(-((x - centres[:, :, 0]) ** 2 + (y - centres[:, :, 1]) ** 2) / 32).mean(1, keepdim=True)
    return blobs * (1 - (x**2 + y**2) / 144).clamp(min=0) ** 2


def draw(distortion, count=MANY, seed=0):
    return distortion.draw(count, RandomNumbers(seed), dtype=DOUBLE)


def uniform_on(low, high, found):
    """A Kolmogorov-Smirnov test's p, with the range checked."""
    found = found.flatten().double()
    assert low <= found.min()
    assert found.max() <= high
    return stats.kstest(found.numpy(), stats.uniform(low, high - low).cdf).pvalue


def normal_of(deviation, found):
    return stats.kstest(found.flatten().double().numpy(), stats.norm(0, deviation).cdf).pvalue


LIKELY = 1e-3


# Statistics


def test_r_angles():
    angle = draw(Rotated()).numbers["angle"]
    assert uniform_on(-math.pi / 2, math.pi / 2, angle) > LIKELY


def test_rts_numbers():
    drawn = draw(RotatedTranslatedScaled())
    angle, scale, centre = (drawn.numbers[name] for name in ("angle", "scale", "centre"))
    assert uniform_on(-math.pi / 4, math.pi / 4, angle) > LIKELY
    assert uniform_on(0.7, 1.2, scale) > LIKELY
    room = (21 - 14 * scale)[:, None]  # where the scaled frame of 28 px fits into 42
    assert uniform_on(-1, 1, centre / room) > LIKELY
    together = torch.stack([angle, scale, *(centre / room).unbind(1)])
    assert (torch.corrcoef(together) - torch.eye(4)).abs().max() < 0.03


def test_rts_placed_by_the_frame():
    centre = draw(RotatedTranslatedScaled(placement="frame")).numbers["centre"]
    assert uniform_on(-7, 7, centre) > LIKELY


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_p_numbers(direction):
    drawn = draw(Projected(direction=direction))
    assert uniform_on(0.75, 1, drawn.numbers["scale"]) > LIKELY
    assert normal_of(5, drawn.numbers["corners"]) > LIKELY
    flat = drawn.numbers["corners"].flatten(1).T
    assert (torch.corrcoef(flat) - torch.eye(8)).abs().max() < 0.04


@pytest.mark.parametrize("size", [28, 42])
def test_p_pull_moves_the_corners_of_the_region(size):
    """What theta does to the canvas's corners is what was drawn, in the digit's pixels."""
    drawn = draw(Projected(size=size), 200)
    region = st.Projective().box(drawn.theta) * 14
    corners = torch.tensor([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    still = corners * (size / 2) / drawn.numbers["scale"][:, None, None]
    torch.testing.assert_close(region, still + drawn.numbers["corners"], rtol=0, atol=1e-6)


def test_p_push_moves_the_corners_of_the_digit():
    drawn = draw(Projected(direction="push", size=42), 200)
    corners = torch.tensor([(-1.0, -1), (1, -1), (1, 1), (-1, 1)], dtype=DOUBLE)
    shown = st.Projective().points(st.Projective().inverse(drawn.theta), corners) * 21
    still = corners * 14 * drawn.numbers["scale"][:, None, None]
    torch.testing.assert_close(shown, still + drawn.numbers["corners"], rtol=0, atol=1e-6)


def test_p_along_the_diagonal():
    drawn = draw(Projected(along="diagonal"))
    corners = drawn.numbers["corners"]
    assert (corners.abs()[..., 0] - corners.abs()[..., 1]).abs().max() < 1e-9
    assert abs(corners.norm(dim=-1).square().mean().sqrt() - 5) < 0.05


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_e_numbers(direction):
    drawn = draw(Elastic(direction=direction), 5000)
    assert uniform_on(0.75, 1, drawn.numbers["scale"]) > LIKELY
    assert drawn.numbers["offsets"].shape == (5000, 16, 2)
    assert normal_of(1.5, drawn.numbers["offsets"]) > LIKELY
    assert drawn.theta.shape == (5000, 32)


def test_tc_numbers(images):
    drawn = draw(Cluttered(images[:, 0]))
    place, source, cut, spot = (drawn.numbers[name] for name in ("place", "source", "cut", "spot"))
    for found, count in ((place, 33), (cut, 23), (spot, 55)):  # 60 - 28, 28 - 6, 60 - 6, and one
        assert stats.chisquare(found.flatten().bincount(minlength=count).numpy()).pvalue > LIKELY
        assert (found.min(), found.max()) == (0, count - 1)
    assert source.shape == (MANY, 6)
    assert cut.shape == spot.shape == (MANY, 6, 2)
    assert stats.chisquare((source.flatten() * 100 // len(images)).bincount().numpy()).pvalue > 1e-6
    assert (source.min(), source.max()) == (0, len(images) - 1)


def test_t_places():
    drawn = draw(Translated())
    place = drawn.numbers["place"]
    assert stats.chisquare(place.flatten().bincount(minlength=57).numpy()).pvalue > LIKELY
    assert (place.min(), place.max()) == (0, 56)


def test_3d_numbers():
    drawn = draw(Volumes())
    assert uniform_on(-math.pi / 4, math.pi / 4, drawn.numbers["angles"]) > LIKELY
    corners = torch.tensor([[x, y, z] for x in (-14, 14) for y in (-14, 14) for z in (-8, 8)], dtype=DOUBLE)
    reach = (corners @ drawn.numbers["turn"].transpose(1, 2)).amax(1)
    assert uniform_on(-1, 1, drawn.numbers["centre"] / (30 - reach)) > LIKELY


def test_whole_numbers_stay_below():
    """The greatest number below 1 gives the last, whatever the count."""

    class Greatest:
        def uniform(self, *shape):
            return torch.full(shape, 1 - 2.0**-24)

    drawn = Cluttered(torch.zeros(60_000, 28, 28)).draw(2, Greatest())
    assert drawn.numbers["source"].unique().tolist() == [59_999]
    assert drawn.numbers["place"].unique().tolist() == [32]
    assert drawn.numbers["spot"].unique().tolist() == [54]
    counts = torch.arange(1, 1 << 20)
    assert all(int(below(int(n), torch.tensor(1 - 2.0**-24))) == n - 1 for n in counts[::997])


# What is done with the numbers


def test_a_positive_angle_turns_counter_clockwise():
    """A dot to the right of the centre goes up."""
    dot = torch.zeros(1, 1, 28, 28)
    dot[0, 0, 13:15, 22:24] = 1
    drawn = Drawn(torch.tensor([[0.0, -1, 0, 1, 0, 0]]), {})
    assert Rotated().apply(dot, drawn)[0, 0, 4:6, 13:15].sum() > 3.9
    theta = draw(Rotated(), 50)
    a = theta.numbers["angle"]
    torch.testing.assert_close(theta.theta[:, [0, 1, 3]], torch.stack([a.cos(), -a.sin(), a.sin()], 1))


def test_rts_puts_the_centre_where_it_says(images):
    """The digit's centre of mass is where angle, scale and centre send it, and its ink grows by scale^2."""
    some = images[:300].double()
    distortion = RotatedTranslatedScaled()
    drawn = draw(distortion, 300)
    found = distortion.apply(some, drawn)
    angle, scale, centre = (drawn.numbers[name] for name in ("angle", "scale", "centre"))
    x, y = mass(some).unbind(1)
    turned = torch.stack([x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()], 1)
    torch.testing.assert_close(mass(found), turned * scale[:, None] + centre, rtol=0, atol=0.1)
    torch.testing.assert_close(found.sum((1, 2, 3)), some.sum((1, 2, 3)) * scale**2, rtol=0.05, atol=0)


def mass(found):
    """Where the centre of mass is, in pixels from the centre. [N, 2]"""
    size = found.shape[-1]
    along = torch.arange(size, dtype=found.dtype) - (size - 1) / 2
    total = found.sum((1, 2, 3))
    return (
        torch.stack([(found.sum((1, 2)) * along).sum(1), (found.sum((1, 3)) * along).sum(1)], 1)
        / total[:, None]
    )


def test_square_to():
    corners = torch.tensor([[(-1.0, -1), (2, -1), (1.5, 1), (-1, 0.5)]], dtype=DOUBLE)
    torch.testing.assert_close(st.Projective().box(square_to(corners)), corners)
    identity = square_to(corners.new_tensor([[(-1, -1), (1, -1), (1, 1), (-1, 1)]]))
    torch.testing.assert_close(identity[0], st.Projective().identity(dtype=DOUBLE))


@pytest.mark.parametrize("size", [28, 42])
def test_e_push_reads_through_the_inverse(size):
    """Pushing what a pixel reads brings it back to the pixel, wherever the picture is not folded."""
    elastic = Elastic(size=size)
    drawn = draw(elastic, 500)
    scale, offsets = drawn.numbers["scale"], drawn.numbers["offsets"]
    read = elastic.grid(drawn).flatten(1, 2)
    basis = elastic.family.basis_at(read)
    pushed = read * scale[:, None, None] + basis @ (offsets / 14)
    pixels = lattice((size, size), False, dtype=DOUBLE).flatten(0, 1) * (size / 28)
    away = 14 * (pushed - pixels).norm(dim=-1)
    inside = (read.abs() < 1).all(-1)
    assert away[inside].median() < 0.02
    assert (away[inside] < 0.1).double().mean() > 0.97


def test_e_gives_its_offsets_in_pixels():
    """The one theta that is none of its family's; ``grid`` has where pixels are read."""
    drawn = draw(Elastic(), 50)
    assert torch.equal(drawn.theta, drawn.numbers["offsets"].flatten(1))
    assert abs(drawn.theta.std() - 1.5) < 0.1


def test_e_without_offsets_only_scales(smooth):
    elastic = Elastic(deviation=0.0)
    drawn = elastic.draw(64, RandomNumbers(0))
    scale = drawn.numbers["scale"]
    theta = torch.stack([1 / scale, *torch.zeros(2, 64)], dim=1)
    torch.testing.assert_close(
        elastic.apply(smooth, drawn), st.warp(smooth, theta, st.Attention()), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("size", [28, 42])
def test_e_pull_is_the_spline(images, size):
    elastic = Elastic(direction="pull", size=size)
    drawn = elastic.draw(10, RandomNumbers(0))
    at = control_lattice((4, 4))
    wanted = at * (size / 28) / drawn.numbers["scale"][:, None, None] + drawn.numbers["offsets"] / 14
    theta = wanted.flatten(1).float()
    torch.testing.assert_close(
        elastic.apply(images[:10], drawn),
        st.warp(images[:10], theta, st.ThinPlateSpline((4, 4)), size=(size, size)),
        rtol=0,
        atol=1e-4,
    )


def test_added_digits_are_apart(images):
    pairs = images[:40].reshape(20, 2, 28, 28)
    added = Added()
    drawn = added.draw(20, RandomNumbers(0))
    found = added.apply(pairs, drawn)
    assert found.shape == (20, 2, 42, 42)
    for channel in range(2):
        alone = st.warp(pairs[:, channel : channel + 1], drawn.theta[:, channel], st.Affine(), size=(42, 42))
        torch.testing.assert_close(found[:, channel : channel + 1], alone)
    assert (drawn.numbers["angle"][:, 0] != drawn.numbers["angle"][:, 1]).all()
    assert (drawn.theta[:, 0] != drawn.theta[:, 1]).all()


def test_t_is_a_copy_and_the_box_is_around_it(images):
    some = images[:200]
    translated = Translated()
    drawn = translated.draw(200, RandomNumbers(0))
    found = translated.apply(some, drawn)
    for canvas, image, (x, y), box in zip(
        found, some, drawn.numbers["place"].tolist(), drawn.numbers["box"], strict=True
    ):
        assert torch.equal(canvas[:, y : y + 28, x : x + 28], image)
        assert canvas.sum() == pytest.approx(float(image.sum()), rel=1e-5)
        edges = to_normalised(torch.tensor([[x, y], [x + 28, y + 28]]) - 0.5, size=(84, 84))
        torch.testing.assert_close(box, edges.flatten())


@pytest.mark.parametrize("combine", ["maximum", "sum", "cover"])
def test_tc_has_its_patches(images, combine):
    pool = images[:, 0]
    cluttered = Cluttered(pool, combine=combine)
    drawn = cluttered.draw(40, RandomNumbers(0))
    found = cluttered.apply(images[:40], drawn)
    numbers = {name: number.tolist() for name, number in drawn.numbers.items()}
    for n in range(40):
        canvas = torch.zeros(60, 60)
        x, y = numbers["place"][n]
        canvas[y : y + 28, x : x + 28] = images[n, 0]
        for source, (a, b), (x, y) in zip(*(numbers[k][n] for k in ("source", "cut", "spot")), strict=True):
            patch, there = pool[source, b : b + 6, a : a + 6], canvas[y : y + 6, x : x + 6]
            new = {"maximum": torch.maximum(there, patch), "sum": there + patch, "cover": patch}[combine]
            canvas[y : y + 6, x : x + 6] = new
        torch.testing.assert_close(found[n, 0], canvas.clamp(max=1))


def test_tc_for_colocalisation(digits):
    found = fixed_set("TC84", digits, count=5)
    assert found.images.shape == (5, 1, 84, 84)
    assert found.drawn.numbers["source"].shape == (5, 16)


def test_wrong_options_are_named():
    for make in (
        lambda: RotatedTranslatedScaled(placement="other"),
        lambda: Projected(direction="other"),
        lambda: Projected(along="other"),
        lambda: Elastic(direction="other"),
        lambda: Cluttered(torch.zeros(1, 28, 28), combine="other"),
    ):
        with pytest.raises(ValueError, match=r"must be one of .*, got 'other'"):
            make()
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        fixed_set("R", uci_digits.load(), count=0)
    with pytest.raises(ValueError, match=r"kind must be one of R, RTS,.* got 'S'"):
        next(fixed_batches("S", None))


# Three dimensions


def test_turned_about_each_axis():
    quarter = math.pi / 2
    x, y, z = torch.eye(3)
    for axis, before, after in ((0, y, z), (1, z, x), (2, x, y)):
        angles = torch.zeros(1, 3)
        angles[0, axis] = quarter
        torch.testing.assert_close(turned(angles)[0] @ before, after, rtol=0, atol=1e-6)
    both = turned(torch.tensor([[quarter, 0.0, quarter]]))[0]  # x first, then z
    torch.testing.assert_close(both @ y, z, rtol=0, atol=1e-6)
    torch.testing.assert_close(both @ x, y, rtol=0, atol=1e-6)


def test_a_digit_in_a_volume(images):
    """All of the block is in the volume, where and as large as it should be."""
    volumes = Volumes()
    some = images[:8].double()
    drawn = draw(volumes, 8)
    found = volumes.apply(some, drawn)
    assert found.shape == (8, 1, 60, 60, 60)
    torch.testing.assert_close(found.sum((1, 2, 3, 4)), 16 * some.sum((1, 2, 3)), rtol=0.02, atol=0)
    along = torch.arange(60, dtype=DOUBLE) - 29.5
    total = found.sum((1, 2, 3, 4))
    across = {"x": (1, 2, 3), "y": (1, 2, 4), "z": (1, 3, 4)}
    at = torch.stack([found.sum(others) @ along / total for others in across.values()], 1)
    flat = torch.cat([mass(some), torch.zeros(8, 1)], 1)
    wanted = (drawn.numbers["turn"] @ flat[..., None])[..., 0] + drawn.numbers["centre"]
    torch.testing.assert_close(at, wanted, rtol=0, atol=0.1)


def test_a_volume_that_is_not_turned_shows_the_digit_from_the_front(images):
    volumes = Volumes(degrees=0.0)
    drawn = draw(volumes, 4)
    drawn.numbers["centre"].zero_()
    still = Drawn(st.Affine(3).crop([0, 0, 0], [60 / 28, 60 / 28, 60 / 16]).expand(4, 12), {})
    found = volumes.apply(images[:4], still)
    for depth in (22, 30, 37):  # 16 deep, in the middle
        torch.testing.assert_close(found[:, :, depth, 16:44, 16:44], images[:4], rtol=0, atol=1e-5)
    assert found[:, :, :21].abs().max() == found[:, :, 39:].abs().max() == 0


# On the canvas, and back


# Of each set: the share of digits that lose more than a hundredth of their ink, and the most that one loses.
# R turns a digit on its own 28 px, whose corners leave them; for RTS the frame fits before it is turned.
LOST = {
    "UCI digits": {"R": (0, 0.005), "RTS": (0, 0.0025), "addition": (0, 0.0025)},
    "MNIST": {"R": (0.005, 0.05), "RTS": (0.0002, 0.03), "addition": (0.0002, 0.03)},
}


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("kind", ["R", "RTS", "addition", "T84", "TC", "3D"])
def test_a_digit_never_leaves_its_canvas(digits, kind, name):
    """Each digit's own ink, on its canvas and on a larger one of the same draw."""
    some = digits if name == "UCI digits" else mnist_here()
    images = torch.cat([some.train.images, some.test.images])
    distortion, random = KINDS[kind](as_images(images[:10], "cpu")[:, 0]), RandomNumbers(0)
    lost = []
    for start in range(0, 128 if kind == "3D" else MANY, 1000):
        count = 128 if kind == "3D" else 1000
        numbers = torch.arange(start, start + count) % len(images)
        lost.append(ink_lost(distortion, as_images(images[numbers], "cpu"), random))
    found = torch.cat(lost)
    often, most = LOST[name].get(kind, (0, 0))
    assert (found > 0.01).double().mean() <= often
    assert found.max() <= most + 1e-6  # rounding of where a pixel lies


def ink_lost(distortion, images, random):
    """The share of each digit's ink that falls beside its canvas, without distractors."""
    if isinstance(distortion, Added):
        return ink_lost(distortion.each, images, random)
    if isinstance(distortion, Cluttered):
        distortion = Translated(distortion.size)
    theta, size, dims = distortion.draw(len(images), random).theta, distortion.size, distortion.family.dims
    matrix = distortion.family.matrix(theta)[:, :dims].clone()
    edge = size // 3
    matrix[..., :dims] *= (size + 2 * edge) / size  # pixels stay where they are, more of them around
    if dims == 3:
        images = images[:, :, None].expand(-1, -1, distortion.depth, -1, -1)
    seen = st.warp(images, matrix.flatten(1), st.Affine(dims), size=(size + 2 * edge,) * dims)
    whole = seen.flatten(1).sum(1)
    inside = (Ellipsis, *(slice(edge, -edge),) * dims)
    if dims == 2:
        torch.testing.assert_close(
            seen[inside], st.warp(images, theta, distortion.family, size=(size, size)), rtol=0, atol=1e-4
        )
    seen[inside] = 0
    return seen.flatten(1).sum(1) / whole


@pytest.mark.parametrize("kind", ["R", "RTS", "P", "T84"])
def test_the_inverse_brings_the_digit_back(smooth, kind):
    distortion = KINDS[kind](smooth[:, 0])
    drawn = distortion.draw(64, RandomNumbers(2))
    shown = distortion.apply(smooth, drawn)
    family = distortion.family
    back = st.warp(shown, family.inverse(drawn.theta), family, size=(28, 28))
    kept = st.warp(torch.ones_like(shown), family.inverse(drawn.theta), family, size=(28, 28)) > 0.999
    lost = ((smooth > 1e-3) & ~kept).flatten(1).any(1)  # ink that the canvas does not show
    assert lost.double().mean() <= (0.5 if kind == "P" else 0)  # these blobs are wider than digits
    away = (back - smooth)[~lost].abs()
    # A step as long as 1 / scale reads a blob of deviation 4 wrong by scale^-2 / 64, along each axis.
    assert away.max() < {"R": 0.03, "RTS": 0.04, "P": 0.06, "T84": 1e-6}[kind]
    assert away.mean() < 0.002


def test_the_inverses_bring_both_digits_back(smooth):
    added, pairs = KINDS["addition"](smooth[:, 0]), smooth.reshape(32, 2, 28, 28)
    drawn = added.draw(32, RandomNumbers(2))
    shown = added.apply(pairs, drawn).reshape(64, 1, 42, 42)
    theta = added.family.inverse(drawn.theta.flatten(0, 1))
    back = st.warp(shown, theta, added.family, size=(28, 28))
    assert (back - smooth).abs().max() < 0.04


def test_the_inverse_brings_the_digit_back_among_distractors(images):
    cluttered = KINDS["TC"](images[:, 0])
    drawn = cluttered.draw(200, RandomNumbers(2))
    shown = cluttered.apply(images[:200], drawn)
    back = st.warp(shown, cluttered.family.inverse(drawn.theta), cluttered.family, size=(28, 28))
    away = back - images[:200]
    assert away.min() > -1e-3  # the greater value stays
    assert (away.abs() < 1e-3).double().mean() > 0.9  # but for what lies on the digit
    clear = (away.abs() < 1e-3).flatten(1).all(1)
    assert 10 < clear.sum() < 190


def test_the_inverse_brings_the_digit_back_from_its_volume(smooth):
    volumes = Volumes()
    drawn = volumes.draw(8, RandomNumbers(2))
    shown = volumes.apply(smooth[:8], drawn)
    back = st.warp(shown, volumes.family.inverse(drawn.theta), volumes.family, size=(16, 28, 28))
    inside = back[:, :, 2:-2]  # a slice at the block's face is read half from outside of it
    assert (inside - smooth[:8, :, None]).abs().max() < 0.06
    assert (inside - smooth[:8, :, None]).abs().mean() < 0.002


@pytest.mark.parametrize("size", [28, 42])
def test_e_brings_the_digit_back_through_its_spline(smooth, size):
    """What the inverse was of: each point of the digit is found where the spline pushed it."""
    elastic = Elastic(size=size)
    drawn = elastic.draw(64, RandomNumbers(2))
    shown = elastic.apply(smooth, drawn)
    points = lattice((28, 28), False, dtype=DOUBLE).flatten(0, 1)
    moved = elastic.family.basis_at(points) @ (drawn.numbers["offsets"].double() / 14)
    pushed = (points * drawn.numbers["scale"].double()[:, None, None] + moved) * (28 / size)
    back = st.sample(shown, pushed.unflatten(1, (28, 28)).float())
    kept = st.sample(torch.ones_like(shown), pushed.unflatten(1, (28, 28)).float()) > 0.999
    away = (back - smooth).abs()[kept]
    assert kept.double().mean() > 0.9
    assert away.mean() < 0.003
    assert (away > 0.05).double().mean() < 0.002  # folds


def test_about_a_fifth_of_digits_lose_ink_to_p(images):
    theta = Projected().draw(1500, RandomNumbers(5)).theta
    y, x = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    pixels = to_normalised(torch.stack([x, y], -1).reshape(-1, 2), size=(28, 28))
    shown = st.Projective().points(st.Projective().inverse(theta), pixels)
    outside = (shown.abs() > 1).any(-1) & (images[:1500].flatten(1) > 0.25)
    assert 0.1 < outside.any(1).double().mean() < 0.35


def test_uci_digits_come_back(images):
    """The real thing: what a digit loses by being read twice is small beside its ink."""
    for kind in ("R", "RTS", "T84"):
        distortion = KINDS[kind](images[:, 0])
        drawn = distortion.draw(300, RandomNumbers(4))
        shown = distortion.apply(images[:300], drawn)
        back = st.warp(shown, distortion.family.inverse(drawn.theta), distortion.family, size=(28, 28))
        assert (back - images[:300]).abs().mean() / images[:300].mean() < 0.12
