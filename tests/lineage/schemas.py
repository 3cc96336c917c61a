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
    facet_groups = [("facets", event["run"]["facets"]), ("facets", event["job"]["facets"])]
    for dataset in (*event["inputs"], *event["outputs"]):
        for name in ("facets", "inputFacets", "outputFacets"):
            facet_groups.append((name, dataset.get(name, {})))
    for section, result in facet_groups:
        for name, facet in result.items():
            facet_class = _METRICS[section] if name == "dataQualityMetrics" else FACETS[name]
            jsonschema.validate(facet, schema_of(facet_class), format_checker=checker)


def schema_of(cls: type) -> dict[str, Any]:
    """Return the JSON Schema of an OpenLineage class: its fields and no others."""
    hints = typing.get_type_hints(cls)
    properties, required = {}, []
    for field in attr.fields(cls):
        name = field.name
        properties[name] = _schema_of_type(hints[name], name)
        # Fields that the package fills itself are required, too.
        if field.default is attr.NOTHING or name in ("_producer", "_schemaURL"):
            required.append(name)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _schema_of_type(field_type: Any, name: str) -> dict[str, Any]:
    origin, inside = typing.get_origin(field_type), typing.get_args(field_type)
    if origin in (typing.Union, types.UnionType):
        (field_type,) = [member for member in inside if member is not type(None)]
        return _schema_of_type(field_type, name)
    if origin is list:
        return {"type": "array", "items": _item(inside[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _item(inside[1])}
    if field_type in _PLAIN:
        format_of = {"format": _FORMATS[name]} if name in _FORMATS else {}
        return {"type": _PLAIN[field_type], **format_of}
    if isinstance(field_type, type) and issubclass(field_type, enum.Enum):
        return {"enum": [member.value for member in field_type]}
    return _item(field_type)


def _item(field_type: Any) -> dict[str, Any]:
    """Return the schema of a nested class; facets are checked separately by name."""
    if field_type is Any or dataclasses.is_dataclass(field_type):
        return {}
    if field_type in _PLAIN:
        return {"type": _PLAIN[field_type]}
    if field_type.__name__.endswith("Facet") or field_type.__name__ == "SchemaDatasetFacetFields":
        return {"type": "object"}
    return schema_of(field_type)
