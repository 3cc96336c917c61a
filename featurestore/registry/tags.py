"""Tags: small texts on a version of a group or of a training dataset, for people to find it by."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.registry import search_documents
from featurestore.registry.tables import featuregroups, is_latest, tags


def of(connection: Connection, kind: str, name: str, version: int) -> dict[str, str]:
    """Return the tags of one version, by key."""
    query = sa.select(tags.c.key, tags.c.value).where(_is(kind, name, version)).order_by(tags.c.key)
    return {row.key: row.value for row in connection.execute(query)}


def every(connection: Connection, kind: str) -> dict[tuple[str, int], dict[str, str]]:
    """Return the tags of all versions of a kind: ``{(name, version): {key: value}}``."""
    result: dict[tuple[str, int], dict[str, str]] = {}
    query = (
        sa.select(tags).where(tags.c.kind == kind).order_by(tags.c.name, tags.c.version, tags.c.key)
    )
    for row in connection.execute(query):
        result.setdefault((row.name, row.version), {})[row.key] = row.value
    return result


def of_latest_groups(
    connection: Connection, kind: str, *, names: Collection[str]
) -> dict[tuple[str, int], dict[str, str]]:
    """Return the tags of the latest versions of groups of these names, by name.

    They come as ``{(name, version): {key: value}}``.
    """
    tagged = sa.and_(tags.c.name == featuregroups.c.name, tags.c.version == featuregroups.c.version)
    query = (
        sa.select(tags)
        .join(featuregroups, tagged)
        .where(tags.c.kind == kind, tags.c.name.in_(names), is_latest(featuregroups))
        .order_by(tags.c.name, tags.c.key)
    )
    result: dict[tuple[str, int], dict[str, str]] = {}
    for row in connection.execute(query):
        result.setdefault((row.name, row.version), {})[row.key] = row.value
    return result


def replace(
    connection: Connection, kind: str, name: str, version: int, values: Mapping[str, str]
) -> None:
    """Write the tags of one version in place of those recorded before."""
    connection.execute(tags.delete().where(_is(kind, name, version)))
    rows = [
        {"kind": kind, "name": name, "version": version, "key": key, "value": values[key]}
        for key in values
    ]
    texts = []
    for row in rows:
        texts += [str(row["key"]), str(row["value"])]
    if rows:
        connection.execute(tags.insert(), rows)
    search_documents.replace(connection, kind, name, version, search_documents.TAG, texts)


def _is(kind: str, name: str, version: int) -> sa.ColumnElement[bool]:
    return sa.and_(tags.c.kind == kind, tags.c.name == name, tags.c.version == version)
