"""From requested aggregates over windows and a left side to a feature plan: pure, no IO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa

from featurestore.aggregates.kernel import result_type
from featurestore.errors import ColumnConflict, InvalidArgument, InvalidSql, NoJoinKey, listing
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.plan import FeaturePlan, Source, WindowJoin, WindowOutput
from featurestore.model.window_features import WindowFeature
from featurestore.retrieval.join_keys import Keys, Pairs, pairs, per_group
from featurestore.retrieval.planner import (
    GroupId,
    LabelSide,
    RetrievalOptions,
    asked_names,
    label_times,
)
from featurestore.retrieval.resolve import Feature
from featurestore.usersql import fix_clock, predicate

Asked = tuple[Feature, WindowFeature]


def plan_windows(
    asked: Sequence[Asked],
    *,
    left: LabelSide,
    options: RetrievalOptions,
    source: Callable[[GroupId], Source],
) -> FeaturePlan:
    """Return the plan that adds aggregates to the columns of a left side.

    Raises:
        InvalidArgument: A function has no meaning for its column, a group has no event time, or a
            condition reads the clock.
        NoJoinKey: None of a group's key columns is on the left side.
        ColumnConflict: Two columns of the result would have one name.
    """
    _check_names(asked, left=left)
    joins = []
    for (group, on), members in _by_match(asked, left=left, options=options).items():
        joins.append(window_join(source(group), members, on=on))
    specs = list({feature.group: feature.spec for feature, _ in asked}.values())
    left_time, fixed_time = label_times(options.label_time, left=left, timed=specs)
    fields = list(left.schema)
    for join in joins:
        for output in join.outputs:
            fields.append(pa.field(output.name, output.kind))
    schema = pa.schema(fields)
    names = [wanted.name for _, wanted in asked]
    return FeaturePlan(
        left_source=left.source,
        left_schema=left.schema,
        left_columns=tuple(left.schema.names),
        left_time=left_time,
        fixed_time=fixed_time,
        joins=(),
        columns=tuple(schema.names),
        schema=schema,
        created_time_filter=options.created_time_filter,
        keep_order=left.ordered,
        left_plan=left.plan,
        left_rows=left.rows,
        windows=tuple(joins),
        asked=asked_names(names, left=left),
    )


def _by_match(
    asked: Sequence[Asked], *, left: LabelSide, options: RetrievalOptions
) -> dict[tuple[GroupId, Pairs], list[Asked]]:
    """Return the aggregates by group and by the columns that meet the left side's."""
    matched = [matched_spec(feature, wanted) for feature, wanted in asked]
    everything = [*matched, *options.others]
    grouped: dict[tuple[GroupId, Pairs], list[Asked]] = {}
    for (feature, wanted), spec in zip(asked, matched, strict=True):
        said = per_group(options.join_key, left=left.schema, groups=[spec, *everything])
        on = _on(feature, wanted, left=left, said=said[feature.group])
        grouped.setdefault((feature.group, on), []).append((feature, wanted))
    return grouped


def matched_spec(feature: Feature, wanted: WindowFeature) -> FeatureGroupSpec:
    """Return a group as an aggregate matches it: by ``key=``, where that is said.

    Raises:
        NoJoinKey: The group has no such column.
    """
    if wanted.key is None:
        return feature.spec
    columns = feature.spec.schema.names
    absent = [name for name in wanted.key if name not in columns]
    if absent:
        raise NoJoinKey(
            f"Feature group {feature.spec.name!r} has no column {listing(absent)}; it has "
            f"{listing(columns, limit=30)}.",
            hint="key= names columns of the group",
        )
    return replace(feature.spec, primary_key=wanted.key)


def _check_names(asked: Sequence[Asked], *, left: LabelSide) -> None:
    seen = {name.lower(): f"the left side's column {name!r}" for name in left.schema.names}
    for _, wanted in asked:
        folded = wanted.name.lower()
        if folded in seen:
            raise ColumnConflict(
                f"{wanted} would be called {wanted.name!r}, as is {seen[folded]}.",
                hint="name='...' in window(...)",
            )
        seen[folded] = str(wanted)


def _on(feature: Feature, wanted: WindowFeature, *, left: LabelSide, said: Keys | None) -> Pairs:
    """Return the columns that meet: those of ``key=``, else the key columns that the left has."""
    spec = matched_spec(feature, wanted)
    meet = partial(pairs, left=left.schema, library=left.dataframe_library)
    if wanted.key is not None:
        return meet(spec, said=_said_of(spec, said))
    met: list[tuple[str, str]] = []
    for name in spec.primary_key:
        alone = replace(spec, primary_key=(name,))
        try:
            met += meet(alone, said=_said_of(alone, said))
        except NoJoinKey:
            if len(spec.primary_key) == 1:
                raise
    if not met:
        # Says what the group's key is and what the left side has.
        return meet(spec, said=said)
    return tuple(met)


def _said_of(spec: FeatureGroupSpec, said: Keys | None) -> Keys | None:
    """Return what ``join_key=`` says of the key columns of a group, other columns of it left out."""
    if not isinstance(said, Mapping):
        return said
    others = set(spec.schema.names) - set(spec.primary_key)
    return {column: key for column, key in said.items() if key not in others} or None


def window_join(source: Source, members: Sequence[Asked], *, on: Pairs) -> WindowJoin:
    """Return how the aggregates of one group meet labels on some columns."""
    spec = source.spec
    if spec.event_time is None:
        raise InvalidArgument(
            f"Feature group {spec.name!r} has no event time, so nothing says when its rows "
            "happened.",
            hint="aggregates over windows need a group made with event_time=",
        )
    keys = {key for _, key in on}
    outputs = []
    for feature, wanted in members:
        outputs.append(_output(feature, wanted))
    return WindowJoin(
        source=source,
        on=on,
        members=tuple(name for name in spec.primary_key if name not in keys),
        outputs=tuple(outputs),
        event_time=spec.event_time,
        created_time=spec.created_time,
    )


def answer_type(feature: Feature, wanted: WindowFeature) -> pa.DataType:
    """Return the type of an aggregate's answers.

    Raises:
        InvalidArgument: Its function has no meaning for the column.
    """
    given = feature.spec.schema.field(feature.column).type
    kind = result_type(wanted.function, given, n=wanted.n)
    if kind is None:
        raise InvalidArgument(
            f"{feature} is {given}: {wanted.function!r} has no meaning for it.",
            hint="numbers have sum, mean, std and var; booleans any and all; all but lists, arrays "
            "and structs have min, max and count_distinct; all but lists and structs have last_n; "
            "everything has count, first and last",
        )
    return kind


def _output(feature: Feature, wanted: WindowFeature) -> WindowOutput:
    kind = answer_type(feature, wanted)
    if wanted.where is not None:
        _check_condition(wanted.where, spec=feature.spec)
    return WindowOutput(
        column=feature.column,
        name=wanted.name,
        function=wanted.function,
        over=wanted.over,
        offset=wanted.offset,
        where=wanted.where,
        fill_value=_fill(wanted, kind),
        n=wanted.n,
        kind=kind,
    )


def _fill(wanted: WindowFeature, kind: pa.DataType) -> object:
    """Return ``fill_value=`` as a value of the result's type."""
    if wanted.fill_value is None:
        return None
    try:
        return pa.scalar(wanted.fill_value, kind).as_py()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"fill_value={wanted.fill_value!r} of {wanted} is no {kind}.",
            hint=f"{wanted.name} is {kind}",
        ) from error


def _check_condition(text: str, *, spec: FeatureGroupSpec) -> None:
    if fix_clock(text, now=datetime(2000, 1, 1, tzinfo=UTC)) != text:
        raise InvalidSql(
            f"where={text!r} reads the clock, so the same labels would get other values later.",
            hint="use over= and offset=, which count from the label's time",
        )
    predicate(text, schema=spec.schema, dialect="duckdb")
