"""Random numbers that are the same on every device, and new at every replay of a CUDA graph.

torch's own generators give other numbers on a GPU than on the CPU. Here the i-th number of a seed is
SplitMix64's (Steele, Lea, Flood 2014): a 64-bit counter, ``key + i * GOLDEN``, mixed by two multiplications.
That is a dozen operations on int64 tensors, which wrap alike everywhere. The counter is itself a tensor that
every draw moves on in place, so a captured graph draws on where its last replay ended.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..extra import with_triton

GOLDEN = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # shift, factor
BITS = 24  # that a float32 in [0, 1) holds
WORD = 1 << 64


class RandomNumbers:
    """A stream of random numbers: the same seed gives the same stream on every device.

    >>> RandomNumbers(seed=0).uniform(3)
    tensor([0.6679, 0.6808, 0.0609])

    Parameters
    ----------
    seed: any whole number; streams of different seeds have nothing to do with one another.
    device: where the numbers are wanted.
    """

    def __init__(self, seed: int, *, device: torch.device | str = "cpu") -> None:
        self.seed = seed
        self.device = torch.device(device)
        self._key = mixed(mixed(seed + GOLDEN) + 0x5354)  # neighbouring seeds would give one stream, shifted
        with torch.inference_mode(False):  # a stream begun in that mode goes on outside of it
            self._counter = torch.tensor(signed(self._key), device=self.device)
        self._steps: dict[int, Tensor] = {}
        on_gpu = self.device.type == "cuda"
        self._kernels = with_triton("random_numbers_triton", __package__) if on_gpu else None

    def uniform(self, *shape: int) -> Tensor:
        """Uniform on [0, 1), in steps of 2^-24. float32 [*shape]"""
        count = math.prod(shape)
        if self._kernels is not None:
            found: Tensor = self._kernels.uniform(self._counter, shape)
            self._counter += signed(count * GOLDEN)
            return found
        word = self._counter + self._steps_of(count)
        self._counter += signed(count * GOLDEN)
        for shift, factor in MIX:
            # >> drags the sign along, which the mask takes off
            word = (word ^ ((word >> shift) & ((1 << (64 - shift)) - 1))) * signed(factor)
        # SplitMix64's last step leaves the highest bits as they are: they are all that is used.
        whole = (word >> (64 - BITS)).to(torch.float32)  # from -2^23 to 2^23 - 1
        return torch.add(0.5, whole, alpha=2.0**-BITS).reshape(shape)

    def normal(self, *shape: int) -> Tensor:
        """Normal, of mean 0 and deviation 1; no further out than 5.4. float32 [*shape]"""
        return to_normal(self.uniform(*shape))

    def state(self) -> int:
        """How many numbers have been drawn, for a checkpoint. Waits for the device."""
        away = (int(self._counter) - self._key) % WORD
        return away * pow(GOLDEN, -1, WORD) % WORD

    def set_state(self, drawn: int) -> None:
        """Goes on after so many numbers; in place, so that a captured graph does too."""
        self._counter.fill_(signed(self._key + drawn * GOLDEN))

    def follow(self, other: RandomNumbers) -> None:
        """Goes on where another stream of the same seed and device stands; in place, without waiting."""
        self._counter.copy_(other._counter)

    def _steps_of(self, count: int) -> Tensor:
        """How far the counter is from each number of a draw. int64 [count], kept: draws repeat."""
        if count not in self._steps:
            with torch.inference_mode(False):
                steps = torch.arange(count, device=self.device) * signed(GOLDEN)
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return steps  # it will hold something when the graph is replayed, not before
            self._steps[count] = steps
        return self._steps[count]


def to_normal(uniform: Tensor, deviation: float = 1.0) -> Tensor:
    """Numbers uniform on [0, 1) in steps of 2^-24, as normal ones: by the inverse of the distribution."""
    middle = torch.add(2.0**-BITS - 1, uniform, alpha=2)  # of each step, on (-1, 1)
    return torch.erfinv(middle) * (math.sqrt(2) * deviation)


def either_way(random: RandomNumbers, *shape: int) -> Tensor:
    """Uniform from -1 to 1."""
    return 2 * random.uniform(*shape) - 1


def mixed(word: int) -> int:
    """SplitMix64's mixing of one word, for seeds."""
    word %= WORD
    for shift, factor in MIX:
        word = (word ^ (word >> shift)) * factor % WORD
    return word ^ (word >> 31)


def signed(word: int) -> int:
    """The int64 of the same bits."""
    return (word + WORD // 2) % WORD - WORD // 2
