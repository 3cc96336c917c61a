"""Type inference from all values of all files: integers, floats, booleans, dates, timestamps.

A column gets the narrowest type that fits every value, or string. JSON values of different kinds
are never mixed in a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from featurestore.arrow.json_text import json_type_name
from featurestore.arrow.text_values import (
    INFERRED,
    TextRules,
    all_match,
    arrow_type,
    has_finite_number,
)
from featurestore_connectors.sources.folders.options import TableName

_FIRST_VALUES = 64
_TIMES = tuple(type_name for type_name in INFERRED if type_name.startswith(("date", "timestamp")))
_LOW, _HIGH, _UNSIGNED = -(2**63), 2**63 - 1, 2**64 - 1
_MANY_NAMES = 10_000
# Arrow exchanges types of at most 64 levels, which include the table and a column's own type.
_MAX_LEVELS = 60


class TextScan:
    """Incremental type inference for strings."""

    def __init__(self, rules: TextRules, candidates: Sequence[str] = INFERRED) -> None:
        self._rules = rules
        self._candidates = list(candidates)
        self._has_values = False
        self._has_number = False

    def update(self, texts: pa.Array) -> None:
        """Update the inference with a batch of strings."""
        if texts.null_count == len(texts) or (self._has_values and not self._candidates):
            return
        texts = texts.drop_null()
        self._has_values = True
        # A few values eliminate most types, so that all values are matched against few types.
        for sample in (texts.slice(0, _FIRST_VALUES), texts):
            self._candidates = [
                candidate
                for candidate in self._candidates
                if all_match(sample, candidate, self._rules)
            ]
        # Strings such as "nan" and "inf" alone do not make a column of floats.
        if "double" in self._candidates and not self._has_number:
            self._has_number = has_finite_number(texts)

    @property
    def meaning(self) -> str:
        """The inferred type of the strings; "string" if no other type fits, or without values."""
        if not self._has_values:
            return "string"
        for candidate in self._candidates:
            if candidate != "double" or self._has_number:
                return candidate
        return "string"


class JsonScan:
    """Incremental type inference for JSON values; remembers where each kind occurs first."""

    def __init__(self, rules: TextRules, *, level: int = 0) -> None:
        self._rules = rules
        self._level = level
        self._first: dict[type, tuple[str, int]] = {}
        self._strings = TextScan(rules, _TIMES)
        self._low = self._high = 0
        self._inexact: tuple[str, int] | None = None
        self._wide: tuple[str, int] | None = None
        self._items: JsonScan | None = None
        self.members: dict[str, JsonScan] = {}

    def update(self, values: Sequence[Any], lines: Sequence[int], file: str) -> None:
        """Update the inference with values and their line numbers in a file."""
        kinds = set(map(type, values))
        for json_type in kinds - self._first.keys():
            # isinstance would count booleans as integers.
            row = next(row for row, value in enumerate(values) if type(value) is json_type)
            self._first[json_type] = (file, lines[row])
        if str in kinds:
            strings = [value for value in values if type(value) is str]
            self._strings.update(pa.array(strings, pa.string()))
        if int in kinds:
            self._update_integers(values, lines, file)
        # Deeper values have no type.
        if self._level > _MAX_LEVELS:
            return
        if list in kinds:
            items: list[Any] = []
            owners: list[int] = []
            for value, line in zip(values, lines, strict=True):
                if type(value) is list:
                    items += value
                    owners += [line] * len(value)
            if self._items is None:
                self._items = JsonScan(self._rules, level=self._level + 1)
            self._items.update(items, owners, file)
        if dict in kinds:
            rows = [row for row, value in enumerate(values) if type(value) is dict]
            objects = [values[row] for row in rows]
            self.update_members(objects, [lines[row] for row in rows], file, {})

    def update_members(
        self,
        objects: Sequence[dict[str, Any]],
        lines: Sequence[int],
        file: str,
        rules: dict[str, TextRules],
    ) -> None:
        """Update the inference with the members of objects."""
        names: dict[str, None] = {}
        for members in objects:
            if not members.keys() <= names.keys():
                names |= dict.fromkeys(members)
        for name in names:
            if name not in self.members:
                self.members[name] = JsonScan(rules.get(name, self._rules), level=self._level + 1)
            self.members[name].update([members.get(name) for members in objects], lines, file)

    def _update_integers(self, values: Sequence[Any], lines: Sequence[int], file: str) -> None:
        """Update the bounds, and the first integers that do not fit into float64 or 64 bits."""
        integers = [value for value in values if type(value) is int]
        self._low = min(self._low, min(integers))
        self._high = max(self._high, max(integers))
        # float64 represents all integers up to 2**53, so most batches need no loop.
        if max(self._high, -self._low) <= 2**53 or (self._inexact and self._wide):
            return
        for value, line in zip(values, lines, strict=True):
            if type(value) is not int:
                continue
            if self._inexact is None and not _is_exact(value):
                self._inexact = (file, line)
            if self._wide is None and not _LOW <= value <= _HIGH:
                self._wide = (file, line)

    @property
    def has_only_objects(self) -> bool:
        """Whether all values are objects or null."""
        return self._first.keys() - {type(None)} == {dict}

    def infer_type(self, table: TableName, path: str, column: str) -> pa.DataType:
        """Return the common type of all values at a path in a column.

        Raises:
            InvalidSourceFile: The values have several kinds, or fit no type. The message includes the
                lines.
        """
        kinds = self._first.keys() - {type(None)}
        if kinds == {int, float} and self._inexact is None:
            return pa.float64()
        if kinds == {int} and self._low >= _LOW and self._high <= _HIGH:
            return pa.int64()
        if kinds == {int} and self._low >= 0 and self._high <= _UNSIGNED:
            return pa.uint64()
        if len(kinds) == 1 and kinds != {int}:
            (only,) = kinds
            return self._type_of_single_kind(only, table, path, column)
        if not kinds:
            return pa.string()
        raise table.invalid_file_error(
            f"column {path!r} has {self._kind_locations(kinds)}.",
            hint=f"{table.call(dtypes={column: _string_dtype(path)})} reads the values as strings",
        )

    def _type_of_single_kind(
        self, only: type, table: TableName, path: str, column: str
    ) -> pa.DataType:
        """Return the type of values that have a single JSON type."""
        if only is bool:
            return pa.bool_()
        if only is float:
            return pa.float64()
        if only is str:
            return arrow_type(self._strings.meaning)
        if self._level > _MAX_LEVELS:
            file, line = self._first[only]
            raise table.invalid_file_error(
                f"column {column!r} has values nested more than {_MAX_LEVELS} levels deep at {file} "
                f"line {line}.",
                hint=f"{table.call(dtypes={column: 'string'})} reads them as strings",
            )
        if only is list:
            items = self._items or JsonScan(self._rules)
            return pa.list_(pa.field("item", items.infer_type(table, f"{path}[]", column)))
        fields = [
            pa.field(name, scan.infer_type(table, f"{path}.{name}", column))
            for name, scan in self.members.items()
        ]
        if len(fields) > _MANY_NAMES or not fields:
            raise table.invalid_file_error(
                f"column {path!r} has objects with {len(fields)} names, which cannot be a struct.",
                hint=f"{table.call(dtypes={column: 'string'})} reads them as strings",
            )
        return pa.struct(fields)

    @property
    def meaning(self) -> str:
        """The inferred type of strings, or "" if the values are not strings."""
        is_text = self._first.keys() - {type(None)} == {str}
        return self._strings.meaning if is_text else ""

    def _kind_locations(self, kinds: set[type]) -> str:
        """Describe conflicting types and where they occur first."""
        if kinds <= {int, float}:
            first_location, description = self._wide, "an integer beyond 64 bits"
            if float in kinds:
                first_location, description = (
                    self._inexact,
                    "floats, and an integer that float64 cannot represent,",
                )
            file, line = first_location or self._first[int]
            return f"{description} at {file} line {line}"
        kinds_with_lines = [
            f"{json_type_name(json_type())} at {file} line {line}"
            for json_type, (file, line) in self._first.items()
            if json_type in kinds
        ]
        return " and ".join(kinds_with_lines)


def _is_exact(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _string_dtype(path: str) -> str:
    """Return the type name in ``dtypes`` that reads the values at a path as strings."""
    depth = path.count("[]") if "." not in path else 0
    return "list<" * depth + "string" + ">" * depth
