"""Change the descriptions and tags of finished training datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from featurestore.errors import InvalidArgument, listing
from featurestore.model.featuregroup import check_tags
from featurestore.recovery import datasets
from featurestore.session import Session
from featurestore.storage.annotations import Annotations, read_annotations, write_annotations
from featurestore.storage.failures import after_publication
from featurestore.training.catalog import get
from featurestore.training.dataset import TrainingDataset


def tags_of(session: Session, name: str, *, version: int | None = None) -> dict[str, str]:
    """Return the tags of a dataset; ``version=None`` means the latest."""
    return get(session, name, version).tags


def add_tag(
    session: Session, name: str, key: str, value: str, *, version: int | None = None
) -> None:
    """Set a tag of a dataset."""
    check_tags({key: value})
    dataset = get(session, name, version)
    _write_annotations(session, dataset, tags={**dataset.tags, key: value})


def remove_tag(session: Session, name: str, key: str, *, version: int | None = None) -> None:
    """Remove a tag of a dataset; InvalidArgument lists the existing tags."""
    dataset = get(session, name, version)
    tags = dataset.tags
    if key not in tags:
        raise InvalidArgument(
            f"Training dataset {name!r} version {dataset.version} has no tag {key!r}; it has "
            f"{listing(tags)}."
        )
    del tags[key]
    _write_annotations(session, dataset, tags=tags)


def describe(
    session: Session, name: str, *, version: int | None = None, description: str
) -> TrainingDataset:
    """Change the description of a dataset and return it."""
    if not isinstance(description, str):
        raise InvalidArgument(
            f"description={description!r} is not a string.", hint="description='flights of 2013'"
        )
    dataset = get(session, name, version)
    _write_annotations(session, dataset, description=description)
    return dataset


def _write_annotations(
    session: Session,
    dataset: TrainingDataset,
    *,
    description: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Write the file, then the registry, which only indexes it."""
    with session.registry.transaction():  # serializes writers: the file is read and replaced
        annotations: Annotations = read_annotations(dataset.path, dataset.manifest)
        if description is not None:
            annotations = replace(annotations, description=description)
        if tags is not None:
            annotations = replace(annotations, tags=tags)
        write_annotations(dataset.path, annotations)
    with (
        after_publication(f"The annotations of training dataset {dataset.name!r}"),
        session.registry.transaction() as connection,
    ):
        datasets.apply_annotations(connection, dataset.name, dataset.version, annotations)
