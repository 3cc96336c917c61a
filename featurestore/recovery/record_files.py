"""Files for a rebuild of the registry: access rights, sources, online stores and run records.

This information is not in tables or manifests. Without the access file, private groups would become
public if the registry was lost; like the registry, it contains only hashes of tokens. Definitions
of sources and online stores contain references to secrets instead of secrets, and a machine sends a
secret only to an address for which the secret was registered on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.errors import (
    FeatureStoreError,
    FormatTooNew,
    OnlineStoreExists,
    RegistryError,
    RunDamaged,
    RunNotFound,
    SourceExists,
    WriteConflict,
)
from featurestore.model.json_object import JsonObject, MalformedJson, check_format
from featurestore.model.names import check_name
from featurestore.model.online_store import OnlineStoreSpec
from featurestore.model.run_record import RUN_FILE, RunRecord, check_run_id
from featurestore.model.source import SourceSpec
from featurestore.registry import experiments, online_stores, sources, tables
from featurestore.registry.rows import lock
from featurestore.registry.stores import rebuild_command
from featurestore.storage import StorePaths, files, revisions, storage_for

_ACCESS_FORMAT = 1
# In the order of foreign keys: tokens and roles reference users.
_ACCESS_TABLES = (tables.users, tables.tokens, tables.group_roles, tables.private_groups)
_DEFINITION_SUFFIX = ".json"
SpecT = TypeVar("SpecT", SourceSpec, OnlineStoreSpec)


@contextmanager
def writing_access(connection: Connection, location: str) -> Iterator[None]:
    """Write the access tables to a file after the block, which changes them in a transaction.

    Several registries may share the file of a URI. The change is then based on its newest content.

    Raises:
        WriteConflict: Another registry has changed the file during the block.
    """
    path = StorePaths(location).access
    lock(connection, "access")
    # A new registry has no users yet; without this, it would replace the users in the file.
    restore_access(connection, location)
    # If the file cannot be written, the transaction fails, too, so both have the same access
    # rights.
    if not storage_for(path).needs_claims:
        yield
        files.write_json(path, _access_content(connection))
        return
    newest = revisions.read_newest(path)
    if newest.content not in (None, _access_content(connection)):
        _load_access(connection, path)
    yield
    if not revisions.write_next(path, newest, _access_content(connection), below=location):
        raise WriteConflict(
            f"The access rights in {path!r} were changed through another registry at the same "
            "time; this change was not made.",
            hint="repeat the change",
        )


def _access_content(connection: Connection) -> dict[str, Any]:
    content: dict[str, Any] = {"format": _ACCESS_FORMAT}
    for table in _ACCESS_TABLES:
        query = sa.select(table).order_by(*table.primary_key.columns)
        content[table.name] = [dict(row._mapping) for row in connection.execute(query)]
    return content


def restore_access(connection: Connection, location: str, *, emptied: Collection[str] = ()) -> int:
    """Restore the access tables if the registry has no users; return the number of restored users.

    They are also restored if an access table is among the ``emptied`` tables: without its rows,
    private groups would become public.

    Raises:
        RegistryError: The file is damaged.
        FormatTooNew: A newer release wrote the file.
    """
    path = StorePaths(location).access
    lock(connection, "access")
    if next(revisions.paths(path), None) is None:
        return 0
    # The file is a copy: as long as the registry has users, the registry decides.
    is_lost = any(table.name in emptied for table in _ACCESS_TABLES)
    has_users = connection.execute(sa.select(tables.users.c.name).limit(1)).first() is not None
    if has_users and not is_lost:
        return 0
    return _load_access(connection, path)


def _load_access(connection: Connection, path: str) -> int:
    """Replace the access tables by those in a file, and return the number of users."""
    rows_by_table = _read_access(path)
    for table in reversed(_ACCESS_TABLES):
        connection.execute(table.delete())
    for table in _ACCESS_TABLES:
        if rows_by_table[table.name]:
            connection.execute(table.insert(), rows_by_table[table.name])
    return len(rows_by_table[tables.users.name])


def _read_access(path: str) -> dict[str, list[dict[str, Any]]]:
    """Read and check the access tables in a file."""
    hint = (
        "restore it from a backup before serving the store; or remove it, and create users, roles "
        "and private groups again"
    )
    with revisions.translate_damage(path, RegistryError, hint):
        content = JsonObject.from_value(revisions.read_json(path))
        check_format(
            content.number("format", minimum=1), _ACCESS_FORMAT, subject=f"The file {path!r}"
        )
        rows_by_table = {}
        for table in _ACCESS_TABLES:
            rows_by_table[table.name] = [
                _parse_access_row(table, stored_row) for stored_row in content.objects(table.name)
            ]
        return rows_by_table


def _parse_access_row(table: sa.Table, stored_row: JsonObject) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column in table.columns:
        if column.nullable and stored_row.get(column.name) is None:
            row[column.name] = None
        elif isinstance(column.type, sa.BigInteger):
            row[column.name] = stored_row.number(column.name)
        else:
            row[column.name] = stored_row.text(column.name)
    return row


def write_source(location: str, spec: SourceSpec, *, replaces: bool = False) -> None:
    """Write a source definition atomically, and replace an earlier one if ``replaces``.

    Raises:
        SourceExists: Another registry of the store has a different source with this name.
    """
    paths = StorePaths(location)
    paths.storage.make_directory(paths.sources)
    if not _write_definition(paths.source(spec.name), spec, replaces=replaces):
        raise SourceExists(
            f"Source {spec.name!r} is already registered through another registry of the store.",
            hint=f"{rebuild_command(location)}, or choose another name",
        )


def _write_definition(path: str, spec: SourceSpec | OnlineStoreSpec, *, replaces: bool) -> bool:
    """Write a definition; return False if another registry has written a different one."""
    storage = storage_for(path)
    content = spec.to_json()
    # In a local directory, the registry refuses a name that is registered already.
    if replaces or not storage.needs_claims:
        files.write_json(path, content)
        return True
    if storage.write_new(path, files.json_bytes(content)):
        return True
    stored_definition = files.read_json(path)
    return (
        isinstance(stored_definition, dict)
        and {**stored_definition, "created": spec.created} == content
    )


def remove_source(location: str, name: str) -> None:
    """Remove the definition of a source and its stored decisions, if they exist."""
    storage = storage_for(location)
    storage.remove(StorePaths(location).source(name), below=location)
    storage.remove(StorePaths(location).source_decisions(name), below=location)


def write_online_store(location: str, spec: OnlineStoreSpec) -> None:
    """Write the definition of a new online store atomically.

    Raises:
        OnlineStoreExists: Another registry of the store has a different one with this name.
    """
    paths = StorePaths(location)
    paths.storage.make_directory(paths.online_stores)
    if not _write_definition(paths.online_store(spec.name), spec, replaces=False):
        raise OnlineStoreExists(
            f"Online store {spec.name!r} is already registered through another registry of the "
            "store.",
            hint=f"{rebuild_command(location)}, or choose another name",
        )


def iterate_definitions(directory: str) -> Iterator[tuple[str, str]]:
    """Yield the name and path of each definition of a source or online store, ordered by name."""
    for entry in sorted(storage_for(directory).list_directory(directory)):
        if entry.endswith(_DEFINITION_SUFFIX) and not entry.startswith("."):
            yield entry.removesuffix(_DEFINITION_SUFFIX), f"{directory}/{entry}"


def register_source(connection: Connection, name: str, path: str) -> SourceSpec:
    """Register the source in a definition file, instead of an existing registration.

    Raises:
        RegistryError: The file is not a source definition, or defines another source.
    """
    sources.lock_name(connection, name)
    spec = _read_definition(path, name, SourceSpec.from_text, noun="source")
    sources.put(connection, spec)
    return spec


def register_online_store(connection: Connection, name: str, path: str) -> OnlineStoreSpec:
    """Register the online store in a definition file, instead of an existing registration.

    Raises:
        RegistryError: The file is not a definition, or defines another online store.
    """
    online_stores.lock_name(connection, name)
    spec = _read_definition(path, name, OnlineStoreSpec.from_text, noun="online store")
    online_stores.put(connection, spec)
    return spec


def _read_definition(path: str, name: str, parse: Callable[[str], SpecT], *, noun: str) -> SpecT:
    """Parse a definition file, whose name must be that of the source or online store."""
    try:
        spec = parse(storage_for(path).read_text(path))
    # A file may contain anything: deeply nested JSON, for example, raises RecursionError.
    except (FeatureStoreError, ValueError, TypeError, RecursionError) as error:
        function = f"add_{noun.replace(' ', '_')}"
        raise RegistryError(
            f"{path} is not the definition of the {noun} {name!r}: {type(error).__name__}.",
            hint=f"remove it, then: featurestore.{function}({name!r}, uri)",
        ) from error
    if spec.name != name:
        raise RegistryError(
            f"{path} defines the {noun} {spec.name!r}, not {name!r}.", hint="rename it"
        )
    return spec


def run_directory(paths: StorePaths, name: str, run_id: str) -> str:
    """Check the name and id of a run, and return its directory."""
    return os.path.join(paths.experiment(name), check_run_id(run_id))


def read_run(directory: str) -> RunRecord:
    """Read the run record in a directory.

    Raises:
        RunNotFound: The directory has no ``run.json``.
        RunDamaged: The record is damaged or belongs to another directory.
    """
    storage = storage_for(directory)
    path = os.path.join(directory, RUN_FILE)
    if not storage.is_file(path):
        raise RunNotFound(
            f"{directory!r} is not the directory of a run: it has no {RUN_FILE}.",
            hint="restore the file from a copy, or remove the directory",
        )
    try:
        record = RunRecord.from_bytes(storage.read_bytes(path))
    except FormatTooNew:
        raise
    except (MalformedJson, FeatureStoreError) as error:
        raise RunDamaged(f"The run record {path!r} is damaged: {error}") from error
    # A copied directory must not replace the run that it was copied from.
    if record.id != os.path.basename(directory):
        raise RunDamaged(
            f"The run record {path!r} belongs to another run, {record.id!r}.",
            hint="move it to the directory of that name",
        )
    if record.name != os.path.basename(os.path.dirname(directory)):
        raise RunDamaged(
            f"The run record {path!r} belongs to another experiment, {record.name!r}.",
            hint="move it to the directory of that name",
        )
    return record


def write_run(directory: str, record: RunRecord) -> None:
    """Write a run record atomically."""
    storage_for(directory).write_atomically(os.path.join(directory, RUN_FILE), record.to_bytes())


def run_directories(paths: StorePaths) -> Iterator[tuple[str, str]]:
    """Yield the experiment name and directory of each run, ordered by name and id."""
    storage = paths.storage
    for name in storage.list_directory(paths.experiments):
        try:
            folder = paths.experiment(check_name(name, noun="experiment"))
        except FeatureStoreError:
            continue
        for run_id in storage.list_directory(folder):
            directory = os.path.join(folder, run_id)
            if storage.is_file(os.path.join(directory, RUN_FILE)):
                yield name, directory


def register_run(connection: Connection, name: str, directory: str) -> str:
    """Register the run in a directory, and return its id."""
    record = read_run(directory)
    if record.name != name:
        raise RunDamaged(
            f"The run in {directory!r} belongs to experiment {record.name!r}.",
            hint="move it to the directory of that name",
        )
    experiments.register(connection, record)
    return record.id
