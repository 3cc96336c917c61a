"""Relations over Parquet files that Python reads directly.

Data from Spark to Python is converted to rows and back to Arrow and sent through a socket, which
costs more CPU time than decoding the files and aggregating their rows.
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

# In higher reader versions the rows of a table depend on more than its files.
_PLAIN_READER = 1


@dataclass(frozen=True)
class ParquetRelation(Relation):
    """A relation whose rows Python can read from their files."""

    rows: ParquetRows = field(kw_only=True, repr=False, compare=False)


def with_table_files(source: Relation, snapshot: Snapshot) -> Relation:
    """Add the files of a version to its relation, if they alone determine the rows."""
    if snapshot.protocol.reader > _PLAIN_READER or snapshot.partition_by:
        return source
    sized_files = tuple((file.path, file.bytes) for file in snapshot.files)
    return _with_rows(source, ParquetRows(sized_files, tuple(source.schema.names), source.schema))


def rows_of(source: Relation) -> ParquetRows | None:
    """Return the file rows of a relation; None if Spark computes them."""
    if isinstance(source, ParquetRelation):
        return replace(source.rows, schema=source.schema)
    return source.rows if isinstance(source, StagedRelation) else None


def selected(selected_rows: Relation, source: Relation, columns: Mapping[str, str]) -> Relation:
    """Return columns of a relation, as Spark selected them, with the files that it had."""
    if not isinstance(source, ParquetRelation):
        return selected_rows
    names = dict(zip(source.schema.names, source.rows.columns, strict=True))
    file_columns = tuple(names[old] for old in columns.values())
    return _with_rows(
        selected_rows, replace(source.rows, columns=file_columns, schema=selected_rows.schema)
    )


def _with_rows(source: Relation, rows: ParquetRows) -> Relation:
    # Fields that were added to a struct later are missing in older files.
    if any(map(_has_fields, source.schema.types)):
        return source
    return ParquetRelation(source.engine, source.native, source.schema, rows=rows)


def _has_fields(kind: pa.DataType) -> bool:
    if pat.is_list(kind) or pat.is_fixed_size_list(kind):
        return _has_fields(kind.value_type)
    return bool(pat.is_struct(kind))
