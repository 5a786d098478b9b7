"""What a trained network says of one's own pictures."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("filelock")
pytest.importorskip("safetensors")
pytest.importorskip("matplotlib")
image_module = pytest.importorskip("PIL.Image")

from data_files import made_flock, write_splits  # noqa: E402

import spatial_transformer as st  # noqa: E402
from spatial_transformer.cli import main  # noqa: E402
from spatial_transformer.experiments import (  # noqa: E402
    bird_predictions,
    checkpoints,
    engine,
    figures,
    fine_grained_runs,
    house_number_predictions,
    house_number_runs,
    house_numbers,
    pictures_of_house_numbers,
    predicting,
)
from spatial_transformer.experiments.catalogue import EXPERIMENTS  # noqa: E402
from spatial_transformer.experiments.data import svhn  # noqa: E402
from spatial_transformer.experiments.data.bird_views import Views, photographs  # noqa: E402
from spatial_transformer.experiments.efficientnet_lite import SCALES, Features  # noqa: E402
from spatial_transformer.experiments.fine_grained_runs import BirdSet  # noqa: E402
from spatial_transformer.experiments.jobs import placed  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = {"batch": 2, "steps": 1, "curve": 1}
TINY = {"width": 0.02, **SHORT}  # of house numbers
LITE = {"backbone": "efficientnet-lite0", **SHORT}  # of birds


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    place = tmp_path_factory.mktemp("svhn")
    return svhn.load_set(write_splits(place, 4, 4))


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def flock(tmp_path_factory):
    given = made_flock(tmp_path_factory.mktemp("flock"), species=4, each=3, trained=2)
    torch.manual_seed(0)
    features = Features(SCALES["efficientnet-lite0"])
    return BirdSet("birds", given, lambda name: features)


def trained(data, name, experiment="svhn", settings=TINY):
    """The weights that the engine leaves of a cell."""
    (cell,) = (each for each in EXPERIMENTS[experiment].cells if each.name == name)
    cell = dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, **settings))
    (job,) = placed([cell], [0], Path("results"), Path("runs"))
    engine.train([job], data, torch.device("cpu"))
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


def test_a_number_is_judged_by_as_many_views_as_when_it_was_tested(numbers, monkeypatch):
    weights = trained(numbers, "128px/CNN", settings=TINY | {"views": 4, "shift": 0.3})
    views = []

    def moved(pixels, size, settings, random):
        views.append((tuple(pixels.shape), size, settings.shift))
        return pixels.float()

    monkeypatch.setattr(house_number_runs, "moved", moved)
    assert main(["predict", str(weights), picture(numbers.test.loose[0], "one.png")]) == 0
    assert views == [((1, 3, 128, 128), 128, 0.3)] * 3


@pytest.mark.parametrize(
    ("name", "views", "shape"), [("448px/2xST-CNN", 1, "whole"), ("224px/CNN", 2, "square")]
)
def test_species(name, views, shape, flock, capsys):
    """Those of the views that the settings say."""
    settings = LITE | {"views": views}
    weights = trained(flock, name, "birds", settings | {"shape": shape, "share": 0.75})
    kept = telling(weights, flock)
    test = flock.birds.split("test")
    paths = [picture(flock.birds.image(int(number)), f"{number}.png") for number in test[:2]]
    capsys.readouterr()
    assert main(["predict", str(weights), *paths, "--out", "looks.png"]) == 0
    lines = capsys.readouterr().out.splitlines()
    network = fine_grained_runs.build(predicting.cell_of(kept), flock.backbone(""), 4).eval()
    network.load_state_dict(kept.tensors)
    given = photographs(flock.birds, "test", "cpu")
    seen = Views(int(name[:3]), shape=shape, share=0.75)
    images = [seen.middle(given, torch.arange(2), mirrored=way) for way in (False, True)[:views]]
    with torch.no_grad():
        chances = sum(network(image).softmax(1) for image in images) / views
    for path, line, each in zip(paths, lines, chances, strict=False):
        best = sorted(enumerate(each.tolist()), key=lambda pair: -pair[1])[:3]
        assert line == f"{path}: " + ", ".join(
            f"Class {at + 1} ({100 * chance:.0f} %)" for at, chance in best
        )
    assert lines[2:] == (["looks.png"] if "ST" in name else [])
    assert Path("looks.png").exists() == ("ST" in name)


def telling(weights, flock):
    """The weights, changed so that what they say depends on the image: a network that was never trained says
    the same of all."""
    kept = checkpoints.load_weights(weights)
    network = fine_grained_runs.build(predicting.cell_of(kept), flock.backbone(""), 4)
    network.load_state_dict(kept.tensors)
    given = photographs(flock.birds, "train", "cpu")
    images = Views(int(kept.cell[:3])).middle(given, torch.arange(len(given)))
    with torch.no_grad():
        for _ in range(30):
            network.train()(images)  # its norms come to know what they see
        scores = network.eval()(images)
        network.classifier.weight.div_(scores.std(0).mean())
        network.classifier.bias.sub_(scores.mean(0)).div_(scores.std(0).mean())
    about = {part: getattr(kept, part) for part in ("experiment", "cell", "settings", "names")}
    checkpoints.save_weights(network.state_dict(), weights, about)
    return checkpoints.load_weights(weights)


def test_where_it_looks_is_drawn_on_the_picture(flock, monkeypatch):
    """As the network sees it, with each window where theta has it."""
    settings = LITE | {"shape": "square", "share": 0.75}
    kept = checkpoints.load_weights(trained(flock, "448px/2xST-CNN", "birds", settings))
    kept.tensors["transformer.head.weight"].zero_()
    kept.tensors["transformer.head.bias"].copy_(torch.tensor([0.1, 0.2, -0.3, 0.0]))
    image = flock.birds.image(int(flock.birds.split("test")[0]))
    (answer,), figure = bird_predictions.predict(predicting.cell_of(kept), kept, [("mine.png", image)])
    (axes,) = figure.axes
    best = answer.split(" (")[0]
    assert axes.get_xlabel() == f"mine.png\n{best}"
    views = Views(224, share=0.75)
    seen = views.middle(photographs(flock.birds, "test", "cpu"), torch.zeros(1, dtype=torch.int64))[0]
    shown = torch.from_numpy(axes.images[0].get_array().copy()).permute(2, 0, 1)
    torch.testing.assert_close(shown.float(), seen, rtol=0, atol=0.51)
    middles = [torch.from_numpy(window.get_xy()[:4]).mean(0) for window in axes.patches]
    expected = (torch.tensor([[0.1, 0.2], [-0.3, 0.0]], dtype=torch.float64) + 1) * 112 - 0.5
    torch.testing.assert_close(torch.stack(middles), expected, rtol=0, atol=1e-3)


def test_pictures_of_any_size_become_crops():
    ramp = torch.arange(100, dtype=torch.float32).expand(3, 50, 100) * 2.5
    found = house_number_predictions.resized(ramp.round().to(torch.uint8), 64)
    assert found.shape == (3, 64, 64)
    columns = (torch.arange(64) + 0.5) / 64 * 100 - 0.5  # of the picture, in the middle of each of the crop
    away = (found.float() - 2.5 * columns).abs()
    assert away[:, :, 2:-2].max() <= 1.5
    # Stripes finer than the crop's pixels, dark in the middle of each, are what they are on average.
    stripes = (torch.arange(640) % 10 < 4).to(torch.uint8).mul(255).expand(3, 640, 640)
    even = house_number_predictions.resized(stripes, 64)[:, :, 2:-2].float()
    assert (even - 0.4 * 255).abs().max() < 8
    stripes = (torch.arange(320) % 5 < 2).to(torch.uint8).mul(255)  # along either side, and 1.5 times as fine
    for image in (stripes.expand(3, 64, 320), stripes[:, None].expand(3, 320, 64)):
        even = house_number_predictions.resized(image, 64)[:, 2:-2, 2:-2].float()
        assert (even - 0.4 * 255).abs().max() < 8
    fine = (torch.arange(96) % 2).to(torch.uint8).mul(255).expand(3, 96, 96)
    assert (house_number_predictions.resized(fine, 64)[:, 2:-2, 2:-2].float() - 127.5).abs().max() < 60
    crop = torch.randint(256, (3, 64, 64), dtype=torch.uint8)
    assert torch.equal(house_number_predictions.resized(crop, 64), crop)


def test_pictures_are_upright(numbers, capsys):
    """Whichever way the camera was held: what is said is said of what the picture shows."""
    weights = trained(numbers, "64px/CNN")
    crop = numbers.test.tight[0]
    plain = picture(crop, "plain.png")
    held = image_module.Exif()
    held[0x0112] = 6  # turned by a quarter
    turned = image_module.fromarray(crop.permute(1, 2, 0).numpy()).transpose(image_module.Transpose.ROTATE_90)
    turned.save("held.png", exif=held)
    capsys.readouterr()
    assert main(["predict", str(weights), plain, "held.png"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].removeprefix("plain.png") == lines[1].removeprefix("held.png")
    torch.testing.assert_close(predicting.opened(Path("held.png")), crop)


def test_many_pictures_are_drawn_in_rows_and_the_first_of_very_many(numbers, capsys, monkeypatch):
    weights = trained(numbers, "64px/ST-CNN Single")
    name = "a picture of the number on our house.png"
    path = picture(numbers.test.tight[0], name)
    monkeypatch.setattr(house_number_predictions, "DRAWN", 11)
    monkeypatch.setattr(predicting.figures, "DRAWN", 11)
    made = []
    monkeypatch.setattr(predicting.figures, "save", lambda figure, out: made.append(figure))
    capsys.readouterr()
    assert main(["predict", str(weights), *[path] * 13]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14
    assert lines[-1] == "predictions.png (without the last 2)"
    (figure,) = made
    assert figure.get_size_inches()[0] < 13
    above, below = figure.axes[:11], figure.axes[11:]
    assert len(below) == 11
    assert {axes.get_title() for axes in above} == {"a picture…ouse.png"}
    places = [axes.get_position() for axes in above]
    assert places[8].x0 == places[0].x0 < places[1].x0
    assert places[8].y1 < below[0].get_position().y0  # under all of the first row
    assert [axes.get_ylabel() for axes in (above[0], above[1], above[8])] == [
        "input and box",
        "",
        "input and box",
    ]


def test_pictures_are_opened_one_after_the_other(numbers, monkeypatch):
    """Not all at once: photographs are large."""
    weights = trained(numbers, "64px/CNN")
    paths = [picture(crop, f"{at}.png") for at, crop in enumerate(numbers.test.tight[:3])]
    order = []
    opened, resized = predicting.opened, house_number_predictions.resized
    monkeypatch.setattr(predicting, "opened", lambda path: order.append("opened") or opened(path))
    monkeypatch.setattr(
        house_number_predictions, "resized", lambda *given: order.append("resized") or resized(*given)
    )
    assert main(["predict", str(weights), *paths]) == 0
    assert order == ["opened", "resized"] * 3


def test_pictures_that_cannot_be_read_do_not_lose_the_others(numbers, capsys):
    weights = trained(numbers, "64px/ST-CNN Single")
    first, second = (picture(numbers.test.tight[at], f"{at}.png") for at in (0, 1))
    main(["predict", str(weights), first, second])
    good = capsys.readouterr().out
    Path("text.png").write_text("no picture")
    Path("empty.png").write_bytes(b"")
    assert main(["predict", str(weights), "text.png", first, "empty.png", second]) == 1
    found = capsys.readouterr()
    assert good.endswith(found.out)  # which may begin with what was said of training
    assert found.out.splitlines()[-1] == "predictions.png"
    assert [line.split(" cannot")[0] for line in found.err.splitlines()] == [
        "stn: text.png",
        "stn: empty.png",
    ]
    assert main(["predict", str(weights), "text.png", "empty.png"]) == 1
    found = capsys.readouterr()
    assert not found.out
    assert "text.png cannot be read" in found.err
    assert "empty.png cannot be read" in found.err


@pytest.mark.parametrize("which", [0, 1])
def test_what_is_read_is_not_written_over(which, numbers, capsys):
    weights = trained(numbers, "64px/ST-CNN Single")
    read = [str(weights), picture(numbers.test.tight[0], "1.png")]
    before = Path(read[which]).read_bytes()
    link = Path("link.png")
    link.symlink_to(Path(read[which]).resolve())
    assert main(["predict", *read, "--out", str(link)]) == 2
    assert "--out must be a file of its own: link.png is one of those to read" in capsys.readouterr().err
    assert Path(read[which]).read_bytes() == before


def test_what_cannot_be_predicted(numbers, capsys, tmp_path):
    weights = trained(numbers, "64px/CNN")
    path = picture(numbers.test.tight[0], "1.png")

    def says(*given):
        capsys.readouterr()
        assert main(["predict", *map(str, given)]) == 1
        return capsys.readouterr().err

    Path("text.png").write_text("no picture")
    assert "text.png cannot be read" in says(weights, "text.png")
    assert "text.png has no weights of a trained network" in says("text.png", path)
    kept = checkpoints.load_weights(weights)
    about = {"experiment": "svhn", "cell": "64px/CNN", "settings": kept.settings}

    def changed(tensors=kept.tensors, **changes):
        checkpoints.save_weights(tensors, Path("other.safetensors"), about | changes)
        return says("other.safetensors", path)

    assert "is of no known network: '32px/CNN'" in changed(cell="32px/CNN")
    said = changed(settings=kept.settings | {"width": 0.03})
    assert "does not fit 64px/CNN" in said
    assert "size mismatch for layers" in said
    assert len(said) < 400  # and not what does not fit in every layer
    assert "other.safetensors is of no known network: width must be more than 0" in changed(
        settings=kept.settings | {"width": -1.0}
    )
    broken = kept.tensors | {"places.bias": kept.tensors["places.bias"] * math.nan}
    assert "other.safetensors is broken: it has weights that are no numbers" in changed(broken)
    assert "is of no known network" in changed(settings={"spin": 3})
    assert "is of distorted-mnist: there are predictions of svhn, svhn-augmented, birds alone" in changed(
        experiment="distorted-mnist", cell="R/FCN", settings={}
    )
    checkpoints.write({}, Path("c.safetensors"), {"run": "{}"})
    assert "it is of a run that has not ended" in says("c.safetensors", path)


def unlike(weights, width):
    """The weights of a network that looks elsewhere and answers otherwise from image to image."""
    kept = checkpoints.load_weights(weights)
    random = torch.Generator().manual_seed(5)
    for name, value in kept.tensors.items():
        if name.startswith("transformers.") and "head" in name:
            value += 0.05 * torch.randn(value.shape, generator=random)
        if name == "places.weight":
            value *= width
    return kept


def test_where_it_looks_for_a_number_is_drawn(numbers):
    """The box of all transforms together, what lies in it, and what is read."""
    kept = unlike(trained(numbers, "64px/ST-CNN Multi", settings=TINY | {"width": 0.05}), 50)
    cell, crops = predicting.cell_of(kept), numbers.test.tight[:3]
    pictures = [(f"{number}.png", crop) for number, crop in enumerate(crops)]
    _, figure = house_number_predictions.predict(cell, kept, pictures)
    network = house_number_runs.build(cell)
    network.load_state_dict(kept.tensors)
    with torch.no_grad():
        scores, theta = network(house_numbers.normalised(crops), return_theta=True)
    assert (theta[0] - theta[1]).abs().max() > 1e-3
    read = [pictures_of_house_numbers.written(label) for label in scores.argmax(2)]
    assert [axes.get_xlabel() for axes in figure.axes[3:]] == read
    for at, together in enumerate(house_numbers.multiplied_out(theta).flatten(1)):
        drawn = np.concatenate([line.get_xydata()[[0, -1]] for line in figure.axes[at].lines])
        for corner in ((st.Affine().box(together[None])[0] + 1) * 32 - 0.5).numpy():
            assert np.abs(drawn - corner).max(1).min() < 1e-2
        seen = pictures_of_house_numbers.through(crops[at : at + 1], together[None])[0]
        assert np.array_equal(figure.axes[3 + at].images[0].get_array(), seen.permute(1, 2, 0))
    assert [text.get_text() for text in figure.texts] == ["ST-CNN Multi", "64px"]


def test_an_answer_does_not_depend_on_the_pictures_before(numbers, monkeypatch):
    """The views that it is judged by are drawn anew."""
    kept = checkpoints.load_weights(trained(numbers, "64px/CNN", settings=TINY | {"views": 3, "shift": 0.3}))
    stands, judged = [], house_number_runs.judged

    def noted(network, cell, pixels, random):
        stands.append(random.state())
        return judged(network, cell, pixels, random)

    monkeypatch.setattr(house_number_runs, "judged", noted)
    pictures = [("one.png", numbers.test.tight[0])] * 2
    house_number_predictions.predict(predicting.cell_of(kept), kept, pictures)
    assert stands == [0, 0]


def test_a_picture_of_no_number(numbers):
    kept = checkpoints.load_weights(trained(numbers, "64px/CNN"))
    kept.tensors["places.bias"].view(5, 11)[:, svhn.NULL] = 100.0
    pictures = [("one.png", numbers.test.tight[0])]
    (answer,), _ = house_number_predictions.predict(predicting.cell_of(kept), kept, pictures)
    assert answer == "no number (100 % sure)"


def test_each_picture_is_drawn_with_its_own_windows(flock, monkeypatch):
    settings = LITE | {"views": 1}
    kept = telling(trained(flock, "224px/2xST-CNN", "birds", settings), flock)
    random = torch.Generator().manual_seed(0)
    kept.tensors["transformer.head.weight"].normal_(std=0.1, generator=random)
    cell = predicting.cell_of(kept)
    pictures = [(f"{at} {'a' * 40}.png", flock.birds.image(at)) for at in (0, 4, 8)]
    monkeypatch.setattr(bird_predictions, "DRAWN", 2)
    answers, figure = bird_predictions.predict(cell, kept, pictures)
    assert (len(answers), len(figure.axes)) == (3, 2)
    seen = []
    for axes, one, answer in zip(figure.axes, pictures, answers, strict=False):
        (other,) = bird_predictions.predict(cell, kept, [one])[1].axes
        assert np.array_equal(axes.images[0].get_array(), other.images[0].get_array())
        seen.append([window.get_xy() for window in axes.patches])
        assert np.array_equal(seen[-1], [window.get_xy() for window in other.patches])
        assert axes.get_xlabel() == f"{figures.shortened(one[0], 32)}\n{answer.split(' (')[0]}"
    assert not np.allclose(*seen, atol=1)


def test_fewer_species_than_are_named(tmp_path):
    given = made_flock(tmp_path / "two", species=2, each=3, trained=2)
    features = Features(SCALES["efficientnet-lite0"])
    two = BirdSet("birds", given, lambda name: features)
    kept = checkpoints.load_weights(trained(two, "224px/CNN", "birds", LITE))
    (answer,), _ = bird_predictions.predict(predicting.cell_of(kept), kept, [("1.png", given.image(0))])
    assert answer.count("Class") == 2
