"""JSON files that several processes and machines change without losing a change.

A change is a function of the newest content, and becomes a new file with the next number in the
folder ``<name>.revisions`` next to the file. Of several writers, one creates a number; the others
compute their changes again. Every storage can create a file exclusively, but not every one can
replace a file only if it is unchanged. The file itself is the content before the first change.
Revisions have a checksum; the file itself may have one.
"""

from __future__ import annotations

import os
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from featurestore.errors import FeatureStoreError, StorageError, WriteConflict
from featurestore.model.json_object import CHECKSUM, MalformedJson, parse_object, seal, unseal
from featurestore.storage import storage_for
from featurestore.storage.failures import translate_read_errors

Content = Mapping[str, Any]
_FILE_NAME = re.compile(r"([0-9]{8})\.json")
_ATTEMPTS = 100
# Older revisions are removed, except some: while a directory is listed, new files may be missed and
# old ones removed, so that a listing would show neither the old nor the new content.
_OLDER_REVISIONS = 16
# The number of earlier changes that a revision lists.
_LISTED_CHANGES = 64


class RevisionDamaged(StorageError):
    """A file or its newest revision does not contain what was written."""


@dataclass(frozen=True)
class Revision:
    """The newest content (None: no file), its number, and the ids of the last changes."""

    number: int
    content: Any
    changes: tuple[str, ...] = ()


def read_json(path: str) -> Any:
    """Return the newest content of a file, None if it does not exist.

    Raises:
        RevisionDamaged: The file or its newest revision is damaged.
    """
    return read_newest(path).content


@contextmanager
def translate_damage(path: str, error_type: type[FeatureStoreError], hint: str) -> Iterator[None]:
    """Translate errors while the content of a file is read and parsed to an error of its object."""
    try:
        yield
    except RevisionDamaged as error:
        raise error_type(error.message, hint=hint) from error
    except MalformedJson as error:
        raise error_type(
            f"{path!r} or its newest revision is damaged: {error}.", hint=hint
        ) from error


def paths(path: str) -> Iterator[str]:
    """Yield the paths of a file and of its revisions."""
    if storage_for(path).exists(path):
        yield path
    for number in _numbers(path):
        yield _revision_path(path, number)


def is_version_of(path: str, file_name: str) -> bool:
    """Return whether a path is a file of a name, or one of its revisions.

    >>> is_version_of("v1/described.revisions/00000003.json", "described.json")
    True
    """
    folder, name = os.path.split(path)
    if name == file_name:
        return True
    is_revision = _FILE_NAME.fullmatch(name) is not None
    return is_revision and os.path.basename(folder) == _folder(file_name)


def change_json(path: str, change: Callable[[Any], Content], *, below: str) -> Content:
    """Change the content of a file and return the new content.

    Args:
        path: The file.
        change: Returns the new content for the newest one (None: no file), without side effects. It
            is called again if another writer was faster. An equal content is not written.
        below: The location of the store, outside of which no file is removed.

    Raises:
        WriteConflict: Other writers were faster in each attempt.
    """
    for attempt in range(_ATTEMPTS):
        newest = read_newest(path)
        content = change(newest.content)
        if content == newest.content or write_next(path, newest, content, below=below):
            return content
        # Random, so that writers that lost the same race do not meet again.
        time.sleep(random.uniform(0.2, 1) * min(0.005 * 2**attempt, 0.5))
    raise WriteConflict(
        f"Other writers changed {path!r} {_ATTEMPTS} times in a row; this change was not written.",
        hint="repeat the change",
    )


def write_next(path: str, base: Revision, content: Content, *, below: str) -> bool:
    """Write the revision after ``base``; return False if another writer was faster."""
    storage = storage_for(path)
    number, change = base.number + 1, uuid.uuid4().hex
    changes = [*base.changes[1 - _LISTED_CHANGES :], change]
    revision = _revision_path(path, number)
    if not storage.write_new(revision, seal({"changes": changes, "content": content})):
        return False
    # A writer that was suspended creates a number that had existed and was removed with the old
    # revisions. Its change is valid only if the newest revision is based on it.
    if change not in read_newest(path).changes:
        storage.remove(revision, below=below)
        return False
    for old in _numbers(path):
        if old < number - _OLDER_REVISIONS:
            with suppress(StorageError):  # the next change removes it
                storage.remove(_revision_path(path, old), below=below)
    return True


def read_newest(path: str) -> Revision:
    """Return the newest revision of a file, or the file itself as number 0."""
    for _ in range(_ATTEMPTS):
        numbers = _numbers(path)
        newest = _revision_path(path, numbers[-1]) if numbers else path
        try:
            with translate_read_errors(newest):
                try:
                    data = storage_for(newest).read(newest)
                except FileNotFoundError:
                    if numbers:  # removed meanwhile, because there are newer ones
                        continue
                    return Revision(0, None)
            if not numbers:
                value = parse_object(data)
                if CHECKSUM in value:
                    unseal(data)
                    del value[CHECKSUM]
                return Revision(0, value)
            value = unseal(data)
            return Revision(numbers[-1], value["content"], tuple(map(str, value["changes"])))
        except (ValueError, LookupError, TypeError) as error:
            raise RevisionDamaged(
                f"The file {newest!r} is damaged: {error}.", hint="restore it from a copy"
            ) from error
    raise StorageError(f"{newest!r} is listed, but cannot be read.", hint="remove it")


def _numbers(path: str) -> list[int]:
    """Return the numbers of the revisions in ascending order."""
    names = map(_FILE_NAME.fullmatch, storage_for(path).list_directory(_folder(path)))
    return [int(match[1]) for match in names if match is not None]


def _folder(path: str) -> str:
    return f"{path.removesuffix('.json')}.revisions"


def _revision_path(path: str, number: int) -> str:
    return os.path.join(_folder(path), f"{number:08}.json")
