"""What the tests share: the families, thetas away from special places, and the one table of tolerances."""

from __future__ import annotations

import torch

import spatial_transformer as st

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

# (rtol, atol) of an output against the reference in float64, for images of values in [0, 1] and sizes up to
# 64. Halves: two roundings of the output (2^-9, 2^-12). Floats: a coordinate of 64 pixels is rounded to
# 32 * 2^-23 pixels a few times (2^-52 for float64), the leaning of `torch` included.
TOLERANCES = {
    torch.float64: (0.0, 1e-12),
    torch.float32: (0.0, 1e-4),
    torch.bfloat16: (2**-7, 2**-8),
    torch.float16: (2**-10, 2**-11),
}

IMPLEMENTATIONS = ("reference", "torch", "fused")
KERNELS = ("nearest", "bilinear", "bicubic", "Kernel")
PADDINGS = ("zeros", "border", "reflection", "circular", "fill")
SIZES = {2: (5, 6), 3: (3, 4, 5)}


def families(dims: int, size: tuple[int, ...], align_corners: bool = False, dtype=torch.float64):
    """Every family of the paper, by name; the learned ones for output ``size``."""
    learned = {"size": size, "align_corners": align_corners, "dtype": dtype}
    return {
        "Translation": st.Translation(dims),
        "Attention": st.Attention(dims),
        "Similarity": st.Similarity(dims),
        "Affine": st.Affine(dims),
        "Projective": st.Projective(dims),
        "ThinPlateSpline": st.ThinPlateSpline((3, 4) if dims == 2 else (2, 3, 2)),
        "PiecewiseAffine": st.PiecewiseAffine((3, 4) if dims == 2 else (2, 3, 2)),
        "LearnedBasis": st.LearnedBasis(9 if dims == 2 else 8, **learned),
        "LearnedBasis homogeneous": st.LearnedBasis(dims + 1, start="homogeneous", **learned),
    }


FAMILY_NAMES = tuple(families(2, SIZES[2]))
HOMOGENEOUS = ("Translation", "Attention", "Similarity", "Affine", "Projective")


def thetas(family: st.Family, count: int, *, spread: float = 0.1, seed: int = 0, dtype=torch.float64):
    """Random thetas around the identity: samples inside and outside the image, none on a whole pixel."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, family.num_params, generator=generator, dtype=torch.float64)
    return (family.identity(dtype=torch.float64) + spread * noise).to(dtype)


def images(*shape: int, seed: int = 0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64).to(dtype)


def bump(distance):
    """A smooth kernel of one's own that is no partition of unity."""
    return torch.cos(distance).square() * torch.exp(-0.3 * distance) / 1.7


def can(impl: str, kernel_name: str) -> bool:
    """Whether an implementation takes a kernel."""
    return impl != "fused" or kernel_name != "Kernel"


def kernel(name: str):
    return st.Kernel(bump, radius=1.5) if name == "Kernel" else name


def padding(name: str, channels: int):
    return [0.3 + 0.5 * channel for channel in range(channels)] if name == "fill" else name


def close(found, expected, tolerance: tuple[float, float]) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance[0], atol=tolerance[1], check_dtype=False)


def rounded(value: torch.Tensor) -> torch.Tensor:
    """To bfloat16 and back."""
    return value.to(torch.bfloat16).to(value.dtype)
