"""Animations: what is on a tile of a frame lies where it should."""

from __future__ import annotations

import numpy as np
import torch

import spatial_transformer as st
from spatial_transformer.experiments import animations
from spatial_transformer.experiments.lattices import lattice


def test_the_lattice_of_a_tile_is_over_the_image():
    """An identity's: its border is the image's, and half of the middle line's ink is left of the middle."""
    lines = lattice(st.Affine(), st.Affine().identity(), 28)
    tile = np.asarray(animations.tile_with_lines(torch.zeros(28, 28), [lines], 28.0), int)
    red = tile[..., 0] - tile[..., 2] > 100
    rows, columns = (np.flatnonzero(red.any(axis)) for axis in (1, 0))
    quarter = animations.TILE / 4
    for found in (rows, columns):
        assert abs(found.min() - quarter) <= 2
        assert abs(found.max() + 1 - 3 * quarter) <= 2


def test_bundles_have_their_colours_and_as_many_lines_as_are_asked_for():
    lines = lattice(st.Affine(), st.Affine().identity(), 28)
    left, right = lines - torch.tensor([14.0, 0]), lines + torch.tensor([14.0, 0])
    colours = ("#ff0000", "#0000ff")

    def inked(**options):
        made = animations.tile_with_lines(
            torch.zeros(28, 28), [left, right], 28.0, colours=colours, **options
        )
        pixels = np.asarray(made, int)
        return pixels[..., 0] - pixels[..., 2]

    half = animations.TILE // 2
    whole, sparse, bold = inked(), inked(every=4), inked(bold=lambda number: True)
    assert whole[:, : half - 6].min() > -100  # no blue on the left
    assert whole[:, half + 6 :].max() < 100
    assert np.abs(bold).sum() > 1.3 * np.abs(whole).sum() > 1.4 * np.abs(sparse).sum()
    assert sparse[:, : half - 6].max() > 200 > -200 > sparse[:, half + 6 :].min()  # the borders are there


def test_frames_in_which_lines_move_are_shown_longer():
    places = torch.zeros(6, 3, 4, 2)
    places[2:] += 1
    places[3:, 1, 2, 0] += 0.1
    still, moving = animations.STILL, animations.MOVING
    found = animations.paced(places)
    assert found == [6 * moving, still, moving, still, still, animations.LAST]
    assert still < moving < animations.LAST
    assert animations.paced(places[:1]) == [animations.LAST]


def test_a_frame_has_its_tiles_row_by_row():
    tiles = [
        [animations.tile(torch.full((4, 4), (3 * row + column) / 10)) for column in range(3)]
        for row in (0, 1)
    ]
    made = np.asarray(animations.frame(tiles, "what", "step 7"))
    for row in (0, 1):
        for column in range(3):
            y = animations.HEADER + row * (animations.TILE + animations.GAP) + 5
            x = animations.MARGIN + column * (animations.TILE + animations.GAP) + 5
            assert abs(int(made[y, x, 0]) - 255 * (3 * row + column) / 10) <= 1
    assert (made[: animations.HEADER] < 128).any()  # words
