"""External feature groups: what is asked of a source, looked at before it is defined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from featurestore.model.external import ExternalRows
from featurestore.model.renames import RENAME
from featurestore.session import Session
from featurestore.sources.frame import asked, check_columns, described
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
    """Return where the rows of an external group are, and the columns that they have now.

    Raises:
        SourceNotFound: No source of this name is registered.
        SourceTableNotFound: There is no such table, file or column.
    """
    query = asked(table=table, sql=sql, path=path, rename=rename)
    rows = ExternalRows(source, table, sql, path, snapshots, query.options.get(RENAME))
    if columns is not None:
        query = replace(query, columns=check_columns(columns))
    return rows, described(session, get(session, source), query)
