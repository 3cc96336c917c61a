"""Kinds and roles of columns: the kind follows from the type, the role from the group's spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.roles import MODEL_ROLES, Role
from featurestore.model.statistics import Kind

# A heatmap of more columns is unreadable, and the result contains both matrices, a number per pair.
MAX_CORRELATED = 1000
# Pairs grow with the square of the columns. Measured: with 300 columns the products took as long as
# all other counts, and with a thousand they were 60 MB of state.
_MAX_PAIRED = 64


@dataclass(frozen=True)
class CountedColumn:
    """A column with its kind and role."""

    name: str
    type: pa.DataType
    kind: Kind
    role: Role = "feature"

    @property
    def measured(self) -> bool:
        """Whether the values have a mean: numbers, booleans and times."""
        return self.kind in ("number", "boolean", "time")

    @property
    def has_length(self) -> bool:
        """Whether the values have a length."""
        return self.kind in ("text", "binary", "list")


def counted_columns(
    table: FeatureGroupSpec | pa.Schema, *, roles: Mapping[str, Role] | None = None
) -> tuple[CountedColumn, ...]:
    """Return the columns of a group or of a schema; ``roles`` are those of a training dataset.

    >>> [each.kind for each in counted_columns(pa.schema([("a", pa.int8()), ("b", pa.string())]))]
    ['number', 'text']
    """
    column_roles: dict[str, Role] = dict(roles or {})
    schema: pa.Schema = table
    if isinstance(table, FeatureGroupSpec):
        schema = table.schema
        column_roles = dict.fromkeys(table.primary_key, "key")
        for name in (table.event_time, table.created_time):
            if name is not None:
                column_roles[name] = "time"
    columns = []
    for field in schema:
        role = column_roles.get(field.name, "feature")
        columns.append(CountedColumn(field.name, field.type, column_kind(field.type), role))
    return tuple(columns)


def correlated_columns(columns: tuple[CountedColumn, ...]) -> tuple[CountedColumn, ...]:
    """Return the correlated columns: the first numeric and boolean features and labels."""
    numeric = [
        column
        for column in columns
        if column.role in MODEL_ROLES and column.kind in ("number", "boolean")
    ]
    return tuple(numeric[:MAX_CORRELATED])


def paired_columns(columns: tuple[CountedColumn, ...]) -> tuple[CountedColumn, ...]:
    """Return the columns whose pairs are counted over all rows; empty if there are too many.

    Correlations are computed from the sample then.
    """
    correlated = correlated_columns(columns)
    if 2 <= len(correlated) <= _MAX_PAIRED:
        return correlated
    return ()


def column_kind(kind: pa.DataType) -> Kind:
    """Return the kind of a feature type.

    >>> column_kind(pa.float32()), column_kind(pa.date32())
    ('number', 'time')
    """
    if pat.is_boolean(kind):
        return "boolean"
    if pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind):
        return "number"
    if pat.is_date(kind) or pat.is_timestamp(kind):
        return "time"
    if pat.is_string(kind) or pat.is_large_string(kind):
        return "text"
    if pat.is_binary(kind) or pat.is_large_binary(kind):
        return "binary"
    if pat.is_list(kind) or pat.is_fixed_size_list(kind) or pat.is_large_list(kind):
        return "list"
    return "struct"
