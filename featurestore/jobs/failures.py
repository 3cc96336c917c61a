"""Failures of runs: failed windows, alerts, and what ``on_failure=`` names."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from featurestore.alerts import incidents
from featurestore.jobs.registration import load_failure_function
from featurestore.jobs.run import JobRun
from featurestore.model.display import escape_controls
from featurestore.model.failure_action import FailureAction
from featurestore.registry import runs
from featurestore.registry.runs import Run
from featurestore.storage.programs import run_program

_log = logging.getLogger("featurestore.jobs")
_COMMAND_SECONDS = 60


def record_failure(run: JobRun, record: Run) -> None:
    """Record windows as failed; when the retries are exhausted, alert and run ``on_failure``."""
    spec, schedule = run.spec, run.spec.schedule
    with run.session.registry.transaction() as connection:
        runs.record_failed_windows(connection, spec.name, run.windows, run_id=record.run_id)
        failed_windows = runs.window_states(connection, spec.name, states=[runs.FAILED])
        tries = max(failed_windows[window].tries for window in run.windows)
        if tries > schedule.retries:
            message = (
                f"{record.error or 'it failed'} (window from {record.window.start.isoformat()})"
            )
            open_incidents = {incidents.FAILURE: [message]}
            incidents.update_incidents(
                connection, spec, open_incidents, families=[incidents.FAILURE]
            )
    # The equality runs the command only once, although exhausted windows are retried later. The
    # command runs after the transaction, which would otherwise lock the registry for a minute.
    if schedule.on_failure is not None and tries == schedule.retries + 1:
        _run_failure_action(run, schedule.on_failure, record)


def alert_stream_failure(run: JobRun, record: Run) -> None:
    """Alert the channels of a stream job whose retries are exhausted."""
    spec = run.spec
    with run.session.registry.transaction() as connection:
        if runs.count_consecutive_failures(connection, spec.name) > spec.schedule.retries:
            open_incidents = {incidents.FAILURE: [record.error or "it failed"]}
            incidents.update_incidents(
                connection, spec, open_incidents, families=[incidents.FAILURE]
            )


def _run_failure_action(job_run: JobRun, action: FailureAction, run: Run) -> None:
    """Run the ``on_failure`` program or function of a job that passed its authorization."""
    if action.function is None:
        _run_failure_program(action.arguments, run)
        return
    try:
        load_failure_function(job_run.session, job_run.job, action.function)(run)
    except Exception:  # the function may raise anything
        _log.exception("the on_failure function of job %s failed", run.job)


def _run_failure_program(arguments: Sequence[str], run: Run) -> None:
    """Run a program without a shell, with environment variables that describe the run."""
    environment = {
        "FEATURESTORE_JOB": run.job,
        "FEATURESTORE_RUN": run.run_id,
        "FEATURESTORE_WINDOW_START": run.window.start.isoformat(),
        "FEATURESTORE_WINDOW_END": run.window.end.isoformat(),
        # An error may quote data, whose control characters would reach terminals and logs.
        "FEATURESTORE_ERROR": escape_controls(run.error or ""),
        "FEATURESTORE_LOG": run.log or "",
    }
    try:
        status = run_program(
            arguments, environment=os.environ | environment, seconds=_COMMAND_SECONDS
        )
    except (OSError, ValueError) as error:
        _log.error("the on_failure command of job %s failed: %s", run.job, error)
        return
    if status:
        _log.error("the on_failure command of job %s exited with code %d", run.job, status)
