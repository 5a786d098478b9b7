"""How house numbers are cut, moved, bent, coloured and blanked before a network is trained on them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from data_files import box, write_splits, write_svhn

pytest.importorskip("filelock")
pytest.importorskip("PIL.Image")

import spatial_transformer as st
from spatial_transformer.experiments import house_number_views, house_numbers
from spatial_transformer.experiments.data import svhn
from spatial_transformer.experiments.data.clutter import below
from spatial_transformer.experiments.data.random_numbers import RandomNumbers
from spatial_transformer.experiments.paper.svhn import HouseNumberSettings


@pytest.fixture(scope="module")
def numbers(one_thread, tmp_path_factory):
    return svhn.load_set(write_splits(tmp_path_factory.mktemp("svhn"), 24, 1))


def row_of_digits(*lefts, right=0.8, top=-0.3, bottom=0.3):
    """Boxes of digits that stand side by side, with so little between them."""
    ends = [*lefts[1:], right + 0.04]
    found = [[left, top, end - 0.04, bottom] for left, end in zip(lefts, ends, strict=True)]
    return found + [[0.0] * 4] * (5 - len(found))


def columns(count):
    """Images whose pixels are the numbers of their columns. uint8 [count, 3, 128, 128]"""
    return torch.arange(128, dtype=torch.uint8).expand(count, 3, 128, 128).clone()


# Digits of other numbers


def columns_and_rows(count):
    """Images whose pixels are the numbers of their columns, of their rows, and their own. uint8"""
    at = torch.arange(128, dtype=torch.uint8)
    planes = [at.expand(128, 128), at[:, None].expand(128, 128)]
    return torch.stack([torch.stack([*planes, torch.full_like(planes[0], each)]) for each in range(count)])


def pixel(at):
    """The number of a column or row, of a place from -1 to 1; with a fraction between their centres."""
    return (at + 1) * 64 - 0.5


def pasted(pixels, labels, boxes, share, random):
    """What is seen where digits keep the colours that they had, and what is to be read."""
    put, place, read = house_number_views.digits_put(pixels, labels, boxes, share, random)
    return torch.where(place[:, None] > 0, put.round().to(torch.uint8), pixels), read


class Takes:
    """Takes every digit of all numbers, and of the other number's digits the one after that share of them."""

    def __init__(self, share=0.0):
        self.share = share

    def uniform(self, kinds, *shape):
        assert kinds == 3
        return torch.stack([torch.zeros(shape), torch.full(shape, self.share), torch.zeros(shape)])


@pytest.mark.parametrize(
    ("place", "digit"),
    [  # (left, top, right, bottom) of the place, and of the digit that is put there
        ((-0.4, -0.3, 0.4, 0.3), (-0.4, -0.3, 0.4, 0.3)),
        ((-0.4, -0.3, 0.4, 0.3), (0.1, 0.0, 0.5, 0.3)),  # of the same shape
        ((0.0, -0.3, 0.2, 0.3), (-0.6, -0.3, 0.2, 0.3)),  # made narrower
        ((-0.4, -0.3, 0.4, 0.3), (0.2, -0.6, 0.4, 0.0)),  # made wider
    ],
)
def test_a_digit_fills_the_place_of_another(place, digit):
    boxes = F.pad(torch.tensor([[place], [digit]]), (0, 0, 0, 4))
    labels = torch.tensor([[3, 10, 10, 10, 10], [8, 10, 10, 10, 10]])
    pixels = columns_and_rows(2)
    found, read = pasted(pixels, labels, boxes, 1.0, Takes())
    assert read.tolist() == [[8, 10, 10, 10, 10], [3, 10, 10, 10, 10]]
    left, top, right, bottom = place
    centres = (torch.arange(128) + 0.5) / 64 - 1
    across, down = (centres > left) & (centres < right), (centres > top) & (centres < bottom)
    assert min(across.sum(), down.sum()) > 10
    filled = down[:, None] & across
    x = digit[0] + (centres[across] - left) * (digit[2] - digit[0]) / (right - left)
    y = digit[1] + (centres[down] - top) * (digit[3] - digit[1]) / (bottom - top)
    inside = found[0][:, down][..., across].float()
    torch.testing.assert_close(inside[0], pixel(x).expand(len(y), -1), rtol=0, atol=0.501)
    torch.testing.assert_close(inside[1], pixel(y)[:, None].expand(-1, len(x)), rtol=0, atol=0.501)
    assert (inside[2] == 1).all()
    assert torch.equal(found[0][:, ~filled], pixels[0][:, ~filled])


def test_digits_come_with_their_labels():
    """Numbers of one to five digits, each of one brightness, which its label and place tell, on a colour that
    is the number's own: any digit of the number before comes, as often as the others, with its label."""
    random, count = RandomNumbers(5), 1500
    lengths = below(torch.full((count,), 5), random.uniform(count)) + 1
    place = torch.arange(5).expand(count, 5)
    present = place < lengths[:, None]
    labels = below(torch.full((count, 5), 10), random.uniform(count, 5)).masked_fill(~present, 10)
    left, top = -0.8 + 0.32 * place, -0.5 + 0.3 * random.uniform(count, 5)
    boxes = torch.stack([left, top, left + 0.3, top + 0.5], dim=2).masked_fill(~present[..., None], 0)
    brightness = 20 * labels + place + 1
    at = (torch.arange(128) + 0.5) / 64 - 1
    (x, y), (right, below_it) = boxes[..., :2, None].unbind(2), boxes[..., 2:, None].unbind(2)
    in_x, in_y = (at >= x) & (at <= right), (at >= y) & (at <= below_it)
    shown = in_y[..., None] & in_x[..., None, :] & present[..., None, None]  # [N, 5, 128, 128]
    colour = torch.arange(count) % 251
    pixels = torch.stack([(shown * brightness[..., None, None].byte()).amax(1)] * 3, dim=1)
    pixels[:, 2] = colour[:, None, None]
    found, read = pasted(pixels, labels, boxes, 0.4, RandomNumbers(1))
    column, row = ((boxes[..., :2] + boxes[..., 2:]) * 32 + 64).long().unbind(2)  # of the middles
    seen, _, whose = found[torch.arange(count)[:, None], :, row, column].long().unbind(2)
    taken = present & (whose != colour[:, None])
    for digits in range(1, 6):  # of two in five numbers, half of the digits
        those = taken[lengths == digits]
        assert those.any(1).float().mean() == pytest.approx(0.4 * (1 - 0.5**digits), abs=0.06)
        assert those.sum() / len(those) == pytest.approx(0.4 * 0.5 * digits, abs=0.06 * digits)
    assert torch.equal(whose[taken], (colour.roll(1)[:, None].expand_as(whose))[taken])
    assert torch.equal(seen[present] // 20, read[present])
    assert torch.equal(read[~taken], labels[~taken])
    # Which digits of the number before they are.
    which = seen % 20 - 1
    assert torch.equal(seen[taken], brightness.roll(1, 0).gather(1, which.clamp(0, 4))[taken])
    of_five = which[taken & (lengths == 5).roll(1)[:, None]]
    share = of_five.bincount(minlength=5) / len(of_five)
    torch.testing.assert_close(share, torch.full((5,), 0.2), rtol=0, atol=0.04)
    # Each is drawn on its own: two of them are the same one no more often than that.
    both = taken[:, 0] & taken[:, 1]
    the_same = (which[both, 0] == which[both, 1]).float().mean()
    assert the_same == pytest.approx(float((1 / lengths.roll(1)[both]).mean()), abs=0.12)
    # All else stays as it is.
    filled = (shown & taken[..., None, None]).any(1)
    assert torch.equal(found[:, 2] != pixels[:, 2], filled)
    assert torch.equal(found.masked_fill(filled[:, None], 0), pixels.masked_fill(filled[:, None], 0))


def test_where_places_overlap_the_last_is_whole():
    boxes = [[-0.4, -0.3, 0.1, 0.3], [-0.1, -0.3, 0.4, 0.3]]
    boxes = F.pad(torch.tensor([boxes, boxes]), (0, 0, 0, 3))
    labels = torch.tensor([[1, 2, 10, 10, 10], [3, 4, 10, 10, 10]])

    found, read = pasted(columns_and_rows(2), labels, boxes, 0.5, Takes(0.99))
    assert read.tolist() == [[4, 4, 10, 10, 10], [2, 2, 10, 10, 10]]
    row = found[0, 0, 64].float()
    for left, right, off in ((-0.38, -0.12, 0.3), (-0.08, 0.38, 0.0)):
        columns = torch.arange(round(pixel(left)), round(pixel(right)) + 1)
        wanted = (columns + 64 * off).round()
        torch.testing.assert_close(row[columns], wanted, rtol=0, atol=1)


def test_digits_without_an_extent():
    """Boxes whose area rounds to nothing: such a place is a pixel, or none, and shows the middle of a digit;
    such a digit is one point, all over the place that it fills."""
    point = (2 * 70 + 1) / 128 - 1  # a pixel's centre
    boxes = F.pad(torch.tensor([[[point] * 4], [[-0.3, -0.3, 0.3, 0.3]]]), (0, 0, 0, 4))
    labels = torch.tensor([[1, 10, 10, 10, 10], [2, 10, 10, 10, 10]])
    pixels = columns_and_rows(2)
    found, read = pasted(pixels, labels, boxes, 1.0, Takes())
    assert read[:, 0].tolist() == [2, 1]
    assert found[0, :, 70, 70].tolist() == [64, 64, 1]  # 63.5, rounded
    found[0, :, 70, 70] = pixels[0, :, 70, 70]
    assert torch.equal(found[0], pixels[0])
    assert (found[1, :, 46:82, 46:82].flatten(1) == torch.tensor([[70], [70], [0]])).all()


def test_other_digits_have_the_colours_of_their_places(numbers):
    """The mean of each colour in each place is what it was, as far as pixels are whole numbers, and all of a
    digit is brighter or darker alike."""
    labels, boxes = numbers.train.labels, numbers.train.boxes
    pixels = 64 + numbers.train.loose // 2  # so that none comes out as black or white
    given = pixels, labels, boxes, 1.0
    found, read = house_number_views.swapped_digits(*given, RandomNumbers(4))
    put, place, same = house_number_views.digits_put(*given, RandomNumbers(4))
    assert torch.equal(read, same)
    assert torch.equal(*(each.masked_fill(place[:, None] > 0, 0) for each in (found, pixels)))
    filled = 0
    for number, digit in itertools.product(range(len(pixels)), range(1, 6)):
        there = place[number] == digit
        if not there.any():
            continue
        filled += 1
        was, came, now = (each[number, :, there].float() for each in (pixels, put, found))
        assert ((came.mean(1) - was.mean(1)).abs() > 3).any()
        torch.testing.assert_close(now.mean(1), was.mean(1), rtol=0, atol=0.501)
        off = now - came
        torch.testing.assert_close(off, off.mean(1, keepdim=True).expand_as(off), rtol=0, atol=1.0)
    assert filled > 12


def test_means_of_all_five_places():
    values = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    place = torch.arange(128).reshape(2, 8, 8).remainder(6).to(torch.uint8)
    place[1][place[1] == 2] = 0  # of one there is none
    found = house_number_views.mean_in_places(values, place)
    for number, digit in itertools.product(range(2), range(6)):
        there = place[number] == digit
        wanted = values[number, :, there].mean(1, keepdim=True) if digit else torch.zeros(3, 1)
        torch.testing.assert_close(found[number, :, there], wanted.expand(-1, int(there.sum())))


def test_other_digits_stay_within_black_and_white():
    """The whole of the digit is made brighter, and white cannot be."""
    boxes = F.pad(torch.tensor([[[-0.5, -0.5, 0.5, 0.5]]] * 2), (0, 0, 0, 4))
    pixels = torch.zeros(2, 3, 128, 128, dtype=torch.uint8)
    pixels[0, :, 40:88, 40:88] = 255
    pixels[1, :, :64] = 255
    found, _ = house_number_views.swapped_digits(
        pixels, torch.tensor([[1, 10, 10, 10, 10]] * 2), boxes, 1.0, Takes()
    )
    upper, lower = found[0, 0, 32:64, 32:96].unique().tolist(), found[0, 0, 64:96, 32:96].unique().tolist()
    assert upper == [255]
    assert lower == [16]  # 48 x 48 white pixels of 64 x 64 are 15.9 more than a half of them


# Some digits of a number


def test_some_digits():
    """Three digits: every run of them, as often as two ends drawn alike give it, is read as what it is, the
    window about it, and nothing of the others to be seen."""
    lefts, rights = (-0.4, -0.1, 0.2), (-0.14, 0.16, 0.36)
    boxes = torch.tensor([row_of_digits(*lefts, right=0.36)]).repeat(4000, 1, 1)
    labels = torch.tensor([[3, 0, 7, 10, 10]]).repeat(4000, 1)
    found = house_number_views.some_digits(columns(4000), labels, boxes, 1.0, RandomNumbers(0))
    halfway = [-math.inf, -0.12, 0.18, math.inf]
    centres = (torch.arange(128) + 0.5) / 64 - 1
    seen = 0
    for first in range(3):
        for last in range(first, 3):
            run = [3, 0, 7][first : last + 1]
            those = (found.labels == torch.tensor((run + [10] * 5)[:5])).all(1)
            share = (1 if first == last else 2) / 9
            assert those.float().mean() == pytest.approx(share, abs=0.025)
            seen += int(those.sum())
            left, right = lefts[first], rights[last]
            # As a loose crop lies about all: 2.6 times as wide and high as the box.
            wanted = [1.3 * (right - left), 0, (left + right) / 2, 0, 1.3 * 0.6, 0]
            torch.testing.assert_close(
                found.window[those], torch.tensor(wanted).expand(int(those.sum()), 6), rtol=0, atol=1e-6
            )
            inside = torch.where((centres >= halfway[first]) & (centres <= halfway[last + 1]))[0]
            row = torch.arange(128).clamp(inside.min(), inside.max())
            assert torch.equal(found.pixels[those], row.byte().expand(int(those.sum()), 3, 128, 128))
    assert seen == 4000


def test_how_many_numbers_are_cut():
    boxes = torch.tensor([row_of_digits(-0.8, -0.3, 0.2)]).repeat(2000, 1, 1)
    labels = torch.tensor([[1, 2, 3, 10, 10]]).repeat(2000, 1)
    for share in (0.0, 0.3):
        found = house_number_views.some_digits(columns(2000), labels, boxes, share, RandomNumbers(1))
        cut = (found.labels != labels).any(1)
        assert cut.float().mean() == pytest.approx(share * 7 / 9, abs=0.03)  # all three in 2 of 9 draws
        whole = found.window[~cut & (found.window[:, 0] == 1)]
        assert torch.equal(whole, st.Affine().identity().expand_as(whole))
        assert torch.equal(found.pixels[~cut], columns(int((~cut).sum())))


@pytest.mark.parametrize(
    ("boxes", "apart"),
    [
        ([[-0.4, -0.3, -0.1, 0.3], [0.1, -0.3, 0.4, 0.3]], True),
        ([[-0.4, -0.4, 0.1, 0.0], [-0.1, 0.0, 0.4, 0.4]], True),  # down a slope: a fifth of each is cut off
        ([[-0.4, -0.4, 0.15, 0.0], [-0.15, 0.0, 0.4, 0.4]], False),  # more than a quarter would be
        ([[-0.3, -0.4, 0.3, -0.05], [-0.3, 0.05, 0.3, 0.4]], False),  # one above the other
        (
            [[-0.3, -0.9, -0.1, 0.9], [-0.2, -0.9, 0.1, 0.9]],
            True,
        ),  # as many pixels of a narrow one: a quarter
        ([[-0.3, -0.9, -0.1, 0.9], [-0.24, -0.9, 0.0, 0.9]], False),  # and more, however high it is
        ([[0.1, -0.3, 0.4, 0.3], [-0.4, -0.3, -0.1, 0.3]], False),  # filed from right to left
    ],
)
def test_digits_that_do_not_stand_side_by_side_stay_together(boxes, apart):
    boxes = torch.tensor([boxes + [[0.0] * 4] * 3]).repeat(200, 1, 1)
    labels = torch.tensor([[4, 2, 10, 10, 10]]).repeat(200, 1)
    found = house_number_views.some_digits(columns(200), labels, boxes, 1.0, RandomNumbers(0))
    cut = (found.labels != labels).any(1)
    assert cut.float().mean() == pytest.approx(0.5 if apart else 0.0, abs=0.1)
    assert torch.equal(found.pixels[~cut], columns(int((~cut).sum())))


def test_what_is_cut_off_on_both_sides_counts_together():
    """A digit between two others that reach into it by 0.2 of its width from either side: 0.1 would be cut
    off on either side, a fifth in all; and by 0.3, 0.3 in all."""
    labels = torch.tensor([[4, 2, 6, 10, 10]]).repeat(200, 1)
    for reach, alone in ((0.2, True), (0.3, False)):
        boxes = torch.tensor(
            [[[-0.8, -0.3, -0.3 + reach, 0.3], [-0.3, -0.3, 0.7, 0.3], [0.7 - reach, -0.3, 1.2, 0.3]]]
        )
        boxes = F.pad(boxes, (0, 0, 0, 2)).repeat(200, 1, 1)
        found = house_number_views.some_digits(columns(200), labels, boxes, 1.0, RandomNumbers(0))
        assert (found.labels[:, :2] == torch.tensor([2, 10])).all(1).any() == alone
        assert (found.labels[:, :2] == torch.tensor([4, 10])).all(1).any()  # which are cut on one side


@pytest.mark.parametrize("size", [64, 128])
def test_some_digits_are_cropped_as_if_there_were_no_others(size, tmp_path):
    """As the crop of a picture that has those digits alone, where nothing of it is beside the border."""
    boxes = [box(1, 30, 12, 8, 18), box(2, 41, 10, 8, 20), box(3, 52, 6, 8, 30)]  # the last sticks out
    for name, those in (("all", boxes), ("two", boxes[:2])):
        write_svhn(tmp_path / name / "train", [{"filename": "1.png", "boxes": those}], size=(60, 40))
    whole, part = (svhn.load("train", tmp_path / name, say=lambda line: None) for name in ("all", "two"))

    class FirstTwo:
        """Ends at the first and the second of three digits."""

        def uniform(self, *shape):
            return torch.tensor([0.0, 0.1, 0.5]).reshape(3, 1, 1).expand(shape)

    shown = house_number_views.some_digits(whole.loose, whole.labels, whole.boxes, 1.0, FirstTwo())
    assert shown.labels.tolist() == [[1, 2, 10, 10, 10]]
    settings = HouseNumberSettings(parts=1.0)
    found = house_number_views.moved(shown.pixels, size, settings, RandomNumbers(0), shown.window)
    wanted = part.of(size).float()
    # Up to the border, which is halfway to the third digit: of crops of 2.6 times 19 px about 39.5.
    along = 39.5 + ((torch.arange(128) + 0.5) / 128 - 0.5) * 2.6 * 19
    kept = (along < 50.5 - 0.5)[(128 - size) // 2 : (128 + size) // 2]
    assert 0.5 < kept.float().mean() < 1
    torch.testing.assert_close(found[..., kept], wanted[..., kept], rtol=0, atol=4)
    repeated = found[..., ~kept][..., 1:]
    torch.testing.assert_close(repeated, repeated[..., :1].expand_as(repeated), rtol=0, atol=1e-2)


def test_a_window_is_turned_and_bent_with_what_it_shows(numbers):
    """What is seen through a window is what would be seen of what the window shows: first it is cut out."""
    loose, random = numbers.train.loose[:6], RandomNumbers(2)
    shown = house_number_views.some_digits(
        loose, numbers.train.labels[:6], numbers.train.boxes[:6], 1.0, random
    )
    for settings in (HouseNumberSettings(rotation=9.0), HouseNumberSettings(rotation=9.0, elastic=0.05)):
        theta = house_number_views.moves(6, settings, RandomNumbers(7), of_the_whole=0.5)
        family = st.Affine()
        if settings.elastic:
            random = RandomNumbers(7)
            random.uniform(6, 6)
            theta = house_number_views.bent(theta, settings.elastic / 2, random)
            family = st.ThinPlateSpline((4, 4))
        grid = family.grid(theta, (64, 64)).flatten(1, 2)
        grid = st.Affine().points(shown.window, grid).unflatten(1, (64, 64))
        wanted = st.sample(shown.pixels.float(), grid, padding="border", impl="reference")
        found = house_number_views.moved(shown.pixels, 64, settings, RandomNumbers(7), shown.window)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0.05)


# Moves


def test_how_images_move():
    """Within the bounds of each setting, and up to them; about the middle; all alike at both sizes."""
    far = {"rotation": 30.0, "scaling": 0.5, "shift": 0.2}
    for name, most in far.items():
        settings = HouseNumberSettings(**{name: most})
        theta = house_number_views.moves(4000, settings, RandomNumbers(3), of_the_whole=0.5)
        matrix = st.Affine().matrix(theta)
        lengths = matrix[:, :, :2].norm(dim=1) / 0.5
        found = {
            "rotation": torch.atan2(matrix[:, 1, 0], matrix[:, 0, 0]).rad2deg()[:, None],
            "scaling": lengths.log(),
            "shift": matrix[:, :, 2] / (2 * 0.5),
        }
        # Turned, not sheared or mirrored.
        torch.testing.assert_close(torch.linalg.det(matrix[:, :, :2] / 0.5), lengths.prod(1))
        for other, values in found.items():
            low, high = values.min(0).values, values.max(0).values
            if other == name:
                assert (high <= most * 1.0001).all()
                assert (low >= -most * 1.0001).all()
                assert (high > 0.99 * most).all()
                assert (low < -0.99 * most).all()
            else:
                torch.testing.assert_close(
                    torch.stack([low, high]), torch.zeros(2, values.shape[1]), atol=1e-5, rtol=0
                )
    # both axes on their own
    assert (lengths[:, 0] - lengths[:, 1]).abs().max() < 1e-5
    scaled = house_number_views.moves(100, HouseNumberSettings(scaling=0.5), RandomNumbers(3), of_the_whole=1)
    assert (scaled[:, 0] - scaled[:, 4]).abs().max() > 0.3


def test_how_images_lean():
    """The upper edge beside the lower, by so much of the side, along rows, which stay where they are."""
    settings = HouseNumberSettings(rotation=30.0, shear=0.3, scaling=0.2)
    upright = HouseNumberSettings(rotation=30.0, scaling=0.2)
    theta, straight = (
        house_number_views.moves(4000, each, RandomNumbers(3), of_the_whole=0.5).unflatten(1, (2, 3))
        for each in (settings, upright)
    )
    assert torch.equal(theta[:, :, [0, 2]], straight[:, :, [0, 2]])
    along = straight[:, :, 0] / straight[:, :, 0].norm(dim=1, keepdim=True)
    off = theta[:, :, 1] - straight[:, :, 1]
    lean = (off * along).sum(1) / straight[:, :, 1].norm(dim=1)
    torch.testing.assert_close(off, lean[:, None] * straight[:, :, 1].norm(dim=1, keepdim=True) * along)
    assert 0.298 < lean.max() <= 0.3001
    assert -0.3001 <= lean.min() < -0.298
    angle = torch.atan2(straight[:, 1, 0], straight[:, 0, 0])
    assert torch.corrcoef(torch.stack([lean, angle]))[0, 1].abs() < 0.05


@pytest.mark.parametrize("size", [64, 128])
def test_how_images_bend(size, numbers):
    """Each of 4 x 4 points lies where the other moves have it, and beside it by up to what is asked for."""
    settings = HouseNumberSettings(rotation=20.0, shift=0.1, elastic=0.05)
    loose, random = numbers.train.loose.repeat(20, 1, 1, 1), RandomNumbers(5)
    theta = house_number_views.moves(len(loose), settings, random, of_the_whole=size / 128)
    at = torch.linspace(-1, 1, 4)
    lattice = torch.stack([at.repeat(4), at.repeat_interleave(4)], dim=1)  # row after row, (x, y)
    stiff = torch.einsum("nij,kj->nki", theta.unflatten(1, (2, 3)), F.pad(lattice, (0, 1), value=1.0))
    points = house_number_views.bent(theta, settings.elastic * size / 128, random).unflatten(1, (16, 2))
    off = (points - stiff) / (2 * size / 128)  # of the sides of the crops
    assert (off.abs() <= 0.05001).all()
    assert (off.amax(0) > 0.048).all()
    assert (off.amin(0) < -0.048).all()
    assert off.mean().abs() < 0.002
    found = house_number_views.augmented(loose[:6], size, settings, RandomNumbers(5))
    random = RandomNumbers(5)
    theta = house_number_views.moves(6, settings, random, of_the_whole=size / 128)
    theta = house_number_views.bent(theta, settings.elastic * size / 128, random)
    spline = st.ThinPlateSpline((4, 4))
    seen = st.warp(loose[:6].float(), theta, spline, size=(size, size), padding="border", impl="reference")
    torch.testing.assert_close(found, house_numbers.normalised(seen), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [64, 128])
def test_what_comes_in_at_the_borders(size, numbers):
    """Moved by half of its side to the right: 64 px are read off the looser crop, which itself goes on as it
    ends."""
    loose = numbers.train.loose[:1]

    class Right:
        def uniform(self, *shape):
            return torch.full(shape, 0.5).index_fill(0, torch.tensor(3), 1.0)  # angle, scales, right, below

    found = house_number_views.augmented(loose, size, HouseNumberSettings(shift=0.5), Right())
    if size == 64:
        wanted = loose[:, :, 32:96, 64:128]
    else:
        wanted = torch.cat([loose[..., 64:], loose[..., -1:].expand(-1, -1, -1, 64)], dim=3)
    torch.testing.assert_close(found, house_numbers.normalised(wanted), rtol=0, atol=1e-4)


def test_contrast(numbers):
    settings = HouseNumberSettings(contrast=0.5)
    found = house_number_views.augmented(numbers.train.tight, 64, settings, RandomNumbers(0))
    factor = found.std((1, 2, 3)) / house_numbers.normalised(numbers.train.tight).std((1, 2, 3))
    assert math.exp(-0.5) <= factor.min() < 0.8
    assert 1.25 < factor.max() <= math.exp(0.5)


def test_tint(numbers):
    plain, settings = house_numbers.normalised(numbers.train.tight), HouseNumberSettings(tint=0.5)
    factors = house_number_views.augmented(numbers.train.tight, 64, settings, RandomNumbers(0)) / plain
    each = factors.flatten(2).nanmedian(2).values
    torch.testing.assert_close(factors, each[:, :, None, None].expand_as(factors), equal_nan=True)
    assert math.exp(-0.5) <= each.min() < 0.8
    assert 1.25 < each.max() <= math.exp(0.5)
    assert (each[:, 0] - each[:, 1]).abs().min() > 1e-4  # colours change apart


def test_inversion(numbers):
    plain = house_numbers.normalised(numbers.train.tight)
    for share, wanted in ((0.0, [0]), (1.0, [24]), (0.5, range(6, 19))):
        settings = HouseNumberSettings(inversion=share)
        found = house_number_views.augmented(numbers.train.tight, 64, settings, RandomNumbers(0))
        turned = sum(torch.equal(one, -other) for one, other in zip(found, plain, strict=True))
        assert turned in wanted
        assert turned + sum(torch.equal(one, other) for one, other in zip(found, plain, strict=True)) == 24


def test_erased():
    """A square of each image, of up to that side, about a middle that is anywhere; the rest stays."""
    pixels = torch.full((3000, 3, 64, 64), 255, dtype=torch.uint8)
    pixels[:, :, 0] = 0  # not all the same, which would be at its mean
    plain = house_numbers.normalised(pixels)
    found = house_number_views.augmented(pixels, 64, HouseNumberSettings(erased=0.5), RandomNumbers(0))
    lost = (found == 0).all(1)
    torch.testing.assert_close(found, plain.masked_fill(lost[:, None], 0), rtol=0, atol=0)
    rows, columns = lost.any(2), lost.any(1)
    assert torch.equal(lost, rows[:, :, None] & columns[:, None])
    heights, widths = rows.sum(1), columns.sum(1)
    inside = ~(rows[:, [0, -1]].any(1) | columns[:, [0, -1]].any(1)) & (heights > 0) & (widths > 0)
    assert inside.sum() > 1500
    assert (heights - widths)[inside].abs().max() <= 1
    assert 30 <= heights.max() <= 33  # half of 64, to the pixel
    # The mean of a uniform side s, given that it lies inside, whose chance is (1 - s)^2.
    assert heights[inside].float().mean() == pytest.approx(64 * 0.1964, abs=0.7)
    anywhere = lost.float().mean(0)
    assert anywhere[:8, :8].mean() < anywhere[28:36, 28:36].mean()  # whose squares have more to them
    assert anywhere[16:48, 16:24].mean() == pytest.approx(anywhere[16:48, 40:48].mean().item(), rel=0.2)
    assert anywhere[16:24, 16:48].mean() == pytest.approx(anywhere[40:48, 16:48].mean().item(), rel=0.2)


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_half_of_the_digits_are_replaced_whatever_the_share(share):
    labels = (torch.arange(4000) % 10)[:, None].repeat(1, 5)
    boxes = torch.tensor([-0.2, -0.2, 0.2, 0.2]).expand(4000, 5, 4)
    pixels = torch.zeros(4000, 3, 8, 8, dtype=torch.uint8)
    _, read = house_number_views.swapped_digits(pixels, labels, boxes, share, RandomNumbers(0))
    assert (read != labels).float().mean() == pytest.approx(share / 2, abs=0.03)
