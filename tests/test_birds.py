"""CUB-200-2011: the official layout, written small, whole and broken; and its crops."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import tarfile
import time

import numpy as np
import pytest
import torch
from data_files import BIRD_NAMES, BIRD_SIZES, ramp, write_birds

from spatial_transformer.experiments.data import archives, birds, places
from spatial_transformer.experiments.data.random_numbers import RandomNumbers

pytest.importorskip("filelock")
Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch, tmp_path):
    monkeypatch.delenv(places.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def load(folder):
    return birds.load(folder, say=lambda line: None)


@pytest.mark.parametrize("where", ["", "cub"])
def test_a_folder(tmp_path, where):
    write_birds(tmp_path / where)
    found = load(tmp_path)
    assert found.names == BIRD_NAMES
    assert found.labels.tolist() == [0, 1, 0, 2]
    assert found.split("train").tolist() == [0, 3]
    assert found.split("test").tolist() == [1, 2]
    assert found.classes == ["001.Class_1", "002.Class_2", "003.Class_3"]
    assert found.sizes.tolist() == [[40, 60], [70, 50], [300, 256], [512, 630]]  # the last one reduced
    for i in range(3):
        assert torch.equal(found.image(i).permute(1, 2, 0), torch.from_numpy(ramp(*BIRD_SIZES[i])))
    assert found.boxes[0].tolist() == [5, 6, 20, 30]
    torch.testing.assert_close(found.boxes[3], torch.tensor([52.0, 65, 104, 130]) * 512 / 520)
    assert found.boxes[2].tolist() == [10, 10, 300, 20]  # sticks out, and is left as it is


def test_an_archive(tmp_path):
    folder = write_birds(tmp_path / "made")
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "data" / f"{birds.NAME}.tgz", "w:gz") as tar:
        tar.add(folder, birds.NAME)
        tar.add(folder / "classes.txt", "attributes.txt")  # the official one has a file beside the folder
    assert load(tmp_path / "data").names == BIRD_NAMES
    said = []
    birds.load(tmp_path / "data", say=said.append)
    assert said == []


def test_an_archive_that_was_replaced_is_read_anew(tmp_path):
    (tmp_path / "data").mkdir()
    for colour in ("black", "white"):
        folder = write_birds(tmp_path / "made")
        Image.new("RGB", (60, 40), colour).save(folder / "images" / BIRD_NAMES[0])
        with tarfile.open(tmp_path / "data" / f"{birds.NAME}.tgz", "w:gz") as tar:
            tar.add(folder, birds.NAME)
        assert (load(tmp_path / "data").image(0).min() == 255) == (colour == "white")
    (tmp_path / "data" / f"{birds.NAME}.tgz").unlink()
    assert load(tmp_path / "data").image(0).min() == 255


def test_an_archive_with_links_is_refused(tmp_path):
    folder = write_birds(tmp_path / "made")
    (folder / "link").symlink_to("/etc/passwd")
    with tarfile.open(tmp_path / f"{birds.NAME}.tgz", "w:gz") as tar:
        tar.add(folder, birds.NAME)
    with pytest.raises(archives.ArchiveError, match="not a plain file"):
        load(tmp_path)


def test_a_linked_class_folder_is_followed(tmp_path):
    """In a folder that somebody made, as a disk may be too small for all of them."""
    folder = write_birds(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    (folder / "images/001.Class_1").rename(elsewhere)
    (folder / "images/001.Class_1").symlink_to(elsewhere)
    assert load(tmp_path).names == BIRD_NAMES
    Image.new("RGB", (60, 40), "white").save(elsewhere / "Image_0.png")
    assert load(tmp_path).image(0).min() == 255  # the cache follows what the link leads to
    (elsewhere / "Image_0.png").unlink()
    with pytest.raises(birds.BirdsError, match="1 of 4 images are missing"):
        load(tmp_path)


def test_what_no_list_names_does_not_count(tmp_path):
    folder = write_birds(tmp_path)
    load(tmp_path)
    (folder / "images/.DS_Store").write_bytes(b"something")
    (folder / "images/round").symlink_to(folder)  # round and round
    birds.load(tmp_path, say=pytest.fail)


def test_an_archive_with_a_linked_class_folder_is_refused(tmp_path):
    folder = write_birds(tmp_path / "made")
    (folder / "images/001.Class_1").rename(tmp_path / "elsewhere")
    (folder / "images/001.Class_1").symlink_to(tmp_path / "elsewhere")
    with tarfile.open(tmp_path / f"{birds.NAME}.tgz", "w:gz") as tar:
        tar.add(folder, birds.NAME)
    with pytest.raises(archives.ArchiveError, match="not a plain file"):
        load(tmp_path)


def test_it_says_where_it_looked(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no CUB_200_2011 .*{tmp_path}"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"image_class_labels.txt": ["1 1", "2 2", "3 1"]}, r"image_class_labels\.txt and images\.txt"),
        ({"train_test_split.txt": ["1 1", "2 0", "3 0", "5 1"]}, r"train_test_split\.txt and images\.txt"),
        ({"image_class_labels.txt": ["1 1", "2 2", "3 1", "4 9"]}, "image 4 is of class 9"),
        ({"bounding_boxes.txt": ["1 5 6 20", "2 0 0 5 7", "3 1 1 3 2", "4 5 6 1 1"]}, "boxes.txt is broken"),
        ({"classes.txt": ["1"]}, r"classes\.txt is broken"),
        ({"images.txt": []}, r"images\.txt is broken"),
        ({"images.txt": ["1 a.jpg", "2 ../../b.jpg", "3 c.jpg", "4 d.jpg"]}, "leaves its folder"),
        ({"bounding_boxes.txt": [f"{i} 5 6" for i in (1, 2, 3, 4)]}, "boxes.txt is broken"),
        ({"bounding_boxes.txt": [f"{i} 5 6 nan 7" for i in (1, 2, 3, 4)]}, "a side that is no number"),
        ({"classes.txt": ["one 001.Class_1"]}, r"classes\.txt is broken: ids have to be numbers"),
        ({"train_test_split.txt": ["1 1", "2 0", "3 0", "4 yes"]}, r"train_test_split\.txt is broken"),
        ({"train_test_split.txt": ["1 1", "2 0", "3 0", "4 1", "4 0"]}, "an id is there twice"),
    ],
)
def test_broken_lists_are_named(tmp_path, changed, message):
    write_birds(tmp_path, **changed)
    with pytest.raises(birds.BirdsError, match=message):
        load(tmp_path)


def test_lists_that_are_no_text_are_named(tmp_path):
    (write_birds(tmp_path) / "images.txt").write_bytes(b"1 \xff\xfe.jpg\n")
    with pytest.raises(birds.BirdsError, match=r"images\.txt is broken.*utf-8"):
        load(tmp_path)


def test_an_image_of_absurd_size_is_named(tmp_path, monkeypatch):
    write_birds(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(birds.BirdsError, match=r"cannot be read: .*exceeds limit"):
        load(tmp_path)


def test_missing_lists_and_images_are_named(tmp_path):
    folder = write_birds(tmp_path)
    (folder / "images" / BIRD_NAMES[1]).unlink()
    with pytest.raises(birds.BirdsError, match=f"1 of 4 images are missing .*: {BIRD_NAMES[1]}"):
        load(tmp_path)
    (folder / "bounding_boxes.txt").unlink()
    with pytest.raises(birds.BirdsError, match=r"bounding_boxes\.txt is missing"):
        load(tmp_path)


def test_a_broken_image_is_named_and_nothing_is_left(tmp_path):
    folder = write_birds(tmp_path)
    path = folder / "images" / BIRD_NAMES[2]
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(birds.BirdsError, match=f"{BIRD_NAMES[2]} cannot be read"):
        load(tmp_path)
    assert not [p for p in (tmp_path / "cub").rglob("*") if p.suffix in (".bin", ".npz", ".part")]


def test_two_processes_make_one_cache(tmp_path, monkeypatch):
    write_birds(tmp_path)
    build = birds.build

    def slowly(*arguments):
        with (tmp_path / "log").open("a") as log:
            log.write("making\n")
        time.sleep(0.3)
        build(*arguments)

    monkeypatch.setattr(birds, "build", slowly)
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=birds.load, args=(tmp_path,)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    assert [one.exitcode for one in both] == [0, 0]
    assert (tmp_path / "log").read_text() == "making\n"


def test_the_cache_follows_the_files(tmp_path):
    folder = write_birds(tmp_path)
    load(tmp_path)
    said = []
    birds.load(tmp_path, say=said.append)
    assert said == []
    Image.new("RGB", (60, 40), "white").save(folder / "images" / BIRD_NAMES[0])
    assert load(tmp_path).image(0).min() == 255
    left = [path.suffix for path in (tmp_path / "cub/cache").iterdir() if path.name != ".lock"]
    assert sorted(left) == [".bin", ".npz"]  # what it was before is gone


# Read again


def check(folder):
    return birds.check(folder, say=lambda line: None)


COUNTS = birds.Counts(4, 2, 2, 3)


def archived(folder, tmp_path):
    with tarfile.open(tmp_path / f"{birds.NAME}.tgz", "w:gz") as tar:
        tar.add(folder, birds.NAME)
    return tmp_path / f"{birds.NAME}.tgz"


def test_check_finds_what_is_whole(tmp_path):
    write_birds(tmp_path)
    assert check(tmp_path) == birds.Checked(COUNTS, False, False)
    assert not (tmp_path / "cub").exists()
    load(tmp_path)
    assert check(tmp_path) == birds.Checked(COUNTS, True, False)


@pytest.mark.parametrize("how", ["garbled", "other picture"])
def test_check_opens_the_images_although_there_is_a_cache(tmp_path, how):
    path = write_birds(tmp_path) / "images" / BIRD_NAMES[1]
    load(tmp_path)
    before = path.stat()
    Image.new("RGB", (50, 70), "white").save(tmp_path / "white.png")
    content = (tmp_path / "white.png").read_bytes() if how == "other picture" else b""
    path.write_bytes(content + bytes(before.st_size - len(content)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    birds.load(tmp_path, say=pytest.fail)  # from the cache, as nothing tells
    said = "cannot be read" if how == "garbled" else r"another image of .*, up to 255 levels apart"
    with pytest.raises(birds.BirdsError, match=said):
        check(tmp_path)


@pytest.mark.parametrize("what", ["pixels", "sizes", "scales", "fewer", "cut"])
def test_check_compares_the_cache(tmp_path, what):
    write_birds(tmp_path)
    load(tmp_path)
    (pixels,), (index,) = ((tmp_path / "cub/cache").glob(kind) for kind in ("*.bin", "*.npz"))
    if what in ("pixels", "cut"):
        content = bytearray(pixels.read_bytes())
        content[-1] ^= 128
        pixels.write_bytes(content[: -100 if what == "cut" else None])
    else:
        held = dict(np.load(index))
        if what == "sizes":
            held["sizes"][1] = held["sizes"][1, ::-1].copy()
        elif what == "fewer":  # of as many pixels in all
            held["sizes"] = np.array([[int(held["sizes"].prod(1).sum()), 1]])
        else:
            held["scales"][1] = 0.5
        np.savez(index, **held)
    said = {
        "pixels": "another image of .*Image_3.png, up to 128 levels",
        "sizes": r"another image of .*Image_1.png, of shape \(3, 50, 70\)",
        "scales": "another scale of .*Image_1",
        "fewer": "is broken .sizes of shape",
        "cut": "is broken",
    }[what]
    with pytest.raises(birds.BirdsError, match=said):
        check(tmp_path)


def test_check_knows_the_official_archive(tmp_path, monkeypatch):
    path = archived(write_birds(tmp_path / "made"), tmp_path)
    assert check(tmp_path) == birds.Checked(COUNTS, False, False)  # of another size: somebody's own
    official = birds.OFFICIAL_ARCHIVE._replace(size=path.stat().st_size, sha256="0" * 64)
    monkeypatch.setattr(birds, "OFFICIAL_ARCHIVE", official)
    with pytest.raises(birds.BirdsError, match=r"is broken: sha256 .* expected 0000"):
        check(tmp_path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(birds, "OFFICIAL_ARCHIVE", official._replace(sha256=digest))
    assert check(tmp_path).official_archive


def test_check_compares_the_archive_with_what_was_unpacked(tmp_path):
    archived(write_birds(tmp_path / "made"), tmp_path)
    load(tmp_path)
    (tmp_path / f"cub/unpacked/{birds.NAME}/classes.txt").write_text("1 one\n2 two\n3 three\n")
    with pytest.raises(archives.ArchiveError, match=r"classes\.txt is not what .*\.tgz holds"):
        check(tmp_path)


@pytest.mark.parametrize("name", ["*.bin", "*.npz"])
@pytest.mark.parametrize("how", ["cut", "empty", "gone"])
def test_a_broken_cache_is_named_and_made_again(tmp_path, name, how):
    write_birds(tmp_path)
    whole = load(tmp_path).image(3).clone()  # a copy: the file will be cut
    (path,) = (tmp_path / "cub/cache").glob(name)
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-300] if how == "cut" else b"")
    said = []
    again = birds.load(tmp_path, say=said.append)
    assert torch.equal(again.image(3), whole)
    assert any("is broken" in line for line in said) or (name, how) == ("*.bin", "gone")
    assert any(line.startswith("decoding") for line in said)


def test_pixels_can_be_written_to_without_touching_the_file(tmp_path):
    write_birds(tmp_path)
    load(tmp_path).pixels.zero_()
    assert load(tmp_path).pixels.max() > 0


def test_an_image_of_the_same_size_is_noticed_by_its_time(tmp_path):
    path = write_birds(tmp_path) / "images" / BIRD_NAMES[0]
    load(tmp_path)
    os.utime(path, (1, 1))
    said = []
    birds.load(tmp_path, say=said.append)
    assert any(line.startswith("decoding") for line in said)


def test_what_is_too_large_is_reduced_smoothly(tmp_path):
    stripes = np.zeros((1024, 1024, 3), np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(tmp_path / "stripes.png")
    image, scale = birds.decode(tmp_path / "stripes.png")
    assert (image.shape, scale) == ((512, 512, 3), 0.5)
    assert abs(int(image[256, 256, 0]) - 127) < 10


def test_classes_are_ordered_as_numbers(tmp_path):
    folder = write_birds(tmp_path)
    lines = {1: "001.Class_1", 2: "002.Class_2", 10: "003.Class_3"}
    (folder / "classes.txt").write_text("".join(f"{number} {name}\n" for number, name in lines.items()))
    labels = folder / "image_class_labels.txt"
    labels.write_text(labels.read_text().replace(" 3\n", " 10\n"))
    assert load(tmp_path).classes == list(lines.values())
    assert load(tmp_path).labels.tolist() == [0, 1, 0, 2]


# Batches


def test_images_are_gathered_side_by_side(tmp_path):
    write_birds(tmp_path)
    found = load(tmp_path)
    images, sizes = found.gathered(torch.tensor([1, 0]))
    assert images.shape == (2, 3, 70, 60)
    assert sizes.tolist() == [[70, 50], [40, 60]]
    assert torch.equal(images[0, :, :, :50], found.image(1))
    assert torch.equal(images[0, :, :, 50:], found.image(1)[:, :, -1:].expand(-1, -1, 10))  # replicated
    assert torch.equal(images[1, :, :40], found.image(0))


def read_at(crops, seen, size):
    """Where in its image (0 to 1 from edge to edge) the middle row and column of a crop were read."""
    height, width = size
    middle = crops.size // 2
    x = (seen[0, middle] / 255 * (width - 1) + 0.5) / width
    y = (seen[1, :, middle] / 255 * (height - 1) + 0.5) / height
    return x, y


def test_centre_crops(tmp_path):
    """224 of 256 along the shorter side, and as many pixels along the longer."""
    write_birds(tmp_path)
    found = load(tmp_path)
    crops = birds.Crops()
    seen = crops(found, torch.tensor([0, 2, 3]))
    assert seen.shape == (3, 3, 224, 224)
    for picture, index in zip(seen, (0, 2, 3), strict=True):
        height, width = found.sizes[index].tolist()
        zoom = 256 / min(height, width)
        x, y = read_at(crops, picture, (height, width))
        along = torch.arange(224) + 0.5 - 112
        inside = slice(3, -3)
        torch.testing.assert_close(x[inside], (0.5 + along / (zoom * width))[inside], rtol=0, atol=0.006)
        torch.testing.assert_close(y[inside], (0.5 + along / (zoom * height))[inside], rtol=0, atol=0.006)


@pytest.mark.parametrize(("side", "size"), [(256, 224), (512, 448)])
def test_random_crops(tmp_path, side, size):
    """Uniform places within the image, half of them flipped, of the size that the crop has."""
    write_birds(tmp_path)
    found = load(tmp_path)
    crops = birds.Crops(side, size)
    count = 200
    seen = crops(found, torch.full((count,), 0), RandomNumbers(0))
    lefts, tops, flips = [], [], 0
    for picture in seen:
        x, y = read_at(crops, picture, BIRD_SIZES[0])
        flips += bool(x[10] > x[-10])
        zoom = side / 40
        width = (x[size - 20] - x[20]).abs() * 60 * zoom / (size - 40)
        assert width == pytest.approx(1, abs=0.02)  # pixels of the resized image for one of the crop
        lefts.append(float(x.min()))
        tops.append(float(y.min()))
        assert 0 <= x.min() < x.max() <= 1
    assert 70 < flips < 130
    room = 1 - size / (side * 60 / 40)
    assert min(lefts) < 0.1 * room + 0.01
    assert max(lefts) > 0.9 * room - 0.01
    assert max(tops) > 0.9 * (1 - size / side) - 0.01


def test_random_crops_are_where_the_numbers_say():
    crops = birds.Crops()
    sizes = torch.tensor([[256, 512]])
    theta = crops.theta(sizes, (300, 600), torch.tensor([[0.0, 1.0, 0.7]]))
    box = crops.family.box(theta)[0]
    corner = (box + 1) / 2 * torch.tensor([600.0, 300])  # in pixels
    torch.testing.assert_close(corner[0], torch.tensor([0.0, 32]))
    torch.testing.assert_close(corner[2], torch.tensor([224.0, 256]))
    flipped = crops.theta(sizes, (300, 600), torch.tensor([[0.0, 1.0, 0.2]]))
    torch.testing.assert_close(flipped, theta * torch.tensor([-1, 1, 1, 1, 1, 1]))


def test_reducing_smooths(tmp_path):
    """One white column in three, halved, is nearly even; what lies between two columns alone is not."""
    folder = write_birds(tmp_path)
    stripes = np.zeros((512, 512, 3), np.uint8)
    stripes[:, ::3] = 255
    Image.fromarray(stripes).save(folder / "images" / BIRD_NAMES[3])
    seen = birds.Crops()(load(tmp_path), torch.tensor([3]))
    assert (seen - 85).abs().max() < 30


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_gpu_gives_the_same(tmp_path):
    write_birds(tmp_path)
    found = load(tmp_path)
    indices = torch.tensor([0, 1, 3])
    here = birds.Crops()(found, indices, RandomNumbers(0))
    there = birds.Crops()(found.to("cuda"), indices, RandomNumbers(0, device="cuda"))
    torch.testing.assert_close(there.cpu(), here, rtol=0, atol=0.5)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("CUB_FOLDER"), reason="CUB_FOLDER does not say where CUB is")
def test_the_real_files():
    birds.load(os.environ["CUB_FOLDER"])
    begin = time.perf_counter()
    found = birds.load(os.environ["CUB_FOLDER"])
    assert time.perf_counter() - begin < 2
    assert len(found.names) == 11_788
    assert [len(found.split(name)) for name in ("train", "test")] == [5994, 5794]
    assert found.labels.unique().tolist() == list(range(200))
    assert len(found.classes) == 200
    x, y, width, height = found.boxes.T
    high, wide = found.sizes.T
    outside = (x < -1.5) | (y < -1.5) | (x + width > wide + 1.5) | (y + height > high + 1.5)
    assert int(outside.sum()) == 8  # as published; other boxes end where their image does


def test_more_images_than_are_decoded_at_once(tmp_path, monkeypatch):
    write_birds(tmp_path)
    monkeypatch.setattr(birds, "TOGETHER", 2)
    found = birds.load(tmp_path, say=lambda line: None)
    assert found.sizes.tolist() == [[40, 60], [70, 50], [300, 256], [512, 630]]
    assert birds.check(tmp_path, say=lambda line: None).cached


def test_grey_images_have_three_channels(tmp_path):
    folder = write_birds(tmp_path)
    grey = np.arange(2400).reshape(40, 60).astype(np.uint8)
    Image.fromarray(grey).save(folder / "images" / BIRD_NAMES[0])
    found = birds.load(tmp_path, say=lambda line: None)
    assert torch.equal(found.image(0), torch.from_numpy(grey).expand(3, -1, -1))
