"""External feature groups: what is asked of a source, looked at before it is defined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from featurestore.model.external import ExternalRows
from featurestore.session import Session
from featurestore.sources.frame import asked, described
from featurestore.sources.registration import get


def define_external(
    session: Session,
    source: str,
    *,
    table: str | None,
    sql: str | None,
    path: str | None,
    columns: Sequence[str] | None,
    snapshots: str,
) -> tuple[ExternalRows, pa.Schema]:
    """Return where the rows of an external group are, and the columns that they have now.

    Raises:
        SourceNotFound: No source of this name is registered.
        SourceTableNotFound: There is no such table, file or column.
    """
    query = asked(table=table, sql=sql, path=path)
    rows = ExternalRows(source, table, sql, path, snapshots)
    if columns is not None:
        query = replace(query, columns=tuple(columns))
    return rows, described(session, get(session, source), query)
