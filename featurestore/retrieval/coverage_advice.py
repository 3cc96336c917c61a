"""Advice about labels without values: which argument to change, with examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.arrow.hints import PLAUSIBLE_START, misread_hint
from featurestore.delta.snapshot import read_snapshot
from featurestore.model.plan import FeaturePlan, Join
from featurestore.model.times import format_duration, format_ttl, from_micros, to_micros
from featurestore.retrieval.conversions import format_cell
from featurestore.retrieval.label_samples import (
    NEVER,
    KeyValues,
    key_tuples,
    label_times,
    to_microseconds,
)
from featurestore.session import Session

_PEEK_ROWS = 1000
_EXAMPLES = 3


@dataclass(frozen=True)
class UnmatchedLabels:
    """The labels without a matching row in a group, with a mask for each reason.

    ``events`` are the event times of the rows that are older than the ttl.
    """

    labels: pa.Table
    masks: dict[str, npt.NDArray[np.bool_]]
    events: pa.ChunkedArray | None = None

    def indices_for(self, reason: str) -> npt.NDArray[np.int64]:
        """Return the indices of the labels that are unmatched for a reason."""
        mask = self.masks.get(reason)
        if mask is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(mask)


def advise(
    session: Session, plan: FeaturePlan, join: Join, labels: pa.Table, unmatched: UnmatchedLabels
) -> Iterator[str]:
    """Yield a sentence of advice for each reason, and for implausible times."""
    yield from _advise_on_keys(session, join, unmatched)
    yield from _advise_on_first_rows(plan, join, unmatched)
    if len(unmatched.indices_for("not_known_yet")):
        yield (
            f"not known yet: {join.created_time} is later than the label times. If it is the time "
            "of loading, created_time_filter=False uses rows from their event time on (or create "
            "the group without created_time=)"
        )
    yield from _advise_on_ttl(plan, join, unmatched)
    yield from _advise_on_early_times(plan, join, labels)


def _advise_on_keys(session: Session, join: Join, unmatched: UnmatchedLabels) -> Iterator[str]:
    """Yield advice for labels whose key the group does not contain."""
    keyless_labels = unmatched.indices_for("no_such_key")
    if not len(keyless_labels):
        return
    for label_column, key in join.on:
        # A key with a time matches only equal times, so this reason comes before spelling.
        if key == join.event_time:
            entity_columns = [name for _, name in join.on if name != key]
            yield (
                f"no such key: the event time {key!r} is part of the primary key and therefore "
                f"joined by equality; create the group with primary_key={entity_columns!r}, "
                f"event_time={key!r}"
            )
            return
        if unmatched.labels.column(label_column).take(pa.array(keyless_labels)).null_count == len(
            keyless_labels
        ):
            yield f"no such key: {label_column} is null in the labels, and null matches no key"
            return
    label_keys = _distinct_keys(
        unmatched.labels.take(pa.array(keyless_labels)),
        [label_column for label_column, _ in join.on],
    )
    group_keys = _group_keys(session, join)
    key_pairs = ", ".join(f"{{{label_column!r}: {key!r}}}" for label_column, key in join.on)
    spelling_pair = _spelling_pair(label_keys, group_keys)
    if spelling_pair is not None:
        label_text, group_text = map(_format_key, spelling_pair)
        yield (
            f"no such key: {label_text} in the labels is {group_text} in the group; "
            "use the same spelling (case, spaces, leading zeros)"
        )
        return
    yield (
        f"no such key: the labels have {', '.join(map(_format_key, label_keys[:_EXAMPLES]))}; the group has "
        f"{', '.join(map(_format_key, group_keys[:_EXAMPLES])) or 'no rows'}. join_key={key_pairs} "
        "specifies the columns to match"
    )


def _advise_on_first_rows(
    plan: FeaturePlan, join: Join, unmatched: UnmatchedLabels
) -> Iterator[str]:
    """Yield advice for labels whose time is before the first row of their key."""
    early_labels = unmatched.indices_for("before_first_row")
    if not len(early_labels):
        return
    times = label_times(plan, unmatched.labels)[early_labels]
    # Labels without a time have no bounds.
    known_times = times[times != NEVER]
    if not len(known_times):
        yield "before its first row: the labels have no time; pass their time column as label_time="
        return
    event_bounds = _event_bounds(join)
    rows = "have unknown times"
    if event_bounds is not None:
        rows = f"are from {format_cell(event_bounds[0])} to {format_cell(event_bounds[1])}"
    first, last = from_micros(int(known_times.min())), from_micros(int(known_times.max()))
    yield (
        f"before its first row: these labels are from {format_cell(first)} to {format_cell(last)}, "
        f"the rows of the group {rows}; is label_time={plan.left_time or plan.fixed_time!r} the "
        "time at which the values are needed?"
    )


def _advise_on_ttl(plan: FeaturePlan, join: Join, unmatched: UnmatchedLabels) -> Iterator[str]:
    """Yield advice for labels whose matching row is older than the ttl or the window."""
    expired_labels = unmatched.indices_for("older_than_ttl")
    if not len(expired_labels) or unmatched.events is None:
        return
    ages = (
        label_times(plan, unmatched.labels)[expired_labels]
        - to_microseconds(unmatched.events)[expired_labels]
    )
    youngest = from_micros(int(ages.min())) - from_micros(0)
    # A ttl that differs from the group's represents the longest window.
    if join.ttl is not None and join.ttl != join.source.spec.ttl:
        yield (
            f"before the window: the longest window begins {_format_age(join.ttl + _MICROSECOND)} before the "
            f"label, and the newest of these rows is {_format_age(youngest)} old; increase over=, or "
            "use over=None for all rows"
        )
        return
    yield (
        f"older than ttl: the group has ttl={format_ttl(join.ttl)!r}, and the newest of these "
        f"values is {_format_age(youngest)} old; increase it with "
        f"update_featuregroup({join.source.spec.name!r}, ttl=...), or use ttl='' for all values"
    )


# The difference between a window and the equivalent ttl.
_MICROSECOND = timedelta(microseconds=1)


def _format_age(age: timedelta) -> str:
    """Format a duration in complete units of the largest suitable size."""
    for unit in (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)):
        if age >= unit:
            return format_duration(age // unit * unit)
    return format_duration(age)


def _advise_on_early_times(plan: FeaturePlan, join: Join, labels: pa.Table) -> Iterator[str]:
    """Yield a sentence if all event times, or all label times, are before 1980."""
    event_bounds = _event_bounds(join)
    if event_bounds is not None and event_bounds[1] < PLAUSIBLE_START:
        yield (
            f"the event times are from {format_cell(event_bounds[0])} to {format_cell(event_bounds[1])}: "
            f"{misread_hint(str(join.event_time), event_bounds)}"
        )
    times = label_times(plan, labels)
    known_times = times[times != NEVER]
    if (
        plan.left_time is not None
        and len(known_times)
        and known_times.max() < to_micros(PLAUSIBLE_START)
    ):
        time_bounds = [from_micros(int(known_times.min())), from_micros(int(known_times.max()))]
        yield (
            f"the label times are from {format_cell(time_bounds[0])} to {format_cell(time_bounds[1])}: "
            f"{misread_hint(plan.left_time, time_bounds)}"
        )


def _event_bounds(join: Join) -> tuple[datetime, datetime] | None:
    """Return the first and last event time from the log of a group."""
    if join.event_time is None:
        return None
    # The log contains the bounds of each file, so no rows are read.
    snapshot = read_snapshot(join.source.path, join.source.delta_version)
    known_bounds = [pair for pair in snapshot.times(join.event_time) or () if pair is not None]
    if not known_bounds:
        return None
    first = min(low for low, _ in known_bounds)
    last = max(high for _, high in known_bounds)
    return from_micros(first), from_micros(last)


def _group_keys(session: Session, join: Join) -> list[KeyValues]:
    """Read the keys of the first rows of a group."""
    columns = [key for _, key in join.on]
    engine, source = session.engine, join.source
    relation = engine.read_table(
        source.path, version=source.delta_version, schema=source.spec.schema, columns=columns
    )
    return _distinct_keys(engine.stream(relation, limit=_PEEK_ROWS).read_all(), columns)


def _distinct_keys(table: pa.Table, columns: list[str]) -> list[KeyValues]:
    return list(dict.fromkeys(key_tuples(table, columns)))


def _spelling_pair(
    label_keys: list[KeyValues], group_keys: list[KeyValues]
) -> tuple[KeyValues, KeyValues] | None:
    """Return a label key and a group key that differ only in spelling."""
    keys_by_text = {}
    for key in group_keys:
        keys_by_text[tuple(map(_normalize_key, key))] = key
    for key in label_keys:
        group_key = keys_by_text.get(tuple(map(_normalize_key, key)))
        if group_key is not None and group_key != key:
            return key, group_key
    return None


def _normalize_key(value: object) -> str:
    return str(value).strip().casefold().lstrip("0")


def _format_key(key: KeyValues) -> str:
    if len(key) == 1:
        return repr(key[0])
    return repr(key)
