"""The table of a result, as Markdown: ``python -m benchmarks.table benchmarks/results/cpu.json``."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .measure import BUSY, PASSES
from .suites import PEER


def cells(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table's header and rows: one row for each case and pass."""
    names = list(result["contenders"])
    others = [name for name in names if name != PEER]
    header = ["N x C x size", "pass"]
    header += [f"{name}, ms" for name in names]
    header += [f"speed of {name}" for name in others]
    header += [f"{name}, MB beyond" for name in names]
    rows = []
    for case in result["cases"]:
        for kind in PASSES:
            found = {name: case["contenders"][name] for name in names}
            row = [" x ".join(map(str, case["image"])), kind]
            row += [time_cell(found[name], kind) for name in names]
            row += [speed_cell(found[name], kind) for name in others]
            row += [memory_cell(found[name], kind) for name in names]
            rows.append(row)
    return header, rows


def time_cell(found: Mapping[str, Any], kind: str) -> str:
    if found["wrong"]:
        return "wrong"
    got = found[kind]
    low, high = got["quartiles"]
    disturbed = got["others"] is not None and got["others"] > BUSY
    spread = f"({milliseconds(low)} to {milliseconds(high)})"
    return f"{milliseconds(got['median'])} {spread}{'*' if disturbed else ''}"


def speed_cell(found: Mapping[str, Any], kind: str) -> str:
    if found["wrong"] or found[kind]["speed"] is None:
        return "-"
    low, high = found[kind]["interval"]
    return f"{found[kind]['speed']:.2f} ({low:.2f} to {high:.2f})"


def memory_cell(found: Mapping[str, Any], kind: str) -> str:
    return "-" if found["wrong"] else f"{found[kind]['memory'] / 1e6:.2f}"


def milliseconds(seconds: float) -> str:
    """Three significant digits."""
    value = seconds * 1e3
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def notes(result: Mapping[str, Any]) -> list[str]:
    """What the numbers are, on what, and what is wrong with them."""
    device, versions = result["device"], result["versions"]
    found = [
        f"{device['name']}, {device['threads']} threads, torch {versions['torch']}, "
        f"spatial_transformer {versions['spatial_transformer']}, {result['date'][:10]}. "
        f"Median of rounds (quartiles); speed is {PEER}'s median over the other's (95 % interval), "
        "above 1 is faster; memory is the peak beyond inputs and results."
    ]
    if result["quick"]:
        found.append("A smoke run on shrunk cases: these are no measurements.")
    every = [
        (case["name"], name, got) for case in result["cases"] for name, got in case["contenders"].items()
    ]
    busiest = max(
        (got[kind]["others"] or 0.0 for _, _, got in every for kind in PASSES if got[kind]), default=0.0
    )
    if busiest > BUSY:
        found.append(f"* Other processes kept up to {busiest:.1f} processors busy: measure again.")
    found += [f"{case}, {name}: no speed, {got['wrong']}." for case, name, got in every if got["wrong"]]
    return found


def markdown(result: Mapping[str, Any]) -> str:
    header, rows = cells(result)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", *notes(result)])


def text(result: Mapping[str, Any]) -> str:
    header, rows = cells(result)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(values: Sequence[str]) -> str:
        return "  ".join(value.ljust(width) for value, width in zip(values, widths, strict=True)).rstrip()

    return "\n".join(
        [line(header), line(["-" * width for width in widths]), *map(line, rows), "", *notes(result)]
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.table", description="A result's table in Markdown."
    )
    parser.add_argument("result", type=Path, help="what benchmarks.run wrote")
    parser.add_argument(
        "--into", type=Path, help="put it into this document, between the result's comment and the next"
    )
    given = parser.parse_args(argv)
    table = markdown(json.loads(given.result.read_text()))
    if given.into is None:
        print(table)
    else:
        given.into.write_text(with_table(given.into.read_text(), given.result.as_posix(), table))


def with_table(document: str, result: str, table: str) -> str:
    """The document with the table between ``<!-- RESULT ... -->`` and ``<!-- end -->``."""
    pattern = re.compile(rf"(<!-- {re.escape(result)}.*?-->\n).*?(<!-- end -->)", flags=re.DOTALL)
    if not pattern.search(document):
        raise SystemExit(f"the document has no place for {result}")
    return pattern.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", document)


if __name__ == "__main__":
    main()
