"""Channels of a store, and which of them this machine may use.

A registry may come from elsewhere, and a channel in it says which program to run, or to which
address to send what an environment variable holds. So a channel is used only where somebody added
it: that writes a receipt into this machine's state directory, as registering a job does, and what
the registry says is compared with it before anything is sent.
"""

from __future__ import annotations

import hashlib
import json

from featurestore.alerts.senders import secret_name
from featurestore.errors import InvalidArgument, StorageError, did_you_mean, listing
from featurestore.model.alert import Channel, checked_channel
from featurestore.model.secrets import parse_secret
from featurestore.registry import alerts
from featurestore.session import Session
from featurestore.storage.receipts import find_receipt, write_receipt
from featurestore.storage.secrets import allow_secret

_RECEIPTS = "alert-channels"


def add_channel(session: Session, name: str, uri: str, *, secret: str | None = None) -> Channel:
    """Record a channel, and that this machine may use it."""
    channel = checked_channel(name, uri, secret)
    with session.registry.transaction() as connection:
        alerts.put_channel(connection, channel)
    write_receipt(_RECEIPTS, session.location, name, {"sha256": _hash(channel)})
    if secret is not None:
        reference = parse_secret(secret)
        allow_secret(reference, location=session.location, name=secret_name(channel), uri=uri)
    return channel


def remove_channel(session: Session, name: str) -> None:
    """Remove a channel; messages on their way to it are not sent."""
    with session.registry.transaction() as connection:
        if alerts.remove_channel(connection, name):
            return
        known = [each.name for each in alerts.channels(connection)]
    raise InvalidArgument(
        f"There is no alert channel {name!r}; there are {listing(known)}.",
        hint=did_you_mean(name, known),
    )


def is_trusted(session: Session, channel: Channel) -> bool:
    """Tell whether a channel was added on this machine as it is in the registry now."""
    if channel.scheme == "log":
        return True
    try:
        receipt = find_receipt(_RECEIPTS, session.location, channel.name)
    except (StorageError, ValueError):
        return False
    return receipt is not None and receipt.get("sha256") == _hash(channel)


def _hash(channel: Channel) -> str:
    told = json.dumps([channel.name, channel.uri, channel.secret])
    return hashlib.sha256(told.encode()).hexdigest()
