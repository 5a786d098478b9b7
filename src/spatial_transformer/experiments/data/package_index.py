"""Where a package index has a wheel: the index that pip is set up to use, PyPI if nothing else is said."""

from __future__ import annotations

import html.parser
import urllib.parse
from http.client import HTTPException

from .addresses import opened, setting, without_login

PYPI = "https://pypi.org/simple"
LONGEST = 20_000_000  # bytes of a page; the longest of PyPI's have some millions


class NotInIndexError(LookupError):
    """The index has no such file."""


def indexes() -> list[str]:
    further = (setting("extra-index-url") or "").split()
    return [setting("index-url") or PYPI, *further]


def find(project: str, filename: str) -> str:
    """The address of one file of a project."""
    failures: list[str] = []
    for index in indexes():
        page = f"{index.rstrip('/')}/{project}/"
        if page.startswith("file:"):
            page += "index.html"
        try:
            links = Links.of(text(page))
        except (OSError, HTTPException, UnicodeDecodeError) as error:
            failures.append(f"{without_login(page)}: {error}")
            continue
        for link in links:
            address = urllib.parse.urljoin(page, link).partition("#")[0]
            if urllib.parse.unquote(address.rpartition("/")[2]) == filename:
                return with_login_of(page, address)
    if failures:
        raise OSError(f"the package index did not answer: {'; '.join(failures)}")
    raise NotInIndexError(f"the package index has no {filename} under {project}")


def text(page: str) -> str:
    with opened(page) as reply:
        content: bytes = reply.read(LONGEST + 1)
    if len(content) > LONGEST:  # whoever sends without end does not fill the memory
        raise OSError(f"more than {LONGEST / 1e6:.0f} MB, which is no page of an index")
    return content.decode()


def with_login_of(page: str, address: str) -> str:
    """An index that asks for a login asks for it again at its own files, and only there."""
    here, there = urllib.parse.urlsplit(page), urllib.parse.urlsplit(address)
    if here.username and here.hostname == there.hostname and not there.username:
        return urllib.parse.urlunsplit(there._replace(netloc=here.netloc))
    return address


class Links(html.parser.HTMLParser):
    """The addresses that a page links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    @classmethod
    def of(cls, page: str) -> list[str]:
        parser = cls()
        parser.feed(page)
        return parser.found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]
