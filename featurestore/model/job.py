"""Job definitions and their hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import NoneType
from typing import Any, Literal

from featurestore.errors import InvalidJob
from featurestore.model.durations import format_duration, parse_duration
from featurestore.model.monitor import MonitorSpec
from featurestore.model.names import check_name
from featurestore.model.plan import canonical_hash
from featurestore.model.source import SourceInput
from featurestore.model.stream import StreamSpec
from featurestore.model.times import parse_moment

JobMode = Literal["replace_window", "upsert", "append"]
JobKind = Literal["python", "sql", "window", "training", "monitor", "stream"]
Closed = Literal["right", "left"]
OnError = Literal["wait", "continue"]
ON_ERROR = ("wait", "continue")
MODES = ("replace_window", "upsert", "append")
# The interval of reminders of an alert that continues.
REMIND = timedelta(days=1)


@dataclass(frozen=True)
class JobSpec:
    """The definition of a job.

    ``code`` is the SQL text, or the source text of the function; ``target`` names the feature group
    or the training dataset. ``inputs`` maps the name under which the transform sees an input to a
    group reference (``trips``, ``trips@v2``) or a path (of a Delta table or a folder of Parquet
    files); ``input_times`` names the time column of inputs that are paths or sources; ``sources``
    says what is read of inputs that are registered sources (``source:shop`` in ``inputs``).
    Rows whose column ``tombstone`` is set delete their key, and ``delete_missing`` deletes keys
    that the source no longer has. ``on_error`` says whether later windows wait for a failed one.
    ``alert`` names the channels that are told of failures, and again after ``remind``; ``watched``
    is what a monitor watches, ``stream`` what a stream job reads.
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
    on_failure: str | None = None
    keep: int | None = None
    compact: str | None = "auto"
    alert: tuple[str, ...] = ()
    remind: timedelta | None = REMIND
    watched: MonitorSpec | None = None
    sources: Mapping[str, SourceInput] = field(default_factory=dict)
    tombstone: str | None = None
    delete_missing: bool = False
    stream: StreamSpec | None = None

    @property
    def row_lookback(self) -> timedelta:
        """How far before its window a row may be: the lookback of change capture."""
        is_capture = any(each.time == self.event_time for each in self.sources.values())
        return self.lookback if is_capture and self.mode == "upsert" else timedelta(0)

    @property
    def fills_group(self) -> bool:
        """Whether its target is a feature group, whose commits record its windows."""
        return self.kind in ("python", "sql", "window")

    def to_json(self) -> dict[str, Any]:
        """Return the definition as a JSON object that ``from_json`` reads back equal."""
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
            "window": _time_text(self.window),
            "start": start,
            "lookback": _time_text(self.lookback),
            "allowed_lateness": _time_text(self.allowed_lateness),
            "timezone": self.timezone,
            "closed": self.closed,
            "mode": self.mode,
            "validation": self.validation,
            "primary_key": list(self.primary_key),
            "event_time": self.event_time,
            "created_time": self.created_time,
            "partition_by": list(self.partition_by),
            "ttl": _time_text(self.ttl),
            "expectations": list(map(dict, self.expectations)),
            "statistics": self.statistics,
            "description": self.description,
            "tags": dict(self.tags),
            "input_times": dict(self.input_times),
            "retries": self.retries,
            "catchup": self.catchup,
            "on_error": self.on_error,
            "on_failure": self.on_failure,
            "keep": self.keep,
        }
        if self.compact != "auto":
            data["compact"] = self.compact
        if self.alert:
            data["alert"] = list(self.alert)
        if self.remind != REMIND:
            data["remind"] = _time_text(self.remind)
        if self.watched is not None:
            data["watched"] = self.watched.to_json()
        if self.sources:
            data["sources"] = _sources_json(self.sources)
        if self.tombstone is not None:
            data["tombstone"] = self.tombstone
        if self.delete_missing:
            data["delete_missing"] = True
        if self.stream is not None:
            data["stream"] = self.stream.to_json()
        return data

    @classmethod
    def from_json(cls, data: Any) -> JobSpec:
        """Return the definition that ``to_json`` wrote.

        Raises:
            InvalidJob: It is anything else: registries may come from elsewhere.
        """
        try:
            values = {
                **data,
                "window": _duration(data["window"]),
                "start": _start(data["start"]),
                "lookback": _duration(data["lookback"]) or timedelta(0),
                "allowed_lateness": _duration(data["allowed_lateness"]) or timedelta(0),
                "ttl": _duration(data["ttl"]),
                "primary_key": tuple(data["primary_key"]),
                "partition_by": tuple(data["partition_by"]),
                "expectations": tuple(map(dict, data["expectations"])),
                "inputs": _texts(data["inputs"]),
                "input_times": _texts(data["input_times"]),
                "tags": _texts(data["tags"]),
                "on_error": parse_on_error(data["on_error"]),
                **_optional_fields(data),
                "sources": _sources(data.get("sources", {})),
            }
            spec = cls(**values)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _damaged(f"{type(error).__name__}: {error}") from error
        for names, kinds in _TYPES.items():
            for name in names.split():
                if not isinstance(getattr(spec, name), kinds):
                    raise _damaged(f"{name} is {getattr(spec, name)!r}")
        check_name(spec.name, noun="job")
        check_name(spec.target)
        return spec

    @classmethod
    def from_text(cls, text: str) -> JobSpec:
        """Parse a definition from JSON; raises InvalidJob."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _damaged(str(error)) from error
        return cls.from_json(data)

    @property
    def hash(self) -> str:
        """SHA-256 of the definition: any change of code or rules gives another one."""
        definition = self.to_json()
        if self.on_error == "continue":  # hashes in registries contain its former name
            definition["on_error"] = "go_on"
        return canonical_hash(definition)


# What the fields of a stored definition hold; those that are parsed or made anew are not named.
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "name kind target schedule code timezone closed mode validation description on_error": str,
    "event_time created_time on_failure tombstone": (str, NoneType),
    "statistics delete_missing": bool,
    "retries": int,
    "catchup keep": (int, NoneType),
}


def parse_on_error(value: Any) -> Any:
    """Return a value of ``on_error``: "go_on" is the former name of "continue"."""
    return "continue" if value == "go_on" else value


def _optional_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that older definitions do not have."""
    fields: dict[str, Any] = {}
    if "alert" in data:
        fields["alert"] = tuple(map(str, data["alert"]))
    if "remind" in data:
        fields["remind"] = _duration(data["remind"])
    if "watched" in data:
        fields["watched"] = MonitorSpec.from_json(data["watched"])
    if "stream" in data:
        fields["stream"] = StreamSpec.from_json(data["stream"])
    return fields


def _damaged(reason: str) -> InvalidJob:
    return InvalidJob(
        f"A stored job definition cannot be read: {reason}.",
        hint="featurestore job register path/to/jobs.py writes it anew",
    )


def _texts(value: Mapping[str, object]) -> dict[str, str]:
    return {key: str(each) for key, each in dict(value).items()}


def _sources_json(sources: Mapping[str, SourceInput]) -> Any:
    return {name: each.to_json() for name, each in sources.items()}


def _sources(value: Mapping[str, object]) -> dict[str, SourceInput]:
    return {str(name): SourceInput.from_json(each) for name, each in dict(value).items()}


def _start(value: str | None) -> datetime | None:
    return None if value is None else parse_moment(value, argument="start", warn=False)


def _time_text(value: timedelta | None) -> str | None:
    return None if value is None else format_duration(value)


def _duration(value: str | None) -> timedelta | None:
    return None if value is None else parse_duration(value)
