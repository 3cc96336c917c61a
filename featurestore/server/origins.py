"""Where requests come from: this server answers to its own names, and to its own pages' forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

_SAFE = ("GET", "HEAD", "OPTIONS")
_OF_THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")


def known_hosts(host: str, names: Sequence[str] = ()) -> list[str]:
    """Return the names under which the server answers.

    >>> known_hosts("127.0.0.2")
    ['localhost', '127.0.0.1', '[::1]', '127.0.0.2']
    """
    named = f"[{host}]" if ":" in host else host
    return list(dict.fromkeys([*_OF_THIS_MACHINE, named, *names]))


def comes_from_elsewhere(method: str, headers: Mapping[str, str]) -> bool:
    """Tell whether a page of another site made a browser send a request that changes something.

    Browsers say where a request comes from; programs say nothing and are let through.

    >>> comes_from_elsewhere("POST", {"sec-fetch-site": "cross-site"})
    True
    >>> comes_from_elsewhere("POST", {"origin": "http://evil.example", "host": "localhost:8787"})
    True
    >>> comes_from_elsewhere("POST", {})
    False
    """
    if method in _SAFE:
        return False
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")
