"""CSV parsers with an explicit dialect: Arrow's fast parser, and Python's strict parser.

Arrow's parser accepts an unclosed quote, which then hides the following lines. Therefore the quotes
of a file are checked first. If they do not clearly follow RFC 4180, Python's strict parser
validates the file and reports the line number of an unclosed quote or of text after a closing
quote.

https://www.rfc-editor.org/rfc/rfc4180
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn, TextIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv as arrow_csv

from featurestore.errors import FeatureStoreError, InvalidSourceFile
from featurestore.plugins.source import BadRow
from featurestore_connectors.sources.folders.encodings import detect_encoding, undecodable_line
from featurestore_connectors.sources.folders.listing import FolderFile
from featurestore_connectors.sources.folders.tables import (
    BadRows,
    truncate_text,
    unreadable_file_error,
)

_LONGEST = 2**31 - 1
# Arrow reads many blocks ahead. A record that is longer than a block is parsed again with the next
# block size.
_BLOCK_BYTES = (2 << 20, 64 << 20)
_CHUNK_BYTES = 4 << 20
_MANY_COLUMNS = 10_000
# Arrow's read-ahead threads release a stream after its reader is done. This reference ensures that
# Python streams are released before the interpreter shuts down.
_open: deque[Any] = deque(maxlen=16)


@dataclass(frozen=True)
class CsvDialect:
    """A CSV dialect. Lines that begin with ``comment`` are not records."""

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""
    header: bool = True
    encoding: str = "utf-8"
    null_values: tuple[str, ...] = ()
    skip_rows: int = 0
    comment: str = ""


class CsvFileParser:
    """The fields of a CSV file as strings. Empty unquoted fields are null."""

    def __init__(self, file: FolderFile, dialect: CsvDialect, bad_rows: BadRows) -> None:
        self.file = file
        self.dialect = dialect
        self._bad_rows = bad_rows
        self._ragged = 0

    def first_record(self) -> list[str] | None:
        """Return the fields of the first record, or None if the file has no records."""
        try:
            batch = next(self._blocks(None, None), None)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            self._raise_parse_error(error, None)
        if batch is None or batch.num_rows == 0:
            return None
        fields = [column[0].as_py() or "" for column in batch.columns]
        # Latin letters in UTF-16 without a byte order mark are also UTF-8.
        if any("\0" in field for field in fields):
            raise self._encoding_error()
        return fields

    def batches(self, width: int, columns: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield the columns at the indices ``columns`` as strings, without the header.

        Records whose number of fields is not ``width`` are added to the bad rows.

        Raises:
            InvalidSourceFile: A line is not valid CSV in this dialect. The message includes the line number.
        """
        has_header = self.dialect.header
        self._ragged = 0
        try:
            for batch in self._blocks(width, columns):
                if has_header and batch.num_rows:
                    batch, has_header = _drop_first_row(batch), False
                if batch.num_rows:
                    yield batch
        except (pa.ArrowException, OSError, UnicodeDecodeError, InvalidCsv) as error:
            self._raise_parse_error(error, width)
        if self._ragged:
            self._report_ragged(width)

    def locate(self, width: int, rows: Sequence[int]) -> dict[int, tuple[int, str]]:
        """Return line numbers and texts by row number; records of another width are not rows."""
        wanted_rows, lines, number = set(rows), {}, 0
        for line, fields in data_records(self.file, self.dialect, width=width):
            if len(fields) != width:
                continue
            if number in wanted_rows:
                lines[number] = (line, self.dialect.delimiter.join(fields))
                if len(lines) == len(wanted_rows):
                    break
            number += 1
        return lines

    def _blocks(self, width: int | None, columns: Sequence[int] | None) -> Iterator[pa.RecordBatch]:
        """Yield all records as batches, including the header."""
        dialect = self.dialect
        if width is not None and self._is_suspicious():
            # Python's parser either accepts the file or raises an error with the line number.
            for _ in data_records(self.file, dialect, width=width):
                pass
        # The width is unknown before the first record. Arrow ignores types of missing columns.
        strings = {f"f{number}": pa.string() for number in range(width or _MANY_COLUMNS)}
        convert = arrow_csv.ConvertOptions(
            column_types=strings,
            strings_can_be_null=True,
            # An empty field is null, but "" is an empty string.
            quoted_strings_can_be_null=False,
            null_values=[""],
            include_columns=[] if columns is None else [f"f{number}" for number in columns],
        )
        parse = arrow_csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote or False,
            escape_char=dialect.escape or False,
            newlines_in_values=bool(dialect.quote or dialect.escape),
            # In a file of one column, an empty line is a null.
            ignore_empty_lines=width != 1,
            # Without a known width only the first record is needed.
            invalid_row_handler=_skip_row if width is None else self._skip_or_fail,
        )
        yielded = 0
        for size in _BLOCK_BYTES:
            row_count = 0
            try:
                for batch in self._parsed(size, parse, convert):
                    new = batch.slice(max(yielded - row_count, 0))
                    row_count += batch.num_rows
                    yielded = max(yielded, row_count)
                    if new.num_rows:
                        yield new
                return
            except pa.ArrowInvalid as error:
                # Arrow has no error class for a record that does not fit into a block.
                if "straddling" not in str(error) or size == _BLOCK_BYTES[-1]:
                    raise
            # A record is longer than a block: parse again with larger blocks and skip the rows
            # already yielded.
            self._ragged = 0

    def _parsed(
        self, block_bytes: int, parse: arrow_csv.ParseOptions, convert: arrow_csv.ConvertOptions
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of Arrow's parser with a block size."""
        stream = self._stream()
        _open.append(stream)
        # The header is read as a record, since its names are checked by this package.
        read = arrow_csv.ReadOptions(autogenerate_column_names=True, block_size=block_bytes)
        with stream:
            try:
                reader = arrow_csv.open_csv(
                    stream, read_options=read, parse_options=parse, convert_options=convert
                )
            except pa.ArrowInvalid as error:
                # Arrow raises an error for a file without records.
                if "Empty CSV file" in str(error):
                    return
                raise
            with reader:
                yield from reader

    def _is_suspicious(self) -> bool:
        """Return whether the bytes around quotes indicate unclosed quotes."""
        if not self.dialect.quote:
            return False
        quotes = PlainQuotes(self.dialect)
        with self._stream() as stream:
            while quotes.are_plain and (data := stream.read(_CHUNK_BYTES)):
                quotes.update(np.frombuffer(data, dtype="u1"))
        return not quotes.are_plain or quotes.are_open

    def _stream(self) -> Any:
        """Return a UTF-8 stream of the file without skipped lines."""
        dialect = self.dialect
        if dialect.skip_rows or dialect.comment:
            return pa.PythonFile(_SelectedLines(self.file, dialect), mode="r")
        stream = self.file.open()
        if dialect.encoding != "utf-8":
            stream = pa.transcoding_input_stream(stream, dialect.encoding, "utf-8")
        return stream

    def _skip_or_fail(self, row: arrow_csv.InvalidRow) -> str:
        self._ragged += 1
        return "skip" if self._bad_rows.quarantines else "error"

    def _report_ragged(self, width: int) -> None:
        """Add the records with another number of fields to the bad rows."""
        hint = self._title_hint(width)
        for line, fields in self._strictly(width):
            if len(fields) == width:
                continue
            text = self.dialect.delimiter.join(fields)
            reason = f"{_count_phrase(len(fields))}, but the first line has {width}"
            row = BadRow(self.file.name, line, None, f"{reason}: {truncate_text(text)!r}", text)
            self._bad_rows.add(row, hint=hint)

    def _title_hint(self, width: int) -> str | None:
        """Return the hint for a title above the header, or None if the first line may be data."""
        (line, fields), *others = [*islice(self._strictly(width), 2)] or [(0, [])]
        if not self.dialect.header or width > 1 or not _can_be_header(fields):
            return None
        # The line after a header has a value that is not a name.
        if any(len(row) != len(fields) or _can_be_header(row) for _, row in others):
            return None
        call = self._bad_rows.table.call(skip_rows=line - 1)
        return f"{call} reads line {line} as the header"

    def _strictly(self, width: int) -> Iterator[tuple[int, list[str]]]:
        try:
            yield from data_records(self.file, self.dialect, width=width)
        except InvalidCsv as error:
            raise self._bad_rows.table.invalid_file_error(
                f"{self.file.name} line {error.line}: {error}.", hint=self._dialect_hint()
            ) from None

    def _dialect_hint(self) -> str:
        call = self._bad_rows.table.call(quote="")
        return f"{call} reads quotes as ordinary characters"

    def _encoding_error(self) -> InvalidSourceFile:
        """Return the error for bytes that are not text in the declared encoding."""
        declared, table = self.dialect.encoding, self._bad_rows.table
        encoding = detect_encoding(self.file, declared)
        line = undecodable_line(self.file, declared)
        position = "" if line is None else f" line {line[0]}"
        hint = f"{table.call(encoding=encoding)} reads every byte"
        if line is not None and not encoding.startswith("utf"):
            text = truncate_text(line[1].decode(encoding).rstrip("\r"))
            hint = f"{hint}, and this line as {text!r}"
        return table.invalid_file_error(
            f"{self.file.name}{position}: the bytes are not {declared}.", hint=hint
        )

    def _raise_parse_error(self, error: Exception, width: int | None) -> NoReturn:
        """Raise an error with the number of the line that Arrow's parser rejected."""
        table = self._bad_rows.table
        if isinstance(error, FeatureStoreError):
            raise error
        if isinstance(error, OSError):
            raise unreadable_file_error(self.file, table, error) from error
        if isinstance(error, InvalidCsv):
            raise table.invalid_file_error(
                f"{self.file.name} line {error.line}: {error}.", hint=self._dialect_hint()
            ) from None
        if isinstance(error, UnicodeDecodeError) or "UTF8" in str(error):
            raise self._encoding_error() from None
        if width is not None:
            self._report_ragged(width)
        if "straddling" in str(error):
            raise table.invalid_file_error(
                f"{self.file.name}: a record has more than {_BLOCK_BYTES[-1]} bytes."
            )
        raise table.invalid_file_error(f"{self.file.name}: {error}.") from error


def _drop_first_row(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy of a batch without its first row; Arrow 14 fails on slices of strings."""
    mask = np.ones(batch.num_rows, dtype=bool)
    mask[0] = False
    return batch.filter(pa.array(mask))


def _skip_row(row: arrow_csv.InvalidRow) -> str:
    return "skip"


def _can_be_header(fields: Sequence[str]) -> bool:
    return all(field[:1].isalpha() for field in fields) and len(set(fields)) == len(fields)


def _count_phrase(count: int) -> str:
    return "1 field" if count == 1 else f"{count} fields"


class PlainQuotes:
    """Check incrementally that the quotes of a file clearly follow RFC 4180.

    Quotes alternately open and close a field; a doubled quote closes and reopens it. Quotes are
    plain if each opening quote follows a delimiter, a line end or a quote, and each closing quote
    precedes a delimiter, a line end or a quote.
    """

    def __init__(self, dialect: CsvDialect) -> None:
        self._quote = ord(dialect.quote)
        self._neighbors = np.zeros(256, dtype=bool)
        self._neighbors[[*dialect.delimiter.encode(), *b"\r\n", self._quote]] = True
        self._last = ord("\n")
        self._count = 0
        self.are_plain = not dialect.escape

    @property
    def are_open(self) -> bool:
        """Whether the last quote opens a field."""
        return self._count % 2 == 1

    def update(self, data: npt.NDArray[np.uint8]) -> None:
        """Check the next chunk of bytes."""
        positions = np.flatnonzero(data == self._quote)
        neighbors = self._neighbors
        if self._last == self._quote and self._count and not self.are_open:
            # The last quote of the previous chunk closes a field, or is the first of a doubled
            # quote.
            self.are_plain &= bool(neighbors[data[0]])
        if len(positions):
            # After an even number of quotes, the next quote opens a field.
            opening = positions[self._count % 2 :: 2]
            closing = positions[1 - self._count % 2 :: 2]
            before = np.where(opening > 0, data[opening - 1], self._last)
            after = data[closing[closing < len(data) - 1] + 1]
            self.are_plain &= bool(neighbors[before].all() and neighbors[after].all())
            self._count += len(positions)
        self._last = int(data[-1])


class _SelectedLines(io.RawIOBase):
    """A UTF-8 stream of a file's lines, without skipped lines and comments."""

    def __init__(self, file: FolderFile, dialect: CsvDialect) -> None:
        super().__init__()
        self._text = file.open_text(dialect.encoding)
        self._lines = Lines(self._text, dialect)
        self._remainder = b""

    def close(self) -> None:
        self._text.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        data = self._read_bytes(len(target))
        target[: len(data)] = data
        return len(data)

    def _read_bytes(self, max_bytes: int) -> bytes:
        """Return at most ``max_bytes`` bytes of the selected lines, or b"" at the end."""
        # Arrow requests a number of bytes, which rarely ends at a line end.
        lines = [self._remainder]
        size = len(self._remainder)
        while size < max_bytes:
            line = next(self._lines, None)
            if line is None:
                break
            lines.append(line.encode())
            size += len(lines[-1])
        data = b"".join(lines)
        self._remainder = data[max_bytes:]
        return data[:max_bytes]


class Lines:
    """Iterator over the lines that are not skipped; ``number`` is the line number, from 1."""

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
        self._is_quoted ^= self._toggles_quote(line)
        return line

    def _is_comment(self, line: str) -> bool:
        mark = self._dialect.comment
        # A line inside a quoted field is data, even if it begins with the mark.
        return bool(mark) and not self._is_quoted and line.startswith(mark)

    def _toggles_quote(self, line: str) -> bool:
        quote, escape = self._dialect.quote, self._dialect.escape
        if not quote or quote not in line:
            return False
        if escape:
            line = line.replace(escape * 2, "").replace(escape + quote, "")
        return line.count(quote) % 2 == 1


class InvalidCsv(ValueError):
    """A record is not valid CSV. ``line`` is the number of its first line."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def data_records(
    file: FolderFile, dialect: CsvDialect, *, width: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the fields of each data record, of any number of fields.

    An empty line is a null if the table has one column, and is skipped otherwise.
    """
    is_header = dialect.header
    for line, fields in records(file, dialect):
        if not fields and (is_header or width > 1):
            continue
        if is_header:
            is_header = False
            continue
        yield line, fields or [""]


def records(file: FolderFile, dialect: CsvDialect) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the fields of each record; the header is the first record.

    Empty lines are [].

    Raises:
        InvalidCsv: A record is not valid CSV.
        UnicodeDecodeError: The file is not valid in its declared encoding.
    """
    # Python refuses fields of more than 128 KiB by default.
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
            # A quoted field may contain line ends, so a record is identified by its first line.
            lines.first = None
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise InvalidCsv(lines.first or lines.number, _short_message(str(error))) from None
            yield lines.first or lines.number, fields


def _short_message(message: str) -> str:
    # The messages are those of Python's csv module in strict mode.
    if "unexpected end" in message:
        return "a quote is opened and never closed"
    if "expected after" in message:
        return "text follows a closing quote"
    return message
