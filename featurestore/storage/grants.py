"""Grants: permission from a user of this machine for a store to use files, secrets and commands.

A store may come from an untrusted source, so code, secrets, servers and commands that it refers to
are used only if they were registered on this machine. Registration writes a grant to the state
directory (``$XDG_STATE_HOME/featurestore``, or ``~/.local/state/featurestore``), with which the
request of the store is compared before use. A secret reference is resolved only for the address in
its grant.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from featurestore.errors import ConfigurationError, StorageError
from featurestore.model.names import SecretReference
from featurestore.storage import files

_SECRETS = "allowed-secrets"


def write_grant(kind: str, location: str, name: str, grant: Mapping[str, Any]) -> None:
    """Record a registration on this machine, under a name, for the store at ``location``."""
    files.write_json(_path(kind, location, name), grant)


def find_grant(kind: str, location: str, name: str) -> dict[str, Any] | None:
    """Return the grant that was registered under a name, or None if it does not exist."""
    path = _path(kind, location, name)
    if not files.exists(path):
        return None
    grant = files.read_json(path)
    return grant if isinstance(grant, dict) else None


def _path(kind: str, location: str, name: str) -> str:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    # Resolved, so that a store has the same grants through a symbolic link.
    key = hashlib.sha256(f"{files.resolve(location)}\0{name}".encode()).hexdigest()
    return os.path.join(state, "featurestore", kind, f"{key}.json")


def allow_secret(reference: SecretReference, *, location: str, name: str, uri: str) -> None:
    """Allow a store to send a secret from this machine to the address of a source or channel."""
    grant = {"location": location, "name": name, "uri": uri, "secret": str(reference)}
    write_grant(_SECRETS, location, name, grant)


def resolve_secret(reference: SecretReference, *, location: str, name: str, uri: str) -> str:
    """Return the secret that a reference refers to, without a trailing line break.

    Args:
        reference: The environment variable or file that contains the secret.
        location: The store that uses the secret.
        name: The registered name of the source or channel.
        uri: The address to which the secret will be sent.

    Raises:
        ConfigurationError: The name was not registered with this address and reference on this
        machine, the variable is not set, or the file is empty or cannot be read. The message
        contains the reference, never the secret.
    """
    grant = find_grant(_SECRETS, location, name)
    # Otherwise a store could send a registered secret to an address of its own choice.
    if grant is None or (grant.get("uri"), grant.get("secret")) != (uri, str(reference)):
        raise ConfigurationError(
            f"The store at {location} uses the secret {reference} for {name!r}, which was not "
            "registered with it on this machine.",
            hint=f"if you trust the store, register {name!r} again on this machine",
        )
    if reference.kind == "env":
        value = os.environ.get(reference.name, "")
        advice = f"export {reference.name}=..."
    else:
        value = _read_file(reference)
        advice = f"write the secret into {reference.name}"
    if not value:
        raise ConfigurationError(f"The secret {reference} is empty or not set.", hint=advice)
    return value


def _read_file(reference: SecretReference) -> str:
    try:
        return files.read_text(os.path.expanduser(reference.name)).rstrip("\r\n")
    except (StorageError, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"The secret {reference} cannot be read: {type(error).__name__}.",
            hint=f"check that {reference.name} exists, is readable, and is UTF-8 text",
        ) from error
