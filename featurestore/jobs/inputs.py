"""Inputs of a job: pinned to Delta versions before anything is computed, cut to what a window may see."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from featurestore.delta import deltalog
from featurestore.errors import InvalidJob
from featurestore.featuregroups.table import open_group
from featurestore.jobs.footers import parquet_files
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.job import JobSpec
from featurestore.model.references import parse_group_reference
from featurestore.model.window import Window
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.session import Session


@dataclass(frozen=True)
class PinnedInput:
    """One input as it stood when a run began; ``time`` is the column by which it is cut, None: never cut."""

    name: str
    kind: Literal["group", "delta", "parquet"]
    source: str
    path: str
    time: str | None
    version: int | None = None
    delta_version: int | None = None
    fingerprint: str | None = None
    spec: FeatureGroupSpec | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what lineage and stale windows need."""
        found = {"input": self.name, "source": self.source, "version": self.version}
        found["delta_version"] = self.delta_version
        return found if self.fingerprint is None else {**found, "fingerprint": self.fingerprint}


def pin(session: Session, spec: JobSpec) -> tuple[PinnedInput, ...]:
    """Return the inputs of a job at their present versions.

    Raises:
        FeatureGroupNotFound: A group does not exist.
        InvalidJob: A path holds neither a Delta table nor Parquet files.
    """
    return tuple(_pin(session, spec, name, place) for name, place in spec.inputs.items())


def read(session: Session, given: PinnedInput, window: Window, *, lookback: timedelta) -> Relation:
    """Return the rows of an input that lie in ``[window.start - lookback, window.end)``."""
    engine = session.engine
    if given.kind == "parquet":
        relation = engine.read_files([given.path])
    else:
        schema = None if given.spec is None else given.spec.schema
        relation = engine.read_table(given.path, version=given.delta_version, schema=schema)
    return cut(session, relation, given.time, window, lookback=lookback)


def cut(
    session: Session,
    relation: Relation,
    time: str | None,
    window: Window,
    *,
    lookback: timedelta = timedelta(0),
) -> Relation:
    """Return the rows of a relation that a window may see."""
    if time is None:
        return relation
    return session.engine.within(relation, TimeRange(time, window.start - lookback, window.end))


def _pin(session: Session, spec: JobSpec, name: str, place: str) -> PinnedInput:
    time = spec.input_times.get(name)
    if "/" not in place:
        group = open_group(session, *parse_group_reference(place))
        found = group.spec
        return PinnedInput(
            name,
            "group",
            source=found.name,
            path=group.path,
            time=time or found.event_time,
            version=found.version,
            delta_version=group.delta_version,
            spec=found,
        )
    path = os.path.abspath(os.path.expanduser(place))
    if deltalog.exists(path):
        return PinnedInput(
            name, "delta", path, path, time, delta_version=deltalog.latest_version(path)
        )
    files = list(parquet_files(path))
    if not files:
        raise InvalidJob(
            f"Job {spec.name!r}: its input {name!r} is {path}, which holds neither a Delta table nor Parquet files.",
            hint="a group reference has no '/' in it",
        )
    return PinnedInput(name, "parquet", path, path, time, fingerprint=fingerprint(files))


def fingerprint(paths: Iterable[str]) -> str:
    """Return a hash of names, sizes and times of files."""
    digest = hashlib.sha256()
    for file in paths:
        stat = os.stat(file)
        digest.update(f"{file} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()
