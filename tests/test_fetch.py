"""Finding and fetching files: what is broken is never used, and nothing is ever half there."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import http.server
import io
import multiprocessing
import os
import stat
import tarfile
import threading
import time
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from spatial_transformer.experiments.data import addresses, archives, fetch, package_index, places

pytest.importorskip("filelock")

CONTENT = bytes(range(256)) * 5000


@pytest.fixture
def server():
    """A web server on this machine; ``server.files`` has what it serves, ``server.asked`` what was asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            made.asked[self.path] += 1
            made.headers.append(dict(self.headers))
            if self.path in made.moved:
                self.send_response(302)
                self.send_header("Location", made.moved[self.path])
                self.end_headers()
                return
            content = made.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content) + made.missing))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.files, made.asked, made.headers, made.missing, made.moved = {}, Counter(), [], 0, {}
    made.url = f"http://127.0.0.1:{made.server_port}"
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No settings of this machine's pip, and no waiting."""
    monkeypatch.setattr(addresses, "pip_settings", dict)
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(fetch, "PAUSE", 0.0)


def remote(*sources, content=CONTENT):
    return fetch.Remote("thing.bin", len(content), hashlib.sha256(content).hexdigest(), sources)


def left_over(folder):
    return [path.name for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock")]


# Places


def test_places_in_order(monkeypatch, tmp_path):
    pytest.importorskip("platformdirs")
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "variable"))
    found = places.places(tmp_path / "given")
    assert found[:2] == [tmp_path / "given", tmp_path / "variable"]
    assert "spatial_transformer" in str(found[2])
    assert places.home(tmp_path / "given") == tmp_path / "given"
    assert places.home() == tmp_path / "variable"
    monkeypatch.delenv(places.VARIABLE)
    assert places.places() == found[2:]


def test_what_is_put_goes_where_it_can(monkeypatch, tmp_path):
    """A shared folder may be there to be read only."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "variable" / "not yet"))
    (tmp_path / "shared").mkdir()
    assert places.home(tmp_path / "shared") == tmp_path / "shared"
    monkeypatch.setattr(places.os, "access", lambda path, mode: path != tmp_path / "shared")
    assert places.home(tmp_path / "shared") == tmp_path / "variable" / "not yet"
    assert places.home(tmp_path / "shared" / "below") == tmp_path / "variable" / "not yet"
    assert places.home() == tmp_path / "variable" / "not yet"
    monkeypatch.setattr(places.os, "access", lambda path, mode: False)
    assert places.home(tmp_path / "shared") == tmp_path / "shared"


def test_looking_follows_the_order(monkeypatch, tmp_path):
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "variable"))
    for place in ("variable", "given"):
        (tmp_path / place / "mnist").mkdir(parents=True)
    assert places.look(["other", "mnist"], tmp_path / "given")[:2] == [
        tmp_path / "given" / "mnist",
        tmp_path / "variable" / "mnist",
    ]


# Downloads


def test_a_file_is_fetched_once(server, tmp_path):
    server.files["/thing.bin"] = CONTENT
    wanted = remote(f"{server.url}/thing.bin")
    said = []
    assert fetch.fetch(wanted, tmp_path / "new", say=said.append).read_bytes() == CONTENT
    fetch.fetch(wanted, tmp_path / "new", say=said.append)
    assert server.asked["/thing.bin"] == 1
    assert len(said) == 1
    assert left_over(tmp_path) == ["thing.bin"]


def test_mirrors_are_tried_in_turn(server, tmp_path):
    server.files["/wrong"] = b"x" * len(CONTENT)
    server.files["/long"] = CONTENT + b"more"
    server.files["/right"] = CONTENT
    ways = [f"{server.url}/{name}" for name in ("missing", "wrong", "long", "right")]
    assert fetch.fetch(remote(*ways), tmp_path, say=lambda line: None).read_bytes() == CONTENT
    assert [server.asked[f"/{name}"] for name in ("missing", "wrong", "long", "right")] == [1, 1, 1, 1]


def test_a_wrong_digest_is_named_and_nothing_is_left(server, tmp_path):
    server.files["/wrong"] = b"x" * len(CONTENT)
    said = r"(?s)thing\.bin could not.*/wrong: sha256 .* expected [0-9a-f]{64}"
    with pytest.raises(fetch.FetchError, match=said):
        fetch.fetch(remote(f"{server.url}/wrong"), tmp_path, say=lambda line: None)
    assert left_over(tmp_path) == []
    assert server.asked["/wrong"] == 1  # it would be wrong again


def test_whoever_sends_without_end_is_cut_off(server, tmp_path):
    server.files["/long"] = CONTENT + bytes(10 * fetch.CHUNK)
    with pytest.raises(fetch.FetchError, match=r"more than the 1,280,000 bytes expected"):
        fetch.fetch(remote(f"{server.url}/long"), tmp_path, say=lambda line: None)
    assert left_over(tmp_path) == []


def test_a_connection_that_breaks_is_tried_again(server, tmp_path):
    server.files["/short"] = CONTENT[:1000]
    server.missing = len(CONTENT) - 1000
    with pytest.raises(fetch.FetchError, match=r"ended after 1,000 of|IncompleteRead"):
        fetch.fetch(remote(f"{server.url}/short"), tmp_path, say=lambda line: None)
    assert server.asked["/short"] == fetch.ROUNDS
    assert left_over(tmp_path) == []


def test_a_reply_that_is_no_http_is_one_more_failure(server, tmp_path, monkeypatch):
    def refuse(url):
        raise http.client.BadStatusLine("nonsense")

    monkeypatch.setattr(fetch, "opened", refuse)
    with pytest.raises(fetch.FetchError, match="nonsense"):
        fetch.fetch(remote(f"{server.url}/thing.bin"), tmp_path, say=lambda line: None)


@pytest.mark.parametrize("broken", [CONTENT[:-1], b"x" * len(CONTENT), b""])
def test_a_broken_file_is_named_and_replaced(server, tmp_path, broken):
    server.files["/thing.bin"] = CONTENT
    (tmp_path / "thing.bin").write_bytes(broken)
    said = []
    found = fetch.fetch(remote(f"{server.url}/thing.bin"), tmp_path, say=said.append)
    assert found.read_bytes() == CONTENT
    assert str(found) in said[0]
    assert "expected" in said[0]


def test_what_a_killed_process_left_is_removed(server, tmp_path):
    server.files["/thing"] = CONTENT
    (tmp_path / ".thing.bin.12345.part").write_bytes(b"half")
    fetch.fetch(remote(f"{server.url}/thing"), tmp_path, say=lambda line: None)
    assert left_over(tmp_path) == ["thing.bin"]


def test_a_broken_file_stays_if_there_is_no_other(server, tmp_path):
    """Never used, but not lost either: it may be what someone was copying."""
    (tmp_path / "thing.bin").write_bytes(b"half")
    with pytest.raises(fetch.FetchError):
        fetch.fetch(remote(f"{server.url}/gone"), tmp_path, say=lambda line: None)
    assert (tmp_path / "thing.bin").read_bytes() == b"half"


def ask(url, folder):
    fetch.fetch(remote(url), folder, say=lambda line: None)


def test_two_processes_download_once(server, tmp_path):
    server.files["/thing.bin"] = CONTENT
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=ask, args=(f"{server.url}/thing.bin", tmp_path / "new")) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(30)
    assert [one.exitcode for one in both] == [0, 0]
    assert server.asked["/thing.bin"] == 1
    assert left_over(tmp_path) == ["thing.bin"]


def test_what_fails_while_writing_leaves_nothing(tmp_path):
    (tmp_path / "thing").write_bytes(b"old")
    with contextlib.suppress(RuntimeError), fetch.in_one_step(tmp_path / "thing") as file:
        file.write(b"new")
        raise RuntimeError
    assert left_over(tmp_path) == ["thing"]
    assert (tmp_path / "thing").read_bytes() == b"old"


def test_files_can_be_read_by_others(tmp_path):
    with fetch.in_one_step(tmp_path / "thing") as file:
        file.write(b"new")
    assert stat.S_IMODE((tmp_path / "thing").stat().st_mode) & 0o400
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert (tmp_path / "thing").stat().st_mode == plain.stat().st_mode


# The package index

PAGE = """<!DOCTYPE html><html><body>
<a href="../../files/thing-1.0.tar.gz#sha256=00">thing-1.0.tar.gz</a>
<a data-x="1" href="../../files/thing%2B1.whl#sha256=00">thing+1.whl</a></body></html>"""


def test_a_wheel_is_found_through_the_index(server, tmp_path, monkeypatch):
    server.files |= {"/simple/thing/": PAGE.encode(), "/files/thing+1.whl": CONTENT}
    server.files["/files/thing%2B1.whl"] = CONTENT
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    found = fetch.fetch(remote(fetch.Wheel("thing", "thing+1.whl")), tmp_path, say=lambda line: None)
    assert found.read_bytes() == CONTENT
    assert server.asked["/simple/thing/"] == 1


def test_a_wheel_that_is_not_there(server, tmp_path, monkeypatch):
    server.files["/simple/thing/"] = PAGE.encode()
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple/")
    with pytest.raises(fetch.FetchError, match=r"no other-1\.whl under thing"):
        fetch.fetch(remote(fetch.Wheel("thing", "other-1.whl")), tmp_path, say=lambda line: None)


def test_an_index_that_is_none_does_not_hide_the_next(server, monkeypatch):
    server.files |= {
        "/bad/thing/": b"\xff\xfe",
        "/good/thing/": b'<a href="thing-1-py3-none-any.whl">thing</a>',
    }
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/bad")
    with pytest.raises(OSError, match=r"did not answer: http://127\.0\.0\.1:\d+/bad/thing/: "):
        package_index.find("thing", "thing-1-py3-none-any.whl")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{server.url}/good")
    found = package_index.find("thing", "thing-1-py3-none-any.whl")
    assert found == f"{server.url}/good/thing/thing-1-py3-none-any.whl"


def test_an_index_that_sends_without_end_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(package_index, "LONGEST", 3_000_000)
    page = b'<a href="thing-1-py3-none-any.whl">thing</a>'
    server.files |= {"/endless/thing/": page + b" " * 3_000_000, "/good/thing/": page}
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/endless")
    with pytest.raises(OSError, match=r"/endless/thing/: more than 3 MB, which is no page of an index"):
        package_index.find("thing", "thing-1-py3-none-any.whl")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{server.url}/good")
    found = package_index.find("thing", "thing-1-py3-none-any.whl")
    assert found == f"{server.url}/good/thing/thing-1-py3-none-any.whl"


def test_the_index_of_pips_settings(monkeypatch):
    assert package_index.indexes() == [package_index.PYPI]
    monkeypatch.setattr(addresses, "pip_settings", lambda: {"index-url": "https://mirror.example/simple"})
    assert package_index.indexes() == ["https://mirror.example/simple"]
    monkeypatch.setenv("PIP_INDEX_URL", "https://other.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://a.example/ https://b.example/")
    assert package_index.indexes() == [
        "https://other.example/simple",
        "https://a.example/",
        "https://b.example/",
    ]


def test_pips_settings_are_read(monkeypatch, tmp_path):
    monkeypatch.undo()
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://mirror.example/simple\ncert = /some/file\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_CERT", "/another/file")
    addresses.pip_settings.cache_clear()
    try:
        assert addresses.pip_settings()["index-url"] == "https://mirror.example/simple"
        assert addresses.setting("cert") == "/another/file"
    finally:
        addresses.pip_settings.cache_clear()


def test_a_login_is_sent_and_not_shown(server, tmp_path, monkeypatch):
    server.files |= {"/simple/thing/": PAGE.encode(), "/files/thing%2B1.whl": b"other"}
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url.replace('//', '//name:word@')}/simple")
    said = []
    with pytest.raises(fetch.FetchError) as failed:
        fetch.fetch(remote(fetch.Wheel("thing", "thing+1.whl")), tmp_path, say=said.append)
    assert server.headers
    assert all(headers["Authorization"].startswith("Basic ") for headers in server.headers)
    assert "word" not in "".join(said) + str(failed.value)


def test_a_login_does_not_follow_a_redirection_to_another_host(server, tmp_path):
    login = server.url.replace("http://", "http://me:secret@")
    other = server.url.replace("127.0.0.1", "localhost")
    server.files |= {"/there": CONTENT}
    for target, sent in ((f"{server.url}/there", True), (f"{other}/there", False)):
        server.moved, server.headers[:] = {"/here": target}, []
        folder = tmp_path / str(sent)
        fetch.fetch(remote(f"{login}/here"), folder, say=lambda line: None)
        assert (folder / "thing.bin").read_bytes() == CONTENT
        assert ["Authorization" in headers for headers in server.headers] == [True, sent]


def test_certificates_that_are_not_there_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "none.pem"))
    with pytest.raises(fetch.FetchError, match=r"none\.pem"):
        fetch.fetch(remote("https://127.0.0.1:9/thing.bin"), tmp_path, say=lambda line: None)


def test_a_login_stays_with_its_host():
    page = "https://name:word@index.example/simple/thing/"
    assert package_index.with_login_of(page, "https://index.example/f.whl").startswith("https://name:word@")
    assert package_index.with_login_of(page, "https://files.example/f.whl") == "https://files.example/f.whl"


# Archives


def tar_with(path, *entries):
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = kind, len(content)
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                entry.linkname = "/etc/passwd"
            tar.addfile(entry, io.BytesIO(content))
    return path


PLAIN = ("a/b.txt", tarfile.REGTYPE, b"text")


def test_plain_files_are_unpacked(tmp_path):
    tar = tar_with(tmp_path / "good.tar.gz", ("a", tarfile.DIRTYPE, b""), PLAIN)
    assert (archives.unpack(tar, tmp_path / "tar") / "a/b.txt").read_bytes() == b"text"
    assert stat.S_IMODE((tmp_path / "tar").stat().st_mode) == 0o755  # others may look, too
    with zipfile.ZipFile(tmp_path / "good.zip", "w") as file:
        file.writestr("a/", b"")
        file.writestr("a/b.txt", b"text")
    assert (archives.unpack(tmp_path / "good.zip", tmp_path / "zip") / "a/b.txt").read_bytes() == b"text"


def test_an_archive_of_a_folder_itself_is_unpacked(tmp_path):
    tar = tar_with(
        tmp_path / "dot.tar.gz", (".", tarfile.DIRTYPE, b""), ("./a/b.txt", tarfile.REGTYPE, b"text")
    )
    assert (archives.unpack(tar, tmp_path / "out") / "a/b.txt").read_bytes() == b"text"


def test_an_encrypted_zip_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "locked.zip", "w") as file:
        file.writestr("a", b"text")
    content = bytearray((tmp_path / "locked.zip").read_bytes())
    content[6] |= 1  # the flag, in the member's header and in the list at the end
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "locked.zip").write_bytes(content)
    with pytest.raises(archives.ArchiveError, match=r"locked\.zip is broken.*encrypted"):
        archives.unpack(tmp_path / "locked.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("/absolute", tarfile.REGTYPE),
        ("../parent", tarfile.REGTYPE),
        ("a/../../parent", tarfile.REGTYPE),
        ("a\\..\\..\\parent", tarfile.REGTYPE),
        ("C:/drive", tarfile.REGTYPE),
        ("a/file:stream", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("hard", tarfile.LNKTYPE),
        ("pipe", tarfile.FIFOTYPE),
        ("device", tarfile.CHRTYPE),
        ("disk", tarfile.BLKTYPE),
        ("../folder", tarfile.DIRTYPE),
    ],
)
def test_dangerous_members_are_refused(tmp_path, name, kind):
    tar = tar_with(tmp_path / "bad.tar.gz", PLAIN, (name, kind, b""))
    with pytest.raises(archives.ArchiveError, match=r"not a plain file|leaves its folder"):
        archives.unpack(tar, tmp_path / "out")
    assert left_over(tmp_path) == ["bad.tar.gz"]
    assert not (tmp_path / "out").exists()
    assert not (tmp_path.parent / "parent").exists()


@pytest.mark.parametrize("name", ["/absolute", "../parent", "a/../../parent"])
def test_dangerous_zip_members_are_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr(zipfile.ZipInfo(name), b"text")
    with pytest.raises(archives.ArchiveError, match="leaves its folder"):
        archives.unpack(tmp_path / "bad.zip", tmp_path / "out")


def test_links_in_zips_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "/etc/passwd")
    with pytest.raises(archives.ArchiveError, match="not a plain file"):
        archives.unpack(tmp_path / "bad.zip", tmp_path / "out")


def test_truncated_archives_leave_nothing(tmp_path):
    tar = tar_with(tmp_path / "cut.tar.gz", PLAIN, ("c", tarfile.REGTYPE, os.urandom(100_000)))
    tar.write_bytes(tar.read_bytes()[:50_000])
    with pytest.raises(archives.ArchiveError, match=r"cut\.tar\.gz is broken"):
        archives.unpack(tar, tmp_path / "out")
    assert left_over(tmp_path) == ["cut.tar.gz"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("second", ["a/b.txt/c", "a", "."])
def test_a_file_that_is_a_folder_as_well_is_refused(tmp_path, second):
    tar = tar_with(tmp_path / "bad.tar.gz", PLAIN, (second, tarfile.REGTYPE, b"text"))
    with pytest.raises(archives.ArchiveError, match="as a file and as a folder"):
        archives.unpack(tar, tmp_path / "out")
    assert left_over(tmp_path) == ["bad.tar.gz"]


def test_an_archive_is_compared_with_what_it_unpacks_to(tmp_path):
    large = os.urandom(archives.CHUNK + 7)
    last = ("a/b.txt", tarfile.REGTYPE, b"last")  # of two members of one name the last is what is unpacked
    tar = tar_with(tmp_path / "good.tar.gz", PLAIN, ("large", tarfile.REGTYPE, large), last)
    folder = archives.unpack(tar, tmp_path / "out")
    archives.compare(tar, folder)
    for changed in (large + b"x", large[:-1], large[:-1] + b"\0", b""):
        (folder / "large").write_bytes(changed)
        if changed != large:
            with pytest.raises(archives.ArchiveError, match=r"large is not what .*good\.tar\.gz holds"):
                archives.compare(tar, folder)
    (folder / "large").write_bytes(large)
    (folder / "a/b.txt").unlink()
    with pytest.raises(archives.ArchiveError, match=r"b\.txt is not what"):
        archives.compare(tar, folder)


def test_two_processes_unpack_once(tmp_path, monkeypatch):
    tar = tar_with(tmp_path / "good.tar.gz", PLAIN)
    members = archives.members

    def slowly(archive):
        with (tmp_path / "log").open("a") as log:
            log.write("unpacking\n")
        time.sleep(0.3)
        return members(archive)

    monkeypatch.setattr(archives, "members", slowly)
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=archives.unpack, args=(tar, tmp_path / "out")) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(30)
    assert [one.exitcode for one in both] == [0, 0]
    assert (tmp_path / "log").read_text() == "unpacking\n"
    assert (tmp_path / "out" / "a/b.txt").read_bytes() == b"text"


def test_one_member_is_read_if_its_digest_is_right(tmp_path):
    wheel = tmp_path / "thing.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("a/b", b"text")
    digest = hashlib.sha256(b"text").hexdigest()
    assert archives.member(wheel, "a/b", digest) == b"text"
    with pytest.raises(archives.ArchiveError, match=f"expected {'0' * 64}"):
        archives.member(wheel, "a/b", "0" * 64)
    with pytest.raises(archives.ArchiveError, match="no member a/c"):
        archives.member(wheel, "a/c", digest)
    Path(wheel).write_bytes(b"no zip")
    with pytest.raises(archives.ArchiveError, match="broken"):
        archives.member(wheel, "a/b", digest)
