"""Window jobs: aggregates, instants and keys that they write."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from featurestore.errors import InvalidJob
from featurestore.model.job import JobSpec
from featurestore.model.json_object import JsonObject, MalformedJson, parsing
from featurestore.model.references import FeatureReference
from featurestore.model.times import to_micros
from featurestore.model.window import Window
from featurestore.model.window_features import WindowFeature
from featurestore.model.window_json import micros, window_from_json, window_to_json
from featurestore.model.window_lineage import WindowLineage

_MICROSECOND = timedelta(microseconds=1)
_ALWAYS = (-(2**63), 2**63 - 1)
# Counts that decide whether a key has a row; they are not written.
_PRESENT = "__fs_present"


@dataclass(frozen=True)
class WindowJob:
    """The aggregates of a window job.

    It has rows at the end of each window of its schedule and, counted back from there, every
    ``every`` in between. ``keep_empty`` says whether keys with no row in any window stay.
    """

    windows: tuple[WindowFeature, ...]
    every: timedelta
    keep_empty: bool

    @property
    def code(self) -> str:
        """The text that a job's definition holds, which ``of`` reads back."""
        data = {
            "windows": list(map(window_to_json, self.windows)),
            "every_us": micros(self.every),
            "keep_empty": self.keep_empty,
        }
        return json.dumps(data, indent=1)

    @classmethod
    def from_spec(cls, spec: JobSpec) -> WindowJob:
        """Return what the definition of a window job holds.

        Raises:
            InvalidJob: It is anything else: registries may come from elsewhere.
        """
        try:
            with parsing("the aggregates"):
                data = JsonObject.from_value(json.loads(spec.code))
                windows = tuple(map(window_from_json, data.objects("windows")))
                every = timedelta(microseconds=data.number("every_us", minimum=1))
                return cls(windows, every, data.flag("keep_empty"))
        except (MalformedJson, RecursionError) as error:
            raise InvalidJob(
                f"The stored definition of job {spec.name!r} cannot be read: {error}.",
                hint="featurestore job register path/to/jobs.py writes it anew",
            ) from error

    @property
    def lineage(self) -> list[WindowLineage]:
        """The inputs of the aggregates that the definition names."""
        return [
            WindowLineage.from_feature(each, version=each.reference.version)
            for each in self.windows
        ]

    def instants(self, window: Window) -> list[datetime]:
        """Return the times at which a window has rows, the oldest first.

        A day of 23 or 25 hours has the instants of its hours, and one where ``every`` is a day.

        >>> from datetime import UTC
        >>> job = WindowJob((), timedelta(hours=6), keep_empty=False)
        >>> day = Window(datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC))
        >>> [at.hour for at in job.instants(day)]
        [6, 12, 18, 0]
        """
        count = max(1, round((window.end - window.start) / self.every))
        times = [window.end - number * self.every for number in range(count)]
        return times[::-1]

    @property
    def lookback(self) -> timedelta | None:
        """The maximum age of the rows that count at an instant; None without limit."""
        if self.keep_empty:
            return None
        longest = timedelta(0)
        for each in self.windows:
            if each.over is None:
                return None
            longest = max(longest, each.over + each.offset)
        return longest

    def event_time_range(self, window: Window) -> tuple[int, int]:
        """Return the range of event times, ``[first, last)`` in microseconds, that a window sees."""
        instants = self.instants(window)
        first = _ALWAYS[0]
        if self.lookback is not None:
            # Windows are open where they begin.
            first = to_micros(instants[0] - self.lookback + _MICROSECOND)
        return first, to_micros(instants[-1] + _MICROSECOND)

    def presence(
        self, event_times: dict[FeatureReference, FeatureReference]
    ) -> list[WindowFeature]:
        """Return counts of which one is positive where a key has rows to be written.

        Args:
            event_times: For the feature of each aggregate the event time of its group.
        """
        longest: dict[WindowFeature, WindowFeature] = {}
        for each in self.windows:
            count = replace(
                each, reference=event_times[each.reference], function="count", name="",
                fill_value=None, n=0,
            )  # fmt: skip
            if self.keep_empty:
                count = replace(count, over=None, offset=timedelta(0), where=None)
            same = replace(count, over=None)
            longest_count = longest.get(same)
            if longest_count is None or _longer(count, longest_count):
                longest[same] = count
        counts = [
            replace(each, name=f"{_PRESENT}_{number}")
            for number, each in enumerate(longest.values())
        ]
        return counts


def input_name(feature: WindowFeature) -> str:
    """Return what a window job calls the group of an aggregate among its inputs.

    >>> from featurestore.model.window_features import parse_window
    >>> input_name(parse_window("transactions@v2.amount|sum|7d"))
    'transactions_v2'
    """
    group, version = str(feature.reference.group), feature.reference.version
    return group if version is None else f"{group}_v{version}"


def _longer(first: WindowFeature, second: WindowFeature) -> bool:
    if second.over is None:
        return False
    return first.over is None or first.over > second.over
