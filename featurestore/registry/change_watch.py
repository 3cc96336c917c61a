"""A watch for the commits of all processes to a registry."""

from __future__ import annotations

from itertools import count

from featurestore.model.runtime import ForkSafeLock
from featurestore.registry.database import Registry

_CONNECTION_NUMBER = "featurestore_number"
_connection_numbers = count()


class ChangeWatch:
    """Detects commits to a registry by any process without reading its tables.

    For each connection SQLite counts the commits of all other connections, so the watch uses a
    separate connection that never writes. Postgres returns the transactions that a statement sees,
    which include those in other databases of the server.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry.reader(connections=1)
        self._lock = ForkSafeLock()

    def state(self) -> tuple[int, str]:
        """Return a state that equals an earlier one only if no transaction was committed since."""
        statement = "pragma data_version"
        if self._registry.dialect == "postgresql":
            statement = "select txid_current_snapshot()::text"
        with self._lock, self._registry.reading() as connection:
            # SQLite's data_version can be compared only within one connection, and the pool may
            # open a new one.
            number = connection.info.setdefault(_CONNECTION_NUMBER, next(_connection_numbers))
            return number, str(connection.exec_driver_sql(statement).scalar_one())

    def close(self) -> None:
        """Close the connection."""
        self._registry.close()
