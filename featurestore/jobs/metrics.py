"""Metrics of a store in Prometheus' text format: rows, commits, runs, monitors, alerts, logs.

Labels are names of groups, jobs, monitors and channels, at most ``MOST_LABELS`` of each. The number
of time series is therefore bounded by names that people choose, and never depends on data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from featurestore.delta.log import is_delta_table
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import ConfigurationError, FeatureStoreError, missing_extra
from featurestore.model import times
from featurestore.model.job import MonitorWork
from featurestore.registry import alerts, featuregroups, jobs, reports, runs
from featurestore.session import Session

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

MOST_LABELS = 1000
_STATES = ("ok", "suspect", "alarm", "learning")


def metrics_text(session: Session) -> str:
    """Return the metrics of a store in the Prometheus text format.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """
    registry = metrics_registry(session)
    from prometheus_client import generate_latest

    return bytes(generate_latest(registry)).decode()


def metrics_registry(session: Session) -> CollectorRegistry:
    """Return a prometheus-client registry that reads the store at each collection.

    To mount it in a web server: ``prometheus_client.make_asgi_app(metrics_registry(session))``.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry
    except ImportError as error:
        raise missing_extra("prometheus_client", "metrics") from error
    registry = CollectorRegistry()
    registry.register(_StoreCollector(session))
    return registry


@contextmanager
def serving_metrics(session: Session, *, host: str, port: int) -> Iterator[int]:
    """Serve the metrics of a store at ``/metrics`` in a background thread; yield the port.

    Args:
        session: The connection.
        host: The address to listen on.
        port: 0 selects any free port.

    Raises:
        MissingExtra: prometheus-client is not installed.
        ConfigurationError: The port is in use or not permitted.
    """
    registry = metrics_registry(session)
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigurationError(
            f"The metrics cannot be served at {host}:{port}: {error.strerror or error}.",
            hint="--metrics-port 9464 selects another port",
        ) from error
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _StoreCollector:
    """A Prometheus collector that reads the metrics of a store at each collection."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def describe(self) -> list[Metric]:
        """Return no metrics, since their labels depend on the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        _StoreGauges(self._session, registry).collect()
        yield from registry.collect()
        yield from _vector_log_counters(self._session)


def _vector_log_counters(session: Session) -> Iterator[Metric]:
    """Yield the counts of vectors that this process has logged, and of those missing in the log."""
    from prometheus_client.metrics_core import CounterMetricFamily

    from featurestore.serving.vector_log import log_totals

    logged = CounterMetricFamily(
        "featurestore_logged_vectors", "Served vectors in the log", labels=["featuregroup"]
    )
    missing = CounterMetricFamily(
        "featurestore_unlogged_vectors", "Vectors that are missing there", labels=["featuregroup"]
    )
    totals = log_totals(session.location)
    # A group that was deleted has no lineage any more, so it is not known whether it was hidden.
    with session.registry.reading() as connection:
        visible = featuregroups.existing_names(connection, totals)
    for group in visible[:MOST_LABELS]:
        logged.add_metric([group], totals[group][0])
        missing.add_metric([group], totals[group][1])
    yield from (logged, missing)


class _StoreGauges:
    """Gauges of one registry, filled from a store."""

    def __init__(self, session: Session, registry: Any) -> None:
        self._session = session
        self._registry = registry

    def collect(self) -> None:
        """Fill all gauges."""
        self._groups()
        self._jobs()
        self._streams()
        self._monitors()
        self._alerts()

    def _gauge(self, name: str, help_text: str, *labels: str) -> Any:
        from prometheus_client import Gauge

        return Gauge(f"featurestore_{name}", help_text, labels, registry=self._registry)

    def _groups(self) -> None:
        rows = self._gauge("featuregroup_rows", "Rows of the latest version", "featuregroup")
        commits = self._gauge(
            "featuregroup_delta_version", "Delta version of the latest version", "featuregroup"
        )
        with self._session.registry.reading() as connection:
            versions_by_name = list(
                featuregroups.latest_names(connection, containing="", limit=MOST_LABELS)
            )
        for name, version in versions_by_name:
            path = self._session.featuregroup_path(name, version)
            if not is_delta_table(path):
                continue
            try:
                state = read_snapshot(path)
            except FeatureStoreError:  # the doctor reports damaged tables
                continue
            rows.labels(name).set(state.rows)
            commits.labels(name).set(state.version)

    def _jobs(self) -> None:
        success = self._gauge(
            "job_last_success_timestamp_seconds", "Time of the last successful run", "job"
        )
        duration = self._gauge("job_last_run_seconds", "Duration of the last run", "job")
        watermark = self._gauge(
            "job_watermark_lag_seconds", "Time since the end of the last computed window", "job"
        )
        failed = self._gauge("job_failed_windows", "Windows that failed and are due", "job")
        now = times.utc_now()
        with self._session.registry.reading() as connection:
            for job in jobs.list_all(connection, limit=MOST_LABELS):
                name = job.spec.name
                last = runs.last(connection, name)
                finished = runs.runs_of_job(connection, name, state=runs.DONE, last=1)
                if finished and finished[-1].ended is not None:
                    success.labels(name).set(finished[-1].ended.timestamp())
                if last is not None and last.seconds is not None:
                    duration.labels(name).set(last.seconds)
                if job.watermark is not None:
                    watermark.labels(name).set((now - job.watermark).total_seconds())
                number = runs.count_windows(connection, name, states=[runs.FAILED])
                failed.labels(name).set(number)

    def _streams(self) -> None:
        lag = self._gauge("stream_lag_records", "Records of the topic not in the group yet", "job")
        rate = self._gauge("stream_rows_per_second", "Rows per second of the last run", "job")
        bad = self._gauge("stream_bad_records", "Unreadable records so far", "job")
        commit = self._gauge(
            "stream_last_commit_timestamp_seconds", "Time of the last commit of records", "job"
        )
        with self._session.registry.reading() as connection:
            for job in jobs.list_all(connection, limit=MOST_LABELS):
                status = jobs.stream_status(connection, job.spec.name)
                if status is None:
                    continue
                name = job.spec.name
                bad.labels(name).set(status.bad_records or 0)
                if status.lag is not None:
                    lag.labels(name).set(status.lag)
                if status.rows_per_second is not None:
                    rate.labels(name).set(status.rows_per_second)
                if status.last_commit is not None:
                    commit.labels(name).set(status.last_commit.timestamp())

    def _monitors(self) -> None:
        state = self._gauge("monitor_state", "1 for the latest state", "monitor", "state")
        rows = self._gauge("monitor_window_rows", "Rows of the newest window", "monitor")
        alarms = self._gauge(
            "monitor_alarms", "Findings that are alarms, by kind", "monitor", "kind"
        )
        excess = self._gauge(
            "monitor_worst_excess",
            "Largest ratio of a value to its bound, by kind",
            "monitor",
            "kind",
        )
        metric = self._gauge(
            "monitor_metric", "Custom metrics and model metrics", "monitor", "metric"
        )
        metrics_left = MOST_LABELS  # a monitor may have many metrics
        with self._session.registry.reading() as connection:
            for job in jobs.list_all(connection, limit=MOST_LABELS):
                if not isinstance(job.spec.work, MonitorWork):
                    continue
                report = reports.newest_monitor_report(connection, job.spec.name)
                if report is None:
                    continue
                name = job.spec.name
                for state_name in _STATES:
                    state.labels(name, state_name).set(float(report.state == state_name))
                rows.labels(name).set(report.rows)
                alarm_counts = Counter(finding.kind for finding in report.alarms)
                for family in sorted({finding.kind for finding in report.findings}):
                    alarms.labels(name, family).set(alarm_counts[family])
                    excesses = [
                        finding.excess for finding in report.findings if finding.kind == family
                    ]
                    excess.labels(name, family).set(max(excesses))
                for finding in report.findings:
                    if finding.kind == "metric" and finding.value is not None and metrics_left:
                        metric.labels(name, finding.subject).set(finding.value)
                        metrics_left -= 1

    def _alerts(self) -> None:
        messages = self._gauge(
            "alert_messages", "Messages of the outbox, by state", "channel", "state"
        )
        with self._session.registry.reading() as connection:
            message_counts = alerts.count_messages_by_channel(connection)
        for channel in sorted(message_counts)[:MOST_LABELS]:
            for state, count in message_counts[channel].items():
                messages.labels(channel, state).set(count)
