"""Exports limit the memory of DuckDB.

A limit that the user chose stays.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import ConfigurationError, EngineError
from featurestore.session import DeferredEngine
from featurestore_connectors.duckdb_delta import DuckDBEngine, session, shards
from featurestore_connectors.duckdb_delta.session import Database

GIB = 1 << 30


def limit(database: Database) -> str:
    return str(database.rows("SELECT current_setting('memory_limit')")[0][0])


def test_memory_limit_stays_low_while_needed() -> None:
    database = Database()
    before = limit(database)
    with database.limit_memory(GIB):
        assert limit(database) == "1.0 GiB"
        with database.limit_memory(GIB // 2):
            assert limit(database) == "1.0 GiB"
        assert limit(database) == "1.0 GiB"
    assert limit(database) == before != "1.0 GiB"
    with pytest.raises(ZeroDivisionError), database.limit_memory(GIB):
        _ = 1 // 0
    assert limit(database) == before
    database.close()


def test_memory_limit_of_user_is_kept() -> None:
    database = Database(memory_limit="3GiB")
    with database.limit_memory(GIB):
        assert limit(database) == "3.0 GiB"
    database.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_sort_of_large_rows_uses_little_memory(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_max_memory", lambda _: 0)
    engine = DuckDBEngine(threads=threads)
    rows = pa.table({"shard": pa.array([1, 0] * 500, pa.int32()), "n": range(1000)})
    relation = engine.from_arrow(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()))

    def write(number: int, batches: object) -> tuple[int, str]:
        return number, limit(engine.database)

    before = limit(engine.database)
    results = engine.write_shards(relation, shard="shard", shard_count=2, order=["n"], write=write)
    assert results == [(0, "1.0 GiB"), (1, "1.0 GiB")]
    assert limit(engine.database) == before
    again = engine.from_arrow(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()))
    with pytest.raises(EngineError):
        engine.write_shards(again, shard="shard", shard_count=2, order=["n"], write=_fail)
    assert limit(engine.database) == before
    engine.close()


def _fail(number: int, batches: object) -> None:
    raise EngineError("this writer fails")


@pytest.mark.parametrize("reads_uris", [False, True])
def test_listing_names_opens_no_duckdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_uris: bool
) -> None:
    monkeypatch.setattr(session, "open_connections", reads_uris)
    with featurestore.connect(tmp_path / "store") as store:
        store.create_featuregroup(pa.table({"k": [1]}), "g", tags={"owner": "ada"})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session, "_connect", None)
        with featurestore.connect(tmp_path / "store") as store:
            assert [group.name for group in store.get_featuregroups()] == ["g"]
            assert store.get_featuregroup_tags("g") == {"owner": "ada"}
    database = store.session.engine.database  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match="closed"):
        database.rows("SELECT 1")


def test_invalid_duckdb_setting_is_refused_on_connect() -> None:
    with pytest.raises(ConfigurationError, match=r"much(.|\n)*FEATURESTORE_DUCKDB_MEMORY_LIMIT"):
        Database(memory_limit="much")


def test_invalid_environment_setting_is_refused_before_a_store_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEATURESTORE_DUCKDB_MEMORY_LIMIT", "much")
    with pytest.raises(ConfigurationError, match="FEATURESTORE_DUCKDB_MEMORY_LIMIT"):
        featurestore.connect(tmp_path / "store")
    assert not (tmp_path / "store" / "registry.db").exists()


def test_threads_share_the_engine_that_the_first_call_creates(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "store") as store:
        source = store.session.engine_source
        assert isinstance(source, DeferredEngine)
        assert store.get_featuregroups() == []
        assert source._engine is None
        with ThreadPoolExecutor(8) as pool:
            engines = list(pool.map(lambda _: store.session.engine, range(32)))
        assert {id(engine) for engine in engines} == {id(source._engine)}
        store.create_featuregroup(pa.table({"k": [1]}), "g")
    with pytest.raises(EngineError, match="closed"):
        engines[0].count(engines[0].from_arrow(pa.table({"k": [1]}).to_reader()))
