"""The interface of clients for a served store: records as JSON, rows as Arrow streams.

Clients are entry points of the group ``featurestore.clients``, named by the URL scheme.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from featurestore.errors import ConfigurationError, listing
from featurestore.plugins import find_plugin, load_plugin, plugin_names

if TYPE_CHECKING:
    import pyarrow as pa

_ADDRESS = ("http://", "https://")
# The content type of a request as a JSON line, followed by rows as an Arrow stream.
RETRIEVAL = "application/vnd.featurestore.retrieval"
ARROW = "application/vnd.apache.arrow.stream"
# The metadata of an Arrow schema with a JSON object on the rows.
METADATA = "featurestore"
# The response header that names objects which the registry of the server lacks, percent-encoded.
NOTICE = "featurestore-notice"


class Client(Protocol):
    """A client of a served store.

    **Errors.** Server errors (for example ``FeatureGroupNotFound``, ``NotSignedIn``,
    ``NotAllowed``) are raised with the same class, message and hint. ``ServerUnavailable`` is
    raised if the server cannot be reached or the connection is interrupted.

    **Threads.** All methods are thread-safe.
    """

    @property
    def address(self) -> str:
        """The server's address, without a trailing slash."""
        ...

    def get(self, path: str, **arguments: str | int | None) -> Any:
        """Return the record at a path below ``/api/v1``; arguments that are None are omitted."""
        ...

    def content(self, path: str) -> bytes:
        """Return the raw response body of a path below ``/api/v1``."""
        ...

    def items(self, path: str, **arguments: str | int | None) -> list[dict[str, Any]]:
        """Return the items of all pages of a list."""
        ...

    def post(self, path: str, **arguments: str | int | None) -> Any:
        """Run an action on the server, which may take a long time, and return its record."""
        ...

    def send(
        self, path: str, request: Mapping[str, Any], rows: pa.RecordBatchReader | None = None
    ) -> Any:
        """Send a change request, optionally with rows, and return the server's record."""
        ...

    def table(self, path: str, request: Mapping[str, Any]) -> pa.Table:
        """Send a request and return the rows of the response, with the schema's metadata."""
        ...

    def file_chunks(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of a file at a path below ``/api/v1``, in order.

        If the connection is interrupted, the remaining bytes are requested on a new connection.
        """
        ...

    def rows(
        self, retrieval: Mapping[str, Any], labels: pa.RecordBatchReader | None = None
    ) -> pa.RecordBatchReader:
        """Stream the rows of a retrieval, with labels streamed to the server.

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
        ConfigurationError: No installed client supports the URL scheme.
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
