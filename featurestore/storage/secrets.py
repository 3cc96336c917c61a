"""The values of secret references, read when they are used.

A store from elsewhere may name any variable or file of this machine and any server to send it to.
So a reference is resolved only for the address for which it was registered on this machine
(``storage/grants.py``).
"""

from __future__ import annotations

import os

from featurestore.errors import ConfigurationError, StorageError
from featurestore.model.names import SecretReference
from featurestore.storage import files
from featurestore.storage.grants import find_grant, write_grant

_GRANT_KIND = "allowed-secrets"


def allow_secret(reference: SecretReference, *, location: str, name: str, uri: str) -> None:
    """Allow a store on this machine to send a secret to the address of a source or channel."""
    grant = {"location": location, "name": name, "uri": uri, "secret": str(reference)}
    write_grant(_GRANT_KIND, location, name, grant)


def resolve_secret(reference: SecretReference, *, location: str, name: str, uri: str) -> str:
    """Return the value of a secret reference, without the line end of a file.

    Args:
        reference: The variable or file of the secret.
        location: The store that uses it.
        name: The registered name of the source or channel.
        uri: The address to which it will be sent.

    Raises:
        ConfigurationError: The name was not registered with this address and reference on this
            machine, the variable is not set, or the file cannot be read or is empty. The text
            contains the reference, never the secret.
    """
    grant = find_grant(_GRANT_KIND, location, name)
    if grant is None or (grant.get("uri"), grant.get("secret")) != (uri, str(reference)):
        raise ConfigurationError(
            f"The store at {location} uses the secret {reference} for {name!r}, which was not "
            "registered with it on this machine.",
            hint=f"if you trust the store, register {name!r} once more here",
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
            hint=f"is {reference.name} there, readable for you, and a text?",
        ) from error
