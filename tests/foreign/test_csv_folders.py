"""CSV files of other tools: no skipped lines or guessed values; errors name the line."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featurestore.errors import InvalidArgument, InvalidSourceFile, SourceTableNotFound
from featurestore.retrieval import FeatureFrame
from featurestore.sources import SourceFrame
from featurestore.store import FeatureStore

Lake = Callable[..., SourceFrame]


def rows(frame: FeatureFrame) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = frame.to_arrow().to_pylist()
    return result


def test_ragged_lines_are_refused_by_line(lake: Lake) -> None:
    ragged = "id,name\n1,a\n2,b\n" + "3,c,d\n" * 200
    with pytest.raises(InvalidSourceFile, match=r"a\.csv line 4: 3 fields, but .* has 2"):
        lake({"a.csv": ragged})
    with pytest.raises(InvalidSourceFile, match=r"a\.csv line 3: 1 field, "):
        lake({"a.csv": "id,name\n1,a\n2\n"})
    # A record of several lines is named by its first one.
    with pytest.raises(InvalidSourceFile, match=r"a\.csv line 5: 3 fields"):
        lake({"a.csv": 'id,name\n1,"a\nb"\n\n2,c,d\n'})


def test_bad_rows_are_counted_in_the_quarantine(lake: Lake) -> None:
    text = 'id,name\n1,a\n2,b,c\n3,"d\ne"\n4\n5,f\n'
    frame = lake({"a.csv": text, "b.csv": "id,name\nx,y,z\n6,g\n"}, on_bad_rows="quarantine")
    assert [row["id"] for row in rows(frame)] == [1, 3, 5, 6]
    bad = frame.quarantine().to_pylist()
    assert [(row["file"], row["line"], row["text"]) for row in bad] == [
        ("a.csv", 3, "2,b,c"),
        ("a.csv", 6, "4"),
        ("b.csv", 2, "x,y,z"),
    ]


def test_invalid_values_are_quarantined(empty_store: FeatureStore, lake: Lake) -> None:
    files: dict[str, str | bytes] = {"a.csv": "id,total\n1,2.5\n2,much\n\n3,\n4,1e400\n"}
    with pytest.raises(InvalidSourceFile, match=r"a\.csv line 3, column 'total': 'much' is not"):
        rows(lake(files, dtypes={"total": "double"}))
    frame = lake(files, dtypes={"total": "double"}, on_bad_rows="quarantine")
    assert rows(frame) == [{"id": 1, "total": 2.5}, {"id": 3, "total": None}]
    assert frame.quarantine().column("line").to_pylist() == [3, 6]
    group = empty_store.create_featuregroup(frame, "totals")
    (read,) = group.history()[0].inputs.values()
    assert (read["rows"], read["quarantined"]) == (2, 2)


def test_header_only_file_has_no_rows(lake: Lake) -> None:
    frame = lake({"a.csv": "t,x\n", "b.csv": "t,x\n1,2\n"})
    assert rows(frame) == [{"t": 1, "x": 2}]
    assert rows(lake({"a.csv": "t,x\n"})) == []
    assert rows(lake({"a.csv": "", "b.csv": "t,x\n1,2\n"})) == [{"t": 1, "x": 2}]
    with pytest.raises(InvalidSourceFile, match="is empty"):
        lake({"a.csv": ""})


def test_files_with_different_columns_are_refused(lake: Lake) -> None:
    files: dict[str, str | bytes] = {"a.csv": "id,x\n1,2\n", "b.csv": "x,id,y\n4,3,5\n"}
    with pytest.raises(
        InvalidSourceFile, match=r"b\.csv has the additional columns 'y', unlike a\.csv"
    ):
        lake(files)
    declared = lake(files, dtypes={"y": "int64"})
    assert rows(declared) == [{"id": 1, "x": 2, "y": None}, {"id": 3, "x": 4, "y": 5}]
    with pytest.raises(InvalidArgument, match=r"'y': the type is nested deeper than 16"):
        lake(files, dtypes={"y": "list<" * 2_000 + "int64" + ">" * 2_000})
    with pytest.raises(InvalidArgument, match=r"no file of source .* has the column 'z'"):
        lake(files, dtypes={"y": "int64", "z": "string"})
    with pytest.raises(InvalidSourceFile, match="duplicate columns 'x'"):
        lake({"a.csv": "x,x\n1,2\n"})


def test_dates_are_read_as_iso_or_date_format(lake: Lake) -> None:
    files: dict[str, str | bytes] = {
        "a.csv": "day,at\n01/02/2020,01.02.2020 10:00\n",
        "b.csv": "day,at\n01/13/2020,13.01.2020 11:30\n",
    }
    assert [row["day"] for row in rows(lake(files))] == ["01/02/2020", "01/13/2020"]
    frame = lake(files, date_format="%m/%d/%Y", timestamp_format={"at": "%d.%m.%Y %H:%M"})
    assert rows(frame) == [
        {"day": date(2020, 1, 2), "at": datetime(2020, 2, 1, 10, tzinfo=UTC)},
        {"day": date(2020, 1, 13), "at": datetime(2020, 1, 13, 11, 30, tzinfo=UTC)},
    ]
    with pytest.raises(InvalidSourceFile, match=r"b\.csv line 2, column 'day': '01/13/2020'"):
        rows(lake(files, date_format="%d/%m/%Y", dtypes={"day": "date"}))
    assert rows(lake({"a.csv": "d\n2024-02-29\n"})) == [{"d": date(2024, 2, 29)}]


def test_types_are_inferred_from_all_files(lake: Lake) -> None:
    assert lake({"a.csv": "x\n1\n", "b.csv": "x\n2.5\n"}).schema.field("x").type == pa.float64()
    assert rows(lake({"a.csv": "x\n1\n", "b.csv": "x\nA2\n"})) == [{"x": "1"}, {"x": "A2"}]
    assert rows(lake({"a.csv": "zip\n01234\n", "b.csv": "zip\n99999\n"}))[1] == {"zip": "99999"}
    assert rows(lake({"a.csv": "x\n" + "1\n" * 50_000 + "y\n"}))[-1] == {"x": "y"}


def test_stored_schema_validates_later_files(empty_store: FeatureStore, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "a.csv").write_text("id,zip\n1,12345\n")
    empty_store.add_source("shop", str(folder))
    report = empty_store.check_source("shop")
    assert report.columns == {"id": "int64", "zip": "int64"}
    assert report.dialect["delimiter"] == ","
    (folder / "b.csv").write_text("id,zip\n2,01234\n")
    with pytest.raises(InvalidSourceFile, match=r"b\.csv line 2, column 'zip': '01234'") as error:
        rows(empty_store.read_source("shop"))
    assert "dtypes={'zip': 'string'}" in str(error.value)
    assert rows(empty_store.read_source("shop", dtypes={"zip": "string"}))[1]["zip"] == "01234"
    (folder / "b.csv").write_text("id,zip,more\n2,3,4\n")
    with pytest.raises(InvalidSourceFile, match=r"b\.csv has the additional columns 'more'"):
        rows(empty_store.read_source("shop"))
    empty_store.remove_source("shop")
    (folder / "b.csv").write_text("id,zip\n2,x\n")
    empty_store.add_source("shop", str(folder))
    assert empty_store.check_source("shop").columns["zip"] == "string"


def test_unclosed_quote_is_refused(lake: Lake) -> None:
    with pytest.raises(InvalidSourceFile, match=r"a\.csv line 3: a quote is opened and never"):
        lake({"a.csv": 'id,x\n1,a\n2,"b\n3,c\n4,d\n'})
    with pytest.raises(InvalidSourceFile, match=r"a\.csv line 2: text follows a closing quote"):
        lake({"a.csv": 'id,x\n1,"b\n2,"c"\n'})
    # A quote within a field, as for inches, is an ordinary character.
    assert rows(lake({"a.csv": 'id,x\n1,5"\n2,a"b\n'}))[0] == {"id": 1, "x": '5"'}
    assert rows(lake({"a.csv": 'id,x\n1,"b\n'}, quote=""))[0]["x"] == '"b'


def test_empty_fields_are_null_unless_quoted(lake: Lake) -> None:
    text = 'id,a,b\n1,,""\n2,NA,"NA"\n3,x,-\n'
    assert rows(lake({"a.csv": text}))[0] == {"id": 1, "a": None, "b": ""}
    nulled = rows(lake({"a.csv": text}, null_values=["NA", "-"]))
    assert [(row["a"], row["b"]) for row in nulled] == [(None, ""), (None, None), ("x", None)]
    assert rows(lake({"a.csv": "x\n1\n\n3\n"})) == [{"x": 1}, {"x": None}, {"x": 3}]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("id;x\n1;2,5\n", {"delimiter": ";", "decimal": ","}, {"id": 1, "x": 2.5}),
        (
            'id;x\n1;"1.234,5"\n',
            {"delimiter": ";", "decimal": ",", "thousands": "."},
            {"x": 1234.5},
        ),
        ("id|x\n1|'a|b'\n", {"delimiter": "|", "quote": "'"}, {"x": "a|b"}),
        ("id,x\n1,a\\,b\n", {"escape": "\\"}, {"x": "a,b"}),
        ("# of shop\n# 2\nid,x\n# no row\n1,#a\n", {"comment": "#"}, {"id": 1, "x": "#a"}),
        ('id,x\n1,"a\n#b"\n', {"comment": "#"}, {"x": "a\n#b"}),
        ("Report\n\nid,x\n1,a\n", {"skip_rows": 2}, {"id": 1, "x": "a"}),
        ("1,a\n", {"header": False, "names": ["id", "x"]}, {"id": 1, "x": "a"}),
        ("id,x\n1,9.99\n", {"dtypes": {"x": "decimal(6, 2)"}}, {"x": Decimal("9.99")}),
        ("id\tx\n1\ta b\n", {"delimiter": "tab"}, {"x": "a b"}),
        ("id,x\n1,a\r\n2,b\r3,c\n", {}, {"id": 1, "x": "a"}),
    ],
)
def test_dialect_options_are_applied(
    lake: Lake, text: str, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    first = rows(lake({"a.csv": text}, **options))[0]
    assert {name: first[name] for name in expected} == expected


def test_encoding_option_decodes_files(lake: Lake) -> None:
    text = "id,x\n1,Zürich\n2,€\n"
    for encoding in ("utf-8", "utf-8-sig", "cp1252", "utf-16"):
        frame = lake({"a.csv": text.encode(encoding)}, encoding=encoding)
        assert [row["x"] for row in rows(frame)] == ["Zürich", "€"]
    assert rows(lake({"a.csv": text.encode("utf-8-sig")}))[0]["id"] == 1
    with pytest.raises(InvalidSourceFile, match=r"a\.csv line 2: the bytes are not utf-8"):
        lake({"a.csv": text.encode("cp1252")})


def test_nanoseconds_are_refused_or_rounded(lake: Lake) -> None:
    files: dict[str, str | bytes] = {"a.csv": "at\n2024-01-01T00:00:00.123456789Z\n"}
    with pytest.raises(InvalidSourceFile, match=r"a\.csv line 2, column 'at': .*nanoseconds"):
        rows(lake(files))
    (row,) = rows(lake(files, timestamp_precision="us"))
    assert row["at"] == datetime(2024, 1, 1, 0, 0, 0, 123457, tzinfo=UTC)


def test_timestamps_with_and_without_zones_are_not_mixed(lake: Lake) -> None:
    zoned, plain = "2024-01-01T00:00:00Z", "2024-01-01T00:00:00"
    assert rows(lake({"a.csv": f"at\n{zoned}\n{plain}\n"})) == [{"at": zoned}, {"at": plain}]
    (row,) = rows(lake({"a.csv": "at\n2024-01-01 01:00:00+01:00\n"}))
    assert row["at"] == datetime(2024, 1, 1, tzinfo=UTC)


def test_file_endings_and_compressions_are_supported(lake: Lake) -> None:
    text = b"id,x\n1,a\n"
    import pyarrow

    zst = pyarrow.compress(text, "zstd", asbytes=True)
    files: dict[str, str | bytes] = {
        "A.CSV": text,
        "b.csv.gz": gzip.compress(text) + gzip.compress(b"2,b\n"),
        "c.csv.bz2": bz2.compress(text),
        "d.Csv.ZST": zst,
    }
    assert len(rows(lake(files))) == 5
    assert rows(lake({"a.tsv": "id\tx\n1\ta,b\n"})) == [{"id": 1, "x": "a,b"}]
    with pytest.raises(InvalidArgument, match=r"has \.csv and \.tsv files"):
        lake({"a.tsv": "id\tx\n", "b.csv": "id,x\n"})


def test_ignored_files_are_named_and_counted(empty_store: FeatureStore, tmp_path: Path) -> None:
    for name in ("a.csv", "b.txt", "c.xlsx", "_SUCCESS"):
        (tmp_path / name).write_text("id\n1\n")
    source = tmp_path / "lake"
    source.mkdir()
    for name in ("a.csv", "b.txt", "c.xlsx", "_SUCCESS"):
        (source / name).write_text("id\n1\n")
    empty_store.add_source("lake", str(source))
    assert empty_store.check_source("lake").unread == ("b.txt", "c.xlsx")
    with pytest.warns(UserWarning, match=r"ignores 2 files.*'b\.txt', 'c\.xlsx'"):
        assert empty_store.read_source("lake").count() == 1
    # An explicitly named file may have any extension.
    assert empty_store.read_source("lake", path="b.txt", format="csv").count() == 1


def test_files_of_other_extensions_are_read_with_format(lake: Lake) -> None:
    text = "id\tx\n1\ta\n"
    for name in ("a.txt", "a.data", "part-0", "a.tab", "a.tsv.bak"):
        for prefix in ("", "day=1/"):
            frame = lake({prefix + name: text}, format="csv", delimiter="tab")
            assert [row["x"] for row in rows(frame)] == ["a"]
    assert rows(lake({"a.geojson": '{"type": "Feature",\n"id": 1}'}, format="json")) == [
        {"type": "Feature", "id": 1}
    ]
    files: dict[str, str | bytes] = {"a.txt": text, "b.txt.gz": gzip.compress(text.encode())}
    assert len(rows(lake(files, format="csv", delimiter="tab"))) == 2
    # Files with the extension of the format are the table; other files are named.
    with pytest.warns(UserWarning, match=r"ignores 2 files.*'b\.txt\.gz', '_c\.tsv'"):
        assert len(rows(lake({"a.tsv": text, "b.txt.gz": "", "_c.tsv": text}, format="csv"))) == 1
    with pytest.raises(SourceTableNotFound, match=r"Files of other formats: 'a\.data', 'a\.names'"):
        lake({"a.data": text, "a.names": "1. id"}, format="csv")


def test_hidden_files_are_named(empty_store: FeatureStore, lake: Lake) -> None:
    for name in ("_a.csv", "day=1/.a.jsonl"):
        hidden = Path(name).name
        with pytest.raises(SourceTableNotFound, match=r"Hidden files, .*begin with") as error:
            lake({name: "id\n1\n"})
        assert repr(hidden) in error.value.message
    (problem,) = empty_store.check_source("lake_0").problems
    assert "read_source('lake_0', path='_a.csv') reads it" in problem
    # Writers use other hidden names for files that are not data.
    assert len(rows(lake({"a.csv": "id\n1\n", "_SUCCESS": "", "_tmp/b.csv": "x\n"}))) == 1


@pytest.mark.parametrize("space", ["\xa0", "\u202f", "\u2009", "\u2007", " ", "'", "\u2019", "."])
def test_thousands_separators_may_be_unicode(lake: Lake, space: str) -> None:
    number = f"{1_234_567:,}".replace(",", space)
    for dtypes in ({}, {"x": "double", "y": "decimal(12, 2)"}):
        frame = lake(
            {"a.csv": f"x;y\n{number},5;{number}\n-1{space}000;12\n"},
            delimiter=";",
            decimal=",",
            thousands=space,
            dtypes=dtypes,
        )
        assert rows(frame) == [{"x": 1234567.5, "y": 1234567}, {"x": -1000.0, "y": 12}]
    for text in ("1", "e", "+", "\n", "\xa0\xa0", "\u0661"):
        with pytest.raises(InvalidArgument, match=r"thousands=.* is not a single punctuation mark"):
            lake({"a.csv": "x\n1\n"}, thousands=text)


def test_semicolon_delimiter_is_suggested_not_guessed(lake: Lake) -> None:
    with pytest.raises(InvalidSourceFile, match="the header has a single column, 'id;x'") as error:
        lake({"a.csv": "id;x\n1;2\n"})
    assert "delimiter=';'" in str(error.value)


def test_large_files_are_read_in_bounded_batches(lake: Lake, tmp_path: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["id", "note", "x"])
    for number in range(200_000):
        writer.writerow([number, f'n "{number}"\n{"ü" * (number % 50)}', number * 0.5])
    frame = lake({"a.csv": text.getvalue()})
    table = frame.to_arrow()
    assert table.num_rows == 200_000
    expected = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert table.column("note").to_pylist() == [row["note"] for row in expected]
    assert table.column("x").to_pylist() == [float(row["x"]) for row in expected]


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.csv.zst", "a.jsonl.xz", "a.csv.zip"])
def test_damaged_compression_is_refused_by_file(lake: Lake, name: str) -> None:
    compressed = gzip.compress(b"id\n1\n" * 1000)
    for content in (b"not compressed", compressed[:-8] if name.endswith(".gz") else compressed):
        with pytest.raises(InvalidSourceFile, match=r"a\.\w+\.\w+ cannot be read, or is damaged"):
            lake({name: content})


def test_names_option_names_columns(lake: Lake) -> None:
    files: dict[str, str | bytes] = {"a.csv": "id,x\n1,2\n"}
    assert rows(lake(files, columns=["x"])) == [{"x": 2}]
    for columns in ([], "x"):
        with pytest.raises(InvalidArgument, match="not a list"):
            lake(files, columns=columns)
