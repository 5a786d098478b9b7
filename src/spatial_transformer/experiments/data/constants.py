"""Tensors that are always the same: made once for their arguments and kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor

from ... import modes

Make = TypeVar("Make", bound=Callable[..., Tensor])


def kept(make: Make) -> Make:
    """A function that makes a tensor, called once for the same positional arguments.

    What is kept is an ordinary tensor, whatever the mode it is first asked for in: one made in
    ``torch.inference_mode`` could not be trained through after it. What is made while a graph is traced or
    captured stands for contents that come later, and is not kept.
    """
    held: dict[tuple[Hashable, ...], Tensor] = {}

    @functools.wraps(make)
    def once(*arguments: Hashable) -> Tensor:
        if modes.tracing():
            return make(*arguments)
        found = held.get(arguments)
        if found is None:
            with torch.inference_mode(False), torch.no_grad():
                found = make(*arguments)
            if not modes.capturing():
                held[arguments] = found
        return found

    once.held = held  # type: ignore[attr-defined]  # for tests
    return once  # type: ignore[return-value]
