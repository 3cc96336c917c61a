"""Files of origins, from which a rebuild restores the private objects of a lost registry.

Each file has the origins of all objects that were created with one name and version. It is written
in the transaction that changes them, and remains when the object is deleted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError
from featurestore.model.json_object import JsonObject, MalformedJson, check_format
from featurestore.model.paths import StorePaths
from featurestore.registry.origins import CHANGED, KINDS, RESTORED, Object, format_id
from featurestore.registry.rows import insert_missing, location_of, lock
from featurestore.registry.tables import origin_edges, origins
from featurestore.storage import files, revisions, storage_for

_FORMAT = 1
_FILE_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,63})@v([1-9][0-9]{0,8})\.json")
_ID = re.compile(
    r"([a-z_]{1,32})/([A-Za-z0-9][A-Za-z0-9_-]{0,63})@v([1-9][0-9]{0,8})#([1-9][0-9]{0,8})"
)


def write_changed(connection: Connection, *, is_copy: bool) -> None:
    """Write the files of the objects whose origins a transaction has changed, before its commit."""
    changed: set[Object] = connection.info.pop(CHANGED, set())
    if not changed or is_copy:
        return
    # Two transactions that change the same object write its file one after the other, and the
    # second one reads the rows of the first.
    lock(connection, "origins")
    paths = StorePaths(location_of(connection))
    for kind in {version.kind for version in changed}:
        files.make_directory(os.path.join(paths.origins, kind))
    for version in sorted(changed):
        # If a file cannot be written, the transaction fails, so that no origins are lost.
        path, content = paths.origin_file(*version), _to_json(connection, version)
        if not storage_for(path).needs_claims:
            files.write_json(path, content)
        elif not files.write_new(path, files.json_bytes(content)):
            # Another registry of the store may have added origins that this one does not have.
            revisions.change_json(path, partial(_merge, content), below=paths.location)


def _merge(content: Mapping[str, Any], stored_content: Any) -> dict[str, Any]:
    """Return the content of a file with the creations and origins of another registry.

    >>> first = {"creation": 1, "ended": False, "sealed": False, "origins": ["a"]}
    >>> second = {"creation": 1, "ended": True, "sealed": False, "origins": ["b"]}
    >>> _merge({"creations": [first]}, {"creations": [second]})["creations"]
    [{'creation': 1, 'ended': True, 'sealed': False, 'origins': ['a', 'b']}]
    """
    creations: dict[int, dict[str, Any]] = {}
    try:
        for creation in [*content["creations"], *stored_content["creations"]]:
            number = int(creation["creation"])
            merged = creations.get(number, {"ended": False, "sealed": False, "origins": []})
            creations[number] = {
                "creation": number,
                "ended": bool(creation["ended"] or merged["ended"]),
                "sealed": bool(creation["sealed"] or merged["sealed"]),
                "origins": sorted({*creation["origins"], *merged["origins"]}),
            }
    except (LookupError, TypeError, ValueError):
        # The origins in a damaged file may have been private.
        return {**content, "creations": [{**each, "sealed": True} for each in content["creations"]]}
    return {**content, "creations": [creations[number] for number in sorted(creations)]}


def _to_json(connection: Connection, version: Object) -> dict[str, Any]:
    columns = origins.c
    query = sa.select(columns.id, columns.creation, columns.ended, columns.sealed).where(
        columns.kind == version.kind,
        columns.name == version.name,
        columns.version == version.version,
    )
    creations = []
    for identifier, creation, ended, sealed in connection.execute(query.order_by(columns.creation)):
        edges = sa.select(origin_edges.c.origin).where(origin_edges.c.derived == identifier)
        origin_ids = sorted(connection.execute(edges).scalars())
        state = {"ended": bool(ended), "sealed": bool(sealed)}
        creations.append({"creation": creation, **state, "origins": origin_ids})
    return {"format": _FORMAT, **version._asdict(), "creations": creations}


def restore(connection: Connection, location: str) -> list[tuple[str, str]]:
    """Add the origins in files to those in the registry; return (path, reason) of damaged files.

    The object of a damaged file becomes private, and with it all that was computed from it, because
    its origins may have been private.
    """
    directory = StorePaths(location).origins
    connection.info[RESTORED] = True
    damaged = []
    for kind in KINDS:
        folder = os.path.join(directory, kind)
        for entry in files.list_directory(folder):
            match = _FILE_NAME.fullmatch(entry)
            if match is None:  # the file has no object
                continue
            version, path = Object(kind, match[1], int(match[2])), os.path.join(folder, entry)
            try:
                _restore_file(connection, version, path)
            except (FeatureStoreError, MalformedJson, ValueError, RecursionError) as error:
                _insert_creation(connection, version, 1, {"sealed": True})
                damaged.append((path, f"its object is private now: {error}"))
    return damaged


def _restore_file(connection: Connection, version: Object, path: str) -> None:
    content = JsonObject.from_value(revisions.read_json(path))
    check_format(content.number("format", minimum=1), _FORMAT, subject=f"The file {path!r}")
    stored_version = Object(content.text("kind"), content.text("name"), content.number("version"))
    if stored_version != version:
        raise ValueError(
            f"it has the origins of {stored_version.kind} {stored_version.name}@v{stored_version.version}"
        )
    for record in content.objects("creations"):
        creation = record.number("creation", minimum=1)
        states = {name: record.flag(name) for name in ("ended", "sealed")}
        _insert_creation(connection, version, creation, states)
        edges = []
        for identifier in record.texts("origins"):
            match = _ID.fullmatch(identifier)
            if match is None or match[1] not in KINDS:
                raise ValueError(f"{identifier!r} is not an object")
            origin = Object(match[1], match[2], int(match[3]))
            # The file of the origin may follow, or be lost.
            _insert_creation(connection, origin, int(match[4]), {})
            edges.append({"derived": format_id(version, creation), "origin": identifier})
        insert_missing(connection, origin_edges, edges)


def _insert_creation(
    connection: Connection, version: Object, creation: int, states: Mapping[str, bool]
) -> None:
    """Insert a creation unless it exists, and set the states that are true in its file."""
    identifier = format_id(version, creation)
    row = {**version._asdict(), "id": identifier, "creation": creation}
    insert_missing(connection, origins, [row | {"ended": False, "sealed": False}])
    values = {name: True for name, value in states.items() if value}
    if values:
        connection.execute(origins.update().where(origins.c.id == identifier).values(**values))
