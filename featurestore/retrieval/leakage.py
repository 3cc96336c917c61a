"""The leak check: a sample of training rows computed again without anything that came later.

For each sampled label the rows of every group are cut to those of the label's time: event time and
created time at or before it, also where the retrieval did not look at created time. A group without
event time is cut by the time columns that its rows have. What is left is searched here, by other
code than the engine's, and compared.

Values that were *computed* from later data carry an early stamp, which no cut of the stored rows
can show. For such groups ``recompute`` takes the function that makes them: it is called with a time
and gives the group's rows as they come out when its inputs end there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore import ingest
from featurestore.errors import InvalidArgument, listing
from featurestore.hashing import tie_hash
from featurestore.model.fitting import label_values
from featurestore.model.plan import FeaturePlan, Join, WindowJoin
from featurestore.model.times import from_micros
from featurestore.plugins.engine import Relation
from featurestore.retrieval.frame import FeatureFrame
from featurestore.retrieval.rendering import cell
from featurestore.retrieval.sampled_labels import (
    NEVER,
    joins_something,
    label_times,
    micros_of,
    over_labels,
    run_over,
    sampled_labels,
)
from featurestore.retrieval.window_leaks import window_answers
from featurestore.session import Session
from featurestore.usersql import quote

Recompute = Mapping[str, Callable[[datetime], object]]
_EXAMPLES = 3
_DAY = 24 * 60 * 60 * 1_000_000
# From so many days on it is no chance that all event times stand at one time of the day.
_DAYS_TOLD = 3
# Computing a group anew may take long: at most this many times in the sample are tried.
_TIMES_TRIED = 20


@dataclass(frozen=True)
class Leak:
    """One feature that changes when later rows are removed."""

    feature: str
    group: str
    rows: int
    why: str
    examples: tuple[str, ...]


@dataclass(frozen=True)
class LeakReport:
    """What a leak check found. ``ok``.

    Nothing changed. ``unchecked`` says what the check could not look at.
    """

    rows: int
    features: int
    leaks: tuple[Leak, ...]
    unchecked: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no value changed."""
        return not self.leaks

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "LEAK"
        if self.ok:
            verdict = "no leak"
            if self.unchecked:
                verdict = "no leak in what could be checked"
        lines = [f"{verdict}: {self.rows:,} rows, {self.features} features"]
        for leak in self.leaks:
            lines.append(
                f"  {leak.feature} of {leak.group}: {leak.rows:,} of {self.rows:,} values change; "
                f"{leak.why}"
            )
            for example in leak.examples:
                lines.append(f"    {example}")
        for unchecked in self.unchecked:
            lines.append(f"  not checked: {unchecked}")
        return "\n".join(lines) + "\n"


def check_leakage(
    frame: FeatureFrame, *, sample: int = 1000, seed: int = 0, recompute: Recompute | None = None
) -> LeakReport:
    """Return which values of a sample of a frame change when all later rows are removed.

    Args:
        frame: What ``get_features`` returned.
        sample: How many label rows to look at.
        seed: Which ones.
        recompute: For computed groups: the function that makes the group's rows from inputs up to a
        time.

    Raises:
        InvalidArgument: The frame does not come from ``get_features``.
    """
    plan = getattr(frame, "plan", None)
    if not isinstance(frame, FeatureFrame) or plan is None or not joins_something(plan):
        raise InvalidArgument(
            "check_leakage needs a frame that get_features returned, with features joined to "
            "labels.",
            hint="check_leakage(get_features([...], labels=...))",
        )
    if sample < 1:
        raise InvalidArgument(f"sample={sample} rows cannot be checked.", hint="sample=1000")
    session = frame.session
    labels = sampled_labels(session, plan, frame.labels, sample=sample, seed=seed)
    checked = _Check(session, dict(recompute or {}))
    checked.plan(plan, labels)
    strange = [name for name in checked.recompute if name not in checked.groups]
    if strange:
        raise InvalidArgument(
            f"recompute names {listing(strange)}; the frame joins "
            f"{listing(sorted(checked.groups))}."
        )
    return LeakReport(
        labels.num_rows,
        checked.features,
        tuple(checked.leaks),
        tuple(dict.fromkeys(checked.unchecked)),
    )


class _Check:
    """Collects leaks over a plan and the plans that feed it."""

    def __init__(
        self, session: Session, recompute: dict[str, Callable[[datetime], object]]
    ) -> None:
        self.session = session
        self.recompute = recompute
        self.leaks: list[Leak] = []
        self.unchecked: list[str] = []
        self.groups: set[str] = set()
        self.features = 0

    def plan(self, plan: FeaturePlan, labels: pa.Table) -> pa.Table:
        """Check every join of a plan over sampled labels.

        Return the rows that the plan gives for them.
        """
        if plan.left_plan is not None:
            labels = self.plan(plan.left_plan, labels)
        given = run_over(self.session, over_labels(plan, labels.schema), labels)
        times = label_times(plan, labels)
        joins: list[Join | WindowJoin] = [*plan.joins, *plan.windows]
        for join in joins:
            self._join(join, labels, given, times)
        return given.select(list(plan.columns))

    def _join(
        self,
        join: Join | WindowJoin,
        labels: pa.Table,
        given: pa.Table,
        times: np.ndarray[Any, Any],
    ) -> None:
        group = join.source.spec.name
        self.groups.add(group)
        self.features += len(join.outputs)
        keys = _keys(labels, [left for left, _ in join.on])
        rows = _rows_of_labels(self.session, join, labels)
        again = self._answers(join, rows, keys, times)
        self._compare(join, given, again, np.arange(len(keys)), keys, times, why=_why(join))
        if group in self.recompute:
            self._recomputed(join, given, keys, times)
        elif join.source.spec.job is None:
            self.unchecked += _not_told(join, rows)
        else:
            self.unchecked.append(
                f"how job {join.source.spec.job!r} computes {group}; recompute={{{group!r}: ...}}"
            )

    def _recomputed(
        self,
        join: Join | WindowJoin,
        given: pa.Table,
        keys: list[tuple[Any, ...]],
        times: np.ndarray[Any, Any],
    ) -> None:
        schema = join.source.spec.schema
        for time in _spread(np.unique(times[times != NEVER])):
            made = self.recompute[join.source.spec.name](from_micros(int(time)))
            relation = ingest.to_relation(made, engine=self.session.engine, like=schema)
            rows = self.session.engine.stream(relation).read_all()
            known = [name for name in schema.names if name in rows.column_names]
            positions = np.flatnonzero(times == time)
            asked = [keys[position] for position in positions]
            answers = self._answers(join, rows.select(known), asked, times[positions])
            why = "computed from data that came later"
            self._compare(join, given, answers, positions, keys, times, why=why)

    def _answers(
        self,
        join: Join | WindowJoin,
        rows: pa.Table,
        keys: list[tuple[Any, ...]],
        times: np.ndarray[Any, Any],
    ) -> dict[str, pa.Array]:
        """Return what the rows of a group answer for labels."""
        if isinstance(join, WindowJoin):
            moments = [None if time == NEVER else int(time) for time in times]
            return window_answers(self.session, join, rows, keys, moments)
        return _Rows(join, rows).answers(keys, times)

    def _compare(
        self,
        join: Join | WindowJoin,
        given: pa.Table,
        again: Mapping[str, pa.Array],
        positions: np.ndarray[Any, Any],
        keys: list[tuple[Any, ...]],
        times: np.ndarray[Any, Any],
        *,
        why: str,
    ) -> None:
        for output in join.outputs:
            had = given.column(output.name).combine_chunks().take(pa.array(positions))
            has = again[output.name]
            changed = np.flatnonzero(_hashes(had) != _hashes(has))
            if not len(changed):
                continue
            examples = []
            for index in changed[:_EXAMPLES].tolist():
                key = ", ".join(map(cell, keys[positions[index]]))
                shown = _shown(times[positions[index]])
                before, after = cell(had[index].as_py()), cell(has[index].as_py())
                examples.append(f"{key} at {shown}: {before}, without later rows {after}")
            leak = Leak(output.name, _name(join), len(changed), why, tuple(examples))
            self.leaks.append(leak)


class _Rows:
    """The rows of one group, sorted by key and rank, and searched label by label."""

    def __init__(self, join: Join, rows: pa.Table) -> None:
        self._join = join
        keys = _keys(rows, [key for _, key in join.on])
        times, ranks = [], []
        for name in (join.event_time, join.created_time):
            if name is not None:
                times.append(name)
                ranks.append(micros_of(rows.column(name)))
        ties = np.zeros(0, np.uint64)
        if rows.num_rows:
            ties = tie_hash(rows)
        order = np.lexsort((ties, *reversed(ranks)))
        self._table = rows.take(pa.array(order))
        cuts = [micros_of(rows.column(name))[order] for name in (times or _time_columns(join))]
        self._until = np.full(len(order), NEVER + 1)
        self._known = np.ones(len(order), bool)
        if cuts:
            self._until = np.max(cuts, axis=0)
        if times:
            # A row without a declared time was never known; other time columns say nothing where
            # they are null.
            self._known = np.min(cuts, axis=0) != NEVER
        self._event: np.ndarray[Any, Any] | None = None
        if times:
            self._event = ranks[0][order]
        self._positions: dict[tuple[Any, ...], list[int]] = {}
        for position, index in enumerate(order.tolist()):
            if None not in keys[index]:
                self._positions.setdefault(keys[index], []).append(position)

    def answers(
        self, keys: Sequence[tuple[Any, ...]], times: np.ndarray[Any, Any]
    ) -> dict[str, pa.Array]:
        """Return the values of each output for each label, by its name."""
        found = []
        for key, time in zip(keys, times, strict=True):
            found.append(self._search(key, int(time)))
        indices = pa.array(found, pa.int64())
        result = {}
        for output in self._join.outputs:
            column = self._table.column(output.column).combine_chunks()
            if len(column):
                result[output.name] = column.take(indices)
            else:
                result[output.name] = pa.nulls(len(found), column.type)
        return result

    def _search(self, key: tuple[Any, ...], time: int) -> int | None:
        positions = np.asarray(self._positions.get(key, ()), dtype=np.int64)
        if time == NEVER:  # a label without time meets only rows that need none
            if self._event is not None:
                positions = positions[:0]
        else:
            positions = positions[self._known[positions] & (self._until[positions] <= time)]
        if not len(positions):
            return None
        last = int(positions[-1])
        if self._join.ttl is not None and self._event is not None:
            age = time - int(self._event[last])
            if age > self._join.ttl.total_seconds() * 1e6:
                return None
        return last


def _spread(times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return at most ``_TIMES_TRIED`` of some times, from the first to the last."""
    if not len(times):
        return times
    count = min(_TIMES_TRIED, len(times))
    return times[np.linspace(0, len(times) - 1, count).astype(int)]


def _rows_of_labels(session: Session, join: Join | WindowJoin, labels: pa.Table) -> pa.Table:
    """Return all rows of the group that share a key with a label."""
    source, engine = join.source, session.engine
    schema = source.spec.schema
    relation = engine.read_table(source.path, version=source.delta_version, schema=schema)
    dialect = engine.dialect
    keys, conditions = {}, []
    for left, key in join.on:
        values = labels.column(left).combine_chunks()
        keys[key] = label_values(values, schema.field(key).type)
        name = quote(key, dialect=dialect)
        conditions.append(f"fs_rows.{name} = fs_wanted.{name}")
    wanted = pa.table(keys).group_by(list(keys)).aggregate([])
    matches = " AND ".join(conditions)
    found = engine.sql(
        f"SELECT fs_rows.* FROM fs_rows WHERE EXISTS (SELECT 1 FROM fs_wanted WHERE {matches})",
        tables={"fs_rows": relation, "fs_wanted": engine.from_arrow(wanted.to_reader())},
        parameters={},
    )
    return engine.stream(Relation(engine.name, found.native, schema)).read_all()


def _time_columns(join: Join | WindowJoin) -> list[str]:
    names = []
    for field in join.source.spec.schema:
        if pat.is_timestamp(field.type) or pat.is_date(field.type):
            names.append(field.name)
    return names


def _keys(table: pa.Table, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    values = [table.column(name).to_pylist() for name in columns]
    return list(zip(*values, strict=True))


def _hashes(array: pa.Array | pa.ChunkedArray) -> np.ndarray[Any, Any]:
    # Equal hashes are equal bits: NaN is itself, null is no value.
    if not len(array):
        return np.zeros(0, np.uint64)
    return np.asarray(tie_hash(pa.table({"value": array})))


def _not_told(join: Join | WindowJoin, rows: pa.Table) -> list[str]:
    """Return what the stored rows of a group do not tell about when its values became known."""
    group = join.source.spec.name
    if join.event_time is None:
        return [
            f"when values of {group} became known: it declares no event time. Where they change, "
            "create it with event_time=, the time at which a row became known"
        ]
    times = micros_of(rows.column(join.event_time))
    times = times[times != NEVER]
    of_day = np.unique(times % _DAY)
    if join.created_time is not None or len(of_day) != 1 or len(np.unique(times)) < _DAYS_TOLD:
        return []
    clock = from_micros(int(of_day[0])).strftime("%H:%M")
    return [
        f"whether rows of {group} were known at their {join.event_time!r}: all stand at {clock} "
        "UTC of their day. A total of a day is known when the day ends: stamp it with the end, or "
        "create the group with created_time="
    ]


def _why(join: Join | WindowJoin) -> str:
    if join.event_time is None:
        times = listing(_time_columns(join))
        return f"the group has no event time, and its {times} lies after the label's time"
    if join.created_time is not None:
        return "rows count that became known after the label's time"
    return "rows of the future count"


def _name(join: Join | WindowJoin) -> str:
    return f"{join.source.spec.name}@v{join.source.spec.version}"


def _shown(time: Any) -> str:
    if int(time) == NEVER:
        return "no time"
    return cell(from_micros(int(time)))
