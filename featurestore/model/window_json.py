"""Aggregates over windows as JSON: in job definitions, feature views, plans and manifests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

import numpy as np

from featurestore.errors import FeatureStoreError, InvalidArgument
from featurestore.model.json_object import JsonObject, MalformedJson, parsing
from featurestore.model.window_features import WindowFeature, window

_MICROSECOND = timedelta(microseconds=1)
# What JSON has no value for is an object of one entry: its kind and its text.
_KINDS: Mapping[str, Callable[[str], Any]] = {
    "decimal": Decimal,
    "float": float,
    "time": datetime.fromisoformat,
    "date": date.fromisoformat,
    "bytes": bytes.fromhex,
}


def window_to_json(feature: WindowFeature) -> dict[str, Any]:
    """Return an aggregate as the JSON object that ``window_from_json`` reads back equal."""
    key = None
    if feature.key is not None:
        key = list(feature.key)
    return {
        "feature": str(feature.reference),
        "function": feature.function,
        "over_us": micros(feature.over),
        "offset_us": micros(feature.offset),
        "where": feature.where,
        "name": feature.name,
        "key": key,
        "fill_value": value_to_json(feature.fill_value),
        "n": feature.n,
    }


def window_from_json(data: JsonObject) -> WindowFeature:
    """Parse the output of ``window_to_json``; raise MalformedJson with the problem.

    >>> from featurestore.model.window_features import parse_window
    >>> wanted = parse_window("transactions.amount|sum|7d")
    >>> window_from_json(JsonObject(window_to_json(wanted))) == wanted
    True
    """
    over, key = None, None
    if data.get("over_us") is not None:
        over = timedelta(microseconds=data.number("over_us"))
    if data.get("key") is not None:
        key = data.texts("key")
    try:
        return window(
            data.text("feature"),
            data.text("function"),  # type: ignore[arg-type]
            over=over,
            offset=timedelta(microseconds=data.number("offset_us")),
            where=data.optional_text("where"),
            name=data.text("name"),
            key=key,
            fill_value=value_from_json(data.get("fill_value")),
            n=data.number("n") or None,
        )
    except (FeatureStoreError, OverflowError) as error:
        raise MalformedJson(f"{data.path or 'a window'}: {error}") from error


def micros(duration: timedelta | None) -> int | None:
    """Return a duration in microseconds."""
    if duration is None:
        return None
    return duration // _MICROSECOND


def value_to_json(value: Any) -> Any:
    """Return a value of a feature as JSON.

    >>> value_to_json(Decimal("1.50"))
    {'decimal': '1.50'}

    Raises:
        InvalidArgument: No feature has such values.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, datetime):
        return {"time": value.isoformat()}
    if isinstance(value, date):
        return {"date": value.isoformat()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list | tuple):
        return list(map(value_to_json, value))
    raise InvalidArgument(
        f"fill_value={value!r} is a {type(value).__name__}, which is no value of a feature.",
        hint="numbers, texts, booleans, bytes, decimals, times and lists of these",
    )


def value_from_json(data: Any) -> Any:
    """Return the value that ``value_to_json`` wrote; MalformedJson for anything else."""
    if isinstance(data, list):
        return list(map(value_from_json, data))
    if not isinstance(data, Mapping):
        return data
    with parsing("fill_value"):
        ((kind, text),) = data.items()
        return _KINDS[kind](text)
