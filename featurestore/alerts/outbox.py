"""Delivery from the outbox: one process claims a message, with retries until delivery.

A message is written in the transaction of its incident, so that no crash loses it. A sender claims a
message first, so that it is not sent twice; the claim of a dead process is taken over. A message is
only repeated if a process died after sending it and before recording that; it then has the same id
(``Idempotency-Key``, ``Message-ID``), by which receivers can recognize duplicates.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta

from featurestore.alerts.channels import SECONDS, NotDelivered, deliver, is_trusted
from featurestore.errors import RegistryError, StorageError
from featurestore.model.alert import Channel
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
        messages = alerts.waiting(connection, limit=_BATCH_SIZE, besides=untrusted)
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
            alerts.failed(connection, message, str(error), wait)
        return False
    with session.registry.transaction() as connection:
        alerts.delivered(connection, message)
    return True


def _claim(session: Session, message: Outgoing, holder: str) -> bool:
    with session.registry.transaction() as connection:
        if message.holder is not None:
            owner = message.holder.partition("/")[0]
            if liveness.is_alive(connection, session.location, owner):
                return False
        return alerts.take(connection, message, holder)
