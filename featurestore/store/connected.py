"""The base class of the store mixins: the session of one connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.model.arguments import suggest_arguments
from featurestore.progress import show_progress

if TYPE_CHECKING:
    from featurestore.session import Session


# Methods of the mixins import their packages when they are called, because importing featurestore
# must not load pandas, pyarrow or an engine.
class StoreBase:
    """Base class with the session of a connection to a store."""

    def __init_subclass__(cls) -> None:
        # All methods of a mixin suggest the correct name for an unknown argument, and show their
        # progress.
        show_progress(suggest_arguments(cls))

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def session(self) -> Session:
        """The session: location, engine and registry of this connection."""
        return self._session

    @property
    def location(self) -> str:
        """The location of the store."""
        return self._session.location

    @property
    def engine(self) -> str:
        """The name of the engine."""
        return self._session.engine.name

    def close(self) -> None:
        """Close the connections of the registry and the engine."""
        self._session.close()
