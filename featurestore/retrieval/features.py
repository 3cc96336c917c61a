"""Lazy frames of features for labels (``get_features``), or of queries over groups (``sql``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from featurestore import usersql
from featurestore.arrow.column_names import check_feature_names
from featurestore.arrow.hints import PLAUSIBLE_START, misread_hint
from featurestore.arrow.types import TIMESTAMP
from featurestore.arrow.untyped import format_sql_casts, refuse_untyped
from featurestore.arrow.values import to_scalar
from featurestore.errors import InvalidArgument, InvalidName, InvalidReference, InvalidSql, listing
from featurestore.model.arguments import warn_caller
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import parse_group_reference
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.plan import FeaturePlan, QuerySource, Source, build_query_plan
from featurestore.model.requests import AsOf, RequestedFeature, RetrievalRequest
from featurestore.model.times import SuspiciousTimeWarning
from featurestore.model.window_features import WindowFeature, parse_window
from featurestore.retrieval.catalog import Pins, RegisteredSpecs
from featurestore.retrieval.checks import check_ties, check_unique
from featurestore.retrieval.execution import add_on_demand_features, run_query
from featurestore.retrieval.frame import FeatureFrame
from featurestore.retrieval.labels import open_labels
from featurestore.retrieval.planner import (
    GroupId,
    LabelSide,
    plan_with_labels,
    plan_without_labels,
    reorder_columns,
)
from featurestore.retrieval.resolve import (
    Feature,
    Specs,
    find_spec,
    join_key_types,
    no_features_error,
    resolve,
)
from featurestore.retrieval.windows import matched_spec, plan_windows
from featurestore.session import Session
from featurestore.usersql.text import shorten_sql


def get_features(
    session: Session,
    request: RetrievalRequest,
    *,
    pins: Pins | None = None,
    label_types: Mapping[str, pa.DataType] | None = None,
) -> FeatureFrame:
    """Return the features as a lazy frame: one row per label row, each as of the label's time.

    ``pins`` of an earlier call make both calls read the same versions; ``as_of`` is then ignored.
    ``label_types`` are the types of untyped label columns that are not joined with a key.

    Raises:
        FeatureNotFound, AmbiguousFeature, FeatureGroupNotFound: A reference is unknown or
            ambiguous.
        NoJoinKey: A group's primary key is not in the columns of the left side.
        LabelTimeRequired: The time column of the labels is ambiguous or missing.
        ColumnConflict: Two columns of the result would have the same name.
    """
    active_pins = pins or Pins(session, RegisteredSpecs(session), as_of=request.as_of)
    plan, labels = _plan(session, request, pins=active_pins, label_types=label_types or {})
    # The caller checks its pins after all steps, since each step reads only some of the groups.
    if pins is None:
        active_pins.check_used()
    # The checks may read rows, so they come after all errors that need only logs.
    check_unique(session, plan)
    check_ties(session, plan)
    if labels is None:
        return FeatureFrame.planned(session, plan)
    return FeatureFrame.planned(session, plan, labels=labels.relation, reads=labels.reads)


def explain_features(session: Session, request: RetrievalRequest) -> FeaturePlan:
    """Return the plan that ``get_features`` would run; only logs are read.

    ``str(plan)`` describes the plan.
    """
    plan = get_features(session, request).plan
    if plan is None:
        raise InvalidArgument("The features have no plan.")
    return plan


def _plan(
    session: Session,
    request: RetrievalRequest,
    *,
    pins: Pins,
    label_types: Mapping[str, pa.DataType],
) -> tuple[FeaturePlan, LabelSide | None]:
    features = _ResolvedFeatures.resolve(request, pins.specs(), RegisteredSpecs(session))
    if request.labels is None:
        if not features.stored and not features.windows:
            raise InvalidArgument(
                f"The on-demand features {listing(features.names)} have no rows to compute from.",
                hint="also request stored features, or pass labels=",
            )
        plan = _plan_without_labels(features, request, pins=pins)
        return _add_on_demand(plan, features), None
    if request.include_keys:
        raise InvalidArgument(
            "include_keys= is for retrieval without labels: with labels, all their columns are "
            "returned.",
            hint="omit include_keys=",
        )

    def types(label_schema: pa.Schema) -> dict[str, pa.DataType]:
        return {**label_types, **features.join_column_types(label_schema, request)}

    label_side = open_labels(session, request, pins=pins, types=types)
    plan = _plan_with_labels(features, request, label_side, pins=pins)
    plan = _add_on_demand(plan, features)
    _warn_of_early_times(label_side, plan)
    return plan, label_side


def _add_on_demand(plan: FeaturePlan, features: _ResolvedFeatures) -> FeaturePlan:
    """Add the on-demand features to a plan, and restore the requested column order."""
    if not features.on_demand:
        return plan
    # On-demand features are computed from the rows of the other features.
    computed = add_on_demand_features(features.on_demand, stored_plan=plan)
    stored_columns = [name for name in plan.columns if name not in features.names]
    return reorder_columns(computed, [*stored_columns, *features.names])


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
            f"before 1980; {misread_hint(plan.left_time, early_times[:5].to_pylist())}",
            SuspiciousTimeWarning,
        )


@dataclass(frozen=True)
class _ResolvedFeatures:
    """The stored features, window aggregates and on-demand features of a request, with their order."""

    stored: tuple[Feature, ...]
    windows: tuple[tuple[Feature, WindowFeature], ...]
    on_demand: tuple[OnDemandFeature, ...]
    names: tuple[str, ...]

    @classmethod
    def resolve(
        cls, request: RetrievalRequest, specs: Specs, registered: RegisteredSpecs
    ) -> _ResolvedFeatures:
        requested: list[RequestedFeature] = []
        if isinstance(request.features, str | WindowFeature | OnDemandFeature):
            requested.append(request.features)
        else:
            requested += request.features
        if not requested:
            raise no_features_error()
        stored: list[Feature] = []
        windows = []
        on_demand = []
        names = []
        for feature in requested:
            if isinstance(feature, OnDemandFeature):
                on_demand.append(feature)
                names.append(feature.name)
                continue
            if isinstance(feature, str) and "|" not in feature:
                matches = resolve(
                    feature,
                    specs=specs,
                    versions=request.versions,
                    groups_with=registered.groups_with,
                )
                stored += matches
                names += [match.name for match in matches]
                continue
            window = parse_window(feature) if isinstance(feature, str) else feature
            matches = resolve(str(window.reference), specs=specs, versions=request.versions)
            windows.append((matches[0], window))
            names.append(window.name)
        return cls(tuple(stored), tuple(windows), tuple(on_demand), tuple(names))

    @property
    def joined_names(self) -> list[str]:
        """The output names without those of on-demand features, in order."""
        computed = {feature.name for feature in self.on_demand}
        return [name for name in self.names if name not in computed]

    @property
    def stored_specs(self) -> list[FeatureGroupSpec]:
        """The groups of the stored features."""
        return [feature.spec for feature in self.stored]

    @property
    def window_specs(self) -> list[FeatureGroupSpec]:
        """The groups of the aggregates, with the keys that they are matched by."""
        return [matched_spec(feature, window) for feature, window in self.windows]

    def join_column_types(
        self, label_schema: pa.Schema, request: RetrievalRequest
    ) -> dict[str, pa.DataType]:
        """Return the types of the keys and times that label columns are joined with."""
        specs = [*self.stored_specs, *self.window_specs]
        key_types = join_key_types(label_schema, specs, request.join_key)
        types = {column: candidates[0] for column, candidates in key_types.items()}
        if isinstance(request.label_time, str) and request.label_time in label_schema.names:
            types[request.label_time] = TIMESTAMP
        return types

    @property
    def first_group(self) -> GroupId:
        """The group of the first requested feature."""
        if self.windows and (not self.stored or self.joined_names[0] == self.windows[0][1].name):
            return self.windows[0][0].group
        return self.stored[0].group


def _plan_without_labels(
    features: _ResolvedFeatures, request: RetrievalRequest, *, pins: Pins
) -> FeaturePlan:
    """Plan a retrieval whose rows are those of the first requested group."""
    # The first requested feature determines the group whose rows are returned.
    source = pins.source(features.first_group)
    spec = source.spec
    labels = LabelSide(spec.schema, source=source, time=spec.event_time, rows=source.rows)
    if features.windows:
        labels = _plan_to_label_side(_plan_windows(features, request, labels, pins=pins))
    plan = plan_without_labels(
        features.stored,
        request,
        spec=spec,
        labels=labels,
        source=pins.source,
        other_specs=features.window_specs,
        aggregates=[window.name for _, window in features.windows],
    )
    if not features.windows:
        return plan
    names = features.joined_names
    keys = [name for name in plan.columns if name not in names]
    return reorder_columns(plan, [*keys, *names])


def _plan_with_labels(
    features: _ResolvedFeatures, request: RetrievalRequest, labels: LabelSide, *, pins: Pins
) -> FeaturePlan:
    """Plan the aggregates, then the features, over the rows of the labels."""
    if not features.windows:
        return plan_with_labels(features.stored, request, labels=labels, source=pins.source)
    plan = _plan_windows(features, request, labels, pins=pins)
    if features.stored:
        plan = plan_with_labels(
            features.stored,
            request,
            labels=_plan_to_label_side(plan),
            source=pins.source,
            other_specs=features.window_specs,
        )
    return reorder_columns(plan, [*labels.schema.names, *features.joined_names])


def _plan_windows(
    features: _ResolvedFeatures, request: RetrievalRequest, labels: LabelSide, *, pins: Pins
) -> FeaturePlan:
    return plan_windows(
        features.windows,
        request,
        labels=labels,
        source=pins.source,
        other_specs=features.stored_specs,
    )


def _plan_to_label_side(plan: FeaturePlan) -> LabelSide:
    """Convert the result of a plan to the left side of another plan."""
    return LabelSide(
        plan.schema, plan=plan, time=plan.left_time, ordered=plan.keep_order, rows=plan.left_rows
    )


def query_frame(session: Session, query: str, *, as_of: AsOf | None = None) -> FeatureFrame:
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
