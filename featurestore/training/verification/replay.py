"""Load the feature plan of a manifest, with its sources at the pinned Delta versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from featurestore.aggregates.kernel import result_type
from featurestore.errors import DatasetDamaged, FeatureStoreError, VersionNotFound
from featurestore.model.json_object import JsonObject
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.plan import (
    FeaturePlan,
    Join,
    OnDemandOutput,
    Output,
    QuerySource,
    RowSample,
    Source,
    WindowJoin,
    WindowOutput,
)
from featurestore.model.window_json import value_from_json
from featurestore.retrieval.catalog import pinned_source
from featurestore.retrieval.execution import run_query
from featurestore.retrieval.on_demand import type_features
from featurestore.session import Session


def replay_plan(session: Session, data: Mapping[str, Any]) -> FeaturePlan:
    """Load a plan from ``FeaturePlan.to_json``; its sources are read from the Delta log.

    Raises:
        VersionNotFound: The table of a source was deleted, or has another table id than the pinned one.
        DatasetDamaged: The plan is malformed.
    """
    try:
        return _plan(session, data)
    except FeatureStoreError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetDamaged(
            f"The plan in the manifest cannot be read: {type(error).__name__}: {error}."
        ) from error


def _plan(session: Session, data: Mapping[str, Any]) -> FeaturePlan:
    left_plan = _plan(session, data["left_plan"]) if "left_plan" in data else None
    left_source = None if data["left"] is None else _source(session, data["left"])
    left_query = None
    left_schema = pa.schema([])
    if left_source is not None:
        left_schema = left_source.spec.schema
    elif "left_query" in data:
        left_query = _query(session, data["left_query"])
        left_schema = run_query(session, left_query).schema
    elif left_plan is not None:
        left_schema = left_plan.schema
    fixed_time = data["fixed_time"]
    joins = [_join(session, entry) for entry in data["joins"]]
    windows = tuple([_window(session, entry) for entry in data.get("windows", ())])
    definitions = [
        OnDemandFeature.from_json(JsonObject.from_value(entry))
        for entry in data.get("on_demand", ())
    ]
    on_demand = type_features(definitions, schema=left_schema)
    aggregates: list[WindowOutput | OnDemandOutput] = [*on_demand]
    for window in windows:
        aggregates += window.outputs
    return FeaturePlan(
        left_source=left_source,
        left_schema=left_schema,
        left_columns=tuple(data["left_columns"]),
        left_time=data["left_time"],
        fixed_time=None if fixed_time is None else datetime.fromisoformat(fixed_time),
        joins=tuple(joins),
        columns=tuple(data["columns"]),
        schema=_schema(data, left_schema, joins, aggregates),
        how=data["how"],
        created_time_filter=data["created_time_filter"],
        left_plan=left_plan,
        filters=tuple(data.get("filters", ())),
        samples=_samples(data.get("samples", ())),
        left_renames=_outputs(data.get("left_renames", ())),
        left_query=left_query,
        windows=windows,
        on_demand=on_demand,
    )


def _window(session: Session, data: Mapping[str, Any]) -> WindowJoin:
    source = _source(session, data["source"])
    outputs = []
    for entry in data["outputs"]:
        window = None
        if entry["over_us"] is not None:
            window = timedelta(microseconds=entry["over_us"])
        kind = result_type(
            entry["function"], source.spec.schema.field(entry["column"]).type, n=entry["n"]
        )
        if kind is None:
            raise ValueError(f"{entry['function']} of {entry['column']} has no type")
        outputs.append(
            WindowOutput(
                column=entry["column"],
                name=entry["name"],
                function=entry["function"],
                over=window,
                offset=timedelta(microseconds=entry["offset_us"]),
                where=entry["where"],
                fill_value=value_from_json(entry["fill_value"]),
                n=entry["n"],
                kind=kind,
            )
        )
    return WindowJoin(
        source=source,
        on=tuple((label_column, source_column) for label_column, source_column in data["on"]),
        members=tuple(data["members"]),
        outputs=tuple(outputs),
        event_time=data["event_time"],
        created_time=data["created_time"],
    )


def _query(session: Session, data: Mapping[str, Any]) -> QuerySource:
    tables = [(name, _source(session, source)) for name, source in data["tables"].items()]
    return QuerySource(data["sql"], tuple(tables))


def _samples(listed: Iterable[Mapping[str, Any]]) -> tuple[RowSample, ...]:
    samples = [RowSample(each["fraction"], each["seed"], tuple(each["by"])) for each in listed]
    return tuple(samples)


def _outputs(listed: Iterable[Mapping[str, Any]]) -> tuple[Output, ...]:
    outputs = [Output(**each) for each in listed]
    return tuple(outputs)


def _source(session: Session, data: Mapping[str, Any]) -> Source:
    path = session.featuregroup_path(data["featuregroup"], data["version"])
    name = f"{data['featuregroup']}@v{data['version']}"
    if data.get("live"):
        raise VersionNotFound(
            f"Feature group {name} is external and was read at its source; no snapshot was kept."
        )
    try:
        source = pinned_source(path, delta_version=data["delta_version"])
    except FeatureStoreError as error:
        raise VersionNotFound(
            f"Feature group {name} at Delta version {data['delta_version']} "
            f"cannot be read any more: {error.message}"
        ) from error
    if source.table_id != data["table_id"]:
        raise VersionNotFound(
            f"Feature group {name} is another table than the one this dataset was made from "
            f"(table id {source.table_id}, pinned {data['table_id']})."
        )
    return source


def _join(session: Session, data: Mapping[str, Any]) -> Join:
    return Join(
        source=_source(session, data["source"]),
        on=tuple((label_column, source_column) for label_column, source_column in data["on"]),
        outputs=_outputs(data["outputs"]),
        event_time=data["event_time"],
        created_time=data["created_time"],
        ttl=None if data["ttl_us"] is None else timedelta(microseconds=data["ttl_us"]),
    )


def _schema(
    data: Mapping[str, Any],
    left_schema: pa.Schema,
    joins: Sequence[Join],
    computed: Sequence[WindowOutput | OnDemandOutput],
) -> pa.Schema:
    types = {field.name: field.type for field in left_schema}
    for entry in data.get("left_renames", ()):
        types[entry["name"]] = left_schema.field(entry["column"]).type
    for join in joins:
        for output in join.outputs:
            types[output.name] = join.source.spec.schema.field(output.column).type
    for entry in computed:
        types[entry.name] = entry.kind
    return pa.schema([(name, types[name]) for name in data["columns"]])
