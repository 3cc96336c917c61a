"""Committed rows of a key do not depend on micro-batch boundaries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.errors import InvalidJob
from featurestore.model.job import JobSpec
from featurestore.store import FeatureStore

pytest.importorskip("confluent_kafka")

from tests.streams.memory_topics import MemoryTopics, Record, quarantined, rows_of, run

DAYS = ("2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z")
COLD = [{"type": "expect_column_values_to_be_between", "kwargs": {"column": "x", "max_value": 5}}]


def job(name: str, **arguments: Any) -> JobSpec:
    return featurestore.stream_job(
        name,
        source="events",
        topic="events",
        schema={"id": "int64", "at": "timestamp", "x": "int64"},
        primary_key="id",
        event_time="at",
        **arguments,
    ).spec


def record(key: int, day: int, x: int) -> Record:
    value = {"id": key, "at": DAYS[day], "x": x}
    return str(key).encode(), json.dumps(value).encode()


def tombstone(key: int) -> Record:
    return str(key).encode(), None


def expected(
    records: Sequence[Record], on_duplicates: str, mode: str, most: int | None
) -> tuple[list[tuple[Any, ...]], int]:
    """Apply the records one by one; return the rows and the number of quarantined records."""
    rows: dict[tuple[int, str], int] = {}
    quarantine_count = 0
    for key, value in records:
        if value is None:
            quarantine_count += mode == "append"
            if mode == "upsert":
                assert key is not None
                rows = {row_key: x for row_key, x in rows.items() if row_key[0] != int(key)}
            continue
        document = json.loads(value)
        row_key = (document["id"], document["at"])
        if most is not None and document["x"] > most:
            quarantine_count += 1
        elif row_key in rows and on_duplicates != "last":
            quarantine_count += on_duplicates == "quarantine"
        else:
            rows[row_key] = document["x"]
    return sorted((*row_key, x) for row_key, x in rows.items()), quarantine_count


RECORDS = st.one_of(
    st.builds(record, st.integers(0, 2), st.integers(0, 1), st.integers(0, 9)),
    st.builds(tombstone, st.integers(0, 2)),
)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    records=st.lists(RECORDS, min_size=2, max_size=14),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    policy=st.sampled_from(["last", "first", "quarantine", "upsert"]),
    checked=st.booleans(),
)
def test_stream_rows_are_independent_of_batch_boundaries(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[Record],
    sizes: list[int],
    policy: str,
    checked: bool,
) -> None:
    mode = "upsert" if policy == "upsert" else "append"
    on_duplicates = "last" if policy == "upsert" else policy
    partitions: list[list[Record]] = [[], []]
    for record in records:
        assert record[0] is not None
        partitions[int(record[0]) % 2].append(record)  # one key is in one partition
    store = featurestore.connect(tmp_path_factory.mktemp("stream") / "store")
    spec = job(
        "g", mode=mode, on_duplicates=on_duplicates, expectations=COLD if checked else (),
        most_bad=1.0, statistics=False,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        run(patched, store, spec, MemoryTopics(partitions, sizes))
    rows, quarantine_count = expected(
        [*partitions[0], *partitions[1]], on_duplicates, mode, 5 if checked else None
    )
    actual = []
    for row in rows_of(store, "g"):
        actual.append((row["id"], row["at"].strftime("%Y-%m-%dT%H:%M:%SZ"), row["x"]))
    assert sorted(actual) == rows
    assert len(quarantined(store, "g")) == quarantine_count
    store.close()


@pytest.mark.parametrize("size", [1, 100])
def test_duplicate_record_is_written_once(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    topics = MemoryTopics([[record(1, 0, 5), record(1, 0, 5), record(2, 0, 6)]], [size])
    run(monkeypatch, empty_store, job("g"), topics)
    assert [(row["id"], row["x"]) for row in rows_of(empty_store, "g")] == [(1, 5), (2, 6)]
    assert quarantined(empty_store, "g") == []


def test_quarantined_duplicate_has_offset_value_and_reason(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = MemoryTopics([[record(1, 0, 5), record(1, 0, 6)]], [2])
    run(monkeypatch, empty_store, job("g", on_duplicates="quarantine"), topics)
    (row,) = quarantined(empty_store, "g")
    assert (row["record_offset"], row["x"]) == (1, 6)
    assert (row["record_key"], row["record_value"]) == record(1, 0, 6)
    assert row["reasons"] == ["another record has the same key and times"]


def test_tombstone_deletes_earlier_rows_only(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [record(1, 0, 1), record(1, 1, 2), record(2, 0, 3), tombstone(1)]
    topics = MemoryTopics([records], [3])
    run(monkeypatch, empty_store, job("g", mode="upsert"), topics)
    assert [row["id"] for row in rows_of(empty_store, "g")] == [2]
    topics = MemoryTopics([[*records, record(1, 0, 9), (b"x", None), (None, None)]], [3])
    run(monkeypatch, empty_store, job("g", mode="upsert"), topics)
    assert [(row["id"], row["x"]) for row in rows_of(empty_store, "g")] == [(1, 9), (2, 3)]
    reasons = [row["reasons"][0] for row in quarantined(empty_store, "g")]
    assert reasons == [
        "the key: id is a string ('x'), which is not int64",
        "the record has neither key nor value",
    ]


def test_stream_upsert_keeping_first_duplicate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="mode='upsert' does not support on_duplicates='first'"):
        job("g", mode="upsert", on_duplicates="first")
    with pytest.raises(InvalidJob, match="on_duplicates='latest'"):
        job("g", on_duplicates="latest")
