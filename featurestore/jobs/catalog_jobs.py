"""Catalog jobs: keep the tables of a catalog in sync with feature groups, on a schedule."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from featurestore.jobs.definitions import (
    Columns,
    JobDefinition,
    add_to_module,
    check_channel_names,
    define_schedule,
)
from featurestore.jobs.run import JobRun, RunOutput, run_recorded
from featurestore.model.arguments import calling_globals, with_suggestions
from featurestore.model.failure_action import OnFailure
from featurestore.model.job import Alerts, CatalogWork, GroupWork, JobSpec
from featurestore.model.names import check_name
from featurestore.model.publication_target import CatalogTarget
from featurestore.registry import jobs
from featurestore.registry.runs import Run
from featurestore.session import Session
from featurestore.sources.catalogs import (
    check_schema,
    open_catalog_source,
    parse_references,
    register_groups,
)

_log = logging.getLogger("featurestore.jobs")


@with_suggestions
def catalog_job(
    name: str,
    *,
    source: str,
    schedule: str,
    featuregroups: str | Sequence[str] | None = None,
    schema: str = "featurestore",
    timezone: str = "UTC",
    description: str = "",
    retries: int = 2,
    on_failure: OnFailure = None,
    alert: Columns = (),
) -> JobDefinition:
    """Define a scheduled job that keeps a catalog in sync, as ``store.register_in`` does.

    Schedulers run it after the jobs that write the groups. A run changes only what differs, so one
    run is enough for all windows that were missed; its row count is the number of changed tables.

    Args:
        name: The job name.
        source: The registered source of the catalog.
        schedule: A cron expression.
        featuregroups: Names of groups, such as ``"trips"`` or ``"trips@v1"``; None: all groups that
            can be registered.
        schema: The schema (namespace) in the catalog.
        timezone: The time zone of the schedule.
        description: The purpose of the job.
        retries: The maximum number of retries of a failed run.
        on_failure: What runs when the retries of a run are exhausted: a program with its arguments,
            or a top-level function of the file, which is called with the run.
        alert: The channels to alert of failures, as for ``job``.

    Raises:
        InvalidArgument: The schema is not a name.
        InvalidJob: The schedule is invalid.
        InvalidReference: A group reference is invalid.

    >>> lake = featurestore.catalog_job("lake_tables", source="lake", schedule="*/15 * * * *")
    >>> lake.spec.kind, lake.spec.target, lake.spec.work.registers.schema
    ('catalog', 'lake', 'featurestore')
    """
    check_schema(schema)
    spec = JobSpec(
        name=check_name(name, noun="job"),
        schedule=define_schedule(
            schedule, job=name, timezone=timezone, retries=retries, on_failure=on_failure
        ),
        alerts=Alerts(check_channel_names(alert)),
        work=CatalogWork(
            registers=CatalogTarget(
                check_name(source, noun="source"),
                schema,
                None if featuregroups is None else parse_references(featuregroups),
            ),
            description=description,
        ),
    )
    return add_to_module(JobDefinition(spec), calling_globals())


def check_catalog_job(session: Session, spec: JobSpec) -> None:
    """Raise an error if the source of a catalog job is not registered, or is not a catalog."""
    if isinstance(spec.work, CatalogWork):
        open_catalog_source(session, spec.work.registers.source)


def run_catalog(run: JobRun, work: CatalogWork) -> Run:
    """Synchronize the catalog once, for all windows of the run."""
    return run_recorded(run, partial(_register_tables, work.registers))


def _register_tables(target: CatalogTarget, run: JobRun) -> RunOutput:
    result = register_groups(
        run.session, target.source, featuregroups=target.featuregroups, schema=target.schema
    )
    # Readers of the log may not know the names of removed and skipped groups, which may be private.
    changed = (*result.created, *result.updated)
    _log.info(
        "%d tables created, %d updated, %d removed, %d unchanged, %d groups skipped",
        len(result.created), len(result.updated), len(result.removed), len(result.unchanged),
        len(result.skipped),
    )  # fmt: skip
    for table_name in changed:
        _log.info("registered %s", table_name)
    return RunOutput(len(changed) + len(result.removed))


def read_groups(session: Session, work: CatalogWork) -> dict[str, str]:
    """Return the groups that a catalog job registers, as inputs of a job."""
    if work.registers.featuregroups is not None:
        return {reference: reference for reference in work.registers.featuregroups}
    with session.registry.reading() as connection:
        return {
            job.spec.target: job.spec.target
            for job in jobs.list_all(connection)
            # A group that does not exist yet is registered after its first run.
            if isinstance(job.spec.work, GroupWork)
        }
