"""Arrow streams over HTTP: sent labels and received rows."""

from __future__ import annotations

import http.client
import io
import json
import select
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from featurestore.arrow.arrow_stream import ipc_chunks


def request_body(
    retrieval: Mapping[str, Any], labels: pa.RecordBatchReader | None
) -> Iterator[bytes]:
    """Yield the body of a request: a line of JSON, then the rows batch by batch."""
    yield json.dumps(retrieval).encode() + b"\n"
    if labels is not None:
        yield from ipc_chunks(labels.schema, labels)


def send_until_response(
    connection: http.client.HTTPConnection, chunks: Iterator[bytes]
) -> Iterator[bytes]:
    """Yield chunks until the server responds: after an error it does not read the remaining ones."""
    for chunk in chunks:
        readable, _, _ = select.select([connection.sock], [], [], 0)
        if readable:
            return
        yield chunk


def read_stream(
    connection: http.client.HTTPConnection,
    response: http.client.HTTPResponse,
    *,
    unavailable: Callable[[str], Exception],
) -> pa.RecordBatchReader:
    """Return a lazy reader of the rows; the connection is closed with the reader or at its end."""
    try:
        reader = pa.ipc.open_stream(_File(response))
    except (OSError, pa.ArrowException, http.client.HTTPException) as error:
        connection.close()
        raise unavailable(f"its response is not an Arrow stream: {error}") from error
    return pa.RecordBatchReader.from_batches(
        reader.schema, _batches(connection, response, reader, unavailable)
    )


def _batches(
    connection: http.client.HTTPConnection,
    response: http.client.HTTPResponse,
    reader: pa.RecordBatchReader,
    unavailable: Callable[[str], Exception],
) -> Iterator[pa.RecordBatch]:
    try:
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                break
            yield batch
        # Raises if the server aborted the response: then the last HTTP chunk is missing.
        response.read()
    except (OSError, pa.ArrowException, http.client.HTTPException) as error:
        raise unavailable(f"the row stream was aborted: {type(error).__name__}: {error}") from error
    finally:
        connection.close()


class _File(io.RawIOBase):
    """File of a response for Arrow: reads are only short at the end of the file."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        """Fill a buffer."""
        view = memoryview(target).cast("B")
        filled = 0
        while filled < len(view):
            count = self._response.readinto(view[filled:])
            if not count:
                break
            filled += count
        return filled
