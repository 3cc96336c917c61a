"""Incidents of jobs: messages when they begin and end, reminders, and their delivery.

An incident adds messages to the outbox in the transaction of its job, so that a crash loses none.
A process claims a message before it sends it, so that the message is sent once, and retries until
it is delivered. Other processes take over the claims of dead processes. A message is only sent
again if a process died after sending it and before recording the delivery. It then has the same id
(``Idempotency-Key``, ``Message-ID``), so that receivers can detect duplicates.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from sqlalchemy.engine import Connection

from featurestore.alerts.channels import SECONDS, NotDelivered, deliver, is_trusted
from featurestore.errors import RegistryError, StorageError
from featurestore.model import times
from featurestore.model.alert import Channel, Event
from featurestore.model.job import JobSpec
from featurestore.recovery import liveness
from featurestore.registry import alerts
from featurestore.registry.alerts import LONGEST_WAIT, Outgoing
from featurestore.registry.stored_errors import text_for_readers
from featurestore.session import Session

_log = logging.getLogger("featurestore.alerts")
_FIRST_WAIT = timedelta(seconds=10)
# Maximum number of messages per call; the next call sends the others.
_BATCH_SIZE = 20
# Time limit of a call that sends messages after other work.
SEND_SECONDS = 30.0

# The holders of claims in this process that are sending now.
_active_holders: set[str] = set()

FAILURE, VALIDATION, PUBLICATION = "failure", "validation", "publication"


def update_incidents(
    connection: Connection,
    spec: JobSpec,
    present: Mapping[str, Sequence[str]],
    *,
    families: Sequence[str] | None = None,
    lasting: Mapping[str, Sequence[str]] | None = None,
    reason: str = "",
) -> None:
    """Update the open incidents from the current problems, and queue messages.

    An incident that begins or ends has a message. A reminder describes the open incidents of a job
    after a time without any message about the job, so it never accompanies another message. The
    caller's transaction also records the problems, so that both are atomic.

    Args:
        connection: The transaction.
        spec: The job with its channels.
        present: ``{family: lines of text}`` for current problems, such as "drift" or "volume".
        families: The evaluated families; None for all. Incidents of other families do not change.
        lasting: ``{family: lines for reminders}`` for families whose incidents do not change.
        reason: The reason for ended incidents, for the message.
    """
    if not spec.alerts.channels:
        return
    now = times.utc_now()
    alerts.lock_incidents(connection, spec.name)
    open_incidents = alerts.open_incidents(connection, spec.name)
    started = {family: lines for family, lines in present.items() if family not in open_incidents}
    lines_now = {**(lasting or {}), **present}
    # A problem that was not evaluated has not ended.
    evaluated = open_incidents if families is None else families
    ended = [family for family in open_incidents if family in evaluated and family not in lines_now]
    reminders = {family: lines_now[family] for family in open_incidents if family in lines_now}
    last_message = max((incident.reminded for incident in open_incidents.values()), default=now)
    remind = spec.alerts.remind
    is_due = remind is not None and now - last_message >= remind
    if started:
        alerts.add_incidents(connection, spec.name, started, now)
        _queue_message(connection, spec, "begin", started)
    if ended:
        end(connection, spec, ended, reason=reason)
    if reminders and is_due and not started and not ended:
        _queue_message(connection, spec, "reminder", reminders)


def end(connection: Connection, spec: JobSpec, families: Collection[str], *, reason: str) -> None:
    """End the open incidents of some families, and queue a message."""
    alerts.lock_incidents(connection, spec.name)
    open_incidents = alerts.open_incidents(connection, spec.name)
    ended = {family: incident for family, incident in open_incidents.items() if family in families}
    if not ended:
        return
    alerts.close_incidents(connection, ended.values(), times.utc_now())
    text = f": {reason}" if reason else ""
    lines = {
        family: [f"{family}, since {incident.began.isoformat()}{text}"]
        for family, incident in ended.items()
    }
    _queue_message(connection, spec, "end", lines)


def _queue_message(
    connection: Connection, spec: JobSpec, event: Event, lines: Mapping[str, Sequence[str]]
) -> None:
    """Queue a message, and restart the time until the next reminder of the job."""
    # A reminder that could not be delivered would arrive together with this newer message.
    alerts.remove_waiting_reminders(connection, spec.name)
    open_incidents = alerts.open_incidents(connection, spec.name)
    alerts.record_reminders(connection, open_incidents.values(), times.utc_now())
    notes = [
        f"{family} continues, since {incident.began.isoformat()}"
        for family, incident in open_incidents.items()
        if family not in lines
    ]
    alerts.enqueue_alert(connection, event, spec.name, lines, spec.alerts.channels, notes=notes)


def send_waiting(session: Session, *, seconds: float = SEND_SECONDS) -> int:
    """Send the due messages within ``seconds``; return the number of delivered messages.

    Channel failures neither raise nor block. Undelivered messages are retried by a later call.
    """
    try:
        return _send_waiting(session, time.monotonic() + seconds)
    except (RegistryError, StorageError) as error:
        _log.warning("alerts could not be sent, and remain queued: %s", error.message)
        return 0


def _send_waiting(session: Session, deadline: float) -> int:
    """Claim and send the due messages of trusted channels until a deadline."""
    with session.registry.reading() as connection:
        channels = {channel.name: channel for channel in alerts.channels(connection)}
        untrusted = [
            channel.name for channel in channels.values() if not is_trusted(session, channel)
        ]
        # Messages of other machines' channels would fill the batch at each call.
        messages = alerts.due_messages(connection, limit=_BATCH_SIZE, excluded_channels=untrusted)
    if untrusted:
        _log.info(
            "skipping alert channels that were not added on this machine: %s", ", ".join(untrusted)
        )
    if not messages:
        return 0
    failing_channels = set()
    delivered = 0
    # The claims of a process without a heartbeat are taken over by other processes.
    with liveness.heartbeat(session.registry, session.location) as owner:
        holder = f"{owner}/{uuid.uuid4().hex}"
        _active_holders.add(holder)
        try:
            for message in messages:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                # A receiver that fails must not delay the messages to all others.
                if message.channel in failing_channels:
                    continue
                channel = channels.get(message.channel)
                is_delivered = _send(session, message, channel, holder, remaining)
                if is_delivered is False:
                    failing_channels.add(message.channel)
                delivered += bool(is_delivered)
        finally:
            _active_holders.discard(holder)
    return delivered


def _send(
    session: Session, message: Outgoing, channel: Channel | None, holder: str, seconds: float
) -> bool | None:
    """Send a message; return whether it was delivered, None if another process is sending it."""
    # The claim is committed before the message is sent, so that no other process sends it.
    if not _claim(session, message, holder):
        return None
    try:
        if channel is None:
            raise NotDelivered(f"unknown channel {message.channel!r}")
        limit = min(seconds, SECONDS)
        deliver(channel, message.alert, location=session.location, seconds=limit)
    except (NotDelivered, RegistryError) as error:
        # The exponent is limited, because the product would overflow a timedelta after many
        # attempts.
        wait = min(_FIRST_WAIT * 2 ** min(message.attempts, 10), LONGEST_WAIT)
        _log.warning("alert to %s was not delivered: %s", message.channel, error)
        reason = text_for_readers(session.registry, str(error)).message
        with session.registry.transaction() as connection:
            alerts.record_failed_delivery(connection, message, reason, wait, holder=holder)
            alerts.defer_channel(connection, message.channel, _FIRST_WAIT)
        return False
    with session.registry.transaction() as connection:
        alerts.record_delivery(connection, message)
    return True


def _claim(session: Session, message: Outgoing, holder: str) -> bool:
    """Claim a message; return False if it is being sent."""
    owner, current_owner = (text.partition("/")[0] for text in (holder, message.holder or ""))
    with session.registry.transaction() as connection:
        # A claim of this process remains if the registry failed after the message was sent. Without
        # this condition, the message would never be sent again.
        if current_owner == owner:
            is_active = message.holder in _active_holders
        else:
            is_active = liveness.is_alive(connection, session.location, current_owner)
        return not is_active and alerts.claim_message(connection, message, holder)
