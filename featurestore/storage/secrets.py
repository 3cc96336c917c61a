"""The values behind references to secrets, read at the moment when they are needed.

A store that comes from elsewhere may name any variable or file of this machine and any server to
send it to. So a reference is followed only for the address for which somebody gave it on this
machine (``storage/receipts.py``).
"""

from __future__ import annotations

import os

from featurestore.errors import ConfigurationError, StorageError
from featurestore.model.secrets import SecretReference
from featurestore.storage import files
from featurestore.storage.receipts import find_receipt, write_receipt

_RECEIPTS = "allowed-secrets"


def allow_secret(reference: SecretReference, *, location: str, name: str, uri: str) -> None:
    """Allow a store on this machine to send a secret to an address: that of a source or channel."""
    facts = {"location": location, "name": name, "uri": uri, "secret": str(reference)}
    write_receipt(_RECEIPTS, location, name, facts)


def resolve_secret(reference: SecretReference, *, location: str, name: str, uri: str) -> str:
    """Return the secret that a reference leads to, without the line end of a file.

    Args:
        reference: Where the secret is.
        location: The store that asks for it.
        name: The source or channel that it is for, as it was registered.
        uri: The address that it will be sent to.

    Raises:
        ConfigurationError: Nobody registered the name with this address and reference on this
            machine, the variable is not set, or the file cannot be read or is empty. The text names
            the reference, never what it leads to.
    """
    receipt = find_receipt(_RECEIPTS, location, name)
    if receipt is None or (receipt.get("uri"), receipt.get("secret")) != (uri, str(reference)):
        raise ConfigurationError(
            f"The store at {location} asks for the secret {reference} for {name!r}, which was not "
            "registered with it on this machine.",
            hint=f"if you trust the store, register {name!r} once more here",
        )
    if reference.kind == "env":
        value = os.environ.get(reference.name, "")
        advice = f"export {reference.name}=..."
    else:
        value = _text_of(reference)
        advice = f"write the secret into {reference.name}"
    if not value:
        raise ConfigurationError(f"The secret {reference} is empty or not set.", hint=advice)
    return value


def _text_of(reference: SecretReference) -> str:
    try:
        return files.read_text(os.path.expanduser(reference.name)).rstrip("\r\n")
    except (StorageError, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"The secret {reference} cannot be read: {type(error).__name__}.",
            hint=f"is {reference.name} there, readable for you, and a text?",
        ) from error
