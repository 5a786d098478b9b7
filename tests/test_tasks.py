"""Every experiment has a task that is known how to do, and to draw; settings are each experiment's own."""

from __future__ import annotations

import dataclasses

import pytest

from spatial_transformer.cli import main
from spatial_transformer.experiments import reports, tasks
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.data import uci_digits
from spatial_transformer.experiments.spec import Settings

EACH = pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda one: one.name)


@EACH
def test_an_experiments_task_is_known(experiment):
    how, drawn = tasks.TASKS[experiment.task.name], reports.DRAWN_BY[experiment.task.name]
    assert tasks.AUTO in how.data
    assert drawn.PICTURES
    assert all(cell.task == experiment.task for cell in experiment.cells)


@EACH
def test_settings_can_be_given_as_text(experiment):
    """Also those that only this experiment has, each by the text that a record's name has of it."""
    settings = experiment.settings
    assert isinstance(settings, Settings)
    given = {name: str(value) for name, value in dataclasses.asdict(settings).items()}
    assert settings.changed(given) == settings
    assert type(settings.changed({"steps": "7"})) is type(settings)


@EACH
def test_photographs_do_not_travel(experiment):
    """Digits do: another machine may have none, and would take others."""
    data = uci_digits.load()
    sent = tasks.sent(experiment.cells[0], data, tasks.AUTO, None)
    assert (sent is data) == (experiment.task.data == "MNIST")
    assert callable(sent) == (experiment.task.data != "MNIST")


def test_help_has_the_settings_of_each_experiment(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for experiment in EXPERIMENTS.values():
        known = ", ".join(
            f"{name}={value}" for name, value in dataclasses.asdict(experiment.settings).items()
        )
        assert f"{experiment.name}: {known}" in said
    assert "FCN: learning_rate=0.04; CNN: learning_rate=0.04" in said


@EACH
@pytest.mark.parametrize("command", ["table", "draw"])
def test_without_a_record(experiment, command, tmp_path, capsys):
    status = main([command, experiment.name, "--results", str(tmp_path)])
    said = capsys.readouterr()
    assert status == (1 if command == "draw" else 0)
    assert f"`stn train {experiment.name}" in said.out + said.err
