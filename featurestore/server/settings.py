"""What a server is started with."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from featurestore.errors import ConfigurationError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8787


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens, and how much one answer may hold.

    Args:
        host: The address; only of this machine, as there is no sign-in.
        port: The port.
        rows: The most rows that a page or an answer of the REST interface shows of a group.
        page: How many lines of a list are on a page.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    rows: int = 100
    page: int = 50

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


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
    Hint: --host 127.0.0.1, and reach it from elsewhere through ssh -L 8787:127.0.0.1:8787
    """
    if host == "localhost":
        return
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise ConfigurationError(
            f"The server listens on this machine alone, and {host!r} lets others in, who could "
            "read everything without signing in.",
            hint=(
                f"--host {DEFAULT_HOST}, and reach it from elsewhere through "
                f"ssh -L {DEFAULT_PORT}:{DEFAULT_HOST}:{DEFAULT_PORT}"
            ),
        )
