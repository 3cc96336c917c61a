"""Training datasets of a store: listed, opened, removed."""

from __future__ import annotations

from featurestore.errors import FeatureStoreError, UsedByModel, listing
from featurestore.model.callers import warn_caller
from featurestore.model.html import Listing
from featurestore.recovery import datasets, lease_objects, recover, remove_unclaimed_stages
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import models, training_datasets
from featurestore.registry.training_datasets import RegisteredDataset
from featurestore.session import Session
from featurestore.storage import files
from featurestore.storage.failures import after_publication
from featurestore.training.dataset import TrainingDataset


def get(session: Session, name: str, version: int | None) -> TrainingDataset:
    """Return a version of a dataset, None.

    The latest. TrainingDatasetNotFound lists what there is.
    """
    with session.registry.reading() as connection:
        found = training_datasets.get(connection, name, version)
    return _open(session, found)


def every(session: Session, *, limit: int | None = None, offset: int = 0) -> list[TrainingDataset]:
    """Return versions of datasets, by name and version: all of them, or a page.

    A damaged one is left out with a warning.
    """
    with session.registry.reading() as connection:
        found = training_datasets.every(connection, limit=limit, offset=offset)
    opened = []
    for each in found:
        try:
            opened.append(_open(session, each))
        except FeatureStoreError as error:
            warn_caller(
                f"The training dataset {each.name} version {each.version} is left out: "
                f"{error.message}"
            )
    return Listing(opened)


def last_version(session: Session, name: str) -> int:
    """Return the highest registered version of a dataset, 0 when there is none."""
    with session.registry.reading() as connection:
        return max(training_datasets.versions(connection, name), default=0)


def remove(session: Session, name: str, version: int, *, force: bool = False) -> None:
    """Delete a version.

    A kill meanwhile leaves the whole dataset, or none after the next connect.

    Raises:
        UsedByModel: Models were trained on it; ``force`` deletes it all the same.
    """
    with session.registry.reading() as connection:
        training_datasets.get(connection, name, version)
        trained = models.of_dataset(connection, name, version)
    if trained and not force:
        used_by = listing([f"{model} version {number}" for model, number in trained])
        raise UsedByModel(
            f"Training dataset {name!r} version {version} is what registered models were trained "
            f"on: {used_by}.",
            hint=f"delete_training_dataset({name!r}, version={version}, force=True)",
        )
    with in_flight(session, kind="remove", name=name, version=version) as run:
        with session.registry.transaction() as connection:
            datasets.forget(connection, name, version)
        with after_publication(f"The deletion of training dataset {name!r} version {version}"):
            datasets.remove_files(session.paths, name, version)
            datasets.release(session.paths, name, version)
            run.registered = True


def clean_all(session: Session) -> list[str]:
    """Remove what killed exports left, of every dataset, and their staged rows.

    Return what was done.
    """
    done = recover(session)
    for name in files.list_directory(session.paths.training_datasets):
        with session.registry.transaction() as connection:
            done += datasets.remove_abandoned(connection, session.location, name)
    done += remove_unclaimed_stages(session)
    lease_objects.remove_expired(session.location)
    return done


def _open(session: Session, found: RegisteredDataset) -> TrainingDataset:
    directory = session.training_dataset_path(found.name, found.version)
    return TrainingDataset(directory, datasets.read(directory, found.name, found.version), session)
