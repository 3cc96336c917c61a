"""Backup file of users, tokens, roles and private groups.

Tables and manifests do not contain access rights. Without this file, the loss of the registry would
make private groups public. The file contains hashes of tokens, as the registry does.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.errors import RegistryError
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.model.paths import StorePaths
from featurestore.registry import tables
from featurestore.storage import files

_FORMAT = 1
# Parents first: tokens and roles name users.
_TABLES = (tables.users, tables.tokens, tables.group_roles, tables.private_groups)


def write(connection: Connection, location: str) -> None:
    """Write the access tables atomically, in the transaction that changes them."""
    content: dict[str, Any] = {"format": _FORMAT}
    for table in _TABLES:
        query = sa.select(table).order_by(*table.primary_key.columns)
        content[table.name] = [dict(row._mapping) for row in connection.execute(query)]
    files.write_json(StorePaths(location).access, content)


def restore(connection: Connection, location: str) -> int:
    """Restore the access tables if the registry has no users; return the number of users.

    Raises:
        RegistryError: The file is damaged, or a newer release wrote it.
    """
    path = StorePaths(location).access
    if not files.exists(path):
        return 0
    if connection.execute(sa.select(tables.users.c.name).limit(1)).first() is not None:
        return 0
    rows_by_table = _read(path)
    for table in _TABLES:
        connection.execute(table.delete())
        if rows_by_table[table.name]:
            connection.execute(table.insert(), rows_by_table[table.name])
    return len(rows_by_table[tables.users.name])


def _read(path: str) -> dict[str, list[dict[str, Any]]]:
    try:
        content = JsonObject.from_value(files.read_json(path))
        if content.number("format") != _FORMAT:
            raise content.wrong("format", f"{_FORMAT}, which this release knows")
        rows_by_table = {}
        for table in _TABLES:
            rows_by_table[table.name] = [_row(table, each) for each in content.objects(table.name)]
        return rows_by_table
    except MalformedJson as error:
        raise RegistryError(
            f"{path} does not contain access rights that this release can read: {error}.",
            hint="restore it from a backup before serving the store; or remove it, and create "
            "users, roles and private groups again",
        ) from error


def _row(table: sa.Table, stored_row: JsonObject) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column in table.columns:
        if column.nullable and stored_row.get(column.name) is None:
            row[column.name] = None
        elif isinstance(column.type, sa.BigInteger):
            row[column.name] = stored_row.number(column.name)
        else:
            row[column.name] = stored_row.text(column.name)
    return row
