"""House numbers: the official formats, written small, whole and broken."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import SVHN_ROWS, box, write_numbers, write_splits, write_svhn

from spatial_transformer.experiments.data import archives, places, svhn
from spatial_transformer.experiments.data import caches as caching

pytest.importorskip("filelock")
Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch, tmp_path):
    monkeypatch.delenv(places.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def load(folder, split="train"):
    return svhn.load(split, folder, say=lambda line: None)


def nothing_half_written(folder):
    return not [path for path in folder.rglob("*") if path.name.endswith((".part", ".npy", ".npz"))]


# What is read


@pytest.mark.parametrize("mat", [False, True])
@pytest.mark.parametrize("where", ["svhn/train", "train"])
def test_a_folder(tmp_path, mat, where):
    write_svhn(tmp_path / where, mat=mat)
    found = load(tmp_path)
    assert found.labels.tolist() == [
        [1, 9, 10, 10, 10],
        [0, 10, 10, 10, 10],
        [1, 2, 3, 4, 5],
        [7, 3, 10, 10, 10],  # as they are filed, whatever their left edges
    ]
    assert found.lengths.tolist() == [2, 1, 5, 2]
    assert found.names == ["1.png", "2.png", "3.png", "4.png"]
    assert found.loose.shape == (4, 3, 128, 128)
    assert found.tight.shape == (4, 3, 64, 64)
    assert found.left_out == []


def test_mat_and_json_say_the_same(tmp_path):
    entries = [
        svhn.read_structure(svhn.structure_file(write_svhn(tmp_path / name, mat=name == "mat")))
        for name in ("mat", "json")
    ]
    assert entries[0] == entries[1]


@pytest.mark.parametrize("kind", [".tar.gz", ".tar"])
def test_an_archive(tmp_path, kind):
    folder = write_svhn(tmp_path / "made" / "test", mat=True)
    (tmp_path / "data/svhn").mkdir(parents=True)
    with tarfile.open(tmp_path / f"data/svhn/test{kind}", "w:gz" if kind == ".tar.gz" else "w") as tar:
        tar.add(folder, "test")
    assert load(tmp_path / "data", "test").names == ["1.png", "2.png", "3.png", "4.png"]
    said = []
    svhn.load("test", tmp_path / "data", say=said.append)
    assert said == []  # neither unpacked nor cropped again


def test_which_of_several_is_read(tmp_path):
    """Folders come before archives."""
    for count, place in enumerate(("svhn", "SVHN", "."), 1):
        write_svhn(tmp_path / place / "train", SVHN_ROWS[:count])
    with tarfile.open(tmp_path / "svhn/train.tar", "w") as tar:
        tar.add(tmp_path / "train", "train")
    for count, place in enumerate(("svhn", "SVHN", "."), 1):
        assert len(load(tmp_path).labels) == count
        shutil.rmtree(tmp_path / place / "train")


@pytest.mark.parametrize("mode", ["L", "P", "RGBA"])
def test_pictures_that_are_not_rgb(tmp_path, mode):
    folder = write_svhn(tmp_path / "train")
    Image.new("RGB", (60, 40), (102, 102, 102)).convert(mode).save(folder / "1.png")
    assert (load(tmp_path).loose[0] == 102).all()


def test_an_archive_that_was_replaced_is_read_anew(tmp_path):
    folder = write_svhn(tmp_path / "made" / "test")

    def archived(name):
        with tarfile.open(tmp_path / "test.tar", "w") as tar:
            tar.add(folder, name)

    archived("elsewhere")
    with pytest.raises(svhn.SvhnError, match="neither"):
        load(tmp_path, "test")
    archived("test")
    assert len(load(tmp_path, "test").labels) == 4
    (folder / "digitStruct.json").write_text(json.dumps(SVHN_ROWS[:2]))
    archived("test")
    assert len(load(tmp_path, "test").labels) == 2
    (tmp_path / "test.tar").unlink()
    assert len(load(tmp_path, "test").labels) == 2  # what was unpacked is enough


def test_an_archive_that_would_write_elsewhere(tmp_path):
    folder = write_svhn(tmp_path / "made" / "test")
    with tarfile.open(tmp_path / "test.tar.gz", "w:gz") as tar:
        tar.add(folder, "test")
        tar.add(folder / "1.png", "../outside.png")
    with pytest.raises(archives.ArchiveError, match="leaves its folder"):
        load(tmp_path, "test")
    assert not (tmp_path.parent / "outside.png").exists()
    assert not (tmp_path / "svhn/unpacked/test").exists()


def test_the_conversion_is_read_first(tmp_path):
    """It is read in a second and not in a minute."""
    folder = write_svhn(tmp_path / "train")
    (folder / "digitStruct.mat").write_bytes(b"not opened")
    assert len(load(tmp_path).labels) == 4


@pytest.mark.parametrize("broken", [False, True])
def test_threads_are_as_many_as_before(tmp_path, broken):
    torch.set_num_threads(2)  # the fixture puts back what there was
    folder = write_svhn(tmp_path / "train")
    if broken:
        (folder / "3.png").write_bytes(b"")
    with pytest.raises(svhn.SvhnError) if broken else contextlib.nullcontext():
        load(tmp_path)
    assert torch.get_num_threads() == 2


def test_it_says_where_it_looked(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"no extra or extra\.tar\.gz.*{tmp_path}"):
        load(tmp_path, "extra")
    with pytest.raises(ValueError, match="split must be one of train, test, extra, got 'valid'"):
        load(tmp_path, "valid")


# Crops


def test_the_crop_is_the_grown_box(tmp_path):
    """On ramps the values tell where a pixel was read: at its centre, in the image's pixels."""
    write_svhn(
        tmp_path / "train", [{"filename": "1.png", "boxes": [box(1, 24, 14, 6, 8), box(2, 30, 16, 6, 8)]}]
    )
    found = load(tmp_path)
    along = (torch.arange(128) + 0.5) / 128 - 0.5
    x = 30 + along * 12 * 2.6 - 0.5  # the boxes' middle is (30, 19), their extent 12 x 10
    y = 19 + along * 10 * 2.6 - 0.5
    torch.testing.assert_close(found.loose[0, 0, 64].float(), 4 * x, rtol=0, atol=0.51)
    torch.testing.assert_close(found.loose[0, 1, :, 64].float(), 6 * y, rtol=0, atol=0.51)
    assert torch.equal(found.tight, found.loose[:, :, 32:96, 32:96])


def test_the_box_around_all_digits():
    """Which need not be in reading order."""
    boxes = (svhn.Box(7, 30, 8, 8, 20), svhn.Box(3, 2, 5, 8, 30), svhn.Box(1, 12, 9, 5, 6))
    assert svhn.around(svhn.Entry("1.png", boxes)) == (2, 5, 38, 35)


def test_the_boxes_lie_about_their_digits_in_the_crop(tmp_path):
    """Read off the ramps at a box's corners the crop has the box's corners of the picture."""
    rows = [
        {"filename": "1.png", "boxes": [box(1, 24, 14, 6, 8), box(2, 30, 16, 7, 9), box(3, 38, 13, 5, 8)]},
        {"filename": "2.png", "boxes": [box(4, 28, 16, 6, 10)]},
    ]
    write_svhn(tmp_path / "train", rows)
    found = load(tmp_path)
    assert found.boxes.shape == (2, 5, 4)
    corners = found.boxes.unflatten(2, (2, 2))  # [2, 5, 2, (x, y)]
    seen = torch.nn.functional.grid_sample(found.loose.float(), corners, align_corners=False)
    for number, row in enumerate(rows):
        for place, each in enumerate(row["boxes"]):
            left, top = each["left"], each["top"]
            right, bottom = left + each["width"], top + each["height"]
            # The ramps are 4 and 6 levels a pixel, whose centre is half a pixel from its edge.
            wanted = torch.tensor([[left, right], [top, bottom]]) - 0.5
            read = seen[number, :2, place] / torch.tensor([[4.0], [6.0]])
            torch.testing.assert_close(read, wanted, rtol=0, atol=0.15)
    assert found.boxes[0, 3:].count_nonzero() == found.boxes[1, 1:].count_nonzero() == 0


def test_borders_are_replicated(tmp_path):
    write_svhn(tmp_path / "train", [{"filename": "1.png", "boxes": [box(1, 0, 0, 60, 40)]}])
    found = load(tmp_path).loose[0]
    assert found[0, :, :30].max() == 0  # x ramps up from the left edge
    assert found[0, :, -30:].min() == 59 * 4
    assert found[1, -30:].min() == 39 * 6


@pytest.mark.parametrize(("wide", "high"), [(400, 300), (20, 400)])
def test_a_large_image_is_smoothed(tmp_path, wide, high):
    """Stripes of a pixel along the shorter side, seen at a quarter of the size or less, are grey."""
    rows = [{"filename": "1.png", "boxes": [box(1, 0, 0, wide, high)]}]
    folder = write_svhn(tmp_path / "train", rows, size=(wide, high))
    stripes = np.zeros((high, wide, 3), np.uint8)
    stripes[(slice(None), slice(None, None, 2)) if wide > high else slice(None, None, 2)] = 255
    Image.fromarray(stripes).save(folder / "1.png")
    middle = load(tmp_path).loose[0, :, 54:74, 54:74].float()
    assert (middle - 127.5).abs().max() < 20


# What is left out, and what is an error


@pytest.mark.parametrize(
    ("boxes", "reason"),
    [
        ([box(1, 1 + 5 * i, 2, 4, 9) for i in range(6)], "6 digits"),
        ([], "no digit"),
        ([box(1, 5, 5, 0, 10)], "a box without area"),
        ([box(1, 5, 5, 10, -2)], "a box without area"),
        ([box(1, 5, 5, 1e-16, 10)], "a box without area"),
        ([box(1, float("nan"), 5, 10, 10)], "a box without area"),
        ([box(1, 60, 5, 10, 10)], "a box outside the image"),
        ([box(1, 5, 40, 10, 10)], "a box outside the image"),
        ([box(1, -10, 5, 10, 20)], "a box outside the image"),
        ([box(1, 5, -10, 10, 10)], "a box outside the image"),
        ([box(1, 5, -10, 20, 10)], "a box outside the image"),
    ],
)
def test_what_is_left_out_is_counted(tmp_path, boxes, reason):
    write_svhn(tmp_path / "train", [{"filename": "9.png", "boxes": boxes}, *SVHN_ROWS])
    found = load(tmp_path)
    assert found.left_out == [f"9.png: {reason}"]
    assert found.names == ["1.png", "2.png", "3.png", "4.png"]
    assert found.loose.shape[0] == len(found.labels) == 4


@pytest.mark.parametrize(
    ("far", "size"), [(box(1, -3, 3, 1e9, 20), (60, 40)), (box(1, 3, -3, 20, 1e9), (40, 60))]
)
def test_a_box_far_larger_than_its_image_takes_no_more_time(tmp_path, monkeypatch, far, size):
    limits, warp = [], svhn.sampling.warp

    def seen(*arguments, antialias, **options):
        limits.append(antialias)
        return warp(*arguments, antialias=antialias, **options)

    monkeypatch.setattr(svhn.sampling, "warp", seen)
    write_svhn(tmp_path / "train", [{"filename": "1.png", "boxes": [far]}], size=size)
    assert load(tmp_path).left_out == []
    assert limits == [2]  # 2.6 images of 60 pixels, for 128


def test_an_image_of_absurd_size_is_named(tmp_path, monkeypatch):
    write_svhn(tmp_path / "train")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(svhn.SvhnError, match=r"1\.png cannot be read: .*exceeds limit"):
        load(tmp_path)
    assert nothing_half_written(tmp_path)


def test_a_name_that_is_no_text(tmp_path):
    folder = write_svhn(tmp_path / "train")
    (folder / "digitStruct.json").write_text(json.dumps([{**SVHN_ROWS[0], "filename": 7}]))
    with pytest.raises(svhn.SvhnError, match="1 of 1 images are missing"):
        load(tmp_path)


def test_a_box_that_sticks_out_is_kept(tmp_path):
    write_svhn(tmp_path / "train", [{"filename": "1.png", "boxes": [box(1, -3, 30, 10, 20)]}])
    assert load(tmp_path).left_out == []


@pytest.mark.parametrize("label", [11, -1, 2.5, float("nan")])
def test_a_label_that_is_no_digit(tmp_path, label):
    write_svhn(tmp_path / "train", [{"filename": "1.png", "boxes": [box(label, 5, 5, 10, 10)]}])
    with pytest.raises(svhn.SvhnError, match=r"1\.png: label must be a digit, or 10 for 0, got"):
        load(tmp_path)
    assert nothing_half_written(tmp_path)


def test_missing_images_are_named(tmp_path):
    folder = write_svhn(tmp_path / "train")
    (folder / "2.png").unlink()
    with pytest.raises(svhn.SvhnError, match=r"1 of 4 images are missing in .*: 2\.png"):
        load(tmp_path)
    assert nothing_half_written(tmp_path)


@pytest.mark.parametrize("how", ["truncated", "text", "empty"])
def test_a_broken_image_is_named(tmp_path, how):
    folder = write_svhn(tmp_path / "train")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)).save(folder / "3.png")
    whole = (folder / "3.png").read_bytes()
    (folder / "3.png").write_bytes({"truncated": whole[:500], "text": b"no image", "empty": b""}[how])
    with pytest.raises(svhn.SvhnError, match=r"3\.png cannot be read"):
        load(tmp_path)
    assert nothing_half_written(tmp_path)


@pytest.mark.parametrize("name", ["digitStruct.json", "digitStruct.mat"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'[{"filename": "1.png"}]', b'[{"boxes": []}]'])
def test_a_broken_structure_is_named(tmp_path, name, content):
    folder = write_svhn(tmp_path / "train")
    (folder / "digitStruct.json").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(svhn.SvhnError, match=r"digitStruct\.(json|mat) (is broken|names no image)"):
        load(tmp_path)


# The cache


def test_what_a_killed_process_left_is_removed(tmp_path):
    folder = write_svhn(tmp_path / "made/train")
    with tarfile.open(tmp_path / "train.tar", "w") as tar:
        tar.add(folder, "train")
    load(tmp_path)
    (crops,) = (tmp_path / "svhn/cache").glob("*.npy")
    part = crops.with_name(f".{crops.name}.12345.part")
    crops.rename(part)
    load(tmp_path)
    assert crops.exists()
    assert not part.exists()
    part = tmp_path / "svhn/unpacked/.train.abc.part"
    (tmp_path / "svhn/unpacked/train").rename(part)
    load(tmp_path)
    assert not part.exists()


def test_two_processes_make_one_cache(tmp_path, monkeypatch):
    write_svhn(tmp_path / "train")
    write_svhn(tmp_path / "made/train")
    load(tmp_path / "made")
    (crops_made,), (index_made,) = ((tmp_path / "made/svhn/cache").glob(kind) for kind in ("*.npy", "*.npz"))

    def slowly(folder, entries, crops, index, say):  # copies: not every kernel survives a fork
        with (tmp_path / "log").open("a") as log:
            log.write("making\n")
        time.sleep(0.3)
        shutil.copy(index_made, index)
        shutil.copy(crops_made, crops)

    monkeypatch.setattr(svhn, "build", slowly)
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=svhn.load, args=("train", tmp_path)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    assert [one.exitcode for one in both] == [0, 0]
    assert (tmp_path / "log").read_text() == "making\n"


def test_the_cache_follows_the_files(tmp_path):
    folder = write_svhn(tmp_path / "train")
    first = load(tmp_path)
    said = []
    again = svhn.load("train", tmp_path, say=said.append)
    assert said == []
    assert torch.equal(first.loose, again.loose)
    assert torch.equal(first.labels, again.labels)
    (folder / "digitStruct.json").write_text(json.dumps(SVHN_ROWS[:2]))
    assert len(load(tmp_path).labels) == 2
    Image.new("RGB", (60, 40), "white").save(folder / "1.png")
    assert load(tmp_path).loose[0].min() == 255


@pytest.mark.parametrize("name", ["*.npy", "*.npz"])
@pytest.mark.parametrize("how", ["cut", "empty", "gone", "other"])
def test_a_broken_cache_is_named_and_made_again(tmp_path, name, how):
    write_svhn(tmp_path / "train")
    whole, labels = load(tmp_path).loose.clone(), load(tmp_path).labels  # a copy: the file will be cut
    (path,) = (tmp_path / "svhn/cache").glob(name)
    if how == "gone":
        path.unlink()
    elif how == "other":  # a file of its kind, of another number of images
        write_svhn(tmp_path / "other/train", SVHN_ROWS[:2])
        load(tmp_path / "other")
        (other,) = (tmp_path / "other/svhn/cache").glob(name)
        path.write_bytes(other.read_bytes())
    else:
        path.write_bytes(path.read_bytes()[:-100] if how == "cut" else b"")
    said = []
    again = svhn.load("train", tmp_path, say=said.append)
    assert torch.equal(again.loose, whole)
    assert torch.equal(again.labels, labels)
    assert any("is broken" in line for line in said) or (name, how) == ("*.npy", "gone")
    assert any(line.startswith("cropping") for line in said)


def caches(folder):
    """The keys under which something is cached, and whether each is whole."""
    names = sorted(path.name for path in (folder / "svhn/cache").iterdir() if not path.name.startswith("."))
    assert names == sorted(f"{stem}{kind}" for stem in {n[:-4] for n in names} for kind in (".npy", ".npz"))
    return {name[:-4] for name in names}


def test_what_a_source_gave_before_it_changed_is_removed(tmp_path):
    folder = write_svhn(tmp_path / "train")
    write_svhn(tmp_path / "test")
    load(tmp_path, "test")
    used = load(tmp_path)  # read from the disk while its file is removed
    before = caches(tmp_path)
    cache = tmp_path / "svhn/cache"
    strange = [
        "train-0123.npz",
        "train-notes.txt",
        "train-zzzzzzzzzzzzzzzz.npz",
        "trainees-0123456789abcdef.npz",
    ]
    for name in strange:  # nobody knows what they are
        (cache / name).write_bytes(b"something else")
    shutil.copy(cache / f"{max(before)}.npz", cache / "train-0123.npz")
    (cache / ".train-0123456789abcdef.npy.77.part").write_bytes(b"half")  # a killed process's, of an old key
    (cache / ".test-0123456789abcdef.npy.77.part").write_bytes(b"half")  # under another lock
    (folder / "digitStruct.json").write_text(json.dumps(SVHN_ROWS[:2]))
    assert len(load(tmp_path).labels) == 2
    assert len(used.loose.unique()) > 1
    assert [name for name in strange if not (cache / name).exists()] == []
    for name in strange:
        (cache / name).unlink()
    after = caches(tmp_path)
    assert {name for name in before if name.startswith("test")} < after
    assert len(after) == 2
    assert len(after - before) == 1
    assert [path.name for path in cache.glob(".*.part")] == [".test-0123456789abcdef.npy.77.part"]
    assert len(load(tmp_path).labels) == 2


def test_two_sources_that_share_a_cache_leave_one_another(tmp_path, monkeypatch):
    """Folders that cannot be written to keep what is derived from them in one place."""
    monkeypatch.setattr(caching, "home", lambda data_dir: tmp_path / "cache/spatial_transformer")
    folders = [
        write_svhn(tmp_path / name / "train", SVHN_ROWS[:n]).parent for n, name in ((2, "a"), (3, "b"))
    ]
    for _ in range(2):
        assert [len(load(folder).labels) for folder in folders] == [2, 3]
    assert len(caches(tmp_path / "cache/spatial_transformer")) == 2
    link = tmp_path / "link"
    link.symlink_to(folders[0])
    (folders[0] / "train/digitStruct.json").write_text(json.dumps(SVHN_ROWS[:1]))
    assert len(load(link).labels) == 1  # by another name it is the same folder
    assert len(caches(tmp_path / "cache/spatial_transformer")) == 2
    assert svhn.load("train", folders[1], say=pytest.fail).names == ["1.png", "2.png", "3.png"]


def test_a_link_to_nothing_is_named(tmp_path):
    folder = write_svhn(tmp_path / "train")
    (folder / "2.png").unlink()
    (folder / "2.png").symlink_to(tmp_path / "nothing")
    with pytest.raises(svhn.SvhnError, match=r"2\.png cannot be read"):
        load(tmp_path)


# Read again


def check(folder, split="train"):
    return svhn.check(split, folder, say=lambda line: None)


@pytest.mark.parametrize("archived", [False, True])
def test_check_finds_what_is_whole(tmp_path, archived):
    rows = [*SVHN_ROWS, {"filename": "5.png", "boxes": []}]
    folder = write_svhn(tmp_path / ("made/train" if archived else "train"), rows)
    if archived:
        with tarfile.open(tmp_path / "train.tar.gz", "w:gz") as tar:
            tar.add(folder, "train")
    assert check(tmp_path) == svhn.Checked(5, ["5.png: no digit"], False)
    assert not (tmp_path / "svhn/cache").exists()
    load(tmp_path)
    assert check(tmp_path) == svhn.Checked(5, ["5.png: no digit"], True)


def rewritten(path, content):
    """Other bytes in a file, of which neither its size nor its time tells."""
    before = path.stat()
    assert len(content) <= before.st_size
    path.write_bytes(content + bytes(before.st_size - len(content)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("how", ["garbled", "other picture"])
def test_check_opens_the_images_although_there_is_a_cache(tmp_path, how):
    folder = write_svhn(tmp_path / "train")
    load(tmp_path)
    white = tmp_path / "white.png"
    Image.new("RGB", (60, 40), "white").save(white)
    rewritten(folder / "2.png", b"" if how == "garbled" else white.read_bytes())
    svhn.load("train", tmp_path, say=pytest.fail)  # from the cache, as nothing tells
    said = r"2\.png cannot be read" if how == "garbled" else r"another crop of 2\.png, up to \d+ levels apart"
    with pytest.raises(svhn.SvhnError, match=said):
        check(tmp_path)


@pytest.mark.parametrize("what", ["crops", "labels", "lengths", "boxes", "names", "left out", "cut"])
def test_check_compares_the_cache(tmp_path, what):
    write_svhn(tmp_path / "train")
    load(tmp_path)
    (crops,), (index,) = ((tmp_path / "svhn/cache").glob(kind) for kind in ("*.npy", "*.npz"))
    if what == "crops":
        content = bytearray(crops.read_bytes())
        content[-1] ^= 128
        crops.write_bytes(content)
    elif what == "cut":
        crops.write_bytes(crops.read_bytes()[:-100])
    else:
        held = dict(np.load(index))
        if what == "labels":
            held["labels"][1, 0] = 7
        elif what == "lengths":
            held["lengths"][1] = 3
        elif what == "boxes":
            held["boxes"][2, 1, 3] += 1e-4
        elif what == "names":
            held["names"] = held["names"][[0, 1, 3, 2]]
        else:
            held["left_out"] = np.array(["9.png: no digit"])
        np.savez(index, **held)
    said = {
        "crops": r"another crop of 4\.png, up to 128 levels",
        "labels": r"another label of 2\.png",
        "lengths": r"another label of 2\.png",
        "boxes": r"other boxes of 3\.png",
        "names": r"does not have 3\.png where it should be",
        "left out": "4 numbers to use, and its cache 4",
        "cut": "is broken",
    }[what]
    with pytest.raises(svhn.SvhnError, match=said):
        check(tmp_path)


def test_check_compares_the_archive_with_what_was_unpacked(tmp_path):
    folder = write_svhn(tmp_path / "made/train")
    with tarfile.open(tmp_path / "train.tar.gz", "w:gz") as tar:
        tar.add(folder, "train")
    load(tmp_path)
    (tmp_path / "svhn/unpacked/train/train/3.png").write_bytes((folder / "3.png").read_bytes() + b"more")
    with pytest.raises(archives.ArchiveError, match=r"3\.png is not what .*train\.tar\.gz holds"):
        check(tmp_path)
    (tmp_path / "svhn/unpacked/train/train/3.png").unlink()
    with pytest.raises(archives.ArchiveError, match=r"3\.png is not what .*train\.tar\.gz holds"):
        check(tmp_path)


def test_a_cache_is_read_with_nothing_written(tmp_path):
    write_svhn(tmp_path / "train")
    load(tmp_path)
    for lock in tmp_path.rglob("*.lock"):
        lock.unlink()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    load(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_crops_can_be_written_to_without_touching_the_file(tmp_path):
    write_svhn(tmp_path / "train")
    load(tmp_path).loose.zero_()
    assert load(tmp_path).loose.max() > 0


def test_it_says_where_a_split_is_not_whole(tmp_path, monkeypatch):
    """Its records would be taken for SVHN's."""
    write_splits(tmp_path, 4, 3)
    monkeypatch.setitem(svhn.OFFICIAL, "test", 3)
    said = list[str]()
    svhn.load_set(tmp_path, say=said.append)
    assert [line for line in said if not line.startswith("cropping ")] == [
        "this is not all of SVHN: train has 4 numbers, and 33,402 as published"
    ]


def test_numbers_left_out_are_of_those_published(tmp_path, monkeypatch):
    write_splits(tmp_path, 4, 3)
    rows = json.loads((tmp_path / "train/digitStruct.json").read_text())
    rows[1]["boxes"] = []
    (tmp_path / "train/digitStruct.json").write_text(json.dumps(rows))
    monkeypatch.setattr(svhn, "OFFICIAL", {"train": 4, "test": 3})
    said = []
    assert len(svhn.load_set(tmp_path, say=said.append).train.left_out) == 1
    assert not [line for line in said if "this is not all" in line]


def test_extra_numbers_are_looked_for_where_the_others_are(tmp_path):
    write_splits(tmp_path, 4, 3)
    write_numbers(tmp_path / "extra", 5, seed=2)
    said = []
    assert len(svhn.load_set(tmp_path, say=said.append).extra().labels) == 5
    assert said[-1] == "this is not all of SVHN: extra has 5 numbers, and 202,353 as published"


def test_the_validation_split():
    trained, held = svhn.validation_split(33_401)
    assert len(held) == 5000
    assert sorted(torch.cat([trained, held]).tolist()) == list(range(33_401))
    assert torch.equal(held, svhn.validation_split(33_401)[1])
    assert held[:4].tolist() == [7, 12, 13, 18]
    assert 0.9 < held.double().mean() / (33_401 / 2) < 1.1


# The real files, where they are

REAL = Path(os.environ.get("SVHN_FOLDER", ""))


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("SVHN_FOLDER"), reason="SVHN_FOLDER does not say where SVHN is")
@pytest.mark.parametrize(
    ("split", "lengths", "total"),
    [("train", [5137, 18130, 8691, 1434, 9], 73_257 - 6), ("test", [2483, 8356, 2081, 146, 2], 26_032)],
)
def test_the_real_files(split, lengths, total):
    svhn.load(split, REAL)
    begin = time.perf_counter()
    found = svhn.load(split, REAL)
    assert time.perf_counter() - begin < 2
    assert found.lengths.bincount()[1:].tolist() == lengths
    assert int((found.labels != svhn.NULL).sum()) == total
    assert len(found.left_out) == (1 if split == "train" else 0)
    if split == "train":  # listed as 2, 0, 2, 6
        assert found.labels[found.names.index("16278.png")].tolist() == [2, 6, 2, 0, 10]
