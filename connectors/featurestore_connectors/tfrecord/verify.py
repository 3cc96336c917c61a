"""Verification of shards: framing and checksums of every record, index, and number of rows."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from featurestore.errors import DatasetDamaged
from featurestore.plugins.format import ShardProblem
from featurestore_connectors.tfrecord import framing
from featurestore_connectors.tfrecord.layout import RecordLayout
from featurestore_connectors.tfrecord.reader import map_records, read_index

MAX_PROBLEMS = 10
CHUNK_RECORDS = 4096


def verify_shard(path: str, layout: RecordLayout, *, rows: int) -> list[ShardProblem]:
    """Return the first problems of a shard."""
    try:
        if layout.compression == "GZIP":
            return _first_problems(_check_records(path, _inflate(path), rows=rows))
        if layout.fixed:
            return _first_problems(_check_fixed(path, layout, rows=rows))
        data = map_records(path, record_bytes=1)[:, 0]
        problems = _first_problems(_check_records(path, data, rows=rows))
        return problems or _first_problems(_check_index(path, data))
    except DatasetDamaged as error:
        return [ShardProblem(path, error.message)]
    except zlib.error as error:
        return [ShardProblem(path, f"is not valid GZIP: {error}")]


def _first_problems(problems: Iterator[ShardProblem]) -> list[ShardProblem]:
    return [problem for problem, _ in zip(problems, range(MAX_PROBLEMS), strict=False)]


def _inflate(path: str) -> npt.NDArray[np.uint8]:
    compressed = map_records(path, record_bytes=1)[:, 0]
    unpack = zlib.decompressobj(wbits=31)
    data = unpack.decompress(compressed.tobytes()) + unpack.flush()
    if not unpack.eof or unpack.unused_data:
        raise DatasetDamaged(f"The shard {path!r} is not one complete GZIP stream.")
    return np.frombuffer(data, np.uint8)


def _check_fixed(path: str, layout: RecordLayout, *, rows: int) -> Iterator[ShardProblem]:
    width = layout.record_bytes
    data = map_records(path, record_bytes=1)[:, 0]
    count = len(data) // width
    head = np.frombuffer(layout.template.data[: framing.HEADER], np.uint8)
    for first in range(0, count, CHUNK_RECORDS):
        records = data[first * width : min(first + CHUNK_RECORDS, count) * width].reshape(-1, width)
        has_valid_header = (records[:, : framing.HEADER] == head).all(axis=1)
        checksums = records[:, -framing.FOOTER :].copy().view("<u4")[:, 0]
        has_valid_payload = checksums == framing.payload_checksums(records)
        for row in np.flatnonzero(~(has_valid_header & has_valid_payload)).tolist():
            problem = (
                "the payload does not match its checksum"
                if has_valid_header[row]
                else "the length or its checksum is wrong"
            )
            position = 0 if not has_valid_header[row] else framing.HEADER
            yield ShardProblem(
                path, problem, offset=(first + row) * width + position, row=first + row
            )
    if len(data) % width:
        yield ShardProblem(path, "the last record is truncated", offset=count * width, row=count)
    if count != rows:
        yield ShardProblem(
            path, f"has {count:,} rows, but {rows:,} in the manifest", offset=len(data)
        )


def _check_records(path: str, data: npt.NDArray[np.uint8], *, rows: int) -> Iterator[ShardProblem]:
    """Check records in order, up to the first wrong length, which hides the next record."""
    view, offset, row = memoryview(data), 0, 0  # type: ignore[arg-type]
    while offset < len(data):
        head = view[offset : offset + framing.HEADER]
        if len(head) < framing.HEADER:
            yield ShardProblem(path, "the last record is truncated", offset=offset, row=row)
            return
        length, checksum = struct.unpack("<QI", head)
        if checksum != framing.mask(crc32c(head[:8])):
            yield ShardProblem(path, "the length or its checksum is wrong", offset=offset, row=row)
            return
        end = offset + framing.HEADER + length
        if end + framing.FOOTER > len(data):
            yield ShardProblem(path, "the last record is truncated", offset=offset, row=row)
            return
        (payload_checksum,) = struct.unpack("<I", view[end : end + framing.FOOTER])
        if payload_checksum != framing.mask(crc32c(view[offset + framing.HEADER : end])):
            yield ShardProblem(
                path,
                "the payload does not match its checksum",
                offset=offset + framing.HEADER,
                row=row,
            )
        offset, row = end + framing.FOOTER, row + 1
    if row != rows:
        yield ShardProblem(
            path, f"has {row:,} rows, but {rows:,} in the manifest", offset=len(data)
        )


def _check_index(path: str, data: npt.NDArray[np.uint8]) -> Iterator[ShardProblem]:
    index = read_index(path, size=len(data)).astype(np.int64)
    starts, offset = [], 0
    while offset < len(data):
        starts.append(offset)
        offset += int.from_bytes(data[offset : offset + 8].tobytes(), "little") + framing.FRAMING
    wrong_rows = np.flatnonzero(index[: len(starts)] != starts[: len(index)])
    if len(index) != len(starts) + 1:
        yield ShardProblem(
            path, f"the index has {len(index) - 1:,} rows, the shard {len(starts):,}"
        )
    elif len(wrong_rows):
        yield ShardProblem(
            path, f"the index is wrong from row {wrong_rows[0]:,} on", row=int(wrong_rows[0])
        )
