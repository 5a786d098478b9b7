"""``stn data``: what is here, and what is missing; fetching, checking, and looking at it."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..arguments import count, folder, picture_to_write
from .catalogue import ALIASES, CATALOGUE, Item
from .contact_sheets import SHEETS, Asked, show
from .places import VARIABLE, places


def add(commands: Any) -> None:
    """Adds ``data`` to the commands of ``stn``."""
    parser = commands.add_parser("data", help="the experiments' data: list, fetch, verify, show")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listed = actions.add_parser("list", help="what is here, what is missing, where it was looked for")
    fetched = actions.add_parser("fetch", help="fetch a set, if it is not here already")
    fetched.add_argument("name", type=one_of(CATALOGUE), metavar="NAME", help=", ".join(CATALOGUE))
    verified = actions.add_parser(
        "verify", help="read all that is here again, and check digests, counts and caches"
    )
    verified.add_argument(
        "names",
        nargs="*",
        type=one_of(CATALOGUE),
        metavar="NAME",
        help=f"only these of {', '.join(CATALOGUE)}",
    )
    shown = actions.add_parser("show", help="a contact sheet, as a picture")
    shown.add_argument("name", type=one_of(SHEETS), metavar="SET", help=", ".join(SHEETS))
    shown.add_argument("--kind", help="distorted-mnist: R, RTS, P or E; colocalisation: T or TC")
    shown.add_argument("--size", type=int, help="svhn: 64 or 128; birds: 224 or 448")
    shown.add_argument(
        "--split", default="test", help="mnist, uci-digits, birds: train or test; svhn: or extra"
    )
    shown.add_argument(
        "--columns", type=count, default=16, help="16 if nothing is said; fewer of large images"
    )
    shown.add_argument("--rows", type=count, default=4, help="4 if nothing is said")
    shown.add_argument("--out", type=picture_to_write, help="the file to write; SET.png if it is not given")
    for action in (listed, fetched, verified, shown):
        action.add_argument(
            "--data-dir", type=folder, help=f"look here first, before ${VARIABLE} and the cache"
        )


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """What makes one of these names of what was typed, and suggests one where it is none of them."""
    known = list(names)

    def named(text: str) -> str:
        name = ALIASES.get(text.lower(), text.lower())
        if name in known:
            return name
        near = difflib.get_close_matches(name, [*known, *ALIASES], n=1)
        hint = f"; did you mean {ALIASES.get(near[0], near[0])}?" if near else ""
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(known)}, got {text!r}{hint}")

    return named


def run(given: argparse.Namespace) -> int:
    """Runs one action and gives its exit status."""
    actions = {"list": list_all, "fetch": fetch_one, "verify": verify_some, "show": show_one}
    return actions[given.action](given)


def list_all(given: argparse.Namespace) -> int:
    for name, item in CATALOGUE.items():
        print(f"{name:<20} {item.what} ({item.terms})")
        print(f"{'':<20} {standing(name, item, given.data_dir)}")
    print("looked in: " + ", ".join(map(str, places(given.data_dir))))
    return 0


def standing(name: str, item: Item, data_dir: Path | None) -> str:
    """Whether a set is here, and what is to be done where it is not."""
    how = f"`stn data fetch {name}`" if item.fetch is not None else f"get it from {item.origin}"
    try:
        found = item.find(data_dir)
    except FileNotFoundError as error:
        return f"missing: {error}: {how}"
    except (OSError, ValueError) as error:
        return f"BROKEN: {error}: {how}"
    return f"here: {found}" if found else f"missing: {how}"


def fetch_one(given: argparse.Namespace) -> int:
    item = CATALOGUE[given.name]
    if item.fetch is None:
        print(f"{given.name} is not fetched ({item.terms}): get it from {item.origin}")
        print(f"and put it into {places(given.data_dir)[0]}")
        return 0 if item.find(given.data_dir) else 1
    item.fetch(given.data_dir)
    print(f"{given.name} is here: {item.find(given.data_dir)}")
    return 0


def verify_some(given: argparse.Namespace) -> int:
    """0 where all that is here is whole; what is missing counts only if it was asked for by name."""
    failed = 0
    for name in given.names or CATALOGUE:
        item = CATALOGUE[name]
        try:
            print(f"{name:<20} {item.verify(given.data_dir)}")
        except FileNotFoundError as error:
            print(f"{name:<20} missing: {error}")
            failed += name in given.names
        except ValueError as error:
            print(f"{name:<20} BROKEN: {error}")
            failed += 1
        except OSError as error:  # a full disk, a folder that cannot be read
            print(f"{name:<20} could not be checked: {error}")
            failed += 1
    return 1 if failed else 0


def show_one(given: argparse.Namespace) -> int:
    asked = Asked(given.kind, given.size, given.split, given.columns, given.rows, given.data_dir)
    out = given.out or Path(f"{given.name}{'-' + given.kind if given.kind else ''}.png")
    print(f"{out}: {show(given.name, asked, out)}")
    return 0
