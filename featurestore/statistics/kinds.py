"""What is counted of a column: its kind by type, its role by the definition of the group."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.statistics import Kind, Role

# Co-moments grow with the square of the columns: a thousand need 60 MB of state.
MOST_CORRELATED = 1000


@dataclass(frozen=True)
class CountedColumn:
    """A column with its kind and role."""

    name: str
    type: pa.DataType
    kind: Kind
    role: Role = "feature"

    @property
    def measured(self) -> bool:
        """Whether its values are numbers or moments, which have a mean."""
        return self.kind in ("number", "boolean", "time")

    @property
    def has_length(self) -> bool:
        """Whether its values have a length."""
        return self.kind in ("text", "binary", "list")


def counted_columns(table: FeatureGroupSpec | pa.Schema) -> tuple[CountedColumn, ...]:
    """Return the columns of a group or of a bare schema.

    >>> [each.kind for each in counted_columns(pa.schema([("a", pa.int8()), ("b", pa.string())]))]
    ['number', 'text']
    """
    if not isinstance(table, FeatureGroupSpec):
        return tuple(CountedColumn(each.name, each.type, kind_of(each.type)) for each in table)
    roles: dict[str, Role] = dict.fromkeys(table.primary_key, "key")
    roles |= dict.fromkeys(
        (name for name in (table.event_time, table.created_time) if name), "time"
    )
    return tuple(
        CountedColumn(each.name, each.type, kind_of(each.type), roles.get(each.name, "feature"))
        for each in table.schema
    )


def correlated_columns(columns: tuple[CountedColumn, ...]) -> tuple[CountedColumn, ...]:
    """Return the features that correlations are computed over: the first ``MOST_CORRELATED`` numbers and booleans."""
    return tuple(
        each for each in columns if each.role == "feature" and each.kind in ("number", "boolean")
    )[:MOST_CORRELATED]


def kind_of(kind: pa.DataType) -> Kind:
    """Return the kind of a feature type."""
    for matches, name in (
        (pat.is_boolean(kind), "boolean"),
        (pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind), "number"),
        (pat.is_date(kind) or pat.is_timestamp(kind), "time"),
        (pat.is_string(kind) or pat.is_large_string(kind), "text"),
        (pat.is_binary(kind) or pat.is_large_binary(kind), "binary"),
        (pat.is_list(kind) or pat.is_fixed_size_list(kind) or pat.is_large_list(kind), "list"),
    ):
        if matches:
            result: Kind = name  # type: ignore[assignment]
            return result
    return "struct"
