"""Late materialization equals the direct join."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.errors import EngineError
from featurestore.plugins.engine import Relation
from featurestore.testing.oracle import JoinShape
from featurestore.testing.retrieval_conformance import (
    RetrievalCheck,
    check_cases,
    hours_after_t0,
    make_labels,
)
from featurestore_connectors.duckdb_delta import DuckDBEngine, late_materialization, relations
from featurestore_connectors.duckdb_delta.streams import MappedRelation

EVERYWHERE = {"_MIN_BYTES": 0, "_MIN_REDUCTION": 0, "_MEMORY_FRACTION": -1}
SHAPES = st.builds(
    JoinShape,
    key=st.sampled_from(["int", "text", "pair", "bytes", "decimal", "unsigned"]),
    time=st.sampled_from(["timestamp", "date"]),
    ttl=st.sampled_from([None, 0, 1, 2, 4]),
    unique=st.just(True),  # late materialization resolves no ties
    how=st.sampled_from(["left", "inner"]),
    label_time=st.sampled_from(["timestamp", "date"]),
)

DEFAULTS = {name: getattr(late_materialization, name) for name in EVERYWHERE}


@pytest.fixture(autouse=True, scope="module")
def wherever_it_can_be() -> Iterator[None]:
    """Use late materialization for any size, a few labels at a time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in EVERYWHERE.items():
            patch.setattr(late_materialization, name, value)
        patch.setattr(late_materialization, "_CHUNK_BYTES", 500)
        yield


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def spilling_engine(scratch: Path) -> Iterator[DuckDBEngine]:
    engine = DuckDBEngine(threads=2, temp_directory=str(scratch))
    yield engine
    engine.close()


@pytest.fixture
def retrieval(spilling_engine: DuckDBEngine, tmp_path: Path) -> RetrievalCheck:
    return RetrievalCheck(spilling_engine, tmp_path, spilling_engine)


@settings(max_examples=60, deadline=None)
@given(shape=SHAPES, count=st.integers(1, 50), seed=st.integers(0, 2**32 - 1))
def test_every_combination_of_rules_agrees_with_the_oracle(
    spilling_engine: DuckDBEngine, shape: JoinShape, count: int, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        check_cases(
            RetrievalCheck(spilling_engine, Path(directory), spilling_engine),
            shape,
            count=count,
            seed=seed,
        )


@pytest.mark.parametrize("join", ["left", "inner"])
def test_late_materialization_joins_several_files(
    retrieval: RetrievalCheck, spilling_engine: DuckDBEngine, join: str
) -> None:
    random = np.random.default_rng(5)
    hours = random.permutation(400)
    readings = {
        "key": (hours % 7).tolist(),
        "t": [hours_after_t0(hour) for hour in hours.tolist()],
        "place": [f"p{hour % 3}" for hour in hours.tolist()],
        "text": [None if hour % 5 == 0 else "x" * (hour % 9) for hour in hours.tolist()],
        "list": [[hour] * (hour % 3) for hour in hours.tolist()],
    }
    roles = {"primary_key": ("key",), "event_time": "t", "ttl": timedelta(hours=100)}
    retrieval.group("readings", readings, unique=True, commits=3, partition_by=("place",), **roles)
    prices = {
        "shop": random.permutation(20).tolist(),
        "t": [hours_after_t0(hour) for hour in random.integers(0, 300, 20).tolist()],
        "price": random.random(20).tolist(),
    }
    retrieval.group("prices", prices, unique=True, primary_key=("shop",), event_time="t")
    request = {
        "n": list(range(300)),
        "key": random.integers(0, 9, 300).tolist(),
        "shop": random.integers(0, 25, 300).tolist(),
        "asked_at": [hours_after_t0(hour) for hour in random.integers(0, 450, 300).tolist()],
    }
    retrieval.group("asked", request, commits=4, primary_key=("n",), event_time="asked_at")
    expected = ["readings.text", "readings.list", "readings.place", "prices.price"]
    every = [*expected, "readings.text as again"]
    assert late_materialization.is_worthwhile(
        spilling_engine.database, retrieval.plan(every, "asked", join=join)
    )
    actual = retrieval.check(every, "asked", join=join)
    assert len(actual) == 300 if join == "left" else 0 < len(actual) < 300
    in_memory = pa.table({name: request[name] for name in ("n", "key", "shop")})
    times = make_labels(asked_at=request["asked_at"]).column("asked_at")
    labels = in_memory.append_column("asked_at", times)
    retrieval.check(expected, labels, label_time="asked_at", join=join)


def test_abandoned_read_removes_spool_files(
    retrieval: RetrievalCheck, spilling_engine: DuckDBEngine, scratch: Path
) -> None:
    rows = {"key": list(range(100)), "t": [hours_after_t0(0)] * 100, "x": list(range(100))}
    retrieval.group("rows", rows, unique=True, primary_key=("key",), event_time="t")
    request = {"key": list(range(100)), "asked_at": [hours_after_t0(1)] * 100}
    retrieval.group("asked", request, primary_key=("key",), event_time="asked_at")
    relation = spilling_engine.retrieve(retrieval.plan(["rows.x"], "asked"))
    assert isinstance(relation, MappedRelation)
    assert isinstance(relation.source, late_materialization.LateMaterialization)
    batches = relation.source.batches()
    first = next(batches)
    assert first.column("x").to_pylist() == first.column("key").to_pylist()
    assert first.num_rows < 100
    batches.close()  # type: ignore[attr-defined]  # a generator
    assert list(scratch.rglob("*.arrow")) == []
    assert spilling_engine.count(relation) == 100


def test_late_materialization_exports_equal_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(1)
    count = 5_000
    times = make_labels(t=[hours_after_t0(hour) for hour in range(count)])["t"]
    rows = {"key": random.integers(0, 50, count), "t": times, "x": random.random(count)}
    request = {"n": np.arange(count), "key": random.integers(0, 60, count), "t": times}
    request["y"] = random.integers(0, 2, count)
    actual = []
    for share in (-1, 1):
        monkeypatch.setattr(late_materialization, "_MEMORY_FRACTION", share)
        with featurestore.connect(tmp_path / str(share), engine="duckdb") as store:
            store.create_featuregroup(pa.table(rows), "rows", primary_key="key", event_time="t")
            store.create_featuregroup(
                pa.table(request), "asked", primary_key=("n",), event_time="t"
            )
            frame = store.get_features(["rows.x"], labels="asked")
            dataset = store.create_training_dataset(frame, "made", label="y", shards=3)
            for split in dataset.manifest.splits:
                actual.append([shard.sha256 for shard in split.shards])
    assert actual[0] == actual[1]


@pytest.mark.parametrize(
    ("rows", "columns", "limit", "is_by_place"),
    [
        (2_000_000, 10, "200MB", True),
        (2_000_000, 10, "4GB", False),  # they fit
        (2_000_000, 1, "20MB", False),  # a place weighs as much as the feature
        (200_000, 10, "10MB", False),  # so few are sorted at once whatever the limit is
        (None, 10, "200MB", False),  # unknown
    ],
)
def test_late_materialization_is_used_beyond_memory(
    rows: int | None,
    columns: int,
    limit: str,
    is_by_place: bool,
    retrieval: RetrievalCheck,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in DEFAULTS.items():
        monkeypatch.setattr(late_materialization, name, value)
    names = [f"x{number}" for number in range(columns)]
    inputs = {"key": [1], "t": [hours_after_t0(0)], **{name: [0.5] for name in names}}
    source = retrieval.group("rows", inputs, unique=True, primary_key=("key",), event_time="t")
    retrieval.sources["rows", 1] = replace(source, rows=rows)
    request = {"key": [1], "asked_at": [hours_after_t0(1)]}
    labels = retrieval.group("asked", request, primary_key=("key",), event_time="asked_at")
    retrieval.sources["asked", 1] = replace(labels, rows=500_000)
    plan = retrieval.plan([f"rows.{name}" for name in names], "asked")
    database = DuckDBEngine(memory_limit=limit).database
    assert late_materialization.is_worthwhile(database, plan) == is_by_place
    database.close()


def test_rows_out_of_file_order_raise(
    retrieval: RetrievalCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"key": list(range(9)), "t": [hours_after_t0(0)] * 9, "x": list(range(9))}
    retrieval.group("rows", rows, unique=True, primary_key=("key",), event_time="t")
    labels = {"key": list(range(9)), "asked_at": [hours_after_t0(1)] * 9}
    retrieval.group("asked", labels, primary_key=("key",), event_time="asked_at")
    ascending = relations.read_positions

    def descending(*arguments: Any, **keywords: Any) -> Relation:
        relation = ascending(*arguments, **keywords)
        return replace(relation, native=relation.native.order(f"{relations.POSITION} DESC"))

    monkeypatch.setattr(relations, "read_positions", descending)
    with pytest.raises(EngineError, match="did not return the rows of a table in file order"):
        retrieval.run(retrieval.plan(["rows.x"], "asked"))
