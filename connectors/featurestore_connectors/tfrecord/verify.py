"""What is wrong in a shard.

Framing and checksums of every record, its index and its number of rows.
"""

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

MOST_PROBLEMS = 10
RECORDS_AT_ONCE = 4096


def verify_shard(path: str, layout: RecordLayout, *, rows: int) -> list[ShardProblem]:
    """Return the first problems of a shard."""
    try:
        if layout.compression == "GZIP":
            return _take(_check_records(path, _inflate(path), rows=rows))
        if layout.fixed:
            return _take(_check_fixed(path, layout, rows=rows))
        data = map_records(path, record_bytes=1)[:, 0]
        problems = _take(_check_records(path, data, rows=rows))
        return problems or _take(_check_index(path, data))
    except DatasetDamaged as error:
        return [ShardProblem(path, error.message)]
    except zlib.error as error:
        return [ShardProblem(path, f"is not valid GZIP: {error}")]


def _take(problems: Iterator[ShardProblem]) -> list[ShardProblem]:
    return [problem for problem, _ in zip(problems, range(MOST_PROBLEMS), strict=False)]


def _inflate(path: str) -> npt.NDArray[np.uint8]:
    compressed = map_records(path, record_bytes=1)[:, 0]
    unpack = zlib.decompressobj(wbits=31)
    data = unpack.decompress(compressed.tobytes()) + unpack.flush()
    if not unpack.eof or unpack.unused_data:
        raise DatasetDamaged(f"The shard {path!r} is not one whole GZIP stream.")
    return np.frombuffer(data, np.uint8)


def _check_fixed(path: str, layout: RecordLayout, *, rows: int) -> Iterator[ShardProblem]:
    width = layout.record_bytes
    whole = map_records(path, record_bytes=1)[:, 0]
    count = len(whole) // width
    head = np.frombuffer(layout.template.data[: framing.HEADER], np.uint8)
    for first in range(0, count, RECORDS_AT_ONCE):
        records = whole[first * width : min(first + RECORDS_AT_ONCE, count) * width].reshape(
            -1, width
        )
        framed = (records[:, : framing.HEADER] == head).all(axis=1)
        stored = records[:, -framing.FOOTER :].copy().view("<u4")[:, 0]
        sound = stored == framing.payload_checksums(records)
        for row in np.flatnonzero(~(framed & sound)).tolist():
            what = (
                "the payload does not match its checksum"
                if framed[row]
                else "the length or its checksum is wrong"
            )
            place = 0 if not framed[row] else framing.HEADER
            yield ShardProblem(path, what, offset=(first + row) * width + place, row=first + row)
    if len(whole) % width:
        yield ShardProblem(path, "the last record is cut off", offset=count * width, row=count)
    if count != rows:
        yield ShardProblem(
            path, f"holds {count:,} rows, the manifest says {rows:,}", offset=len(whole)
        )


def _check_records(path: str, data: npt.NDArray[np.uint8], *, rows: int) -> Iterator[ShardProblem]:
    """Walk from record to record; after a wrong length nothing behind can be found."""
    view, place, row = memoryview(data), 0, 0  # type: ignore[arg-type]
    while place < len(data):
        head = view[place : place + framing.HEADER]
        if len(head) < framing.HEADER:
            yield ShardProblem(path, "the last record is cut off", offset=place, row=row)
            return
        length, checksum = struct.unpack("<QI", head)
        if checksum != framing.mask(crc32c(head[:8])):
            yield ShardProblem(path, "the length or its checksum is wrong", offset=place, row=row)
            return
        end = place + framing.HEADER + length
        if end + framing.FOOTER > len(data):
            yield ShardProblem(path, "the last record is cut off", offset=place, row=row)
            return
        (stored,) = struct.unpack("<I", view[end : end + framing.FOOTER])
        if stored != framing.mask(crc32c(view[place + framing.HEADER : end])):
            yield ShardProblem(
                path,
                "the payload does not match its checksum",
                offset=place + framing.HEADER,
                row=row,
            )
        place, row = end + framing.FOOTER, row + 1
    if row != rows:
        yield ShardProblem(
            path, f"holds {row:,} rows, the manifest says {rows:,}", offset=len(data)
        )


def _check_index(path: str, data: npt.NDArray[np.uint8]) -> Iterator[ShardProblem]:
    index = read_index(path, size=len(data)).astype(np.int64)
    starts, place = [], 0
    while place < len(data):
        starts.append(place)
        place += int.from_bytes(data[place : place + 8].tobytes(), "little") + framing.FRAMING
    wrong = np.flatnonzero(index[: len(starts)] != starts[: len(index)])
    if len(index) != len(starts) + 1:
        yield ShardProblem(
            path, f"the index counts {len(index) - 1:,} rows, the shard holds {len(starts):,}"
        )
    elif len(wrong):
        yield ShardProblem(path, f"the index is wrong from row {wrong[0]:,} on", row=int(wrong[0]))
