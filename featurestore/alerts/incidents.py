"""One message when something begins, one when it ends, reminders between: never one per window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
) -> None:
    """Compare what is wrong now with what was, and put the messages into the outbox.

    In the transaction that records what is wrong, so that neither is ever there without the other.

    Args:
        connection: The transaction.
        spec: The job, which names the channels.
        present: ``{family: lines that say what is wrong}``, such as "drift" or "volume".
        families: The families that were looked at; None: all. Others neither begin nor end.
    """
    if not spec.alert:
        return
    now = times.utc_now()
    known = alerts.open_incidents(connection, spec.name)
    begun = {family: lines for family, lines in present.items() if family not in known}
    ended, old = {}, {}
    for family, incident in known.items():
        looked_at = families is None or family in families
        if family not in present and looked_at:
            ended[family] = incident
        elif family in present and _is_old(spec, now - incident.reminded):
            old[family] = incident
    if begun:
        alerts.begin(connection, spec.name, begun, now)
        alerts.send(connection, "begin", spec.name, begun, spec.alert)
    if ended:
        alerts.end(connection, ended.values(), now)
        lines = {family: [f"since {each.began.isoformat()}"] for family, each in ended.items()}
        alerts.send(connection, "end", spec.name, lines, spec.alert)
    if old:
        alerts.remind(connection, old.values(), now)
        told = {family: present[family] for family in old}
        alerts.send(connection, "reminder", spec.name, told, spec.alert)


def _is_old(spec: JobSpec, age: timedelta) -> bool:
    return spec.remind is not None and age >= spec.remind
