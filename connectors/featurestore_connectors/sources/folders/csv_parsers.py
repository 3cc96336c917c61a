"""The parser of CSV files: Arrow's parser for valid records, Python's for headers and bad records.

Arrow's parser accepts an unclosed quote, which then hides the following lines. Therefore the quotes
of a file are checked first. If they do not clearly follow RFC 4180, Python's strict parser
validates the file and reports the line number of an unclosed quote or of text after a closing
quote.

https://www.rfc-editor.org/rfc/rfc4180
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv as arrow_csv

from featurestore.arrow.column_names import is_utf8_string
from featurestore.errors import FeatureStoreError
from featurestore.plugins.source import BadRow
from featurestore_connectors.sources.folders import text_files
from featurestore_connectors.sources.folders.listing import FolderFile
from featurestore_connectors.sources.folders.tables import (
    BadRows,
    drop_rows,
    truncate_text,
    unreadable_file_error,
)
from featurestore_connectors.sources.folders.text_files import (
    CsvDialect,
    InvalidCsv,
    PlainQuotes,
    SelectedLines,
)

# Arrow reads many blocks ahead. A record that is longer than a block is parsed again with the next
# block size.
_BLOCK_BYTES = (2 << 20, 64 << 20)
_CHUNK_BYTES = 4 << 20
# Arrow's read-ahead threads release a stream after its reader is done. This reference ensures that
# Python streams are released before the interpreter shuts down.
_open: deque[Any] = deque(maxlen=16)


class CsvFileParser:
    """The fields of a CSV file as strings. Empty unquoted fields are null.

    Records with another number of fields, or with bytes that are not text in the declared encoding,
    are bad rows. The rows of a file are its other records.
    """

    def __init__(self, file: FolderFile, dialect: CsvDialect, bad_rows: BadRows) -> None:
        self.file = file
        self.dialect = dialect
        self._bad_rows = bad_rows
        self._has_ragged = False

    def first_record(self, *, skip_empty: bool) -> list[str] | None:
        """Return the fields of the first record, or None if the file has no records.

        Args:
            skip_empty: Whether empty lines are not records.
        """
        try:
            if text_files.contradicts_mark(self.file, self.dialect.encoding):
                raise text_files.encoding_error(
                    self.file, self.dialect.encoding, self._bad_rows.table
                )
            for _, fields in text_files.records(self.file, self.dialect):
                if not fields and skip_empty:
                    continue
                # A header cannot be a bad row.
                is_required = self.dialect.header or not self._bad_rows.quarantines
                # Latin letters in UTF-16 without a byte order mark are also UTF-8.
                has_zeros = any("\0" in field for field in fields)
                if has_zeros or (is_required and not _is_decoded(fields)):
                    raise text_files.encoding_error(
                        self.file, self.dialect.encoding, self._bad_rows.table
                    )
                return fields or [""]
        except (OSError, UnicodeError, InvalidCsv) as error:
            self._raise_parse_error(error, None)
        return None

    def batches(self, width: int, columns: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield the columns at the indices ``columns`` as strings, without the header.

        Raises:
            InvalidSourceFile: A line is not valid CSV in this dialect, or there are bad rows, which
                the options do not allow. The message includes the line number.
        """
        has_header = self.dialect.header
        self._has_ragged = False
        start = 0
        try:
            undecodable = self._undecodable_rows(width)
            for batch in self._blocks(width, columns):
                if has_header:
                    rows = _drop_header(batch, is_single=width == 1)
                    if rows is None:
                        continue
                    batch, has_header = rows, False
                end = start + batch.num_rows
                bad = undecodable[(undecodable >= start) & (undecodable < end)] - start
                batch, start = drop_rows(batch, bad.tolist()), end
                if batch.num_rows:
                    yield batch
        except (pa.ArrowException, OSError, UnicodeError, InvalidCsv) as error:
            self._raise_parse_error(error, width)
        if self._has_ragged or len(undecodable):
            self._report_bad_records(width)

    def locate(self, width: int, rows: Sequence[int]) -> dict[int, tuple[int, str]]:
        """Return line numbers and texts by row number."""
        wanted_rows, lines, number = set(rows), {}, 0
        for line, fields in text_files.data_records(self.file, self.dialect, width=width):
            if len(fields) != width or not _is_decoded(fields):
                continue
            if number in wanted_rows:
                lines[number] = (line, self.dialect.delimiter.join(fields))
                if len(lines) == len(wanted_rows):
                    break
            number += 1
        return lines

    @cached_property
    def _replaces_bytes(self) -> bool:
        """Whether the file has bad rows because of their bytes, which Arrow's parser cannot skip."""
        return self._bad_rows.quarantines and text_files.has_undecodable_lines(
            self.file, self.dialect.encoding
        )

    def _undecodable_rows(self, width: int) -> npt.NDArray[np.int64]:
        """Return the indices of the records with undecodable bytes, among those of ``width`` fields."""
        rows: list[int] = []
        if self._replaces_bytes:
            number = 0
            for _, fields in text_files.data_records(self.file, self.dialect, width=width):
                if len(fields) == width:
                    if not _is_decoded(fields):
                        rows.append(number)
                    number += 1
        return np.array(rows, dtype=np.int64)

    def _blocks(self, width: int, columns: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield all records of ``width`` fields as batches, including the header."""
        dialect = self.dialect
        if self._is_suspicious():
            # Python's parser either accepts the file or raises an error with the line number.
            for _ in text_files.data_records(self.file, dialect, width=width):
                pass
        parse = arrow_csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote or False,
            escape_char=dialect.escape or False,
            newlines_in_values=bool(dialect.quote or dialect.escape),
            # In a file of one column, an empty line is a null.
            ignore_empty_lines=width != 1,
            # Arrow decodes a record for the handler, and prints a traceback if it is not UTF-8.
            # Without quarantine, Arrow raises an error, and with it the bytes are replaced.
            invalid_row_handler=self._skip_ragged if self._bad_rows.quarantines else None,
        )
        # Without names, Arrow takes a first block without a line end for an empty file. The header is
        # read as a record, since its names are checked by this package.
        names = [f"f{number}" for number in range(width)]
        yielded = 0
        for size in _BLOCK_BYTES:
            row_count = 0
            read = arrow_csv.ReadOptions(column_names=names, block_size=size)
            try:
                for batch in self._parsed(read, parse, [names[number] for number in columns]):
                    new = batch.slice(max(yielded - row_count, 0))
                    row_count += batch.num_rows
                    yielded = max(yielded, row_count)
                    if new.num_rows:
                        yield new
                return
            except pa.ArrowInvalid as error:
                if not _exceeds_block(error) or size == _BLOCK_BYTES[-1]:
                    raise
            # A record is longer than a block: parse again with larger blocks and skip the rows
            # already yielded.
            self._has_ragged = False

    def _parsed(
        self, read: arrow_csv.ReadOptions, parse: arrow_csv.ParseOptions, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of Arrow's parser, with the values of these columns as strings."""
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(read.column_names, pa.string()),
            strings_can_be_null=True,
            # An empty field is null, but "" is an empty string.
            quoted_strings_can_be_null=False,
            null_values=[""],
            include_columns=columns,
        )
        stream = self._stream()
        _open.append(stream)
        with (
            stream,
            arrow_csv.open_csv(
                stream, read_options=read, parse_options=parse, convert_options=convert
            ) as reader,
        ):
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
        if dialect.skip_rows or dialect.comment or self._replaces_bytes:
            lines = SelectedLines(self.file, dialect, replaces_bytes=self._replaces_bytes)
            return pa.PythonFile(lines, mode="r")
        stream = self.file.open()
        if dialect.encoding != "utf-8":
            stream = pa.transcoding_input_stream(stream, dialect.encoding, "utf-8")
        return stream

    def _skip_ragged(self, row: arrow_csv.InvalidRow) -> str:
        self._has_ragged = True
        return "skip"

    def _report_bad_records(self, width: int) -> None:
        """Add the records that are not rows to the bad rows, in the order of their lines."""
        table, encoding = self._bad_rows.table, self.dialect.encoding
        hint = self._title_hint(width)
        for line, fields in self._strictly(width):
            text = text_files.replace_undecoded(self.dialect.delimiter.join(fields))
            if len(fields) != width:
                expected = (
                    f"the first line has {width}" if self.dialect.header else f"names= has {width}"
                )
                reason = f"{count_fields(fields)}, but {expected}: {truncate_text(text)!r}"
                self._bad_rows.add(BadRow(self.file.name, line, None, reason, text), hint=hint)
            elif not _is_decoded(fields):
                if not self._bad_rows.quarantines:
                    raise text_files.encoding_error(self.file, encoding, table)
                reason = f"the bytes are not {encoding}"
                self._bad_rows.add(BadRow(self.file.name, line, None, reason, text))

    def _title_hint(self, width: int) -> str | None:
        """Return the hint for a title above the header, or None if the first line may be data."""
        (line, fields), *next_records = [*islice(self._strictly(width), 2)] or [(0, [])]
        if not self.dialect.header or width > 1 or not _can_be_header(fields):
            return None
        # The line after a header has a value that is not a name.
        if any(len(row) != len(fields) or _can_be_header(row) for _, row in next_records):
            return None
        call = self._bad_rows.table.call(skip_rows=line - 1)
        return f"{call} reads line {line} as the header"

    def _strictly(self, width: int) -> Iterator[tuple[int, list[str]]]:
        try:
            yield from text_files.data_records(self.file, self.dialect, width=width)
        except (OSError, UnicodeError, InvalidCsv) as error:
            self._raise_parse_error(error, None)

    def _raise_parse_error(self, error: Exception, width: int | None) -> NoReturn:
        """Raise an error with the number of the line that a parser rejected.

        Args:
            error: The error of the parser.
            width: The number of fields, for Arrow's errors, which have no line number.
        """
        table = self._bad_rows.table
        if isinstance(error, FeatureStoreError):
            raise error
        if isinstance(error, OSError):
            raise unreadable_file_error(self.file, table, error) from error
        if isinstance(error, InvalidCsv):
            hint = f"{table.call(quote='')} reads quotes as ordinary characters"
            raise table.invalid_file_error(
                f"{self.file.name} line {error.line}: {error}.",
                hint=hint if error.has_quotes else None,
            ) from None
        if isinstance(error, UnicodeError) or "UTF8" in str(error):
            raise text_files.encoding_error(self.file, self.dialect.encoding, table) from None
        if width is not None:
            self._report_bad_records(width)
        if isinstance(error, pa.ArrowInvalid) and _exceeds_block(error):
            raise table.invalid_file_error(
                f"{self.file.name}: a record has more than {_BLOCK_BYTES[-1]} bytes."
            )
        raise table.invalid_file_error(f"{self.file.name}: {error}.") from error


def count_fields(fields: Sequence[str]) -> str:
    """Return the number of fields as text.

    >>> count_fields(["1", "a"]), count_fields([""])
    ('2 fields', '1 field')
    """
    return "1 field" if len(fields) == 1 else f"{len(fields)} fields"


def _exceeds_block(error: pa.ArrowInvalid) -> bool:
    """Return whether a record does not fit into a block; Arrow has no error class for it."""
    return "straddling" in str(error)


def _is_decoded(fields: Sequence[str]) -> bool:
    """Return whether all bytes of a record are text in the declared encoding."""
    return is_utf8_string("".join(fields))


def _drop_header(batch: pa.RecordBatch, *, is_single: bool) -> pa.RecordBatch | None:
    """Return a copy of a batch without the header, or None if the header is in a later batch."""
    header = 0
    if is_single:
        # In a file of one column, empty lines are nulls, also those above the header.
        filled = np.flatnonzero(batch.column(0).is_valid())
        if not len(filled):
            return None
        header = int(filled[0])
    # Arrow 14 fails on slices of strings.
    return drop_rows(batch, range(header + 1))


def _can_be_header(fields: Sequence[str]) -> bool:
    return all(field[:1].isalpha() for field in fields) and len(set(fields)) == len(fields)
