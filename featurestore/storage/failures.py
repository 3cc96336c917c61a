"""What the system refuses of files, said with the path, the reason and a hint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from featurestore.errors import StorageError, refusal_hint


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Say of what the system refuses in the block that ``path`` cannot be written, and why."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"Cannot write {path!r}: {error.strerror or error}.",
            hint=refusal_hint(error) or "check free space and permissions",
        ) from error


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Say of what the system refuses in the block that ``path`` cannot be read, and why."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"Cannot read {path!r}: {error.strerror or error}.", hint=refusal_hint(error)
        ) from error
