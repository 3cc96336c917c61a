"""Values in JSON, read by DuckDB: a batch at a time, each record judged by itself.

``from_json`` casts what it can and drops the rest silently, so the types in the text are asked for
as well: a value is taken where its type says the same, and is a reason otherwise. Keys that the
schema does not have are left alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidJob
from featurestore.model.names import check_feature_names

_local = threading.local()
_INTEGERS = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
}
_WHOLE = ("BIGINT", "UBIGINT")
_NUMBERS = (*_WHOLE, "DOUBLE")


@dataclass(frozen=True)
class _Leaf:
    """A value at a path: what DuckDB is to make of it, and the types of JSON that it may have."""

    path: tuple[str, ...]
    native: str
    taken: tuple[str, ...]
    feature: str
    in_list: bool = False


@dataclass(frozen=True)
class JsonValues:
    """Objects of JSON with the columns of a schema."""

    schema: pa.Schema

    def __post_init__(self) -> None:
        list(_leaves(self.schema))

    def decode(self, values: pa.Array) -> tuple[Mapping[str, pa.Array], pa.Array]:
        from featurestore_connectors.kafka.decoding import as_texts

        texts, broken = as_texts(values)
        connection = _connection()
        connection.register("records", pa.table({"value": texts, "broken": broken}))
        try:
            found = _found(connection, self.schema)
        finally:
            connection.unregister("records")
        columns = {}
        for number, field in enumerate(self.schema):
            columns[field.name] = _array(found.column(number)).cast(field.type)
        return columns, _array(found.column("reason"))


def _found(connection: Any, schema: pa.Schema) -> pa.Table:
    """Return the columns of all records; those of a batch without broken ones are parsed less often."""
    import duckdb

    try:
        found = connection.sql(_query(schema, all_valid=True)).to_arrow_table()
    except duckdb.Error:
        found = connection.sql(_query(schema, all_valid=False)).to_arrow_table()
    return found.combine_chunks()


def _array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _connection() -> Any:
    """Return a connection of this thread, which reads nothing but what it is given."""
    import duckdb

    held = getattr(_local, "connection", None)
    if held is None:
        held = duckdb.connect(config={"threads": 1, "enable_external_access": "false"})
        held.execute("SET TimeZone = 'UTC'")
        _local.connection = held
    return held


def _leaves(schema: Sequence[pa.Field], above: tuple[str, ...] = ()) -> Iterator[_Leaf]:
    """Yield every value that a schema speaks of.

    Raises:
        InvalidJob: A column is of a type that JSON does not hold without loss.
    """
    check_feature_names([field.name for field in schema])
    for field in schema:
        path, kind = (*above, field.name), field.type
        if pat.is_struct(kind):
            yield from _leaves([kind.field(n) for n in range(kind.num_fields)], path)
        elif pat.is_list(kind):
            yield _leaf(path, kind.value_type, in_list=True)
        else:
            yield _leaf(path, kind)


def _leaf(path: tuple[str, ...], kind: pa.DataType, *, in_list: bool = False) -> _Leaf:
    native = ""
    taken: tuple[str, ...] = ("VARCHAR",)
    if kind in _INTEGERS:
        native, taken = _INTEGERS[kind], _WHOLE
    elif pat.is_floating(kind):
        native, taken = ("FLOAT" if kind == pa.float32() else "DOUBLE"), _NUMBERS
    elif pat.is_boolean(kind):
        native, taken = "BOOLEAN", ("BOOLEAN",)
    elif pat.is_string(kind):
        native = "VARCHAR"
    elif pat.is_timestamp(kind):
        native = "TIMESTAMPTZ"
    elif pat.is_date(kind):
        native = "DATE"
    if not native:
        shown = ".".join(path)
        raise InvalidJob(
            f"Column {shown!r} of type {kind} cannot be read from JSON without loss.",
            hint=f'"{path[0]}": "string", or "double"; format="avro" knows more types',
        )
    return _Leaf(path, native, taken, str(kind), in_list)


def _query(schema: pa.Schema, *, all_valid: bool) -> str:
    """Return the query over ``records``; only names that were checked are in it.

    ``all_valid`` asks no record whether it is JSON: one that is not fails the query.
    """
    valid = "value IS NOT NULL" if all_valid else "value IS NOT NULL AND json_valid(value)"
    leaves = list(_leaves(schema))
    plain = [leaf for leaf in leaves if not leaf.in_list]
    lists = [leaf for leaf in leaves if leaf.in_list]
    paths = ", ".join(["'$'", *(f"'{_path(leaf)}'" for leaf in leaves)])
    kinds = [f"CASE WHEN valid THEN json_type(value, [{paths}]) END AS kinds"]
    for number, leaf in enumerate(lists):
        kinds.append(
            f"CASE WHEN valid THEN json_type(value, '{_path(leaf)}[*]') END AS items{number}"
        )
    whens = [
        "WHEN broken THEN 'the value is no UTF-8 text'",
        "WHEN value IS NULL THEN 'the record has no value'",
        "WHEN NOT valid THEN 'the value is no JSON'",
        "WHEN kinds[1] <> 'OBJECT' THEN 'the value is no JSON object'",
    ]
    for leaf in plain:
        whens.append(_when(leaf, f"kinds[{leaves.index(leaf) + 2}]"))
    for number, leaf in enumerate(lists):
        whens += _whens_of_list(leaf, f"kinds[{leaves.index(leaf) + 2}]", f"items{number}")
    columns = []
    for number, field in enumerate(schema):
        columns.append(f'"row"."{field.name}" AS c{number}')
    return f"""
        WITH given AS (
            SELECT value, broken, {valid} AS valid FROM records
        ), parsed AS (
            SELECT value, broken, valid,
                CASE WHEN valid THEN from_json(value, '{_structure(schema)}') END AS "row",
                {", ".join(kinds)}
            FROM given
        )
        SELECT {", ".join(columns)}, CASE {" ".join(whens)} END AS reason FROM parsed
    """


def _when(leaf: _Leaf, kind: str) -> str:
    taken = ", ".join(f"'{each}'" for each in leaf.taken)
    value = '"row".' + ".".join(f'"{name}"' for name in leaf.path)
    wrong = f"({kind} NOT IN ({taken}) OR {value} IS NULL)"
    text = f"'{'.'.join(leaf.path)} is ' || {kind} || ', which is no {leaf.feature}'"
    return f"WHEN {kind} IS NOT NULL AND {kind} <> 'NULL' AND {wrong} THEN {text}"


def _whens_of_list(leaf: _Leaf, kind: str, items: str) -> list[str]:
    """Return what is wrong with a list, or with a value in it."""
    shown = ".".join(leaf.path)
    value = '"row".' + ".".join(f'"{name}"' for name in leaf.path)
    allowed = ", ".join(f"'{each}'" for each in (*leaf.taken, "NULL"))
    nulls = f"len(list_filter({items}, lambda each: each = 'NULL'))"
    lost = f"len(list_filter({value}, lambda each: each IS NULL)) <> {nulls}"
    return [
        f"WHEN {kind} NOT IN ('ARRAY', 'NULL') THEN '{shown} is ' || {kind} || ', which is no list'",
        f"WHEN NOT list_has_all([{allowed}], {items}) OR ({kind} = 'ARRAY' AND {lost}) "
        f"THEN '{shown} holds a value that is no {leaf.feature}'",
    ]


def _path(leaf: _Leaf) -> str:
    return "$" + "".join(f'."{name}"' for name in leaf.path)


def _structure(schema: Sequence[pa.Field]) -> str:
    """Return a schema as DuckDB's structure of JSON."""
    parts = []
    for field in schema:
        kind = field.type
        if pat.is_struct(kind):
            told = _structure([kind.field(n) for n in range(kind.num_fields)])
        elif pat.is_list(kind):
            told = f'["{_leaf((field.name,), kind.value_type).native}"]'
        else:
            told = f'"{_leaf((field.name,), kind).native}"'
        parts.append(f'"{field.name}":{told}')
    return "{" + ",".join(parts) + "}"
