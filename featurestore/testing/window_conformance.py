"""Conformance suite for window aggregates, which compares engines with a row-by-row implementation.

A test class for an engine inherits ``WindowConformance`` and provides the fixture ``engine``.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore.aggregates import reference
from featurestore.aggregates.reference import EventRow
from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import InvalidArgument
from featurestore.model.plan import FeaturePlan, WindowJoin
from featurestore.model.requests import RetrievalRequest
from featurestore.model.window_features import WindowFeature, window, windows
from featurestore.retrieval.planner import LabelSide
from featurestore.retrieval.resolve import resolve
from featurestore.retrieval.window_rows import to_event_rows
from featurestore.retrieval.windows import plan_windows
from featurestore.testing.oracle import ColumnValues, bits
from featurestore.testing.retrieval_conformance import (
    RetrievalCheck,
    RetrievalFixtures,
    hours_after_t0,
    make_labels,
)

_LENGTHS = [None, "3h", "1d"]
_FUNCTIONS = {
    "x": ["sum", "count", "mean", "min", "max", "std", "var", "first", "last", "count_distinct"],
    "n": ["sum", "mean", "max", "std"],
    "d": ["sum", "min", "mean"],
    "s": ["min", "max", "last", "count_distinct", "count"],
    "b": ["any", "all", "count"],
    "u": ["min", "last"],
}


def _window_features(group: str) -> list[WindowFeature]:
    """Return aggregates of all columns, functions and lengths."""
    features = []
    for column, functions in _FUNCTIONS.items():
        features += windows(f"{group}.{column}", functions, over=_LENGTHS)  # type: ignore[arg-type]
    features.append(window(f"{group}.x", "last_n", over="1d", n=3))
    features.append(window(f"{group}.x", "sum", over="1d", offset="3h", fill_value=-1.0))
    features.append(window(f"{group}.x", "sum", over="1d", where="b", name="x_where_b"))
    return features


def _rows(random: np.random.Generator, count: int) -> ColumnValues:
    """Generate random rows with few keys and times, with nulls and numbers that are hard to sum."""
    choices: ColumnValues = {
        "g": ["p", "q"],
        "m": [0, 1, 2, 3, 4],
        # The sum of these numbers depends on the order of additions, unless it is computed exactly.
        "x": [0.1, 0.1, -0.0, 1e16, -1e16, 1e-9, 3.5, float("nan"), float("inf"), None],
        "n": [1, -7, 2**40, None],
        "d": [Decimal("1.25"), Decimal("-9.50"), None],
        "s": ["", "a", "zz", None],
        "b": [True, False, None],
        "u": list(map(hours_after_t0, range(9))),
    }
    rows: ColumnValues = {name: [] for name in ("k", *choices, "t", "c")}
    for _ in range(count):
        event = hours_after_t0(int(random.integers(0, 40)))
        rows["k"].append(int(random.integers(0, 4)))
        rows["t"].append(event)
        rows["c"].append(event + timedelta(hours=int(random.integers(-3, 10))))
        for name, values in choices.items():
            rows[name].append(values[int(random.integers(0, len(values)))])
    return rows


_TYPES = {"d": pa.decimal128(12, 2), "u": TIMESTAMP, "t": TIMESTAMP, "c": TIMESTAMP}


def _labels(random: np.random.Generator, count: int) -> pa.Table:
    """Generate random labels, of which one has no key and one has no time."""
    keys: list[int | None] = random.integers(0, 5, count).tolist()
    times: list[datetime | None] = [
        hours_after_t0(hour) for hour in random.integers(0, 60, count).tolist()
    ]
    # Labels without a key or a time have no rows.
    keys[0] = None
    times[1] = None
    texts = [["p", "q"][number] for number in random.integers(0, 2, count).tolist()]
    return make_labels(k=keys, g=texts, at=times, y=list(range(count)))


class WindowConformance(RetrievalFixtures):
    """Tests of aggregates over random rows and labels, with and without created times."""

    def plan(
        self,
        retrieval: RetrievalCheck,
        features: list[WindowFeature],
        labels: pa.Table,
        **options: Any,
    ) -> FeaturePlan:
        """Build the plan of aggregates as the store builds it."""
        specs: dict[str, dict[int, Any]] = {}
        for (name, version), source in retrieval.sources.items():
            specs.setdefault(name, {})[version] = source.spec
        resolved = [
            (resolve(str(feature.reference), specs=specs)[0], feature) for feature in features
        ]
        return plan_windows(
            resolved,
            RetrievalRequest(features=features, label_time="at", **options),
            labels=LabelSide(labels.schema, ordered=True, rows=labels.num_rows),
            source=retrieval.sources.__getitem__,
        )

    def check(
        self,
        retrieval: RetrievalCheck,
        features: list[WindowFeature],
        labels: pa.Table,
        **options: Any,
    ) -> pa.Table:
        """Compare the engine's result bit by bit with the row-by-row result, and return it."""
        plan = self.plan(retrieval, features, labels, **options)
        actual = retrieval.run(plan, labels)
        columns = [labels.column(name) for name in labels.column_names]
        for join in plan.windows:
            expected_columns = _expected_columns(
                join, retrieval.tables[join.source.spec.name, 1], labels, plan
            )
            columns += [expected_columns[output.name] for output in join.outputs]
        expected = pa.table(columns, schema=plan.schema)
        assert actual.schema.equals(expected.schema)
        for name in expected.column_names:
            actual_column, expected_column = actual.select([name]), expected.select([name])
            assert bits(actual_column) == bits(expected_column), name
        return actual

    @pytest.mark.parametrize(
        ("keys", "created"),
        [(("k", "m"), False), (("k", "g", "m"), True)],
        ids=["known at once", "known later"],
    )
    def test_aggregates_equal_the_row_by_row_result(
        self, retrieval: RetrievalCheck, keys: tuple[str, ...], created: bool
    ) -> None:
        random = np.random.default_rng(len(keys))
        retrieval.group(
            "w",
            _rows(random, 300),
            types=_TYPES,
            primary_key=keys,
            event_time="t",
            created_time="c" if created else None,
            commits=3,
        )
        labels = _labels(random, 60)
        self.check(retrieval, _window_features("w"), labels)
        numbers = windows("w.x", ["sum", "std", "max", "last"], over=_LENGTHS)
        self.check(retrieval, numbers, labels)
        if created:
            self.check(retrieval, numbers, labels, created_time_filter=False)
            self.check(retrieval, _window_features("w"), labels, created_time_filter=False)

    def test_indistinguishable_events_are_refused(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1, 1], "t": [hours_after_t0(0)] * 2, "x": [1.0, 2.0]},
            primary_key=("k",),
            event_time="t",
        )
        labels = make_labels(k=[1], at=[hours_after_t0(1)])
        plan = self.plan(retrieval, [window("w.x", "sum", over="1d")], labels)
        with pytest.raises(
            Exception, match="several rows with the same key and event time"
        ) as caught:
            retrieval.run(plan, labels)
        assert isinstance(caught.value, InvalidArgument)


def _expected_columns(
    join: WindowJoin, table: pa.Table, labels: pa.Table, plan: FeaturePlan
) -> dict[str, pa.Array]:
    """Compute the aggregates of a join row by row."""
    rows = to_event_rows(join, table)
    waits = join.created_time is not None and plan.created_time_filter
    values_by_output: ColumnValues = {output.name: [] for output in join.outputs}
    for label in labels.to_pylist():
        known_rows: list[EventRow] = []
        # Without a label time, no row is known, and the time is only a placeholder.
        label_time = label["at"] or hours_after_t0(0)
        if label["at"] is not None:
            key = tuple(label[label_name] for label_name, _ in join.on)
            known_rows = reference.visible_events(
                join, rows, key, label_time, filters_created_time=waits
            )
        for output in join.outputs:
            window_rows = reference.rows_in_window(output, known_rows, label_time)
            values = [
                row.values[output.column]
                for row in window_rows
                if output.where is None or row.values[output.where] is True
            ]
            values_by_output[output.name].append(reference.apply_function(output, values))
    return {
        name: pa.array(values_by_output[name], plan.schema.field(name).type)
        for name in values_by_output
    }
