"""Recomputation of a dataset at its pinned Delta versions, and comparison of every shard."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.aggregates.kernel import result_type
from featurestore.errors import (
    DatasetDamaged,
    FeatureStoreError,
    InvalidArgument,
    InvalidPlan,
    VersionNotFound,
)
from featurestore.model.json_object import JsonMapping, JsonObject
from featurestore.model.manifest import Manifest
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.paths import MANIFEST_FILE
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
from featurestore.model.requests import TrainingRequest
from featurestore.model.window_features import value_from_json
from featurestore.plugins.format import find_format
from featurestore.recovery.in_flight import in_flight
from featurestore.retrieval import FeatureFrame
from featurestore.retrieval.catalog import pinned_source
from featurestore.retrieval.execution import infer_feature_types, run_query
from featurestore.session import Session
from featurestore.storage import storage_for
from featurestore.training.export.assignment import SplitRule
from featurestore.training.export.hashed_rows import handle_missing_labels, hash_rows
from featurestore.training.export.manifest import ExportContents, describe_contents
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.shard_plan import plan_shards
from featurestore.training.export.shards import write_shards
from featurestore.training.reading import dataset_schema
from featurestore.training.verification import DatasetProblem, VerifyReport, verify
from featurestore.transform.fit import ColumnChain

if TYPE_CHECKING:
    from featurestore.session import Session


def verify_and_recompute(
    directory: str, manifest: Manifest, *, session: Session | None
) -> VerifyReport:
    """Verify the files of a dataset, and compare its shards with recomputed ones.

    Raises:
        InvalidArgument: The dataset was opened without a store.
    """
    report = verify(directory, manifest)
    problems = (*report.problems, *recompute_problems(manifest, session=session))
    return replace(report, recomputed=True, problems=problems)


def recompute_problems(manifest: Manifest, *, session: Session | None) -> Iterator[DatasetProblem]:
    """Yield a problem for each shard whose recomputed bytes differ.

    Raises:
        InvalidArgument: The dataset was opened without a store.
    """
    if not manifest.reproducible or manifest.plan is None:
        yield DatasetProblem(MANIFEST_FILE, f"cannot be recomputed: {manifest.reproducible_reason}")
        return
    if session is None:
        raise InvalidArgument(
            "verify(recompute=True) requires a store, but this dataset was opened by its path.",
            hint="featurestore.connect(...).get_training_dataset(name).verify(recompute=True)",
        )
    try:
        # The intent protects the staged files, and recovery removes them after a crash.
        with in_flight(
            session, operation="stage", name=manifest.name, version=manifest.version
        ) as run:
            recomputed = _export_again(session, manifest, staging=run.rows)
            run.registered = True
    except FeatureStoreError as error:
        yield DatasetProblem(MANIFEST_FILE, f"cannot be recomputed: {error.message}")
        return
    yield from _compare_shards(manifest, recomputed)


def _export_again(session: Session, manifest: Manifest, *, staging: str) -> ExportContents:
    """Export the rows of the plan to a staging directory, and describe the new files."""
    assert manifest.plan is not None
    plan = replay_plan(session, manifest.plan)
    frame = FeatureFrame.planned(session, plan)
    request = export_request(manifest)
    rows = os.path.join(staging, "rows")
    hashed = hash_rows(session.engine, frame.relation, request, plan=plan, directory=rows)
    hashed, _ = handle_missing_labels(hashed)
    # The shard counts come from the manifest, so that a changed default does not change the shards.
    shards = [len(split.shards) for split in manifest.splits]
    shard_plan = plan_shards(hashed, shard_counts=shards)
    target = os.path.join(staging, "dataset")
    storage_for(target).make_directory(target)
    written = write_shards(hashed, shard_plan, directory=target)
    return describe_contents(request, shard_plan, written)


def export_request(
    manifest: Manifest,
    *,
    description: str = "",
    tags: Mapping[str, str] | None = None,
    transformations: tuple[ColumnChain, ...] = (),
    fit_on: str = "train",
) -> ExportRequest:
    """Build the export request that a manifest records, with annotations and transformations.

    Every field that determines bytes comes from the manifest, not from current defaults.
    """
    missing_labels = manifest.missing_labels
    training = TrainingRequest(
        name=manifest.name,
        data_format=manifest.data_format,
        seed=manifest.seed,
        description=description,
        validation="off",
        statistics=bool(manifest.statistics),
        fit_on=fit_on,
        missing_labels="error" if missing_labels is None else missing_labels.policy,
    )
    return ExportRequest(
        training=training,
        schema=dataset_schema(manifest),
        labels=tuple(column.name for column in manifest.columns if column.role == "label"),
        key=manifest.key,
        roles={column.name: column.role for column in manifest.columns},
        rule=SplitRule.from_json(manifest.split_rule),
        format=find_format(manifest.data_format),
        compression=manifest.compression,
        block_rows=manifest.block_rows,
        tags=tags or {},
        transformations=transformations,
        max_lengths=manifest.max_lengths,
    )


def _compare_shards(manifest: Manifest, recomputed: ExportContents) -> Iterator[DatasetProblem]:
    # A different layout changes all bytes; reporting it explains the differences of the shards.
    if recomputed.layout != manifest.layout:
        yield DatasetProblem(MANIFEST_FILE, "recomputed rows require a different layout")
    for split, recomputed_split in zip(manifest.splits, recomputed.splits, strict=True):
        if split.rows != recomputed_split.rows:
            yield DatasetProblem(
                split.name,
                f"recomputation returned {recomputed_split.rows:,} rows, the manifest has "
                f"{split.rows:,}",
            )
        for shard, recomputed_shard in zip(split.shards, recomputed_split.shards, strict=True):
            if shard.sha256 != recomputed_shard.sha256:
                yield DatasetProblem(
                    shard.path,
                    f"recomputed bytes have SHA-256 {recomputed_shard.sha256}, the manifest has "
                    f"{shard.sha256}",
                )


def replay_plan(session: Session, data: JsonMapping) -> FeaturePlan:
    """Parse the JSON of ``FeaturePlan.to_json``, and read its sources from Delta logs.

    Raises:
        VersionNotFound: The table of a source was deleted, or its table id differs from the pinned
            table id.
        DatasetDamaged: The plan is malformed.
    """
    try:
        return _plan(session, data)
    except InvalidPlan as error:
        raise DatasetDamaged(f"The plan in the manifest cannot be read: {error.message}") from error
    except FeatureStoreError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # The manifest has a checksum, but a newer release may have written a plan that this one
        # cannot parse.
        raise DatasetDamaged(
            f"The plan in the manifest cannot be read: {type(error).__name__}: {error}."
        ) from error


def _plan(session: Session, data: JsonMapping) -> FeaturePlan:
    left_plan = _plan(session, data["left_plan"]) if "left_plan" in data else None
    left_source = None if data["left"] is None else _source(session, data["left"])
    left_query = None
    left_schema = pa.schema([])
    if left_source is not None:
        left_schema = left_source.spec.schema
    elif "left_query" in data:
        query = data["left_query"]
        tables = [(name, _source(session, source)) for name, source in query["tables"].items()]
        left_query = QuerySource(query["sql"], tuple(tables))
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
    on_demand = infer_feature_types(definitions, schema=left_schema)
    samples = [
        RowSample(sample["fraction"], sample["seed"], tuple(sample["by"]))
        for sample in data.get("samples", ())
    ]
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
        samples=tuple(samples),
        left_renames=_outputs(data.get("left_renames", ())),
        left_query=left_query,
        windows=windows,
        on_demand=on_demand,
    )


def _window(session: Session, data: JsonMapping) -> WindowJoin:
    source = _source(session, data["source"])
    outputs = []
    for entry in data["outputs"]:
        window = None
        if entry["over_us"] is not None:
            window = timedelta(microseconds=entry["over_us"])
        # The type depends on the column type of the pinned version, so it is inferred instead of
        # stored.
        column_type = source.spec.schema.field(entry["column"]).type
        value_type = result_type(entry["function"], column_type, n=entry["n"])
        if value_type is None:
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
                kind=value_type,
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


def _outputs(listed: Iterable[JsonMapping]) -> tuple[Output, ...]:
    return tuple(Output(**fields) for fields in listed)


def _source(session: Session, data: JsonMapping) -> Source:
    """Pin the Delta version of a source, and check that the table is the same."""
    path = session.featuregroup_path(data["featuregroup"], data["version"])
    name = f"{data['featuregroup']}@v{data['version']}"
    if data.get("live"):
        raise VersionNotFound(
            f"Feature group {name} is external and was read from its source; no snapshot was "
            "stored."
        )
    try:
        source = pinned_source(path, delta_version=data["delta_version"])
    except FeatureStoreError as error:
        raise VersionNotFound(
            f"Feature group {name} at Delta version {data['delta_version']} "
            f"can no longer be read: {error.message}"
        ) from error
    # Equal paths are not enough: a group that was deleted and created again starts at version 0,
    # too.
    if source.table_id != data["table_id"]:
        raise VersionNotFound(
            f"Feature group {name} is not the table that this dataset was created from "
            f"(table id {source.table_id}, pinned {data['table_id']})."
        )
    return source


def _join(session: Session, data: JsonMapping) -> Join:
    return Join(
        source=_source(session, data["source"]),
        on=tuple((label_column, source_column) for label_column, source_column in data["on"]),
        outputs=_outputs(data["outputs"]),
        event_time=data["event_time"],
        created_time=data["created_time"],
        ttl=None if data["ttl_us"] is None else timedelta(microseconds=data["ttl_us"]),
    )


def _schema(
    data: JsonMapping,
    left_schema: pa.Schema,
    joins: Sequence[Join],
    computed: Sequence[WindowOutput | OnDemandOutput],
) -> pa.Schema:
    """Return the output schema of a plan."""
    types = {field.name: field.type for field in left_schema}
    for entry in data.get("left_renames", ()):
        types[entry["name"]] = left_schema.field(entry["column"]).type
    for join in joins:
        for output in join.outputs:
            types[output.name] = join.source.spec.schema.field(output.column).type
    for entry in computed:
        types[entry.name] = entry.kind
    return pa.schema([(name, types[name]) for name in data["columns"]])
