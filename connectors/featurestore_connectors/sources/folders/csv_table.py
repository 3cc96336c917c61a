"""CSV tables: columns from the headers, types inferred from all values, read by Arrow's parser.

Arrow's parser accepts an unclosed quote, which then hides the following lines. Therefore the quotes
of a file are checked first. If they do not clearly follow RFC 4180, Python's strict parser
validates the file and reports the line number of an unclosed quote or of text after a closing
quote.

https://www.rfc-editor.org/rfc/rfc4180
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from featurestore.arrow.text_values import arrow_type, parse_texts
from featurestore.errors import FeatureStoreError, InvalidArgument
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import BadRow
from featurestore_connectors.sources.folders.listing import FolderFile
from featurestore_connectors.sources.folders.scan import TextScan
from featurestore_connectors.sources.folders.tables import (
    BadRows,
    Column,
    FolderTable,
    TableSchema,
    check_declared,
    check_names,
    compare_names,
    drop_rows,
    text_rules,
    truncate_text,
    unreadable_file_error,
)
from featurestore_connectors.sources.folders.text_files import (
    CsvDialect,
    InvalidCsv,
    PlainQuotes,
    SelectedLines,
    data_records,
    encoding_error,
)

# Delimiters to suggest if the header has a single column and no delimiter is configured.
_OTHER_DELIMITERS = (";", "\t", "|")
_SIGNS = [
    "delimiter",
    "quote",
    "escape",
    "header",
    "encoding",
    "skip_rows",
    "comment",
    "null_values",
]
# Arrow reads many blocks ahead. A record that is longer than a block is parsed again with the next
# block size.
_BLOCK_BYTES = (2 << 20, 64 << 20)
_CHUNK_BYTES = 4 << 20
_MANY_COLUMNS = 10_000
# Arrow's read-ahead threads release a stream after its reader is done. This reference ensures that
# Python streams are released before the interpreter shuts down.
_open: deque[Any] = deque(maxlen=16)


class CsvTable(FolderTable):
    """A table of CSV files."""

    def dialect(self) -> Mapping[str, object]:
        signs = {name: getattr(self._dialect, name) for name in _SIGNS}
        return {"format": "csv", **signs, "null_values": ["", *self._dialect.null_values]}

    @property
    def _dialect(self) -> CsvDialect:
        """The dialect in the options; the extension determines a missing delimiter."""
        options = self.options
        delimiter = options.delimiter
        if delimiter is None:
            endings = {file.ending == ".tsv" for file in self.folder_files.files}
            if len(endings) == 2:
                raise InvalidArgument(
                    f"Source {self.table.source!r} has .csv and .tsv files, but all files of a table "
                    "must have the same delimiter.",
                    hint=f"{self.table.call(delimiter=',')} reads all files; path= selects some",
                )
            delimiter = "\t" if endings == {True} else ","
        return CsvDialect(
            delimiter=delimiter,
            quote=options.quote,
            escape=options.escape,
            header=options.header,
            encoding=options.encoding,
            null_values=options.null_values,
            skip_rows=options.skip_rows,
            comment=options.comment,
        )

    def columns(self) -> list[Column]:
        scans: dict[str, TextScan] = {}
        expected = self._scan_files(scans)
        if not expected:
            raise self.table.invalid_file_error(
                f"{self.folder_files.files[0].name} is empty: it has no header.",
                hint=f"{self.table.call(header=False, names=['column_1'])} names the columns",
            )
        partitions = self.folder_files.partitions
        check_declared([*expected, *partitions], self.table, self.options)
        return [self._build_column(name, scans) for name in expected]

    def _scan_files(self, scans: dict[str, TextScan]) -> list[str]:
        """Read all files, update the scans of undeclared columns, and return all column names."""
        bad_rows = BadRows(self.table, self.options.on_bad_rows == "quarantine")
        expected = list(self.options.names)
        first = "names="
        for file in self.folder_files.files:
            names = self._read_column_names(file, bad_rows)
            if names is None:
                continue
            if not expected:
                expected, first = list(names), file.name
            self._compare_header(file, names, expected, first)
            # Later files may have declared columns that the first file lacks.
            expected += [name for name in names if name not in expected]
            for name in names:
                if name not in self.options.dtypes and name not in scans:
                    scans[name] = TextScan(self.options.rules(name))
            numbers = [number for number, name in enumerate(names) if name in scans]
            # Without column numbers Arrow would convert all columns, so at least one is requested.
            for batch in self._file_parser(file, bad_rows).batches(len(names), numbers or [0]):
                for index, number in enumerate(numbers):
                    scans[names[number]].update(self._replace_null_values(batch.column(index)))
        return expected

    def rows(
        self,
        file: FolderFile,
        schema: TableSchema,
        columns: Sequence[Column],
        *,
        window: TimeRange | None,
        bad_rows: BadRows,
    ) -> Iterator[pa.RecordBatch]:
        names = self._read_column_names(file, bad_rows)
        if names is None:
            return
        self._compare_header(
            file, names, [each.name for each in schema.in_files], "the earlier files"
        )
        inside = [column for column in columns if column.name in names]
        numbers = [names.index(column.name) for column in inside]
        parser = self._file_parser(file, bad_rows)
        reasons_by_row: dict[int, tuple[str, str]] = {}
        start = 0
        for batch in parser.batches(len(names), numbers or [0]):
            arrays = {}
            wrong: list[int] = []
            for index, column in enumerate(inside):
                values = self._replace_null_values(batch.column(index))
                array, reasons = parse_texts(values, column.kind, text_rules(column, self.options))
                arrays[column.name] = array
                wrong += reasons
                for row, reason in reasons.items():
                    reasons_by_row.setdefault(start + row, (column.name, reason))
            # The first invalid row becomes an error, so further batches are not needed.
            if reasons_by_row and not bad_rows.quarantines:
                break
            for column in columns:
                if column.name not in arrays:
                    arrays[column.name] = pa.nulls(batch.num_rows, column.kind)
            start += batch.num_rows
            # Rows are numbered before bad rows are dropped, as in ``locate``.
            yield drop_rows(_batch(arrays, columns, batch.num_rows), wrong)
        self._report_bad_rows(parser, len(names), reasons_by_row, bad_rows)

    def _report_bad_rows(
        self,
        parser: CsvFileParser,
        width: int,
        reasons: Mapping[int, tuple[str, str]],
        bad_rows: BadRows,
    ) -> None:
        """Add rows to the bad rows, with their line numbers and text."""
        if not reasons:
            return
        rows = sorted(reasons)
        if not bad_rows.quarantines:
            rows = rows[:1]
        # Arrow does not report line numbers, so Python's parser finds them in a second pass.
        lines = parser.locate(width, rows)
        for row in rows:
            column, reason = reasons[row]
            line, text = lines[row]
            hint = f"{self.table.call(dtypes={column: 'string'})} reads the column as strings"
            if reason.endswith("nanoseconds"):
                hint = f"{self.table.call(timestamp_precision='us')} rounds them"
            bad_rows.add(BadRow(parser.file.name, line, column, reason, text), hint=hint)

    def _file_parser(self, file: FolderFile, bad_rows: BadRows) -> CsvFileParser:
        return CsvFileParser(file, self._dialect, bad_rows)

    def _read_column_names(self, file: FolderFile, bad_rows: BadRows) -> list[str] | None:
        """Return the column names of a file, or None if it has no lines."""
        first = self._file_parser(file, bad_rows).first_record()
        if first is None:
            return None
        if self.options.header:
            check_names(first, self.table, file, line=self.options.skip_rows + 1)
            return first
        names = list(self.options.names)
        if len(first) != len(names):
            raise self.table.invalid_file_error(
                f"{file.name}: the first line has {len(first)} fields, but names= has "
                f"{len(names)} columns.",
                hint="names= and delimiter= apply to all files",
            )
        check_names(names, self.table, file)
        return names

    def _compare_header(
        self, file: FolderFile, names: Sequence[str], expected: Sequence[str], first: str
    ) -> None:
        """Refuse a header with other columns, or with a single column that contains delimiters."""
        # A wrong delimiter is not an error of the parser: each line then has a single field.
        if len(names) == 1 and self.options.delimiter is None:
            for sign in _OTHER_DELIMITERS:
                if sign in names[0]:
                    raise self.table.invalid_file_error(
                        f"{file.name} line 1: the header has a single column, {names[0]!r}.",
                        hint=f"{self.table.call(delimiter=sign)} splits it",
                    )
        compare_names(file, names, expected, first=first, table=self.table, options=self.options)

    def _replace_null_values(self, texts: pa.Array) -> pa.Array:
        if not self.options.null_values:
            return texts
        # Configured null values also match quoted fields, unlike the empty field.
        words = pa.array(self.options.null_values, pa.string())
        return pc.if_else(pc.is_in(texts, words), pa.scalar(None, pa.string()), texts)

    def _build_column(self, name: str, scans: Mapping[str, TextScan]) -> Column:
        if name in self.options.dtypes:
            return Column(name, self.options.dtypes[name], is_declared=True)
        meaning = scans[name].meaning if name in scans else "string"
        return Column(name, arrow_type(meaning), meaning)


def _batch(arrays: Mapping[str, pa.Array], columns: Sequence[Column], count: int) -> pa.RecordBatch:
    if not columns:
        # A batch without columns has no row count, so a column of nulls is added.
        return pa.RecordBatch.from_arrays([pa.nulls(count)], [""])
    names = [column.name for column in columns]
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], names)


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
            raise encoding_error(self.file, self.dialect.encoding, self._bad_rows.table)
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
            invalid_row_handler=(lambda _: "skip") if width is None else self._skip_or_fail,
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
            return pa.PythonFile(SelectedLines(self.file, dialect), mode="r")
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
            count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            reason = f"{count}, but the first line has {width}"
            row = BadRow(self.file.name, line, None, f"{reason}: {truncate_text(text)!r}", text)
            self._bad_rows.add(row, hint=hint)

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
            yield from data_records(self.file, self.dialect, width=width)
        except InvalidCsv as error:
            raise self._bad_rows.table.invalid_file_error(
                f"{self.file.name} line {error.line}: {error}.", hint=self._dialect_hint()
            ) from None

    def _dialect_hint(self) -> str:
        call = self._bad_rows.table.call(quote="")
        return f"{call} reads quotes as ordinary characters"

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
            raise encoding_error(self.file, self.dialect.encoding, table) from None
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


def _can_be_header(fields: Sequence[str]) -> bool:
    return all(field[:1].isalpha() for field in fields) and len(set(fields)) == len(fields)
