"""What to do about labels without values: the argument that would change it, with examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.delta.snapshot import read_snapshot
from featurestore.model.durations import format_duration, format_ttl
from featurestore.model.epochs import PLAUSIBLE_FROM, misread_advice
from featurestore.model.plan import FeaturePlan, Join
from featurestore.model.times import from_micros, to_micros
from featurestore.retrieval.rendering import cell
from featurestore.retrieval.sampled_labels import NEVER, label_times, micros_of
from featurestore.session import Session

_PEEK_ROWS = 1000
_EXAMPLES = 3


@dataclass(frozen=True)
class Unanswered:
    """The labels that no row of a group answers, and by reason which of them.

    ``events``: the event times of the rows that are too old for their ttl.
    """

    labels: pa.Table
    masks: dict[str, np.ndarray[Any, np.dtype[np.bool_]]]
    events: pa.ChunkedArray | None = None

    def having(self, reason: str) -> np.ndarray[Any, Any]:
        """Return the numbers of the labels with one reason."""
        mask = self.masks.get(reason)
        if mask is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(mask)


def advice(
    session: Session, plan: FeaturePlan, join: Join, labels: pa.Table, missing: Unanswered
) -> Iterator[str]:
    """Yield a sentence for each reason that some label has, and for times that cannot be true."""
    yield from _of_keys(session, join, missing)
    yield from _of_first_rows(plan, join, missing)
    if len(missing.having("not_known_yet")):
        yield (
            f"not known yet: {join.created_time} lies after the labels' times. Where it is the "
            "time of loading, created_time_filter=False uses rows from their event time on (or "
            "make the group without created_time=)"
        )
    yield from _of_ttl(plan, join, missing)
    yield from _of_early_times(plan, join, labels)


def _of_keys(session: Session, join: Join, missing: Unanswered) -> Iterator[str]:
    without = missing.having("no_such_key")
    if not len(without):
        return
    for left, key in join.on:
        if key == join.event_time:
            entity = [name for _, name in join.on if name != key]
            yield (
                f"no such key: the event time {key!r} is part of the primary key and so joined by "
                f"equality; make the group with primary_key={entity!r}, event_time={key!r}"
            )
            return
        if missing.labels.column(left).take(pa.array(without)).null_count == len(without):
            yield f"no such key: {left} is null in the labels, and null meets no key"
            return
    mine = _keys(missing.labels.take(pa.array(without)), [left for left, _ in join.on])
    theirs = _group_keys(session, join)
    pairs = ", ".join(f"{{{left!r}: {key!r}}}" for left, key in join.on)
    twin = _twin(mine, theirs)
    if twin is not None:
        yield (
            f"no such key: {_shown(twin[0])} in the labels is {_shown(twin[1])} in the group; "
            "write them alike (case, spaces, leading zeros)"
        )
        return
    yield (
        f"no such key: the labels have {', '.join(map(_shown, mine[:_EXAMPLES]))}; the group has "
        f"{', '.join(map(_shown, theirs[:_EXAMPLES])) or 'no rows'}. join_key={pairs} says which "
        "columns meet"
    )


def _of_first_rows(plan: FeaturePlan, join: Join, missing: Unanswered) -> Iterator[str]:
    early = missing.having("before_first_row")
    if not len(early):
        return
    times = label_times(plan, missing.labels)[early]
    known = times[times != NEVER]
    if not len(known):
        yield "before its first row: the labels have no time; label_time= names their column"
        return
    spread = _event_bounds(join)
    rows = "unknown times"
    if spread is not None:
        rows = f"{cell(spread[0])} to {cell(spread[1])}"
    first, last = from_micros(int(known.min())), from_micros(int(known.max()))
    yield (
        f"before its first row: these labels lie in {cell(first)} to {cell(last)}, the rows of "
        f"the group in {rows}; is label_time={plan.left_time or plan.fixed_time!r} the time when "
        "the values are needed?"
    )


def _of_ttl(plan: FeaturePlan, join: Join, missing: Unanswered) -> Iterator[str]:
    old = missing.having("older_than_ttl")
    if not len(old) or missing.events is None:
        return
    ages = label_times(plan, missing.labels)[old] - micros_of(missing.events)[old]
    youngest = from_micros(int(ages.min())) - from_micros(0)
    if join.ttl is not None and join.ttl != join.source.spec.ttl:
        yield (
            f"before the window: the longest window begins {_age(join.ttl + _TICK)} before the "
            f"label, and the youngest of these rows is {_age(youngest)} old; a longer over= counts "
            "them, over=None counts all"
        )
        return
    yield (
        f"older than ttl: the group has ttl={format_ttl(join.ttl)!r}, and the youngest of these "
        f"values is {_age(youngest)} old; a longer ttl= in create_featuregroup keeps "
        "them, ttl=None keeps all"
    )


# What a window is longer than the ttl that stands for it.
_TICK = timedelta(microseconds=1)


def _age(age: timedelta) -> str:
    """Return a duration in whole units of the largest that it reaches."""
    for unit in (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)):
        if age >= unit:
            return format_duration(age // unit * unit)
    return format_duration(age)


def _of_early_times(plan: FeaturePlan, join: Join, labels: pa.Table) -> Iterator[str]:
    """Yield what is to be said where all event times, or label times, lie before 1980."""
    spread = _event_bounds(join)
    if spread is not None and spread[1] < PLAUSIBLE_FROM:
        yield (
            f"the event times lie in {cell(spread[0])} to {cell(spread[1])}: "
            f"{misread_advice(spread)}"
        )
    times = label_times(plan, labels)
    known = times[times != NEVER]
    if plan.left_time is not None and len(known) and known.max() < to_micros(PLAUSIBLE_FROM):
        ends = [from_micros(int(known.min())), from_micros(int(known.max()))]
        yield (f"the label times lie in {cell(ends[0])} to {cell(ends[1])}: {misread_advice(ends)}")


def _event_bounds(join: Join) -> tuple[datetime, datetime] | None:
    """Return the first and the last event time of a group, as far as its log tells."""
    if join.event_time is None:
        return None
    snapshot = read_snapshot(join.source.path, join.source.delta_version)
    known = [pair for pair in snapshot.times(join.event_time) or () if pair is not None]
    if not known:
        return None
    first = min(low for low, _ in known)
    last = max(high for _, high in known)
    return from_micros(first), from_micros(last)


def _group_keys(session: Session, join: Join) -> list[tuple[Any, ...]]:
    """Return the keys of the first rows of a group."""
    columns = [key for _, key in join.on]
    engine, source = session.engine, join.source
    relation = engine.read_table(
        source.path, version=source.delta_version, schema=source.spec.schema, columns=columns
    )
    return _keys(engine.stream(relation, limit=_PEEK_ROWS).read_all(), columns)


def _keys(table: pa.Table, columns: list[str]) -> list[tuple[Any, ...]]:
    values = [table.column(name).to_pylist() for name in columns]
    return list(dict.fromkeys(zip(*values, strict=True)))


def _twin(
    mine: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]
) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Return a key of the labels and one of the group that differ in their writing alone."""
    written = {}
    for key in theirs:
        written[tuple(map(_plain, key))] = key
    for key in mine:
        twin = written.get(tuple(map(_plain, key)))
        if twin is not None and twin != key:
            return key, twin
    return None


def _plain(value: Any) -> str:
    return str(value).strip().casefold().lstrip("0")


def _shown(key: tuple[Any, ...]) -> str:
    if len(key) == 1:
        return repr(key[0])
    return repr(key)
