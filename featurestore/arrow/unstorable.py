"""Columns that cannot be stored as they are, and the errors with the line that keeps their values.

Conversions raise ``Unstorable``; ``conversion_errors`` turns each error of a conversion into an
``UnsupportedType`` with a hint in the syntax of the caller's library. Two kinds of columns are
detected by their content: byte columns of encoded arrays, as petastorm's codecs write them, and
columns of DuckDB's relations. DuckDB converts BIT to its internal bytes, integers of 128 bits to
decimals that overflow, and times of day with a zone not at all. Such columns are refused by their
types, or by their values while the query runs; the latter refusal is the text of an error of DuckDB.
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
# Leaves that Arrow cannot hold as they are, and the integers that it holds with luck.
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
# Kinds of pandas' types without a feature type: the cast of a column, and that of its cells.
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
    """Cells that cannot be stored.

    Args:
        problem: What the column has, continuing "Column 'x' ...".
        expression: An expression over a cell ``{v}`` that keeps its value, for the hint.
        missing: The condition of cells without a value, if a comparison with None is not enough.
        cells: The cells in question, whose rows the message names.
        line: The whole line to paste, where no expression over cells does.
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
def conversion_errors(name: str, values: Sequence[Any], *, language: str) -> Iterator[None]:
    """Raise every error of a conversion of one column as a refusal.

    Args:
        name: The column.
        values: Its cells, as they were handed over.
        language: The kind of dataframe whose words the hint uses.

    Raises:
        UnsupportedType: Names the column, the row, and the line to paste.
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
    shown = []
    for cell in error.cells:
        row = _row_of(cell, values)
        row_name = "a row" if row is None else f"row {row}"
        shown.append(f"{row_name} is {type(cell).__name__} ({_short(cell)})")
    examples = f": {', '.join(shown)}" if shown else ""
    hint = error.line
    if hint is None:
        hint = cell_line(
            language,
            name,
            error.expression,
            missing_condition=error.missing or _missing_among(values),
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


def check_dtype(name: str, dtype: Any, *, language: str = "pandas") -> None:
    """Refuse a pandas type whose meaning would be lost, such as a month stored as a number.

    Raises:
        UnsupportedType: Names the cast to paste.
    """
    categories = getattr(dtype, "categories", None)
    shown = str(dtype if categories is None else categories.dtype)
    for kind, (line, expression) in _DTYPES.items():
        if not shown.lower().startswith(kind):
            continue
        hint = line.format(name, shown.partition("[")[2].rstrip("]"))
        if language != "pandas" or categories is not None:
            hint = cell_line(language, name, expression, missing_condition="pd.isna({v})") or hint
        raise UnsupportedType(
            f"Column {name!r} has type {dtype}, which cannot be stored.", hint=hint
        )


class EncodedArrayCheck:
    """A check that refuses byte columns whose first value is an .npy or .npz file.

    It is called for each batch and returns the batch. ``language`` is the kind of dataframe of the
    hint.
    """

    def __init__(self, names: Sequence[str], *, language: str) -> None:
        self.pending_columns = set(names)
        self._language = language

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch.

        Raises:
            UnsupportedType: Names the columns and the line that decodes them.
        """
        if not self.pending_columns:
            return batch
        encoded = {}
        for name in batch.schema.names:
            if name not in self.pending_columns:
                continue
            present = batch.column(batch.schema.get_field_index(name)).drop_null()
            # The values of a dictionary may be null as well.
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
    """Return the names of byte columns.

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


def with_storable_types(frame: Any) -> Any:
    """Return a DuckDB relation that gives the same values through Arrow.

    Integers of 128 bits, as sums have them, become those of 64; a query in which one is too large
    fails with a text that ``parse_refusal`` reads.

    Raises:
        UnsupportedType: Lists all columns whose types cannot be stored, with the lines to paste.
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
            lines.append(f"{_cast(kind, column)} AS {column}")
        columns.append(f"{value} AS {column}")
        is_changed = is_changed or value != column
    if unsupported:
        raise UnsupportedType(
            f"These columns have types that cannot be stored: {'; '.join(unsupported)}.",
            hint=f"rows = rows.select({f'* REPLACE ({chr(44).join(lines)})'!r})",
        )
    return frame.project(", ".join(columns)) if is_changed else frame


@contextmanager
def query_refusals() -> Iterator[None]:
    """Raise what a query refuses by its values as the refusal."""
    try:
        yield
    except Exception as error:
        # Of which class it is depends on the releases of DuckDB and of pyarrow.
        refusal = parse_refusal(str(error))
        if refusal is None:
            raise
        raise refusal from error


def parse_refusal(text: str) -> UnsupportedType | None:
    """Return the refusal that an error of DuckDB carries; None if it carries none.

    >>> parse_refusal("Binder Error: no such column") is None
    True
    """
    match = _MESSAGE.search(text)
    if match is None:
        return None
    return UnsupportedType(match["message"], hint=match["hint"])


def _from_library_error(error: Exception, values: Sequence[Any]) -> Unstorable:
    """Translate an error of Arrow or Python."""
    if isinstance(error, UnicodeError):
        return Unstorable(
            "holds texts that UTF-8 cannot encode (lone surrogates)",
            expression="{v}.encode('utf-8', 'surrogatepass')",
            cells=[cell for cell in values if _is_unencodable(cell)][:1],
        )
    if isinstance(error, OverflowError):
        return Unstorable(
            "holds integers of more than 64 bits", cells=[max(values, key=_magnitude)]
        )
    text = str(error).partition("\n")[0].rstrip(".")
    return Unstorable(f"cannot be stored ({text})")


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


def _row_of(value: object, values: Sequence[Any]) -> int | None:
    """Return the first row that is or contains an object; None if it was made on the way."""
    for row, cell in enumerate(values):
        if _contains(cell, value):
            return row
    return None


def _contains(cell: Any, value: object) -> bool:
    if cell is value:
        return True
    if isinstance(cell, dict):
        return any(_contains(item, value) for item in cell.values())
    return isinstance(cell, list | tuple) and any(_contains(item, value) for item in cell)


def _short(cell: object) -> str:
    text = repr(cell)
    return text if len(text) <= _MAX_REPR else f"{text[:_MAX_REPR]}..."


def _missing_among(values: Sequence[Any]) -> str:
    """Return the condition of missing cells: None alone, unless pandas' are among them."""
    for cell in values:
        if cell is not None and is_missing(cell):
            return "pd.isna({v})"
    return ""


def _load_expression(cell: bytes) -> str | None:
    """Return the expression that decodes a cell; None for bytes that are not an array."""
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
    """Return the hint for a column: the line that decodes it, and how to store bytes instead."""
    line = cell_line(language, name, load_expression.replace("cell", "{v}"))
    if language == "pyspark":
        line = (
            "rows need no dict_to_spark_row: spark.createDataFrame([{"
            f"{name!r}: array.tolist(), ...}}]), or pass {{{name!r}: array, ...}}"
        )
    elif line is None or language in _TO_ARROW_TABLE:
        line = (
            f"{_TO_ARROW_TABLE.get(language, '')}columns = {{**dict(zip(table.column_names, "
            f"table.columns)), {name!r}: [None if cell is None else {load_expression} for cell in "
            f"table[{name!r}].to_pylist()]}}"
        )
    return (
        f"{line}; to store bytes, create the group from a table without rows, where {name!r} "
        "is pa.binary(), and insert them"
    )


def _checked_int64(name: str, condition: str) -> str:
    column = quoted(name)
    hint = f"rows = rows.select('* REPLACE (CAST({column} AS VARCHAR) AS {column})')"
    return (
        f"CASE WHEN {column} IS NULL OR {condition.format(c=column)} THEN CAST({column} AS BIGINT) "
        f"ELSE {_error_call(f'Column {name!r} has integers of more than 64 bits.', hint)} END"
    )


def _error_call(problem: str, hint: str) -> str:
    text = f"{_PREFIX}{problem}\nHint: {hint}".replace("'", "''")
    return f"error('{text}')"


def _checked_microseconds(name: str) -> str:
    column = quoted(name)
    problem = f"Column {name!r} has times finer than a microsecond."
    return (
        f"CASE WHEN epoch_ns({column}) % 1000 <> 0 "
        f"THEN {_error_call(problem, nanoseconds_line('duckdb', name))} "
        f"ELSE make_timestamp(epoch_ns({column}) // 1000) END"
    )


def _is_unsupported(kind: Any, *, inside: bool = False) -> bool:
    if kind.id in _UNSUPPORTED_TYPES or (inside and kind.id in ("map", "uhugeint")):
        return True
    if kind.id not in ("list", "array", "struct"):
        return False
    children = [child for name, child in kind.children if name != "size" or kind.id != "array"]
    return any(_is_unsupported(child, inside=True) for child in children)


def _cast(kind: Any, value: str) -> str:
    """Return the expression that keeps the values of a column that is refused."""
    if kind.id == "map":
        return f"map_entries({value})"
    return f"CAST({value} AS {_type_with_strings(kind)})"


def _type_with_strings(kind: Any) -> str:
    """Return a type of DuckDB with texts where it has what cannot be stored."""
    if kind.id in ("list", "array"):
        children = dict(kind.children)
        size = children.get("size", "") if kind.id == "array" else ""
        return f"{_type_with_strings(children['child'])}[{size}]"
    if kind.id == "struct":
        fields = [f"{quoted(name)} {_type_with_strings(child)}" for name, child in kind.children]
        return f"STRUCT({', '.join(fields)})"
    return "VARCHAR" if _is_unsupported(kind, inside=True) else str(kind)
