"""Paths on the command line: what cannot be written or read is refused by name, before any work."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from spatial_transformer.cli import main
from spatial_transformer.experiments import engine, figures, localise
from spatial_transformer.experiments.arguments import file_to_read, file_to_write, folder, folder_to_write
from spatial_transformer.experiments.data import contact_sheets

# All options of paths.
FOLDERS_TO_WRITE = [
    ["train", "distorted-mnist", "--results"],
    ["train", "distorted-mnist", "--runs"],
    ["draw", "distorted-mnist", "--out"],
    ["quickstart", "--out"],
    ["localise", "pictures", "--out"],
]
FILES_TO_WRITE = [
    ["table", "distorted-mnist", "--out"],
    ["predict", "given", "given", "--out"],
    ["data", "show", "uci-digits", "--out"],
]
FOLDERS_TO_READ = [
    ["table", "distorted-mnist", "--results"],
    ["draw", "distorted-mnist", "--results"],
    ["train", "distorted-mnist", "--data-dir"],
    ["draw", "distorted-mnist", "--data-dir"],
    ["quickstart", "--data-dir"],
    *(["data", *action, "--data-dir"] for action in (["list"], ["fetch", "mnist"], ["verify"])),
    ["data", "show", "uci-digits", "--data-dir"],
]
FILES_TO_READ = [["predict"], ["predict", "given"]]


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """A file and a folder, beside nothing else."""
    monkeypatch.chdir(tmp_path)
    Path("given").write_text("something")
    Path("here").mkdir()


@pytest.fixture
def no_work(monkeypatch):
    """Whoever begins to train has not looked at the paths."""

    def began(*given, **options):
        raise AssertionError("it trains")

    monkeypatch.setattr(engine, "train", began)
    monkeypatch.setattr(localise, "trained", began)


def closed():
    """A folder that nobody may write to: for root there is none but of the kernel's own."""
    if os.name != "posix" or (os.geteuid() == 0 and not Path("/proc/self").is_dir()):
        pytest.skip("every folder can be written to")
    if os.geteuid() == 0:
        return Path("/proc/self")
    Path("closed").mkdir(mode=0o500)
    return Path("closed")


def says(capsys, *arguments):
    """What a command line is refused with."""
    with pytest.raises(SystemExit, match="2"):
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.splitlines()[-1]


def left():
    return sorted(str(path) for path in Path().rglob("*"))


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("command", FOLDERS_TO_WRITE + FOLDERS_TO_READ, ids=" ".join)
def test_a_folder_is_no_file_and_below_none(command, capsys):
    assert says(capsys, *command, "given").endswith(": must be a folder: given is a file")
    below = Path("given", "more", "below")
    expected = f": must be a folder: {below} would lie in given, which is a file"
    assert says(capsys, *command, below).endswith(expected)
    assert left() == ["given", "here"]


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("command", FOLDERS_TO_WRITE, ids=" ".join)
def test_a_folder_that_cannot_be_written_to(command, capsys):
    place = closed()
    assert f": {place} cannot be written to: " in says(capsys, *command, place)
    deeper = place / "new" / "newer"
    assert f": {deeper} cannot be made in {place}: " in says(capsys, *command, deeper)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("command", FILES_TO_WRITE, ids=" ".join)
def test_a_file_is_no_folder_and_below_no_file(command, capsys):
    assert says(capsys, *command, "here").endswith("--out: must be a file: here is a folder")
    below = Path("given", "new.png")
    expected = f"--out: must be a file: {below} would lie in given, which is a file"
    assert says(capsys, *command, below).endswith(expected)
    place = closed()
    assert f"--out: {place} cannot be written to: " in says(capsys, *command, place / "new.png")
    deeper = place / "new"
    assert f"--out: {deeper} cannot be made in {place}: " in says(capsys, *command, deeper / "newer.png")


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("command", FILES_TO_READ, ids=" ".join)
def test_a_file_to_read_is_there(command, capsys):
    assert says(capsys, *command, "here", "given").endswith(": must be a file: here is a folder")
    assert says(capsys, *command, "nowhere", "given").endswith(": must be a file: there is no nowhere")


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("command", FOLDERS_TO_WRITE + FOLDERS_TO_READ + FILES_TO_WRITE, ids=" ".join)
def test_names_that_no_file_can_have(command, capsys):
    assert says(capsys, *command, "").endswith(": must be a path, got ''")
    long = "long" * 200
    assert f": {long}: " in says(capsys, *command, long)


@pytest.mark.parametrize("command", FILES_TO_WRITE[1:], ids=" ".join)
@pytest.mark.parametrize("name", ["sheet.txt", "sheet", ".png", "sheet.png.gif"])
def test_pictures_have_names_of_pictures(command, name, capsys):
    expected = f"--out: the name of a picture must end in .png, .jpg, .jpeg, .webp, got {name!r}"
    assert says(capsys, *command, name).endswith(expected)
    assert left() == ["given", "here"]


def test_pictures_are_what_their_names_say(capsys):
    image_module = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    made = figures.figure(2, 2)
    for name, kind in {"a.png": "PNG", "b.JPG": "JPEG", "c.jpeg": "JPEG", "d.webp": "WEBP"}.items():
        assert main(["data", "show", "uci-digits", "--out", name]) == 0
        assert capsys.readouterr().out.startswith(f"{name}: UCI digits")
        for path in (Path(name), figures.save(made, Path("here", name))):
            with image_module.open(path) as picture:
                assert picture.format == kind
    with pytest.raises(ValueError, match=r"must end in \.png, .*got 'sheet\.txt'"):
        contact_sheets.show("uci-digits", contact_sheets.Asked(), Path("sheet.txt"))


@pytest.mark.usefixtures("no_work")
def test_a_default_is_checked_too(capsys):
    Path("results").write_text("")
    assert "--results: must be a folder: results is a file" in says(capsys, "train", "distorted-mnist")


def test_what_can_be_written_is_not_made_yet():
    for good in ("here", "new", os.path.join("here", "new", "newer"), os.path.abspath("new"), "."):
        assert folder(good) == folder_to_write(good) == Path(good)
    for good in ("given", "new.png", os.path.join("here", "new", "newer.png")):
        assert file_to_write(good) == Path(good)
    assert file_to_read("given") == Path("given")
    assert left() == ["given", "here"]


def test_folders_that_are_only_read_may_be_closed():
    place = closed()
    assert folder(str(place)) == place
    with pytest.raises(ArgumentTypeError):
        folder_to_write(str(place))


@pytest.mark.skipif(os.name != "posix", reason="links need rights elsewhere")
def test_links():
    Path("good").symlink_to("here")
    assert folder_to_write("good") == Path("good")
    Path("broken").symlink_to("nowhere")
    for kind in (folder, folder_to_write, file_to_write, file_to_read):
        with pytest.raises(ArgumentTypeError, match="broken is neither a file nor a folder"):
            kind("broken")


def test_what_the_file_system_says_later_is_of_a_path(capsys):
    """Deeper in a folder that is good there may be anything."""
    train = ["train", "distorted-mnist", "--digits", "packaged", "--model", "FCN", "--data", "R", "batch=2"]
    Path("results").mkdir()
    Path("results/distorted-mnist").write_text("")
    assert main([*train, "--device", "cpu", "steps=1"]) == 1
    assert f"stn: {Path('results/distorted-mnist')}: " in capsys.readouterr().err
    assert main(["table", "distorted-mnist", "--brief", "--out", "table.md"]) == 0
    Path("results/distorted-mnist").unlink()
    record = Path("results/distorted-mnist/R-FCN-seed0.json")
    record.mkdir(parents=True)
    assert main(["table", "distorted-mnist"]) == 1
    assert capsys.readouterr().err == f"stn: {record}: must be a file, and is a folder\n"
