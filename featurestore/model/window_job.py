"""The aggregates of a window job: its instants, the range of rows that it reads, and its inputs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated

from featurestore.errors import InvalidJob
from featurestore.model.job import WindowWork
from featurestore.model.json_object import MalformedJson, translate_parse_errors
from featurestore.model.names import FeatureReference
from featurestore.model.records import MICROSECONDS, Key, Record, Valid
from featurestore.model.times import Window, to_micros
from featurestore.model.window_features import (
    WINDOW,
    WindowFeature,
    WindowLineage,
)

_MICROSECOND = timedelta(microseconds=1)
# All event times in 64-bit microseconds.
_ALWAYS = (-(2**63), 2**63 - 1)
# Row counts that decide whether a key is written; the counts themselves are not stored.
_PRESENT = "__fs_present"


@dataclass(frozen=True)
class WindowJob(Record):
    """The aggregates of a window job.

    The job writes rows for the end of each schedule window and for every ``every`` interval before
    it within the window. ``keep_empty`` retains keys without rows in any window.
    """

    windows: tuple[Annotated[WindowFeature, WINDOW], ...]
    every: Annotated[timedelta, MICROSECONDS, Valid(bool, "positive"), Key("every_us")]
    keep_empty: bool

    @property
    def code(self) -> str:
        """The code string of the job definition, which ``from_work`` parses."""
        return json.dumps(self.to_json(), indent=1)

    @classmethod
    def from_work(cls, work: WindowWork) -> WindowJob:
        """Parse the aggregates of a window job.

        Raises:
            InvalidJob: The definition is invalid, for example in the registry of another store.
        """
        try:
            with translate_parse_errors("the aggregates"):
                return cls.from_json(json.loads(work.code))
        except (MalformedJson, RecursionError) as error:
            raise InvalidJob(
                f"The stored definition of job {work.options.job!r} cannot be read: {error}.",
                hint="featurestore job register path/to/jobs.py rewrites it",
            ) from error

    @property
    def lineage(self) -> list[WindowLineage]:
        """The lineage of the aggregates."""
        return [
            WindowLineage.from_feature(feature, version=feature.reference.version)
            for feature in self.windows
        ]

    def instants(self, window: Window) -> list[datetime]:
        """Return the instants for which a window has rows, in ascending order.

        With ``every`` of an hour, a day of 23 or 25 hours has as many instants; with a day, it has
        one.

        >>> from datetime import UTC
        >>> job = WindowJob((), timedelta(hours=6), keep_empty=False)
        >>> day = Window(datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC))
        >>> [at.hour for at in job.instants(day)]
        [6, 12, 18, 0]
        """
        count = max(1, round((window.end - window.start) / self.every))
        # Counted from the end, which always has rows; the start belongs to the previous window.
        times = [window.end - number * self.every for number in range(count)]
        return times[::-1]

    @property
    def lookback(self) -> timedelta | None:
        """The maximum age of the rows that an aggregate reads, or None if it is unlimited."""
        if self.keep_empty:
            return None
        longest = timedelta(0)
        for feature in self.windows:
            if feature.over is None:
                return None
            longest = max(longest, feature.over + feature.offset)
        return longest

    def event_time_range(self, window: Window) -> tuple[int, int]:
        """Return the event time range ``[first, last)`` that a window reads, in microseconds."""
        instants = self.instants(window)
        first = _ALWAYS[0]
        if self.lookback is not None:
            # Windows exclude their start.
            first = to_micros(instants[0] - self.lookback + _MICROSECOND)
        # The end is exclusive, and the last instant belongs to the range.
        return first, to_micros(instants[-1] + _MICROSECOND)

    def presence(
        self, event_times: dict[FeatureReference, FeatureReference]
    ) -> list[WindowFeature]:
        """Return row counts, at least one of which is positive if the key has rows to write.

        Args:
            event_times: The event time column of the group of each aggregated feature.
        """
        longest: dict[WindowFeature, WindowFeature] = {}
        for feature in self.windows:
            # Aggregates that differ only in function or window length share the count of the
            # longest window: it contains the rows of the shorter ones.
            count = replace(
                feature, reference=event_times[feature.reference], function="count", name="",
                fill_value=None, n=0,
            )  # fmt: skip
            # A key is written at every instant after its first row.
            if self.keep_empty:
                count = replace(count, over=None, offset=timedelta(0), where=None)
            same = replace(count, over=None)
            longest_count = longest.get(same)
            if longest_count is None or _has_longer_window(count, longest_count):
                longest[same] = count
        counts = [
            replace(feature, name=f"{_PRESENT}_{number}")
            for number, feature in enumerate(longest.values())
        ]
        return counts


def input_name(feature: WindowFeature) -> str:
    """Return the input name of an aggregate's group in a window job.

    >>> from featurestore.model.window_features import parse_window
    >>> input_name(parse_window("transactions@v2.amount|sum|7d"))
    'transactions_v2'
    """
    group, version = str(feature.reference.group), feature.reference.version
    return group if version is None else f"{group}_v{version}"


def _has_longer_window(first: WindowFeature, second: WindowFeature) -> bool:
    if second.over is None:
        return False
    return first.over is None or first.over > second.over
