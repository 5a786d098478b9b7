"""``SpatialTransformer``, the module of the paper's figure 2, and ``param_groups``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from . import checks
from .control_points import LearnedBasis
from .coordinates import Size
from .family import Family
from .kernels import Kernel
from .localisers import Head
from .sampling import warp


class SpatialTransformer(nn.Module):
    """A localisation network, a family and a sampler: the image warped as the image itself asks for.

    [N, C, *in] -> [N, C, *size]; with several ``copies`` -> [N, copies, C, *size]. Put it anywhere in a
    model, in any number; it starts as the identity and trains with the rest:

    >>> import torch, spatial_transformer as st
    >>> localiser = st.ConvLocaliser(in_channels=1, in_size=(28, 28))
    >>> transformer = st.SpatialTransformer(localiser, st.Affine())
    >>> digits = torch.rand(8, 1, 28, 28)
    >>> torch.allclose(transformer(digits), digits, atol=1e-4)
    True

    Parameters
    ----------
    localiser: any module from the image to features [N, F]. One that gives theta by itself is passed with
        ``head=nn.Identity()``.
    family: which transformations, such as ``st.Affine()``.
    features: F, where the localiser has no ``out_features`` to read it off.
    copies: transforms of each image, from one localiser.
    head: the module from features to theta instead of ``Head(features, family, copies=copies)``; for crops
        that tile the image, ``Head(F, family, copies=T, start="tile")``.
    size, kernel, padding, align_corners, antialias, impl: as in ``warp``.
    """

    def __init__(
        self,
        localiser: nn.Module,
        family: Family,
        *,
        features: int | None = None,
        copies: int = 1,
        head: nn.Module | None = None,
        size: Size | None = None,
        kernel: str | Kernel = "bilinear",
        padding: str | float | Sequence[float] | Tensor = "zeros",
        align_corners: bool = False,
        antialias: bool | float = False,
        impl: str = "auto",
    ) -> None:
        super().__init__()
        if not isinstance(localiser, nn.Module):
            raise TypeError(f"localiser must be a module, got {checks.described(localiser)}")
        if not isinstance(family, Family):
            raise TypeError(f"family must be a Family such as st.Affine(), got {checks.described(family)}")
        if isinstance(copies, bool) or not isinstance(copies, int) or copies < 1:
            raise ValueError(f"copies must be a whole number of at least 1, got {copies!r}")
        if head is None:
            features = features if features is not None else getattr(localiser, "out_features", None)
            if not isinstance(features, int):
                raise ValueError(
                    f"features must be given: {type(localiser).__name__} has no out_features to read it off"
                )
            head = Head(features, family, copies=copies)
        elif not isinstance(head, nn.Module):
            raise TypeError(f"head must be a module, got {checks.described(head)}")
        elif isinstance(head, Head):
            copies = head.copies if copies == 1 else copies
            if (head.copies, head.num_params) != (copies, family.num_params):
                raise ValueError(
                    f"head makes {head.copies} x {head.num_params} numbers, "
                    f"copies={copies} of {type(family).__name__} need {copies} x {family.num_params}"
                )
        # What is wrong with the options is said here, not at the first call.
        channels = len(padding) if isinstance(padding, (tuple, list, Tensor)) else 1
        example = torch.empty(1, channels, *[1] * family.dims, device="cpu")
        checks.reading(
            example, kernel=kernel, padding=padding, align_corners=align_corners, antialias=antialias
        )
        self.localiser, self.head, self.family = localiser, head, family
        self.copies = copies
        self.size = None if size is None else checks.size(size, example)
        if self.size is not None and isinstance(family, LearnedBasis):
            family.basis(self.size, align_corners)
        self.kernel = kernel
        if isinstance(padding, Tensor) and not isinstance(padding, nn.Parameter):
            self.register_buffer("padding", padding, persistent=False)  # goes where the module goes
        else:
            self.padding = padding
        self.align_corners, self.antialias, self.impl = align_corners, antialias, checks.impl(impl)

    def extra_repr(self) -> str:
        shown = ["size", "copies", "padding", "align_corners", "antialias", "impl"]
        shown += [] if isinstance(self.kernel, nn.Module) else ["kernel"]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)

    def theta(self, image: Tensor) -> Tensor:
        """The transformation that the localiser finds. [N, P] or [N, copies, P]"""
        theta: Tensor = self.head(self.localiser(image))
        if self.copies > 1 and (theta.ndim != 3 or theta.shape[1] != self.copies):
            raise ValueError(
                f"theta must be [N, {self.copies}, {self.family.num_params}] for copies={self.copies}, "
                f"got {list(theta.shape)} from the head"
            )
        return theta

    @overload
    def forward(self, image: Tensor, *, return_theta: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, image: Tensor, *, return_theta: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def forward(self, image: Tensor, *, return_theta: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """The warped image, and theta where it is asked for."""
        theta = self.theta(image)
        warped = warp(
            image,
            theta,
            self.family,
            size=self.size,
            kernel=self.kernel,
            padding=self.padding,
            align_corners=self.align_corners,
            antialias=self.antialias,
            impl=self.impl,
        )
        return (warped, theta) if return_theta else warped


def param_groups(model: nn.Module, *, lr: float, localiser_lr: float) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser that give localisers a learning rate of their own.

    The localisers and heads of every ``SpatialTransformer`` in the model learn at ``localiser_lr``, all else
    at ``lr`` (the paper: a tenth of it for SVHN, 1e-4 of it for the birds).

    >>> import torch, spatial_transformer as st
    >>> model = st.SpatialTransformer(st.DenseLocaliser(1, (28, 28)), st.Affine())
    >>> optimiser = torch.optim.SGD(st.param_groups(model, lr=0.01, localiser_lr=0.001))
    """
    localising = {
        parameter
        for module in model.modules()
        if isinstance(module, SpatialTransformer)
        for part in (module.localiser, module.head)
        for parameter in part.parameters()
    }
    rest = [parameter for parameter in model.parameters() if parameter not in localising]
    own = [parameter for parameter in model.parameters() if parameter in localising]
    groups = [{"params": rest, "lr": lr}, {"params": own, "lr": localiser_lr}]
    return [group for group in groups if group["params"]]
