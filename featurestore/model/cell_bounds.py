"""The bound on the bytes of one cell: a text, bytes, or all values of a list or struct."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.errors import ConfigurationError, LimitExceeded
from featurestore.model.types import is_nested

SETTING = "FEATURESTORE_CELL_BYTES"
CELL_BYTES = 64 << 20


def most_cell_bytes() -> int:
    """Return the bytes that a cell may have: 64 MiB, or the value of ``FEATURESTORE_CELL_BYTES``.

    Raises:
        ConfigurationError: The variable is not a positive number.
    """
    text = os.environ.get(SETTING, "")
    if not text:
        return CELL_BYTES
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ConfigurationError(
            f"{SETTING}={text!r} is not a number of bytes.", hint=f"{SETTING}={CELL_BYTES}"
        )
    return int(text)


def columns_to_bound(schema: pa.Schema, *, most: int) -> tuple[str, ...]:
    """Return the columns whose cells may exceed the bound, by their types.

    >>> schema = pa.schema([("a", pa.int8()), ("b", pa.list_(pa.int8())), ("c", pa.list_(pa.int8(), 3))])
    >>> columns_to_bound(schema, most=2), columns_to_bound(schema, most=3)
    (('b', 'c'), ('b',))
    """
    names = []
    for field in schema:
        width = _bytes_of_type(field.type)
        if width is None or width > most:
            names.append(field.name)
    return tuple(names)


def rows_too_long(array: pa.Array, *, most: int) -> list[int]:
    """Return the rows whose cells have more bytes than ``most``.

    >>> rows_too_long(pa.array(["abc", "ab", "abc"]), most=2)
    [0, 2]
    """
    # Almost every batch is within the bound with all of its rows.
    if array.nbytes <= most:
        return []
    if len(array) == 1:
        return [0] if cell_bytes(array) > most else []
    half = len(array) // 2
    later_rows = rows_too_long(array.slice(half), most=most)
    return rows_too_long(array.slice(0, half), most=most) + [half + row for row in later_rows]


def first_too_long(array: pa.Array, *, most: int) -> int | None:
    """Return the first row whose cell has more bytes than ``most``; None where there is none."""
    return next(iter(rows_too_long(array, most=most)), None)


def cell_bytes(array: pa.Array) -> int:
    """Return the bytes of the only cell of an array: of texts those of UTF-8, else Arrow's.

    >>> cell_bytes(pa.array(["ä"]))
    2
    """
    if is_nested(array.type):
        return int(array.nbytes)
    return int(pc.binary_length(array)[0].as_py() or 0)


def refusal(array: pa.Array, row: int, *, column: str, shown: str, most: int) -> LimitExceeded:
    """Return the error for a cell that is too long; ``shown`` names its row."""
    length = cell_bytes(array.slice(row, 1))
    return LimitExceeded(
        f"{shown} has {length:,} bytes in {column!r}; a cell has at most {most:,}.",
        hint=f"store the path of a file, or set {SETTING}={length} where the rows are written",
    )


def bounded_batches(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], *, most: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches none of whose cells has more bytes than ``most``.

    Raises:
        LimitExceeded: Names the first row, counted from 0, and its column.
    """
    rows = 0
    for batch in batches:
        for name in columns:
            array = batch.column(batch.schema.get_field_index(name))
            row = first_too_long(array, most=most)
            if row is not None:
                raise refusal(array, row, column=name, shown=f"Row {rows + row}", most=most)
        rows += batch.num_rows
        yield batch


def _bytes_of_type(kind: pa.DataType) -> int | None:
    """Return the bytes of each cell of a type, None where they are not all the same."""
    if pat.is_fixed_size_list(kind):
        width = _bytes_of_type(kind.value_type)
        return None if width is None else kind.list_size * width
    if pat.is_struct(kind):
        widths = [_bytes_of_type(kind.field(index).type) for index in range(kind.num_fields)]
        known = [width for width in widths if width is not None]
        return sum(known) if len(known) == len(widths) else None
    if is_nested(kind):
        return None
    try:
        return (int(kind.bit_width) + 7) // 8
    except ValueError:  # texts and bytes have no width
        return None
