"""get_features: from names and labels to a frame of training rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from featurestore.errors import InvalidArgument, listing
from featurestore.model.callers import warn_caller
from featurestore.model.epochs import PLAUSIBLE_FROM, misread_advice
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.plan import FeaturePlan, JoinKind
from featurestore.model.times import SuspiciousTimeWarning
from featurestore.model.types import TIMESTAMP
from featurestore.model.window_features import WindowFeature, parse_window
from featurestore.retrieval.catalog import AsOfArgument, Pins, RegisteredSpecs
from featurestore.retrieval.frame import FeatureFrame
from featurestore.retrieval.join_keys import JoinKey, key_types
from featurestore.retrieval.labels import OpenedLabels, open_labels
from featurestore.retrieval.on_demand import plan_on_demand
from featurestore.retrieval.planner import (
    GroupId,
    LabelSide,
    LabelTime,
    RetrievalOptions,
    plan_with_labels,
    plan_without_labels,
    reordered,
)
from featurestore.retrieval.resolve import Feature, Specs, nothing_requested, resolve
from featurestore.retrieval.unique_columns import check_unique
from featurestore.retrieval.window_ties import check_ties
from featurestore.retrieval.windows import matched_spec, plan_windows
from featurestore.session import Session

# Features by name, aggregates by ``window(...)`` or as text, and those of ``feature(...)``.
Requested = str | WindowFeature | OnDemandFeature | Sequence[str | WindowFeature | OnDemandFeature]


def get_features(
    session: Session,
    features: Requested,
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

    See ``FeatureStore.get_features`` for the arguments. ``pins`` are those of a call that this one
    goes on from, so that both read the same versions; ``as_of`` is left out then. ``label_types``
    are for columns of the labels without a type that meet no key.

    Raises:
        FeatureNotFound, AmbiguousFeature, FeatureGroupNotFound: A reference means nothing, or too
        much.
        NoJoinKey: A group's primary key is not in the columns of the left side.
        LabelTimeRequired: The time of the labels cannot be told.
        ColumnConflict: Two columns of the result would have one name.
    """
    options = RetrievalOptions(
        label_time=label_time,
        join_key=join_key,
        how=join,
        include_keys=include_keys,
        created_time_filter=created_time_filter,
    )
    given = pins or Pins(session, RegisteredSpecs(session), as_of=as_of)
    plan, opened = _plan(
        session,
        features,
        labels=labels,
        versions=versions,
        options=options,
        pins=given,
        label_types=label_types or {},
    )
    if pins is None:
        given.check_used()
    check_unique(session, plan)
    check_ties(session, plan)
    if opened is None:
        return FeatureFrame.planned(session, plan)
    return FeatureFrame.planned(session, plan, labels=opened.relation, reads=opened.reads)


def get_feature(session: Session, feature: str) -> FeatureFrame:
    """Return the one column of a feature, a row for each row of its group."""
    if not isinstance(feature, str):
        raise InvalidArgument(
            f"get_feature takes one reference, not {feature!r}.",
            hint="get_features([...]) takes several",
        )
    return get_features(session, [feature])


def explain_features(
    session: Session,
    features: Requested,
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

    Nothing is read but logs.

    ``str(plan)`` is the text for people.
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
    features: Requested,
    *,
    labels: object | None,
    versions: Mapping[str, int] | None,
    options: RetrievalOptions,
    pins: Pins,
    label_types: Mapping[str, pa.DataType],
) -> tuple[FeaturePlan, OpenedLabels | None]:
    registered = RegisteredSpecs(session)
    specs = pins.specs()
    asked = _Asked.of(features, specs, versions, registered.groups_with)
    if labels is None:
        if not asked.features and not asked.windows:
            raise InvalidArgument(
                f"On-demand features alone ({listing(asked.names)}) have no rows to be computed of.",
                hint="ask for stored features, too, or give labels=",
            )
        plan = _without_labels(asked.stored(), pins=pins, options=options)
        return _with_on_demand(plan, asked), None
    if options.include_keys:
        raise InvalidArgument(
            "include_keys is for retrieval without labels: all columns of the labels are returned "
            "anyway.",
            hint="leave include_keys out",
        )

    def types(left: pa.Schema) -> dict[str, pa.DataType]:
        return {**label_types, **asked.types_of_labels(left, options)}

    opened = open_labels(session, labels, pins=pins, specs=specs, versions=versions, types=types)
    plan = _with_labels(asked.stored(), opened.left, pins=pins, options=options)
    plan = _with_on_demand(plan, asked)
    _warn_of_early_times(opened.left, plan)
    return plan, opened


def _with_on_demand(plan: FeaturePlan, asked: _Asked) -> FeaturePlan:
    """Return the plan with what is computed of its rows, in the order that was asked for."""
    if not asked.on_demand:
        return plan
    computed = plan_on_demand(asked.on_demand, left=plan)
    first = [name for name in plan.columns if name not in asked.names]
    return reordered(computed, [*first, *asked.names])


def _warn_of_early_times(left: LabelSide, plan: FeaturePlan) -> None:
    """Warn of labels in memory whose times lie before 1980: no row of a group is as old."""
    if left.peek is None or not left.ordered or plan.left_time is None:
        return
    times = left.peek().column(plan.left_time)
    early = []
    for time in times.cast(pa.timestamp("us", tz="UTC")).drop_null().to_pylist():
        if time < PLAUSIBLE_FROM:
            early.append(time)
    if early:
        warn_caller(
            f"label_time={plan.left_time!r}: {len(early):,} of the first {len(times):,} labels lie "
            f"before 1980; {misread_advice(early[:5])}",
            SuspiciousTimeWarning,
        )


@dataclass(frozen=True)
class _Asked:
    """What was asked for: features at the label's time, aggregates over windows, the order."""

    features: tuple[Feature, ...]
    windows: tuple[tuple[Feature, WindowFeature], ...]
    on_demand: tuple[OnDemandFeature, ...]
    names: tuple[str, ...]

    @classmethod
    def of(
        cls,
        requested: Requested,
        specs: Specs,
        versions: Mapping[str, int] | None,
        groups_with: Callable[[str], Iterable[str]],
    ) -> _Asked:
        given: list[str | WindowFeature | OnDemandFeature] = []
        if isinstance(requested, str | WindowFeature | OnDemandFeature):
            given.append(requested)
        else:
            given += requested
        if not given:
            raise nothing_requested()
        features: list[Feature] = []
        windows = []
        on_demand = []
        names = []
        for each in given:
            if isinstance(each, OnDemandFeature):
                on_demand.append(each)
                names.append(each.name)
                continue
            if isinstance(each, str) and "|" not in each:
                found = resolve(each, specs=specs, versions=versions, groups_with=groups_with)
                features += found
                names += [feature.name for feature in found]
                continue
            wanted = parse_window(each) if isinstance(each, str) else each
            found = resolve(str(wanted.reference), specs=specs, versions=versions)
            windows.append((found[0], wanted))
            names.append(wanted.name)
        return cls(tuple(features), tuple(windows), tuple(on_demand), tuple(names))

    def stored(self) -> _Asked:
        """Return the same without what is computed on demand."""
        computed = {each.name for each in self.on_demand}
        names = tuple(name for name in self.names if name not in computed)
        return replace(self, on_demand=(), names=names)

    def types_of_labels(self, left: pa.Schema, options: RetrievalOptions) -> dict[str, pa.DataType]:
        """Return the types of the keys and of the time that columns of labels meet."""
        specs = [feature.spec for feature in self.features]
        specs += [matched_spec(feature, wanted) for feature, wanted in self.windows]
        types = key_types(left, specs, options.join_key)
        if isinstance(options.label_time, str) and options.label_time in left.names:
            types[options.label_time] = TIMESTAMP
        return types

    def options_of_windows(self, options: RetrievalOptions) -> RetrievalOptions:
        """Return the options of the step that adds the aggregates."""
        return replace(options, others=tuple(feature.spec for feature in self.features))

    def options_of_features(self, options: RetrievalOptions) -> RetrievalOptions:
        """Return the options of the step that adds the features."""
        others = [matched_spec(feature, wanted) for feature, wanted in self.windows]
        return replace(options, others=tuple(others))

    @property
    def first_group(self) -> GroupId:
        """The group of what was asked for first."""
        if self.windows and (not self.features or self.names[0] == self.windows[0][1].name):
            return self.windows[0][0].group
        return self.features[0].group


def _without_labels(asked: _Asked, *, pins: Pins, options: RetrievalOptions) -> FeaturePlan:
    source = pins.source(asked.first_group)
    spec = source.spec
    left = LabelSide(spec.schema, source=source, time=spec.event_time, rows=source.rows)
    aggregates: list[str] = []
    if asked.windows:
        windows = asked.options_of_windows(options)
        left = _fed_by(plan_windows(asked.windows, left=left, options=windows, source=pins.source))
        aggregates = [wanted.name for _, wanted in asked.windows]
    plan = plan_without_labels(
        asked.features,
        spec=spec,
        left=left,
        options=asked.options_of_features(options),
        source=pins.source,
        aggregates=aggregates,
    )
    if not asked.windows:
        return plan
    keys = [name for name in plan.columns if name not in asked.names]
    return reordered(plan, [*keys, *asked.names])


def _with_labels(
    asked: _Asked, left: LabelSide, *, pins: Pins, options: RetrievalOptions
) -> FeaturePlan:
    if not asked.windows:
        return plan_with_labels(asked.features, left=left, options=options, source=pins.source)
    windows = asked.options_of_windows(options)
    plan = plan_windows(asked.windows, left=left, options=windows, source=pins.source)
    if asked.features:
        plan = plan_with_labels(
            asked.features,
            left=_fed_by(plan),
            options=asked.options_of_features(options),
            source=pins.source,
        )
    return reordered(plan, [*left.schema.names, *asked.names])


def _fed_by(plan: FeaturePlan) -> LabelSide:
    """Return the result of a plan as the left side of another one."""
    return LabelSide(
        plan.schema, plan=plan, time=plan.left_time, ordered=plan.keep_order, rows=plan.left_rows
    )
