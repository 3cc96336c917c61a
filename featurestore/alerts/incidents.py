"""Incidents: a message at the begin and at the end, and reminders in between."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy.engine import Connection

from featurestore.model import times
from featurestore.model.job import JobSpec
from featurestore.registry import alerts

FAILURE, VALIDATION = "failure", "validation"


def update(
    connection: Connection,
    spec: JobSpec,
    present: Mapping[str, Sequence[str]],
    *,
    families: Sequence[str] | None = None,
    lasting: Mapping[str, Sequence[str]] | None = None,
    reason: str = "",
) -> None:
    """Compare current problems with open incidents, and put messages into the outbox.

    This happens in the transaction that records the problems, so that both are atomic.

    Args:
        connection: The transaction.
        spec: The job with its channels.
        present: ``{family: lines of text}`` of current problems, such as "drift" or "volume".
        families: The evaluated families; None: all. Incidents of other families do not change.
        lasting: ``{family: lines for reminders}`` of families whose incidents do not change.
        reason: The reason why incidents end, for the message.
    """
    if not spec.alert:
        return
    now = times.utc_now()
    open_incidents = alerts.open_incidents(connection, spec.name)
    started = {family: lines for family, lines in present.items() if family not in open_incidents}
    ended, overdue = {}, {}
    lines_now = {**(lasting or {}), **present}
    for family, incident in open_incidents.items():
        is_evaluated = families is None or family in families
        if family not in lines_now and is_evaluated:
            ended[family] = incident
        elif (
            family in lines_now
            and spec.remind is not None
            and now - incident.reminded >= spec.remind
        ):
            overdue[family] = incident
    if started:
        alerts.begin(connection, spec.name, started, now)
        alerts.send(connection, "begin", spec.name, started, spec.alert)
    if ended:
        _end(connection, spec, ended, reason)
    if overdue:
        alerts.remind(connection, overdue.values(), now)
        reminders = {family: lines_now[family] for family in overdue}
        alerts.send(connection, "reminder", spec.name, reminders, spec.alert)


def end(connection: Connection, spec: JobSpec, families: Collection[str], *, reason: str) -> None:
    """End the open incidents of families, and put a message into the outbox."""
    open_incidents = alerts.open_incidents(connection, spec.name)
    ended = {family: incident for family, incident in open_incidents.items() if family in families}
    if ended:
        _end(connection, spec, ended, reason)


def _end(
    connection: Connection, spec: JobSpec, ended: Mapping[str, alerts.Incident], reason: str
) -> None:
    alerts.end(connection, ended.values(), times.utc_now())
    lines = {}
    for family, incident in ended.items():
        text = f"{family}, since {incident.began.isoformat()}"
        lines[family] = [f"{text}: {reason}" if reason else text]
    alerts.send(connection, "end", spec.name, lines, spec.alert)
