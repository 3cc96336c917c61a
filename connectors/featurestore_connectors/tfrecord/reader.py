"""Readers of shards with random access: row ranges as Arrow, and raw records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.errors import DatasetDamaged
from featurestore.plugins.format import Plane
from featurestore.plugins.plain import select_fields
from featurestore.storage import files
from featurestore_connectors.tfrecord import fixed, regions
from featurestore_connectors.tfrecord.layout import RecordLayout
from featurestore_connectors.tfrecord.planes import FixedPlaneReader
from featurestore_connectors.tfrecord.variable import INDEX_SUFFIX, Span


def map_records(path: str, *, record_bytes: int) -> npt.NDArray[np.uint8]:
    """Return a memory map of a shard, uint8 of shape (rows, record_bytes).

    Raises:
        DatasetDamaged: The file is missing, or its size is not a multiple of the record size.
    """
    try:
        size = files.status(path).size
    except OSError as error:
        raise DatasetDamaged(
            f"The shard {path!r} cannot be read: {error.strerror or error}."
        ) from error
    if size % record_bytes:
        raise DatasetDamaged(
            f"The shard {path!r} has {size:,} bytes, "
            f"which is not a multiple of its records' {record_bytes:,}.",
            hint="it was truncated or changed; featurestore td verify lists the damage",
        )
    if size == 0:
        return np.zeros((0, record_bytes), np.uint8)
    return np.memmap(path, np.uint8, "r").view(np.ndarray).reshape(-1, record_bytes)


class FixedShard:
    """An open shard of the fixed layout."""

    def __init__(self, path: str, layout: RecordLayout) -> None:
        self._layout = layout
        self._records: npt.NDArray[np.uint8] | None = map_records(
            path, record_bytes=layout.record_bytes
        )
        self._rows = len(self._records)

    @property
    def rows(self) -> int:
        return self._rows

    def read(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        if self._records is None:
            raise ValueError("the shard is closed")
        records = self._records[start:stop]
        arrays = fixed.read_arrays(records, [self._layout.template.slot(name) for name in columns])
        schema = select_fields(self._layout.schema, columns)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def close(self) -> None:
        self._records = None


class VariableShard:
    """An open shard of the variable layout, with its index of row offsets."""

    def __init__(self, path: str, layout: RecordLayout) -> None:
        self._layout, self._path = layout, path
        self._data: npt.NDArray[np.uint8] | None = map_records(path, record_bytes=1)[:, 0]
        self._index = read_index(path, size=len(self._data))

    @property
    def rows(self) -> int:
        return len(self._index) - 1

    def read(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        if self._data is None:
            raise ValueError("the shard is closed")
        bounds = self._index[start : stop + 1].astype(np.int64)
        data = self._data[bounds[0] : bounds[-1]]
        try:
            span = Span(data, bounds[:-1] - bounds[0], self._layout)
            if not np.array_equal(span.ends, bounds[1:] - bounds[0]):
                raise IndexError("the ends of records differ from the index")
            arrays = [span.column(name) for name in columns]
        except (IndexError, ValueError, pa.ArrowInvalid) as error:
            raise DatasetDamaged(
                f"Rows {start:,} to {stop:,} of the shard {self._path!r} "
                f"cannot be decoded: {error}.",
                hint="featurestore td verify lists the damage",
            ) from error
        schema = select_fields(self._layout.schema, columns)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def close(self) -> None:
        self._data = None


def read_index(path: str, *, size: int) -> npt.NDArray[np.uint64]:
    """Return the offsets of the records of a shard of ``size`` bytes, and its end."""
    name = path + INDEX_SUFFIX
    try:
        index = np.fromfile(name, "<u8")
    except OSError as error:
        raise DatasetDamaged(
            f"The index {name!r} cannot be read: {error.strerror or error}."
        ) from error
    if len(index) == 0 or index[0] != 0 or index[-1] != size or (index[1:] < index[:-1]).any():
        raise DatasetDamaged(f"The index {name!r} does not belong to its shard of {size:,} bytes.")
    return index


class FixedAccess:
    """Random access to fixed-width records (``formats.RecordAccess``)."""

    def __init__(self, layout: RecordLayout) -> None:
        self._layout = layout

    @property
    def record_bytes(self) -> int:
        return self._layout.record_bytes

    def records(self, path: str) -> npt.NDArray[Any]:
        return map_records(path, record_bytes=self.record_bytes)

    def decode(
        self, records: npt.NDArray[Any], columns: Sequence[str]
    ) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any] | None]]:
        return fixed.decode(records, self._layout.template, columns)

    def present(self, records: npt.NDArray[Any], column: str) -> npt.NDArray[np.bool_] | None:
        return regions.read_present(records, self._layout.template.slot(column))

    def padded_texts(self, records: npt.NDArray[Any], column: str) -> npt.NDArray[np.bytes_] | None:
        return fixed.read_padded(records, self._layout.template.slot(column))

    def byte_rows(self, records: npt.NDArray[Any], column: str) -> npt.NDArray[np.uint8] | None:
        return fixed.view_bytes(records, self._layout.template.slot(column))

    def plane_reader(self, groups: Sequence[Sequence[Plane | None]]) -> FixedPlaneReader:
        return FixedPlaneReader(self._layout.template, groups)
