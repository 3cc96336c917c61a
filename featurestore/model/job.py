"""Job definitions: when a job runs, whom it alerts, and its work; with their stored form and hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

from featurestore.errors import InvalidJob
from featurestore.model import display
from featurestore.model.failure_action import FailureAction
from featurestore.model.group_options import GroupOptions
from featurestore.model.json_object import MalformedJson
from featurestore.model.monitor import MonitorSpec
from featurestore.model.names import check_name
from featurestore.model.plan import canonical_hash
from featurestore.model.publication_target import CatalogTarget, PublicationTarget
from featurestore.model.records import Codec, codec_of
from featurestore.model.source import SourceInput
from featurestore.model.stream import StreamSpec
from featurestore.model.times import format_duration

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
        codecs, data = _find_codecs(), {}
        for name, read_value in _find_attributes(self.kind).items():
            default = _ALL_FIELDS[name].default
            value = default if read_value is None else codecs[name].to_json(read_value(self))
            if name in _FIELDS or value != default:
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
            # That of a publish or catalog job is derived.
            targets = {values["target"], spec.target}
        except MalformedJson as error:
            raise _damaged_definition_error(str(error)) from error
        except (LookupError, TypeError, ValueError) as error:
            raise _damaged_definition_error(f"{type(error).__name__}: {error}") from error
        check_name(spec.name, noun="job")
        for target in targets:
            check_name(target)
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
        return canonical_hash(self.to_json())


@dataclass(frozen=True)
class _Stored:
    """A field of the stored definition, which is a flat JSON object.

    Attributes:
        annotation: The type of the field, which has its codec.
        default: The JSON value that is stored if the work has no such field.
        attribute: The name of the attribute, if it differs from the stored name.
    """

    annotation: Any
    default: Any = None
    attribute: str = ""


_LENGTH, _STRINGS = _Stored(timedelta, "0us"), _Stored(Mapping[str, str], {})
_NAMES = _Stored(tuple[str, ...], [])
# In the order of the stored definitions.
_FIELDS: Mapping[str, _Stored] = {
    "name": _Stored(str),
    "kind": _Stored(str),
    "target": _Stored(str),
    "schedule": _Stored(str, attribute="cron"),
    "inputs": _STRINGS,
    "code": _Stored(str, ""),
    "window": _Stored(timedelta | None, attribute="width"),
    "start": _Stored(datetime | None),
    "lookback": _LENGTH,
    "allowed_lateness": _LENGTH,
    "timezone": _Stored(str),
    "closed": _Stored(Closed, "right"),
    "mode": _Stored(JobMode, "replace_window"),
    "validation": _Stored(str, "strict"),
    "primary_key": _NAMES,
    "event_time": _Stored(str | None),
    "created_time": _Stored(str | None),
    "partition_by": _NAMES,
    "ttl": _Stored(timedelta | None),
    "expectations": _Stored(tuple[Mapping[str, Any], ...], []),
    "statistics": _Stored(bool, True),
    "description": _Stored(str),
    "tags": _STRINGS,
    "input_times": _STRINGS,
    "retries": _Stored(int),
    "catchup": _Stored(int | None),
    "on_error": _Stored(OnError),
    "on_failure": _Stored(FailureAction | None),
    "keep": _Stored(int | None),
}
# Fields that few jobs have: their defaults are omitted.
_RARE_FIELDS: Mapping[str, _Stored] = {
    "compact": _Stored(str | None, "auto"),
    "alert": _Stored(tuple[str, ...], [], attribute="channels"),
    "remind": _Stored(timedelta | None, format_duration(REMIND)),
    "sources": _Stored(Mapping[str, SourceInput], {}),
    "tombstone": _Stored(str | None),
    "delete_missing": _Stored(bool, False),
    "shared": _Stored(bool, False),
    "publishes": _Stored(tuple[PublicationTarget, ...], []),
    "watched": _Stored(MonitorSpec),
    "stream": _Stored(StreamSpec),
    "registers": _Stored(CatalogTarget),
}


_ALL_FIELDS = {**_FIELDS, **_RARE_FIELDS}


@cache
def _find_codecs() -> Mapping[str, Codec]:
    return {name: codec_of(stored.annotation) for name, stored in _ALL_FIELDS.items()}


@cache
def _find_attributes(kind: JobKind) -> dict[str, attrgetter[Any] | None]:
    """Return how a field is read from a definition of a kind; None if it has no such field."""
    work_type = _WORK_TYPES[kind]
    records: dict[str, type[DataclassInstance]] = {
        "": JobSpec,
        "schedule.": Schedule,
        "alerts.": Alerts,
        "work.": work_type,
    }
    if issubclass(work_type, GroupWork):
        records["work.options."] = GroupOptions
    attributes: dict[str, attrgetter[Any] | None] = {}
    for name, stored in _ALL_FIELDS.items():
        attribute, attributes[name] = stored.attribute or name, None
        for path, record_type in records.items():
            if attribute in _field_names(record_type) or hasattr(record_type, attribute):
                attributes[name] = attrgetter(f"{path}{attribute}")
                break
    return attributes


def _read_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a stored definition by attribute.

    Raises:
        TypeError, ValueError: A field is missing, unknown or invalid.
    """
    unknown = set(data).difference(_ALL_FIELDS)
    if unknown:
        raise ValueError(f"unknown fields {sorted(unknown)}")
    codecs, values = _find_codecs(), {}
    for name, stored in _ALL_FIELDS.items():
        if name in _RARE_FIELDS and name not in data and stored.default is None:
            continue
        if name not in data and name in _FIELDS:
            raise MalformedJson("is missing", name)
        value = data.get(name, stored.default)
        try:
            values[stored.attribute or name] = codecs[name].read(value)
        except MalformedJson as error:
            if error.path == "":
                raise MalformedJson(f"{name} is {value!r}") from error
            raise error.within(name) from error
    return values


@cache
def _field_names(record_type: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(record_type))


def _build(record_type: type[RecordT], values: Mapping[str, Any]) -> RecordT:
    """Build a record from those values that are its fields."""
    names = _field_names(record_type)
    return record_type(**{name: values[name] for name in names if name in values})


def _damaged_definition_error(reason: str) -> InvalidJob:
    return InvalidJob(
        f"A stored job definition cannot be read: {reason}.",
        hint="featurestore job register path/to/jobs.py rewrites it",
    )
