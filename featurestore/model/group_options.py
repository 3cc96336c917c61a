"""The options of a feature group: what a caller, a job or a project declares about its rows.

``featuregroups.definition.declare_group`` builds them from the arguments of a caller, and
``build_spec`` combines them with name, version and columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.fitting import can_fit
from featurestore.arrow.hints import exact_cast_hint, parse_type
from featurestore.arrow.types import feature_type, is_nested
from featurestore.errors import InvalidArgument, UnsupportedType, did_you_mean, listing
from featurestore.model.featuregroup import ExternalRows

# An Arrow type, or its name such as "decimal(20, 4)".
TypeName: TypeAlias = str | pa.DataType


@dataclass(frozen=True)
class DeclaredTypes:
    """Declared column types by name, and the declared type of all other decimal columns."""

    columns: Mapping[str, pa.DataType] = field(default_factory=dict)
    decimal: pa.DataType | None = None

    def schema(self, batch_schema: pa.Schema) -> pa.Schema:
        """Return the schema of a dataframe with the declared types applied.

        Raises:
            InvalidArgument: A name is not a column, or a column cannot be converted to its type.
        """
        if not self.columns and self.decimal is None:
            return batch_schema
        for name in self.columns:
            if name not in batch_schema.names:
                raise InvalidArgument(
                    f"Unknown column {name!r} in dtypes=. Available: "
                    f"{listing(batch_schema.names, limit=50)}.",
                    hint=did_you_mean(name, batch_schema.names, write="dtypes={{{!r}: '...'}}"),
                )
        fields = []
        for batch_field in batch_schema:
            column_type = self.columns.get(batch_field.name)
            if column_type is None:
                column_type = self._replace_decimals(batch_field.type)
            if not can_fit(batch_field.type, column_type):
                line = exact_cast_hint(batch_field.name, batch_field.type, column_type)
                raise InvalidArgument(
                    f"Column {batch_field.name!r} is {batch_field.type}, which dtypes= does not "
                    f"convert to {column_type}: values are never parsed or rounded.",
                    hint=line or f"cast the column {batch_field.name!r}",
                )
            fields.append(batch_field.with_type(column_type))
        return pa.schema(fields)

    def _replace_decimals(self, dtype: pa.DataType) -> pa.DataType:
        """Return the type with decimals replaced by the declared decimal type."""
        if self.decimal is None:
            return dtype
        if pat.is_decimal(dtype):
            return self.decimal
        if is_nested(dtype) and not pat.is_struct(dtype):
            item = pa.field("item", self._replace_decimals(dtype.value_type))
            return pa.list_(item, dtype.list_size if pat.is_fixed_size_list(dtype) else -1)
        return dtype


@dataclass(frozen=True)
class GroupOptions:
    """The options that define a group, without its name, version and columns.

    ``FeatureGroupSpec`` describes them. ``types`` are the declared column types, ``descriptions``
    those of features. ``job`` is the job that fills the group, ``external`` the location of rows
    that are not in the store.
    """

    primary_key: tuple[str, ...] = ()
    event_time: str | None = None
    created_time: str | None = None
    partition_by: tuple[str, ...] = ()
    ttl: timedelta | None = None
    expectations: tuple[Mapping[str, Any], ...] = ()
    validation: str = "strict"
    event_time_tolerance: timedelta = timedelta(0)
    statistics: bool = True
    compact: str | None = None
    iceberg: bool = False
    description: str = ""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    types: DeclaredTypes = field(default_factory=DeclaredTypes)
    job: str | None = None
    external: ExternalRows | None = None

    @property
    def times(self) -> tuple[str, ...]:
        """The event time and the created time, if declared."""
        return tuple(name for name in (self.event_time, self.created_time) if name is not None)


def check_primary_key(options: GroupOptions) -> None:
    """Reject a primary key that contains a time column of the group.

    Key columns are joined by equality, so a row would match only labels of exactly that time.
    """
    times = [name for name in options.times if name in options.primary_key]
    if not times:
        return
    entity_columns = [name for name in options.primary_key if name not in times]
    hint = f"primary_key={entity_columns!r}, event_time={options.event_time!r}"
    if not entity_columns:
        hint = f"primary_key={times!r} without event_time= joins rows with equal {times[0]!r}"
    raise InvalidArgument(
        f"primary_key contains {listing(times)}, a time of the group. Key and times already "
        "identify a row; a time in the key would be joined by equality, not as of the label time.",
        hint=hint,
    )


def declared_types(
    dtypes: Mapping[str, TypeName] | None, decimal_type: TypeName | None = None
) -> DeclaredTypes:
    """Return the types declared by the arguments ``dtypes`` and ``decimal_type``.

    Raises:
        UnsupportedType: A type is unknown or cannot be stored.

    >>> declared_types({"price": "decimal(20, 4)"}).columns
    {'price': Decimal128Type(decimal128(20, 4))}
    """
    if not isinstance(dtypes, Mapping | None):
        raise InvalidArgument(
            f"dtypes={dtypes!r} is not a mapping.", hint="dtypes={'price': 'decimal(20, 4)'}"
        )
    columns = {
        name: _storable_type(type_name, name, f"dtypes={{{name!r}: ...}}")
        for name, type_name in (dtypes or {}).items()
    }
    if decimal_type is None:
        return DeclaredTypes(columns)
    decimal = _storable_type(decimal_type, "decimal_type", "decimal_type")
    if not pat.is_decimal(decimal):
        raise UnsupportedType(
            f"decimal_type={decimal_type!r} is not a decimal type.",
            hint="decimal_type='decimal(20, 4)'",
        )
    return DeclaredTypes(columns, decimal)


def _storable_type(type_name: TypeName, column: str, argument: str) -> pa.DataType:
    """Return the feature type for a declared type, or raise UnsupportedType."""
    dtype = parse_type(type_name, column=column)
    stored_type = feature_type(dtype)
    if stored_type is None:
        raise UnsupportedType(
            f"{argument}: {dtype} cannot be stored.",
            hint="decimals have at most 38 digits; type names are those of Arrow",
        )
    return stored_type
