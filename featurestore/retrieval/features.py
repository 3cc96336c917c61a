"""get_features: from names and labels to a frame of training rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from featurestore.errors import InvalidArgument
from featurestore.model.callers import warn_caller
from featurestore.model.epochs import PLAUSIBLE_FROM, misread_advice
from featurestore.model.plan import FeaturePlan, JoinKind
from featurestore.model.times import SuspiciousTimeWarning
from featurestore.retrieval.catalog import AsOfArgument, Pins, RegisteredSpecs
from featurestore.retrieval.execution import Labels
from featurestore.retrieval.frame import FeatureFrame
from featurestore.retrieval.join_keys import JoinKey
from featurestore.retrieval.labels import open_labels
from featurestore.retrieval.planner import (
    LabelSide,
    LabelTime,
    RetrievalOptions,
    plan_with_labels,
    plan_without_labels,
)
from featurestore.retrieval.resolve import resolve
from featurestore.retrieval.unique_columns import check_unique
from featurestore.session import Session


def get_features(
    session: Session,
    features: str | Sequence[str],
    *,
    labels: object | None = None,
    label_time: LabelTime | None = None,
    versions: Mapping[str, int] | None = None,
    join_key: JoinKey | None = None,
    join: JoinKind = "left",
    as_of: AsOfArgument | None = None,
    include_keys: bool = False,
    created_time_filter: bool = True,
) -> FeatureFrame:
    """Return the features as a lazy frame: one row per label row, each as of the label's time.

    See ``FeatureStore.get_features`` for the arguments.

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
    plan, relation = _plan(
        session, features, labels=labels, versions=versions, as_of=as_of, options=options
    )
    check_unique(session, plan)
    return FeatureFrame.planned(session, plan, labels=relation)


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
    features: str | Sequence[str],
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
    features: str | Sequence[str],
    *,
    labels: object | None,
    versions: Mapping[str, int] | None,
    as_of: AsOfArgument | None,
    options: RetrievalOptions,
) -> tuple[FeaturePlan, Labels | None]:
    registered = RegisteredSpecs(session)
    pins = Pins(session, registered, as_of=as_of)
    specs = pins.specs()
    found = resolve(features, specs=specs, versions=versions, groups_with=registered.groups_with)
    if labels is None:
        source = pins.source(found[0].group)
        left = LabelSide(
            source.spec.schema, source=source, time=source.spec.event_time, rows=source.rows
        )
        plan = plan_without_labels(found, left=left, options=options, source=pins.source)
        pins.check_used()
        return plan, None
    if options.include_keys:
        raise InvalidArgument(
            "include_keys is for retrieval without labels: all columns of the labels are returned "
            "anyway.",
            hint="leave include_keys out",
        )
    opened = open_labels(session, labels, pins=pins, specs=specs, versions=versions)
    plan = plan_with_labels(found, left=opened.left, options=options, source=pins.source)
    pins.check_used()
    _warn_of_early_times(opened.left, plan)
    return plan, opened.relation


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
