"""Small SVHN and CUB-200-2011 sets, written in the official formats; and MNIST, where it is here."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spatial_transformer.experiments.data import birds, mnist, places, uci_digits


def pil():
    return pytest.importorskip("PIL.Image")


# SVHN


def box(label, left, top, width, height):
    return {"label": float(label), "left": left, "top": top, "width": width, "height": height}


SVHN_ROWS = [
    {"filename": "1.png", "boxes": [box(1, 10, 5, 8, 20), box(9, 19, 6, 9, 20)]},
    {"filename": "2.png", "boxes": [box(10, 5, 5, 10, 12)]},  # a zero
    {"filename": "3.png", "boxes": [box(d, 4 + 9 * d, 8, 8, 16) for d in (1, 2, 3, 4, 5)]},
    {"filename": "4.png", "boxes": [box(7, 30, 5, 8, 20), box(3, 2, 5, 8, 20)]},  # the right digit first
]


def write_svhn(folder, rows=SVHN_ROWS, *, mat=False, size=(60, 40)):
    """A split as its archive unpacks; images are ramps of x (red) and y (green)."""
    folder.mkdir(parents=True)
    ramp = np.zeros((size[1], size[0], 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = np.arange(size[0]) * 4, np.arange(size[1])[:, None] * 6
    for row in rows:
        pil().fromarray(ramp).save(folder / row["filename"])
    if mat:
        write_mat(folder / "digitStruct.mat", rows)
    else:
        (folder / "digitStruct.json").write_text(json.dumps(rows))
    return folder


def write_numbers(folder, count, *, seed=0, mat=False):
    """A split of numbers that can be read: digits that ship with this package, bright on dark or the other
    way round, somewhere in a picture of some colour."""
    random, digits = np.random.default_rng(seed), uci_digits.load().train
    rows, pictures = [], []
    for number in range(count):
        length = int(random.integers(1, 4))
        picture = np.full((48, 36 + 20 * length, 3), random.integers(40, 200, 3), np.int64)
        top, left = random.integers(2, 18), random.integers(2, 14)
        contrast, boxes = int(random.choice([-40, 55])), []
        for place in range(length):
            chosen = int(random.integers(len(digits.labels)))
            ink = digits.images[chosen, 4:24, 4:24].numpy().astype(np.int64)
            x = int(left) + 20 * place
            picture[top : top + 20, x : x + 20] += (ink * contrast // 255)[..., None]
            label = int(digits.labels[chosen]) or 10
            boxes.append(box(label, x, int(top), 20, 20))
        rows.append({"filename": f"{number + 1}.png", "boxes": boxes})
        pictures.append(picture.clip(0, 255).astype(np.uint8))
    write_svhn(folder, rows, mat=mat)
    for row, picture in zip(rows, pictures, strict=True):
        pil().fromarray(picture).save(folder / row["filename"])
    return folder


def write_splits(folder, train, test, *, mat=False):
    """Both that networks need, of so many numbers."""
    write_numbers(folder / "train", train, mat=mat)
    write_numbers(folder / "test", test, seed=1, mat=mat)
    return folder


def write_mat(path, rows):
    """As MATLAB 7.3 saves it: a field of one digit is a number, of several a column of references."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        held, top = file.create_group("#refs#"), file.create_group("digitStruct")
        names, boxes = (top.create_dataset(n, (len(rows), 1), dtype=h5py.ref_dtype) for n in ("name", "bbox"))
        for i, row in enumerate(rows):
            codes = np.array([[ord(c)] for c in row["filename"]], np.uint16)
            names[i, 0] = held.create_dataset(f"n{i}", data=codes).ref
            entry = held.create_group(f"b{i}")
            for field in ("height", "label", "left", "top", "width"):
                values = [one[field] for one in row["boxes"]]
                if len(values) == 1:
                    entry.create_dataset(field, data=np.array([values], float))
                    continue
                column = entry.create_dataset(field, (len(values), 1), dtype=h5py.ref_dtype)
                for j, value in enumerate(values):
                    column[j, 0] = held.create_dataset(f"{field}{i}_{j}", data=np.array([[float(value)]])).ref
            boxes[i, 0] = entry.ref


# CUB-200-2011

# height, width of each image; the last is over 512
BIRD_SIZES = [(40, 60), (70, 50), (300, 256), (520, 640)]
BIRD_NAMES = [f"{c:03d}.Class_{c}/Image_{i}.png" for i, c in enumerate((1, 2, 1, 3))]
BIRD_LISTS = {
    "images.txt": [f"{i + 1} {name}" for i, name in enumerate(BIRD_NAMES)],
    "image_class_labels.txt": ["1 1", "2 2", "3 1", "4 3"],
    "train_test_split.txt": ["1 1", "2 0", "3 0", "4 1"],
    "bounding_boxes.txt": ["1 5.0 6.0 20.0 30.0", "2 0 0 50 70", "3 10 10 300 20", "4 52.0 65.0 104.0 130.0"],
    "classes.txt": ["1 001.Class_1", "2 002.Class_2", "3 003.Class_3"],
}


def ramp(height, width):
    """Red tells x, green y, in 0 to 255 over the image; blue is which half."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0] = np.arange(width) * 255 / (width - 1)
    image[..., 1] = (np.arange(height) * 255 / (height - 1))[:, None]
    return image


def write_birds(root, **changed):
    folder = root / "CUB_200_2011"
    for name, (height, width) in zip(BIRD_NAMES, BIRD_SIZES, strict=True):
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pil().fromarray(ramp(height, width)).save(path)
    for name, lines in (BIRD_LISTS | changed).items():
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def write_flock(root, *, species=3, each=6, trained=4, size=(48, 64), seed=0):
    """A CUB-200-2011 of as many species, told apart by the colour of a bird on a grey and noisy ground.

    Of each species the first ``trained`` images are to train on. Height and width differ from image to image.
    """
    random = np.random.default_rng(seed)
    colours = np.random.default_rng(1).permutation(
        [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255)]
    )
    lists = {name: [] for name in BIRD_LISTS}
    number = 0
    folder = root / "CUB_200_2011"
    for kind in range(1, species + 1):
        name = f"{kind:03d}.Class_{kind}"
        (folder / "images" / name).mkdir(parents=True)
        lists["classes.txt"].append(f"{kind} {name}")
        for at in range(each):
            number += 1
            height, width = np.array(size) - random.integers(0, 9, 2)
            image = random.integers(90, 130, (height, width, 3)).astype(np.uint8)
            high, wide = height // 3, width // 3
            top, left = random.integers(0, height - high), random.integers(0, width - wide)
            image[top : top + high, left : left + wide] = colours[kind - 1]
            pil().fromarray(image).save(folder / "images" / name / f"Bird_{number}.png")
            lists["images.txt"].append(f"{number} {name}/Bird_{number}.png")
            lists["image_class_labels.txt"].append(f"{number} {kind}")
            lists["train_test_split.txt"].append(f"{number} {int(at < trained)}")
            lists["bounding_boxes.txt"].append(f"{number} {left}.0 {top}.0 {wide}.0 {high}.0")
    for name, lines in lists.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def made_flock(folder, **shape):
    """The birds of ``write_flock``, loaded, with nothing left in any place but their folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(places.VARIABLE, raising=False)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        write_flock(folder, **shape)
        return birds.load(folder, say=lambda line: None)


# MNIST


def mnist_here():
    try:
        return mnist.load(download=False)
    except (FileNotFoundError, ImportError) as error:
        pytest.skip(str(error))
