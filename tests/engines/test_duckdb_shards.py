"""Shard rows are sorted in memory if they fit, and by DuckDB otherwise.

The writers see the same rows in one order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from featurestore.storage.shards import ProcessorSlots, release_slot
from featurestore_connectors.duckdb_delta import DuckDBEngine, shards

ROWS = 20_000


def table() -> pa.Table:
    random = np.random.default_rng(7)
    word = pa.array([None if number % 11 == 0 else f"w{number}" for number in range(ROWS)])
    return pa.table(
        {
            "shard": pa.array(random.choice([0, 3, 70_000], ROWS), pa.int32()),
            "first": pa.array(random.integers(-9, 9, ROWS), mask=random.random(ROWS) < 0.1),
            "second": pa.array(random.permutation(ROWS)),
            "word": word,
            "raw": word.cast(pa.binary()),
            "code": pa.array([f"{number:05d}".encode() for number in range(ROWS)], pa.binary()),
            "list": pa.FixedSizeListArray.from_arrays(pa.array(random.random(3 * ROWS)), 3),
            "struct": pa.StructArray.from_arrays([word, pa.array(np.arange(ROWS))], ["w", "n"]),
        }
    )


def collect(number: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, pa.Table]:
    return number, pa.Table.from_batches(list(batches)).combine_chunks()


def check_all_are_written(rows: pa.Table, *, row_count: int | None = None) -> None:
    """Write rows in three shards, as an export does, and check that none is lost."""
    engine = DuckDBEngine()
    inputs = engine.map_batches(
        engine.from_arrow(rows.to_reader()), lambda batch: batch, schema=rows.schema
    )
    results = engine.write_shards(
        inputs,
        shard="shard",
        shard_count=70_001,
        order=["second"],
        row_count=row_count,
        write=collect,
    )
    assert len(results) == 3
    assert sum(shard.num_rows for _, shard in results) == ROWS
    engine.close()


@pytest.mark.parametrize("order", [["second"], ["first", "second"]])
@pytest.mark.parametrize("mapped", [False, True])
def test_shards_are_equal_for_both_sorts(
    order: list[str], mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = []
    # All rows fit in memory; a part of them; or DuckDB's memory limit decides.
    for memory, limit in ((1 << 30, None), (100_000, None), (1 << 30, "1GiB")):
        monkeypatch.setattr(shards, "_max_memory", lambda _, memory=memory: memory)
        engine = DuckDBEngine(threads=2, memory_limit=limit)
        rows = table()
        inputs = engine.from_arrow(rows.to_reader(max_chunksize=3000))
        if mapped:
            inputs = engine.map_batches(inputs, lambda batch: batch, schema=rows.schema)
        results = engine.write_shards(
            inputs, shard="shard", shard_count=70_001, order=order, write=collect
        )
        actual.append(results)
        engine.close()
    assert [number for number, _ in actual[0]] == [0, 3, 70_000]
    assert sum(shard.num_rows for _, shard in actual[0]) == ROWS
    for number, shard in actual[0]:
        shard_rows = table().filter(pa.array(np.asarray(table()["shard"]) == number))
        expected = sorted(
            shard_rows.to_pylist(),
            key=lambda row: [(row[name] is not None, row[name] or 0) for name in order],
        )
        assert shard.to_pylist() == expected
    assert actual[1] == actual[0]
    assert actual[2] == actual[0]


def test_next_shard_is_computed_while_a_shard_waits_for_the_disk() -> None:
    engine = DuckDBEngine(threads=1)
    numbers, computing, waiting = [0, 3, 70_000], threading.Semaphore(1), threading.Barrier(3)

    def write(number: int, batches: Iterator[pa.RecordBatch]) -> int:
        assert computing.acquire(blocking=False), "one thread, but two shards are computed"
        for _ in batches:
            pass
        computing.release()
        release_slot()
        # Only passed if all three shards wait here at the same time.
        waiting.wait(timeout=60)
        return number

    rows = engine.from_arrow(table().to_reader())
    assert (
        engine.write_shards(rows, shard="shard", shard_count=70_001, order=["second"], write=write)
        == numbers
    )
    engine.close()


def test_slots_are_passed_in_the_order_of_arrival() -> None:
    slots, order = ProcessorSlots(1), []

    def compute(number: int) -> None:
        with slots.slot():
            order.append(number)

    with ThreadPoolExecutor(20) as pool, slots.slot():
        for number in range(20):
            pool.submit(compute, number)
            while len(slots._waiting_threads) <= number:
                time.sleep(0.001)
        release_slot()
        # The thread that released the slot waits behind the others.
        compute(20)
    assert order == list(range(21))


def test_slots_of_a_thread_nest() -> None:
    outer, inner = ProcessorSlots(1), ProcessorSlots(1)
    for _ in range(2):  # a slot that is not released would block the second time
        with outer.slot():
            with inner.slot():
                pass
            release_slot()
            with outer.slot():
                pass


def test_in_memory_rows_bypass_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "stream", None)  # where DuckDB would sort
    check_all_are_written(table())


def test_too_many_rows_are_not_loaded_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shards, "_load_rows", None)
    monkeypatch.setattr(shards, "_max_memory", lambda _: 100_000)
    check_all_are_written(table().select(["shard", "first", "second"]), row_count=ROWS)


def test_row_count_of_short_texts_does_not_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shards, "stream", None)  # where DuckDB would sort
    monkeypatch.setattr(shards, "_max_memory", lambda _: 24 * ROWS)
    short = table().select(["shard", "second", "word"])
    assert short.nbytes < 24 * ROWS
    check_all_are_written(short, row_count=ROWS)


@pytest.mark.parametrize("limit", [None, "32MiB"])
def test_wide_rows_are_sorted_in_little_memory(
    limit: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_max_memory", lambda _: 4 << 20)
    monkeypatch.setattr(shards, "_SORT_BYTES", 32 << 20)
    monkeypatch.setattr(shards, "_SORT_BYTES_PER_THREAD", 8 << 20)
    count, size = 4500, 12_288
    random = np.random.default_rng(3)
    order = random.permutation(count)
    images = random.integers(0, 256, (count, size), dtype=np.uint8)
    rows = pa.table(
        {
            "shard": pa.array(order % 3, pa.int32()),
            "order": order,
            "raw": pa.array([image.tobytes() for image in images]),
        }
    )
    engine = DuckDBEngine(threads=2, memory_limit=limit, temp_directory=str(tmp_path / "spilled"))
    relation = engine.from_arrow(rows.to_reader(max_chunksize=500))

    def check(number: int, batches: Iterator[pa.RecordBatch]) -> int:
        order_values: list[int] = []
        for batch in batches:
            assert batch.nbytes < 80 << 20
            order_values += batch.column(1).to_pylist()
            raw = np.frombuffer(b"".join(batch.column(2).to_pylist()), np.uint8)
            indices = np.argsort(order)[batch.column(1).to_numpy()]
            np.testing.assert_array_equal(raw.reshape(-1, size), images[indices])
        assert order_values == list(range(number, count, 3))
        return len(order_values)

    results = engine.write_shards(
        relation, shard="shard", shard_count=3, order=["order"], write=check
    )
    assert sum(results) == count
    engine.close()
    assert list(tmp_path.rglob("*.arrow")) == []
