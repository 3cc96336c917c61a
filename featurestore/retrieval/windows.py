"""The planner of window aggregates, which turns aggregates and labels into a plan without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa

from featurestore.arrow.values import ConversionError, to_value
from featurestore.errors import InvalidArgument, InvalidSql, NoJoinKey, listing
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import NamedColumn, check_distinct_names
from featurestore.model.plan import FeaturePlan, Source, WindowJoin, WindowOutput
from featurestore.model.requests import Keys, RetrievalRequest
from featurestore.model.window_features import WindowFeature
from featurestore.retrieval.explain import example_value
from featurestore.retrieval.planner import (
    GroupId,
    LabelSide,
    output_names,
    resolve_label_time,
)
from featurestore.retrieval.resolve import Feature, Pairs, join_keys_by_group, key_pairs
from featurestore.usersql import fix_clock, predicate

RequestedWindow = tuple[Feature, WindowFeature]


def plan_windows(
    requested: Sequence[RequestedWindow],
    request: RetrievalRequest,
    *,
    labels: LabelSide,
    source: Callable[[GroupId], Source],
    other_specs: Sequence[FeatureGroupSpec] = (),
) -> FeaturePlan:
    """Plan a retrieval that adds aggregates to the columns of a left side.

    ``other_specs`` are groups that another step of the same call joins; ``join_key=`` may name them.

    Raises:
        InvalidArgument: A function does not support its column, a group has no event time, or a
            condition reads the clock.
        NoJoinKey: The left side has none of the key columns of a group.
        ColumnConflict: Two columns of the result would have the same name.
    """
    # A window with the name of another column is refused.
    columns = [NamedColumn(name, f"the left column {name!r}") for name in labels.schema.names]
    columns += [NamedColumn(window.name, str(window)) for _, window in requested]
    check_distinct_names(columns, hint=lambda column: "name='...' in window(...)")
    grouped = _group_by_matched_columns(requested, request, labels=labels, other_specs=other_specs)
    joins = [
        window_join(source(group), group_windows, column_pairs=column_pairs)
        for (group, column_pairs), group_windows in grouped.items()
    ]
    specs = list({feature.group: feature.spec for feature, _ in requested}.values())
    left_time, fixed_time = resolve_label_time(request.label_time, labels=labels, timed_specs=specs)
    fields = list(labels.schema)
    for join in joins:
        for output in join.outputs:
            fields.append(pa.field(output.name, output.kind))
    schema = pa.schema(fields)
    names = [window.name for _, window in requested]
    return FeaturePlan(
        left_source=labels.source,
        left_schema=labels.schema,
        left_columns=tuple(labels.schema.names),
        left_time=left_time,
        fixed_time=fixed_time,
        joins=(),
        columns=tuple(schema.names),
        schema=schema,
        created_time_filter=request.created_time_filter,
        keep_order=labels.ordered,
        left_plan=labels.plan,
        left_rows=labels.rows,
        windows=tuple(joins),
        requested_columns=output_names(names, labels=labels),
    )


def _group_by_matched_columns(
    requested: Sequence[RequestedWindow],
    request: RetrievalRequest,
    *,
    labels: LabelSide,
    other_specs: Sequence[FeatureGroupSpec],
) -> dict[tuple[GroupId, Pairs], list[RequestedWindow]]:
    """Group the aggregates by feature group and matched columns."""
    matched_specs = [matched_spec(feature, window) for feature, window in requested]
    all_specs = [*matched_specs, *other_specs]
    grouped: dict[tuple[GroupId, Pairs], list[RequestedWindow]] = {}
    for (feature, window), spec in zip(requested, matched_specs, strict=True):
        keys_by_group = join_keys_by_group(
            request.join_key, label_schema=labels.schema, groups=[spec, *all_specs]
        )
        column_pairs = _matched_columns(
            feature, window, labels=labels, join_key=keys_by_group[feature.group]
        )
        # Aggregates of one group with equal matched columns share one sorted stream.
        grouped.setdefault((feature.group, column_pairs), []).append((feature, window))
    return grouped


def matched_spec(feature: Feature, window: WindowFeature) -> FeatureGroupSpec:
    """Return a group whose key is ``key=`` of an aggregate, or by default its primary key.

    Raises:
        NoJoinKey: The group does not have a key column.
    """
    if window.key is None:
        return feature.spec
    columns = feature.spec.schema.names
    missing_columns = [name for name in window.key if name not in columns]
    if missing_columns:
        raise NoJoinKey(
            f"Unknown columns {listing(missing_columns)} of feature group {feature.spec.name!r} in "
            f"key=. Available: {listing(columns, limit=30)}.",
            hint="key= accepts columns of the feature group",
        )
    return replace(feature.spec, primary_key=window.key)


def _matched_columns(
    feature: Feature, window: WindowFeature, *, labels: LabelSide, join_key: Keys | None
) -> Pairs:
    """Return the columns to match: those of ``key=``, or else the key columns among the labels."""
    spec = matched_spec(feature, window)
    find_pairs = partial(key_pairs, label_schema=labels.schema, peek=labels.peek)
    if window.key is not None:
        return find_pairs(spec, join_key=_keys_of_group(spec, join_key))
    matched_pairs: list[tuple[str, str]] = []
    for name in spec.primary_key:
        single_key_spec = replace(spec, primary_key=(name,))
        try:
            matched_pairs += find_pairs(
                single_key_spec, join_key=_keys_of_group(single_key_spec, join_key)
            )
        except NoJoinKey:
            # A key column that the labels lack identifies several events of the matched key.
            if len(spec.primary_key) == 1:
                raise
    if not matched_pairs:
        # This call raises an error that shows the group key and the label columns.
        return find_pairs(spec, join_key=join_key)
    return tuple(matched_pairs)


def _keys_of_group(spec: FeatureGroupSpec, join_key: Keys | None) -> Keys | None:
    """Return the ``join_key=`` entries for the key columns of a group."""
    if not isinstance(join_key, Mapping):
        return join_key
    other_columns = set(spec.schema.names) - set(spec.primary_key)
    return {column: key for column, key in join_key.items() if key not in other_columns} or None


def window_join(
    source: Source, windows: Sequence[RequestedWindow], *, column_pairs: Pairs
) -> WindowJoin:
    """Build the join that computes the aggregates of a group for labels."""
    spec = source.spec
    if spec.event_time is None:
        raise InvalidArgument(
            f"Feature group {spec.name!r} has no event time.",
            hint="window aggregates require a feature group created with event_time=",
        )
    matched_keys = {key for _, key in column_pairs}
    return WindowJoin(
        source=source,
        on=column_pairs,
        # The remaining key columns identify several events at the same time.
        members=tuple(name for name in spec.primary_key if name not in matched_keys),
        outputs=tuple(_window_output(feature, window) for feature, window in windows),
        event_time=spec.event_time,
        created_time=spec.created_time,
    )


def infer_aggregate_type(feature: Feature, window: WindowFeature) -> pa.DataType:
    """Infer the type of an aggregate.

    Raises:
        InvalidArgument: The function does not support the column.
    """
    # Plans without aggregates do not import their implementation.
    from featurestore.aggregates.kernel import result_type

    column_type = feature.spec.schema.field(feature.column).type
    value_type = result_type(window.function, column_type, n=window.n)
    if value_type is None:
        raise InvalidArgument(
            f"{window.function!r} does not support {feature}, which is {column_type}.",
            hint="numbers support sum, mean, std and var; booleans any and all; all types except "
            "lists, arrays and structs min, max and count_distinct; all types except lists and "
            "structs last_n; all types count, first and last",
        )
    return value_type


def _window_output(feature: Feature, window: WindowFeature) -> WindowOutput:
    aggregate_type = infer_aggregate_type(feature, window)
    if window.where is not None:
        _check_condition(window.where, spec=feature.spec)
    return WindowOutput(
        column=feature.column,
        name=window.name,
        function=window.function,
        over=window.over,
        offset=window.offset,
        where=window.where,
        fill_value=_typed_fill_value(window, aggregate_type),
        n=window.n,
        kind=aggregate_type,
    )


def _typed_fill_value(window: WindowFeature, aggregate_type: pa.DataType) -> object:
    """Convert ``fill_value=`` to the output type, or for last_n to the type of its elements.

    Raises:
        InvalidArgument: The value does not fit the type, or the aggregate is never missing.
    """
    if window.fill_value is None:
        return None
    fill_type = aggregate_type.value_type if window.function == "last_n" else aggregate_type
    try:
        fill_value = to_value(window.fill_value, fill_type)
    except ConversionError as error:
        raise InvalidArgument(
            f"fill_value of {window}: {error}.",
            hint=f"use a value of type {fill_type}, such as {example_value(fill_type)}",
        ) from error
    # Counts are never null, so that another value would be ignored.
    if window.function in ("count", "count_distinct") and fill_value != 0:
        raise InvalidArgument(
            f"fill_value={window.fill_value!r} of {window} is never used: "
            f"{window.function!r} is 0 without rows.",
            hint=f"use fill_value=None for {window.function!r}",
        )
    return fill_value


def _check_condition(condition: str, *, spec: FeatureGroupSpec) -> None:
    # Any two instants would do: only a condition that reads the clock changes.
    if fix_clock(condition, now=datetime(2000, 1, 1, tzinfo=UTC)) != condition:
        raise InvalidSql(
            f"where={condition!r} reads the clock, so the same labels would get different values "
            "later.",
            hint="use over= and offset=, which count from the label's time",
        )
    # Checked now, because the plan stores the text and compiles it for the engine later.
    predicate(condition, schema=spec.schema, dialect="duckdb")
