"""Alert channels, incidents, and the outbox of alert messages."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model import display, times
from featurestore.model.alert import Alert, Channel, Event
from featurestore.model.times import from_micros, to_micros
from featurestore.registry.rows import lock, put_row, translate_parse_errors
from featurestore.registry.tables import alert_channels, incidents, outbox

# The maximum delay between attempts to send a message.
LONGEST_WAIT = timedelta(hours=1)


@dataclass(frozen=True)
class Incident:
    """An open incident."""

    id: str
    family: str
    began: datetime
    reminded: datetime


@dataclass(frozen=True)
class Outgoing:
    """A message to one channel in the outbox."""

    id: str
    channel: str
    attempts: int
    holder: str | None
    delivered: datetime | None
    error: str | None
    _message: str

    __repr__ = display.record_repr

    @property
    def alert(self) -> Alert:
        """The alert to send."""
        with translate_parse_errors(f"alert message {self.id!r}"):
            return Alert.from_text(self._message)


# -- channels -------------------------------------------------------------------------------------


def put_channel(connection: Connection, channel: Channel) -> None:
    """Add a channel, or replace the channel with the same name."""
    values = {
        "uri": channel.uri,
        "secret": channel.secret,
        "created": to_micros(times.utc_now()),
    }
    put_row(connection, alert_channels, {"name": channel.name}, values)


def remove_channel(connection: Connection, name: str) -> bool:
    """Remove a channel; return whether it existed."""
    removed = connection.execute(alert_channels.delete().where(alert_channels.c.name == name))
    return bool(removed.rowcount)


def channels(connection: Connection) -> list[Channel]:
    """List all channels, ordered by name."""
    query = sa.select(alert_channels).order_by(alert_channels.c.name)
    return [Channel(row.name, row.uri, row.secret) for row in connection.execute(query)]


# -- incidents ------------------------------------------------------------------------------------


def lock_incidents(connection: Connection, job: str) -> None:
    """Lock the incidents of a job until the end of a transaction that depends on them.

    Two runs of a job would otherwise both open an incident, and send two messages.
    """
    lock(connection, f"incidents/{job}")


def open_incidents(connection: Connection, job: str) -> dict[str, Incident]:
    """Return the open incidents of a job by family."""
    query = sa.select(incidents).where(incidents.c.job == job, incidents.c.ended.is_(None))
    return {
        row.family: Incident(row.id, row.family, from_micros(row.began), from_micros(row.reminded))
        for row in connection.execute(query)
    }


def add_incidents(connection: Connection, job: str, families: Iterable[str], now: datetime) -> None:
    """Open one incident per family."""
    for family in families:
        micros = to_micros(now)
        connection.execute(
            incidents.insert().values(
                id=uuid.uuid4().hex, job=job, family=family, began=micros, reminded=micros
            )
        )


def close_incidents(
    connection: Connection, ended_incidents: Iterable[Incident], now: datetime
) -> None:
    """Close incidents."""
    for incident in ended_incidents:
        update = incidents.update().where(incidents.c.id == incident.id)
        connection.execute(update.values(ended=to_micros(now)))


def record_reminders(
    connection: Connection, reminded_incidents: Iterable[Incident], now: datetime
) -> None:
    """Record that a reminder was sent for incidents."""
    for incident in reminded_incidents:
        update = incidents.update().where(incidents.c.id == incident.id)
        connection.execute(update.values(reminded=to_micros(now)))


# -- outbox ---------------------------------------------------------------------------------------


def enqueue_alert(
    connection: Connection,
    event: Event,
    job: str,
    lines_by_family: Mapping[str, Sequence[str]],
    channels: Iterable[str],
    *,
    notes: Sequence[str] = (),
) -> None:
    """Add one message per channel to the outbox; its last lines are the ``notes``."""
    now = times.utc_now()
    lines = [line for family in lines_by_family.values() for line in family] + list(notes)
    for channel in channels:
        # Each channel has a message of its own, because attempts and errors differ by channel.
        alert = Alert(uuid.uuid4().hex, event, job, tuple(lines_by_family), tuple(lines), now)
        connection.execute(
            outbox.insert().values(
                id=alert.id,
                channel=channel,
                message=json.dumps(alert.to_json(), ensure_ascii=False),
                created=to_micros(now),
                attempts=0,
                next_try=to_micros(now),
            )
        )


def remove_waiting_reminders(connection: Connection, job: str) -> None:
    """Remove the reminders of a job that were neither delivered nor claimed for sending."""
    # Quotes in a value are escaped, so that only the keys of a message match.
    is_reminder = outbox.c.message.contains(
        f'"event": "reminder", "job": {json.dumps(job, ensure_ascii=False)},', autoescape=True
    )
    connection.execute(
        outbox.delete().where(outbox.c.delivered.is_(None), outbox.c.holder.is_(None), is_reminder)
    )


def due_messages(
    connection: Connection, *, limit: int | None = None, excluded_channels: Iterable[str] = ()
) -> list[Outgoing]:
    """Return the messages due for sending, longest due first, except to ``excluded_channels``.

    A message whose next attempt is further away than the maximum delay is also due, because the
    clock was set back.
    """
    now = times.utc_now()
    next_try = outbox.c.next_try
    due = sa.or_(next_try <= to_micros(now), next_try > to_micros(now + LONGEST_WAIT))
    query = (
        sa.select(outbox)
        .where(outbox.c.delivered.is_(None), due, outbox.c.channel.not_in(list(excluded_channels)))
        .order_by(outbox.c.next_try, outbox.c.created)
        .limit(limit)
    )
    return [_to_outgoing(row) for row in connection.execute(query)]


def messages(connection: Connection, *, limit: int | None = None) -> list[Outgoing]:
    """List messages, newest first."""
    query = sa.select(outbox).order_by(outbox.c.created.desc()).limit(limit)
    return [_to_outgoing(row) for row in connection.execute(query)]


def claim_message(connection: Connection, message: Outgoing, holder: str) -> bool:
    """Claim a message for sending; return False if another process claimed or sent it."""
    # Another process may have claimed or sent the message since it was read, so the holder is
    # compared in the update.
    is_unclaimed = sa.and_(
        outbox.c.id == message.id,
        outbox.c.delivered.is_(None),
        outbox.c.holder.is_(None) if message.holder is None else outbox.c.holder == message.holder,
    )
    result = connection.execute(outbox.update().where(is_unclaimed).values(holder=holder))
    return bool(result.rowcount)


def record_delivery(connection: Connection, message: Outgoing) -> None:
    """Record that a message was delivered."""
    now = to_micros(times.utc_now())
    values = {"delivered": now, "holder": None, "error": None, "attempts": message.attempts + 1}
    _update_messages(connection, outbox.c.id == message.id, **values)


def record_failed_delivery(
    connection: Connection, message: Outgoing, error: str, wait: timedelta, *, holder: str
) -> None:
    """Record that a delivery failed, and when to retry it, unless another process took it over."""
    _update_messages(
        connection,
        sa.and_(outbox.c.id == message.id, outbox.c.holder == holder),
        holder=None,
        error=error[:500],
        attempts=outbox.c.attempts + 1,
        next_try=to_micros(times.utc_now() + wait),
    )


def defer_channel(connection: Connection, channel: str, wait: timedelta) -> None:
    """Send no message to a channel for some time, so that messages to others are sent first."""
    next_attempt = to_micros(times.utc_now() + wait)
    is_due = sa.and_(
        outbox.c.channel == channel,
        outbox.c.delivered.is_(None),
        outbox.c.next_try < next_attempt,
    )
    _update_messages(connection, is_due, next_try=next_attempt)


def _update_messages(
    connection: Connection, condition: sa.ColumnElement[bool], **values: object
) -> None:
    connection.execute(outbox.update().where(condition).values(**values))


def count_messages_by_channel(connection: Connection) -> dict[str, dict[str, int]]:
    """Return the numbers of delivered and waiting messages by channel."""
    query = sa.select(
        outbox.c.channel, sa.func.count(), sa.func.count(outbox.c.delivered)
    ).group_by(outbox.c.channel)
    return {
        str(channel): {
            "delivered": int(delivered_count),
            "waiting": int(total) - int(delivered_count),
        }
        for channel, total, delivered_count in connection.execute(query)
    }


def _to_outgoing(row: sa.Row[tuple[object, ...]]) -> Outgoing:
    delivered = None
    if row.delivered is not None:
        delivered = from_micros(row.delivered)
    return Outgoing(
        row.id, row.channel, row.attempts, row.holder, delivered, row.error, str(row.message)
    )
