"""Creation of training datasets: check the request, export the rows, publish and register them.

Rows are hashed once. Shards are planned from row counts and then written. A version exists once its
manifest is written; if an error occurs earlier, its directory is not a dataset.

Progress reports contain the phase and the number of written rows. This number is estimated by
polling file sizes, because other machines write the rows on a cluster.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from featurestore import progress as calls
from featurestore.errors import InvalidArgument, InvalidExpectation, WriteConflict
from featurestore.ingest import hints_for_argument, peek_language
from featurestore.model.featuregroup import VALIDATION_POLICIES
from featurestore.model.manifest import WEIGHT_ZERO, Manifest, MissingLabels
from featurestore.model.names import check_name
from featurestore.model.plan import Source
from featurestore.model.requests import TrainingRequest
from featurestore.model.threads import start_thread
from featurestore.model.validation import FeatureComparison, ValidationReport, describe
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.validator import Validator, find_validator
from featurestore.readers.shardfiles import check_shards
from featurestore.recovery import claims, datasets
from featurestore.recovery.in_flight import InFlight, in_flight
from featurestore.recovery.pins import check_source_files, pin_sources
from featurestore.registry import artifacts
from featurestore.registry.training_datasets import KIND
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.storage import files, storage_for
from featurestore.storage.failures import warn_after_publication
from featurestore.storage.manifests import write_manifest
from featurestore.training.dataset import TrainingDataset
from featurestore.training.export.assignment import ClassSplits
from featurestore.training.export.hashed_rows import (
    HashedRows,
    handle_missing_labels,
    hash_rows,
    missing_labels_predicate,
)
from featurestore.training.export.label_checks import check_labels
from featurestore.training.export.manifest import (
    build_manifest,
    file_prefixes,
    manifest_file,
)
from featurestore.training.export.request import (
    ExportData,
    ExportRequest,
    check_request,
    export_data,
    pin_external_groups,
    refuse_untyped_columns,
)
from featurestore.training.export.shard_plan import plan_shards
from featurestore.training.export.shards import assign_shards_for_records, write_shards
from featurestore.training.export.split_statistics import (
    fit_transformations,
    make_shard_statistics,
    statistics_while_writing,
    write_statistics,
)
from featurestore.validation import AuditOutcome, Subject, audit, report_to_json

Report = Callable[[str, int, int], None]
_POLL_INTERVAL = 0.2
_URI_POLL_INTERVAL = 2.0  # each poll makes one request per thousand shards
QUARANTINE = "_quarantine"


@dataclass(frozen=True)
class ExportChecks:
    """The expectations of an export and the policy for failing rows.

    Rows are not checked if there is no validator.
    """

    validation: str
    validator: Validator | None = None
    expectations: tuple[Mapping[str, Any], ...] = ()


def create(
    session: Session,
    data: object,
    options: TrainingRequest,
    *,
    progress: bool | Report | None = None,
) -> TrainingDataset:
    """Create a version of a training dataset.

    ``FeatureStore.create_training_dataset`` describes the request.
    """
    check_name(options.name, noun="training dataset")
    # A frame does not know the dataframe library of its labels, so assume the most frequent one.
    language = "pandas"
    if not isinstance(data, FeatureFrame):
        data, language = peek_language(data)
    with hints_for_argument(data):
        rows = export_data(session, data)
        refuse_untyped_columns(rows.schema, language=language)
    request = check_request(
        options, schema=rows.schema, known_roles=rows.roles, default_key=rows.key
    )
    checks = check_expectations(options)
    with (
        in_flight(session, kind="export", name=request.name, version=options.version) as run,
        open_progress(progress) as reports,
    ):
        files.make_directory(session.paths.staging)
        # External groups are copied only now, after the request was checked, because a snapshot
        # reads all rows.
        snapshot_data, reads = pin_external_groups(session, data)
        if snapshot_data is not data:  # a stream can be read only once
            rows = export_data(session, snapshot_data, reads=reads)
        # Pins keep a concurrent vacuum from removing the files that the export reads.
        pin_sources(session, run, rows.sources)
        directory = session.training_dataset_path(request.name, run.version)
        manifest, report = export(
            session.engine, rows, request, run, directory=directory, checks=checks, progress=reports
        )
        manifest = publish(manifest, request, run, directory=directory, sources=rows.sources)
        run.committed_version = run.version
        # The manifest makes the dataset visible. A failed registration is repaired by recovery, so
        # it is a warning.
        with warn_after_publication(f"Training dataset {request.name!r} version {run.version}"):
            with session.registry.transaction() as connection:
                datasets.register(connection, manifest)
            run.registered = True
            _register_report(session, report, manifest)
    return TrainingDataset(directory, manifest, session)


def check_expectations(options: TrainingRequest) -> ExportChecks:
    """Parse the expectations and the policy of a request.

    Raises:
        InvalidArgument: The policy does not exist.
        InvalidExpectation: An expectation does not exist, or lacks arguments.
    """
    if options.validation not in VALIDATION_POLICIES:
        raise InvalidArgument(
            f"Unknown validation policy {options.validation!r}.",
            hint=f"one of {', '.join(VALIDATION_POLICIES)}",
        )
    if not options.expectations:
        return ExportChecks(options.validation)
    validator = find_validator()
    expectations = validator.normalize(options.expectations)
    for expectation in expectations:
        comparison = FeatureComparison.from_expectation(expectation)
        # The other group would not be pinned, so the dataset could not be recomputed.
        if comparison is not None:
            raise InvalidExpectation(
                f"{describe(expectation)}: training datasets are not compared with other groups.",
                hint=f"add the expectation to the feature group of {comparison.column!r}: "
                "store.update_featuregroup(name, expectations=[...])",
            )
    return ExportChecks(options.validation, validator, expectations)


def export(
    engine: Engine,
    data: ExportData,
    request: ExportRequest,
    run: InFlight,
    *,
    directory: str,
    checks: ExportChecks,
    progress: ExportProgress,
    classes: Mapping[int, ClassSplits] | None = None,
) -> tuple[Manifest, ValidationReport | None]:
    """Write all dataset files except the manifest into the claimed directory.

    ``classes`` sets the splits of each class, as for ``plan_shards``.

    Returns:
        The manifest to publish, and the validation report if the rows were checked.
    """
    progress.begin_phase("compute rows")
    staged_rows = os.path.join(run.rows, "rows")
    rows = hash_rows(engine, data.relation(), request, plan=data.plan, directory=staged_rows)
    dropped_rows = None
    if data.dropped_rows is not None:
        dropped_rows = data.dropped_rows(engine.count(rows.source))
    if dropped_rows:
        progress.begin_phase(f"compute rows, {dropped_rows:,} label rows dropped by join='inner'")
    rows, unlabeled = handle_missing_labels(engine, rows)
    if unlabeled:
        progress.begin_phase(f"compute rows, {unlabeled:,} rows without label dropped")
    rows, audited = _audit_rows(engine, rows, request, checks)
    progress.begin_phase("plan shards")
    plan = plan_shards(engine, rows, request, classes=classes)
    records = assign_shards_for_records(engine, rows, request, plan, directory)
    # Rows that the engine encodes itself do not pass through Python, where statistics could be
    # counted.
    shard_statistics = None
    if records is None:
        shard_statistics = make_shard_statistics(engine, request, plan)
    bytes_per_row = request.format.bytes_per_row(plan.layout, ())
    with (
        progress.report_writing(directory, rows=sum(plan.rows), bytes_per_row=bytes_per_row),
        statistics_while_writing(engine, rows, request, plan, shard_statistics) as statistics,
    ):
        summaries = write_shards(
            engine,
            rows,
            request,
            plan,
            directory=directory,
            statistics=shard_statistics,
            records=records,
        )
    manifest = build_manifest(
        request,
        plan,
        summaries,
        version=run.version,
        run_id=run.run_id,
        provenance=data.provenance,
        dropped_rows=dropped_rows,
        unlabeled_rows=unlabeled,
    )
    # Nulls were counted by the shard writers, so the warning needs no pass of its own.
    if data.warn_of_nulls is not None:
        nulls: Counter[str] = sum((Counter(split.nulls) for split in manifest.splits), Counter())
        data.warn_of_nulls(sum(plan.rows), nulls)
    if request.missing_labels == WEIGHT_ZERO and len(request.labels) > 1:
        # Nulls are counted by column, and a row may lack several labels.
        missing = missing_labels_predicate(engine, request.labels)
        unlabeled = engine.count(engine.filter(rows.source, missing))
        manifest = replace(manifest, missing_labels=MissingLabels(WEIGHT_ZERO, unlabeled))
    check_labels(manifest, request, language=data.language)
    if audited is not None and audited.quarantined is not None:
        _write_quarantined(engine, audited.quarantined, directory=directory)
        # The plan returns the rows before validation, so recomputation would not match the shards.
        reason = f"failing rows were moved to {QUARANTINE}/"
        manifest = replace(manifest, reproducible=False, reproducible_reason=reason)
    if request.statistics:
        entries = write_statistics(directory, request.name, request.rule.names, statistics())
        manifest = replace(manifest, statistics=entries)
    if request.transformations:
        progress.begin_phase("fit transformations")
        entry = fit_transformations(engine, rows, plan.assignment, manifest, directory)
        manifest = replace(manifest, transformations=entry)
    return manifest, None if audited is None else audited.report


def publish(
    manifest: Manifest,
    request: ExportRequest,
    run: InFlight,
    *,
    directory: str,
    sources: Sequence[Source],
) -> Manifest:
    """Write the format's metadata files, then write the manifest atomically and return it.

    Raises:
        WriteConflict: This export may no longer be published.
    """
    # Format files are part of the manifest and must exist before it.
    format_files = request.format.finish(directory, manifest)
    manifest = replace(
        manifest,
        files=tuple(map(manifest_file, format_files)),
        prefixes={**manifest.prefixes, **file_prefixes(format_files)},
    )
    # Checked as late as possible: after this, only the claim and the manifest write follow.
    run.check_intent()
    check_source_files(sources)
    # A claim that recovery has revoked must not be published: its files may already be removed.
    if not claims.begin_publication(directory):
        raise WriteConflict(
            f"The claim of this export on {directory!r} expired: its heartbeat was not "
            "renewed for minutes.",
            hint="export again; omit version= to create the next version",
        )
    if storage_for(directory).needs_claims:
        # Another registry may have removed shards. From here on, no registry removes any.
        for split in manifest.splits:
            check_shards(directory, split)
    write_manifest(directory, manifest)
    return manifest


def _audit_rows(
    engine: Engine, rows: HashedRows, request: ExportRequest, checks: ExportChecks
) -> tuple[HashedRows, AuditOutcome | None]:
    """Check the expectations; return the rows to export, and the outcome if rows were checked.

    Raises:
        ValidationFailed: An expectation failed under the policy "strict".
    """
    if not checks.expectations or checks.validation == "off":
        return rows, None
    relation = rows.relation(engine)
    outcome = audit(
        relation,
        spec=Subject(request.name, 0, request.schema),
        validation=checks.validation,
        engine=engine,
        expectations=checks.expectations,
        validator=checks.validator,
    )
    # No row failed, so the hashed relation can be exported without another pass.
    if outcome.good is relation:
        return rows, outcome
    return HashedRows(outcome.good, None, request), outcome


def _write_quarantined(engine: Engine, rows: Relation, *, directory: str) -> None:
    """Write the quarantined rows to a Parquet file in the dataset directory."""
    # Internal columns such as the row hash have no meaning for users.
    names = [name for name in rows.schema.names if not name.startswith("__fs_")]
    columns = engine.select(rows, dict(zip(names, names, strict=True)))
    engine.stage(columns, os.path.join(directory, QUARANTINE))


def _register_report(session: Session, report: ValidationReport | None, manifest: Manifest) -> None:
    if report is None:
        return
    report = replace(report, version=manifest.version, run_id=manifest.run_id)
    with session.registry.transaction() as connection:
        artifacts.add_validation_report(connection, KIND, report_to_json(report))


class ExportProgress:
    """A reporter of export progress.

    It reports ``(phase, completed rows, total rows)``; phases without row counts report 0 rows.
    """

    def __init__(self, report: Report | None) -> None:
        self._report = report

    def begin_phase(self, name: str) -> None:
        """Report the start of a phase."""
        if self._report is not None:
            self._report(name, 0, 0)

    @contextmanager
    def report_writing(self, directory: str, *, rows: int, bytes_per_row: float) -> Iterator[None]:
        """Report written rows in a context, estimated from the size of ``directory``."""
        if self._report is None:
            yield
            return
        stop = threading.Event()
        # An empty row would divide by zero below.
        arguments = stop, directory, rows, max(bytes_per_row, 1.0)
        watcher = start_thread(self._poll_bytes, *arguments, name="export-progress")
        try:
            yield
        finally:
            stop.set()
            watcher.join()
        # The estimate from file sizes can end below the number of rows.
        self._report("write shards", rows, rows)

    def _poll_bytes(
        self, stop: threading.Event, directory: str, rows: int, bytes_per_row: float
    ) -> None:
        """Report the estimated number of written rows until ``stop`` is set."""
        assert self._report is not None
        interval = _URI_POLL_INTERVAL if storage_for(directory).prefers_listing else _POLL_INTERVAL
        while not stop.wait(interval):
            size = sum(status.size for _, status in files.walk_with_status(directory))
            self._report("write shards", min(rows, int(size / bytes_per_row)), rows)


@contextmanager
def open_progress(progress: bool | Report | None) -> Iterator[ExportProgress]:
    """Return a context that reports the progress of an export.

    True draws a progress bar, None leaves this to the running call, and a function receives reports.
    """
    if progress is None:
        yield ExportProgress(calls.report if calls.is_running() else None)
    elif progress is True:
        with calls.tracking("export", delay=0):
            yield ExportProgress(calls.report)
    else:
        calls.hide()
        yield ExportProgress(progress or None)
