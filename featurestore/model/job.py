"""Job definitions and their hashes; window jobs with their aggregates, instants and keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import NoneType
from typing import Any, Literal

from featurestore.errors import InvalidJob
from featurestore.model import display
from featurestore.model.failure_action import FailureAction
from featurestore.model.json_object import JsonObject, MalformedJson, translate_parse_errors
from featurestore.model.monitor import MonitorSpec
from featurestore.model.names import FeatureReference, check_name
from featurestore.model.plan import canonical_hash
from featurestore.model.publication_target import CatalogTarget, PublicationTarget
from featurestore.model.source import SourceInput
from featurestore.model.stream import StreamSpec
from featurestore.model.times import (
    Window,
    duration_from_json,
    duration_to_json,
    parse_moment,
    to_micros,
)
from featurestore.model.window_features import (
    WindowFeature,
    WindowLineage,
    micros,
    window_from_json,
    window_to_json,
)

JobMode = Literal["replace_window", "upsert", "append"]
JobKind = Literal["python", "sql", "window", "training", "monitor", "stream", "publish", "catalog"]
Closed = Literal["right", "left"]
OnError = Literal["wait", "continue"]
ON_ERROR = ("wait", "continue")
# One run of these jobs is enough for all windows that are due.
RUN_ONCE = ("training", "publish", "catalog")
MODES = ("replace_window", "upsert", "append")
# The origin of jobs that the import of a dbt project created starts with this.
DBT_ORIGIN = "dbt project"
# The reminder interval of continuing alerts.
REMIND = timedelta(days=1)

# The types of stored definition fields; fields that are parsed or derived are omitted.
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "name kind target schedule code timezone closed mode validation description on_error": str,
    "event_time created_time tombstone": (str, NoneType),
    "statistics delete_missing shared": bool,
    "retries": int,
    "catchup keep": (int, NoneType),
}

_MICROSECOND = timedelta(microseconds=1)
# All event times in 64-bit microseconds.
_ALWAYS = (-(2**63), 2**63 - 1)
# Row counts that decide whether a key is written; the counts themselves are not stored.
_PRESENT = "__fs_present"


@dataclass(frozen=True)
class JobSpec:
    """The definition of a job.

    ``code`` is the SQL or the source code of the function; ``target`` names the feature group, the
    training dataset, the published view or the source of a catalog. ``inputs`` maps each input name
    of the transform to a group reference (``trips``, ``trips@v2``) or a path (of a Delta table or a
    folder of Parquet files). ``input_times`` maps path and source inputs to their time columns;
    ``sources`` are the tables, queries or files of registered sources (``source:shop`` in
    ``inputs``). A row whose ``tombstone`` column is true, or non-null if not boolean, deletes its
    key, and ``delete_missing`` deletes keys that are no longer in the source. With ``on_error``
    "wait", later windows wait for a failed one. Failures are sent to the ``alert`` channels, and
    repeated after ``remind``. ``watched`` is the definition of a monitor, ``stream`` the input of a
    stream job. ``publishes`` are the views that a publish job, or a stream job after each commit,
    publishes. ``registers`` are the tables that a catalog job keeps in sync. ``shared`` allows other
    jobs with disjoint keys to write the same group.
    """

    name: str
    kind: JobKind
    target: str
    schedule: str
    inputs: Mapping[str, str]
    code: str
    window: timedelta | None = None
    start: datetime | None = None
    lookback: timedelta = timedelta(0)
    allowed_lateness: timedelta = timedelta(0)
    timezone: str = "UTC"
    closed: Closed = "right"
    mode: JobMode = "replace_window"
    validation: str = "strict"
    primary_key: tuple[str, ...] = ()
    event_time: str | None = None
    created_time: str | None = None
    partition_by: tuple[str, ...] = ()
    ttl: timedelta | None = None
    expectations: tuple[Mapping[str, Any], ...] = ()
    statistics: bool = True
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    input_times: Mapping[str, str] = field(default_factory=dict)
    retries: int = 2
    catchup: int | None = None
    on_error: OnError = "continue"
    on_failure: FailureAction | None = None
    keep: int | None = None
    compact: str | None = "auto"
    alert: tuple[str, ...] = ()
    remind: timedelta | None = REMIND
    watched: MonitorSpec | None = None
    sources: Mapping[str, SourceInput] = field(default_factory=dict)
    tombstone: str | None = None
    delete_missing: bool = False
    stream: StreamSpec | None = None
    publishes: tuple[PublicationTarget, ...] = ()
    registers: CatalogTarget | None = None
    shared: bool = False

    __repr__ = display.record_repr

    @property
    def row_lookback(self) -> timedelta:
        """The maximum age of rows before the window starts: the lookback of change data capture."""
        is_capture = any(
            source_input.time == self.event_time for source_input in self.sources.values()
        )
        return self.lookback if is_capture and self.mode == "upsert" else timedelta(0)

    @property
    def fills_group(self) -> bool:
        """Whether the target is a feature group, whose commits record the windows of the job."""
        return self.kind in ("python", "sql", "window")

    def to_json(self) -> dict[str, Any]:
        """Convert the definition to a JSON object, the inverse of ``from_json``."""
        start = None
        if self.start is not None:
            start = self.start.isoformat()
        data = {
            "name": self.name,
            "kind": self.kind,
            "target": self.target,
            "schedule": self.schedule,
            "inputs": dict(self.inputs),
            "code": self.code,
            "window": duration_to_json(self.window),
            "start": start,
            "lookback": duration_to_json(self.lookback),
            "allowed_lateness": duration_to_json(self.allowed_lateness),
            "timezone": self.timezone,
            "closed": self.closed,
            "mode": self.mode,
            "validation": self.validation,
            "primary_key": list(self.primary_key),
            "event_time": self.event_time,
            "created_time": self.created_time,
            "partition_by": list(self.partition_by),
            "ttl": duration_to_json(self.ttl),
            "expectations": list(map(dict, self.expectations)),
            "statistics": self.statistics,
            "description": self.description,
            "tags": dict(self.tags),
            "input_times": dict(self.input_times),
            "retries": self.retries,
            "catchup": self.catchup,
            "on_error": self.on_error,
            "on_failure": None if self.on_failure is None else self.on_failure.to_json(),
            "keep": self.keep,
        }
        return data | self._later_options()

    def _later_options(self) -> dict[str, Any]:
        """Return the options that were added later, if they are set.

        The hash of a job without them does not change.
        """
        data: dict[str, Any] = {}
        if self.compact != "auto":
            data["compact"] = self.compact
        if self.alert:
            data["alert"] = list(self.alert)
        if self.remind != REMIND:
            data["remind"] = duration_to_json(self.remind)
        if self.sources:
            data["sources"] = {
                name: source_input.to_json() for name, source_input in self.sources.items()
            }
        if self.tombstone is not None:
            data["tombstone"] = self.tombstone
        flags = {"delete_missing": self.delete_missing, "shared": self.shared}
        data |= {name: True for name, is_set in flags.items() if is_set}
        if self.publishes:
            data["publishes"] = [target.to_json() for target in self.publishes]
        objects = {"watched": self.watched, "stream": self.stream, "registers": self.registers}
        for name, value in objects.items():
            if value is not None:
                data[name] = value.to_json()
        return data

    @classmethod
    def from_json(cls, data: Any) -> JobSpec:
        """Parse the output of ``to_json``.

        Raises:
            InvalidJob: The definition is invalid, for example in the registry of another store.
        """
        try:
            values = {
                **data,
                "window": duration_from_json(data["window"]),
                "start": None
                if data["start"] is None
                else parse_moment(data["start"], argument="start", warn=False),
                "lookback": duration_from_json(data["lookback"]) or timedelta(0),
                "allowed_lateness": duration_from_json(data["allowed_lateness"]) or timedelta(0),
                "ttl": duration_from_json(data["ttl"]),
                "primary_key": tuple(data["primary_key"]),
                "partition_by": tuple(data["partition_by"]),
                "expectations": tuple(map(dict, data["expectations"])),
                "inputs": _to_strings(data["inputs"]),
                "input_times": _to_strings(data["input_times"]),
                "tags": _to_strings(data["tags"]),
                # Registries of earlier releases contain the former name.
                "on_error": parse_on_error(data["on_error"]),
                "on_failure": FailureAction.from_json(data["on_failure"]),
                **_optional_fields(data),
                "sources": {
                    str(name): SourceInput.from_json(source_json)
                    for name, source_json in dict(data.get("sources", {})).items()
                },
            }
            spec = cls(**values)
        # OverflowError: a stored duration or time may exceed the range of Python.
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _damaged_definition_error(f"{type(error).__name__}: {error}") from error
        # A dataclass does not check types, and a registry may contain the definitions of another
        # store.
        for names, kinds in _TYPES.items():
            for name in names.split():
                if not isinstance(getattr(spec, name), kinds):
                    raise _damaged_definition_error(f"{name} is {getattr(spec, name)!r}")
        check_name(spec.name, noun="job")
        check_name(spec.target)
        return spec

    @classmethod
    def from_text(cls, text: str) -> JobSpec:
        """Parse a definition from JSON text; raise InvalidJob if it is invalid."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _damaged_definition_error(str(error)) from error
        return cls.from_json(data)

    @property
    def hash(self) -> str:
        """SHA-256 of the definition; any change of code or settings changes the hash."""
        definition = self.to_json()
        if self.on_error == "continue":  # hashes in registries contain its former name
            definition["on_error"] = "go_on"
        return canonical_hash(definition)


def parse_on_error(value: Any) -> Any:
    """Normalize ``on_error``: "go_on" is the former name of "continue"."""
    return "continue" if value == "go_on" else value


@dataclass(frozen=True)
class WindowJob:
    """The aggregates of a window job.

    The job writes rows for the end of each schedule window and for every ``every`` interval before
    it within the window. ``keep_empty`` retains keys without rows in any window.
    """

    windows: tuple[WindowFeature, ...]
    every: timedelta
    keep_empty: bool

    @property
    def code(self) -> str:
        """The code string of the job definition, which ``from_spec`` parses."""
        data = {
            "windows": list(map(window_to_json, self.windows)),
            "every_us": micros(self.every),
            "keep_empty": self.keep_empty,
        }
        return json.dumps(data, indent=1)

    @classmethod
    def from_spec(cls, spec: JobSpec) -> WindowJob:
        """Parse the definition of a window job.

        Raises:
            InvalidJob: The definition is invalid, for example in the registry of another store.
        """
        try:
            with translate_parse_errors("the aggregates"):
                data = JsonObject.from_value(json.loads(spec.code))
                windows = tuple(map(window_from_json, data.objects("windows")))
                every = timedelta(microseconds=data.number("every_us", minimum=1))
                return cls(windows, every, data.flag("keep_empty"))
        except (MalformedJson, RecursionError) as error:
            raise InvalidJob(
                f"The stored definition of job {spec.name!r} cannot be read: {error}.",
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


def _to_strings(value: Mapping[str, object]) -> dict[str, str]:
    return {key: str(item) for key, item in dict(value).items()}


def _optional_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that older definitions do not have."""
    fields: dict[str, Any] = {}
    if "alert" in data:
        fields["alert"] = tuple(map(str, data["alert"]))
    if "remind" in data:
        fields["remind"] = duration_from_json(data["remind"])
    if "watched" in data:
        fields["watched"] = MonitorSpec.from_json(data["watched"])
    if "stream" in data:
        fields["stream"] = StreamSpec.from_json(data["stream"])
    if "publishes" in data:
        fields["publishes"] = tuple(map(PublicationTarget.from_json, data["publishes"]))
    if "registers" in data:
        fields["registers"] = CatalogTarget.from_json(data["registers"])
    return fields


def _damaged_definition_error(reason: str) -> InvalidJob:
    return InvalidJob(
        f"A stored job definition cannot be read: {reason}.",
        hint="featurestore job register path/to/jobs.py rewrites it",
    )


def _has_longer_window(first: WindowFeature, second: WindowFeature) -> bool:
    if second.over is None:
        return False
    return first.over is None or first.over > second.over
