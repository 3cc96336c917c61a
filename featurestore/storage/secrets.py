"""The values behind references to secrets, read at the moment when they are needed."""

from __future__ import annotations

import os

from featurestore.errors import ConfigurationError, StorageError
from featurestore.model.secrets import SecretReference
from featurestore.storage import files


def resolve_secret(reference: SecretReference) -> str:
    """Return the secret that a reference leads to, without the line end of a file.

    Raises:
        ConfigurationError: The variable is not set, or the file cannot be read or is empty. The
            text names the reference, never what it leads to.
    """
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
