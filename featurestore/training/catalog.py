"""List, open and remove the training datasets of a store."""

from __future__ import annotations

from featurestore.errors import FeatureStoreError, UsedByModel, listing
from featurestore.model.callers import warn_caller
from featurestore.model.html import Listing
from featurestore.recovery import datasets, liveness, recover, remove_unclaimed_stages
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import models, training_datasets
from featurestore.registry.training_datasets import RegisteredDataset
from featurestore.session import Session
from featurestore.storage import files
from featurestore.storage.failures import after_publication
from featurestore.training.dataset import TrainingDataset


def get(session: Session, name: str, version: int | None) -> TrainingDataset:
    """Return a version of a dataset; None means the latest.

    Raises:
        TrainingDatasetNotFound: Lists the available names and versions.
    """
    with session.registry.reading() as connection:
        registration = training_datasets.get(connection, name, version)
    return _open(session, registration)


def list_datasets(
    session: Session, *, limit: int | None = None, offset: int = 0
) -> list[TrainingDataset]:
    """Return dataset versions ordered by name and version: all, or one page.

    Damaged datasets are skipped with a warning.
    """
    with session.registry.reading() as connection:
        registrations = training_datasets.every(connection, limit=limit, offset=offset)
    readable_datasets = []
    for registration in registrations:
        try:
            readable_datasets.append(_open(session, registration))
        except FeatureStoreError as error:
            warn_caller(
                f"The training dataset {registration.name} version {registration.version} is skipped: "
                f"{error.message}"
            )
    return Listing(readable_datasets)


def last_version(session: Session, name: str) -> int:
    """Return the highest registered version of a dataset, 0 when there is none."""
    with session.registry.reading() as connection:
        return max(training_datasets.versions(connection, name), default=0)


def remove(session: Session, name: str, version: int, *, force: bool = False) -> None:
    """Delete a version.

    The deletion is atomic: after a crash, the next connect completes it or the dataset is intact.

    Raises:
        UsedByModel: Registered models were trained on it; ``force`` deletes it anyway.
    """
    with session.registry.reading() as connection:
        training_datasets.get(connection, name, version)
        model_versions = models.of_dataset(connection, name, version)
    if model_versions and not force:
        model_names = listing([f"{model} version {number}" for model, number in model_versions])
        raise UsedByModel(
            f"Registered models were trained on training dataset {name!r} version {version}: "
            f"{model_names}.",
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
    """Remove the files and staged rows of interrupted exports, for every dataset.

    Returns:
        A description of each action.
    """
    actions = recover(session)
    for name in files.list_directory(session.paths.training_datasets):
        with session.registry.transaction() as connection:
            actions += datasets.remove_abandoned(connection, session.location, name)
    actions += remove_unclaimed_stages(session)
    liveness.remove_expired(session.location)
    return actions


def _open(session: Session, registration: RegisteredDataset) -> TrainingDataset:
    directory = session.training_dataset_path(registration.name, registration.version)
    return TrainingDataset(
        directory, datasets.read(directory, registration.name, registration.version), session
    )
