"""The aggregate kernel equals a row-by-row computation for any chunking of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.aggregates import kernel, reference, stream, window_side
from featurestore.aggregates.chunk import NEVER, Aggregate, Function, KeyRows, Labels
from featurestore.aggregates.kernel import aggregate
from featurestore.errors import InvalidArgument
from featurestore.model.plan import WindowOutput

pytestmark = pytest.mark.slow

# Times are small, so that many are equal, or so far apart that keys are split.
SCALES = st.sampled_from([1, 1, 1, 10**15])
START = datetime(2024, 1, 1, tzinfo=UTC)
FLAGS = st.booleans()
CONDITIONS = [None, True, True, False]
DOUBLES = [None, 0.1, 0.2, -3.5, 1e16, -1e16, float("nan"), float("inf"), -0.0]
CENTS = [None, Decimal("1.25"), Decimal("-9.50"), Decimal("0.07")]
KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.float64(), DOUBLES),
    (pa.float64(), [*DOUBLES, float("-inf"), 5e-324, 1e200, -1e-9]),
    (pa.float32(), [None, 0.1, 3.5, -1e30, float("nan")]),
    (pa.int64(), [None, 1, -7, 2**40, -(2**58)]),
    (pa.int16(), [None, 1, -7, 300]),
    (pa.uint64(), [None, 0, 1, 2**57]),
    (pa.decimal128(12, 2), CENTS),
    (pa.decimal128(38, 2), [*CENTS, Decimal(10) ** 34 / 3]),
    (pa.bool_(), [None, True, False]),
    (pa.string(), [None, "", "a", "zz", "\u00e4"]),
    (pa.timestamp("us", "UTC"), [None, START, START + timedelta(days=400)]),
    (pa.date32(), [None, START.date(), START.date() - timedelta(days=40_000)]),
]


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    """Return rows of a few keys as (key, event, created, replaced, value), labels and a window.

    All rows are one draw of bytes, which shrinks as draws of its values do; those would take longer
    than the check of what they make.
    """
    scale = draw(SCALES)
    dtype, choices = draw(st.sampled_from(KINDS))
    waits, replaces, is_filtered = draw(FLAGS), draw(FLAGS), draw(FLAGS)
    rows = []
    for key, event, value, wait, life, met in draw(records(6, most=25)):
        time = event % 21 * scale
        created_time = replaced = met_condition = None
        if waits:
            created_time = time + (wait % 13 - 2) * scale
        if replaces and life % 2:
            replaced = time + (life // 2 % 10 + 1) * scale
        if is_filtered:
            met_condition = CONDITIONS[met % len(CONDITIONS)]
        rows.append(
            (key % 4, time, created_time, replaced, choices[value % len(choices)], met_condition)
        )
    rows.sort(key=lambda row: row[:2])
    labels = sorted((key % 4, time % 21 * scale) for key, time in draw(records(2, most=10)))
    over = draw(st.sampled_from([None, 1, 3, 10]))
    return {
        "kind": dtype,
        "rows": [row[:5] for row in rows],
        "labels": labels,
        "over": None if over is None else over * scale,
        "offset": draw(st.sampled_from([0, 0, 2])) * scale,
        "waits": waits,
        "replaces": replaces,
        "condition": [row[5] for row in rows] if is_filtered else None,
    }


def records(width: int, *, most: int) -> st.SearchStrategy[list[tuple[int, ...]]]:
    """Return a strategy for records of a size in bytes."""
    sizes = st.integers(0, most)
    drawn = sizes.flatmap(lambda size: st.binary(min_size=size * width, max_size=size * width))
    return drawn.map(lambda data: list(zip(*[iter(data)] * width, strict=True)))


def check_case(case: dict[str, Any]) -> None:
    """Compare every function that supports the values with a row-by-row computation."""
    rows, labels = case["rows"], case["labels"]
    conditions = []
    if case["condition"] is not None:
        conditions.append(pa.array(case["condition"], pa.bool_()))
    request = []
    for function in get_args(Function):
        if kernel.result_type(function, case["kind"], n=3) is None:
            continue
        n = 3 if function == "last_n" else 0
        spec = Aggregate(function, 0, case["over"], offset=case["offset"], n=n)
        if conditions:
            spec = replace(spec, condition=0)
        request.append(spec)
    replaced = [NEVER if row[3] is None else row[3] for row in rows]
    result = aggregate(
        KeyRows(
            np.array([row[0] for row in rows], np.int64),
            np.array([row[1] for row in rows], np.int64),
            np.array([row[2] for row in rows], np.int64) if case["waits"] else None,
            np.array(replaced, np.int64) if case["replaces"] else None,
        ),
        Labels(
            np.array([label[0] for label in labels], np.int64),
            np.array([label[1] for label in labels], np.int64),
        ),
        keys=4,
        columns=[pa.array([row[4] for row in rows], case["kind"])],
        aggregates=request,
        conditions=conditions,
    )
    # Values after conversion to their type.
    typed_values = pa.array([row[4] for row in rows], case["kind"]).to_pylist()
    visible_values = [values_of(label, case, typed_values) for label in labels]
    for spec, column in zip(request, result, strict=True):
        output = output_of(spec)
        expected = [reference.apply_function(output, values) for values in visible_values]
        assert list(map(repr, column.to_pylist())) == list(map(repr, expected)), spec


def values_of(label: tuple[int, int], case: dict[str, Any], typed_values: list[Any]) -> list[Any]:
    """Return the values visible to a label."""
    key, time = label
    end = time - case["offset"]
    values = []
    for number, (row_key, event, created_time, replaced, _) in enumerate(case["rows"]):
        too_old = case["over"] is not None and event <= end - case["over"]
        unknown = created_time is not None and created_time > time
        is_replaced = replaced is not None and replaced <= time
        met = case["condition"] is None or case["condition"][number] is True
        if row_key == key and event <= end and met and not (too_old or unknown or is_replaced):
            values.append(typed_values[number])
    return values


def output_of(spec: Aggregate) -> WindowOutput:
    """Return an aggregate as in a plan; only its function and number matter here."""
    return WindowOutput(
        column="x",
        name="x",
        function=spec.function,
        over=None,
        offset=None,  # type: ignore[arg-type]
        where=None,
        fill_value=None,
        n=spec.n,
        kind=pa.float64(),
    )


@settings(max_examples=500, deadline=None)
@given(case=cases())
def test_kernel_functions_equal_row_by_row_result(case: dict[str, Any]) -> None:
    check_case(case)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(max_examples=100_000, deadline=None)
@given(case=cases())
def test_kernel_functions_many_cases_equal_row_by_row(case: dict[str, Any]) -> None:
    check_case(case)


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        (pa.array([2**62] * 2), "64 bits"),
        (pa.array([10**37] * 10, pa.decimal128(38, 0)), "38 digits"),
    ],
)
def test_aggregate_sum_overflow_raises(values: pa.Array, limit: str) -> None:
    rows = KeyRows(np.zeros(len(values), np.int64), np.arange(len(values)))
    labels = Labels(np.zeros(1, np.int64), np.array([100]))
    with pytest.raises(InvalidArgument, match=limit):
        aggregate(rows, labels, keys=1, columns=[values], aggregates=[Aggregate("sum", 0, None)])


def test_aggregate_results_are_independent_of_batch_boundaries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(7)
    count = 4_000
    key = np.sort(random.integers(0, 300, count))
    label = random.random(count) < 0.2
    stream_time = random.integers(0, 1_000, count) * 2 + label
    order = np.lexsort((stream_time, key))
    table = pa.table(
        {
            # Hashes that collide: two keys a hash.
            stream.GROUP: key[order] // 2,
            stream.STREAM_TIME: stream_time[order],
            "k0": key[order],
            "m0": np.arange(count),
            "v0": random.normal(size=count),
            "c0": np.arange(count),
        }
    )
    by_hash = table.take(pa.array(np.lexsort((stream_time[order], key[order] // 2))))
    features = window_side.WindowFeatures(
        schema=pa.schema([("row", pa.int64()), ("sum", pa.float64()), ("max", pa.float64())]),
        keys=1,
        members=1,
        filters_created_time=False,
        rejects_ties=False,
        aggregates=(Aggregate("sum", 0, 200), Aggregate("max", 0, None)),
        fills=(None, None),
        conditions=0,
        group="w",
    )

    def compute(
        batch_rows: int, chunk_rows: int, threads: int = 1, group_rows: int = 10**9
    ) -> pa.Table:
        monkeypatch.setattr(stream, "CHUNK_ROWS", chunk_rows)
        monkeypatch.setattr(stream, "GROUP_ROWS", group_rows)

        def batches() -> Iterator[pa.RecordBatch]:
            yield from by_hash.to_batches(batch_rows)

        results = features.compute_in_threads(batches(), threads=threads)
        return pa.Table.from_batches(results).sort_by("row")

    expected = compute(count, count)
    assert expected.num_rows == int(label.sum())
    for batch_rows, chunk_rows in ((7, 1), (100, 250), (1_000, 90)):
        assert compute(batch_rows, chunk_rows).equals(expected)
        assert compute(batch_rows, chunk_rows, threads=3).equals(expected)


def test_kernel_functions_have_result_types() -> None:
    assert kernel.result_type("sum", pa.string()) is None
    for function in kernel._FUNCTIONS:
        dtypes = (pa.float64(), pa.bool_())
        assert any(kernel.result_type(function, dtype, n=2) is not None for dtype in dtypes)
