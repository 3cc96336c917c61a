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
from dataclasses import replace
from itertools import chain
from typing import Any

from featurestore import progress as calls
from featurestore.errors import WriteConflict
from featurestore.ingest import open_relation
from featurestore.model.manifest import WEIGHT_ZERO, Manifest, ManifestSplit, MissingLabels
from featurestore.model.names import check_name
from featurestore.model.plan import Source
from featurestore.model.requests import TrainingRequest
from featurestore.model.roles import Role
from featurestore.model.threads import start_thread
from featurestore.model.validation import ValidationReport
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.format import find_format
from featurestore.readers.shardfiles import check_shards
from featurestore.recovery import claims
from featurestore.recovery.in_flight import InFlight, in_flight
from featurestore.recovery.pins import check_source_files, pin_sources
from featurestore.registry import artifacts, training_datasets
from featurestore.session import Session
from featurestore.storage import storage_for
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
from featurestore.training.export.manifest import (
    ExportContents,
    build_manifest,
    check_labels,
    describe_contents,
    manifest_columns,
)
from featurestore.training.export.profiles import ProfileAccumulator
from featurestore.training.export.request import (
    DEFAULT_BLOCK_ROWS,
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
from featurestore.validation import AuditOutcome, Subject, audit

Report = Callable[[str, int, int], None]
_POLL_INTERVAL = 0.2
_URI_POLL_INTERVAL = 2.0  # each poll makes one request per thousand shards
QUARANTINE = "_quarantine"


def create(
    session: Session,
    data: object,
    training: TrainingRequest,
    *,
    progress: bool | Report | None = None,
) -> TrainingDataset:
    """Create a version of a training dataset.

    ``FeatureStore.create_training_dataset`` describes the request.
    """
    check_name(training.name, noun="training dataset")
    rows = export_data(session, data)
    refuse_untyped_columns(rows.schema)
    request = check_request(training, schema=rows.schema, plan=rows.plan)
    with (
        in_flight(session, operation="export", name=training.name, version=training.version) as run,
        open_progress(progress) as reports,
    ):
        session.storage.make_directory(session.paths.staging)
        # External groups are copied only now, after the request was checked, because a snapshot
        # reads all rows.
        snapshot_data, reads = pin_external_groups(session, data)
        if snapshot_data is not data:  # a stream can be read only once
            rows = export_data(session, snapshot_data, reads=reads)
        # Pins keep a concurrent vacuum from removing the files that the export reads.
        pin_sources(session, run, rows.sources)
        directory = session.training_dataset_path(training.name, run.version)
        manifest, report = export(
            session.engine, rows, request, run, directory=directory, progress=reports
        )
        publish(manifest, run, directory=directory, sources=rows.sources)
        run.committed_version = run.version
        # The manifest makes the dataset visible. A failed registration is repaired by recovery, so
        # it is a warning.
        with warn_after_publication(f"Training dataset {training.name!r} version {run.version}"):
            with session.registry.transaction() as connection:
                training_datasets.register(connection, manifest)
            run.registered = True
            _register_report(session, report, manifest)
    return TrainingDataset(directory, manifest, session)


def export(
    engine: Engine,
    data: ExportData,
    request: ExportRequest,
    run: InFlight,
    *,
    directory: str,
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
    dropped_rows = data.provenance.dropped_rows
    if data.frame is not None and data.frame.drops:
        dropped_rows = data.frame.dropped(engine.count(rows.source))
    if data.frame is not None and dropped_rows:
        progress.begin_phase(f"compute rows, {dropped_rows:,} label rows dropped by join='inner'")
    rows, unlabeled = handle_missing_labels(rows)
    if unlabeled:
        progress.begin_phase(f"compute rows, {unlabeled:,} rows without label dropped")
    rows, audited = _audit_rows(rows)
    progress.begin_phase("plan shards")
    plan = plan_shards(rows, classes=classes)
    records = assign_shards_for_records(rows, plan, directory)
    # Rows that the engine encodes itself do not pass through Python, where statistics could be
    # counted.
    shard_statistics = make_shard_statistics(rows, plan) if records is None else None
    bytes_per_row = request.format.bytes_per_row(plan.layout, ())
    with (
        progress.report_writing(directory, rows=sum(plan.rows), bytes_per_row=bytes_per_row),
        statistics_while_writing(rows, plan, shard_statistics) as statistics,
    ):
        written = write_shards(
            rows, plan, directory=directory, statistics=shard_statistics, records=records
        )
    contents = describe_contents(request, plan, written)
    # Nulls were counted by the shard writers, so the warning needs no pass of its own.
    if data.frame is not None:
        nulls: Counter[str] = sum((Counter(split.nulls) for split in contents.splits), Counter())
        data.frame.warn_of_nulls(sum(plan.rows), nulls)
    missing_labels = _count_missing_labels(rows, contents.splits, unlabeled)
    check_labels(request, contents.splits, missing_labels, is_frame=data.frame is not None)
    irreproducible = None
    if audited is not None and audited.quarantined is not None:
        _write_quarantined(engine, audited.quarantined, directory=directory)
        # The plan returns the rows before validation, so recomputation would not match the shards.
        irreproducible = f"failing rows were moved to {QUARANTINE}/"
    entries, transformations = {}, None
    if request.training.statistics:
        dataset = request.training.name
        entries = write_statistics(directory, dataset, request.rule.names, statistics())
    if request.transformations:
        progress.begin_phase("fit transformations")
        transformations = fit_transformations(
            rows, plan, contents, version=run.version, statistics=entries, directory=directory
        )
    manifest = build_manifest(
        request,
        contents,
        [
            file
            for shard, _ in chain.from_iterable(written)
            for file in (shard.file, *shard.sidecars)
        ],
        request.format.finish(directory, contents),
        version=run.version,
        run_id=run.run_id,
        provenance=data.provenance,
        irreproducible=irreproducible,
        uncovered_rows=plan.uncovered + data.provenance.uncovered_rows,
        dropped_rows=dropped_rows,
        missing_labels=missing_labels,
        statistics=entries,
        transformations=transformations,
    )
    return manifest, None if audited is None else audited.report


def _count_missing_labels(
    rows: HashedRows, splits: Sequence[ManifestSplit], dropped: int
) -> MissingLabels | None:
    """Return the policy for rows without label and their number; None if they are refused."""
    policy, labels = rows.request.training.missing_labels, rows.request.labels
    if policy == "error":
        return None
    if policy != WEIGHT_ZERO:
        return MissingLabels(policy, dropped)
    if len(labels) == 1:
        return MissingLabels(policy, sum(split.nulls.get(labels[0], 0) for split in splits))
    # Nulls are counted by column, and a row may lack several labels.
    engine, missing = rows.engine, missing_labels_predicate(rows.engine, labels)
    return MissingLabels(policy, engine.count(engine.filter(rows.source, missing)))


def publish(
    manifest: Manifest, run: InFlight, *, directory: str, sources: Sequence[Source]
) -> None:
    """Write the manifest atomically, if the export still has its claim and its sources.

    Raises:
        WriteConflict: This export may no longer be published.
    """
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


def _audit_rows(rows: HashedRows) -> tuple[HashedRows, AuditOutcome | None]:
    """Check the expectations; return the rows to export, and the outcome if rows were checked.

    Raises:
        ValidationFailed: An expectation failed under the policy "strict".
    """
    engine, request = rows.engine, rows.request
    policy = request.training.validation
    if not request.expectations or policy == "off":
        return rows, None
    relation = rows.relation
    outcome = audit(
        relation,
        spec=Subject(request.training.name, 0, request.schema),
        validation=policy,
        engine=engine,
        expectations=request.expectations,
        validator=request.validator,
    )
    # No row failed, so the hashed relation can be exported without another pass.
    if outcome.good is relation:
        return rows, outcome
    return HashedRows(engine, request, outcome.good), outcome


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
        artifacts.add_validation_report(connection, training_datasets.KIND, report.to_json())


def infer_record_schema(session: Session, df: object) -> dict[str, Any]:
    """Infer ``{column: tf.io feature}`` for a dataframe.

    The rows are read once to count nulls and measure lengths. No file is written.

    Raises:
        UnsupportedType: TFRecord does not support a column type; the message lists all columns.
    """
    tfrecord = find_format("tfrecord")
    with open_relation(df, engine=session.engine) as rows:
        schema = rows.schema
        refuse_untyped_columns(schema)
        tfrecord.check(schema, compression=None)
        profiles = session.engine.aggregate(rows, ProfileAccumulator(tuple(schema.names)))
    layout = tfrecord.layout(schema, profiles, compression=None, block_rows=DEFAULT_BLOCK_ROWS)
    roles: dict[str, Role] = dict.fromkeys(schema.names, "feature")
    nulls = {profile.name: profile.nulls for profile in profiles if profile.nulls}
    split = ManifestSplit("all", rows=profiles[0].rows, bytes=0, shards=(), nulls=nulls)
    columns = manifest_columns(schema, tfrecord.encodings(layout), roles)
    return tfrecord.feature_spec(ExportContents("", columns, layout, (split,)))


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
        storage = storage_for(directory)
        assert self._report is not None
        interval = _URI_POLL_INTERVAL if storage.prefers_listing else _POLL_INTERVAL
        while not stop.wait(interval):
            size = sum(status.size for _, status in storage.walk_with_status(directory))
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
