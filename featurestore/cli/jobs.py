"""``featurestore job``, ``stream`` and ``scheduler``: jobs, records of their topics, due runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from featurestore.cli import output
from featurestore.cli.output import Limit, PageNumber
from featurestore.cli.state import LogFormat, OutputFormat, log_to_stderr, settings, store
from featurestore.errors import InvalidArgument
from featurestore.model.job import WindowWork
from featurestore.model.times import format_duration, parse_moment
from featurestore.model.window_job import WindowJob

if TYPE_CHECKING:
    from featurestore.jobs.service import JobStatus
    from featurestore.registry.jobs import RegisteredJob

app = typer.Typer(no_args_is_help=True)
stream_app = typer.Typer(no_args_is_help=True)
scheduler_app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, output.argument(help="Name of the job.")]
Time = Annotated[str | None, output.option(help="Time, such as 2013-01-31 or 2013-01-31T12:00Z.")]
_RUN_COLUMNS = ["state", "start", "end", "windows", "rows", "seconds"]
_MORE_RUN_COLUMNS = ["version", "hint", "log"]


@app.command(epilog="Example: featurestore job register examples/flights/late_flights/jobs.py")
def register(
    context: typer.Context,
    module_or_path: Annotated[
        str, output.argument(metavar="MODULE_OR_PATH", help="Module, Python file, or folder.")
    ],
) -> None:
    """Register the jobs and monitors of a module, file or folder, or their new versions.

    The output of a changed job lists the windows that stay, are replaced, or become due.
    """
    from featurestore.featuregroups.existing import collect_notices

    connected = store(context)
    with collect_notices(connected.session) as changes:
        registered = connected.register_jobs(module_or_path)
    # JSON output must be a single document.
    if changes and settings(context).output is not OutputFormat.JSON:
        output.show_text(context, "\n".join(changes), data=None)
    rows = [{**_job_row(job), "changes": list(job.changes)} for job in registered]
    columns = ["name", "version", "state", "schedule", "target"]
    output.show_rows(context, rows, columns=columns, wide=["kind", "inputs", "origin"])


@app.command("list", epilog="Example: featurestore job list --output json")
def list_jobs(context: typer.Context, limit: Limit = None, page: PageNumber = 1) -> None:
    """List jobs: schedule, watermark, windows due and failed, and the last run with its error.

    For streams also the lag in records, rows per second and the last commit.
    """
    output.show_page(
        context,
        store(context).get_jobs,
        _status_row,
        limit=limit,
        page=page,
        columns=["name", "state", "schedule", "watermark", "due", "failed", "last_state"],
        optional=["lag", "rows_per_second", "last_commit", "last_error", "error", "hint"],
        wide=["target", "inputs", "bad_records", "last_ended", "last_hint"],
        empty="no jobs yet",
    )


def _status_row(status: JobStatus) -> Mapping[str, object]:
    from featurestore.registry.jobs import NO_STATUS

    # The keys of the JSON output depend neither on a topic nor on a run.
    last = status.last
    return {
        **_job_row(status.job),
        "state": status.state,
        "error": status.error,
        "hint": status.hint,
        "due": status.due,
        "failed": status.failed,
        **(status.stream or NO_STATUS).summary(),
        "last_state": None if last is None else last.state,
        "last_error": None if last is None else last.error,
        "last_hint": None if last is None else last.hint,
        "last_ended": None if last is None else last.ended,
    }


@app.command(epilog="Example: featurestore job show spend")
def show(context: typer.Context, name: Name) -> None:
    """Show the definition of a job: schedule, rules, inputs, and aggregates of a window job."""
    from featurestore.jobs.service import get_job

    output.show_record(context, _definition_details(get_job(store(context).session, name)))


@app.command(
    epilog="Example: featurestore job plan origin_traffic --start 2013-01-01 --end 2013-02-01"
)
def plan(context: typer.Context, name: Name, start: Time = None, end: Time = None) -> None:
    """Show windows, rows, bytes and estimated time of the due windows, or of a range."""
    if (start is None) != (end is None):
        raise InvalidArgument(
            "--start and --end must be used together.", hint="--start 2013-01-01 --end 2013-02-01"
        )
    window = None
    if start is not None and end is not None:
        window = (_parse_time(start, "--start"), _parse_time(end, "--end"))
    job_plan = store(context).plan_job(name, window=window)
    data = {
        "job": job_plan.job,
        "paused": job_plan.paused,
        "windows": [{"start": window.start, "end": window.end} for window in job_plan.windows],
        "rows": job_plan.rows,
        "bytes": job_plan.bytes,
        "seconds": job_plan.seconds,
        "inputs": list(map(vars, job_plan.inputs)),
    }
    output.show_text(context, str(job_plan), data=data)


@app.command(epilog="Example: featurestore job run origin_traffic --due")
def run(
    context: typer.Context,
    name: Name,
    window: Annotated[str | None, output.option(help="Start of the window to run.")] = None,
    due: Annotated[bool, typer.Option("--due", help="Run all due windows.")] = False,
    stale: Annotated[
        bool, typer.Option("--stale", help="Recompute all windows whose inputs have changed since.")
    ] = False,
) -> None:
    """Run a job now: its latest complete window, one window, due windows, or stale windows.

    Exit code 1 if some failed.
    """
    from featurestore.jobs.service import get_job

    window_start = None if window is None else _parse_time(window, "--window")
    connected = store(context)
    runs = connected.run_job(name, window=window_start, due=due, stale=stale)
    empty = "no windows to run"
    # --due skips a paused job, which would look as if all windows were computed.
    if not runs and get_job(connected.session, name).paused:
        empty = f"{name} is paused: featurestore job unpause {name}, or --window to run one"
    _show_runs(context, runs, empty=empty)


@app.command(
    epilog="Example: featurestore job backfill origin_traffic --start 2013-01-01 --end 2013-12-31"
)
def backfill(
    context: typer.Context,
    name: Name,
    start: Annotated[str, output.option(help="Start of the range.")],
    end: Annotated[str, output.option(help="End of the range.")],
    anew: Annotated[
        bool, typer.Option("--anew", help="Recompute windows that are already computed.")
    ] = False,
) -> None:
    """Compute the windows of a range, many in one commit; the same command resumes after a kill."""
    connected = store(context)
    runs = connected.backfill_job(
        name, _parse_time(start, "--start"), _parse_time(end, "--end"), resume=not anew
    )
    _show_runs(context, runs, empty="all windows are already computed")
    note = getattr(runs, "note", "")
    # JSON output must be a single document.
    if note and settings(context).output is not OutputFormat.JSON:
        output.show_text(context, note, data=None)


@app.command(epilog="Example: featurestore job history origin_traffic --last 5 --output json")
def history(
    context: typer.Context,
    name: Name,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="Number of runs.")] = 20,
) -> None:
    """Show the last runs of a job, with errors, hints and log files."""
    runs = store(context).get_runs(name, last=last)
    _show_runs(context, runs, empty="no runs yet")


@app.command(epilog="Example: featurestore job pause origin_traffic")
def pause(context: typer.Context, name: Name) -> None:
    """Stop schedulers and --due from running a job."""
    store(context).pause_job(name)
    output.show_text(context, f"{name} is paused", data={"name": name, "paused": True})


@app.command(epilog="Example: featurestore job unpause origin_traffic")
def unpause(context: typer.Context, name: Name) -> None:
    """Resume a paused job; the windows that it missed are due."""
    store(context).unpause_job(name)
    output.show_text(context, f"{name} is active", data={"name": name, "paused": False})


@app.command(epilog="Example: featurestore job remove origin_traffic")
def remove(context: typer.Context, name: Name) -> None:
    """Remove a job with its runs; the group or dataset that it wrote remains."""
    removed = store(context).remove_job(name)
    output.show_text(context, str(removed), data=vars(removed))


def _job_row(job: Any) -> Mapping[str, Any]:
    spec = job.spec
    return {
        "name": spec.name,
        "version": job.version,
        "kind": spec.kind,
        "target": spec.target,
        "schedule": spec.schedule.cron,
        "timezone": spec.schedule.timezone,
        "inputs": dict(spec.inputs),
        "origin": job.origin,
        "paused": job.paused,
        "state": job.state,
        "watermark": job.watermark,
    }


def _definition_details(job: RegisteredJob) -> Mapping[str, Any]:
    """Return the values of a job definition, by kind of job."""
    spec_json = job.spec.to_json()
    details = {
        **_job_row(job),
        "primary_key": spec_json["primary_key"],
        "event_time": spec_json["event_time"],
    }
    for name in ("mode", "closed", "start", "lookback", "allowed_lateness", "validation", "tags"):
        details[name] = spec_json[name]
    for name in ("publishes", "registers"):
        if name in spec_json:
            details[name] = spec_json[name]
    if "stream" in spec_json:
        return {**details, "stream": spec_json["stream"]}
    if not isinstance(job.spec.work, WindowWork):
        return {**details, "code": spec_json["code"]}
    window_job = WindowJob.from_work(job.spec.work)
    return {
        **details,
        "every": format_duration(window_job.every),
        "keep_empty": window_job.keep_empty,
        "windows": list(map(str, window_job.lineage)),
    }


def _run_row(run: Any) -> Mapping[str, Any]:
    return {
        "run_id": run.run_id,
        "job": run.job,
        "job_version": run.job_version,
        "state": run.state,
        "start": run.window.start,
        "end": run.window.end,
        "windows": run.windows,
        "rows": run.rows,
        "version": run.delta_version,
        "started": run.started,
        "seconds": run.seconds,
        "memory": run.memory,
        "inputs": run.inputs.get("inputs", []),
        "error": run.error,
        "hint": run.hint,
        "log": run.log,
    }


def _show_runs(context: typer.Context, runs: list[Any], *, empty: str) -> None:
    output.show_rows(
        context,
        map(_run_row, runs),
        columns=_RUN_COLUMNS,
        optional=["error"],
        wide=_MORE_RUN_COLUMNS,
        empty=empty,
    )


def _parse_time(text: str, option: str) -> datetime:
    """Parse a command line timestamp; UTC is assumed if it has no time zone."""
    return parse_moment(text, argument=option, warn=False)


@stream_app.callback()
def streams() -> None:
    """Replay the quarantined records of stream jobs."""


@stream_app.command(epilog="Example: featurestore stream replay clicks")
def replay(
    context: typer.Context, name: Annotated[str, output.argument(help="Name of the stream job.")]
) -> None:
    """Read the quarantined records of a job again, and write those that are now readable."""
    replayed = store(context).replay_quarantine(name)
    reasons = sorted(replayed.reasons.items(), key=lambda item: -item[1])
    lines = [
        f"{replayed.rows} records written, {replayed.left} remain in quarantine",
        *[f"  {count}: {reason}" for reason, count in reasons],
    ]
    data = {
        "name": name,
        "rows": replayed.rows,
        "left": replayed.left,
        "reasons": dict(replayed.reasons),
    }
    output.show_text(context, "\n".join(lines), data=data)


@scheduler_app.callback()
def scheduler() -> None:
    """Run due jobs."""


@scheduler_app.command("start", epilog="Example: featurestore scheduler start --every 30s")
def start_scheduler(
    context: typer.Context,
    every: Annotated[str, typer.Option(help="Time between two polls.")] = "10s",
    workers: Annotated[int, typer.Option(min=1, help="Maximum number of concurrent jobs.")] = 4,
    stale: Annotated[
        bool, typer.Option("--stale", help="Also recompute windows whose inputs have changed.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve /metrics for Prometheus on this port."),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address of the metrics server.")] = "127.0.0.1",
) -> None:
    """Run due jobs until SIGTERM; runs in progress are finished first."""
    from featurestore.jobs.metrics import serving_metrics
    from featurestore.jobs.scheduler import Options
    from featurestore.model.times import parse_duration

    if settings(context).log_format is None:
        log_to_stderr(LogFormat.TEXT)
    seconds = parse_duration(every, argument="--every").total_seconds()
    # An interval of zero would poll the registry without a pause.
    options = Options(every=max(seconds, 0.1), workers=workers, stale=stale)
    connected = store(context)
    with ExitStack() as stack:
        if metrics_port is not None:
            stack.enter_context(
                serving_metrics(connected.session, host=metrics_host, port=metrics_port)
            )
        connected.scheduler(options).run()
