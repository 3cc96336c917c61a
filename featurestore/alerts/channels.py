"""Alert channels of a store, and the grants of this machine to use them.

A registry may come from another machine, and a channel in it names a program to run, or an address
that receives the content of an environment variable. Therefore a channel is only used on machines
where it was added: adding writes a grant into the state directory of the machine, as registering a
job does, and the registry is compared with the grant before anything is sent.
"""

from __future__ import annotations

import hashlib
import json

from featurestore.alerts.senders import secret_name
from featurestore.errors import InvalidArgument, StorageError, did_you_mean, listing
from featurestore.model.alert import Channel, validate_channel
from featurestore.model.secrets import parse_secret
from featurestore.registry import alerts
from featurestore.session import Session
from featurestore.storage.grants import find_grant, write_grant
from featurestore.storage.secrets import allow_secret

_RECEIPTS = "alert-channels"


def add_channel(session: Session, name: str, uri: str, *, secret: str | None = None) -> Channel:
    """Register a channel, and grant this machine its use."""
    channel = validate_channel(name, uri, secret)
    with session.registry.transaction() as connection:
        alerts.put_channel(connection, channel)
    write_grant(_RECEIPTS, session.location, name, {"sha256": _hash(channel)})
    if secret is not None:
        reference = parse_secret(secret)
        allow_secret(reference, location=session.location, name=secret_name(channel), uri=uri)
    return channel


def remove_channel(session: Session, name: str) -> None:
    """Remove a channel; its waiting messages are not sent."""
    with session.registry.transaction() as connection:
        if alerts.remove_channel(connection, name):
            return
        names = [each.name for each in alerts.channels(connection)]
    raise InvalidArgument(
        f"Unknown alert channel {name!r}. Available: {listing(names)}.",
        hint=did_you_mean(name, names),
    )


def is_trusted(session: Session, channel: Channel) -> bool:
    """Return True if a channel was added on this machine and is unchanged in the registry."""
    if channel.scheme == "log":
        return True
    try:
        receipt = find_grant(_RECEIPTS, session.location, channel.name)
    except (StorageError, ValueError):
        return False
    return receipt is not None and receipt.get("sha256") == _hash(channel)


def _hash(channel: Channel) -> str:
    payload = json.dumps([channel.name, channel.uri, channel.secret])
    return hashlib.sha256(payload.encode()).hexdigest()
