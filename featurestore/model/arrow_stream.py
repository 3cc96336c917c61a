"""Arrow IPC streams in parts: each batch leaves as bytes before the next one is asked for."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def stream_parts(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield the bytes of a stream, the schema with the first batch, and its end.

    >>> import pyarrow as pa
    >>> table = pa.table({"n": [1, 2]})
    >>> parts = list(stream_parts(table.schema, table.to_batches()))
    >>> len(parts), pa.ipc.open_stream(b"".join(parts)).read_all().num_rows
    (2, 2)
    """
    import pyarrow as pa

    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield _take(buffer)
    yield _take(buffer)


def _take(buffer: io.BytesIO) -> bytes:
    """Return what was written, and empty the buffer."""
    written = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return written
