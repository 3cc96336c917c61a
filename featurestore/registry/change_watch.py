"""Whether anything was committed to a registry since, by whatever process: asked in no time."""

from __future__ import annotations

import threading
from itertools import count

from featurestore.registry.database import Registry

_NUMBER = "featurestore_number"
_numbers = count()


class ChangeWatch:
    """Tells states of a registry apart; it may tell two apart that are the same, never the reverse.

    SQLite counts for a connection what others committed, so this one has a connection of its own
    that writes nothing. Postgres names the transactions that a statement sees; those of other
    databases of the server are among them.
    """

    def __init__(self, whole: Registry) -> None:
        self._registry = whole.beside(connections=1)
        self._lock = threading.Lock()

    def state(self) -> tuple[int, str]:
        """Return what is equal to what another call returned only where nothing was committed."""
        question = "pragma data_version"
        if self._registry.dialect == "postgresql":
            question = "select txid_current_snapshot()::text"
        with self._lock, self._registry.reading() as connection:
            opened = connection.info.setdefault(_NUMBER, next(_numbers))
            return opened, str(connection.exec_driver_sql(question).scalar_one())

    def close(self) -> None:
        """Release the connection."""
        self._registry.close()
