"""How an address is opened: with the certificates that pip trusts, and with a login where it has one."""

from __future__ import annotations

import ast
import base64
import functools
import os
import ssl
import subprocess
import sys
import urllib.parse
import urllib.request
from typing import Any

TIMEOUT = 15.0  # seconds without a byte


@functools.cache
def pip_settings() -> dict[str, str]:
    """pip's own settings: its files, then its environment variables, which count more."""
    asked = [sys.executable, "-m", "pip", "config", "list", "--disable-pip-version-check"]
    try:
        ran = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):  # no pip here: its variables are all there is
        return {}
    found: dict[str, str] = {}
    lines = [line.partition("=") for line in ran.stdout.splitlines()]
    for key, _, value in sorted(lines, key=lambda line: line[0].startswith(":env:")):
        scope, _, name = key.rpartition(".")
        if scope in ("global", ":env:", "install", "download"):
            found[name] = str(ast.literal_eval(value))
    return found


def setting(name: str) -> str | None:
    """What pip would use for ``--name``."""
    return os.environ.get(f"PIP_{name.upper().replace('-', '_')}") or pip_settings().get(name)


def opened(url: str) -> Any:
    """The reply at an address; a login in it (``https://name:word@host/``) is sent as such."""
    parts = urllib.parse.urlsplit(url)
    headers = {"User-Agent": "spatial_transformer"}
    if parts.username:
        login = ":".join(urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    request = urllib.request.Request(without_login(url), headers=headers)
    context = None
    if parts.scheme == "https":
        context = ssl.create_default_context()
        authority = setting("cert")
        if authority:
            try:
                context.load_verify_locations(authority)
            except OSError as error:  # it does not say of which file
                raise OSError(f"the certificates that pip is set up to use, {authority}: {error}") from error
    opener = urllib.request.build_opener(KeepsLogins, urllib.request.HTTPSHandler(context=context))
    return opener.open(request, timeout=TIMEOUT)


class KeepsLogins(urllib.request.HTTPRedirectHandler):
    """Follows redirections; urllib would send a login along to whatever host they lead to."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        followed = super().redirect_request(req, fp, code, msg, headers, newurl)
        here, there = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if followed is not None and (here.scheme, here.netloc) != (there.scheme, there.netloc):
            followed.remove_header("Authorization")
        return followed


def without_login(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
