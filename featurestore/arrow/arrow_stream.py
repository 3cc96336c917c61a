"""Arrow IPC streams as byte chunks, one per batch."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def ipc_chunks(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield the bytes of a stream: the schema with the first batch, the other batches, the end.

    >>> import pyarrow as pa
    >>> table = pa.table({"n": [1, 2]})
    >>> parts = list(ipc_chunks(table.schema, table.to_batches()))
    >>> len(parts), pa.ipc.open_stream(b"".join(parts)).read_all().num_rows
    (2, 2)
    """
    import pyarrow as pa

    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield _drain(buffer)
    yield _drain(buffer)


def _drain(buffer: io.BytesIO) -> bytes:
    """Return the content of a buffer and empty it."""
    content = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return content
