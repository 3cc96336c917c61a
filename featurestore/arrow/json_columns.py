"""Columns of a schema from JSON objects, each object judged by itself.

A value is taken where its kind is that of the column, and is a reason otherwise: a number is not a
string, and ``1.0`` is not an integer. Files and streams are read by this code alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.arrow_cast import cast_array
from featurestore.arrow.json_plain import PlainObjects
from featurestore.arrow.json_text import (
    JsonError,
    NumberText,
    kind_of,
    parse_json,
    parse_number,
    short_repr,
    to_json_text,
)
from featurestore.arrow.text_values import TextRules, parse_texts

_Reasons = dict[int, str]
_INTEGER_ONLY, _NUMBER = {int, type(None)}, {int, float, type(None)}
_BOOLEAN: set[type] = {bool, type(None)}
_STRING: set[type] = {str, type(None)}


@dataclass(frozen=True)
class JsonColumns:
    """Objects of JSON with the columns of a schema; a name that an object lacks is null.

    Columns that ``texts_of_values`` names hold strings, and take numbers, truth values, arrays and
    objects as JSON text, numbers digit for digit. ``only_known`` makes a name that the schema lacks a reason.
    ``rules`` says how strings write days and instants, ``rules_of`` how those of a column do.

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
        """Whether numbers have to come as they are written."""
        return bool(self.texts_of_values) or any(map(_has_decimals, self.schema.types))

    def decode(
        self, texts: Sequence[str | None] | pa.Array
    ) -> tuple[dict[str, pa.Array], list[str | None]]:
        """Return the columns of JSON texts, and per text why it cannot be read (None: it can)."""
        array = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
        plain = PlainObjects(self.schema)
        if not plain.is_flat or self.is_exact:
            return self._decode_each(array.to_pylist())
        mask = plain.are_plain(array)
        columns = plain.parse(array.filter(mask))
        if columns is None:
            return self._decode_each(array.to_pylist())
        return self._merged(array, mask, columns)

    def _decode_each(
        self, texts: Sequence[str | None]
    ) -> tuple[dict[str, pa.Array], list[str | None]]:
        objects: list[dict[str, Any]] = []
        reasons: list[str | None] = []
        is_exact = self.is_exact
        for text in texts:
            value, reason = parse_object(text, exact=is_exact)
            objects.append(value)
            reasons.append(reason)
        columns, bad = self.convert(objects)
        for row, reason in bad.items():
            reasons[row] = reasons[row] or reason
        return columns, reasons

    def _merged(
        self, texts: pa.Array, mask: pa.Array, plain: list[pa.Array]
    ) -> tuple[dict[str, pa.Array], list[str | None]]:
        """Return plain columns and those of the other texts, in the order of all texts."""
        plain_rows = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        complex_rows = np.flatnonzero(~mask.to_numpy(zero_copy_only=False))
        columns: dict[str, pa.Array] = {}
        reasons: list[str | None] = [None] * len(texts)
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
            order = np.argsort(np.concatenate([plain_rows, complex_rows]))
            complex_columns, complex_reasons = self._decode_each(
                texts.take(pa.array(complex_rows)).to_pylist()
            )
            for row, why in zip(complex_rows, complex_reasons, strict=True):
                reasons[row] = why
            for name, array in columns.items():
                columns[name] = pa.concat_arrays([array, complex_columns[name]]).take(
                    pa.array(order)
                )
        return columns, reasons

    def convert(self, objects: Sequence[dict[str, Any]]) -> tuple[dict[str, pa.Array], _Reasons]:
        """Return the columns of parsed objects, and by row why one does not fit."""
        columns, reasons = self._fields(
            objects, list(self.schema), "", as_text=self.texts_of_values
        )
        return dict(zip(self.schema.names, columns, strict=True)), reasons

    def _fields(
        self,
        objects: Sequence[dict[str, Any]],
        fields: list[pa.Field],
        parent: str,
        *,
        as_text: frozenset[str],
    ) -> tuple[list[pa.Array], _Reasons]:
        reasons: _Reasons = {}
        if self.only_known:
            names = {each.name for each in fields}
            for row, members in enumerate(objects):
                if not members.keys() <= names:
                    unknown = parent + next(name for name in members if name not in names)
                    reasons[row] = f"the name {short_repr(unknown)} is not in the schema"
        columns = []
        for each in fields:
            values = [members.get(each.name) for members in objects]
            column, bad = self._column(
                values, each.type, parent + each.name, as_text=each.name in as_text
            )
            columns.append(column)
            reasons = {**bad, **reasons}
        return columns, reasons

    def _column(
        self, values: list[Any], kind: pa.DataType, path: str, *, as_text: bool
    ) -> tuple[pa.Array, _Reasons]:
        """Return values as an array; those that do not fit are null, with their reasons."""
        if pat.is_struct(kind):
            return self._structs(values, kind, path, as_text=as_text)
        if pat.is_list(kind) or pat.is_fixed_size_list(kind):
            return self._lists(values, kind, path, as_text=as_text)
        kinds: set[type] = set(map(type, values))
        if not kinds.isdisjoint(_NUMBER_TEXTS) and not pat.is_string(kind):
            if pat.is_decimal(kind):
                return _convert_each(values, kind, path)
            values = [parse_number(v) if isinstance(v, NumberText) else v for v in values]
            kinds = set(map(type, values))
        if pat.is_string(kind) and as_text:
            values = [v if type(v) is str or v is None else to_json_text(v) for v in values]
            kinds = _STRING
        try:
            array = _convert_all(values, kinds, kind)
        except (pa.ArrowInvalid, OverflowError):
            array = None
        if array is not None:
            return array, {}
        if pat.is_timestamp(kind) or pat.is_date(kind):
            return self._times(values, kind, path)
        return _convert_each(values, kind, path)

    def _times(self, values: list[Any], kind: pa.DataType, path: str) -> tuple[pa.Array, _Reasons]:
        reasons: _Reasons = {}
        texts: list[str | None] = []
        for row, value in enumerate(values):
            is_valid_text = value is None or type(value) is str
            texts.append(value if is_valid_text else None)
            if not is_valid_text:
                reasons[row] = _reason(path, value, kind)
        array, bad = parse_texts(
            pa.array(texts, pa.string()), kind, self.rules_of.get(path, self.rules)
        )
        for row, reason in bad.items():
            reasons[row] = f"{path}: {reason}"
        return array, reasons

    def _lists(
        self, values: list[Any], kind: pa.DataType, path: str, *, as_text: bool
    ) -> tuple[pa.Array, _Reasons]:
        reasons: _Reasons = {}
        size = kind.list_size if pat.is_fixed_size_list(kind) else None
        items: list[Any] = []
        owners: list[int] = []
        offsets: list[int | None] = []
        for row, value in enumerate(values):
            is_list = type(value) is list
            if not is_list and value is not None:
                reasons[row] = _reason(path, value, kind)
            elif is_list and size is not None and len(value) != size:
                reasons[row] = f"{path} has {len(value)} values, not {size}"
            if not is_list or row in reasons:
                offsets.append(None)
                continue
            offsets.append(len(items))
            items += value
            owners += [row] * len(value)
        offsets.append(len(items))
        children, bad = self._column(items, kind.value_type, f"{path}[]", as_text=as_text)
        for index, reason in bad.items():
            reasons.setdefault(owners[index], reason)
        array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), children)
        return cast_array(array, kind), reasons

    def _structs(
        self, values: list[Any], kind: pa.DataType, path: str, *, as_text: bool
    ) -> tuple[pa.Array, _Reasons]:
        reasons: _Reasons = {}
        objects = []
        for row, value in enumerate(values):
            if type(value) is not dict and value is not None:
                reasons[row] = _reason(path, value, kind)
            objects.append(value if type(value) is dict else {})
        fields = [kind.field(number) for number in range(kind.num_fields)]
        names = [each.name for each in fields]
        columns, bad = self._fields(
            objects, fields, f"{path}.", as_text=frozenset(names if as_text else ())
        )
        mask = pa.array([type(value) is not dict for value in values], pa.bool_())
        array = pa.StructArray.from_arrays(columns, fields=fields, mask=mask)
        return array, {**bad, **reasons}


_NUMBER_TEXTS = {NumberText, type(parse_json("1", exact=True))}


def parse_object(text: str | None, *, exact: bool = False) -> tuple[dict[str, Any], str | None]:
    """Return the members of a JSON object and the reason why the text is not one, or None.

    >>> parse_object('{"id": 1}'), parse_object("[1]")
    (({'id': 1}, None), ({}, 'the value is an array, not an object'))
    """
    if text is None:
        return {}, "the value is missing"
    try:
        value = parse_json(text, exact=exact)
    except JsonError as error:
        return {}, f"the value is not JSON: {error}"
    if type(value) is not dict:
        return {}, f"the value is {kind_of(value)}, not an object"
    return value, None


def _has_decimals(kind: pa.DataType) -> bool:
    if pat.is_list(kind) or pat.is_fixed_size_list(kind):
        return _has_decimals(kind.value_type)
    if pat.is_struct(kind):
        return any(_has_decimals(kind.field(n).type) for n in range(kind.num_fields))
    return bool(pat.is_decimal(kind))


def _convert_all(values: list[Any], kinds: set[type], kind: pa.DataType) -> pa.Array | None:
    """Return values of which each fits; None if one might not."""
    if pat.is_string(kind) and kinds <= _STRING:
        return pa.array(values, kind)
    if pat.is_integer(kind) and kinds <= _INTEGER_ONLY:
        return pa.array(values, kind)
    if pat.is_boolean(kind) and kinds <= _BOOLEAN:
        return pa.array(values, kind)
    if pat.is_floating(kind) and kinds <= _NUMBER:
        # Arrow refuses integers that float64 does not hold.
        array = pa.array(values, pa.float64()).cast(kind)
        if not pc.any(pc.is_inf(array), min_count=0).as_py():
            return array
    return None


def _convert_each(values: list[Any], kind: pa.DataType, path: str) -> tuple[pa.Array, _Reasons]:
    """Return values as an array, each tried by itself."""
    reasons: _Reasons = {}
    fitting: list[Any] = []
    for row, value in enumerate(values):
        scalar = _scalar(value, kind)
        if scalar is None and value is not None:
            reasons[row] = _reason(path, value, kind)
        fitting.append(scalar)
    return pa.array(fitting, kind), reasons


def _scalar(value: Any, kind: pa.DataType) -> Any:
    """Return a value that fits a type; None if it does not."""
    try:
        if pat.is_decimal(kind):
            if not isinstance(value, NumberText):
                return None
            return pa.array([Decimal(value)]).cast(kind)[0].as_py()
        array = _convert_all([value], {type(value)}, kind)
    except (pa.ArrowInvalid, OverflowError, ArithmeticError):
        return None
    return None if array is None else array[0].as_py()


def _reason(path: str, value: Any, kind: pa.DataType) -> str:
    if isinstance(value, float) and math.isinf(value):
        return f"{path} is a number beyond {kind}"
    if isinstance(value, list | dict):
        return f"{path} is {kind_of(value)}, which is not {kind}"
    return f"{path} is {kind_of(value)} ({short_repr(value)}), which is not {kind}"
