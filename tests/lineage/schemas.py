"""Validation of events with the JSON Schemas of OpenLineage (``tests/assets/openlineage``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

_FOLDER = Path(__file__).parents[1] / "assets" / "openlineage"
_FACET_GROUPS = ("facets", "inputFacets", "outputFacets")
# By the specification, ``type`` and ``subtype`` are any strings; its description lists these.
SUBTYPES = {
    "DIRECT": {"IDENTITY", "TRANSFORMATION", "AGGREGATION"},
    "INDIRECT": {"JOIN", "GROUP_BY", "FILTER", "SORT", "WINDOW", "CONDITIONAL"},
}
# The client names 1-0-1 of the schema of these metrics, and the specification has 1-0-0.
_OTHER_VERSIONS = {"DataQualityMetricsDatasetFacet"}
_formats = FormatChecker()


@_formats.checks("date-time", raises=ValueError)
def _is_timestamp(value: object) -> bool:
    return datetime.fromisoformat(str(value)).tzinfo is not None


@_formats.checks("uri", raises=ValueError)
def _is_uri(value: object) -> bool:
    return bool(urlsplit(str(value)).scheme)


@cache
def _schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas by title, the name of their file."""
    return {
        path.stem: json.loads(path.read_text("utf-8"))
        for path in [_FOLDER / "OpenLineage.json", *sorted((_FOLDER / "facets").iterdir())]
    }


@cache
def _validator(title: str, definition: str) -> Draft202012Validator:
    resources = [(schema["$id"], Resource.from_contents(schema)) for schema in _schemas().values()]
    schema = {"$ref": f"{_schemas()[title]['$id']}#/$defs/{definition}"}
    return Draft202012Validator(
        schema, registry=Registry().with_resources(resources), format_checker=_formats
    )


def check_event(event: dict[str, Any]) -> None:
    """Raise an error if an event or one of its facets does not conform to OpenLineage."""
    _validator("OpenLineage", "RunEvent").validate(event)
    assert event["eventType"] in ("START", "COMPLETE", "FAIL", "ABORT")
    for facet in _iterate_facets(event):
        # The URL is https://openlineage.io/spec/facets/1-2-0/NAME.json#/$defs/NAME.
        url, _, definition = facet["_schemaURL"].partition("#/$defs/")
        title = url.rpartition("/")[2].removesuffix(".json")
        assert title in _OTHER_VERSIONS or url == _schemas()[title]["$id"]
        _validator(title, definition).validate(facet)
        _check_property_names(facet, title)
    for output in event["outputs"]:
        lineage = output.get("facets", {}).get("columnLineage", {})
        for inputs in _iterate_input_fields(lineage):
            keys = [(field["namespace"], field["name"], field["field"]) for field in inputs]
            assert len(keys) == len(set(keys))
            for transformation in [item for field in inputs for item in field["transformations"]]:
                assert transformation["subtype"] in SUBTYPES[transformation["type"]]


def _iterate_facets(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for holder in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
        for group in _FACET_GROUPS:
            yield from holder.get(group, {}).values()


def _check_property_names(facet: Mapping[str, Any], title: str) -> None:
    """Check that a facet has no other properties; the schemas allow all."""
    (definition,) = [
        member for member in _schemas()[title]["$defs"][title]["allOf"] if "properties" in member
    ]
    names = {"_producer", "_schemaURL", "_deleted", *definition["properties"]}
    assert set(facet) <= names, (title, set(facet) - names)


def _iterate_input_fields(lineage: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    yield lineage.get("dataset", [])
    for field in lineage.get("fields", {}).values():
        yield field["inputFields"]
