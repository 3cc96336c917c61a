"""Errors of drivers as those of the store, without the secret that a text of theirs may hold."""

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
_NO_ENTRY = ("28", "3D", "08", "57")
_WRONG_SQL = ("42", "22")


@contextmanager
def translated(config: SourceConfig, *, secret: str | None = None) -> Iterator[None]:
    """Let errors of an ADBC driver leave the block as errors of the store."""
    from adbc_driver_manager import Error

    try:
        yield
    except Error as error:
        # Not chained: the text of the cause may hold the secret.
        raise of_adbc(config, error, secret=secret) from None


def of_adbc(config: SourceConfig, error: Any, *, secret: str | None) -> FeatureStoreError:
    """Return the store's error for one of an ADBC driver."""
    state = getattr(error, "sqlstate", None) or ""
    said = told(str(error), secret)
    place = f"Source {config.name!r}"
    if state in _NO_TABLE or "no such table" in said:
        return SourceTableNotFound(f"{place}: {said}")
    if state == _NOT_ALLOWED:
        return SourceError(f"{place}: {said}", hint="grant the user of the URI the right to select")
    if state.startswith(_NO_ENTRY) or "Failed to connect" in said:
        return SourceUnavailable(
            f"{place} cannot be reached, or refuses the user: {said}",
            hint="look at the URI and at the secret that secret= refers to",
        )
    if state.startswith(_WRONG_SQL) or "syntax error" in said or "no such column" in said:
        return InvalidSql(f"{place}: {said}", hint="the SQL is that of the source's own database")
    return SourceError(f"{place}: {said}")


def told(text: str, secret: str | None) -> str:
    """Return what a driver said in one line, its secret left out."""
    if secret:
        text = text.replace(secret, "***")
    return " ".join(text.split())


def guarded(
    config: SourceConfig,
    batches: Iterator[Any],
    *,
    secret: str | None,
    close: Callable[[], None],
) -> Iterator[Any]:
    """Yield batches, their errors translated, and close what they come from at their end."""
    try:
        while True:
            try:
                with translated(config, secret=secret):
                    batch = next(batches, None)
            except (OSError, pa.ArrowException) as error:
                if isinstance(error, FeatureStoreError):
                    raise
                said = told(str(error), secret)
                raise SourceError(f"Source {config.name!r}: {said}") from None
            if batch is None:
                return
            yield batch
    finally:
        close()
