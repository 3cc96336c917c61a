"""Calls on monitors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.store.jobs import JobCalls

if TYPE_CHECKING:
    from datetime import datetime

    from featurestore.jobs.monitors.service import MonitorStatus
    from featurestore.model.monitor_report import MonitorReport
    from featurestore.model.window import Window
    from featurestore.monitoring.page import MonitorPage

__all__ = ["MonitorCalls"]


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

        Windows that are due are looked at, too, and alerts are sent as by the scheduler.

        Args:
            name: Name of the monitor.
            window: One window, or the time at which it begins, instead of the latest.

        Raises:
            JobFailed: A window could not be looked at; the text says why.
            JobLeased: Another process runs the monitor.

        >>> registered = store.register_jobs("monitors.py")
        >>> print(store.check_monitor("weather_watch", window="2013-01-01T06:00Z"))
        weather_watch: learning, 2013-01-01T06:00:00+00:00 to 2013-01-01T07:00:00+00:00, 2 rows
          there is too little before this window to compare all of it with
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
          there is too little before this window to compare all of it with
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
