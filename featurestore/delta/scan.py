"""Scans: the version, the data files and the columns of a table read, before an engine reads rows.

Every engine plans its reads here. Otherwise the engines could check different files, return
different types for one table, or differ in their errors and warnings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import feature_schema
from featurestore.arrow.untyped import format_sql_casts, refuse_untyped
from featurestore.delta.maintenance import check_files
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import SchemaMismatch, listing
from featurestore.model.arguments import warn_caller
from featurestore.model.times import NaiveTimeWarning


@dataclass(frozen=True)
class TableScan:
    """A pinned table version and the feature types of the columns to read.

    Columns of ``schema`` that the version lacks are null. ``is_partial`` scans read only some files
    of the version, which are those of ``snapshot``.
    """

    snapshot: Snapshot
    schema: pa.Schema
    is_partial: bool = False


def plan_scan(
    path: str,
    *,
    version: int | None = None,
    schema: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    data_files: Sequence[str] | None = None,
) -> TableScan:
    """Pin a version of a table, check its data files, and determine the columns to read.

    A warning is issued for times without a time zone, which are read as UTC.

    Args:
        path: The table directory.
        version: The Delta version; by default the latest one.
        schema: The feature types to restore; by default those of the table schema.
        columns: The columns to read; by default all. The types of other columns are not checked.
        data_files: The absolute paths of the files to read; by default all. Other files are not
            checked.

    Raises:
        VersionNotFound: The version does not exist.
        VersionVacuumed: A vacuum has removed files of the version.
        TableDamaged: The log or a data file is missing or damaged.
        UnsupportedTable: The table uses unsupported features.
        SchemaMismatch: A requested column does not exist.
        UnsupportedType: Columns have unsupported types; the message lists the columns.
    """
    snapshot = read_snapshot(path, version)
    if data_files is not None:
        selected = set(data_files)
        files = tuple(file for file in snapshot.files if file.path in selected)
        # Without the cached bounds, which belong to all files.
        snapshot = replace(snapshot, files=files, _bounds={})
    # Engines open the files only when rows are read. This check reports a missing or truncated file
    # at the call, and names the versions that can still be read.
    check_files(snapshot)
    feature_types = _requested_schema(snapshot, schema, columns)
    _warn_about_naive_times(snapshot, feature_types)
    return TableScan(snapshot, feature_types, is_partial=data_files is not None)


def _requested_schema(
    snapshot: Snapshot, schema: pa.Schema | None, columns: Sequence[str] | None
) -> pa.Schema:
    """Return the feature types of the requested columns, from ``schema`` or the table schema."""
    selected = snapshot.schema if schema is None else schema
    if columns is not None:
        missing_columns = [column for column in columns if column not in selected.names]
        if missing_columns:
            raise SchemaMismatch(
                f"Unknown columns {listing(missing_columns)} of {snapshot.path}. "
                f"Available: {listing(selected.names, limit=50)}."
            )
        selected = pa.schema([selected.field(column) for column in columns])
    if schema is not None:
        return selected
    feature_types = feature_schema(selected)
    refuse_untyped(feature_types, subject=f"The table {snapshot.path}", hint=_cast_hint)
    return feature_types


def _cast_hint(columns: pa.Schema) -> str:
    return (
        "omit them with columns=, or cast them where the table is written: "
        f"{format_sql_casts(columns)}"
    )


def _warn_about_naive_times(snapshot: Snapshot, feature_types: pa.Schema) -> None:
    naive = [
        field.name
        for field in snapshot.schema
        if pat.is_timestamp(field.type)
        and field.type.tz is None
        and field.name in feature_types.names
    ]
    if naive:
        noun = "Columns" if len(naive) > 1 else "Column"
        warn_caller(
            f"{noun} {listing(naive)} of {snapshot.path} have no time zone and are read as UTC",
            NaiveTimeWarning,
            once=True,
        )
