"""Petastorm's readers read our files in equal parts; our reader does not need petastorm."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featurestore import FeatureStore
from featurestore.errors import MissingExtra, ReaderConfigError, UnsupportedType
from featurestore.plugins.format import Layout, WrittenFile, WrittenShard
from featurestore.testing.format_cases import DECIMALS, NUMBERS, TIME, build_manifest, example_table
from featurestore.testing.format_conformance import build_layout
from featurestore_connectors.petastorm import (
    ROW_GROUPS_PER_SHARD,
    WHOLE_POOL,
    PetastormFormat,
    row_groups_per_shard,
)

pytestmark = [
    pytest.mark.petastorm,
    pytest.mark.filterwarnings("ignore"),
]  # petastorm's own deprecations
FORMAT = PetastormFormat()


@pytest.fixture(autouse=True)
def ignore_warnings_of_petastorm() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def dataset(directory: Path, table: pa.Table, *, shards: int) -> tuple[str, Layout]:
    """Write a table in equal shards with petastorm metadata.

    Return the URL of the split.
    """
    layout = build_layout(FORMAT, table)
    bounds = [table.num_rows * index // shards for index in range(shards + 1)]
    written_shards = []
    for number, (start, stop) in enumerate(pairwise(bounds)):
        path = f"train/petastorm-{number:05d}-of-{shards:05d}.parquet"
        batches = iter(table.slice(start, stop - start).to_batches())
        written_shards.append(FORMAT.write_shard(str(directory), path, batches, layout=layout))
    FORMAT.finish(str(directory), build_manifest(FORMAT, table, layout, written_shards))
    return f"file://{directory}/train", layout


def read_rows(url: str, **options: Any) -> list[Any]:
    from petastorm import make_reader

    with make_reader(
        url, shuffle_row_groups=False, reader_pool_type=WHOLE_POOL, **options
    ) as reader:
        return list(reader)


def read_batches(url: str, **options: Any) -> list[Any]:
    from petastorm import make_batch_reader

    with make_batch_reader(
        url, shuffle_row_groups=False, reader_pool_type=WHOLE_POOL, **options
    ) as reader:
        return list(reader)


def test_make_reader_returns_rows(tmp_path: Path) -> None:
    kinds = [
        *NUMBERS,
        *DECIMALS,
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.list_(pa.float32(), 3),
        pa.list_(pa.int64()),
    ]
    table = example_table(kinds, rows=200)
    url, _ = dataset(tmp_path, table, shards=2)
    actual = read_rows(url)
    assert len(actual) == 200
    for row, expected in zip(actual, table.to_pylist(), strict=True):
        for name, value in expected.items():
            got = getattr(row, name)
            if value is None and pa.types.is_floating(table.schema.field(name).type):
                assert got is None or np.isnan(got), (
                    "petastorm goes through pandas, which has no null floats"
                )
            elif isinstance(value, list):
                assert got.tolist() == value
            else:
                assert got == value


def test_petastorm_times_are_numpy_datetimes(tmp_path: Path) -> None:
    table = example_table([TIME], rows=50)
    sure = table["c0"].combine_chunks().fill_null(0)
    table = table.append_column("sure", sure)
    url, _ = dataset(tmp_path, table, shards=1)
    micros = sure.view(pa.int64()).to_pylist()
    for row, value, expected in zip(read_rows(url), table["c0"].to_pylist(), micros, strict=True):
        assert row.sure == np.datetime64(expected, "us")
        assert (value is None) == (row.c0 != row.c0), (
            "a missing time is pandas' NaT, which differs from itself"
        )


def test_make_batch_reader_returns_columns(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": range(500),
            "x": pa.array(range(500), pa.float32()),
            "text": [f"row {n}" for n in range(500)],
        }
    )
    table = table.append_column(
        "v", pa.array([[n, n + 1] for n in range(500)], pa.list_(pa.int32(), 2))
    )
    url, _ = dataset(tmp_path, table, shards=3)
    actual = read_batches(url)
    for name in ("n", "x", "text", "v"):
        assert (
            np.concatenate([getattr(batch, name) for batch in actual]).tolist()
            == table[name].to_pylist()
        )


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 8, 12, 24])
def test_petastorm_workers_get_equal_disjoint_shards(workers: int, tmp_path: Path) -> None:
    table = pa.table({"n": range(24 * 40)})
    url, _ = dataset(tmp_path, table, shards=2)
    worker_rows = [
        np.concatenate(
            [batch.n for batch in read_batches(url, cur_shard=worker, shard_count=workers)]
        )
        for worker in range(workers)
    ]
    assert {len(numbers) for numbers in worker_rows} == {table.num_rows // workers}
    assert Counter(np.concatenate(worker_rows).tolist()) == Counter(range(table.num_rows))
    if workers in (2, 3):
        rows = [
            row.n
            for worker in range(workers)
            for row in read_rows(url, cur_shard=worker, shard_count=workers)
        ]
        assert Counter(rows) == Counter(range(table.num_rows))


def test_petastorm_reader_reads_every_row_group(tmp_path: Path) -> None:
    table = pa.table({"n": range(24 * 40)})
    _, layout = dataset(tmp_path, table, shards=2)
    names = [f"train/petastorm-{n:05d}-of-00002.parquet" for n in range(2)]
    shards = [WrittenShard(WrittenFile(name, 0, ""), 480) for name in names]
    manifest = build_manifest(FORMAT, table, layout, shards)
    for _ in range(5):
        actual: Counter[int] = Counter()
        for worker in range(2):
            with FORMAT.native_reader(
                str(tmp_path), manifest, split="train", worker=worker, workers=2
            ) as reader:
                actual.update(n for batch in reader for n in batch.n.tolist())
        assert actual == Counter(range(table.num_rows))


def test_row_groups_are_equal_in_every_shard(tmp_path: Path) -> None:
    table = pa.table({"n": range(1003)})
    dataset(tmp_path, table, shards=4)
    sizes = []
    for path in sorted(tmp_path.rglob("*.parquet")):
        metadata = pq.read_metadata(path)
        sizes += [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert len(sizes) == 4 * ROW_GROUPS_PER_SHARD
    assert sum(sizes) == 1003
    assert max(sizes) - min(sizes) <= 1


def test_images_are_read_by_all_readers(tmp_path: Path) -> None:
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    pixels = pa.array(digits.images.astype(np.uint8).reshape(-1))
    images = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(pixels, 8), 8)
    table = pa.table({"image": images, "digit": digits.target})
    url, layout = dataset(tmp_path, table, shards=2)
    expected = digits.images.reshape(-1, 64)
    assert (np.stack([row.image for row in read_rows(url)]) == expected).all()
    assert (np.concatenate([batch.image for batch in read_batches(url)]) == expected).all()
    first = sorted(tmp_path.rglob("*.parquet"))[0]
    reader = FORMAT.open_shard(str(first), layout=layout)
    rows = reader.read(0, reader.rows, ["image", "digit"])
    assert rows.schema == table.schema
    assert rows["image"].to_pylist() == table["image"].slice(0, reader.rows).to_pylist()
    reader.close()


@pytest.mark.tensorflow
def test_petastorm_feeds_tensorflow(tmp_path: Path) -> None:
    from petastorm import make_batch_reader
    from petastorm.tf_utils import make_petastorm_dataset

    table = pa.table({"n": range(480), "x": pa.array(range(480), pa.float32())})
    url, _ = dataset(tmp_path, table, shards=1)
    with make_batch_reader(url, shuffle_row_groups=False, reader_pool_type=WHOLE_POOL) as reader:
        batches = list(make_petastorm_dataset(reader))
    assert [int(n) for batch in batches for n in batch.n] == list(range(480))


def test_unsupported_petastorm_shapes_are_refused() -> None:
    schema = pa.schema(
        [
            ("words", pa.list_(pa.string())),
            ("deep", pa.list_(pa.list_(pa.int64()))),
            ("part", pa.struct([("x", pa.int64())])),
            ("good", pa.list_(pa.list_(pa.uint8(), 2), 2)),
        ]
    )
    with pytest.raises(UnsupportedType) as caught:
        FORMAT.check(schema, compression=None)
    assert all(name in caught.value.message for name in ("words", "deep", "part: struct"))
    assert "good" not in caught.value.message


def test_missing_petastorm_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "petastorm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "petastorm", None)
    with pytest.raises(MissingExtra, match=r"featurestore\[petastorm\]"):
        FORMAT.check(pa.schema([("x", pa.int64())]), compression=None)


def test_own_reader_works_without_petastorm(tmp_path: Path) -> None:
    table = example_table([pa.int64(), pa.list_(pa.list_(pa.uint8(), 2), 2)], rows=100)
    _, layout = dataset(tmp_path, table, shards=1)
    path = next(iter(tmp_path.rglob("*.parquet")))
    script = f"""
import sys
sys.modules["petastorm"] = None
from featurestore.plugins.format import find_format
shard = find_format("petastorm").open_shard({str(path)!r}, layout={layout!r})
print(shard.read(10, 12, ["c0", "c1"]).to_pylist())
"""
    actual = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert actual.stdout.strip() == str(table.slice(10, 2).to_pylist())


@pytest.mark.parametrize(
    ("rows", "shards", "groups"),
    [
        (1_000_000, 8, 24),
        (500_000, 8, 12),  # 5,208 rows each
        (125_000, 8, 6),  # not fewer: 16 workers share 48
        (10, 8, 6),
        (10**9, 64, 24),
        (64_000, 64, 3),
        (1_000, 1, 24),
        (1_000, 2, 24),
        (1_000, 5, 24),
    ],
)
def test_row_group_count_fits_rows_and_workers(rows: int, shards: int, groups: int) -> None:
    assert row_groups_per_shard(rows, shards=shards) == groups
    assert {workers for workers in (1, 2, 3, 4, 6, 8, 12, 24) if groups * shards % workers == 0} == {
        1, 2, 3, 4, 6, 8, 12, 24
    }  # fmt: skip


def test_exported_row_groups_match_layout(
    empty_store: FeatureStore,
) -> None:
    new_dataset = empty_store.create_training_dataset(
        pa.table({"n": range(4000), "x": [1.5] * 4000}),
        "d",
        data_format="petastorm",
        key="n",
        shards=8,
    )
    assert new_dataset.manifest.layout["parquet"]["row_groups"] == 6
    for shard in new_dataset.manifest.split("train").shards:
        metadata = pq.ParquetFile(f"{new_dataset.path}/{shard.path}").metadata
        sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        assert len(sizes) == 6
        assert max(sizes) - min(sizes) <= 1
    actual = []
    for worker in range(16):
        with new_dataset.petastorm_reader("train", worker=worker, workers=16) as reader:
            actual.append([value for batch in reader for value in batch.n.tolist()])
    assert max(map(len, actual)) - min(map(len, actual)) <= 3
    assert sorted(value for values in actual for value in values) == list(range(4000))
    with pytest.raises(ReaderConfigError, match="48 row groups"):
        new_dataset.petastorm_reader("train", worker=0, workers=5)


class _Runs:
    """An object whose pickle runs code that petastorm's restricted unpickler allows."""

    def __init__(self, marker: Path) -> None:
        self.code = f"__import__('pathlib').Path({str(marker)!r}).touch()"

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (self.code,)


def test_foreign_petastorm_metadata_is_not_unpickled(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    from petastorm.etl.dataset_metadata import ROW_GROUPS_PER_FILE_KEY, UNISCHEMA_KEY

    new_dataset = empty_store.create_training_dataset(
        pa.table({"n": range(100), "x": range(100)}), "d", data_format="petastorm", key="n"
    )
    split = Path(new_dataset.path, "train")
    metadata = pq.read_metadata(split / "_common_metadata")
    attack = {
        UNISCHEMA_KEY: pickle.dumps(_Runs(tmp_path / "ran")),
        ROW_GROUPS_PER_FILE_KEY: metadata.metadata[ROW_GROUPS_PER_FILE_KEY],
    }
    schema = metadata.schema.to_arrow_schema()
    pq.write_metadata(schema.with_metadata(attack), split / "_common_metadata")
    pq.write_table(pa.table({"n": [-1]}), split / "stray.parquet")
    with new_dataset.petastorm_reader("train") as reader:
        actual = [value for batch in reader for value in batch.n.tolist()]
    assert sorted(actual) == list(range(100))
    assert not (tmp_path / "ran").exists()
    assert not new_dataset.verify().ok


def test_batch_reader_refuses_unsupported_columns_first(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    rows = range(200)
    table = pa.table(
        {
            "n": rows,
            "some": pa.array([[float(n)] * (n % 4) for n in rows], pa.list_(pa.float32())),
            "gaps": pa.array([None if n % 5 == 0 else [n] * 3 for n in rows], pa.list_(pa.int16(), 3)),
            "v": pa.array([[n, n] for n in rows], pa.list_(pa.int64(), 2)),
        }
    )  # fmt: skip
    new_dataset = empty_store.create_training_dataset(table, "d", data_format="petastorm", key="n")
    with pytest.raises(ReaderConfigError) as caught:
        new_dataset.petastorm_reader("train")
    assert "some (lists of any size), gaps (lists, some of them null)" in caught.value.message
    with new_dataset.petastorm_reader("train", schema_fields=["n", "v"]) as reader:
        actual = {n: v.tolist() for batch in reader for n, v in zip(batch.n, batch.v, strict=True)}
    assert actual == {n: [n, n] for n in rows}
    rows_of_petastorm = read_rows(f"file://{new_dataset.path}/train", schema_fields=["n", "some"])
    by_row = {row.n: row.some.tolist() for row in rows_of_petastorm}
    assert by_row == {n: [float(n)] * (n % 4) for n in rows}
    assert (
        new_dataset.read("train").to_arrow().sort_by("n")["some"].to_pylist()
        == table["some"].to_pylist()
    )


def test_petastorm_reads_any_storage_location(tmp_path: Path) -> None:
    table = pa.table({"n": range(24)})
    folder = tmp_path / "a b%20c"
    _, layout = dataset(folder, table, shards=1)
    shards = [WrittenShard(WrittenFile("train/petastorm-00000-of-00001.parquet", 0, ""), 24)]
    manifest = build_manifest(FORMAT, table, layout, shards)
    with FORMAT.native_reader(str(folder), manifest, split="train", worker=0, workers=1) as reader:
        actual = [n for batch in reader for n in batch.n.tolist()]
    assert sorted(actual) == list(range(24))
