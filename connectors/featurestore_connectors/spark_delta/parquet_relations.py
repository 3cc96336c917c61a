"""Relations whose rows lie in Parquet files, which Python reads itself where it alone looks at them.

What Spark hands to Python goes through its rows, back to Arrow and through a socket: that takes more
of the processors than to decode the files and to count their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.types as pat

from featurestore.delta.snapshot import Snapshot
from featurestore.plugins.engine import Relation
from featurestore_connectors.spark_delta.parquet_rows import ParquetRows
from featurestore_connectors.spark_delta.staged import StagedRelation

# From here on more than its files tells what rows a table has.
_PLAIN_READER = 1


@dataclass(frozen=True)
class ParquetRelation(Relation):
    """A relation whose rows Python can read from their files."""

    rows: ParquetRows = field(kw_only=True, repr=False, compare=False)


def of_table(given: Relation, snapshot: Snapshot) -> Relation:
    """Return a relation over a version with the files that have its rows, where they alone tell."""
    if snapshot.protocol.reader > _PLAIN_READER or snapshot.partition_by:
        return given
    found = tuple((file.path, file.bytes) for file in snapshot.files)
    return _with_rows(given, ParquetRows(found, tuple(given.schema.names), given.schema))


def rows_of(given: Relation) -> ParquetRows | None:
    """Return the rows of a relation as its files have them; None where Spark computes them."""
    if isinstance(given, ParquetRelation):
        return replace(given.rows, schema=given.schema)
    return given.rows if isinstance(given, StagedRelation) else None


def selected(chosen: Relation, given: Relation, columns: Mapping[str, str]) -> Relation:
    """Return columns of a relation, as Spark selected them, with the files that it had."""
    if not isinstance(given, ParquetRelation):
        return chosen
    names = dict(zip(given.schema.names, given.rows.columns, strict=True))
    kept = tuple(names[old] for old in columns.values())
    return _with_rows(chosen, replace(given.rows, columns=kept, schema=chosen.schema))


def _with_rows(given: Relation, rows: ParquetRows) -> Relation:
    # Fields that a struct got later are not in all of its files.
    if any(map(_has_fields, given.schema.types)):
        return given
    return ParquetRelation(given.engine, given.native, given.schema, rows=rows)


def _has_fields(kind: pa.DataType) -> bool:
    if pat.is_list(kind) or pat.is_fixed_size_list(kind):
        return _has_fields(kind.value_type)
    return bool(pat.is_struct(kind))
