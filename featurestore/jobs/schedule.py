"""Windows of a schedule as pure functions: all windows, and the due windows.

A schedule is a cron expression in a time zone. Each window is a data interval that ends at a
schedule time t. Without a width it starts at the previous schedule time, so that windows are
adjacent across daylight saving changes. With the width ``window`` it is ``[t - window, t)``, unless
the width is the interval of the schedule: then windows are adjacent, too. On the night when clocks
go back, a daily schedule at 00:00 local time has a window of 25 hours, also with ``window="1d"``.

A window is due once ``allowed_lateness`` has elapsed since its end. The due windows are a function
of (definition, watermark, now).

Daylight saving follows Debian's cron. A schedule whose minute or hour field starts with ``*``
follows the clock: a skipped local time has no window, and a repeated local time has two. All other
schedules run at fixed times of the day: a skipped time is scheduled at the first instant after the
gap, and a repeated time is scheduled once, when it occurs first.

cronsim parses the expressions and matches the days. Its times of a time zone are not used: near a
change of half an hour (Australia/Lord_Howe) it omits times, a change after midnight
(America/St_Johns) may never end, and a start within a repeated hour gives times before the start.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise, takewhile
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from featurestore.errors import InvalidJob, OutOfRange, missing_extra
from featurestore.model import times
from featurestore.model.job import JobSpec, Schedule, StreamWork
from featurestore.model.runtime import iterate_within_limit
from featurestore.model.times import Window

if TYPE_CHECKING:
    from cronsim import CronSim

# Windows to check for overlaps: a year of daily windows, with daylight saving changes. Schedules of
# leap days have few windows within the years.
_TIMES_COMPARED = 400
_YEARS_COMPARED = 8
_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)
_FIRST_SECOND = datetime(1, 1, 1, second=1, tzinfo=UTC)
_FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
# Fields of Jenkins, Quartz and croniter, and the same in cronsim.
_NOTATIONS = {r"\?": "*", "[HR]": "0", r"[HR]/(\d+)": r"*/\1", r"L(\d)": r"\1L"}
_REPAIRS = {
    # croniter continues a range of hours or weekdays after its last number.
    r"^(\S+) (\d+)-(\d+) ": r"\1 \2-23,0-\3 ",
    r" (\w+)-(\w+)$": r" \1-6,0-\2",
    # No month of the expression has this day.
    r"^(\S+ \S+) 3[01] ": r"\1 L ",
}
_EXAMPLE = "schedule='0 * * * *' is hourly"
# The names of crontab(5); cronsim parses only the five fields.
_NAMED_SCHEDULES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


def check_schedule(schedule: Schedule) -> Schedule:
    """Return a schedule if its windows can be computed; raise InvalidJob otherwise.

    A registry may contain a schedule of another store.
    """
    try:
        ZoneInfo(schedule.timezone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InvalidJob(
            f"timezone={schedule.timezone!r} is not a time zone.",
            hint="timezone='Europe/Stockholm'",
        ) from error
    if schedule.width is not None and schedule.width <= timedelta(0):
        raise InvalidJob("window= must be longer than zero.")
    _parse_cron(schedule.cron)
    return schedule


def is_computable(spec: JobSpec) -> bool:
    """Return whether a registered job has a valid schedule, or reads a stream without windows."""
    try:
        return isinstance(spec.work, StreamWork) or bool(check_schedule(spec.schedule))
    except InvalidJob:
        return False


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
    cron, zone = _parse_cron(schedule.cron), ZoneInfo(schedule.timezone)
    previous, width = last_schedule_time(schedule, instant), schedule.width
    days = _times_by_day(schedule, instant, step=_DAY)
    for end in (time for day_times in days for time in day_times if time > instant):
        if width is None or cron.is_changed_interval(previous, end, zone=zone, width=width):
            yield Window(previous, end)
        else:
            yield Window(times.shift_time(end, -width), end)
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
    # Offsets change by at most a day, so a window is at most a day shorter than its width.
    since = times.shift_time(start, max((schedule.width or _DAY) - 2 * _DAY, timedelta(0)))
    window = next(window for window in windows_after(schedule, since) if window.start >= start)
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
    days = _times_by_day(schedule, instant, step=-_DAY)
    return next(time for day_times in days for time in reversed(day_times) if time <= instant)


def has_overlapping_windows(schedule: Schedule) -> bool:
    """Return whether consecutive windows overlap because the width exceeds a schedule interval."""
    if schedule.width is None:
        return False
    since = schedule.start or times.utc_now()
    upcoming = takewhile(
        lambda window: window.end.year <= since.year + _YEARS_COMPARED,
        windows_after(schedule, since),
    )
    # Intervals of a schedule can differ, for example between months, so one interval is not enough.
    return any(
        later.start < earlier.end for earlier, later in pairwise(islice(upcoming, _TIMES_COMPARED))
    )


def _times_by_day(
    schedule: Schedule, instant: datetime, *, step: timedelta
) -> Iterator[list[datetime]]:
    """Yield the schedule times of UTC days, from the day of an instant on, indefinitely.

    The times of a day do not depend on the instant, so lists of windows that begin at different
    instants agree.
    """
    cron, zone = _parse_cron(schedule.cron), ZoneInfo(schedule.timezone)
    try:
        day = instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        while True:
            yield cron.times_on(day, zone)
            day += step
    except OverflowError as error:  # how datetime reports the years before 1 and after 9999
        raise OutOfRange(
            f"The schedule {schedule.cron!r} has no time near {instant.isoformat()}.",
            hint="choose a start and an end in the years of the data, for example 2024",
        ) from error


def _utc_offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def _offset_before(zone: ZoneInfo, instant: datetime) -> timedelta:
    """Return the offset of the second before an instant; nothing is before the year 1."""
    return _utc_offset(zone, max(instant, _FIRST_SECOND) - _SECOND)


@dataclass(frozen=True)
class _Cron:
    """A parsed cron expression; ``times_of_day`` are the matching times since midnight."""

    fields: CronSim
    times_of_day: tuple[timedelta, ...]
    is_fixed: bool

    def local_times(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the matching local times in ``[start, end)``."""
        day = start.replace(hour=0, minute=0, second=0)
        while day < end:
            if day.month in self.fields.months and self.fields.match_day(day):
                for time_of_day in self.times_of_day:
                    if start <= day + time_of_day < end:
                        yield day + time_of_day
            day += _DAY

    def times_on(self, day: datetime, zone: ZoneInfo) -> list[datetime]:
        """Return the schedule times of a UTC day, in ascending order."""
        end = day + _DAY
        before, after = _offset_before(zone, day), _offset_before(zone, end)
        change = day
        if before != after:
            # The time zone database has no zone that changes its offset twice within three days.
            change += _SECOND * bisect_left(
                range(_DAY // _SECOND),
                True,
                key=lambda seconds: _utc_offset(zone, day + seconds * _SECOND) != before,
            )
        instants = [
            *[local - before for local in self.local_times(day + before, change + before)],
            *[local - after for local in self.local_times(change + after, end + after)],
        ]
        if not self.is_fixed:
            return instants
        first_instants = [time for time in instants if not time.astimezone(zone).fold]
        if next(self.local_times(change + before, change + after), None) is not None:
            return sorted({*first_instants, change})
        return first_instants

    def is_changed_interval(
        self, previous: datetime, end: datetime, *, zone: ZoneInfo, width: timedelta
    ) -> bool:
        """Return whether an interval has another length than ``width`` only by a change of offset.

        ``previous`` and ``end`` are consecutive schedule times.
        """
        offset = _utc_offset(zone, end)
        # After a gap, the previous time may be a skipped time, before the change of the offset.
        change = abs(offset - _offset_before(zone, previous))
        # If a time of the interval is skipped, the interval is at most twice as long.
        if not change or end - previous > max(width + change, 2 * width):
            return False
        *_, local = self.local_times(end + offset - change, end + offset + _SECOND)
        return list(self.local_times(local - width, local)) == [local - width]


@cache
def _parse_cron(cron: str) -> _Cron:
    """Parse a cron expression.

    Raises:
        InvalidJob: The expression is invalid, or it never matches.
    """
    expression = _NAMED_SCHEDULES.get(cron.strip().lower(), cron)
    problem = _find_problem(expression)
    if problem is not None:
        suggestion = _suggest_expression(expression)
        raise InvalidJob(
            f"schedule={cron!r} cannot be computed: {problem}.",
            hint=_EXAMPLE if suggestion is None else f"schedule={suggestion!r}",
        )
    fields = _import_cronsim()(expression, datetime(2000, 1, 1))
    times_of_day = tuple(
        timedelta(hours=hour, minutes=minute)
        for hour in sorted(fields.hours)
        for minute in sorted(fields.minutes)
    )
    is_fixed = not any(field.startswith("*") for field in expression.split()[:2])
    return _Cron(fields, times_of_day, is_fixed)


def _find_problem(expression: str) -> str | None:
    """Return why a cron expression cannot be computed, None if it can be."""
    fields = expression.split()
    # cronsim would take a sixth field as seconds.
    if len(fields) != len(_FIELDS):
        return f"it has {len(fields)} fields instead of {len(_FIELDS)}: {', '.join(_FIELDS)}"
    for number, field in enumerate(fields):
        single_field = ["*"] * len(_FIELDS)
        single_field[number] = field
        if not _has_times(" ".join(single_field)):
            return f"{field!r} is not a valid {_FIELDS[number]}"
    if not _has_times(expression):
        return "no day matches"
    return None


def _has_times(expression: str) -> bool:
    """Return whether a cron expression of five fields is valid and matches at any time."""
    cronsim_class = _import_cronsim()
    from cronsim import CronSimError

    try:
        # Weekdays and leap days repeat within the 50 years that cronsim searches.
        return next(cronsim_class(expression, datetime(2000, 1, 1)), None) is not None
    except (CronSimError, ValueError):  # ValueError: a number of thousands of digits
        return False


def _suggest_expression(expression: str) -> str | None:
    """Return a valid expression for the notation of another scheduler, None if it is unknown.

    >>> _suggest_expression("0 0 0 ? * FRI-MON")
    '0 0 * * FRI-6,0-MON'
    """
    fields = expression.split()
    if len(fields) > len(_FIELDS):  # Quartz has seconds before and years after the five fields
        fields = fields[1:6]
    standard = " ".join(fields)
    for pattern, replacement in _NOTATIONS.items():
        standard = re.sub(rf"(?<!\S){pattern}(?!\S)", replacement, standard, flags=re.IGNORECASE)
    suggestions = [standard]
    suggestions += [
        re.sub(pattern, replacement, standard) for pattern, replacement in _REPAIRS.items()
    ]
    return next(
        (suggestion for suggestion in suggestions if _find_problem(suggestion) is None), None
    )


def _import_cronsim() -> type[CronSim]:
    try:
        from cronsim import CronSim
    except ImportError as error:
        raise missing_extra("cronsim", "jobs") from error
    return CronSim
