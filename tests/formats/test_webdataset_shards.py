"""``webdataset``, ``tarfile`` and this store read each other's shards, with equal values and order."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import io
import json
import pickle
import random
import tarfile
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore.errors import FeatureStoreError, UnsupportedType
from featurestore.plugins.format import find_format
from featurestore.plugins.source import SourceConfig, SourceQuery, find_source
from featurestore.storage.tar_files import TarReader
from tests.formats.input_rows import rows_of_inputs

webdataset = pytest.importorskip("webdataset")

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def json_value(value: Any, dtype: pa.DataType) -> Any:
    """Return the value that a JSON file has for a value of a type."""
    if value is None:
        return None
    if pa.types.is_list(dtype) or pa.types.is_fixed_size_list(dtype):
        return [json_value(item, dtype.value_type) for item in value]
    if pa.types.is_struct(dtype):
        return {field.name: json_value(value[field.name], field.type) for field in dtype}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return (value - EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return (value - EPOCH.date()).days
    return format(value, "f") if isinstance(value, Decimal) else value


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset closes no shard
def test_webdataset_reads_every_type_with_equal_rows(empty_store: FeatureStore) -> None:
    table = rows_of_inputs("webdataset", 300)
    exported = empty_store.create_training_dataset(
        table, "types", key="id", data_format="webdataset", splits={"train": 0.8, "test": 0.2}
    )
    rows, storage = table.to_pylist(), exported.manifest.layout["storage"]
    assert set(storage.values()) == {"json", "npy", "bytes"}
    for split in ("train", "test"):
        shards = sorted(map(str, Path(exported.path, split).glob("*.tar")))
        samples = list(webdataset.WebDataset(shards, shardshuffle=False).decode())
        expected = [rows[sample["json"]["id"]] for sample in samples]
        assert exported.read(split).to_arrow().select(table.schema.names).to_pylist() == expected
        for field in table.schema:
            for sample, row in zip(samples, expected, strict=True):
                value = row[field.name]
                if storage[field.name] == "json":
                    assert sample["json"][field.name] == json_value(value, field.type)
                elif storage[field.name] == "bytes" or value is None:
                    assert sample.get(field.name) == value
                    assert f"{field.name}.npy" not in sample
                else:
                    assert sample[f"{field.name}.npy"].tolist() == value
        keys = [sample["__key__"] for sample in samples]
        assert len(set(keys)) == len(keys) == exported.num_rows(split)


def sample(number: int) -> dict[str, Any]:
    """Return a sample as a user of ``webdataset`` writes it."""
    values: dict[str, Any] = {
        "__key__": f"folder/{number:05d}",
        "jpg": b"\xff\xd8" + bytes([number]),
        "left.png": b"\x89PNG",
        "cls": number % 3,
        "txt": f"line {number} ü\n",
        "json": {"width": number, "ratio": number / 4, "tags": ["a"] * (number % 2), "none": None},
        "box.npy": np.arange(4, dtype="f4") + number,
        "points.npy": np.ones((number % 3, 2), ">i2"),
        "fortran.npy": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "mask.npy": np.array([[True], [False]]),
        "scalar.npy": np.array(number),
    }
    if number % 4 == 1:
        del values["txt"]
    return values


def write_shards(folder: Path, samples: Iterable[dict[str, Any]], *, name: str = "a.tar") -> None:
    folder.mkdir(exist_ok=True)
    with webdataset.TarWriter(str(folder / name)) as writer:
        for each in samples:
            writer.write(each)


def read_shards(folder: Path, *columns: str) -> pa.Table:
    snapshot = find_source("file")(SourceConfig("images", str(folder))).snapshot()
    return snapshot.read(SourceQuery(columns=columns or None)).read_all()


def test_shards_of_webdataset_are_read_with_equal_values(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", map(sample, range(30)))
    write_shards(tmp_path / "shards", map(sample, range(30, 50)), name="b.tar")
    archive = tmp_path / "shards" / "b.tar"
    (tmp_path / "shards" / "b.tar.gz").write_bytes(gzip.compress(archive.read_bytes()))
    archive.unlink()
    # Links, pipes and devices beside files of data are not read, hidden files are no samples.
    table = read_shards(tmp_path / "shards")
    rows = table.to_pylist()
    samples = list(map(sample, range(50)))
    assert [row["key"] for row in rows] == [each["__key__"] for each in samples]
    for row, each in zip(rows, samples, strict=True):
        for name, value in each.items():
            if name == "json":
                assert {member: row[member] for member in value} == value
            elif name != "__key__":
                assert row[name] == (value.tolist() if isinstance(value, np.ndarray) else value)
        assert ("txt" in each) == (row["txt"] is not None)
    types = {field.name: str(field.type).replace("item: ", "") for field in table.schema}
    assert types["box.npy"] == "fixed_size_list<float>[4]"
    assert types["points.npy"] == "list<fixed_size_list<int16>[2]>"
    assert types["scalar.npy"] == types["width"] == types["cls"] == "int64"
    assert types["jpg"] == types["left.png"] == "binary"
    assert read_shards(tmp_path / "shards", "ratio", "key").column_names == ["ratio", "key"]


class Touch:
    """An object whose pickle writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_pickles_are_refused_and_never_loaded(tmp_path: Path) -> None:
    code = pickle.dumps(Touch(tmp_path / "ran"))
    array = io.BytesIO()
    np.save(array, np.array([Touch(tmp_path / "ran")], object), allow_pickle=True)
    for number, extension in enumerate(("pyd", "pickle", "pth", "x.pkl")):
        folder = tmp_path / str(number)
        write_tar(folder, {"1.txt": b"a", f"1.{extension}": code})
        with pytest.raises(UnsupportedType, match="a pickle, which is code") as caught:
            read_shards(folder)
        assert "columns=['key', 'txt']" in str(caught.value.hint)
        assert read_shards(folder, "key", "txt").to_pylist() == [{"key": "1", "txt": "a"}]
    write_tar(tmp_path / "arrays", {"1.npy": array.getvalue()})
    with pytest.raises(FeatureStoreError, match="not that of an array of numbers"):
        read_shards(tmp_path / "arrays")
    assert not (tmp_path / "ran").exists()
    for name in ("pyd", "pth"):
        with pytest.raises(UnsupportedType, match="loaders would unpickle"):
            find_format("webdataset").check(pa.schema([(name, pa.binary())]), compression=None)


def write_tar(folder: Path, files: dict[str, bytes | tarfile.TarInfo]) -> Path:
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return folder / "a.tar"


def special_file(member_type: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("2.txt")
    info.type, info.linkname = member_type, "/etc/passwd"
    return info


GOOD = {"1.txt": b"a", "1.cls": b"7"}
BAD_FILES: dict[str, dict[str, Any]] = {
    "'2.txt' at byte .* is a symbolic link": {**GOOD, "2.txt": special_file(tarfile.SYMTYPE)},
    "is a hard link": {**GOOD, "2.txt": special_file(tarfile.LNKTYPE)},
    "is a device": {**GOOD, "2.txt": special_file(tarfile.CHRTYPE)},
    "'1' are not adjacent": {**GOOD, "2.txt": b"b", "1.json": b"{}"},
    "'README' has no extension": {**GOOD, "README": b"b"},
    "two files 'txt'": {**GOOD, "1.TXT": b"b"},
    "the bytes are not UTF-8": {**GOOD, "2.txt": b"\xff"},
    "json: .* is not JSON|json: Expecting": {**GOOD, "1.json": b"{"},
    "'txt', 'key'|'key'": {**GOOD, "1.json": b'{"key": 1}'},
    "an array of shape": {"1.npy": b"\x93NUMPY\x01\x00\x38\x00{'descr': '<f8', 'fortran_order': False, "
                          b"'shape': (9,)}" + b"\n" + bytes(64)},
}  # fmt: skip


@pytest.mark.parametrize("reason", BAD_FILES)
def test_invalid_archive_is_refused(reason: str, tmp_path: Path) -> None:
    write_tar(tmp_path / "good", {**GOOD, "._1.txt": b"\xff", "folder/__x__": b""})
    assert read_shards(tmp_path / "good").to_pylist() == [{"key": "1", "txt": "a", "cls": 7}]
    write_tar(tmp_path / "bad", BAD_FILES[reason])
    with pytest.raises(FeatureStoreError, match=reason):
        read_shards(tmp_path / "bad")


def test_truncated_archive_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a", {f"{number}.txt": b"a" * 600 for number in range(3)})
    content = path.read_bytes()
    rows_end = 3 * (512 + 1024)
    for size in (0, 1, 512, 600, 512 + 1024, rows_end, rows_end + 512):
        path.write_bytes(content[:size])
        with pytest.raises(FeatureStoreError, match="truncated"):
            read_shards(tmp_path / "a")
    path.write_bytes(bytes(1024))
    with pytest.raises(FeatureStoreError, match=r"a\.tar has no samples"):
        read_shards(tmp_path / "a")
    path.write_bytes(content + content)
    with pytest.raises(FeatureStoreError, match="bytes follow its end"):
        read_shards(tmp_path / "a")


def test_changed_bytes_raise_errors_of_the_store(tmp_path: Path) -> None:
    write_shards(tmp_path / "a", map(sample, range(3)))
    path = tmp_path / "a" / "a.tar"
    content = path.read_bytes()
    refused = 0
    for _ in range(80):
        damaged = bytearray(content)
        for _ in range(random.choice([1, 3])):
            block = 512 * random.randrange(len(content) // 512)
            damaged[block + random.randrange(180)] = random.randrange(256)
        path.write_bytes(damaged)
        try:
            read_shards(tmp_path / "a").to_pylist()
        except FeatureStoreError:
            refused += 1
    assert refused


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_reader_agrees_with_tarfile(form: int, tmp_path: Path) -> None:
    names = ["a.txt", "ü/b.c.txt", "f" * 90 + "/" + "g" * 60 + ".x", "deep/" * 20 + "h.y"]
    if form != tarfile.USTAR_FORMAT:
        names.append("n" * 300 + ".z")
    with tarfile.open(tmp_path / "a.tar", "w", format=form) as archive:
        for size, name in enumerate(names, start=510):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = size, 1.5
            archive.addfile(info, io.BytesIO(b"x" * size))
    with (tmp_path / "a.tar").open("rb") as file:
        reader = TarReader(file)
        members = [(member.name, reader.read()) for member in reader]
    assert members == [(name, b"x" * size) for size, name in enumerate(names, start=510)]


def test_large_headers_are_refused_before_they_are_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a.txt")
        info.pax_headers = {"comment": "x" * (2 << 20)}
        archive.addfile(info)
    with (
        (tmp_path / "a.tar").open("rb") as file,
        pytest.raises(ValueError, match="extended header"),
    ):
        list(TarReader(file))


def test_verify_covers_every_file(empty_store: FeatureStore) -> None:
    exported = empty_store.create_training_dataset(
        pa.table({"n": [n % 7 for n in range(100)], "x": [b"a", b"bc"] * 50}),
        "small",
        data_format="webdataset",
        splits={"train": 0.8, "test": 0.2},
    )
    paths = [path for path in Path(exported.path).rglob("*") if path.suffix in (".tar", ".idx")]
    assert len(paths) == 4
    for path in paths:
        content = path.read_bytes()
        for position in range(0, len(content), len(content) // 7):
            damaged = bytearray(content)
            damaged[position] ^= 1
            path.write_bytes(damaged)
            assert not exported.verify().ok, (path, position)
        path.write_bytes(content)
    assert exported.verify().ok
    assert (
        json.loads(Path(exported.path, "manifest.json").read_bytes())["data_format"] == "webdataset"
    )
