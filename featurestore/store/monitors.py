"""Calls on monitors and alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.store.connected import StoreBase
from featurestore.store.jobs import JobCalls

if TYPE_CHECKING:
    from datetime import datetime

    from featurestore.jobs.monitors.service import MonitorStatus
    from featurestore.model.alert import Channel
    from featurestore.model.monitor_report import Acceptance, MonitorReport
    from featurestore.model.times import Window
    from featurestore.monitoring.page import MonitorPage
    from featurestore.registry.alerts import Outgoing


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


__all__ = ["AlertCalls", "MonitorCalls"]


class MonitorCalls(JobCalls):
    """The calls on monitors."""

    def get_monitors(self) -> list[MonitorStatus]:
        """Return every registered monitor and what it found last, by name.

        >>> registered = store.register_jobs("monitors.py")
        >>> [(each.name, each.state) for each in store.get_monitors()]
        [('weather_watch', 'new')]
        """
        from featurestore.jobs.monitors import service

        return service.get_monitors(self._session)

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
        from featurestore.jobs.monitors import service

        return service.check_monitor(
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
        from featurestore.jobs.monitors import service

        return service.history(self._session, name, limit=limit, offset=offset)

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
        from featurestore.jobs.monitors import service
        from featurestore.registry.audit_log import account

        actor = account("Python")
        return service.accept(
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
        from featurestore.jobs.monitors import service

        return service.page_of(self._session, name, windows=windows)

    def get_metrics(self) -> str:
        """Return rows, commits, runs, monitors and alerts in Prometheus' text format.

        >>> text = store.get_metrics()
        >>> 'featurestore_featuregroup_rows{featuregroup="weather"} 4.0' in text
        True
        """
        from featurestore.jobs.metrics import metrics_text

        return metrics_text(self._session)
