"""The tables of files in docs/how-to/sources.md, made by reading files.

``python -m tests.sources.source_tables`` writes them. A new format of files needs a function in
``CONTENTS``.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from featurestore.errors import FeatureStoreError
from featurestore.plugins.source import SourceQuery
from tests.generated_tables import write_tables
from tests.sources.source_writers import open_source

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "sources.md"
ROWS = [{"n": 1, "text": "a"}, {"n": 2, "text": "b"}]
TABLE = pa.Table.from_pylist(ROWS)
EXTENSIONS = (
    *(".csv", ".tsv", ".parquet", ".parq", ".pq", ".jsonl", ".ndjson", ".json", ".arrow", ".tar"),
    *(".txt", ".data", ".tab", ".psv", ".geojson", ".feather", ".npz"),
)
EXTENSION_OF = {"webdataset": ".tar"}
# An extension without a meaning.
UNKNOWN_EXTENSION = ".other"


def parquet_file() -> bytes:
    """Return the rows as a Parquet file."""
    file = io.BytesIO()
    pq.write_table(TABLE, file)
    return file.getvalue()


def arrow_stream() -> bytes:
    """Return the rows as an Arrow stream."""
    file = io.BytesIO()
    with pa.ipc.new_stream(file, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return file.getvalue()


def tar_archive() -> bytes:
    """Return the rows as a shard of WebDataset."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number, row in enumerate(ROWS):
            content = json.dumps(row).encode()
            member = tarfile.TarInfo(f"{number:04}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


# The bytes of the rows by format, for an extension.
CONTENTS: dict[str, Callable[[str], bytes]] = {
    "csv": lambda extension: separated("\t" if extension == ".tsv" else ","),
    "jsonl": lambda _: "\n".join(map(json.dumps, ROWS)).encode(),
    "json": lambda _: json.dumps(ROWS, indent=1).encode(),
    "parquet": lambda _: parquet_file(),
    "arrow": lambda _: arrow_stream(),
    "webdataset": lambda _: tar_archive(),
}
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pa.compress(content, "zstd", asbytes=True),
    ".zip": lambda content: zipped(content),
}


def separated(delimiter: str) -> bytes:
    """Return the rows as CSV."""
    lines = [("n", "text"), *((str(row["n"]), row["text"]) for row in ROWS)]
    return "".join(f"{delimiter.join(map(str, line))}\n" for line in lines).encode()


def zipped(content: bytes) -> bytes:
    """Return an archive of one file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("rows", content)
    return file.getvalue()


def read_files(files: dict[str, bytes], **options: str) -> pa.Table:
    """Return the rows of a folder with these files."""
    with TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in files.items():
            (Path(directory) / name).write_bytes(content)
        source = open_source("file", directory, **options)
        with closing(source.snapshot()) as snapshot:
            return snapshot.read(SourceQuery()).read_all()


def is_read(file_format: str, extension: str, *, compression: str = "", **options: str) -> bool:
    """Return whether a file of a format is read with its rows."""
    content = CONTENTS[file_format](extension)
    if compression:
        content = COMPRESSIONS[compression](content)
    try:
        rows = read_files({f"rows{extension}{compression}": content}, **options)
    except FeatureStoreError:
        return False
    return rows.select(["n", "text"]).to_pylist() == ROWS if "n" in rows.column_names else False


def file_table() -> str:
    """Return the table of extensions by format."""
    headings = ["`format=`", "read without it", "with it", "compressed"]
    lines = [f"| {' | '.join(headings)} |", f"|{' --- |' * len(headings)}"]
    for name in CONTENTS:
        extensions = [extension for extension in EXTENSIONS if is_read(name, extension)]
        with_format = (
            "any extension" if is_read(name, UNKNOWN_EXTENSION, format=name) else "these extensions"
        )
        codecs = [
            codec
            for codec in COMPRESSIONS
            if is_read(name, EXTENSION_OF.get(name, f".{name}"), compression=codec, format=name)
        ]
        lines.append(f"| `{name}` | {as_code(extensions)} | {with_format} | {as_code(codecs)} |")
    return "\n".join(lines)


def as_code(words: list[str]) -> str:
    """Return words as inline code."""
    return f"`{' '.join(words)}`" if words else "none"


# Values as they are written, in the files of CSV and of JSON.
VALUES: dict[str, list[str]] = {
    "true and false": ["true", "false"],
    "integers": ["1", "-9223372036854775808"],
    "integers of more than 64 bits": ["9223372036854775809", "1"],
    "integers with leading zeros or a plus sign": ["007", "+49"],
    "floats": ["1.5", "-2e3"],
    "integers and floats": ["1", "1.5"],
    "2⁵³+1 and floats": ["9007199254740993", "1.5"],
    "infinity and NaN": ["inf", "nan"],
    "dates in ISO 8601": ["2024-01-31", "2024-02-29"],
    "dates in another form": ["31.01.2024", "29.02.2024"],
    "times in ISO 8601": ["2024-01-31T12:00:00", "2024-01-31 12:00:00.5"],
    "times with a zone": ["2024-01-31T12:00:00Z", "2024-01-31T12:00:00+02:00"],
    "times with and without a zone": ["2024-01-31T12:00:00", "2024-01-31T12:00:00Z"],
    "dates and times": ["2024-01-31", "2024-01-31T12:00:00"],
    "texts and numbers": ["a", "1"],
    "lists of numbers": ["[1, 2]", "[3]"],
    "objects": ['{"a": 1}', '{"a": 2, "b": "x"}'],
    "no values": ["", ""],
}
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?(e-?\d+)?")


def json_value(text: str) -> str:
    """Return a value of CSV in JSON: a number, a list, an object, null or a text."""
    is_json = NUMBER.fullmatch(text) or text in ("true", "false") or text[:1] in ("[", "{")
    return text if is_json else json.dumps(text or None)


def inferred_type(files: dict[str, bytes]) -> str:
    """Return the type of the column ``x``."""
    try:
        dtype = str(read_files(files).schema.field("x").type)
    except FeatureStoreError:
        return "refused"
    return "no type" if dtype == "null" else f"`{dtype}`"


def type_table() -> str:
    """Return the table of inferred types."""
    lines = ["| values | for example | CSV | JSON |", "| --- | --- | --- | --- |"]
    for title, texts in VALUES.items():
        cells = [text.replace('"', '""') for text in texts]
        quoted = [f'"{cell}"' if "," in cell else cell for cell in cells]
        text = "".join(f"{row},{cell}\n" for row, cell in enumerate(quoted))
        objects = [f'{{"row": {row}, "x": {json_value(cell)}}}' for row, cell in enumerate(texts)]
        separated_type = inferred_type({"rows.csv": f"row,x\n{text}".encode()})
        json_type = inferred_type({"rows.jsonl": "\n".join(objects).encode()})
        example = f"`{', '.join(texts)}`" if any(texts) else "empty fields, `null`"
        lines.append(f"| {title} | {example} | {separated_type} | {json_type} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {"files": file_table, "inferred types": type_table}


def main() -> None:
    """Write the tables into the docs."""
    write_tables(DOCS, {name: make() for name, make in TABLES.items()})


if __name__ == "__main__":
    main()
