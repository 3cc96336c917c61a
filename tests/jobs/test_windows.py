"""Window arithmetic: schedule times, widths, lateness, daylight saving and catchup."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from croniter import croniter
from hypothesis import given
from hypothesis import strategies as st

from featurestore.errors import InvalidJob
from featurestore.jobs import schedule as w
from featurestore.model.times import Window

HOUR = timedelta(hours=1)
T0 = datetime(2024, 1, 1, tzinfo=UTC)
HOURLY = w.Schedule("0 * * * *", start=T0)


def spans(schedule: w.Schedule, start: datetime, count: int) -> list[float]:
    return [
        (window.end - window.start) / HOUR
        for window in islice(w.windows_after(schedule, start), count)
    ]


def test_windows_without_width_tile_time_across_dst_changes() -> None:
    daily = w.Schedule("0 0 * * *", timezone="Europe/Stockholm")
    assert spans(daily, datetime(2024, 3, 30, 23, tzinfo=UTC), 3) == [23, 24, 24]
    assert spans(daily, datetime(2024, 10, 26, 22, tzinfo=UTC), 3) == [25, 24, 24]
    for start in (datetime(2024, 3, 29, tzinfo=UTC), datetime(2024, 10, 25, tzinfo=UTC)):
        for cron in ("0 * * * *", "30 2 * * *", "*/20 * * * *", "0 0 * * *"):
            actual = list(
                islice(w.windows_after(w.Schedule(cron, timezone="Europe/Stockholm"), start), 100)
            )
            assert all(before.end == after.start < after.end for before, after in pairwise(actual))


def test_schedule_width_is_elapsed_time_across_dst_changes() -> None:
    daily = w.Schedule("0 0 * * *", timedelta(days=1), timezone="Europe/Stockholm")
    assert spans(daily, datetime(2024, 10, 26, 22, tzinfo=UTC), 3) == [24, 24, 24]


def test_hourly_windows_clocks_back_cover_each_hour_once() -> None:
    local = w.Schedule("0 * * * *", timezone="America/New_York")
    start = datetime(2024, 11, 3, 3, tzinfo=UTC)
    assert [window.end for window in islice(w.windows_after(local, start), 6)] == [
        start + n * HOUR for n in range(1, 7)
    ]


@given(
    st.sampled_from(
        [
            "0 * * * *",
            "*/7 * * * *",
            "5 0 * * *",
            "0 6 * * 1-5",
            "30 4 1,15 * *",
            "0 0 13 * 5",
            "0 0 * 2 7",
        ]
    ),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
)
def test_schedule_window_ends_equal_croniter(cron: str, start: datetime) -> None:
    reference = croniter(cron, start)
    ends = [window.end for window in islice(w.windows_after(w.Schedule(cron), start), 20)]
    assert ends == [reference.get_next(datetime) for _ in range(20)]


def test_due_windows_wait_for_allowed_lateness() -> None:
    patient = w.Schedule("0 * * * *", start=T0, allowed_lateness=timedelta(minutes=15))
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
    assert w.due_windows(w.Schedule("0 * * * *"), watermark=None, now=T0) == []
    actual = w.due_windows(HOURLY, watermark=None, now=T0 + 9 * HOUR, limit=2)
    assert [window.start for window in actual] == [T0, T0 + HOUR]


def test_window_ending_equals_window_starting() -> None:
    assert w.window_starting(HOURLY, T0 + HOUR) == w.window_ending(HOURLY, T0 + 2 * HOUR)
    for find in (w.window_starting, w.window_ending):
        with pytest.raises(InvalidJob, match="Hint: "):
            find(HOURLY, T0 + timedelta(minutes=1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"cron": "61 * * * *"},
        {"cron": "hourly"},
        {"timezone": "Mars/Olympus"},
        {"width": timedelta(0)},
    ],
)
def test_schedule_invalid_arguments_raise(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidJob):
        w.Schedule(**{"cron": "0 * * * *", **wrong})  # type: ignore[arg-type]
