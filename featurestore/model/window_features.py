"""Requests for aggregates of a feature over a window before each label's time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from featurestore.errors import InvalidArgument, InvalidReference, listing
from featurestore.model.durations import format_duration, parse_duration
from featurestore.model.references import FeatureReference, parse_reference

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


@dataclass(frozen=True)
class WindowFeature:
    """One aggregate: ``function`` over the feature's rows in ``(t - over, t]``.

    ``t`` is the label's time less ``offset``; ``over`` None has no beginning.
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
    """Return an aggregate for ``get_features``, computed as of each label's time.

    Args:
        feature: ``"group.column"``.
        function: "sum", "count", "mean", "min", "max", "std", "var", "first", "last",
            "count_distinct", "any", "all", or "last_n" (a list of the newest values, newest last).
        over: Rows of ``(t - over, t]`` count, ``t`` being the label's time: a duration, or None for
            all rows up to then.
        offset: Ends the window so long before the label's time.
        where: A condition on the group's rows; the others do not count.
        name: Of the result; ``amount_sum_7d`` for the sum of ``amount`` over seven days.
        key: Columns of the group that the labels are matched on, where that is not all of its
            primary key.
        fill_value: The value if no row counts, instead of null.
        n: How many values "last_n" keeps.

    Raises:
        InvalidArgument: The function or the duration means nothing.

    >>> window("transactions.amount", "sum", over="7d").name
    'amount_sum_7d'
    """
    reference = _reference(feature)
    _check_function(function, n)
    length = None
    if over is not None:
        length = _positive(over)
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
        where=where,
        name=result_name,
        key=columns,
        fill_value=fill_value,
        n=n or 0,
    )


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
    """Return one aggregate for each function and each length of the window.

    >>> [each.name for each in windows("transactions.amount", ["mean", "max"], over=["1h", None])]
    ['amount_mean_1h', 'amount_mean', 'amount_max_1h', 'amount_max']
    """
    names = [functions] if isinstance(functions, str) else list(functions)
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
    """Return the aggregate that a text such as ``"transactions.amount|sum|7d"`` spells.

    >>> parse_window("transactions.amount|count|all as purchases").name
    'purchases'
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InvalidReference(
            f"{text!r} is no aggregate over a window.",
            hint="'group.column|sum|7d', or 'group.column|sum|all'",
        )
    over = None
    if match["over"] != "all":
        over = match["over"]
    return window(match["feature"].strip(), match["function"], over=over, name=match["name"])  # type: ignore[arg-type]


def _reference(feature: str) -> FeatureReference:
    reference = parse_reference(feature)
    if reference.group is None or reference.is_star or reference.alias is not None:
        raise InvalidReference(
            f"{feature!r} does not name one feature of one group.",
            hint="window('group.column', 'sum', over='7d', name='...')",
        )
    return reference


def _check_function(function: str, n: int | None) -> None:
    allowed = get_args(WindowFunction)
    if function not in allowed:
        raise InvalidArgument(
            f"function={function!r} is not one of {listing(allowed)}.",
            hint="function='sum'",
        )
    if function == "last_n" and (n is None or n < 1):
        raise InvalidArgument("last_n needs to know how many values to keep.", hint="n=10")
    if function != "last_n" and n is not None:
        raise InvalidArgument(f"n= is for 'last_n', not for {function!r}.", hint="leave n out")


def _positive(over: timedelta | str) -> timedelta:
    length = parse_duration(over, argument="over")
    if not timedelta(0) < length <= _LONGEST:
        raise InvalidArgument(
            f"over={over!r} is no window: it has to be longer than zero and at most "
            f"{_LONGEST.days:,} days.",
            hint="over='7d', or over=None for all rows before the label",
        )
    return length


def _default_name(
    column: str, function: str, over: timedelta | None, offset: timedelta, n: int | None
) -> str:
    words = [column, function]
    if function == "last_n":
        words = [column, f"last_{n}"]
    if over is not None:
        words.append(format_duration(over))
    if offset:
        words += ["before", format_duration(offset)]
    return "_".join(words)
