"""Accepted hosts, cross-site checks and security headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

API = "/api/v1"
# All resources come from this server; inline scripts and styles are forbidden.
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def known_hosts(host: str, names: Sequence[str] = ()) -> list[str]:
    """Return the host names that the server accepts.

    >>> known_hosts("127.0.0.2")
    ['localhost', '127.0.0.1', '[::1]', '127.0.0.2']
    """
    bracketed = f"[{host}]" if ":" in host else host
    return list(dict.fromkeys([*_LOOPBACK_HOSTS, bracketed, *names]))


def is_cross_site(method: str, headers: Mapping[str, str]) -> bool:
    """Return True if a page of another site caused a browser to send an unsafe request.

    Browsers send ``Sec-Fetch-Site`` or ``Origin``. Programs send neither and are allowed.

    >>> is_cross_site("POST", {"sec-fetch-site": "cross-site"})
    True
    >>> is_cross_site("POST", {"origin": "http://evil.example", "host": "localhost:8787"})
    True
    >>> is_cross_site("POST", {})
    False
    """
    if method in _SAFE_METHODS:
        return False
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")
