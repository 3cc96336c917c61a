"""Calls on jobs: registration, runs, monitors and alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from datetime import datetime
    from types import ModuleType

    from featurestore.jobs.definitions import JobDefinition
    from featurestore.jobs.monitors.service import MonitorStatus
    from featurestore.jobs.scheduler import Options, Scheduler
    from featurestore.jobs.service import JobPlan, JobStatus
    from featurestore.model.alert import Channel
    from featurestore.model.monitor_report import Acceptance, MonitorReport
    from featurestore.model.times import Window
    from featurestore.monitoring.page import MonitorPage
    from featurestore.registry.alerts import Outgoing
    from featurestore.registry.jobs import RegisteredJob
    from featurestore.registry.runs import Run
    from featurestore.streams.replay import Replayed


class JobCalls(StoreBase):
    """The calls on jobs."""

    def register_jobs(
        self, module_or_path: ModuleType | str | os.PathLike[str]
    ) -> list[RegisteredJob]:
        """Register the jobs of a module, a Python file or a folder, and return them.

        A job that is registered already gets a new version when its definition changed, and keeps
        its watermark.

        >>> [(job.spec.name, job.version) for job in store.register_jobs("jobs.py")]
        [('mean_temp', 1)]
        """
        from featurestore.jobs.registration import register_jobs

        return register_jobs(self._session, module_or_path)

    def get_jobs(self, *, limit: int | None = None, offset: int = 0) -> list[JobStatus]:
        """Return every registered job: windows that are due, windows that failed, its last run.

        Args:
            limit: At most so many; None: all.
            offset: How many to leave out before them.

        >>> registered = store.register_jobs("jobs.py")
        >>> [(status.name, status.failed, status.last) for status in store.get_jobs()]
        [('mean_temp', 0, None)]
        """
        from featurestore.jobs import service

        return service.get_jobs(self._session, limit=limit, offset=offset)

    def plan_job(
        self, name: str, *, window: Window | tuple[datetime | str, datetime | str] | None = None
    ) -> JobPlan:
        """Return what a job would do: windows, rows and bytes of its inputs, estimated time.

        Args:
            name: Name of the job.
            window: A range of time, whose windows are planned; None: what is due.

        >>> registered = store.register_jobs("jobs.py")
        >>> print(store.plan_job("mean_temp", window=("2013-01-01T00:00Z", "2013-01-03T00:00Z")))
        mean_temp: 2 windows from 2013-01-01T00:00:00+00:00 to 2013-01-03T00:00:00+00:00
        reads about 4 rows, ... bytes; no run to estimate the time from
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

        Without a choice the latest complete window is computed anew.

        Args:
            name: Name of the job.
            window: One window, or the time at which it begins.
            due: Every window that is due: not computed yet, or failed.
            stale: Every computed window whose inputs changed since.

        Raises:
            JobFailed: Windows could not be computed; the others were. The history has each run with
                its error.
            JobLeased: Another process runs the job.

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
        """Compute the windows within ``[start, end)``, many in one commit; return the runs.

        Of a monitor, the list that is returned has a ``note``: how many windows were judged and how
        many were out of bounds. Alerts are sent for the newest window only.

        Args:
            name: Name of the job.
            start: Beginning of the range.
            end: End of the range.
            resume: Leave out windows that were computed already; False computes all anew.
            progress: Gets (windows done, windows in all).

        Raises:
            JobFailed: Windows could not be computed; the others were.
            JobLeased: Another process runs the job.

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
        """Return a scheduler of this store's jobs; ``run()`` runs them until SIGTERM."""
        from featurestore.jobs.scheduler import Scheduler

        return Scheduler(self._session, call=self._call_training_job, options=options)

    def _call_training_job(self, definition: JobDefinition, window: Window) -> object:
        return definition(store=self, window=window)

    def get_runs(self, name: str) -> list[Run]:
        """Return the runs of a job, oldest first.

        >>> registered = store.register_jobs("jobs.py")
        >>> runs = store.backfill_job("mean_temp", "2013-01-01T00:00Z", "2013-01-08T00:00Z")
        >>> [(run.state, run.windows, run.rows) for run in store.get_runs("mean_temp")]
        [('done', 7, 2)]
        """
        from featurestore.jobs import service

        return service.get_runs(self._session, name)

    def pause_job(self, name: str) -> None:
        """Keep schedulers and ``run_job(due=True)`` from running a job.

        >>> registered = store.register_jobs("jobs.py")
        >>> store.pause_job("mean_temp")
        >>> store.run_job("mean_temp", due=True)
        []
        """
        from featurestore.jobs import service

        service.set_paused(self._session, name, paused=True)

    def replay_stream(self, name: str) -> Replayed:
        """Read the records of a stream job's quarantine again, and return what that came to.

        For use after a fix: of the job's schema, of an expectation, of a schema registry. Each record
        that can be read now lands once and leaves the quarantine; a row of its key and times that the
        group has already stays, and so does the record in the quarantine.

        Args:
            name: Name of the job.

        Raises:
            JobNotFound: The job does not exist.
            InvalidJob: It reads no topic, or has not run with its present columns.
            JobLeased: A run of the job is at work.

        >>> registered = store.register_jobs("jobs.py")
        >>> store.replay_stream("mean_temp")
        Traceback (most recent call last):
        featurestore.errors.InvalidJob: Job 'mean_temp' reads no topic.
        Hint: featurestore job list
        """
        from featurestore.jobs.recovery import replay_stream

        return replay_stream(self._session, name)

    def unpause_job(self, name: str) -> None:
        """Resume a paused job; windows that it missed are due.

        >>> registered = store.register_jobs("jobs.py")
        >>> store.pause_job("mean_temp")
        >>> store.unpause_job("mean_temp")
        >>> [status.job.paused for status in store.get_jobs()]
        [False]
        """
        from featurestore.jobs import service

        service.set_paused(self._session, name, paused=False)


class MonitorCalls(JobCalls):
    """The calls on monitors."""

    def get_monitors(self) -> list[MonitorStatus]:
        """Return every registered monitor and what it found last, by name.

        >>> registered = store.register_jobs("monitors.py")
        >>> [(each.name, each.state) for each in store.get_monitors()]
        [('weather_watch', 'new')]
        """
        from featurestore.jobs.monitors import service as monitors

        return monitors.get_monitors(self._session)

    def check_monitor(
        self, name: str, *, window: Window | datetime | str | None = None
    ) -> MonitorReport:
        """Look now, record what was found, and return the report of the latest window.

        Due windows are evaluated, too, and alerts are sent as by the scheduler.

        Args:
            name: Name of the monitor.
            window: One window, or the time at which it begins, instead of the latest.

        Raises:
            JobFailed: A window could not be evaluated; the message has the reason.
            JobLeased: Another process runs the monitor.

        >>> registered = store.register_jobs("monitors.py")
        >>> print(store.check_monitor("weather_watch", window="2013-01-01T06:00Z"))
        weather_watch: learning, 2013-01-01T06:00:00+00:00 to 2013-01-01T07:00:00+00:00, 2 rows
          there are too few windows before this one to check everything
        """
        from featurestore.jobs.monitors import service as monitors

        return monitors.check_monitor(
            self._session, name, call=self._call_training_job, window=window
        )

    def get_monitor_history(
        self, name: str, *, limit: int | None = 100, offset: int = 0
    ) -> list[MonitorReport]:
        """Return what a monitor found, newest window first.

        Args:
            name: Name of the monitor.
            limit: At most so many windows; None: all.
            offset: How many to leave out before them.

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
        """Accept windows out of bounds, so that they count as usual from now on.

        Windows out of bounds stay out of a moving baseline until they are accepted. A change that
        lasts until the newest accepted window starts a new baseline with its first window, and its
        incident ends. A fixed baseline (a training dataset, a version) is replaced by the accepted
        windows for the features that changed. Ages and columns have no baseline and cannot be
        accepted.

        Args:
            name: Name of the monitor.
            window: Accept this window alone, or the one that begins at this time; it joins the
                baseline that is there.
            until: Accept every window that ends by this time; None: up to the newest window.
            note: Why, at most 2,000 characters; in the message that ends the incident.

        Returns:
            The features and metrics that were accepted, with the starts of their new baselines.

        Raises:
            InvalidArgument: No window is out of bounds there.
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
        from featurestore.registry.audit_log import account

        actor = account("Python")
        return monitors.accept(
            self._session, name, window=window, until=until, note=note, actor=actor
        )

    def visualize_monitor(self, name: str, *, windows: int = 60) -> MonitorPage:
        """Return the page of a monitor: distributions and timelines, the worst first.

        Notebooks show it; ``save(path)`` writes it, ``to_html()`` returns it.

        Args:
            name: Name of the monitor.
            windows: How many windows the timelines reach back.

        >>> registered = store.register_jobs("monitors.py")
        >>> report = store.check_monitor("weather_watch", window="2013-01-01T06:00Z")
        >>> print(store.visualize_monitor("weather_watch"))
        weather_watch: learning, 2013-01-01T06:00:00+00:00 to 2013-01-01T07:00:00+00:00, 2 rows
          there are too few windows before this one to check everything
        """
        from featurestore.jobs.monitors import service as monitors

        return monitors.page_of(self._session, name, windows=windows)

    def get_metrics(self) -> str:
        """Return rows, commits, runs, monitors and alerts in Prometheus' text format.

        >>> text = store.get_metrics()
        >>> 'featurestore_featuregroup_rows{featuregroup="weather"} 4.0' in text
        True
        """
        from featurestore.jobs.metrics import metrics_text

        return metrics_text(self._session)


class AlertCalls(StoreBase):
    """The calls on alerts."""

    def add_alert_channel(self, name: str, uri: str, *, secret: str | None = None) -> Channel:
        """Add or change a channel for alerts of jobs (``alert=[name]``); return it.

        It is used only on machines where it was added, since a registry from another machine must
        not decide where secrets are sent or which command runs.

        Args:
            name: Name of the channel.
            uri: "webhook+https://..." (JSON, with a ``text`` that Slack shows),
                "smtp://user@host:587/?to=...&from=..." (STARTTLS), "smtps://...", "command:/path"
                (gets the JSON on standard input) or "log".
            secret: "env:NAME" or "file:path": the bearer token of a webhook, the password of a mail
                server.

        >>> store.add_alert_channel("ops", "log").scheme
        'log'
        """
        from featurestore.alerts.channels import add_channel

        return add_channel(self._session, name, uri, secret=secret)

    def get_alert_channels(self) -> list[Channel]:
        """Return every channel, by name.

        >>> channel = store.add_alert_channel("ops", "log")
        >>> [each.name for each in store.get_alert_channels()]
        ['ops']
        """
        from featurestore.registry import alerts

        with self._session.registry.reading() as connection:
            return alerts.channels(connection)

    def remove_alert_channel(self, name: str) -> None:
        """Remove a channel; messages on their way to it are not sent.

        >>> channel = store.add_alert_channel("ops", "log")
        >>> store.remove_alert_channel("ops")
        >>> store.get_alert_channels()
        []
        """
        from featurestore.alerts.channels import remove_channel

        remove_channel(self._session, name)

    def get_alerts(self, *, limit: int | None = 100) -> list[Outgoing]:
        """Return messages, newest first: to whom, how often tried, when delivered, why not.

        >>> store.get_alerts()
        []
        """
        from featurestore.registry import alerts

        with self._session.registry.reading() as connection:
            return alerts.messages(connection, limit=limit)

    def send_alerts(self) -> int:
        """Send messages that wait, and return how many arrived; schedulers do it by themselves.

        >>> store.send_alerts()
        0
        """
        from featurestore.alerts.incidents import send_waiting

        return send_waiting(self._session)
