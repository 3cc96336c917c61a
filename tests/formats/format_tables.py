"""The tables of docs/formats.md, made of the files that each format writes.

``python -m tests.formats.format_tables`` writes them; columns and rows of formats whose libraries are
not installed stay as they are. A new format needs a row in ``FORMATS``.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import struct
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from featurestore.arrow.types import shaped_type
from featurestore.errors import InvalidArgument, MissingExtra, UnsupportedType
from featurestore.plugins.format import DatasetFormat, find_format
from featurestore.testing.format_cases import build_manifest
from featurestore.testing.format_conformance import build_layout, list_files, write
from tests.generated_tables import write_tables

DOCS = Path(__file__).parents[2] / "docs" / "formats.md"
NOTHING = "nothing"
_WORDS = (NOTHING, "refused")
COMPRESSIONS = ("NONE", "GZIP", "SNAPPY", "ZSTD", "LZ4", "BROTLI", "BZ2")
NOON = dt.datetime(2024, 1, 31, 12, 30, tzinfo=dt.UTC)
# A value of each feature type.
VALUES: dict[str, tuple[Any, pa.DataType]] = {
    "bool": (True, pa.bool_()),
    "int8": (-1, pa.int8()),
    "int64": (2**40, pa.int64()),
    "uint64": (7, pa.uint64()),
    "float": (0.5, pa.float32()),
    "double": (0.5, pa.float64()),
    "string": ('é"', pa.string()),
    "binary": (b"\x00\xff", pa.binary()),
    "decimal(4, 2)": (Decimal("-12.30"), pa.decimal128(4, 2)),
    "date": (NOON.date(), pa.date32()),
    "timestamp": (NOON, pa.timestamp("us", tz="UTC")),
    "float[2]": ([0.5, 1.0], shaped_type(pa.float32(), (2,))),
    "int8[2][1]": ([[1], [2]], shaped_type(pa.int8(), (2, 1))),
    "int64[]": ([1, 2, 3], pa.list_(pa.int64())),
    "string[]": (["a", "b"], pa.list_(pa.string())),
    "struct": ({"x": 1, "y": "a"}, pa.struct([("x", pa.int64()), ("y", pa.string())])),
    "null": (None, pa.int64()),
}


@dataclass(frozen=True)
class FormatRow:
    """The purpose of a format, and a function that describes the value in a shard of one row."""

    use: str
    describe: Callable[[Path], str]


def csv_text(shard: Path) -> str:
    """Return the text of the only cell, as in the file."""
    return shard.read_bytes().split(b"\r\n")[1].decode() or NOTHING


def tfrecord_feature(shard: Path) -> str:
    """Return the feature of the only record, decoded by the rules of protocol buffers."""
    payload = shard.read_bytes()[12:-4]  # after the length and its checksum, before the checksum
    for field_number, features in fields_of(payload):
        if field_number != 1:
            continue  # not a field of ``Example``, so that every parser skips it
        for _, entry in fields_of(features):
            members_of_entry = dict(fields_of(entry))
            for number, values in fields_of(members_of_entry[2]):
                items = list(feature_items(number, values))
                kind = {1: "bytes", 2: "float", 3: "int64"}[number]
                return f"{kind} {items[0] if len(items) == 1 else items}"
    return NOTHING


def feature_items(number: int, values: bytes) -> Iterator[Any]:
    """Yield the values of a ``BytesList``, ``FloatList`` or ``Int64List``."""
    for _, item in fields_of(values):
        if number == 1:
            yield item
        elif number == 2:
            yield from struct.unpack(f"<{len(item) // 4}f", item)
        else:
            while item:
                value, item = varint(item)
                yield value - (1 << 64 if value >> 63 else 0)


def fields_of(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of the fields of a message, which all have a length."""
    while message:
        tag, message = varint(message)
        size, message = varint(message)
        yield tag >> 3, message[:size]
        message = message[size:]


def varint(data: bytes) -> tuple[int, bytes]:
    """Return a number of seven bits for each byte, and the bytes after it."""
    value = 0
    for position, byte in enumerate(data):
        value |= (byte & 127) << (7 * position)
        if byte < 128:
            return value, data[position + 1 :]
    raise ValueError("the data ends inside of a number")


def parquet_type(shard: Path) -> str:
    """Return the types in the metadata of the file, without those of Arrow."""
    columns = []
    schema = pq.ParquetFile(shard).schema
    for index in range(len(schema)):
        column = schema.column(index)
        logical = re.sub(r"\(.*", "", str(column.logical_type))
        if logical == "Int":
            logical = column.converted_type
        if logical == "Decimal":
            logical = f"Decimal({column.precision}, {column.scale})"
        physical = column.physical_type
        columns.append(physical if logical == "None" else f"{physical}, {logical}")
    path = schema.column(0).path
    if ".list." in path:
        return f"{'LIST of ' * path.count('.list.')}{columns[0]}"
    return columns[0] if len(columns) == 1 else f"group of {'; '.join(columns)}"


def arrow_type(shard: Path) -> str:
    """Return the type of the column in an Arrow stream."""
    with pa.OSFile(str(shard)) as file, pa.ipc.open_stream(file) as reader:
        return str(reader.schema.field("x").type)


def tar_member(shard: Path) -> str:
    """Return the extension of the file with the value, or its text in JSON."""
    with tarfile.open(shard) as archive:
        members = {member.name.partition(".")[2]: member for member in archive}
        contents = archive.extractfile(members["json"])
        assert contents is not None
        text = contents.read().decode()
        extensions = [name for name in members if name != "json"]
    if extensions:
        return f"a file `.{extensions[0]}`"
    return f"json `{json.dumps(json.loads(text)['x'], ensure_ascii=False)}`"


def lance_type(shard: Path) -> str:
    """Return the type of the column in the Lance dataset of the split."""
    import lance

    return str(lance.dataset(str(shard.parent)).schema.field("x").type)


FORMATS = {
    "tfrecord": FormatRow("fast training in TensorFlow", tfrecord_feature),
    "petastorm": FormatRow("existing petastorm code", parquet_type),
    "parquet": FormatRow("any program that reads tables", parquet_type),
    "csv": FormatRow("inspection", csv_text),
    "huggingface": FormatRow("`datasets.load_from_disk`", arrow_type),
    "webdataset": FormatRow("`webdataset`, and any program that reads tar archives", tar_member),
    "lance": FormatRow("`lance.dataset` of a split", lance_type),
}


def write_value(dataset_format: DatasetFormat, directory: Path, name: str) -> Path:
    """Write a dataset with one value, and return its shard."""
    value, dtype = VALUES[name]
    table = pa.table({"x": pa.array([value], dtype)})
    layout = build_layout(dataset_format, table)
    path, shard = write(dataset_format, directory, table, layout)
    dataset_format.finish(str(directory), build_manifest(dataset_format, table, layout, [shard]))
    return Path(path)


def is_supported(dataset_format: DatasetFormat, name: str) -> bool:
    """Return whether a format stores a feature type."""
    schema = pa.schema([("x", VALUES[name][1])])
    try:
        dataset_format.check(schema, compression=None)
    except UnsupportedType:
        return False
    return True


def describe_value(dataset_format: DatasetFormat, name: str) -> str:
    """Return the cell of a feature type."""
    if not is_supported(dataset_format, name):
        return "refused"
    with TemporaryDirectory() as directory:
        shard = write_value(dataset_format, Path(directory), name)
        text = FORMATS[dataset_format.name].describe(shard)
    return text if "`" in text or text in _WORDS else f"`{text}`"


def describe_format(dataset_format: DatasetFormat) -> list[str]:
    """Return the cells of a format, after its name."""
    schema = pa.schema([("x", pa.int64())])
    codecs = []
    for codec in COMPRESSIONS:
        try:
            dataset_format.check(schema, compression=codec)
            codecs.append(f"`{codec}`")
        except InvalidArgument:
            continue
    types = [name for name in VALUES if name != "null"]
    refused = [name for name in types if not is_supported(dataset_format, name)]
    losses, files = dict[str, None](), dict[str, None]()
    for name in [name for name in types if name not in refused]:
        with TemporaryDirectory() as directory:
            shard = write_value(dataset_format, Path(directory), name)
            for file in list_files(Path(directory)):
                if file != shard and not file.is_relative_to(shard):
                    # Names of shards and versions have numbers.
                    is_numbered = any(map(str.isdigit, file.stem))
                    files[f"`{file.suffix if is_numbered else file.name}`"] = None
        value, dtype = VALUES[name]
        table = pa.table({"x": pa.array([value], dtype)})
        encoding = dataset_format.encodings(build_layout(dataset_format, table))["x"]
        if encoding.loss is not None:
            losses[encoding.loss] = None
    cells = [", ".join(codecs), ", ".join(refused), ", ".join(losses), ", ".join(files)]
    return [FORMATS[dataset_format.name].use, *(cell or "none" for cell in cells)]


def installed(name: str) -> DatasetFormat | None:
    """Return a format, or None if it or its library is not installed."""
    try:
        dataset_format = find_format(name)
        dataset_format.check(pa.schema([("x", pa.int64())]), compression=None)
    except (MissingExtra, InvalidArgument):
        return None
    return dataset_format


HEADINGS = ["format", "use", "`compression=`", "refused types", "lost", "other files"]


def format_rows() -> dict[str, list[str] | None]:
    """Return the cells of each format; None where its library is not installed."""
    rows: dict[str, list[str] | None] = {}
    for name in FORMATS:
        dataset_format = installed(name)
        rows[name] = None if dataset_format is None else describe_format(dataset_format)
    return rows


def type_columns() -> dict[str, list[str] | None]:
    """Return the cells of each format for each feature type."""
    columns: dict[str, list[str] | None] = {}
    for name in FORMATS:
        dataset_format = installed(name)
        columns[name] = None
        if dataset_format is not None:
            columns[name] = [describe_value(dataset_format, kind) for kind in VALUES]
    return columns


def documented(marker: str) -> list[list[str]]:
    """Return the cells of the table after a marker, with its headings."""
    text = DOCS.read_text(encoding="utf-8").partition(f"<!-- {marker}:")[2]
    lines = text.partition("<!-- end")[0].split("\n")
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [row for row in rows if set(row[0]) != {"-"}]


def documented_formats() -> dict[str, list[str]]:
    """Return the documented cells of each format."""
    return {row[0]: row[1:] for row in documented("formats")[1:]}


def documented_types() -> dict[str, list[str]]:
    """Return the documented cells of each format for each feature type."""
    headings, *rows = documented("types")
    return {name: [row[index] for row in rows] for index, name in enumerate(headings) if index}


def table_text(headings: list[str], rows: list[list[str]]) -> str:
    """Return a table of Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Write the tables into the docs."""
    known_formats, known_types = documented_formats(), documented_types()
    missing = ["?"] * (len(HEADINGS) - 1)
    formats = [
        [name, *(cells or known_formats.get(name, missing))]
        for name, cells in format_rows().items()
    ]
    columns = {
        name: cells or known_types.get(name, ["?"] * len(VALUES))
        for name, cells in type_columns().items()
    }
    types = [[name, *(cells[row] for cells in columns.values())] for row, name in enumerate(VALUES)]
    tables = {
        "formats": table_text(HEADINGS, formats),
        "types": table_text(["feature type", *columns], types),
    }
    write_tables(DOCS, tables)


if __name__ == "__main__":
    main()
