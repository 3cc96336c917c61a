"""Facets of datasets: columns, versions, numbers, origins of columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from openlineage.client.facet_v2 import (
    column_lineage_dataset,
    data_quality_metrics_dataset,
    dataset_version_dataset,
    lifecycle_state_change_dataset,
    schema_dataset,
    symlinks_dataset,
)

from featurestore.delta.datafile import DataFile
from featurestore.delta.snapshot import Snapshot
from featurestore.lineage.column_origins import Columns, Origin
from featurestore.model.paths import StorePaths

# Who makes the events. OpenLineage asks for a URI; a URN names without leading anywhere.
PRODUCER = "urn:featurestore"
# Files of a table up to which the numbers of their columns are summed.
_MOST_FILES = 1000
Facets = dict[str, Any]


def place(path: str) -> tuple[str, str]:
    """Return namespace and name of what lies at a path or URI.

    >>> place("/data/store/featuregroups/weather/v1")
    ('file', '/data/store/featuregroups/weather/v1')
    >>> place("s3://bucket/store/featuregroups/weather/v1")
    ('s3://bucket', 'store/featuregroups/weather/v1')
    """
    found = urlsplit(path)
    if found.scheme and found.netloc:
        return f"{found.scheme}://{found.netloc}", found.path.strip("/")
    return "file", path


def named(path: str) -> tuple[str, str]:
    """Return namespace and name of a directory."""
    return place(path.rstrip("/"))


def described(path: str, name: str, version: int | None, schema: pa.Schema) -> Facets:
    """Return the facets that every dataset of a store has: its columns, its name in the store."""
    fields = []
    for index, each in enumerate(schema):
        fields.append(
            schema_dataset.SchemaDatasetFacetFields(
                name=each.name, type=str(each.type), ordinal_position=index + 1
            )
        )
    return {
        "schema": schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER),
        "symlinks": symlinks(path, name, version),
    }


def symlinks(path: str, name: str, version: int | None) -> symlinks_dataset.SymlinksDatasetFacet:
    """Return the name that a dataset has in the store, such as ``weather@v1``."""
    logical = f"{name}@v{version or 1}"
    known = symlinks_dataset.Identifier(namespace=named(path)[0], name=logical, type="TABLE")
    return symlinks_dataset.SymlinksDatasetFacet(identifiers=[known], producer=PRODUCER)


def version_of(version: object) -> dataset_version_dataset.DatasetVersionDatasetFacet:
    """Return the version of a dataset: the Delta version of a group."""
    return dataset_version_dataset.DatasetVersionDatasetFacet(
        datasetVersion=str(version), producer=PRODUCER
    )


def lifecycle(
    change: str,
) -> lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet:
    """Return that a dataset was made or dropped: "CREATE", "DROP"."""
    return lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(
        lifecycleStateChange=lifecycle_state_change_dataset.LifecycleStateChange(change),
        producer=PRODUCER,
    )


def metrics_of(state: Snapshot) -> data_quality_metrics_dataset.DataQualityMetricsDatasetFacet:
    """Return the numbers of a table that its log knows: rows, bytes, nulls by column."""
    told = {}
    for name, count in _nulls(state.files).items():
        if name in state.schema.names:
            told[name] = data_quality_metrics_dataset.ColumnMetrics(nullCount=count)
    return data_quality_metrics_dataset.DataQualityMetricsDatasetFacet(
        columnMetrics=told,
        rowCount=state.rows,
        bytes=state.bytes,
        fileCount=len(state.files),
        producer=PRODUCER,
    )


def _nulls(files: Sequence[DataFile]) -> dict[str, int]:
    """Return the null cells of the columns of which every file tells them."""
    if len(files) > _MOST_FILES:
        return {}
    found: dict[str, int] = {}
    known: dict[str, int] = {}
    for file in files:
        counts = json.loads(file.statistics or "{}").get("nullCount", {})
        for name, count in counts.items():
            if isinstance(count, int):
                found[name] = found.get(name, 0) + count
                known[name] = known.get(name, 0) + 1
    return {name: count for name, count in found.items() if known[name] == len(files)}


def column_lineage(
    lineage: Columns, paths: StorePaths, *, only: Iterable[str] | None = None
) -> column_lineage_dataset.ColumnLineageDatasetFacet:
    """Return what columns are made of; ``only`` are those that the dataset has."""
    wanted = list(lineage.columns if only is None else only)
    fields = {}
    for name in wanted:
        origins = lineage.columns.get(name, [])
        if origins:
            fields[name] = column_lineage_dataset.Fields(
                inputFields=[_input_field(each, paths, "DIRECT") for each in origins]
            )
    rows = [_input_field(each, paths, "INDIRECT") for each in lineage.rows]
    return column_lineage_dataset.ColumnLineageDatasetFacet(
        fields=fields, dataset=rows, producer=PRODUCER
    )


def _input_field(origin: Origin, paths: StorePaths, kind: str) -> column_lineage_dataset.InputField:
    name, version = origin.group
    where = named(paths.featuregroup(name, version or 1))
    how = column_lineage_dataset.Transformation(
        type=kind, subtype=origin.kind, description=origin.text, masking=False
    )
    return column_lineage_dataset.InputField(*where, field=origin.column, transformations=[how])
