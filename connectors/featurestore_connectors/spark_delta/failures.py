"""Failures of Spark as errors of the store: what an executor raised on purpose comes back as it was raised."""

from __future__ import annotations

import base64
import errno
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from featurestore import errors
from featurestore.errors import EngineError, FeatureStoreError, StorageError, TableDamaged

_MARK = "featurestore-error:"
_CARRIED = re.compile(rf"{_MARK}([A-Za-z0-9+/=]+):")
_MISSING = re.compile(r"(?:File (?:does not exist: )?|file:)(/\S+?\.(?:parquet|json))")
_UNREADABLE = (
    "FAILED_READ_FILE",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
    "DELTA_LOG_FILE_NOT_FOUND",
    "is not a Parquet file",
    "FileNotFoundException",
    "Malformed",
)


class Carried(RuntimeError):
    """An error of the store on its way from an executor: only its text survives the journey."""

    def __init__(self, error: FeatureStoreError) -> None:
        packed = json.dumps([type(error).__name__, error.message, error.hint])
        super().__init__(f"{_MARK}{base64.b64encode(packed.encode()).decode()}: {error}")


@contextmanager
def carrying() -> Iterator[None]:
    """Wrap work on an executor so that the store's errors reach the driver whole."""
    try:
        yield
    except FeatureStoreError as error:
        raise Carried(error) from error


@contextmanager
def translated() -> Iterator[None]:
    """Wrap work on the driver: Spark's failures leave as errors of the store.

    Raises:
        FeatureStoreError: As raised on an executor; ``TableDamaged`` and ``StorageError`` for files and disks;
            else ``EngineError`` with the first line of what Spark said.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise as_store_error(error) from error


def as_store_error(error: BaseException) -> FeatureStoreError:
    """Return the error of the store that a failure of Spark means."""
    text = full_text(error)
    carried = _carried(text)
    if carried is not None:
        return carried
    if "No space left on device" in text or f"Errno {errno.ENOSPC}" in text:
        return StorageError(
            "No space left on the device: nothing of this write is visible.",
            hint="free space, then repeat",
        )
    if any(sign in text for sign in _UNREADABLE):
        found = _MISSING.search(text)
        what = f"The file {found.group(1)!r}" if found else "A file of the table"
        return TableDamaged(f"{what} is missing or cannot be read: {first_line(error)}")
    return EngineError(f"Spark failed: {first_line(error)}")


def full_text(error: BaseException) -> str:
    """Return all that Spark said, the Java side's causes included."""
    parts = [str(error)]
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while java is not None and len(parts) < 10:
        parts.append(str(java.toString()))
        java = java.getCause()
    return "\n".join(parts)


def first_line(error: BaseException) -> str:
    """Return the sentence in which Spark says what was wrong."""
    _, traceback, raised = full_text(error).rpartition("Traceback (most recent call last):\n")
    if traceback:
        # A traceback of an executor: frames are indented, what was raised is not.
        return next(
            (line for line in raised.splitlines() if line and not line.startswith(" ")),
            "a Python worker failed",
        )
    first = _first_of(str(error)) or type(error).__name__
    if first.startswith("An error occurred while calling"):
        return _first_of(full_text(error).splitlines()[-1]) or first
    return first


def _first_of(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _carried(text: str) -> FeatureStoreError | None:
    found = _CARRIED.search(text)
    if found is None:
        return None
    try:
        name, message, hint = json.loads(base64.b64decode(found.group(1)))
    except ValueError:
        return None  # a text of the user's that looks like ours
    kind = getattr(errors, name, FeatureStoreError)
    return kind(message, hint=hint) if _is_error(kind) else FeatureStoreError(message, hint=hint)


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, FeatureStoreError)
