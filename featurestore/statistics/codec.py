"""States of statistics as bytes: what lies beside a table, and what travels between executors.

Layout: magic, then three sections, each an 8-byte little-endian length and its bytes: a JSON header
(columns, counts), the co-moments as an ``npz``, the sample as an Arrow IPC stream with its hashes
and copies.
"""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.errors import StorageError
from featurestore.model.arrow_json import schema_from_json, schema_to_json
from featurestore.model.json_object import MalformedJson, parsing
from featurestore.statistics.accumulator import StatisticsState
from featurestore.statistics.counts import ColumnCounts
from featurestore.statistics.kinds import CountedColumn, kind_of
from featurestore.statistics.moments import CoMoments, Moments
from featurestore.statistics.sample import Sample, sample_schema
from featurestore.statistics.value_counts import from_lists, to_lists

_MAGIC = b"FSSTATE5"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
# Room for what a stream writes around its schema and its rows.
_FRAME_BYTES = 1_024
_HASH, _COPIES = "__fs_hash", "__fs_copies"


def state_to_bytes(state: StatisticsState) -> bytes:
    """Return a state as bytes that ``state_from_bytes`` reads back equal."""
    state.sample.compact()
    schema = pa.schema([(each.name, each.type) for each in state.columns])
    roles = [each.role for each in state.columns]
    counts = {}
    for name, each in state.counts.items():
        counts[name] = {**vars(each), "moments": vars(each.moments)}
        counts[name]["values"] = to_lists(each.values)
    header = {
        "schema": schema_to_json(schema),
        "roles": roles,
        "seed": state.seed,
        "rows": state.rows,
        "limit": state.sample.limit,
        "bound": int(state.sample.bound),
        "cut": state.sample.cut,
        "counts": counts,
    }
    sections = (
        json.dumps(header).encode(),
        _co_moments_bytes(state.co_moments),
        _sample_bytes(state.sample),
    )
    digest = hashlib.sha256()
    parts = [_MAGIC, b""]
    for section in sections:
        parts += [len(section).to_bytes(_LENGTH_BYTES, "little"), section]
    for part in parts[2:]:
        digest.update(part)
    parts[1] = digest.digest()
    return b"".join(parts)


def state_from_bytes(data: bytes) -> StatisticsState:
    """Return the state that ``state_to_bytes`` wrote.

    Raises:
        StorageError: The bytes are of something else, or damaged.
    """
    try:
        with parsing("a state of statistics"):
            return _state(*_sections(_checked(data)))
    except MalformedJson as error:
        raise _damaged(str(error)) from error


def _state(header: bytes, matrices: bytes, rows: bytes) -> StatisticsState:
    head = json.loads(header)
    schema = schema_from_json(head["schema"])
    columns = []
    for field, role in zip(schema, head["roles"], strict=True):
        columns.append(CountedColumn(field.name, field.type, kind_of(field.type), role))
    sample = Sample(
        sample_schema(tuple(columns)), head["limit"], np.uint64(head["bound"]), head["cut"]
    )
    _fill_sample(sample, rows)
    counts = {}
    for name, each in head["counts"].items():
        counts[name] = _counts(each)
    return StatisticsState(
        tuple(columns), head["seed"], sample, head["rows"], counts, _co_moments(matrices)
    )


def _checked(data: bytes) -> bytes:
    """Return what stands behind the checksum, which has to fit."""
    start = len(_MAGIC) + _DIGEST_BYTES
    content = data[start:]
    if data[: len(_MAGIC)] != _MAGIC:
        raise _damaged("these bytes are something else")
    if hashlib.sha256(content).digest() != data[len(_MAGIC) : start]:
        raise _damaged("its checksum does not fit")
    return content


def _damaged(reason: str) -> StorageError:
    return StorageError(
        f"A state of statistics is damaged: {reason}.", hint="compute the statistics again"
    )


def _sections(data: bytes) -> list[bytes]:
    sections = []
    position = 0
    for _ in range(3):
        start = position + _LENGTH_BYTES
        end = start + int.from_bytes(data[position:start], "little")
        if len(data) < end or len(data) < start:
            raise MalformedJson("it is cut off")
        sections.append(data[start:end])
        position = end
    return sections


def _counts(data: dict[str, Any]) -> ColumnCounts:
    moments = data.pop("moments")
    total = data.pop("total")
    values = from_lists(data.pop("values"))
    if isinstance(total, list):
        total = tuple(total)
    return ColumnCounts(
        **data,
        total=total,
        values=values,
        moments=Moments(moments["n"], tuple(moments["mean"]), tuple(moments["square"])),
    )


def _co_moments_bytes(co: CoMoments) -> bytes:
    buffer = io.BytesIO()
    arrays = {
        "n": co.n,
        "mean": np.stack(co.mean),
        "square": np.stack(co.square),
        "product": np.stack(co.product),
    }
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _co_moments(data: bytes) -> CoMoments:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        mean, square, product = arrays["mean"], arrays["square"], arrays["product"]
        return CoMoments(
            arrays["n"], (mean[0], mean[1]), (square[0], square[1]), (product[0], product[1])
        )


def _sample_bytes(sample: Sample) -> pa.Buffer:
    rows = sample.rows()
    hashes = np.empty(0, dtype=np.uint64)
    if sample.hashes:
        hashes = sample.hashes[0]
    table = pa.RecordBatch.from_arrays(
        [pa.array(hashes), pa.array(sample.weights()), *rows.columns],
        [_HASH, _COPIES, *rows.schema.names],
    )
    return batch_to_bytes(table)


def batch_to_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    """Return a batch as an Arrow IPC stream, LZ4 where it is not mostly floating-point numbers.

    Their bits do not become fewer by it.
    """
    floats = 0
    for column in batch.columns:
        if pa.types.is_floating(column.type):
            floats += column.nbytes
    if floats > batch.nbytes // 2:
        # At once in memory of its size: a stream that grows is copied each time.
        size = pa.ipc.get_record_batch_size(batch) + batch.schema.serialize().size
        buffer = pa.allocate_buffer(size + _FRAME_BYTES)
        sink = pa.FixedSizeBufferWriter(buffer)
        _write_stream(sink, batch, None)
        return buffer.slice(0, sink.tell())
    sink = pa.BufferOutputStream()
    _write_stream(sink, batch, "lz4")
    return sink.getvalue()


def _write_stream(sink: pa.NativeFile, batch: pa.RecordBatch, compression: str | None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)


def _fill_sample(sample: Sample, data: bytes) -> None:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        for batch in reader:
            if batch.num_rows:
                rows = pa.RecordBatch.from_arrays(batch.columns[2:], schema=sample.schema)
                sample.append(batch.column(0).to_numpy(), batch.column(1).to_numpy(), rows)
