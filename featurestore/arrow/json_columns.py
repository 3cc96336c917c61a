"""Conversion of JSON objects to the columns of a schema, with errors per object.

A value is accepted if its JSON type matches the column, and is an error otherwise: a number is not
a string, and ``1.0`` is not an integer. Files and streams use the same code.

Plain objects are parsed in bulk by Arrow's parser, about ten times as fast as one by one. A plain
object is flat and on one line, each name is in the schema and occurs once, and each value is a
number, a boolean, null, or a string without escapes. A regular expression selects plain objects,
because Arrow's parser accepts more than RFC 8259 allows and does not recover from some invalid
input. Both parsers return equal values for plain objects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyarrow import json

from featurestore.arrow import json_text
from featurestore.arrow.arrays import combine_chunks
from featurestore.arrow.casts import cast_array
from featurestore.arrow.json_text import JsonError, NonFinite, NumberText
from featurestore.arrow.text_values import TextRules, parse_texts

_SPACE = r"[ \t]*"
_PLAIN_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_PLAIN_STRING = r'"[^"\\\x00-\x1f]*"'
_PLAIN_VALUE = rf"(?:{_PLAIN_STRING}|{_PLAIN_NUMBER}|true|false|null)"
# Each name is counted in each string, so with many columns the fast path does not pay.
_MAX_COLUMNS = 50
# Arrow's parser refuses 100,000 rows in one block.
_MAX_BLOCK_ROWS = 32_768

_Reasons = dict[int, str]
_INTEGER_ONLY, _NUMBER = {int, type(None)}, {int, float, type(None)}
_BOOLEAN: set[type] = {bool, type(None)}
_STRING: set[type] = {str, type(None)}

_NUMBER_TEXTS = {NumberText, type(json_text.parse_json("1", exact=True))}


@dataclass(frozen=True)
class JsonColumns:
    """A converter of JSON objects to the columns of a schema; missing names become null.

    Columns in ``texts_of_values`` contain strings, and accept numbers, booleans, arrays and objects
    as JSON text, with all digits of numbers. If ``only_known`` is set, a name that is not in the
    schema is an error. ``rules`` define the format of dates and timestamps in strings, ``rules_of``
    the format in individual columns.

    >>> columns, reasons = JsonColumns(pa.schema([("id", pa.int64())])).decode(['{"id": 1}', "{}}"])
    >>> columns["id"].to_pylist(), reasons
    ([1, None], [None, 'the value is not JSON: Extra data at column 3'])
    """

    schema: pa.Schema
    texts_of_values: frozenset[str] = frozenset()
    only_known: bool = False
    rules: TextRules = field(default_factory=TextRules)
    rules_of: Mapping[str, TextRules] = field(default_factory=dict)

    @property
    def is_exact(self) -> bool:
        """Whether numbers have to be parsed with all their digits."""
        return bool(self.texts_of_values) or any(map(_has_decimals, self.schema.types))

    def decode(
        self, strings: Sequence[str | None] | pa.Array
    ) -> tuple[dict[str, pa.Array], list[str | None]]:
        """Return the columns of JSON strings, and for each string its error, or None."""
        array = strings if isinstance(strings, pa.Array) else pa.array(strings, pa.string())
        plain = _PlainObjectParser(self.schema)
        # Arrow's parser reads numbers as floats, so their digits would be lost.
        if not plain.is_flat or self.is_exact:
            return self._decode_individually(array.to_pylist())
        mask = plain.plain_mask(array)
        columns = plain.parse(array.filter(mask))
        # A value of the wrong type fails the complete block.
        if columns is None:
            return self._decode_individually(array.to_pylist())
        return self._merge_columns(array, mask, columns)

    def _decode_individually(
        self, strings: Sequence[str | None]
    ) -> tuple[dict[str, pa.Array], list[str | None]]:
        """Parse and convert strings one by one."""
        objects: list[dict[str, Any]] = []
        reasons: list[str | None] = []
        is_exact = self.is_exact
        for text in strings:
            value, reason = parse_object(text, exact=is_exact)
            objects.append(value)
            reasons.append(reason)
        columns, bad = self.convert(objects)
        for row, reason in bad.items():
            reasons[row] = reasons[row] or reason
        return columns, reasons

    def _merge_columns(
        self, strings: pa.Array, mask: pa.Array, plain: list[pa.Array]
    ) -> tuple[dict[str, pa.Array], list[str | None]]:
        """Return plain and other columns merged in the original row order."""
        plain_rows = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        complex_rows = np.flatnonzero(~mask.to_numpy(zero_copy_only=False))
        columns: dict[str, pa.Array] = {}
        reasons: list[str | None] = [None] * len(strings)
        for column, array in zip(self.schema, plain, strict=True):
            if array.type != column.type:
                array, bad = parse_texts(
                    array, column.type, self.rules_of.get(column.name, self.rules)
                )
                for row, reason in bad.items():
                    reasons[plain_rows[row]] = (
                        reasons[plain_rows[row]] or f"{column.name}: {reason}"
                    )
            columns[column.name] = array
        if len(complex_rows):
            # The inverse of the partition: it returns the rows to their order.
            order = np.argsort(np.concatenate([plain_rows, complex_rows]))
            complex_columns, complex_reasons = self._decode_individually(
                strings.take(pa.array(complex_rows)).to_pylist()
            )
            for row, why in zip(complex_rows.tolist(), complex_reasons, strict=True):
                reasons[row] = why
            for name, array in columns.items():
                columns[name] = pa.concat_arrays([array, complex_columns[name]]).take(
                    pa.array(order)
                )
        return columns, reasons

    def convert(self, objects: Sequence[dict[str, Any]]) -> tuple[dict[str, pa.Array], _Reasons]:
        """Return the columns of parsed objects, and the error of each invalid row."""
        columns, reasons = self._convert_fields(
            objects, list(self.schema), "", as_text=self.texts_of_values
        )
        return dict(zip(self.schema.names, columns, strict=True)), reasons

    def _convert_fields(
        self,
        objects: Sequence[dict[str, Any]],
        fields: list[pa.Field],
        parent: str,
        *,
        as_text: frozenset[str],
    ) -> tuple[list[pa.Array], _Reasons]:
        """Convert the fields of objects; ``parent`` is the path prefix for errors."""
        reasons: _Reasons = {}
        if self.only_known:
            names = {column_field.name for column_field in fields}
            for row, members in enumerate(objects):
                if not members.keys() <= names:
                    unknown = parent + next(name for name in members if name not in names)
                    reasons[row] = f"the name {json_text.short_repr(unknown)} is not in the schema"
        columns = []
        for column_field in fields:
            values = [members.get(column_field.name) for members in objects]
            column, bad = self._convert_column(
                values,
                column_field.type,
                parent + column_field.name,
                as_text=column_field.name in as_text,
            )
            columns.append(column)
            # The first error of a row is reported.
            reasons = {**bad, **reasons}
        return columns, reasons

    def _convert_column(
        self, values: list[Any], dtype: pa.DataType, path: str, *, as_text: bool
    ) -> tuple[pa.Array, _Reasons]:
        """Convert values to an array; invalid values become null and have an error."""
        if pat.is_struct(dtype):
            return self._convert_structs(values, dtype, path, as_text=as_text)
        if pat.is_list(dtype) or pat.is_fixed_size_list(dtype):
            return self._convert_lists(values, dtype, path, as_text=as_text)
        kinds: set[type] = set(map(type, values))
        if not kinds.isdisjoint(_NUMBER_TEXTS) and not pat.is_string(dtype):
            if pat.is_decimal(dtype):
                return _convert_each(values, dtype, path)
            values = [json_text.parse_number(v) if isinstance(v, NumberText) else v for v in values]
            kinds = set(map(type, values))
        if pat.is_string(dtype) and as_text:
            values = [
                v if type(v) is str or v is None else json_text.to_json_text(v) for v in values
            ]
            kinds = _STRING
        try:
            array = _convert_all(values, kinds, dtype)
        except (pa.ArrowInvalid, OverflowError):
            array = None
        if array is not None:
            return array, {}
        if pat.is_timestamp(dtype) or pat.is_date(dtype):
            return self._convert_times(values, dtype, path)
        return _convert_each(values, dtype, path)

    def _convert_times(
        self, values: list[Any], dtype: pa.DataType, path: str
    ) -> tuple[pa.Array, _Reasons]:
        """Parse times in strings; other values are errors."""
        reasons: _Reasons = {}
        strings: list[str | None] = []
        for row, value in enumerate(values):
            is_valid_text = value is None or type(value) is str
            strings.append(value if is_valid_text else None)
            if not is_valid_text:
                reasons[row] = _format_reason(path, value, dtype)
        array, bad = parse_texts(
            pa.array(strings, pa.string()), dtype, self.rules_of.get(path, self.rules)
        )
        for row, reason in bad.items():
            reasons[row] = f"{path}: {reason}"
        return array, reasons

    def _convert_lists(
        self, values: list[Any], dtype: pa.DataType, path: str, *, as_text: bool
    ) -> tuple[pa.Array, _Reasons]:
        """Convert arrays: all items at once, then the lists."""
        reasons: _Reasons = {}
        size = dtype.list_size if pat.is_fixed_size_list(dtype) else None
        items: list[Any] = []
        owners: list[int] = []
        offsets: list[int | None] = []
        for row, value in enumerate(values):
            is_list = type(value) is list
            if not is_list and value is not None:
                reasons[row] = _format_reason(path, value, dtype)
            elif is_list and size is not None and len(value) != size:
                reasons[row] = f"{path} has {len(value)} values, not {size}"
            if not is_list or row in reasons:
                offsets.append(None)
                continue
            offsets.append(len(items))
            items += value
            # An invalid item is an error of the row that contains it.
            owners += [row] * len(value)
        offsets.append(len(items))
        children, bad = self._convert_column(items, dtype.value_type, f"{path}[]", as_text=as_text)
        for index, reason in bad.items():
            reasons.setdefault(owners[index], reason)
        array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), children)
        return cast_array(array, dtype), reasons

    def _convert_structs(
        self, values: list[Any], dtype: pa.DataType, path: str, *, as_text: bool
    ) -> tuple[pa.Array, _Reasons]:
        """Convert objects to structs, field by field."""
        reasons: _Reasons = {}
        objects = []
        for row, value in enumerate(values):
            if type(value) is not dict and value is not None:
                reasons[row] = _format_reason(path, value, dtype)
            objects.append(value if type(value) is dict else {})
        fields = [dtype.field(number) for number in range(dtype.num_fields)]
        names = [field.name for field in fields]
        columns, bad = self._convert_fields(
            objects, fields, f"{path}.", as_text=frozenset(names if as_text else ())
        )
        mask = pa.array([type(value) is not dict for value in values], pa.bool_())
        array = pa.StructArray.from_arrays(columns, fields=fields, mask=mask)
        return array, {**bad, **reasons}


def parse_object(text: str | None, *, exact: bool = False) -> tuple[dict[str, Any], str | None]:
    """Parse a JSON object; return its members, and the error or None.

    >>> parse_object('{"id": 1}'), parse_object("[1]")
    (({'id': 1}, None), ({}, 'the value is an array, not an object'))
    """
    if text is None:
        return {}, "the value is missing"
    try:
        value = json_text.parse_json(text, exact=exact)
    except JsonError as error:
        return {}, f"the value is not JSON: {error}"
    if type(value) is not dict:
        return {}, f"the value is {json_text.json_type_name(value)}, not an object"
    return value, None


def _has_decimals(dtype: pa.DataType) -> bool:
    if pat.is_list(dtype) or pat.is_fixed_size_list(dtype):
        return _has_decimals(dtype.value_type)
    if pat.is_struct(dtype):
        return any(_has_decimals(dtype.field(n).type) for n in range(dtype.num_fields))
    return bool(pat.is_decimal(dtype))


class _PlainObjectParser:
    """A parser of plain JSON objects, into the columns of a flat schema.

    Dates and timestamps are returned as strings, for the caller to parse.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._names = schema.names
        kinds = [
            pa.string() if pat.is_timestamp(dtype) or pat.is_date(dtype) else dtype
            for dtype in schema.types
        ]
        self._schema = pa.schema(list(zip(self._names, kinds, strict=True)))
        self.is_flat = 0 < len(schema) <= _MAX_COLUMNS and all(map(_is_flat, schema.types))
        name = "|".join(map(re.escape, self._names))
        member = rf'"(?:{name})"{_SPACE}:{_SPACE}{_PLAIN_VALUE}{_SPACE}'
        self._object = rf"^{_SPACE}\{{{_SPACE}(?:{member}(?:,{_SPACE}{member})*)?\}}{_SPACE}$"
        floats = [re.escape(field.name) for field in schema if pat.is_floating(field.type)]
        # Arrow rounds integers that float64 cannot represent.
        self._rounded = rf'"(?:{"|".join(floats)})"{_SPACE}:{_SPACE}-?[0-9]{{16,}}'
        self._has_floats = bool(floats)

    def plain_mask(self, strings: pa.Array) -> pa.Array:
        """Return a mask of the strings that are plain objects; nulls are not."""
        plain = pc.match_substring_regex(strings, self._object)
        for name in self._names:
            # A repeated name in one object would fail the complete block.
            count = pc.count_substring_regex(strings, rf'"{re.escape(name)}"{_SPACE}:')
            plain = pc.and_(plain, pc.less_equal(count, 1))
        if self._has_floats:
            plain = pc.and_(plain, pc.invert(pc.match_substring_regex(strings, self._rounded)))
        return pc.fill_null(plain, False)

    def parse(self, strings: pa.Array) -> list[pa.Array] | None:
        """Return the columns of plain objects, or None if a value has the wrong type."""
        tables = []
        for start in range(0, len(strings), _MAX_BLOCK_ROWS):
            table = self._parse_block(strings.slice(start, _MAX_BLOCK_ROWS))
            if table is None:
                return None
            tables.append(table)
        if not tables:
            return [pa.array([], dtype) for dtype in self._schema.types]
        all_rows = pa.concat_tables(tables).combine_chunks()
        columns = [combine_chunks(all_rows.column(name)) for name in self._names]
        # Arrow reads a number beyond float32 as infinity.
        return None if _has_infinity(columns) else columns

    def _parse_block(self, strings: pa.Array) -> pa.Table | None:
        """Parse lines with Arrow, or return None if they are not as expected."""
        lines = pc.binary_join_element_wise(strings, "", "\n")
        data = lines.buffers()[2]
        try:
            table = json.read_json(
                pa.BufferReader(data),
                read_options=json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                parse_options=json.ParseOptions(
                    explicit_schema=self._schema, unexpected_field_behavior="error"
                ),
            )
        except pa.ArrowInvalid:
            return None
        # The rows must stay aligned with their strings.
        if table.num_rows != len(strings) or table.schema.names != self._names:
            return None
        return table


def _is_flat(dtype: pa.DataType) -> bool:
    is_time = pat.is_timestamp(dtype) or pat.is_date(dtype)
    is_number = pat.is_integer(dtype) or pat.is_float32(dtype) or pat.is_float64(dtype)
    return bool(is_time or is_number or pat.is_boolean(dtype) or pat.is_string(dtype))


def _has_infinity(columns: Sequence[pa.Array]) -> bool:
    floats = [column for column in columns if pat.is_floating(column.type)]
    return any(pc.any(pc.is_inf(column), min_count=0).as_py() for column in floats)


def _convert_each(values: list[Any], dtype: pa.DataType, path: str) -> tuple[pa.Array, _Reasons]:
    """Convert values to an array one by one."""
    reasons: _Reasons = {}
    fitting: list[Any] = []
    for row, value in enumerate(values):
        scalar = _convert_scalar(value, dtype)
        if scalar is None and value is not None:
            reasons[row] = _format_reason(path, value, dtype)
        fitting.append(scalar)
    return pa.array(fitting, dtype), reasons


def _convert_scalar(value: Any, dtype: pa.DataType) -> Any:
    """Convert a value to a type; return None if it does not fit."""
    if isinstance(value, NonFinite):
        return float(value) if pat.is_floating(dtype) else None
    try:
        if pat.is_decimal(dtype):
            if not isinstance(value, NumberText):
                return None
            return pa.array([Decimal(value)]).cast(dtype)[0].as_py()
        array = _convert_all([value], {type(value)}, dtype)
    except (pa.ArrowInvalid, OverflowError, ArithmeticError):
        return None
    return None if array is None else array[0].as_py()


def _convert_all(values: list[Any], kinds: set[type], dtype: pa.DataType) -> pa.Array | None:
    """Convert all values at once; return None if a value may not fit."""
    if pat.is_string(dtype) and kinds <= _STRING:
        return pa.array(values, dtype)
    if pat.is_integer(dtype) and kinds <= _INTEGER_ONLY:
        return pa.array(values, dtype)
    if pat.is_boolean(dtype) and kinds <= _BOOLEAN:
        return pa.array(values, dtype)
    if pat.is_floating(dtype) and kinds <= _NUMBER:
        # Arrow refuses integers that float64 cannot represent.
        array = pa.array(values, pa.float64()).cast(dtype)
        if not pc.any(pc.is_inf(array), min_count=0).as_py():
            return array
    return None


def _format_reason(path: str, value: Any, dtype: pa.DataType) -> str:
    # The parser of the standard library returns infinity for numbers beyond float64.
    if isinstance(value, float) and math.isinf(value):
        return f"{path} is a number outside the range of {dtype}"
    if isinstance(value, list | dict):
        return f"{path} is {json_text.json_type_name(value)}, which is not {dtype}"
    return f"{path} is {json_text.json_type_name(value)} ({json_text.short_repr(value)}), which is not {dtype}"
