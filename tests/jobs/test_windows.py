"""Window arithmetic: schedule times, widths, lateness, daylight saving and catchup."""

from __future__ import annotations

import calendar
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from featurestore.errors import InvalidJob
from featurestore.jobs import schedule as w
from featurestore.model.job import Schedule
from featurestore.model.times import Window

HOUR = timedelta(hours=1)
T0 = datetime(2024, 1, 1, tzinfo=UTC)
HOURLY = Schedule("0 * * * *", start=T0)


def spans(schedule: Schedule, start: datetime, count: int) -> list[float]:
    return [
        (window.end - window.start) / HOUR
        for window in islice(w.windows_after(schedule, start), count)
    ]


def test_windows_without_width_tile_time_across_dst_changes() -> None:
    daily = Schedule("0 0 * * *", timezone="Europe/Stockholm")
    assert spans(daily, datetime(2024, 3, 30, 23, tzinfo=UTC), 3) == [23, 24, 24]
    assert spans(daily, datetime(2024, 10, 26, 22, tzinfo=UTC), 3) == [25, 24, 24]
    for start in (datetime(2024, 3, 29, tzinfo=UTC), datetime(2024, 10, 25, tzinfo=UTC)):
        for cron in ("0 * * * *", "30 2 * * *", "*/20 * * * *", "0 0 * * *"):
            actual = list(
                islice(w.windows_after(Schedule(cron, timezone="Europe/Stockholm"), start), 100)
            )
            assert all(before.end == after.start < after.end for before, after in pairwise(actual))


def test_width_is_elapsed_time_unless_it_is_the_interval() -> None:
    for hours, expected in ((24, [25, 24, 24]), (20, [20, 20, 20]), (48, [48, 48, 48])):
        daily = Schedule("0 0 * * *", hours * HOUR, timezone="Europe/Stockholm")
        assert spans(daily, datetime(2024, 10, 26, 22, tzinfo=UTC), 3) == expected
        assert w.has_overlapping_windows(daily) == (hours == 48)


def test_hourly_windows_clocks_back_cover_each_hour_once() -> None:
    local = Schedule("0 * * * *", timezone="America/New_York")
    start = datetime(2024, 11, 3, 3, tzinfo=UTC)
    assert [window.end for window in islice(w.windows_after(local, start), 6)] == [
        start + n * HOUR for n in range(1, 7)
    ]


# An instant close to a change of the UTC offset, of each kind.
CHANGES = {
    "Europe/Stockholm": ("2024-03-31T01:00", "2024-10-27T01:00", "1878-12-31T22:47"),
    "Australia/Lord_Howe": ("2024-10-05T15:30", "2024-04-06T15:00"),  # half an hour
    "America/Sao_Paulo": ("2018-11-04T03:00", "2018-02-18T02:00"),  # midnight is skipped
    "Africa/Cairo": ("2024-04-25T22:00", "2024-10-31T21:00"),
    "America/St_Johns": ("2006-04-02T03:31", "2006-10-29T02:31"),  # one minute after midnight
    "Europe/Amsterdam": ("1937-06-30T22:40", "1916-04-30T23:40"),  # an offset with seconds
    "Africa/Monrovia": ("1972-01-07T00:44",),
    "Antarctica/Troll": ("2024-03-31T01:00", "2024-10-27T01:00"),  # two hours
    "Pacific/Apia": ("2011-12-30T10:00",),  # a day is skipped
    "America/Juneau": ("1867-10-19T00:31",),  # a day is repeated
    "Africa/Casablanca": ("2024-03-10T02:00", "2024-04-14T02:00"),
    "Asia/Kathmandu": ("1985-12-31T18:30",),
    "UTC": ("1969-12-31T23:59", "2100-02-28T23:00"),
}
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
NAMES = {
    "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "weekday": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}


@dataclass(frozen=True)
class Field:
    """A field of a random cron expression, and whether a local time matches it."""

    text: str
    matches: Callable[[datetime], bool]


def random_field(
    chance: random.Random, first: int, last: int, value: Callable[[datetime], int], name: str = ""
) -> Field:
    def write(number: int) -> str:
        has_name = name and chance.random() < 0.3
        return NAMES[name][number - first] if has_name else str(number)

    low, high = sorted(chance.sample(range(first, last + 1), 2))
    step = chance.choice([2, 3, 5, 7, 15, 20, 30])
    texts = {
        "*": range(first, last + 1),
        f"*/{step}": range(first, last + 1, step),
        write(low): [low],
        f"{write(low)},{write(high)}": [low, high],
        f"{write(low)}-{write(high)}": range(low, high + 1),
        f"{low}-{high}/{step}": range(low, high + 1, step),
        # The days of the week end with 7, a second number of Sunday.
        f"{low}/{step}": [number % 7 for number in range(low, 8, step)]
        if name == "weekday"
        else range(low, last + 1, step),
    }
    text, numbers = chance.choice(list(texts.items()))
    return Field(text, lambda local: value(local) in numbers)


def random_day_field(chance: random.Random) -> Field:
    def is_last(local: datetime) -> bool:
        return (local + DAY).month != local.month

    def is_last_workday(local: datetime) -> bool:
        last = calendar.monthrange(local.year, local.month)[1]
        workdays = [day for day in range(1, last + 1) if local.replace(day=day).isoweekday() < 6]
        return local.day == max(workdays)

    special = {
        "L": is_last,
        "LW": is_last_workday,
        "1,L": lambda local: local.day == 1 or is_last(local),
    }
    if chance.random() < 0.3:
        return Field(*chance.choice(list(special.items())))
    return random_field(chance, 1, 31, lambda local: local.day)


def random_weekday_field(chance: random.Random) -> Field:
    if chance.random() > 0.3:
        return random_field(chance, 0, 6, lambda local: local.isoweekday() % 7, "weekday")
    weekday, number = chance.randrange(7), chance.randrange(1, 5)
    special = {
        f"{weekday}L": lambda local: (local + 7 * DAY).month != local.month,
        f"{weekday}#{number}": lambda local: (local.day - 1) // 7 + 1 == number,
        "7": lambda local: True,
    }
    text, matches = chance.choice(list(special.items()))
    weekday = 0 if text == "7" else weekday
    return Field(text, lambda local: local.isoweekday() % 7 == weekday and matches(local))


@dataclass(frozen=True)
class RandomCron:
    """A random cron expression, and plain rules for its local times."""

    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    @property
    def text(self) -> str:
        fields = (self.minute, self.hour, self.day, self.month, self.weekday)
        return " ".join(field.text for field in fields)

    @property
    def is_fixed(self) -> bool:
        return "*" not in (self.minute.text[0], self.hour.text[0])

    def matches_day(self, local: datetime) -> bool:
        if not self.month.matches(local):
            return False
        days = self.day.matches(local), self.weekday.matches(local)
        if "*" in (self.day.text[0], self.weekday.text[0]):
            return all(days)
        return any(days)

    def matches(self, local: datetime) -> bool:
        return self.minute.matches(local) and self.hour.matches(local) and self.matches_day(local)


ALWAYS = Field("*", lambda local: True)


def random_cron(chance: random.Random, *, restricted_days: float) -> RandomCron:
    days = [
        random_day_field(chance),
        random_field(chance, 1, 12, lambda local: local.month, "month"),
        random_weekday_field(chance),
    ]
    return RandomCron(
        random_field(chance, 0, 59, lambda local: local.minute),
        random_field(chance, 0, 23, lambda local: local.hour),
        *[field if chance.random() < restricted_days else ALWAYS for field in days],
    )


def offset_changes(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the instants at which the UTC offset changes, found by a walk over the seconds."""
    instant = start
    while instant < end:
        offset = instant.astimezone(zone).utcoffset()
        if (instant + MINUTE).astimezone(zone).utcoffset() != offset:
            seconds = (instant + timedelta(seconds=number) for number in range(61))
            yield next(time for time in seconds if time.astimezone(zone).utcoffset() != offset)
        instant += MINUTE


def walk_minutes(cron: RandomCron, zone: ZoneInfo, start: datetime, end: datetime) -> set[datetime]:
    """Return the schedule times in ``(start, end]`` by a walk over all local minutes."""
    changes = list(offset_changes(zone, start - 2 * DAY, end + 2 * DAY))
    local = (start - 2 * DAY).replace(second=0, microsecond=0, tzinfo=None)
    instants = set()
    while local < end.replace(tzinfo=None) + 2 * DAY:
        if cron.matches(local):
            early, late = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
            existing = [
                time
                for time in (early, late)
                if time.astimezone(zone).replace(tzinfo=None, fold=0) == local
            ]
            if existing:
                instants.update(existing[:1] if cron.is_fixed else existing)
            elif cron.is_fixed:  # a skipped local time: the first instant after the gap
                instants.add(next(time for time in changes if late < time <= early))
        local += MINUTE
    return {time for time in instants if start < time <= end}


def list_windows(schedule: Schedule, start: datetime, end: datetime) -> list[Window]:
    """Return the windows that end in ``(start, end]``."""
    return list(takewhile(lambda window: window.end <= end, w.windows_after(schedule, start)))


@pytest.mark.parametrize("count", [30, pytest.param(1_000, marks=pytest.mark.soak)])
def test_windows_of_random_schedules_equal_walk_over_minutes(count: int) -> None:
    chance = random.Random(count)
    for _ in range(count):
        name = chance.choice(list(CHANGES))
        change = datetime.fromisoformat(chance.choice(CHANGES[name])).replace(tzinfo=UTC)
        start = change + timedelta(seconds=chance.randrange(-100_000, 40_000))
        cron, zone = random_cron(chance, restricted_days=0.1), ZoneInfo(name)
        end, message = start + DAY, f"{cron.text} in {name} from {start}"
        try:
            schedule = Schedule(cron.text, timezone=name)
        except InvalidJob:
            assert not walk_minutes(cron, zone, start, end), message
            continue
        windows = list_windows(schedule, start, end)
        ends = [window.end for window in windows]
        assert ends == sorted(walk_minutes(cron, zone, start, end)), message
        assert all(before.end == after.start < after.end for before, after in pairwise(windows))
        starts = [start + chance.random() * (end - start) for _ in range(2)]
        for since in [*starts, *ends[:2]]:
            later = [window for window in windows if window.end > since]
            assert list_windows(schedule, since, end) == later, f"{message}, listed from {since}"
            assert w.last_schedule_time(schedule, since) <= since


@pytest.mark.parametrize("count", [60, pytest.param(6_000, marks=pytest.mark.soak)])
def test_windows_as_wide_as_the_interval_are_adjacent(count: int) -> None:
    chance = random.Random(count)
    for _ in range(count):
        name = chance.choice(list(CHANGES))
        change = datetime.fromisoformat(chance.choice(CHANGES[name])).replace(tzinfo=UTC)
        minute, hour, step = chance.randrange(60), chance.randrange(24), chance.choice([2, 3, 4, 6])
        intervals = {
            f"*/{5 * step} * * * *": 5 * step * MINUTE,
            f"{minute} * * * *": HOUR,
            f"{minute} 0-23 * * *": HOUR,
            f"{minute} */{step} * * *": step * HOUR,
            f"{minute} {hour} * * *": DAY,
            f"{minute} {hour} * * 3": 7 * DAY,
        }
        cron, interval = chance.choice(list(intervals.items()))
        start = change - chance.random() * 2 * interval
        adjacent, wide, double, half = (
            list(islice(w.windows_after(Schedule(cron, width, timezone=name), start), 8))
            for width in (None, interval, 2 * interval, interval / 2)
        )
        assert wide == adjacent, f"{cron} in {name} from {start}"
        assert [(each.end - each.start) / interval for each in [*double, *half]] == 8 * [2] + 8 * [
            0.5
        ]
        for window in wide:
            schedule = Schedule(cron, interval, timezone=name)
            assert w.window_starting(schedule, window.start) == window
            assert w.window_ending(schedule, window.end) == window


@pytest.mark.parametrize("count", [30, pytest.param(3_000, marks=pytest.mark.soak)])
def test_days_of_random_schedules_equal_walk_over_days(count: int) -> None:
    chance = random.Random(count)
    for _ in range(count):
        cron = random_cron(chance, restricted_days=0.7)
        first = datetime(chance.randrange(1890, 2110), 1, 1, tzinfo=UTC)
        days = [first + number * DAY for number in range(1_000)]
        expression = " ".join(["0 0", *cron.text.split()[2:]])
        expected = [day for day in days if cron.matches_day(day)]
        try:
            windows = list_windows(Schedule(expression), first - MINUTE, days[-1])
        except InvalidJob:
            assert not expected, expression
        else:
            assert [window.end for window in windows] == expected, expression


@pytest.mark.parametrize(
    ("cron", "zone", "start", "expected", "cronsim_times"),
    [  # a repeated half hour: a time is omitted
        ("45 * * * *", "Australia/Lord_Howe", "2024-04-06T14:30", "14:45 15:15", "14:45 16:15"),
        # a day with a skipped half hour: half an hour is omitted
        ("* 9 * * *", "Australia/Lord_Howe", "2024-10-05T12:00", "22:00 22:01", "22:30 22:31"),
        # a start in a repeated hour: a time before the start
        ("40 1,2 * * *", "Europe/Stockholm", "2024-10-27T01:10", "00:40 01:40", "00:40 00:40"),
    ],
)
def test_cronsim_alone_maps_local_times_differently(
    cron: str, zone: str, start: str, expected: str, cronsim_times: str
) -> None:
    # If this fails after an upgrade of cronsim, the module may not need its own mapping any more.
    since = datetime.fromisoformat(start).replace(tzinfo=UTC)
    windows = islice(w.windows_after(Schedule(cron, timezone=zone), since), 2)
    assert " ".join(f"{window.end:%H:%M}" for window in windows) == expected
    alone = islice(CronSim(cron, since.astimezone(ZoneInfo(zone))), 2)
    assert " ".join(f"{time.astimezone(UTC):%H:%M}" for time in alone) == cronsim_times


def test_due_windows_wait_for_allowed_lateness() -> None:
    patient = Schedule("0 * * * *", start=T0, allowed_lateness=timedelta(minutes=15))
    assert w.due_windows(patient, watermark=None, now=T0 + HOUR + timedelta(minutes=14)) == []
    assert w.due_windows(patient, watermark=None, now=T0 + HOUR + timedelta(minutes=15)) == [
        Window(T0, T0 + HOUR)
    ]
    assert w.latest_complete_window(patient, T0 + HOUR + timedelta(minutes=14)) is None


@given(st.sets(st.integers(0, 30)), st.integers(0, 30))
def test_due_and_done_windows_cover_all_windows(hours: set[int], now: int) -> None:
    computed = {Window(T0 + n * HOUR, T0 + (n + 1) * HOUR) for n in hours}
    mark = w.advance_watermark(HOURLY, None, computed)
    due = w.due_windows(HOURLY, watermark=mark, now=T0 + now * HOUR, computed=computed)
    actual = {(window.start - T0) // HOUR for window in due}
    assert actual == set(range(now)) - hours
    assert mark is None or all(n in hours for n in range((mark - T0) // HOUR))


def test_due_windows_without_start_or_with_limit() -> None:
    assert w.due_windows(Schedule("0 * * * *"), watermark=None, now=T0) == []
    actual = w.due_windows(HOURLY, watermark=None, now=T0 + 9 * HOUR, limit=2)
    assert [window.start for window in actual] == [T0, T0 + HOUR]


def test_window_ending_equals_window_starting() -> None:
    assert w.window_starting(HOURLY, T0 + HOUR) == w.window_ending(HOURLY, T0 + 2 * HOUR)
    for find in (w.window_starting, w.window_ending):
        with pytest.raises(InvalidJob, match="Hint: "):
            find(HOURLY, T0 + timedelta(minutes=1))


def test_schedule_invalid_arguments_raise(subtests: pytest.Subtests) -> None:
    for wrong in ({"timezone": "Mars/Olympus"}, {"width": timedelta(0)}):
        with subtests.test(str(wrong)), pytest.raises(InvalidJob):
            w.check_schedule(Schedule(**{"cron": "0 * * * *", **wrong}))  # type: ignore[arg-type]


def test_schedule_that_cannot_be_computed_raises_with_valid_hint(
    subtests: pytest.Subtests,
) -> None:
    hourly = "0 * * * *"
    suggestions = {
        "0 0 30 2 *": "0 0 L 2 *",
        "0 0 31 4,6 *": "0 0 L 4,6 *",
        "0 0 */20 * 1L": hourly,
        "R 0 * * *": "0 0 * * *",
        "H/15 0 * * *": "*/15 0 * * *",
        "0 0 6 ? * MON-FRI": "0 6 * * MON-FRI",
        "0 0 6 ? * MON-FRI 2030": "0 6 * * MON-FRI",
        "0 22-2 * * *": "0 22-23,0-2 * * *",
        "0 0 * * fri-mon": "0 0 * * fri-6,0-mon",
        "0 0 * * L5": "0 0 * * 5L",
        "61 * * * *": hourly,
        "* * * *": hourly,
        "": hourly,
        "hourly": hourly,
        "@reboot": hourly,
        "0 24 * * *": hourly,
        "0 0 * janu *": hourly,
        "9" * 5_000 + " * * * *": hourly,
    }
    for cron, suggestion in suggestions.items():
        with subtests.test(cron[:40]):
            with pytest.raises(InvalidJob, match="cannot be computed") as refused:
                w.check_schedule(Schedule(cron))
            assert f"schedule={suggestion!r}" in str(refused.value.hint)
            w.check_schedule(Schedule(suggestion))


def test_schedule_of_random_text_is_computed_or_refused() -> None:
    chance = random.Random(7)
    text = "0 1 5 59 * */2 2- L LW 3L 1#5 1#6 R H ? jan mon-fri 9-3 , / - # @daily ٣ 31 29 2,x"
    words = text.split()
    for _ in range(400):
        cron = " ".join(chance.choices(words, k=chance.choice([1, 4, 5, 5, 5, 5, 5, 6, 7])))
        if chance.random() < 0.2:
            cron = cron.replace(" ", "", 1)
        try:
            schedule = w.check_schedule(Schedule(cron))
        except InvalidJob:
            continue
        window = next(w.windows_after(schedule, T0))
        assert window.start <= T0 < window.end, cron


def test_named_schedules_equal_their_fields() -> None:
    for name, cron in {"@daily": "0 0 * * *", " @Weekly": "0 0 * * sun"}.items():
        assert spans(Schedule(name), T0, 9) == spans(Schedule(cron), T0, 9)
