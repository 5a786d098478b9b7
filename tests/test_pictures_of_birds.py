"""Pictures of birds: windows lie where theta has them, on the images that the network saw."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from data_files import made_flock

import spatial_transformer as st
from spatial_transformer.experiments import figures, probes
from spatial_transformer.experiments import pictures_of_birds as drawn
from spatial_transformer.experiments.data.bird_views import Views, photographs
from spatial_transformer.experiments.extra import extra

pytest.importorskip("matplotlib")
pytest.importorskip("filelock")
pytestmark = pytest.mark.usefixtures("one_thread")

WINDOW = st.Attention(scale=0.5)
SETTINGS = {"share": 0.875, "shape": "square", "steps": 10}
PATH = Path("some.npz")


@pytest.fixture(scope="module")
def flock(tmp_path_factory):
    return made_flock(tmp_path_factory.mktemp("flock"), species=5, each=8, trained=3)


@pytest.fixture
def probe(flock):
    """Of 25 test images, as if the first window were on the bird and the second in a corner."""
    given = photographs(flock, "test", "cpu")
    boxes = drawn.views_of(SETTINGS).windows(given.sizes).normalised(given.boxes)
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    theta = torch.cat([middle, torch.full_like(middle, 0.5)], dim=1)
    predictions = given.labels.clone()
    predictions[7] = 0
    return probes.of(predictions, theta[:20], [])


def shown(probe, flock, family=WINDOW):
    return drawn.shown(probe, PATH, flock, drawn.views_of(SETTINGS), family)


def test_what_is_shown(probe, flock):
    found = shown(probe, flock)
    given = photographs(flock, "test", "cpu")
    numbers = drawn.spread(20)
    assert numbers.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19]
    assert found.images.shape == (18, 224, 224, 3)
    expected = drawn.views_of(SETTINGS).middle(given, torch.from_numpy(numbers))
    torch.testing.assert_close(found.images.permute(0, 3, 1, 2).float(), expected, rtol=0, atol=0.51)
    middle = (found.boxes[:, :2] + found.boxes[:, 2:]) / 2
    torch.testing.assert_close(found.corners.mean(2)[:, 0], middle, rtol=0, atol=1e-3)
    assert (found.corners.mean(2)[:, 1] == 0.5).all()
    assert [text for text, _ in found.captions[:7]] == [
        *(f"Class {n} ✓" for n in (1, 2, 3, 4, 5, 2)), "Class 3\n✗ Class 1"
    ]  # fmt: skip
    wrong = [at for at, (_, colour) in enumerate(found.captions) if colour == figures.WRONG]
    assert [numbers[at] for at in wrong] == [7]


def test_images_are_shown_as_they_were_tested_on():
    assert drawn.views_of({"share": 0.5, "shape": "image", "least": 0.1}) == Views(
        224, share=0.5, shape="image"
    )


def test_windows_are_drawn_in_the_colours_of_their_transformers(probe, flock, tmp_path):
    found = shown(probe, flock)
    made = drawn.windows(found, "Birds", "of a test")
    assert len(made.axes) == 18
    for number in (0, 6, 17):
        axes = made.axes[number]
        assert np.array_equal(axes.images[0].get_array(), found.images[number])
        box, *windows = axes.patches
        assert box.get_linestyle() == "--"
        left, top, right, bottom = ((found.boxes[number] + 1) * 112 - 0.5).tolist()
        expected = [(left, top), (right, top), (right, bottom), (left, bottom)]
        np.testing.assert_allclose(box.get_xy()[:4], expected, atol=1e-4)
        colours = [extra("matplotlib.colors").to_hex(one.get_edgecolor()) for one in windows]
        assert colours == list(drawn.COLOURS[:2])
        reds, greens = ([int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in colours)
        assert (reds.index(max(reds)), greens.index(max(greens))) == (0, 1)  # as the paper's
        for window, corners in zip(windows, found.corners[number], strict=True):
            expected = (corners + 1) * 112 - 0.5
            np.testing.assert_allclose(window.get_xy()[:4], expected, atol=1e-4)
    assert made.axes[6].get_xlabel() == "Class 3\n✗ Class 1"
    assert made.axes[6].xaxis.label.get_color() == figures.WRONG
    assert made.axes[0].get_xlabel() == "Class 1 ✓"
    assert made.axes[0].xaxis.label.get_color() == figures.RIGHT
    figures.save(made, tmp_path / "windows.png")
    assert (tmp_path / "windows.png").stat().st_size > 10_000


def test_windows_that_leave_the_image_are_seen(probe, flock):
    """On the ground around it, up to a third of its side; where none leaves it there is next to none."""
    found = shown(probe, flock)
    for shift, least, most in ((0.0, -3.0, -0.5), (0.4, -48, -45), (5.0, -80, -70)):
        theta = torch.tensor([-0.5 - shift, 0.0, 0.5, 0.0]).expand(18, 4)
        moved = found._replace(corners=drawn.corners(WINDOW, theta))
        axes = drawn.windows(moved, "Birds", "of a test").axes[0]
        left, right = axes.get_xlim()
        bottom, top = axes.get_ylim()
        assert least <= left <= most
        assert left + right == pytest.approx(223)
        assert (top, bottom) == pytest.approx((left, right))


def test_few_images_are_enough(probe, flock):
    found = shown(probe._replace(theta=probe.theta[:2]), flock)
    assert len(drawn.windows(found, "Birds", "of a test").axes) == 2


def test_other_families_have_other_corners(probe, flock):
    theta = np.tile(np.array([0.3, 0.2, 0.1, -0.2, 0.3, 0.0], np.float16), (20, 1))
    found = shown(probe._replace(theta=theta), flock, st.Affine())
    assert found.corners.shape == (18, 1, 4, 2)
    torch.testing.assert_close(found.corners[0, 0, 0], torch.tensor([-0.4, -0.1]), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda probe: probe._replace(predictions=probe.predictions[:5]), "some.npz is no probe of these"),
        (lambda probe: probe._replace(theta=probe.theta[:, :3]), "some.npz is no probe of windows of 2"),
        (lambda probe: probe._replace(theta=probe.theta[:, :0]), "some.npz is no probe of windows of 2"),
        (lambda probe: probe._replace(theta=probe.theta[:0]), "some.npz is no probe of these birds"),
    ],
)
def test_probes_of_something_else(probe, flock, change, message):
    with pytest.raises(probes.ProbeError, match=message):
        shown(change(probe), flock)


def test_panels_are_in_rows():
    places = [axes.get_position() for axes in drawn.squares(14)[1]]
    assert not any(one.overlaps(other) for at, one in enumerate(places) for other in places[:at])
    assert places[6].x0 == places[0].x0 < places[5].x0
    assert places[6].y1 < places[0].y0


def test_cases_are_of_the_views_that_the_run_was_tested_on(probe, flock):
    settings = {"share": 1.3, "shape": "whole"}
    result = SimpleNamespace(path=PATH, record=SimpleNamespace(settings=settings))
    cell = SimpleNamespace(model=SimpleNamespace(name="2xST-CNN"))
    one = SimpleNamespace(probe=probe, result=result, family=WINDOW, cell=cell, footer="")
    made = drawn.cases(one, flock, None)
    expected = drawn.shown(probe, PATH, flock, Views(224, **settings), WINDOW)
    assert np.array_equal(made.axes[3].images[0].get_array(), expected.images[3])
