"""What is measured of windows: on small cases that can be counted by hand."""

from __future__ import annotations

import pytest
import torch

import spatial_transformer as st
from spatial_transformer.experiments import measures_of_birds as measures

BOXES = torch.tensor(
    [[-1.0, -0.5, 0.0, 0.5], [0.2, 0.2, 0.8, 0.9], [-0.1, -0.1, 0.1, 0.1], [0.0, 0.0, 1.5, 1.5]]
)


def test_of_two_windows():
    family = st.Attention(scale=0.5)
    theta = torch.tensor(
        [
            [[-0.5, 0.0], [0.5, 0.0]],  # the first is on the bird
            [[0.5, 0.5], [0.1, 0.5]],  # the first; the second is left of it
            [[0.0, 0.0], [0.1, -0.1]],  # both: the border counts
            [[0.3, -0.1], [0.3, 0.1]],  # the second; the first is above it
        ]
    )
    found = measures.of(family, theta, torch.tensor([[-0.5, 0.0], [0.5, 0.0]]), BOXES)
    apart = (1.0 + 0.4 + 0.02**0.5 + 0.2) / 4 / 2
    assert found == {
        "on the bird": 62.5,
        "on the bird, window 1": 75.0,
        "on the bird, window 2": 50.0,
        "windows apart": pytest.approx(apart, rel=1e-5),
        "on the bird, at the start": 25.0,
        "on the bird, window 1, at the start": 25.0,
        "on the bird, window 2, at the start": 25.0,
        "windows apart, at the start": pytest.approx(0.5),
    }


def test_of_four_windows_all_pairs_count():
    family = st.Attention(scale=0.5)
    start = torch.tensor([[-0.5, -0.5], [0.5, -0.5], [-0.5, 0.5], [0.5, 0.5]])
    found = measures.of(family, start.expand(4, 4, 2), start, BOXES)
    assert found["windows apart"] == pytest.approx((4 * 0.5 + 2 * 0.5**0.5) / 6)


def test_of_one_window_nothing_is_apart():
    found = measures.of(st.Attention(scale=0.5), torch.zeros(4, 1, 2), torch.zeros(1, 2), BOXES)
    assert found == {
        "on the bird": 75.0,
        "on the bird, window 1": 75.0,
        "on the bird, at the start": 75.0,
        "on the bird, window 1, at the start": 75.0,
    }


@pytest.mark.parametrize("family", [st.Attention(), st.Affine()])
def test_the_centre_of_a_window_is_where_its_middle_is(family):
    theta = torch.randn(4, 2, family.num_params, generator=torch.Generator().manual_seed(0))
    middle = family.box(theta).mean(2)  # of its corners
    torch.testing.assert_close(measures.centres(family, theta), middle)
