"""Localisation networks: ``Head``, which makes theta, and two networks to put under it."""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .coordinates import Size
from .family import Family

CONVOLUTIONS = {2: nn.Conv2d, 3: nn.Conv3d}
MAX_POOLS = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGE_POOLS = {2: nn.AvgPool2d, 3: nn.AvgPool3d}


class Head(nn.Module):
    """Features to theta: the final regression layer, started where ``start`` says, whatever the features.

    [N, in_features] -> [N, P], or [N, copies, P] for several copies. Its weights start at zero and its bias
    at theta, as the paper does ("zero weights, identity transform bias"). It computes in float32 at least,
    whatever autocast says: a bfloat16 theta is several pixels coarse.

    start: "identity"; "tile", crops that tile the image, one for each of several copies (their family
    must be able to crop); or a tensor [P] or [copies, P].
    """

    def __init__(
        self, in_features: int, family: Family, *, copies: int = 1, start: str | Tensor = "identity"
    ) -> None:
        super().__init__()
        if not isinstance(family, Family):
            raise TypeError(f"family must be a Family such as st.Affine(), got {family!r}")
        check_whole("in_features", in_features)
        check_whole("copies", copies)
        if family.num_params < 1:
            raise ValueError("family must have a number that is not pinned: there is nothing to learn")
        self.in_features, self.copies, self.num_params = in_features, copies, family.num_params
        self.weight = nn.Parameter(torch.empty(copies * family.num_params, in_features))
        self.bias = nn.Parameter(torch.empty(copies * family.num_params))
        if isinstance(start, Tensor):
            first = start
        elif start == "identity":
            first = family.identity(dtype=torch.float64, device="cpu")
        elif start == "tile":
            first = torch.stack([family.crop(centre, scale) for centre, scale in tiles(copies, family.dims)])
            if family.box(first).abs().max() > 1.001:  # its windows reach beyond the image
                raise ValueError(f'start="tile" needs a family that can crop: {type(family).__name__} cannot')
        else:
            raise ValueError(f'start must be "identity", "tile" or a tensor, got {start!r}')
        if first.shape not in ((family.num_params,), (copies, family.num_params)):
            expected = f"[{family.num_params}] or [{copies}, {family.num_params}]"
            raise ValueError(f"start must be {expected}, got {list(first.shape)}")
        if not first.isfinite().all():
            raise ValueError(f"start must be finite, got {first.tolist()}")
        self._start = first.detach().to(torch.float64).expand(copies, -1).flatten().tolist()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Back to the start."""
        with torch.no_grad():
            self.weight.zero_()
            self.bias.copy_(torch.tensor(self._start, dtype=self.bias.dtype))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, copies={self.copies}, num_params={self.num_params}"

    def forward(self, features: Tensor) -> Tensor:
        dtype = torch.promote_types(features.dtype, torch.float32)
        with no_autocast(features.device.type):
            theta = F.linear(features.to(dtype), self.weight.to(dtype), self.bias.to(dtype))
        return theta if self.copies == 1 else theta.unflatten(-1, (self.copies, self.num_params))


def no_autocast(device_type: str) -> contextlib.AbstractContextManager[object]:
    if device_type == "meta":  # knows no autocast
        return contextlib.nullcontext()
    return torch.autocast(device_type, enabled=False)


class DenseLocaliser(nn.Module):
    """Fully connected layers with rectifiers: [N, in_channels, *in_size] -> [N, hidden[-1]].

    The paper's for ST-FCN on MNIST is the default; for SVHN's ST-CNN Multi it is ``hidden=(32, 32)``.
    """

    def __init__(self, in_channels: int, in_size: Size, *, hidden: Sequence[int] = (32, 32, 32)) -> None:
        super().__init__()
        check_in_size(in_size)
        check_whole("in_channels", in_channels)
        check_layers("hidden", hidden)
        self.layers = nn.Sequential(nn.Flatten(), *dense(in_channels * math.prod(in_size), hidden))
        self.in_shape, self.out_features = (in_channels, *in_size), hidden[-1]

    def forward(self, image: Tensor) -> Tensor:
        check_image(image, self.in_shape)
        features: Tensor = self.layers(image)
        return features


class ConvLocaliser(nn.Module):
    """Convolutions, then fully connected layers, with rectifiers: [N, in_channels, *in_size] -> [N, F].

    The default is the paper's for ST-CNN on MNIST: on the input halved, two 5x5 convolutions of 20 filters
    with 2x2 max-pooling between them, and 20 units. Its others:

    - SVHN, ST-CNN Single: ``channels=(32, 32), padding=2, hidden=(32, 32), downsample=1``;
    - co-localisation: ``channels=(8,), kernel_size=9, stride=4, pool=(2,), hidden=(8, 8), downsample=1``.

    Parameters
    ----------
    in_size: (H, W), or (D, H, W) for volumes.
    channels: filters of each convolution.
    pool: max-pooling *between* convolutions, or one number for each, after it (1 for none).
    hidden: units of each fully connected layer.
    downsample: average-pooling of the input.
    """

    def __init__(
        self,
        in_channels: int,
        in_size: Size,
        *,
        channels: Sequence[int] = (20, 20),
        kernel_size: int = 5,
        stride: int = 1,
        padding: int = 0,
        pool: int | Sequence[int] = 2,
        hidden: Sequence[int] = (20,),
        downsample: int = 2,
    ) -> None:
        super().__init__()
        dims = check_in_size(in_size)
        check_layers("channels", channels)
        check_layers("hidden", hidden)
        given = {"in_channels": in_channels, "kernel_size": kernel_size, "stride": stride}
        for name, number in {**given, "downsample": downsample}.items():
            check_whole(name, number)
        check_whole("padding", padding, least=0)
        if isinstance(pool, int):
            check_whole("pool", pool)
        else:
            check_layers("pool", pool)
        pools = [*[pool] * (len(channels) - 1), 1] if isinstance(pool, int) else list(pool)
        if len(pools) != len(channels):
            raise ValueError(
                f"pool must have one number for each of {len(channels)} convolutions, got {pool!r}"
            )
        layers: list[nn.Module] = [AVERAGE_POOLS[dims](downsample)] if downsample > 1 else []
        extent, width = [n // downsample for n in in_size], in_channels
        if min(extent) < 1:
            raise ValueError(f"in_size {tuple(in_size)} is too small for downsample={downsample}")
        for filters, window in zip(channels, pools, strict=True):
            layers += [CONVOLUTIONS[dims](width, filters, kernel_size, stride, padding), nn.ReLU()]
            extent, width = [(n + 2 * padding - kernel_size) // stride + 1 for n in extent], filters
            if window > 1:
                layers.append(MAX_POOLS[dims](window))
                extent = [n // window for n in extent]
            if min(extent) < 1:
                raise ValueError(
                    f"in_size {tuple(in_size)} is too small for these convolutions: nothing is left after "
                    f"the one of {filters} filters; give padding, less pooling or downsample=1"
                )
        features = width * math.prod(extent)
        self.layers = nn.Sequential(*layers, nn.Flatten(), *dense(features, hidden))
        self.in_shape, self.out_features = (in_channels, *in_size), hidden[-1]

    def forward(self, image: Tensor) -> Tensor:
        check_image(image, self.in_shape)
        features: Tensor = self.layers(image)
        return features


def check_whole(name: str, number: object, *, least: int = 1) -> None:
    if isinstance(number, bool) or not isinstance(number, numbers.Integral) or number < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {number!r}")


def check_layers(name: str, each: object) -> None:
    if isinstance(each, str) or not isinstance(each, Sequence) or not each:
        raise ValueError(f"{name} must name at least one layer, such as (20,), got {each!r}")
    for number in each:
        check_whole(f"each of {name}", number)


def check_in_size(in_size: object) -> int:
    """How many dimensions it has."""
    if isinstance(in_size, str) or not isinstance(in_size, Sequence) or len(in_size) not in CONVOLUTIONS:
        raise ValueError(f"in_size must be (H, W) or (D, H, W), got {in_size!r}")
    for length in in_size:
        check_whole("each of in_size", length)
    return len(in_size)


def check_image(image: Tensor, in_shape: tuple[int, ...]) -> None:
    if tuple(image.shape[1:]) != in_shape:
        wanted = ", ".join(map(str, in_shape))
        raise ValueError(f"this localiser takes images of [N, {wanted}], got {list(image.shape)}")
    if not image.is_floating_point():
        raise TypeError(f"a localiser takes floating-point images, got {image.dtype}")


def dense(in_features: int, hidden: Sequence[int]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for units in hidden:
        layers += [nn.Linear(in_features, units), nn.ReLU()]
        in_features = units
    return layers


def tiles(count: int, dims: int) -> list[tuple[list[float], list[float]]]:
    """(centre, scale) of ``count`` boxes that tile [-1, 1]^dims, as nearly cubes as may be."""
    along = [1] * dims  # x, y (, z)
    for factor in reversed(prime_factors(count)):
        along[along.index(min(along))] *= factor  # x first: two crops stand side by side
    found = []
    for number in range(count):
        centre = []
        for parts in along:
            number, place = divmod(number, parts)
            centre.append((2 * place + 1) / parts - 1)
        found.append((centre, [1 / parts for parts in along]))
    return found


def prime_factors(number: int) -> list[int]:
    """In rising order."""
    found, factor = [], 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found
