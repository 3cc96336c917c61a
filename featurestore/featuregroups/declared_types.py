"""Declared column types of a new group: ``dtypes=`` and ``decimal_type=``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.cast_lines import cast_line
from featurestore.arrow.fitting import can_fit
from featurestore.arrow.schemas import parse_type
from featurestore.arrow.types import feature_type, is_nested
from featurestore.errors import InvalidArgument, UnsupportedType, did_you_mean, listing
from featurestore.featuregroups.conform import Fit
from featurestore.plugins.engine import Engine, Relation

# An Arrow type, or its name such as "decimal(20, 4)".
TypeName: TypeAlias = str | pa.DataType


@dataclass(frozen=True)
class DeclaredTypes:
    """The declared types of columns by name, and the type of all other decimals."""

    columns: Mapping[str, pa.DataType] = field(default_factory=dict)
    decimal: pa.DataType | None = None

    def schema(self, batch_schema: pa.Schema, *, library: str) -> pa.Schema:
        """Return the schema of a dataframe's feature types with the declared types.

        Raises:
            InvalidArgument: A name is not a column, or a column cannot have its type.
        """
        for name in self.columns:
            if name not in batch_schema.names:
                raise InvalidArgument(
                    f"dtypes names {name!r}, which is not a column. There are "
                    f"{listing(batch_schema.names, limit=50)}.",
                    hint=did_you_mean(name, batch_schema.names, write="dtypes={{{!r}: '...'}}"),
                )
        fields = []
        for each in batch_schema:
            column_type = self.columns.get(each.name)
            if column_type is None:
                column_type = self._with_decimals(each.type)
            if not can_fit(each.type, column_type):
                line = cast_line(library, each.name, each.type, column_type)
                raise InvalidArgument(
                    f"Column {each.name!r} is {each.type}, of which dtypes= does not make {column_type}: "
                    "values are never parsed or rounded.",
                    hint=line or f"cast the column {each.name!r}",
                )
            fields.append(each.with_type(column_type))
        return pa.schema(fields)

    def _with_decimals(self, kind: pa.DataType) -> pa.DataType:
        """Return a type with its decimals replaced by the declared ones."""
        if self.decimal is None:
            return kind
        if pat.is_decimal(kind):
            return self.decimal
        if is_nested(kind) and not pat.is_struct(kind):
            item = pa.field("item", self._with_decimals(kind.value_type))
            return pa.list_(item, kind.list_size if pat.is_fixed_size_list(kind) else -1)
        return kind


def declared_types(
    dtypes: Mapping[str, TypeName] | None, decimal_type: TypeName | None
) -> DeclaredTypes:
    """Return the types that ``dtypes=`` and ``decimal_type=`` declare.

    Raises:
        UnsupportedType: A type is unknown, or cannot be stored.

    >>> declared_types({"price": "decimal(20, 4)"}, None).columns
    {'price': Decimal128Type(decimal128(20, 4))}
    """
    if not isinstance(dtypes, Mapping | None):
        raise InvalidArgument(
            f"dtypes={dtypes!r} is not a mapping.", hint="dtypes={'price': 'decimal(20, 4)'}"
        )
    columns = {}
    for name, type_name in (dtypes or {}).items():
        columns[name] = _storable_type(
            parse_type(type_name, column=name), f"dtypes={{{name!r}: ...}}"
        )
    decimal = None
    if decimal_type is not None:
        decimal = _storable_type(parse_type(decimal_type, column="decimal_type"), "decimal_type")
        if not pat.is_decimal(decimal):
            raise UnsupportedType(
                f"decimal_type={decimal_type!r} is not a type of decimals.",
                hint="decimal_type='decimal(20, 4)'",
            )
    return DeclaredTypes(columns, decimal)


def typed_relation(
    rows: Relation, declared: DeclaredTypes, *, name: str, engine: Engine, library: str
) -> Relation:
    """Return rows with the declared types; reading them raises if a value does not fit."""
    schema = declared.schema(rows.schema, library=library)
    if schema == rows.schema:
        return rows
    return engine.map_batches(rows, _fit(schema, name, library), schema=schema)


def typed_reader(
    rows: pa.RecordBatchReader, declared: DeclaredTypes, *, name: str, library: str
) -> pa.RecordBatchReader:
    """Return a stream with the declared types."""
    schema = declared.schema(rows.schema, library=library)
    if schema == rows.schema:
        return rows
    return pa.RecordBatchReader.from_batches(schema, _fitted(rows, _fit(schema, name, library)))


def _fitted(batches: Iterable[pa.RecordBatch], fit: Fit) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield fit(batch)


def _fit(schema: pa.Schema, name: str, library: str) -> Fit:
    title = f"the declared types of feature group {name!r}"
    return Fit(schema, title, library, fallback_hint="declare a wider type in dtypes=")


def _storable_type(kind: pa.DataType, argument: str) -> Any:
    stored_type = feature_type(kind)
    if stored_type is None:
        raise UnsupportedType(
            f"{argument}: {kind} cannot be stored.",
            hint="decimals have at most 38 digits; the names are those of Arrow",
        )
    return stored_type
