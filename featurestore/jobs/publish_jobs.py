"""Jobs that publish to other systems: views to online stores, and tables of groups to catalogs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from featurestore.alerts import incidents
from featurestore.errors import FeatureStoreError, NotPublished
from featurestore.jobs.definitions import (
    Columns,
    JobDefinition,
    add_to_module,
    check_channel_names,
    define_schedule,
)
from featurestore.jobs.run import JobRun, RunOutput, definition_words, run_recorded
from featurestore.model.arguments import calling_globals, with_suggestions
from featurestore.model.failure_action import OnFailure
from featurestore.model.job import (
    Alerts,
    CatalogWork,
    GroupWork,
    JobSpec,
    PublishWork,
    StreamWork,
)
from featurestore.model.names import check_name, format_group_reference
from featurestore.model.publication_target import CatalogTarget, PublicationTarget
from featurestore.registry import jobs
from featurestore.registry.runs import Run
from featurestore.registry.stored_errors import text_for_readers
from featurestore.serving import Publication, publish
from featurestore.serving.view_calls import measure_lag
from featurestore.session import Session
from featurestore.sources.catalogs import (
    check_schema,
    open_catalog_source,
    parse_references,
    register_groups,
)
from featurestore.views import definition

_log = logging.getLogger("featurestore.jobs")


@with_suggestions
def publish_job(
    name: str,
    *,
    view: str,
    to: str | None = None,
    schedule: str,
    timezone: str = "UTC",
    description: str = "",
    retries: int = 2,
    on_failure: OnFailure = None,
    alert: Columns = (),
) -> JobDefinition:
    """Define a scheduled job that publishes a feature view, as ``store.publish`` does.

    A run publishes what changed since the last publication; one run is enough for all windows that
    were missed.

    Args:
        name: The job name.
        view: The feature view, ``late_flights`` (its latest version) or ``late_flights@v2``.
        to: The name of the online store; None: the embedded one of a local store.
        schedule: A cron expression.
        timezone: The time zone of the schedule.
        description: The purpose of the job.
        retries: The maximum number of retries of a failed run.
        on_failure: What runs when the retries of a run are exhausted: a program with its arguments,
            or a top-level function of the file, which is called with the run.
        alert: The channels to alert of failures, as for ``job``.

    Raises:
        InvalidJob: The view is not a name, or the schedule is invalid.

    >>> publication = featurestore.publish_job(
    ...     "publish_late_flights", view="late_flights", schedule="*/5 * * * *"
    ... )
    >>> publication.spec.kind, publication.spec.target
    ('publish', 'late_flights')
    """
    spec = JobSpec(
        name=check_name(name, noun="job"),
        schedule=define_schedule(
            schedule, job=name, timezone=timezone, retries=retries, on_failure=on_failure
        ),
        alerts=Alerts(check_channel_names(alert)),
        work=PublishWork(
            publishes=(PublicationTarget.parse(view, online=to),), description=description
        ),
    )
    return add_to_module(spec, calling_globals())


def run_publish(run: JobRun, work: PublishWork) -> Run:
    """Publish the view once, for all windows of the run."""

    def publish_view(run: JobRun) -> RunOutput:
        return RunOutput(sum(publish_target(run.session, work.publishes[0]).rows.values()))

    return run_recorded(run, publish_view)


def publish_target(session: Session, target: PublicationTarget) -> Publication:
    """Publish a view to an online store, and log the result."""
    view = definition.get(session, target.view, target.version)
    publication = publish(session, view, to=target.online)
    _log.info("%r", publication)
    return publication


def publish_committed(run: JobRun, work: StreamWork) -> None:
    """Publish the views of a stream job, whose group has a new commit."""
    problems = [_publish_or_warn(run, target) for target in work.publishes]
    if work.publishes:
        _update_publication_alert(run, problems)


def publish_missed(run: JobRun, work: StreamWork) -> None:
    """Publish the views of a stream job that lack commits of earlier runs."""
    problems = []
    is_known = True
    for target in work.publishes:
        is_behind = _is_behind(run, target)
        if is_behind:
            problems.append(_publish_or_warn(run, target))
        is_known = is_known and is_behind is not None
    if work.publishes:
        _update_publication_alert(run, problems, is_known=is_known)


def _publish_or_warn(run: JobRun, target: PublicationTarget) -> str | None:
    """Publish a view, and return why that failed."""
    # The rows are committed with their offsets, so that an error must not fail the run. The next
    # publication writes these rows, too.
    try:
        publish_target(run.session, target)
    except Exception as error:  # connectors may raise any error
        message = error.message if isinstance(error, FeatureStoreError) else repr(error)
        _log.warning(
            "feature view %s is behind, and is published after the next micro-batch: %s",
            target,
            message,
        )
        return f"feature view {target} is behind: {message}"
    return None


def _update_publication_alert(
    run: JobRun, problems: Sequence[str | None], *, is_known: bool = True
) -> None:
    """Begin an alert at the first failed publication, and end it when no view is behind.

    ``is_known`` is false if the lag of a view is unknown: its alert then neither begins nor ends.
    """
    spec, session = run.spec, run.session
    if not spec.alerts.channels:
        return
    # Channels have no access to groups, so the messages must not name other objects.
    words = definition_words(spec)
    lines = [
        text_for_readers(session.registry, problem, allowed_names=words).message
        for problem in problems
        if problem is not None
    ]
    if not lines and not is_known:
        return
    present = {incidents.PUBLICATION: lines} if lines else {}
    with session.registry.transaction() as connection:
        incidents.update_incidents(connection, spec, present, families=[incidents.PUBLICATION])


def _is_behind(run: JobRun, target: PublicationTarget) -> bool | None:
    """Return whether commits of the job's group are not published; None if that is unknown."""
    if run.group is None:
        return False
    reference = format_group_reference(run.group.spec.name, run.group.spec.version)
    try:
        view = definition.get(run.session, target.view, target.version)
        lags = measure_lag(run.session, view, online=target.online)
    except NotPublished:
        return True
    except FeatureStoreError as error:
        _log.warning("the lag of feature view %s is unknown: %s", target, error.message)
        return None
    return any(lag.commits > 0 for lag in lags if lag.featuregroup == reference)


def groups_to_publish(session: Session, work: PublishWork) -> dict[str, str]:
    """Return the references of the groups that a publish job reads, as inputs of a job."""
    target = work.publishes[0]
    try:
        view = definition.get(session, target.view, target.version)
    except FeatureStoreError:  # the run of the job raises the error
        return {}
    groups = {(feature.group, feature.version) for feature in view.features}
    return {name: format_group_reference(name, version) for name, version in sorted(groups)}


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
    return add_to_module(spec, calling_globals())


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


def groups_to_register(session: Session, work: CatalogWork) -> dict[str, str]:
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
