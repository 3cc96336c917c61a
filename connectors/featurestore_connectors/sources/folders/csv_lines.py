"""Strict, slow parser of CSV records with their line numbers, to locate errors.

It is Python's parser in strict mode: an unclosed quote and text after a closing quote are errors.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from featurestore_connectors.sources.folders.listing import FolderFile

_LONGEST = 2**31 - 1


@dataclass(frozen=True)
class CsvDialect:
    """The dialect of CSV files. Lines that begin with ``comment`` are not records."""

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""
    header: bool = True
    encoding: str = "utf-8"
    null_values: tuple[str, ...] = ()
    skip_rows: int = 0
    comment: str = ""


class InvalidCsv(ValueError):
    """A record is not CSV; ``line`` is its first line."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


class Lines:
    """The lines of a file that are not skipped; ``number`` is the last line number, from 1."""

    def __init__(self, text: TextIO, dialect: CsvDialect) -> None:
        self._text = iter(text)
        self._dialect = dialect
        self._is_quoted = False
        self.number = 0
        self.first: int | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while True:
            line = next(self._text)
            self.number += 1
            if self.number > self._dialect.skip_rows and not self._is_comment(line):
                break
        if self.first is None:
            self.first = self.number
        self._is_quoted ^= self._toggles(line)
        return line

    def _is_comment(self, line: str) -> bool:
        mark = self._dialect.comment
        return bool(mark) and not self._is_quoted and line.startswith(mark)

    def _toggles(self, line: str) -> bool:
        quote, escape = self._dialect.quote, self._dialect.escape
        if not quote or quote not in line:
            return False
        if escape:
            line = line.replace(escape * 2, "").replace(escape + quote, "")
        return line.count(quote) % 2 == 1


def records(file: FolderFile, dialect: CsvDialect) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the fields of each record, header included; empty lines are [].

    Raises:
        InvalidCsv: A record is not CSV.
        UnicodeDecodeError: The file does not have its encoding.
    """
    if csv.field_size_limit() < _LONGEST:
        csv.field_size_limit(_LONGEST)
    with file.open_text(dialect.encoding) as text:
        lines = Lines(text, dialect)
        reader = csv.reader(
            lines,
            delimiter=dialect.delimiter,
            quotechar=dialect.quote or None,
            quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
            escapechar=dialect.escape or None,
            strict=True,
        )
        while True:
            lines.first = None
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise InvalidCsv(lines.first or lines.number, _reason(str(error))) from None
            yield lines.first or lines.number, fields


def _reason(message: str) -> str:
    if "unexpected end" in message:
        return "a quote is opened and never closed"
    if "expected after" in message:
        return "text follows a closing quote"
    return message


def data_records(
    file: FolderFile, dialect: CsvDialect, *, width: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the fields of each record of data, of any number of fields.

    An empty line is a null if there is one column, else it is skipped.
    """
    is_header = dialect.header
    for line, fields in records(file, dialect):
        if not fields and (is_header or width > 1):
            continue
        if is_header:
            is_header = False
            continue
        yield line, fields or [""]


def undecodable_line(file: FolderFile, dialect: CsvDialect) -> int | None:
    """Return the first line that cannot be decoded; None for encodings of 16 and 32 bits."""
    if dialect.encoding.startswith(("utf-16", "utf-32")):
        return None
    number = 0
    with file.open() as stream:
        remainder = b""
        while chunk := stream.read(1 << 20):
            *lines, remainder = (remainder + chunk).split(b"\n")
            for each in lines:
                number += 1
                if not _decodes(each, dialect.encoding):
                    return number
    return None if _decodes(remainder, dialect.encoding) else number + 1


def _decodes(line: bytes, encoding: str) -> bool:
    try:
        line.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True
