"""Aggregates over windows in the registry: what groups, datasets and views made them of."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model.window_features import WindowLineage
from featurestore.registry import search_documents
from featurestore.registry.tables import window_features

_COLUMNS = window_features.c
_LINEAGE = (
    _COLUMNS.feature,
    _COLUMNS.source,
    _COLUMNS.source_version,
    _COLUMNS.source_column,
    _COLUMNS.function,
    _COLUMNS.over_us,
    _COLUMNS.offset_us,
    _COLUMNS.condition,
)


def replace(
    connection: Connection, kind: str, name: str, version: int, windows: Iterable[WindowLineage]
) -> None:
    """Write the aggregates of a version, in place of those recorded before."""
    connection.execute(window_features.delete().where(_same(kind, name, version)))
    rows, texts = [], []
    for each in windows:
        texts.append(str(each))
        values = dict(zip([column.name for column in _LINEAGE], asdict(each).values(), strict=True))
        rows.append({"kind": kind, "name": name, "version": version, **values})
    if rows:
        connection.execute(window_features.insert(), rows)
    search_documents.replace(connection, kind, name, version, search_documents.WINDOW, texts)


def list_windows(connection: Connection, kind: str, name: str, version: int) -> list[WindowLineage]:
    """Return the aggregates of a version, in its order."""
    query = sa.select(*_LINEAGE).where(_same(kind, name, version)).order_by(_COLUMNS.id)
    return [WindowLineage(*row) for row in connection.execute(query)]


def latest(
    connection: Connection, kind: str, *, names: Collection[str]
) -> list[tuple[str, int, WindowLineage]]:
    """Return (name, version, aggregate) of the latest version with any of each of these names."""
    newer = window_features.alias()
    newest = (
        sa.select(sa.func.max(newer.c.version))
        .where(newer.c.kind == _COLUMNS.kind, newer.c.name == _COLUMNS.name)
        .scalar_subquery()
    )
    query = (
        sa.select(_COLUMNS.name, _COLUMNS.version, *_LINEAGE)
        .where(_COLUMNS.kind == kind, _COLUMNS.name.in_(names), _COLUMNS.version == newest)
        .order_by(_COLUMNS.name, _COLUMNS.id)
    )
    latest_windows = [
        (str(name), int(version), WindowLineage(*lineage))
        for name, version, *lineage in connection.execute(query)
    ]
    return latest_windows


def remove(connection: Connection, kind: str, name: str, version: int) -> None:
    """Forget the aggregates of a version."""
    replace(connection, kind, name, version, ())


def _same(kind: str, name: str, version: int) -> sa.ColumnElement[bool]:
    return sa.and_(_COLUMNS.kind == kind, _COLUMNS.name == name, _COLUMNS.version == version)
