"""Conformance suite for feature plans: the exact rules, and random cases against the oracle.

A test class for an engine inherits ``RetrievalConformance`` and provides the fixture ``engine``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from featurestore import ingest
from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import ColumnConflict, InvalidPlan
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.plan import ROW, FeaturePlan, Source
from featurestore.model.requests import RetrievalRequest
from featurestore.model.times import NaiveTimeWarning
from featurestore.plugins.engine import Engine, TableWrite
from featurestore.retrieval.catalog import pinned_source
from featurestore.retrieval.planner import LabelSide, plan_with_labels, plan_without_labels
from featurestore.retrieval.resolve import resolve
from featurestore.testing.oracle import SHAPES, JoinShape, bits, brute_force, random_cases

# Number of random cases in this process, by engine.
CASES: Counter[str] = Counter()

# The values of the rows by column.
ColumnCells: TypeAlias = dict[str, Sequence[Any]]
T0 = datetime(2024, 1, 1, tzinfo=UTC)


def hours_after_t0(hours: float) -> datetime:
    """Return the timestamp ``hours`` after ``T0``."""
    return T0 + timedelta(hours=hours)


@dataclass
class RetrievalCheck:
    """Feature groups on disk and in memory, so that engine and oracle read the same rows."""

    engine: Engine
    directory: Path
    writer: Engine
    sources: dict[tuple[str, int], Source] = field(default_factory=dict)
    tables: dict[tuple[str, int], pa.Table] = field(default_factory=dict)

    def group(
        self,
        name: str,
        columns: ColumnCells | pa.Table,
        *,
        types: dict[str, pa.DataType] | None = None,
        unique: bool | None = None,
        commits: int = 1,
        version: int = 1,
        **roles: Any,
    ) -> Source:
        """Write a group; ``unique=True`` declares that no two rows share keys and times."""
        table = columns
        if not isinstance(table, pa.Table):
            table = _table(table, types or {})
        spec = FeatureGroupSpec(name=name, version=version, schema=table.schema, **roles)
        path = str(self.directory / name / f"v{version}")
        self.writer.create_table(
            path,
            schema=spec.schema,
            partition_by=spec.partition_by,
            properties={"featurestore.spec": json.dumps(spec.to_json())},
            commit_metadata={},
        )
        note = {}
        if unique is not None:
            note["unique"] = unique
        # Each commit writes separate files, so that the row order depends on the engine.
        bounds = np.linspace(0, table.num_rows, commits + 1).astype(int)
        for start, stop in pairwise(bounds):
            rows = self.writer.from_arrow(table.slice(start, stop - start).to_reader())
            self.writer.write(path, rows, TableWrite("append", commit_metadata=note))
        source = pinned_source(path)
        self.sources[name, version] = source
        self.tables[name, version] = table
        return source

    def plan(
        self, features: Sequence[str], labels: pa.Table | str | None, **options: Any
    ) -> FeaturePlan:
        """Build the plan of a retrieval as the store builds it."""
        specs: dict[str, dict[int, FeatureGroupSpec]] = {}
        for (name, version), source in self.sources.items():
            specs.setdefault(name, {})[version] = source.spec
        references = resolve(features, specs=specs)
        request = RetrievalRequest(features=features, **options)
        if isinstance(labels, pa.Table):
            label_side = LabelSide(labels.schema, ordered=True, rows=labels.num_rows)
            return plan_with_labels(
                references, request, labels=label_side, source=self.sources.__getitem__
            )
        source = self.sources[(labels, 1) if labels is not None else references[0].group]
        label_side = LabelSide(source.spec.schema, source=source, time=source.spec.event_time)
        source_of = self.sources.__getitem__
        if labels is not None:
            return plan_with_labels(references, request, labels=label_side, source=source_of)
        return plan_without_labels(
            references, request, spec=source.spec, labels=label_side, source=source_of
        )

    def run(self, plan: FeaturePlan, labels: pa.Table | None = None) -> pa.Table:
        """Execute a plan with the engine."""
        relation = None
        if labels is not None:
            numbered = labels.append_column(ROW, pa.array(np.arange(labels.num_rows), pa.int64()))
            relation = self.engine.from_arrow(numbered.to_reader())
        return self.engine.stream(self.engine.retrieve(plan, labels=relation)).read_all()

    def check(
        self, features: Sequence[str], labels: pa.Table | str | None, **options: Any
    ) -> list[dict[str, Any]]:
        """Compare the engine's rows bit by bit with the oracle's rows, and return them."""
        plan = self.plan(features, labels, **options)
        label_table = labels if isinstance(labels, pa.Table) else None
        actual = self.run(plan, label_table)
        expected = brute_force(plan, tables=self.tables, labels=label_table)
        assert actual.schema.equals(expected.schema), f"{actual.schema} is not {expected.schema}"
        # Engines preserve the label order only if the plan requires it.
        if plan.keep_order:
            assert bits(actual) == bits(expected)
        else:
            assert sorted(map(repr, bits(actual))) == sorted(map(repr, bits(expected)))
        return list(actual.to_pylist())


def _can_represent(value: Decimal, dtype: pa.DataType) -> bool:
    """Return True if an integer or decimal type can represent a value."""
    try:
        return bool(pa.array([value], dtype)[0].as_py() == value)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return False


def _table(columns: ColumnCells, types: dict[str, pa.DataType]) -> pa.Table:
    """Return a table of columns; datetimes without a declared type become UTC timestamps."""
    arrays = {}
    for name, values in columns.items():
        dtype = types.get(name)
        if dtype is None and any(isinstance(value, datetime) for value in values):
            dtype = TIMESTAMP
        arrays[name] = pa.array(values, dtype)
    return pa.table(arrays)


def _ingest(table: pa.Table) -> pa.Table:
    """Convert a table as ingestion does: times in UTC with microseconds."""
    return ingest.to_reader(table).read_all()


def column_values(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """Return the values of a column."""
    return [row[name] for row in rows]


def make_labels(**columns: Sequence[Any]) -> pa.Table:
    """Return a table of labels, with datetimes converted to UTC microseconds."""
    return _table(columns, {})


def _random_times(random: np.random.Generator, hours: int, count: int) -> list[datetime]:
    return list(map(hours_after_t0, random.integers(0, hours, count).tolist()))


class RetrievalFixtures:
    """Fixtures shared by all retrieval suites."""

    # Number of random cases per table and query; large for engines with slow queries.
    cases_at_once = 40
    rounds_per_shape = 3

    @pytest.fixture
    def writer(self, engine: Engine) -> Engine:
        """Return the engine that writes the tables; override it if the engine writes slowly."""
        return engine

    @pytest.fixture
    def retrieval(self, engine: Engine, writer: Engine, tmp_path: Path) -> RetrievalCheck:
        """Return the feature groups of a test."""
        return RetrievalCheck(engine, tmp_path, writer)


class RuleConformance(RetrievalFixtures):
    """Tests of the rules that select a row; random cases cover the same rules."""

    # -- which row ----------------------------------------------------------------------

    def test_labels_without_a_column_of_the_plan_are_refused(
        self, retrieval: RetrievalCheck
    ) -> None:
        times = [hours_after_t0(0)]
        for name, event_time in (("w", "t"), ("v", None)):
            columns: ColumnCells = {"k": [1], "t": times, "x": [1]}
            retrieval.group(name, columns, primary_key=("k",), event_time=event_time)
        labels = make_labels(k=[1], at=times)
        for feature, absent in (("w.x", "at"), ("w.x", "k"), ("v.x", "k")):
            plan = retrieval.plan([feature], labels)
            with pytest.raises(InvalidPlan, match=f"uses the columns .*{absent!r}"):
                retrieval.run(plan, labels.drop_columns([absent]))

    def test_label_gets_latest_earlier_row(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {
                "k": [1, 1, 1],
                "t": [hours_after_t0(0), hours_after_t0(2), hours_after_t0(4)],
                "x": [0.0, 2.0, 4.0],
            },
            primary_key=("k",),
            event_time="t",
            unique=True,
        )
        rows = retrieval.check(
            ["w.x"],
            make_labels(k=[1, 1, 1], at=[hours_after_t0(1), hours_after_t0(2), hours_after_t0(9)]),
        )
        assert column_values(rows, "x") == [0.0, 2.0, 4.0]

    def test_label_time_equal_to_event_time_counts(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1], "t": [hours_after_t0(1)], "x": [5]},
            primary_key=("k",),
            event_time="t",
            unique=True,
        )
        # The smallest difference of two timestamps.
        early = hours_after_t0(1) - timedelta(microseconds=1)
        rows = retrieval.check(["w.x"], make_labels(k=[1, 1], at=[hours_after_t0(1), early]))
        assert column_values(rows, "x") == [5, None]

    def test_label_before_all_rows_gets_null(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1], "t": [hours_after_t0(5)], "x": [5]},
            primary_key=("k",),
            event_time="t",
            unique=True,
        )
        assert retrieval.check(["w.x"], make_labels(k=[1], at=[hours_after_t0(4)]))[0]["x"] is None

    def test_duplicate_labels_keep_count_and_order(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1, 2], "t": [hours_after_t0(0), hours_after_t0(0)], "x": [1, 2]},
            primary_key=("k",),
            event_time="t",
        )
        labels = make_labels(k=[2, 1, 2, 2, 1], at=[hours_after_t0(1)] * 5, y=[0, 1, 2, 3, 3])
        rows = retrieval.check(["w.x"], labels)
        assert column_values(rows, "y") == [0, 1, 2, 3, 3]
        assert column_values(rows, "x") == [2, 1, 2, 2, 1]

    def test_tie_is_decided_by_created_time_then_hash(self, retrieval: RetrievalCheck) -> None:
        table = _table(
            {
                "k": [1, 1, 1, 1],
                "t": [hours_after_t0(0)] * 4,
                "c": [hours_after_t0(1), hours_after_t0(2), hours_after_t0(2), hours_after_t0(2)],
                "x": [9, 1, 2, 3],
            },
            {},
        )
        roles: dict[str, Any] = {"primary_key": ("k",), "event_time": "t", "created_time": "c"}
        retrieval.group("w", table, commits=2, **roles)
        # The same rows in another order must have the same winner.
        retrieval.group("backwards", table.take([3, 2, 1, 0]), commits=2, **roles)
        labels = make_labels(k=[1, 1], at=[hours_after_t0(1.5), hours_after_t0(3)])
        rows = retrieval.check(["w.x", "backwards.x as y"], labels)
        assert rows[0]["x"] == 9
        assert rows[1]["x"] in {1, 2, 3}
        assert column_values(rows, "x") == column_values(rows, "y")

    def test_tie_without_created_time_is_decided_by_hash(self, retrieval: RetrievalCheck) -> None:
        table = _table(
            {
                "k": [1] * 4,
                "t": [hours_after_t0(0)] * 4,
                "x": [1, 2, None, 4],
                "s": ["a", None, "c", "d"],
            },
            {},
        )
        retrieval.group("w", table, primary_key=("k",), event_time="t", commits=2)
        mixed = table.take([3, 1, 0, 2])
        retrieval.group("mixed", mixed, primary_key=("k",), event_time="t", commits=2)
        rows = retrieval.check(["w.x", "mixed.x as y"], make_labels(k=[1], at=[hours_after_t0(3)]))
        assert rows[0]["x"] == rows[0]["y"]

    # -- known at -----------------------------------------------------------------------

    def test_row_counts_from_its_created_time(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {
                "k": [1, 1],
                "t": [hours_after_t0(0), hours_after_t0(2)],
                "c": [hours_after_t0(1), hours_after_t0(6)],
                "x": [0, 2],
            },
            primary_key=("k",),
            event_time="t",
            created_time="c",
            unique=True,
        )
        rows = retrieval.check(
            ["w.x"],
            make_labels(
                k=[1] * 4,
                at=[hours_after_t0(0.5), hours_after_t0(1), hours_after_t0(5), hours_after_t0(6)],
            ),
        )
        assert column_values(rows, "x") == [None, 0, 0, 2]

    def test_corrections_count_from_their_created_times(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {
                "k": [1] * 4,
                "t": [hours_after_t0(0)] * 4,
                "c": [hours_after_t0(1), hours_after_t0(2), hours_after_t0(3), hours_after_t0(4)],
                "x": [1, 2, 3, 4],
            },
            primary_key=("k",),
            event_time="t",
            created_time="c",
            unique=True,
        )
        rows = retrieval.check(
            ["w.x"],
            make_labels(
                k=[1] * 5,
                at=[
                    hours_after_t0(0.5),
                    hours_after_t0(1.5),
                    hours_after_t0(2.5),
                    hours_after_t0(3.5),
                    hours_after_t0(9),
                ],
            ),
        )
        assert column_values(rows, "x") == [None, 1, 2, 3, 4]

    def test_late_correction_does_not_hide_newer_row(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {
                "k": [1] * 3,
                "t": [hours_after_t0(0), hours_after_t0(5), hours_after_t0(0)],
                "c": [hours_after_t0(0), hours_after_t0(5), hours_after_t0(8)],
                # The third row corrects the first row after the second row is known, and must not
                # replace it.
                "x": [1, 5, 100],
            },
            primary_key=("k",),
            event_time="t",
            created_time="c",
            unique=True,
        )
        rows = retrieval.check(
            ["w.x"],
            make_labels(k=[1] * 3, at=[hours_after_t0(4), hours_after_t0(7), hours_after_t0(9)]),
        )
        assert column_values(rows, "x") == [1, 5, 5]

    def test_future_rows_count_from_their_event_time(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {
                "k": [1] * 3,
                "t": [hours_after_t0(5)] * 3,
                "c": [hours_after_t0(1), hours_after_t0(2), hours_after_t0(3)],
                "x": [1, 2, 3],
            },
            primary_key=("k",),
            event_time="t",
            created_time="c",
            unique=True,
        )
        rows = retrieval.check(
            ["w.x"], make_labels(k=[1] * 2, at=[hours_after_t0(4), hours_after_t0(5)])
        )
        assert column_values(rows, "x") == [None, 3]

    def test_created_time_without_filter_only_decides_ties(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {
                "k": [1] * 3,
                "t": [hours_after_t0(0), hours_after_t0(0), hours_after_t0(0)],
                "c": [hours_after_t0(7), None, hours_after_t0(9)],
                "x": [7, 0, 9],
            },
            primary_key=("k",),
            event_time="t",
            created_time="c",
        )
        labels = make_labels(k=[1], at=[hours_after_t0(1)])
        assert retrieval.check(["w.x"], labels, created_time_filter=False)[0]["x"] == 9
        assert retrieval.check(["w.x"], labels)[0]["x"] is None

    # -- ttl ----------------------------------------------------------------------------

    def test_old_row_without_ttl_counts(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1], "t": [hours_after_t0(0)], "x": [1]},
            primary_key=("k",),
            event_time="t",
            ttl=None,
        )
        assert (
            retrieval.check(["w.x"], make_labels(k=[1], at=[hours_after_t0(24 * 365 * 100)]))[0][
                "x"
            ]
            == 1
        )

    def test_expired_row_is_not_replaced_by_older(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1, 1], "t": [hours_after_t0(0), hours_after_t0(1)], "x": [0, 1]},
            primary_key=("k",),
            event_time="t",
            ttl=timedelta(hours=2),
        )
        rows = retrieval.check(
            ["w.x"], make_labels(k=[1] * 2, at=[hours_after_t0(2.5), hours_after_t0(3.5)])
        )
        assert column_values(rows, "x") == [1, None]

    def test_ttl_ends_exactly_at_its_bound(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1], "t": [hours_after_t0(0)], "x": [1]},
            primary_key=("k",),
            event_time="t",
            ttl=timedelta(hours=2),
        )
        beyond = hours_after_t0(2) + timedelta(microseconds=1)
        rows = retrieval.check(
            ["w.x"], make_labels(k=[1] * 3, at=[hours_after_t0(0), hours_after_t0(2), beyond])
        )
        assert column_values(rows, "x") == [1, 1, None]

    def test_ttl_zero_takes_exact_times_only(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1, 1], "t": [hours_after_t0(0), hours_after_t0(1)], "x": [0, 1]},
            primary_key=("k",),
            event_time="t",
            ttl=timedelta(0),
        )
        late = hours_after_t0(1) + timedelta(microseconds=1)
        rows = retrieval.check(
            ["w.x"], make_labels(k=[1] * 3, at=[hours_after_t0(0), hours_after_t0(1), late])
        )
        assert column_values(rows, "x") == [0, 1, None]

    def test_ttl_is_measured_on_event_time(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1], "t": [hours_after_t0(0)], "c": [hours_after_t0(5)], "x": [1]},
            primary_key=("k",),
            event_time="t",
            created_time="c",
            ttl=timedelta(hours=5),
        )
        rows = retrieval.check(
            ["w.x"],
            make_labels(k=[1] * 3, at=[hours_after_t0(4), hours_after_t0(5), hours_after_t0(6)]),
        )
        assert column_values(rows, "x") == [None, 1, None]


class ResultConformance(RetrievalFixtures):
    """Tests of keys, types and result shapes, and random cases against the oracle."""

    def test_tie_is_independent_of_requested_features(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1] * 6, "t": [hours_after_t0(0)] * 6, "x": list(range(6)), "y": list("abcdef")},
            primary_key=("k",),
            event_time="t",
        )
        labels = make_labels(k=[1], at=[hours_after_t0(1)])
        both = retrieval.check(["w.x", "w.y"], labels)[0]
        assert retrieval.check(["w.y"], labels)[0]["y"] == both["y"]
        assert retrieval.check(["w.x"], labels)[0]["x"] == both["x"]
        assert retrieval.check(["w.y", "w.x"], labels)[0] == both

    # -- keys ---------------------------------------------------------------------------

    def test_composite_keys_never_meet_by_their_text(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"a": [1, 11], "b": [12, 2], "t": [hours_after_t0(0)] * 2, "x": [112, 1112]},
            primary_key=("a", "b"),
            event_time="t",
        )
        rows = retrieval.check(
            ["w.x"], make_labels(a=[1, 11, 1, 11], b=[12, 2, 2, 12], at=[hours_after_t0(1)] * 4)
        )
        assert column_values(rows, "x") == [112, 1112, None, None]

    def test_text_keys_with_separators_stay_distinct(self, retrieval: RetrievalCheck) -> None:
        separators = ["|", ",", "\x00", "_", "/", "::", "\x1f", "\n", "'", '"', "`", " "]
        number = len(separators)
        # Each pair of keys is equal to another pair if they are joined by the separator.
        ends = [f"a{separator}" for separator in separators]
        begins = [f"{separator}b" for separator in separators]
        retrieval.group(
            "w",
            {"a": ends, "b": ["b"] * number, "t": [hours_after_t0(0)] * number, "x": range(number)},
            primary_key=("a", "b"),
            event_time="t",
        )
        labels = make_labels(
            a=ends + ["a"] * number, b=["b"] * number + begins, at=[hours_after_t0(1)] * 2 * number
        )
        rows = retrieval.check(["w.x"], labels)
        assert column_values(rows, "x") == [*range(number), *[None] * number]

    def test_null_keys_match_nothing(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {
                "a": [None, 1, None],
                "b": [2, None, None],
                "t": [hours_after_t0(0)] * 3,
                "x": [1, 2, 3],
            },
            primary_key=("a", "b"),
            event_time="t",
        )
        rows = retrieval.check(
            ["w.x"], make_labels(a=[None, 1, None], b=[2, None, None], at=[hours_after_t0(1)] * 3)
        )
        assert column_values(rows, "x") == [None] * 3

    def test_null_label_time_matches_only_timeless_groups(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w", {"k": [1], "t": [hours_after_t0(0)], "x": [1]}, primary_key=("k",), event_time="t"
        )
        retrieval.group("p", {"k": [1], "y": [7]}, primary_key=("k",))
        rows = retrieval.check(["w.x", "p.y"], make_labels(k=[1, 1], at=[None, hours_after_t0(1)]))
        assert column_values(rows, "x") == [None, 1]
        assert column_values(rows, "y") == [7, 7]

    def test_keys_of_every_type_match(self, retrieval: RetrievalCheck) -> None:
        keys: dict[pa.DataType, list[Any]] = {
            pa.string(): ["a", "A", ""],
            pa.binary(): [b"\x00", b"", b"\xff"],
            pa.bool_(): [True, False, None],
            pa.date32(): [date(2024, 1, 1), date(1969, 12, 31), None],
            TIMESTAMP: [hours_after_t0(0), hours_after_t0(1), None],
            pa.decimal128(10, 2): [Decimal("1.10"), Decimal("-2.00"), None],
            pa.uint64(): [2**64 - 1, 2**63, 0],
            pa.uint32(): [2**31, 2**32 - 1, 0],
            pa.int8(): [-128, 127, 0],
        }
        columns = {"at": pa.array([hours_after_t0(1)] * 3, TIMESTAMP)}
        features = []
        expected: dict[str, list[int | None]] = {}
        for number, (dtype, values) in enumerate(keys.items()):
            # The labels have the keys in reverse order, so that a join by position fails.
            columns[f"k{number}"] = pa.array(values[::-1], dtype)
            rows: ColumnCells = {f"k{number}": values, "t": [hours_after_t0(0)] * 3, "x": [0, 1, 2]}
            retrieval.group(
                f"g{number}",
                _table(rows, {f"k{number}": dtype}),
                primary_key=(f"k{number}",),
                event_time="t",
            )
            features.append(f"g{number}.x as x{number}")
            expected[f"x{number}"] = [2, 1, 0]
            if values[2] is None:
                expected[f"x{number}"] = [None, 1, 0]
        actual = retrieval.check(features, pa.table(columns), label_time="at")
        assert {name: column_values(actual, name) for name in expected} == expected

    def test_integer_keys_of_different_widths_match(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            _table({"k": [1, 2], "t": [hours_after_t0(0)] * 2, "x": [1, 2]}, {"k": pa.uint64()}),
            primary_key=("k",),
            event_time="t",
        )
        labels = _table({"k": [2, -1, 1], "at": [hours_after_t0(1)] * 3}, {"k": pa.int8()})
        assert column_values(retrieval.check(["w.x"], labels), "x") == [2, None, 1]

    @pytest.mark.parametrize("roles", ["plain", "timed", "waits"])
    def test_decimal_and_integer_keys_match_by_value(
        self, retrieval: RetrievalCheck, roles: str
    ) -> None:
        declared: dict[str, Any] = {"primary_key": ("k",)}
        if roles != "plain":
            declared["event_time"] = "t"
        if roles == "waits":
            declared["created_time"] = "t2"
        kinds = [pa.decimal128(4, 2), pa.decimal128(38, 0), pa.decimal128(38, 30), pa.int16()]
        kinds.append(pa.uint64())
        values: list[Any] = [Decimal("1.10"), Decimal("1.15"), Decimal("-2"), Decimal("99.99")]
        values += [Decimal(1), Decimal(300), Decimal(70_000), Decimal(2**64 - 1), Decimal(2) ** 100]
        features, keys_by_feature = [], {}
        for number, dtype in enumerate(kinds):
            group_keys = [value for value in values if _can_represent(value, dtype)]
            rows: ColumnCells = {"k": group_keys, "x": list(map(float, group_keys))}
            rows |= {
                "t": [hours_after_t0(0)] * len(group_keys),
                "t2": [hours_after_t0(0)] * len(group_keys),
            }
            retrieval.group(f"g{number}", _table(rows, {"k": dtype}), **declared)
            features.append(f"g{number}.x as x{number}")
            keys_by_feature[f"x{number}"] = group_keys
        for dtype in (*kinds, pa.decimal128(5, 3)):
            label_keys = [value for value in values if _can_represent(value, dtype)]
            labels = _table(
                {"k": label_keys, "at": [hours_after_t0(1)] * len(label_keys)}, {"k": dtype}
            )
            actual = retrieval.check(features, labels, label_time="at")
            for name, group_keys in keys_by_feature.items():
                expected = [float(value) if value in group_keys else None for value in label_keys]
                assert column_values(actual, name) == expected

    def test_join_key_maps_label_columns(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"a": [1, 2], "t": [hours_after_t0(0)] * 2, "x": [1, 2]},
            primary_key=("a",),
            event_time="t",
        )
        rows = retrieval.check(
            ["w.x"], make_labels(place=[2, 1], at=[hours_after_t0(1)] * 2), join_key={"place": "a"}
        )
        assert column_values(rows, "x") == [2, 1]

    # -- shapes of results ------------------------------------------------------------------

    def test_left_join_keeps_and_inner_join_drops_labels(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1], "t": [hours_after_t0(0)], "x": [None]},
            types={"x": pa.int32()},
            primary_key=("k",),
            event_time="t",
            ttl=timedelta(hours=3),
        )
        retrieval.group("p", {"k": [1, 2], "y": [1, 2]}, primary_key=("k",))
        labels = make_labels(
            k=[1, 2, 1, 3, 1],
            at=[hours_after_t0(1), hours_after_t0(1), hours_after_t0(9), hours_after_t0(1), None],
        )
        assert len(retrieval.check(["w.x", "p.y"], labels)) == 5
        inner = retrieval.check(["w.x", "p.y"], labels, join="inner")
        assert column_values(inner, "k") == [1]
        assert column_values(inner, "at") == [hours_after_t0(1)]

    def test_empty_labels_and_groups_are_supported(self, retrieval: RetrievalCheck) -> None:
        roles: dict[str, Any] = {"primary_key": ("k",), "event_time": "t"}
        retrieval.group("w", {"k": [1], "t": [hours_after_t0(0)], "x": [1]}, **roles)
        retrieval.group("e", make_labels(k=[1], t=[hours_after_t0(0)], y=[1]).slice(0, 0), **roles)
        retrieval.group("f", make_labels(k=[1], z=[1]).slice(0, 0), primary_key=("k",))
        labels = make_labels(k=[1], at=[hours_after_t0(1)])
        assert retrieval.check(["w.x", "e.y", "f.z"], labels) == [
            {"k": 1, "at": hours_after_t0(1), "x": 1, "y": None, "z": None}
        ]
        assert retrieval.check(["w.x", "e.y", "f.z"], labels.slice(0, 0)) == []

    def test_timeless_group_has_one_row_per_key(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "p", {"k": [1, 1, 2, None], "x": [1, 2, 3, 4]}, primary_key=("k",), commits=2
        )
        rows = retrieval.check(["p.x"], make_labels(k=[2, 1, None, 5]))
        assert rows[0]["x"] == 3
        assert (rows[2]["x"], rows[3]["x"]) == (None, None)

    def test_nan_and_null_stay_distinct(self, retrieval: RetrievalCheck) -> None:
        values = [float("nan"), None, -0.0, float("inf"), 5e-324]
        table = _table(
            {"k": range(5), "t": [hours_after_t0(0)] * 5, "x": values, "y": values},
            {"y": pa.float32()},
        )
        retrieval.group("w", table, primary_key=("k",), event_time="t", ttl=timedelta(days=1))
        rows = retrieval.check(
            ["w.x", "w.y"], make_labels(k=list(range(6)), at=[hours_after_t0(1)] * 6)
        )
        assert rows[1]["x"] is None
        assert np.isnan(rows[0]["x"])

    def test_nested_and_list_features_keep_values(self, retrieval: RetrievalCheck) -> None:
        kinds = {
            "tags": pa.list_(pa.string()),
            "image": pa.list_(pa.field("item", pa.uint8()), 3),
            "place": pa.struct([("lat", pa.float64()), ("names", pa.list_(pa.string()))]),
            "steps": pa.list_(pa.struct([("n", pa.uint32())])),
        }
        columns: ColumnCells = {
            "k": [1, 1, 1, 2],
            "t": [hours_after_t0(0), hours_after_t0(1), hours_after_t0(1), hours_after_t0(0)],
            "tags": [["a", None], [], None, ["x"]],
            "image": [[1, 2, 3], [255, 0, 1], None, [0, 0, 0]],
            "place": [
                {"lat": 1.5, "names": ["p"]},
                {"lat": None, "names": None},
                None,
                {"lat": -0.0, "names": []},
            ],
            "steps": [[{"n": 1}], [{"n": None}], [], None],
        }
        retrieval.group("w", _table(columns, kinds), primary_key=("k",), event_time="t")
        labels = _table(
            {
                "k": [1, 1, 2, 3],
                "at": [
                    hours_after_t0(0.5),
                    hours_after_t0(2),
                    hours_after_t0(2),
                    hours_after_t0(2),
                ],
                "y": [[1], None, [], [2, 3]],
            },
            {"y": pa.list_(pa.int64())},
        )
        retrieval.check(["w.tags", "w.image", "w.place", "w.steps"], labels)

    def test_dates_are_midnight_in_utc(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1, 1], "t": [date(2024, 1, 1), date(2024, 1, 2)], "x": [1, 2]},
            primary_key=("k",),
            event_time="t",
            ttl=timedelta(hours=30),
        )
        rows = retrieval.check(
            ["w.x"],
            make_labels(
                k=[1] * 4,
                at=[hours_after_t0(-1), hours_after_t0(0), hours_after_t0(24), hours_after_t0(55)],
            ),
        )
        assert column_values(rows, "x") == [None, 1, 2, None]
        days = make_labels(k=[1, 1], at=[date(2024, 1, 1), date(2023, 12, 31)])
        rows = retrieval.check(["w.x"], days, label_time="at")
        assert column_values(rows, "x") == [1, None]

    def test_naive_and_zoned_times_are_converted_to_utc(self, retrieval: RetrievalCheck) -> None:
        naive, zoned = pa.timestamp("us"), pa.timestamp("ms", tz="America/New_York")
        summer = datetime(2024, 7, 1, 12)
        aware = [summer.replace(tzinfo=UTC), (summer + timedelta(hours=1)).replace(tzinfo=UTC)]
        hours = [summer, summer + timedelta(hours=1)]
        with pytest.warns(NaiveTimeWarning):
            rows = _ingest(_table({"k": [1, 1], "t": hours, "x": [0, 1]}, {"t": naive}))
        retrieval.group("w", rows, primary_key=("k",), event_time="t", ttl=timedelta(0))
        labels = _ingest(
            _table({"k": [1, 1], "at": pa.array(aware, TIMESTAMP).cast(zoned)}, {"at": zoned})
        )
        assert column_values(retrieval.check(["w.x"], labels), "x") == [0, 1]
        # The warning is issued once per position.
        labels = _ingest(_table({"k": [1], "at": [summer]}, {"at": naive}))
        assert retrieval.check(["w.x"], labels)[0]["x"] == 0

    def test_extreme_times_are_compared(self, retrieval: RetrievalCheck) -> None:
        # The limits of Python's calendar. Their difference exceeds the nanoseconds of an int64.
        old, new = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
        retrieval.group(
            "w",
            {"k": [1, 1], "t": [old, new], "x": [1, 2]},
            primary_key=("k",),
            event_time="t",
            ttl=timedelta(days=4_000_000),
        )
        rows = retrieval.check(["w.x"], make_labels(k=[1] * 3, at=[old, hours_after_t0(0), new]))
        assert column_values(rows, "x") == [1, 1, 2]
        assert (
            retrieval.check(["w.x"], make_labels(k=[1]), label_time=hours_after_t0(0))[0]["x"] == 1
        )

    def test_label_time_can_be_a_timestamp(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {
                "k": [1, 1, 2],
                "t": [hours_after_t0(0), hours_after_t0(5), hours_after_t0(5)],
                "c": [hours_after_t0(0), hours_after_t0(6), hours_after_t0(7)],
                "x": [0, 5, 25],
            },
            primary_key=("k",),
            event_time="t",
            created_time="c",
            ttl=timedelta(hours=9),
        )
        labels = make_labels(k=[1, 2, 3])
        rows = retrieval.check(["w.x"], labels, label_time=hours_after_t0(6))
        assert column_values(rows, "x") == [5, None, None]
        rows = retrieval.check(["w.x"], labels, label_time=hours_after_t0(9.5))
        assert column_values(rows, "x") == [5, 25, None]
        rows = retrieval.check(["w.x"], labels, label_time=hours_after_t0(20))
        assert column_values(rows, "x") == [None, None, None]

    def test_feature_order_does_not_change_values(self, retrieval: RetrievalCheck) -> None:
        for name in ("a", "b", "c"):
            features: ColumnCells = {f"{name}x": range(6), f"{name}y": range(6)}
            retrieval.group(
                name,
                {"k": [1, 2] * 3, "t": list(map(hours_after_t0, range(6))), **features},
                primary_key=("k",),
                event_time="t",
            )
        labels = make_labels(
            k=[1, 2, 1], at=[hours_after_t0(3), hours_after_t0(4), hours_after_t0(0)]
        )
        first = retrieval.check(["a.ax", "b.bx", "c.cx", "a.ay"], labels)
        second = retrieval.check(["c.cx", "a.ay", "b.bx", "a.ax"], labels)
        assert list(second[0]) == ["k", "at", "cx", "ay", "bx", "ax"]
        assert first == second

    def test_a_group_as_labels_keeps_all_its_rows(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1, 2], "t": [hours_after_t0(0), hours_after_t0(3)], "x": [1, 2]},
            primary_key=("k",),
            event_time="t",
        )
        retrieval.group(
            "y",
            {
                "id": [1, 2, 3],
                "k": [1, 2, 1],
                "at": [hours_after_t0(1)] * 3,
                "late": [True, False, True],
            },
            primary_key=("id",),
            event_time="at",
        )
        rows = retrieval.check(["w.x"], "y")
        values_by_id = dict(zip(column_values(rows, "id"), column_values(rows, "x"), strict=True))
        assert len(rows) == 3
        assert values_by_id == {1: 1, 2: None, 3: 1}

    def test_first_group_without_labels_is_left_side(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "y",
            {
                "id": [1, 2, 3],
                "k": [1, 2, None],
                "at": [hours_after_t0(1)] * 3,
                "z": [1.0, None, 3.0],
            },
            primary_key=("id",),
            event_time="at",
        )
        retrieval.group(
            "w",
            {"k": [1, 2], "t": [hours_after_t0(0), hours_after_t0(3)], "x": [1, 2]},
            primary_key=("k",),
            event_time="t",
        )
        rows = retrieval.check(["y.z", "w.x"], None)
        assert set(map(tuple, rows)) == {("z", "x")}
        rows = retrieval.check(["y.z as other", "w.x"], None, include_keys=True)
        assert set(map(tuple, rows)) == {("id", "at", "other", "x")}

    def test_few_labels_of_a_long_history(self, retrieval: RetrievalCheck) -> None:
        random = np.random.default_rng(3)
        columns: ColumnCells = {
            "a": random.integers(0, 3, 300).tolist(),
            "b": [f"b{n}" for n in random.integers(0, 2, 300)],
            "t": _random_times(random, 20, 300),
            "c": _random_times(random, 25, 300),
            "x": list(range(300)),
        }
        roles: dict[str, Any] = {"primary_key": ("a", "b"), "event_time": "t"}
        retrieval.group("w", columns, **roles)
        retrieval.group("corrected", columns, created_time="c", **roles)
        labels = make_labels(
            a=[1, 1, 9, None],
            b=["b1", "b1", "b0", "b0"],
            at=[hours_after_t0(9), hours_after_t0(9), hours_after_t0(9), hours_after_t0(9)],
        )
        rows = retrieval.check(["w.x", "corrected.x as y"], labels)
        assert rows[0] == rows[1]

    def test_label_column_named_as_feature_is_refused(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w", {"k": [1], "t": [hours_after_t0(0)], "x": [1]}, primary_key=("k",), event_time="t"
        )
        with pytest.raises(ColumnConflict, match="the left column 'x'"):
            retrieval.plan(["w.x"], make_labels(k=[1], at=[hours_after_t0(1)], x=[5]))
        rows = retrieval.check(["w.x as w_x"], make_labels(k=[1], at=[hours_after_t0(1)], x=[5]))
        assert (rows[0]["x"], rows[0]["w_x"]) == (5, 1)

    def test_aliases_distinguish_equal_names(self, retrieval: RetrievalCheck) -> None:
        for name, value in (("w", 1), ("v", 2)):
            retrieval.group(
                name,
                {"k": [1], "t": [hours_after_t0(0)], "x": [value]},
                primary_key=("k",),
                event_time="t",
            )
        rows = retrieval.check(
            ["w.x", "v.x as vx", "w.x as again"], make_labels(k=[1], at=[hours_after_t0(1)])
        )
        assert rows == [{"k": 1, "at": hours_after_t0(1), "x": 1, "vx": 2, "again": 1}]

    def test_two_versions_of_a_group_are_joined(self, retrieval: RetrievalCheck) -> None:
        for version in (1, 2):
            retrieval.group(
                "w",
                {"k": [1], "t": [hours_after_t0(0)], "x": [version]},
                primary_key=("k",),
                event_time="t",
                version=version,
            )
        rows = retrieval.check(
            ["w@v1.x as one", "w.x as two"], make_labels(k=[1], at=[hours_after_t0(1)])
        )
        assert (rows[0]["one"], rows[0]["two"]) == (1, 2)

    def test_hundreds_of_features_from_ten_groups(self, retrieval: RetrievalCheck) -> None:
        random = np.random.default_rng(5)

        features = []
        for number in range(10):
            columns: ColumnCells = {"k": random.integers(0, 4, 12).tolist()}
            columns["t"] = _random_times(random, 6, 12)
            for index in range(30):
                columns[f"g{number}_{index}"] = random.random(12).tolist()
            retrieval.group(f"g{number}", columns, primary_key=("k",), event_time="t")
            features.append(f"g{number}.*")
        keys = random.integers(0, 4, 20).tolist()
        rows = retrieval.check(features, make_labels(k=keys, at=_random_times(random, 6, 20)))
        assert len(rows[0]) == 302

    def test_partitioned_groups_and_columns_added_later(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {
                "k": [1, 1, 2],
                "t": [hours_after_t0(0), hours_after_t0(1), hours_after_t0(0)],
                "x": [1, 2, 3],
                "day": ["a", "b", "a"],
            },
            primary_key=("k",),
            event_time="t",
            partition_by=("day",),
        )
        rows = retrieval.check(["w.x", "w.day"], make_labels(k=[1, 2], at=[hours_after_t0(5)] * 2))
        assert column_values(rows, "x") == [2, 3]
        assert column_values(rows, "day") == ["b", "a"]

    def test_label_columns_named_as_sql_keywords_are_kept(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1], "t": [hours_after_t0(0)], "select": [7]},
            primary_key=("k",),
            event_time="t",
        )
        labels = make_labels(
            k=[1],
            at=[hours_after_t0(1)],
            event=[3],
            since=[4],
            l=[5],
            r0=[6],
            tie=[8],
            o0=[9],
            created=[10],
        )
        assert retrieval.check(["w.select"], labels)[0]["select"] == 7

    # -- many small cases -----------------------------------------------------------------

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_random_cases_equal_the_oracle(
        self, retrieval: RetrievalCheck, shape: JoinShape
    ) -> None:
        for round_ in range(self.rounds_per_shape):
            check_cases(retrieval, shape, count=self.cases_at_once, seed=round_)


class RetrievalConformance(RuleConformance, ResultConformance):
    """The complete suite for point-in-time retrieval."""


def check_cases(retrieval: RetrievalCheck, shape: JoinShape, *, count: int, seed: int) -> None:
    """Compare an engine with the oracle on random cases of a shape, and count them in ``CASES``."""
    cases = random_cases(shape, count=count, seed=seed)
    name = f"w{len(retrieval.tables)}"
    retrieval.group(name, cases.rows, unique=cases.unique or None, commits=2, **cases.roles)
    plan = retrieval.plan(
        [f"{name}.{column}" for column in cases.features], cases.labels, **cases.options
    )
    actual = retrieval.run(plan, cases.labels)
    expected = brute_force(plan, tables=retrieval.tables, labels=cases.labels)
    _assert_equal_cases(actual, expected, cases.labels, cases.rows)
    CASES[retrieval.engine.name] += count


def _assert_equal_cases(
    actual: pa.Table, expected: pa.Table, labels: pa.Table, rows: pa.Table
) -> None:
    """Assert equality; the message shows the first differing case with its labels and rows."""
    assert actual.schema.equals(expected.schema)
    actual_bits, expected_bits = bits(actual), bits(expected)
    if actual_bits == expected_bits:
        return
    actual_cases = actual.column("case").to_pylist()
    expected_cases = expected.column("case").to_pylist()
    actual_pairs = set(zip(actual_cases, actual_bits, strict=True))
    different = [
        pair[0]
        for pair in zip(expected_cases, expected_bits, strict=True)
        if pair not in actual_pairs
    ]
    first = (different or actual_cases)[0]

    # A complete table would be too long for an error message.
    def rows_of_case(table: pa.Table) -> str:
        return "\n".join(str(row) for row in table.to_pylist() if row["case"] == first)

    raise AssertionError(
        f"case {first}\nlabels:\n{rows_of_case(labels)}\nrows:\n{rows_of_case(rows)}\n"
        f"actual:\n{rows_of_case(actual)}\nexpected:\n{rows_of_case(expected)}"
    )


__all__ = [
    "CASES",
    "ResultConformance",
    "RetrievalCheck",
    "RetrievalConformance",
    "RuleConformance",
    "hours_after_t0",
    "check_cases",
    "make_labels",
]
