"""Views of birds: where windows look, and that what they show is there."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from data_files import BIRD_SIZES, made_flock, write_birds

from spatial_transformer.experiments.data import bird_views, birds, places
from spatial_transformer.experiments.data.bird_views import Views, Windows, held_out, photographs
from spatial_transformer.experiments.data.random_numbers import RandomNumbers

pytest.importorskip("filelock")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch, tmp_path):
    monkeypatch.delenv(places.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Ramps: red tells x and green y, from 0 to 255 over the image. Two to train on, the others to test on"""
    folder = tmp_path_factory.mktemp("ramps")
    write_birds(folder)
    return birds.load(folder, say=lambda line: None)


@pytest.fixture(scope="module")
def flock(tmp_path_factory):
    return made_flock(tmp_path_factory.mktemp("flock"))


def test_images_are_gathered_as_they_are(four):
    given = photographs(four, "test", "cpu")
    assert given.canvas == (512, 630)
    assert given.labels.tolist() == [1, 0]
    found = given.gathered(torch.tensor([1, 0, 1]))
    assert found.shape == (3, 3, *given.canvas)
    assert found.is_contiguous(memory_format=torch.channels_last)
    height, width = BIRD_SIZES[2]
    assert torch.equal(found[0, :, :height, :width], four.image(2).float())
    assert torch.equal(found[2, :, :height, :width], four.image(2).float())
    assert (found[0, :, :height, width:] == four.image(2)[:, :, -1:].float()).all()
    assert (found[1, :, 70:, :50] == four.image(1)[:, -1:].float()).all()


def test_pixels_that_are_there_are_shared(four):
    one, other = (photographs(four, split, "cpu") for split in ("train", "test"))
    assert one.pixels.data_ptr() == other.pixels.data_ptr() == four.pixels.data_ptr()


@pytest.mark.parametrize("size", [28, 56])
def test_the_middle_is_that_of_a6(four, size):
    """A square of 224 / 256 of the shorter side."""
    given = photographs(four, "test", "cpu")
    found = Views(size).middle(given, torch.arange(2))
    expected = birds.Crops(side=size * 8 // 7, size=size)(four, four.split("test"))
    torch.testing.assert_close(found, expected, rtol=0, atol=1.5)  # ramps of 50 pixels are steps of 5


def test_the_whole_image_can_be_pressed_into_a_square(four):
    given = photographs(four, "test", "cpu")
    whole = Views(40, share=1.0, shape="image").middle(given, torch.arange(2))
    middle = torch.linspace(0, 255, 81)[1::2]  # of 40 pixels
    torch.testing.assert_close(whole[1, 0], middle.expand(40, 40), rtol=0, atol=4)
    torch.testing.assert_close(whole[1, 1], middle[:, None].expand(40, 40), rtol=0, atol=4)


def test_the_whole_image_can_be_in_the_view(four):
    """As it is, in the middle of a square of its longer side; beyond it its border is repeated."""
    given = photographs(four, "test", "cpu")
    height, width = given.sizes[1].tolist()
    for share in (1.0, 1.5):
        seen = Views(60, share=share, shape="whole").middle(given, torch.arange(2))[1]
        for channel, side in ((0, width), (1, height)):
            place = ((torch.arange(60) + 0.5) / 60 - 0.5) * share * max(height, width) + side / 2
            expected = ((place - 0.5) * 255 / (side - 1)).clamp(0, 255)
            ramp = seen[channel, 30] if channel == 0 else seen[channel, :, 30]
            torch.testing.assert_close(ramp, expected, rtol=0, atol=4)


def test_mirrored_is_mirrored(flock):
    given, chosen = photographs(flock, "test", "cpu"), torch.arange(3)
    plain = Views(32).middle(given, chosen)
    torch.testing.assert_close(Views(32).middle(given, chosen, mirrored=True), plain.flip(3), rtol=0, atol=1)
    assert (plain - plain.flip(3)).abs().max() > 50


@pytest.mark.parametrize("augmentation", ["resized", "sampled"])
def test_what_is_drawn_is_what_the_windows_say(four, augmentation):
    """By the colours of the ramps, which tell where each pixel was; mirrored in about half of the cases."""
    given, views = photographs(four, "train", "cpu"), Views(16, augmentation)
    chosen = torch.tensor([1] * 40)
    seen = views.drawn(given, chosen, RandomNumbers(3))
    drawn = RandomNumbers(3).uniform(40, 5)
    windows = views.windows_drawn(given.sizes[chosen], drawn)
    height, width = given.sizes[1].tolist()
    mirrored = drawn[:, 4] < 0.5
    assert 10 < mirrored.sum() < 30
    across = torch.where(mirrored[:, None], seen[:, 0, 0].flip(1), seen[:, 0, 0])
    for found, axis, side in ((across, 0, width), (seen[:, 1, :, 0], 1, height)):
        steps = (torch.arange(16) + 0.5) / 16 - 0.5
        place = windows.middle[:, axis, None] + steps * windows.extent[:, axis, None]
        torch.testing.assert_close(found, (place - 0.5) * 255 / (side - 1), rtol=0, atol=1.5)


def test_windows_are_turned_about_their_middles(four):
    """By as many degrees as are drawn, in pixels of the image, whatever the shape of the canvas; what lies in
    the image is looked at, by the ramps."""
    given, views = photographs(four, "train", "cpu"), Views(16, rotation=40.0)
    chosen = torch.tensor([1] * 40)
    seen = views.drawn(given, chosen, RandomNumbers(3))
    random = RandomNumbers(3)
    drawn = random.uniform(40, 5)
    angle = math.radians(40) * (2 * random.uniform(40) - 1)
    assert angle.abs().max() > math.radians(30)
    middle, extent = views.windows_drawn(given.sizes[chosen], drawn)
    steps = ((torch.arange(16) + 0.5) / 16 - 0.5).expand(40, 16, 16)
    across = steps * extent[:, 0, None, None] * (1 - 2 * (drawn[:, 4] < 0.5).float())[:, None, None]
    down = steps.mT * extent[:, 1, None, None]
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    x = middle[:, 0, None, None] + cos * across - sin * down
    y = middle[:, 1, None, None] + sin * across + cos * down
    height, width = given.sizes[1].tolist()
    margin = 1 + float(extent.max()) / 16  # a pixel of the view is smoothed over as many of the image
    inside = (x > margin) & (x < width - margin) & (y > margin) & (y < height - margin)
    assert 0.7 < inside.float().mean() < 1
    for place, side, channel in ((x, width, 0), (y, height, 1)):
        expected = (place - 0.5) * 255 / (side - 1)
        torch.testing.assert_close(seen[:, channel][inside], expected[inside], rtol=0, atol=1.5)


def test_windows_that_are_drawn_lie_in_the_image():
    sizes = torch.tensor([[320, 427], [500, 320], [120, 121]]).repeat(500, 1)
    image = sizes.flip(1).float()
    drawn = RandomNumbers(0).uniform(1500, 5)
    for views in (Views(224), Views(224, least=0.3), Views(224, "sampled")):
        middle, extent = views.windows_drawn(sizes, drawn)
        torch.testing.assert_close(middle - extent / 2, drawn[:, 2:4] * (image - extent), rtol=0, atol=1e-3)
        assert (middle - extent / 2 >= -1e-3).all()
        assert (middle + extent / 2 <= image + 1e-3).all()
        assert (middle - extent / 2)[:, 0].max() > 50  # they go about
    side = Views(224, "sampled").windows_drawn(sizes, drawn).extent
    assert torch.equal(side, 0.875 * image.amin(1, keepdim=True).expand_as(image))
    narrow = Views(224, least=0.3, aspect=1.5).windows_drawn(sizes, drawn).extent
    area, lean = narrow.prod(1) / image.prod(1), narrow[:, 0] / narrow[:, 1]
    assert 0.25 < area.min() < 0.35
    assert 0.85 < area.max() <= 1
    assert 0.66 < lean.min() < 0.7
    assert 1.4 < lean.max() < 1.51


@pytest.mark.parametrize("augmentation", ["resized", "sampled"])
@pytest.mark.parametrize("share", [0.8, 1.2])
def test_windows_that_may_hold_the_whole_image(share, augmentation):
    """They lie in the image, or the image lies in them, along each axis; and none is larger than what is
    tested on."""
    sizes = torch.tensor([[320, 427], [500, 320], [120, 360]]).repeat(500, 1)
    image, drawn = sizes.flip(1).float(), RandomNumbers(0).uniform(1500, 5)
    longer = share * image.amax(1, keepdim=True).expand_as(image)
    views = Views(224, augmentation, least=0.3, aspect=1.0, share=share, shape="whole")
    assert torch.equal(views.windows(sizes).extent, longer)
    middle, extent = views.windows_drawn(sizes, drawn)
    before, after = middle - extent / 2, middle + extent / 2
    within = (before >= -1e-3) & (after <= image + 1e-3)
    around = (before <= 1e-3) & (after >= image - 1e-3)
    assert (within | around).all()
    assert around.any()
    if augmentation == "sampled":
        assert torch.equal(extent, longer)
        return
    torch.testing.assert_close(extent[:, 0], extent[:, 1])
    area = (extent / longer).prod(1)
    assert 0.29 < area.min() < 0.31
    assert 0.99 < area.max() <= 1.0001
    leaning = Views(224, least=0.3, aspect=1.5, share=share, shape="whole").windows_drawn(sizes, drawn).extent
    assert 1.4 < (leaning[:, 0] / leaning[:, 1]).max() < 1.51
    assert (leaning <= longer + 1e-3).all()


@pytest.mark.parametrize("augmentation", ["resized", "sampled"])
def test_windows_in_the_shape_of_the_image(augmentation):
    """As those that are tested on: their sides are as long, of the image's, one way as the other."""
    sizes = torch.tensor([[320, 427], [500, 320], [120, 360]]).repeat(500, 1)
    image, drawn = sizes.flip(1).float(), RandomNumbers(0).uniform(1500, 5)
    views = Views(224, augmentation, least=0.3, aspect=1.0, share=0.9, shape="image")
    middle, extent = views.windows_drawn(sizes, drawn)
    shares = extent / image
    torch.testing.assert_close(shares[:, 0], shares[:, 1])
    assert (middle - extent / 2 >= -1e-3).all()
    assert (middle + extent / 2 <= image + 1e-3).all()
    assert torch.equal(views.windows(sizes).extent, 0.9 * image)
    if augmentation == "sampled":
        assert torch.equal(extent, 0.9 * image)
        return
    assert 0.29 < shares.prod(1).min() < 0.31
    assert 0.99 < shares.prod(1).max() <= 1.0001
    leaning = Views(224, least=0.3, aspect=1.5, shape="image").windows_drawn(sizes, drawn).extent / image
    assert 1.4 < (leaning[:, 0] / leaning[:, 1]).max() < 1.51
    assert leaning.max() <= 1.0001


def test_boxes_are_brought_to_the_view(flock):
    """The bird that is seen fills the box that it should have."""
    given, chosen = photographs(flock, "test", "cpu"), torch.arange(6)
    shapes = (("square", 0.875), ("image", 1.0), ("whole", 1.25))
    for views in (Views(64, share=share, shape=shape) for shape, share in shapes):
        seen = views.middle(given, chosen)
        boxes = views.windows(given.sizes).normalised(given.boxes)
        place = (torch.arange(64) + 0.5) / 32 - 1
        in_x = (place > boxes[:, :1] + 0.1) & (place < boxes[:, 2:3] - 0.1)  # [N, 64]
        in_y = (place > boxes[:, 1:2] + 0.1) & (place < boxes[:, 3:] - 0.1)
        inside = in_y[:, :, None] & in_x[:, None]
        vivid = seen.amax(1) - seen.amin(1) > 120
        assert inside.any((1, 2)).sum() >= 4  # a bird may be cut off
        assert vivid[inside].all()
        beyond = (place < boxes[:, :1] - 0.1) | (place > boxes[:, 2:3] + 0.1)
        assert not vivid[beyond[:, None].expand_as(vivid)].any()


def test_a_window_normalises_its_own_corners():
    windows = Windows(torch.tensor([[50.0, 30.0]]), torch.tensor([[40.0, 20.0]]))
    assert windows.normalised(torch.tensor([[30.0, 20.0, 40.0, 10.0]])).tolist() == [[-1, -1, 1, 0]]


def test_what_is_reduced_is_smoothed():
    """Noise on 80 pixels becomes a sixth of itself on 16: unsmoothed it would be a half."""
    noise = torch.randint(0, 256, (6400, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    zero = torch.zeros(1, dtype=torch.int64)
    given = bird_views.Photographs(noise, zero, torch.tensor([[80, 80]]), zero, torch.zeros(1, 4), (80, 80))
    reduced = Views(16, share=1.0).middle(given, zero)
    assert reduced.std() < 0.25 * noise.float().std()
    assert reduced.mean() == pytest.approx(noise.float().mean(), abs=2)
    # With a margin of half of it each way the noise is the middle of 32, reduced as before.
    wider = Views(32, share=2.0, shape="whole").middle(given, zero)[:, :, 9:23, 9:23]
    torch.testing.assert_close(wider, reduced[:, :, 1:15, 1:15], rtol=0, atol=0.1)
    # And where views are no smaller than images, but hold more than all of them, it is reduced all the same.
    margin = Views(80, share=2.0, shape="whole").middle(given, zero)[:, :, 22:58, 22:58]
    assert margin.std() < 0.65 * noise.float().std()


def test_colours_change_as_much_as_is_asked_for():
    """Brightness, contrast and saturation, each by 0.6 to 1.4; of greys in the middle nothing is cut off."""
    greys = (100 + 40 * torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))).expand(
        -1, 3, -1, -1
    )
    found = bird_views.coloured(greys, 0.4, RandomNumbers(0))
    brightness = found.mean((1, 2, 3)) / greys.mean((1, 2, 3))
    contrast = found.std((1, 2, 3)) / greys.std((1, 2, 3)) / brightness
    tint = torch.tensor([20.0, 0.0, -20.0])[:, None, None]
    tinted = bird_views.coloured(greys.mean((1, 2, 3), keepdim=True) + tint, 0.4, RandomNumbers(0))
    saturation = (tinted[:, 0] - tinted[:, 2]).flatten() / 40 / brightness / contrast
    for factor in (brightness, contrast, saturation):
        assert 0.6 - 1e-3 < factor.min() < 0.65
        assert 1.35 < factor.max() < 1.4 + 1e-3
    torch.testing.assert_close(bird_views.coloured(greys, 0.0, RandomNumbers(0)), greys.contiguous())


def test_colours_stay_colours():
    images = 255 * torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = bird_views.coloured(images, 0.4, RandomNumbers(0))
    assert found.min() == 0
    assert found.max() == 255


def test_colours_are_drawn_where_they_are_asked_for(flock):
    given, chosen = photographs(flock, "train", "cpu"), torch.arange(4)
    plain, other = (Views(32, colour=colour).drawn(given, chosen, RandomNumbers(0)) for colour in (0.0, 0.3))
    assert (plain - other).abs().mean() > 5
    again = bird_views.coloured(plain, 0.3, skipped(20))
    torch.testing.assert_close(other, again)


def skipped(count):
    random = RandomNumbers(0)
    random.set_state(count)
    return random


def test_held_out_images_are_the_last_of_each_species(flock):
    found = held_out(flock, 3)
    assert len(found.labels) == 12  # no test image
    assert found.split("test").tolist() == [3, 7, 11]
    assert found.labels[found.split("test")].tolist() == [0, 1, 2]
    assert found.names == [flock.names[number] for number in flock.split("train").tolist()]
    one = found.split("test")[1]
    assert torch.equal(found.image(one), flock.image(flock.names.index(found.names[one])))
    assert torch.equal(found.boxes[one], flock.boxes[flock.names.index(found.names[one])])
    assert held_out(flock, 0) is flock
    assert held_out(flock, 5).split("test").tolist() == [2, 3, 6, 7, 11]  # as many as were asked for
    with pytest.raises(ValueError, match="held_out must be less than the 12 training images, got 12"):
        held_out(flock, 12)


def test_of_larger_species_more_are_held_out(flock):
    fewer = dataclasses.replace(flock, train=flock.train & (torch.arange(18) != 0) & (torch.arange(18) != 1))
    found = held_out(fewer, 5)  # of 2, 4 and 4
    assert found.labels[found.split("test")].tolist() == [0, 1, 1, 2, 2]


def test_species_take_turns(flock):
    """So that the images of a picture, or those that are watched, are not all of the first species."""
    given = photographs(flock, "test", "cpu")
    assert given.labels.tolist() == [0, 1, 2] * 2
    first = [int(torch.where(~flock.train & (flock.labels == species))[0][0]) for species in range(3)]
    assert given.starts[:3].tolist() == flock.starts[first].tolist()
    assert bird_views.in_turn(torch.tensor([2, 0, 2, 2, 0])).tolist() == [0, 1, 2, 4, 3]


def test_saturation_keeps_the_brightness_that_is_seen():
    images = 100 + 40 * torch.rand(50, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = bird_views.coloured(images, 0.3, RandomNumbers(0))
    factors = (1 + 0.3 * (2 * RandomNumbers(0).uniform(50, 3) - 1))[:, :, None, None, None]
    bright = images * factors[:, 0]
    mean = bright.mean((1, 2, 3), keepdim=True)
    contrasted = mean + factors[:, 1] * (bright - mean)
    grey = torch.tensor([0.299, 0.587, 0.114])
    seen, expected = (torch.einsum("nchw,c->nhw", given, grey) for given in (found, contrasted))
    torch.testing.assert_close(seen, expected)


@pytest.mark.parametrize("size", [(20, 160), (160, 20)])
def test_the_longer_side_is_smoothed(size):
    noise = torch.randint(0, 256, (3200, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    first = torch.zeros(1, dtype=torch.int64)
    given = bird_views.Photographs(noise, first, torch.tensor([size]), first, torch.zeros(1, 4), size)
    reduced = Views(16, share=1.0, shape="image").middle(given, first)
    assert reduced.std() < 0.4 * noise.float().std()
