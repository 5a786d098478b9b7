"""A table of the paper with our numbers beside its own, out of the records alone: ``stn table``."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .data.fetch import in_one_step
from .durations import duration
from .results import Result, Wanted, as_the_paper, assigned, by_cell
from .spec import Cell, Claim, Experiment

NONE = "-"

# By what a table prints: the mark of a cell that is worse than the paper's, and what is said of it all.
WORSE = {"error": "▲", "accuracy": "▼"}
LEGENDS = {
    "error": "Error in percent: ours, mean ± sample deviation (number of seeds) / the paper's. "
    f"**Bold**: at or below the paper's. {WORSE['error']}: above it by more than 0.2 points, "
    f"or 0.1 where the paper's is under 1 %. {NONE}: not trained.",
    "accuracy": "Accuracy in percent: ours, mean ± sample deviation (number of seeds) / the paper's. "
    f"**Bold**: at or above the paper's. {WORSE['accuracy']}: below it by more than 0.2 points, "
    f"or 0.1 where the paper's is over 99 %. {NONE}: not trained.",
}
LEGEND_ALONE = (
    "Error in percent: ours, mean ± sample deviation (number of seeds); the paper gives none. "
    f"{NONE}: not trained."
)
GAINS = "Gain in points, one error less another of the same seed, mean ± sample deviation (number of seeds):"


class Summary(NamedTuple):
    """What the runs of one cell came to."""

    errors: list[float]  # of those that are done
    failed: int

    @property
    def mean(self) -> float | None:
        """Rounded to what float arithmetic leaves of a hundredth."""
        return round(statistics.mean(self.errors), 6) if self.errors else None


def summary(results: Iterable[Result]) -> Summary:
    found = [result.record for result in results]
    done = [record.error for record in found if record.status == "done" and record.error is not None]
    return Summary(done, len(found) - len(done))


def table(
    experiment: Experiment, results: Sequence[Result], wanted: Wanted | None = None, *, brief: bool = False
) -> str:
    """Markdown: the table, and unless it is to be brief what stands behind it.

    wanted: which records count; if None those that stand beside the paper's numbers.
    """
    wanted = wanted or as_the_paper(experiment)
    counted = [result for result in results if wanted.counts(result)]
    cells = {name: summary(found) for name, found in by_cell(counted).items()}
    legend = LEGENDS[experiment.prints] if experiment.paper else LEGEND_ALONE
    parts = ["\n".join(grid(experiment, cells)), legend]
    if wanted != as_the_paper(experiment):
        parts.insert(0, f"**Not the experiment's own settings or digits:{wanted.options}.**")
    if not brief:
        means = {name: found.mean for name, found in cells.items() if found.mean is not None}
        by_seed = {name: errors_by_seed(found) for name, found in by_cell(counted).items()}
        claims = [verdict(claim, means, by_seed, experiment.prints) for claim in experiment.claims]
        departures = experiment.departures
        parts += [
            beside_the_paper(experiment, means),
            gains(experiment, by_seed),
            measures(experiment, by_cell(counted)),
            bullets("What the paper says of it, and whether these numbers bear it out:", claims),
            bullets("Where this is not the paper's recipe, or the paper does not say:", departures),
            bullets("How the numbers came about:", facts(experiment, counted)),
        ]
        if failures := list(failed(counted)):
            parts.append(bullets("Runs that failed:", failures))
        if others := left_out(experiment, results, wanted):
            parts.append(others)
    return "\n\n".join(part for part in parts if part)


def bullets(title: str, lines: Iterable[str]) -> str:
    found = [f"- {line}" for line in lines]
    return "\n".join([title, "", *found]) if found else ""


def rows(header: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *lines)]


# Numbers


def grid(experiment: Experiment, cells: Mapping[str, Summary]) -> list[str]:
    by_name = {cell.name: cell for cell in experiment.cells}
    lines = [
        [
            model.name,
            *(
                number(by_name[name], cells.get(name), experiment.prints) if name in by_name else ""
                for name in names_of(experiment, model.name)
            ),
        ]
        for model in experiment.models
    ]
    quoted = [
        [
            f"{who}, quoted",
            *("" if error is None else f"/ {printed(error, experiment.prints):.1f}" for error in errors),
        ]
        for who, errors in experiment.quoted.items()
    ]
    return rows(["model", *(data.kind for data in experiment.data)], quoted + lines)


def names_of(experiment: Experiment, model: str) -> list[str]:
    return [f"{data.kind}/{model}" for data in experiment.data]


def number(cell: Cell, found: Summary | None, prints: str = "error") -> str:
    """Such as ``**0.66 ± 0.03** (3) / 0.7``; of accuracies ``**82.33 ± 2.08** (3) / 81.0``."""
    paper = "" if cell.paper is None else f" / {printed(cell.paper, prints):.1f}"
    if found is None:
        return NONE + paper
    shown = []
    if found.mean is not None:
        count = len(found.errors)
        ours = spread([printed(error, prints) for error in found.errors])
        if cell.paper is not None and found.mean <= cell.paper:
            ours = f"**{ours}**"
        mark = f" {WORSE[prints]}" if is_above(found.mean, cell.paper) else ""
        shown.append(f"{ours} ({count}){mark}")
    if found.failed:
        shown.append(f"failed: {found.failed} of {found.failed + len(found.errors)}")
    return ", ".join(shown) + paper


def printed(error: float, prints: str) -> float:
    return 100 - error if prints == "accuracy" else error


def spread(values: Sequence[float]) -> str:
    """
    >>> spread([1.0, 2.0]), spread([1.0])
    ('1.50 ± 0.71', '1.00')
    """
    mean = f"{round(statistics.mean(values), 6):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def measures(experiment: Experiment, found: Mapping[str, Sequence[Result]]) -> str:
    """What was measured besides the error, a row for each cell that has any of it, and what it is."""
    known = {
        cell.name: [one.record.measures for one in found.get(cell.name, []) if one.record.status == "done"]
        for cell in experiment.cells
    }
    # Records from before a measure was there do without it.
    names = [
        name for name in experiment.measures if any(name in each for some in known.values() for each in some)
    ]
    if not names:
        return ""
    lines = []
    for cell, some in known.items():
        values = [[each[name] for each in some if name in each] for name in names]
        if any(values):
            lines.append([cell, *(spread(each) if each else NONE for each in values)])
    meanings = bullets(
        "Measured besides the error:", (f"{name}: {experiment.measures[name]}." for name in names)
    )
    return "\n".join([meanings, "", *rows(["cell", *names], lines)])


def beside_the_paper(experiment: Experiment, means: Mapping[str, float]) -> str:
    """How many cells are where, beside the paper's numbers."""
    papers = {cell.name: cell.paper for cell in experiment.cells if cell.name in means}
    known = [(means[name], paper) for name, paper in papers.items() if paper is not None]
    if not known:
        return ""
    better, worse = ("above", "below") if experiment.prints == "accuracy" else ("below", "above")
    good = sum(mean <= paper for mean, paper in known)
    beyond = sum(is_above(mean, paper) for mean, paper in known)
    if good == len(known):
        return f"All of the {good} cells are at or {better} the paper's."
    within = len(known) - good - beyond
    return (
        f"Of {len(known)} cells {good} are at or {better} the paper's, {within} {worse} it within these "
        f"bounds, and {beyond} beyond them."
    )


def errors_by_seed(found: Iterable[Result]) -> dict[int, float]:
    """Of the runs of one cell that are done."""
    done = (one.record for one in found if one.record.status == "done")
    return {record.seed: record.error for record in done if record.error is not None}


def gains(experiment: Experiment, by_seed: Mapping[str, Mapping[int, float]]) -> str:
    """How much less some cells err than others: such as ``3D/CNN less 3D/ST-CNN: 6.86 ± 0.12 (3)``.

    Seed by seed, since runs of one seed see the same images; a seed that one of the two lacks does not count.
    """
    lines = []
    for first, second in experiment.gains:
        before, after = by_seed.get(first, {}), by_seed.get(second, {})
        differences = [before[seed] - after[seed] for seed in before if seed in after]
        if differences:
            lines.append(f"{first} less {second}: {spread(differences)} ({len(differences)})")
    return bullets(GAINS, lines)


def is_above(mean: float, paper: float | None) -> bool:
    return paper is not None and round(mean - paper, 6) > (0.1 if paper < 1 else 0.2)


# Claims


def verdict(
    claim: Claim,
    means: Mapping[str, float],
    by_seed: Mapping[str, Mapping[int, float]] | None = None,
    prints: str = "error",
) -> str:
    """Whether a claim holds, and by which cells: the closest where it does, all that say no where not; and
    where there are several seeds in how many comparisons of runs of the same one.
    """
    known = [(a, b) for a, b in claim.pairs if a in means and b in means]
    broken = [(a, b) for a, b in known if not holds(claim, means[a], means[b])]

    def said(*cells: str) -> str:
        return " and ".join(f"{cell} {printed(means[cell], prints):.2f}" for cell in cells)

    if broken:
        short = f"does not hold, in {len(broken)} of {len(known)} comparisons"
        why = ", ".join(said(*pair) for pair in broken)
    elif len(known) < len(claim.pairs):
        short, why = "not known yet", f"{len(known)} of {len(claim.pairs)} comparisons made"
        why += ", which bear it out" if known else ""
    else:
        short = "holds"
        closest = max(known, key=lambda pair: means[pair[0]] - means[pair[1]])
        why = f"closest: {said(*closest)}" if len(known) > 1 else said(*closest)
    each = by_seed or {}
    runs = [
        holds(claim, error, each[b][seed])
        for a, b in known
        for seed, error in each.get(a, {}).items()
        if seed in each.get(b, {})
    ]
    if len(runs) > len(known):
        why += f"; seed by seed in {sum(runs)} of {len(runs)}"
    return f"**{short}**: {claim.text} ({why})"


def holds(claim: Claim, first: float, second: float) -> bool:
    return first < second if claim.within is None else round(first - second, 6) <= claim.within


# What stands behind the numbers


def facts(experiment: Experiment, counted: Sequence[Result]) -> Iterator[str]:
    found = [result.record for result in counted]
    cells = {record.cell for record in found if record.status == "done"}
    yield f"{len(cells)} of {len(experiment.cells)} cells, {len(found)} runs."
    if not found:
        yield f"`stn train {experiment.name}` makes them."
        return
    yield f"Learnable parameters of a network: {range_of([record.parameters for record in found])}."
    yield f"Steps: {range_of([record.steps for record in found])}."
    yield f"Devices: {counts(record.device for record in found)}."
    torch = {record.versions.get("torch", "unknown") for record in found}
    yield f"Commits: {counts(short(record.commit) for record in found)}; torch {', '.join(sorted(torch))}."
    dates = sorted({record.date for record in found})
    yield f"Dates: {dates[0]}{f' to {dates[-1]}' if len(dates) > 1 else ''}."
    yield f"Time of all runs together: {duration(sum(record.seconds for record in found))}."


def range_of(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def counts(values: Iterable[str]) -> str:
    """
    >>> counts(["a", "b", "b"])
    'b (2), a (1)'
    >>> counts(["a", "a"])
    'a'
    """
    every = list(values)
    kinds = sorted(set(every), key=lambda value: (-every.count(value), value))
    return kinds[0] if len(kinds) == 1 else ", ".join(f"{kind} ({every.count(kind)})" for kind in kinds)


def short(commits: str) -> str:
    """
    >>> short("70da564e3be1f13bc45cddbb7bbb019220cd665b, version 0.1.0")
    '70da564, then version 0.1.0'
    """
    return ", then ".join(commit if " " in commit else commit[:7] for commit in commits.split(", "))


def failed(counted: Iterable[Result]) -> Iterator[str]:
    for record in (result.record for result in counted):
        if record.status == "failed":
            yield f"{record.cell}, seed {record.seed}, after {record.steps:,} steps: {record.reason}"


def left_out(experiment: Experiment, results: Sequence[Result], wanted: Wanted) -> str:
    others = [result for result in results if not wanted.counts(result)]
    if not others:
        return ""
    usual = "the experiment's own (no option)"
    groups = counts(Wanted(one.changed, one.digits).options.strip() or usual for one in others)
    runs = f"{len(others)} run{'s' if len(others) > 1 else ''}"
    return (
        f"Not in the table: {runs} with other settings or digits: {groups}. "
        f"`stn table {experiment.name}` with these options makes a table of them, with `--all` a list."
    )


def listing(results: Iterable[Result]) -> str:
    """Markdown: every run, whatever its settings and digits."""
    header = ["cell", "seed", "digits", "changed settings", "error", "paper's", "steps", "date", "commit"]
    lines = []
    for result in sorted(results, key=lambda one: (one.record.cell, str(one.changed), one.record.seed)):
        record = result.record
        error = f"{record.error:.2f}" if record.error is not None else ""
        if record.status == "failed":
            error = f"{error} failed: {record.reason}".strip()
        paper = NONE if record.paper is None else f"{record.paper:.1f}"
        kept = [record.cell, str(record.seed), record.digits, assigned(result.changed) or NONE, error, paper]
        lines.append([*kept, f"{record.steps:,}", record.date, short(record.commit)])
    return "\n".join(rows(header, lines))


# Documents


def command(experiment: Experiment, wanted: Wanted, *, brief: bool = False, every: bool = False) -> str:
    """What makes a table, and marks its place in a document."""
    return f"stn table {experiment.name}{wanted.options}{' --brief' * brief}{' --all' * every}"


def put(text: str, command: str, path: Path) -> None:
    """Writes a table into a document: between ``<!-- COMMAND -->`` and ``<!-- end -->`` where it has these,
    as the whole of it, with the two, where there is none."""
    begin, end = f"<!-- {command} -->", "<!-- end -->"
    block = f"{begin}\n\n{text}\n\n{end}"
    if path.exists():
        document = path.read_text(encoding="utf-8")
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", flags=re.DOTALL)
        block, places = pattern.subn(lambda found: block, document)
        if not places:
            raise ValueError(f"{path} is there and has no place for the table: put {begin} and {end} into it")
    else:
        block += "\n"
    with in_one_step(path) as file:
        file.write(block.encode())
