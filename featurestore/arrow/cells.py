"""Normalization of Python objects before Arrow converts them.

Arrow infers a column's type from its first cells and converts later cells to that type: a
datetime after a date loses its time of day, a string before bytes becomes bytes, and nanoseconds
are truncated. This module determines the kinds of all cells first, converts compatible kinds to
one representation, and refuses incompatible kinds.
"""

from __future__ import annotations

import datetime as dt
import enum
import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.arrays import (
    to_plain_array,
    to_python_cells,
    to_shaped_column,
    to_uniform_shape,
)
from featurestore.arrow.unstorable import Cell, Column, Unstorable, surrogates_error

# Types that Arrow converts without loss if all cells have the same type.
_PLAIN: tuple[frozenset[Any], ...] = (
    frozenset({str}),
    frozenset({float}),
    frozenset({int}),
    frozenset({bool}),
    frozenset({bytes}),
    # Arrow refuses integers that float64 cannot represent.
    frozenset({int, float}),
    frozenset({dt.date}),
    frozenset({dt.datetime}),
    frozenset({Decimal}),
    frozenset(),
)
_NUMBERS = {"int", "float"}
_NUMERIC = {*_NUMBERS, "numpy int", "numpy float", "longdouble"}
# Combinations of kinds that may share a column.
_COMPATIBLE = (_NUMBERS, {"int", "decimal"}, {"date", "datetime"}, {"list", "array"})
# Kinds without a feature type.
_UNSUPPORTED = frozenset(
    {
        "complex",
        "timedelta",
        "pandas Timedelta",
        "numpy timedelta64",
        "time",
        "Period",
        "Fraction",
        "set",
        "Enum",
        "numpy void",
        "collection",
        "object",
    }
)
_INT64_LIMIT = 2**63
_SUPPORTED_VALUES = "supported values are numbers, strings, bytes, times, lists, arrays and dicts"
_CATEGORIES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (np.bool_, "bool"),
    (np.timedelta64, "numpy timedelta64"),  # also a subclass of np.integer
    (np.integer, "numpy int"),
    (np.longdouble, "longdouble"),
    (np.floating, "numpy float"),
    (np.complexfloating, "complex"),
    (np.datetime64, "datetime64"),
    (np.void, "numpy void"),
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (complex, "complex"),
    (str, "text"),
    ((bytes, bytearray, memoryview), "bytes"),
    (Decimal, "decimal"),
    (dt.datetime, "datetime"),
    (dt.date, "date"),
    (dt.time, "time"),
    (dt.timedelta, "timedelta"),
    (Fraction, "Fraction"),
    (Mapping, "dict"),
    ((list, tuple), "list"),
    (np.ndarray, "array"),
    (pa.Scalar, "Arrow scalar"),
    ((pa.Array, pa.ChunkedArray), "Arrow array"),
    ((set, frozenset), "set"),
    (enum.Enum, "Enum"),
)


def cells_to_array(cells: Sequence[Cell], *, nan_is_null: bool = False) -> pa.Array:
    """Convert cells to an Arrow array of equal values; arrays and lists keep their shape.

    Args:
        cells: Python objects, one per row.
        nan_is_null: Whether NaN represents a missing value, as in pandas.

    Raises:
        Unstorable: The cells have incompatible kinds, or cannot be stored. Arrow raises one of
            ``CONVERSION_ERRORS`` for other cells.

    >>> noon = dt.datetime(2024, 1, 1, 12)
    >>> days = cells_to_array([dt.date(2024, 1, 1), noon])
    >>> days.to_pylist() == [dt.datetime(2024, 1, 1), noon]
    True
    """
    # The usual case: one pass over the types, and no conversion.
    if _cell_types(cells) in _PLAIN:
        return _build_array(cells, nan_is_null=nan_is_null)
    plain = _unwrap_scalars(cells)
    categories = classify_cells(plain)
    # Numeric arrays are copied as blocks; conversion to lists would create an object per item.
    if "array" in categories and categories <= {"array", "list"}:
        column = to_shaped_column(plain)
        if column is not None:
            return column
    plain = normalize_cells(plain)
    is_list = classify_cells(plain) == {"list"}
    # NaN is a value in a vector, and only a missing cell in a column of numbers.
    column = _build_array(plain, nan_is_null=nan_is_null and not is_list)
    shaped = to_uniform_shape(column) if is_list else None
    return column if shaped is None else shaped


def _build_array(cells: Sequence[Cell], *, nan_is_null: bool) -> pa.Array:
    """Convert cells of compatible kinds to an array."""
    try:
        return pa.array(cells, from_pandas=nan_is_null)
    # Arrow infers int64 for integers; uint64 contains those up to 2**64 - 1.
    except OverflowError:
        if _cell_types(cells) != {int}:
            raise
        return pa.array(cells, pa.uint64())


def normalize_cells(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Convert cells, also nested in lists and dicts, to objects that Arrow reads without loss.

    >>> normalize_cells([np.datetime64("2024-01-01T12"), None])
    [datetime.datetime(2024, 1, 1, 12, 0), None]

    Raises:
        Unstorable: The cells have incompatible kinds, or cannot be stored.
    """
    if _cell_types(cells) in _PLAIN:
        return _check_plain_cells(cells)
    cells = _unwrap_scalars(cells)
    categories = classify_cells(cells)
    for category in categories & _UNSUPPORTED:
        first = _find_first(cells, category)
        raise Unstorable(
            f"holds {type(first).__name__} values, which cannot be stored",
            cells=[first],
            # ``str`` of an arbitrary object would store its memory address.
            line=None if has_meaningful_string(first) else _SUPPORTED_VALUES,
        )
    if len(categories) > 1 and not any(categories <= compatible for compatible in _COMPATIBLE):
        raise _mixed_cells_error(cells, categories)
    if "datetime" in categories:
        return _dates_to_datetimes(cells)
    if "dict" in categories:
        return _normalize_dicts(cells)
    if "list" in categories or "array" in categories:
        return _normalize_lists(cells)
    return _check_plain_cells(cells)


def _check_plain_cells(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Refuse values inside of lists and dicts that Arrow refuses, which names the item itself."""
    types = _cell_types(cells)
    if types == {str}:
        texts = [cell for cell in cells if cell is not None]
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            raise surrogates_error(texts) from None
    integers = [cell for cell in cells if type(cell) is int] if int in types else []
    if types == {int, float}:
        rounded = [cell for cell in integers if int(float(cell)) != cell]
        if rounded:
            raise Unstorable("holds integers that float64 would round", cells=rounded[:1])
    if types == {int} and not -_INT64_LIMIT <= min(integers) <= max(integers) < _INT64_LIMIT:
        if min(integers) < 0 or max(integers) >= 2 * _INT64_LIMIT:
            raise Unstorable("holds integers of more than 64 bits", cells=[max(integers, key=abs)])
        return [None if cell is None else np.uint64(cell) for cell in cells]
    return cells


def _cell_types(cells: Sequence[Cell]) -> frozenset[Any]:
    return frozenset(map(type, cells)) - {NoneType}


def classify_cells(cells: Sequence[Cell]) -> set[str]:
    """Return the categories of cells (``cell_category``), without that of missing cells.

    >>> sorted(classify_cells([1, "a", None]))
    ['int', 'text']
    """
    return set(map(_classify_type, _cell_types(cells))) - {"missing"}


def cell_category(cell: object) -> str:
    """Return the category of a cell, such as a name in ``_CATEGORIES``.

    >>> cell_category(None), cell_category(1), cell_category({1})
    ('missing', 'int', 'set')
    """
    cell_type: Any = type(cell)
    return _classify_type(cell_type)


@lru_cache(maxsize=1024)
def _classify_type(cell_type: Any) -> str:
    # By name, since pandas may not be installed.
    name = cell_type.__name__
    if name in ("NAType", "NaTType", "NoneType"):
        return "missing"
    if name == "Timedelta" and cell_type.__module__.startswith("pandas"):
        return "pandas Timedelta"
    if name in ("Period", "Interval"):
        return name
    # Subclasses come first in the list: bool is an int, and datetime is a date.
    for types, category in _CATEGORIES:
        if issubclass(cell_type, types):
            # On some platforms, numpy's longdouble has 64 bits.
            return "numpy float" if issubclass(cell_type, np.float64) else category
    if hasattr(cell_type, "__array_interface__") or hasattr(cell_type, "__array__"):
        return "array"
    return "collection" if issubclass(cell_type, Collection) else "object"


def _unwrap_scalars(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Convert library scalars to Python objects, and missing values to None."""
    types = _cell_types(cells)
    categories = classify_cells(cells)
    if "Interval" in categories:
        _check_interval_sides(cells)
    simple: dict[type, Callable[[Any], Any]] = {}
    for cell_type in types:
        category = _classify_type(cell_type)
        if category in _SIMPLE:
            simple[cell_type] = _SIMPLE[category]
        elif category in ("numpy int", "numpy float") and len(types) > 1:
            simple[cell_type] = operator.methodcaller("item")
        if category in ("float", "numpy float") and not categories <= _NUMERIC:
            # NaN among values that are not numbers is the missing value of pandas.
            simple[cell_type] = lambda cell: None if cell != cell else cell
    if not simple:
        return cells
    changed = []
    for cell in cells:
        change = simple.get(type(cell))
        changed.append(cell if change is None else change(cell))
    return changed


def interval_side(cells: Column) -> str | None:
    """Return the side on which the intervals of a column are closed, or None without intervals.

    >>> interval_side([1, None]) is None
    True
    """
    dtype = getattr(cells, "dtype", None)
    categories = getattr(dtype, "categories", None)
    side = getattr(dtype if categories is None else categories.dtype, "closed", None)
    if side is None and (isinstance(cells, list) or str(dtype) == "object"):
        side = getattr(_find_first(cells, "Interval"), "closed", None)
    return side


def _check_interval_sides(cells: Sequence[Cell]) -> None:
    """Refuse intervals that are closed on different sides, which the stored bounds do not have."""
    firsts: dict[str, Any] = {}
    for cell in cells:
        if cell_category(cell) == "Interval":
            firsts.setdefault(cell.closed, cell)
    if len(firsts) > 1:
        raise Unstorable(
            "holds intervals that are closed on different sides",
            cells=list(firsts.values())[:2],
        )


def _datetime_from_datetime64(cell: Cell) -> Any:
    try:
        return to_python_cells(np.array([cell]))[0]
    except Unstorable as error:
        raise Unstorable(error.problem, cells=[cell]) from error


def _float_from_longdouble(cell: Cell) -> float:
    number = float(cell)
    if np.longdouble(number) != cell and cell == cell:
        raise Unstorable("holds numbers that float64 would round", cells=[cell])
    return number


_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "missing": lambda cell: None,
    "longdouble": _float_from_longdouble,
    "datetime64": _datetime_from_datetime64,
    "Arrow scalar": lambda cell: cell.as_py(),
    "Arrow array": lambda cell: cell.to_pylist(),
    "Interval": lambda cell: {"left": cell.left, "right": cell.right},
}


def has_meaningful_string(cell: object) -> bool:
    """Return whether the string of an object is more than its memory address."""
    return hex(id(cell)) not in str(cell) and not callable(cell)


def _find_first(cells: Sequence[Cell], category: str) -> Any:
    for cell in cells:
        if cell_category(cell) == category:
            return cell
    return None


def _mixed_cells_error(cells: Sequence[Cell], categories: set[str]) -> Unstorable:
    """Return the error for cells of incompatible kinds, with an example of each."""
    firsts: dict[str, Any] = {}
    for cell in cells:
        category = cell_category(cell)
        if category != "missing" and category not in firsts:
            firsts[category] = cell
    line = None
    if "array" in categories:
        line = "use arrays of the same shape in all rows, and None for missing arrays"
    return Unstorable(
        "holds values of more than one type", cells=list(firsts.values())[:2], line=line
    )


def _dates_to_datetimes(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Convert dates to midnight; refuse times with a precision finer than a microsecond."""
    for cell in cells:
        # ``pandas.Timestamp`` is a datetime with nanoseconds, which Arrow would drop.
        if getattr(cell, "nanosecond", 0):
            raise Unstorable("has times finer than a microsecond", cells=[cell])
    if "date" not in classify_cells(cells):
        return cells
    instants: list[Cell] = []
    for cell in cells:
        if cell is not None and not isinstance(cell, dt.datetime):
            cell = dt.datetime(cell.year, cell.month, cell.day)
        instants.append(cell)
    return instants


def _normalize_lists(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Normalize the items of lists; columns of numeric vectors remain arrays."""
    categories = classify_cells(cells)
    if categories == {"array"} and all(map(_is_vector_of_numbers, cells)):
        return cells
    lists = [_to_list(cell) for cell in cells]
    # All items of the column together, since they must have one type.
    items = list(itertools.chain.from_iterable(values for values in lists if values is not None))
    try:
        normal = normalize_cells(items)
    except Unstorable as error:
        raise Unstorable(
            _describe_nested(error.problem, "lists"), cells=error.cells, line=error.line
        ) from error
    # ``normalize_cells`` returns its argument if nothing has to change.
    if normal is items:
        return cells if categories == {"list"} else lists
    remaining_items = iter(normal)
    rebuilt: list[Cell] = [
        None if values is None else list(itertools.islice(remaining_items, len(values)))
        for values in lists
    ]
    return rebuilt


def _normalize_dicts(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Normalize the values of dicts, key by key."""
    present = [cell for cell in cells if cell is not None]
    keys = dict.fromkeys(itertools.chain.from_iterable(present))
    columns: dict[str, Sequence[Cell]] = {}
    is_changed = False
    for key in keys:
        if not isinstance(key, str):
            raise Unstorable(f"has dicts whose keys are not strings, for example {key!r}")
        # A key that a dict lacks is null, as in a struct.
        values = [cell.get(key) for cell in present]
        try:
            columns[key] = normalize_cells(values)
        except Unstorable as error:
            raise Unstorable(
                _describe_nested(error.problem, f"dicts, as {key!r}"),
                cells=error.cells,
                line=error.line,
            ) from error
        is_changed = is_changed or columns[key] is not values
    if not is_changed:
        return cells
    rebuilt: list[Cell] = []
    rows = zip(*columns.values(), strict=True)
    for cell in cells:
        if cell is None:
            rebuilt.append(None)
        else:
            rebuilt.append(dict(zip(columns, next(rows, ()), strict=False)))
    return rebuilt


def _describe_nested(problem: str, container: str) -> str:
    return problem if " inside " in problem else f"{problem}, inside {container}"


def _to_list(cell: Cell) -> Any:
    if cell is None or isinstance(cell, list | tuple):
        return cell
    return to_python_cells(np.asanyarray(cell))


def _is_vector_of_numbers(cell: Cell) -> bool:
    if cell is None:
        return True
    is_vector = isinstance(cell, np.ndarray) and cell.ndim == 1 and cell.dtype.kind in "biuf"
    return is_vector and to_plain_array(cell) is cell
