"""Columns that cannot be taken as they are: what is wrong with them, and the line to paste."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from featurestore.errors import UnsupportedType

_SHOWN = 60
# Kinds of numpy and pandas that have no feature type, and what keeps their values.
_CASTS = {
    "complex": "df['{0}_real'], df['{0}_imag'] = df[{0!r}].to_numpy().real, "
    "df[{0!r}].to_numpy().imag; df = df.drop(columns={0!r})",
    "timedelta": "df[{0!r}] = df[{0!r}].dt.total_seconds()",
    "period": "df[{0!r}] = df[{0!r}].dt.to_timestamp()",
    "decimal": "df[{0!r}] = df[{0!r}].astype(float)",
}


def refusal(name: str, values: Iterable[Any], *, dtype: object = None) -> UnsupportedType:
    """Return the error for a column that Arrow refuses: the rows to look at, and what to paste.

    >>> print(refusal("a", [1, "x", None]))
    Column 'a' holds values of more than one type: row 0 is int (1), row 1 is str ('x').
    Hint: df['a'] = pd.to_numeric(df['a'], errors='coerce') makes other values null, ...
    """
    kind = _kind(dtype)
    if kind is not None:
        return UnsupportedType(
            f"Column {name!r} has type {dtype}, which cannot be stored.",
            hint=_CASTS[kind].format(name),
        )
    first: dict[type, tuple[int, Any]] = {}
    for row, value in enumerate(values):
        if value is not None and value == value and type(value) not in first:  # not NaN
            first[type(value)] = (row, value)
    if len(first) > 1:
        told = []
        for found, (row, value) in list(first.items())[:2]:
            told.append(f"row {row} is {found.__name__} ({repr(value)[:_SHOWN]})")
        return UnsupportedType(
            f"Column {name!r} holds values of more than one type: {', '.join(told)}.",
            hint=f"df[{name!r}] = pd.to_numeric(df[{name!r}], errors='coerce') makes other values "
            f"null, df[{name!r}] = df[{name!r}].astype(str) makes all of them texts, "
            f"df = df.drop(columns={name!r}) leaves the column out",
        )
    if not first:
        return UnsupportedType(
            f"Column {name!r} cannot be stored.", hint=f"df = df.drop(columns={name!r})"
        )
    (found, (row, value)) = next(iter(first.items()))
    if found.__name__ in _CASTS:
        hint = _CASTS[found.__name__].format(name)
    elif found is int:
        hint = f"df[{name!r}] = df[{name!r}].astype(float), or as texts: .astype(str)"
    else:
        hint = f"as texts: df[{name!r}] = df[{name!r}].astype(str)"
    return UnsupportedType(
        f"Column {name!r} holds {found.__name__} values that cannot be stored, for example in "
        f"row {row}: {repr(value)[:_SHOWN]}.",
        hint=hint,
    )


def check_dtype(name: str, dtype: object) -> None:
    """Refuse a pandas type whose meaning would be lost, such as a month stored as a number.

    Raises:
        UnsupportedType: Names the cast to paste.
    """
    if _kind(dtype) is not None:
        raise refusal(name, (), dtype=dtype)


def _kind(dtype: object) -> str | None:
    text = str(dtype)
    for kind in ("complex", "timedelta", "period"):
        if text.startswith(kind):
            return kind
    return None
