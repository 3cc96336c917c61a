"""JSON Schemas of OpenLineage's events and facets, from the classes that its package ships."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

import attr
import jsonschema
from openlineage.client import event_v2
from openlineage.client import facet_v2 as facets

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}
_FORMATS = {
    "runId": "uuid",
    "eventTime": "date-time",
    "nominalStartTime": "date-time",
    "nominalEndTime": "date-time",
    "producer": "uri",
    "_producer": "uri",
    "_schemaURL": "uri",
    "schemaURL": "uri",
}
# Facets by their names in the specification.
FACETS: dict[str, type] = {
    "columnLineage": facets.column_lineage_dataset.ColumnLineageDatasetFacet,
    "dataQualityAssertions": (
        facets.data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet
    ),
    "errorMessage": facets.error_message_run.ErrorMessageRunFacet,
    "jobType": facets.job_type_job.JobTypeJobFacet,
    "lifecycleStateChange": facets.lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet,
    "nominalTime": facets.nominal_time_run.NominalTimeRunFacet,
    "outputStatistics": facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
    "parent": facets.parent_run.ParentRunFacet,
    "schema": facets.schema_dataset.SchemaDatasetFacet,
    "sql": facets.sql_job.SQLJobFacet,
    "symlinks": facets.symlinks_dataset.SymlinksDatasetFacet,
    "tags": facets.tags_run.TagsRunFacet,  # the client's own
    "version": facets.dataset_version_dataset.DatasetVersionDatasetFacet,
}
_METRICS = {
    "facets": facets.data_quality_metrics_dataset.DataQualityMetricsDatasetFacet,
    "inputFacets": facets.data_quality_metrics_input_dataset.DataQualityMetricsInputDatasetFacet,
}


def check_event(event: dict[str, Any]) -> None:
    """Raise an error if an event or facet does not conform to the specification's classes."""
    checker = jsonschema.FormatChecker()
    jsonschema.validate(event, schema_of(event_v2.RunEvent), format_checker=checker)
    places = [("facets", event["run"]["facets"]), ("facets", event["job"]["facets"])]
    for dataset in (*event["inputs"], *event["outputs"]):
        for name in ("facets", "inputFacets", "outputFacets"):
            places.append((name, dataset.get(name, {})))
    for place, result in places:
        for name, facet in result.items():
            known = _METRICS[place] if name == "dataQualityMetrics" else FACETS[name]
            jsonschema.validate(facet, schema_of(known), format_checker=checker)


def schema_of(cls: type) -> dict[str, Any]:
    """Return the JSON Schema of an OpenLineage class: its fields and no others."""
    hints = typing.get_type_hints(cls)
    properties, required = {}, []
    for each in attr.fields(cls):
        name = each.name
        properties[name] = _schema_of_type(hints[name], name)
        # Fields that the package fills itself are required, too.
        if each.default is attr.NOTHING or name in ("_producer", "_schemaURL"):
            required.append(name)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _schema_of_type(kind: Any, name: str) -> dict[str, Any]:
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (kind,) = [each for each in inside if each is not type(None)]
        return _schema_of_type(kind, name)
    if origin is list:
        return {"type": "array", "items": _item(inside[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _item(inside[1])}
    if kind in _PLAIN:
        format_of = {"format": _FORMATS[name]} if name in _FORMATS else {}
        return {"type": _PLAIN[kind], **format_of}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [each.value for each in kind]}
    return _item(kind)


def _item(kind: Any) -> dict[str, Any]:
    """Return the schema of a nested class; facets are checked separately by name."""
    if kind is Any or dataclasses.is_dataclass(kind):
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind.__name__.endswith("Facet") or kind.__name__ == "SchemaDatasetFacetFields":
        return {"type": "object"}
    return schema_of(kind)
