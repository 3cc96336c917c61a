"""OpenLineage dataset facets: columns, versions, statistics and column lineage."""

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
from featurestore.lineage.column_origins import ColumnOrigins
from featurestore.lineage.origins import Dataset, OriginColumn
from featurestore.storage import StorePaths

# The event producer. OpenLineage requires a URI; a URN needs no web address.
PRODUCER = "urn:featurestore"
# The maximum number of files for which null counts are summed.
_MAX_FILES = 1000
Facets = dict[str, Any]


def namespace_and_name(path: str) -> tuple[str, str]:
    """Return the OpenLineage namespace and name of a path or URI.

    >>> namespace_and_name("/data/store/featuregroups/weather/v1")
    ('file', '/data/store/featuregroups/weather/v1')
    >>> namespace_and_name("s3://bucket/store/featuregroups/weather/v1")
    ('s3://bucket', 'store/featuregroups/weather/v1')
    """
    url = urlsplit(path)
    # By the naming conventions of OpenLineage, the namespace of an object is its bucket, and the
    # namespace of a local path is "file".
    if url.scheme and url.netloc:
        return f"{url.scheme}://{url.netloc}", url.path.strip("/")
    return "file", path


def dataset_identifier(path: str) -> tuple[str, str]:
    """Return the OpenLineage namespace and name of a directory."""
    return namespace_and_name(path.rstrip("/"))


def standard_facets(path: str, name: str, version: int | None, schema: pa.Schema) -> Facets:
    """Return the facets that all datasets of a store have: columns and name."""
    fields = [
        schema_dataset.SchemaDatasetFacetFields(
            name=field.name, type=str(field.type), ordinal_position=index + 1
        )
        for index, field in enumerate(schema)
    ]
    return {
        "schema": schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER),
        "symlinks": symlinks_facet(path, name, version),
    }


def symlinks_facet(
    path: str, name: str, version: int | None
) -> symlinks_dataset.SymlinksDatasetFacet:
    """Return the facet with the name of a dataset in the store, such as ``weather@v1``."""
    logical = f"{name}@v{version or 1}"
    identifier = symlinks_dataset.Identifier(
        namespace=dataset_identifier(path)[0], name=logical, type="TABLE"
    )
    return symlinks_dataset.SymlinksDatasetFacet(identifiers=[identifier], producer=PRODUCER)


def version_facet(version: object) -> dataset_version_dataset.DatasetVersionDatasetFacet:
    """Return the facet with the dataset version; for a group this is the Delta version."""
    return dataset_version_dataset.DatasetVersionDatasetFacet(
        datasetVersion=str(version), producer=PRODUCER
    )


def lifecycle_facet(
    change: str,
) -> lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet:
    """Return the facet for a lifecycle change, "CREATE" or "DROP"."""
    return lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(
        lifecycleStateChange=lifecycle_state_change_dataset.LifecycleStateChange(change),
        producer=PRODUCER,
    )


def metrics_facet(state: Snapshot) -> data_quality_metrics_dataset.DataQualityMetricsDatasetFacet:
    """Return the facet with table statistics from the log: rows, bytes, null counts."""
    column_metrics = {
        name: data_quality_metrics_dataset.ColumnMetrics(nullCount=count)
        for name, count in _null_counts(state.files).items()
        if name in state.schema.names
    }
    return data_quality_metrics_dataset.DataQualityMetricsDatasetFacet(
        columnMetrics=column_metrics,
        rowCount=state.rows,
        bytes=state.bytes,
        fileCount=len(state.files),
        producer=PRODUCER,
    )


def _null_counts(files: Sequence[DataFile]) -> dict[str, int]:
    """Return the null counts of the columns for which every file has statistics."""
    if len(files) > _MAX_FILES:
        return {}
    null_counts: dict[str, int] = {}
    file_counts: dict[str, int] = {}
    for file in files:
        counts = json.loads(file.statistics or "{}").get("nullCount", {})
        for name, count in counts.items():
            # The counts of a struct column are a nested object in the statistics of Delta.
            if isinstance(count, int):
                null_counts[name] = null_counts.get(name, 0) + count
                file_counts[name] = file_counts.get(name, 0) + 1
    # Without the count of one file, the sum would be too small.
    return {name: count for name, count in null_counts.items() if file_counts[name] == len(files)}


def column_lineage_facet(
    lineage: ColumnOrigins, paths: StorePaths, *, only: Iterable[str] | None = None
) -> column_lineage_dataset.ColumnLineageDatasetFacet:
    """Return the column lineage facet; ``only`` selects columns of the dataset."""
    names = list(lineage.columns if only is None else only)
    fields = {
        name: column_lineage_dataset.Fields(inputFields=_input_fields(lineage.columns[name], paths))
        for name in names
        if lineage.columns.get(name)
    }
    return column_lineage_dataset.ColumnLineageDatasetFacet(
        fields=fields, dataset=_input_fields(lineage.rows, paths), producer=PRODUCER
    )


def _input_fields(
    origins: Iterable[OriginColumn], paths: StorePaths
) -> list[column_lineage_dataset.InputField]:
    """Return an input field per source column, with all its transformations."""
    transformations: dict[tuple[str, str, str], list[column_lineage_dataset.Transformation]] = {}
    for origin in origins:
        key = (*input_identifier(origin.dataset, paths), origin.column)
        transformation = column_lineage_dataset.Transformation(
            type="DIRECT" if origin.is_direct else "INDIRECT",
            subtype=origin.subtype,
            description=origin.text,
            masking=origin.masking,
        )
        transformations.setdefault(key, []).append(transformation)
    return [
        column_lineage_dataset.InputField(*key, transformations=listed)
        for key, listed in transformations.items()
    ]


def input_identifier(dataset: Dataset, paths: StorePaths) -> tuple[str, str]:
    """Return the OpenLineage namespace and name of an input of a job or a retrieval.

    >>> input_identifier(Dataset("weather", 2), StorePaths("/data/store"))
    ('file', '/data/store/featuregroups/weather/v2')
    >>> input_identifier(Dataset("source:shop", query="trips"), StorePaths("/data/store"))
    ('source:shop', 'trips')
    """
    if dataset.source.startswith("source:"):
        return dataset.source, dataset.query
    if "/" in dataset.source:
        return dataset_identifier(dataset.source)
    return dataset_identifier(paths.featuregroup(dataset.source, dataset.version or 1))
