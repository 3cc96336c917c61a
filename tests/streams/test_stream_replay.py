"""The quarantine of streams: listing, and replay after a fix."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import featurestore
from featurestore.cli.main import app
from featurestore.errors import InvalidJob
from featurestore.model.job import JobSpec
from featurestore.registry import jobs
from featurestore.store import FeatureStore
from featurestore.streams import replay as replays

pytest.importorskip("confluent_kafka")

from tests.streams.memory_topics import MemoryTopics, Record, quarantined, rows_of, run

COLUMNS = {"id": "int64", "at": "timestamp", "x": "int64"}
EVENT_TIME = "2024-01-01T00:00:00Z"


def job(**arguments: Any) -> JobSpec:
    options = {"schema": COLUMNS, "primary_key": "id", "event_time": "at", **arguments}
    return featurestore.stream_job("g", source="events", topic="events", **options).spec


def record(**members: Any) -> Record:
    return b"k", json.dumps({"at": EVENT_TIME, **members}).encode()


def registered(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch, spec: JobSpec, topics: MemoryTopics
) -> None:
    monkeypatch.setattr(replays, "open_streams", lambda session, stream: topics)
    with store.session.registry.transaction() as connection:
        jobs.register(connection, spec, origin="jobs.py", watermark=None)


def test_stream_quarantine_has_record_positions(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = MemoryTopics([[record(id=1, x=1), (b"key", b"not json")]])
    run(monkeypatch, empty_store, job(), topics)
    columns = empty_store.get_featuregroup_quarantine("g").columns
    assert columns == [
        *("id", "at", "x", "reasons", "record_topic", "record_partition"),
        *("record_offset", "record_timestamp", "record_key", "record_value"),
    ]
    table = empty_store.get_featuregroup_quarantine("g").to_arrow().to_pylist()
    assert (table[0]["record_topic"], table[0]["record_offset"]) == ("events", 1)
    assert (table[0]["record_key"], table[0]["record_value"]) == (b"key", b"not json")


def test_replay_writes_readable_records_and_keeps_others(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [record(id=1, x=1), record(id=2, x=2.5), record(id="three"), record(id=4, x=7.5)]
    rule = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "x", "max_value": 4}}
    first = job(expectations=[rule])
    topics = MemoryTopics([records])
    run(monkeypatch, empty_store, first, topics)
    assert [row["id"] for row in rows_of(empty_store, "g")] == [1]
    fixed = job(schema={"id": "int64", "at": "timestamp", "x": "int64", "y": "string"})
    registered(empty_store, monkeypatch, fixed, topics)
    actual = empty_store.replay_quarantine("g")
    assert (actual.rows, actual.left) == (0, 3)
    monkeypatch.setattr(
        MemoryTopics, "decoder", lambda self, spec, request: _rounding(spec, request)
    )
    actual = empty_store.replay_quarantine("g")
    assert actual.rows == 1
    assert dict(actual.reasons) == {
        "id is a string ('three'), which is not int64": 1,
        "the row fails validation, or the group already has a row with its key and times": 1,
    }
    assert sorted(row["id"] for row in rows_of(empty_store, "g")) == [1, 2]
    assert [row["record_offset"] for row in quarantined(empty_store, "g")] == [2, 3]
    assert empty_store.replay_quarantine("g").rows == 0
    assert len(rows_of(empty_store, "g")) == 2


def _rounding(spec: Any, request: Any) -> Any:
    """Return a fixed decoder that rounds numbers down."""
    from featurestore_connectors.kafka import decoding

    decode = decoding.decoder(spec, request)

    def fixed(batch: Any) -> Any:
        import pyarrow as pa

        values = [value.replace(b".5", b"") for value in batch.column("value").to_pylist()]
        index = batch.schema.get_field_index("value")
        columns = list(batch.columns)
        columns[index] = pa.array(values, pa.binary())
        return decode(pa.RecordBatch.from_arrays(columns, batch.schema.names))

    return fixed


@pytest.mark.parametrize("key", ["id", ()])
def test_replay_interrupted_between_commits_writes_no_duplicates(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch, key: Any
) -> None:
    topics = MemoryTopics([[record(id=1, x=1.5), record(id=2, x=2.5), record(id="three")]])
    spec = job(primary_key=key)
    run(monkeypatch, empty_store, spec, topics)
    registered(empty_store, monkeypatch, spec, topics)
    monkeypatch.setattr(
        MemoryTopics, "decoder", lambda self, spec, request: _rounding(spec, request)
    )

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(replays, "_remove_records", dies)
        with pytest.raises(KeyboardInterrupt):
            empty_store.replay_quarantine("g")
    assert len(rows_of(empty_store, "g")) == 2
    assert len(quarantined(empty_store, "g")) == 3
    result = empty_store.replay_quarantine("g")
    assert (result.rows, result.left) == (0, 1)
    assert len(rows_of(empty_store, "g")) == 2
    assert len(quarantined(empty_store, "g")) == 1


def test_replay_does_not_replace_newer_rows(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = MemoryTopics([[record(id=1, x=1.5), record(id=1, x=9)]])
    run(monkeypatch, empty_store, job(), topics)
    registered(empty_store, monkeypatch, job(), topics)
    monkeypatch.setattr(
        MemoryTopics, "decoder", lambda self, spec, request: _rounding(spec, request)
    )
    actual = empty_store.replay_quarantine("g")
    assert (actual.rows, actual.left) == (0, 1)
    assert [row["x"] for row in rows_of(empty_store, "g")] == [9]


def test_replay_without_group_is_refused(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(empty_store, monkeypatch, job(), MemoryTopics([[]]))
    with pytest.raises(InvalidJob, match="no feature group with its current columns yet"):
        empty_store.replay_quarantine("g")


def test_replay_command_prints_counts_and_reasons(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = MemoryTopics([[record(id=1, x=1.5), record(id="two")]])
    run(monkeypatch, empty_store, job(), topics)
    registered(empty_store, monkeypatch, job(), topics)
    monkeypatch.setattr(
        MemoryTopics, "decoder", lambda self, spec, request: _rounding(spec, request)
    )
    result = CliRunner().invoke(app, ["--location", empty_store.location, "stream", "replay", "g"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "1 records written, 1 remain in quarantine",
        "  1: id is a string ('two'), which is not int64",
    ]
