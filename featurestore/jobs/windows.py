"""Windows of a schedule, pure: which there are, which are due.

A schedule is a cron expression in a time zone. Its ticks cut time: with the width ``window`` the window of tick t is
``[t - window, t)``; without a width a window reaches from one tick to the next, so windows tile time whatever daylight
saving does. The widths of windows are elapsed time: on the night when clocks go back, a daily tick at 00:00 local time
gives a window of 25 hours without ``window=`` and of 24 hours with ``window="1d"``.

A window is due when it ended at least ``settle`` ago. Due windows are a function of (definition, watermark, now).

A local time that daylight saving skips ticks at the first moment after the gap; one that it repeats ticks twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from featurestore.errors import InvalidJob, missing_extra
from featurestore.model import times
from featurestore.model.window import Window

# Ticks compared to find overlapping windows: enough for a year of daily ones, daylight saving included.
_TICKS_LOOKED_AT = 400


@dataclass(frozen=True)
class Schedule:
    """When windows end, how wide they are, where they begin and how long to wait for late data.

    ``start`` is the beginning of the first window at the earliest; None means that there is no past to catch up.
    """

    cron: str
    width: timedelta | None = None
    start: datetime | None = None
    settle: timedelta = timedelta(0)
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        _check(self)


def due_windows(
    schedule: Schedule,
    *,
    watermark: datetime | None,
    now: datetime,
    done: Collection[Window] = (),
    limit: int | None = None,
) -> list[Window]:
    """Return the windows that ended after the watermark and whose settling is over, oldest first.

    Args:
        schedule: The definition.
        watermark: Up to here every window was computed; None when none was.
        now: The present.
        done: Windows after the watermark that were computed all the same.
        limit: At most so many windows.

    >>> from datetime import UTC
    >>> hourly = Schedule("0 * * * *", start=datetime(2024, 1, 1, tzinfo=UTC))
    >>> found = due_windows(hourly, watermark=None, now=datetime(2024, 1, 1, 2, 30, tzinfo=UTC))
    >>> [(window.start.hour, window.end.hour) for window in found]
    [(0, 1), (1, 2)]
    """
    found: list[Window] = []
    since = watermark or schedule.start
    if since is None:
        return found
    for window in windows_after(schedule, since):
        if window.end + schedule.settle > now or (limit is not None and len(found) >= limit):
            break
        if (schedule.start is None or window.start >= schedule.start) and window not in done:
            found.append(window)
    return found


def moved_watermark(
    schedule: Schedule, watermark: datetime | None, done: Collection[Window]
) -> datetime | None:
    """Return where the watermark comes to stand when some windows after it have been computed: at the first gap.

    >>> from datetime import UTC
    >>> hourly = Schedule("0 * * * *", start=datetime(2024, 1, 1, tzinfo=UTC))
    >>> hours = windows_between(hourly, datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 4, tzinfo=UTC))
    >>> moved_watermark(hourly, None, {hours[0], hours[1], hours[3]})
    datetime.datetime(2024, 1, 1, 2, 0, tzinfo=datetime.timezone.utc)
    """
    since = watermark or schedule.start
    if since is None or not done:
        return watermark
    for window in windows_after(schedule, since):
        if schedule.start is not None and window.start < schedule.start:
            continue
        if window not in done:
            break
        watermark = window.end
    return watermark


def windows_between(schedule: Schedule, start: datetime, end: datetime) -> list[Window]:
    """Return the windows that lie whole in ``[start, end)``, oldest first."""
    found = []
    for window in windows_after(schedule, start):
        if window.end > end:
            break
        if window.start >= start:
            found.append(window)
    return found


def windows_after(schedule: Schedule, moment: datetime) -> Iterator[Window]:
    """Yield the windows that end after ``moment``, without end."""
    ticks = _ticks(schedule, moment)
    previous = _tick_at_or_before(schedule, moment) if schedule.width is None else moment
    for tick in ticks:
        yield Window(previous if schedule.width is None else tick - schedule.width, tick)
        previous = tick


def window_ending(schedule: Schedule, end: datetime) -> Window:
    """Return the window that ends at a tick; InvalidJob when ``end`` is none."""
    before = end - timedelta(microseconds=1)
    window = next(windows_after(schedule, before))
    if window.end != end:
        raise InvalidJob(
            f"{end.isoformat()} is no tick of the schedule {schedule.cron!r} ({schedule.timezone}).",
            hint=f"the next one is {window.end.isoformat()}",
        )
    return window


def window_starting(schedule: Schedule, start: datetime) -> Window:
    """Return the window that begins at a moment; InvalidJob when there is none."""
    ending = start + (schedule.width or timedelta(microseconds=1))
    window = next(windows_after(schedule, ending - timedelta(microseconds=1)))
    if window.start != start:
        raise InvalidJob(
            f"No window of the schedule {schedule.cron!r} ({schedule.timezone}) begins at {start.isoformat()}.",
            hint=f"one begins at {window.start.isoformat()}",
        )
    return window


def latest_complete(schedule: Schedule, now: datetime) -> Window | None:
    """Return the last window whose settling is over; None when the first one is still to come."""
    tick = _tick_at_or_before(schedule, now - schedule.settle)
    window = window_ending(schedule, tick)
    return None if schedule.start is not None and window.start < schedule.start else window


def last_tick(schedule: Schedule, moment: datetime) -> datetime:
    """Return the last tick at or before a moment."""
    return _tick_at_or_before(schedule, moment)


def overlaps(schedule: Schedule) -> bool:
    """Tell whether neighbouring windows overlap: the width is larger than the distance of some ticks."""
    ticks = list(islice(_ticks(schedule, schedule.start or times.utc_now()), _TICKS_LOOKED_AT))
    width = schedule.width
    return width is not None and any(later - earlier < width for earlier, later in pairwise(ticks))


def _ticks(schedule: Schedule, moment: datetime) -> Iterator[datetime]:
    """Yield the ticks after a moment."""
    plain = _plain_fields(schedule.cron) if schedule.timezone == "UTC" else None
    if plain is not None:
        yield from _utc_ticks(plain, moment)
    found = _croniter(schedule.cron, moment.astimezone(ZoneInfo(schedule.timezone)))
    while True:
        tick: datetime = found.get_next(datetime)
        yield tick.astimezone(UTC)


def _utc_ticks(fields: _Fields, moment: datetime) -> Iterator[datetime]:
    """Yield the ticks of a schedule without local time: days that match, and the minutes of a day that do."""
    times = [
        timedelta(hours=hour, minutes=minute) for hour in fields.hours for minute in fields.minutes
    ]
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    while True:
        if (
            day.month in fields.months
            and day.day in fields.days
            and day.isoweekday() % 7 in fields.weekdays
        ):
            for time in times:
                if day + time > moment:
                    yield day + time
        day += timedelta(days=1)


@dataclass(frozen=True)
class _Fields:
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]


@cache
def _plain_fields(cron: str) -> _Fields | None:
    """Return the fields of an expression that is nothing but sets of numbers; None leaves it to croniter.

    Stepping from tick to tick costs croniter a fifth of a millisecond, which backfills of years would feel.
    """
    if len(cron.split()) != 5:
        return None
    expanded, special = _croniter_class().expand(cron)
    every = [range(60), range(24), range(1, 32), range(1, 13), range(7)]
    fields = [
        tuple(whole)
        if found == ["*"]
        else tuple(sorted({value % 7 for value in found} if whole == range(7) else found))
        for found, whole in zip(expanded, every, strict=True)
        if all(isinstance(value, int) for value in found) or found == ["*"]
    ]
    if len(fields) != 5:
        return None
    either_day = expanded[2] != ["*"] and expanded[4] != ["*"]
    # A 31st of February never comes: croniter refuses it, a walk over days would go on for ever.
    rare = expanded[2] != ["*"] and min(fields[2], default=0) > 28
    return None if special or either_day or rare else _Fields(*fields)


def _tick_at_or_before(schedule: Schedule, moment: datetime) -> datetime:
    zone = ZoneInfo(schedule.timezone)
    after = (moment + timedelta(microseconds=1)).astimezone(zone)
    tick: datetime = _croniter(schedule.cron, after).get_prev(datetime)
    return tick.astimezone(UTC)


def _croniter(cron: str, start: datetime) -> Any:
    return _croniter_class()(cron, start)


def _croniter_class() -> Any:
    try:
        from croniter import croniter
    except ImportError as error:
        raise missing_extra("croniter", "jobs") from error
    return croniter


def _check(schedule: Schedule) -> None:
    try:
        ZoneInfo(schedule.timezone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InvalidJob(
            f"timezone={schedule.timezone!r} is not a time zone.", hint="such as 'Europe/Stockholm'"
        ) from error
    if schedule.width is not None and schedule.width <= timedelta(0):
        raise InvalidJob("window= must be longer than zero.")
    try:
        _croniter(schedule.cron, times.utc_now())
    except (ValueError, KeyError) as error:
        raise InvalidJob(
            f"schedule={schedule.cron!r} is not a cron expression.", hint="'0 * * * *' is hourly"
        ) from error
