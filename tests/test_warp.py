"""What a warp of many transforms takes and gives: memory and layouts."""

from __future__ import annotations

import pytest
import torch
from cases import IMPLEMENTATIONS as IMPLS
from cases import SIZES

import spatial_transformer as st
from benchmarks.cpu import peak as cpu_peak


@pytest.mark.parametrize("impl", IMPLS)
def test_an_image_is_not_copied_for_its_transforms(impl):
    """Eight crops of a large image: the peak beyond the output is far below one more image."""
    image = torch.rand(1, 16, 128, 128)
    theta = st.Attention().identity().expand(1, 8, -1) * 0.5
    peak = cpu_peak(lambda: (st.warp(image, theta, st.Attention(), size=(8, 8), impl=impl),))
    assert peak < image.nbytes / 2


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("dims", [2, 3])
def test_layouts_are_kept(dims, copies, impl):
    """Channels last in, channels last out, each transform of an image for itself."""
    family = st.Affine(dims)
    layout = torch.channels_last if dims == 2 else torch.channels_last_3d
    image = torch.rand(2, 3, *SIZES[dims]).contiguous(memory_format=layout)
    theta = family.identity().expand(*((2,) if copies is None else (2, copies)), -1)
    output = st.warp(image, theta, family, impl=impl)
    one = output if copies is None else output[:, 0]
    assert one.stride(1) == 1
    assert one.stride()[2:] == image.stride()[2:]
    assert st.warp(image.contiguous(), theta, family, impl=impl).is_contiguous()
