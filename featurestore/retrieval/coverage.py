"""Coverage reports: how many labels each group has values for, and why the others get null.

The point-in-time rule (``retrieval/point_in_time.py``) is relaxed one condition at a time: ttl,
created time, event time. If a label matches a row after a condition is removed, that condition is
the reason for the null. For the remaining labels, the group has no row with their key. The engine
runs each relaxed join, so the reasons agree with its results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.errors import InvalidArgument
from featurestore.model import display
from featurestore.model.plan import FeaturePlan, Join, Output, WindowJoin
from featurestore.retrieval.coverage_advice import UnmatchedLabels, advise
from featurestore.retrieval.execution import Labels, computed_schema
from featurestore.retrieval.label_samples import (
    has_joins,
    plan_over_labels,
    run_over_labels,
    sampled_labels,
)
from featurestore.session import Session

Mask = npt.NDArray[np.bool_]
# A time later than the times of all rows.
_LAST = datetime(9000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class GroupCoverage:
    """The coverage of one joined group; the counts of labels add up to ``labels``.

    ``found`` is the number of labels with a value, ``null`` the number of labels whose matching row
    is null in all requested columns. The other counts are labels without a matching row, by reason.
    ``nulls`` is the null count of each feature in the matching rows; ``advice`` names the arguments
    to change.
    """

    group: str
    labels: int
    found: int = 0
    no_such_key: int = 0
    before_first_row: int = 0
    not_known_yet: int = 0
    older_than_ttl: int = 0
    null: int = 0
    nulls: Mapping[str, int] | None = None
    advice: tuple[str, ...] = ()

    __repr__ = display.record_repr

    def __str__(self) -> str:
        counts = {name: getattr(self, name) for name in REASONS}
        reasons = [f"{count:,} {REASONS[name]}" for name, count in counts.items() if count]
        lines = [f"{self.group}: {self.found:,} of {self.labels:,} labels have a value"]
        if reasons:
            lines[0] += f"; {', '.join(reasons)}"
        lines += [f"  {sentence}" for sentence in self.advice]
        return "\n".join(lines)


REASONS = {
    "no_such_key": "no such key",
    "before_first_row": "before its first row",
    "not_known_yet": "not known yet",
    "older_than_ttl": "older than ttl",
    "null": "null in the row",
}


@dataclass(frozen=True)
class CoverageReport:
    """The coverage of each group that a frame joins, in join order.

    ``sampled`` is true if only a sample of the labels was counted.

    >>> report = store.get_features(["weather.temp"], labels="questions").coverage()
    >>> report["weather"].found
    4
    """

    groups: tuple[GroupCoverage, ...]
    labels: int
    sampled: bool

    __repr__ = display.record_repr

    def __iter__(self) -> Iterator[GroupCoverage]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, name: str) -> GroupCoverage:
        for coverage in self.groups:
            if name in (coverage.group, coverage.group.partition("@")[0]):
                return coverage
        group_names = ", ".join(coverage.group for coverage in self.groups)
        raise InvalidArgument(
            f"The frame does not join feature group {name!r}. Available: {group_names}."
        )

    def __str__(self) -> str:
        lines = list(map(str, self.groups))
        if self.sampled:
            lines.append(f"based on a sample of {self.labels:,} labels")
        return "\n".join(lines) + "\n"


def coverage(
    session: Session,
    plan: FeaturePlan | None,
    *,
    labels: Labels | None,
    sample: int,
    seed: int = 0,
) -> CoverageReport:
    """Return the coverage of each group that a plan joins.

    Filters and inner joins of the plan are ignored, so all labels are counted.

    Raises:
        InvalidArgument: The plan has no joins.
    """
    if plan is None or not has_joins(plan):
        raise InvalidArgument(
            "coverage() requires a frame that get_features returned, with features joined to "
            "labels.",
            hint="get_features([...], labels=...).coverage()",
        )
    if sample < 1:
        raise InvalidArgument(
            f"sample={sample} is not a positive number of rows.", hint="sample=10_000"
        )
    rows = sampled_labels(session, plan, labels, sample=sample, seed=seed)
    groups: list[GroupCoverage] = []
    _add_plan_coverage(session, plan, rows, groups)
    return CoverageReport(tuple(groups), rows.num_rows, _is_sample(plan, rows.num_rows, sample))


def _is_sample(plan: FeaturePlan, rows: int, sample: int) -> bool:
    """Return whether the sample may have fewer labels than the left side."""
    while plan.left_plan is not None:
        plan = plan.left_plan
    if plan.left_rows is None:
        return rows >= sample
    return rows < plan.left_rows


def _add_plan_coverage(
    session: Session, plan: FeaturePlan, labels: pa.Table, groups: list[GroupCoverage]
) -> pa.Table:
    """Append the coverage of all joins of a plan and its left plans; return the plan's rows."""
    # Left plans first: their outputs are the labels of this plan.
    if plan.left_plan is not None:
        labels = _add_plan_coverage(session, plan.left_plan, labels, groups)
    # A plan has either windows or joins, so the windows are measured as joins, one group at a time.
    for window in plan.windows:
        join = _join_for_longest_window(window)
        _add_join_coverage(session, _plan_of_joins(plan, [join]), labels, groups)
        nulls = groups[-1].nulls or {}
        by_column = {output.column: nulls[output.name] for output in join.outputs}
        groups[-1] = replace(groups[-1], nulls=by_column)
    if plan.windows:
        retrieved_rows = run_over_labels(session, plan_over_labels(plan, labels.schema), labels)
    else:
        retrieved_rows = _add_join_coverage(session, plan, labels, groups)
    return retrieved_rows.select(list(plan.columns))


def _add_join_coverage(
    session: Session, plan: FeaturePlan, labels: pa.Table, groups: list[GroupCoverage]
) -> pa.Table:
    """Append the coverage of all joins of a plan; return the rows of the plan."""
    full_plan = replace(plan_over_labels(plan, labels.schema), left_rows=labels.num_rows)
    retrieved_rows = run_over_labels(session, _add_marker_columns(full_plan), labels)
    for number, join in enumerate(plan.joins):
        is_matched = _is_valid(retrieved_rows.column(_marker_name(number)))
        groups.append(
            _measure_coverage(session, full_plan, join, labels, retrieved_rows, is_matched)
        )
    return retrieved_rows


def _join_for_longest_window(window: WindowJoin) -> Join:
    """Return a join that matches a row if the longest window of a group contains one."""
    longest: timedelta | None = timedelta(0)
    for output in window.outputs:
        if output.over is None or longest is None:
            longest = None
        else:
            # A window excludes its start, but a ttl includes it.
            longest = max(longest, output.over + output.offset - timedelta(microseconds=1))
    columns = dict.fromkeys(output.column for output in window.outputs)
    outputs = [Output(column, f"{_VALUE}{index}") for index, column in enumerate(columns)]
    return Join(
        source=window.source,
        on=window.on,
        outputs=tuple(outputs),
        event_time=window.event_time,
        created_time=window.created_time,
        ttl=longest,
    )


def _measure_coverage(
    session: Session,
    plan: FeaturePlan,
    join: Join,
    labels: pa.Table,
    retrieved_rows: pa.Table,
    is_matched: Mask,
) -> GroupCoverage:
    """Count the labels with and without values of one join, by reason."""
    has_value = np.zeros(len(is_matched), bool)
    nulls = {}
    for output in join.outputs:
        valid = _is_valid(retrieved_rows.column(output.name))
        has_value |= valid
        nulls[output.name] = int((is_matched & ~valid).sum())
    unmatched_indices = np.flatnonzero(~is_matched)
    unmatched = _classify_unmatched(session, plan, join, labels.take(pa.array(unmatched_indices)))
    counts = {name: int(mask.sum()) for name, mask in unmatched.masks.items()}
    return GroupCoverage(
        group=f"{join.source.spec.name}@v{join.source.spec.version}",
        labels=len(is_matched),
        found=int((is_matched & has_value).sum()),
        null=int((is_matched & ~has_value).sum()),
        nulls=nulls,
        advice=tuple(advise(session, plan, join, labels, unmatched)),
        **counts,
    )


def _classify_unmatched(
    session: Session, plan: FeaturePlan, join: Join, labels: pa.Table
) -> UnmatchedLabels:
    """Determine the condition that excludes the group's rows for each unmatched label."""
    unexplained = np.ones(labels.num_rows, bool)
    masks = {}
    events = None
    for name, loosened in _relaxed_plans(plan, join):
        is_matched = np.zeros(labels.num_rows, bool)
        # Each relaxed join runs only if labels are still unexplained.
        if unexplained.any():
            retrieved_rows = run_over_labels(session, _add_marker_columns(loosened), labels)
            is_matched = _is_valid(retrieved_rows.column(_marker_name(0))) & unexplained
            if name == "older_than_ttl":
                events = retrieved_rows.column(_EVENT)
        masks[name] = is_matched
        # A label gets the first reason that applies, so the counts add up to the number of labels.
        unexplained &= ~is_matched
    masks["no_such_key"] = unexplained
    return UnmatchedLabels(labels, masks, events)


def _relaxed_plans(plan: FeaturePlan, join: Join) -> Iterator[tuple[str, FeaturePlan]]:
    """Yield plans of one join with decreasing numbers of conditions, each with its reason.

    Ties are not resolved, since it only matters whether any row matches.
    """
    event_time = join.event_time
    if event_time is None:
        return

    def without_ttl(created_time: str | None) -> Join:
        return Join(
            source=join.source.assume_unique(),
            on=join.on,
            outputs=(Output(event_time, _EVENT),),
            event_time=event_time,
            created_time=created_time,
            ttl=None,
        )

    if join.ttl is not None:
        yield "older_than_ttl", _plan_of_joins(plan, [without_ttl(join.created_time)])
    if join.created_time is not None and plan.created_time_filter:
        yield "not_known_yet", _plan_of_joins(plan, [without_ttl(None)])
    # A fixed time after all rows removes the condition on event times for every label.
    timeless = replace(_plan_of_joins(plan, [without_ttl(None)]), left_time=None, fixed_time=_LAST)
    yield "before_first_row", timeless


def _plan_of_joins(plan: FeaturePlan, joins: Sequence[Join]) -> FeaturePlan:
    """Return a plan with all left columns and other joins, and without windows."""
    joined = replace(
        plan,
        columns=(),
        schema=pa.schema([]),
        joins=tuple(joins),
        windows=(),
    )
    schema = computed_schema(joined, plan.left_schema)
    return replace(joined, columns=tuple(schema.names), schema=schema)


_EVENT = "__fs_event"
_VALUE = "__fs_value_"


def _marker_name(number: int) -> str:
    return f"__fs_answered_{number}"


def _add_marker_columns(plan: FeaturePlan) -> FeaturePlan:
    """Add a key column to the outputs of each join, since it is never null in a matching row."""
    joins = []
    for number, join in enumerate(plan.joins):
        # Features may be null in a matching row, but its key is not.
        key = join.on[0][1]
        joins.append(replace(join, outputs=(*join.outputs, Output(key, _marker_name(number)))))
    return _plan_of_joins(plan, joins)


def _is_valid(column: pa.ChunkedArray) -> Mask:
    valid: Mask = pc.is_valid(column).to_numpy().astype(bool)
    return valid
