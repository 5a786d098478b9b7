"""Tables out of records: what counts, how it is shown, and what is said of the paper's claims."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from spatial_transformer import cli
from spatial_transformer.experiments import records, results, tables
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.records import Point, Record, RecordError
from spatial_transformer.experiments.results import Wanted
from spatial_transformer.experiments.spec import LATER, Claim

DISTORTED, CLUTTERED = EXPERIMENTS["distorted-mnist"], EXPERIMENTS["cluttered-mnist"]
OWN = dataclasses.asdict(DISTORTED.cells[0].settings)  # of R/FCN
KEPT = Path(__file__).parents[1] / "results"
ADDITION, VOLUMES = EXPERIMENTS["addition"], EXPERIMENTS["volumes"]


def put(folder, cell, error, seed=0, experiment=DISTORTED, changed=None, **fields):
    """A made-up record, where the engine would put it."""
    changed = changed or {}
    named = {one.name: one for one in experiment.cells}
    settings = dataclasses.replace(named[cell].settings, **changed)
    given = {
        "experiment": experiment.name, "cell": cell, "seed": seed, "status": "done", "reason": None,
        "error": error, "paper": named[cell].paper, "digits": "MNIST", "steps": settings.steps,
        "seconds": 1800.0, "device": "a device", "commit": "c" * 40, "date": "2026-01-01",
        "versions": {"torch": "2.13"}, "settings": dataclasses.asdict(settings), "parameters": 400_000,
        "curve": [Point(10, 1.5, 40.0)], **fields,
    }  # fmt: skip
    apart = results.apart(changed, given["digits"], experiment)
    path = records.path_of(folder, experiment.name, cell, seed, apart)
    records.write(Record(**given), path)
    return path


def made(folder, experiment=DISTORTED, wanted=None, **options):
    return tables.table(experiment, results.of(experiment, folder), wanted, **options)


def row(text, model):
    """The cells of a model's row, by column."""
    lines = [[part.strip() for part in line.strip("|").split("|")] for line in text.splitlines()]
    header = next(line for line in lines if line[0] == "model")
    found = next(line for line in lines if line[0] == model)
    return dict(zip(header[1:], found[1:], strict=True))


# Cells


def test_cells_without_records_are_dashes_beside_the_papers(tmp_path):
    text = made(tmp_path)
    assert row(text, "FCN") == {"R": "- / 2.1", "RTS": "- / 5.2", "P": "- / 3.1", "E": "- / 3.2"}
    assert "0 of 32 cells, 0 runs" in text
    assert "`stn train distorted-mnist` makes them" in text


def test_a_cell_has_mean_deviation_and_count(tmp_path):
    for seed, error in enumerate((0.63, 0.66, 0.69)):
        put(tmp_path, "R/ST-CNN affine", error, seed)
    put(tmp_path, "RTS/ST-CNN affine", 0.55)
    found = row(made(tmp_path), "ST-CNN affine")
    assert found["R"] == "**0.66 ± 0.03** (3) / 0.7"
    assert found["RTS"] == "0.55 (1) / 0.5"
    assert found["P"] == "- / 0.8"


@pytest.mark.parametrize(
    ("cell", "error", "shown"),
    [
        ("R/FCN", 2.1, "**2.10** (1) / 2.1"),
        ("R/FCN", 2.11, "2.11 (1) / 2.1"),
        ("E/CNN", 1.6, "1.60 (1) / 1.4"),  # in floats they are more than 0.2 apart
        ("E/CNN", 1.61, "1.61 (1) ▲ / 1.4"),
        ("R/ST-CNN affine", 0.8, "0.80 (1) / 0.7"),
        ("R/ST-CNN affine", 0.81, "0.81 (1) ▲ / 0.7"),
    ],
)
def test_bold_at_or_below_and_marked_far_above(tmp_path, cell, error, shown):
    put(tmp_path, cell, error)
    kind, model = cell.split("/")
    assert row(made(tmp_path), model)[kind] == shown


def test_a_mean_of_hundredths_is_not_above_by_a_rounding(tmp_path):
    for seed, error in enumerate((0.68, 0.68, 0.74)):
        put(tmp_path, "R/ST-CNN affine", error, seed)
    assert row(made(tmp_path), "ST-CNN affine")["R"].startswith("**0.70 ± 0.03**")


def test_failed_runs_stay_in_the_table(tmp_path):
    put(tmp_path, "R/CNN", 1.1)
    put(tmp_path, "R/CNN", None, 1, status="failed", reason="the loss is nan", steps=77)
    put(tmp_path, "P/CNN", 88.65, status="failed", reason="the loss does not fall")
    text = made(tmp_path)
    assert row(text, "CNN")["R"] == "**1.10** (1), failed: 1 of 2 / 1.2"
    assert row(text, "CNN")["P"] == "failed: 1 of 1 / 1.5"  # and its error is no result
    assert "- R/CNN, seed 1, after 77 steps: the loss is nan" in text
    assert "1 of 32 cells, 3 runs" in text


def test_a_table_without_numbers_of_the_papers(tmp_path):
    text = made(tmp_path, VOLUMES)
    assert row(text, "ST-CNN") == {"3D": "-"}
    assert "the paper gives none" in text
    assert "Bold" not in text
    for seed, error in enumerate((4.0, 4.2)):
        put(tmp_path, "3D/ST-CNN", error, seed, VOLUMES)
    put(tmp_path, "3D/CNN", 9.0, 0, VOLUMES)
    text = made(tmp_path, VOLUMES)
    assert row(text, "ST-CNN") == {"3D": "4.10 ± 0.14 (2)"}
    assert row(text, "CNN") == {"3D": "9.00 (1)"}
    assert "**holds**: (Not the paper's, which has no such network beside it:) a network" in text
    assert "the paper gives none" not in made(tmp_path, ADDITION)


# Gains


def test_the_gain_is_that_of_seeds_that_both_cells_have(tmp_path):
    assert "Gain" not in made(tmp_path, VOLUMES)
    for seed, error in enumerate((9.0, 9.4, 20.0)):
        put(tmp_path, "3D/CNN", error, seed, VOLUMES)
    assert "Gain" not in made(tmp_path, VOLUMES)
    put(tmp_path, "3D/ST-CNN", 4.0, 0, VOLUMES)
    assert "- 3D/CNN less 3D/ST-CNN: 5.00 (1)\n" in made(tmp_path, VOLUMES)
    put(tmp_path, "3D/ST-CNN", 4.2, 1, VOLUMES)
    put(tmp_path, "3D/ST-CNN", 95.0, 2, VOLUMES, status="failed", reason="stuck")
    put(tmp_path, "3D/ST-CNN", 1.0, 3, VOLUMES)
    put(tmp_path, "3D/ST-CNN", 0.5, 2, VOLUMES, changed={"steps": 30})
    assert "- 3D/CNN less 3D/ST-CNN: 5.10 ± 0.14 (2)\n" in made(tmp_path, VOLUMES)
    assert "Gain" not in made(tmp_path, VOLUMES, brief=True)


def test_a_transformer_that_does_harm_has_a_gain_below_0(tmp_path):
    put(tmp_path, "3D/CNN", 3.0, 0, VOLUMES)
    put(tmp_path, "3D/ST-CNN", 4.25, 0, VOLUMES)
    assert "- 3D/CNN less 3D/ST-CNN: -1.25 (1)\n" in made(tmp_path, VOLUMES)


# Measures


def test_what_was_measured_stands_below_the_table(tmp_path):
    name = "addition/2xST-FCN affine"
    put(tmp_path, name, 9.0, 0, ADDITION, measures={"apart": 90.0, "settled": 88.0})
    put(tmp_path, name, 9.0, 1, ADDITION, measures={"apart": 92.0})
    put(tmp_path, name, 95.0, 2, ADDITION, status="failed", reason="stuck", measures={"apart": 0.0})
    put(tmp_path, "addition/FCN", 47.0, 0, ADDITION)
    spline = "addition/ST-FCN spline"  # before the other in the table, and after it by name
    put(tmp_path, spline, 30.0, 0, ADDITION, measures={"apart": 40.0})
    text = made(tmp_path, ADDITION)
    lines = text.split("Measured besides the error:")[1].splitlines()
    assert "| cell | apart | settled |" in lines
    assert [line for line in lines if "/" in line and line.startswith("|")] == [
        f"| {spline} | 40.00 | - |",
        f"| {name} | 91.00 ± 1.41 | 88.00 |",
    ]
    assert any(line.startswith("- apart: test images, in percent,") for line in lines)
    assert "Measured" not in made(tmp_path, ADDITION, brief=True)
    assert "Measured" not in made(tmp_path)  # Table 1 has none


# What counts


def test_only_the_papers_settings_and_digits_count(tmp_path):
    put(tmp_path, "R/FCN", 2.0)
    put(tmp_path, "R/FCN", 50.0, 1, changed={"steps": 30})
    put(tmp_path, "R/FCN", 40.0, 2, changed={"held_out": 10_000}, digits="MNIST, 10,000 held out")
    put(tmp_path, "R/FCN", 30.0, 0, digits="UCI digits")
    text = made(tmp_path)
    assert row(text, "FCN")["R"] == "**2.00** (1) / 2.1"
    said = "--digits packaged (1), held_out=10000 (1), steps=30 (1)"
    assert f"Not in the table: 3 runs with other settings or digits: {said}." in text
    short = made(tmp_path, wanted=Wanted({"steps": 30}, "MNIST"))
    assert row(short, "FCN")["R"] == "50.00 (1) ▲ / 2.1"
    assert "Not the experiment's own settings or digits: steps=30." in short
    assert "the experiment's own (no option) (1)" in short.split("Not in the table")[1]
    held = made(tmp_path, wanted=Wanted({"held_out": 10_000}, "MNIST"))
    assert row(held, "FCN")["R"] == "40.00 (1) ▲ / 2.1"
    assert row(made(tmp_path, wanted=Wanted({}, "UCI digits")), "FCN")["R"] == "30.00 (1) ▲ / 2.1"


def test_a_record_older_than_a_setting_has_its_default():
    """And that is not what the experiment has, where it was changed since."""
    cell = next(cell for cell in DISTORTED.cells if cell.name == "R/ST-CNN affine")
    older = dataclasses.asdict(cell.settings)
    del older["localiser_rate"]
    assert results.unusual(older, cell) == {}
    slower = dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, localiser_rate=0.3))
    assert results.unusual(older, slower) == {"localiser_rate": 1.0}


def test_settings_of_localisers_are_nothing_to_a_network_without_one(tmp_path):
    put(tmp_path, "R/FCN", 2.0, changed={"localiser_rate": 0.5})
    put(tmp_path, "R/ST-FCN affine", 1.0, changed={"localiser_rate": 0.5})
    assert row(made(tmp_path), "FCN")["R"] == "**2.00** (1) / 2.1"
    assert row(made(tmp_path), "ST-FCN affine")["R"] == "- / 1.2"
    both = made(tmp_path, wanted=results.asked(DISTORTED, {"localiser_rate": 0.5}, "MNIST"))
    assert row(both, "FCN")["R"] == "**2.00** (1) / 2.1"
    assert row(both, "ST-FCN affine")["R"] == "**1.00** (1) / 1.2"


def test_models_with_settings_of_their_own(tmp_path):
    """Options are what a cell was trained with, whether it has them so anyway or not."""
    put(tmp_path, "R/FCN", 2.0)  # at 0.04
    put(tmp_path, "R/FCN", 3.0, changed={"learning_rate": 0.01})
    put(tmp_path, "R/ST-CNN affine", 1.0)  # at 0.01
    put(tmp_path, "R/ST-CNN affine", 4.0, changed={"learning_rate": 0.04})
    at = {rate: results.asked(DISTORTED, {"learning_rate": rate}, "MNIST") for rate in (0.01, 0.04)}
    for name, errors in {"FCN": ["2.00", "3.00", "2.00"], "ST-CNN affine": ["1.00", "1.00", "4.00"]}.items():
        tables = [made(tmp_path, wanted=wanted) for wanted in (None, at[0.01], at[0.04])]
        assert [row(table, name)["R"].split()[0].strip("*") for table in tables] == errors
    assert results.asked(DISTORTED, {"steps": 150_000}, "MNIST") == Wanted({}, "MNIST")
    with_options = made(tmp_path, wanted=at[0.01])
    assert "Not the experiment's own settings or digits: learning_rate=0.01." in with_options


def test_what_is_no_record_is_refused_by_name(tmp_path):
    path = put(tmp_path, "R/FCN", 2.0)
    path.write_text("{}")
    with pytest.raises(RecordError, match=r"R-FCN-seed0\.json is no record"):
        made(tmp_path)


def test_a_record_of_another_table_is_refused_by_name(tmp_path):
    path = put(tmp_path, "R/FCN", 2.0)
    record = records.read(path)
    for other in ({"experiment": "birds"}, {"cell": "R/MLP"}):
        records.write(dataclasses.replace(record, **other), path)
        with pytest.raises(RecordError, match=r"R-FCN-seed0\.json is of .*, no cell of distorted-mnist"):
            made(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {}, "steps": 60}, "settings must have steps, a whole number, got None"),
        ({"settings": {"steps": 60}, "steps": 60}, "settings of distorted-mnist lack batch, curve, drop"),
        ({"settings": {**OWN, "dropout": 0.5}}, "settings of distorted-mnist have no dropout"),
        ({"settings": {**OWN, "curve": "abc"}}, "curve of the settings must be int, got 'abc'"),
        ({"settings": {**OWN, "momentum": 2}}, "momentum must be at least 0 and less than 1, got 2"),
        ({"paper": 9.9}, "paper must be 2.1 as of R/FCN, got 9.9"),
        ({"paper": None}, "paper must be 2.1 as of R/FCN, got None"),
        ({"seed": 7}, "is of R/FCN, seed 7: its name must begin with R-FCN and end with -seed7"),
        ({"cell": "P/FCN", "paper": 3.1}, "is of P/FCN, seed 0: its name must begin with P-FCN"),
    ],
)
def test_a_record_agrees_with_its_name_and_its_experiment(tmp_path, capsys, change, message):
    """A run of 60 steps that says nothing of its settings is not taken for one of the table."""
    path = put(tmp_path, "R/FCN", 2.0)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert table("distorted-mnist", "--results", tmp_path) == 1
    assert f"{path} is " in (said := capsys.readouterr().err)
    assert message in said


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda one: one.name)
def test_the_records_that_are_kept_pass(experiment):
    """Some are older than a setting: those that may be missing are no others."""
    found = [record.record for record in results.of(experiment, KEPT)]
    known = set(vars(experiment.settings))
    assert all(known - set(record.settings) <= LATER for record in found)


def test_a_run_counts_once(tmp_path):
    path = put(tmp_path, "R/FCN", 2.0)
    records.write(records.read(path), path.with_name("R-FCN-copy-seed0.json"))
    with pytest.raises(RecordError, match=r"FCN-seed0\.json is of the same run as .*R-FCN-copy-seed0\.json"):
        made(tmp_path)


# Below the table


def test_what_stands_behind_the_numbers(tmp_path):
    put(tmp_path, "R/FCN", 2.0, parameters=399_000)
    put(tmp_path, "R/FCN", 2.0, 1, date="2026-01-03", device="another", parameters=401_500)
    put(tmp_path, "R/CNN", 1.0, commit="d" * 40)
    text = made(tmp_path)
    for line in (
        "2 of 32 cells, 3 runs.",
        "Learnable parameters of a network: 399,000 to 401,500.",
        "Steps: 150,000.",
        "Devices: a device (2), another (1).",
        f"Commits: {'c' * 7} (2), {'d' * 7} (1); torch 2.13.",
        "Dates: 2026-01-01 to 2026-01-03.",
        "Time of all runs together: 1 h 30 min.",
        *DISTORTED.departures,
    ):
        assert f"- {line}" in text.splitlines()


def test_a_brief_table_is_the_table_alone(tmp_path):
    put(tmp_path, "TC/FCN", 13.0, experiment=CLUTTERED)
    whole, brief = (made(tmp_path, CLUTTERED, brief=brief) for brief in (False, True))
    assert whole.startswith(brief)
    assert brief.splitlines()[2] == "| FCN | **13.00** (1) / 13.2 |"
    assert "Momentum" in whole
    assert "Momentum" not in brief


# Claims


@pytest.mark.parametrize(
    "experiment", [one for one in EXPERIMENTS.values() if one.paper], ids=lambda one: one.name
)
def test_the_papers_own_numbers_bear_its_claims_out(experiment):
    known = {cell.name for cell in experiment.cells}
    judged = []
    for claim in experiment.claims:
        named = {name for pair in claim.pairs for name in pair}
        assert named <= known
        if named <= set(experiment.paper):  # of birds seen through other windows the paper has words alone
            assert tables.verdict(claim, experiment.paper).startswith("**holds**"), claim.text
            judged.append(claim)
    assert len(judged) >= len(experiment.claims) - (experiment.name == "birds")


@pytest.mark.parametrize(
    ("experiment", "cell", "worse", "text"),
    [
        (DISTORTED, "P/ST-FCN affine", 3.2, "than its base network"),
        (DISTORTED, "E/ST-CNN projective", 2.7, "ST-CNNs err less than ST-FCNs"),
        (DISTORTED, "RTS/ST-FCN spline", 1.0, "reaches the CNN"),
        (DISTORTED, "E/ST-FCN spline", 2.6, "On E the spline"),
        (DISTORTED, "R/ST-CNN spline", 0.9, "does not overfit"),
        (CLUTTERED, "TC/ST-CNN", 2.0, "The ST-CNN errs less"),
    ],
)
def test_one_cell_can_break_a_claim(experiment, cell, worse, text):
    claim = next(claim for claim in experiment.claims if text in claim.text)
    said = tables.verdict(claim, {**experiment.paper, cell: worse})
    assert said.startswith("**does not hold, in ")
    assert f"{cell} {worse:.2f} and " in said


def test_a_claim_waits_for_all_its_cells():
    claim = Claim("A is better.", (("a", "b"), ("a", "c")))
    assert tables.verdict(claim, {}) == "**not known yet**: A is better. (0 of 2 comparisons made)"
    assert "(1 of 2 comparisons made, which bear it out)" in tables.verdict(claim, {"a": 1, "b": 2})
    assert tables.verdict(claim, {"a": 1, "b": 1}) == (
        "**does not hold, in 1 of 1 comparisons**: A is better. (a 1.00 and b 1.00)"
    )
    found = {"a": 1, "b": 2, "c": 1.5}
    assert tables.verdict(claim, found).endswith("(closest: a 1.00 and c 1.50)")
    assert tables.verdict(claim, found, prints="accuracy").endswith("(closest: a 99.00 and c 98.50)")


def test_a_claim_is_judged_seed_by_seed_too():
    claim = Claim("A is better.", (("a", "b"), ("a", "c")))
    by_seed = {"a": {0: 1.0, 1: 2.0, 2: 0.5}, "b": {0: 1.5, 1: 1.9, 3: 9.0}, "c": {2: 0.4}}
    means = {"a": 1.2, "b": 4.1, "c": 1.3}
    said = tables.verdict(claim, means, by_seed)
    assert said == ("**holds**: A is better. (closest: a 1.20 and c 1.30; seed by seed in 1 of 3)")
    alone = {"a": {0: 1.0}, "b": {0: 2.0}, "c": {0: 2.0}}
    assert "seed by seed" not in tables.verdict(claim, means, alone)


def test_cells_are_counted_beside_the_papers(tmp_path):
    assert "cells" not in made(tmp_path).split("What the paper says")[0]
    put(tmp_path, "R/FCN", 2.1)
    assert "\n\nAll of the 1 cells are at or below the paper's.\n\n" in made(tmp_path)
    put(tmp_path, "R/CNN", 1.4)
    put(tmp_path, "RTS/ST-CNN affine", 0.61)
    counted = "Of 3 cells 1 are at or below the paper's, 1 above it within these bounds, and 1 beyond them."
    assert counted in made(tmp_path)


def test_a_paper_without_an_error_counts_too():
    """As co-localisation of all digits, whose accuracy is 100 %."""
    experiment = EXPERIMENTS["colocalisation"]
    said = tables.beside_the_paper(experiment, {"T84/0": 0.0, "TC84/0": 1.0})
    assert said == "All of the 2 cells are at or above the paper's."
    worse = tables.beside_the_paper(experiment, {"T84/0": 0.1, "TC84/0": 30.0})
    assert (
        worse
        == "Of 2 cells 0 are at or above the paper's, 1 below it within these bounds, and 1 beyond them."
    )


def test_within_reaches_as_far_as_it_says():
    claim = Claim("A reaches b.", (("a", "b"),), within=0.1)
    assert tables.verdict(claim, {"a": 0.8, "b": 0.7}).startswith("**holds**")  # 0.8 - 0.7 > 0.1 in floats
    assert tables.verdict(claim, {"a": 0.81, "b": 0.7}).startswith("**does not hold")
    ahead = Claim("A is 1.8 better.", (("a", "b"),), within=-1.8)
    assert tables.verdict(ahead, {"a": 15.9, "b": 17.7}).startswith("**holds**")
    assert tables.verdict(ahead, {"a": 16.0, "b": 17.7}).startswith("**does not hold")


def test_claims_are_judged_by_means_of_what_counts(tmp_path):
    put(tmp_path, "TC/ST-FCN", 4.0, 0, experiment=CLUTTERED)
    put(tmp_path, "TC/ST-FCN", 2.0, 1, experiment=CLUTTERED)
    put(tmp_path, "TC/CNN", 3.1, experiment=CLUTTERED)
    put(tmp_path, "TC/CNN", 1.0, 1, experiment=CLUTTERED, changed={"steps": 10})
    text = made(tmp_path, CLUTTERED)
    assert "- **holds**: The ST-FCN, without a convolution, errs less than the CNN. (TC/ST-FCN 3.00" in text


# Documents and the command


def table(*arguments):
    return cli.main(["table", *map(str, arguments)])


def test_the_command_prints_and_writes(tmp_path, capsys):
    put(tmp_path, "TC/FCN", 13.0, experiment=CLUTTERED)
    out = tmp_path / "docs" / "table.md"
    assert table("cluttered-mnist", "--results", tmp_path, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "| FCN | **13.00** (1) / 13.2 |" in printed
    written = f"<!-- stn table cluttered-mnist -->\n\n{printed.strip()}\n\n<!-- end -->\n"
    assert out.read_text() == written
    put(tmp_path, "TC/FCN", 13.2, 1, experiment=CLUTTERED)
    assert table("cluttered-mnist", "--results", tmp_path, "--out", out) == 0
    assert "13.10 ± 0.14" in out.read_text()
    assert out.read_text().count("<!--") == 2


def test_a_table_takes_its_place_in_a_document(tmp_path, capsys):
    put(tmp_path, "TC/FCN", 13.0, experiment=CLUTTERED)
    put(tmp_path, "TC/FCN", 60.0, experiment=CLUTTERED, changed={"steps": 30})
    out = tmp_path / "page.md"
    others = "<!-- stn table distorted-mnist -->\nold 1\n<!-- end -->\n\nbetween\n"
    out.write_text(
        f"before\n{others}<!-- stn table cluttered-mnist --brief -->\nold 2\n<!-- end -->\n"
        "<!-- stn table cluttered-mnist steps=30 --brief -->\n<!-- end -->\nafter\n"
    )
    assert table("cluttered-mnist", "--results", tmp_path, "--brief", "--out", out) == 0
    text = out.read_text()
    assert text.startswith(f"before\n{others}")
    assert text.endswith("--brief -->\n<!-- end -->\nafter\n")
    assert "old 2" not in text
    assert text.count("13.00") == 1
    assert table("cluttered-mnist", "--results", tmp_path, "--out", out, "steps=30", "--brief") == 0
    assert out.read_text().index("60.00") > out.read_text().index("13.00")
    capsys.readouterr()


def test_a_document_without_a_place_is_left_alone(tmp_path, capsys):
    out = tmp_path / "page.md"
    out.write_text("mine\n")
    assert table("cluttered-mnist", "--results", tmp_path, "--out", out) == 1
    error = capsys.readouterr().err
    assert "page.md is there and has no place for the table: put <!-- stn table cluttered-mnist -->" in error
    assert out.read_text() == "mine\n"


def test_every_run_in_a_list(tmp_path, capsys):
    put(tmp_path, "TC/FCN", 13.0, experiment=CLUTTERED)
    failed = {"status": "failed", "reason": "nan"}
    put(tmp_path, "TC/CNN", None, 3, experiment=CLUTTERED, changed={"steps": 30}, **failed)
    put(tmp_path, "TC/FCN", 30.0, experiment=CLUTTERED, digits="UCI digits")
    assert table("cluttered-mnist", "--results", tmp_path, "--all") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[2].startswith("| TC/CNN | 3 | MNIST | steps=30 | failed: nan | 3.5 | 30 | 2026-01-01 |")
    assert any(line.startswith("| TC/FCN | 0 | UCI digits | - | 30.00 | 13.2 |") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["steps"], "a setting must be given as KEY=VALUE, got 'steps'"),
        (["step=3"], "there is no setting 'step'; did you mean steps?"),
    ],
)
def test_what_is_asked_wrongly_is_said(tmp_path, capsys, arguments, message):
    assert table("cluttered-mnist", "--results", tmp_path, *arguments) == 2
    assert message in capsys.readouterr().err


def test_a_broken_record_ends_the_command_with_its_name(tmp_path, capsys):
    put(tmp_path, "TC/FCN", 13.0, experiment=CLUTTERED).write_text("[]")
    assert table("cluttered-mnist", "--results", tmp_path) == 1
    assert "TC-FCN-seed0.json is no record" in capsys.readouterr().err
