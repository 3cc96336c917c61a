"""create_training_dataset: check, claim a version, export, register."""

from __future__ import annotations

from featurestore.arrow.column_lines import language_of
from featurestore.errors import WriteConflict
from featurestore.model.names import check_name
from featurestore.model.requests import TrainingDatasetRequest
from featurestore.recovery import claims, datasets
from featurestore.recovery.in_flight import in_flight
from featurestore.recovery.pins import check_pinned, pin_sources
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.storage import files
from featurestore.storage.failures import after_publication
from featurestore.training.dataset import TrainingDataset
from featurestore.training.export.audit import export_checks, register_report
from featurestore.training.export.data import check_typed, export_data
from featurestore.training.export.external import with_snapshots
from featurestore.training.export.pipeline import ExportTarget, export
from featurestore.training.export.progress import Report, open_progress
from featurestore.training.export.request import check_request


def create(
    session: Session,
    data: object,
    options: TrainingDatasetRequest,
    *,
    progress: bool | Report | None = None,
) -> TrainingDataset:
    """Create a version of a training dataset.

    ``FeatureStore.create_training_dataset`` describes the request.
    """
    check_name(options.name, noun="training dataset")
    rows = export_data(session, data)
    # A frame does not record the library of its labels; pandas is the most frequent.
    language = "pandas" if isinstance(data, FeatureFrame) else language_of(data)
    check_typed(rows.schema, language=language)
    request = check_request(
        options, schema=rows.schema, known_roles=rows.roles, default_key=rows.key
    )
    checks = export_checks(options)
    with (
        in_flight(session, kind="export", name=request.name, version=options.version) as run,
        open_progress(progress) as reports,
    ):
        files.make_directory(session.paths.staging)
        snapshot_data, reads = with_snapshots(session, data)
        rows = export_data(session, snapshot_data, reads=reads)
        pin_sources(session, run, rows.sources)

        def check_publishable() -> None:
            run.check_intent()
            check_pinned(rows.sources)
            if not claims.try_publish(directory):
                raise WriteConflict(
                    f"The claim of this export on {directory!r} expired: its heartbeat was not "
                    "renewed for minutes.",
                    hint="export again; omit version= to create the next version",
                )

        directory = session.training_dataset_path(request.name, run.version)
        target = ExportTarget(directory, run.staging, run.rows, run.version, check_publishable)
        manifest, report = export(
            session.engine, rows, request, target, checks=checks, progress=reports
        )
        run.committed_version = run.version
        with after_publication(f"Training dataset {request.name!r} version {run.version}"):
            with session.registry.transaction() as connection:
                datasets.register(connection, manifest)
            run.registered = True
            register_report(session, report, manifest)
    return TrainingDataset(directory, manifest, session)
