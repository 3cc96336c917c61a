"""Columns that cannot be stored unchanged.

Conversions raise ``Unstorable``, which ``frames`` translates to an ``UnsupportedType`` with the line
that casts the column. Two kinds of columns are detected by content: binary columns of encoded
arrays, as petastorm's codecs write them, and columns of DuckDB relations. DuckDB converts BIT to its
internal bytes and 128-bit integers to decimals that overflow, and cannot convert times of day with
a time zone. Such columns are refused by type, or by value while the query runs; in the latter case
the error text of DuckDB contains the refusal.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from featurestore.arrow.column_names import is_utf8_string, quoted
from featurestore.arrow.hints import cast_hint
from featurestore.arrow.types import feature_type, shaped_type
from featurestore.errors import FeatureStoreError, UnsupportedType, listing

# Objects of any library: a cell, a column (a list, array or series), and a dataframe.
Cell: TypeAlias = Any
Column: TypeAlias = Any
Frame: TypeAlias = Any

STREAM_ROWS = 65_536
_INT64_LIMIT = 2**63
# Leaf types that Arrow cannot represent, and integers that it represents only in part.
_UNSUPPORTED_TYPES = {
    "bit",
    "bignum",
    "varint",
    "time",
    "time_ns",
    "time with time zone",
    "interval",
    "union",
    "variant",
    "geometry",
}
_INT128_CHECKS = {
    "hugeint": f"{{c}} BETWEEN -{_INT64_LIMIT} AND {_INT64_LIMIT - 1}",
    "uhugeint": f"{{c}} < {_INT64_LIMIT}",
}
_PREFIX = "cannot be stored: "
_MESSAGE = re.compile(rf"{_PREFIX}(?P<message>.*?)\nHint: (?P<hint>[^\n]*)", re.DOTALL)

_NPY = b"\x93NUMPY"  # magic number of .npy files: numpy.lib.format
_ZIP = b"PK\x03\x04"  # numpy.savez writes a ZIP file whose first member is an .npy file
_NAME_SIZE, _NAME = slice(26, 28), 30  # the name of the first member
_MAX_REPR = 60
CONVERSION_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError, NotImplementedError)
_BYTES_HINT = (
    "  # to store bytes, create the group from a table without rows, where {name!r} is pa.binary(), "
    "and insert them"
)


class Unstorable(ValueError):
    """Error for cells that cannot be stored.

    Args:
        problem: The problem of the column, continuing "Column 'x' ...".
        cells: The invalid cells, whose rows the message names.
        target: The type to which ``featurestore.cast`` casts the column; None derives it from the
            cells.
        line: The hint, if no cast stores the values.
        subject: The start of the sentence.
    """

    def __init__(
        self,
        problem: str,
        *,
        cells: Sequence[Cell] = (),
        target: str | None = None,
        line: str | None = None,
        subject: str = "Column",
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.cells = cells
        self.target = target
        self.line = line
        self.subject = subject


def is_missing(cell: object) -> bool:
    """Return whether a cell is None, NaN, or the missing value of pandas.

    >>> is_missing(float("nan")), is_missing("")
    (True, False)
    """
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float) and cell != cell


def is_encoded_array(cell: object) -> bool:
    """Return whether bytes are an .npy file, or an .npz file, whose first member is an array.

    >>> is_encoded_array(b"PNG")
    False
    """
    if not isinstance(cell, bytes):
        return False
    name_end = _NAME + int.from_bytes(cell[_NAME_SIZE], "little")
    is_npz = cell.startswith(_ZIP) and cell[_NAME:name_end].endswith(b".npy")
    return cell.startswith(_NPY) or is_npz


def decode_array(cell: bytes) -> Any:
    """Return the array of an .npy file, or the first array of an .npz file."""
    loaded = np.load(io.BytesIO(cell), allow_pickle=False)
    return loaded if isinstance(loaded, np.ndarray) else loaded[loaded.files[0]]


class EncodedArrayCheck:
    """A check that refuses binary columns whose first value is an .npy or .npz file.

    It is called with each batch and returns the batch.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.pending_columns = set(names)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch.

        Raises:
            UnsupportedType: Names the columns and the cast that decodes them.
        """
        if not self.pending_columns:
            return batch
        encoded = {}
        for name in batch.schema.names:
            if name not in self.pending_columns:
                continue
            # A codec encodes all values of a column, so the first value decides.
            present = batch.column(batch.schema.get_field_index(name)).drop_null()
            # The values of a dictionary may be null, too.
            values = (value.as_py() for value in present)
            cell = next((value for value in values if value is not None), None)
            if cell is not None:
                self.pending_columns.discard(name)
                if is_encoded_array(cell):
                    encoded[name] = cell
        if encoded:
            raise UnsupportedType(
                f"{listing(list(encoded))} hold numpy arrays encoded as bytes, as petastorm's "
                "NdarrayCodec does; readers would return the bytes.",
                hint=_decode_hint(encoded),
            )
        return batch


def cast_to_storable_types(frame: Frame) -> Frame:
    """Return a DuckDB relation whose values are preserved by the conversion to Arrow.

    128-bit integers, such as sums, are cast to 64 bits; if a value is too large, the query fails
    with an error text that ``parse_refusal`` parses.

    Raises:
        UnsupportedType: Lists all columns whose types cannot be stored, with the line that casts
        them.
    """
    unsupported, columns = {}, []
    is_changed = False
    for name, native_type in zip(frame.columns, frame.types, strict=True):
        column = value = quoted(name)
        if native_type.id in _INT128_CHECKS:
            value = _checked_int64(name, _INT128_CHECKS[native_type.id])
        elif native_type.id == "timestamp_ns":
            value = _checked_microseconds(name)
        elif _is_refused(native_type):
            unsupported[name] = f"{name}: {native_type}"
        columns.append(f"{value} AS {column}")
        is_changed = is_changed or value != column
    if unsupported:
        schema = cast_for_arrow(frame, unsupported).limit(0).to_arrow_table().schema
        targets = {name: feature_type(schema.field(name).type) for name in unsupported}
        raise UnsupportedType(
            f"These columns have types that cannot be stored: {'; '.join(unsupported.values())}.",
            hint=cast_hint({name: dtype or "string" for name, dtype in targets.items()}),
        )
    return frame.project(", ".join(columns)) if is_changed else frame


def cast_for_arrow(frame: Frame, names: Collection[str]) -> Frame:
    """Return a DuckDB relation in which Arrow has a type for the named columns.

    Maps become lists of their entries, and types that Arrow lacks become strings.
    """
    columns = []
    for name, native_type in zip(frame.columns, frame.types, strict=True):
        column = value = quoted(name)
        if name in names and native_type.id == "map":
            value = f"map_entries({column})"
        elif name in names and (native_type.id in _INT128_CHECKS or _is_refused(native_type)):
            value = f"CAST({column} AS {_type_with_strings(native_type)})"
        columns.append(f"{value} AS {column}")
    return frame.project(", ".join(columns))


def stream_relation(rows: Frame) -> pa.RecordBatchReader:
    """Return the rows of a DuckDB relation as a stream."""
    with translate_query_errors():
        # The name since DuckDB 1.4, and before.
        return getattr(rows, "to_arrow_reader", rows.fetch_arrow_reader)(STREAM_ROWS)


@contextmanager
def translate_query_errors() -> Iterator[None]:
    """Translate refusals that a query raises for its values to ``UnsupportedType``."""
    try:
        yield
    except FeatureStoreError:
        raise
    except Exception as error:
        # The error class depends on the DuckDB and pyarrow releases.
        refusal = parse_refusal(str(error))
        if refusal is None:
            raise
        raise refusal from error


def parse_refusal(text: str) -> UnsupportedType | None:
    """Return the refusal that a DuckDB error contains, or None.

    >>> parse_refusal("Binder Error: no such column") is None
    True
    """
    match = _MESSAGE.search(text)
    if match is None:
        return None
    return UnsupportedType(match["message"], hint=match["hint"])


def from_library_error(error: Exception, values: Sequence[Cell]) -> Unstorable:
    """Translate an Arrow or Python error to ``Unstorable``."""
    if isinstance(error, Unstorable):
        return error
    if isinstance(error, UnicodeError):
        return surrogates_error(values)
    if isinstance(error, OverflowError):
        largest = max((value for value in values if isinstance(value, int)), key=abs)
        return Unstorable("holds integers of more than 64 bits", cells=[largest])
    text = str(error).partition("\n")[0].rstrip(".")
    return Unstorable(f"cannot be stored ({text})")


def surrogates_error(values: Sequence[Cell]) -> Unstorable:
    r"""Return the error for texts with lone surrogates.

    >>> surrogates_error(["a", "b\ud800"]).cells
    ['b\ud800']
    """
    return Unstorable(
        "holds strings that UTF-8 cannot encode (lone surrogates)",
        cells=[cell for cell in values if isinstance(cell, str) and not is_utf8_string(cell)][:1],
    )


def describe_cells(cells: Sequence[Cell], values: Sequence[Cell]) -> str:
    """Return ": row 1 is complex (1j)" for each of some cells of a column, "" without cells."""
    descriptions = []
    for cell in cells:
        row = next((row for row, value in enumerate(values) if _contains(value, cell)), None)
        row_name = "a row" if row is None else f"row {row}"
        text = repr(cell)
        if len(text) > _MAX_REPR:
            text = f"{text[:_MAX_REPR]}..."
        descriptions.append(f"{row_name} is {type(cell).__name__} ({text})")
    return f": {', '.join(descriptions)}" if descriptions else ""


def _contains(cell: Cell, value: object) -> bool:
    # By identity: equal cells may have another type, and arrays have no single truth value.
    if cell is value:
        return True
    if isinstance(cell, dict):
        return any(_contains(item, value) for item in cell.values())
    return isinstance(cell, list | tuple) and any(_contains(item, value) for item in cell)


def _decode_hint(encoded: dict[str, bytes]) -> str:
    """Return the hint for columns of encoded arrays: their cast, and a way to store bytes instead."""
    targets = {}
    for name, cell in encoded.items():
        try:
            array = decode_array(cell)
            targets[name] = shaped_type(pa.from_numpy_dtype(array.dtype), array.shape)
        except CONVERSION_ERRORS:  # a damaged file, or an array of objects
            return f"decode {name!r}{_BYTES_HINT.format(name=name)}"
    return f"{cast_hint(targets)}{_BYTES_HINT.format(name=next(iter(encoded)))}"


def _checked_int64(name: str, condition: str) -> str:
    """Return SQL that casts to 64 bits, and fails for larger values."""
    column, hint = quoted(name), cast_hint({name: pa.string()})
    return (
        f"CASE WHEN {column} IS NULL OR {condition.format(c=column)} THEN CAST({column} AS BIGINT) "
        f"ELSE {_error_call(f'Column {name!r} has integers of more than 64 bits.', hint)} END"
    )


def _error_call(problem: str, hint: str) -> str:
    text = f"{_PREFIX}{problem}\nHint: {hint}".replace("'", "''")
    # The query fails only if a row reaches this call.
    return f"error('{text}')"


def _checked_microseconds(name: str) -> str:
    """Return SQL that casts to microseconds, and fails for finer times."""
    column = quoted(name)
    problem = f"Column {name!r} has times finer than a microsecond."
    return (
        f"CASE WHEN epoch_ns({column}) % 1000 <> 0 "
        f"THEN {_error_call(problem, nanoseconds_hint(name))} "
        f"ELSE make_timestamp(epoch_ns({column}) // 1000) END"
    )


def nanoseconds_hint(name: str) -> str:
    """Return the line for times that microseconds cannot represent.

    >>> nanoseconds_hint("at").partition("  # ")[0]
    "df = featurestore.cast(df, {'at': 'int64'})"
    """
    rounding = cast_hint({name: "timestamp"}, inexact="round")
    return f"{cast_hint({name: 'int64'})}  # nanoseconds since 1970; to cut them: {rounding}"


def _is_refused(native_type: Any) -> bool:
    return native_type.id == "map" or _is_unsupported(native_type)


def _is_unsupported(native_type: Any, *, inside: bool = False) -> bool:
    """Return whether a DuckDB type is or contains a type that cannot be stored."""
    # At the top level, the caller handles these types.
    if native_type.id in _UNSUPPORTED_TYPES or (inside and native_type.id in ("map", "uhugeint")):
        return True
    if native_type.id not in ("list", "array", "struct"):
        return False
    children = [
        child for name, child in native_type.children if name != "size" or native_type.id != "array"
    ]
    return any(_is_unsupported(child, inside=True) for child in children)


def _type_with_strings(native_type: Any) -> str:
    """Return a DuckDB type in which strings replace the types that cannot be stored."""
    if native_type.id in ("list", "array"):
        children = dict(native_type.children)
        size = children.get("size", "") if native_type.id == "array" else ""
        return f"{_type_with_strings(children['child'])}[{size}]"
    if native_type.id == "struct":
        fields = [
            f"{quoted(name)} {_type_with_strings(child)}" for name, child in native_type.children
        ]
        return f"STRUCT({', '.join(fields)})"
    is_text = native_type.id in _INT128_CHECKS or _is_unsupported(native_type, inside=True)
    return "VARCHAR" if is_text else str(native_type)
