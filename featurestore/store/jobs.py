"""Methods for jobs (registration, runs, monitors and alerts) and for projects."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from featurestore.model.display import Listing
from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from datetime import datetime
    from types import ModuleType

    from featurestore.jobs.definitions import JobDefinition
    from featurestore.jobs.monitors.service import MonitorStatus
    from featurestore.jobs.removal import RemovedJob
    from featurestore.jobs.scheduler import Options, Scheduler
    from featurestore.jobs.service import JobPlan, JobStatus
    from featurestore.model.alert import Channel
    from featurestore.model.monitor_report import Acceptance, MonitorReport
    from featurestore.model.project import ProjectPlan
    from featurestore.model.times import Window
    from featurestore.monitoring.page import MonitorPage
    from featurestore.registry.alerts import Outgoing
    from featurestore.registry.jobs import RegisteredJob
    from featurestore.registry.runs import Run
    from featurestore.streams.replay import Replayed


class JobCalls(StoreBase):
    """Methods for jobs."""

    def register_jobs(
        self, module_or_path: ModuleType | str | os.PathLike[str]
    ) -> list[RegisteredJob]:
        """Register the jobs in a module, a Python file or a folder, and return them.

        If a registered job has a changed definition, it gets a new version and keeps its watermark.

        >>> [(job.spec.name, job.version) for job in store.register_jobs("jobs.py")]
        [('mean_temp', 1)]
        """
        from featurestore.jobs.registration import register_jobs

        return register_jobs(self._session, module_or_path)

    def get_jobs(self, *, limit: int | None = None, offset: int = 0) -> list[JobStatus]:
        """List all registered jobs with due windows, failed windows and the last run.

        Args:
            limit: The maximum number of jobs; None: all.
            offset: The number of jobs to skip.

        >>> registered = store.register_jobs("jobs.py")
        >>> [(status.name, status.failed, status.last) for status in store.get_jobs()]
        [('mean_temp', 0, None)]
        """
        from featurestore.jobs import service

        return service.get_jobs(self._session, limit=limit, offset=offset)

    def plan_job(
        self, name: str, *, window: Window | tuple[datetime | str, datetime | str] | None = None
    ) -> JobPlan:
        """Return the plan of a job: windows, input rows and bytes, and estimated time.

        Args:
            name: Name of the job.
            window: A time range whose windows are planned; None: the due windows.

        >>> registered = store.register_jobs("jobs.py")
        >>> print(store.plan_job("mean_temp", window=("2013-01-01T00:00Z", "2013-01-03T00:00Z")))
        mean_temp: 2 windows from 2013-01-01T00:00:00+00:00 to 2013-01-03T00:00:00+00:00
        reads about 4 rows, ... bytes; no earlier run to estimate the duration from
          weather: weather at Delta version 1, rows: about 4
        """
        from featurestore.jobs.service import plan_job

        return plan_job(self._session, name, window=window)

    def run_job(
        self,
        name: str,
        *,
        window: Window | datetime | str | None = None,
        due: bool = False,
        stale: bool = False,
    ) -> list[Run]:
        """Run a job now and return its runs.

        By default the latest complete window is recomputed.

        Args:
            name: Name of the job.
            window: A window, or its start time.
            due: Run all due windows: those not yet computed, or failed.
            stale: Recompute all windows whose inputs have changed since.

        Raises:
            JobFailed: Some windows could not be computed; the others were. The history contains the
                error of each run.
            JobLeased: Another process is running the job.

        >>> registered = store.register_jobs("jobs.py")
        >>> (run,) = store.run_job("mean_temp", window="2013-01-01T00:00Z")
        >>> (run.state, run.rows)
        ('done', 2)
        >>> store.get_featuregroup("mean_temp").show()
        +------+-------------------+-----+
        |origin|                day| temp|
        +------+-------------------+-----+
        |   JFK|2013-01-02 00:00:00| 38.0|
        |   LGA|2013-01-02 00:00:00|37.25|
        +------+-------------------+-----+
        """
        from featurestore.jobs import service

        return service.run_job(
            self._session,
            name,
            call=self._call_training_job,
            window=window,
            due=due,
            stale=stale,
        )

    def backfill_job(
        self,
        name: str,
        start: datetime | str,
        end: datetime | str,
        *,
        resume: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Run]:
        """Compute the windows within ``[start, end)``, many per commit; return the runs.

        For a monitor, the returned list has a ``note`` with the numbers of evaluated windows and of
        windows out of bounds. Alerts are sent only for the newest window.

        Args:
            name: Name of the job.
            start: Beginning of the range.
            end: End of the range.
            resume: Skip windows that were already computed; False: recompute all windows.
            progress: Called with (completed windows, total windows).

        Raises:
            JobFailed: Some windows could not be computed; the others were.
            JobLeased: Another process is running the job.

        >>> registered = store.register_jobs("jobs.py")
        >>> runs = store.backfill_job("mean_temp", "2013-01-01T00:00Z", "2013-01-08T00:00Z")
        >>> sum(run.windows for run in runs)
        7
        >>> store.backfill_job("mean_temp", "2013-01-01T00:00Z", "2013-01-08T00:00Z")  # all done
        []
        """
        from featurestore.jobs import service
        from featurestore.jobs.execution import Watch

        watch = Watch(progress)
        return service.backfill_job(
            self._session,
            name,
            start,
            end,
            call=self._call_training_job,
            resume=resume,
            watch=watch,
        )

    def scheduler(self, options: Options | None = None) -> Scheduler:
        """Return a scheduler for the jobs of this store; ``run()`` runs them until SIGTERM."""
        from featurestore.jobs.scheduler import Scheduler

        return Scheduler(self._session, call=self._call_training_job, options=options)

    def _call_training_job(self, definition: JobDefinition, window: Window) -> object:
        # Only training jobs receive the store. The scheduler itself works with a session.
        # Its reads are recorded also in threads that the function starts.
        session = replace(self._session, reads=self._session.recorder)
        return definition(store=type(self)(session), window=window)

    def get_runs(self, name: str, *, last: int | None = None) -> list[Run]:
        """List the runs of a job, oldest first.

        Args:
            name: Name of the job.
            last: Only so many of the newest runs; None: all.

        >>> registered = store.register_jobs("jobs.py")
        >>> runs = store.backfill_job("mean_temp", "2013-01-01T00:00Z", "2013-01-08T00:00Z")
        >>> [(run.state, run.windows, run.rows) for run in store.get_runs("mean_temp")]
        [('done', 7, 2)]
        """
        from featurestore.jobs import service

        return service.get_runs(self._session, name, last=last)

    def pause_job(self, name: str) -> None:
        """Pause a job for schedulers and for ``run_job(due=True)``.

        >>> registered = store.register_jobs("jobs.py")
        >>> store.pause_job("mean_temp")
        >>> store.run_job("mean_temp", due=True)
        []
        """
        from featurestore.jobs import service

        service.set_paused(self._session, name, paused=True)

    def replay_quarantine(self, name: str) -> Replayed:
        """Reprocess the quarantined records of a stream job and return the numbers of results.

        Use it after fixing the job schema, an expectation or a schema registry. A record that can
        now be read is written exactly once and leaves the quarantine. If the group already has a
        row with the same key and times, the row is not replaced and the record stays in the
        quarantine.

        Args:
            name: Name of the job.

        Raises:
            JobNotFound: The job does not exist.
            InvalidJob: The job does not read a topic, or has not run with its current columns.
            JobLeased: Another process is running the job.

        >>> registered = store.register_jobs("jobs.py")
        >>> store.replay_quarantine("mean_temp")
        Traceback (most recent call last):
        featurestore.errors.InvalidJob: Job 'mean_temp' does not read a topic.
        Hint: featurestore job list
        """
        from featurestore.jobs.recovery import replay_quarantine

        return replay_quarantine(self._session, name)

    def remove_job(self, name: str) -> RemovedJob:
        """Remove a job from the registry, for example after it was renamed in its file.

        The definitions, the states of windows, the runs and the reports of the job are removed. The
        feature group or training dataset that it wrote remains.

        Args:
            name: Name of the job.

        Returns:
            What was removed, and what remains.

        Raises:
            JobNotFound: The job does not exist.
            JobLeased: A process is running the job.

        >>> registered = store.register_jobs("jobs.py")
        >>> print(store.remove_job("mean_temp"))
        removed job 'mean_temp': its definitions, window states and 0 runs
        not removed: feature group 'mean_temp' with its rows, logs
        >>> store.get_jobs()
        []
        """
        from featurestore.jobs.removal import remove_job

        return remove_job(self._session, name)

    def unpause_job(self, name: str) -> None:
        """Resume a paused job; the windows it missed are due.

        >>> registered = store.register_jobs("jobs.py")
        >>> store.pause_job("mean_temp")
        >>> store.unpause_job("mean_temp")
        >>> [status.job.paused for status in store.get_jobs()]
        [False]
        """
        from featurestore.jobs import service

        service.set_paused(self._session, name, paused=False)


class MonitorCalls(JobCalls):
    """Methods for monitors."""

    def get_monitors(self, *, limit: int | None = None, offset: int = 0) -> list[MonitorStatus]:
        """List all registered monitors with their last result, ordered by name.

        Args:
            limit: The maximum number of results; None: all.
            offset: The number of results to skip.

        >>> registered = store.register_jobs("monitors.py")
        >>> [(each.name, each.state) for each in store.get_monitors()]
        [('weather_watch', 'new')]
        """
        from featurestore.jobs.monitors import service as monitors

        return monitors.get_monitors(self._session, limit=limit, offset=offset)

    def check_monitor(
        self, name: str, *, window: Window | datetime | str | None = None
    ) -> MonitorReport:
        """Evaluate a monitor now, store the results, and return the report of the latest window.

        Due windows are also evaluated, and alerts are sent as by the scheduler.

        Args:
            name: Name of the monitor.
            window: A window, or its start time; None: the latest.

        Raises:
            JobFailed: A window could not be evaluated; the message contains the reason.
            JobLeased: Another process is running the monitor.

        >>> registered = store.register_jobs("monitors.py")
        >>> print(store.check_monitor("weather_watch", window="2013-01-01T06:00Z"))
        weather_watch: learning, 2013-01-01T06:00:00+00:00 to 2013-01-01T07:00:00+00:00, 2 rows
          too few earlier windows to evaluate all rules
        """
        from featurestore.jobs.monitors import service as monitors

        return monitors.check_monitor(
            self._session, name, call=self._call_training_job, window=window
        )

    def get_monitor_history(
        self, name: str, *, limit: int | None = 100, offset: int = 0
    ) -> list[MonitorReport]:
        """List the reports of a monitor, newest window first.

        Args:
            name: Name of the monitor.
            limit: The maximum number of windows; None: all.
            offset: The number of windows to skip.

        >>> registered = store.register_jobs("monitors.py")
        >>> runs = store.backfill_job("weather_watch", "2013-01-01T05:00Z", "2013-01-01T08:00Z")
        >>> [report.rows for report in store.get_monitor_history("weather_watch")]
        [2, 2, 0]
        """
        from featurestore.jobs.monitors import service as monitors

        return monitors.history(self._session, name, limit=limit, offset=offset)

    def accept_monitor(
        self,
        name: str,
        *,
        window: Window | datetime | str | None = None,
        until: datetime | str | None = None,
        note: str = "",
    ) -> Acceptance:
        """Accept windows that are out of bounds, so that they count as normal from now on.

        Windows out of bounds are excluded from a moving baseline until they are accepted. A change
        that is still present in the newest accepted window starts a new baseline with its first
        window, and ends its incident. A fixed baseline (a training dataset, a version) is replaced
        by the accepted windows for the changed features. Findings about age and columns have no
        baseline and cannot be accepted.

        Args:
            name: Name of the monitor.
            window: Accept only this window, or the window that starts at this time; it is added to
                the current baseline.
            until: Accept all windows that end by this time; None: up to the newest window.
            note: The reason, at most 2,000 characters, for the message that ends the incident.

        Returns:
            The accepted features and metrics, with the start of each new baseline.

        Raises:
            InvalidArgument: None of the selected windows is out of bounds.
            JobNotFound: The monitor does not exist.

        >>> registered = store.register_jobs("monitors.py")
        >>> report = store.check_monitor("weather_watch", window="2013-01-01T06:00Z")
        >>> try:
        ...     store.accept_monitor("weather_watch", note="a new sensor")
        ... except featurestore.errors.InvalidArgument as error:
        ...     print(error.hint)
        store.get_monitor_history('weather_watch') lists its windows
        """
        from featurestore.jobs.monitors import service as monitors
        from featurestore.registry.audit_log import process_actor

        # The audit log records which user of the machine accepted the windows.
        actor = process_actor("Python")
        return monitors.accept(
            self._session, name, window=window, until=until, note=note, actor=actor
        )

    def visualize_monitor(self, name: str, *, windows: int = 60) -> MonitorPage:
        """Return an HTML page about a monitor: distributions and timelines, the worst first.

        Notebooks display it; ``save(path)`` writes it, ``to_html()`` returns it.

        Args:
            name: Name of the monitor.
            windows: The number of windows in the timelines.

        >>> registered = store.register_jobs("monitors.py")
        >>> report = store.check_monitor("weather_watch", window="2013-01-01T06:00Z")
        >>> print(store.visualize_monitor("weather_watch"))
        weather_watch: learning, 2013-01-01T06:00:00+00:00 to 2013-01-01T07:00:00+00:00, 2 rows
          too few earlier windows to evaluate all rules
        """
        from featurestore.jobs.monitors import service as monitors

        return monitors.build_page(self._session, name, windows=windows)

    def get_metrics(self) -> str:
        """Return rows, commits, runs, monitors and alerts in the Prometheus text format.

        >>> text = store.get_metrics()
        >>> 'featurestore_featuregroup_rows{featuregroup="weather"} 4.0' in text
        True
        """
        from featurestore.jobs.metrics import metrics_text

        self._session.record_everything()
        return metrics_text(self._session)


class AlertCalls(StoreBase):
    """Methods for alerts."""

    def add_alert_channel(self, name: str, uri: str, *, secret: str | None = None) -> Channel:
        """Add or change a channel for job alerts (``alert=[name]``); return it.

        A channel is used only on machines where it was added, since a registry from another machine
        must not decide where secrets are sent or which command runs.

        Args:
            name: Name of the channel.
            uri: "webhook+https://..." (JSON with a ``text`` that Slack displays),
                "smtp://user@host:587/?to=...&from=..." (STARTTLS), "smtps://...", "command:/path"
                (reads the JSON from standard input) or "log".
            secret: "env:NAME" or "file:path" with the bearer token of a webhook or the password of
                a mail server.

        >>> store.add_alert_channel("ops", "log").scheme
        'log'
        """
        from featurestore.alerts.channels import add_channel

        return add_channel(self._session, name, uri, secret=secret)

    def get_alert_channels(self) -> list[Channel]:
        """List all channels, ordered by name.

        >>> channel = store.add_alert_channel("ops", "log")
        >>> [each.name for each in store.get_alert_channels()]
        ['ops']
        """
        from featurestore.registry import alerts

        with self._session.registry.reading() as connection:
            return Listing(alerts.channels(connection))

    def remove_alert_channel(self, name: str) -> None:
        """Remove a channel and discard its unsent messages.

        >>> channel = store.add_alert_channel("ops", "log")
        >>> store.remove_alert_channel("ops")
        >>> store.get_alert_channels()
        []
        """
        from featurestore.alerts.channels import remove_channel

        remove_channel(self._session, name)

    def get_alerts(self, *, limit: int | None = 100) -> list[Outgoing]:
        """List alert messages, newest first, with channel, attempts, delivery time and error.

        >>> store.get_alerts()
        []
        """
        from featurestore.registry import alerts

        with self._session.registry.reading() as connection:
            messages = Listing(alerts.messages(connection, limit=limit))
        # Messages have the errors of jobs and the findings of monitors.
        self._session.record_everything()
        return messages

    def send_alerts(self) -> int:
        """Send waiting messages and return the number delivered; schedulers do this automatically.

        >>> store.send_alerts()
        0
        """
        from featurestore.alerts.incidents import send_waiting

        return send_waiting(self._session)


class ProjectCalls(StoreBase):
    """Methods for projects."""

    def plan(self, folder: str | os.PathLike[str], *, project: str | None = None) -> ProjectPlan:
        """Return the changes that apply a folder of definitions to the store.

        Nothing is written. The Python files of the folder are executed.

        Args:
            folder: The folder with definitions (``featurestore.define``, jobs and monitors).
            project: The name under which objects are owned; None: ``project`` in featurestore.toml,
                or else the name of the folder above ``folder``.

        Raises:
            DefinitionsRefused: The store refuses definitions; lists each with its file and line.

        >>> print(store.plan("features", project="demand"))
        project demand:
          create feature group 'trips' version 1  (features/groups.py:3)
            columns trip, zone
        """
        from featurestore.define.apply import plan_folder

        return plan_folder(self._session, folder, project=project)

    def apply(
        self,
        folder: str | os.PathLike[str],
        *,
        project: str | None = None,
        remove: bool = False,
    ) -> ProjectPlan:
        """Apply a folder of definitions to the store, and return what was changed.

        Objects are created and changed in the order of their dependencies; nothing is applied if
        any definition is refused. After an error or a crash, a second call applies the rest.

        Args:
            folder: The folder with definitions, as for ``plan``.
            project: The name under which objects are owned, as for ``plan``.
            remove: Remove the objects that an earlier ``apply`` of this project created and that
                the folder no longer defines; otherwise they are only listed as ``removals``.

        Raises:
            DefinitionsRefused: The store refuses definitions, or an object cannot be removed; lists
                each with its file and line.

        >>> applied = store.apply("features", project="demand")
        >>> store.featuregroup("trips").schema.names
        ['trip', 'zone']
        >>> store.plan("features", project="demand").is_empty
        True
        """
        from featurestore.define.apply import apply_folder

        return apply_folder(self._session, folder, project=project, remove=remove)
