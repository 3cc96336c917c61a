"""Run catalog of a store: run directories, records, metrics and their verification."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from featurestore.errors import FeatureStoreError
from featurestore.experiments import run_files
from featurestore.model.arguments import warn_caller
from featurestore.model.json_object import MalformedJson
from featurestore.model.run_record import METRICS_FILE, MetricValue, RunRecord, State, parse_metrics
from featurestore.model.times import utc_now
from featurestore.recovery import record_files
from featurestore.registry import experiments as index
from featurestore.registry.hidden import extract_words
from featurestore.registry.origins import RUN
from featurestore.registry.stored_errors import restore_names, text_for_readers
from featurestore.storage import storage_for
from featurestore.storage.failures import warn_after_publication

if TYPE_CHECKING:
    from featurestore.session import Session


def generate_run_id() -> str:
    """Generate a run id from the creation time and a random suffix."""
    return f"{utc_now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def run_directory(session: Session, record: RunRecord) -> str:
    """Return the directory of a run."""
    return record_files.run_directory(session.paths, record.name, record.id)


def save(session: Session, record: RunRecord) -> None:
    """Write a run record, then register it."""
    save_all(session, [record])


def save_all(session: Session, records: Sequence[RunRecord]) -> None:
    """Write run records, then register them together."""
    if not records:
        return
    # The file is the source of truth, so it is written first. The registry can be rebuilt from it.
    for record in records:
        record_files.write_run(
            run_directory(session, record), _remove_unlisted_names(session, record)
        )
    ids = " and ".join(repr(record.id) for record in records)
    with warn_after_publication(f"Run {ids}"), session.registry.transaction() as connection:
        for record in records:
            index.register(connection, record)


def save_failure(session: Session, record: RunRecord, error: BaseException) -> None:
    """Save a run or a study as failed or interrupted by an error of its driver."""
    # Ctrl-C also ends a run; otherwise its record would remain in the state "running".
    state: State = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    save(session, record.end(state, reason=f"{type(error).__name__}: {error}".rstrip(": ")))


def load(session: Session, run_id: str) -> RunRecord:
    """Load a run record from the run's directory.

    Raises:
        RunNotFound: The run does not exist.
        RunDamaged: The record cannot be read.
    """
    with session.registry.reading() as connection:
        name = index.experiment_of_run(connection, run_id)
    session.record_read(RUN, run_id)
    return _redact_unreadable_names(
        session, record_files.read_run(record_files.run_directory(session.paths, name, run_id))
    )


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
    """Return the matching run records, newest first; skip unreadable ones with a warning."""
    with session.registry.reading() as connection:
        run_keys = index.find(
            connection,
            name=name,
            parent=parent,
            dataset=dataset,
            trials=trials,
            limit=limit,
            offset=offset,
        )
    session.record_reads(RUN, [(run_id, 1) for _, run_id in run_keys])
    records = []
    for experiment, run_id in run_keys:
        directory = record_files.run_directory(session.paths, experiment, run_id)
        try:
            records.append(_redact_unreadable_names(session, record_files.read_run(directory)))
        except FeatureStoreError as error:
            # A damaged record must not hide the other runs.
            warn_caller(f"The run {run_id} is skipped: {error.message}", UserWarning)
    return records


def _remove_unlisted_names(session: Session, record: RunRecord) -> RunRecord:
    """Remove the names of unlisted objects from the reasons of a record."""
    # The record contains these words in any case, so they are not removed from its reasons.
    allowed_words = extract_words(
        json.dumps([record.name, record.params, record.settings], default=str)
    )
    if record.dataset is not None:
        allowed_words |= extract_words(record.dataset.name)

    def redact(reason: str) -> str:
        return text_for_readers(session.registry, reason, allowed_names=allowed_words).message

    return _map_reasons(record, redact)


def _redact_unreadable_names(session: Session, record: RunRecord) -> RunRecord:
    """Redact the names of objects that the caller may not read from the reasons of a record."""

    def show(reason: str) -> str:
        with session.registry.reading() as connection:
            return restore_names(connection, reason)

    return _map_reasons(record, show)


def _map_reasons(record: RunRecord, convert: Callable[[str], str]) -> RunRecord:
    """Convert the reasons of a run and of its attempts."""
    attempts = []
    for attempt in record.attempts:
        reason = attempt.get("reason")
        attempts.append({**attempt, "reason": convert(reason)} if reason else attempt)
    reason = convert(record.reason) if record.reason else record.reason
    return replace(record, reason=reason, attempts=tuple(attempts))


def read_metrics(directory: str) -> list[MetricValue]:
    """Return the metric values of a run by step, or an empty list before the first report.

    Raises:
        RunDamaged: A line of the metrics file is damaged, or the file was shortened or removed
            after the run had ended.
    """
    storage = storage_for(directory)
    path = os.path.join(directory, METRICS_FILE)
    # Checksums of lines do not show that the last lines are missing.
    run_files.check_files(directory, record_files.read_run(directory), below=[METRICS_FILE])
    if not storage.exists(path):
        return []
    try:
        # Invalid bytes are replaced, so that the checksum of the line detects them as damage.
        return parse_metrics(storage.read_bytes(path).decode("utf-8", "replace"))
    except MalformedJson as error:
        raise run_files.damaged_file(path, str(error)) from error


def verify(session: Session, record: RunRecord, *, artifacts: Sequence[str] = ()) -> None:
    """Verify the checksums of a run's record, metrics and selected artifacts.

    Args:
        session: The store.
        record: The run.
        artifacts: Files and folders relative to the run's directory.

    Raises:
        RunDamaged: A file differs from its checksum.
    """
    directory = run_directory(session, record)
    read_metrics(directory)
    run_files.check_files(directory, record_files.read_run(directory), below=artifacts)


def list_artifacts(directory: str) -> Sequence[str]:
    """List the checkpoints, models and event files of a run, relative to its directory."""
    artifacts = []
    for folder in ("checkpoints", "artifacts", "tensorboard"):
        for name in storage_for(directory).list_directory(os.path.join(directory, folder)):
            # Names with a leading dot are checkpoints and models that are being written.
            if not name.startswith(".") and name != "heartbeats":
                artifacts.append(f"{folder}/{name}")
    return artifacts
