"""CSV shards as other programs read them."""

from __future__ import annotations

import csv
import datetime as dt
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from featurestore.errors import DatasetDamaged, InvalidArgument, UnsupportedType
from featurestore.testing.format_conformance import build_layout, write
from featurestore_connectors.csv import CsvFormat

FORMAT = CsvFormat()


def test_csv_file_follows_rfc_4180(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": pa.array([1, None]),
            "x": pa.array([0.5, float("nan")], pa.float32()),
            "text": ['say "x",\r\nplease', ""],
            "gone": pa.array([None, "null"]),
            "at": pa.array(
                [dt.datetime(2024, 5, 1, 12, 0, 0, 5, tzinfo=dt.UTC)] * 2,
                pa.timestamp("us", tz="UTC"),
            ),
            "v": pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
            "raw": [b"\x00\xff", b""],
        }
    )
    path, _ = write(FORMAT, tmp_path, table, build_layout(FORMAT, table))
    assert Path(path).read_bytes().decode() == (
        "n,x,text,gone,at,v,raw\r\n"
        '1,0.5,"say ""x"",\r\nplease",,2024-05-01T12:00:00.000005Z,"[1,2]","AP8="\r\n'
        ',nan,"","null",2024-05-01T12:00:00.000005Z,,""\r\n'
    )
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[1][2] == 'say "x",\r\nplease'
    assert len(rows) == 3


def test_duckdb_reads_equal_csv_values(tmp_path: Path) -> None:
    table = pa.table(
        {"n": pa.array([1, None, 3]), "x": [0.1, -1e300, 5e-324], "text": ['a "b"', "", "c,d"]}
    )
    path, _ = write(FORMAT, tmp_path, table, build_layout(FORMAT, table))
    with duckdb.connect() as connection:
        actual = connection.sql(
            f"select n, x, text from read_csv('{path}', header=true)"
        ).fetchall()
    assert [(n, x) for n, x, _ in actual] == [(1, 0.1), (None, -1e300), (3, 5e-324)]
    assert [text or "" for *_, text in actual] == ['a "b"', "", "c,d"]


def test_csv_index_locates_rows(tmp_path: Path) -> None:
    table = pa.table({"n": range(1000), "text": ["x\r\n" * (row % 5) for row in range(1000)]})
    path, shard = write(FORMAT, tmp_path, table, build_layout(FORMAT, table))
    index = np.fromfile(tmp_path / shard.sidecars[0].path, "<u8")
    assert index[0] == 1000
    data = Path(path).read_bytes()
    for entry, offset in enumerate(index[1:-1].tolist()):
        assert data[offset:].startswith(f"{entry * 64},".encode())
    assert index[-1] == len(data)


def test_changed_csv_file_is_refused(tmp_path: Path) -> None:
    table = pa.table({"n": range(200)})
    layout = build_layout(FORMAT, table)
    path, _ = write(FORMAT, tmp_path, table, layout)
    content = Path(path).read_bytes()
    reader = FORMAT.open_shard(path, layout=layout)
    Path(path).write_bytes(content.replace(b"100\r\n", b"1\n0\r\n"))
    with pytest.raises(DatasetDamaged, match="cannot be read"):
        reader.read(90, 110, ["n"])
    Path(path).write_bytes(content.replace(b"100", b"1x0"))
    with pytest.raises(DatasetDamaged, match="1x0"):
        reader.read(90, 110, ["n"])
    assert FORMAT.verify_shard(path, layout=layout, rows=200)[0].row == 0
    reader.close()


def test_times_outside_iso_8601_are_refused_first() -> None:
    far = pa.array([2**62], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    table = pa.table({"far": far, "day": pa.array([-(10**6)], pa.int32()).cast(pa.date32())})
    with pytest.raises(UnsupportedType, match="far, day"):
        build_layout(FORMAT, table)


def test_compressed_csv_is_refused_with_hint() -> None:
    with pytest.raises(InvalidArgument, match="parquet"):
        FORMAT.check(pa.schema([("x", pa.int64())]), compression="GZIP")
