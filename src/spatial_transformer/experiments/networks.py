"""The networks of section A.4, as wide as a number of parameters allows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..control_points import ThinPlateSpline
from ..families import Affine, Attention, Family, Projective
from ..localisers import ConvLocaliser, DenseLocaliser
from ..module import SpatialTransformer
from .spec import Cell, Data, Model

CLASSES = 10
MEAN, DEVIATION = 0.1307, 0.3081  # of the pixels of MNIST's training digits

FAMILIES: dict[str, Callable[[], Family]] = {
    "affine": Affine,
    "projective": Projective,
    "spline": lambda: ThinPlateSpline((4, 4)),
    "attention": Attention,
}


class Network(nn.Module):
    """A classification network behind an optional spatial transformer: [N, 1, size, size] -> [N, 10]"""

    def __init__(
        self, transformer: SpatialTransformer | None, classifier: nn.Module, pooling: int = 1
    ) -> None:
        super().__init__()
        self.transformer = transformer
        self.pool = nn.AvgPool2d(pooling) if transformer is not None and pooling > 1 else nn.Identity()
        self.classifier = classifier

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.classifier((self.seen(image) - MEAN) / DEVIATION)
        return scores

    def seen(self, image: Tensor) -> Tensor:
        """What the classification network gets to see, but for its scale."""
        if self.transformer is None:
            return image
        pooled: Tensor = self.pool(self.transformer(image))
        return pooled

    def theta(self, image: Tensor) -> Tensor:
        """The transformer's parameters: [N, family.num_params], [N, 0] where there is none."""
        if self.transformer is None:
            return image.new_zeros(len(image), 0)
        return self.transformer.theta(image)


def build(cell: Cell) -> Network:
    """The cell's network, freshly initialised."""
    model, data = cell.model, cell.data
    size = data.size if model.transformer is None else data.shown // data.pooling
    before = transformer(model, data)
    spent = parameters(before) if before is not None else 0
    classifier = CLASSIFIERS[model.classifier]

    def count(units: int) -> int:
        with torch.device("meta"):  # shapes alone
            return parameters(classifier(size, units))

    return Network(before, classifier(size, widest(count, cell, spent)), data.pooling)


def fully_connected(size: int, units: int) -> nn.Sequential:
    """FCN: "two hidden fully connected layers followed by a classification layer"."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(size * size, units), nn.ReLU(),
        nn.Linear(units, units), nn.ReLU(),
        nn.Linear(units, CLASSES),
    )  # fmt: skip


def convolutional(size: int, filters: int) -> nn.Sequential:
    """CNN: 9 x 9 and 7 x 7 convolutions without padding, each followed by 2 x 2 max-pooling."""
    left = ((size - 8) // 2 - 6) // 2
    if left < 1:
        raise ValueError(f"images of {size} px are too small for the CNN: 24 px are the least")
    return nn.Sequential(
        nn.Conv2d(1, filters, 9), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(filters, filters, 7), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(filters * left * left, CLASSES),
    )  # fmt: skip


CLASSIFIERS: dict[str, Callable[[int, int], nn.Sequential]] = {"FCN": fully_connected, "CNN": convolutional}


def transformer(model: Model, data: Data) -> SpatialTransformer | None:
    """Three hidden layers of 32 units under an FCN; under a CNN the default of ``ConvLocaliser``."""
    if model.transformer is None:
        return None
    localiser = {"FCN": DenseLocaliser, "CNN": ConvLocaliser}[model.classifier](1, (data.size, data.size))
    orthogonal(localiser)
    return SpatialTransformer(localiser, FAMILIES[model.transformer](), size=(data.shown, data.shown))


def orthogonal(module: nn.Module) -> None:
    """Starts layers so that rectifiers pass on as much as they get. PyTorch's own start shrinks it from layer
    to layer, and theta hardly depends on the image for the first thousands of steps."""
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(layer.weight, gain=nn.init.calculate_gain("relu"))
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)


def parameters(module: nn.Module) -> int:
    """How many learnable numbers a module has."""
    return sum(parameter.numel() for parameter in module.parameters())


def widest(count: Callable[[int], int], cell: Cell, spent: int) -> int:
    """The width with which a network has as nearly as can be the parameters that the settings ask for."""
    wanted = cell.settings.parameters - spent
    if count(1) > wanted:
        raise ValueError(
            f"{cell.name}: parameters must be at least {spent + count(1):,}, got {cell.settings.parameters:,}"
        )
    width = 1
    while count(width + 1) <= wanted:
        width += 1
    return min((width, width + 1), key=lambda units: abs(count(units) - wanted))
