"""Aggregate values depend only on their own rows, not on other rows or requested features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore import FeatureStore
from featurestore.aggregates import stream, window_side
from featurestore.testing.oracle import bits
from featurestore_connectors.duckdb_delta import windows
from tests.on_spark import spark_in_soak

MINUTE, DAY = 60_000_000, 86_400_000_000
START = 1_700_000_000_000_000
ROWS, LABELS = 600, 80
FUNCTIONS = ["sum", "mean", "std", "var", "min", "max", "first", "last", "count", "count_distinct"]


def rows(random: np.random.Generator, *, count: int = ROWS, first: int = 0) -> pa.Table:
    """Return rows whose double sums depend on the order of addition."""
    numbers = np.arange(count) + first
    sizes = random.choice([1e-9, 1.0, 1e8, 1e16], count)
    values = random.choice([-1, 1], count) * random.random(count) * sizes
    event = START + random.integers(0, 40 * 24 * 60, count) * MINUTE
    return pa.table(
        {
            "key": random.integers(0, 7, count),
            "number": numbers,
            "part": numbers % 3,
            "at": times(event),
            "known": times(event + random.integers(0, 3 * 24 * 60, count) * MINUTE),
            "x": pa.array(values, mask=random.random(count) < 0.1),
            "flag": random.random(count) < 0.5,
        }
    )


def times(micros: Any) -> pa.Array:
    return pa.array(micros, pa.timestamp("us", "UTC"))


def moved(table: pa.Table, days: int) -> pa.Table:
    """Return the rows shifted by some days, with the same delay until they are known."""
    for name in ("at", "known"):
        later = table[name].cast(pa.int64()).to_numpy() + days * DAY
        table = table.set_column(table.schema.get_field_index(name), name, times(later))
    return table


def labels(random: np.random.Generator) -> pa.Table:
    label_times = START + random.integers(10 * 24 * 60, 45 * 24 * 60, LABELS) * MINUTE
    return pa.table(
        {"id": np.arange(LABELS), "key": random.integers(0, 8, LABELS), "t": times(label_times)}
    )


def make_aggregates(group: str) -> list[Any]:
    aggregates: list[Any] = featurestore.windows(f"{group}.x", FUNCTIONS, over=["1d", "9d"])
    aggregates += featurestore.windows(f"{group}.flag", ["any", "all"], over="2d")
    aggregates.append(featurestore.window(f"{group}.x", "last_n", over="9d", n=3))
    aggregates.append(
        featurestore.window(f"{group}.x", "sum", over="9d", where="flag", name="flagged")
    )
    return aggregates


def create(
    store: FeatureStore, name: str, tables: list[pa.Table], *, has_created_time: bool = True
) -> None:
    """Write a group in several commits."""
    options: dict[str, Any] = {
        "statistics": False,
        "partition_by": "part" if has_created_time else (),
    }
    store.create_featuregroup(
        tables[0],
        name,
        primary_key=["key", "number", "part"],
        event_time="at",
        created_time="known" if has_created_time else None,
        **options,
    )
    for table in tables[1:]:
        store.insert_into_featuregroup(table, name)


def compute_bits(store: FeatureStore, group: str, labels: pa.Table) -> dict[int, Any]:
    """Return the bits of all aggregates per label number."""
    frame = store.get_features(make_aggregates(group), labels=labels, label_time="t").to_arrow()
    ids = frame["id"].to_pylist()
    return dict(zip(ids, bits(frame.drop_columns(["id", "key", "t"])), strict=True))


@spark_in_soak
def test_aggregate_bits_ignore_unrelated_rows_and_order(store: FeatureStore) -> None:
    random = np.random.default_rng(5)
    own_rows, label_rows = rows(random), labels(random)
    create(store, "own", [own_rows])
    # Rows outside every window, of other keys, in another order, in other files.
    older = moved(rows(random, first=ROWS), -60)
    later = moved(rows(random, first=2 * ROWS), 60)
    unrelated_rows = rows(random, first=3 * ROWS)
    unrelated_rows = unrelated_rows.set_column(0, "key", pa.array(np.arange(ROWS) % 5 + 100))
    more = pa.concat_tables([own_rows, older, later, unrelated_rows])
    shuffled = more.take(pa.array(random.permutation(more.num_rows)))
    create(store, "more", [shuffled.slice(0, 900), shuffled.slice(900)])
    expected = compute_bits(store, "own", label_rows)
    assert len(set(map(str, expected.values()))) > LABELS // 2
    fewer = label_rows.take(pa.array(random.permutation(LABELS)[: LABELS // 2]))
    assert compute_bits(store, "more", fewer) == {
        number: expected[number] for number in fewer["id"].to_pylist()
    }


@pytest.mark.parametrize("has_created_time", [False, True])
def test_aggregate_bits_ignore_chunks_threads_and_spilling(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch, has_created_time: bool
) -> None:
    random = np.random.default_rng(6)
    own_rows, label_rows = rows(random), labels(random)
    create(empty_store, "own", [own_rows], has_created_time=has_created_time)
    expected = compute_bits(empty_store, "own", label_rows)
    for chunk_rows, group_rows, threads in ((1, 10**6, 1), (50, 10**6, 3), (40, 60, 2), (1, 20, 1)):
        monkeypatch.setattr(stream, "CHUNK_ROWS", chunk_rows)
        monkeypatch.setattr(stream, "GROUP_ROWS", group_rows)
        monkeypatch.setattr(stream, "BLOCK_ROWS", group_rows // 2)
        monkeypatch.setattr(windows, "_threads", lambda engine, threads=threads: threads)
        assert compute_bits(empty_store, "own", label_rows) == expected, (
            chunk_rows,
            group_rows,
            threads,
        )
    monkeypatch.setattr(windows, "_SPILLED_ROWS", 1)
    monkeypatch.setattr(windows, "_MAX_BUFFERED_VALUES", 0)
    assert compute_bits(empty_store, "own", label_rows) == expected


@pytest.mark.parametrize("is_buffered", [True, False])
def test_rows_outside_all_windows_are_filtered_before_sorting(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch, is_buffered: bool
) -> None:
    if not is_buffered:
        monkeypatch.setattr(windows, "_MAX_BUFFERED_VALUES", 0)
    sorted_rows: list[int] = []
    to_doubles = window_side.split_stream

    def counting(batches: Iterator[pa.RecordBatch]) -> Iterator[stream.StreamBlock]:
        for block in to_doubles(batches):
            sorted_rows.append(block.rows.num_rows)
            yield block

    monkeypatch.setattr(window_side, "split_stream", counting)
    far, days = 2**63 - 1, np.arange(100)
    keys = np.repeat(np.array([-far, -5, 2, 2**31, far], np.int64), len(days))
    every = np.tile(days, 5)
    rows = pa.table({"key": keys, "at": times(START + every * DAY), "x": keys % 97 + every})
    create_options: Any = {"primary_key": ["key"], "event_time": "at", "statistics": False}
    empty_store.create_featuregroup(rows, "w", **create_options)

    def count_rows(
        pairs: list[tuple[int | None, int | None]], **rules: Any
    ) -> tuple[list[Any], int]:
        sorted_rows.clear()
        asked_at = [None if day is None else START + day * DAY for _, day in pairs]
        asked_keys = pa.array([key for key, _ in pairs], pa.int64())
        labels = pa.table({"key": asked_keys, "t": times(asked_at)})
        aggregate = featurestore.window("w.x", "count", name="seen", **rules)
        result = empty_store.get_features(aggregate, labels=labels, label_time="t").to_arrow()
        return result["seen"].to_pylist(), sum(sorted_rows) - len(pairs)

    assert count_rows([(2, 50)], over="7d") == ([7], 7)
    assert count_rows([(2, 50)], over=None) == ([51], 51)
    assert count_rows([(2, 50)], over="7d", offset="3d") == ([7], 7)
    assert count_rows([(2, 50), (2**31, 52)], over="7d") == ([7, 7], 18)
    assert count_rows([(-far, 50), (far, 50)], over="7d") == ([7, 7], 35)
    assert count_rows([(-5, 50), (None, 10), (7, 50), (2, None)], over="7d")[0] == [7, 0, 0, 0]
    assert count_rows([(None, 50)], over="7d") == ([0], 0)
    assert count_rows([(2, None)], over="7d") == ([0], 0)
