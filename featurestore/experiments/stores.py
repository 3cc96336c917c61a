"""Which store keeps the runs of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from featurestore.session import Session
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset


def session_of(store: FeatureStore | None, dataset: TrainingDataset | None) -> Session:
    """Return the store that keeps runs: the given one, the dataset's, or the last connected."""
    from featurestore._current import current_store

    if store is not None:
        return store.session
    if dataset is not None and getattr(dataset, "session", None) is not None:
        assert dataset.session is not None
        return dataset.session
    return current_store().session
