"""Conversion of values to JSON: ISO 8601 times, decimals and bytes as strings, no NaN."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from featurestore.model.durations import format_duration


def jsonable(value: Any) -> Any:
    """Convert a value to JSON types.

    >>> jsonable({"at": datetime(2013, 1, 1), "x": float("nan"), "b": b"ab"})
    {'at': '2013-01-01T00:00:00', 'x': 'NaN', 'b': 'YWI='}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _non_finite_text(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(name): jsonable(each) for name, each in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return list(map(jsonable, value))
    return str(value)


def _non_finite_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
