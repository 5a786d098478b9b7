"""Networks whose convolutions are computed fast: ``fast`` makes them of those of ``networks`` and of
``house_numbers``, the same function of the same parameters, in products of bfloat16 that are summed in
float32.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .fast_convolutions import LARGEST_KERNEL, MULTIPLE, few_channels, many_channels, one_channel
from .padding_convolutions import flattened, surrounded


def fast(module: nn.Module) -> nn.Module:
    """The same module on the same parameters, its convolutions computed fast where this file knows how to.

    That is, where an ``nn.Sequential`` anywhere in it has a convolution of up to 8 channels, a rectifier and
    2 x 2 max-pooling, and then any more convolutions with rectifiers, with such pooling or without; wherever
    a convolution that pads is followed by a rectifier; and wherever a linear layer takes what is flattened.
    Everything else is as it was. Names, parameters and buffers are the given module's own, so its checkpoints
    and its optimiser are too.

    >>> network = networks.convolutional(28, 88).cuda()                                # doctest: +SKIP
    >>> scores = fast(network)(image)                                                  # doctest: +SKIP
    """
    if isinstance(module, nn.Sequential) and any(isinstance(stage, Stage | Flat) for stage in stages(module)):
        made: nn.Module = FastSequential(module)
    else:
        made = copy.copy(module)
    made._modules = {name: None if child is None else fast(child) for name, child in module._modules.items()}
    return made


class FastSequential(nn.Sequential):
    """An ``nn.Sequential`` that goes through several layers at a time where it can."""

    def __init__(self, module: nn.Sequential) -> None:
        super().__init__()
        self.training = module.training

    def forward(self, input: Tensor) -> Tensor:
        found = list(stages(self))
        for number, stage in enumerate(found):
            if isinstance(stage, Stage):
                after = found[number + 1] if number + 1 < len(found) else None
                input = stage(input, isinstance(after, Stage) and not after.pads)
            else:
                input = stage(input)
        return input


class Stage(NamedTuple):
    """A convolution, its rectifier, and the pooling behind it, if any."""

    convolution: nn.Conv2d
    pool: int
    of_maps: bool  # which a stage before gives, as ``many_channels`` takes them

    @property
    def pads(self) -> bool:
        return self.convolution.padding != (0, 0)

    def __call__(self, input: Tensor, further: bool) -> Tensor:
        weight, bias = self.convolution.weight, self.convolution.bias
        assert bias is not None
        if self.pads:
            found = surrounded(input, weight, bias, padding=int(self.convolution.padding[0]), pool=self.pool)
            return found if torch.is_autocast_enabled(input.device.type) else found.float()
        if self.of_maps:
            return many_channels(input, weight, bias, pool=self.pool, further=further)
        if self.convolution.in_channels == 1:
            output = one_channel(input.float(), weight, bias)
            return output if further else output[:, : weight.shape[0]].float()
        return few_channels(input.float(), weight, bias, pool=self.pool, further=further)


class Flat(NamedTuple):
    """A linear layer of what is flattened."""

    linear: nn.Linear

    def __call__(self, input: Tensor) -> Tensor:
        return flattened(input, self.linear.weight, self.linear.bias)


def stages(layers: nn.Sequential) -> Iterator[Stage | Flat | nn.Module]:
    """What a sequence of layers is gone through in."""
    rest: Sequence[nn.Module] = list(layers)
    before = False  # whether a stage came right before that gives what ``many_channels`` takes
    while rest:
        stage = stage_of(rest, before)
        before = stage is not None and not stage.pads
        if stage is not None:
            yield stage
            rest = rest[2 if stage.pool == 1 else 3 :]
        elif (flat := flat_of(rest)) is not None:
            yield flat
            rest = rest[2:]
        else:
            yield rest[0]
            rest = rest[1:]


def flat_of(layers: Sequence[nn.Module]) -> Flat | None:
    """The linear layer of what is flattened that a sequence of layers begins with, if it does."""
    if len(layers) < 2 or not isinstance(layers[0], nn.Flatten) or not isinstance(layers[1], nn.Linear):
        return None
    whole = (layers[0].start_dim, layers[0].end_dim) == (1, -1)
    return Flat(layers[1]) if whole else None


def stage_of(layers: Sequence[nn.Module], before: bool) -> Stage | None:
    """The stage that a sequence of layers begins with, if it does."""
    convolution = layers[0]
    if not isinstance(convolution, nn.Conv2d) or len(layers) < 2 or not isinstance(layers[1], nn.ReLU):
        return None
    pool = 2 if len(layers) > 2 and pools_by_2(layers[2]) else 1
    one = convolution.in_channels == 1
    plain = (
        convolution.kernel_size[0] == convolution.kernel_size[1]
        and convolution.stride == convolution.dilation == (1, 1)
        and convolution.padding in ((0, 0), (convolution.padding[0],) * 2)
        and convolution.padding_mode == "zeros"
        and convolution.groups == 1
        and convolution.bias is not None
    )
    fits = convolution.kernel_size[0] <= LARGEST_KERNEL if one else convolution.in_channels <= MULTIPLE
    known = not one if before else pool == 2 and fits
    stage = Stage(convolution, pool, before)
    return stage if plain and (stage.pads or known) else None


def pools_by_2(layer: nn.Module) -> bool:
    return isinstance(layer, nn.MaxPool2d) and (
        layer.kernel_size in (2, (2, 2))
        and layer.stride in (2, (2, 2))
        and layer.padding in (0, (0, 0))
        and layer.dilation in (1, (1, 1))
        and not layer.ceil_mode
        and not layer.return_indices
    )
