"""Training curves: how the error of each model fell, out of its records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from .extra import extra
from .figures import FAINT, INK, figure
from .results import Result, as_the_paper
from .spec import Cell, Model

# By classification network, alone and behind each family; and by how many transformers there are.
COLOURS: dict[tuple[str, int], dict[str | None, str]] = {
    ("FCN", 1): {None: "#a3a3a3", "affine": "#f0a848", "projective": "#e06c1f", "spline": "#a8321a"},
    ("CNN", 1): {None: "#3d3d3d", "affine": "#7ab8ea", "projective": "#2f7fc4", "spline": "#143f86"},
    ("FCN", 2): {"affine": "#79c285", "projective": "#2f9347", "spline": "#12572b"},
    ("CNN", 2): {"window": "#2f7fc4", "attention": "#79c285", "affine": "#2f9347"},
    ("CNN", 4): {"affine": "#143f86", "window": "#143f86"},
}


def curves(title: str, runs: Sequence[tuple[Cell, Sequence[Result]]]) -> Any:
    """Training error over steps, a line for each model (the mean of its seeds); dots are test errors."""
    made = figure(8.9, 4.3)
    axes = made.subplots(gridspec_kw={"left": 0.085, "right": 0.66, "top": 0.88, "bottom": 0.135})
    beside_the_paper = False
    for cell, results in runs:
        records = [result.record for result in results]
        colour = colour_of(cell.model)
        steps, errors = mean_curve(results)
        done = [record.error for record in records if record.status == "done" and record.error is not None]
        ours = f"{statistics.mean(done):.2f} %" if done else "failed"
        label = f"{cell.model.name}: {ours}"
        if cell.paper is not None and all(as_the_paper(cell).counts(result) for result in results):
            label += f" ({cell.paper:.1f} %)"
            beside_the_paper = True
        axes.plot(steps, errors, color=colour, linewidth=1.4, label=label, zorder=2)
        if done and steps:
            axes.plot(steps[-1], statistics.mean(done), "o", color=colour, markersize=6,
                      markeredgecolor="white", zorder=3, clip_on=False)  # fmt: skip
    axes.set_yscale("log", nonpositive="mask")
    ticker = extra("matplotlib.ticker")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlim(left=0)
    axes.set_xlabel("steps", fontsize=10, color=INK)
    axes.set_ylabel("error in percent", fontsize=10, color=INK)
    axes.grid(which="major", color="#e3e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9, which="both", length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    legend_title = "test error (the paper's)" if beside_the_paper else "test error"
    legend = axes.legend(
        loc="upper left", bbox_to_anchor=(1.02, 1.02), fontsize=9.5, frameon=False, labelcolor=INK,
        title=legend_title, title_fontsize=9.5, alignment="left", handlelength=1.6,
    )  # fmt: skip
    legend.get_title().set_color(FAINT)
    made.text(0.085, 0.965, f"{title}: training error", va="top", fontsize=12.5, color=INK)
    note = "lines: training batches\ndots: test set"
    made.text(0.68, 0.04, note, va="bottom", fontsize=9, color=FAINT, linespacing=1.4)
    return made


def colour_of(model: Model) -> str:
    return COLOURS[model.classifier, model.transformers][model.transformer]


def mean_curve(results: Sequence[Result]) -> tuple[list[int], list[float]]:
    """Steps and errors, means of the seeds as far as all of them went."""
    points = list(zip(*(result.record.curve for result in results if result.record.curve), strict=False))
    steps = [each[0].step for each in points]
    return steps, [statistics.mean(point.error for point in each) for each in points]
