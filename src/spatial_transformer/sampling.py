"""``warp`` and ``sample``: check, choose, call."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from . import checks
from .coordinates import Size
from .family import Family
from .implementations import choose
from .kernels import Kernel


def warp(
    image: Tensor,
    theta: Tensor,
    family: Family,
    *,
    size: Size | None = None,
    kernel: str | Kernel = "bilinear",
    padding: str | float | Sequence[float] | Tensor = "zeros",
    align_corners: bool = False,
    antialias: bool | float = False,
    impl: str = "auto",
) -> Tensor:
    """The image seen through the transformation theta: V of the paper's equations 1 to 5.

    image ``[N, C, H, W]`` or ``[N, C, D, H, W]``, theta ``[N, P]``: gives ``[N, C, *size]``. theta
    ``[N, T, P]`` warps each image T times without copying it: gives ``[N, T, C, *size]``. Differentiable in
    image, theta, and what a family or kernel learns. float64, float32, bfloat16 or float16; coordinates
    and sums are float32 at least; the output has the image's dtype and memory format.

    >>> import torch, spatial_transformer as st
    >>> digits = torch.rand(8, 1, 28, 28)
    >>> crop = torch.tensor([[0.5, 0.0, 0.0]]).expand(8, 3)                   # scale, x, y
    >>> st.warp(digits, crop, st.Attention(), size=(14, 14)).shape
    torch.Size([8, 1, 14, 14])

    Parameters
    ----------
    family: which transformations theta means, such as ``st.Affine()``.
    size: of the output, (H, W) or (D, H, W); the image's own if None.
    kernel: "nearest" (halves round up), "bilinear" (trilinear in 3D), "bicubic", or a ``Kernel``.
    padding: "zeros", "border", "reflection", "circular", a number, or a number for each channel: what lies
        outside the image (drawn in ``coordinates``).
    align_corners: whether -1 and 1 are the centres of the border pixels (True) or their edges.
    antialias: widen the kernel to what an output pixel covers, up to 8 input pixels, or up to the number
        given.
    impl: "auto", "reference", "torch" or "fused"; one that cannot run raises its reason.
    """
    image = checks.image(image)
    family = checks.family(family, image)
    theta = checks.theta(theta, family, image)
    out_size = checks.size(size, image)
    reading = checks.reading(
        image, kernel=kernel, padding=padding, align_corners=align_corners, antialias=antialias
    )
    chosen = choose(checks.impl(impl), image, reading)
    result: Tensor = chosen.module.warp(image, theta, family, out_size, reading)
    return result


def sample(
    image: Tensor,
    grid: Tensor,
    *,
    kernel: str | Kernel = "bilinear",
    padding: str | float | Sequence[float] | Tensor = "zeros",
    align_corners: bool = False,
    antialias: bool | float = False,
    impl: str = "auto",
) -> Tensor:
    """The image read at the points of a grid: equation 3 for any sampling grid.

    image ``[N, C, H, W]`` or ``[N, C, D, H, W]``, grid ``[N, H', W', 2]`` or ``[N, D', H', W', 3]`` of
    normalised source coordinates, x first: gives ``[N, C, *out]``. A grid ``[N, T, ..., dims]`` gives
    ``[N, T, C, *out]``. The options are those of ``warp``; with ``antialias`` the footprint of an output
    pixel is read off its neighbours in the grid.

    >>> import torch, spatial_transformer as st
    >>> grid = st.Affine().grid(torch.tensor([[0.0, -1, 0, 1, 0, 0]]), size=(28, 28))
    >>> st.sample(torch.rand(1, 3, 28, 28), grid).shape                       # a quarter turn
    torch.Size([1, 3, 28, 28])
    """
    image = checks.image(image)
    grid = checks.grid(grid, image)
    reading = checks.reading(
        image, kernel=kernel, padding=padding, align_corners=align_corners, antialias=antialias
    )
    chosen = choose(checks.impl(impl), image, reading)
    result: Tensor = chosen.module.sample(image, grid, reading)
    return result
