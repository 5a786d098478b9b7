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
    tile = np.asarray(animations.tile_with_lattice(torch.zeros(28, 28), lines, 28.0), int)
    red = tile[..., 0] - tile[..., 2] > 100
    rows, columns = (np.flatnonzero(red.any(axis)) for axis in (1, 0))
    quarter = animations.TILE / 4
    for found in (rows, columns):
        assert abs(found.min() - quarter) <= 2
        assert abs(found.max() + 1 - 3 * quarter) <= 2
