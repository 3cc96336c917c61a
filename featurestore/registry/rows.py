"""Helpers for rows of the registry: parse errors, times, locks and the store's location."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.errors import RegistryError
from featurestore.model.times import from_micros, to_micros

# The execution option of a connection with the directory of its store.
LOCATION = "featurestore_location"


@contextmanager
def readable(subject: str) -> Iterator[None]:
    """Convert errors of parsing a row in the block to RegistryError.

    Raises:
        RegistryError: A value is missing, or has another type or form than it should have.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RegistryError(
            f"The registry entry of {subject} cannot be read: {type(error).__name__}: {error}",
            hint="restore the index from the tables: featurestore registry rebuild",
        ) from error


def location_of(connection: Connection) -> str:
    """Return the directory of the store of a connection's registry."""
    location: str = connection.get_execution_options()[LOCATION]
    return location


def to_time(micros: int | None) -> datetime | None:
    """Return the time of a column, or None."""
    return None if micros is None else from_micros(micros)


def to_column(time: datetime | None) -> int | None:
    """Return a time as the value of a column, or None."""
    return None if time is None else to_micros(time)


def lock(connection: Connection, subject: str) -> None:
    """Lock a subject until this transaction ends; wait for a transaction that has locked it.

    SQLite has only one writing transaction at a time, so nothing is to be locked there.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(subject))))
