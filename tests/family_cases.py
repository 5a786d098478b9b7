"""What the tests of families share: one of each, thetas, points, and the pixels written out again."""

from __future__ import annotations

import torch

import spatial_transformer as st

DOUBLE = torch.float64
IMPLS = ("reference", "torch", "fused")
SIZES = {2: (5, 4), 3: (3, 5, 4)}
LATTICES = {2: (3, 4), 3: (2, 3, 4)}
HOMOGENEOUS = (st.Translation, st.Attention, st.Similarity, st.Affine, st.Projective)


def families(*dims):
    found = []
    for d in dims or (2, 3):
        found += [family(dims=d) for family in HOMOGENEOUS]
        found += [st.ThinPlateSpline(LATTICES[d]), st.PiecewiseAffine(LATTICES[d])]
        found += [st.LearnedBasis(LATTICES[d], SIZES[d])]
        found += [st.LearnedBasis(d + 1, SIZES[d], start="homogeneous")]
    return [family.double() for family in found]


def named(family):
    start = "-homogeneous" if isinstance(family, st.LearnedBasis) and family.num_params in (6, 12) else ""
    return f"{type(family).__name__}{family.dims}d{start}"


def some(family, *lead, spread=0.1, seed=0):
    """thetas near the identity. float64 [*lead, num_params]"""
    noise = torch.randn(*lead, family.num_params, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    return family.identity(dtype=DOUBLE) + spread * noise


def lattice(size, align_corners=False):
    """The pixels' normalised coordinates, written out again. float64 [*size, dims]"""
    rims = [1.0 if align_corners else 1 - 1 / n for n in size]
    along = [torch.linspace(-rim, rim, n, dtype=DOUBLE) for rim, n in zip(rims, size, strict=True)]
    return torch.stack(torch.meshgrid(*along, indexing="ij")[::-1], dim=-1)


def scattered(count, dims, seed=1):
    """Points within the image. float64 [count, dims]"""
    return 1.8 * torch.rand(count, dims, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE) - 0.9


def close(a, b, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)
