"""Healing: bring the index in line with the tables, after a process died between a Delta commit and its row here."""

from __future__ import annotations

import os

from sqlalchemy.engine import Connection

from featurestore.delta import commits, deltalog
from featurestore.errors import InvalidArgument, InvalidName
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.paths import StorePaths
from featurestore.registry import featuregroups, intents, lineage, reports, tags
from featurestore.storage import files


def heal(connection: Connection, location: str) -> list[str]:
    """Settle every write whose process died; return what was done, one line each."""
    done = []
    for intent in intents.every(connection):
        if not intent.is_alive:
            done.append(settle(connection, location, intent))
    return done


def settle(connection: Connection, location: str, intent: intents.Intent) -> str:
    """Register what a write left in its table, or remove what it left half made; return what was done."""
    try:
        path = StorePaths(location).featuregroup(intent.name, intent.version)
        stage = StorePaths(location).stage(intent.run_id)
    except (InvalidName, InvalidArgument) as error:
        # No write of this store: whoever wrote the row decides nothing about files.
        intents.end(connection, intent.run_id)
        return f"an intent was dropped: {error.message}"
    what = f"{intent.kind} of {intent.name} version {intent.version}"
    if intent.kind == "create" and not is_group(path):
        files.remove(path, below=location)
        result = f"{what}: removed, it had no rows yet"
    elif intent.kind == "delete":
        forget_group(connection, intent.name, intent.version)
        files.remove(path, below=location)
        result = f"{what}: finished"
    elif is_group(path):
        register_table(connection, location, path)
        result = f"{what}: registered as the table is"
    else:
        result = f"{what}: nothing to do"
    files.remove(stage, below=location)
    intents.end(connection, intent.run_id)
    return result


def is_group(path: str) -> bool:
    """Tell whether a directory holds a feature group: a Delta table with a commit of data."""
    return deltalog.exists(path) and deltalog.latest_version(path) >= 1


def register_table(connection: Connection, location: str, path: str) -> FeatureGroupSpec:
    """Register a table, or bring what is registered up to date with it."""
    state = deltalog.table_state(path)
    spec, meta = commits.spec_of(state), commits.meta_of(state)
    known = featuregroups.find(connection, spec.name, spec.version)
    if known is not None and known.table_id != state.table_id:
        forget_group(connection, spec.name, spec.version)
        known = None
    found = commits.history(path)[::-1]
    if known is None:
        featuregroups.add(
            connection,
            spec,
            path=os.path.relpath(path, location),
            table_id=state.table_id,
            delta_version=state.version,
            description=meta.description,
            created=found[0].timestamp if found else None,
        )
    else:
        featuregroups.advance(
            connection, spec.name, spec.version, delta_version=state.version, spec=spec
        )
        featuregroups.describe(connection, spec.name, spec.version, meta.description)
    tags.replace(connection, featuregroups.KIND, spec.name, spec.version, meta.tags)
    for commit in found:
        if known is None or commit.delta_version > known.delta_version:
            add_lineage(connection, spec, commit)
    return spec


def add_lineage(connection: Connection, spec: FeatureGroupSpec, commit: Commit) -> None:
    """Record the inputs that a commit's note states."""
    if commit.inputs:
        lineage.add(
            connection,
            featuregroups.KIND,
            spec.name,
            spec.version,
            delta_version=commit.delta_version,
            inputs=commit.inputs.values(),
            job=spec.job,
            run_id=commit.run_id,
        )


def forget_group(connection: Connection, name: str, version: int) -> None:
    """Remove everything that is recorded about a version of a group."""
    featuregroups.remove(connection, name, version)
    lineage.remove(connection, featuregroups.KIND, name, version)
    reports.remove(connection, featuregroups.KIND, name, version)
