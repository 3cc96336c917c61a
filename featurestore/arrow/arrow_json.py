"""Arrow schemas as readable JSON, for specs, plans and manifests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import UnsupportedType, listing

_PLAIN_TYPES = (
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    pa.null(),
)
_TYPES_BY_NAME = {str(kind): kind for kind in _PLAIN_TYPES}
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
# Short names that users may write.
_SHORT_NAMES = {
    "bytes": pa.binary(),
    "date": pa.date32(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "text": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def type_to_json(kind: pa.DataType) -> Any:
    """Return a feature type as JSON: a name, or an object for parametric types.

    >>> type_to_json(pa.list_(pa.float32(), 4))
    {'fixed_size_list': 'float', 'size': 4}
    """
    if str(kind) in _TYPES_BY_NAME:
        return str(kind)
    if pat.is_decimal128(kind):
        return {"decimal": [kind.precision, kind.scale]}
    if pat.is_fixed_size_list(kind):
        return {"fixed_size_list": type_to_json(kind.value_type), "size": kind.list_size}
    if pat.is_list(kind):
        return {"list": type_to_json(kind.value_type)}
    if pat.is_struct(kind):
        return {"struct": schema_to_json(map(kind.field, range(kind.num_fields)))}
    raise TypeError(f"{kind} is not a feature type")


def type_from_json(data: Any) -> pa.DataType:
    """Return the feature type that ``type_to_json`` wrote.

    >>> type_from_json({'decimal': [10, 2]})
    Decimal128Type(decimal128(10, 2))
    """
    if isinstance(data, str):
        return _TYPES_BY_NAME[data]
    if "decimal" in data:
        return pa.decimal128(*data["decimal"])
    if "fixed_size_list" in data:
        return pa.list_(pa.field("item", type_from_json(data["fixed_size_list"])), data["size"])
    if "list" in data:
        return pa.list_(pa.field("item", type_from_json(data["list"])))
    return pa.struct(list(schema_from_json(data["struct"])))


def schema_to_json(schema: Iterable[pa.Field]) -> list[dict[str, Any]]:
    """Return the fields of a schema of feature types as JSON."""
    return [{"name": field.name, "type": type_to_json(field.type)} for field in schema]


def schema_from_json(data: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Return the schema that ``schema_to_json`` wrote."""
    return pa.schema([pa.field(each["name"], type_from_json(each["type"])) for each in data])


def parse_type(type_or_name: Any, *, column: str) -> pa.DataType:
    """Parse a type: an Arrow type, or a name such as "timestamp".

    Raises:
        UnsupportedType: The name is unknown.

    >>> parse_type("list<double>", column="scores"), parse_type("timestamp", column="at")
    (ListType(list<item: double>), TimestampType(timestamp[us, tz=UTC]))
    """
    if isinstance(type_or_name, pa.DataType):
        return type_or_name
    types_by_name = {**_TYPES_BY_NAME, **_SHORT_NAMES}
    del types_by_name["null"]
    if isinstance(type_or_name, str):
        text = type_or_name.strip()
        if text.startswith("list<") and text.endswith(">"):
            return pa.list_(pa.field("item", parse_type(text[5:-1], column=column)))
        if text in types_by_name:
            return types_by_name[text]
        decimal_match = _DECIMAL.fullmatch(text)
        if (
            decimal_match is not None
            and 0 < int(decimal_match[1]) <= 38
            and int(decimal_match[2]) <= int(decimal_match[1])
        ):
            return pa.decimal128(int(decimal_match[1]), int(decimal_match[2]))
    raise UnsupportedType(
        f"Column {column!r}: there is no type {type_or_name!r}.",
        hint=f"a type of Arrow, or one of {listing(sorted(types_by_name), limit=50)}, decimal(38, 10), "
        "list<...>",
    )
