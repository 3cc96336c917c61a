"""A file that is not empty has rows, or an error that names it, as Python's parsers decide."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from encodings.aliases import aliases
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.arrow.column_names import is_utf8_string
from featurestore.errors import InvalidArgument, InvalidSourceFile
from featurestore.model.source import options_to_strings
from featurestore.plugins.source import SourceConfig, SourceQuery
from featurestore.sources import SourceFrame
from featurestore_connectors.sources.folder import FolderSource

Lake = Callable[..., SourceFrame]
Rows = list[tuple[str | None, ...]]


def zip_member(data: bytes, *more_names: str) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        # Archives of macOS have a hidden file for each file.
        for name in ("orders", "__MACOSX/._orders", *more_names):
            writer.writestr(name, data)
    return archive.getvalue()


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True) if data else b"",
    ".xz": lzma.compress,
    ".zip": zip_member,
}
ENCODINGS = ("utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252")
SUFFIXES = st.sampled_from(sorted(COMPRESSORS))
FIELDS = st.sampled_from(["a", "é", '"x"', '"x\ny"', '""', "", "1", '"', '"x"y'])
LINE_ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "\r"])


def read(name: str, data: bytes, options: dict[str, Any]) -> tuple[Rows, int] | None:
    """Return the rows and the number of bad rows of a file, or None for an error with its name."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_bytes(data)
        query = SourceQuery(options=options_to_strings(options))
        with closing(FolderSource(SourceConfig("lake", folder)).snapshot()) as snapshot:
            try:
                rows = snapshot.read(query).read_all().to_pylist()
            except InvalidSourceFile as error:
                return None if name in error.message else ([(error.message,)], -1)
            assert len(snapshot.bad_rows) == snapshot.bad_row_count
            return [tuple(row.values()) for row in rows], snapshot.bad_row_count


@st.composite
def csv_files(draw: st.DrawFn) -> tuple[str, bytes, list[str], dict[str, Any]]:
    """Return name, content, columns and options of a CSV file, which may be invalid."""
    width = draw(st.integers(1, 3))
    columns = [f"column_{number}" for number in range(width)]
    records = draw(st.lists(st.lists(FIELDS, min_size=width, max_size=width), max_size=5))
    if draw(st.booleans()):
        records.append(draw(st.lists(FIELDS, max_size=4)))
    options: dict[str, Any] = {"encoding": draw(st.sampled_from(ENCODINGS))}
    if draw(st.booleans()):
        records.insert(0, columns)
    else:
        options |= {"header": False, "names": columns}
    text = "".join(",".join(record) + draw(LINE_ENDS) for record in records)
    if draw(st.booleans()):
        text = text.rstrip("\r\n")
    data = text.encode(options["encoding"])
    if options["encoding"] == "utf-8" and draw(st.booleans()):
        position = draw(st.integers(0, len(data)))
        data = data[:position] + b"\xff" + data[position:]
    if draw(st.booleans()):
        options["on_bad_rows"] = "quarantine"
    return f"a.csv{draw(SUFFIXES)}", data, columns, options


def expected_csv(
    data: bytes, columns: list[str], options: dict[str, Any]
) -> tuple[Rows, int] | None:
    """Return the rows of Python's parser, and the number of bad rows; None for an invalid file."""
    text = data.decode(options["encoding"], "surrogateescape")
    try:
        records = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return None
    is_headerless = "names" in options
    while records and not records[0] and not (is_headerless and len(columns) == 1):
        del records[0]
    first = records[0] or [""] if records else []
    if first and not is_headerless and not is_utf8_string("".join(first)):
        return None
    body = records if is_headerless else records[1:]
    filled = [record or [""] for record in body if record or len(columns) == 1]
    good = [
        record
        for record in filled
        if len(record) == len(columns) and is_utf8_string("".join(record))
    ]
    bad_count = len(filled) - len(good)
    if not first and data:
        bad_count = 1
    if bad_count and "on_bad_rows" not in options:
        return None
    # Without another file, a file needs a header.
    if not first and not is_headerless:
        return None
    return [tuple(record) for record in good], bad_count


def check_csv_file(name: str, data: bytes, columns: list[str], options: dict[str, Any]) -> None:
    suffix = name.removeprefix("a.csv")
    dtypes = dict.fromkeys(columns, "string")
    actual = read(name, COMPRESSORS[suffix](data), {**options, "dtypes": dtypes})
    if actual is not None:
        # Python's parser does not distinguish null from an empty string.
        actual = [tuple(cell or "" for cell in row) for row in actual[0]], actual[1]
    assert actual == expected_csv(data, columns, options)


@settings(max_examples=150, deadline=None)
@given(csv_files())
def test_csv_files_equal_python_parser_to_the_last_byte(
    file: tuple[str, bytes, list[str], dict[str, Any]],
) -> None:
    check_csv_file(*file)


@pytest.mark.soak
@settings(max_examples=10_000, deadline=None)
@given(csv_files())
def test_many_csv_files_equal_python_parser_to_the_last_byte(
    file: tuple[str, bytes, list[str], dict[str, Any]],
) -> None:
    check_csv_file(*file)


def test_csv_files_in_every_encoding_are_read_or_refused(subtests: pytest.Subtests) -> None:
    for encoding in sorted(set(aliases.values())):
        with subtests.test(encoding):
            options: dict[str, Any] = {"encoding": encoding, "header": False, "names": ["id", "x"]}
            options["dtypes"] = {"id": "string", "x": "string"}
            try:
                data = "1,~\n".encode(encoding)
            except (LookupError, UnicodeError, AttributeError):
                with pytest.raises(InvalidArgument, match="is not an encoding of text"):
                    read("a.csv", b"1,~\n", options)
                continue
            if encoding in ("idna", "punycode"):
                continue
            assert read("a.csv", data, options) == ([("1", data.decode(encoding)[-2])], 0)
            # The rows of damaged files depend on the encoding; an error has the name of the file.
            for on_bad_rows in ("error", "quarantine"):
                damaged = data + b"\x81\xff\xfe" + data[:-1]
                actual = read("a.csv", damaged, {**options, "on_bad_rows": on_bad_rows})
                assert actual is None or actual[1] >= 0


JSON_LINES = ['{"id": 1}', '{"id": null}', "{}", '{"id": 2, "s": "é\\n"}', '{"s": "\u2028"}']
INVALID_LINES = ["{", "[1]", '{"id": "x"}', '{"id": 1, "id": 2}', '{"s": "\\ud800"}', "1", "nan"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([*JSON_LINES, *INVALID_LINES, "", " ", "\r"]), max_size=6),
    SUFFIXES,
    st.booleans(),
    st.integers(0, 60) | st.none(),
)
def test_json_lines_equal_python_parser_to_the_last_byte(
    lines: list[str], suffix: str, quarantines: bool, invalid_byte: int | None
) -> None:
    data = "\n".join(lines).encode()
    if invalid_byte is not None:
        data = data[:invalid_byte] + b"\xff" + data[invalid_byte:]
    rows: Rows = []
    filled = [line for line in data.split(b"\n") if line.strip(b" \r")]
    for line in filled:
        text = line.decode(errors="replace")
        if text.strip("\r") in JSON_LINES:
            members = json.loads(text)
            rows.append((members.get("id"), members.get("s")))
    # A file of empty lines has no objects, which is one invalid row.
    bad_count = len(filled) - len(rows) if filled else int(bool(data))
    expected = (rows, bad_count) if quarantines or not bad_count else None
    options: dict[str, Any] = {"on_bad_rows": "quarantine"} if quarantines else {}
    # The schema is declared by a file in which both names occur.
    complete = b'{"id": 0, "s": ""}\n'
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "0.jsonl").write_bytes(complete)
        Path(folder, f"a.jsonl{suffix}").write_bytes(COMPRESSORS[suffix](data))
        options["dtypes"] = {"id": "int64", "s": "string"}
        query = SourceQuery(options=options_to_strings(options))
        with closing(FolderSource(SourceConfig("lake", folder)).snapshot()) as snapshot:
            if expected is None:
                with pytest.raises(InvalidSourceFile, match=r"a\.jsonl\S* line \d+"):
                    snapshot.read(query).read_all()
                return
            actual = snapshot.read(query).read_all().to_pylist()[1:]
            assert ([tuple(row.values()) for row in actual], snapshot.bad_row_count) == expected


def test_lines_longer_than_a_block_of_arrow_are_read(subtests: pytest.Subtests) -> None:
    long = "0123456789abcdef" * (2**17 + 1)
    headerless = {"header": False, "names": ["id", "x"]}
    files: list[tuple[str, dict[str, Any], Rows]] = [
        (f"1,{long}", headerless, [("1", long)]),
        (f"1,{long}\n2,y\n", headerless, [("1", long), ("2", "y")]),
        (f"id,x\n1,{long}", {}, [("1", long)]),
        (f"id,{long}\n1,y", {}, [("1", "y")]),
    ]
    for number, (text, options, expected) in enumerate(files):
        for suffix, encoding in (("", "utf-8"), (".zip", "utf-16")):
            with subtests.test(f"{number} {suffix} {encoding}"):
                data = COMPRESSORS[suffix](text.encode(encoding))
                options = {**options, "encoding": encoding, "dtypes": {"id": "string"}}
                assert read(f"a.csv{suffix}", data, options) == (expected, 0)


def test_damaged_archives_are_refused_by_name(subtests: pytest.Subtests) -> None:
    data = b"id\n" + b"".join(b"%d\n" % (number * 7919) for number in range(500))
    for suffix, compress in COMPRESSORS.items():
        # Two streams, one after another, except in archives.
        compressed = compress(data) if suffix == ".zip" else compress(data) * 2
        damages = [compressed[:-cut] for cut in (1, 9, 25, len(compressed) // 2 - 3)]
        damages.append(compressed + b"0123456789")
        for number, damaged in enumerate(damages):
            with subtests.test(f"{suffix} {number}"):
                if not suffix:
                    continue
                actual = read(f"a.csv{suffix}", damaged, {"header": False, "names": ["id"]})
                # Readers of zip archives ignore bytes after the end.
                is_ignored = suffix == ".zip" and number == len(damages) - 1
                assert (actual is None) != is_ignored


def test_archives_of_several_files_are_refused(lake: Lake) -> None:
    for names, count in ((("b.csv",), 2), (("b.csv", "c.csv"), 3)):
        with pytest.raises(InvalidSourceFile, match=rf"a\.csv\.zip: the archive has {count} files"):
            lake({"a.csv.zip": zip_member(b"id\n1\n", *names)})


def test_rows_with_invalid_bytes_and_fields_follow_on_bad_rows(
    lake: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    files: dict[str, str | bytes] = {
        "a.csv": b'id,x\n1,a\n2,\xff,c\n3,"\n\xfe"\n4,\xe9\n5,\xc3\xa9\n6\n'
    }
    with pytest.raises(InvalidSourceFile, match=r"a\.csv line 3: 3 fields, but the first line has"):
        lake(files)
    with pytest.raises(InvalidSourceFile, match=r"a\.csv line 2: the bytes are not utf-8"):
        lake({"a.csv": b"id,x\n1,\xff\n2,b,c\n"})
    for options in ({}, {"comment": "#"}):
        frame = lake(files, on_bad_rows="quarantine", dtypes={"id": "int8"}, **options)
        assert frame.to_arrow().to_pylist() == [{"id": 1, "x": "a"}, {"id": 5, "x": "é"}]
        bad = frame.quarantine().to_pylist()
        assert [(row["line"], row["text"]) for row in bad] == [
            (3, "2,\ufffd,c"),
            (4, "3,\n\ufffd"),
            (6, "4,\ufffd"),
            (8, "6"),
        ]
    # Line numbers of invalid values count the invalid rows before them.
    invalid = lake({"a.csv": b"id\n\xff\n1\nx\n"}, on_bad_rows="quarantine", dtypes={"id": "int8"})
    assert invalid.to_arrow().to_pylist() == [{"id": 1}]
    assert invalid.quarantine().column("line").to_pylist() == [2, 4]
    assert capfd.readouterr().err == ""


def test_nested_json_has_a_type_or_is_refused_by_line(
    lake: Lake, subtests: pytest.Subtests
) -> None:
    for depth in (60, 61, 62, 200, 249, 250, 2_000):
        lists, objects = "[" * depth + "1" + "]" * depth, '{"a": ' * depth + "1" + "}" * depth
        for value in (lists, objects):
            line = f'{{"id": 1, "x": {value}}}\n'
            files: dict[str, str | bytes] = {"a.jsonl": '{"id": 0, "x": null}\n' + line}
            with subtests.test(f"{depth} {value[0]}"):
                if depth == 60:
                    row = lake(files).to_arrow().to_pylist()[1]
                    assert row["x"] == json.loads(value)
                else:
                    with pytest.raises(
                        InvalidSourceFile, match=r"nested .* a\.jsonl line 2|line 2: .*nested"
                    ):
                        lake(files)
                if depth < 250:
                    texts = lake(files, dtypes={"x": "string"}).to_arrow().column("x")
                    assert texts.to_pylist() == [None, value]
                else:
                    valid_rows = lake(files, on_bad_rows="quarantine")
                    assert valid_rows.to_arrow().num_rows == 1
                    assert valid_rows.quarantine().column("line").to_pylist() == [2]
