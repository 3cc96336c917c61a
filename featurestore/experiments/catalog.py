"""Runs of a store: where they lie, made, written and found."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from featurestore.errors import FeatureStoreError
from featurestore.experiments import run_files
from featurestore.model.callers import warn_caller
from featurestore.model.json_object import MalformedJson
from featurestore.model.run_record import METRICS_FILE, MetricValue, RunRecord, parse_metrics
from featurestore.model.times import utc_now
from featurestore.recovery import experiments as directories
from featurestore.registry import experiments as index
from featurestore.registry.hidden import words_of
from featurestore.registry.stored_errors import shown, unlisted
from featurestore.storage import files
from featurestore.storage.publication import after_publication

if TYPE_CHECKING:
    from featurestore.session import Session


def new_id() -> str:
    """Return the id of a new run: when it was made, and something that no other has."""
    return f"{utc_now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def directory_of(session: Session, record: RunRecord) -> str:
    """Return the directory of a run."""
    return directories.run_directory(session.paths, record.name, record.id)


def save(session: Session, record: RunRecord) -> None:
    """Write the record of a run, then register it."""
    save_all(session, [record])


def save_all(session: Session, records: Sequence[RunRecord]) -> None:
    """Write the records of runs, then register them together."""
    if not records:
        return
    for record in records:
        directories.write(directory_of(session, record), _without_names(session, record))
    ids = " and ".join(repr(record.id) for record in records)
    with after_publication(f"Run {ids}"), session.registry.transaction() as connection:
        for record in records:
            index.put(connection, record)


def load(session: Session, run_id: str) -> RunRecord:
    """Return the record of a run, as its directory tells it.

    Raises:
        RunNotFound: There is no such run.
        RunDamaged: Its record cannot be read.
    """
    with session.registry.reading() as connection:
        name = index.name_of(connection, run_id)
    return _shown(session, directories.read(directories.run_directory(session.paths, name, run_id)))


def find(
    session: Session,
    *,
    name: str | None = None,
    parent: str | None = None,
    dataset: tuple[str, int | None] | None = None,
    trials: bool = False,
    limit: int | None = None,
    offset: int = 0,
) -> list[RunRecord]:
    """Return records, newest first; what cannot be read is left out with a warning."""
    with session.registry.reading() as connection:
        found = index.find(
            connection,
            name=name,
            parent=parent,
            dataset=dataset,
            trials=trials,
            limit=limit,
            offset=offset,
        )
    records = []
    for experiment, run_id in found:
        directory = directories.run_directory(session.paths, experiment, run_id)
        try:
            records.append(_shown(session, directories.read(directory)))
        except FeatureStoreError as error:
            warn_caller(f"The run {run_id} is left out: {error.message}", UserWarning)
    return records


def _without_names(session: Session, record: RunRecord) -> RunRecord:
    """Return a record whose reasons list no names but those of the run."""
    own = words_of(json.dumps([record.name, record.params, record.settings], default=str))
    if record.dataset is not None:
        own |= words_of(record.dataset.name)
    return _with_reasons(record, lambda text: unlisted(session.registry, text, own=own))


def _shown(session: Session, record: RunRecord) -> RunRecord:
    """Return a record with listings of what its reader may see."""

    def show(text: str) -> str:
        with session.registry.reading() as connection:
            return shown(connection, text)

    return _with_reasons(record, show)


def _with_reasons(record: RunRecord, change: Callable[[str], str]) -> RunRecord:
    attempts = []
    for attempt in record.attempts:
        reason = attempt.get("reason")
        attempts.append({**attempt, "reason": change(reason)} if reason else attempt)
    reason = change(record.reason) if record.reason else record.reason
    return replace(record, reason=reason, attempts=tuple(attempts))


def reported(directory: str) -> list[MetricValue]:
    """Return what a run has reported, by step; nothing before its first report.

    Raises:
        RunDamaged: A line of the metrics file is not what was written.
    """
    path = os.path.join(directory, METRICS_FILE)
    if not files.exists(path):
        return []
    try:
        return parse_metrics(files.read_bytes(path).decode("utf-8", "replace"))
    except MalformedJson as error:
        raise run_files.damaged_file(path, str(error)) from error


def verify(session: Session, record: RunRecord, *, artifacts: Sequence[str] = ()) -> None:
    """Compare a run's record, metrics and some of its artifacts with their checksums.

    Args:
        session: The store.
        record: The run.
        artifacts: Files and folders relative to the run's directory.

    Raises:
        RunDamaged: Names the file that is not what was written.
    """
    directory = directory_of(session, record)
    stored = directories.read(directory)
    reported(directory)
    run_files.check_files(directory, stored, below=[METRICS_FILE, *artifacts])


def artifacts_of(directory: str) -> Sequence[str]:
    """Return what a run left behind, relative to its directory: checkpoints, models, events."""
    found = []
    for folder in ("checkpoints", "artifacts", "tensorboard"):
        for name in files.list_directory(os.path.join(directory, folder)):
            if not name.startswith(".") and name != "heartbeats":
                found.append(f"{folder}/{name}")
    return found
