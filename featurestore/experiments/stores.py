"""Which store keeps the runs of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.errors import UnsupportedLocation
from featurestore.storage.location import is_uri

if TYPE_CHECKING:
    from featurestore.session import Session
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset


def session_of(store: FeatureStore | None, dataset: TrainingDataset | None) -> Session:
    """Return the store that keeps runs: the given one, the dataset's, or the last connected.

    Raises:
        UnsupportedLocation: It is no directory; the hint says how a dataset that lies elsewhere is
            trained on.
    """
    found = _chosen(store, dataset)
    # Workers append to files and wait for one another by them; an object store has neither.
    if is_uri(found.location):
        raise UnsupportedLocation(
            f"Runs of experiments need a directory, and the store at {found.location!r} is none.",
            hint="store=featurestore.connect('/shared/runs') keeps the runs in a directory that "
            "the workers see; the dataset stays where it is",
        )
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
