"""Users, tokens, roles and private groups as a file of the store, from which they come back.

No table or manifest says who may read what, so a registry that is lost must not take it along: then
a private group would be one of everybody. The file holds hashes, as the registry does.
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
    """Write what the registry says, in the transaction that changes it: the whole file or none."""
    told: dict[str, Any] = {"format": _FORMAT}
    for table in _TABLES:
        query = sa.select(table).order_by(*table.primary_key.columns)
        told[table.name] = [dict(row._mapping) for row in connection.execute(query)]
    files.write_json(StorePaths(location).access, told)


def restore(connection: Connection, location: str) -> int:
    """Bring back what the file says where the registry has no users; return how many came.

    Raises:
        RegistryError: The file cannot be read, or is of a newer release.
    """
    path = StorePaths(location).access
    if not files.exists(path):
        return 0
    if connection.execute(sa.select(tables.users.c.name).limit(1)).first() is not None:
        return 0
    told = _read(path)
    for table in _TABLES:
        connection.execute(table.delete())
        if told[table.name]:
            connection.execute(table.insert(), told[table.name])
    return len(told[tables.users.name])


def _read(path: str) -> dict[str, list[dict[str, Any]]]:
    try:
        told = JsonObject.of(files.read_json(path))
        if told.number("format") != _FORMAT:
            raise told.wrong("format", f"{_FORMAT}, which this release knows")
        found = {}
        for table in _TABLES:
            found[table.name] = [_row(table, each) for each in told.objects(table.name)]
        return found
    except MalformedJson as error:
        raise RegistryError(
            f"{path} does not say in a way that this release knows who may read what: {error}.",
            hint="restore it from a backup before the store is served; or remove it, and make "
            "users, roles and private groups again",
        ) from error


def _row(table: sa.Table, told: JsonObject) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column in table.columns:
        if column.nullable and told.get(column.name) is None:
            row[column.name] = None
        elif isinstance(column.type, sa.BigInteger):
            row[column.name] = told.number(column.name)
        else:
            row[column.name] = told.text(column.name)
    return row
