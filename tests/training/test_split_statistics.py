"""Statistics of splits.

Each partition keeps its share of the samples, and the results are those of all rows.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore import FeatureStore
from featurestore.errors import StorageError
from featurestore.statistics import (
    StatisticsAccumulator,
    StatisticsState,
    finish,
    is_sample_short,
    statistics_accumulator,
)
from featurestore.training import create
from featurestore.training.export import split_statistics
from featurestore.training.export.assignment import Assignment
from featurestore.training.export.boundaries import GROUP, HASH
from featurestore.training.export.split_statistics import SplitAccumulator
from featurestore_connectors.duckdb_delta import DuckDBEngine

Example = Callable[..., pa.Table]
LIMIT = 500
PARTITIONS = 8
SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.float64())])


def partition(number: int, *, rows: int = 5000, distinct: int | None = None) -> pa.RecordBatch:
    """Return rows of two splits, three quarters of them in the first."""
    numbers = np.arange(rows) + number * rows
    if distinct is not None:
        numbers %= distinct
    columns = [numbers, numbers / 7, np.zeros(rows, np.int64), (numbers % 4 == 0).astype(np.int64)]
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns)), names=["n", "x", HASH, GROUP])


def split_accumulator(
    accumulators: tuple[StatisticsAccumulator, ...],
) -> SplitAccumulator[StatisticsState, StatisticsState]:
    return SplitAccumulator(Assignment((0, 1), ((), ())), dict(enumerate(accumulators)))


def test_split_sample_is_shared_between_partitions() -> None:
    rows = (PARTITIONS * 5000 * 3 // 4, PARTITIONS * 5000 // 4)
    bounded = tuple(statistics_accumulator(SCHEMA, limit=LIMIT, rows=count) for count in rows)
    unbounded = (statistics_accumulator(SCHEMA, limit=LIMIT),) * 2
    results = []
    for accumulators, maximum in ((bounded, 1.6 * LIMIT), (unbounded, None)):
        accumulator = split_accumulator(accumulators)
        states = [
            accumulator.update(accumulator.start(), partition(number))
            for number in range(PARTITIONS)
        ]
        for split in range(2):
            for state in states:
                state[split].sample.compact()
            row_count = sum(state[split].sample.row_count for state in states)
            assert (
                row_count == PARTITIONS * LIMIT
                if maximum is None
                else LIMIT <= row_count <= maximum
            )
        merged = reduce(accumulator.merge, states)
        assert [merged[split].rows for split in range(2)] == list(rows)
        assert not any(
            is_sample_short(member, merged[split]) for split, member in enumerate(accumulators)
        )
        results.append([finish(merged[split], source={}).to_json() for split in range(2)])
    assert results[0] == results[1]


def test_split_sample_reduced_by_copies_is_short() -> None:
    accumulator = statistics_accumulator(SCHEMA, limit=LIMIT, rows=5000)
    few = split_accumulator((accumulator, accumulator))
    state = few.update(few.start(), partition(0, distinct=2000))
    assert state[0].rows == 3750
    assert is_sample_short(accumulator, state[0])
    assert not is_sample_short(statistics_accumulator(SCHEMA, limit=LIMIT), state[0]), (
        "without a bound nothing was left out"
    )


def test_split_statistics_equal_rows_of_splits(store: FeatureStore, example: Example) -> None:
    dataset = store.create_training_dataset(
        example(800), "d", splits={"train": 0.7, "test": 0.3}, key="at", label="label"
    )
    for split in dataset.splits:
        rows = dataset.read(split).to_arrow()
        statistics = dataset.statistics(split)
        assert statistics.rows == rows.num_rows
        column = statistics.column("n")
        assert column.missing == rows["n"].null_count
        assert isinstance(column.mean, float)
        assert abs(column.mean - pa.compute.mean(rows["n"]).as_py()) < 1e-9


def test_split_statistics_independent_of_row_order(tmp_path: Path, example: Example) -> None:
    rows = example(3000)
    folders = []
    for number, order in enumerate((range(3000), range(2999, -1, -1))):
        with featurestore.connect(tmp_path / str(number)) as store:
            dataset = store.create_training_dataset(
                rows.take(list(order)), "d", splits={"train": 0.7, "test": 0.3}, key="at"
            )
            folders.append(Path(dataset.path))
    names = sorted(path.relative_to(folders[0]) for path in folders[0].rglob("*") if path.is_file())
    for name in names:
        first, second = (folder / name for folder in folders)
        if name.name != "manifest.json":
            assert first.read_bytes() == second.read_bytes(), name
    first, second = (json.loads((folder / "manifest.json").read_text()) for folder in folders)
    different = [key for key in first if first[key] != second[key]]
    assert different == ["created", "run_id", "checksum"]


def test_split_statistics_of_writers_equal_separate_pass(
    empty_store: FeatureStore, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if duplicates make a sample too small and all rows are counted again."""
    rows = pa.concat_tables([example(900)] * 3)
    options = {"splits": {"train": 0.6, "test": 0.4}, "key": "at", "shards": 3, "label": "label"}

    def exported(name: str) -> list[dict[str, object]]:
        dataset = empty_store.create_training_dataset(rows, name, **options)  # type: ignore[arg-type]
        results = []
        for split in dataset.splits:
            results.append({**dataset.statistics(split).to_json(), "source": None})
        return results

    by_itself = exported("a")
    monkeypatch.setattr(split_statistics, "_MIN_SHARD_ROWS", 0)
    passes = []
    monkeypatch.setattr(split_statistics, "count_splits", passes.append)
    assert exported("b") == by_itself
    assert not passes, "no pass of its own"
    monkeypatch.undo()
    monkeypatch.setattr("featurestore.statistics.accumulator.sample_limit", lambda _: 700)
    by_itself = exported("c")
    monkeypatch.setattr(split_statistics, "_MIN_SHARD_ROWS", 0)
    assert exported("d") == by_itself


def test_separate_pass_runs_while_shards_are_written(
    empty_store: FeatureStore, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = threading.Event()
    plain_count, plain_write = split_statistics.count_splits, create.write_shards

    def count(*arguments: Any) -> Any:
        counting.set()
        return plain_count(*arguments)

    def write(*arguments: Any, **options: Any) -> Any:
        assert counting.wait(60), "no pass has started before the shards were written"
        return plain_write(*arguments, **options)

    monkeypatch.setattr(split_statistics, "count_splits", count)
    monkeypatch.setattr(create, "write_shards", write)
    dataset = empty_store.create_training_dataset(example(900), "a", key="at", shards=3)
    assert dataset.statistics("train").rows == 900


def test_failing_separate_pass_publishes_no_dataset(
    empty_store: FeatureStore, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(split_statistics, "count_splits", fail)
        with pytest.raises(StorageError, match="the disk is full"):
            empty_store.create_training_dataset(example(900), "a", key="at", shards=3)
    assert not empty_store.get_training_datasets()
    dataset = empty_store.create_training_dataset(example(900), "a", key="at", shards=3)
    assert (dataset.version, dataset.verify().ok) == (1, True)


def test_split_statistics_of_worker_processes_are_returned(
    empty_store: FeatureStore, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = DuckDBEngine.write_shards

    def elsewhere(engine: Any, relation: Any, *, write: Any, **options: Any) -> Any:
        return plain(engine, relation, write=pickle.loads(pickle.dumps(write)), **options)

    def exported(name: str) -> list[object]:
        dataset = empty_store.create_training_dataset(
            example(900), name, splits={"train": 0.6, "test": 0.4}, key="at", shards=3
        )
        return [dataset.statistics(split).to_json()["columns"] for split in dataset.splits]

    monkeypatch.setattr(split_statistics, "_MIN_SHARD_ROWS", 0)
    expected = exported("a")
    monkeypatch.setattr(DuckDBEngine, "write_shards", elsewhere)
    monkeypatch.setattr(DuckDBEngine, "runs_in_process", False)
    passes: list[object] = []
    monkeypatch.setattr(split_statistics, "count_splits", passes.append)
    assert exported("b") == expected
    assert not passes
