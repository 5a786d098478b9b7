"""The experiments by name, and the cells that someone asks for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from .arguments import UsageError
from .paper import addition, birds, cluttered_mnist, colocalisation, distorted_mnist, svhn, volumes
from .spec import Cell, Experiment

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        distorted_mnist.EXPERIMENT,
        cluttered_mnist.EXPERIMENT,
        addition.EXPERIMENT,
        colocalisation.EXPERIMENT,
        volumes.EXPERIMENT,
        svhn.EXPERIMENT,
        svhn.AUGMENTED,
        birds.EXPERIMENT,
    )
}


def chosen(experiment: Experiment, models: Sequence[str] = (), data: Sequence[str] = ()) -> list[Cell]:
    """The cells of some rows and columns; of all where none are named.

    >>> [cell.name for cell in chosen(EXPERIMENTS["distorted-mnist"], ["ST-FCN affine"], ["R", "E"])]
    ['R/ST-FCN affine', 'E/ST-FCN affine']
    """
    rows = {known("model", name, [model.name for model in experiment.models]) for name in models}
    columns = {known("data", name, [one.kind for one in experiment.data]) for name in data}
    found = [
        cell
        for cell in experiment.cells
        if (not rows or cell.model.name in rows) and (not columns or cell.data.kind in columns)
    ]
    if not found:
        raise UsageError(
            f"{experiment.name} has no {', '.join(sorted(rows))} of {', '.join(sorted(columns))}"
        )
    return found


def known(what: str, name: str, names: Iterable[str]) -> str:
    """The one of the names that is meant, whatever its case; an error with the nearest where none is."""
    by_case = {each.lower(): each for each in names}
    if name.lower() not in by_case:
        near = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=0.4)
        meant = f"; did you mean {by_case[near[0]]}?" if near else ""
        raise UsageError(f"{what} must be one of {', '.join(by_case.values())}, got {name!r}{meant}")
    return by_case[name.lower()]


def assignments(given: Sequence[str]) -> dict[str, str]:
    """Settings as the command line has them, each as ``KEY=VALUE``."""
    found = dict[str, str]()
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"a setting must be given as KEY=VALUE, got {text!r}")
        name = key.strip().replace("-", "_")
        if name in found:
            raise UsageError(
                f"{name} is given twice; several values are {name}={found[name]},{value.strip()}"
            )
        found[name] = value.strip()
    return found
