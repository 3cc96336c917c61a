"""JSON objects as columns: values match the column type or have a reason."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.arrow.json_columns import JsonColumns
from featurestore.arrow.text_values import TextRules
from featurestore.arrow.types import TIMESTAMP

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.uint8()),
        ("share", pa.float64()),
        ("name", pa.string()),
        ("ok", pa.bool_()),
        ("at", TIMESTAMP),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("pair", pa.list_(pa.float32(), 2)),
        ("place", pa.struct([("x", pa.int32()), ("names", pa.list_(pa.string()))])),
    ]
)
WRONG = {
    "id": ["1.0", "true", '"1"', "9223372036854775808", "[1]", "{}"],
    "small": ["-1", "256"],
    "share": ['"1"', "1e400", "12345678901234567891", "false"],
    "name": ["1", "true", '["a"]', '{"a": 1}'],
    "ok": ["1", '"true"'],
    "at": ["0", '"today"', '"2024-02-30T00:00:00Z"', '"2024-01-01T00:00:00.123456789Z"'],
    "day": ['"01/02/2020"', '"2024-02-30"', "20240101"],
    "price": ["1.555", '"1.50"', "123456789"],
    "tags": ['"a"', "[1]", '["a", ["b"]]'],
    "pair": ["[1]", "[1, 2, 3]", '[1, "2"]'],
    "place": ["1", '{"x": "1"}', '{"names": [1]}', "[]"],
}


def test_decode_value_of_other_kind_reports_column(subtests: pytest.Subtests) -> None:
    for name, text in ((name, text) for name, texts in WRONG.items() for text in texts):
        with subtests.test(name, text=text):
            texts = ['{"id": 7}', f'{{"{name}": {text}}}', "{}"]
            columns, reasons = JsonColumns(SCHEMA).decode(texts)
            assert reasons[0] is reasons[2] is None
            assert name in str(reasons[1])
            assert columns["id"].to_pylist()[0] == 7


def test_decode_invalid_object_reports_reason() -> None:
    texts = ["[1]", "null", '{"id": 1, "id": 2}', '{"id": 1,}', None, '{"id": NaN}']
    _, reasons = JsonColumns(SCHEMA).decode(texts)
    assert all(reasons)
    _, (reason,) = JsonColumns(SCHEMA, only_known=True).decode(['{"place": {"z": 1}}'])
    assert "'place.z' is not in the schema" in str(reason)


def test_decode_string_columns_keep_written_text() -> None:
    schema = pa.schema([("name", pa.string()), ("tags", pa.list_(pa.string()))])
    texts = ['{"name": 1.50, "tags": [1, "x", true]}', '{"name": {"a": [1e5, "é"]}}']
    columns, reasons = JsonColumns(schema, texts_of_values=frozenset(schema.names)).decode(texts)
    assert reasons == [None, None]
    assert columns["name"].to_pylist() == ["1.50", '{"a": [1e5, "é"]}']
    assert columns["tags"].to_pylist() == [["1", "x", "true"], None]


def test_decode_times_follow_text_rules() -> None:
    schema = pa.schema([("at", TIMESTAMP), ("day", pa.date32())])
    text = '{"at": "2024-01-01T00:00:00.1234567Z", "day": "31.12.2024"}'
    rules = TextRules(precision="us", date_format="%d.%m.%Y")
    columns, reasons = JsonColumns(schema, rules=rules).decode([text])
    assert reasons == [None]
    assert columns["at"].cast(pa.int64()).to_pylist() == [1704067200123457]
    assert columns["day"].to_pylist()[0].isoformat() == "2024-12-31"


ROWS = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "share": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "name": st.none() | st.text(),
        "ok": st.none() | st.booleans(),
        "tags": st.none() | st.lists(st.none() | st.text(), max_size=3),
        "place": st.none()
        | st.fixed_dictionaries(
            {"x": st.none() | st.integers(-(2**31), 2**31 - 1), "names": st.none()}
        ),
    }
)


@given(st.lists(ROWS, max_size=8))
def test_decode_json_dumps_rows_round_trip(rows: list[dict[str, Any]]) -> None:
    columns, reasons = JsonColumns(SCHEMA, only_known=True).decode(list(map(json.dumps, rows)))
    assert not any(reasons)
    for name in ("id", "share", "name", "ok", "tags", "place"):
        assert columns[name].to_pylist() == [row[name] for row in rows]


FLAT = pa.schema(
    [
        ("i", pa.int64()),
        ("t", pa.int8()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("at", TIMESTAMP),
        ("day", pa.date32()),
    ]
)
SCALARS = st.sampled_from(
    [
        "null",
        "true",
        "0",
        "-0",
        "7",
        "1.5",
        "1e2",
        "1e400",
        "9007199254740993",
        "300",
        "01",
        "NaN",
        "[1]",
        "{}",
        "12345678901234567891",
        "1e39",
        '""',
        '"x"',
        '"é"',
        '"i":1',
        '"\\n"',
        '"\\ud800"',
        '"2024-01-01"',
        '"2024-01-01T00:00:00Z"',
        '"2024-01-01T00:00:00.1234567Z"',
    ]
)
MEMBERS = st.tuples(st.sampled_from([*FLAT.names, "other", "i\\u0000"]), SCALARS)
SPACES = st.sampled_from(["", " ", "\t", "\n"])


@given(st.lists(st.tuples(st.lists(MEMBERS, max_size=4), SPACES, st.booleans()), max_size=6))
def test_decode_batch_equals_decode_each(
    objects: list[tuple[list[tuple[str, str]], str, bool]],
) -> None:
    texts = []
    for members, space, has_comma in objects:
        listed = f",{space}".join(f'"{name}"{space}:{space}{value}' for name, value in members)
        texts.append(f"{{{space}{listed}{',' if has_comma and listed else ''}}}{space}")
    parser = JsonColumns(FLAT)
    columns, reasons = parser.decode(texts)
    expected, expected_reasons = parser._decode_individually(texts)
    assert reasons == expected_reasons
    for row, reason in enumerate(reasons):
        if reason is None:
            for name in FLAT.names:
                assert columns[name][row].as_py() == expected[name][row].as_py()


def test_decode_many_flat_objects_returns_columns() -> None:
    texts = [f'{{"i": {row}, "f": {row / 4}}}' for row in range(120_000)]
    columns, reasons = JsonColumns(FLAT).decode([*texts, "{", '{"s": "\\n"}'])
    assert columns["i"].to_pylist() == [*range(120_000), None, None]
    assert columns["f"][400].as_py() == 100
    assert columns["s"][-1].as_py() == "\n"
    assert [row for row, reason in enumerate(reasons) if reason] == [120_000]
