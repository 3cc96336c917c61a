"""Convert errors of drivers to errors of the store, without secrets in their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from featurestore.errors import (
    FeatureStoreError,
    InvalidSql,
    SourceError,
    SourceTableNotFound,
    SourceUnavailable,
)
from featurestore.plugins.source import SourceConfig

# Classes and codes of SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_NO_TABLE = ("42P01", "3F000")
_NOT_ALLOWED = "42501"
_CONNECTION_ERRORS = ("28", "3D", "08", "57")
_WRONG_SQL = ("42", "22")


@contextmanager
def translate_errors(config: SourceConfig, *, secret: str | None = None) -> Iterator[None]:
    """Convert errors of an ADBC driver to errors of the store."""
    from adbc_driver_manager import Error

    try:
        yield
    except Error as error:
        # Not chained: the text of the cause may hold the secret.
        raise adbc_error(config, error, secret=secret) from None


def adbc_error(config: SourceConfig, error: Any, *, secret: str | None) -> FeatureStoreError:
    """Return the store's error for one of an ADBC driver."""
    state = getattr(error, "sqlstate", None) or ""
    message = one_line(str(error), secret)
    subject = f"Source {config.name!r}"
    if state in _NO_TABLE or "no such table" in message:
        return SourceTableNotFound(f"{subject}: {message}")
    if state == _NOT_ALLOWED:
        return SourceError(
            f"{subject}: {message}", hint="grant the user of the URI the right to select"
        )
    if state.startswith(_CONNECTION_ERRORS) or "Failed to connect" in message:
        return SourceUnavailable(
            f"{subject} cannot be reached, or refuses the user: {message}",
            hint="look at the URI and at the secret that secret= refers to",
        )
    if state.startswith(_WRONG_SQL) or "syntax error" in message or "no such column" in message:
        return InvalidSql(
            f"{subject}: {message}", hint="the SQL is that of the source's own database"
        )
    return SourceError(f"{subject}: {message}")


def one_line(text: str, secret: str | None) -> str:
    """Return a driver's message as one line, with the secret masked."""
    if secret:
        text = text.replace(secret, "***")
    return " ".join(text.split())


def guard_batches(
    config: SourceConfig,
    batches: Iterator[Any],
    *,
    secret: str | None,
    close: Callable[[], None],
) -> Iterator[Any]:
    """Yield batches with converted errors, and close their origin at the end."""
    try:
        while True:
            try:
                with translate_errors(config, secret=secret):
                    batch = next(batches, None)
            except (OSError, pa.ArrowException) as error:
                if isinstance(error, FeatureStoreError):
                    raise
                message = one_line(str(error), secret)
                raise SourceError(f"Source {config.name!r}: {message}") from None
            if batch is None:
                return
            yield batch
    finally:
        close()
