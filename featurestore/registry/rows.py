"""What rows of the registry need besides their columns.

Readable texts, and the store's location.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Select
from sqlalchemy.engine import Connection

from featurestore.errors import RegistryError
from featurestore.model.times import from_micros, to_micros

LOCATION = "featurestore_location"  # the execution option of a connection that holds it


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


def versions_of(connection: Connection, query: Select[Any], subject: str) -> list[int]:
    """Return the version numbers that a query gives; SQLite keeps a text where one is written."""
    with readable(f"the versions of {subject}"):
        return [int(each) for each in connection.execute(query).scalars()]


def location_of(connection: Connection) -> str:
    """Return the directory of the store that a connection's registry belongs to."""
    location: str = connection.get_execution_options()[LOCATION]
    return location


def to_time(micros: int | None) -> datetime | None:
    """Return the time that a column holds, None where it holds none."""
    return None if micros is None else from_micros(micros)


def to_column(time: datetime | None) -> int | None:
    """Return a time as a column holds it."""
    return None if time is None else to_micros(time)
