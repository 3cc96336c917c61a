"""Tables round-trip through any CSV dialect, or are refused by file and line."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Sequence
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.errors import InvalidSourceFile
from featurestore.model.source import options_from_strings, options_to_strings
from featurestore.plugins.source import SourceConfig, SourceQuery
from featurestore_connectors.sources.folder import FolderSource

DIALECTS: list[dict[str, Any]] = [
    {},
    {"delimiter": ";"},
    {"delimiter": "tab"},
    {"delimiter": "|", "quote": "'"},
    {"delimiter": ";", "decimal": ","},
    {"escape": "\\"},
    {"encoding": "utf-16"},
    {"encoding": "utf-8-sig"},
    {"comment": "#"},
    {"skip_rows": 2},
    {"null_values": ["NULL"]},
    {"header": False, "names": ["text", "number", "day"]},
]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
ROWS = st.lists(
    st.tuples(
        st.none() | TEXT,
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
        st.none() | st.dates(),
    ),
    max_size=6,
)
SIGNS = ",;\t|\"'\\#\r\n \ufeffNULL"


def write(rows: Sequence[tuple[Any, ...]], dialect: dict[str, Any]) -> bytes:
    """Write a CSV file with Python: strings quoted, null as an empty field."""
    text = io.StringIO(newline="")
    text.write("a line\n" * dialect.get("skip_rows", 0))
    text.write("# a comment\n" if "comment" in dialect else "")
    delimiter = {"tab": "\t"}.get(dialect.get("delimiter", ","), dialect.get("delimiter", ","))
    quote = dialect.get("quote", '"')
    writer = csv.writer(text, delimiter=delimiter, quotechar=quote, lineterminator="\n")
    if dialect.get("header", True):
        writer.writerow(["text", "number", "day"])
    null = dialect.get("null_values", [""])[0]
    for word, number, day in rows:
        fields = [null, null, null]
        if word is not None:
            escaped = word.replace("\\", "\\\\") if "escape" in dialect else word
            fields[0] = quote + escaped.replace(quote, quote * 2) + quote
        if number is not None:
            fields[1] = repr(number).replace(".", dialect.get("decimal", "."))
            if delimiter in fields[1]:
                fields[1] = f"{quote}{fields[1]}{quote}"
        if day is not None:
            fields[2] = day.isoformat()
        text.write(delimiter.join(fields) + "\n")
    return text.getvalue().encode(dialect.get("encoding", "utf-8"))


def read(content: bytes, dialect: dict[str, Any], dtypes: dict[str, str]) -> list[tuple[Any, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.csv").write_bytes(content)
        options = options_to_strings({**dialect, "dtypes": dtypes})
        with closing(FolderSource(SourceConfig("lake", folder, options)).snapshot()) as snapshot:
            table = snapshot.read(SourceQuery()).read_all()
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
@settings(max_examples=25, deadline=None)
@given(rows=ROWS | st.lists(st.tuples(st.text(SIGNS, max_size=4), st.none(), st.none())))
def test_csv_round_trip_keeps_tables(dialect: dict[str, Any], rows: list[tuple[Any, ...]]) -> None:
    content = write(rows, dialect)
    dtypes = {"text": "string", "number": "double", "day": "date"}
    null = dialect.get("null_values", [""])[0]
    expected = [(None if null and row[0] == null else row[0], *row[1:]) for row in rows]
    assert read(content, dialect, dtypes) == expected


@settings(max_examples=120, deadline=None)
@given(st.text(',"\n1a\r', max_size=24))
def test_csv_source_equals_strict_parser_or_refuses(text: str) -> None:
    content = f"a,b\n{text}"
    types = {"a": "string", "b": "string"}
    if not _is_strict(content):
        with pytest.raises(InvalidSourceFile, match=r"a\.csv line \d+"):
            read(content.encode(), {}, types)
        return
    actual = read(content.encode(), {}, types)
    expected = [tuple(fields) for fields in _records(content) if fields]
    assert [tuple(cell or "" for cell in row) for row in actual] == expected


def _records(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))[1:]


def _is_strict(text: str) -> bool:
    try:
        return all(len(fields) in (0, 2) for fields in _records(text))
    except csv.Error:
        return False


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["header", "names", "dtypes", "quote"]),
        st.text(max_size=4)
        | st.sampled_from(["true", "01", "-0", "[]", '["a","b"]', '{"a": 1}', "null", '"x"', "1e3"])
        | st.booleans()
        | st.integers()
        | st.lists(TEXT)
        | st.dictionaries(TEXT, TEXT),
    )
)
def test_repeated_options_are_the_stored_ones(options: dict[str, Any]) -> None:
    strings = options_to_strings(options)
    values = options_from_strings(strings)
    assert options_to_strings(values) == strings
    for name, value in options.items():
        assert type(value) is str or values[name] == value


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=1),
    st.lists(st.booleans() | st.none(), min_size=1),
    st.lists(st.dates() | st.none(), min_size=1),
)
def test_csv_type_inference_keeps_written_types(
    numbers: list[int | None], flags: list[bool | None], days: list[date | None]
) -> None:
    for values, dtype in ((numbers, pa.int64()), (flags, pa.bool_()), (days, pa.date32())):
        lines = ["x,y"]
        for value in values:
            lines.append(f"{'' if value is None else str(value)},1")
        actual = read("\n".join(lines).encode(), {}, {})
        if any(value is not None for value in values):
            assert [row[0] for row in actual] == pa.array(values, dtype).to_pylist()
        else:
            assert [row[0] for row in actual] == values
