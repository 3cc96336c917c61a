"""Requests: frozen arguments of public calls with many parameters, including split rules.

A request is built once at the facade and passed down unchanged. It has the arguments and defaults
of the call; the package that handles the request validates it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from featurestore.errors import InvalidSplit
from featurestore.model.names import check_name
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.plan import JoinKind
from featurestore.model.times import parse_moment
from featurestore.model.window_features import WindowFeature

# A feature reference, an aggregate from ``window(...)``, or an on-demand feature.
RequestedFeature = str | WindowFeature | OnDemandFeature
# A column, or one time for all labels.
LabelTime = str | datetime | date
AsOf = datetime | str | Mapping[str, int | datetime | str]
Keys = str | Sequence[str] | Mapping[str, str]
JoinKey = Keys | Mapping[str, Keys]


@dataclass(frozen=True, kw_only=True)
class RowsRequest:
    """The rows for which features are retrieved: the arguments of ``FeatureView.get_features``."""

    labels: object | None = None
    label_time: LabelTime | None = None
    as_of: AsOf | None = None


@dataclass(frozen=True, kw_only=True)
class RetrievalRequest(RowsRequest):
    """The arguments of ``FeatureStore.get_features``, except the form of the result."""

    features: RequestedFeature | Sequence[RequestedFeature]
    versions: Mapping[str, int] | None = None
    join_key: JoinKey | None = None
    join: JoinKind = "left"
    include_keys: bool = False
    created_time_filter: bool = True


@dataclass(frozen=True, kw_only=True)
class ViewRequest:
    """The arguments of ``FeatureStore.create_feature_view``, except the version."""

    name: str
    features: RequestedFeature | Sequence[RequestedFeature | Mapping[str, Any]]
    labels: str | None = None
    label: str | Sequence[str] | None = None
    label_time: str | None = None
    transformations: Mapping[str, Any] | None = None
    description: str = ""
    tags: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """The arguments of ``FeatureStore.create_training_dataset``, except data and callback."""

    name: str
    label: str | Sequence[str] | None = None
    features: str | Sequence[str] | None = None
    exclude: str | Sequence[str] | None = None
    weight: str | None = None
    data_format: str = "tfrecord"
    splits: Mapping[str, float] | TimeSplit | None = None
    split_by: str | Sequence[str] | None = None
    stratify: str | Sequence[str] | None = None
    seed: int = 0
    key: str | Sequence[str] | None = None
    shards: int | None = None
    rows_per_shard: int | None = None
    block_rows: int | None = None
    version: int | None = None
    compression: str | None = None
    max_lengths: Mapping[str, int] | None = None
    description: str = ""
    tags: Mapping[str, str] | None = None
    expectations: object = None
    validation: str = "strict"
    statistics: bool = True
    transformations: Mapping[str, Any] | None = None
    fit_on: str = "train"
    missing_labels: str = "error"


@dataclass(frozen=True, init=False)
class TimeSplit:
    """A split by time: each split is ``[start, end)`` on ``column``; None means unbounded.

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
        # The argument is a mapping, but the field is a tuple, so that the split is hashable.
        object.__setattr__(self, "column", column)
        object.__setattr__(self, "ranges", tuple(parsed))
        _check_ranges(self)


@dataclass(frozen=True)
class FractionSplit:
    """A split by row hash: named fractions that sum to 1, in order."""

    fractions: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        fractions = []
        for name, fraction in self.fractions:
            check_name(name, noun="split")
            number = _to_number(fraction)
            if number is None or not number > 0:
                raise InvalidSplit(
                    f"Split {name!r} has fraction {fraction!r}.",
                    hint="fractions are above 0 and at most 1; a split by time is "
                    "splits=featurestore.TimeSplit('time', {'train': (None, t), 'test': (t, None)})",
                )
            fractions.append((name, number))
        object.__setattr__(self, "fractions", tuple(fractions))
        # Decimal fractions are inexact in binary, so their sum may differ from 1 by rounding
        # errors.
        total = math.fsum(fraction for _, fraction in self.fractions)
        if not self.fractions or abs(total - 1) > 1e-9:
            raise InvalidSplit(
                f"The fractions of the splits sum to {total:g}, not 1: {dict(self.fractions)!r}.",
                hint=f"splits={_scale_fractions(self.fractions, total)!r}",
            )


def _to_number(fraction: object) -> float | None:
    """Return the number of a value, also of numpy; None if it is not one. Booleans are not numbers."""
    if type(fraction) in (int, float):
        return fraction  # type: ignore[return-value]
    import pyarrow as pa

    from featurestore.arrow.values import ConversionError, to_value

    try:
        number: float | None = to_value(fraction, pa.float64())
    except ConversionError:
        return None
    return number


def _check_ranges(split: TimeSplit) -> None:
    """Refuse ranges that are empty or overlap."""
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
                    hint="ranges are [start, end): start one range where the other ends",
                )


def _scale_fractions(fractions: tuple[tuple[str, float], ...], total: float) -> dict[str, float]:
    """Scale fractions so that they sum to 1; 80 and 20 become 0.8 and 0.2.

    >>> _scale_fractions((("train", 80), ("test", 20)), 100)
    {'train': 0.8, 'test': 0.2}
    """
    if not fractions:
        return {"train": 0.8, "test": 0.2}
    scaled = {}
    for name, fraction in fractions[:-1]:
        scaled[name] = round(fraction / total, 4)
    # The last fraction takes the rounding errors, so that the suggested fractions sum to 1.
    scaled[fractions[-1][0]] = round(1 - math.fsum(scaled.values()), 4)
    return scaled
