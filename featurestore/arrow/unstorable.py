"""Columns that cannot be stored unchanged, and errors with code that converts them.

Conversions raise ``Unstorable``; ``translate_conversion_errors`` translates each conversion error to an
``UnsupportedType`` with a hint in the syntax of the caller's library. Two kinds of columns are
detected by content: binary columns of encoded arrays, as petastorm's codecs write them, and columns
of DuckDB relations. DuckDB converts BIT to its internal bytes and 128-bit integers to decimals that
overflow, and cannot convert times of day with a time zone. Such columns are refused by type, or by
value while the query runs; in the latter case the error text of DuckDB contains the refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.column_lines import TEXT, cell_line, nanoseconds_line, quoted
from featurestore.errors import FeatureStoreError, UnsupportedType, listing

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
_NAME_SIZE, _NAME = slice(26, 28), 30
# Conversion to an Arrow table for dataframes without Python cells.
_TO_ARROW_TABLE = {
    "pyarrow": "",
    "polars": "table = df.to_arrow(); ",
    "duckdb": "table = rows.to_arrow_table(); ",
}

_MAX_REPR = 60
CONVERSION_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError, NotImplementedError)
# Kinds of pandas dtypes without a feature type: the column cast, and the cell cast.
_DTYPES = {
    "complex": (
        "df[{0!r}] = [[cell.real, cell.imag] for cell in df[{0!r}]]",
        "[{v}.real, {v}.imag]",
    ),
    "timedelta": (
        "df[{0!r}] = df[{0!r}].astype('duration[{1}][pyarrow]').astype('int64[pyarrow]')",
        "{v}.value",
    ),
    "period": ("df[{0!r}] = df[{0!r}].dt.to_timestamp()", "{v}.to_timestamp()"),
}


class Unstorable(ValueError):
    """Error for cells that cannot be stored.

    Args:
        problem: The problem of the column, continuing "Column 'x' ...".
        expression: An expression of a cell ``{v}`` that preserves its value, for the hint.
        missing: The condition for missing cells, if comparison with None does not suffice.
        cells: The invalid cells, whose rows the message names.
        line: The complete code snippet, if no cell expression exists.
    """

    def __init__(
        self,
        problem: str,
        *,
        expression: str = TEXT,
        missing: str = "",
        cells: Sequence[Any] = (),
        line: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.expression = expression
        self.missing = missing
        self.cells = cells
        self.line = line


@contextmanager
def translate_conversion_errors(
    name: str, values: Sequence[Any], *, language: str
) -> Iterator[None]:
    """Raise each error of a column conversion as ``UnsupportedType``.

    Args:
        name: The column name.
        values: The original cells.
        language: The kind of dataframe that determines the syntax of the hint.

    Raises:
        UnsupportedType: Names the column, the row, and the code that converts it.
    """
    try:
        yield
    except FeatureStoreError:
        raise
    except Unstorable as error:
        raise unsupported_column(name, error, values, language=language) from error
    except CONVERSION_ERRORS as error:
        raise unsupported_column(
            name, _from_library_error(error, values), values, language=language
        ) from error


def unsupported_column(
    name: str, error: Unstorable, values: Sequence[Any] = (), *, language: str
) -> UnsupportedType:
    """Return the error for a column that cannot be stored.

    >>> print(unsupported_column("z", Unstorable("holds complex values", cells=[1j]), [1, 1j], language="rows"))
    Column 'z' holds complex values: row 1 is complex (1j).
    Hint: rows = [{**row, 'z': None if cell is None else str(cell)} for row in rows ...]
    """
    descriptions = []
    for cell in error.cells:
        row = _find_row(cell, values)
        row_name = "a row" if row is None else f"row {row}"
        descriptions.append(f"{row_name} is {type(cell).__name__} ({_short(cell)})")
    examples = f": {', '.join(descriptions)}" if descriptions else ""
    hint = error.line
    if hint is None:
        hint = cell_line(
            language,
            name,
            error.expression,
            missing_condition=error.missing or missing_condition(values),
        )
    return UnsupportedType(f"Column {name!r} {error.problem}{examples}.", hint=hint)


def is_missing(cell: object) -> bool:
    """Return whether a cell is None, NaN, or the missing value of pandas.

    >>> is_missing(float("nan")), is_missing("")
    (True, False)
    """
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float) and cell != cell


def missing_condition(values: Sequence[Any]) -> str:
    """Return the condition for missing cells: also for pandas' missing values if there are any.

    >>> missing_condition([1, None]), missing_condition([1, float("nan")])
    ('', 'pd.isna({v})')
    """
    for cell in values:
        if cell is not None and is_missing(cell):
            return "pd.isna({v})"
    return ""


def check_dtype(name: str, dtype: Any, *, language: str = "pandas") -> None:
    """Refuse a pandas dtype whose meaning would be lost, such as a month stored as a number.

    Raises:
        UnsupportedType: Names the cast that preserves the meaning.
    """
    categories = getattr(dtype, "categories", None)
    dtype_text = str(dtype if categories is None else categories.dtype)
    for kind, (line, expression) in _DTYPES.items():
        if not dtype_text.lower().startswith(kind):
            continue
        hint = line.format(name, dtype_text.partition("[")[2].rstrip("]"))
        # A categorical column has no cast of its categories, so its cells are converted.
        if language != "pandas" or categories is not None:
            hint = cell_line(language, name, expression, missing_condition="pd.isna({v})") or hint
        raise UnsupportedType(
            f"Column {name!r} has type {dtype}, which cannot be stored.", hint=hint
        )


class EncodedArrayCheck:
    """A check that refuses binary columns whose first value is an .npy or .npz file.

    It is called with each batch and returns the batch. ``language`` is the kind of dataframe in the
    hint.
    """

    def __init__(self, names: Sequence[str], *, language: str) -> None:
        self.pending_columns = set(names)
        self._language = language

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch.

        Raises:
            UnsupportedType: Names the columns and the code that decodes them.
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
            cell = next((each.as_py() for each in present if each.as_py() is not None), None)
            if cell is not None:
                self.pending_columns.discard(name)
                load = _load_expression(cell)
                if load is not None:
                    encoded[name] = load
        if encoded:
            name, load = next(iter(encoded.items()))
            raise UnsupportedType(
                f"{listing(list(encoded))} hold numpy arrays encoded as bytes, as petastorm's "
                "NdarrayCodec does; readers would return the bytes.",
                hint=_decode_hint(name, load, self._language),
            )
        return batch


def binary_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the binary columns.

    >>> binary_columns(pa.schema([("id", pa.int64()), ("image", pa.binary())]))
    ['image']
    """
    names = []
    for field in schema:
        kind = field.type
        if pat.is_dictionary(kind):
            kind = kind.value_type
        if pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind):
            names.append(field.name)
    return names


def cast_to_storable_types(frame: Any) -> Any:
    """Return a DuckDB relation whose values are preserved by the conversion to Arrow.

    128-bit integers, such as sums, are cast to 64 bits; if a value is too large, the query fails
    with an error text that ``parse_refusal`` parses.

    Raises:
        UnsupportedType: Lists all columns whose types cannot be stored, with the code that converts
        them.
    """
    unsupported, lines, columns = [], [], []
    is_changed = False
    for name, kind in zip(frame.columns, frame.types, strict=True):
        column = value = quoted(name)
        if kind.id in _INT128_CHECKS:
            value = _checked_int64(name, _INT128_CHECKS[kind.id])
        elif kind.id == "timestamp_ns":
            value = _checked_microseconds(name)
        elif kind.id == "map" or _is_unsupported(kind):
            unsupported.append(f"{name}: {kind}")
            lines.append(f"{_cast_expression(kind, column)} AS {column}")
        columns.append(f"{value} AS {column}")
        is_changed = is_changed or value != column
    if unsupported:
        raise UnsupportedType(
            f"These columns have types that cannot be stored: {'; '.join(unsupported)}.",
            hint=f"rows = rows.select({f'* REPLACE ({chr(44).join(lines)})'!r})",
        )
    return frame.project(", ".join(columns)) if is_changed else frame


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


def _from_library_error(error: Exception, values: Sequence[Any]) -> Unstorable:
    """Translate an Arrow or Python error to ``Unstorable``."""
    if isinstance(error, UnicodeError):
        return surrogates_error(values)
    if isinstance(error, OverflowError):
        return Unstorable(
            "holds integers of more than 64 bits", cells=[max(values, key=_magnitude)]
        )
    text = str(error).partition("\n")[0].rstrip(".")
    return Unstorable(f"cannot be stored ({text})")


def surrogates_error(values: Sequence[Any]) -> Unstorable:
    r"""Return the error for texts with lone surrogates.

    >>> surrogates_error(["a", "b\ud800"]).cells
    ['b\ud800']
    """
    return Unstorable(
        "holds strings that UTF-8 cannot encode (lone surrogates)",
        expression="{v}.encode('utf-8', 'surrogatepass')",
        cells=[cell for cell in values if _is_unencodable(cell)][:1],
    )


def _is_unencodable(cell: object) -> bool:
    if not isinstance(cell, str):
        return False
    try:
        cell.encode()
    except UnicodeEncodeError:
        return True
    return False


def _magnitude(cell: object) -> int:
    return abs(cell) if isinstance(cell, int) else -1


def _find_row(value: object, values: Sequence[Any]) -> int | None:
    """Return the first row that is or contains an object; None if conversion created the object."""
    for row, cell in enumerate(values):
        if _contains(cell, value):
            return row
    return None


def _contains(cell: Any, value: object) -> bool:
    # By identity: equal cells may have another type, and arrays have no single truth value.
    if cell is value:
        return True
    if isinstance(cell, dict):
        return any(_contains(item, value) for item in cell.values())
    return isinstance(cell, list | tuple) and any(_contains(item, value) for item in cell)


def _short(cell: object) -> str:
    text = repr(cell)
    return text if len(text) <= _MAX_REPR else f"{text[:_MAX_REPR]}..."


def _load_expression(cell: bytes) -> str | None:
    """Return the expression that decodes a cell, or None for bytes that are not an array."""
    if cell.startswith(_NPY):
        return "np.load(io.BytesIO(cell))"
    if not cell.startswith(_ZIP):
        return None
    end = _NAME + int.from_bytes(cell[_NAME_SIZE], "little")
    member = cell[_NAME:end]
    if not member.endswith(b".npy"):
        return None
    return f"np.load(io.BytesIO(cell))[{member[:-4].decode(errors='replace')!r}]"


def _decode_hint(name: str, load_expression: str, language: str) -> str:
    """Return the hint for a column: code that decodes it, and a way to store bytes instead."""
    line = cell_line(language, name, load_expression.replace("cell", "{v}"))
    if language == "pyspark":
        line = (
            "dict_to_spark_row is not needed: spark.createDataFrame([{"
            f"{name!r}: array.tolist(), ...}}]), or pass {{{name!r}: array, ...}}"
        )
    elif line is None or language in _TO_ARROW_TABLE:
        line = (
            f"{_TO_ARROW_TABLE.get(language, '')}columns = {{**dict(zip(table.column_names, "
            f"table.columns)), {name!r}: [None if cell is None else {load_expression} for cell in "
            f"table[{name!r}].to_pylist()]}}"
        )
    return (
        f"{line}  # to store bytes, create the group from a table without rows, where {name!r} "
        "is pa.binary(), and insert them"
    )


def _checked_int64(name: str, condition: str) -> str:
    """Return SQL that casts to 64 bits, and fails for larger values."""
    column = quoted(name)
    hint = f"rows = rows.select('* REPLACE (CAST({column} AS VARCHAR) AS {column})')"
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
        f"THEN {_error_call(problem, nanoseconds_line('duckdb', name))} "
        f"ELSE make_timestamp(epoch_ns({column}) // 1000) END"
    )


def _is_unsupported(kind: Any, *, inside: bool = False) -> bool:
    """Return whether a DuckDB type is or contains a type that cannot be stored."""
    # At the top level, the caller handles these types.
    if kind.id in _UNSUPPORTED_TYPES or (inside and kind.id in ("map", "uhugeint")):
        return True
    if kind.id not in ("list", "array", "struct"):
        return False
    children = [child for name, child in kind.children if name != "size" or kind.id != "array"]
    return any(_is_unsupported(child, inside=True) for child in children)


def _cast_expression(kind: Any, value: str) -> str:
    """Return the expression that preserves the values of a refused column."""
    if kind.id == "map":
        return f"map_entries({value})"
    return f"CAST({value} AS {_type_with_strings(kind)})"


def _type_with_strings(kind: Any) -> str:
    """Return a DuckDB type in which strings replace the types that cannot be stored."""
    if kind.id in ("list", "array"):
        children = dict(kind.children)
        size = children.get("size", "") if kind.id == "array" else ""
        return f"{_type_with_strings(children['child'])}[{size}]"
    if kind.id == "struct":
        fields = [f"{quoted(name)} {_type_with_strings(child)}" for name, child in kind.children]
        return f"STRUCT({', '.join(fields)})"
    return "VARCHAR" if _is_unsupported(kind, inside=True) else str(kind)
