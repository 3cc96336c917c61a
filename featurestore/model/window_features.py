"""Window aggregates of a feature before each label time: requests, JSON and lineage.

Job definitions, feature views, plans and manifests store them as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP
from featurestore.arrow.values import ConversionError, to_value
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    InvalidReference,
    listing,
    suggest_spelling,
)
from featurestore.model.arguments import with_suggestions
from featurestore.model.display import escape_line
from featurestore.model.json_object import (
    JsonDict,
    JsonMapping,
    JsonObject,
    MalformedJson,
    translate_parse_errors,
)
from featurestore.model.names import FeatureReference, format_group_reference, parse_reference
from featurestore.model.records import Codec, Record, Version
from featurestore.model.times import format_duration, parse_duration

WindowFunction = Literal[
    "sum", "count", "mean", "min", "max", "std", "var", "first", "last",
    "count_distinct", "any", "all", "last_n",
]  # fmt: skip
Over = timedelta | str | None

_LONGEST = timedelta(days=365_000)
_TEXT = re.compile(
    r"(?P<feature>[^|]+)\|\s*(?P<function>\w+)\s*\|\s*(?P<over>[^|\s]+)"
    r"(?:\s+as\s+(?P<name>[A-Za-z_][A-Za-z0-9_]*))?\s*",
    re.IGNORECASE,
)

_MICROSECOND = timedelta(microseconds=1)
# Values without a JSON equivalent are objects with one entry: kind and string.
_KINDS: Mapping[str, Callable[[str], Any]] = {
    "decimal": Decimal,
    "float": float,
    "time": datetime.fromisoformat,
    "date": date.fromisoformat,
    "bytes": bytes.fromhex,
}


@dataclass(frozen=True)
class WindowFeature:
    """An aggregate ``function`` over the feature rows in ``(t - over, t]``.

    ``t`` is the label time minus ``offset``; if ``over`` is None, the window has no start.
    """

    reference: FeatureReference
    function: WindowFunction
    over: timedelta | None
    offset: timedelta = timedelta(0)
    where: str | None = None
    name: str = ""
    key: tuple[str, ...] | None = None
    fill_value: object = None
    n: int = 0

    def __str__(self) -> str:
        over = "all"
        if self.over is not None:
            over = format_duration(self.over)
        return f"{self.reference}|{self.function}|{over}"


def _checked_condition(condition: object) -> str | None:
    if condition is not None and not isinstance(condition, str):
        raise InvalidArgument(
            f"where={condition!r} is not a condition.", hint="where=\"kind = 'purchase'\""
        )
    return condition


@with_suggestions
def window(
    feature: str,
    function: WindowFunction,
    *,
    over: Over,
    offset: timedelta | str | None = None,
    where: str | None = None,
    name: str | None = None,
    key: str | Sequence[str] | None = None,
    fill_value: object = None,
    n: int | None = None,
) -> WindowFeature:
    """Return a window aggregate for ``get_features``, computed as of each label time.

    Args:
        feature: ``"group.column"``.
        function: "sum", "count", "mean", "min", "max", "std", "var", "first", "last",
            "count_distinct", "any", "all", or "last_n" (a list of the newest values, newest last).
        over: The window length: rows in ``(t - over, t]`` are included, where ``t`` is the label
            time. None includes all rows up to the label time.
        offset: The duration by which the window ends before the label time.
        where: A condition on the group's rows; other rows are excluded.
        name: The column name; the default for the sum of ``amount`` over seven days is
            ``amount_sum_7d``.
        key: The group columns that labels are matched on, if not the complete primary key.
        fill_value: The value if the window has no rows, instead of null; for "last_n" the value of
            each missing element. Must fit the type of the result; counts are 0 without rows.
        n: The number of values of "last_n".

    Raises:
        InvalidArgument: The function or the duration is invalid.

    >>> window("transactions.amount", "sum", over="7d").name
    'amount_sum_7d'
    """
    reference = _parse_feature_reference(feature)
    _check_function(function, n)
    length = None
    if over is not None:
        length = _parse_length(over)
    distance = timedelta(0)
    if offset is not None:
        distance = parse_duration(offset, argument="offset")
    columns = None
    if key is not None:
        columns = (key,) if isinstance(key, str) else tuple(key)
    result_name = name or _default_name(reference.feature, function, length, distance, n)
    return WindowFeature(
        reference=reference,
        function=function,
        over=length,
        offset=distance,
        where=_checked_condition(where),
        name=result_name,
        key=columns,
        fill_value=fill_value,
        n=n or 0,
    )


@with_suggestions
def windows(
    feature: str,
    functions: WindowFunction | Sequence[WindowFunction],
    *,
    over: Over | Sequence[Over],
    offset: timedelta | str | None = None,
    where: str | None = None,
    key: str | Sequence[str] | None = None,
    fill_value: object = None,
    n: int | None = None,
) -> list[WindowFeature]:
    """Return one window aggregate for each combination of function and window length.

    >>> [each.name for each in windows("transactions.amount", ["mean", "max"], over=["1h", None])]
    ['amount_mean_1h', 'amount_mean', 'amount_max_1h', 'amount_max']
    """
    names = [functions] if isinstance(functions, str) else list(functions)
    # None is a window length here: all rows up to the label time.
    lengths = [over] if over is None or isinstance(over, str | timedelta) else list(over)
    features = []
    for function in names:
        for length in lengths:
            features.append(
                window(
                    feature,
                    function,
                    over=length,
                    offset=offset,
                    where=where,
                    key=key,
                    fill_value=fill_value,
                    n=n,
                )
            )
    return features


def parse_window(text: str) -> WindowFeature:
    """Parse a window aggregate such as ``"transactions.amount|sum|7d"``.

    >>> parse_window("transactions.amount|count|all as purchases").name
    'purchases'
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InvalidReference(
            f"{text!r} is not a window aggregate.",
            hint="'group.column|sum|7d', or 'group.column|sum|all'",
        )
    over = None
    if match["over"] != "all":
        over = match["over"]
    return window(match["feature"].strip(), match["function"], over=over, name=match["name"])  # type: ignore[arg-type]


def window_to_json(feature: WindowFeature) -> JsonDict:
    """Convert an aggregate to a JSON object, the inverse of ``window_from_json``."""
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
    """Parse the output of ``window_to_json``; raise MalformedJson if it is invalid.

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
        raise MalformedJson(f"is not a window: {error}", data.path) from error


def micros(duration: timedelta | None) -> int | None:
    """Convert a duration to microseconds."""
    if duration is None:
        return None
    return duration // _MICROSECOND


def _read_window(data: object) -> WindowFeature:
    return window_from_json(JsonObject.from_value(data))


WINDOW = Codec(_read_window, window_to_json)


def value_to_json(value: Any) -> Any:
    """Convert a feature value to JSON.

    >>> value_to_json(Decimal("1.50")), value_to_json({"x": 1})
    ({'decimal': '1.50'}, {'struct': {'x': 1}})

    Raises:
        InvalidArgument: Feature values cannot have this type, or not with this precision.
    """
    if isinstance(value, np.datetime64 | datetime):
        return _time_to_json(value)
    # NumPy's integers and booleans are not instances of Python's.
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not isfinite(value):
        return {"float": repr(value)}
    # Types that JSON represents without loss, after non-finite numbers are excluded.
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, date):
        return {"date": value.isoformat()}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, list | tuple | np.ndarray):
        return list(map(value_to_json, value))
    if isinstance(value, Mapping):
        return {"struct": {name: value_to_json(field) for name, field in value.items()}}
    raise InvalidArgument(
        f"fill_value={value!r} is a {type(value).__name__}, not a value of a feature.",
        hint="numbers, strings, booleans, bytes, decimals, times, lists and dicts of these",
    )


def _time_to_json(value: np.datetime64 | datetime) -> Any:
    """Convert a time, or a day of NumPy, to JSON."""
    is_day = isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] == "D"
    try:
        # NumPy and pandas may have nanoseconds, or no time.
        time = to_value(value, pa.date32() if is_day else TIMESTAMP)
    except ConversionError as error:
        raise InvalidArgument(
            f"fill_value={error}.", hint="use a time in microseconds, in the years 1 to 9999"
        ) from error
    if time is None:
        return None
    return {"date" if is_day else "time": time.isoformat()}


def value_from_json(data: Any) -> Any:
    """Parse the output of ``value_to_json``; raise MalformedJson if it is invalid."""
    if isinstance(data, list):
        return list(map(value_from_json, data))
    if not isinstance(data, Mapping):
        return data
    with translate_parse_errors("fill_value"):
        # Other objects raise an error, which becomes MalformedJson.
        ((value_type, content),) = data.items()
        if value_type == "struct":
            return {name: value_from_json(field) for name, field in content.items()}
        return _KINDS[value_type](content)


@dataclass(frozen=True)
class WindowLineage(Record):
    """The origin of a window aggregate column ``name`` of a plan, view, dataset or group."""

    name: str
    group: str
    version: Version | None
    column: str
    function: str
    over_us: int | None
    offset_us: int
    where: str | None

    def __str__(self) -> str:
        group = format_group_reference(self.group, self.version)
        over = None
        if self.over_us is not None:
            over = timedelta(microseconds=self.over_us)
        offset = timedelta(microseconds=self.offset_us)
        window = format_window(over, offset, time="t")
        text = f"{self.function}({self.column}) of {group} over {window}"
        if self.where is not None:
            text += f" where {self.where}"
        return escape_line(f"{self.name} = {text}")

    @classmethod
    def from_feature(cls, feature: WindowFeature, *, version: int | None) -> WindowLineage:
        """Return the lineage of a window aggregate of a group version."""
        return cls(
            name=feature.name,
            group=str(feature.reference.group),
            version=version,
            column=feature.reference.feature,
            function=feature.function,
            over_us=micros(feature.over),
            offset_us=micros(feature.offset) or 0,
            where=feature.where,
        )

    def to_json(self) -> JsonDict:
        """Return the JSON object of an aggregate, without its group."""
        data = super().to_json()
        del data["group"], data["version"]
        return data


def format_window(over: timedelta | None, offset: timedelta, *, time: str) -> str:
    """Format a window as an interval.

    >>> format_window(timedelta(days=7), timedelta(0), time="asked_at")
    '(asked_at - 7d, asked_at]'
    >>> format_window(None, timedelta(days=1), time="t")
    '(the first row, t - 1d]'
    """
    end, start = time, "the first row"
    if offset:
        end = f"{time} - {format_duration(offset)}"
    if over is not None:
        start = f"{time} - {format_duration(over + offset)}"
    return f"({start}, {end}]"


def parse_plan_windows(plan: JsonMapping, *, columns: Collection[str]) -> list[WindowLineage]:
    """Return the window aggregates among the result columns of a plan in JSON.

    Malformed entries are omitted: manifests may come from other stores.
    """
    lineages = [lineage for lineage in _iter_plan_windows(plan) if lineage.name in columns]
    return lineages


def parse_input_windows(inputs: Collection[object]) -> list[WindowLineage]:
    """Return the window aggregates in the inputs of a commit or a run."""
    lineages = []
    for input_record in inputs:
        if isinstance(input_record, Mapping) and isinstance(
            input_record.get("windows"), list | tuple
        ):
            group = input_record.get("source"), input_record.get("version")
            lineages += list(_parse_windows(*group, input_record["windows"]))
    return lineages


def _parse_feature_reference(feature: str) -> FeatureReference:
    reference = parse_reference(feature)
    if reference.group is None or reference.is_star or reference.alias is not None:
        raise InvalidReference(
            f"{feature!r} does not name one feature of one group.",
            hint="window('group.column', 'sum', over='7d', name='...')",
        )
    return reference


def _check_function(function: str, n: int | None) -> None:
    """Check the function, and that ``n`` is only passed to "last_n"."""
    allowed = get_args(WindowFunction)
    if function not in allowed:
        raise InvalidArgument(
            f"function={function!r} is not one of {listing(allowed, limit=len(allowed))}.",
            hint=suggest_spelling(function, allowed, write="function={!r}"),
        )
    if function == "last_n" and (n is None or n < 1):
        raise InvalidArgument("last_n requires n=, the number of values.", hint="n=10")
    if function != "last_n" and n is not None:
        raise InvalidArgument(
            f"n= is only valid for 'last_n', not for {function!r}.", hint="remove n="
        )


def _parse_length(over: timedelta | str) -> timedelta:
    """Parse a window length, which must be positive."""
    length = parse_duration(over, argument="over")
    if not timedelta(0) < length <= _LONGEST:
        raise InvalidArgument(
            f"over={over!r} is not a window: it must be longer than zero and at most "
            f"{_LONGEST.days:,} days.",
            hint="over='7d', or over=None for all rows before the label",
        )
    return length


def _default_name(
    column: str, function: str, over: timedelta | None, offset: timedelta, n: int | None
) -> str:
    """Return a column name that contains column, function, length and offset."""
    words = [column, function]
    if function == "last_n":
        words = [column, f"last_{n}"]
    if over is not None:
        words.append(format_duration(over))
    if offset:
        words += ["before", format_duration(offset)]
    return "_".join(words)


def _iter_plan_windows(plan: JsonMapping) -> Iterator[WindowLineage]:
    """Yield the window aggregates of a plan in JSON and of its input plans."""
    left_plan = plan.get("left_plan")
    if isinstance(left_plan, Mapping):
        yield from _iter_plan_windows(left_plan)
    for join in plan.get("windows") or ():
        if isinstance(join, Mapping) and isinstance(join.get("source"), Mapping):
            source = join["source"]
            yield from _parse_windows(
                source.get("featuregroup"), source.get("version"), join.get("outputs") or ()
            )


def _parse_windows(group: object, version: object, entries: Any) -> Iterator[WindowLineage]:
    """Yield the valid entries of a list of window aggregates."""
    for entry in entries:
        try:
            yield WindowLineage.from_json({**entry, "group": group, "version": version})
        except (MalformedJson, TypeError):
            continue
