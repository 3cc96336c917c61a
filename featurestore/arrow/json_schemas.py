"""Conversion of JSON Schema to Arrow schemas, and validation of values by it.

=============================  =======================================================
schema of a value              column type
=============================  =======================================================
integer, number, boolean       int64, double, bool
string                         string; timestamp and date32 for these formats
array                          list
object with properties         struct
object of one type of values   list of structs with key and value, sorted by key
null and another type          the other type
=============================  =======================================================

A schema that has no such column, or a keyword that is not evaluated, is refused by name. Unknown keywords
and formats are annotations, by the specification. References are resolved only within the
schema: nothing is loaded.

https://json-schema.org/draft/2020-12/json-schema-validation
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from featurestore.arrow.column_names import check_feature_names
from featurestore.arrow.json_text import (
    JsonError,
    NumberText,
    json_type_name,
    parse_json,
    short_repr,
)
from featurestore.arrow.types import MAX_LEVELS, TIMESTAMP
from featurestore.errors import InvalidJob

MAX_TEXT_CHARACTERS = 1 << 20
# References may share schemas, so that a short text can declare many columns.
_MAX_COLUMNS = 10_000
# No column type has more digits.
_MAX_DIGITS = 40
_SCALARS = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}
_TIMES = {"date-time": TIMESTAMP, "date": pa.date32()}
_UNSUPPORTED = frozenset(
    {
        *("allOf", "not", "if", "then", "else", "extends", "disallow"),
        *("dependencies", "dependentSchemas", "dependentRequired"),
        *("patternProperties", "propertyNames", "minProperties", "maxProperties"),
        *("prefixItems", "additionalItems", "contains", "minContains", "maxContains"),
        *("uniqueItems", "unevaluatedItems", "unevaluatedProperties", "pattern"),
        *("$dynamicRef", "$recursiveRef"),
    }
)
# The keywords of ``_LIMITS`` and these are evaluated; all others do not change what is valid.
_STRUCTURE = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items"),
        *("anyOf", "oneOf", "$ref", "enum", "const"),
    }
)


def _number(value: Any) -> Decimal:
    try:
        return Decimal(value)
    except InvalidOperation:  # an exponent of many digits
        raise JsonError(f"{short_repr(value)} is out of range") from None


def _length(value: Any) -> int:
    return len(value)


_Limit = tuple[str, Callable[[Any, Decimal], bool]]
# Each keyword: the types of values that it restricts, and whether a value is valid.
_LIMITS: Mapping[str, _Limit] = {
    "minimum": ("number", lambda value, limit: _number(value) >= limit),
    "maximum": ("number", lambda value, limit: _number(value) <= limit),
    "exclusiveMinimum": ("number", lambda value, limit: _number(value) > limit),
    "exclusiveMaximum": ("number", lambda value, limit: _number(value) < limit),
    "minLength": ("string", lambda value, limit: _length(value) >= limit),
    "maxLength": ("string", lambda value, limit: _length(value) <= limit),
    "minItems": ("array", lambda value, limit: _length(value) >= limit),
    "maxItems": ("array", lambda value, limit: _length(value) <= limit),
}
_ASSERTIONS = _STRUCTURE | _UNSUPPORTED | _LIMITS.keys()


@dataclass(frozen=True)
class JsonNode:
    """A schema of one value: its type, and what is valid.

    ``json_type`` is a type of JSON Schema, or "map" for an object of one type of values.
    ``choices`` are the keys (``_comparable``) of ``enum`` and ``const``, or None.
    """

    json_type: str
    column_type: pa.DataType
    is_nullable: bool = False
    limits: Mapping[str, Decimal] = field(default_factory=dict)
    choices: frozenset[Any] | None = None
    properties: Mapping[str, JsonNode] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    is_closed: bool = False
    item: JsonNode | None = None

    def read(self, value: Any, path: str = "") -> Any:
        """Return a value of ``parse_json(..., exact=True)`` for its column, if it is valid.

        Properties that the schema does not name are omitted. Integers may have the form 1.0.

        Raises:
            JsonError: The value is invalid; the message has its path.
        """
        if value is None:
            if self.is_nullable:
                return None
            raise JsonError(f"{path or 'the value'} is null, which is not {self.json_type}")
        self._check(value, path)
        if self.json_type == "object":
            return self._read_object(value, path)
        if self.json_type == "array":
            assert self.item is not None
            return [self.item.read(item, f"{path}[]") for item in value]
        if self.json_type == "map":
            assert self.item is not None
            entries = {key: self.item.read(item, f"{path}[{key!r}]") for key, item in value.items()}
            return [{"key": key, "value": entries[key]} for key in sorted(entries)]
        if self.json_type == "integer":
            return int(_number(value))
        return value

    def _check(self, value: Any, path: str) -> None:
        if not _has_type(value, self.json_type):
            raise JsonError(
                f"{path or 'the value'} is {json_type_name(value)} ({short_repr(value)}), which is not "
                f"{self.json_type}"
            )
        for keyword, limit in self.limits.items():
            if not _LIMITS[keyword][1](value, limit):
                raise JsonError(f"{path} is {short_repr(value)}, and its {keyword} is {limit}")
        if self.choices is not None and _comparable(value) not in self.choices:
            raise JsonError(f"{path} is {short_repr(value)}, which is not in the enum of schema=")

    def _read_object(self, members: dict[str, Any], path: str) -> dict[str, Any]:
        prefix = f"{path}." if path else ""
        for name in self.required:
            if name not in members:
                raise JsonError(f"{prefix}{name} is required, and missing")
        if self.is_closed:
            unknown = [name for name in members if name not in self.properties]
            if unknown:
                raise JsonError(f"the name {short_repr(prefix + unknown[0])} is not in schema=")
        return {
            name: node.read(members[name], prefix + name)
            for name, node in self.properties.items()
            if name in members
        }


def _has_type(value: Any, json_type: str) -> bool:
    if json_type in ("integer", "number"):
        if not isinstance(value, NumberText):
            return False
        if json_type == "number":
            return True
        number = _number(value)
        return number.adjusted() < _MAX_DIGITS and number == number.to_integral_value()
    python_type = {"boolean": bool, "string": str, "array": list}.get(json_type, dict)
    return type(value) is python_type


def _comparable(value: Any) -> Any:
    """Return a key that is equal for equal JSON values: 1 equals 1.0, but not true.

    >>> _comparable(parse_json("1.0", exact=True)) == _comparable(parse_json("1", exact=True))
    True
    """
    if isinstance(value, NumberText):
        return "number", _number(value)
    return type(value).__name__, value


def schema_from_json_schema(text: str) -> pa.Schema:
    """Convert a JSON Schema of objects to an Arrow schema.

    Raises:
        InvalidJob: The text is not a schema, or a part has no column.

    >>> schema_from_json_schema('{"type": "object", "properties": {"id": {"type": "integer"}}}')
    id: int64
    """
    return pa.schema(list(parse_json_schema(text).column_type))


def parse_json_schema(text: str) -> JsonNode:
    """Parse a JSON Schema whose values are objects.

    Raises:
        InvalidJob: The text is not a schema, or a part has no column.
    """
    try:
        if len(text) > MAX_TEXT_CHARACTERS:
            raise JsonError(f"the schema has more than {MAX_TEXT_CHARACTERS:,} characters")
        schema = parse_json(text, exact=True)
        node = _SchemaParser(schema).parse(schema, [], ())
    except JsonError as error:
        raise _invalid_schema(f"schema= is not a JSON Schema: {error}") from error
    if node.json_type != "object":
        raise _invalid_schema(f"schema= is a JSON Schema of {node.json_type}, not of an object.")
    return node


def _invalid_schema(reason: str) -> InvalidJob:
    return InvalidJob(
        reason, hint='schema={"type": "object", "properties": {"id": {"type": "integer"}}}'
    )


class _SchemaParser:
    """Parses the parts of a schema, whose number is bounded."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._count = 0

    def parse(self, schema: Any, path: list[str], references: tuple[str, ...]) -> JsonNode:
        """Parse the schema at a path of property names, reached by references."""
        self._count += 1
        if self._count > _MAX_COLUMNS:
            raise _unsupported(path, f"one of more than {_MAX_COLUMNS:,} schemas")
        if len(path) > MAX_LEVELS:
            raise _unsupported(path, f"nested deeper than {MAX_LEVELS} levels")
        if not isinstance(schema, dict):
            raise _unsupported(path, f"{json_type_name(schema)}, not a schema with a type")
        for keyword in schema:
            if keyword in _UNSUPPORTED:
                raise InvalidJob(
                    f"{_subject(path)} has the keyword {keyword!r}, which is not evaluated.",
                    hint=f"remove {keyword!r} from schema=; expectations=[...] check the rows",
                )
        for keyword in ("$ref", "anyOf", "oneOf"):
            if keyword in schema:
                siblings = sorted(schema.keys() & _ASSERTIONS - {keyword})
                # Drafts differ in whether such keywords count.
                if siblings:
                    raise _unsupported(path, f"a schema with {keyword} and {siblings[0]}")
                if keyword == "$ref":
                    return self._parse_reference(schema[keyword], path, references)
                return self._parse_union(keyword, schema[keyword], path, references)
        return self._parse_type(schema, path, references)

    def _parse_reference(
        self, reference: Any, path: list[str], references: tuple[str, ...]
    ) -> JsonNode:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise _unsupported(path, f"a reference to another schema ({short_repr(reference)})")
        if reference in references:
            raise _unsupported(path, f"a recursive schema ({short_repr(reference)})")
        target = self._schema
        for escaped in unquote(reference[1:]).split("/")[1:]:
            name = escaped.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or name not in target:
                raise _unsupported(path, f"a reference without a target ({short_repr(reference)})")
            target = target[name]
        if reference != "#" and not reference.startswith("#/"):
            raise _unsupported(path, f"a reference to an anchor ({short_repr(reference)})")
        return self.parse(target, path, (*references, reference))

    def _parse_union(
        self, keyword: str, branches: Any, path: list[str], references: tuple[str, ...]
    ) -> JsonNode:
        """Parse a union of null and another type."""
        branches = branches if isinstance(branches, list) else []
        types = [branch for branch in branches if not _is_null(branch)]
        if len(types) != 1:
            raise _unsupported(path, "a union of several types")
        node = self.parse(types[0], path, references)
        null_count = len(branches) - 1 + node.is_nullable
        # With oneOf, a value that is valid in two branches is invalid.
        is_nullable = null_count == 1 if keyword == "oneOf" else null_count > 0
        return JsonNode(**{**vars(node), "is_nullable": is_nullable})

    def _parse_type(
        self, schema: dict[str, Any], path: list[str], references: tuple[str, ...]
    ) -> JsonNode:
        json_type, is_nullable = _type_of(schema, path)
        choices, has_null = _choices(schema, path)
        is_nullable = is_nullable and (choices is None or has_null)
        limits = _limits(schema, json_type, path)
        if json_type == "object":
            if choices is not None:
                raise _unsupported(path, "an object with enum or const")
            return self._parse_object(schema, path, references, is_nullable=is_nullable)
        if json_type == "array":
            if choices is not None:
                raise _unsupported(path, "an array with enum or const")
            item = self.parse(schema.get("items"), [*path, "[]"], references)
            column_type = pa.list_(pa.field("item", item.column_type))
            return JsonNode(json_type, column_type, is_nullable, limits, item=item)
        column_type = _SCALARS[json_type]
        if json_type == "string":
            column_type = _TIMES.get(str(schema.get("format")), column_type)
        return JsonNode(json_type, column_type, is_nullable, limits, choices)

    def _parse_object(
        self,
        schema: dict[str, Any],
        path: list[str],
        references: tuple[str, ...],
        *,
        is_nullable: bool,
    ) -> JsonNode:
        properties = schema.get("properties") or {}
        additional = schema.get("additionalProperties", True)
        required = schema.get("required") or []
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise _unsupported(path, "an object with invalid properties or required")
        if not isinstance(additional, bool) and not properties:
            if not path:
                raise _unsupported(path, "an object without properties")
            item = self.parse(additional, [*path, "{}"], references)
            entry = pa.struct([pa.field("key", pa.string()), pa.field("value", item.column_type)])
            column_type = pa.list_(pa.field("item", entry))
            return JsonNode("map", column_type, is_nullable, item=item)
        if not isinstance(additional, bool):
            raise _unsupported(path, "an object with properties and a schema of others")
        if not properties:
            raise _unsupported(path, "an object without properties")
        if path:  # top-level columns may be renamed
            check_feature_names(properties)
        nodes = {
            name: self.parse(value, [*path, name], references) for name, value in properties.items()
        }
        fields = [pa.field(name, node.column_type) for name, node in nodes.items()]
        return JsonNode(
            "object",
            pa.struct(fields),
            is_nullable,
            properties=nodes,
            required=tuple(required),
            is_closed=not additional,
        )


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and (
        schema.get("type") in ("null", ["null"])
        or ("const" in schema and schema["const"] is None)
        or schema.get("enum") == [None]
    )


def _type_of(schema: dict[str, Any], path: list[str]) -> tuple[str, bool]:
    """Return the type of values, and whether they may be null."""
    declared = schema.get("type")
    names = declared if isinstance(declared, list) else [declared]
    if declared is None:
        names = _implied_types(schema)
    value_types = [name for name in dict.fromkeys(names) if name != "null"]
    if set(value_types) == {"integer", "number"}:
        value_types = ["number"]
    if len(value_types) != 1:
        description = (
            "a union of several types" if len(value_types) > 1 else "a schema without a type"
        )
        raise _unsupported(path, description)
    if value_types[0] not in (*_SCALARS, "array", "object"):
        raise _unsupported(path, f"a schema of the type {short_repr(value_types[0])}")
    return value_types[0], "null" in names


def _implied_types(schema: dict[str, Any]) -> list[str]:
    """Return the types of a schema without ``type``, by its other keywords."""
    if "properties" in schema:
        return ["object"]
    if "items" in schema:
        return ["array"]
    names = {"NoneType": "null", "str": "string", "bool": "boolean", "number": "number"}
    values = [*_values(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    return [names[key] for key, _ in map(_comparable, values) if key in names]


def _values(enum: Any) -> list[Any]:
    return enum if isinstance(enum, list) else []


def _choices(schema: dict[str, Any], path: list[str]) -> tuple[frozenset[Any] | None, bool]:
    """Return the keys of the values of ``enum`` and ``const``, and whether null is one."""
    allowed = []
    if "enum" in schema:
        allowed.append(_values(schema["enum"]))
    if "const" in schema:
        allowed.append([schema["const"]])
    if not allowed:
        return None, False
    if any(isinstance(value, list | dict) for values in allowed for value in values):
        raise _unsupported(path, "an enum of arrays or objects")
    choices = frozenset.intersection(*[frozenset(map(_comparable, values)) for values in allowed])
    return choices, _comparable(None) in choices


def _limits(schema: dict[str, Any], json_type: str, path: list[str]) -> dict[str, Decimal]:
    """Return the limits that restrict values of a type, by keyword."""
    limits: dict[str, Decimal] = {}
    for keyword, (restricted, _) in _LIMITS.items():
        if keyword not in schema:
            continue
        if not isinstance(schema[keyword], NumberText):
            raise _unsupported(path, f"a schema whose {keyword} is not a number")
        if json_type == restricted or (json_type == "integer" and restricted == "number"):
            limits[keyword] = _number(schema[keyword])
    return limits


def _unsupported(path: list[str], description: str) -> InvalidJob:
    return InvalidJob(
        f"{_subject(path)} is {description}, which cannot be a column.",
        hint="remove it from schema=: properties of records that are not in schema= are ignored",
    )


def _subject(path: list[str]) -> str:
    name = ".".join(path).replace(".[]", "[]").replace(".{}", "{}")
    return f"Property {name!r} of the JSON Schema" if path else "The JSON Schema"
