"""What is counted of a column: its kind by type, its role by the definition of the group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.roles import MODEL_ROLES, Role
from featurestore.model.statistics import Kind

# A picture of more cannot be read, and both matrices stand in the result, a number a pair.
MOST_CORRELATED = 1000
# Pairs grow with the square of the columns: of 300, the products of all rows took as long as all
# else that is counted, and of a thousand they were 60 MB of state.
_MOST_PAIRED = 64


@dataclass(frozen=True)
class CountedColumn:
    """A column with its kind and role."""

    name: str
    type: pa.DataType
    kind: Kind
    role: Role = "feature"

    @property
    def measured(self) -> bool:
        """Whether its values are numbers or times, which have a mean."""
        return self.kind in ("number", "boolean", "time")

    @property
    def has_length(self) -> bool:
        """Whether its values have a length."""
        return self.kind in ("text", "binary", "list")


def counted_columns(
    table: FeatureGroupSpec | pa.Schema, *, roles: Mapping[str, Role] | None = None
) -> tuple[CountedColumn, ...]:
    """Return the columns of a group or of a bare schema; ``roles`` are those of a dataset.

    >>> [each.kind for each in counted_columns(pa.schema([("a", pa.int8()), ("b", pa.string())]))]
    ['number', 'text']
    """
    known: dict[str, Role] = dict(roles or {})
    schema: pa.Schema = table
    if isinstance(table, FeatureGroupSpec):
        schema = table.schema
        known = dict.fromkeys(table.primary_key, "key")
        for name in (table.event_time, table.created_time):
            if name is not None:
                known[name] = "time"
    columns = []
    for field in schema:
        role = known.get(field.name, "feature")
        columns.append(CountedColumn(field.name, field.type, kind_of(field.type), role))
    return tuple(columns)


def correlated_columns(columns: tuple[CountedColumn, ...]) -> tuple[CountedColumn, ...]:
    """Return the features and labels that correlations are computed over.

    The first ``MOST_CORRELATED`` numbers and booleans.
    """
    numeric = []
    for column in columns:
        if column.role in MODEL_ROLES and column.kind in ("number", "boolean"):
            numeric.append(column)
    return tuple(numeric[:MOST_CORRELATED])


def paired_columns(columns: tuple[CountedColumn, ...]) -> tuple[CountedColumn, ...]:
    """Return the columns whose pairs are counted over all rows; none where pairs are too many.

    Correlations come of the sample then.
    """
    correlated = correlated_columns(columns)
    if 2 <= len(correlated) <= _MOST_PAIRED:
        return correlated
    return ()


def kind_of(kind: pa.DataType) -> Kind:
    """Return the kind of a feature type.

    >>> kind_of(pa.float32()), kind_of(pa.date32())
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
