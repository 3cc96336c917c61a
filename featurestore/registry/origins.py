"""Origins: what each object was computed from, stored when it is created and never removed.

An edge leads from a derived object to an object that it was computed from, or that it has read.
Edges outlive both objects, so that the deletion of an object does not separate the objects that
were computed from it from its own origins. Each creation of an object is a separate row, because
another object may be created under the name of a deleted one.

A file per object has the origins of all objects that were created with one name and version. It is
written in the transaction that changes them, and remains when the object is deleted, so that a rebuild
restores the private objects of a lost registry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError
from featurestore.model.json_object import JsonObject, MalformedJson, check_format
from featurestore.model.paths import (
    FEATUREGROUPS,
    FEATUREVIEWS,
    MODELS,
    TRAININGDATASETS,
    parse_version_directory,
)
from featurestore.registry import rows as registry_rows
from featurestore.registry.tables import featuregroups, origin_edges, origins, private_groups
from featurestore.storage import StorePaths, files, revisions, storage_for

GROUP, DATASET, VIEW, MODEL = "featuregroup", "training_dataset", "feature_view", "model"
RUN, JOB = "experiment_run", "job"
KINDS = (GROUP, DATASET, VIEW, MODEL, RUN, JOB)
# The folders by which lineage and paths refer to these kinds.
FOLDERS = {GROUP: FEATUREGROUPS, VIEW: FEATUREVIEWS, DATASET: TRAININGDATASETS, MODEL: MODELS}
_KINDS_BY_FOLDER = {folder: object_kind for object_kind, folder in FOLDERS.items()}
# The suffixes of the directories that a group has besides its table.
_GROUP_SUFFIXES = ("_quarantine", "_statistics")
# The key in a connection's ``info`` for the objects whose files the transaction has to write.
CHANGED = "featurestore_changed_origins"
# The key for whether the transaction registers objects again whose origins were restored.
RESTORED = "featurestore_restored_origins"
_FORMAT = 1
_FILE_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,63})@v([1-9][0-9]{0,8})\.json")
_ID = re.compile(
    r"([a-z_]{1,32})/([A-Za-z0-9][A-Za-z0-9_-]{0,63})@v([1-9][0-9]{0,8})#([1-9][0-9]{0,8})"
)


class Object(NamedTuple):
    """A version of an object; runs and jobs have the version 1, and a run's name is its id."""

    object_kind: str
    name: str
    version: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object, which are also columns of tables."""
        return {"kind": self.object_kind, "name": self.name, "version": self.version}


def record(connection: Connection, derived: Object, origin_objects: Iterable[Object]) -> None:
    """Store that an object was computed from others, or has read them; add to its earlier origins."""
    distinct = dict.fromkeys(origin for origin in origin_objects if origin != derived)
    if not distinct:
        return
    ids = _current_ids(connection, [derived, *distinct])
    columns = origins.c
    query = (
        sa.select(columns.id, columns.kind, columns.name, columns.version)
        .join(origin_edges, origin_edges.c.origin == columns.id)
        .where(origin_edges.c.derived == ids[derived])
    )
    stored_origins = {str(row[0]): Object(*row[1:]) for row in connection.execute(query)}
    if connection.info.get(RESTORED):
        # Manifests and commits do not contain which of several groups of a name they have read.
        for origin in stored_origins.values():
            distinct.pop(origin, None)
    new_origins = {ids[origin] for origin in distinct} - stored_origins.keys()
    if not new_origins:
        return
    rows = [{"derived": ids[derived], "origin": origin_id} for origin_id in sorted(new_origins)]
    registry_rows.insert_missing(connection, origin_edges, rows)
    _mark_changed(connection, [derived])


def are_recorded(
    connection: Connection, derived: Object, origin_objects: Collection[Object]
) -> bool:
    """Return whether the current object has all of these current objects as origins."""
    distinct = {origin for origin in origin_objects if origin != derived}
    creations = _last_creations(connection, [derived, *distinct])
    if not distinct <= creations.keys():
        return False
    ids = {format_id(origin, creations[origin]) for origin in distinct}
    derived_id = format_id(derived, creations.get(derived, 0))
    stored_origins = sa.select(origin_edges.c.origin).where(origin_edges.c.derived == derived_id)
    return ids <= set(connection.execute(stored_origins).scalars())


def begin(connection: Connection, created: Object) -> None:
    """Start a new object, which does not have the origins of a removed object of the same name.

    An object whose creation failed continues: its rejected rows and reports may still exist.
    """
    columns = origins.c
    last = _last_creations(connection, [created]).get(created)
    if last is None:
        return
    has_ended = sa.select(columns.id).where(columns.id == format_id(created, last), columns.ended)
    if connection.execute(has_ended).first() is None:
        return
    _insert(connection, {created: last + 1})
    # A view refers to a group by name and version, so that it reads the new group from now on.
    reads = sa.and_(origin_edges.c.origin == format_id(created, last), origins.c.kind == VIEW)
    query = sa.select(columns.id, columns.kind, columns.name, columns.version).where(
        reads, ~columns.ended
    )
    readers = connection.execute(query.join(origin_edges, origin_edges.c.derived == columns.id))
    for identifier, *version in readers.all():
        edge = {"derived": identifier, "origin": format_id(created, last + 1)}
        registry_rows.insert_missing(connection, origin_edges, [edge])
        _mark_changed(connection, [Object(*version)])


def end(connection: Connection, removed: Object) -> None:
    """Record that an object is removed; a group that is private at this time stays private."""
    private = sa.select(private_groups.c.featuregroup).where(
        private_groups.c.featuregroup == removed.name
    )
    is_private = removed.object_kind == GROUP and connection.execute(private).first() is not None
    # A copy of the rows of a private group may be written after the group was removed.
    if is_private:
        _current_ids(connection, [removed])
    last = _last_creations(connection, [removed]).get(removed)
    if last is not None:
        values = {"ended": True, "sealed": True} if is_private else {"ended": True}
        is_last = origins.c.id == format_id(removed, last)
        connection.execute(origins.update().where(is_last).values(**values))
        _mark_changed(connection, [removed])


def is_stored(connection: Connection, version: Object) -> bool:
    """Return whether an object has origins, or was itself an origin or private, even if removed."""
    return version in _last_creations(connection, [version])


def find_objects(connection: Connection, inputs: Iterable[Mapping[str, Any]]) -> list[Object]:
    """Return the objects of the store in lineage inputs, which contain names, folders or paths."""
    objects = []
    for lineage_input in inputs:
        source = str(
            lineage_input.get("source")
            or lineage_input.get("featuregroup")
            or lineage_input.get("path")
            or ""
        )
        version = lineage_input.get("version")
        parsed_source = parse_path(source) if "/" in source else (GROUP, source, None)
        # Registered sources and files outside of the store have no origins.
        if parsed_source is None or ":" in parsed_source[1] or not parsed_source[1]:
            continue
        object_kind, name, path_version = parsed_source
        number = version if isinstance(version, int) else path_version
        numbers = [number] if number else _registered_versions(connection, object_kind, name)
        objects += [Object(object_kind, name, number) for number in numbers]
    return objects


def parse_path(path: str) -> tuple[str, str, int | None] | None:
    """Return the kind, name and version of the object at a path; None for other paths.

    >>> parse_path("/data/store/featuregroups/pay/v2_quarantine"), parse_path("models/late")
    (('featuregroup', 'pay', 2), ('model', 'late', None))
    """
    segments = path.split("/")
    for position, (folder, name) in enumerate(pairwise(segments)):
        if folder in _KINDS_BY_FOLDER and name:
            last = segments[position + 2] if len(segments) > position + 2 else ""
            for suffix in _GROUP_SUFFIXES:
                last = last.removesuffix(suffix)
            return _KINDS_BY_FOLDER[folder], name, parse_version_directory(last)
    return None


def _registered_versions(connection: Connection, object_kind: str, name: str) -> list[int]:
    """Return the versions of a group to which a reference without a version may refer."""
    if object_kind != GROUP:
        return [1]
    query = sa.select(featuregroups.c.version).where(featuregroups.c.name == name)
    return [int(version) for version in connection.execute(query).scalars()] or [1]


def _current_ids(connection: Connection, objects: Collection[Object]) -> dict[Object, str]:
    """Return the ids of the last creations of objects; objects without a row get one."""
    creations = _last_creations(connection, objects)
    missing = {version: 1 for version in objects if version not in creations}
    if missing:
        _insert(connection, missing)
    last_creations = creations | missing
    return {version: format_id(version, creation) for version, creation in last_creations.items()}


def format_id(version: Object, creation: int) -> str:
    """Return the id of a creation of an object.

    >>> format_id(Object("featuregroup", "pay", 2), 1)
    'featuregroup/pay@v2#1'
    """
    return f"{version.object_kind}/{version.name}@v{version.version}#{creation}"


def _last_creations(connection: Connection, objects: Iterable[Object]) -> dict[Object, int]:
    """Return the numbers of the last creations of objects, without objects that have no row."""
    columns = origins.c
    key = (columns.kind, columns.name, columns.version)
    query = sa.select(*key, sa.func.max(columns.creation)).group_by(*key)
    return {
        Object(*row[:3]): int(row[3])
        for some_objects in registry_rows.split_values(objects)
        for row in connection.execute(query.where(sa.tuple_(*key).in_(some_objects)))
    }


def _insert(connection: Connection, creations: Mapping[Object, int]) -> None:
    rows = [
        {
            **version.to_json(),
            "id": format_id(version, creation),
            "creation": creation,
            "ended": False,
            "sealed": False,
        }
        for version, creation in sorted(creations.items())
    ]
    # Another transaction may have inserted the same row: it is the same object.
    registry_rows.insert_missing(connection, origins, rows)
    _mark_changed(connection, creations)


def _mark_changed(connection: Connection, objects: Iterable[Object]) -> None:
    connection.info.setdefault(CHANGED, set()).update(objects)


# -- files --------------------------------------------------------------------------------


def write_files(connection: Connection, changed: Collection[Object]) -> None:
    """Write the files of the objects whose origins a transaction has changed, before its commit."""
    # Two transactions that change the same object write its file one after the other, and the
    # second one reads the rows of the first.
    registry_rows.lock(connection, "origins")
    paths = StorePaths(registry_rows.location_of(connection))
    storage = paths.storage
    for object_kind in {version.object_kind for version in changed}:
        storage.make_directory(os.path.join(paths.origins, object_kind))
    for version in sorted(changed):
        # If a file cannot be written, the transaction fails, so that no origins are lost.
        path, content = paths.origin_file(*version), _to_json(connection, version)
        if not storage.needs_claims:
            files.write_json(path, content)
        elif not storage.write_new(path, files.json_bytes(content)):
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
        return {
            **content,
            "creations": [{**creation, "sealed": True} for creation in content["creations"]],
        }
    return {**content, "creations": [creations[number] for number in sorted(creations)]}


def _to_json(connection: Connection, version: Object) -> dict[str, Any]:
    columns = origins.c
    query = sa.select(columns.id, columns.creation, columns.ended, columns.sealed).where(
        registry_rows.is_version(origins, *version)
    )
    creations = []
    for identifier, creation, ended, sealed in connection.execute(query.order_by(columns.creation)):
        edges = sa.select(origin_edges.c.origin).where(origin_edges.c.derived == identifier)
        origin_ids = sorted(connection.execute(edges).scalars())
        state = {"ended": bool(ended), "sealed": bool(sealed)}
        creations.append({"creation": creation, **state, "origins": origin_ids})
    return {"format": _FORMAT, **version.to_json(), "creations": creations}


def restore(connection: Connection, location: str) -> list[tuple[str, str]]:
    """Add the origins in files to those in the registry; return (path, reason) of damaged files.

    The object of a damaged file becomes private, and with it all that was computed from it, because
    its origins may have been private.
    """
    directory = StorePaths(location).origins
    connection.info[RESTORED] = True
    damaged = []
    for object_kind in KINDS:
        folder = os.path.join(directory, object_kind)
        for entry in storage_for(folder).list_directory(folder):
            match = _FILE_NAME.fullmatch(entry)
            if match is None:  # the file has no object
                continue
            version, path = (
                Object(object_kind, match[1], int(match[2])),
                os.path.join(folder, entry),
            )
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
            f"it has the origins of {stored_version.object_kind} {stored_version.name}@v{stored_version.version}"
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
        registry_rows.insert_missing(connection, origin_edges, edges)


def _insert_creation(
    connection: Connection, version: Object, creation: int, states: Mapping[str, bool]
) -> None:
    """Insert a creation unless it exists, and set the states that are true in its file."""
    identifier = format_id(version, creation)
    row = {**version.to_json(), "id": identifier, "creation": creation}
    registry_rows.insert_missing(connection, origins, [row | {"ended": False, "sealed": False}])
    values = {name: True for name, value in states.items() if value}
    if values:
        connection.execute(origins.update().where(origins.c.id == identifier).values(**values))
