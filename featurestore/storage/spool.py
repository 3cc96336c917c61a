"""Record batches that are written to a temporary file once and then read back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pyarrow as pa

from featurestore.storage import storage_for
from featurestore.storage.failures import translate_write_errors

_BUFFER_BYTES = 1 << 20


class BatchFile:
    """Batches with one schema in a temporary file, which is unlinked when it is read or closed.

    Args:
        directory: The directory of the file; it is created if necessary.
        schema: The schema of the batches.
    """

    def __init__(self, directory: str, schema: pa.Schema) -> None:
        storage_for(directory).make_directory(directory)
        with ExitStack() as resources:
            with translate_write_errors(directory):
                handle, self._path = tempfile.mkstemp(".arrow", "featurestore-rows-", directory)
                os.close(handle)
                resources.callback(self._unlink)
                # A batch with many columns consists of many small writes.
                sink = pa.output_stream(self._path, compression=None, buffer_size=_BUFFER_BYTES)
            self._sink = resources.enter_context(sink)
            self._writer = pa.ipc.new_file(self._sink, schema)
            # An error in the constructor closes and removes the file; from here on, ``close`` does.
            self._resources = resources.pop_all()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        with translate_write_errors(self._path):
            self._writer.write_batch(batch)

    def read(self) -> list[pa.RecordBatch]:
        """Finish writing and return the batches, memory-mapped from disk."""
        reader = self._finish(pa.memory_map)
        return [reader.get_batch(index) for index in range(reader.num_record_batches)]

    def reader(self) -> pa.RecordBatchFileReader:
        """Finish writing and return a reader that loads one batch at a time."""
        return self._finish(pa.OSFile)

    def close(self) -> None:
        """Close the file; batches that were already read remain valid."""
        self._resources.close()

    def _finish(self, open_file: Callable[[str], pa.NativeFile]) -> pa.RecordBatchFileReader:
        """Complete the file and return a reader; the name of the file is removed."""
        with translate_write_errors(self._path):
            self._writer.close()
            self._sink.flush()
            reader = pa.ipc.open_file(open_file(self._path))
        # An open file remains readable without a name, and leaves nothing behind if the process is
        # killed.
        self._unlink()
        return reader

    def _unlink(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path)
