"""Rows held in memory equal those of the relation, for any memory limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore.plugins.engine import Relation
from featurestore.testing.relation_conformance import SumAndCount
from featurestore_connectors.duckdb_delta import DuckDBEngine, streams

ROWS = 10_000


def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the rows held in memory to a part of them."""
    monkeypatch.setattr(streams, "MAX_BUFFERED_BYTES", 50_000)
    monkeypatch.setattr(streams, "_BUFFERED_FRACTION", 0)


def table() -> pa.Table:
    words = pa.array([None if number % 7 == 0 else f"w{number}" for number in range(ROWS)])
    return pa.table({"id": np.arange(ROWS), "x": np.random.default_rng(2).random(ROWS), "w": words})


def brought(engine: DuckDBEngine) -> Relation:
    return engine.from_arrow(table().to_reader(max_chunksize=1_000))


def test_buffered_rows_are_rereadable(engine: DuckDBEngine) -> None:
    rows = engine.hold(brought(engine))
    assert not rows.single_use
    for _ in range(2):
        assert engine.stream(rows).read_all().equals(table())
        assert engine.aggregate(rows, SumAndCount()) == (ROWS, sum(range(ROWS)))
    assert engine.count(rows) == ROWS
    relation = engine.select(rows, {"a": "w", "b": "id"})
    assert (
        engine.stream(relation)
        .read_all()
        .equals(table().select(["w", "id"]).rename_columns(["a", "b"]))
    )
    odd = engine.filter(rows, "id % 2 = 1")
    assert engine.count(odd) == ROWS // 2


def test_rows_beyond_the_buffer_are_read_once(
    engine: DuckDBEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    few(monkeypatch)
    rows = engine.hold(brought(engine))
    assert rows.single_use
    assert engine.stream(rows).read_all().sort_by("id").equals(table())


def test_larger_memory_limit_buffers_more_rows(
    engine: DuckDBEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    few(monkeypatch)
    limit = engine.database.memory_limit
    for room, is_buffered in ((table().nbytes // 2, False), (2 * table().nbytes, True)):
        monkeypatch.setattr(streams, "_BUFFERED_FRACTION", room / limit)
        rows = engine.hold(brought(engine))
        assert rows.single_use is not is_buffered
        assert engine.stream(rows).read_all().sort_by("id").equals(table())


@pytest.mark.parametrize("all_fit", [True, False])
def test_stage_returns_rows_from_memory_or_files(
    engine: DuckDBEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_fit: bool
) -> None:
    if not all_fit:
        few(monkeypatch)
    staged = engine.stage(brought(engine), str(tmp_path / "staged"))
    assert isinstance(streams.source_of(staged), streams.BufferedBatches) == all_fit
    for _ in range(2):
        assert engine.aggregate(staged, SumAndCount()) == (ROWS, sum(range(ROWS)))
        assert engine.stream(staged).read_all().sort_by("id").equals(table())


def test_export_is_independent_of_buffering(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_store.create_featuregroup(table(), "rows", primary_key="id")
    files = []
    for name in ("held", "read_again"):
        frame = empty_store.get_featuregroup("rows")
        dataset = empty_store.create_training_dataset(
            frame, name, splits={"train": 0.7, "test": 0.3}, shards=3
        )
        content = {}
        for split in dataset.manifest.splits:
            for shard in split.shards:
                content[shard.path] = shard.sha256
        files.append(content)
        few(monkeypatch)
    assert files[0] == files[1]
