"""JSON files of other tools: RFC 8259, one type per column, errors by file and line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from featurestore.errors import InvalidSourceFile
from featurestore.sources import SourceFrame

Lake = Callable[..., SourceFrame]
UUID = "8E1A9A4E-3B1F-4C2D-9C60-ABCDEF012345"


def rows(frame: SourceFrame) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = frame.to_arrow().to_pylist()
    return result


def test_json_strings_stay_strings(lake: Lake) -> None:
    texts = [UUID, "0123", "x", "", "a\u0000b", "2024-01-01", 'q"']
    lines = "".join(json.dumps({"s": text}) + "\n" for text in texts)
    assert [row["s"] for row in rows(lake({"a.jsonl": lines}))] == texts
    assert rows(lake({"a.jsonl": json.dumps({"s": [UUID]})})) == [{"s": [UUID]}]


def test_mixed_kinds_are_refused_or_read_as_text(lake: Lake) -> None:
    files: dict[str, str | bytes] = {
        "a.jsonl": '{"x": "x", "l": ["a"]}\n\n',
        "b.jsonl": '{"x": null, "l": [1.50]}\n{"x": 1.50, "l": null}\n',
    }
    with pytest.raises(
        InvalidSourceFile,
        match=r"'x' has a string at a\.jsonl line 1 and a number at b\.jsonl line 2",
    ) as error:
        lake(files)
    assert "dtypes={'x': 'string'}" in str(error.value)
    with pytest.raises(InvalidSourceFile, match=r"'l\[\]' has a string at a\.jsonl line 1"):
        lake(files, dtypes={"x": "string"})
    frame = lake(files, dtypes={"x": "string", "l": "list<string>"})
    assert rows(frame) == [
        {"x": "x", "l": ["a"]},
        {"x": None, "l": ["1.50"]},
        {"x": "1.50", "l": None},
    ]


@pytest.mark.parametrize(
    "line",
    ['{"id": 1,}', '{"id": NaN}', '{"id": Infinity}', '{"id": 17, "id": 18}', "[1]", "{", "1"],
)
def test_invalid_lines_are_refused_or_counted(lake: Lake, line: str) -> None:
    files: dict[str, str | bytes] = {"a.jsonl": f'{{"id": 1}}\n{line}\n{{"id": 2}}\n'}
    with pytest.raises(InvalidSourceFile, match=r"a\.jsonl line 2: the value is"):
        lake(files)
    frame = lake(files, on_bad_rows="quarantine")
    assert rows(frame) == [{"id": 1}, {"id": 2}]
    (bad,) = frame.quarantine().to_pylist()
    assert (bad["file"], bad["line"], bad["text"]) == ("a.jsonl", 2, line)


def test_names_with_nul_are_renamed(lake: Lake) -> None:
    text = '{"a\\u0000b": 1, "a": 2}\n'
    frame = lake({"a.jsonl": text}, rename={"a\0b": "ab"})
    assert rows(frame) == [{"ab": 1, "a": 2}]


def test_json_is_read_with_byte_order_mark(lake: Lake) -> None:
    assert rows(lake({"a.jsonl": '{"x": "é"}\n'.encode("utf-8-sig")})) == [{"x": "é"}]
    assert rows(lake({"a.json": '[{"x": "é"}]'.encode("utf-8-sig")}, format="json"))
    with pytest.raises(InvalidSourceFile, match=r"a\.jsonl line 2: the bytes are not UTF-8"):
        lake({"a.jsonl": b'{"x": 1}\n{"x": "\xff"}\n'})


def test_format_json_reads_documents(lake: Lake) -> None:
    items = [{"id": number, "tags": ["a\n", None]} for number in range(20_000)]
    for text in (json.dumps(items), json.dumps(items, indent=2), f" {json.dumps(items)}\n"):
        assert rows(lake({"a.json": text}, format="json")) == items
    pretty = "\n".join(json.dumps(item, indent=1) for item in items[:3])
    assert rows(lake({"a.json.gz": gzip.compress(pretty.encode())}, format="json")) == items[:3]
    assert rows(lake({"a.json": "[]", "b.json": '{"id": 1}'}, format="json")) == [{"id": 1}]
    with pytest.raises(InvalidSourceFile, match="an array, not an object") as error:
        lake({"a.json": '[{"id": 1}]'})
    assert "format='json'" in str(error.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[{"id": 1},\n{"id": 2,}]', "line 2: the record that begins here is not JSON"),
        ('[{"id": 1}\n{"id": 2}]', "line 2: the array is not closed"),
        ('[{"id": 1}', "the array is not closed"),
        ('[{"id": 1}] {"id": 2}', "text follows the array"),
        ('[{"id": 1}, 2]', "a number, not an object"),
        ('[{"id": 1},]', "not JSON"),
        ('"x"', "a string, not an object"),
    ],
)
def test_invalid_documents_are_refused_by_line(lake: Lake, text: str, reason: str) -> None:
    with pytest.raises(InvalidSourceFile, match=reason):
        lake({"a.json": text}, format="json")


def test_numbers_keep_their_digits_or_are_refused(lake: Lake) -> None:
    digits = "9223372036854775808"
    frame = lake({"a.jsonl": f'{{"x": {digits}}}\n'})
    assert (frame.schema.field("x").type, rows(frame)) == (pa.uint64(), [{"x": int(digits)}])
    with pytest.raises(InvalidSourceFile, match=r"beyond 64 bits at a\.jsonl line 2"):
        lake({"a.jsonl": f'{{"x": -1}}\n{{"x": {digits}}}\n'})
    with pytest.raises(
        InvalidSourceFile,
        match=r"floats, and an integer that float64 cannot represent, at a\.jsonl line 2",
    ):
        lake({"a.jsonl": '{"x": 1.5}\n{"x": 9007199254740993}\n'})
    assert rows(lake({"a.jsonl": f'{{"x": {digits}0}}\n'}, dtypes={"x": "string"})) == [
        {"x": f"{digits}0"}
    ]


def test_nanoseconds_are_refused_or_rounded(lake: Lake) -> None:
    files: dict[str, str | bytes] = {"a.jsonl": '{"at": "2024-01-01T00:00:00.123456789Z"}\n'}
    with pytest.raises(InvalidSourceFile, match=r"a\.jsonl line 1: at: .*nanoseconds"):
        rows(lake(files))
    (row,) = rows(lake(files, timestamp_precision="us"))
    assert row["at"] == datetime(2024, 1, 1, 0, 0, 0, 123457, tzinfo=UTC)


def test_later_files_with_new_names_are_refused(lake: Lake) -> None:
    frame = lake({"a.jsonl": '{"id": 1, "place": {"x": 1}}\n'})
    folder = frame._spec.uri
    for line in ('{"id": 2, "more": 1}', '{"id": "2"}', '{"id": 2, "place": {"y": 1}}'):
        with open(f"{folder}/b.jsonl", "w") as file:
            file.write(f'{{"id": 3}}\n{line}\n')
        with pytest.raises(InvalidSourceFile, match=r"b\.jsonl line 2"):
            rows(frame)


def test_nested_json_values_are_kept(lake: Lake) -> None:
    items = [
        {"p": {"x": 1, "y": [{"z": "a"}, None]}, "q": [[1, 2], []], "n": None},
        {"p": None, "q": None, "n": None},
        {"p": {"x": None, "y": []}, "q": [None, [3]], "n": None},
    ]
    text = "\n".join(map(json.dumps, items))
    assert rows(lake({"a.ndjson": text})) == items
