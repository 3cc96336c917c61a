"""The interface of clients of a served store: records as JSON, rows as Arrow streams.

Clients are entry points of the group ``featurestore.clients``, named by the address's scheme.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from featurestore.errors import ConfigurationError, listing
from featurestore.plugins import find_plugin, load_plugin, plugin_names

if TYPE_CHECKING:
    import pyarrow as pa

_ADDRESS = ("http://", "https://")
# The content type of a line of JSON (the request) followed by an Arrow stream (rows).
RETRIEVAL = "application/vnd.featurestore.retrieval"


class Client(Protocol):
    """A client of a served store.

    **Errors** of the server are raised with the same class, message and hint
    (``FeatureGroupNotFound``, ``NotSignedIn``, ``NotAllowed``). If the server cannot be reached or
    the connection breaks, ``ServerUnavailable`` is raised.

    **Threads.** All methods are thread-safe.
    """

    @property
    def address(self) -> str:
        """The server's address, without a trailing slash."""
        ...

    def get(self, path: str, **arguments: str | int | None) -> Any:
        """Return a record below ``/api/v1``; arguments that are None are omitted."""
        ...

    def content(self, path: str) -> bytes:
        """Return the raw response body of a path below ``/api/v1``."""
        ...

    def items(self, path: str, **arguments: str | int | None) -> list[dict[str, Any]]:
        """Return all items of a paginated list."""
        ...

    def post(self, path: str, **arguments: str | int | None) -> Any:
        """Run an action on the server and return its record; it may take long."""
        ...

    def send(
        self, path: str, request: Mapping[str, Any], rows: pa.RecordBatchReader | None = None
    ) -> Any:
        """Request a change, optionally with rows, and return the server's record."""
        ...

    def file_chunks(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of a file below ``/api/v1``, in order.

        If the connection breaks, the remaining bytes are requested on a new connection.
        """
        ...

    def rows(
        self, retrieval: Mapping[str, Any], labels: pa.RecordBatchReader | None = None
    ) -> pa.RecordBatchReader:
        """Stream the rows of a retrieval; labels are streamed to the server.

        Closing the reader cancels the retrieval on the server. A truncated stream raises
        ``ServerUnavailable``.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


def is_address(location: str) -> bool:
    """Return True if a location is the address of a served store.

    >>> is_address("http://127.0.0.1:8787"), is_address("s3://bucket/prefix")
    (True, False)
    """
    return location.startswith(_ADDRESS)


def open_client(address: str, *, token: str | None) -> Client:
    """Create the client for an address.

    Raises:
        ConfigurationError: No installed client supports its scheme.
    """
    scheme = address.partition(":")[0]
    entry_point = find_plugin("clients", scheme)
    if entry_point is None:
        raise ConfigurationError(
            f"No client for {scheme} is installed. Available: {listing(plugin_names('clients'))}.",
            hint="pip install --force-reinstall featurestore",
        )
    client: Client = load_plugin(entry_point)(address, token=token)
    return client
