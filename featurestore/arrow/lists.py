"""Lists of names and values from the collections of any library."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from itertools import islice
from typing import Any

from featurestore.errors import LimitExceeded

# Iterators may be infinite, so the number of their items is bounded.
MAX_ITERATOR_ITEMS = 1_000_000
# Methods that return the items of an array or column as Python values: NumPy, pandas, torch and
# JAX; polars and Dask; Arrow.
_METHODS = ("tolist", "to_list", "to_pylist")


def as_list(values: object) -> list[Any] | None:
    """Return the items of a collection, or None for a value that is not a list of items.

    Sequences, sets, views of dicts, iterators, and one-dimensional arrays and columns of any
    library are lists of items. Strings, mappings, tables and arrays of other dimensions are not.
    The items of a set are sorted, because their order may differ between processes. NumPy scalars
    become Python values.

    >>> as_list(("b", "a")), as_list({"b", "a"}), as_list({"a": 1}.keys())
    (['b', 'a'], ['a', 'b'], ['a'])
    >>> as_list("ab"), as_list({"a": 1}), as_list(3)
    (None, None, None)

    Raises:
        LimitExceeded: An iterator has more than a million items.
    """
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping):
        return None
    if isinstance(values, Sequence | KeysView | ValuesView):
        return list(map(_to_python, values))
    if isinstance(values, Set):
        items = list(map(_to_python, values))
        try:
            return sorted(items)
        except (TypeError, ArithmeticError):  # values of several types, or a decimal NaN
            return sorted(items, key=repr)
    if isinstance(values, Iterator):
        items = list(islice(values, MAX_ITERATOR_ITEMS + 1))
        if len(items) > MAX_ITERATOR_ITEMS:
            raise LimitExceeded(f"An iterator has more than {MAX_ITERATOR_ITEMS:,} items.")
        return list(map(_to_python, items))
    return array_items(values)


def to_plain_lists(value: Any, *, levels: int = 3) -> Any:
    """Convert the collections in an argument to lists, up to some levels of lists and dicts.

    >>> to_plain_lists({"column": "size", "value_set": ("S", "M")})
    {'column': 'size', 'value_set': ['S', 'M']}
    """
    if levels == 0:
        return value
    if isinstance(value, Mapping):
        return {key: to_plain_lists(item, levels=levels - 1) for key, item in value.items()}
    items = as_list(value)
    if items is None:
        return value
    return [to_plain_lists(item, levels=levels - 1) for item in items]


def array_items(array: Any) -> list[Any] | None:
    """Return the items of a one-dimensional array or column, None for other values."""
    # Attributes of the type: a Spark column has every attribute.
    methods = [name for name in _METHODS if callable(getattr(type(array), name, None))]
    is_table = hasattr(type(array), "columns")
    if not methods or is_table or getattr(array, "ndim", 1) != 1:
        return None
    # NumPy converts nanoseconds to integers.
    if type(array).__module__ == "numpy" and array.dtype.kind == "M":
        array = array.astype("datetime64[us]")
    items = getattr(array, methods[0])()
    return list(map(_to_python, items)) if isinstance(items, list) else None


def _to_python(item: Any) -> Any:
    """Return a Python value for a NumPy scalar."""
    if type(item).__module__ != "numpy" or getattr(item, "ndim", None) != 0:
        return item
    if item.dtype.kind == "M":
        return item.astype("datetime64[us]").item()
    return item.item()
