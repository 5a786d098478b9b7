"""What is measured besides the error: against thetas that are made to look where one knows."""

from __future__ import annotations

import math

import pytest
import torch

import spatial_transformer as st
from spatial_transformer.experiments import measures
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.data.distortions import Added
from spatial_transformer.experiments.data.random_numbers import RandomNumbers
from spatial_transformer.experiments.data.volumes import Volumes

CELLS = {cell.name: cell for experiment in EXPERIMENTS.values() for cell in experiment.cells}
FAMILIES = {"affine": st.Affine(), "projective": st.Projective(), "spline": st.ThinPlateSpline((4, 4))}
COUNT = 400
DRAWN = Added().draw(COUNT, RandomNumbers(3))
CENTRE = DRAWN.numbers["centre"]  # pixels [N, 2, 2]


def looking_at(family, points):
    """Thetas that have points of the image, normalised [N, 2], in the middle of what they give."""
    if isinstance(family, st.ThinPlateSpline):
        return (family.identity().unflatten(0, (16, 2)) + points[:, None]).flatten(1)
    theta = family.identity().repeat(len(points), 1)
    theta[:, [2, 5]] = points
    return theta


def of(family, *looked_at):
    """The measures of transformers that look at points, in pixels."""
    theta = torch.cat([looking_at(FAMILIES[family], points / 21) for points in looked_at], dim=1)
    return measures.of(CELLS[f"addition/2xST-FCN {family}"], theta, {"centre": CENTRE})


@pytest.mark.parametrize("family", FAMILIES)
def test_each_on_its_channel(family):
    first, second = CENTRE.unbind(1)
    assert of(family, first, second) == {"apart": 100, "settled": 100}
    assert of(family, second, first) == {"apart": 100, "settled": 100}
    assert of(family, second, second) == {"apart": 0, "settled": 0}


def test_which_channel_is_attended_to():
    theta = torch.stack([looking_at(FAMILIES["affine"], points / 21) for points in CENTRE.unbind(1)], dim=1)
    found = measures.attended(FAMILIES["affine"], theta, CENTRE / 21)
    assert torch.equal(found, torch.tensor([0, 1]).expand(COUNT, 2))


def test_a_digit_may_be_beside_the_middle():
    """Always in the same way: then it is known where to look for it."""
    first, second = CENTRE.unbind(1)
    assert of("affine", first + torch.tensor([9.0, -6.0]), second - 8) == {"apart": 100, "settled": 100}


def test_those_that_change_channels_have_not_settled():
    swapped = torch.arange(COUNT)[:, None] % 4 == 0
    first, second = torch.where(swapped[..., None], CENTRE.flip(1), CENTRE).unbind(1)
    found = of("affine", first, second)
    assert found["apart"] > 97  # what is usual is a little blurred
    assert found["settled"] == pytest.approx(75, abs=3)


def test_those_that_look_nowhere_in_particular():
    """Both alike: never apart. Each at random: in half of the images."""
    nowhere = torch.zeros(COUNT, 2)
    assert of("affine", nowhere, nowhere) == {"apart": 0, "settled": 0}
    random = 20 * torch.randn(2, COUNT, 2, generator=torch.Generator().manual_seed(0))
    assert of("affine", *random)["apart"] == pytest.approx(50, abs=8)


def test_the_true_transforms_are_apart():
    """What undoes the distortion of each channel, turned and scaled as it is."""
    theta = st.Affine().inverse(DRAWN.theta)  # [N, 2, 6]
    found = measures.of(CELLS["addition/2xST-FCN affine"], theta.flatten(1), {"centre": CENTRE})
    assert found == {"apart": 100, "settled": 100}


def test_what_has_no_measure():
    for name in ("addition/ST-FCN affine", "addition/FCN", "RTS/ST-FCN affine", "R/CNN"):
        assert measures.of(CELLS[name], torch.zeros(5, 6), {"centre": torch.zeros(5, 2)}) == {}


def test_how_far_a_projected_digit_is_from_the_middle_and_the_line_of_sight():
    drawn = Volumes().draw(COUNT, RandomNumbers(3))
    centre, angles = drawn.numbers["centre"], drawn.numbers["angles"]
    without = measures.of(CELLS["3D/CNN"], torch.zeros(COUNT, 0), drawn.numbers)
    assert without["off centre"] == pytest.approx(centre[:, :2].norm(dim=1).median().item())
    # Turned about x and y; about z it turns in its own plane.
    tilted = torch.rad2deg(torch.acos(angles[:, 0].cos() * angles[:, 1].cos()))
    assert without["off front"] == pytest.approx(tilted.median().item(), rel=1e-4)
    cell = CELLS["3D/ST-CNN"]

    def off(theta):
        found = measures.of(cell, theta, drawn.numbers)
        assert found.keys() == {"off centre", "off front"}
        return tuple(found.values())

    back = st.Affine(3).inverse(drawn.theta)  # brings the digit to the middle, upright
    assert off(back) == (pytest.approx(0, abs=1e-3), pytest.approx(0, abs=0.1))
    identity = st.Affine(3).identity().expand(COUNT, -1)
    assert off(identity) == (
        pytest.approx(without["off centre"]),
        pytest.approx(without["off front"], rel=1e-3),
    )
    shifted = st.Affine(3).compose(back, torch.tensor([1.0, 0, 0, 0.2, 0, 1, 0, 0, 0, 0, 1, 0.5]))
    assert off(shifted) == (pytest.approx(6, abs=1e-2), pytest.approx(0, abs=0.1))  # of 30
    sheared = st.Affine(3).compose(back, torch.tensor([1.0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0]))
    aside = math.degrees(math.atan(28 / 16))  # what is undone has made the digit less deep than it is wide
    assert off(sheared) == (pytest.approx(0, abs=1e-3), pytest.approx(aside, abs=0.1))
    deeper = st.Affine(3).compose(identity, torch.tensor([1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2, 0]))
    assert off(deeper) == pytest.approx(off(identity), rel=1e-3)  # what comes out is half as deep
    assert off(torch.zeros(COUNT, 12)) == (pytest.approx(30 * 2**0.5), 90)


def test_every_measure_is_described():
    assert set(EXPERIMENTS["addition"].measures) == {measures.APART, measures.SETTLED}
    assert set(EXPERIMENTS["volumes"].measures) == {measures.OFF_CENTRE, measures.OFF_FRONT}
