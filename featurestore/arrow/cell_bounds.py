"""Size limit of one cell: a string, bytes, or all values of a list or struct."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.types import is_nested
from featurestore.errors import ConfigurationError, LimitExceeded

CELL_BYTES_VARIABLE = "FEATURESTORE_CELL_BYTES"
DEFAULT_CELL_BYTES = 64 << 20


def max_cell_bytes() -> int:
    """Return the maximum bytes of a cell: 64 MiB or ``FEATURESTORE_CELL_BYTES``.

    Raises:
        ConfigurationError: The variable is not a positive number.
    """
    text = os.environ.get(CELL_BYTES_VARIABLE, "")
    if not text:
        return DEFAULT_CELL_BYTES
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ConfigurationError(
            f"{CELL_BYTES_VARIABLE}={text!r} is not a number of bytes.",
            hint=f"{CELL_BYTES_VARIABLE}={DEFAULT_CELL_BYTES}",
        )
    return int(text)


def variable_size_columns(schema: pa.Schema, *, max_bytes: int) -> tuple[str, ...]:
    """Return the columns whose types allow cells larger than ``max_bytes``.

    >>> schema = pa.schema([("a", pa.int8()), ("b", pa.list_(pa.int8())), ("c", pa.list_(pa.int8(), 3))])
    >>> variable_size_columns(schema, max_bytes=2), variable_size_columns(schema, max_bytes=3)
    (('b', 'c'), ('b',))
    """
    names = []
    for field in schema:
        width = _type_bytes(field.type)
        if width is None or width > max_bytes:
            names.append(field.name)
    return tuple(names)


def oversized_rows(array: pa.Array, *, max_bytes: int) -> list[int]:
    """Return the rows whose cells exceed ``max_bytes``.

    >>> oversized_rows(pa.array(["abc", "ab", "abc"]), max_bytes=2)
    [0, 2]
    """
    # Almost every batch is within the limit as a unit.
    if array.nbytes <= max_bytes:
        return []
    if len(array) == 1:
        return [0] if cell_bytes(array) > max_bytes else []
    half = len(array) // 2
    later_rows = oversized_rows(array.slice(half), max_bytes=max_bytes)
    return oversized_rows(array.slice(0, half), max_bytes=max_bytes) + [
        half + row for row in later_rows
    ]


def first_oversized(array: pa.Array, *, max_bytes: int) -> int | None:
    """Return the first row whose cell has more bytes than ``max_bytes``; None if all fit."""
    return next(iter(oversized_rows(array, max_bytes=max_bytes)), None)


def cell_bytes(array: pa.Array) -> int:
    """Return the bytes of the only cell of an array: UTF-8 bytes of strings, else Arrow's.

    >>> cell_bytes(pa.array(["ä"]))
    2
    """
    if is_nested(array.type):
        return int(array.nbytes)
    return int(pc.binary_length(array)[0].as_py() or 0)


def oversized_error(
    array: pa.Array, row: int, *, column: str, row_name: str, max_bytes: int
) -> LimitExceeded:
    """Return the error for a cell that is too large; ``row_name`` names its row."""
    length = cell_bytes(array.slice(row, 1))
    return LimitExceeded(
        f"{row_name} has {length:,} bytes in {column!r}; a cell has at most {max_bytes:,}.",
        hint=f"store the path of a file, or set {CELL_BYTES_VARIABLE}={length} where the rows are written",
    )


def check_cell_sizes(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], *, max_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches after a check of their cell sizes.

    Raises:
        LimitExceeded: Names the first row, counted from 0, and its column.
    """
    rows = 0
    for batch in batches:
        for name in columns:
            array = batch.column(batch.schema.get_field_index(name))
            row = first_oversized(array, max_bytes=max_bytes)
            if row is not None:
                raise oversized_error(
                    array, row, column=name, row_name=f"Row {rows + row}", max_bytes=max_bytes
                )
        rows += batch.num_rows
        yield batch


def _type_bytes(kind: pa.DataType) -> int | None:
    """Return the fixed cell size of a type in bytes; None for variable sizes."""
    if pat.is_fixed_size_list(kind):
        width = _type_bytes(kind.value_type)
        return None if width is None else kind.list_size * width
    if pat.is_struct(kind):
        widths = [_type_bytes(kind.field(index).type) for index in range(kind.num_fields)]
        known_widths = [width for width in widths if width is not None]
        return sum(known_widths) if len(known_widths) == len(widths) else None
    if is_nested(kind):
        return None
    try:
        return (int(kind.bit_width) + 7) // 8
    except ValueError:  # strings and bytes have no fixed width
        return None
