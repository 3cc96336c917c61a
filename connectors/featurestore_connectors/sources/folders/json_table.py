"""JSON tables: columns from the member names of their objects, types inferred from all values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

import pyarrow as pa

from featurestore.arrow.json_columns import JsonColumns, parse_object
from featurestore.arrow.json_text import JsonError, json_type_name, parse_json_at
from featurestore.arrow.types import is_nested
from featurestore.errors import FeatureStoreError, InvalidSourceFile
from featurestore.plugins.source import BadRow
from featurestore_connectors.sources.folders import tables
from featurestore_connectors.sources.folders.listing import FolderFile
from featurestore_connectors.sources.folders.options import TableName
from featurestore_connectors.sources.folders.scan import JsonScan
from featurestore_connectors.sources.folders.tables import BadRows, Column, FolderTable, TableRead
from featurestore_connectors.sources.folders.text_files import conversion_hint, undecodable_line

_BATCH_ROWS = 16_384
_CHUNK_BYTES = 4 << 20
# Maximum size of a record. Otherwise a file without line ends would be buffered completely.
_LONGEST_RECORD = 256 << 20
# A byte order mark, which some programs write at the beginning of UTF-8 files.
_BOM = b"\xef\xbb\xbf"
_SPACE = " \t\r\n"
_NOT_UTF_8 = "the bytes are not UTF-8"
# Errors of a line of a document that spans lines.
_MAY_SPAN_LINES = re.compile("the value is (an array|not JSON: (Expecting|Extra|Unterminated))")


class JsonTable(FolderTable):
    """A table of JSON files, with one object per line or as documents."""

    def dialect(self) -> Mapping[str, object]:
        return {"format": self.folder_files.format, "encoding": "utf-8"}

    def columns(self) -> list[Column]:
        bad_rows = self.new_bad_rows()
        scan = JsonScan(self.options.rules(""))
        rules = {name: self.options.rules(name) for name in self.options.date_format}
        rules |= {name: self.options.rules(name) for name in self.options.timestamp_format}
        names: dict[str, None] = {}
        count = 0
        for file in self.folder_files.files:
            for batch in self._read_objects(file, exact=False):
                good = self._drop_bad_lines(file, batch, bad_rows)
                count += len(good.objects)
                for members in good.objects:
                    if not members.keys() <= names.keys():
                        names |= dict.fromkeys(members)
                scan.update_members(
                    [self._undeclared_members(members) for members in good.objects],
                    good.lines,
                    file.name,
                    rules,
                )
        if count:
            self.check_declared(names)
        columns = []
        for name in names or self.options.dtypes:
            column = self.declared_column(name)
            if column is None:
                member = scan.members[name]
                column = Column(name, member.infer_type(self.table, name, name), member.meaning)
            columns.append(column)
        if not columns:
            raise self.table.invalid_file_error(
                f"{self.folder_files.files[0].name} has no objects, so its columns are unknown.",
                hint=f"{self.table.call(dtypes={'id': 'int64'})} declares them",
            )
        return columns

    def rows(self, file: FolderFile, read: TableRead) -> Iterator[pa.RecordBatch]:
        in_files = read.schema.in_files
        table_schema = pa.schema([(column.name, column.dtype) for column in in_files])
        # Declared columns of strings and nested types contain numbers as written, digit by digit.
        declared = frozenset(
            column.name
            for column in in_files
            if column.is_declared and (pa.types.is_string(column.dtype) or is_nested(column.dtype))
        )
        parser = JsonColumns(
            table_schema,
            texts_of_values=declared,
            only_known=True,
            rules=self.options.rules(""),
            rules_of={column.name: tables.text_rules(column, self.options) for column in in_files},
        )
        for batch, arrays, wrong in self._parse_columns(file, parser):
            for row in sorted(wrong):
                self._report_bad_row(file, batch, row, wrong[row], read.bad_rows)
            ordered = [arrays[column.name] for column in read.columns]
            rows = tables.to_batch(ordered, read.columns, len(batch.lines))
            yield tables.drop_rows(rows, list(wrong))

    def _parse_columns(
        self, file: FolderFile, parser: JsonColumns
    ) -> Iterator[tuple[JsonObjects, dict[str, pa.Array], dict[int, str]]]:
        """Yield objects, their columns, and the errors of invalid rows by row number."""
        if self.folder_files.format == "json":
            for batch in self._read_objects(file, exact=parser.is_exact):
                arrays, wrong = parser.convert(batch.objects)
                yield batch, arrays, wrong | _wrong_rows(batch.reasons)
            return
        for batch in self._convert_read_errors(file, read_lines(file, self.table)):
            arrays, errors = parser.decode(batch.texts)
            yield batch, arrays, _wrong_rows(errors) | _wrong_rows(batch.reasons)

    def _read_objects(self, file: FolderFile, *, exact: bool) -> Iterator[JsonObjects]:
        read = parse_document if self.folder_files.format == "json" else parse_lines
        yield from self._convert_read_errors(file, read(file, self.table, exact=exact))

    def _convert_read_errors(
        self, file: FolderFile, batches: Iterator[JsonObjects]
    ) -> Iterator[JsonObjects]:
        try:
            yield from batches
        except FeatureStoreError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise tables.unreadable_file_error(file, self.table, error) from error

    def _drop_bad_lines(
        self, file: FolderFile, batch: JsonObjects, bad_rows: BadRows
    ) -> JsonObjects:
        """Return a batch without the lines that are not JSON objects."""
        if not any(batch.reasons):
            return batch
        good = JsonObjects([], [], [], [])
        for row, reason in enumerate(batch.reasons):
            if reason is None:
                good.objects.append(batch.objects[row])
                good.lines.append(batch.lines[row])
            else:
                self._report_bad_row(file, batch, row, reason, bad_rows)
        return good

    def _report_bad_row(
        self, file: FolderFile, batch: JsonObjects, row: int, reason: str, bad_rows: BadRows
    ) -> None:
        """Add a row of a batch to the bad rows."""
        hint = None
        if reason.endswith("nanoseconds"):
            hint = f"{self.table.call(timestamp_precision='us')} rounds them"
        # By default, a file with the extension .json has one object per line.
        elif _MAY_SPAN_LINES.match(reason) and file.ending == ".json":
            hint = f"{self.table.call(format='json')} reads arrays, and objects that span lines"
        elif reason == _NOT_UTF_8 and not bad_rows.quarantines:
            hint = f"{conversion_hint(file)}; on_bad_rows='quarantine' skips and counts such rows"
        bad_rows.add(BadRow(file.name, batch.lines[row], None, reason, batch.texts[row]), hint=hint)

    def _undeclared_members(self, members: dict[str, object]) -> dict[str, object]:
        declared = self.options.dtypes
        if not declared:
            return members
        return {name: value for name, value in members.items() if name not in declared}


def _wrong_rows(reasons: Sequence[str | None]) -> dict[int, str]:
    """Return the errors by row number."""
    return {row: reason for row, reason in enumerate(reasons) if reason is not None}


@dataclass(frozen=True)
class JsonObjects:
    """Parsed objects with their first line numbers; ``reasons`` has the errors of invalid lines."""

    objects: list[dict[str, Any]]
    lines: list[int]
    reasons: list[str | None]
    texts: list[str]


def read_lines(file: FolderFile, table: TableName) -> Iterator[JsonObjects]:
    """Yield the non-empty lines of a file, without parsed objects.

    Raises:
        InvalidSourceFile: A line is too long. The message includes its number.
    """
    batch, is_first = JsonObjects([], [], [], []), True
    for number, line in _numbered_lines(file, table):
        reason = None
        try:
            text = line.decode()
        except UnicodeDecodeError:
            text, reason = line.decode(errors="replace"), _NOT_UTF_8
        if not text.strip(_SPACE):
            continue
        batch.lines.append(number)
        batch.reasons.append(reason)
        batch.texts.append(text)
        if len(batch.lines) == _BATCH_ROWS:
            yield batch
            batch, is_first = JsonObjects([], [], [], []), False
    if is_first and not batch.lines:
        batch = _batch_without_objects(file)
    yield batch


def _batch_without_objects(file: FolderFile) -> JsonObjects:
    """Return a batch for a file without objects: an invalid line, unless the file has no bytes."""
    reason = tables.find_missing_content(file, "objects")
    return JsonObjects([], [], [], []) if reason is None else JsonObjects([{}], [1], [reason], [""])


def parse_lines(file: FolderFile, table: TableName, *, exact: bool) -> Iterator[JsonObjects]:
    """Yield the objects of a file with one object per line; empty lines are skipped.

    Raises:
        InvalidSourceFile: A line is too long. The message includes its number.
    """
    for batch in read_lines(file, table):
        objects = []
        for row, text in enumerate(batch.texts):
            value: dict[str, Any] = {}
            if batch.reasons[row] is None:
                value, batch.reasons[row] = parse_object(text, exact=exact)
            objects.append(value)
        yield replace(batch, objects=objects)


def _numbered_lines(file: FolderFile, table: TableName) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers, from 1."""
    number = 0
    with file.open() as stream:
        remainder = chunk = stream.read(_CHUNK_BYTES)
        while chunk:
            *lines, remainder = remainder.split(b"\n")
            for line in lines:
                number += 1
                yield number, line.removeprefix(_BOM) if number == 1 else line
            if len(remainder) > _LONGEST_RECORD:
                raise table.invalid_file_error(
                    f"{file.name} line {number + 1} has more than {_LONGEST_RECORD} bytes."
                )
            chunk = stream.read(_CHUNK_BYTES)
            remainder += chunk
        yield number + 1, remainder if number else remainder.removeprefix(_BOM)


def parse_document(file: FolderFile, table: TableName, *, exact: bool) -> Iterator[JsonObjects]:
    """Yield the objects of a JSON array, or of consecutive objects that may span lines.

    Raises:
        InvalidSourceFile: The document is invalid JSON, or contains values that are not objects.
            The message includes the line number.
    """
    batch, is_first = JsonObjects([], [], [], []), True
    try:
        with file.open_text("utf-8") as stream:
            document = _Document(stream, file.name, table, exact=exact)
            for line, value in document.values():
                batch.objects.append(value)
                batch.lines.append(line)
                batch.reasons.append(None)
                batch.texts.append("")
                if len(batch.lines) == _BATCH_ROWS:
                    yield batch
                    batch, is_first = JsonObjects([], [], [], []), False
            # An empty array is a table without rows.
            if is_first and not batch.lines and not document.has_array:
                batch = _batch_without_objects(file)
    except UnicodeDecodeError:
        # The decoder does not report the line, so it is searched in a second pass.
        undecodable = undecodable_line(file, "utf-8")
        line_number = None if undecodable is None else undecodable[0]
        raise table.invalid_file_error(
            f"{file.name} line {line_number}: {_NOT_UTF_8}.", hint=conversion_hint(file)
        ) from None
    yield batch


class _Document:
    """An incremental parser for a JSON document."""

    def __init__(self, stream: TextIO, name: str, table: TableName, *, exact: bool) -> None:
        self._stream = stream
        self._name = name
        self._table = table
        self._exact = exact
        self._text = ""
        self._position = 0
        self._line = 1
        self.has_array = False

    def values(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the first line number and the members of each object."""
        if self._peek() != "[":
            while self._peek():
                yield self._parse_object()
            return
        self.has_array = True
        self._advance(self._position + 1)
        if self._peek() != "]":
            yield self._parse_object()
            while self._peek() == ",":
                self._advance(self._position + 1)
                self._peek()
                yield self._parse_object()
        if self._peek() != "]":
            raise self._error("the array is not closed")
        self._advance(self._position + 1)
        if self._peek():
            raise self._error("text follows the array")

    def _parse_object(self) -> tuple[int, dict[str, Any]]:
        """Parse the object at the current position; return its line number and its members."""
        line = self._line
        while True:
            try:
                value, end = parse_json_at(self._text, self._position, exact=self._exact)
                break
            except JsonError as error:
                # Incomplete and invalid records raise the same error. Therefore more text is read
                # until the record parses or the file ends.
                is_long = len(self._text) - self._position > _LONGEST_RECORD
                if is_long or not self._read_more():
                    raise self._error(f"the record that begins here is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise self._error(
                f"the record that begins here is {json_type_name(value)}, not an object"
            )
        self._advance(end)
        return line, value

    def _peek(self) -> str:
        """Return the next non-space character, or "" at the end."""
        while True:
            remainder = self._position
            while remainder < len(self._text) and self._text[remainder] in _SPACE:
                remainder += 1
            self._advance(remainder)
            if remainder < len(self._text):
                return self._text[remainder]
            if not self._read_more():
                return ""

    def _advance(self, end: int) -> None:
        self._line += self._text.count("\n", self._position, end)
        self._position = end

    def _read_more(self) -> bool:
        """Read at least as much as is buffered, so that long records are parsed in linear time."""
        self._text = self._text[self._position :]
        self._position = 0
        more = self._stream.read(max(_CHUNK_BYTES, len(self._text)))
        self._text += more
        return bool(more)

    def _error(self, reason: str) -> InvalidSourceFile:
        return self._table.invalid_file_error(f"{self._name} line {self._line}: {reason}.")
