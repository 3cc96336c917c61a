"""Reads shards: random access to row ranges and raw records, and verification.

Verification checks the framing and checksums of each record, the index, and the row count.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from featurestore.errors import DatasetDamaged
from featurestore.plugins.format import Plane, ShardProblem
from featurestore.plugins.plain import select_fields
from featurestore.storage.mapped import checked_map, map_file
from featurestore_connectors.tfrecord import fixed, items, wire
from featurestore_connectors.tfrecord.layout import RecordLayout
from featurestore_connectors.tfrecord.planes import FixedPlaneReader
from featurestore_connectors.tfrecord.variable import INDEX_SUFFIX, RecordSpan

MAX_PROBLEMS = 10
CHUNK_RECORDS = 4096
_CHUNK_BYTES = 1 << 20
# Protocol Buffers limit a message to 2 GiB.
_MAX_RECORD_BYTES = 2**31 - 1


class FixedShard:
    """An open shard with the fixed layout."""

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
        slots = [self._layout.template.slot(name) for name in columns]
        with checked_map(self._records):
            arrays = fixed.read_arrays(self._records[start:stop], slots)
        schema = select_fields(self._layout.schema, columns)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def close(self) -> None:
        self._records = None


class VariableShard:
    """An open shard with the variable layout, with its index of row offsets."""

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
            with checked_map(self._data):
                return _decode_records(data, bounds - bounds[0], self._layout, columns)
        except (IndexError, ValueError, pa.ArrowInvalid) as error:
            raise DatasetDamaged(
                f"Rows {start:,} to {stop:,} of the shard {self._path!r} "
                f"cannot be decoded: {error}.",
                hint="featurestore td verify lists the damage",
            ) from error

    def close(self) -> None:
        self._data = None


def read_compressed(
    path: str, layout: RecordLayout, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a GZIP shard in order, about a MiB of records at a time.

    Raises:
        DatasetDamaged: The shard is not complete, or a record cannot be decoded.
    """
    try:
        for data, bounds in _split_records(_inflate(path)):
            if bounds[-1] != len(data):
                raise EOFError("a record is truncated, or its length is wrong")
            yield _decode_records(data, bounds, layout, columns)
    except (OSError, zlib.error, EOFError, IndexError, ValueError, pa.ArrowInvalid) as error:
        raise DatasetDamaged(
            f"The shard {path!r} cannot be decoded: {error}.",
            hint="featurestore td verify lists the damage",
        ) from error


def _decode_records(
    data: npt.NDArray[np.uint8],
    bounds: npt.NDArray[np.int64],
    layout: RecordLayout,
    columns: Sequence[str],
) -> pa.RecordBatch:
    """Decode complete records; ``bounds`` has the offset of each record, and the end.

    Raises:
        IndexError: The lengths in a record differ from its bounds.
        ValueError: A value is not valid, or records of the fixed layout have another size.
    """
    if layout.fixed:
        slots = [layout.template.slot(name) for name in columns]
        arrays = fixed.read_arrays(data.reshape(-1, layout.record_bytes), slots)
    else:
        span = RecordSpan(data, bounds[:-1], layout)
        # The lengths of values must agree with the bounds, otherwise the shard is damaged.
        if not np.array_equal(span.ends, bounds[1:]):
            raise IndexError("the ends of records differ from their lengths")
        arrays = [span.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=select_fields(layout.schema, columns))


def _inflate(path: str) -> Iterator[bytes]:
    """Yield the decompressed bytes of a shard, at most a MiB at a time.

    Raises:
        DatasetDamaged: The file is missing, or it is not one complete GZIP stream.
    """
    compressed = map_records(path, record_bytes=1)[:, 0]
    unpack = zlib.decompressobj(wbits=31)
    for start in range(0, len(compressed), _CHUNK_BYTES):
        with checked_map(compressed):
            chunk = compressed[start : start + _CHUNK_BYTES].tobytes()
        while chunk and not unpack.eof:
            yield unpack.decompress(chunk, _CHUNK_BYTES)
            chunk = unpack.unconsumed_tail
        if unpack.eof:
            break
    # A truncated stream has no end marker, and appended bytes are not part of the stream.
    if not unpack.eof or unpack.unused_data or start + _CHUNK_BYTES < len(compressed):
        raise DatasetDamaged(
            f"The shard {path!r} is not one complete GZIP stream.",
            hint="it was truncated or changed; create the training dataset again",
        )


def _split_records(
    chunks: Iterable[bytes],
) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]:
    """Yield the records of a stream with the offset of each, and the last end.

    Bytes after the last end are a truncated record, or one with a wrong length, and the last item.
    """
    data = bytearray()
    for chunk in chunks:
        data += chunk
        bounds, has_valid_lengths = _record_bounds(data)
        if not has_valid_lengths:
            break
        if len(bounds) > 1:
            yield np.frombuffer(bytes(data[: bounds[-1]]), np.uint8), np.array(bounds, np.int64)
            del data[: bounds[-1]]
    if data:
        bounds, _ = _record_bounds(data)
        yield np.frombuffer(bytes(data), np.uint8), np.array(bounds, np.int64)


def _record_bounds(data: bytearray) -> tuple[list[int], bool]:
    """Return the offset of each complete record and the last end, and if all lengths are valid."""
    bounds = [0]
    while len(head := data[bounds[-1] : bounds[-1] + wire.HEADER]) == wire.HEADER:
        length, checksum = struct.unpack("<QI", head)
        if checksum != wire.mask(crc32c(head[:8])) or length > _MAX_RECORD_BYTES:
            return bounds, False
        end = bounds[-1] + length + wire.FRAMING
        if end > len(data):
            break
        bounds.append(end)
    return bounds, True


class FixedAccess:
    """Random access to fixed-width records (implements ``formats.RecordAccess``)."""

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
        return items.read_present(records, self._layout.template.slot(column))

    def padded_texts(self, records: npt.NDArray[Any], column: str) -> npt.NDArray[np.bytes_] | None:
        return fixed.read_padded(records, self._layout.template.slot(column))

    def byte_rows(self, records: npt.NDArray[Any], column: str) -> npt.NDArray[np.uint8] | None:
        return fixed.view_bytes(records, self._layout.template.slot(column))

    def damaged_records(self, records: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        has_valid_header, has_valid_payload = _match_checksums(records, self._layout)
        return np.flatnonzero(~(has_valid_header & has_valid_payload))

    def plane_reader(self, groups: Sequence[Sequence[Plane | None]]) -> FixedPlaneReader:
        return FixedPlaneReader(self._layout.template, groups)


def map_records(path: str, *, record_bytes: int) -> npt.NDArray[np.uint8]:
    """Return a memory map of a shard, uint8 of shape (rows, record_bytes).

    Raises:
        DatasetDamaged: The file is missing, or its size is not a multiple of the record size.
    """
    try:
        data = map_file(path)
    except OSError as error:
        raise DatasetDamaged(
            f"The shard {path!r} cannot be read: {error.strerror or error}."
        ) from error
    # The size of the map, because the file may be truncated at any time.
    if len(data) % record_bytes:
        raise DatasetDamaged(
            f"The shard {path!r} has {len(data):,} bytes, "
            f"which is not a multiple of its records' {record_bytes:,}.",
            hint="it was truncated or changed; featurestore td verify lists the damage",
        )
    return data.reshape(-1, record_bytes)


def read_index(path: str, *, size: int) -> npt.NDArray[np.uint64]:
    """Return the record offsets of a shard with ``size`` bytes, followed by its end."""
    name = path + INDEX_SUFFIX
    try:
        index = np.fromfile(name, "<u8")
    except OSError as error:
        raise DatasetDamaged(
            f"The index {name!r} cannot be read: {error.strerror or error}."
        ) from error
    # The first offset is 0, the last is the size of the shard, and offsets never decrease.
    if len(index) == 0 or index[0] != 0 or index[-1] != size or (index[1:] < index[:-1]).any():
        raise DatasetDamaged(f"The index {name!r} does not match its shard of {size:,} bytes.")
    return index


def verify_shard(path: str, layout: RecordLayout, *, rows: int) -> list[ShardProblem]:
    """Return the first problems found in a shard."""
    try:
        if layout.compression == "GZIP":
            return _first_problems(
                _check_records(
                    path, (data for data, _ in _split_records(_inflate(path))), rows=rows
                )
            )
        if layout.fixed:
            return _first_problems(_check_fixed(path, layout, rows=rows))
        data = map_records(path, record_bytes=1)[:, 0]
        problems = _first_problems(_check_records(path, [data], rows=rows))
        return problems or _first_problems(_check_index(path, data))
    except DatasetDamaged as error:
        return [ShardProblem(path, error.message)]
    except zlib.error as error:
        return [ShardProblem(path, f"is not valid GZIP: {error}")]


def _first_problems(problems: Iterator[ShardProblem]) -> list[ShardProblem]:
    return [problem for problem, _ in zip(problems, range(MAX_PROBLEMS), strict=False)]


def _check_fixed(path: str, layout: RecordLayout, *, rows: int) -> Iterator[ShardProblem]:
    """Check the framing and checksums of fixed-width records in chunks."""
    width = layout.record_bytes
    data = map_records(path, record_bytes=1)[:, 0]
    count = len(data) // width
    for first in range(0, count, CHUNK_RECORDS):
        records = data[first * width : min(first + CHUNK_RECORDS, count) * width].reshape(-1, width)
        has_valid_header, has_valid_payload = _match_checksums(records, layout)
        for row in np.flatnonzero(~(has_valid_header & has_valid_payload)).tolist():
            problem = (
                "the payload does not match its checksum"
                if has_valid_header[row]
                else "the length or its checksum is wrong"
            )
            position = 0 if not has_valid_header[row] else wire.HEADER
            yield ShardProblem(
                path, problem, offset=(first + row) * width + position, row=first + row
            )
    if len(data) % width:
        yield ShardProblem(path, "the last record is truncated", offset=count * width, row=count)
    if count != rows:
        yield ShardProblem(
            path, f"has {count:,} rows, but {rows:,} in the manifest", offset=len(data)
        )


def _match_checksums(
    records: npt.NDArray[np.uint8], layout: RecordLayout
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return for each fixed-width record whether its header and its payload are valid."""
    # All records have the same length, so their headers are equal.
    head = np.frombuffer(layout.template.data[: wire.HEADER], np.uint8)
    checksums = records[:, -wire.FOOTER :].copy().view("<u4")[:, 0]
    has_valid_header = (records[:, : wire.HEADER] == head).all(axis=1)
    return has_valid_header, checksums == wire.payload_checksums(records)


def _check_records(
    path: str, chunks: Iterable[npt.NDArray[np.uint8]], *, rows: int
) -> Iterator[ShardProblem]:
    """Check chunks of complete records, up to the first invalid length, which hides later records."""
    chunk_offset, row = 0, 0
    for chunk in chunks:
        view, start = memoryview(chunk), 0  # type: ignore[arg-type]
        while start < len(chunk):
            offset, head = chunk_offset + start, view[start : start + wire.HEADER]
            if len(head) < wire.HEADER:
                yield ShardProblem(path, "the last record is truncated", offset=offset, row=row)
                return
            length, checksum = struct.unpack("<QI", head)
            if checksum != wire.mask(crc32c(head[:8])):
                problem = "the length or its checksum is wrong"
                yield ShardProblem(path, problem, offset=offset, row=row)
                return
            end = start + wire.HEADER + length
            if end + wire.FOOTER > len(chunk):
                yield ShardProblem(path, "the last record is truncated", offset=offset, row=row)
                return
            (payload_checksum,) = struct.unpack("<I", view[end : end + wire.FOOTER])
            if payload_checksum != wire.mask(crc32c(view[start + wire.HEADER : end])):
                problem = "the payload does not match its checksum"
                yield ShardProblem(path, problem, offset=offset + wire.HEADER, row=row)
            start, row = end + wire.FOOTER, row + 1
        chunk_offset += len(chunk)
    if row != rows:
        problem = f"has {row:,} rows, but {rows:,} in the manifest"
        yield ShardProblem(path, problem, offset=chunk_offset)


def _check_index(path: str, data: npt.NDArray[np.uint8]) -> Iterator[ShardProblem]:
    """Compare the index with the record offsets in a shard."""
    index = read_index(path, size=len(data)).astype(np.int64)
    starts, offset = [], 0
    while offset < len(data):
        starts.append(offset)
        offset += int.from_bytes(data[offset : offset + 8].tobytes(), "little") + wire.FRAMING
    wrong_rows = np.flatnonzero(index[: len(starts)] != starts[: len(index)])
    if len(index) != len(starts) + 1:
        yield ShardProblem(
            path, f"the index has {len(index) - 1:,} rows, the shard {len(starts):,}"
        )
    elif len(wrong_rows):
        yield ShardProblem(
            path, f"the index is wrong from row {wrong_rows[0]:,} on", row=int(wrong_rows[0])
        )
