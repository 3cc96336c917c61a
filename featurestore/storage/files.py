"""JSON files, and hashes of files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from featurestore.errors import StorageError
from featurestore.storage import storage_for


def write_json(path: str, data: Mapping[str, Any]) -> None:
    """Write a JSON object to a file atomically, indented and with its keys in order."""
    storage_for(path).write_atomically(path, json_bytes(data))


def replace_json(path: str, data: Mapping[str, Any]) -> None:
    """Replace a JSON file, so that readers see either the old or the new content.

    The file is not synced, since syncing takes most of the time of a write. Use it for state that
    is not needed after a crash of the machine.
    """
    storage_for(path).replace(path, json_bytes(data))


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """Encode a JSON object as bytes, indented and with its keys in order."""
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def read_json(path: str) -> Any:
    """Return the value that a JSON file contains."""
    try:
        return json.loads(storage_for(path).read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"The file {path!r} is damaged: {error}.", hint="restore it from a copy"
        ) from error


def sha256(path: str) -> str:
    """Return the SHA-256 digest of a file."""
    digest = hashlib.sha256()
    for chunk in storage_for(path).read_chunks(path):
        digest.update(chunk)
    return digest.hexdigest()
