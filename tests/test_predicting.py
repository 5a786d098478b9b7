"""What a trained network says of one's own pictures."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

pytest.importorskip("filelock")
pytest.importorskip("safetensors")
pytest.importorskip("matplotlib")
image_module = pytest.importorskip("PIL.Image")

from data_files import write_numbers  # noqa: E402

from spatial_transformer.cli import main  # noqa: E402
from spatial_transformer.experiments import (  # noqa: E402
    checkpoints,
    engine,
    house_number_predictions,
    house_number_runs,
    house_numbers,
    predicting,
)
from spatial_transformer.experiments.catalogue import EXPERIMENTS  # noqa: E402
from spatial_transformer.experiments.data import svhn  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = {"width": 0.02, "batch": 2, "steps": 1, "curve": 1}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    place = tmp_path_factory.mktemp("svhn")
    write_numbers(place / "train", 4)
    write_numbers(place / "test", 4, seed=1)
    return svhn.load_set(place)


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def trained(numbers, name):
    """The weights that the engine leaves of a cell."""
    (cell,) = (each for each in EXPERIMENTS["svhn"].cells if each.name == name)
    cell = dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, **TINY))
    (job,) = engine.jobs([cell], [0], Path("results"), Path("runs"))
    engine.train([job], numbers, torch.device("cpu"))
    return job.weights


def picture(pixels, path):
    image_module.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)
    return str(path)


def said_of(network, pixels):
    """The number and its probability, by hand."""
    with torch.no_grad():
        (scores,) = network(house_numbers.normalised(pixels[None]))
    chances = [float(place.softmax(0).max()) for place in scores]
    number = "".join(str(int(place.argmax())) for place in scores if int(place.argmax()) != 10)
    return number, torch.tensor(chances).prod().item()


@pytest.mark.parametrize("name", ["64px/ST-CNN Multi", "128px/CNN"])
def test_the_command(name, numbers, capsys):
    weights = trained(numbers, name)
    size = int(name.split("px")[0])
    crops = numbers.test.of(size)[:2]
    paths = [picture(crop, f"{at}.png") for at, crop in enumerate(crops)]
    capsys.readouterr()
    assert main(["predict", str(weights), *paths]) == 0
    lines = capsys.readouterr().out.splitlines()
    kept = checkpoints.load_weights(weights)
    assert (kept.experiment, kept.cell, kept.settings["width"]) == ("svhn", name, 0.02)
    network = house_number_runs.build(predicting.cell_of(kept))
    network.load_state_dict(kept.tensors)
    for path, crop, line in zip(paths, crops, lines, strict=False):
        number, chance = said_of(network, crop)
        assert line == f"{path}: {number or 'no number'} ({100 * chance:.0f} % sure)"
    drawn = Path("predictions.png")
    assert lines[2:] == ([str(drawn)] if "ST" in name else [])
    assert drawn.exists() == ("ST" in name)


def test_pictures_of_any_size_become_crops():
    ramp = torch.arange(100, dtype=torch.float32).expand(3, 50, 100) * 2.5
    found = house_number_predictions.resized(ramp.round().to(torch.uint8), 64)
    assert found.shape == (3, 64, 64)
    columns = (torch.arange(64) + 0.5) / 64 * 100 - 0.5  # of the picture, in the middle of each of the crop
    away = (found.float() - 2.5 * columns).abs()
    assert away[:, :, 2:-2].max() <= 1.5
    crop = torch.randint(256, (3, 64, 64), dtype=torch.uint8)
    assert torch.equal(house_number_predictions.resized(crop, 64), crop)


def test_what_cannot_be_predicted(numbers, capsys, tmp_path):
    weights = trained(numbers, "64px/CNN")
    path = picture(numbers.test.tight[0], "1.png")

    def says(*given):
        capsys.readouterr()
        assert main(["predict", *map(str, given)]) == 1
        return capsys.readouterr().err

    Path("text.png").write_text("no picture")
    assert "text.png cannot be read" in says(weights, "text.png")
    assert "nowhere.png" in says(weights, "nowhere.png")
    assert "No such file" in says("nothing.safetensors", path)
    assert "text.png has no weights of a trained network" in says("text.png", path)
    kept = checkpoints.load_weights(weights)
    about = {"experiment": "svhn", "cell": "64px/CNN", "settings": kept.settings}

    def changed(tensors=kept.tensors, **changes):
        checkpoints.save_weights(tensors, Path("other.safetensors"), about | changes)
        return says("other.safetensors", path)

    assert "is of no known network: '32px/CNN'" in changed(cell="32px/CNN")
    assert "does not fit 64px/CNN" in changed(settings=kept.settings | {"width": 0.03})
    assert "is of no known network" in changed(settings={"spin": 3})
    assert "is of distorted-mnist: there are predictions of svhn, svhn-augmented alone" in changed(
        experiment="distorted-mnist", cell="R/FCN", settings={}
    )
    checkpoints.write({}, Path("c.safetensors"), {"run": "{}"})
    assert "it is of a run that has not ended" in says("c.safetensors", path)
