"""Choice of the store that records runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.errors import UnsupportedLocation
from featurestore.storage.selection import storage_for

if TYPE_CHECKING:
    from featurestore.session import Session
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset


def session_of(store: FeatureStore | None, dataset: TrainingDataset | None) -> Session:
    """Return the store that records runs: the argument, the dataset's, or the last connected.

    Raises:
        UnsupportedLocation: The store is not in a directory; the hint shows an alternative.
    """
    session = _resolve_session(store, dataset)
    # Workers append to files and wait for one another by them; an object store has neither.
    if not storage_for(session.location).supports_appending:
        raise UnsupportedLocation(
            f"Runs of experiments need a directory, and the store at {session.location!r} is not in one.",
            hint="store=featurestore.connect('/shared/runs') records the runs in a directory that "
            "all workers see; the dataset remains in its store",
        )
    return session


def _resolve_session(store: FeatureStore | None, dataset: TrainingDataset | None) -> Session:
    from featurestore._current import current_store

    if store is not None:
        return store.session
    # The type of the dataset is checked with the request.
    session: Session | None = getattr(dataset, "session", None)
    if session is not None:
        return session
    return current_store().session
