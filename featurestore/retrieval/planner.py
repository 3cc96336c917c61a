"""The planner, which turns requested features and labels into a feature plan without I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.hints import (
    can_be_epoch,
    detect_number_form,
    infer_epoch_unit,
    time_hint,
)
from featurestore.errors import (
    ColumnConflict,
    FeatureNotFound,
    InvalidArgument,
    LabelTimeRequired,
    listing,
)
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.plan import FeaturePlan, Join, JoinKind, Output, Source
from featurestore.model.requests import LabelTime, RetrievalRequest
from featurestore.model.source import SourceRead
from featurestore.model.times import format_duration, parse_moment
from featurestore.plugins.engine import Relation
from featurestore.retrieval.resolve import Feature, Pairs, join_keys_by_group, key_pairs

GroupId = tuple[str, int]


@dataclass(frozen=True)
class LabelSide:
    """The left side of a retrieval.

    ``source`` is set for a group, and ``plan`` for the result of another retrieval; ``time`` is
    their time column. ``ordered`` preserves the row order. ``peek`` returns the first rows of a
    dataframe, for hints; it is None for rows of the store. ``relation`` returns the rows of the
    caller's dataframe, which may also feed the plan; reads of registered sources are appended to
    ``reads``.
    """

    schema: pa.Schema
    source: Source | None = None
    plan: FeaturePlan | None = None
    time: str | None = None
    ordered: bool = False
    rows: int | None = None
    peek: Callable[[], pa.Table] | None = None
    relation: Callable[[], Relation] | None = None
    reads: list[SourceRead] | None = None

    def time_hint(self, column: str) -> str:
        """Return a code hint that converts a column of numbers or strings to times."""
        data_type = self.schema.field(column).type
        values: list[float | str | None] = []
        # The first rows are only read to infer the unit of numbers or the format of strings.
        if (can_be_epoch(data_type) or pat.is_string(data_type)) and self.peek is not None:
            values = self.peek().column(column).to_pylist()
        return time_hint(column, data_type, values)

    @property
    def dataframe_columns(self) -> tuple[str, ...]:
        """The columns of the caller's dataframe, from which chained retrievals start.

        If only one of them is a timestamp, it may be used as the label time. Times of a group or
        features never are.
        """
        first = self.plan
        while first is not None and first.left_plan is not None:
            first = first.left_plan
        if self.source is not None or (first is not None and first.left_source is not None):
            return ()
        output_names: set[str] = set()
        if self.plan is not None:
            output_names.update(self.plan.requested_columns or ())
        return tuple(name for name in self.schema.names if name not in output_names)


def plan_with_labels(
    features: Sequence[Feature],
    request: RetrievalRequest,
    *,
    labels: LabelSide,
    source: Callable[[GroupId], Source],
    other_specs: Sequence[FeatureGroupSpec] = (),
) -> FeaturePlan:
    """Plan a retrieval that adds features to labels.

    All label columns come first, then the features in the requested order. ``other_specs`` are
    groups that another step of the same call joins; ``join_key=`` may name them.

    Raises:
        ColumnConflict: Two columns of the result would have the same name.
        NoJoinKey: A group's key is not among the label columns.
        LabelTimeRequired: The time column of the labels is ambiguous or missing.
    """
    names = [feature.name for feature in features]
    return _plan(
        features,
        request,
        labels=labels,
        left_outputs=tuple(Output(name, name) for name in labels.schema.names),
        requested_columns=output_names(names, labels=labels),
        source=source,
        other_specs=other_specs,
    )


def plan_without_labels(
    features: Sequence[Feature],
    request: RetrievalRequest,
    *,
    spec: FeatureGroupSpec,
    labels: LabelSide,
    source: Callable[[GroupId], Source],
    other_specs: Sequence[FeatureGroupSpec] = (),
    aggregates: Sequence[str] = (),
) -> FeaturePlan:
    """Plan a retrieval whose left side is the group of the first feature, as of its event time.

    ``aggregates`` are columns of the left side that do not belong to the group ``spec``.
    """
    group = (spec.name, spec.version)
    requested = [*[feature.name for feature in features], *aggregates]
    outputs = [
        Output(feature.column, feature.name) for feature in features if feature.group == group
    ]
    keys: list[Output] = []
    if request.include_keys:
        requested_columns = {output.column for output in outputs}
        names = list(spec.primary_key)
        if spec.event_time is not None:
            names.append(spec.event_time)
        keys = [Output(name, name) for name in names if name not in requested_columns]
    plan = _plan(
        [feature for feature in features if feature.group != group],
        request,
        labels=labels,
        left_outputs=(*keys, *outputs, *[Output(name, name) for name in aggregates]),
        requested_columns=tuple(requested),
        source=source,
        other_specs=other_specs,
    )
    key_names = [key.name for key in keys if key.name not in requested]
    return reorder_columns(plan, [*key_names, *requested])


def output_names(names: Sequence[str], *, labels: LabelSide) -> tuple[str, ...]:
    """Return the requested names, preceded by those of the retrieval that computes the labels."""
    earlier_names: tuple[str, ...] = ()
    if labels.plan is not None and labels.plan.requested_columns is not None:
        earlier_names = labels.plan.requested_columns
    return (*earlier_names, *names)


def _plan(
    features: Sequence[Feature],
    request: RetrievalRequest,
    *,
    labels: LabelSide,
    left_outputs: tuple[Output, ...],
    requested_columns: tuple[str, ...],
    source: Callable[[GroupId], Source],
    other_specs: Sequence[FeatureGroupSpec],
) -> FeaturePlan:
    _check_names(left_outputs, features)
    # Features of one group share one join.
    grouped: dict[GroupId, list[Feature]] = {}
    for feature in features:
        grouped.setdefault(feature.group, []).append(feature)
    specs = [group_features[0].spec for group_features in grouped.values()]
    keys_by_group = join_keys_by_group(
        request.join_key, label_schema=labels.schema, groups=[*specs, *other_specs]
    )
    joins, timed_specs = [], []
    for group, group_features in grouped.items():
        column_pairs = key_pairs(
            group_features[0].spec,
            label_schema=labels.schema,
            join_key=keys_by_group[group],
            groups=specs,
            peek=labels.peek,
        )
        join = _join(source(group), group_features, column_pairs=column_pairs)
        joins.append(join)
        # Only groups with event time need a label time.
        if join.event_time is not None:
            timed_specs.append(join.source.spec)
    left_time, fixed_time = resolve_label_time(
        request.label_time, labels=labels, timed_specs=timed_specs
    )
    fields, left_columns, left_renames = [], [], []
    for output in left_outputs:
        fields.append(labels.schema.field(output.column).with_name(output.name))
        left_columns.append(output.name)
        if output.name != output.column:
            left_renames.append(output)
    # Features follow in the requested order, which may differ from the order of the joins.
    for feature in features:
        fields.append(feature.spec.schema.field(feature.column).with_name(feature.name))
    schema = pa.schema(fields)
    return FeaturePlan(
        left_source=labels.source,
        left_schema=labels.schema,
        left_columns=tuple(left_columns),
        left_time=left_time,
        fixed_time=fixed_time,
        joins=tuple(joins),
        columns=tuple(schema.names),
        schema=schema,
        how=_check_join_kind(request.join),
        created_time_filter=request.created_time_filter,
        keep_order=labels.ordered,
        notes=tuple(_describe_joins(joins, request)),
        left_plan=labels.plan,
        left_renames=tuple(left_renames),
        left_rows=labels.rows,
        requested_columns=requested_columns,
    )


def _join(source: Source, features: Sequence[Feature], *, column_pairs: Pairs) -> Join:
    """Build the join of a group's features."""
    spec = source.spec
    known_columns = set(spec.schema.names)
    missing_columns, outputs = [], []
    for feature in features:
        outputs.append(Output(feature.column, feature.name))
        if feature.column not in known_columns:
            missing_columns.append(feature.column)
    if missing_columns:
        raise FeatureNotFound(
            f"Feature group {spec.name!r} had no {listing(missing_columns)} at Delta version "
            f"{source.delta_version}. Available: {listing(spec.schema.names, limit=20)}.",
            hint="use a later as_of",
        )
    return Join(
        source=source,
        on=column_pairs,
        outputs=tuple(outputs),
        event_time=spec.event_time,
        created_time=spec.created_time,
        ttl=spec.ttl,
    )


def reorder_columns(plan: FeaturePlan, names: Sequence[str]) -> FeaturePlan:
    """Return a copy of a plan with another column order."""
    schema = pa.schema([plan.schema.field(name) for name in names])
    return replace(plan, columns=tuple(names), schema=schema)


def _check_names(label_outputs: Sequence[Output], features: Sequence[Feature]) -> None:
    """Refuse columns with the same name; like the engines, ignore case."""
    owners_by_name: dict[str, str] = {}
    for output in label_outputs:
        if output.name.lower() in owners_by_name:
            raise ColumnConflict(
                f"The left side has two columns {output.name!r} (ignoring case).", hint="rename one"
            )
        owners_by_name[output.name.lower()] = f"the left column {output.name!r}"
    for feature in features:
        folded = feature.name.lower()
        if folded in owners_by_name:
            raise ColumnConflict(
                f"{feature} has the same output name {feature.name!r} as {owners_by_name[folded]}.",
                hint=f"'{feature.spec.name}.{feature.column} as "
                f"{feature.spec.name}_{feature.column}'",
            )
        owners_by_name[folded] = f"{feature}"


def resolve_label_time(
    label_time: LabelTime | None, *, labels: LabelSide, timed_specs: Sequence[FeatureGroupSpec]
) -> tuple[str | None, datetime | None]:
    """Return the left time column, or the fixed time for all rows.

    A column is used as the time only if the caller names it, if the left side declares it, or if it
    is the only timestamp of a dataframe and a joined group needs a time. Dates are never used by
    default, since they may be birthdays.
    """
    time_columns = [
        field.name
        for field in labels.schema
        if pat.is_timestamp(field.type) or pat.is_date(field.type)
    ]
    if isinstance(label_time, str) and label_time in labels.schema.names:
        if label_time not in time_columns:
            raise LabelTimeRequired(
                f"label_time={label_time!r} is a column of type "
                f"{labels.schema.field(label_time).type}; "
                f"times are timestamps or dates. Time columns: {listing(time_columns)}.",
                hint=labels.time_hint(label_time),
            )
        return label_time, None
    if label_time is not None:
        return None, _fixed_time(label_time, time_columns=time_columns)
    if labels.time is not None:
        return labels.time, None
    if not timed_specs:
        return None, None
    return _single_timestamp_column(labels, timed_specs, time_columns), None


def _single_timestamp_column(
    labels: LabelSide, timed_specs: Sequence[FeatureGroupSpec], time_columns: Sequence[str]
) -> str:
    """Return the only timestamp column of the caller's dataframe, or raise an error."""
    timestamps = [
        name
        for name in labels.dataframe_columns
        if pat.is_timestamp(labels.schema.field(name).type)
    ]
    if len(timestamps) == 1:
        return timestamps[0]
    raise _ambiguous_label_time_error(labels, timed_specs, timestamps or list(time_columns))


def _joined_columns(plan: FeaturePlan | None) -> set[str]:
    """Return the names of all features that a chain of retrievals has joined."""
    names: set[str] = set()
    while plan is not None:
        for join in plan.all_joins:
            names.update(output.name for output in join.outputs)
        plan = plan.left_plan
    return names


def _sort_by_time(labels: LabelSide, time_columns: Sequence[str]) -> list[str]:
    """Return time columns without nulls first, and of these the earliest first.

    A label has the times of the request and of its outcome. The features of the later time may
    contain the outcome.
    """
    if labels.peek is None or len(time_columns) < 2:
        return list(time_columns)
    rows = labels.peek()

    def rank(name: str) -> tuple[bool, float]:
        times = rows.column(name).cast(pa.timestamp("us")).cast(pa.int64())
        return times.null_count > 0, pc.mean(times).as_py() or 0.0

    return sorted(time_columns, key=rank)


def _ambiguous_label_time_error(
    labels: LabelSide, timed_specs: Sequence[FeatureGroupSpec], time_columns: Sequence[str]
) -> LabelTimeRequired:
    """Return the error for labels that do not have exactly one timestamp column."""
    groups = listing([spec.name for spec in timed_specs])
    reason, hint = "has no time column", "label_time=datetime(...), one time for all rows"
    numeric_column = _find_epoch_column(labels)
    # The times of joined features are not times of the labels.
    joined_columns = _joined_columns(labels.plan)
    time_columns = [name for name in time_columns if name not in joined_columns]
    own_columns = _sort_by_time(labels, time_columns)
    if own_columns:
        reason = f"has no unique timestamp column (candidates: {listing(time_columns)})"
        named_time = f"label_time={own_columns[0]!r} if the features are needed at these times"
        # Dates may be birthdays.
        is_timestamp = pat.is_timestamp(labels.schema.field(own_columns[0]).type)
        hint = f"{named_time}, or {hint}" if is_timestamp else f"{hint}, or {named_time}"
    elif numeric_column is not None:
        reason = f"has no time column, but {numeric_column!r} looks like numbers of times"
        hint = labels.time_hint(numeric_column)
    if labels.source is not None:
        reason += f"; {labels.source.spec.name!r} declares no event time"
    return LabelTimeRequired(
        f"Features of {groups} are joined as of a time, but the left side {reason}.",
        hint=hint,
    )


def _find_epoch_column(labels: LabelSide) -> str | None:
    """Return the first integer column that looks like times since 1970 or like days, or None."""
    if labels.peek is None:
        return None
    rows = labels.peek()
    for field in labels.schema:
        if pat.is_integer(field.type):
            values = rows.column(field.name).drop_null().to_pylist()
            if values and infer_epoch_unit(values) == infer_epoch_unit([min(values)]) is not None:
                return str(field.name)
            if detect_number_form(values) == "YYYYMMDD":
                return str(field.name)
    return None


def _fixed_time(label_time: LabelTime, *, time_columns: Sequence[str]) -> datetime:
    try:
        return parse_moment(label_time, argument="label_time")
    except InvalidArgument as error:
        # A misspelled column name is a string that is not a time, so the error lists the time
        # columns.
        raise LabelTimeRequired(
            f"label_time={label_time!r} is neither a column of the left side nor a time. "
            f"Time columns: {listing(time_columns)}.",
            hint="pass a column name, or one timezone-aware datetime for all rows",
        ) from error


def _check_join_kind(join: JoinKind) -> JoinKind:
    if join not in ("left", "inner"):
        raise InvalidArgument(
            f"join={join!r} is not one of 'left', 'inner'.", hint="join='left' keeps every label"
        )
    return join


def _describe_joins(joins: Sequence[Join], request: RetrievalRequest) -> list[str]:
    """Return notes about joins whose rules may surprise users."""
    notes = []
    for join in joins:
        spec = join.source.spec
        name = f"{spec.name}@v{spec.version}"
        if join.event_time is None:
            notes.append(f"{name} has no event time: joined on its key only, at any label time")
        if join.ttl is not None:
            notes.append(f"{name}: values older than {format_duration(join.ttl)} count as missing")
        if join.created_time is not None and not request.created_time_filter:
            notes.append(
                f"{name}: values are used before they were known (created_time_filter=False)"
            )
        if not spec.primary_key and join.event_time is not None:
            notes.append(f"{name} has no primary key: the latest of several rows is used")
    if request.join == "inner":
        notes.append(
            "label rows without a row in every group are dropped (join='inner'); their number is "
            "logged when all rows are read, and returned by frame.dropped()"
        )
    return notes
