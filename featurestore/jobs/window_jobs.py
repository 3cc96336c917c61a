"""Window jobs, which write aggregates over windows as (key, window end) rows."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Literal

import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP
from featurestore.arrow.values import to_array
from featurestore.errors import ColumnConflict, InvalidArgument, InvalidJob, NoJoinKey, listing
from featurestore.jobs.definition_checks import check_windowed_work
from featurestore.jobs.definitions import (
    Columns,
    Duration,
    JobDefinition,
    add_to_module,
    check_channel_names,
    define_schedule,
    plain_expectations,
)
from featurestore.jobs.inputs import PinnedInput
from featurestore.jobs.schedule import windows_after
from featurestore.model.arguments import as_tuple, calling_globals, with_suggestions
from featurestore.model.failure_action import OnFailure
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.group_options import GroupOptions
from featurestore.model.job import Alerts, JobSpec, OnError, Schedule, WindowWork
from featurestore.model.names import FeatureReference, check_name, format_group_reference
from featurestore.model.requests import RetrievalRequest
from featurestore.model.times import Window, format_duration, from_micros, parse_duration, parse_ttl
from featurestore.model.window_features import WindowFeature, parse_window
from featurestore.model.window_job import WindowJob, input_name
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.retrieval import FeatureFrame, get_features
from featurestore.retrieval.catalog import Pins, RegisteredSpecs
from featurestore.retrieval.planner import LabelSide
from featurestore.retrieval.resolve import Feature, Specs, find_spec, resolve
from featurestore.retrieval.windows import plan_windows
from featurestore.session import Session
from featurestore.usersql import quote

Windows = str | WindowFeature | Sequence[str | WindowFeature]
_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
# Range of the schedule whose intervals ``every`` must divide: a year of months.
_INTERVALS_COMPARED = 13


@with_suggestions
def window_job(
    name: str,
    windows: Windows,
    *,
    every: Duration,
    featuregroup: str,
    schedule: str | None = None,
    primary_key: Columns = (),
    event_time: str = "window_end",
    keep_empty: bool = False,
    partition_by: Columns = (),
    start: datetime | str | None = None,
    allowed_lateness: Duration = "0s",
    timezone: str = "UTC",
    validation: str = "strict",
    ttl: Duration | None = None,
    expectations: Sequence[Mapping[str, Any]] = (),
    statistics: bool = True,
    compact: Literal["auto"] | None = "auto",
    description: str = "",
    tags: Mapping[str, str] | None = None,
    retries: int = 2,
    catchup: int | None = None,
    on_error: OnError = "continue",
    on_failure: OnFailure = None,
    alert: str | Sequence[str] = (),
) -> JobDefinition:
    """Define a scheduled job that writes aggregates over windows into a feature group.

    It writes one row per key and instant, where instants are ``every`` apart. The values are
    bit-identical to the result of ``get_features`` for that key at that instant, which is the event
    time of the row. Late input rows make the windows stale that would have included them.

    Args:
        name: The job name.
        windows: Aggregates, created by ``window(...)`` or as strings:
            ``"transactions.amount|sum|7d"``.
        every: The time between two instants, counted back from each schedule time; it must
            divide the schedule interval.
        featuregroup: The group that the job writes; the first run creates it.
        schedule: A cron expression for the run times; None runs the job at each instant.
        primary_key: The columns of the aggregated groups that identify a row; defaults to the
            ``key=`` of the aggregates, or else to the primary key of their group.
        event_time: The name of the column with the instants.
        keep_empty: Whether a known key gets a row even at instants when it has no rows in any
            window.
        partition_by: As for ``create_featuregroup``.
        start: The start of the first window; None disables catchup.
        allowed_lateness: How long to wait for late data after an instant.
        timezone: The time zone of the schedule.
        validation: The validation policy for writes.
        ttl: As for ``create_featuregroup``.
        expectations: As for ``create_featuregroup``, as plain dicts.
        statistics: Whether commits compute statistics.
        compact: Whether small files of the group are merged automatically.
        description: The description of the feature group.
        tags: The tags of the feature group.
        retries: The maximum number of retries of a failed run, with increasing delays.
        catchup: The maximum number of missed windows to compute at once, oldest first; None for
            no limit.
        on_error: Whether later windows "wait" for a failed window or "continue".
        on_failure: What runs when the retries of a run are exhausted: a program with its arguments,
            or a top-level function of the file, which is called with the run.
        alert: The channels to alert of failures, as for ``job``.

    Raises:
        InvalidJob: ``every`` does not divide the schedule interval, or an argument is invalid.
        ColumnConflict: Two columns of the group would have the same name.

    >>> definition = featurestore.window_job(
    ...     "warmth", featurestore.windows("weather.temp", ["mean", "max"], over=["3h", "1d"]),
    ...     every="1h", featuregroup="warmth", start="2013-01-01T00:00Z",
    ... )
    >>> (definition.spec.schedule.cron, definition.spec.inputs)
    ('0 * * * *', {'weather': 'weather'})
    """
    features = _parse_windows(windows, job=name)
    interval = _parse_interval(every, job=name)
    work = WindowWork(
        target=check_name(featuregroup, noun="feature group"),
        options=GroupOptions(
            primary_key=as_tuple(primary_key or _common_key(features, job=name)),
            event_time=event_time,
            partition_by=as_tuple(partition_by),
            ttl=parse_ttl(ttl),
            expectations=plain_expectations(expectations),
            validation=validation,
            statistics=statistics,
            compact=compact,
            description=description,
            tags=dict(tags or {}),
            job=name,
        ),
        inputs=_inputs_by_name(features),
        code=WindowJob(features, interval, bool(keep_empty)).code,
    )
    spec = JobSpec(
        name=check_name(name, noun="job"),
        schedule=define_schedule(
            schedule or _to_cron(interval, job=name),
            job=name,
            start=start,
            allowed_lateness=allowed_lateness,
            timezone=timezone,
            catchup=catchup,
            retries=retries,
            on_error=on_error,
            on_failure=on_failure,
        ),
        alerts=Alerts(check_channel_names(alert)),
        work=work,
    )
    check_windowed_work(spec, work)
    _check_names(work, features)
    _check_divides(spec, interval)
    return add_to_module(spec, calling_globals())


def _parse_windows(windows: Windows, *, job: str) -> tuple[WindowFeature, ...]:
    """Parse the aggregates of a job from strings and ``window`` objects."""
    arguments: list[object] = [windows]
    if not isinstance(windows, str | WindowFeature):
        arguments = list(windows)
    features = []
    for aggregate in arguments:
        if isinstance(aggregate, str):
            aggregate = parse_window(aggregate)
        if not isinstance(aggregate, WindowFeature):
            raise InvalidJob(
                f"Job {job!r}: {aggregate!r} is not an aggregate over a window.",
                hint="[featurestore.window('transactions.amount', 'sum', over='7d')]",
            )
        features.append(aggregate)
    if not features:
        raise InvalidJob(
            f"Job {job!r} has no aggregates.",
            hint="[featurestore.window('transactions.amount', 'sum', over='7d')]",
        )
    return tuple(features)


def _parse_interval(every: Duration, *, job: str) -> timedelta:
    try:
        interval = parse_duration(every, argument="every")
    except InvalidArgument as error:
        raise InvalidJob(f"Job {job!r}: {error.message}", hint="every='1d'") from error
    if not interval:
        raise InvalidJob(f"Job {job!r}: every={every!r} is not positive.", hint="every='1d'")
    return interval


def _to_cron(every: timedelta, *, job: str) -> str:
    """Return a cron expression with constant intervals of ``every`` through the year."""
    # Steps of a cron field restart in each hour or day, so only divisors give constant intervals.
    # Intervals of several days would restart in each month.
    if every in (_DAY, 7 * _DAY):
        return "0 0 * * *" if every == _DAY else "0 0 * * 1"
    if every < _MINUTE and not _MINUTE % every:
        return "* * * * *"
    if every < _HOUR and not every % _MINUTE and not _HOUR % every:
        minutes = every // _MINUTE
        return "* * * * *" if minutes == 1 else f"*/{minutes} * * * *"
    if every < _DAY and not every % _HOUR and not _DAY % every:
        hours = every // _HOUR
        return "0 * * * *" if hours == 1 else f"0 */{hours} * * *"
    raise InvalidJob(
        f"Job {job!r}: no cron schedule has constant intervals of {format_duration(every)}.",
        hint="an every= that divides an hour, a day or a week: '15min', '6h', '1d', '7d'; or "
        "schedule= with an interval that every= divides",
    )


def _inputs_by_name(windows: Sequence[WindowFeature]) -> dict[str, str]:
    """Return the groups of the aggregates by input name."""
    inputs = {}
    for window in windows:
        group = format_group_reference(str(window.reference.group), window.reference.version)
        inputs[input_name(window)] = group
    return inputs


def _common_key(windows: Sequence[WindowFeature], *, job: str) -> tuple[str, ...]:
    """Return the common ``key=`` of the aggregates, empty if none is set."""
    keys = {window.key: None for window in windows if window.key is not None}
    if len(keys) > 1:
        raise InvalidJob(
            f"Job {job!r}: its aggregates have different keys {listing(map(str, keys))}, but a "
            "feature group has one key.",
            hint="define a job for each key",
        )
    for key in keys:
        return key or ()
    return ()


def _check_names(work: WindowWork, windows: Sequence[WindowFeature]) -> None:
    """Raise an error if two columns of the group would have the same name."""
    owner_by_name = {str(work.options.event_time).lower(): "the event time"}
    for name in work.options.primary_key:
        owner_by_name[name.lower()] = "a key column"
    for window in windows:
        lower_name = window.name.lower()
        if lower_name in owner_by_name:
            raise ColumnConflict(
                f"Job {work.options.job!r}: {window} has the same name {window.name!r} as "
                f"{owner_by_name[lower_name]}.",
                hint="name='...' in window(...)",
            )
        owner_by_name[lower_name] = str(window)


def _check_divides(spec: JobSpec, every: timedelta) -> None:
    """Raise an error if the distance between instants would vary across windows."""
    # Compared in UTC, so that nights with a daylight saving change do not matter.
    schedule = Schedule(spec.schedule.cron)
    since = from_micros(0)
    for window in islice(windows_after(schedule, since), 1, _INTERVALS_COMPARED):
        length = window.end - window.start
        if length % every:
            raise InvalidJob(
                f"Job {spec.name!r}: every={format_duration(every)} does not divide an interval of "
                f"the schedule {schedule.cron!r}, {format_duration(length)}.",
                hint="omit schedule= to compute at each instant, or use a coarser one",
            )


def with_primary_key(session: Session, spec: JobSpec) -> JobSpec:
    """Complete a window job with a primary key: its own key, or else the key of its groups.

    Raises:
        FeatureGroupNotFound: The group of an aggregate does not exist.
        InvalidJob: Its groups have different keys.
    """
    work = spec.work
    if not isinstance(work, WindowWork) or work.options.primary_key:
        return spec
    group_specs = RegisteredSpecs(session)
    keys: dict[tuple[str, ...], str] = {}
    for window in WindowJob.from_work(work).windows:
        group = _find_group_spec(window, group_specs)
        keys[group.primary_key] = group.name
    if len(keys) > 1:
        key_texts = [f"{name} ({', '.join(key)})" for key, name in keys.items()]
        raise InvalidJob(
            f"Job {spec.name!r}: its groups have different keys: {listing(key_texts)}.",
            hint="primary_key=['the columns that identify a row of the job']",
        )
    (key,) = keys
    if not key:
        raise InvalidJob(
            f"Job {spec.name!r}: {listing(keys.values())} has no primary key.",
            hint="primary_key=['the columns that identify a row of the job']",
        )
    return replace(spec, work=replace(work, options=replace(work.options, primary_key=key)))


def check_window_job(
    session: Session,
    spec: JobSpec,
    *,
    future_groups: Collection[str] = (),
    pins: Pins | None = None,
) -> None:
    """Raise an error for a window job that cannot be computed from its groups.

    Args:
        session: The connection.
        spec: The job, with its key.
        future_groups: Groups that other jobs will create, which cannot be checked yet.
        pins: The group versions to check; None: the latest ones.

    Raises:
        FeatureGroupNotFound, FeatureNotFound: The input of an aggregate does not exist.
        InvalidArgument, InvalidSql: An aggregate is not supported for its column or group.
        NoJoinKey: No group has the key of the rows.
    """
    work = spec.work
    if not isinstance(work, WindowWork):
        return
    group_specs = RegisteredSpecs(session)
    features: list[tuple[Feature, WindowFeature]] = []
    job = WindowJob.from_work(work)
    for window in job.windows:
        group = str(window.reference.group)
        if group in future_groups and group not in group_specs:
            continue
        features.append((resolve(str(window.reference), specs=group_specs)[0], window))
    if features:
        label_side = LabelSide(_label_schema(work, [feature.spec for feature, _ in features]))
        request = RetrievalRequest(features=job.windows, label_time=work.options.event_time)
        source = (pins or Pins(session, group_specs)).source
        plan_windows(features, request, labels=label_side, source=source)


@dataclass(frozen=True)
class WindowRows:
    """Computes the rows of a window job from pinned inputs; keys are staged in ``staging``."""

    session: Session
    work: WindowWork
    inputs: tuple[PinnedInput, ...]
    staging: str

    def compute(self, windows: Sequence[Window]) -> Relation:
        """Compute the rows of consecutive windows, unsorted."""
        job = WindowJob.from_work(self.work)
        instants: list[datetime] = []
        for window in windows:
            instants += job.instants(window)
        # The retrieval reads the pinned versions, so that the recorded inputs are those of the
        # rows.
        versions: dict[str, int | datetime | str] = {}
        for pinned in self.inputs:
            reference = format_group_reference(pinned.source, pinned.version)
            versions[reference] = int(str(pinned.delta_version))
        group_specs = RegisteredSpecs(self.session)
        pins = Pins(self.session, group_specs, as_of=versions)
        features = [_pin_version(feature, self.inputs) for feature in job.windows]
        job = replace(job, windows=tuple(features))
        times = {}
        for feature in features:
            event_time = str(_find_group_spec(feature, group_specs).event_time)
            times[feature.reference] = replace(feature.reference, feature=event_time)
        # Labels contain all keys at all instants. The counts show which labels have rows in a
        # window.
        counts = job.presence(times)
        labels = self._build_labels(job, instants)
        request = RetrievalRequest(
            features=[*features, *counts],
            labels=FeatureFrame(self.session, labels),
            label_time=self.work.options.event_time,
        )
        frame = get_features(self.session, request, pins=pins)
        column_names = [*labels.schema.names, *[feature.name for feature in features]]
        has_rows = " or ".join([f"{count.name} > 0" for count in counts])
        return frame.filter(has_rows).select(*column_names).relation

    def _build_labels(self, job: WindowJob, instants: Sequence[datetime]) -> Relation:
        """Return the known keys in the range of the instants, combined with every instant."""
        engine, column = self.session.engine, str(self.work.options.event_time)
        key_list = self._quote_columns(self.work.options.primary_key)
        present = " AND ".join(
            [f"{self._quote_columns([name])} IS NOT NULL" for name in self.work.options.primary_key]
        )
        # UNION removes keys that several groups have, which would give duplicate labels.
        keys = []
        tables = {}
        inputs_with_keys = [
            pinned
            for pinned in self.inputs
            if _has_columns(_group_spec(pinned), self.work.options.primary_key)
        ]
        for number, pinned in enumerate(inputs_with_keys):
            tables[f"fs_rows_{number}"] = self._read_keys(pinned, job, instants)
            keys.append(f"SELECT DISTINCT {key_list} FROM fs_rows_{number} WHERE {present}")
        ends = pa.table({column: to_array(instants, TIMESTAMP)})
        tables["fs_ends"] = engine.from_arrow(ends.to_reader())
        column_list = self._quote_columns([*self.work.options.primary_key, column])
        labels = engine.sql(
            f"SELECT {column_list} FROM ({' UNION '.join(keys)}) AS fs_keys CROSS JOIN fs_ends",
            tables=tables,
            parameters={},
        )
        schema = _label_schema(self.work, [_group_spec(pinned) for pinned in self.inputs])
        # A single-use relation can be read only once, but the retrieval may read its labels again.
        typed = Relation(engine.name, labels.native, schema, single_use=True)
        return engine.stage(typed, os.path.join(self.staging, "labels"))

    def _read_keys(
        self, pinned: PinnedInput, job: WindowJob, instants: Sequence[datetime]
    ) -> Relation:
        """Return the keys and times of all rows that any instant may aggregate."""
        group = _group_spec(pinned)
        columns = list(dict.fromkeys([*self.work.options.primary_key, str(group.event_time)]))
        rows = self.session.engine.read_table(
            pinned.path, version=pinned.delta_version, schema=group.schema, columns=columns
        )
        # With an unlimited window or keep_empty, every earlier key is known at every instant.
        if job.lookback is None:
            return rows
        time_range = TimeRange(
            str(group.event_time), instants[0] - job.lookback, instants[-1], closed="right"
        )
        return self.session.engine.within(rows, time_range)

    def _quote_columns(self, names: Sequence[str]) -> str:
        dialect = self.session.engine.dialect
        return ", ".join([quote(name, dialect=dialect) for name in names])


def _label_schema(work: WindowWork, groups: Sequence[FeatureGroupSpec]) -> pa.Schema:
    """Return the key and event time types, from the first group that has all keys."""
    for group in groups:
        if _has_columns(group, work.options.primary_key):
            fields = [group.schema.field(name) for name in work.options.primary_key]
            return pa.schema([*fields, pa.field(str(work.options.event_time), TIMESTAMP)])
    names = [group.name for group in groups]
    raise NoJoinKey(
        f"Job {work.options.job!r}: none of its groups {listing(dict.fromkeys(names))} has the primary key "
        f"columns {listing(work.options.primary_key)}.",
        hint="pass columns of these groups to primary_key=",
    )


def _has_columns(group: FeatureGroupSpec, key: Sequence[str]) -> bool:
    return set(key) <= set(group.schema.names)


def _group_spec(pinned: PinnedInput) -> FeatureGroupSpec:
    assert pinned.spec is not None  # the inputs of a window job are groups
    return pinned.spec


def _find_group_spec(feature: WindowFeature, specs: Specs) -> FeatureGroupSpec:
    reference = feature.reference
    return find_spec(
        str(reference.group), version=reference.version, specs=specs, feature=reference.feature
    )


def _pin_version(feature: WindowFeature, inputs: Sequence[PinnedInput]) -> WindowFeature:
    """Pin the group of an aggregate to the version that the run reads."""
    reference: FeatureReference = feature.reference
    if reference.version is not None:
        return feature
    versions = {pinned.name: pinned.version for pinned in inputs}
    return replace(feature, reference=replace(reference, version=versions[input_name(feature)]))
