"""Errors of sources are short, and their hints work when pasted."""

from __future__ import annotations

import codecs
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from featurestore.errors import (
    FeatureStoreError,
    InvalidSourceFile,
    SourceError,
    UnsupportedType,
)
from featurestore.sources import SourceFrame
from featurestore.store import FeatureStore
from featurestore_connectors.sources.sqlalchemy_rows import QueryColumn, described_column
from featurestore_connectors.sources.typed_columns import cast_batches

Lake = Callable[..., SourceFrame]
NANOS = "2024-01-01T00:00:00.123456789Z"

# Refused files and options whose error contains a call to paste.
REFUSED: list[tuple[dict[str, str | bytes], dict[str, Any]]] = [
    ({"a.csv": "id,x\n1,2\n3\n"}, {}),
    ({"a.csv": "id;x\n1;2;3\n"}, {"delimiter": ";"}),
    ({"a.csv": "Report of 2024\nid,x\n1,2\n"}, {}),
    ({"a.csv": "id,x\n1,2\n3\n"}, {"null_values": ["NA"]}),
    ({"a.csv": 'id,x\n1,"2\n'}, {}),
    ({"a.csv": "id;x\n1;2\n"}, {}),
    ({"a.csv": b"id,x\n1,\xff\n"}, {}),
    ({"a.csv": "id,x\n1,ü\n".encode("utf-8-sig")}, {"encoding": "cp1252"}),
    ({"a.csv": "id,x\n1,ü\n"}, {"encoding": "utf-16"}),
    ({"a.csv": ""}, {}),
    ({"a.csv": "x,x\n1,2\n"}, {}),
    ({"a.csv": "Total €,1978\n1,2\n"}, {}),
    ({"a.csv": "id\n1\n", "b.csv": "id,x\n1,2\n"}, {"dtypes": {"id": "int32"}}),
    ({"a.csv": "id,x\nA,2\n"}, {"dtypes": {"id": "int64", "x": "decimal(5, 2)"}}),
    ({"a.csv": f"at\n{NANOS}\n"}, {}),
    ({"a.csv": "a\n1\n", "b.tsv": "a\n1\n"}, {}),
    ({"a.jsonl": '{"x": 1}\n{"x": "1"}\n'}, {}),
    ({"a.jsonl": '{"x": [1]}\n{"x": ["1"]}\n'}, {}),
    ({"a.jsonl": '{"x": {"y": 1}}\n{"x": {"y": "1"}}\n'}, {}),
    ({"a.jsonl": '{"x": {}}\n'}, {}),
    ({"a.jsonl": '{"x": 1,}\n{"x": 2}\n'}, {}),
    ({"a.jsonl": f'{{"at": "{NANOS}"}}\n'}, {}),
    ({"a.jsonl": '{"x": 1.5}\n{"x": 9007199254740993}\n'}, {}),
    ({"a.json": '[{"x": 1}]'}, {}),
    ({"a.jsonl": '{"Año": 1}\n'}, {}),
    ({"a.csv": "\n\n"}, {}),
    ({"a.csv": "\n\n", "b.csv": "id\n1\n"}, {}),
    ({"a.csv": "\n"}, {"header": False, "names": ["id", "x"]}),
    ({"a.csv": "id\n1\n"}, {"skip_rows": 2}),
    ({"a.csv": "1,2\n3\n"}, {"header": False, "names": ["id", "x"], "skip_rows": 0}),
    ({"a.csv": "1 000;x\n"}, {"delimiter": ";", "header": "false", "names": '["My Id", "x"]'}),
    ({"a.jsonl": "\n", "b.jsonl": '{"x": 1}\n'}, {}),
    ({"a.jsonl": '{"x": ' + "[" * 200 + "]" * 200 + "}\n"}, {}),
    ({"a.jsonl": '{"x": ' + "[" * 500 + "]" * 500 + '}\n{"x": 1}\n'}, {}),
    ({"a.json": '{"x": 1, "x": 2}\n{"x": 1}\n'}, {}),
    ({"a.txt": "id,x\n1,2\n"}, {}),
    ({"a.data": "id,x\n1,2\n", "b.data": "id,x\n3,4\n"}, {"null_values": ["-"]}),
    ({"a.data": "id,x\n1,2\n", "a.names": "1. id\n2. x\n"}, {}),
    ({"a.data": "id,x\n1,2\n", "a.names": "1. id\n2. x\n"}, {"format": "csv"}),
    ({"part-0": "id\n1\n", "part-1": "id\n2\n"}, {}),
    ({"a.tab": "id\tx\n1\t2\n"}, {}),
    ({"a.xz": lzma.compress(b"id\n1\n")}, {}),
    ({"a.geojson": '{"type": "Feature",\n "id": 1}'}, {}),
    ({"_a.csv": "id\n1\n"}, {}),
    ({"day=1/.a.csv": "id\n1\n"}, {}),
]


def test_hint_calls_read_the_files(
    lake: Lake, empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    verbs = "reads|skips|leaves|rounds|renames|names|splits|declares"
    for files, options in REFUSED:
        with subtests.test(f"{files} {options}"):
            with pytest.raises(FeatureStoreError) as refusal:
                lake(files, **options).to_arrow()
            hint = str(refusal.value.hint)
            call = re.match(rf"read_source\(.*\)(?= ({verbs})|$)", hint)
            assert call is not None, hint
            # Options are repeated as values of Python, not as the strings that are stored.
            assert not re.search(r"=['\"]([\[{]|true|false|\d)", call[0])
            frame = eval(f"store.{call[0]}", {"store": empty_store})
            frame.to_arrow()


# The bytes of a file, and the values of its cells in every line that is not a header or title.
CELLS: list[tuple[bytes, list[list[str]]]] = [
    ("id,x\n1,Zürich\n".encode("utf-16"), [["1", "Zürich"]]),
    (codecs.BOM_UTF16_BE + "id,x\n1,Zürich\n".encode("utf-16-be"), [["1", "Zürich"]]),
    ("id,x\n1,Zurich\n".encode("utf-16-le"), [["1", "Zurich"]]),
    ("id,x\n1,Zürich\n".encode("utf-16-be"), [["1", "Zürich"]]),
    ("id,x\n1,Zürich €\n".encode("utf-32"), [["1", "Zürich €"]]),
    ("id,x\n1,“Zürich” … 5 €\n".encode("cp1252"), [["1", "“Zürich” … 5 €"]]),
    ("id,x\n1,Zürich\n".encode("latin-1"), [["1", "Zürich"]]),
    (b"id,x\n1,\x81\n", [["1", "\x81"]]),
    (b"1,2.5\n2,3.5\n", [["1", "2.5"], ["2", "3.5"]]),
    (b"1,2.5\n2,3\n", [["1", "2.5"], ["2", "3.0"]]),
    (b"1,1\n2,3\n", [["1", "1"], ["2", "3"]]),
    (b"alice,30\nbob,31\n", [["alice", "30"], ["bob", "31"]]),
    (b"alice,1990\nbob,1991\n", [["alice", "1990"], ["bob", "1991"]]),
    (b"a b,true\nc d,false\n", [["a b", "True"], ["c d", "False"]]),
    (b"2024-01-01,5\n2024-01-02,6\n", [["2024-01-01", "5"], ["2024-01-02", "6"]]),
    (b"country,2020,2021\nFR,1,2\n", [["FR", "1", "2"]]),
    ("Total €,1978\n1,2\n".encode(), [["1", "2"]]),
    (b"x,x\n1,2\n", [["1", "2"]]),
    (b"Report of 2024\nid,x\n1,2\n", [["1", "2"]]),
]


def test_hint_calls_lose_no_values(
    lake: Lake, empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    for data, rows in CELLS:
        with subtests.test(f"{data!r}"):
            with pytest.raises(FeatureStoreError) as refusal:
                lake({"a.csv": data}).to_arrow()
            call = re.match(r"read_source\(.*\)(?= (reads|renames))", str(refusal.value.hint))
            assert call is not None, refusal.value.hint
            table = eval(f"store.{call[0]}", {"store": empty_store}).to_arrow()
            cells = [[str(cell) for cell in row.values()] for row in table.to_pylist()]
            assert cells == rows


def test_names_of_headerless_files_do_not_count_partitions(
    lake: Lake, empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    for partition in ("region=north", "day=2024-01-31", "year=2024/region=north"):
        with subtests.test(partition):
            with pytest.raises(FeatureStoreError) as refusal:
                lake({f"{partition}/a.csv": "1,2.5\n2,3.5\n"}).to_arrow()
            call = re.match(r"read_source\(.*\)(?= reads)", str(refusal.value.hint))
            assert call is not None, refusal.value.hint
            rows = eval(f"store.{call[0]}", {"store": empty_store}).to_arrow().to_pylist()
            keys = [level.split("=") for level in partition.split("/")]
            assert [list(map(str, row.values())) for row in rows] == [
                [*cells, *[text for _, text in keys]] for cells in (["1", "2.5"], ["2", "3.5"])
            ]


def test_times_out_of_range_in_files_have_a_hint_without_sql(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    for number, kind in enumerate((pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.date32())):
        days = pa.array([0, 4_000_000], pa.int32()).cast(pa.date32())
        table = pa.table({"id": [1, 2], "t": days.cast(kind)})
        folder = tmp_path / f"files_{number}"
        folder.mkdir()
        parquet.write_table(table, folder / "a.parquet")
        empty_store.add_source(folder.name, str(folder))
        for options in ({}, {"timestamp_precision": "us"}):
            with pytest.raises(InvalidSourceFile, match="'t' has times outside") as refusal:
                empty_store.read_source(folder.name, **options).to_arrow()  # type: ignore[arg-type]
            call = str(refusal.value.hint).split(" leaves")[0]
            rows = eval(f"store.{call}", {"store": empty_store}).to_arrow()
            assert rows.to_pylist() == [{"id": 1}, {"id": 2}]
        with pytest.raises(UnsupportedType) as without_sql:
            list(cast_batches(iter(table.to_batches()), table.schema, has_sql=False))
        assert str(without_sql.value.hint).startswith("read_source(...).drop('t') reads")


def test_first_data_line_is_never_skipped_as_title(lake: Lake, subtests: pytest.Subtests) -> None:
    for text in ("alice,nyc\nbob,paris,x\ncarl,rome\n", "carl\nbob,paris\nada,rome\n"):
        with subtests.test(text):
            with pytest.raises(FeatureStoreError) as refusal:
                lake({"a.csv": text}).to_arrow()
            assert "skip_rows" not in str(refusal.value.hint)


def test_option_hints_name_valid_options(empty_store: FeatureStore, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,total\n1,2\n")
    wrong: list[dict[str, Any]] = [
        {"delimiter": ";;"},
        {"quote": "<>"},
        {"header": "perhaps"},
        {"skip_rows": "-1"},
        {"encoding": "utf-99"},
        {"date_format": "%H"},
        {"timestamp_format": "%Q"},
        {"on_bad_rows": "eror"},
        {"on_bad_rows": "drop"},
        {"format": "xlsx"},
        {"header": False},
        {"names": ["a"]},
        {"decimal": ",", "thousands": ","},
        {"dtypes": {"id": "intt"}},
        {"dtypes": {"idd": "int64"}},
        {"delimiter": '"'},
        {"format": "jsonl", "quote": "'"},
        {"rename": "camelCase"},
        {"timestamp_precision": "ms"},
    ]
    for number, options in enumerate(wrong):
        hint = _hint(empty_store, f"lake_{number}", tmp_path, options)
        assert "sql=" not in hint
        for word in re.findall(r"(\w+)=", hint):
            assert word in (
                *options,
                "names",
                "header",
                "thousands",
                "rename",
                "options",
                "format",
                "tz",
            )


def _hint(store: FeatureStore, name: str, path: Path, options: dict[str, Any]) -> str:
    with pytest.raises(FeatureStoreError) as refusal:  # noqa: PT012  # one of the two refuses
        store.add_source(name, str(path), options=options)
        store.read_source(name)
    return str(refusal.value.hint)


def test_duckdb_read_errors_are_short(empty_store: FeatureStore, tmp_path: Path) -> None:
    table = pa.table({"id": range(1000), "x": [f"text {number}" for number in range(1000)]})
    parquet.write_table(table, tmp_path / "a.parquet")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[100:3000] = bytes(2900)
    (tmp_path / "a.parquet").write_bytes(data)
    empty_store.add_source("lake", str(tmp_path / "a.parquet"))
    with pytest.raises((InvalidSourceFile, SourceError), match=r"a\.parquet") as error:
        empty_store.read_source("lake").to_arrow()
    assert len(str(error.value)) < 600


def test_iceberg_metadata_errors_are_short(
    empty_store: FeatureStore, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    pytest.importorskip("pyiceberg")
    texts = ["[]", "{}", '{"format-version": 2}', "x", '{"location": 1}']
    for number, text in enumerate(texts):
        with subtests.test(text):
            path = tmp_path / str(number) / "v1.metadata.json"
            path.parent.mkdir()
            path.write_text(text)
            empty_store.add_source(f"table_{number}", f"iceberg+{path}")
            with pytest.raises(SourceError, match="not that of an Iceberg table") as error:
                empty_store.read_source(f"table_{number}")
            assert len(str(error.value)) < 500
            assert "pydantic" not in str(error.value)


def test_long_decimal_hint_keeps_every_digit() -> None:
    actual = QueryColumn("total", 246, 67, 30, False)
    column = described_column(actual, quoted="`total`")
    assert (column.dtype, column.readable_expression) == (None, "CAST(`total` AS CHAR)")


def test_cli_source_read_accepts_options(
    empty_store: FeatureStore, command_line: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("Zone ID;x\n007;2,5\n")
    location = ("--location", empty_store.location)
    command_line("source", "add", "lake", str(tmp_path / "a.csv"), *location)
    options = ("delimiter=;", "decimal=,", 'rename={"Zone ID": "zone"}', 'dtypes={"x": "double"}')
    flags = [word for option in options for word in ("--option", option)]
    shown = command_line("source", "read", "lake", *flags, *location).out
    assert "007" in shown
    assert "2.5" in shown
