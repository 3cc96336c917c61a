"""The objects of JSON files, batch by batch: one on each line, or one document of many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from featurestore.arrow.json_columns import parse_object
from featurestore.arrow.json_text import JsonError, kind_of, parse_json_at
from featurestore.errors import InvalidSourceFile
from featurestore_connectors.sources.folders.bad_rows import TableName
from featurestore_connectors.sources.folders.csv_lines import CsvDialect, undecodable_line
from featurestore_connectors.sources.folders.listing import FolderFile

_BATCH_ROWS = 16_384
_CHUNK_BYTES = 4 << 20
_LONGEST_RECORD = 256 << 20
_BOM = b"\xef\xbb\xbf"
_SPACE = " \t\r\n"


@dataclass(frozen=True)
class JsonObjects:
    """Objects, the line at which each begins, and the reason why a line is not one."""

    objects: list[dict[str, Any]]
    lines: list[int]
    reasons: list[str | None]
    texts: list[str]


def texts_of_lines(file: FolderFile, table: TableName) -> Iterator[JsonObjects]:
    """Yield the lines of a file that are not empty, their objects not yet parsed.

    Raises:
        InvalidSourceFile: A line is too long; names it.
    """
    batch = JsonObjects([], [], [], [])
    for number, line in _lines(file, table):
        reason = None
        try:
            text = line.decode()
        except UnicodeDecodeError:
            text, reason = line.decode(errors="replace"), "the bytes are not UTF-8"
        if not text.strip(_SPACE):
            continue
        batch.lines.append(number)
        batch.reasons.append(reason)
        batch.texts.append(text)
        if len(batch.lines) == _BATCH_ROWS:
            yield batch
            batch = JsonObjects([], [], [], [])
    yield batch


def objects_of_lines(file: FolderFile, table: TableName, *, exact: bool) -> Iterator[JsonObjects]:
    """Yield the objects of a file that has one on each line; empty lines are none.

    Raises:
        InvalidSourceFile: A line is too long; names it.
    """
    for batch in texts_of_lines(file, table):
        for row, text in enumerate(batch.texts):
            value: dict[str, Any] = {}
            if batch.reasons[row] is None:
                value, batch.reasons[row] = parse_object(text, exact=exact)
            batch.objects.append(value)
        yield batch


def _lines(file: FolderFile, table: TableName) -> Iterator[tuple[int, bytes]]:
    number = 0
    with file.open() as stream:
        chunk: bytes = stream.read(_CHUNK_BYTES)
        remainder = chunk.removeprefix(_BOM)
        while chunk:
            *lines, remainder = remainder.split(b"\n")
            for line in lines:
                number += 1
                yield number, line
            if len(remainder) > _LONGEST_RECORD:
                raise table.refusal(
                    f"{file.name} line {number + 1} has more than {_LONGEST_RECORD} bytes."
                )
            chunk = stream.read(_CHUNK_BYTES)
            remainder += chunk
        yield number + 1, remainder


def objects_of_document(
    file: FolderFile, table: TableName, *, exact: bool
) -> Iterator[JsonObjects]:
    """Yield the objects of one array, or of one object after the other over any lines.

    Raises:
        InvalidSourceFile: The document is not JSON, or holds something else; names the line.
    """
    batch = JsonObjects([], [], [], [])
    try:
        with file.open_text("utf-8") as stream:
            for line, value in _Document(stream, file.name, table, exact=exact).values():
                batch.objects.append(value)
                batch.lines.append(line)
                batch.reasons.append(None)
                batch.texts.append("")
                if len(batch.lines) == _BATCH_ROWS:
                    yield batch
                    batch = JsonObjects([], [], [], [])
    except UnicodeDecodeError:
        line_number = undecodable_line(file, CsvDialect())
        raise table.refusal(f"{file.name} line {line_number}: the bytes are not UTF-8.") from None
    yield batch


class _Document:
    """A JSON text that is read as far as its next value."""

    def __init__(self, stream: TextIO, name: str, table: TableName, *, exact: bool) -> None:
        self._stream = stream
        self._name = name
        self._table = table
        self._exact = exact
        self._text = ""
        self._position = 0
        self._line = 1

    def values(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the first line and the members of each object."""
        if self._peek() != "[":
            while self._peek():
                yield self._object()
            return
        self._advance(self._position + 1)
        if self._peek() != "]":
            yield self._object()
            while self._peek() == ",":
                self._advance(self._position + 1)
                self._peek()
                yield self._object()
        if self._peek() != "]":
            raise self._refusal("the array is not closed")
        self._advance(self._position + 1)
        if self._peek():
            raise self._refusal("text follows the array")

    def _object(self) -> tuple[int, dict[str, Any]]:
        line = self._line
        while True:
            try:
                value, end = parse_json_at(self._text, self._position, exact=self._exact)
                break
            except JsonError as error:
                is_long = len(self._text) - self._position > _LONGEST_RECORD
                if is_long or not self._read_more():
                    raise self._refusal(
                        f"the record that begins here is not JSON: {error}"
                    ) from None
        if not isinstance(value, dict):
            raise self._refusal(f"the record that begins here is {kind_of(value)}, not an object")
        self._advance(end)
        return line, value

    def _peek(self) -> str:
        """Return the next sign that is not space, or nothing at the end."""
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
        """Read as much again as waits to be parsed; False at the end of the file."""
        self._text = self._text[self._position :]
        self._position = 0
        more = self._stream.read(max(_CHUNK_BYTES, len(self._text)))
        self._text += more
        return bool(more)

    def _refusal(self, reason: str) -> InvalidSourceFile:
        return self._table.refusal(f"{self._name} line {self._line}: {reason}.")
