"""The base class of all families of store calls: the session of one connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.model.arguments import suggest_arguments

if TYPE_CHECKING:
    from featurestore.session import Session


class StoreBase:
    """A connection to one store."""

    def __init_subclass__(cls) -> None:
        suggest_arguments(cls)

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def session(self) -> Session:
        """Location, engine and registry of this connection."""
        return self._session

    @property
    def location(self) -> str:
        """The directory of the store."""
        return self._session.location

    @property
    def engine(self) -> str:
        """The name of the engine."""
        return self._session.engine.name

    def close(self) -> None:
        """Release the registry's and the engine's connections."""
        self._session.registry.close()
        self._session.engine.close()
