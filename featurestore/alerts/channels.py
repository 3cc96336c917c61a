"""Channels of a store, and which of them this machine may use.

A registry may come from elsewhere, and a channel in it says which program to run, or to which
address to send what an environment variable holds. So a channel is used only where somebody added
it: that writes a receipt into this machine's state directory, as registering a job does, and what
the registry says is compared with it before anything is sent.
"""

from __future__ import annotations

import hashlib
import json
import os

from featurestore.errors import InvalidArgument, StorageError, did_you_mean, listing
from featurestore.model.alert import Channel, checked_channel
from featurestore.registry import alerts
from featurestore.session import Session
from featurestore.storage import files


def add_channel(session: Session, name: str, uri: str, *, secret: str | None = None) -> Channel:
    """Record a channel, and that this machine may use it."""
    channel = checked_channel(name, uri, secret)
    with session.registry.transaction() as connection:
        alerts.put_channel(connection, channel)
    files.write_json(_receipt_path(session.location, name), {"sha256": _hash(channel)})
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
    path = _receipt_path(session.location, channel.name)
    if not files.exists(path):
        return False
    try:
        receipt = files.read_json(path)
    except (StorageError, ValueError):
        return False
    return bool(receipt.get("sha256") == _hash(channel))


def _hash(channel: Channel) -> str:
    told = json.dumps([channel.name, channel.uri, channel.secret])
    return hashlib.sha256(told.encode()).hexdigest()


def _receipt_path(location: str, name: str) -> str:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    key = hashlib.sha256(f"{os.path.realpath(location)}\0{name}".encode()).hexdigest()
    return os.path.join(state, "featurestore", "alert-channels", f"{key}.json")
