"""Record shards written by the JVM (``jvm/RecordShards.java``), without a pass through Python."""

from __future__ import annotations

import json
import os
import struct
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.hashing import value_kind
from featurestore.plugins.engine import Relation
from featurestore.plugins.format import WrittenFile, WrittenShard
from featurestore.plugins.records import (
    NullMark,
    RecordPlan,
    RecordShard,
    RecordSlot,
    RecordTail,
    RecordTask,
    ValueLengths,
)
from featurestore.storage.publication import make_directory
from featurestore.storage.selection import storage_for
from featurestore_connectors.spark_delta.failures import translated
from featurestore_connectors.spark_delta.row_hashes import has_functions
from featurestore_connectors.spark_delta.shards import spread
from featurestore_connectors.spark_delta.sqltext import column


def can_write(session: Any, schema: pa.Schema, directory: str) -> bool:
    """Return True if the JVM supports all types of a schema and the directory is local."""
    all_supported = all(value_kind(kind) is not None for kind in schema.types)
    return all_supported and storage_for(directory).is_local and has_functions(session)


def write(source: Relation, task: RecordTask) -> list[RecordShard]:
    """Sort the rows on the executors and write each shard by one task."""
    # Spark sorts a single number without comparing rows. The shards ascend with it.
    rows = spread(source, task.shard, len(task.shards)).sortWithinPartitions(column(task.hash))
    for folder in sorted({os.path.dirname(path) for path, _ in task.shards}):
        make_directory(os.path.join(task.directory, folder))
    writer = source.native.sparkSession._jvm.featurestore.tfrecord.RecordShards
    with translated():
        shard_reports = list(writer.write(rows._jdf, json.dumps(_described(source.schema, task))))
    written_shards = [_shard(json.loads(report), source.schema, task) for report in shard_reports]
    return written_shards


def _described(schema: pa.Schema, task: RecordTask) -> dict[str, Any]:
    columns = []
    for name in task.columns:
        kind = schema.field(name).type
        is_label = name in task.labels and not pat.is_binary(kind)
        columns.append({"name": name, "kind": value_kind(kind), "label": is_label})
    return {
        "directory": os.path.abspath(task.directory),
        "shards": list(task.shards),
        "shard": task.shard,
        "hash": task.hash,
        "columns": columns,
        "most_labels": task.max_labels,
        "index_suffix": task.plan.index_suffix,
        "records": _records(task.plan),
    }


def _records(plan: RecordPlan) -> dict[str, Any]:
    slots, tails = [], []
    for slot in plan.slots:
        slots.append(
            {
                **_column(slot),
                "offset": slot.offset,
                "width": slot.width,
                "constant": slot.lengths is None,
                "filler": slot.filler,
                "filler_width": slot.filler_width,
                **_lengths(slot.lengths),
            }
        )
    for tail in plan.tails:
        tails.append({**_column(tail), "head": _text(tail.head), **_lengths(tail.lengths)})
    return {
        "template": _text(plan.template),
        "fixed": plan.fixed,
        "places": slots,
        "tails": tails,
    }


def _column(slot: RecordSlot | RecordTail) -> dict[str, Any]:
    mark = slot.null_mark or NullMark(0, 0)
    return {
        "name": slot.column,
        "nullable": slot.null_mark is not None,
        "key_offset": mark.offset,
        "masked": mark.value,
    }


def _lengths(lengths: ValueLengths | None) -> dict[str, Any]:
    if lengths is None:
        return {}
    return {"lengths": lengths.positions, "length_width": lengths.width}


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _shard(report: dict[str, Any], schema: pa.Schema, task: RecordTask) -> RecordShard:
    path, _ = task.shards[report["shard"]]
    sidecars: tuple[WrittenFile, ...] = ()
    if "index" in report:
        sidecars = (_file(path + task.plan.index_suffix, report["index"]),)
    labels = {}
    for name in task.labels:
        labels[name] = _labels(schema.field(name).type, report["labels"].get(name))
    return RecordShard(
        report["shard"],
        WrittenShard(_file(path, report["file"]), report["rows"], sidecars),
        report["nulls"],
        labels,
        int(report["hash_sum"]),
        int(report["first_hash"]),
        int(report["last_hash"]),
    )


def _file(path: str, report: dict[str, Any]) -> WrittenFile:
    return WrittenFile(path, report["bytes"], report["sha256"], tuple(report["prefixes"]))


def _labels(
    kind: pa.DataType, pairs: Sequence[tuple[Any, int]] | None
) -> list[tuple[Any, int]] | None:
    if pairs is None:
        return None
    return [(_label(word, kind), count) for word, count in pairs]


def _label(word: Any, kind: pa.DataType) -> Any:
    """Decode a label value from Java: integers, and floats as their bits."""
    if word is None or pat.is_string(kind):
        return word
    if pat.is_floating(kind):
        return struct.unpack("<d", struct.pack("<q", word))[0]
    if pat.is_date32(kind):
        return pa.scalar(word, pa.int32()).cast(kind).as_py()
    return pa.scalar(word, pa.int64()).cast(kind).as_py()
