"""Freshness of dbt tables: a monitor of the age of their newest row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import timedelta

from featurestore.dbt.expectations import RECENCY_TESTS
from featurestore.dbt.manifest import DbtNode, parse_period
from featurestore.jobs.monitors.definitions import WATCHED_INPUT
from featurestore.model.job import DBT_ORIGIN, Alerts, JobSpec, MonitorWork, Schedule
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.model.monitor import MonitorSpec
from featurestore.model.times import format_duration, parse_duration
from featurestore.registry import jobs
from featurestore.session import Session

_MAX_MONITORED_NAME = 53


def find_max_age(node: DbtNode, *, event_time: str | None, notes: list[str]) -> timedelta | None:
    """Return the maximum age of the newest row, the smallest of all limits; note what is ignored."""
    ages = []
    setting = None if node.settings is None else node.settings.optional_text("freshness")
    if setting is not None:
        ages.append(parse_duration(setting, argument="freshness"))
    elif node.freshness is not None:
        ages.append(node.freshness)
    for test in node.tests:
        if test.test_type in RECENCY_TESTS:
            arguments = JsonObject(test.arguments, f"test {test.name!r}")
            try:
                ages.append(parse_period(arguments, "interval", "datepart"))
            except MalformedJson as error:
                notes.append(f"test {test.name!r} was not imported: {error}")
    if ages and event_time is None:
        notes.append("its freshness is not monitored, because it has no event time")
        return None
    return min(ages, default=None)


def monitor_name(name: str) -> str:
    """Return the name of the freshness monitor of a group.

    >>> monitor_name("orders")
    'orders_freshness'
    """
    if len(name) > _MAX_MONITORED_NAME:
        name = f"{name[: _MAX_MONITORED_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{name}_freshness"


def build_freshness_monitor(node: DbtNode, name: str, max_age: timedelta | None) -> JobSpec | None:
    """Return a monitor that compares the age of the newest row with its limit."""
    if max_age is None:
        return None
    watched = MonitorSpec(name, drift={}, freshness=max_age, volume=None, schema=False)
    # A limit of hours is checked each hour, so that an alarm is at most an hour late.
    cron = "*/5 * * * *" if max_age < timedelta(hours=1) else "0 * * * *"
    work = MonitorWork(
        target=monitor_name(name),
        inputs={WATCHED_INPUT: name},
        watched=watched,
        description=f"Freshness of {node}",
    )
    return JobSpec(monitor_name(name), Schedule(cron, catchup=1), Alerts(), work)


def describe_limit(max_age: timedelta | None) -> str:
    """Return the limit of a freshness monitor as a difference of an import."""
    return f"freshness monitor: at most {format_duration(max_age or timedelta(0))}"


def origin_of(project: str) -> str:
    """Return the origin of the jobs of a dbt project."""
    return f"{DBT_ORIGIN} {project}"


def is_new_monitor(session: Session, monitor: JobSpec | None, *, origin: str) -> bool:
    """Return whether a monitor is not registered with this definition and origin, or is paused."""
    if monitor is None:
        return False
    with session.registry.reading() as connection:
        registered = jobs.find(connection, monitor.name)
    if registered is None or registered.paused:
        return True
    # The grant is for the definition with its origin.
    return (registered.spec.hash, registered.origin) != (monitor.hash, origin)


def find_ended_monitors(session: Session, names: Iterable[str]) -> list[str]:
    """Return the active freshness monitors of groups whose nodes limit no age of their rows."""
    ended = []
    with session.registry.reading() as connection:
        for monitor in map(monitor_name, names):
            registered = jobs.find(connection, monitor)
            if registered is None or registered.paused:
                continue
            if isinstance(registered.spec.work, MonitorWork):
                ended.append(monitor)
    return ended
