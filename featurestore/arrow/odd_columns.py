"""Refusals: columns whose values Arrow or the store cannot hold, and the line that keeps the values.

Code below the front door raises ``Unstorable``; ``conversion_errors`` makes each error of a conversion an
``UnsupportedType`` with a hint in the words of the caller's library.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from featurestore.arrow.column_lines import TEXT, cell_line
from featurestore.errors import FeatureStoreError, UnsupportedType

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
        missing: The condition of cells without a value, if ``is None`` is not enough.
        cells: The cells in question, whose rows the message names; None if there are no cells.
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


def _missing_among(values: Sequence[Any]) -> str:
    """Return the condition of missing cells: None alone, unless pandas' are among them."""
    for cell in values:
        if type(cell).__name__ in ("NAType", "NaTType") or _is_nan(cell):
            return "pd.isna({v})"
    return ""


def _is_nan(cell: object) -> bool:
    return isinstance(cell, float) and cell != cell


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
