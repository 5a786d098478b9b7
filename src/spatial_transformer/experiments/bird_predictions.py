"""Species told apart on one's own pictures by a trained network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from . import pictures_of_birds
from .checkpoints import Weights
from .data.bird_views import Photographs
from .efficientnet_lite import SCALES, Features
from .figures import DRAWN, INK, shortened
from .fine_grained_runs import build, judged, settings_of, views_of
from .networks import family_of
from .pictures_of_birds import SEEN, Shown, as_shown, corners, species
from .spec import Cell

SAID = 3  # species that are named of a picture
LETTERS = 32  # of a name below a picture


def predict(cell: Cell, weights: Weights, pictures: Iterable[tuple[str, Tensor]]) -> tuple[list[str], Any]:
    """The likeliest species on each picture, a name and uint8 [3, H, W], with their probabilities, and a
    figure of where the transformers look on the first of them; None without any."""
    settings, known = settings_of(cell), [species(name) for name in weights.names]
    network = build(cell, Features(SCALES[settings.backbone]), len(known)).eval()
    network.load_state_dict(weights.tensors)
    answers, captions = list[str](), list[tuple[str, str]]()
    thetas, shown = list[Tensor](), list[Tensor]()
    for name, image in pictures:  # one by one: each is of its own size, and may be large
        given, chosen = photograph(image), torch.zeros(1, dtype=torch.int64)
        with torch.no_grad():
            chances, theta = judged(network, settings, cell.data.size, given, chosen)
        most = chances[0].topk(min(SAID, len(known)))
        said = [
            (known[at], chance)
            for at, chance in zip(most.indices.tolist(), most.values.tolist(), strict=True)
        ]
        answers.append(", ".join(f"{bird} ({100 * chance:.0f} %)" for bird, chance in said))
        captions.append((f"{shortened(name, LETTERS)}\n{said[0][0]}", INK))
        if len(shown) < DRAWN:
            thetas.append(theta)
            shown.append(as_shown(views_of(settings, SEEN), given, chosen))
    if cell.model.transformer is None:
        return answers, None
    looks = corners(family_of(cell.model, cell.data), torch.cat(thetas))
    found = Shown(torch.cat(shown), looks, None, captions)
    return answers, pictures_of_birds.windows(found, cell.model.name, cell.data.kind)


def photograph(image: Tensor) -> Photographs:
    """One picture uint8 [3, H, W], of a bird that is nowhere named or marked."""
    height, width = image.shape[1:]
    nothing = torch.zeros(1, dtype=torch.int64)
    return Photographs(
        image.permute(1, 2, 0).reshape(-1, 3),
        nothing,
        torch.tensor([[height, width]]),
        nothing,
        torch.zeros(1, 4),
        (height, width),
    )
