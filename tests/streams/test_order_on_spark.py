"""Records of one key are written in the same order on Spark as on the embedded engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import featurestore
from featurestore.plugins.engine import Engine
from featurestore.plugins.source import MicroBatch

pytest.importorskip("confluent_kafka")

from featurestore.featuregroups.table import open_group
from featurestore.streams import replay as replays
from tests.streams.memory_topics import MemoryTopics, Record, quarantined, rows_of, run
from tests.streams.test_stream_duplicates import COLD, job, record, tombstone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from featurestore.model.stream import StreamSpec

pytestmark = pytest.mark.spark


@dataclass
class SparkTopics(MemoryTopics):
    """Return micro-batches as Spark frames."""

    def batch(
        self, spec: StreamSpec, start: Mapping[int, int], end: Mapping[int, int], *, engine: Engine
    ) -> MicroBatch:
        batch = super().batch(spec, start, end, engine=engine)
        frame = engine.from_arrow(batch.records.to_reader()).native
        return MicroBatch(frame, batch.start, batch.end)


RECORDS: list[Record] = [
    record(1, 0, 1),
    record(2, 0, 2),
    record(1, 0, 3),
    (b"2", b"no JSON"),
    tombstone(2),
    record(2, 1, 4),
    record(3, 0, 9),
    record(1, 0, 5),
]


@pytest.mark.parametrize(
    ("arguments", "expected", "quarantine_offsets"),
    [
        ({"mode": "upsert"}, [(1, 5), (2, 4), (3, 9)], [3]),
        pytest.param(
            {"on_duplicates": "quarantine", "expectations": COLD},
            [(1, 1), (2, 2), (2, 4)],
            [2, 3, 4, 6, 7],
            marks=pytest.mark.soak,
        ),
    ],
)
def test_spark_stream_writes_records_in_key_order(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    expected: list[tuple[int, int]],
    quarantine_offsets: list[int],
) -> None:
    store = featurestore.connect(tmp_path / "store", engine="spark")
    spec = job("g", statistics=False, **arguments)
    topics = SparkTopics([RECORDS], [3, 2, 3])
    run(monkeypatch, store, spec, topics)
    assert sorted((row["id"], row["x"]) for row in rows_of(store, "g")) == expected
    assert [row["record_offset"] for row in quarantined(store, "g")] == quarantine_offsets
    monkeypatch.setattr(replays, "open_streams", lambda session, stream: topics)
    actual = replays.replay(store.session, spec.name, spec.work, open_group(store.session, "g"))
    assert (actual.rows, actual.left) == (0, len(quarantine_offsets))
