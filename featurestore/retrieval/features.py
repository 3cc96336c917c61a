"""Lazy frames of features for labels (``get_features``), or of queries over groups (``sql``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from featurestore import ingest, usersql
from featurestore.arrow.cast_lines import PLAUSIBLE_START, misread_hint
from featurestore.arrow.column_names import check_feature_names
from featurestore.arrow.types import TIMESTAMP
from featurestore.arrow.untyped import format_sql_casts, refuse_untyped
from featurestore.arrow.values import to_scalar
from featurestore.errors import InvalidArgument, InvalidName, InvalidReference, InvalidSql, listing
from featurestore.model.arguments import warn_caller
from featurestore.model.names import parse_group_reference
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.plan import FeaturePlan, JoinKind, QuerySource, Source, build_query_plan
from featurestore.model.times import SuspiciousTimeWarning
from featurestore.model.window_features import WindowFeature, parse_window
from featurestore.retrieval.catalog import AsOfArgument, Pins, RegisteredSpecs
from featurestore.retrieval.checks import check_ties, check_unique
from featurestore.retrieval.execution import add_on_demand_features, run_query
from featurestore.retrieval.frame import FeatureFrame
from featurestore.retrieval.labels import LabelInput, open_labels
from featurestore.retrieval.planner import (
    GroupId,
    LabelSide,
    LabelTime,
    RetrievalOptions,
    plan_with_labels,
    plan_without_labels,
    reorder_columns,
)
from featurestore.retrieval.resolve import (
    Feature,
    JoinKey,
    Specs,
    find_spec,
    join_key_types,
    no_features_error,
    resolve,
)
from featurestore.retrieval.windows import matched_spec, plan_windows
from featurestore.session import Session
from featurestore.usersql.text import shorten_sql

# Feature references, aggregates from ``window(...)`` or strings, and on-demand features.
RequestedFeatures = (
    str | WindowFeature | OnDemandFeature | Sequence[str | WindowFeature | OnDemandFeature]
)


def get_features(
    session: Session,
    features: RequestedFeatures,
    *,
    labels: object | None = None,
    label_time: LabelTime | None = None,
    versions: Mapping[str, int] | None = None,
    join_key: JoinKey | None = None,
    join: JoinKind = "left",
    as_of: AsOfArgument | None = None,
    include_keys: bool = False,
    created_time_filter: bool = True,
    pins: Pins | None = None,
    label_types: Mapping[str, pa.DataType] | None = None,
) -> FeatureFrame:
    """Return the features as a lazy frame: one row per label row, each as of the label's time.

    See ``FeatureStore.get_features`` for the arguments. ``pins`` of an earlier call make both calls
    read the same versions; ``as_of`` is then ignored. ``label_types`` are the types of untyped label
    columns that are not joined with a key.

    Raises:
        FeatureNotFound, AmbiguousFeature, FeatureGroupNotFound: A reference is unknown or
            ambiguous.
        NoJoinKey: A group's primary key is not in the columns of the left side.
        LabelTimeRequired: The time column of the labels is ambiguous or missing.
        ColumnConflict: Two columns of the result would have the same name.
    """
    options = RetrievalOptions(
        label_time=label_time,
        join_key=join_key,
        how=join,
        include_keys=include_keys,
        created_time_filter=created_time_filter,
    )
    active_pins = pins or Pins(session, RegisteredSpecs(session), as_of=as_of)
    plan, label_input = _plan(
        session,
        features,
        labels=labels,
        versions=versions,
        options=options,
        pins=active_pins,
        label_types=label_types or {},
    )
    # The caller checks its pins after all steps, since each step reads only some of the groups.
    if pins is None:
        active_pins.check_used()
    # The checks may read rows, so they come after all errors that need only logs.
    check_unique(session, plan)
    check_ties(session, plan)
    if label_input is None:
        return FeatureFrame.planned(session, plan)
    return FeatureFrame.planned(session, plan, labels=label_input.relation, reads=label_input.reads)


def get_feature(session: Session, feature: str) -> FeatureFrame:
    """Return a frame with a single feature column, which has all rows of the group."""
    if not isinstance(feature, str):
        raise InvalidArgument(
            f"get_feature accepts a single reference, not {feature!r}.",
            hint="get_features([...]) accepts several references",
        )
    return get_features(session, [feature])


def explain_features(
    session: Session,
    features: RequestedFeatures,
    *,
    labels: object | None = None,
    label_time: LabelTime | None = None,
    versions: Mapping[str, int] | None = None,
    join_key: JoinKey | None = None,
    join: JoinKind = "left",
    as_of: AsOfArgument | None = None,
    include_keys: bool = False,
    created_time_filter: bool = True,
) -> FeaturePlan:
    """Return the plan that ``get_features`` would run with these arguments.

    Only logs are read. ``str(plan)`` describes the plan.
    """
    frame = get_features(
        session,
        features,
        labels=labels,
        label_time=label_time,
        versions=versions,
        join_key=join_key,
        join=join,
        as_of=as_of,
        include_keys=include_keys,
        created_time_filter=created_time_filter,
    )
    if frame.plan is None:
        raise InvalidArgument("The features have no plan.")
    return frame.plan


def _plan(
    session: Session,
    features: RequestedFeatures,
    *,
    labels: object | None,
    versions: Mapping[str, int] | None,
    options: RetrievalOptions,
    pins: Pins,
    label_types: Mapping[str, pa.DataType],
) -> tuple[FeaturePlan, LabelInput | None]:
    registered = RegisteredSpecs(session)
    specs = pins.specs()
    request = _FeatureRequest.resolve(features, specs, versions, registered.groups_with)
    if labels is None:
        if not request.features and not request.windows:
            raise InvalidArgument(
                f"The on-demand features {listing(request.names)} have no rows to compute from.",
                hint="also request stored features, or pass labels=",
            )
        plan = _plan_without_labels(request.without_on_demand(), pins=pins, options=options)
        return _add_on_demand(plan, request), None
    if options.include_keys:
        raise InvalidArgument(
            "include_keys= is for retrieval without labels: with labels, all their columns are "
            "returned.",
            hint="omit include_keys=",
        )

    def types(label_schema: pa.Schema) -> dict[str, pa.DataType]:
        return {**label_types, **request.join_column_types(label_schema, options)}

    if not isinstance(labels, FeatureFrame):
        labels, _ = ingest.peek_language(labels)
    with ingest.hints_for_argument(labels):
        label_input = open_labels(
            session, labels, pins=pins, specs=specs, versions=versions, types=types
        )
        plan = _plan_with_labels(
            request.without_on_demand(), label_input.labels, pins=pins, options=options
        )
    plan = _add_on_demand(plan, request)
    _warn_of_early_times(label_input.labels, plan)
    return plan, label_input


def _add_on_demand(plan: FeaturePlan, request: _FeatureRequest) -> FeaturePlan:
    """Add the on-demand features to a plan, and restore the requested column order."""
    if not request.on_demand:
        return plan
    # On-demand features are computed from the rows of the other features.
    computed = add_on_demand_features(request.on_demand, stored_plan=plan)
    stored_columns = [name for name in plan.columns if name not in request.names]
    return reorder_columns(computed, [*stored_columns, *request.names])


def _warn_of_early_times(labels: LabelSide, plan: FeaturePlan) -> None:
    """Warn about labels in memory with times before 1980, which match no row of a group."""
    # Only labels in memory are checked; others would have to be read.
    if labels.peek is None or not labels.ordered or plan.left_time is None:
        return
    times = labels.peek().column(plan.left_time)
    times = times.cast(pa.timestamp("us", tz="UTC"))
    early_times = times.filter(pc.less(times, to_scalar(PLAUSIBLE_START, times.type)))
    # An early time matches no row, and the result would be null without an error.
    if len(early_times):
        warn_caller(
            f"label_time={plan.left_time!r}: {len(early_times):,} of the first {len(times):,} labels are "
            f"before 1980; {misread_hint(early_times[:5].to_pylist())}",
            SuspiciousTimeWarning,
        )


@dataclass(frozen=True)
class _FeatureRequest:
    """The requested features, window aggregates and on-demand features, with their order."""

    features: tuple[Feature, ...]
    windows: tuple[tuple[Feature, WindowFeature], ...]
    on_demand: tuple[OnDemandFeature, ...]
    names: tuple[str, ...]

    @classmethod
    def resolve(
        cls,
        requested: RequestedFeatures,
        specs: Specs,
        versions: Mapping[str, int] | None,
        groups_with: Callable[[str], Iterable[str]],
    ) -> _FeatureRequest:
        references: list[str | WindowFeature | OnDemandFeature] = []
        if isinstance(requested, str | WindowFeature | OnDemandFeature):
            references.append(requested)
        else:
            references += requested
        if not references:
            raise no_features_error()
        features: list[Feature] = []
        windows = []
        on_demand = []
        names = []
        for reference in references:
            if isinstance(reference, OnDemandFeature):
                on_demand.append(reference)
                names.append(reference.name)
                continue
            if isinstance(reference, str) and "|" not in reference:
                matches = resolve(
                    reference, specs=specs, versions=versions, groups_with=groups_with
                )
                features += matches
                names += [feature.name for feature in matches]
                continue
            window = parse_window(reference) if isinstance(reference, str) else reference
            matches = resolve(str(window.reference), specs=specs, versions=versions)
            windows.append((matches[0], window))
            names.append(window.name)
        return cls(tuple(features), tuple(windows), tuple(on_demand), tuple(names))

    def without_on_demand(self) -> _FeatureRequest:
        """Return the request without its on-demand features."""
        computed = {each.name for each in self.on_demand}
        names = tuple(name for name in self.names if name not in computed)
        return replace(self, on_demand=(), names=names)

    def join_column_types(
        self, label_schema: pa.Schema, options: RetrievalOptions
    ) -> dict[str, pa.DataType]:
        """Return the types of the keys and times that label columns are joined with."""
        specs = [feature.spec for feature in self.features]
        specs += [matched_spec(feature, window) for feature, window in self.windows]
        key_types = join_key_types(label_schema, specs, options.join_key)
        types = {column: kinds[0] for column, kinds in key_types.items()}
        if isinstance(options.label_time, str) and options.label_time in label_schema.names:
            types[options.label_time] = TIMESTAMP
        return types

    def window_options(self, options: RetrievalOptions) -> RetrievalOptions:
        """Return the options for the step that adds the aggregates."""
        return replace(options, other_specs=tuple(feature.spec for feature in self.features))

    def feature_options(self, options: RetrievalOptions) -> RetrievalOptions:
        """Return the options for the step that adds the features."""
        window_specs = [matched_spec(feature, window) for feature, window in self.windows]
        return replace(options, other_specs=tuple(window_specs))

    @property
    def first_group(self) -> GroupId:
        """The group of the first requested feature."""
        if self.windows and (not self.features or self.names[0] == self.windows[0][1].name):
            return self.windows[0][0].group
        return self.features[0].group


def _plan_without_labels(
    request: _FeatureRequest, *, pins: Pins, options: RetrievalOptions
) -> FeaturePlan:
    """Plan a retrieval whose rows are those of the first requested group."""
    # The first requested feature determines the group whose rows are returned.
    source = pins.source(request.first_group)
    spec = source.spec
    labels = LabelSide(spec.schema, source=source, time=spec.event_time, rows=source.rows)
    aggregates: list[str] = []
    if request.windows:
        window_options = request.window_options(options)
        labels = _plan_to_label_side(
            plan_windows(request.windows, labels=labels, options=window_options, source=pins.source)
        )
        aggregates = [window.name for _, window in request.windows]
    plan = plan_without_labels(
        request.features,
        spec=spec,
        labels=labels,
        options=request.feature_options(options),
        source=pins.source,
        aggregates=aggregates,
    )
    if not request.windows:
        return plan
    keys = [name for name in plan.columns if name not in request.names]
    return reorder_columns(plan, [*keys, *request.names])


def _plan_with_labels(
    request: _FeatureRequest, labels: LabelSide, *, pins: Pins, options: RetrievalOptions
) -> FeaturePlan:
    """Plan the aggregates, then the features, over the rows of the labels."""
    if not request.windows:
        return plan_with_labels(
            request.features, labels=labels, options=options, source=pins.source
        )
    window_options = request.window_options(options)
    plan = plan_windows(request.windows, labels=labels, options=window_options, source=pins.source)
    if request.features:
        plan = plan_with_labels(
            request.features,
            labels=_plan_to_label_side(plan),
            options=request.feature_options(options),
            source=pins.source,
        )
    return reorder_columns(plan, [*labels.schema.names, *request.names])


def _plan_to_label_side(plan: FeaturePlan) -> LabelSide:
    """Convert the result of a plan to the left side of another plan."""
    return LabelSide(
        plan.schema, plan=plan, time=plan.left_time, ordered=plan.keep_order, rows=plan.left_rows
    )


def query_frame(session: Session, query: str, *, as_of: AsOfArgument | None = None) -> FeatureFrame:
    """Return the lazy frame of a query; its groups are pinned, but no rows are read.

    See ``FeatureStore.sql`` for the arguments.

    Raises:
        InvalidSql: The query is not a single SELECT over groups, or uses an unsupported expression.
        FeatureGroupNotFound: The query reads a group that does not exist.
    """
    if not isinstance(query, str):
        raise InvalidSql(
            f"A query is a string, not {type(query).__name__}.", hint="sql('select * from weather')"
        )
    names = usersql.find_tables(query)
    checked = usersql.query(query, tables=names, dialect=usersql.DIALECT)
    # A query that only runs on DuckDB fails here and not when its rows are read.
    if session.engine.dialect != usersql.DIALECT:
        usersql.query(query, tables=names, dialect=session.engine.dialect)
    parameter_names = usersql.parameters(checked)
    if parameter_names:
        raise InvalidSql(
            f"{shorten_sql(query)} has the parameters {listing(parameter_names)}, which have no "
            "values.",
            hint="use constants instead of parameters",
        )
    registered = RegisteredSpecs(session)
    pins = Pins(session, registered, as_of=as_of)
    specs = pins.specs()
    tables: dict[str, Source] = {}
    for name in names:
        # Table names are case-insensitive in SQL, so two spellings are one pinned table.
        tables.setdefault(name.lower(), _pinned_source(name, query, specs=specs, pins=pins))
    pins.check_used()
    schemas = [source.spec.schema for source in tables.values()]
    source = QuerySource(
        checked, tuple(tables.items()), usersql.find_nondeterminism(checked, schemas)
    )
    # The engine infers the types of the result; no rows are read.
    schema = run_query(session, source).schema
    try:
        check_feature_names(schema.names)
    except InvalidName as error:
        raise InvalidSql(
            f"The columns of {shorten_sql(query)} need names: {error.message}",
            hint="select count(*) as n, b.temp as other_temp",
        ) from error
    refuse_untyped(
        schema,
        subject="The query",
        hint=lambda _: f"select {format_sql_casts(schema)} from ({checked})",
    )
    return FeatureFrame.planned(session, build_query_plan(source, schema))


def _pinned_source(name: str, query: str, *, specs: Specs, pins: Pins) -> Source:
    """Pin the group that a table name in a query refers to."""
    try:
        group, version = parse_group_reference(name.lower())
    except InvalidReference as error:
        raise InvalidSql(
            f"{shorten_sql(query)} reads the unknown table {name!r}: tables are feature groups.",
            hint='for example weather, or "weather@v2" in double quotes; available feature groups: '
            f"{listing(sorted(specs), limit=30)}",
        ) from error
    spec = find_spec(group, version=version, specs=specs)
    return pins.source((spec.name, spec.version))
