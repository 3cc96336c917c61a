"""List, open, describe, tag and remove the training datasets of a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from featurestore.errors import FeatureStoreError, InvalidArgument, UsedByModel, listing
from featurestore.model.arguments import warn_caller
from featurestore.model.display import Listing
from featurestore.model.featuregroup import check_tags
from featurestore.recovery import liveness, recover, remove_unclaimed_stages
from featurestore.recovery.datasets import DATASETS
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import training_datasets
from featurestore.registry.artifacts import models
from featurestore.registry.training_datasets import RegisteredDataset
from featurestore.session import Session
from featurestore.storage.failures import warn_after_publication
from featurestore.storage.manifests import Annotations, change_annotations
from featurestore.training.dataset import TrainingDataset


def get(session: Session, name: str, version: int | None) -> TrainingDataset:
    """Return a version of a dataset; None means the latest.

    Raises:
        TrainingDatasetNotFound: The dataset does not exist; the message lists available ones.
    """
    with session.registry.reading() as connection:
        registration = training_datasets.get(connection, name, version)
    session.record_read(training_datasets.KIND, name, registration.version)
    return _open(session, registration)


def list_datasets(
    session: Session, *, limit: int | None = None, offset: int = 0
) -> list[TrainingDataset]:
    """Return all dataset versions or one page of them, ordered by name and version.

    Damaged datasets are skipped with a warning.
    """
    with session.registry.reading() as connection:
        registrations = training_datasets.list_all(connection, limit=limit, offset=offset)
    session.record_reads(
        training_datasets.KIND,
        [(registration.name, registration.version) for registration in registrations],
    )
    readable_datasets = []
    for registration in registrations:
        try:
            readable_datasets.append(_open(session, registration))
        except FeatureStoreError as error:
            # One damaged dataset must not hide the others.
            warn_caller(
                f"The training dataset {registration.name} version {registration.version} is skipped: "
                f"{error.message}"
            )
    return Listing(readable_datasets)


def last_version(session: Session, name: str) -> int:
    """Return the highest registered version of a dataset, 0 if no version exists."""
    with session.registry.reading() as connection:
        return max(training_datasets.versions(connection, name), default=0)


def remove(session: Session, name: str, version: int, *, force: bool = False) -> None:
    """Delete a dataset version.

    The deletion is atomic: after a crash, either the dataset is intact or the next connection
    completes the deletion.

    Raises:
        UsedByModel: Registered models were trained on it; ``force`` deletes it anyway.
    """
    with session.registry.reading() as connection:
        # Checked before the intent, so that an unknown version leaves no trace.
        training_datasets.get(connection, name, version)
        model_versions = models.of_dataset(connection, name, version)
    if model_versions and not force:
        model_names = listing([f"{model} version {number}" for model, number in model_versions])
        raise UsedByModel(
            f"Registered models were trained on training dataset {name!r} version {version}: "
            f"{model_names}.",
            hint=f"delete_training_dataset({name!r}, version={version}, force=True)",
        )
    with in_flight(session, operation=DATASETS.removal, name=name, version=version) as run:
        # Unregistered first: from the commit on no reader finds the version, and recovery completes
        # an interrupted removal of the files.
        with session.registry.transaction() as connection:
            DATASETS.unregister(connection, name, version)
        # The version is already deleted. A failure to remove files is a warning, and recovery
        # repeats it.
        with warn_after_publication(f"The deletion of training dataset {name!r} version {version}"):
            DATASETS.remove(session.paths, name, version)
            run.registered = True


def clean_all(session: Session) -> list[str]:
    """Remove files and staged rows that interrupted exports of any dataset have left.

    Returns:
        A description of each action.
    """
    actions = recover(session)
    # Directories are listed instead of registrations, because an interrupted export has no
    # registration yet.
    for name in session.storage.list_directory(session.paths.training_datasets):
        with session.registry.transaction() as connection:
            actions += DATASETS.remove_abandoned(connection, session.location, name)
    actions += remove_unclaimed_stages(session)
    liveness.remove_expired_leases(session.location)
    return actions


def _open(session: Session, registration: RegisteredDataset) -> TrainingDataset:
    directory = session.training_dataset_path(registration.name, registration.version)
    return TrainingDataset(
        directory, DATASETS.read(directory, registration.name, registration.version), session
    )


def get_tags(session: Session, name: str, *, version: int | None = None) -> dict[str, str]:
    """Return the tags of a dataset; ``version=None`` means the latest."""
    return get(session, name, version).tags


def add_tag(
    session: Session, name: str, key: str, value: str, *, version: int | None = None
) -> None:
    """Set a tag of a dataset."""
    check_tags({key: value})
    dataset = get(session, name, version)
    _change_annotations(
        session, dataset, lambda current: replace(current, tags={**current.tags, key: value})
    )


def remove_tag(session: Session, name: str, key: str, *, version: int | None = None) -> None:
    """Remove a tag of a dataset; InvalidArgument lists the existing tags."""
    dataset = get(session, name, version)

    def without_key(current: Annotations) -> Annotations:
        if key not in current.tags:
            raise InvalidArgument(
                f"Training dataset {name!r} version {dataset.version} has no tag {key!r}. "
                f"Available: {listing(current.tags)}."
            )
        tags = {tag: value for tag, value in current.tags.items() if tag != key}
        return replace(current, tags=tags)

    _change_annotations(session, dataset, without_key)


def describe(
    session: Session, name: str, *, version: int | None = None, description: str
) -> TrainingDataset:
    """Change the description of a dataset and return it."""
    if not isinstance(description, str):
        raise InvalidArgument(
            f"description={description!r} is not a string.", hint="description='flights of 2013'"
        )
    dataset = get(session, name, version)
    _change_annotations(session, dataset, lambda current: replace(current, description=description))
    return dataset


def _change_annotations(
    session: Session, dataset: TrainingDataset, change: Callable[[Annotations], Annotations]
) -> None:
    """Change the annotations in their file, then update the registry, which only indexes it."""
    session.registry.check_writable()
    change_annotations(dataset.path, dataset.manifest, change, below=session.location)
    with (
        warn_after_publication(f"The annotations of training dataset {dataset.name!r}"),
        session.registry.transaction() as connection,
    ):
        DATASETS.register_annotations(connection, dataset.path, dataset.manifest)
