"""Arrow streams over a connection: labels on their way out, rows on their way in."""

from __future__ import annotations

import http.client
import io
import json
import select
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from featurestore.arrow.arrow_stream import ipc_chunks


def parts_of(retrieval: Mapping[str, Any], labels: pa.RecordBatchReader | None) -> Iterator[bytes]:
    """Yield what is sent: the retrieval as a line, and labels batch by batch."""
    yield json.dumps(retrieval).encode() + b"\n"
    if labels is not None:
        yield from ipc_chunks(labels.schema, labels)


def until_answered(
    connection: http.client.HTTPConnection, parts: Iterator[bytes]
) -> Iterator[bytes]:
    """Yield parts until the server answers: one that refuses them does not read the rest."""
    for part in parts:
        readable, _, _ = select.select([connection.sock], [], [], 0)
        if readable:
            return
        yield part


def read_stream(
    connection: http.client.HTTPConnection,
    answer: http.client.HTTPResponse,
    *,
    broken: Callable[[str], Exception],
) -> pa.RecordBatchReader:
    """Return rows as they come; the connection is closed with the reader, or at its end."""
    try:
        reader = pa.ipc.open_stream(_File(answer))
    except (OSError, pa.ArrowException, http.client.HTTPException) as error:
        connection.close()
        raise broken(f"its answer is no Arrow stream: {error}") from error
    return pa.RecordBatchReader.from_batches(
        reader.schema, _batches(connection, answer, reader, broken)
    )


def _batches(
    connection: http.client.HTTPConnection,
    answer: http.client.HTTPResponse,
    reader: pa.RecordBatchReader,
    broken: Callable[[str], Exception],
) -> Iterator[pa.RecordBatch]:
    try:
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                break
            yield batch
        # A server that breaks off leaves out the end of its answer, which this finds missing.
        answer.read()
    except (OSError, pa.ArrowException, http.client.HTTPException) as error:
        raise broken(f"its rows broke off: {type(error).__name__}: {error}") from error
    finally:
        connection.close()


class _File(io.RawIOBase):
    """An answer as a file that Arrow reads: never less than was asked for, but at its end."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        """Fill a buffer."""
        view = memoryview(target).cast("B")
        filled = 0
        while filled < len(view):
            count = self._answer.readinto(view[filled:])
            if not count:
                break
            filled += count
        return filled
