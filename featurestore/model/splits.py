"""Split rules of training datasets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from featurestore.errors import InvalidSplit
from featurestore.model.names import check_name
from featurestore.model.times import parse_moment


@dataclass(frozen=True, init=False)
class TimeSplit:
    """Splits by time: each split is ``[start, end)`` on ``column``; None leaves an end open.

    >>> october = "2013-10-01T00:00:00Z"
    >>> TimeSplit("hour", {"train": (None, october), "test": (october, None)}).column
    'hour'
    """

    column: str
    ranges: tuple[tuple[str, datetime | None, datetime | None], ...]

    def __init__(
        self, column: str, ranges: Mapping[str, tuple[datetime | str | None, datetime | str | None]]
    ) -> None:
        parsed = []
        for name, (start, end) in ranges.items():
            check_name(name, noun="split")
            if start is not None:
                start = parse_moment(start, argument=f"{name} start")
            if end is not None:
                end = parse_moment(end, argument=f"{name} end")
            parsed.append((name, start, end))
        object.__setattr__(self, "column", column)
        object.__setattr__(self, "ranges", tuple(parsed))
        _check_ranges(self)


@dataclass(frozen=True)
class FractionSplit:
    """Splits by row hash: named fractions that sum to 1, in order."""

    fractions: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        for name, fraction in self.fractions:
            check_name(name, noun="split")
            if not (isinstance(fraction, int | float) and fraction > 0):
                raise InvalidSplit(
                    f"Split {name!r} has fraction {fraction!r}.",
                    hint="fractions are above 0 and at most 1",
                )
        total = math.fsum(fraction for _, fraction in self.fractions)
        if not self.fractions or abs(total - 1) > 1e-9:
            raise InvalidSplit(
                f"The fractions of the splits sum to {total:g}, not 1: {dict(self.fractions)!r}.",
                hint=f"splits={_scaled(self.fractions, total)!r}",
            )


def _scaled(fractions: tuple[tuple[str, float], ...], total: float) -> dict[str, float]:
    """Return fractions of the same proportions that sum to 1; 80 and 20 become 0.8 and 0.2.

    >>> _scaled((("train", 80), ("test", 20)), 100)
    {'train': 0.8, 'test': 0.2}
    """
    if not fractions:
        return {"train": 0.8, "test": 0.2}
    scaled = {}
    for name, fraction in fractions[:-1]:
        scaled[name] = round(fraction / total, 4)
    scaled[fractions[-1][0]] = round(1 - math.fsum(scaled.values()), 4)
    return scaled


def _check_ranges(split: TimeSplit) -> None:
    if not split.ranges:
        raise InvalidSplit(
            "TimeSplit has no ranges.",
            hint="TimeSplit('time', {'train': (None, t1), 'test': (t1, None)})",
        )
    for name, start, end in split.ranges:
        if start is not None and end is not None and start >= end:
            raise InvalidSplit(f"Split {name!r} is empty: it starts at {start} and ends at {end}.")
    for index, (name, start, end) in enumerate(split.ranges):
        for other_name, other_start, other_end in split.ranges[index + 1 :]:
            begins_before = other_end is None or start is None or start < other_end
            ends_after = end is None or other_start is None or other_start < end
            if begins_before and ends_after:
                raise InvalidSplit(
                    f"Splits {name!r} and {other_name!r} overlap.",
                    hint="ranges are [start, end): let one begin where the other ends",
                )
