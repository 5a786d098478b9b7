"""The networks of sections A.1, A.3 and A.4, as wide as a number of parameters allows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..control_points import ThinPlateSpline
from ..families import Affine, Attention, Projective
from ..family import Family
from ..localisers import ConvLocaliser, DenseLocaliser
from ..module import SpatialTransformer
from .arguments import UsageError
from .data.random_numbers import BITS, RandomNumbers
from .extra import with_triton
from .spec import CLASSES, Cell, Data, DigitSettings, Model

COARSE = 8  # bits that tell whether something is dropped, where the share is on the device

MEAN, DEVIATION = 0.1307, 0.3081  # of the pixels of MNIST's training digits
PROJECTED_MEAN, PROJECTED_DEVIATION = 0.455, 1.89  # of their volumes, summed along z

FAMILIES: dict[str, Callable[[], Family]] = {
    "affine": Affine,
    "projective": Projective,
    "spline": lambda: ThinPlateSpline((4, 4)),
    "attention": Attention,
    "window": lambda: Attention(scale=0.5),  # "the scale is fixed to 50% of the image size" (A.6)
}


class Network(nn.Module):
    """A classification network behind optional spatial transformers: [N, C, size, size] -> [N, classes]"""

    mean, deviation = MEAN, DEVIATION  # taken out of what the classification network sees

    def __init__(
        self, transformer: SpatialTransformer | SideBySide | None, classifier: nn.Module, pooling: int = 1
    ) -> None:
        super().__init__()
        self.transformer = transformer
        self.pool = AveragePool(pooling) if transformer is not None and pooling > 1 else nn.Identity()
        self.classifier = classifier

    def forward(self, image: Tensor) -> Tensor:
        return self.scores(self.seen(image))

    def scores_and_theta(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Both by one pass of the localisers: [N, classes], and theta as ``theta`` gives it."""
        if self.transformer is None:
            return self.scores(self.seen(image)), self.theta(image)
        warped, theta = self.transformer(image, return_theta=True)
        return self.scores(self.reduced(warped)), theta

    def seen(self, image: Tensor) -> Tensor:
        """What the classification network gets to see, but for its scale."""
        return self.reduced(image if self.transformer is None else self.transformer(image))

    def reduced(self, warped: Tensor) -> Tensor:
        """What is seen of what the transformers give."""
        pooled: Tensor = self.pool(warped)
        return pooled

    def scores(self, seen: Tensor) -> Tensor:
        scores: Tensor = self.classifier((seen - self.mean) / self.deviation)
        return scores

    def theta(self, image: Tensor) -> Tensor:
        """The parameters of the transformers, one after another: [N, transformers * family.num_params];
        [N, 0] where there are none."""
        if self.transformer is None:
            return image.new_zeros(len(image), 0)
        return self.transformer.theta(image)


class AveragePool(nn.Module):
    """The means of squares side by side: ``nn.AvgPool2d`` of images that they fill.

    Its gradient is spread out here, and not looked for by each pixel, which takes a GPU several times as long
    as the bytes it moves.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, image: Tensor) -> Tensor:
        pooled: Tensor = _AveragePool.apply(image, self.side)
        return pooled

    def extra_repr(self) -> str:
        return str(self.side)


class _AveragePool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, side: int) -> Tensor:
        if image.shape[-2] % side or image.shape[-1] % side:
            raise ValueError(f"images of {list(image.shape[-2:])} px cannot be cut into squares of {side} px")
        ctx.side = side
        return F.avg_pool2d(image, side)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        each = (gradient / ctx.side**2)[..., :, None, :, None]
        spread = each.expand(*each.shape[:-3], ctx.side, *each.shape[-2:-1], ctx.side)
        return spread.flatten(-2).flatten(-3, -2), None


class ProjectingNetwork(Network):
    """Of volumes: it classifies their projections, "W_nm = sum_l V_nml" (A.3). [N, 1, size, size, size]"""

    mean, deviation = PROJECTED_MEAN, PROJECTED_DEVIATION

    def reduced(self, warped: Tensor) -> Tensor:
        return super().reduced(warped).sum(2)


class SideBySide(nn.Module):
    """Spatial transformers that each take and warp the whole image: what they give is joined, channel after
    channel. [N, C, *in] -> [N, transformers * C, *size]"""

    def __init__(self, transformers: Sequence[SpatialTransformer]) -> None:
        super().__init__()
        self.each = nn.ModuleList(transformers)

    def forward(self, image: Tensor, *, return_theta: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """What is warped, and theta where it is asked for, as of ``SpatialTransformer``."""
        if not return_theta:
            return torch.cat([each(image) for each in self.each], dim=1)
        warped, thetas = zip(*(each(image, return_theta=True) for each in self.each), strict=True)
        return torch.cat(warped, dim=1), torch.cat(thetas, dim=1)

    def theta(self, image: Tensor) -> Tensor:
        """[N, transformers * family.num_params]"""
        return torch.cat([each.theta(image) for each in self.each], dim=1)  # type: ignore[operator]


def build(cell: Cell) -> Network:
    """The cell's network, freshly initialised."""
    model, data = cell.model, cell.data
    size = data.size if model.transformer is None else data.shown // data.pooling
    before = transformers(model, data)
    spent = parameters(before) if before is not None else 0
    classifier = functools.partial(
        CLASSIFIERS[model.classifier],
        size,
        channels=data.channels * model.transformers,
        classes=data.classes,
        **({} if model.second is None else {"second": model.second}),
    )

    def count(units: int) -> int:
        with torch.device("meta"):  # shapes alone
            return parameters(classifier(units))

    made = ProjectingNetwork if data.dims == 3 else Network
    return made(before, classifier(widest(count, cell, spent)), data.pooling)


def fully_connected(
    size: int, units: int, *, channels: int = 1, classes: int = CLASSES, second: int | None = None
) -> nn.Sequential:
    """FCN: "two hidden fully connected layers followed by a classification layer". The second is as wide as
    the first, if nothing else is given."""
    second = second or units
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * size * size, units), nn.ReLU(),
        nn.Linear(units, second), nn.ReLU(),
        nn.Linear(second, classes),
    )  # fmt: skip


def convolutional(size: int, filters: int, *, channels: int = 1, classes: int = CLASSES) -> nn.Sequential:
    """CNN: 9 x 9 and 7 x 7 convolutions without padding, each followed by 2 x 2 max-pooling."""
    left = ((size - 8) // 2 - 6) // 2
    if left < 1:
        raise ValueError(f"images of {size} px are too small for the CNN: 24 px are the least")
    return nn.Sequential(
        nn.Conv2d(channels, filters, 9), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(filters, filters, 7), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(filters * left * left, classes),
    )  # fmt: skip


CLASSIFIERS: dict[str, Callable[..., nn.Sequential]] = {"FCN": fully_connected, "CNN": convolutional}


def transformers(model: Model, data: Data) -> SpatialTransformer | SideBySide | None:
    """What stands before a classification network. Several begin alike, at the identity, but for the random
    weights of their localisers: that is what they part by."""
    if model.transformer is None:
        return None
    if model.transformers == 1:
        return transformer(model, data)
    return SideBySide([transformer(model, data) for _ in range(model.transformers)])


def transformer(model: Model, data: Data) -> SpatialTransformer:
    localiser = localiser_of(model, data)
    orthogonal(localiser)
    return SpatialTransformer(localiser, family_of(model, data), size=(data.shown,) * data.dims)


def localiser_of(model: Model, data: Data) -> nn.Module:
    """Three hidden layers of 32 units under an FCN; under a CNN the default of ``ConvLocaliser``; for
    volumes, of which the text says nothing, three convolutions that halve them and 32 units."""
    size = (data.size,) * data.dims
    if data.dims == 3:
        return ConvLocaliser(
            data.channels, size, channels=(8, 16, 16), stride=2, pool=1, hidden=(32,), downsample=1
        )
    return {"FCN": DenseLocaliser, "CNN": ConvLocaliser}[model.classifier](data.channels, size)


def family_of(model: Model, data: Data) -> Family:
    """The family of a model's transformers."""
    assert model.transformer is not None
    return Affine(3) if data.dims == 3 else FAMILIES[model.transformer]()


def orthogonal(module: nn.Module) -> None:
    """Starts layers so that rectifiers pass on as much as they get. PyTorch's own start shrinks it from layer
    to layer, and theta hardly depends on the image for the first thousands of steps."""
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d, nn.Conv3d)):
            nn.init.orthogonal_(layer.weight, gain=nn.init.calculate_gain("relu"))
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)


def dropped(signal: Tensor, share: float | Tensor, random: RandomNumbers | None) -> Tensor:
    """Dropout out of a run's own random numbers; without them the signal as it is. torch's own takes numbers
    that no checkpoint has, and that differ between devices. [N, C, ...]

    A random number has 24 bits, each as good as any. A half is a matter of one: a number serves 24 places. A
    share on the device, which may change between the steps of a captured graph, is counted in 256ths: three.
    Places are gone through channels last, as maps lie in memory on a GPU.
    """
    if random is None:
        return signal
    count = signal.numel()
    bits = COARSE if isinstance(share, Tensor) else 1 if share == 0.5 else BITS
    numbers = random.uniform(-(-count // (BITS // bits)))
    kernels = with_triton("dropout_triton", __package__) if signal.is_cuda else None
    if kernels is not None:
        found: Tensor = kernels.dropped(signal, numbers, bits, share)
        return found
    words = (numbers * 2**BITS).to(torch.int32)
    shifts = torch.arange(0, BITS, bits, dtype=torch.int32, device=words.device)
    kept = (words[:, None] >> shifts & (2**bits - 1)) >= share * 2**bits
    rows = signal.movedim(1, -1)
    return (rows * kept.flatten()[:count].reshape(rows.shape) / (1 - share)).movedim(-1, 1)


def parameters(module: nn.Module) -> int:
    """How many learnable numbers a module has."""
    return sum(parameter.numel() for parameter in module.parameters())


def widest(count: Callable[[int], int], cell: Cell, spent: int) -> int:
    """The width with which a network has as nearly as can be the parameters that the settings ask for."""
    assert isinstance(cell.settings, DigitSettings)
    wanted = cell.settings.parameters - spent
    if count(1) > wanted:
        raise UsageError(
            f"{cell.name}: parameters must be at least {spent + count(1):,}, got {cell.settings.parameters:,}"
        )
    width = 1
    while count(width + 1) <= wanted:
        width += 1
    return min((width, width + 1), key=lambda units: abs(count(units) - wanted))
