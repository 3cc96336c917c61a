"""Windows of a schedule as pure functions: all windows, and the due windows.

A schedule is a cron expression in a time zone. Each window is a data interval that ends at a
schedule time t. With the width ``window`` it is ``[t - window, t)``; without a width it starts at
the previous schedule time, so that windows are adjacent across daylight saving changes. Widths are
elapsed time: on the night when clocks go back, a daily schedule at 00:00 local time has a window of
25 hours without ``window=`` and of 24 hours with ``window="1d"``.

A window is due once ``allowed_lateness`` has elapsed since its end. The due windows are a function
of (definition, watermark, now).

A local time that daylight saving skips is scheduled at the first instant after the gap; a local
time that occurs twice is scheduled twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from featurestore.errors import InvalidJob, OutOfRange, missing_extra
from featurestore.model import times
from featurestore.model.job import JobSpec
from featurestore.model.runtime import iterate_within_limit
from featurestore.model.times import Window

# Number of windows to check for overlaps: a year of daily windows, with daylight saving changes.
_TIMES_COMPARED = 400


@dataclass(frozen=True)
class Schedule:
    """The cron expression, time zone, width, first start and allowed lateness of windows.

    ``start`` is the earliest window start; None disables catchup.
    """

    cron: str
    width: timedelta | None = None
    start: datetime | None = None
    allowed_lateness: timedelta = timedelta(0)
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        _check_schedule(self)


def build_schedule(spec: JobSpec) -> Schedule:
    """Build the schedule of a job."""
    return Schedule(spec.schedule, spec.window, spec.start, spec.allowed_lateness, spec.timezone)


def due_windows(
    schedule: Schedule,
    *,
    watermark: datetime | None,
    now: datetime,
    computed: Collection[Window] = (),
    limit: int | None = None,
) -> list[Window]:
    """Return the windows that are complete and end after the watermark, oldest first.

    Args:
        schedule: The schedule.
        watermark: The time up to which all windows were computed; None if no window was
            computed.
        now: The current time.
        computed: Computed windows after the watermark.
        limit: Maximum number of windows.

    >>> from datetime import UTC
    >>> hourly = Schedule("0 * * * *", start=datetime(2024, 1, 1, tzinfo=UTC))
    >>> due = due_windows(hourly, watermark=None, now=datetime(2024, 1, 1, 2, 30, tzinfo=UTC))
    >>> [(window.start.hour, window.end.hour) for window in due]
    [(0, 1), (1, 2)]
    """
    due: list[Window] = []
    since = watermark or schedule.start
    if since is None:
        return due
    until = times.shift_time(now, -schedule.allowed_lateness)
    # A schedule of minutes over centuries has millions of windows, so requests to the server are
    # ended by their time limit.
    for window in iterate_within_limit(windows_after(schedule, since)):
        if window.end > until or len(due) == limit:
            break
        # The first window after the start may begin before it, if the start is not a schedule time.
        has_started = schedule.start is None or window.start >= schedule.start
        # The hash of a window takes longer than its computation.
        if has_started and not (computed and window in computed):
            due.append(window)
    return due


def advance_watermark(
    schedule: Schedule, watermark: datetime | None, computed: Collection[Window]
) -> datetime | None:
    """Return the watermark after computing windows: the end of the last window before a gap.

    >>> from datetime import UTC
    >>> hourly = Schedule("0 * * * *", start=datetime(2024, 1, 1, tzinfo=UTC))
    >>> start = hourly.start
    >>> hours = windows_between(hourly, start, start + timedelta(hours=4))
    >>> advance_watermark(hourly, None, {hours[0], hours[1], hours[3]})
    datetime.datetime(2024, 1, 1, 2, 0, tzinfo=datetime.timezone.utc)
    """
    since = watermark or schedule.start
    if since is None or not computed:
        return watermark
    for window in windows_after(schedule, since):
        if schedule.start is not None and window.start < schedule.start:
            continue
        if window not in computed:
            break
        watermark = window.end
    return watermark


def windows_between(
    schedule: Schedule, start: datetime, end: datetime, *, limit: int | None = None
) -> list[Window]:
    """Return the windows within ``[start, end)``, oldest first, at most ``limit``."""
    windows: list[Window] = []
    if start >= end:
        return windows
    for window in iterate_within_limit(windows_after(schedule, start)):
        if window.end > end or len(windows) == limit:
            break
        if window.start >= start:
            windows.append(window)
    return windows


def windows_after(schedule: Schedule, instant: datetime) -> Iterator[Window]:
    """Yield the windows that end after ``instant``, indefinitely.

    Raises:
        OutOfRange: The next window begins or ends outside the years 1 to 9999.
    """
    if schedule.width is not None:
        for end in _schedule_times(schedule, instant):
            yield Window(times.shift_time(end, -schedule.width), end)
    previous = last_schedule_time(schedule, instant)
    for end in _schedule_times(schedule, instant):
        yield Window(previous, end)
        previous = end


def window_ending(schedule: Schedule, end: datetime) -> Window:
    """Return the window that ends at ``end``; InvalidJob if ``end`` is not a schedule time."""
    # ``windows_after`` excludes a window that ends exactly at the instant.
    before = times.shift_time(end, -timedelta(microseconds=1))
    window = next(windows_after(schedule, before))
    if window.end != end:
        raise InvalidJob(
            f"{end.isoformat()} is not a time of the schedule {schedule.cron!r} "
            f"({schedule.timezone}).",
            hint=f"the next schedule time is {window.end.isoformat()}",
        )
    return window


def window_starting(schedule: Schedule, start: datetime) -> Window:
    """Return the window that begins at ``start``; InvalidJob if there is none."""
    ending = times.shift_time(start, schedule.width or timedelta(microseconds=1))
    window = next(windows_after(schedule, times.shift_time(ending, -timedelta(microseconds=1))))
    if window.start != start:
        raise InvalidJob(
            f"No window of the schedule {schedule.cron!r} ({schedule.timezone}) begins at "
            f"{start.isoformat()}.",
            hint=f"the next window begins at {window.start.isoformat()}",
        )
    return window


def latest_complete_window(schedule: Schedule, now: datetime) -> Window | None:
    """Return the latest complete window, including allowed lateness; None if there is none."""
    window = window_ending(
        schedule, last_schedule_time(schedule, times.shift_time(now, -schedule.allowed_lateness))
    )
    if schedule.start is not None and window.start < schedule.start:
        return None
    return window


def last_schedule_time(schedule: Schedule, instant: datetime) -> datetime:
    """Return the last schedule time at or before an instant.

    Raises:
        OutOfRange: No schedule time is in the years 1 to 9999.
    """
    # croniter's get_prev excludes the instant itself.
    just_after = times.shift_time(instant, timedelta(microseconds=1))
    try:
        cron_times = _croniter(schedule.cron, just_after.astimezone(ZoneInfo(schedule.timezone)))
        local_time: datetime = cron_times.get_prev(datetime)
        return local_time.astimezone(UTC)
    except (OverflowError, ValueError) as error:
        raise _out_of_calendar_error(schedule, instant) from error


def has_overlapping_windows(schedule: Schedule) -> bool:
    """Return whether consecutive windows overlap because the width exceeds a schedule interval."""
    width = schedule.width
    if width is None:
        return False
    since = schedule.start or times.utc_now()
    # Intervals of a schedule can differ, for example between months, so one interval is not enough.
    schedule_times = islice(_schedule_times(schedule, since), _TIMES_COMPARED)
    return any(later - earlier < width for earlier, later in pairwise(schedule_times))


def _schedule_times(schedule: Schedule, instant: datetime) -> Iterator[datetime]:
    """Yield the schedule times after an instant, indefinitely."""
    # UTC has no daylight saving changes: its schedule times are the same minutes of each day.
    fields = _parse_numeric_cron(schedule.cron) if schedule.timezone == "UTC" else None
    if fields is not None:
        upcoming = _utc_schedule_times(fields, instant)
    else:
        upcoming = _local_schedule_times(schedule, instant)
    while True:
        try:
            instant = next(upcoming)
        except (OverflowError, ValueError) as error:
            raise _out_of_calendar_error(schedule, instant) from error
        yield instant


def _local_schedule_times(schedule: Schedule, instant: datetime) -> Iterator[datetime]:
    cron_times = _croniter(schedule.cron, instant.astimezone(ZoneInfo(schedule.timezone)))
    while True:
        local_time: datetime = cron_times.get_next(datetime)
        yield local_time.astimezone(UTC)


def _out_of_calendar_error(schedule: Schedule, instant: datetime) -> OutOfRange:
    """Return the error for a schedule time outside the years 1 to 9999.

    datetime raises OverflowError and croniter ValueError there.
    """
    return OutOfRange(
        f"The schedule {schedule.cron!r} has no time near {instant.isoformat()}.",
        hint="choose a start and an end in the years of the data, for example 2024",
    )


@dataclass(frozen=True)
class _CronFields:
    """The five fields of a cron expression, each as the numbers that it matches.

    Weekdays are numbered from 0 for Sunday.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]


_EVERY_NUMBER = _CronFields(
    tuple(range(60)),
    tuple(range(24)),
    tuple(range(1, 32)),
    tuple(range(1, 13)),
    tuple(range(7)),
)


def _utc_schedule_times(fields: _CronFields, instant: datetime) -> Iterator[datetime]:
    """Yield the schedule times in UTC: the matching minutes of the matching days."""
    times_of_day = [
        timedelta(hours=hour, minutes=minute) for hour in fields.hours for minute in fields.minutes
    ]
    day = instant.replace(hour=0, minute=0, second=0, microsecond=0)
    while True:
        month_day = day.month in fields.months and day.day in fields.days
        # Cron numbers Sunday as 0, isoweekday() as 7.
        if month_day and day.isoweekday() % 7 in fields.weekdays:
            for time_of_day in times_of_day:
                if day + time_of_day > instant:
                    yield day + time_of_day
        day += timedelta(days=1)


@cache
def _parse_numeric_cron(cron: str) -> _CronFields | None:
    """Parse a cron expression that consists only of numbers; return None for other expressions.

    croniter takes 0.2 ms per step, which is slow for backfills over years.
    """
    if len(cron.split()) != 5:
        return None
    expanded, special = _import_croniter().expand(cron)
    if special:
        return None
    minutes, hours, days, months, weekdays = expanded
    # Cron matches either of the two day fields if both are restricted. February 31st never occurs:
    # croniter rejects it, while iterating over days would never end.
    if days != ["*"] and (weekdays != ["*"] or min(days, default=0) > 28):
        return None
    fields = [
        _expand_field(minutes, _EVERY_NUMBER.minutes),
        _expand_field(hours, _EVERY_NUMBER.hours),
        _expand_field(days, _EVERY_NUMBER.days),
        _expand_field(months, _EVERY_NUMBER.months),
        _expand_field(weekdays, _EVERY_NUMBER.weekdays),
    ]
    number_fields = [field for field in fields if field is not None]
    if len(number_fields) < len(fields):
        return None
    return _CronFields(*number_fields)


def _expand_field(
    field: Sequence[int | str], every_number: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the numbers that a field matches, or None if it contains anything else.

    Sunday is both 0 and 7.
    """
    if list(field) == ["*"]:
        return every_number
    numbers = set()
    for value in field:
        if not isinstance(value, int):
            return None
        numbers.add(0 if every_number == _EVERY_NUMBER.weekdays and value == 7 else value)
    return tuple(sorted(numbers))


def _croniter(cron: str, start: datetime) -> Any:
    return _import_croniter()(cron, start)


def _import_croniter() -> Any:
    try:
        from croniter import croniter
    except ImportError as error:
        raise missing_extra("croniter", "jobs") from error
    return croniter


def _check_schedule(schedule: Schedule) -> None:
    try:
        ZoneInfo(schedule.timezone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InvalidJob(
            f"timezone={schedule.timezone!r} is not a time zone.",
            hint="timezone='Europe/Stockholm'",
        ) from error
    if schedule.width is not None and schedule.width <= timedelta(0):
        raise InvalidJob("window= must be longer than zero.")
    try:
        _croniter(schedule.cron, times.utc_now())
    except (ValueError, KeyError) as error:
        raise InvalidJob(
            f"schedule={schedule.cron!r} is not a cron expression.", hint="'0 * * * *' is hourly"
        ) from error
