"""What rows of the registry need besides their columns: readable texts, and the store's location."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Connection

from featurestore.errors import RegistryError

LOCATION = "featurestore_location"  # the execution option of a connection that holds it


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Say of a text in a row that cannot be read, in the block, whose it is.

    Raises:
        RegistryError: A value is missing, or has another type or form than it should have.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RegistryError(
            f"What the registry says of {what} cannot be read: {type(error).__name__}: {error}",
            hint="restore the index from the tables: featurestore registry rebuild",
        ) from error


def location_of(connection: Connection) -> str:
    """Return the directory of the store that a connection's registry belongs to."""
    location: str = connection.get_execution_options()[LOCATION]
    return location
