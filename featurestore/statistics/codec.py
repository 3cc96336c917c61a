"""States of statistics as bytes: what lies beside a table, and what travels between executors.

Layout: magic, then three sections, each an 8-byte little-endian length and its bytes: a JSON header (columns,
counts), the co-moments as an ``npz``, the sample as an Arrow IPC stream with its hashes and copies, LZ4.
"""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.errors import StorageError
from featurestore.model.arrow_json import schema_from_json, schema_to_json
from featurestore.statistics.accumulator import StatisticsState
from featurestore.statistics.columns import Counts
from featurestore.statistics.kinds import CountedColumn, kind_of
from featurestore.statistics.moments import CoMoments, Moments
from featurestore.statistics.sample import Sample, sample_schema

_MAGIC = b"FSSTATE1"
_HASH, _COPIES = "__fs_hash", "__fs_copies"


def state_to_bytes(state: StatisticsState) -> bytes:
    """Return a state as bytes that ``state_from_bytes`` reads back equal."""
    state.sample.compact()
    header = {
        "schema": schema_to_json(pa.schema([(each.name, each.type) for each in state.columns])),
        "roles": [each.role for each in state.columns],
        "seed": state.seed,
        "rows": state.rows,
        "limit": state.sample.limit,
        "bound": int(state.sample.bound),
        "cut": state.sample.cut,
        "counts": {name: asdict(counts) for name, counts in state.counts.items()},
    }
    sections = (
        json.dumps(header).encode(),
        _co_moments_bytes(state.co_moments),
        _sample_bytes(state.sample),
    )
    return _MAGIC + b"".join(len(each).to_bytes(8, "little") + each for each in sections)


def state_from_bytes(data: bytes) -> StatisticsState:
    """Return the state that ``state_to_bytes`` wrote.

    Raises:
        StorageError: The bytes are of something else, or cut off.
    """
    header, matrices, rows = _sections(data)
    head = json.loads(header)
    schema = schema_from_json(head["schema"])
    columns = tuple(
        CountedColumn(each.name, each.type, kind_of(each.type), role)
        for each, role in zip(schema, head["roles"], strict=True)
    )
    sample = Sample(sample_schema(columns), head["limit"], np.uint64(head["bound"]), head["cut"])
    _fill_sample(sample, rows)
    counts = {name: _counts(each) for name, each in head["counts"].items()}
    return StatisticsState(
        columns, head["seed"], sample, head["rows"], counts, _co_moments(matrices)
    )


def _sections(data: bytes) -> list[bytes]:
    if data[: len(_MAGIC)] != _MAGIC:
        raise StorageError(
            "These bytes are not a state of statistics.", hint="compute the statistics again"
        )
    position, found = len(_MAGIC), []
    for _ in range(3):
        size = int.from_bytes(data[position : position + 8], "little")
        section = data[position + 8 : position + 8 + size]
        if len(section) != size or position + 8 > len(data):
            raise StorageError(
                "A state of statistics is cut off.", hint="compute the statistics again"
            )
        found.append(section)
        position += 8 + size
    return found


def _counts(data: dict[str, Any]) -> Counts:
    moments = data.pop("moments")
    total = data.pop("total")
    return Counts(
        **data,
        total=tuple(total) if isinstance(total, list) else total,
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


def _sample_bytes(sample: Sample) -> bytes:
    rows = sample.rows()
    hashes = sample.hashes[0] if sample.hashes else np.empty(0, dtype=np.uint64)
    table = pa.RecordBatch.from_arrays(
        [pa.array(hashes), pa.array(sample.weights()), *rows.columns],
        [_HASH, _COPIES, *rows.schema.names],
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")
    ) as writer:
        writer.write_batch(table)
    return bytes(sink.getvalue())


def _fill_sample(sample: Sample, data: bytes) -> None:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        for batch in reader:
            if batch.num_rows:
                rows = pa.RecordBatch.from_arrays(batch.columns[2:], schema=sample.schema)
                sample.append(batch.column(0).to_numpy(), batch.column(1).to_numpy(), rows)
