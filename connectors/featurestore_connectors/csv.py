"""Training datasets as CSV files (RFC 4180).

Files have a header line, CRLF line endings and quoted strings. An empty string is ``""``, and a
null is an empty field. Binary values are base64, lists are quoted JSON, and times are ISO 8601 in
UTC. A sidecar ``.idx`` file stores the byte offset of every 64th row, for random access.

https://www.rfc-editor.org/rfc/rfc4180
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.types as pat

from featurestore.arrow.casts import cast_array
from featurestore.arrow.schemas import schema_from_json, schema_to_json
from featurestore.arrow.text_values import format_decimals
from featurestore.errors import DatasetDamaged, UnsupportedType
from featurestore.plugins import plain
from featurestore.plugins.format import (
    ColumnProfile,
    Layout,
    ShardProblem,
    ShardReader,
    WrittenShard,
)
from featurestore.plugins.plain import PlainFormat
from featurestore.storage.ranges import RangeFile
from featurestore.storage.shards import ShardFile

INDEX_SUFFIX = ".idx"
ROWS_PER_ENTRY = 64
TEXT_PER_NUMBER = 2.5  # estimated characters, comma included, per byte of memory
BATCH_ROWS = 64 * 128
END = "\r\n"
_NULL = pa.scalar(None, pa.string())


class CsvFormat(PlainFormat):
    """CSV dataset format (implements ``DatasetFormat``)."""

    name = "csv"
    null = "empty"

    def check(self, schema: pa.Schema, *, compression: str | None) -> None:
        self.refuse_compression(compression, ": it prevents random access")
        refused = [
            f"{field.name}: {field.type}" for field in schema if not _is_supported(field.type)
        ]
        if refused:
            raise UnsupportedType(
                f"CSV does not support these columns: {'; '.join(refused)}.",
                hint="use a column for each field of a struct, or data_format='parquet'",
            )

    def layout(
        self,
        schema: pa.Schema,
        profiles: Sequence[ColumnProfile],
        *,
        compression: str | None,
        block_rows: int,
    ) -> Layout:
        self.check(schema, compression=compression)
        _check_years(schema, profiles)
        mean = TEXT_PER_NUMBER * plain.plain_bytes_per_row(schema, profiles)
        return {
            "version": 1,
            "schema": schema_to_json(schema),
            "rows_per_entry": ROWS_PER_ENTRY,
            "mean_bytes": mean,
        }

    def write_shard(
        self, directory: str, path: str, batches: Iterator[pa.RecordBatch], *, layout: Layout
    ) -> WrittenShard:
        names = schema_from_json(layout["schema"]).names
        lengths = []
        with ShardFile(directory, path) as file:
            header = (",".join(names) + END).encode()
            file.write(header)
            for batch in plain.rebatch(batches, rows=BATCH_ROWS):
                lines = csv_lines(batch.select(names))
                # The offsets of the array are those of the lines in the file, which the index
                # needs.
                offsets = np.frombuffer(lines.buffers()[1], np.int32)[: len(lines) + 1]
                file.write(memoryview(lines.buffers()[2])[: offsets[-1]])
                lengths.append(np.diff(offsets).astype(np.int64))
        line_lengths = np.concatenate([np.zeros(0, np.int64), *lengths])
        with ShardFile(directory, path + INDEX_SUFFIX) as index:
            index.write(
                _index_bytes(line_lengths, start=len(header), step=layout["rows_per_entry"])
            )
        return WrittenShard(file.written_file, len(line_lengths), (index.written_file,))

    def open_shard(self, path: str, *, layout: Layout) -> ShardReader:
        return CsvShard(path, schema_from_json(layout["schema"]), step=layout["rows_per_entry"])

    def verify_shard(self, path: str, *, layout: Layout, rows: int) -> Sequence[ShardProblem]:
        schema = schema_from_json(layout["schema"])
        try:
            shard = CsvShard(path, schema, step=layout["rows_per_entry"])
        except DatasetDamaged as error:
            return [ShardProblem(path, error.message)]
        for start in range(0, shard.rows, BATCH_ROWS):
            try:
                shard.read(start, min(start + BATCH_ROWS, shard.rows), schema.names)
            except DatasetDamaged as error:
                return [ShardProblem(path, error.message, offset=shard.offset(start), row=start)]
        if shard.rows != rows:
            return [ShardProblem(path, f"has {shard.rows:,} rows; the manifest lists {rows:,}")]
        return []


class CsvShard:
    """An open CSV shard with its offset index."""

    def __init__(self, path: str, schema: pa.Schema, *, step: int) -> None:
        self._path, self._schema, self._step = path, schema, step
        try:
            index = np.fromfile(path + INDEX_SUFFIX, "<u8")
            self._file = RangeFile(path)
        except OSError as error:
            raise DatasetDamaged(
                f"The shard {path!r} cannot be read: {error.strerror or error}."
            ) from error
        size = self._file.size
        if len(index) < 2 or len(index) != 2 + -(-int(index[0]) // step) or index[-1] != size:
            raise DatasetDamaged(
                f"The index {path + INDEX_SUFFIX!r} does not match its shard of {size:,} bytes."
            )
        self._rows, self._offsets = int(index[0]), index[1:]

    @property
    def rows(self) -> int:
        return self._rows

    def offset(self, row: int) -> int:
        """Return the byte offset of the indexed block that contains a row."""
        return int(self._offsets[row // self._step])

    def read(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        schema = plain.select_fields(self._schema, columns)
        if stop <= start or not columns:
            return plain.empty_batch(schema)
        first, last = start // self._step, -(-stop // self._step)
        begin, end = int(self._offsets[first]), int(self._offsets[last])
        try:
            # Without its end, a line may still have all its columns.
            data = self._file.read(begin, end - begin)
            table = _parse_lines(data, self._schema.names, columns)
            # A damaged line end or quote joins or splits lines.
            expected = min(last * self._step, self._rows) - first * self._step
            if table.num_rows != expected:
                raise pa.ArrowInvalid(f"{table.num_rows:,} lines; the index lists {expected:,}")
            rows = table.slice(start - first * self._step, stop - start).combine_chunks()
            arrays = [
                _from_text(plain.combine_chunks(rows[field.name]), field.type) for field in schema
            ]
        except (pa.ArrowException, ValueError, OSError, RecursionError) as error:
            raise plain.damaged_shard_error(
                self._path, f"Rows {start:,} to {stop:,}", error
            ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def close(self) -> None:
        self._file.close()


def _index_bytes(lengths: npt.NDArray[np.int64], *, start: int, step: int) -> bytes:
    """Return the index: the row count, the offset of every ``step``-th row, and the file size."""
    starts = start + np.cumsum(lengths) - lengths
    end = start + int(lengths.sum())
    return np.concatenate([[len(lengths)], starts[::step], [end]]).astype("<u8").tobytes()


def csv_lines(batch: pa.RecordBatch) -> pa.Array:
    r"""Format rows as CSV lines, including line endings.

    >>> csv_lines(pa.RecordBatch.from_pydict({"a": [1, None], "b": ["x", ""]})).to_pylist()
    ['1,"x"\r\n', ',""\r\n']
    """
    columns = [_quote_strings(column) for column in batch.columns]
    rows = pc.binary_join_element_wise(*columns, ",", null_handling="replace", null_replacement="")
    return pc.binary_join_element_wise(rows, END, "")


def _quote_strings(array: pa.Array) -> pa.Array:
    text = _to_text(array)
    dtype = array.type
    if not (pat.is_string(dtype) or pat.is_binary(dtype) or _is_list(dtype)):
        return text
    return pc.binary_join_element_wise('"', pc.replace_substring(text, '"', '""'), '"', "")


def _is_list(dtype: pa.DataType) -> bool:
    return bool(pat.is_list(dtype) or pat.is_fixed_size_list(dtype))


def _to_text(array: pa.Array) -> pa.Array:
    """Convert an array to unquoted strings."""
    dtype = array.type
    if _is_list(dtype):
        return _lists_to_text(array)
    if pat.is_binary(dtype):
        return _map_values(lambda data: base64.b64encode(data).decode(), array, pa.string())
    if pat.is_decimal(dtype):
        return format_decimals(array)
    if pat.is_timestamp(dtype):
        # Arrow separates date and time by a space, ISO 8601 by a T.
        return pc.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1)
    return array.cast(pa.string())


def _map_values(function: Callable[[Any], Any], array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Apply a function to each non-null value."""
    values: list[Any] = array.to_pylist()
    for row, value in enumerate(values):
        if value is not None:
            values[row] = function(value)
    return pa.array(values, dtype)


def _lists_to_text(array: pa.Array) -> pa.Array:
    """Convert lists to JSON strings."""
    values = array.flatten()
    dtype = values.type
    items = _to_text(values)
    if pat.is_string(dtype) or pat.is_binary(dtype) or pat.is_decimal(dtype) or _is_time(dtype):
        items = _map_values(_to_json, items, pa.string())
    elif pat.is_floating(dtype):
        # JSON has no such numbers, but these names are read by json.loads.
        for arrow, javascript in (("nan", "NaN"), ("inf", "Infinity")):
            items = pc.replace_substring(items, arrow, javascript)
    items = pc.fill_null(items, "null")
    counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    inner = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    text = pc.binary_join_element_wise("[", inner, "]", "")
    if not array.null_count:
        return text
    return pc.if_else(array.is_valid(), text, _NULL)


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_time(dtype: pa.DataType) -> bool:
    return bool(pat.is_date(dtype) or pat.is_timestamp(dtype))


def _parse_lines(data: bytes, names: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """Parse complete CSV lines to columns of strings."""
    # All lines are one block, since a line must not be longer than a block.
    return pcsv.read_csv(
        io.BytesIO(data),
        read_options=pcsv.ReadOptions(
            use_threads=False, column_names=list(names), block_size=max(len(data), 1)
        ),
        parse_options=pcsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pcsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            include_columns=list(dict.fromkeys(columns)),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )


def _from_text(text: pa.Array, dtype: pa.DataType) -> pa.Array:
    if _is_list(dtype):
        return _lists_from_text(text, dtype)
    if pat.is_binary(dtype):
        return _map_values(lambda data: base64.b64decode(data, validate=True), text, pa.binary())
    return text.cast(dtype)


def _lists_from_text(text: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Parse lists from JSON, one level at a time: items to strings, then strings to values."""
    items: list[str | None] = []
    offsets, missing = [0], []
    for row in text.to_pylist():
        missing.append(row is None)
        if row is not None:
            # Keep numbers as strings, which are parsed later.
            parsed_items = json.loads(row, parse_float=str, parse_int=str, parse_constant=str)
            items.extend(map(_item_text, parsed_items))
        offsets.append(len(items))
    values = _from_text(pa.array(items, pa.string()), dtype.value_type)
    # Arrow reads a null offset as a null list.
    mask = np.array([*missing, False]) if any(missing) else None
    lists = pa.ListArray.from_arrays(pa.array(np.array(offsets, np.int32), mask=mask), values)
    return cast_array(lists, dtype)


def _item_text(item: Any) -> str | None:
    """Return a parsed list item as the string of a value; numbers are strings already."""
    if isinstance(item, bool | list):
        return _to_json(item)
    text: str | None = item
    return text


def _is_supported(dtype: pa.DataType) -> bool:
    while _is_list(dtype):
        dtype = dtype.value_type
    return not pat.is_nested(dtype)


def _check_years(schema: pa.Schema, profiles: Sequence[ColumnProfile]) -> None:
    """Refuse times whose year does not have four digits in ISO 8601."""
    days = np.array(["0001-01-01", "9999-12-31"], "M8[D]").astype(np.int64).tolist()
    per_day = 86_400_000_000
    refused = []
    for profile in profiles:
        dtype = schema.field(profile.name).type
        if not _is_time(dtype) or profile.minimum is None or profile.maximum is None:
            continue
        unit = per_day if pat.is_timestamp(dtype) else 1
        if profile.minimum < days[0] * unit or profile.maximum >= (days[1] + 1) * unit:
            refused.append(profile.name)
    if refused:
        raise UnsupportedType(
            f"CSV does not support times before the year 1 or after 9999: columns {', '.join(refused)}.",
            hint="store them as numbers, or use data_format='parquet'",
        )
