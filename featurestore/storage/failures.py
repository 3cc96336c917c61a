"""Errors of the file system as errors of the library, and failures after a write was published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from featurestore.errors import PublicationWarning, StorageError, refusal_hint
from featurestore.model.arguments import warn_caller


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Raise StorageError for an OSError in the block: ``path`` cannot be written, and why."""
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
    """Raise StorageError for an OSError in the block: ``path`` cannot be read, and why."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"Cannot read {path!r}: {error.strerror or error}.", hint=refusal_hint(error)
        ) from error


@contextmanager
def after_publication(subject: str) -> Iterator[None]:
    """Report a failure in the block as a warning that ``subject`` landed.

    An error would make the caller repeat a write that has succeeded.
    """
    try:
        yield
    except Exception as error:
        warn_published(subject, error)


def warn_published(subject: str, error: BaseException) -> None:
    """Warn that ``subject`` landed, and that a later step failed."""
    text = str(error).splitlines()
    reason = text[0] if text else type(error).__name__
    warn_caller(
        f"{subject} landed, and then: {reason} Recovery does what is left; do not repeat the write.",
        PublicationWarning,
    )
