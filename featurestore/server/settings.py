"""Server settings; accepted hosts, cross-site checks and security headers."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from featurestore.errors import ConfigurationError

API = "/api/v1"
# All resources are served by this server; inline scripts and styles are forbidden.
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        # Other sites must not place the pages in a frame, where a click could press a hidden
        # button.
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # URLs contain names of objects, which linked sites must not receive.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8787
# The server never starts Spark: it reads rows in its own process and does not run Spark jobs.
SPARK = "spark"


@dataclass(frozen=True)
class Provider:
    """An OpenID Connect provider for sign-in.

    Args:
        issuer: The issuer URL, equal to the ``iss`` claim in its tokens.
        client: The client id of this server.
        secret: Reference to the client secret: "env:NAME" or "file:path".
        label: The display name.
        role: The role of users who sign in for the first time; None: an admin must add users.
    """

    issuer: str
    client: str
    secret: str
    label: str = "the provider"
    role: str | None = None


@dataclass(frozen=True)
class ServerSettings:
    """Address, authentication and limits of a server.

    Args:
        host: Address to listen on; without ``auth`` only a loopback address.
        port: Port to listen on.
        auth: Require sign-in or a token; if False, all requests have all permissions.
        names: Accepted host names; if empty, any host name is accepted with ``auth``.
        certificate: File with the TLS certificate chain; None: plain HTTP.
        key: File with the private key of the certificate.
        behind_proxy: Whether a proxy on this machine terminates TLS and sends the client address.
        body: Maximum size of a request body in bytes.
        upload: Maximum size of uploaded rows (labels, writes) in bytes; they are stored on disk.
        seconds: Time limit for each chunk of a row stream, both to compute and to send it.
        query_seconds: Time limit for a page or REST response, including queries, parsing, planning
            and rendering; uploads and row streams are limited by ``seconds`` instead.
        provider: OpenID Connect provider for sign-in.
        rows: Maximum number of rows of a group on a page or in a REST response.
        answer: Maximum Arrow size of these rows in bytes; pages display the rows that fit.
        page: Number of list entries per page.
        url: Maximum size of the path and query of a URL in bytes.
        condition: Maximum number of SQL characters in one request, in all conditions together.
        windows: Maximum number of windows in a job plan or backfill in the browser.
        requests_per_person: Maximum number of requests of one person that run at the same time, and
            the same number of row streams and writes. A person is a user, or the network of a
            client without sign-in. Four times as many wait; further requests get the status 429.
        connections: Maximum number of open connections, at most what the descriptor limit of the
            process allows. At the limit, a new connection closes the oldest connection without a
            request.
        trust_models: Whether predictions may load models that run code, such as pickles.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    auth: bool = False
    names: tuple[str, ...] = ()
    certificate: str | None = None
    key: str | None = None
    behind_proxy: bool = False
    body: int = 1 << 20
    upload: int = 8 << 30
    seconds: float = 600.0
    query_seconds: float = 30.0
    provider: Provider | None = None
    rows: int = 100
    answer: int = 16 << 20
    page: int = 50
    url: int = 65_536
    # The SQL parser cannot be interrupted, and takes about a second for this length.
    condition: int = 20_000
    windows: int = 10_000
    requests_per_person: int = 8
    connections: int = 512
    trust_models: bool = False

    @property
    def address(self) -> str:
        """The URL of the server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Return True if an address is only reachable from this machine.

    >>> is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(host: str) -> None:
    """Reject an address that is reachable from the network, since reading would need no sign-in.

    Raises:
        ConfigurationError: The address is not a loopback address.

    >>> check_host("127.0.0.1")
    >>> check_host("0.0.0.0")
    Traceback (most recent call last):
        ...
    featurestore.errors.ConfigurationError: '0.0.0.0' is reachable from the network, so anyone \
could read the store without signing in.
    Hint: require sign-in with --auth, or use --host 127.0.0.1 and connect through \
ssh -L 8787:127.0.0.1:8787
    """
    if not is_loopback(host):
        raise ConfigurationError(
            f"{host!r} is reachable from the network, so anyone could read the store without "
            "signing in.",
            hint=(
                f"require sign-in with --auth, or use --host {DEFAULT_HOST} and connect through "
                f"ssh -L {DEFAULT_PORT}:{DEFAULT_HOST}:{DEFAULT_PORT}"
            ),
        )


def known_hosts(host: str, names: Sequence[str] = ()) -> list[str]:
    """Return the host names that the server accepts.

    >>> known_hosts("127.0.0.2")
    ['localhost', '127.0.0.1', '[::1]', '127.0.0.2']
    """
    # Host headers contain IPv6 addresses in brackets.
    bracketed = f"[{host}]" if ":" in host else host
    return list(dict.fromkeys([*_LOOPBACK_HOSTS, bracketed, *names]))


def is_cross_site(method: str, headers: Mapping[str, str]) -> bool:
    """Return True if another site made the browser send an unsafe request.

    Browsers send ``Sec-Fetch-Site`` or ``Origin``. Programs send neither header and are allowed.

    >>> is_cross_site("POST", {"sec-fetch-site": "cross-site"})
    True
    >>> is_cross_site("POST", {"origin": "http://evil.example", "host": "localhost:8787"})
    True
    >>> is_cross_site("POST", {})
    False
    """
    if method in _SAFE_METHODS:
        return False
    # "same-site" is rejected too: other servers of the same domain receive the cookie, but are not
    # trusted. "none" is a request by the user, such as a bookmark.
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    # Older browsers do not send Sec-Fetch-Site.
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")
