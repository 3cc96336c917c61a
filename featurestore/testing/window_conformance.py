"""What every engine must answer for aggregates over windows: what looking at every row answers.

A test class of an engine inherits ``WindowConformance`` and gives the fixture ``engine``.
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
from featurestore.errors import InvalidArgument
from featurestore.model.plan import FeaturePlan, WindowJoin
from featurestore.model.types import TIMESTAMP
from featurestore.model.window_features import WindowFeature, window, windows
from featurestore.retrieval.planner import LabelSide, RetrievalOptions
from featurestore.retrieval.resolve import resolve
from featurestore.retrieval.window_leaks import events_of
from featurestore.retrieval.windows import plan_windows
from featurestore.testing.oracle import bits
from featurestore.testing.retrieval_conformance import (
    RetrievalCheck,
    RetrievalFixtures,
    at,
    labels_of,
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


def _asked(group: str) -> list[WindowFeature]:
    asked = []
    for column, functions in _FUNCTIONS.items():
        asked += windows(f"{group}.{column}", functions, over=_LENGTHS)  # type: ignore[arg-type]
    asked.append(window(f"{group}.x", "last_n", over="1d", n=3))
    asked.append(window(f"{group}.x", "sum", over="1d", offset="3h", fill_value=-1.0))
    asked.append(window(f"{group}.x", "sum", over="1d", where="b", name="x_where_b"))
    return asked


def _rows(random: np.random.Generator, count: int) -> dict[str, list[Any]]:
    """Return random rows of few keys and moments, with nulls and numbers that are hard to add."""
    choices: dict[str, list[Any]] = {
        "g": ["p", "q"],
        "m": [0, 1, 2, 3, 4],
        "x": [0.1, 0.1, -0.0, 1e16, -1e16, 1e-9, 3.5, float("nan"), float("inf"), None],
        "n": [1, -7, 2**40, None],
        "d": [Decimal("1.25"), Decimal("-9.50"), None],
        "s": ["", "a", "zz", None],
        "b": [True, False, None],
        "u": list(map(at, range(9))),
    }
    rows: dict[str, list[Any]] = {name: [] for name in ("k", *choices, "t", "c")}
    for _ in range(count):
        event = at(int(random.integers(0, 40)))
        rows["k"].append(int(random.integers(0, 4)))
        rows["t"].append(event)
        rows["c"].append(event + timedelta(hours=int(random.integers(-3, 10))))
        for name, values in choices.items():
            rows[name].append(values[int(random.integers(0, len(values)))])
    return rows


_TYPES = {"d": pa.decimal128(12, 2), "u": TIMESTAMP, "t": TIMESTAMP, "c": TIMESTAMP}


def _labels(random: np.random.Generator, count: int) -> pa.Table:
    keys: list[int | None] = random.integers(0, 5, count).tolist()
    moments: list[datetime | None] = [at(hour) for hour in random.integers(0, 60, count).tolist()]
    keys[0] = None
    moments[1] = None
    texts = [["p", "q"][number] for number in random.integers(0, 2, count).tolist()]
    return labels_of(k=keys, g=texts, at=moments, y=list(range(count)))


class WindowConformance(RetrievalFixtures):
    """Aggregates of random rows and labels, with and without created times and versions."""

    def plan(
        self,
        retrieval: RetrievalCheck,
        asked: list[WindowFeature],
        labels: pa.Table,
        **options: Any,
    ) -> FeaturePlan:
        """Return the plan of aggregates, as the store would make it."""
        specs: dict[str, dict[int, Any]] = {}
        for (name, version), source in retrieval.sources.items():
            specs.setdefault(name, {})[version] = source.spec
        found = []
        for wanted in asked:
            found.append((resolve(str(wanted.reference), specs=specs)[0], wanted))
        return plan_windows(
            found,
            left=LabelSide(labels.schema, ordered=True, rows=labels.num_rows),
            options=RetrievalOptions(label_time="at", **options),
            source=retrieval.sources.__getitem__,
        )

    def check(
        self,
        retrieval: RetrievalCheck,
        asked: list[WindowFeature],
        labels: pa.Table,
        **options: Any,
    ) -> pa.Table:
        """Return what the engine answers; it is what looking at every row answers, bit by bit."""
        plan = self.plan(retrieval, asked, labels, **options)
        found = retrieval.run(plan, labels)
        columns = [labels.column(name) for name in labels.column_names]
        for join in plan.windows:
            answers = _answers(join, retrieval.tables[join.source.spec.name, 1], labels, plan)
            columns += [answers[output.name] for output in join.outputs]
        expected = pa.table(columns, schema=plan.schema)
        assert found.schema.equals(expected.schema)
        for name in expected.column_names:
            mine, theirs = found.select([name]), expected.select([name])
            assert bits(mine) == bits(theirs), name
        return found

    @pytest.mark.parametrize(
        ("keys", "created"),
        [(("k", "m"), False), (("k", "g", "m"), True)],
        ids=["known at once", "known later"],
    )
    def test_aggregates_are_those_of_looking_at_every_row(
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
            parts=3,
        )
        labels = _labels(random, 60)
        self.check(retrieval, _asked("w"), labels)
        numbers = windows("w.x", ["sum", "std", "max", "last"], over=_LENGTHS)
        self.check(retrieval, numbers, labels)
        if created:
            self.check(retrieval, numbers, labels, created_time_filter=False)
            self.check(retrieval, _asked("w"), labels, created_time_filter=False)

    def test_events_that_nothing_tells_apart_are_refused(self, retrieval: RetrievalCheck) -> None:
        retrieval.group(
            "w",
            {"k": [1, 1], "t": [at(0)] * 2, "x": [1.0, 2.0]},
            primary_key=("k",),
            event_time="t",
        )
        labels = labels_of(k=[1], at=[at(1)])
        plan = self.plan(retrieval, [window("w.x", "sum", over="1d")], labels)
        with pytest.raises(Exception, match="several rows of one key and event time") as caught:
            retrieval.run(plan, labels)
        assert isinstance(caught.value, InvalidArgument)


def _answers(
    join: WindowJoin, table: pa.Table, labels: pa.Table, plan: FeaturePlan
) -> dict[str, pa.Array]:
    rows = events_of(join, table)
    waits = join.created_time is not None and plan.created_time_filter
    answers: dict[str, list[Any]] = {output.name: [] for output in join.outputs}
    for label in labels.to_pylist():
        known: list[EventRow] = []
        moment = label["at"] or at(0)
        if label["at"] is not None:
            key = tuple(label[left] for left, _ in join.on)
            known = reference.visible_events(join, rows, key, moment, filters_created_time=waits)
        for output in join.outputs:
            inside = reference.rows_in_window(output, known, moment)
            values = []
            for row in inside:
                if output.where is None or row.values[output.where] is True:
                    values.append(row.values[output.column])
            answers[output.name].append(reference.apply_function(output, values))
    return {name: pa.array(answers[name], plan.schema.field(name).type) for name in answers}
