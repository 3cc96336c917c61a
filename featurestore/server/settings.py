"""What a server is started with."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from featurestore.errors import ConfigurationError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8787
# The engine that no server starts: its jobs run elsewhere, and rows are read in this process.
SPARK = "spark"


@dataclass(frozen=True)
class Provider:
    """An OpenID Connect provider that people may sign in with.

    Args:
        issuer: Its address, as its tokens name it.
        client: What it calls this server.
        secret: Where what it told this server is: "env:NAME" or "file:path".
        label: What people call it.
        role: The role of those who come by it for the first time; None: an admin adds them.
    """

    issuer: str
    client: str
    secret: str
    label: str = "the provider"
    role: str | None = None


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens, and how much one answer may hold.

    Args:
        host: The address; only of this machine where nobody signs in.
        port: The port.
        auth: People sign in and programs show tokens; without, everybody may do everything.
        names: The names under which others reach the server; empty: any, where people sign in.
        certificate: File of the TLS certificate with its chain; None: plain HTTP.
        key: File of the certificate's key.
        behind_proxy: A proxy on this machine ends TLS and says who asks.
        body: The most bytes of a request.
        upload: The most bytes of rows that a client sends (labels, writes); they lie on disk.
        seconds: How long the next rows of a query may take, to be computed or to be taken by the
            client, before it is ended.
        query_seconds: How long a page or an answer of the REST interface may take, with its queries,
            parsing, planning and rendering; uploads and streams of rows have ``seconds`` instead.
        provider: Who else says who somebody is.
        rows: The most rows that a page or an answer of the REST interface shows of a group.
        answer: The most bytes of such rows, as Arrow holds them; pages show the rows that fit.
        page: How many lines of a list are on a page.
        url: The most bytes of the path and the query of an address.
        condition: The most characters of SQL in one request, all conditions together.
        windows: The most windows of one plan or backfill of a job in a browser.
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
    condition: int = 20_000
    windows: int = 10_000

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address.

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
    """Refuse an address that others reach: whoever comes there could read everything.

    Raises:
        ConfigurationError: The address is not one of this machine alone.

    >>> check_host("127.0.0.1")
    >>> check_host("0.0.0.0")
    Traceback (most recent call last):
        ...
    featurestore.errors.ConfigurationError: The server listens on this machine alone, and \
'0.0.0.0' lets others in, who could read everything without signing in.
    Hint: --auth lets people sign in; or --host 127.0.0.1, and reach it from elsewhere through \
ssh -L 8787:127.0.0.1:8787
    """
    if not is_loopback(host):
        raise ConfigurationError(
            f"The server listens on this machine alone, and {host!r} lets others in, who could "
            "read everything without signing in.",
            hint=(
                f"--auth lets people sign in; or --host {DEFAULT_HOST}, and reach it from elsewhere through "
                f"ssh -L {DEFAULT_PORT}:{DEFAULT_HOST}:{DEFAULT_PORT}"
            ),
        )
