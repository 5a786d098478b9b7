"""The tables of a result, as Markdown: ``python -m benchmarks.table benchmarks/results/cpu.json``."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .measure import BUSY, PASSES
from .record import write
from .suites import CAST, COMPILED, FUSED, PEER

Table = tuple[list[str], list[list[str]]]  # header and rows

WAYS = {"calls": "", "graph": ", in a CUDA graph", "python": ", from Python"}


def tables(result: Mapping[str, Any]) -> list[Table]:
    if result["device"]["type"] == "cuda":
        return [gpu_cells(result)]
    return [
        cells(result, peer, names) for peer, names in groups(result).items() if took_part(result, names[1:])
    ]


def took_part(result: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether any of them could run in any case."""
    return any(not case["contenders"][name].get("absent") for case in result["cases"] for name in names)


# Contenders side by side


def groups(result: Mapping[str, Any]) -> dict[str, list[str]]:
    """Contenders by whom they are divided by, who comes first."""
    found: dict[str, list[str]] = {}
    for name in result["contenders"]:
        # Results of the first version do not say: there was one to be divided by.
        against = result["against"][name] if "against" in result else () if name == PEER else (PEER,)
        if against:
            found.setdefault(against[0], [against[0]]).append(name)
    return found


def cells(result: Mapping[str, Any], peer: str, names: Sequence[str]) -> Table:
    """One row for each case and pass."""
    others = [name for name in names if name != peer]
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
    if found[kind] is None:
        return "wrong" if found["wrong"] else "-"
    got = found[kind]
    low, high = got["quartiles"]
    disturbed = got["others"] is not None and got["others"] > BUSY
    spread = f"({milliseconds(low)} to {milliseconds(high)})"
    return f"{milliseconds(got['median'])} {spread}{'*' if disturbed else ''}"


def speed_cell(found: Mapping[str, Any], kind: str) -> str:
    if found[kind] is None or found[kind]["speed"] is None:
        return "-"
    low, high = found[kind]["interval"]
    return f"{found[kind]['speed']:.2f} ({low:.2f} to {high:.2f})"


def memory_cell(found: Mapping[str, Any], kind: str) -> str:
    return "-" if found[kind] is None else f"{found[kind]['memory'] / 1e6:.2f}"


def milliseconds(seconds: float) -> str:
    """Three significant digits."""
    value = seconds * 1e3
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


# Against PyTorch, the floor and the goals


def gpu_cells(result: Mapping[str, Any]) -> Table:
    """One row for each case and pass."""
    header = ["N x C x size", "dtype", "pass", f"{PEER}, ms", f"{COMPILED}, ms", f"{FUSED}, ms", "speed-up"]
    header += ["over compiled", "times the floor", "memory, % of output", "goal"]
    rows = []
    for case in result["cases"]:
        for kind in PASSES:
            ours, compiled = (case["contenders"].get(name) for name in (FUSED, COMPILED))
            row = [label(case), case["dtype"], kind, peer_cell(case, kind), gpu_time_cell(compiled, kind)]
            row += [gpu_time_cell(ours, kind), speed_cell(ours, kind), "-", "-", "-"]
            if ours[kind] is not None:
                if compiled is not None and compiled[kind] is not None:
                    row[-3] = f"{compiled[kind]['median'] / ours[kind]['median']:.2f}"
                row[-2:] = [f"{ours[kind]['times_floor']:.2f}", f"{100 * ours[kind]['memory_share']:.1f}"]
            rows.append([*row, goal_cell(case["goals"].get(kind, {}))])
    return header, rows


def label(case: Mapping[str, Any]) -> str:
    """Such as "spline, 64 x 3 x 448 x 448 -> 224 x 224"."""
    words = " x ".join(map(str, case["image"]))
    if case["output"] != case["image"]:
        words += " -> " + " x ".join(map(str, case["output"][2:]))
    if case["channels_last"]:
        words += ", channels last"
    if case["family"] != "affine":
        words = f"{case['family']}, {words}"
    return words + WAYS[case["way"]]


def peer_cell(case: Mapping[str, Any], kind: str) -> str:
    """The fastest of PyTorch's eager ways that is right."""
    found = {name: case["contenders"].get(name) for name in (PEER, CAST)}
    right = {name: got[kind]["median"] for name, got in found.items() if got and got[kind]}
    if not right:
        return "wrong"
    fastest = min(right, key=lambda name: right[name])
    return milliseconds(right[fastest]) + (" (cast)" if fastest == CAST else "")


def gpu_time_cell(found: Mapping[str, Any] | None, kind: str) -> str:
    if found is None:
        return "-"
    return time_cell(found, kind) if found[kind] is None else milliseconds(found[kind]["median"])


def goal_cell(verdicts: Mapping[str, bool | None]) -> str:
    """The goals of speed with their verdicts, and that of memory where it is missed."""
    words = {True: "met", False: "missed", None: "not known"}
    shown = [f"{goal} {words[met]}" for goal, met in verdicts.items() if "memory" not in goal or not met]
    return ", ".join(shown) or "-"


# What the numbers are, on what, and what is wrong with them


def notes(result: Mapping[str, Any]) -> list[str]:
    found = gpu_method(result) if result["device"]["type"] == "cuda" else cpu_method(result)
    if result["quick"]:
        found.append("A smoke run on shrunk cases: these are no measurements.")
    if not result.get("finished", True):
        found.append("The run was cut short: cases are missing.")
    every = [
        (case["name"], name, got) for case in result["cases"] for name, got in case["contenders"].items()
    ]
    busiest = max(
        (got[kind]["others"] or 0.0 for _, _, got in every for kind in PASSES if got[kind]), default=0.0
    )
    if busiest > BUSY:
        found.append(f"* Other processes kept up to {busiest:.1f} processors busy: measure again.")
    return [*found, *excuses(every)]


def cpu_method(result: Mapping[str, Any]) -> list[str]:
    device, versions = result["device"], result["versions"]
    peer = PEER if len(tables(result)) == 1 else "a table's first contender"
    return [
        f"{device['name']}, {device['threads']} threads, torch {versions['torch']}, "
        f"spatial_transformer {versions['spatial_transformer']}, {result['date'][:10]}. "
        f"Median of rounds (quartiles); speed is {peer}'s median over the other's (95 % interval), "
        "above 1 is faster; memory is the peak beyond inputs and results."
    ]


def gpu_method(result: Mapping[str, Any]) -> list[str]:
    device, versions = result["device"], result["versions"]
    verdicts = [met for case in result["cases"] for goals in case["goals"].values() for met in goals.values()]
    triton = f"triton {versions['triton']}, " if versions.get("triton") else ""
    return [
        f"{device['name']}, torch {versions['torch']}, {triton}"
        f"spatial_transformer {versions['spatial_transformer']}, {result['date'][:10]}, "
        f"copy rate {device['copy_rate'] / 1e12:.2f} TB/s. Medians of rounds; speed-up is over the fastest "
        f'eager {PEER} that is right (95 % interval; "cast": the image is cast to float32 and the output '
        "back); the floor is what must be moved, once, at the copy rate; memory is the peak beyond inputs "
        "and results.",
        f"Goals met: {sum(met is True for met in verdicts)} of {len(verdicts)}, those of memory counted.",
    ]


def excuses(every: Sequence[tuple[str, str, Mapping[str, Any]]]) -> Iterator[str]:
    """Who has no speed, and why. A contender that is wrong in several cases gets one line."""
    for why in ("wrong", "absent"):
        reasons: dict[str, dict[str, str]] = {}
        for case, name, got in every:
            if got.get(why):
                reasons.setdefault(name, {})[case] = got[why]
        for name, cases in reasons.items():
            (first, reason), *more = cases.items()
            where = (
                f"{len(cases)} cases, {name}: no speed; {first}:" if more else f"{first}, {name}: no speed,"
            )
            yield f"{where} {reason}."


def markdown(result: Mapping[str, Any]) -> str:
    lines = []
    for header, rows in tables(result):
        lines += ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows)]
        lines.append("")
    return "\n".join([*lines, *notes(result)])


def text(result: Mapping[str, Any]) -> str:
    lines = []
    for header, rows in tables(result):
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        for values in (header, ["-" * width for width in widths], *rows):
            padded = (value.ljust(width) for value, width in zip(values, widths, strict=True))
            lines.append("  ".join(padded).rstrip())
        lines.append("")
    return "\n".join([*lines, *notes(result)])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.table", description="A result's table in Markdown."
    )
    parser.add_argument("result", type=Path, help="what benchmarks.run wrote")
    parser.add_argument(
        "--into", type=Path, help="put it into this document, between the result's comment and the next"
    )
    given = parser.parse_args(argv)
    show(markdown(json.loads(given.result.read_text())), given.result, given.into)


def carry_out(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    measure: Callable[[argparse.Namespace], dict[str, Any] | Iterator[dict[str, Any]]],
    markdown: Callable[[Mapping[str, Any]], str],
) -> dict[str, Any] | None:
    """The command of a benchmark that has a table of its own: measures, writes the result and prints its
    table, and gives the result; or, asked for the table of a result, shows that and gives None.

    What takes long yields its result as it grows: of a run that is cut short there is what it had by then."""
    parser.add_argument("--out", type=Path, help="write the result here, as JSON")
    parser.add_argument("--table", type=Path, help="measure nothing: show this result's table")
    parser.add_argument("--into", type=Path, help="with --table: put it into this document")
    given = parser.parse_args(argv)
    if given.table is not None:
        show(markdown(json.loads(given.table.read_text())), given.table, given.into)
        return None
    found = measure(given)
    for result in [found] if isinstance(found, dict) else found:
        if given.out is not None:
            write(result, given.out)
    print(markdown(result))
    return result


def show(table: str, result: Path, into: Path | None) -> None:
    """Prints a table, or puts it into a document."""
    if into is None:
        print(table)
    else:
        into.write_text(with_table(into.read_text(), result.as_posix(), table))


def with_table(document: str, result: str, table: str) -> str:
    """The document with the table between ``<!-- RESULT ... -->`` and ``<!-- end -->``."""
    pattern = re.compile(rf"(<!-- {re.escape(result)}.*?-->\n).*?(<!-- end -->)", flags=re.DOTALL)
    if not pattern.search(document):
        raise SystemExit(f"the document has no place for {result}")
    return pattern.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", document)


if __name__ == "__main__":
    main()
