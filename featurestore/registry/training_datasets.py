"""Training datasets in the registry, and the Delta versions that they pin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from featurestore.errors import TrainingDatasetExists, TrainingDatasetNotFound, did_you_mean
from featurestore.model.arguments import check_version
from featurestore.model.feature_view import view_lineage_name
from featurestore.model.manifest import Manifest
from featurestore.model.times import from_micros, parse_moment, to_micros, utc_now
from featurestore.registry import artifacts, lineage
from featurestore.registry.artifacts import VersionedTable
from featurestore.registry.rows import split_values, translate_parse_errors
from featurestore.registry.tables import training_dataset_pins, training_datasets

KIND = "training_dataset"


def _suggest_dataset(name: str, names: list[str]) -> str | None:
    """Return the call for a name that ends in a version number, or the most similar name."""
    match = re.fullmatch(r"(.+)_([1-9][0-9]*)", name)
    if match is not None and match[1] in names:
        return f"get_training_dataset({match[1]!r}, version={match[2]})"
    return did_you_mean(name, names, write="{!r}")


TABLE = VersionedTable(
    object_kind=KIND,
    noun="training dataset",
    table=training_datasets,
    not_found=TrainingDatasetNotFound,
    latest_hint="the latest is version {version}",
    creation_hint="featurestore.create_training_dataset(data, name) creates one",
    suggest=_suggest_dataset,
    list_command="featurestore td list",
)
versions, remove, lock_version = TABLE.versions, TABLE.remove, TABLE.lock_version


@dataclass(frozen=True)
class Pin:
    """A Delta version of a group from which a training dataset was created."""

    featuregroup: str
    version: int
    delta_version: int
    table_id: str | None = None


@dataclass(frozen=True)
class RegisteredDataset:
    """A training dataset version in the registry."""

    name: str
    version: int
    manifest_hash: str
    format: str
    rows: int
    description: str = ""
    run_id: str | None = None
    created: datetime | None = None
    pins: tuple[Pin, ...] = field(default=())


def register(connection: Connection, manifest: Manifest) -> None:
    """Register a finished dataset with pins, tags and lineage, unless it is already registered."""
    name, version = manifest.name, manifest.version
    lock_version(connection, name, version)
    # Recovery may already have registered the dataset of an interrupted export.
    if find(connection, name, version) is not None:
        return
    dataset = RegisteredDataset(
        name=name,
        version=version,
        manifest_hash=manifest.content_hash,
        format=manifest.data_format,
        rows=sum(split.rows for split in manifest.splits),
        description=manifest.description,
        run_id=manifest.run_id,
        created=parse_moment(manifest.created) if manifest.created else None,
        pins=pins_of(map(dict, manifest.sources)),
    )
    add(connection, dataset)
    artifacts.replace_tags(connection, KIND, name, version, manifest.tags)
    inputs: list[Mapping[str, Any]] = [*manifest.sources, *manifest.reads]
    if manifest.view is not None:
        source = view_lineage_name(str(manifest.view["name"]))
        inputs.append({"source": source, "version": manifest.view["version"]})
    run_id = manifest.run_id
    lineage.add(connection, KIND, name, version, delta_version=None, inputs=inputs, run_id=run_id)
    lineage.replace_windows(connection, KIND, name, version, manifest.windows)


def add(connection: Connection, dataset: RegisteredDataset) -> None:
    """Register a version with its pins.

    Raises:
        TrainingDatasetExists: The version is already registered.
    """
    if TABLE.row(connection, dataset.name, dataset.version) is not None:
        raise TrainingDatasetExists(
            f"Training dataset {dataset.name!r} version {dataset.version} already exists.",
            hint="use version=None for the next version",
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
        # A dataset may read one table version several times, but pins it once.
        {"training_dataset_id": identifier, **asdict(pin)}
        for pin in dict.fromkeys(dataset.pins)
    ]
    if pins:
        connection.execute(training_dataset_pins.insert(), pins)


def pins_of(sources: Iterable[dict[str, object]]) -> tuple[Pin, ...]:
    """Return the pins in the ``sources`` of a manifest."""
    pins = []
    for source in sources:
        table_id = source.get("table_id")
        pins.append(
            Pin(
                featuregroup=str(source["featuregroup"]),
                version=int(str(source["version"])),
                delta_version=int(str(source["delta_version"])),
                table_id=None if table_id is None else str(table_id),
            )
        )
    return tuple(pins)


def find(connection: Connection, name: str, version: int | None = None) -> RegisteredDataset | None:
    """Return a version (None: the latest), or None if it does not exist."""
    row = TABLE.row(connection, name, version)
    return None if row is None else _to_registered_datasets(connection, [row])[0]


def get(connection: Connection, name: str, version: int | None = None) -> RegisteredDataset:
    """Return a version (None: the latest).

    Raises:
        TrainingDatasetNotFound: The message lists the versions of the dataset, or all datasets.
    """
    dataset = find(connection, name, version)
    if dataset is None:
        raise TABLE.missing(connection, name, version)
    return dataset


def list_all(
    connection: Connection, *, limit: int | None = None, offset: int = 0
) -> list[RegisteredDataset]:
    """Return dataset versions by name and version, optionally only one page."""
    query = sa.select(training_datasets).order_by(
        training_datasets.c.name, training_datasets.c.version
    )
    query = query.limit(limit).offset(offset)
    return _to_registered_datasets(connection, connection.execute(query).all())


def datasets_pinning(
    connection: Connection, featuregroup: str, version: int
) -> list[tuple[str, int, int]]:
    """Return (dataset, version, Delta version) of the datasets created from a group version."""
    pins = training_dataset_pins.c
    query = (
        sa.select(training_datasets.c.name, training_datasets.c.version, pins.delta_version)
        .join(training_dataset_pins, pins.training_dataset_id == training_datasets.c.id)
        .where(pins.featuregroup == featuregroup, pins.version == version)
        .order_by(training_datasets.c.name, training_datasets.c.version, pins.delta_version)
    )
    with translate_parse_errors(f"the pins of feature group {featuregroup!r} version {version}"):
        return [(str(row[0]), int(row[1]), int(row[2])) for row in connection.execute(query)]


def describe(connection: Connection, name: str, version: int, description: str) -> None:
    """Replace the description of a version."""
    columns = training_datasets.c
    connection.execute(
        training_datasets.update()
        .where(columns.name == name, columns.version == version)
        .values(description=description)
    )


def _to_registered_datasets(
    connection: Connection, rows: Sequence[Row[tuple[object, ...]]]
) -> list[RegisteredDataset]:
    """Convert rows, and read the pins of all rows together."""
    columns = training_dataset_pins.c
    pins: dict[int, list[Pin]] = {}
    for ids in split_values(row.id for row in rows):
        query = (
            sa.select(training_dataset_pins)
            .where(columns.training_dataset_id.in_(ids))
            .order_by(columns.featuregroup, columns.version, columns.delta_version)
        )
        for row in connection.execute(query):
            pin = Pin(row.featuregroup, row.version, row.delta_version, row.table_id)
            pins.setdefault(row.training_dataset_id, []).append(pin)
    datasets = []
    for row in rows:
        with translate_parse_errors(f"training dataset {row.name!r} version {row.version}"):
            dataset = RegisteredDataset(
                name=row.name,
                version=check_version(row.version),
                manifest_hash=row.manifest_hash,
                format=row.format,
                rows=int(row.rows),
                description=row.description,
                run_id=row.run_id,
                created=from_micros(row.created),
                pins=tuple(pins.get(row.id, ())),
            )
            datasets.append(dataset)
    return datasets
