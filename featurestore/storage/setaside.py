"""Record batches set aside on disk while a process runs: written once, then read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pyarrow as pa

from featurestore.storage import files
from featurestore.storage.failures import writing

_BUFFER_BYTES = 1 << 20


class BatchFile:
    """Batches of one schema in a file that has no name any more once it is read, or closed.

    Args:
        directory: Where the file is made; the directory itself is made if need be.
        schema: Of the batches.
    """

    def __init__(self, directory: str, schema: pa.Schema) -> None:
        files.make_directory(directory)
        with ExitStack() as opened:
            with writing(directory):
                handle, self._path = tempfile.mkstemp(".arrow", "featurestore-rows-", directory)
                os.close(handle)
                opened.callback(self._unlink)
                # Batches of many columns are many small writes.
                sink = pa.output_stream(self._path, compression=None, buffer_size=_BUFFER_BYTES)
            self._sink = opened.enter_context(sink)
            self._writer = pa.ipc.new_file(self._sink, schema)
            self._opened = opened.pop_all()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        with writing(self._path):
            self._writer.write_batch(batch)

    def read(self) -> list[pa.RecordBatch]:
        """End writing and return the batches, whose values stay on disk until they are looked at."""
        reader = self._ended(pa.memory_map)
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]

    def reader(self) -> pa.RecordBatchFileReader:
        """End writing and return a reader that takes a batch into memory when it is asked for it."""
        return self._ended(pa.OSFile)

    def close(self) -> None:
        """Let go of the file; batches that were read stay as long as they are held."""
        self._opened.close()

    def _ended(self, opened: Callable[[str], pa.NativeFile]) -> pa.RecordBatchFileReader:
        with writing(self._path):
            self._writer.close()
            self._sink.flush()
            reader = pa.ipc.open_file(opened(self._path))
        self._unlink()
        return reader

    def _unlink(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path)
