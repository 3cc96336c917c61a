"""Untyped columns: columns of nulls, empty lists, or structs of these.

A batch without values does not determine its types: Arrow infers ``null``, ``list<null>``, and
structs with such fields. If the column matches a typed column (of a group, a join key, a view), it
adopts that type. Otherwise it remains a column of nulls, which engines represent as booleans
(``types.storage_type``). Operations that need the type, such as creating a group or writing a file,
refuse the column (``refuse_untyped``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.column_names import quoted
from featurestore.arrow.hints import cast_hint, format_type
from featurestore.arrow.types import is_list_type, is_nested, is_untyped
from featurestore.errors import UnsupportedType

# SQL type names of DuckDB. Nulls become numbers, since every engine can cast nulls to numbers.
_SQL_TYPES = {
    "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT",
    "uint8": "UTINYINT", "uint16": "USMALLINT", "uint32": "UINTEGER", "uint64": "UBIGINT",
    "float": "FLOAT", "double": "DOUBLE", "string": "VARCHAR", "bool": "BOOLEAN",
    "null": "DOUBLE", "binary": "BLOB", "date32[day]": "DATE",
    "timestamp[us, tz=UTC]": "TIMESTAMPTZ",
}  # fmt: skip


def replace_null_types(dtype: pa.DataType, target: pa.DataType) -> pa.DataType:
    """Return a type whose nulls are replaced by the corresponding types of ``target``.

    >>> replace_null_types(pa.list_(pa.null()), pa.list_(pa.string()))
    ListType(list<item: string>)
    """
    if pat.is_null(dtype):
        return target
    if not is_untyped(dtype) or not is_nested(target):
        return dtype
    if pat.is_struct(dtype) and pat.is_struct(target):
        return _adopt_struct(dtype, target)
    if not (is_list_type(dtype) and is_list_type(target)):
        return dtype
    item = pa.field("item", replace_null_types(dtype.value_type, target.value_type))
    if pat.is_fixed_size_list(dtype):
        return pa.list_(item, dtype.list_size)
    return pa.list_(item)


def adopt_types(schema: pa.Schema, like: pa.Schema | Mapping[str, pa.DataType]) -> pa.Schema:
    """Return a schema whose untyped columns have the types of the same columns in ``like``."""
    types_by_name = like
    if isinstance(like, pa.Schema):
        types_by_name = dict(zip(like.names, like.types, strict=True))
    fields = []
    for field in schema:
        if field.name in types_by_name:
            field = field.with_type(replace_null_types(field.type, types_by_name[field.name]))
        fields.append(field)
    return pa.schema(fields)


def untyped_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the untyped columns.

    >>> untyped_columns(pa.schema([("a", pa.null()), ("b", pa.int8())]))
    ['a']
    """
    return [field.name for field in schema if is_untyped(field.type)]


def refuse_untyped(schema: pa.Schema, *, subject: str, hint: Callable[[pa.Schema], str]) -> None:
    """Refuse untyped columns.

    Args:
        schema: Feature types.
        subject: The owner of the columns, for the message: "The query".
        hint: Returns the code that types the untyped columns.

    Raises:
        UnsupportedType: Lists every untyped column.
    """
    names = untyped_columns(schema)
    if not names:
        return
    columns = pa.schema([schema.field(name) for name in names])
    column_list = ", ".join(f"{field.name!r} ({field.type})" for field in columns)
    raise UnsupportedType(
        f"{subject} has columns without a type, since no row has a value in them: {column_list}.",
        hint=hint(columns),
    )


def format_dtypes(columns: pa.Schema) -> str:
    """Return suggested types for untyped columns, in the syntax of ``dtypes=``.

    >>> format_dtypes(pa.schema([("tags", pa.list_(pa.null()))]))
    "dtypes={'tags': 'list<string>'}"
    """
    entries = [f"{field.name!r}: {_suggest_type(field.type)}" for field in columns]
    return f"dtypes={{{', '.join(entries)}}}"


def format_schema(schema: pa.Schema) -> str:
    """Return a schema as Python code, with strings in place of nulls.

    >>> format_schema(pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.null()))]))
    "pa.schema([('id', pa.int64()), ('tags', pa.list_(pa.string()))])"
    """
    fields = [f"({field.name!r}, {_type_code(field.type)})" for field in schema]
    return f"pa.schema([{', '.join(fields)}])"


def typing_hint(columns: pa.Schema) -> str:
    """Return the line that types the untyped columns of a dataframe.

    >>> typing_hint(pa.schema([("a", pa.null()), ("tags", pa.list_(pa.null()))]))
    "df = featurestore.cast(df, {'a': 'float64', 'tags': 'list<string>'})"
    """
    targets = {}
    for field in columns:
        targets[field.name] = "float64" if pat.is_null(field.type) else format_type(field.type)
    return cast_hint(targets)


def format_sql_casts(columns: pa.Schema) -> str:
    """Return SQL that selects columns, with untyped columns as a type that every engine can cast.

    >>> format_sql_casts(pa.schema([("user", pa.string()), ("tags", pa.list_(pa.null()))]))
    '"user", cast("tags" as DOUBLE[]) as "tags"'
    """
    expressions = []
    for field in columns:
        name = quoted(field.name)
        if is_untyped(field.type):
            name = f"cast({name} as {_sql_type(field.type)}) as {name}"
        expressions.append(name)
    return ", ".join(expressions)


def _suggest_type(dtype: pa.DataType) -> str:
    """Return a type as Python code, with strings in place of nulls."""
    text = _dtype_name(dtype)
    if text is not None:
        return repr(text)
    return _type_code(dtype)


def _dtype_name(dtype: pa.DataType) -> str | None:
    """Return the ``dtypes=`` name of a type, or None if it has none."""
    if pat.is_null(dtype):
        return "string"
    if pat.is_list(dtype):
        inner = _dtype_name(dtype.value_type)
        return None if inner is None else f"list<{inner}>"
    return None


def _type_code(dtype: pa.DataType) -> str:
    """Return a type as Python code."""
    if pat.is_null(dtype):
        return "pa.string()"
    if pat.is_struct(dtype):
        fields = map(dtype.field, range(dtype.num_fields))
        fields_code = [f"({field.name!r}, {_type_code(field.type)})" for field in fields]
        return f"pa.struct([{', '.join(fields_code)}])"
    if pat.is_fixed_size_list(dtype):
        return f"pa.list_({_type_code(dtype.value_type)}, {dtype.list_size})"
    if pat.is_list(dtype):
        return f"pa.list_({_type_code(dtype.value_type)})"
    if pat.is_decimal(dtype):
        return f"pa.decimal128({dtype.precision}, {dtype.scale})"
    if pat.is_timestamp(dtype):
        return f"pa.timestamp({dtype.unit!r}, {dtype.tz!r})"
    names = {"double": "float64", "float": "float32", "bool": "bool_"}
    return f"pa.{names.get(str(dtype), str(dtype).split('[')[0])}()"


def _sql_type(dtype: pa.DataType) -> str:
    """Return the DuckDB name of a type, with numbers in place of nulls."""
    if is_nested(dtype) and not pat.is_struct(dtype):
        return f"{_sql_type(dtype.value_type)}[]"
    if pat.is_struct(dtype):
        fields = map(dtype.field, range(dtype.num_fields))
        fields_sql = [f"{quoted(field.name)} {_sql_type(field.type)}" for field in fields]
        return f"STRUCT({', '.join(fields_sql)})"
    if pat.is_decimal(dtype):
        return f"DECIMAL({dtype.precision}, {dtype.scale})"
    return _SQL_TYPES.get(str(dtype), "DOUBLE")


def _adopt_struct(dtype: pa.StructType, target: pa.StructType) -> pa.DataType:
    """Return a struct type whose null fields have the types of ``target``."""
    target_types = {field.name: field.type for field in map(target.field, range(target.num_fields))}
    fields = []
    for field in map(dtype.field, range(dtype.num_fields)):
        if field.name in target_types:
            field = field.with_type(replace_null_types(field.type, target_types[field.name]))
        fields.append(field)
    return pa.struct(fields)
