"""Which store keeps the runs of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.storage import files

if TYPE_CHECKING:
    from featurestore.session import Session
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset


def session_of(store: FeatureStore | None, dataset: TrainingDataset | None) -> Session:
    """Return the store that keeps runs: the given one, the dataset's, or the last connected."""
    found = _chosen(store, dataset)
    # Workers append to files and wait for one another by them; an object store has neither.
    files.local_directory(found.location)
    return found


def _chosen(store: FeatureStore | None, dataset: TrainingDataset | None) -> Session:
    from featurestore._current import current_store

    if store is not None:
        return store.session
    # What is no dataset at all is refused where the request is checked.
    session: Session | None = getattr(dataset, "session", None)
    if session is not None:
        return session
    return current_store().session
