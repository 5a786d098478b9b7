"""Lattices: T_theta(G) as lines lies where the family says."""

from __future__ import annotations

import pytest
import torch

import spatial_transformer as st
from spatial_transformer.experiments import lattices, networks

WHOLE = [name for name in networks.FAMILIES if name != "window"]  # which is of half the size


@pytest.mark.parametrize("family", WHOLE)
def test_the_identitys_lattice_is_the_image(family):
    family = networks.FAMILIES[family]()
    lines = lattices.lattice(family, family.identity(), 28)
    assert lines.shape == (18, 33, 2)
    assert torch.allclose(lines[0, :, 1], torch.tensor(-0.5), atol=1e-4)  # along the upper edge
    assert torch.allclose(lines[8, :, 1], torch.tensor(27.5), atol=1e-4)  # the lower
    assert torch.allclose(lines[9, :, 0], torch.tensor(-0.5), atol=1e-4)  # the left
    assert torch.allclose(lines[17, :, 0], torch.tensor(27.5), atol=1e-4)  # and the right
    assert torch.allclose(lines[3, [0, -1], 0], torch.tensor([-0.5, 27.5]), atol=1e-4)
    assert [number for number in range(18) if lattices.is_border(number)] == [0, 8, 9, 17]


def test_a_lattice_is_where_the_family_says():
    spline = st.ThinPlateSpline((4, 4))
    theta = spline.identity() + 0.2 * torch.randn(32, generator=torch.Generator().manual_seed(0))
    lines = lattices.lattice(spline, theta, 42)
    # The third line down, a quarter of the way along it: (x, y) of the target.
    source = spline.points(theta, torch.tensor([[2 * 8 / 32 - 1, 2 * 3 / 8 - 1]]))
    assert torch.allclose(lines[3, 8], (source[0] + 1) * 21 - 0.5, atol=1e-4)
    # A line down is the line across, mirrored at the diagonal of the target.
    assert torch.allclose(lines[9 + 2, 12], lines[3, 8], atol=1e-4)


def test_a_view_holds_most_of_the_lattices():
    square = lattices.lattice(st.Affine(), st.Affine().identity(), 28)[None]
    assert lattices.reach(square, 28) == pytest.approx(15)
    turned = lattices.lattice(st.Affine(), torch.tensor([0.6, -0.8, 0.0, 0.8, 0.6, 0.0]), 28)[None]
    assert lattices.reach(turned, 28) == pytest.approx(1.4 * 14 + 1, abs=0.01)
    assert lattices.reach(100 * turned, 28) == pytest.approx(0.85 * 28)


def test_lattices_of_many_transforms_are_those_of_each():
    family = st.Projective()
    theta = family.identity() + 0.1 * torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    found = lattices.lattice(family, theta, 28)
    each = [lattices.lattice(family, one, 28) for one in theta.flatten(0, 1)]
    assert torch.equal(found, torch.stack(each).unflatten(0, (2, 3)))
    assert lattices.reach(found, 28) == lattices.reach(torch.stack(each), 28)
