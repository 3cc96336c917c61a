"""Export requests: the data and options of ``create_training_dataset``, checked before any write.

The data are lazy rows with their provenance. External groups are read from snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from featurestore.arrow.column_names import check_feature_names
from featurestore.arrow.untyped import refuse_untyped, typing_hint
from featurestore.errors import InvalidArgument, InvalidExpectation, did_you_mean, listing
from featurestore.external import LiveSource, find_live_sources, take_snapshot
from featurestore.external.groups import get_external_rows
from featurestore.ingest import to_relation
from featurestore.model import display
from featurestore.model.featuregroup import VALIDATION_POLICIES, check_tags, normalize_tags
from featurestore.model.json_object import JsonMapping
from featurestore.model.manifest import DROP, MISSING_LABELS
from featurestore.model.names import check_name
from featurestore.model.plan import FeaturePlan, Source
from featurestore.model.requests import TimeSplit, TrainingRequest
from featurestore.model.roles import Role, RoleRequest, assign_roles
from featurestore.model.source import SourceRead, SourceReads
from featurestore.model.timestamp_inputs import refuse_timestamp_inputs
from featurestore.model.validation import FeatureComparison, describe
from featurestore.plugins.engine import Relation
from featurestore.plugins.format import DatasetFormat, find_format
from featurestore.plugins.validator import Validator, find_validator
from featurestore.retrieval import FeatureFrame
from featurestore.retrieval.catalog import pinned_source
from featurestore.retrieval.labels import refuse_times_out_of_range
from featurestore.session import Session
from featurestore.training.export.assignment import (
    SplitRule,
    build_split_rule,
    check_columns,
    to_column_names,
)
from featurestore.training.export.profiles import check_max_lengths
from featurestore.training.transformations import check_transformations
from featurestore.transform.fit import ColumnChain

DEFAULT_BLOCK_ROWS = 1024
SHARD_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """A training request with what its arguments mean for the columns of the data.

    ``expectations`` are normalized by ``validator``, which is None if there are none.
    """

    training: TrainingRequest
    schema: pa.Schema
    labels: tuple[str, ...]
    key: tuple[str, ...]
    roles: Mapping[str, Role]
    rule: SplitRule
    format: DatasetFormat
    compression: str | None
    block_rows: int
    tags: Mapping[str, str] = field(default_factory=dict)
    transformations: tuple[ColumnChain, ...] = ()
    max_lengths: Mapping[str, int] = field(default_factory=dict)
    validator: Validator | None = None
    expectations: tuple[JsonMapping, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the files, in order."""
        return tuple(self.schema.names)

    def choose_shard_count(self, rows: int, *, bytes_per_row: float) -> int:
        """Return the number of shards for a split.

        By default, shards have about 128 MiB. Their number is a multiple of 8, unless shards would
        then have less than one block.
        """
        if self.training.shards is not None:
            return self.training.shards
        if self.training.rows_per_shard is not None:
            return max(1, -(-rows // self.training.rows_per_shard))
        shard_count = max(1, round(rows * bytes_per_row / SHARD_BYTES))
        # A multiple of 8 divides evenly among 2, 4 or 8 workers.
        rounded_count = -(-shard_count // 8) * 8
        if rows < rounded_count * self.block_rows:
            return shard_count
        return rounded_count


def check_request(
    training: TrainingRequest, *, schema: pa.Schema, plan: FeaturePlan | None = None
) -> ExportRequest:
    """Check the arguments of a training dataset; raise an error for the first invalid one.

    Args:
        training: The arguments of ``create_training_dataset``.
        schema: The schema of the data.
        plan: The plan of the data, which determines its default key and roles of columns.
    """
    time = None if plan is None else plan.time or _event_time_column(plan)
    check_name(training.name, noun="training dataset")
    check_feature_names(schema.names)
    labels = to_column_names(training.label)
    check_columns(labels, schema=schema, argument="label")
    keys = to_column_names(training.key) or _identifying_columns(plan, time)
    check_columns(keys, schema=schema, argument="key")
    if not schema.names:
        raise InvalidArgument("The data has no columns.")
    dataset_format = find_format(training.data_format)
    # Formats name their codecs in upper case; pyarrow and polars use lower case.
    compression = None if training.compression is None else training.compression.upper()
    dataset_format.check(schema, compression=compression)
    rule = build_split_rule(
        training.splits, split_by=training.split_by, stratify=training.stratify, schema=schema
    )
    _check_numbers(training)
    roles = assign_roles(schema, _resolve_roles(training, schema, plan, time))
    transformations = check_transformations(
        training.transformations or {},
        schema,
        roles=roles,
        fit_on=training.fit_on,
        splits=rule.names,
    )
    refuse_timestamp_inputs(
        {field.name: field.type for field in schema if roles[field.name] == "feature"},
        transformed=[column.name for column in transformations],
        time=next((name for name, role in roles.items() if role == "time"), None),
        without="exclude",
    )
    tags = normalize_tags(training.tags)
    check_tags(tags)
    max_lengths = check_max_lengths(training.max_lengths or {}, schema)
    _check_missing_labels(training.missing_labels, labels)
    validator, expectations = _parse_expectations(training)
    return ExportRequest(
        training=training,
        schema=schema,
        labels=labels,
        # Without a key, all columns identify a row; equal rows are interchangeable.
        key=keys or tuple(schema.names),
        roles=roles,
        rule=rule,
        format=dataset_format,
        compression=compression,
        block_rows=training.block_rows or DEFAULT_BLOCK_ROWS,
        tags=tags,
        transformations=transformations,
        max_lengths=max_lengths,
        validator=validator,
        expectations=expectations,
    )


def _parse_expectations(
    training: TrainingRequest,
) -> tuple[Validator | None, tuple[JsonMapping, ...]]:
    """Return the validator and the normalized expectations.

    Raises:
        InvalidArgument: The policy does not exist.
        InvalidExpectation: An expectation does not exist, or lacks arguments.
    """
    if training.validation not in VALIDATION_POLICIES:
        raise InvalidArgument(
            f"Unknown validation policy {training.validation!r}.",
            hint=f"one of {', '.join(VALIDATION_POLICIES)}",
        )
    if not training.expectations:
        return None, ()
    validator = find_validator()
    expectations = validator.normalize(training.expectations)
    for expectation in expectations:
        comparison = FeatureComparison.from_expectation(expectation)
        # The other group would not be pinned, so the dataset could not be recomputed.
        if comparison is not None:
            raise InvalidExpectation(
                f"{describe(expectation)}: training datasets are not compared with other groups.",
                hint=f"add the expectation to the feature group of {comparison.column!r}: "
                "store.update_featuregroup(name, expectations=[...])",
            )
    return validator, expectations


def _check_missing_labels(policy: str, labels: Sequence[str]) -> None:
    if policy not in MISSING_LABELS:
        raise InvalidArgument(
            f"missing_labels={policy!r} is not one of {listing(MISSING_LABELS)}.",
            hint=did_you_mean(str(policy), MISSING_LABELS, write="missing_labels={!r}")
            or f"missing_labels={DROP!r}",
        )
    if policy != "error" and not labels:
        raise InvalidArgument(
            f"missing_labels={policy!r} needs a label.",
            hint="create_training_dataset(..., label='column')",
        )


def _check_numbers(training: TrainingRequest) -> None:
    for argument in ("shards", "rows_per_shard", "block_rows"):
        value = getattr(training, argument)
        if value is not None and not (_is_integer(value) and value >= 1):
            raise InvalidArgument(f"{argument}={value!r} is not a positive integer.")
    if training.shards is not None and training.rows_per_shard is not None:
        raise InvalidArgument("shards and rows_per_shard cannot be combined.", hint="pass only one")
    if not (_is_integer(training.seed) and 0 <= training.seed < 2**64):
        raise InvalidArgument(
            f"seed={training.seed!r} is not a seed.",
            hint="seeds are integers from 0 to 2**64 - 1",
        )


def _is_integer(value: object) -> bool:
    # bool is a subclass of int.
    return isinstance(value, int) and not isinstance(value, bool)


def _identifying_columns(plan: FeaturePlan | None, time: str | None) -> tuple[str, ...]:
    """Return the columns that identify a row if the caller does not specify a key."""
    if plan is None:
        return ()
    # Rows of one entity differ in time, so the time is part of the key.
    if time is not None and time not in plan.keys:
        return (*plan.keys, time)
    return plan.keys


def _resolve_roles(
    training: TrainingRequest, schema: pa.Schema, plan: FeaturePlan | None, time: str | None
) -> RoleRequest:
    """Combine the column roles of the plan and the caller, and check that all columns exist."""
    weights = to_column_names(training.weight)
    if len(weights) > 1:
        raise InvalidArgument(
            f"weight={training.weight!r} is not a single column.", hint="weight='column'"
        )
    features, exclude = to_column_names(training.features), to_column_names(training.exclude)
    for argument, names in (("features", features), ("exclude", exclude), ("weight", weights)):
        check_columns(names, schema=schema, argument=argument)
    for name in weights:
        weight_type = schema.field(name).type
        if not pa.types.is_integer(weight_type) and not pa.types.is_floating(weight_type):
            raise InvalidArgument(
                f"weight={name!r} has type {weight_type}; weights must be numbers."
            )
    split_time = None
    if isinstance(training.splits, TimeSplit):
        split_time = training.splits.column
    requested_features = None
    if plan is not None and plan.requested_columns is not None:
        requested_features = tuple(name for name in plan.requested_columns if name in plan.columns)
    return RoleRequest(
        requested_features=requested_features,
        keys=() if plan is None else (*plan.keys, *plan.join_columns),
        time=time,
        labels=to_column_names(training.label),
        weight=next(iter(weights), None),
        declared_keys=to_column_names(training.key),
        features=features,
        exclude=exclude,
        split_time=split_time,
    )


@dataclass(frozen=True)
class ExportData:
    """Lazy rows with their provenance; ``frame`` is None for dataframes of other libraries."""

    relation: Callable[[], Relation]
    schema: pa.Schema
    provenance: RowProvenance
    frame: FeatureFrame | None = None

    @property
    def plan(self) -> FeaturePlan | None:
        """The plan of the rows, if they have one."""
        return None if self.frame is None else self.frame.plan

    @property
    def sources(self) -> list[Source]:
        """The distinct pinned sources that the plan reads."""
        if self.plan is None:
            return []
        return _distinct_sources(self.plan)


@dataclass(frozen=True)
class RowProvenance:
    """The provenance of rows, which the manifest records.

    It contains the plan, its sources, and why running the plan again may not reproduce the rows,
    if so. ``reads`` grows while rows are read from registered sources. Rows of an earlier version
    have the reads of its manifest (``earlier_reads``), and the numbers of rows that it lacks.
    """

    plan: JsonMapping | None = None
    plan_hash: str | None = None
    sources: tuple[JsonMapping, ...] = ()
    irreproducible: str | None = None
    view: JsonMapping | None = None
    reads: Sequence[SourceRead] = ()
    earlier_reads: tuple[JsonMapping, ...] = ()
    uncovered_rows: int = 0
    dropped_rows: int | None = None

    __repr__ = display.record_repr

    @property
    def recorded_reads(self) -> tuple[JsonMapping, ...]:
        """The source reads so far, as JSON."""
        return (*self.earlier_reads, *(read.to_json() for read in self.reads))


def export_data(session: Session, data: object, *, reads: Sequence[SourceRead] = ()) -> ExportData:
    """Convert the caller's data, a frame with a plan or a dataframe, to ``ExportData``.

    ``reads`` are the source reads so far.
    """
    if isinstance(data, FeatureFrame) and data.plan is not None:
        return _planned_data(data, data.plan, reads)
    relation = to_relation(data, engine=session.engine)
    # A stream can be read once only, so its times are checked while it is exported.
    if not relation.single_use and not isinstance(data, FeatureFrame):
        refuse_times_out_of_range(relation, engine=session.engine)
    reason = "the data was a dataframe, not features of the store"
    if isinstance(data, FeatureFrame) and data.reads is not None:
        reason = "the data was read from a source without a stored snapshot"
        reads = data.reads
    provenance = RowProvenance(irreproducible=reason, reads=reads)
    frame = data if isinstance(data, FeatureFrame) else None
    return ExportData(lambda: relation, relation.schema, provenance, frame)


def refuse_untyped_columns(schema: pa.Schema) -> None:
    """Refuse columns without a type, which no format supports.

    Raises:
        UnsupportedType: Columns have no type. The hint casts them.
    """
    refuse_untyped(schema, subject="The training dataset", hint=typing_hint)


def pin_external_groups(session: Session, data: object) -> tuple[object, list[SourceRead]]:
    """Take snapshots of the external groups of a frame; return the pinned frame and the reads.

    Groups without snapshots, and data without a plan, are returned unchanged.
    """
    if not isinstance(data, FeatureFrame) or data.plan is None:
        return data, []
    # Several joins of one external group share a snapshot, so they read the same rows.
    snapshots: dict[LiveSource, Source] = {}
    for live in find_live_sources(data.plan):
        if get_external_rows(live.spec).snapshots == "training":
            path = session.featuregroup_path(live.spec.name, live.spec.version)
            snapshots[live] = pinned_source(path, delta_version=take_snapshot(session, live))
    if not snapshots:
        return data, []

    def snapshot_of(source: Source) -> Source:
        if isinstance(source, LiveSource):
            return snapshots.get(source, source)
        return source

    plan = data.plan.map_sources(snapshot_of)
    frame = FeatureFrame.planned(session, plan, labels=data.labels, reads=data.label_reads)
    if data.view is not None:
        frame = frame.of_view(*data.view, labels=data.view_labels)
    return frame, [live.read for live in snapshots]


def _planned_data(
    frame: FeatureFrame, plan: FeaturePlan, reads: Sequence[SourceRead]
) -> ExportData:
    view = None
    if frame.view is not None:
        view = {"name": frame.view[0], "version": frame.view[1]}
    provenance = RowProvenance(
        plan=plan.to_json(),
        plan_hash=plan.hash,
        sources=tuple(source.to_json() for source in _distinct_sources(plan)),
        irreproducible=_irreproducibility_reason(frame, plan),
        view=view,
        # Pass an empty list too, since it may grow while the rows are read.
        reads=reads if frame.reads is None else SourceReads(frame.reads, reads),
    )
    return ExportData(lambda: frame.relation, frame.schema, provenance, frame)


def _distinct_sources(plan: FeaturePlan) -> list[Source]:
    sources = {(source.path, source.delta_version): source for source in plan.sources}
    return list(sources.values())


def _event_time_column(plan: FeaturePlan) -> str | None:
    """Return the output name of the label group's event time, or None if it is not selected.

    The event time is part of the key even if no join uses it.
    """
    if plan.left_source is None:
        return None
    name = plan.left_source.spec.event_time
    for output in plan.left_outputs:
        if output.column == name:
            return output.name
    return None


def _irreproducibility_reason(frame: FeatureFrame, plan: FeaturePlan) -> str | None:
    """Return why a plan may not reproduce its rows, or None if all sources are pinned."""
    for live in find_live_sources(plan):
        return (
            f"feature group {live.spec.name!r} is external and stores no snapshots "
            f"(snapshots='never'): its rows were read from {live.spec.external}"
        )
    # The innermost plan reads the labels.
    while plan.left_plan is not None:
        plan = plan.left_plan
    if plan.left_query is not None:
        if plan.left_query.varies is None:
            return None
        return f"the rows of the query may vary: {plan.left_query.varies}"
    if plan.left_source is None and frame.label_reads is not None:
        return "the labels were read from a source without a stored snapshot"
    if plan.left_source is None:
        return "the labels were a dataframe, not a feature group"
    return None
