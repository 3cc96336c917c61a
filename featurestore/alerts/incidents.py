"""Incidents: one message when something begins, one when it ends, reminders while it lasts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

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
    """Compare what is wrong now with the open incidents, and put the messages into the outbox.

    In the transaction that records what is wrong, so that neither is ever there without the other.

    Args:
        connection: The transaction.
        spec: The job, which names the channels.
        present: ``{family: lines that say what is wrong}``, such as "drift" or "volume".
        families: The families that were judged; None: all. Others neither begin nor end.
        lasting: ``{family: lines for reminders}`` of families whose incidents neither begin nor
            end now.
        reason: Why incidents end, for the message.
    """
    if not spec.alert:
        return
    now = times.utc_now()
    known = alerts.open_incidents(connection, spec.name)
    begun = {family: lines for family, lines in present.items() if family not in known}
    ended, old = {}, {}
    lines_now = {**(lasting or {}), **present}
    for family, incident in known.items():
        is_judged = families is None or family in families
        if family not in lines_now and is_judged:
            ended[family] = incident
        elif family in lines_now and _is_old(spec, now - incident.reminded):
            old[family] = incident
    if begun:
        alerts.begin(connection, spec.name, begun, now)
        alerts.send(connection, "begin", spec.name, begun, spec.alert)
    if ended:
        _end(connection, spec, ended, reason)
    if old:
        alerts.remind(connection, old.values(), now)
        reminders = {family: lines_now[family] for family in old}
        alerts.send(connection, "reminder", spec.name, reminders, spec.alert)


def end(connection: Connection, spec: JobSpec, families: Collection[str], *, reason: str) -> None:
    """End the open incidents of some families, and put the message into the outbox."""
    known = alerts.open_incidents(connection, spec.name)
    ended = {family: incident for family, incident in known.items() if family in families}
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


def _is_old(spec: JobSpec, age: timedelta) -> bool:
    return spec.remind is not None and age >= spec.remind
