"""``stn localise``: it finds what pictures have in common, and says what is wrong with a folder."""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

Image = pytest.importorskip("PIL.Image")
ImageDraw = pytest.importorskip("PIL.ImageDraw")

from spatial_transformer.cli import main  # noqa: E402
from spatial_transformer.experiments import localise  # noqa: E402
from spatial_transformer.experiments.colocalisation import overlap  # noqa: E402
from spatial_transformer.experiments.data.random_numbers import RandomNumbers  # noqa: E402

WIDTH, HEIGHT, WIDE, HIGH = 160, 120, 54, 40


def made(folder, count, things=True, others=0):
    """Noise with a yellow disc and a blue square in it, if things are asked for; where they are, by file.

    others: so many small squares of any colour anywhere, no two pictures alike.
    """
    folder.mkdir()
    random = np.random.default_rng(0)
    truth = {}
    for number in range(count):
        picture = Image.fromarray(random.integers(0, 90, (HEIGHT, WIDTH, 3), dtype=np.uint8))
        x, y = int(random.integers(0, WIDTH - WIDE)), int(random.integers(0, HEIGHT - HIGH))
        pen = ImageDraw.Draw(picture)
        for _ in range(others):
            left, top = (int(random.integers(0, extent - 12)) for extent in (WIDTH, HEIGHT))
            pen.rectangle((left, top, left + 12, top + 12), fill=tuple(random.integers(0, 256, 3).tolist()))
        if things:
            pen.ellipse((x + 3, y + 3, x + 50, y + 36), fill=(250, 220, 60))
            pen.rectangle((x + 20, y + 12, x + 33, y + 27), fill=(20, 40, 220))
        picture.save(folder / f"{number:02d}.png")
        truth[f"{number:02d}.png"] = [x, y, x + WIDE - 1, y + HIGH]
    return truth


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch, one_thread):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 8])
def test_it_finds_what_pictures_have_in_common(others, capsys):
    truth = made(Path("folder"), 24, others=others)
    assert main(["localise", "folder", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "24 pictures of folder, encoder pixels, 600 steps" in said
    assert "nothing in common" not in said
    found = json.loads(Path("localised/boxes.json").read_text())
    assert (found["steps"], found["encoder"], found["seed"]) == (600, "pixels", 0)
    assert found["files"].keys() == truth.keys()
    assert found["alike"] > localise.COMMON > 60 > found["alike by chance"]
    overlaps = [
        float(overlap(torch.tensor(found["files"][name]), torch.tensor(box).float()))
        for name, box in truth.items()
    ]
    assert sum(each > 0.5 for each in overlaps) >= 14, overlaps


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 8])
def test_pictures_that_have_nothing_in_common_are_said_to(others, capsys):
    """The same noise with nothing in it, or nothing but squares of any colour."""
    made(Path("folder"), 24, things=False, others=others)
    assert main(["localise", "folder", "--device", "cpu"]) == 0
    found = json.loads(Path("localised/boxes.json").read_text())
    if not others:
        assert abs(found["alike"] - found["alike by chance"]) < 15
    last = capsys.readouterr().out.splitlines()[-1]
    said = [float(number) for number in re.findall(r"(\d+) %", last)]
    assert said == pytest.approx([found["alike"], found["alike by chance"]], abs=0.6)
    assert ": the pictures may have nothing in common that this encoder sees" in last


def test_how_often_crops_are_alike():
    """Crops of the same thing win all comparisons, and crops of nothing half of them; those that are in one
    colour none."""
    generator = torch.Generator().manual_seed(0)
    images = 0.3 * torch.randn(12, 3, 84, 84, generator=generator)
    thing, encode = torch.randn(3, 20, 20, generator=generator), localise.Pixels()
    corner = torch.randint(0, 64, (12, 2), generator=generator)
    for image, (x, y) in zip(images, corner.tolist(), strict=True):
        image[:, y : y + 20, x : x + 20] = thing
    on = torch.cat([torch.full((12, 1), 20 / 84), (corner + 10) / 42 - 1], dim=1)
    off = torch.cat([on[:, :1], torch.where(on[:, 1:] > 0, on[:, 1:] - 0.8, on[:, 1:] + 0.8)], dim=1)

    def found(images, theta):
        return localise.alike(images, theta, encode, RandomNumbers(0))

    assert found(images, on) > 97  # but for patches that are nearly the crop
    assert 30 < found(images, off) < 70
    assert found(torch.zeros_like(images), on) == 0


def test_crops_a_little_beside_one_another_are_alike():
    """Of a thing on noise: more than crops without it, though half of their pixels differ."""
    generator = torch.Generator().manual_seed(0)
    crops = torch.randn(3, 3, localise.CROP, localise.CROP, generator=generator)
    crops[0, :, 8:20, 8:20] += 2
    crops[1, :, 11:23, 11:23] += 2
    one, beside, without = localise.Pixels()(crops)
    assert (one - beside).norm() < 0.6 * (one - without).norm()
    torch.testing.assert_close(one.norm(), torch.tensor(1.0))


def test_boxes_are_in_the_pixels_of_the_original_and_drawn_there(monkeypatch):
    made(Path("folder"), 8)
    boxes = torch.tensor([[-0.5, 0.0, 0.25, 1.0]]).repeat(8, 1)
    monkeypatch.setattr(localise, "trained", lambda *given: localise.Found(boxes, 1, 99.0, 40.0))
    assert main(["localise", "folder", "--out", "out"]) == 0
    found = json.loads(Path("out/boxes.json").read_text())
    assert found["files"]["03.png"] == [WIDTH / 4, HEIGHT / 2, WIDTH * 5 / 8, HEIGHT]
    with Image.open("out/03.png.png") as drawn:
        assert drawn.size == (WIDTH, HEIGHT)
        colour = tuple(int(localise.LINE[at : at + 2], 16) for at in (1, 3, 5))
        assert drawn.getpixel((WIDTH // 4, HEIGHT * 3 // 4)) == colour
        assert drawn.getpixel((WIDTH // 4 + 10, HEIGHT * 3 // 4)) != colour


def test_all_that_cannot_be_read_is_named_and_what_is_no_picture_left_alone(capsys):
    made(Path("folder"), 9)
    Path("folder/sub.png").mkdir()
    Path("folder/._00.png").write_bytes(b"what a Mac leaves beside a picture")
    assert len(localise.read(Path("folder"))) == 9
    for name in ("03.png", "05.png"):
        Path("folder", name).write_bytes(b"no picture")
    assert main(["localise", "folder"]) == 1
    said = capsys.readouterr().err
    assert all(f"folder{os.sep}{name} cannot be read as a picture" in said for name in ("03.png", "05.png"))


def test_boxes_are_drawn_tight_about_what_crops_have_in_common():
    """Crops of the size of 0.3, with what they have in common in their upper left part."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(30, 3, 84, 84, generator=generator) - 1.5  # a background that is not 0
    corner = torch.randint(4, 50, (30, 2), generator=generator)
    for image, (x, y) in zip(images, corner.tolist(), strict=True):
        image[:, y : y + 14, x : x + 20] = torch.tensor([3.0, 0.0, -1.0])[:, None, None]
    true = torch.cat([corner, corner + torch.tensor([20, 14])], dim=1) / 42 - 1
    crops = torch.cat([torch.full((30, 1), 0.3), (true[:, :2] + true[:, 2:]) / 2 + 0.1], dim=1)
    found = localise.tightened(images, crops)
    assert (found - true).abs().max() * 42 < 1.5  # pixels
    blank = torch.zeros(30, 3, 84, 84)
    assert torch.equal(localise.tightened(blank, crops), localise.box(crops))


def test_a_seed_gives_the_same_boxes_again():
    made(Path("folder"), 8)
    for out, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        main(["localise", "folder", "--steps", "5", "--device", "cpu", "--seed", seed, "--out", out])
    first, again, other = (json.loads(Path(f"{out}/boxes.json").read_text())["files"] for out in "abc")
    assert first == again != other


def test_a_stop_writes_what_there_is(monkeypatch):
    made(Path("folder"), 8)

    @contextmanager
    def soon():
        looks = iter(range(3))
        yield lambda: next(looks, None) is None

    monkeypatch.setattr(localise, "asked_to_stop", soon)
    assert main(["localise", "folder", "--steps", "100000", "--device", "cpu"]) == 130
    found = json.loads(Path("localised/boxes.json").read_text())
    assert (found["steps"], len(found["files"])) == (3, 8)


def test_folders_that_cannot_work_are_named(capsys):
    assert main(["localise", "nowhere"]) == 1
    assert "nowhere is no folder" in capsys.readouterr().err
    made(Path("few"), 3)
    assert main(["localise", "few"]) == 1
    assert "few has 3 pictures" in capsys.readouterr().err
    made(Path("broken"), 8)
    Path("broken/05.png").write_bytes(b"no picture")
    assert main(["localise", "broken"]) == 1
    assert f"broken{os.sep}05.png cannot be read as a picture" in capsys.readouterr().err
    made(Path("good"), 8)
    assert main(["localise", "good", "--out", "good"]) == 2
    assert "--out must be another folder than good" in capsys.readouterr().err
    Path("file").write_text("")
    with pytest.raises(SystemExit, match="2"):
        main(["localise", "good", "--out", "file"])
    assert "--out: must be a folder: file is a file" in capsys.readouterr().err
    assert not Path("localised").exists()
