"""CSV tables: columns from the headers, types inferred from all values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.arrow.text_values import arrow_type, parse_texts
from featurestore.errors import InvalidArgument
from featurestore.plugins.source import BadRow
from featurestore_connectors.sources.folders import tables
from featurestore_connectors.sources.folders.csv_parsers import CsvFileParser, count_fields
from featurestore_connectors.sources.folders.listing import FolderFile
from featurestore_connectors.sources.folders.scan import TextScan
from featurestore_connectors.sources.folders.tables import BadRows, Column, FolderTable, TableRead
from featurestore_connectors.sources.folders.text_files import CsvDialect

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
                hint=self._hint_without_header(),
            )
        self.check_declared(expected)
        return [self._build_column(name, scans) for name in expected]

    def _scan_files(self, scans: dict[str, TextScan]) -> list[str]:
        """Read all files, update the scans of undeclared columns, and return all column names."""
        bad_rows = self.new_bad_rows()
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

    def rows(self, file: FolderFile, read: TableRead) -> Iterator[pa.RecordBatch]:
        columns, bad_rows = read.columns, read.bad_rows
        names = self._read_column_names(file, bad_rows)
        if names is None:
            return
        expected = [column.name for column in read.schema.in_files]
        self._compare_header(file, names, expected, "the earlier files")
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
                array, reasons = parse_texts(
                    values, column.dtype, tables.text_rules(column, self.options)
                )
                arrays[column.name] = array
                wrong += reasons
                for row, reason in reasons.items():
                    reasons_by_row.setdefault(start + row, (column.name, reason))
            # The first invalid row becomes an error, so further batches are not needed.
            if reasons_by_row and not bad_rows.quarantines:
                break
            for column in columns:
                if column.name not in arrays:
                    arrays[column.name] = pa.nulls(batch.num_rows, column.dtype)
            start += batch.num_rows
            # Rows are numbered before bad rows are dropped, as in ``locate``.
            ordered = [arrays[column.name] for column in columns]
            yield tables.drop_rows(tables.to_batch(ordered, columns, batch.num_rows), wrong)
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
        rows = sorted(reasons) if bad_rows.quarantines else [min(reasons)]
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
        """Return the column names of a file, or None if it has no records."""
        is_single = not self.options.header and len(self.options.names) == 1
        # In a file of one column an empty line is a null.
        first = self._file_parser(file, bad_rows).first_record(skip_empty=not is_single)
        if first is None:
            reason = tables.find_missing_content(file, "header" if self.options.header else "rows")
            if reason is not None:
                bad_row = BadRow(file.name, 1, None, reason, "")
                bad_rows.add(bad_row, hint=self._hint_without_records())
            return None
        if self.options.header:
            tables.check_names(first, self.table, file, line=self.options.skip_rows + 1)
            return first
        names = list(self.options.names)
        if len(first) != len(names) and not bad_rows.quarantines:
            raise self.table.invalid_file_error(
                f"{file.name}: the first line has {count_fields(first)}, but names={names!r}.",
                hint="names= and delimiter= apply to all files",
            )
        tables.check_names(names, self.table, file)
        return names

    def _hint_without_records(self) -> str | None:
        """Return a hint for a single file without records; of several files, it may be skipped."""
        if len(self.folder_files.files) > 1:
            return None
        if self.options.skip_rows or self.options.comment:
            return f"{self.table.call(skip_rows=0, comment='')} reads all its lines"
        if self.options.header:
            return self._hint_without_header()
        return None

    def _hint_without_header(self) -> str:
        return f"{self.table.call(header=False, names=['column_1'])} names the columns"

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
        self.compare_names(file, names, expected, first=first)

    def _replace_null_values(self, texts: pa.Array) -> pa.Array:
        if not self.options.null_values:
            return texts
        # Configured null values also match quoted fields, unlike the empty field.
        words = pa.array(self.options.null_values, pa.string())
        return pc.if_else(pc.is_in(texts, words), pa.scalar(None, pa.string()), texts)

    def _build_column(self, name: str, scans: Mapping[str, TextScan]) -> Column:
        meaning = scans[name].meaning if name in scans else "string"
        return self.declared_column(name) or Column(name, arrow_type(meaning), meaning)
