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


# -- transition: callers change to the methods of Storage ---------------------------------

from featurestore.storage.location import local_directory, location_of  # noqa: E402, F401
from featurestore.storage.temporary import remove_temporary, temporary_directory  # noqa: E402, F401


def upload(moves: Any) -> None:
    for source, target in moves:
        storage_for(target).upload(source, target)


def sync(paths: Any) -> None:
    storage_for("").sync([path for path in paths if storage_for(path).is_local])


def ensure_writable(directory: Any) -> Any:
    return storage_for(directory).ensure_writable(directory)


def is_writable(directory: Any) -> Any:
    return storage_for(directory).is_writable(directory)


def make_directory(path: Any, *, durable: Any = False) -> Any:
    return storage_for(path).make_directory(path, durable=durable)


def write_atomically(path: Any, data: Any) -> Any:
    return storage_for(path).write_atomically(path, data)


def write_new(path: Any, data: Any) -> Any:
    return storage_for(path).write_new(path, data)


def growing_file(path: Any) -> Any:
    return storage_for(path).growing_file(path)


def rename(source: Any, target: Any) -> Any:
    return storage_for(source).rename(source, target)


def create_link(source: Any, target: Any) -> Any:
    return storage_for(source).create_link(source, target)


def remove(path: Any, *, below: Any) -> Any:
    return storage_for(path).remove(path, below=below)


def read_bytes(path: Any) -> Any:
    return storage_for(path).read_bytes(path)


def read_text(path: Any) -> Any:
    return storage_for(path).read_text(path)


def read_into(path: Any, start: Any, buffers: Any) -> Any:
    return storage_for(path).read_into(path, start, buffers)


def read_chunks(path: Any, *, start: Any = 0) -> Any:
    return storage_for(path).read_chunks(path, start=start)


def open_complete(path: Any) -> Any:
    return storage_for(path).open_complete(path)


def open_ranges(path: Any) -> Any:
    return storage_for(path).open_ranges(path)


def exists(path: Any) -> Any:
    return storage_for(path).exists(path)


def is_readable(path: Any) -> Any:
    return storage_for(path).is_readable(path)


def is_file(path: Any) -> Any:
    return storage_for(path).is_file(path)


def is_directory(path: Any) -> Any:
    return storage_for(path).is_directory(path)


def is_link(path: Any) -> Any:
    return storage_for(path).is_link(path)


def is_same(first_path: Any, second_path: Any) -> Any:
    return storage_for(first_path).is_same(first_path, second_path)


def is_below(path: Any, directory: Any) -> Any:
    return storage_for(path).is_below(path, directory)


def resolve(path: Any) -> Any:
    return storage_for(path).resolve(path)


def resolve_inside(directory: Any, relative: Any) -> Any:
    return storage_for(directory).resolve_inside(directory, relative)


def status(path: Any) -> Any:
    return storage_for(path).status(path)


def size(path: Any) -> Any:
    return storage_for(path).size(path)


def list_directory(path: Any, *, after: Any = "") -> Any:
    return storage_for(path).list_directory(path, after=after)


def walk(directory: Any, *, enter: Any = None) -> Any:
    return storage_for(directory).walk(directory, enter=enter)


def walk_with_status(directory: Any) -> Any:
    return storage_for(directory).walk_with_status(directory)


def list_sizes(directory: Any) -> Any:
    return storage_for(directory).list_sizes(directory)


def cached_listing(directory: Any, *, after: Any = "") -> Any:
    return storage_for(directory).cached_listing(directory, after=after)


def last_write_time(path: Any) -> Any:
    return storage_for(path).last_write_time(path)


def current_time(location: Any) -> Any:
    return storage_for(location).current_time(location)
