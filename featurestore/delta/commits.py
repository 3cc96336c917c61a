"""Commits of the store in a Delta log: definitions, metadata, unique keys, offsets, and checksums.

Table properties are ``featurestore.spec`` (the definition) and ``featurestore.meta`` (description
and tags). The user metadata of a commit is a JSON object with operation, run, job, inputs,
validation, and the field ``unique``:

* ``true`` / ``false``: keys and times are unique (or not unique) after this commit;
* ``"kept"``: they are unique if they are unique in the previous version (upserts, deletes);
* ``"kept_after"``: they are unique if they are unique in version ``base``, and no other data was
  committed in between (appends of later times).

``base`` is the version that the writer read; ``base_unique`` and ``base_time`` are the uniqueness
and commit time of this version, so that a commit can be interpreted without reading earlier
commits.

A stream has a transaction number for each partition of its topic: the offset of the next record.
The numbers are committed together with the rows, so that table and offsets are always consistent. A
commit fails if the current numbers differ from the numbers that the writer started with, because
then another writer has already committed the records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from featurestore.arrow.types import feature_type
from featurestore.delta import log
from featurestore.delta.checksums import Action, CommitChecksums, checksums_of, file_checksums, seal
from featurestore.delta.history import LogCommit, commit_at, commit_time, read_history
from featurestore.delta.log import Actions, FileState
from featurestore.delta.snapshot import Snapshot
from featurestore.errors import (
    DuplicateKeys,
    FeatureStoreError,
    StreamOvertaken,
    TableDamaged,
)
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.storage import storage_for

SPEC = "featurestore.spec"
META = "featurestore.meta"
# The expected current number and the new transaction number by application.
Offsets = Mapping[str, tuple[int | None, int]]
# A checkpoint of a version is written after its commit, so the next commit may precede it.
_COMMITS_BEFORE = 2


@dataclass(frozen=True)
class Meta:
    """Description and tags of a group version, which may change without a new version.

    ``features`` maps column names to descriptions.
    """

    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return the value of the table property as a JSON string."""
        payload: dict[str, Any] = {"description": self.description, "tags": dict(self.tags)}
        if self.features:
            payload["features"] = dict(self.features)
        return json.dumps(payload, ensure_ascii=False)


def properties(spec: FeatureGroupSpec, meta: Meta) -> dict[str, str]:
    """Return the table properties of a new group."""
    return {SPEC: json.dumps(spec.to_json(), ensure_ascii=False), META: meta.to_text()}


def table_metadata(
    *,
    table_id: str,
    schema_string: str,
    partition_by: Sequence[str],
    created_time: int | None,
    properties: Mapping[str, str],
    name: str | None = None,
    description: str | None = None,
) -> dict[str, Any]:
    """Return the metadata action of a table; ``schema_string`` is the schema in Delta's JSON."""
    return {
        "id": table_id,
        "name": name,
        "description": description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_string,
        "partitionColumns": list(partition_by),
        "createdTime": created_time,
        "configuration": dict(properties),
    }


def changed_metadata(
    state: Snapshot,
    *,
    schema_string: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the table's metadata action with a new schema or additional properties."""
    return table_metadata(
        table_id=state.table_id,
        schema_string=schema_string or state.metadata["schemaString"],
        partition_by=state.partition_by,
        created_time=state.metadata.get("createdTime"),
        properties={**state.properties, **(properties or {})},
        name=state.metadata.get("name"),
        description=state.metadata.get("description"),
    )


def spec_of(state: Snapshot) -> FeatureGroupSpec:
    """Return the feature group definition at a table version.

    The columns are those of the table schema: the property may contain columns that a later commit
    adds, and other Delta writers may have added columns.

    Raises:
        TableDamaged: The table is not the table of a feature group.
    """
    spec = declared_spec(state)
    table_fields = dict(zip(state.schema.names, state.schema, strict=True))
    if list(table_fields) == spec.schema.names:
        return spec
    known_fields = [column for column in spec.schema if column.name in table_fields]
    spec_names = set(spec.schema.names)
    foreign_fields = [
        # Other writers may add a column of a type that features do not support. It stays in the
        # definition, so that the other columns can be read.
        pa.field(name, feature_type(table_field.type) or table_field.type)
        for name, table_field in table_fields.items()
        if name not in spec_names
    ]
    created = spec.created_time
    # The table may lack the column: another writer dropped it, or a later commit adds it.
    if created not in table_fields:
        created = None
    return replace(spec, schema=pa.schema([*known_fields, *foreign_fields]), created_time=created)


def declared_spec(state: Snapshot) -> FeatureGroupSpec:
    """Return the definition in the table property, which may contain columns that are not added yet.

    Decimal types are taken from the table schema, since they may be widened without a change of the
    property.
    """
    if SPEC not in state.properties:
        raise TableDamaged(
            f"The Delta table {state.path} has no property {SPEC!r}, so it is not a feature group.",
            hint="write its rows into a new group: featurestore.create_featuregroup(df, name)",
        )
    with _convert_parsing_errors(state, SPEC):
        spec = FeatureGroupSpec.from_text(state.properties[SPEC])
        return spec.with_wider_decimals(state.schema)


def meta_of(state: Snapshot) -> Meta:
    """Return the description and tags in the table property.

    Raises:
        TableDamaged: The property is invalid.
    """
    with _convert_parsing_errors(state, META):
        data = json.loads(state.properties.get(META, "{}"))
        description, tags = data.get("description", ""), dict(data.get("tags", {}))
        features = dict(data.get("features", {}))
        strings = (description, *tags, *tags.values(), *features, *features.values())
        if not all(isinstance(string, str) for string in strings):
            raise ValueError("descriptions, tags and their values must be strings")
        return Meta(description, tags, features)


@contextmanager
def _convert_parsing_errors(state: Snapshot, name: str) -> Iterator[None]:
    """Convert parsing errors in a ``with`` block to TableDamaged."""
    try:
        yield
    except (
        FeatureStoreError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        # Any Delta writer can change properties: the JSON may be nested too deeply, and its fields
        # may have any type.
        raise TableDamaged(
            f"The property {name!r} of the Delta table {state.path} cannot be read at version "
            f"{state.version}: {type(error).__name__}: {error}.",
            hint="restore the log from a copy, or write the rows into a new group",
        ) from error


def history(path: str, *, limit: int | None = None, before: int | None = None) -> list[Commit]:
    """Return the last ``limit`` commits of a group before a Delta version, newest first.

    Commit 0 (the empty table) is omitted. With None, the result is not limited.
    """
    # Commits before ``before`` can be older than the last ``limit`` ones, so all are listed.
    back = None
    if limit is not None and before is None:
        back = limit
    with log.cached_listing(path, back=back):
        log_commits = read_history(path, limit=limit, before=before)
        return [_commit(path, commit) for commit in log_commits if commit.version > 0]


def commit_of(path: str, version: int) -> Commit:
    """Return one commit."""
    return _commit(path, commit_at(path, version))


def _commit(path: str, commit: LogCommit) -> Commit:
    """Convert a commit of the log to the commit of a feature group."""
    note = commit.user_metadata
    inputs, changes = note.get("inputs") or (), note.get("changes")
    return Commit(
        delta_version=commit.version,
        rows=commit.rows,
        timestamp=commit.time,
        operation=commit.operation,
        run_id=note.get("run"),
        rows_in=commit.rows_in,
        rows_out=commit.rows_out,
        validation=note.get("validation"),
        inputs={str(index): pinned_input for index, pinned_input in enumerate(inputs)},
        unique=is_unique_at(path, commit.version) if "unique" in note else None,
        # Any Delta writer can set the metadata of a commit.
        changes=tuple(map(str, changes)) if isinstance(changes, list) else (),
    )


def base_metadata(path: str, version: int) -> dict[str, Any]:
    """Return the commit metadata about the version that the writer has read."""
    with log.cached_listing(path):
        return {
            "base": version,
            "base_unique": is_unique_at(path, version),
            "base_time": commit_time(path, version),
        }


def version_of_run(path: str, run_id: str, *, after: int) -> int | None:
    """Return the version after ``after`` that a run committed, or None."""
    for version in range(log.latest_version(path), after, -1):
        actions = _read_actions(path, version)
        if actions is not None and log.parse_user_metadata(actions).get("run") == run_id:
            return version
    return None


def latest_data_version(path: str, version: int) -> int:
    """Return the last version up to ``version`` that changed rows, or 0."""
    for number in range(version, 0, -1):
        actions = _read_actions(path, number)
        # A commit that was removed from the log may have changed rows.
        if actions is None or log.changes_data(actions):
            return number
    return 0


def is_unique_at(path: str, version: int) -> bool:
    """Return True if (primary key, event time, created time) is known to be unique in a version."""
    number = latest_data_version(path, version)
    while number > 0:
        actions = _read_actions(path, number)
        note = log.parse_user_metadata(actions or [])
        claim, base, base_unique = note.get("unique"), note.get("base"), note.get("base_unique")
        # Writes of other programs record no claim. Their rows are not known to be unique.
        if claim not in ("kept", "kept_after"):
            return claim is True
        before = latest_data_version(path, number - 1)
        # The writer knew all earlier rows: no commit between its base and this one changed any.
        follows_base = isinstance(base, int) and before <= base
        if claim == "kept_after" and not follows_base:
            return False
        # The recorded value ends the search, so that a check does not read the log back to its start.
        if follows_base and isinstance(base_unique, bool):
            return base_unique
        number = before
    return True  # commit 0 has no rows


def _read_actions(path: str, version: int) -> Actions | None:
    """Return the actions of a commit, or None if it was removed from the log."""
    file = log.commit_path(path, version)
    return log.read_commit(file) if storage_for(file).exists(file) else None


def check_offsets(state: Snapshot, offsets: Offsets) -> None:
    """Raise StreamOvertaken if the transaction number of an application has changed."""
    for app, (expected, _) in offsets.items():
        if state.transactions.get(app) != expected:
            raise stream_overtaken_error(app)


def check_concurrent_transactions(transactions: Iterable[Action], offsets: Offsets) -> None:
    """Raise StreamOvertaken if a concurrent commit changed the number of an application."""
    for transaction in transactions:
        if transaction["appId"] in offsets:
            raise stream_overtaken_error(str(transaction["appId"]))


def next_offsets(state: Snapshot, offsets: Offsets) -> Offsets | None:
    """Return the offsets of a write for a second table, or None if the write is a repetition.

    The numbers of the second table may be lower than those of the first table, since not all writes
    include it, but they must not be higher than the numbers before this write.

    Raises:
        StreamOvertaken: The second table already contains records of this write.
    """
    next_numbers = {}
    # A process may have been killed between its commits to the two tables. The repeated write must
    # not duplicate rows here.
    repeated = bool(offsets)
    for app, (_, number) in offsets.items():
        current = state.transactions.get(app)
        repeated = repeated and current == number
        next_numbers[app] = (current, number)
    if repeated:
        return None
    for app, (expected, _) in offsets.items():
        current = next_numbers[app][0]
        if current is not None and current > (expected or 0):
            raise stream_overtaken_error(app)
    return next_numbers


def stream_overtaken_error(app: str) -> StreamOvertaken:
    """Return the error for a write whose records were already committed by another writer."""
    return StreamOvertaken(
        f"Another process committed records of {app!r} first; this write was not committed.",
        hint="read the position again, and continue from there",
    )


def seal_commit(
    path: str,
    version: int,
    actions: Sequence[Action],
    *,
    before: FileState | None = None,
) -> bytes:
    """Return the commit file of a version with its checksums.

    Args:
        path: The table.
        version: The version of the commit.
        actions: The actions without checksums.
        before: The file of the commit before, if it is known, which saves a request.

    Raises:
        TableDamaged: The commit before is damaged, so that no commit may follow.
    """
    previous = log.commit_digest(path, version - 1, before) if version > 0 else None
    return seal(actions, CommitChecksums(previous, _new_checkpoints(path, version)))


def _new_checkpoints(path: str, version: int) -> dict[str, str]:
    """Return the checksums of the last checkpoints that no commit has recorded, by file name."""
    storage = storage_for(path)
    # In an object store, the search would take a request per commit.
    if not storage.is_local:
        return {}
    checkpoint_files = []
    for number in range(max(version - _COMMITS_BEFORE, 0), version):
        file = log.checkpoint_path(path, number)
        if storage.exists(file):
            checkpoint_files.append(file)
    recorded: Mapping[str, str] = {}
    if checkpoint_files and log.has_commit(path, version - 1):
        info = log.commit_info(log.read_commit(log.commit_path(path, version - 1)))
        before = checksums_of(info)
        recorded = {} if before is None else before.checkpoints
    unrecorded = [file for file in checkpoint_files if os.path.basename(file) not in recorded]
    names = map(os.path.basename, unrecorded)
    return dict(zip(names, file_checksums(unrecorded), strict=True))


def duplicate_keys_error(examples: Iterable[Action]) -> DuplicateKeys:
    """Return the error for an upsert whose rows contain several rows of a key."""
    return DuplicateKeys(
        "The rows of this upsert have duplicate keys, for example "
        f"{'; '.join(map(str, examples))}.",
        hint="on_duplicates='last'",
    )
