"""Incidents of jobs: messages at the begin and the end and reminders, and their delivery.

An incident puts messages into the outbox in the transaction of its job, so that no crash loses them.
One process claims a message before it sends it, so that it is not sent twice, and retries until
delivery; the claim of a dead process is taken over. A message is only repeated if a process died
after sending it and before recording that; it then has the same id (``Idempotency-Key``,
``Message-ID``), by which receivers can recognize duplicates.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from sqlalchemy.engine import Connection

from featurestore.alerts.channels import SECONDS, NotDelivered, deliver, is_trusted
from featurestore.errors import RegistryError, StorageError
from featurestore.model import times
from featurestore.model.alert import Channel
from featurestore.model.job import JobSpec
from featurestore.recovery import liveness
from featurestore.registry import alerts
from featurestore.registry.alerts import LONGEST_WAIT, Outgoing
from featurestore.session import Session

_log = logging.getLogger("featurestore.alerts")
_FIRST_WAIT = timedelta(seconds=10)
# Messages of one call; the others wait for the next call.
_BATCH_SIZE = 20
# Time limit of a call that sends messages after its main work.
SEND_SECONDS = 30.0

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
        alerts.add_incidents(connection, spec.name, started, now)
        alerts.enqueue_alert(connection, "begin", spec.name, started, spec.alert)
    if ended:
        _end(connection, spec, ended, reason)
    if overdue:
        alerts.record_reminders(connection, overdue.values(), now)
        reminders = {family: lines_now[family] for family in overdue}
        alerts.enqueue_alert(connection, "reminder", spec.name, reminders, spec.alert)


def end(connection: Connection, spec: JobSpec, families: Collection[str], *, reason: str) -> None:
    """End the open incidents of families, and put a message into the outbox."""
    open_incidents = alerts.open_incidents(connection, spec.name)
    ended = {family: incident for family, incident in open_incidents.items() if family in families}
    if ended:
        _end(connection, spec, ended, reason)


def _end(
    connection: Connection, spec: JobSpec, ended: Mapping[str, alerts.Incident], reason: str
) -> None:
    alerts.close_incidents(connection, ended.values(), times.utc_now())
    lines = {}
    for family, incident in ended.items():
        text = f"{family}, since {incident.began.isoformat()}"
        lines[family] = [f"{text}: {reason}" if reason else text]
    alerts.enqueue_alert(connection, "end", spec.name, lines, spec.alert)


def send_waiting(session: Session, *, seconds: float = SEND_SECONDS) -> int:
    """Send the due messages within ``seconds``; return the number of delivered ones.

    Failures of channels neither raise nor block. Undelivered messages are retried by a later call.
    """
    try:
        return _send_waiting(session, time.monotonic() + seconds)
    except (RegistryError, StorageError) as error:
        _log.warning("alerts wait: %s", error.message)
        return 0


def _send_waiting(session: Session, deadline: float) -> int:
    with session.registry.reading() as connection:
        channels = {each.name: each for each in alerts.channels(connection)}
        untrusted = [each.name for each in channels.values() if not is_trusted(session, each)]
        messages = alerts.due_messages(connection, limit=_BATCH_SIZE, besides=untrusted)
    if untrusted:
        _log.info("channels that were not added on this machine: %s", ", ".join(untrusted))
    if not messages:
        return 0
    delivered = 0
    with liveness.heartbeat(session.registry, session.location) as owner:
        holder = f"{owner}/{threading.get_ident()}"
        for message in messages:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            delivered += _send(session, message, channels.get(message.channel), holder, remaining)
    return delivered


def _send(
    session: Session, message: Outgoing, channel: Channel | None, holder: str, seconds: float
) -> bool:
    """Send a message unless another process does; return True if it was delivered."""
    if not _claim(session, message, holder):
        return False
    try:
        if channel is None:
            raise NotDelivered(f"unknown channel {message.channel!r}")
        limit = min(seconds, SECONDS)
        deliver(channel, message.alert, location=session.location, seconds=limit)
    except (NotDelivered, RegistryError) as error:
        wait = min(_FIRST_WAIT * 2 ** min(message.attempts, 10), LONGEST_WAIT)
        _log.warning("alert to %s was not delivered: %s", message.channel, error)
        with session.registry.transaction() as connection:
            alerts.record_failed_delivery(connection, message, str(error), wait)
        return False
    with session.registry.transaction() as connection:
        alerts.record_delivery(connection, message)
    return True


def _claim(session: Session, message: Outgoing, holder: str) -> bool:
    with session.registry.transaction() as connection:
        if message.holder is not None:
            owner = message.holder.partition("/")[0]
            if liveness.is_alive(connection, session.location, owner):
                return False
        return alerts.claim_message(connection, message, holder)
