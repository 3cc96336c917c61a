"""Definition of external feature groups over registered sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from featurestore.model.external import ExternalRows
from featurestore.model.renames import RENAME
from featurestore.session import Session
from featurestore.sources.frame import build_query, check_columns, source_schema
from featurestore.sources.registration import get


def define_external(
    session: Session,
    source: str,
    *,
    table: str | None,
    sql: str | None,
    path: str | None,
    columns: Sequence[str] | None,
    rename: Mapping[str, str] | str | None,
    snapshots: str,
) -> tuple[ExternalRows, pa.Schema]:
    """Return the location of an external group's rows, and their current columns.

    Raises:
        SourceNotFound: No source of this name is registered.
        SourceTableNotFound: The table, file or column does not exist.
    """
    query = build_query(table=table, sql=sql, path=path, rename=rename)
    rows = ExternalRows(source, table, sql, path, snapshots, query.options.get(RENAME))
    if columns is not None:
        query = replace(query, columns=check_columns(columns))
    return rows, source_schema(session, get(session, source), query)
