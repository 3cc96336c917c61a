"""Messages are sent from the outbox: taken by one process, tried again until they arrive.

A message is there from the transaction that it tells of on, so that no crash loses it. Who sends it
takes it first, so that no two send it; when a process dies with a message in its hands, another
takes it over. Only where it died after sending and before saying so does a message go out twice,
with the same id (``Idempotency-Key``, ``Message-ID``), by which receivers tell that it is one.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta

from featurestore.alerts.channels import is_trusted
from featurestore.alerts.senders import SECONDS, NotDelivered, deliver
from featurestore.errors import RegistryError, StorageError
from featurestore.model.alert import Channel
from featurestore.recovery import owners
from featurestore.registry import alerts
from featurestore.registry.alerts import LONGEST_WAIT, Outgoing
from featurestore.session import Session

_log = logging.getLogger("featurestore.alerts")
_FIRST_WAIT = timedelta(seconds=10)
_AT_ONCE = 20
# How long a call that sends on the side may take.
PATIENCE = 30.0


def send_waiting(session: Session, *, seconds: float = PATIENCE) -> int:
    """Send the messages that are due, for so long; return how many arrived.

    Whatever a channel does, this neither raises nor hangs: what did not arrive is tried again, by
    whoever calls next.
    """
    try:
        return _send_waiting(session, time.monotonic() + seconds)
    except (RegistryError, StorageError) as error:
        _log.warning("alerts wait: %s", error.message)
        return 0


def _send_waiting(session: Session, until: float) -> int:
    with session.registry.reading() as connection:
        channels = {each.name: each for each in alerts.channels(connection)}
        foreign = [each.name for each in channels.values() if not is_trusted(session, each)]
        found = alerts.waiting(connection, limit=_AT_ONCE, besides=foreign)
    if foreign:
        _log.info("channels that were not added on this machine: %s", ", ".join(foreign))
    if not found:
        return 0
    arrived = 0
    with owners.heartbeat(session.registry, session.location) as owner:
        holder = f"{owner}/{threading.get_ident()}"
        for message in found:
            left = until - time.monotonic()
            if left <= 0:
                break
            arrived += _send(session, message, channels.get(message.channel), holder, left)
    return arrived


def _send(
    session: Session, message: Outgoing, channel: Channel | None, holder: str, seconds: float
) -> bool:
    """Send one message if nobody else does; return whether it arrived."""
    if not _taken(session, message, holder):
        return False
    try:
        if channel is None:
            raise NotDelivered(f"there is no channel {message.channel!r}")
        limit = min(seconds, SECONDS)
        deliver(channel, message.alert, location=session.location, seconds=limit)
    except (NotDelivered, RegistryError) as error:
        wait = min(_FIRST_WAIT * 2 ** min(message.attempts, 10), LONGEST_WAIT)
        _log.warning("alert to %s did not arrive: %s", message.channel, error)
        with session.registry.transaction() as connection:
            alerts.failed(connection, message, str(error), wait)
        return False
    with session.registry.transaction() as connection:
        alerts.delivered(connection, message)
    return True


def _taken(session: Session, message: Outgoing, holder: str) -> bool:
    with session.registry.transaction() as connection:
        if message.holder is not None:
            owner = message.holder.partition("/")[0]
            if owners.is_alive(connection, session.location, owner):
                return False
        return alerts.take(connection, message, holder)
