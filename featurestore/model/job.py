"""Job definitions: when a job runs, whom it alerts, and its work; with their stored form and hash."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

from featurestore.errors import InvalidJob
from featurestore.model import display
from featurestore.model.failure_action import FailureAction
from featurestore.model.group_options import GroupOptions
from featurestore.model.monitor import MonitorSpec
from featurestore.model.names import check_name
from featurestore.model.plan import canonical_hash
from featurestore.model.publication_target import CatalogTarget, PublicationTarget
from featurestore.model.source import SourceInput
from featurestore.model.stream import StreamSpec
from featurestore.model.times import duration_from_json, duration_to_json, parse_moment

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RecordT = TypeVar("RecordT", bound="DataclassInstance")
JobMode = Literal["replace_window", "upsert", "append"]
JobKind = Literal["python", "sql", "window", "training", "monitor", "stream", "publish", "catalog"]
Closed = Literal["right", "left"]
OnError = Literal["wait", "continue"]
ON_ERROR = ("wait", "continue")
MODES = ("replace_window", "upsert", "append")
# The origin of jobs that the import of a dbt project created starts with this.
DBT_ORIGIN = "dbt project"
# The reminder interval of continuing alerts.
REMIND = timedelta(days=1)


@dataclass(frozen=True)
class Schedule:
    """When the windows of a job end and begin, and how failed windows are handled.

    Attributes:
        cron: A cron expression, whose times are the ends of windows.
        width: The width of windows; None: the interval of the schedule.
        start: The earliest start of a window; None disables catchup.
        allowed_lateness: How long to wait for late data after the end of a window.
        timezone: The time zone of the cron expression.
        catchup: The maximum number of missed windows to compute at once.
        retries: The maximum number of retries of a failed run.
        on_error: With "wait", later windows wait for a failed one.
        on_failure: What runs when the retries of a run are exhausted.
    """

    cron: str
    width: timedelta | None = None
    start: datetime | None = None
    allowed_lateness: timedelta = timedelta(0)
    timezone: str = "UTC"
    catchup: int | None = None
    retries: int = 2
    on_error: OnError = "continue"
    on_failure: FailureAction | None = None


@dataclass(frozen=True)
class Alerts:
    """The channels to which a job sends its alerts, and the interval of reminders, if any."""

    channels: tuple[str, ...] = ()
    remind: timedelta | None = REMIND


@dataclass(frozen=True, kw_only=True)
class GroupWork:
    """Work that writes the feature group ``target``.

    ``shared`` allows other jobs with disjoint keys to write the same group.
    """

    target: str
    options: GroupOptions
    shared: bool = False

    @property
    def description(self) -> str:
        """The description of the group."""
        return self.options.description


@dataclass(frozen=True, kw_only=True)
class WindowedWork(GroupWork):
    """Work that computes the rows of windows, which the commits of the group record.

    ``inputs`` maps each input name to a group reference (``trips``, ``trips@v2``), a path of a
    Delta table or a folder of Parquet files, or a source (``source:shop``). ``code`` is the SQL, the
    source code of the function, or the aggregates.
    """

    inputs: Mapping[str, str]
    code: str
    closed: Closed = "right"
    mode: JobMode = "replace_window"

    @property
    def row_lookback(self) -> timedelta:
        """The maximum age of rows before the window starts: the lookback of change data capture."""
        return timedelta(0)


@dataclass(frozen=True, kw_only=True)
class TransformWork(WindowedWork):
    """A query or function that computes rows from the rows of inputs.

    ``input_times`` maps path and source inputs to their time columns; ``sources`` are the tables,
    queries or files of registered sources. A row whose ``tombstone`` column is true, or non-null
    if not boolean, deletes its key, and ``delete_missing`` deletes keys that are no longer in the
    source.
    """

    lookback: timedelta = timedelta(0)
    input_times: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, SourceInput] = field(default_factory=dict)
    tombstone: str | None = None
    delete_missing: bool = False

    @property
    def row_lookback(self) -> timedelta:
        """The maximum age of rows before the window starts: the lookback of change data capture."""
        event_time = self.options.event_time
        is_capture = any(source.time == event_time for source in self.sources.values())
        return self.lookback if is_capture and self.mode == "upsert" else timedelta(0)


@dataclass(frozen=True, kw_only=True)
class SqlWork(TransformWork):
    """A DuckDB SQL query over the inputs."""

    kind: ClassVar[JobKind] = "sql"


@dataclass(frozen=True, kw_only=True)
class PythonWork(TransformWork):
    """A function of a window and the inputs."""

    kind: ClassVar[JobKind] = "python"


@dataclass(frozen=True, kw_only=True)
class WindowWork(WindowedWork):
    """Aggregates over windows, which ``WindowJob`` parses from ``code``."""

    kind: ClassVar[JobKind] = "window"


@dataclass(frozen=True, kw_only=True)
class StreamWork(GroupWork):
    """The records of a topic; ``publishes`` are the views to publish after each commit."""

    kind: ClassVar[JobKind] = "stream"
    inputs: ClassVar[Mapping[str, str]] = {}
    stream: StreamSpec
    publishes: tuple[PublicationTarget, ...] = ()

    @property
    def mode(self) -> str:
        """The write mode, "append" or "upsert"."""
        return self.stream.mode


@dataclass(frozen=True, kw_only=True)
class TrainingWork:
    """A function that returns the data of new versions of the training dataset ``target``.

    ``keep`` is the number of versions to keep; None keeps all.
    """

    kind: ClassVar[JobKind] = "training"
    target: str
    inputs: Mapping[str, str]
    code: str
    keep: int | None = None
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MonitorWork:
    """The comparison of the windows of a group with a baseline; ``target`` is the monitor's name."""

    kind: ClassVar[JobKind] = "monitor"
    closed: ClassVar[Closed] = "left"
    target: str
    inputs: Mapping[str, str]
    watched: MonitorSpec
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PublishWork:
    """The publication of a feature view to an online store, the only element of ``publishes``."""

    kind: ClassVar[JobKind] = "publish"
    inputs: ClassVar[Mapping[str, str]] = {}
    publishes: tuple[PublicationTarget]
    description: str = ""

    @property
    def target(self) -> str:
        """The name of the view."""
        return self.publishes[0].view


@dataclass(frozen=True, kw_only=True)
class CatalogWork:
    """The tables of a catalog that are kept in sync with feature groups."""

    kind: ClassVar[JobKind] = "catalog"
    inputs: ClassVar[Mapping[str, str]] = {}
    registers: CatalogTarget
    description: str = ""

    @property
    def target(self) -> str:
        """The source of the catalog."""
        return self.registers.source


JobWork: TypeAlias = (
    SqlWork
    | PythonWork
    | WindowWork
    | StreamWork
    | TrainingWork
    | MonitorWork
    | PublishWork
    | CatalogWork
)
# One run of these jobs is enough for all windows that are due.
RunOnceWork: TypeAlias = TrainingWork | PublishWork | CatalogWork
_WORK_TYPES: Mapping[str, type[JobWork]] = {
    work_type.kind: work_type for work_type in get_args(JobWork)
}


@dataclass(frozen=True)
class JobSpec:
    """The definition of a job: its schedule, the channels that it alerts, and its work."""

    name: str
    schedule: Schedule
    alerts: Alerts
    work: JobWork

    __repr__ = display.record_repr

    @property
    def kind(self) -> JobKind:
        """The kind of the work, such as "sql"."""
        return self.work.kind

    @property
    def target(self) -> str:
        """The name of the group, dataset, view or source that the job writes."""
        return self.work.target

    @property
    def inputs(self) -> Mapping[str, str]:
        """The references of groups, paths and sources that the job reads, by input name."""
        return self.work.inputs

    @property
    def appends(self) -> bool:
        """Whether windows are appended, so that none can be computed again."""
        return isinstance(self.work, WindowedWork) and self.work.mode == "append"

    def to_json(self) -> dict[str, Any]:
        """Convert the definition to a JSON object, the inverse of ``from_json``."""
        options = self.work.options if isinstance(self.work, GroupWork) else None
        records = [self, self.schedule, self.alerts, self.work, options]
        data = {}
        for name, stored in _FIELDS.items():
            attribute = stored.attribute or name
            owner = next((record for record in records if hasattr(record, attribute)), None)
            value = stored.default
            if owner is not None:
                value = stored.write(getattr(owner, attribute))
            if not stored.is_optional or value != stored.default:
                data[name] = value
        return data

    @classmethod
    def from_json(cls, data: Any) -> JobSpec:
        """Parse the output of ``to_json``.

        Raises:
            InvalidJob: The definition is invalid, for example in the registry of another store.
        """
        try:
            values = _read_fields(data)
            name, work_type = values["name"], _WORK_TYPES[values["kind"]]
            values["options"] = _build(GroupOptions, {**values, "job": name})
            work = _build(work_type, values)
            spec = cls(name, _build(Schedule, values), _build(Alerts, values), work)
            check_name(spec.name, noun="job")
            check_name(spec.target)
            return spec
        # OverflowError: a stored duration or time may exceed the range of Python.
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise _damaged_definition_error(f"{type(error).__name__}: {error}") from error

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
        if self.schedule.on_error == "continue":  # hashes in registries contain its former name
            definition["on_error"] = "go_on"
        return canonical_hash(definition)


def parse_on_error(value: Any) -> Any:
    """Normalize ``on_error``: "go_on" is the former name of "continue"."""
    return "continue" if value == "go_on" else value


def _same(value: Any) -> Any:
    return value


def _read_strings(value: Mapping[str, object]) -> dict[str, str]:
    return {key: str(item) for key, item in dict(value).items()}


def _read_length(value: str | None) -> timedelta:
    return duration_from_json(value) or timedelta(0)


def _write_start(start: datetime | None) -> str | None:
    return None if start is None else start.isoformat()


def _read_start(value: str | None) -> datetime | None:
    return None if value is None else parse_moment(value, argument="start", warn=False)


def _write_all(values: tuple[Any, ...]) -> list[Any]:
    return [value.to_json() for value in values]


def _write_object(value: Any) -> dict[str, Any] | None:
    return None if value is None else value.to_json()


@dataclass(frozen=True)
class _Stored:
    """A field of the stored definition, which is a flat JSON object.

    Attributes:
        default: The value that is stored if the work has no such field.
        types: The types of the JSON value; other types are refused by ``read``.
        write: Converts the attribute to JSON.
        read: The inverse of ``write``.
        attribute: The name of the attribute, if it differs from the stored name.
        is_optional: Whether the default is omitted, because the field was added later: without it,
            the hash of a job does not change.
    """

    default: Any = None
    types: type | tuple[type, ...] = object
    write: Callable[[Any], Any] = _same
    read: Callable[[Any], Any] = _same
    attribute: str = ""
    is_optional: bool = False


_NO_LENGTH = duration_to_json(timedelta(0))
# In the order of the stored definitions.
_FIELDS: Mapping[str, _Stored] = {
    "name": _Stored(types=str),
    "kind": _Stored(types=str),
    "target": _Stored(types=str),
    "schedule": _Stored(types=str, attribute="cron"),
    "inputs": _Stored({}, write=dict, read=_read_strings),
    "code": _Stored("", str),
    "window": _Stored(write=duration_to_json, read=duration_from_json, attribute="width"),
    "start": _Stored(write=_write_start, read=_read_start),
    "lookback": _Stored(_NO_LENGTH, write=duration_to_json, read=_read_length),
    "allowed_lateness": _Stored(_NO_LENGTH, write=duration_to_json, read=_read_length),
    "timezone": _Stored("UTC", str),
    "closed": _Stored("right", str),
    "mode": _Stored("replace_window", str),
    "validation": _Stored("strict", str),
    "primary_key": _Stored([], write=list, read=tuple),
    "event_time": _Stored(types=(str, NoneType)),
    "created_time": _Stored(types=(str, NoneType)),
    "partition_by": _Stored([], write=list, read=tuple),
    "ttl": _Stored(write=duration_to_json, read=duration_from_json),
    "expectations": _Stored(
        [],
        write=lambda expectations: list(map(dict, expectations)),
        read=lambda expectations: tuple(map(dict, expectations)),
    ),
    "statistics": _Stored(True, bool),
    "description": _Stored("", str),
    "tags": _Stored({}, write=dict, read=_read_strings),
    "input_times": _Stored({}, write=dict, read=_read_strings),
    "retries": _Stored(types=int),
    "catchup": _Stored(types=(int, NoneType)),
    "on_error": _Stored(types=str, read=parse_on_error),
    "on_failure": _Stored(write=_write_object, read=FailureAction.from_json),
    "keep": _Stored(types=(int, NoneType)),
    "compact": _Stored("auto", is_optional=True),
    "alert": _Stored(
        [],
        write=list,
        read=lambda names: tuple(map(str, names)),
        attribute="channels",
        is_optional=True,
    ),
    "remind": _Stored(
        duration_to_json(REMIND),
        write=duration_to_json,
        read=duration_from_json,
        is_optional=True,
    ),
    "sources": _Stored(
        {},
        write=lambda sources: {name: source.to_json() for name, source in sources.items()},
        read=lambda sources: {
            str(name): SourceInput.from_json(source) for name, source in dict(sources).items()
        },
        is_optional=True,
    ),
    "tombstone": _Stored(types=(str, NoneType), is_optional=True),
    "delete_missing": _Stored(False, bool, is_optional=True),
    "shared": _Stored(False, bool, is_optional=True),
    "publishes": _Stored(
        [],
        write=_write_all,
        read=lambda targets: tuple(map(PublicationTarget.from_json, targets)),
        is_optional=True,
    ),
    "watched": _Stored(write=_write_object, read=MonitorSpec.from_json, is_optional=True),
    "stream": _Stored(write=_write_object, read=StreamSpec.from_json, is_optional=True),
    "registers": _Stored(write=_write_object, read=CatalogTarget.from_json, is_optional=True),
}


def _read_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a stored definition by attribute.

    Raises:
        InvalidJob: A value has another type.
        KeyError, TypeError, ValueError: A field is missing, unknown or invalid.
    """
    unknown = [name for name in {**data} if name not in _FIELDS]
    if unknown:
        raise ValueError(f"unknown fields {unknown}")
    values: dict[str, Any] = {}
    for name, stored in _FIELDS.items():
        if stored.is_optional and name not in data:
            if stored.default is not None:
                values[stored.attribute or name] = stored.read(stored.default)
            continue
        # A registry may contain the definitions of another store.
        if not isinstance(data[name], stored.types):
            raise _damaged_definition_error(f"{name} is {data[name]!r}")
        values[stored.attribute or name] = stored.read(data[name])
    return values


def _build(record_type: type[RecordT], values: Mapping[str, Any]) -> RecordT:
    """Build a record from those values that are its fields."""
    names = [field.name for field in fields(record_type)]
    return record_type(**{name: values[name] for name in names if name in values})


def _damaged_definition_error(reason: str) -> InvalidJob:
    return InvalidJob(
        f"A stored job definition cannot be read: {reason}.",
        hint="featurestore job register path/to/jobs.py rewrites it",
    )
