"""Pictures of house numbers: which they are, where boxes lie, what is seen through them, what is written."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from data_files import write_numbers

pytest.importorskip("matplotlib")
pytest.importorskip("PIL.Image")

import spatial_transformer as st
from spatial_transformer.cli import main
from spatial_transformer.experiments import (
    pictures_of_house_numbers,
    probes,
    records,
    results,
)
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.data import svhn
from spatial_transformer.experiments.pictures import Trained

EXPERIMENT = EXPERIMENTS["svhn"]
CELLS = {cell.name: cell for cell in EXPERIMENT.cells}
COUNT = 12


@pytest.fixture(scope="module")
def folder(one_thread, tmp_path_factory):
    """Test images, and records and probes of networks on them: answers and transforms are made up."""
    place = tmp_path_factory.mktemp("svhn")
    write_numbers(place / "test", COUNT)
    labels = svhn.load("test", place).labels
    for name, misread in (("64px/CNN", [1, 4]), ("64px/ST-CNN Multi", [4, 7])):
        answers = labels.clone()
        answers[misread, 0] = (answers[misread, 0] + 3) % 10
        theta = torch.eye(2, 3).flatten().repeat(COUNT, 4) + 0.1 * torch.randn(
            COUNT, 24, generator=torch.Generator().manual_seed(0)
        )
        theta = theta if CELLS[name].model.transformer else theta[:, :0]
        path = records.path_of(place / "results", "svhn", name, 0, {})
        records.write(record(name), path)
        probes.write(probes.of(answers, theta, []), probes.path_of(path))
    return place


def record(name):
    return records.Record(
        experiment="svhn", cell=name, seed=0, status="done", reason=None, error=4.2, paper=CELLS[name].paper,
        digits="SVHN", steps=24_000, seconds=9.0, device="a device", commit="0" * 40, date="2026-01-01",
        versions={}, settings=dataclasses.asdict(EXPERIMENT.settings), parameters=1,
        curve=[records.Point(500, 1.5, 40.0)],
    )  # fmt: skip


@pytest.fixture(scope="module")
def numbers(folder):
    return svhn.load("test", folder)


def trained(folder, name):
    (result,) = (one for one in results.of(EXPERIMENT, folder / "results") if one.record.cell == name)
    return Trained(result, probes.read(probes.path_of(result.path)))


@pytest.fixture(scope="module")
def picture(folder, numbers):
    one, other = trained(folder, "64px/ST-CNN Multi"), trained(folder, "64px/CNN")
    return pictures_of_house_numbers.cases(one, numbers, ("CNN", other.probe.predictions))


def test_the_command(folder, tmp_path, capsys):
    given = ["--results", str(folder / "results"), "--out", str(tmp_path), "--data-dir", str(folder)]
    assert main(["draw", "svhn", *given]) == 0
    wanted = [f"{tmp_path}/svhn/64px-{what}.png" for what in ("curves", "ST-CNN-Multi-cases")]
    assert capsys.readouterr().out.split() == wanted
    assert all((tmp_path / path).stat().st_size > 10_000 for path in wanted)
    assert main(["draw", "svhn", *given, "--only", "means"]) == 2
    assert "svhn has cases, curves, got --only means" in capsys.readouterr().err


def test_without_the_images(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SPATIAL_TRANSFORMER_DATA", str(tmp_path))
    given = ["--results", str(folder / "results"), "--out", str(tmp_path), "--only", "cases"]
    assert main(["draw", "svhn", *given]) == 1
    assert "SVHN's test is not here" in capsys.readouterr().err


@pytest.mark.parametrize("size", [64, 128])
def test_crops_are_of_the_networks_size(folder, numbers, size):
    one = trained(folder, "64px/ST-CNN Multi")
    of_size = one.result._replace(cell=CELLS[f"{size}px/ST-CNN Multi"])
    picture = pictures_of_house_numbers.cases(one._replace(result=of_size), numbers, None)
    shown = picture.axes[0].images[0].get_array()
    assert np.array_equal(shown, numbers.of(size)[0].permute(1, 2, 0))


def test_which_numbers_are_shown(picture, numbers):
    """First the one that the CNN misreads and the other network reads."""
    order = [1, 0, 2, 3, 5, 6, 8, 9]
    names = [pictures_of_house_numbers.written(numbers.labels[number]) for number in order]
    assert [axes.get_title() for axes in picture.axes[:8]] == names
    said = [text.get_text() for text in picture.texts]
    assert (
        said[0] == "Where the CNN is wrong and the ST-CNN Multi is right: 1 of 12 test images, and 7 others"
    )
    assert said[1] == "SVHN 64px/ST-CNN Multi, seed 0, 24,000 steps: test error 4.20 % (the paper's 3.6 %)"
    answers = [[text.get_text() for text in axes.texts] for axes in picture.axes[8:]]
    first = numbers.labels[1].clone()
    first[0] = (first[0] + 3) % 10
    misread = pictures_of_house_numbers.written(first)
    assert answers[0] == [f"CNN: {misread} ✗", f"Multi: {names[0]} ✓"]
    assert answers[1] == [f"CNN: {names[1]} ✓", f"Multi: {names[1]} ✓"]


def test_boxes_are_the_transforms_multiplied_out(picture, folder, numbers):
    theta = torch.from_numpy(trained(folder, "64px/ST-CNN Multi").probe.theta[[1, 0]].astype(np.float32))
    matrices = [torch.eye(3).repeat(2, 1, 1) for _ in range(4)]
    for place, each in enumerate(theta.split(6, 1)):
        matrices[place][:, :2] = each.unflatten(1, (2, 3))
    one, two, three, four = matrices
    together = one @ two @ three @ four
    for column in (0, 1):
        corners = torch.tensor([[-1.0, -1, 1], [1, -1, 1], [-1, 1, 1], [1, 1, 1]]) @ together[column].T
        wanted = (corners[:, :2] + 1) * 32 - 0.5  # pixels of 64
        lines = picture.axes[column].lines
        assert len(lines) == 4  # the box alone
        drawn = np.concatenate([line.get_xydata()[[0, -1]] for line in lines])
        for corner in wanted.numpy():
            assert np.abs(drawn - corner).max(1).min() < 1e-3
        # and below it is what lies in the box
        image = numbers.tight[[1, 0][column]][None]
        seen = pictures_of_house_numbers.through(image, together[column : column + 1, :2].flatten(1))
        shown = torch.from_numpy(np.asarray(picture.axes[8 + column].images[0].get_array()).copy())
        assert torch.equal(shown, seen[0].permute(1, 2, 0))


def test_what_is_seen_through_a_transform(numbers):
    image = numbers.tight[:1]
    none = st.Affine().identity()[None]
    assert torch.equal(pictures_of_house_numbers.through(image, none), image)
    # Beyond the image lies its mean.
    right = none + torch.tensor([[0.0, 0, 1, 0, 0, 0]])
    found = pictures_of_house_numbers.through(image, right)
    assert torch.equal(found[..., :32], image[..., 32:])
    assert (found[..., 32:].float() - image.float().mean()).abs().max() <= 0.5


@pytest.mark.parametrize("count", [5, 24])
def test_a_probe_of_other_images(folder, numbers, count):
    one = trained(folder, "64px/ST-CNN Multi")
    predictions = np.resize(one.probe.predictions, (count, 5))
    other = one._replace(probe=one.probe._replace(predictions=predictions))
    with pytest.raises(probes.ProbeError, match=f"it has {count} predictions, not 12"):
        pictures_of_house_numbers.cases(other, numbers, None)


def test_without_a_cnn_beside_it(folder, numbers):
    made = pictures_of_house_numbers.cases(trained(folder, "64px/ST-CNN Multi"), numbers, None)
    assert made.texts[0].get_text() == "What the ST-CNN Multi makes of its input"
    assert len(made.axes[8].texts) == 1


def test_numbers_as_one_writes_them():
    assert pictures_of_house_numbers.written(torch.tensor([2, 0, 10, 10, 10])) == "20"


def test_fewer_transforms_than_answers(folder, numbers):
    """Of the real test set the transforms of the first images alone are kept."""
    one = trained(folder, "64px/ST-CNN Multi")
    fewer = one._replace(probe=one.probe._replace(theta=one.probe.theta[:5]))
    misread = numbers.labels.clone()
    misread[[1, 9], 0] = (misread[[1, 9], 0] + 3) % 10
    made = pictures_of_house_numbers.cases(fewer, numbers, ("CNN", misread.numpy()))
    names = [pictures_of_house_numbers.written(numbers.labels[number]) for number in (1, 0, 2, 3, 4)]
    assert [axes.get_title() for axes in made.axes[:5]] == names
    assert "1 of 5 test images" in made.texts[0].get_text()


def test_boxes_beyond_the_image_are_whole():
    """Larger than the image, and moved to the right and up."""
    theta = torch.tensor([[1.3, 0, 0.1, 0, 1.3, -0.1]])
    _, table = pictures_of_house_numbers.looks(torch.zeros(1, 3, 64, 64, dtype=torch.uint8), theta)
    drawn = np.concatenate([line.get_xydata() for line in table[0, 0].lines])
    assert drawn.max(0)[0] > 70
    for values, limits in zip(drawn.T, (table[0, 0].get_xlim(), table[0, 0].get_ylim()), strict=True):
        assert min(limits) <= values.min() < values.max() <= max(limits)
