"""Stream records are parsed like lines of JSON files."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from featurestore.arrow.types import TIMESTAMP
from featurestore.model.stream import StreamSpec
from featurestore.plugins.source import DecoderRequest
from featurestore.sources import SourceFrame

decoding = pytest.importorskip("featurestore_connectors.kafka.decoding")
Lake = Callable[..., SourceFrame]

TEXTS = [
    '{"id": 17, "x": "8E1A9A4E-3B1F-4C2D-9C60-ABCDEF012345"}',
    '{"id": 17, "id": 18, "x": "a"}',
    '{"id": 17, "x": "a",}',
    '{"id": NaN, "x": "a"}',
    '{"id": 1.0, "x": "a"}',
    '{"id": 9223372036854775808, "x": "a"}',
    '{"id": "17", "x": "a"}',
    '{"id": 17, "x": "\\ud800"}',
    '{"id": 17, "x": "a\\u0000b"}',
    '{"id": 17, "x": "2024-01-01"}',
    '{"id": 17, "x": "a", "at": "2024-01-01T00:00:00.123456789Z"}',
    '{"id": 17, "x": "a", "at": "2024-01-01T00:00:00.123456Z"}',
    '{"id": 17, "x": "a", "at": "0000-01-01T00:00:00Z"}',
    '{"id": 17, "x": "a", "at": "-0044-03-15T00:00:00Z"}',
    "[" * 50_000,
    "[1]",
    "null",
    "",
]


def decode(texts: list[str]) -> list[dict[str, object]]:
    schema = pa.schema([("id", pa.int64()), ("x", pa.string()), ("at", TIMESTAMP)])
    spec = StreamSpec(source="events", topic="events", schema=schema, format="json", fields={})
    count = len(texts)
    columns = [
        pa.array(["events"] * count),
        pa.array([0] * count, pa.int32()),
        pa.array(range(count), pa.int64()),
        pa.array([0] * count, pa.int64()).cast(TIMESTAMP),
        pa.array([b"k"] * count, pa.binary()),
        pa.array([text.encode() for text in texts], pa.binary()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=decoding.RECORDS)
    rows: list[dict[str, object]] = decoding.decoder(spec, DecoderRequest(("id",)))(
        batch
    ).to_pylist()
    return rows


def test_stream_records_equal_file_lines(lake: Lake) -> None:
    good = '{"id": 1, "x": "x", "at": "2024-01-01T00:00:00Z"}'
    for text, row in zip(TEXTS, decode(TEXTS), strict=True):
        frame = lake(
            {"a.jsonl": f"{good}\n{text}\n"},
            dtypes={"id": "int64", "at": "timestamp"},
            on_bad_rows="quarantine",
        )
        lines = frame.to_arrow().to_pylist()
        if row["record_error"] is None:
            assert lines[1] == {name: row[name] for name in ("id", "x", "at")}
        else:
            assert len(lines) == 1, text


def test_json_rows_are_independent_of_batches() -> None:
    all_rows = decode(TEXTS)
    for size in (1, 3, 7):
        batches = [decode(TEXTS[start : start + size]) for start in range(0, len(TEXTS), size)]
        for row, expected in zip(
            [row for batch in batches for row in batch], all_rows, strict=True
        ):
            assert {**row, "record_offset": 0} == {**expected, "record_offset": 0}


def test_json_timestamps_keep_their_instants() -> None:
    text = json.dumps({"id": 1, "x": None, "at": "2024-01-01 01:00:00+01:00"})
    (row,) = decode([text])
    assert (row["at"], row["record_error"]) == (datetime(2024, 1, 1, tzinfo=UTC), None)
