"""Schema changes by a write: new columns, and wider decimals.

The required digits depend on the values, not on the column type of the batch: trailing zeros need
no digits. Digits are counted before the rows are converted, so rows that can be read only once are
staged first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.casts import cast_array
from featurestore.arrow.fitting import can_widen, with_wider_decimals
from featurestore.arrow.types import innermost_type, is_exact, is_list_type
from featurestore.delta import commits
from featurestore.delta.snapshot import Snapshot
from featurestore.errors import SchemaMismatch
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.plugins.engine import Accumulator, Engine, PropertyChange, Relation
from featurestore.recovery.in_flight import InFlight
from featurestore.registry import featuregroups
from featurestore.session import Session
from featurestore.storage.failures import warn_after_publication

MAX_DIGITS = 38
# The number of integer digits and of decimal places of a decimal column.
Digits = tuple[int, int]


@dataclass(frozen=True)
class DigitAccumulator(Accumulator[dict[str, Digits], dict[str, Digits]]):
    """Accumulator of the digits that columns require, at least the ``current`` digits."""

    current: Mapping[str, Digits]

    def start(self) -> dict[str, Digits]:
        return dict(self.current)

    def update(self, state: dict[str, Digits], batch: pa.RecordBatch) -> dict[str, Digits]:
        for name, digits in state.items():
            state[name] = _required_digits(batch.column(name), digits)
        return state

    def merge(self, first: dict[str, Digits], second: dict[str, Digits]) -> dict[str, Digits]:
        for name, (integers, scale) in second.items():
            first[name] = max(first[name][0], integers), max(first[name][1], scale)
        return first

    def finish(self, state: dict[str, Digits]) -> dict[str, Digits]:
        return state


def widen_spec_for_rows(
    relation: Relation, spec: FeatureGroupSpec, *, engine: Engine, run: InFlight, is_staged: bool
) -> tuple[Relation, FeatureGroupSpec]:
    """Return the rows, and the group definition with decimals wide enough for them.

    Rows that may require wider decimals are staged, so that they can be read again. If more than 38
    digits are required, the definition is returned unchanged and the later conversion raises an
    error.
    """
    current = {}
    for field in spec.schema:
        if field.name in relation.schema.names:
            batch_type = relation.schema.field(field.name).type
            if _may_require_widening(batch_type, field.type):
                decimals = innermost_type(field.type)
                current[field.name] = decimals.precision - decimals.scale, decimals.scale
    if not current:
        return relation, spec
    if not is_staged:
        relation = engine.stage(relation, os.path.join(run.rows, "digits"))
    columns = engine.select(relation, {name: name for name in current})
    needed = engine.aggregate(columns, DigitAccumulator(current))
    fields = []
    for name, (integers, scale) in needed.items():
        if integers + scale > MAX_DIGITS:
            # The conversion reports the first value that does not fit, which is more helpful than
            # an error without a value.
            return relation, spec
        fields.append(_widen_field(spec.schema.field(name), pa.decimal128(integers + scale, scale)))
    return relation, spec.with_wider_decimals(pa.schema(fields))


def widen_table(session: Session, group: OpenGroup, spec: FeatureGroupSpec) -> None:
    """Widen the decimal columns of a group's table to a definition, without changing rows.

    If the writer crashes afterwards, the group only has wider columns than required.

    Raises:
        SchemaMismatch: Another writer widened a column, and 38 digits cannot represent both types.
    """
    columns = []
    for field in group.spec.schema:
        wider_field = spec.schema.field(field.name)
        if wider_field.type != field.type:
            columns.append(wider_field)
    if not columns:
        return
    version = session.engine.widen_columns(group.path, pa.schema(columns))
    # Another writer has already widened the columns.
    if version is None:
        return
    with warn_after_publication(f"Delta version {version} of feature group {spec.name!r}"):
        wider = group.spec.with_wider_decimals(pa.schema(columns))
        with session.registry.transaction() as connection:
            featuregroups.advance(
                connection, spec.name, spec.version, delta_version=version, spec=wider
            )


def declare_columns(session: Session, group: OpenGroup, added: Sequence[pa.Field]) -> None:
    """Add new columns to the newest definition in the table.

    The definition is changed before the table schema: readers ignore columns that the table does
    not have, so a crash in between has no effect.
    """
    if not added:
        return

    def change(state: Snapshot) -> PropertyChange | None:
        declared_spec = commits.declared_spec(state)
        new_columns = _undeclared_columns(added, declared_spec)
        if not new_columns:
            return None
        properties = commits.properties(declared_spec.with_columns(new_columns), commits.Meta())
        return PropertyChange({commits.SPEC: properties[commits.SPEC]})

    session.engine.change_properties(group.path, change)


def _undeclared_columns(
    added: Sequence[pa.Field], declared_spec: FeatureGroupSpec
) -> list[pa.Field]:
    """Return the new columns that the definition does not contain yet.

    Raises:
        SchemaMismatch: Another writer has declared a column with a different type.
    """
    types_by_name = {column.name: column.type for column in declared_spec.schema}
    new_columns, conflicts = [], []
    for column in added:
        dtype = types_by_name.get(column.name)
        if dtype is None:
            new_columns.append(column)
        elif dtype != column.type:
            conflicts.append(f"{column.name!r} is {column.type}, in the group {dtype}")
    if conflicts:
        raise SchemaMismatch(
            f"Another writer has just added columns to {declared_spec.name!r} with other types: "
            f"{', '.join(conflicts)}.",
            hint="cast the columns",
        )
    return new_columns


def widen_for_value(value: object, dtype: pa.DataType) -> pa.DataType | None:
    """Return the decimal type of a column, widened to represent one more value.

    Return None if more than 38 digits are required, and for columns without decimals.

    >>> widen_for_value(10, pa.list_(pa.decimal128(3, 2)))
    Decimal128Type(decimal128(4, 2))
    """
    dtype = innermost_type(dtype)
    if not pat.is_decimal(dtype):
        return None
    integers, scale = _required_digits(
        pa.array([value]), (dtype.precision - dtype.scale, dtype.scale)
    )
    if integers + scale > MAX_DIGITS:
        return None
    return pa.decimal128(integers + scale, scale)


def _required_digits(array: pa.Array, minimum: Digits) -> Digits:
    """Return the digits required for all values of an array, including items of lists."""
    while is_list_type(array.type):
        array = array.flatten()
    array = pc.drop_null(array)
    if not len(array):
        return minimum
    if pat.is_integer(array.type):
        # Twenty digits represent all 64-bit integers, signed and unsigned.
        array = cast_array(array, pa.decimal128(20, 0))
    extremes = pc.min_max(array)
    largest = max(abs(int(extremes["min"].as_py())), abs(int(extremes["max"].as_py())))
    integers = len(str(largest)) if largest else 0
    return max(minimum[0], integers), max(minimum[1], _required_decimal_places(array, minimum[1]))


def _required_decimal_places(array: pa.Array, minimum: int) -> int:
    """Return the decimal places required without trailing zeros, at least ``minimum``."""
    for scale in range(minimum, array.type.scale):
        try:
            # Arrow rejects a cast that would remove nonzero digits.
            array.cast(pa.decimal128(MAX_DIGITS, scale))
            return scale
        except pa.ArrowInvalid:
            continue
    return max(minimum, array.type.scale)


def _may_require_widening(batch_type: pa.DataType, column_type: pa.DataType) -> bool:
    """Return True if values of a batch type may require wider decimals than the column type."""
    if is_list_type(batch_type) and is_list_type(column_type):
        return _may_require_widening(batch_type.value_type, column_type.value_type)
    if not (pat.is_decimal(column_type) and is_exact(batch_type)):
        return False
    return not can_widen(batch_type, column_type)


def _widen_field(field: pa.Field, decimals: pa.DataType) -> pa.Field:
    """Return a column of decimals or of (nested) lists of decimals, widened to a type."""
    dtype = field.type
    levels = 0
    while is_list_type(dtype):
        dtype, levels = dtype.value_type, levels + 1
    nested = decimals
    for _ in range(levels):
        nested = pa.list_(nested)
    return field.with_type(with_wider_decimals(field.type, nested))
