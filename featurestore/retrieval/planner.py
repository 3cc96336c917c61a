"""From requested features and a left side to a feature plan: pure, no IO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import (
    ColumnConflict,
    FeatureNotFound,
    InvalidArgument,
    LabelTimeRequired,
    listing,
)
from featurestore.model.durations import format_duration
from featurestore.model.epochs import conversion_hint, epoch_unit, is_number
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.plan import FeaturePlan, Join, JoinKind, Output, Source
from featurestore.model.times import parse_moment
from featurestore.retrieval.join_keys import JoinKey, Pairs, pairs, per_group
from featurestore.retrieval.resolve import Feature

GroupId = tuple[str, int]
LabelTime = str | datetime | date


@dataclass(frozen=True)
class LabelSide:
    """The left side of a retrieval.

    ``source`` is set for a group, ``plan`` for the result of another retrieval; ``time`` is the
    column that such a side already uses as its time. ``ordered`` asks for the rows in their order.
    ``peek`` gives its first rows and ``library`` says whose dataframe it is: for hints alone.
    """

    schema: pa.Schema
    source: Source | None = None
    plan: FeaturePlan | None = None
    time: str | None = None
    ordered: bool = False
    rows: int | None = None
    peek: Callable[[], pa.Table] | None = None
    library: str = "pandas"

    def time_hint(self, column: str) -> str:
        """Return what makes a column of numbers or texts a time."""
        kind = self.schema.field(column).type
        values: list[float | None] = []
        if is_number(kind) and self.peek is not None:
            values = self.peek().column(column).to_pylist()
        return conversion_hint(column, kind, values, library=self.library)

    @property
    def dataframe_library(self) -> str | None:
        """The kind of dataframe that the rows came with; None where they are of the store."""
        return None if self.peek is None else self.library

    @property
    def of_dataframe(self) -> tuple[str, ...]:
        """The columns that came with a dataframe, here or at the begin of chained retrievals.

        Of these a lone timestamp may be taken as the time; what a group has beside its declared
        event time never is, nor are features.
        """
        first = self.plan
        while first is not None and first.left_plan is not None:
            first = first.left_plan
        if self.source is not None or (first is not None and first.left_source is not None):
            return ()
        asked: set[str] = set()
        if self.plan is not None:
            asked.update(self.plan.asked or ())
        return tuple(name for name in self.schema.names if name not in asked)


@dataclass(frozen=True)
class RetrievalOptions:
    """What the caller asked for beyond features and labels.

    ``others`` are groups that another step of the same call joins: ``join_key`` may name them.
    """

    label_time: LabelTime | None = None
    join_key: JoinKey | None = None
    how: JoinKind = "left"
    include_keys: bool = False
    created_time_filter: bool = True
    others: tuple[FeatureGroupSpec, ...] = ()


def plan_with_labels(
    features: Sequence[Feature],
    *,
    left: LabelSide,
    options: RetrievalOptions,
    source: Callable[[GroupId], Source],
) -> FeaturePlan:
    """Return the plan that adds features to labels.

    All label columns first, then the features as requested.

    Raises:
        ColumnConflict: Two columns of the result would have one name.
        NoJoinKey: A group's key is not among the label columns.
        LabelTimeRequired: The time of the labels cannot be told.
    """
    outputs = tuple(Output(name, name) for name in left.schema.names)
    plan = _plan(features, left=left, left_outputs=outputs, options=options, source=source)
    return replace(plan, asked=asked_names([feature.name for feature in features], left=left))


def plan_without_labels(
    features: Sequence[Feature],
    *,
    spec: FeatureGroupSpec,
    left: LabelSide,
    options: RetrievalOptions,
    source: Callable[[GroupId], Source],
    aggregates: Sequence[str] = (),
) -> FeaturePlan:
    """Return the plan whose left side is the group of the first feature.

    Its rows, as of its event time. ``aggregates`` are columns that the left side has beside those
    of the group ``spec``.
    """
    outputs: list[Output] = []
    joined: list[Feature] = []
    requested: list[str] = []
    for feature in features:
        requested.append(feature.name)
        if feature.group == (spec.name, spec.version):
            outputs.append(Output(feature.column, feature.name))
        else:
            joined.append(feature)
    keys: list[Output] = []
    order: list[str] = []
    if options.include_keys:
        keys = _unrequested_keys(spec, outputs)
    for key in keys:
        if key.name not in requested:
            order.append(key.name)
    plan = _plan(
        joined,
        left=left,
        left_outputs=(*keys, *outputs, *[Output(name, name) for name in aggregates]),
        options=options,
        source=source,
    )
    return replace(
        reordered(plan, [*order, *requested, *aggregates]), asked=(*requested, *aggregates)
    )


def asked_names(names: Sequence[str], *, left: LabelSide) -> tuple[str, ...]:
    """Return what was asked for by name: in the retrieval that the labels come from, and here."""
    asked: tuple[str, ...] = ()
    if left.plan is not None and left.plan.asked is not None:
        asked = left.plan.asked
    return (*asked, *names)


def _unrequested_keys(spec: FeatureGroupSpec, outputs: Sequence[Output]) -> list[Output]:
    """Return the keys and the time of a group that are not among the columns asked for."""
    taken = {output.column for output in outputs}
    names = list(spec.primary_key)
    if spec.event_time is not None:
        names.append(spec.event_time)
    keys = []
    for name in names:
        if name not in taken:
            keys.append(Output(name, name))
    return keys


def _plan(
    features: Sequence[Feature],
    *,
    left: LabelSide,
    left_outputs: tuple[Output, ...],
    options: RetrievalOptions,
    source: Callable[[GroupId], Source],
) -> FeaturePlan:
    _check_names(left_outputs, features)
    grouped: dict[GroupId, list[Feature]] = {}
    for feature in features:
        grouped.setdefault(feature.group, []).append(feature)
    specs = [members[0].spec for members in grouped.values()]
    said = per_group(options.join_key, left=left.schema, groups=[*specs, *options.others])
    joins, timed = [], []
    for group, members in grouped.items():
        on = pairs(
            members[0].spec,
            left=left.schema,
            said=said[group],
            groups=specs,
            library=left.dataframe_library,
        )
        join = _join(source(group), members, on=on)
        joins.append(join)
        if join.event_time is not None:
            timed.append(join.source.spec)
    left_time, fixed_time = label_times(options.label_time, left=left, timed=timed)
    fields, left_columns, left_renames = [], [], []
    for output in left_outputs:
        fields.append(left.schema.field(output.column).with_name(output.name))
        left_columns.append(output.name)
        if output.name != output.column:
            left_renames.append(output)
    for feature in features:
        fields.append(feature.spec.schema.field(feature.column).with_name(feature.name))
    schema = pa.schema(fields)
    return FeaturePlan(
        left_source=left.source,
        left_schema=left.schema,
        left_columns=tuple(left_columns),
        left_time=left_time,
        fixed_time=fixed_time,
        joins=tuple(joins),
        columns=tuple(schema.names),
        schema=schema,
        how=_how(options.how),
        created_time_filter=options.created_time_filter,
        keep_order=left.ordered,
        notes=tuple(_notes(joins, options=options)),
        left_plan=left.plan,
        left_renames=tuple(left_renames),
        left_rows=left.rows,
    )


def _join(source: Source, members: Sequence[Feature], *, on: Pairs) -> Join:
    spec = source.spec
    present = set(spec.schema.names)
    absent, outputs = [], []
    for member in members:
        outputs.append(Output(member.column, member.name))
        if member.column not in present:
            absent.append(member.column)
    if absent:
        raise FeatureNotFound(
            f"Feature group {spec.name!r} had no {listing(absent)} at Delta version "
            f"{source.delta_version}; "
            f"it had {listing(spec.schema.names, limit=20)}.",
            hint="ask for a later as_of",
        )
    return Join(
        source=source,
        on=on,
        outputs=tuple(outputs),
        event_time=spec.event_time,
        created_time=spec.created_time,
        ttl=spec.ttl,
    )


def reordered(plan: FeaturePlan, names: Sequence[str]) -> FeaturePlan:
    """Return a plan with its columns in another order."""
    schema = pa.schema([plan.schema.field(name) for name in names])
    return replace(plan, columns=tuple(names), schema=schema)


def _check_names(left: Sequence[Output], features: Sequence[Feature]) -> None:
    """Refuse two columns of one name, ignoring case as the engines do."""
    seen: dict[str, str] = {}
    for output in left:
        if output.name.lower() in seen:
            raise ColumnConflict(
                f"The left side has two columns {output.name!r} (ignoring case).", hint="rename one"
            )
        seen[output.name.lower()] = f"the left side's column {output.name!r}"
    for feature in features:
        folded = feature.name.lower()
        if folded in seen:
            raise ColumnConflict(
                f"{feature} would be called {feature.name!r}, as is {seen[folded]}.",
                hint=f"'{feature.spec.name}.{feature.column} as "
                f"{feature.spec.name}_{feature.column}'",
            )
        seen[folded] = f"{feature}"


def label_times(
    label_time: LabelTime | None, *, left: LabelSide, timed: Sequence[FeatureGroupSpec]
) -> tuple[str | None, datetime | None]:
    """Return the left time column, or the one time for all rows.

    A time is used only when it is named, when the left side declares it, or when it is the only
    timestamp of a dataframe and a joined group needs one. A date is never guessed: it may be a
    birthday.
    """
    columns = []
    for field in left.schema:
        if pat.is_timestamp(field.type) or pat.is_date(field.type):
            columns.append(field.name)
    if isinstance(label_time, str) and label_time in left.schema.names:
        if label_time not in columns:
            raise LabelTimeRequired(
                f"label_time={label_time!r} is a column of type "
                f"{left.schema.field(label_time).type}; "
                f"times are timestamps or dates. There are {listing(columns)}.",
                hint=left.time_hint(label_time),
            )
        return label_time, None
    if label_time is not None:
        return None, _fixed_time(label_time, columns=columns)
    if left.time is not None:
        return left.time, None
    if not timed:
        return None, None
    return _only_timestamp(left, timed, columns), None


def _only_timestamp(
    left: LabelSide, timed: Sequence[FeatureGroupSpec], columns: Sequence[str]
) -> str:
    """Return the one timestamp that came with a dataframe; nothing else is guessed."""
    guessed = []
    for name in left.of_dataframe:
        if pat.is_timestamp(left.schema.field(name).type):
            guessed.append(name)
    if len(guessed) == 1:
        return guessed[0]
    raise _no_label_time(left, timed, guessed or list(columns))


def _no_label_time(
    left: LabelSide, timed: Sequence[FeatureGroupSpec], columns: Sequence[str]
) -> LabelTimeRequired:
    """Return the error for a left side whose time column cannot be told."""
    groups = listing([spec.name for spec in timed])
    what, hint = "there is none", "label_time=datetime(...), one time for all rows"
    number = _numbers_since_1970(left)
    if columns:
        what = f"one of {listing(columns)}"
        hint = f"label_time={columns[0]!r} if that is when each row is asked, or " + hint
    elif number is not None:
        what = f"there is none, but {number!r} looks like numbers since 1970"
        hint = left.time_hint(number)
    if left.source is not None:
        what += f"; {left.source.spec.name!r} declares no event time"
    return LabelTimeRequired(
        f"Features of {groups} are joined as of a time; the time column of the left side cannot "
        f"be told: {what}.",
        hint=hint,
    )


def _numbers_since_1970(left: LabelSide) -> str | None:
    """Return the first column of integers that count from 1970, by their size; else None."""
    if left.peek is None:
        return None
    rows = left.peek()
    for field in left.schema:
        if pat.is_integer(field.type):
            values = rows.column(field.name).drop_null().to_pylist()
            if values and epoch_unit(values) == epoch_unit([min(values)]) is not None:
                return str(field.name)
    return None


def _fixed_time(label_time: LabelTime, *, columns: Sequence[str]) -> datetime:
    try:
        return parse_moment(label_time, argument="label_time")
    except InvalidArgument as error:
        raise LabelTimeRequired(
            f"label_time={label_time!r} is neither a column of the left side nor a time. "
            f"Its time columns: {listing(columns)}.",
            hint="name a column, or give one aware datetime for all rows",
        ) from error


def _how(how: str) -> JoinKind:
    if how == "left":
        return "left"
    if how == "inner":
        return "inner"
    raise InvalidArgument(
        f"join={how!r} is not one of 'left', 'inner'.", hint="join='left' keeps every label"
    )


def _notes(joins: Sequence[Join], *, options: RetrievalOptions) -> list[str]:
    notes = []
    for join in joins:
        spec = join.source.spec
        name = f"{spec.name}@v{spec.version}"
        if join.event_time is None:
            notes.append(
                f"{name} has no event time: joined on its key alone, whatever the label's time"
            )
        if join.ttl is not None:
            notes.append(f"{name}: values older than {format_duration(join.ttl)} count as missing")
        if join.created_time is not None and not options.created_time_filter:
            notes.append(
                f"{name}: values are used before they were known (created_time_filter=False)"
            )
        if not spec.primary_key and join.event_time is not None:
            notes.append(f"{name} has no primary key: of several rows the latest is taken")
    if options.how == "inner":
        notes.append(
            "label rows without a row in every group are dropped (join='inner'); how many is said "
            "when all rows are "
            "read, and by frame.dropped()"
        )
    return notes
