"""Parquet shards as other programs read them, and the inputs that determine their bytes."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featurestore.errors import DatasetDamaged, InvalidArgument
from featurestore.testing.format_cases import EVERY_TYPE, build_manifest, example_table
from featurestore.testing.format_conformance import BLOCK_ROWS, build_layout, write
from featurestore_connectors.parquet import BLOCKS_PER_ROW_GROUP, ParquetFormat

FORMAT = ParquetFormat()


def test_row_groups_are_multiples_of_the_block(tmp_path: Path) -> None:
    table = pa.table({"n": range(1000)})
    path, _ = write(FORMAT, tmp_path, table, build_layout(FORMAT, table), batch_rows=37)
    metadata = pq.read_metadata(path)
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert set(sizes[:-1]) == {BLOCKS_PER_ROW_GROUP * BLOCK_ROWS}
    assert sum(sizes) == 1000


@pytest.mark.parametrize("codec", ["SNAPPY", "ZSTD", "GZIP", "NONE"])
def test_parquet_uses_requested_codec(codec: str, tmp_path: Path) -> None:
    table = pa.table({"n": range(1000)})
    layout = build_layout(FORMAT, table, compression=codec)
    path, _ = write(FORMAT, tmp_path, table, layout)
    actual = pq.read_metadata(path).row_group(0).column(0).compression
    assert actual == ("UNCOMPRESSED" if codec == "NONE" else codec)
    assert FORMAT.open_shard(path, layout=layout).read(5, 7, ["n"])["n"].to_pylist() == [5, 6]


def test_duckdb_reads_every_type(tmp_path: Path) -> None:
    table = example_table(EVERY_TYPE, rows=50)
    path, _ = write(FORMAT, tmp_path, table, build_layout(FORMAT, table))
    with duckdb.connect() as connection:
        actual = connection.sql(
            f"select count(*), count(c4), sum(c4) from read_parquet('{path}')"
        ).fetchall()
    values = table["c4"].drop_null().to_pylist()
    assert actual == [(50, len(values), sum(values))]


def test_neighboring_reads_decode_row_group_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"n": range(640), "x": range(640)})
    layout = build_layout(FORMAT, table)
    path, _ = write(FORMAT, tmp_path, table, layout)
    reader = FORMAT.open_shard(path, layout=layout)
    decoded = []
    plain = pq.ParquetFile.read_row_group

    def watched(self: pq.ParquetFile, group: int, **options: object) -> pa.Table:
        decoded.append((group, options["columns"]))
        return plain(self, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    for start in range(0, 128, 8):
        reader.read(start, start + 8, ["x"])
    assert decoded == [(0, ["x"]), (1, ["x"])]
    reader.close()


def test_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    table = pa.table({"n": range(1000)})
    layout = build_layout(FORMAT, table)
    path, _ = write(FORMAT, tmp_path, table, layout)
    content = bytearray(Path(path).read_bytes())
    content[4:40] = bytes(36)
    Path(path).write_bytes(content)
    problem = FORMAT.verify_shard(path, layout=layout, rows=1000)[0]
    assert "row group 0" in problem.message
    assert problem.offset == 4
    with pytest.raises(DatasetDamaged, match="Row group 0"):
        FORMAT.open_shard(path, layout=layout).read(0, 5, ["n"])
    Path(path).write_bytes(b"not parquet")
    with pytest.raises(DatasetDamaged, match="cannot be read"):
        FORMAT.open_shard(path, layout=layout)


@pytest.mark.parametrize("name", ["parquet", "csv"])
def test_only_tfrecord_is_parsed_as_example(name: str, tmp_path: Path) -> None:
    from featurestore.plugins.format import find_format

    file_format = find_format(name)
    table = pa.table({"n": [1]})
    layout = build_layout(file_format, table)
    _, shard = write(file_format, tmp_path, table, layout)
    with pytest.raises(InvalidArgument, match="tfrecord"):
        file_format.feature_spec(build_manifest(file_format, table, layout, [shard]))
    assert file_format.refuse_reading(layout) is None
