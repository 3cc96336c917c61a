"""The leak check, which computes a sample of training rows again without later data.

For each sampled label, the rows of every group are limited to event times and created times at or
before the label time, even if the retrieval ignores the created time. A group without event time is
limited by its time columns. The remaining rows are searched by this module, independently of the
engine, and the results are compared.

Values that were *computed* from later data may have an early timestamp, so a limit on stored rows
does not reveal them. For such groups, ``recompute`` accepts the function that computes the group:
called with a time, it returns the rows of the group from inputs up to that time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore import ingest
from featurestore.arrow.exact_casts import cast_label_keys
from featurestore.arrow.repeated_columns import MIN_ROWS, find_repeated, is_almost_unlabeled
from featurestore.errors import InvalidArgument, listing
from featurestore.hashing import tie_hash
from featurestore.model import display
from featurestore.model.plan import FeaturePlan, Join, WindowJoin
from featurestore.model.times import from_micros
from featurestore.plugins.engine import Relation
from featurestore.retrieval import label_samples
from featurestore.retrieval.conversions import format_cell
from featurestore.retrieval.frame import FeatureFrame
from featurestore.retrieval.label_samples import NEVER, EligibleRows, Ints, KeyValues
from featurestore.retrieval.window_search import window_values
from featurestore.session import Session
from featurestore.usersql import quote

Recompute = Mapping[str, Callable[[datetime], object]]
_EXAMPLES = 3
_DAY = 24 * 60 * 60 * 1_000_000
# With fewer days, all event times may have the same time of day by chance.
_MIN_DAYS = 3
# Maximum number of sample times to check by recomputing a group, since this may take long.
_MAX_RECOMPUTED_TIMES = 20


@dataclass(frozen=True)
class Leak:
    """A feature whose values change if later rows are removed."""

    feature: str
    group: str
    rows: int
    why: str
    examples: tuple[str, ...]

    __repr__ = display.record_repr


@dataclass(frozen=True)
class LeakReport:
    """The leaks in a sample of rows; ``ok`` if there are none.

    ``unchecked`` lists what the check cannot verify. ``suspicious`` names the features that repeat a
    column of the labels, and labels that are constant or almost always null, which does not affect
    ``ok``.
    """

    rows: int
    features: int
    leaks: tuple[Leak, ...]
    unchecked: tuple[str, ...]
    suspicious: tuple[str, ...] = ()

    __repr__ = display.record_repr

    @property
    def ok(self) -> bool:
        """Whether no value has changed."""
        return not self.leaks

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "LEAK"
        if self.ok:
            verdict = "no leak"
            if self.unchecked:
                verdict = "no leak in the possible checks"
            if self.suspicious:
                verdict += ", but suspicious columns"
        lines = [f"{verdict}: {self.rows:,} rows, {self.features} features"]
        for leak in self.leaks:
            lines.append(
                f"  {leak.feature} of {leak.group}: {leak.rows:,} of {self.rows:,} values change; "
                f"{leak.why}"
            )
            for example in leak.examples:
                lines.append(f"    {example}")
        for suspicious in self.suspicious:
            lines.append(f"  look at: {suspicious}")
        for unchecked in self.unchecked:
            lines.append(f"  not checked: {unchecked}")
        return "\n".join(lines) + "\n"


def check_leakage(
    frame: FeatureFrame, *, sample: int = 1000, seed: int = 0, recompute: Recompute | None = None
) -> LeakReport:
    """Check which values in a sample of a frame change if all later rows are removed.

    The report also names features that repeat a label, and labels that have almost no information.
    Labels are those of the frame's view, or else the columns of the labels without keys and times.

    Args:
        frame: A frame that ``get_features`` returned.
        sample: The number of label rows to check.
        seed: The seed of the sample.
        recompute: For computed groups, the function that computes the rows of the group from inputs
            up to a time.

    Raises:
        InvalidArgument: The frame does not come from ``get_features``.
    """
    plan = getattr(frame, "plan", None)
    if not isinstance(frame, FeatureFrame) or plan is None or not label_samples.has_joins(plan):
        raise InvalidArgument(
            "check_leakage requires a frame that get_features returned, with features joined to "
            "labels.",
            hint="check_leakage(get_features([...], labels=...))",
        )
    if sample < 1:
        raise InvalidArgument(
            f"sample={sample} is not a positive number of rows.", hint="sample=1000"
        )
    session = frame.session
    labels = label_samples.sampled_labels(session, plan, frame.labels, sample=sample, seed=seed)
    check = _LeakCheck(session, dict(recompute or {}))
    retrieved_rows = check.check_plan(plan, labels)
    unknown_groups = [name for name in check.recompute if name not in check.groups]
    if unknown_groups:
        raise InvalidArgument(
            f"Unknown feature groups in recompute: {listing(unknown_groups)}. Available: "
            f"{listing(sorted(check.groups))}."
        )
    return LeakReport(
        labels.num_rows,
        check.features,
        tuple(check.leaks),
        tuple(dict.fromkeys(check.unchecked)),
        tuple(find_suspicious(frame, plan, labels, retrieved_rows)),
    )


class _LeakCheck:
    """A collector of leaks in a plan and its left plans."""

    def __init__(
        self, session: Session, recompute: dict[str, Callable[[datetime], object]]
    ) -> None:
        self.session = session
        self.recompute = recompute
        self.leaks: list[Leak] = []
        self.unchecked: list[str] = []
        self.groups: set[str] = set()
        self.features = 0

    def check_plan(self, plan: FeaturePlan, labels: pa.Table) -> pa.Table:
        """Check every join of a plan over sampled labels, and return the rows of the plan."""
        if plan.left_plan is not None:
            labels = self.check_plan(plan.left_plan, labels)
        retrieved_rows = label_samples.run_over_labels(
            self.session, label_samples.plan_over_labels(plan, labels.schema), labels
        )
        times = label_samples.label_times(plan, labels)
        joins: list[Join | WindowJoin] = [*plan.joins, *plan.windows]
        for join in joins:
            self._check_join(join, labels, retrieved_rows, times)
        return retrieved_rows.select(list(plan.columns))

    def _check_join(
        self,
        join: Join | WindowJoin,
        labels: pa.Table,
        retrieved_rows: pa.Table,
        times: Ints,
    ) -> None:
        """Compare the retrieved values of a join with those of an independent search."""
        group = join.source.spec.name
        self.groups.add(group)
        self.features += len(join.outputs)
        keys = label_samples.key_tuples(labels, [label_column for label_column, _ in join.on])
        rows = _read_label_key_rows(self.session, join, labels)
        # The engine is what is checked, so the expected values come from this module's own search.
        expected_values = self._search_values(join, rows, keys, times)
        self._compare(
            join,
            retrieved_rows,
            expected_values,
            np.arange(len(keys)),
            keys,
            times,
            why=_leak_reason(join),
        )
        # A job may compute a value from later rows and give it an early time, which stored rows do
        # not show.
        if group in self.recompute:
            self._check_recomputed(join, retrieved_rows, keys, times)
        elif join.source.spec.job is None:
            self.unchecked += _find_unverifiable_times(join, rows)
        else:
            self.unchecked.append(
                f"how job {join.source.spec.job!r} computes {group}; recompute={{{group!r}: ...}}"
            )

    def _check_recomputed(
        self,
        join: Join | WindowJoin,
        retrieved_rows: pa.Table,
        keys: list[KeyValues],
        times: Ints,
    ) -> None:
        """Compare the retrieved values with rows that ``recompute`` returns for label times."""
        schema = join.source.spec.schema
        for time in _select_evenly_spaced(np.unique(times[times != NEVER])):
            group_rows = self.recompute[join.source.spec.name](from_micros(int(time)))
            relation = ingest.to_relation(group_rows, engine=self.session.engine, like=schema)
            rows = self.session.engine.stream(relation).read_all()
            # The function may return fewer columns than the group has.
            known_columns = [name for name in schema.names if name in rows.column_names]
            positions = np.flatnonzero(times == time)
            time_keys = [keys[position] for position in positions]
            expected_values = self._search_values(
                join, rows.select(known_columns), time_keys, times[positions]
            )
            why = "computed from later data"
            self._compare(join, retrieved_rows, expected_values, positions, keys, times, why=why)

    def _search_values(
        self,
        join: Join | WindowJoin,
        rows: pa.Table,
        keys: list[KeyValues],
        times: Ints,
    ) -> dict[str, pa.Array]:
        """Find the feature values of each label among the rows of a group, by output name."""
        if isinstance(join, WindowJoin):
            label_micros = [None if time == NEVER else int(time) for time in times]
            return window_values(self.session, join, rows, keys, label_micros)
        return EligibleRows(join, rows).find_values(keys, times)

    def _compare(
        self,
        join: Join | WindowJoin,
        retrieved_rows: pa.Table,
        expected_values: Mapping[str, pa.Array],
        positions: Ints,
        keys: list[KeyValues],
        times: Ints,
        *,
        why: str,
    ) -> None:
        """Record a leak for each output whose values differ."""
        for output in join.outputs:
            retrieved = (
                retrieved_rows.column(output.name).combine_chunks().take(pa.array(positions))
            )
            expected = expected_values[output.name]
            changed = np.flatnonzero(_hash_values(retrieved) != _hash_values(expected))
            if not len(changed):
                continue
            examples = []
            for index in changed[:_EXAMPLES].tolist():
                key = ", ".join(map(format_cell, keys[positions[index]]))
                time = int(times[positions[index]])
                time_text = "no time" if time == NEVER else format_cell(from_micros(time))
                before, after = (
                    format_cell(retrieved[index].as_py()),
                    format_cell(expected[index].as_py()),
                )
                examples.append(f"{key} at {time_text}: {before}, without later rows {after}")
            leak = Leak(
                output.name,
                f"{join.source.spec.name}@v{join.source.spec.version}",
                len(changed),
                why,
                tuple(examples),
            )
            self.leaks.append(leak)


def _select_evenly_spaced(times: Ints) -> Ints:
    """Select at most ``_MAX_RECOMPUTED_TIMES`` times, evenly spaced from the first to the last."""
    if not len(times):
        return times
    count = min(_MAX_RECOMPUTED_TIMES, len(times))
    return times[np.linspace(0, len(times) - 1, count).astype(int)]


def _read_label_key_rows(session: Session, join: Join | WindowJoin, labels: pa.Table) -> pa.Table:
    """Read all rows of the group whose key is that of a label."""
    source, engine = join.source, session.engine
    schema = source.spec.schema
    relation = engine.read_table(source.path, version=source.delta_version, schema=schema)
    dialect = engine.dialect
    keys, conditions = {}, []
    for label_column, key in join.on:
        values = labels.column(label_column).combine_chunks()
        keys[key] = cast_label_keys(values, schema.field(key).type)
        name = quote(key, dialect=dialect)
        conditions.append(f"fs_rows.{name} = fs_wanted.{name}")
    # Each key is passed to the engine once, however many labels have it.
    label_keys = pa.table(keys).group_by(list(keys)).aggregate([])
    matches = " AND ".join(conditions)
    matching_relation = engine.sql(
        f"SELECT fs_rows.* FROM fs_rows WHERE EXISTS (SELECT 1 FROM fs_wanted WHERE {matches})",
        tables={"fs_rows": relation, "fs_wanted": engine.from_arrow(label_keys.to_reader())},
        parameters={},
    )
    return engine.stream(Relation(engine.name, matching_relation.native, schema)).read_all()


def _hash_values(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    # Hashes are equal if values are bitwise equal: NaN equals itself, and null equals no value.
    if not len(array):
        return np.zeros(0, np.uint64)
    return np.asarray(tie_hash(pa.table({"value": array})))


def _find_unverifiable_times(join: Join | WindowJoin, rows: pa.Table) -> list[str]:
    """Return the reasons why stored rows do not show when the values of a group became known."""
    group = join.source.spec.name
    if join.event_time is None:
        return [
            f"when values of {group} became known: it declares no event time. If they change, "
            "create it with event_time=, the time at which a row became known"
        ]
    times = label_samples.to_microseconds(rows.column(join.event_time))
    times = times[times != NEVER]
    # One time of day on several days indicates daily totals, whose times are usually starts of
    # days.
    of_day = np.unique(times % _DAY)
    if join.created_time is not None or len(of_day) != 1 or len(np.unique(times)) < _MIN_DAYS:
        return []
    clock = from_micros(int(of_day[0])).strftime("%H:%M")
    return [
        f"whether rows of {group} were known at their {join.event_time!r}: all of them are at "
        f"{clock} UTC. A daily total is known at the end of the day: use the end as its event "
        "time, or create the group with created_time="
    ]


def _leak_reason(join: Join | WindowJoin) -> str:
    if join.event_time is None:
        times = listing(label_samples.time_columns(join))
        return f"the group has no event time, and its {times} is later than the label's time"
    if join.created_time is not None:
        return "it uses rows that became known after the label's time"
    return "it uses rows from the future"


def find_suspicious(
    frame: FeatureFrame, plan: FeaturePlan, labels: pa.Table, retrieved_rows: pa.Table
) -> list[str]:
    """Describe features that repeat a label, and labels with almost no information."""
    if labels.num_rows < MIN_ROWS:  # labels may be equal by chance
        return []
    label_columns = {
        name: labels.column(name).combine_chunks()
        for name in frame.view_labels or _unused_columns(plan, labels)
        if name in labels.column_names
    }
    features = {
        name: retrieved_rows.column(name).combine_chunks()
        for name in retrieved_rows.column_names
        if name not in labels.column_names
    }
    descriptions = []
    for label, correspondences in find_repeated(features, label_columns).items():
        for feature, correspondence in correspondences.items():
            descriptions.append(
                f"{feature} repeats the column {label!r} of the labels ({correspondence}). How is it "
                "computed, and is it known before the label?"
            )
    for name, column in label_columns.items():
        values = column.drop_null()
        if is_almost_unlabeled(len(values), len(column)):
            descriptions.append(
                f"the column {name!r} of the labels is null in {column.null_count:,} of "
                f"{len(column):,} rows. Look at the join that computes it"
            )
        elif not pat.is_nested(column.type) and len(values.unique()) == 1:
            value = format_cell(values[0].as_py())
            descriptions.append(
                f"the column {name!r} of the labels has a single value: {value}. Look at the rows "
                "that were selected"
            )
    return descriptions


def _unused_columns(plan: FeaturePlan, labels: pa.Table) -> list[str]:
    """Return the columns of the labels that are neither keys of a join nor times."""
    used = set()
    left_plan: FeaturePlan | None = plan
    while left_plan is not None:
        used |= {name for join in left_plan.all_joins for name, _ in join.on} | {
            left_plan.left_time
        }
        left_plan = left_plan.left_plan
    return [
        field.name
        for field in labels.schema
        if field.name not in used and not pat.is_temporal(field.type)
    ]
