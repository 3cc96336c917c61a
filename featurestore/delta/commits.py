"""What the store writes into a Delta log, and reads back: definitions, commits, and whether keys are unique.

Table properties: ``featurestore.spec`` (the definition) and ``featurestore.meta`` (description and tags).
Each commit's note is a JSON object: operation, run, job, inputs, validation, and the claim ``unique``:

* ``true`` / ``false``: keys and times are (not) unique after this commit, whatever was before;
* ``"kept"``: as unique as the version before (upserts, deletes);
* ``"kept_after"``: unique if version ``base`` was, and no other data came in between (appends of later times).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from featurestore.delta import deltalog
from featurestore.errors import TableDamaged
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.storage import files

SPEC = "featurestore.spec"
META = "featurestore.meta"

__all__ = ["META", "SPEC", "Meta", "commit_of", "history", "latest_data_version", "meta_of", "properties", "spec_of",
           "unique_at"]  # fmt: skip


@dataclass(frozen=True)
class Meta:
    """Description and tags of a version of a group: they change without a new version."""

    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return the JSON text of the table property."""
        return json.dumps(
            {"description": self.description, "tags": dict(self.tags)}, ensure_ascii=False
        )


def properties(spec: FeatureGroupSpec, meta: Meta) -> dict[str, str]:
    """Return the table properties of a new group."""
    return {SPEC: json.dumps(spec.to_json(), ensure_ascii=False), META: meta.to_text()}


def spec_of(state: deltalog.TableState) -> FeatureGroupSpec:
    """Return the definition that holds at a version of a table.

    The property may name columns that the version does not have yet (they are added by a later commit), and
    another Delta writer may have added columns: the table's own schema decides which there are.

    Raises:
        TableDamaged: The table is no feature group's.
    """
    spec = announced_spec(state)
    stored = {each.name: each for each in state.schema}
    if list(stored) == spec.schema.names:
        return spec
    known = [each for each in spec.schema if each.name in stored]
    foreign = [
        pa.field(name, _plain(stored[name].type))
        for name in stored
        if name not in spec.schema.names
    ]
    created = spec.created_time if spec.created_time in stored else None
    return replace(spec, schema=pa.schema([*known, *foreign]), created_time=created)


def announced_spec(state: deltalog.TableState) -> FeatureGroupSpec:
    """Return the definition as the table property has it."""
    if SPEC not in state.properties:
        raise TableDamaged(
            f"The Delta table {state.path} has no property {SPEC!r}, so it is no feature group.",
            hint="write its rows into a new one: featurestore.create_featuregroup(df, name)",
        )
    return FeatureGroupSpec.from_json(json.loads(state.properties[SPEC]))


def meta_of(state: deltalog.TableState) -> Meta:
    """Return description and tags of a table."""
    data = json.loads(state.properties.get(META, "{}"))
    return Meta(description=data.get("description", ""), tags=data.get("tags", {}))


def history(path: str) -> list[Commit]:
    """Return the commits of a group's data, oldest first; commit 0 (the empty table) is left out."""
    return [_commit(path, each) for each in deltalog.history(path) if each.version > 0]


def commit_of(path: str, version: int) -> Commit:
    """Return one commit."""
    found = next(each for each in deltalog.history(path) if each.version == version)
    return _commit(path, found)


def version_of_run(path: str, run_id: str, *, after: int) -> int | None:
    """Return the version that a run committed after another version, None when it committed none."""
    for version in range(deltalog.latest_version(path), after, -1):
        if _note(_actions(path, version)).get("run") == run_id:
            return version
    return None


def latest_data_version(path: str, version: int) -> int:
    """Return the last commit at or before ``version`` that changed rows (0 when none did)."""
    for number in range(version, 0, -1):
        if _changes_data(_actions(path, number)):
            return number
    return 0


def unique_at(path: str, version: int) -> bool:
    """Tell whether (primary key, event time, created time) is known to be unique at a version."""
    number = version
    while number > 0:
        actions = _actions(path, number)
        note = _note(actions)
        claim = note.get("unique")
        if claim in ("kept", "kept_after") or not _changes_data(actions):
            if claim == "kept_after" and latest_data_version(path, number - 1) > int(
                note.get("base", -1)
            ):
                return False
            number -= 1
            continue
        return claim is True
    return True  # commit 0: no rows at all


def _commit(path: str, log: deltalog.LogCommit) -> Commit:
    note = log.note
    return Commit(
        delta_version=log.version,
        rows=log.rows,
        timestamp=log.time,
        operation=log.operation,
        run_id=note.get("run"),
        rows_in=log.rows_in,
        rows_out=log.rows_out,
        validation=note.get("validation"),
        inputs={str(index): each for index, each in enumerate(note.get("inputs") or ())},
        unique=unique_at(path, log.version) if "unique" in note else None,
    )


def _actions(path: str, version: int) -> list[dict[str, Any]]:
    file = deltalog.commit_path(path, version)
    return deltalog.read_commit(file) if files.exists(file) else []


def _note(actions: list[dict[str, Any]]) -> Mapping[str, Any]:
    info: Mapping[str, Any] = next(
        (each["commitInfo"] for each in actions if each.get("commitInfo") is not None), {}
    )
    try:
        note = json.loads(info.get("userMetadata") or "{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def _changes_data(actions: list[dict[str, Any]]) -> bool:
    changes = (each.get("add") or each.get("remove") for each in actions)
    return not actions or any(each.get("dataChange", True) for each in changes if each is not None)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the feature type of a column that another writer added."""
    from featurestore.model.types import feature_type

    return feature_type(kind) or kind
