"""Training datasets in the registry, and the Delta versions that they pin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from featurestore.errors import (
    TrainingDatasetExists,
    TrainingDatasetNotFound,
    did_you_mean,
    listing,
)
from featurestore.model.arguments import check_version
from featurestore.model.times import from_micros, to_micros, utc_now
from featurestore.registry import search_documents
from featurestore.registry.rows import readable, versions_of
from featurestore.registry.tables import tags, training_dataset_pins, training_datasets

KIND = "training_dataset"


@dataclass(frozen=True)
class Pin:
    """A Delta version of a group that a training dataset was made from."""

    featuregroup: str
    version: int
    delta_version: int
    table_id: str | None = None


@dataclass(frozen=True)
class RegisteredDataset:
    """One version of a training dataset as the registry knows it."""

    name: str
    version: int
    manifest_hash: str
    format: str
    rows: int
    description: str = ""
    run_id: str | None = None
    created: datetime | None = None
    pins: tuple[Pin, ...] = field(default=())


def add(connection: Connection, dataset: RegisteredDataset) -> None:
    """Register a version with its pins. TrainingDatasetExists when it is there."""
    if _row(connection, dataset.name, dataset.version) is not None:
        raise TrainingDatasetExists(
            f"Training dataset {dataset.name!r} version {dataset.version} exists already.",
            hint="leave version=None for the next version",
        )
    inserted = connection.execute(
        training_datasets.insert().values(
            name=dataset.name,
            version=dataset.version,
            manifest_hash=dataset.manifest_hash,
            format=dataset.format,
            rows=dataset.rows,
            description=dataset.description,
            run_id=dataset.run_id,
            created=to_micros(dataset.created or utc_now()),
        )
    )
    key = inserted.inserted_primary_key
    identifier = None if key is None else key[0]
    pins = [
        {"training_dataset_id": identifier, **asdict(pin)} for pin in dict.fromkeys(dataset.pins)
    ]
    if pins:
        connection.execute(training_dataset_pins.insert(), pins)


def find(connection: Connection, name: str, version: int | None = None) -> RegisteredDataset | None:
    """Return a version (None: the latest), or None when there is no such."""
    row = _row(connection, name, version)
    return None if row is None else _dataset(connection, row)


def get(connection: Connection, name: str, version: int | None = None) -> RegisteredDataset:
    """Return a version (None: the latest); TrainingDatasetNotFound lists what there is."""
    dataset = find(connection, name, version)
    if dataset is not None:
        return dataset
    existing = versions(connection, name)
    if existing:
        raise TrainingDatasetNotFound(
            f"Training dataset {name!r} has no version {version}; "
            f"it has {', '.join(map(str, existing))}.",
            hint=f"the latest is version {max(existing)}",
        )
    column = training_datasets.c.name
    names = connection.execute(sa.select(column).distinct().order_by(column)).scalars().all()
    raise TrainingDatasetNotFound(
        f"Unknown training dataset {name!r}. Available: {listing(names)}.",
        hint=_meant(name, names),
        command=did_you_mean(name, names) or "featurestore td list",
    )


def _meant(name: str, names: Sequence[str]) -> str:
    """Return the call that a name with its version in it stands for, or the nearest name."""
    ended = re.fullmatch(r"(.+)_([1-9][0-9]*)", name)
    if ended is not None and ended[1] in names:
        return f"get_training_dataset({ended[1]!r}, version={ended[2]})"
    return did_you_mean(name, names, write="{!r}") or (
        "featurestore.create_training_dataset(data, name) makes one"
    )


def versions(connection: Connection, name: str) -> list[int]:
    """Return the versions of a dataset, ascending."""
    columns = training_datasets.c
    query = sa.select(columns.version).where(columns.name == name).order_by(columns.version)
    return versions_of(connection, query, f"training dataset {name!r}")


def every(
    connection: Connection, *, limit: int | None = None, offset: int = 0
) -> list[RegisteredDataset]:
    """Return versions of datasets, by name and version: all, or one page."""
    query = sa.select(training_datasets).order_by(
        training_datasets.c.name, training_datasets.c.version
    )
    query = query.limit(limit).offset(offset)
    return [_dataset(connection, row) for row in connection.execute(query).all()]


def pinning(connection: Connection, featuregroup: str, version: int) -> list[tuple[str, int, int]]:
    """Return the datasets made from a version of a group.

    (dataset, its version, the group's Delta version).
    """
    pins = training_dataset_pins.c
    query = (
        sa.select(training_datasets.c.name, training_datasets.c.version, pins.delta_version)
        .join(training_dataset_pins, pins.training_dataset_id == training_datasets.c.id)
        .where(pins.featuregroup == featuregroup, pins.version == version)
        .order_by(training_datasets.c.name, training_datasets.c.version, pins.delta_version)
    )
    with readable(f"what pins feature group {featuregroup!r} version {version}"):
        return [(str(row[0]), int(row[1]), int(row[2])) for row in connection.execute(query)]


def describe(connection: Connection, name: str, version: int, description: str) -> None:
    """Write the description of a version in place of the one recorded before."""
    columns = training_datasets.c
    connection.execute(
        training_datasets.update()
        .where(columns.name == name, columns.version == version)
        .values(description=description)
    )


def remove(connection: Connection, name: str, version: int) -> None:
    """Forget a version with its pins and tags."""
    columns = training_datasets.c
    connection.execute(
        training_datasets.delete().where(columns.name == name, columns.version == version)
    )
    connection.execute(
        tags.delete().where(tags.c.kind == KIND, tags.c.name == name, tags.c.version == version)
    )
    search_documents.remove(connection, KIND, name, version)


def pins_of(sources: Iterable[dict[str, object]]) -> tuple[Pin, ...]:
    """Return the pins that a manifest's ``sources`` state."""
    pins = []
    for each in sources:
        table_id = each.get("table_id")
        pins.append(
            Pin(
                featuregroup=str(each["featuregroup"]),
                version=int(str(each["version"])),
                delta_version=int(str(each["delta_version"])),
                table_id=None if table_id is None else str(table_id),
            )
        )
    return tuple(pins)


def _row(connection: Connection, name: str, version: int | None) -> Row[tuple[object, ...]] | None:
    query = sa.select(training_datasets).where(training_datasets.c.name == name)
    if version is None:
        query = query.order_by(training_datasets.c.version.desc()).limit(1)
    else:
        query = query.where(training_datasets.c.version == version)
    return connection.execute(query).first()


def _dataset(connection: Connection, row: Row[tuple[object, ...]]) -> RegisteredDataset:
    pins = training_dataset_pins.c
    pin_rows = connection.execute(
        sa.select(pins.featuregroup, pins.version, pins.delta_version, pins.table_id)
        .where(pins.training_dataset_id == row.id)
        .order_by(pins.featuregroup, pins.version, pins.delta_version)
    )
    with readable(f"training dataset {row.name!r} version {row.version}"):
        return RegisteredDataset(
            name=row.name,
            version=check_version(row.version),
            manifest_hash=row.manifest_hash,
            format=row.format,
            rows=int(row.rows),
            description=row.description,
            run_id=row.run_id,
            created=from_micros(row.created),
            pins=tuple(Pin(*each) for each in pin_rows),
        )
