"""Cheap detection of commits to a registry by any process."""

from __future__ import annotations

import threading
from itertools import count

from featurestore.registry.database import Registry

_NUMBER = "featurestore_number"
_numbers = count()


class ChangeWatch:
    """Identifies states of a registry; equal states may differ in identity, never the reverse.

    SQLite counts for a connection what others committed, so this one has a connection of its own
    that writes nothing. Postgres names the transactions that a statement sees; those of other
    databases of the server are among them.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry.reader(connections=1)
        self._lock = threading.Lock()

    def state(self) -> tuple[int, str]:
        """Return an identity that equals an earlier one only if no transaction was committed since."""
        statement = "pragma data_version"
        if self._registry.dialect == "postgresql":
            statement = "select txid_current_snapshot()::text"
        with self._lock, self._registry.reading() as connection:
            connection_number = connection.info.setdefault(_NUMBER, next(_numbers))
            return connection_number, str(connection.exec_driver_sql(statement).scalar_one())

    def close(self) -> None:
        """Release the connection."""
        self._registry.close()
