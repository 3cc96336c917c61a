"""The interface of clients of a served store: records as JSON, rows as Arrow streams.

A client is looked up by the scheme of the address among the entry points ``featurestore.clients``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from featurestore.errors import ConfigurationError, listing
from featurestore.plugins.lookup import find_plugin, load_plugin, plugin_names

if TYPE_CHECKING:
    import pyarrow as pa

_ADDRESS = ("http://", "https://")
# What is asked as a line of JSON, then rows as an Arrow stream.
RETRIEVAL = "application/vnd.featurestore.retrieval"


class Client(Protocol):
    """A way to a served store.

    **Errors** of the server are raised as what they are there, with message and hint
    (``FeatureGroupNotFound``); ``NotSignedIn`` and ``NotAllowed`` are such. A server that cannot be
    reached, or that breaks off, is a ``ServerUnavailable``.

    **Threads.** All methods may be called by several threads at once.
    """

    @property
    def address(self) -> str:
        """The address of the server, without a slash at its end."""
        ...

    def get(self, path: str, **arguments: str | int | None) -> Any:
        """Return a record below ``/api/v1``; arguments that are None are left out."""
        ...

    def content(self, path: str) -> bytes:
        """Return an answer below ``/api/v1`` as it comes."""
        ...

    def items(self, path: str, **arguments: str | int | None) -> list[dict[str, Any]]:
        """Return all items of a list, page after page."""
        ...

    def post(self, path: str, **arguments: str | int | None) -> Any:
        """Ask the server to do something, and return its record of it; it may take long."""
        ...

    def send(
        self, path: str, request: Mapping[str, Any], rows: pa.RecordBatchReader | None = None
    ) -> Any:
        """Ask for a change, with rows or without, and return the server's record of it."""
        ...

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of a file below ``/api/v1``, in order.

        Where a connection breaks the rest is asked for on another one.
        """
        ...

    def rows(
        self, retrieval: Mapping[str, Any], labels: pa.RecordBatchReader | None = None
    ) -> pa.RecordBatchReader:
        """Return the rows of a retrieval as they come; labels are sent as they are read.

        Closing the reader ends the server's work. Rows that break off raise ``ServerUnavailable``,
        never end early.
        """
        ...

    def close(self) -> None:
        """End what is open."""
        ...


def is_address(location: str) -> bool:
    """Tell whether a location is the address of a served store.

    >>> is_address("http://127.0.0.1:8787"), is_address("s3://bucket/prefix")
    (True, False)
    """
    return location.startswith(_ADDRESS)


def open_client(address: str, *, token: str | None) -> Client:
    """Return the client of an address.

    Raises:
        ConfigurationError: Nothing that is installed speaks its scheme.
    """
    scheme = address.partition(":")[0]
    found = find_plugin("clients", scheme)
    if found is None:
        raise ConfigurationError(
            f"Nothing that is installed speaks {scheme}; there are "
            f"{listing(plugin_names('clients'))}.",
            hint="pip install --force-reinstall featurestore",
        )
    client: Client = load_plugin(found)(address, token=token)
    return client
