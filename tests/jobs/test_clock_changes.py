"""Scheduled jobs where clocks change by half an hour: each row is in one window, and none is lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from featurestore.store import FeatureStore
from tests.jobs.conftest import Clock
from tests.store_copies import embedded

MINUTE = timedelta(minutes=1)
ZONE = ZoneInfo("Australia/Lord_Howe")
# The last minute before each change, in UTC: half an hour is repeated, and half an hour is skipped.
CHANGES = {
    "repeated": datetime(2024, 4, 6, 14, 59, tzinfo=UTC),
    "skipped": datetime(2024, 10, 5, 15, 29, tzinfo=UTC),
}
# Cron expressions, whether a local time matches them, and the hours of rows around the change. The
# last two run at fixed times of the day.
SCHEDULES: list[tuple[str, Callable[[datetime], bool], int]] = [
    ("*/30 * * * *", lambda local: local.minute % 30 == 0, 3),
    ("45 * * * *", lambda local: local.minute == 45, 3),
    ("45 1 * * *", lambda local: (local.hour, local.minute) == (1, 45), 50),
    ("10 2 * * *", lambda local: (local.hour, local.minute) == (2, 10), 50),
]
JOB = """
@featurestore.job(featuregroup={name!r}, primary_key=["id"], event_time="at", schedule={cron!r},
    start={start!r}, timezone="Australia/Lord_Howe", mode={mode!r}, inputs={{"ticks": "ticks"}},
    closed="left", statistics=False)
def {name}(window, ticks):
    table = ticks.to_arrow_table().select(["id", "at"])
    return table.append_column("ended", pa.array([window.end] * len(table), table["at"].type))
"""


def list_schedule_times(
    first: datetime, last: datetime, matches: Callable[[datetime], bool], *, is_fixed: bool
) -> list[datetime]:
    """Walk over the minutes; a fixed time runs when it occurs first, or at the end of a gap."""
    times = []
    minutes = [first + number * MINUTE for number in range((last - first) // MINUTE)]
    for before, minute in pairwise(minutes):
        local, earlier = (each.astimezone(ZONE).replace(tzinfo=None) for each in (minute, before))
        skipped = [earlier + number * MINUTE for number in range(1, (local - earlier) // MINUTE)]
        is_repeated = bool(minute.astimezone(ZONE).fold)
        is_first = matches(local) and not (is_fixed and is_repeated)
        if is_first or (is_fixed and any(map(matches, skipped))):
            times.append(minute)
    return times


@pytest.mark.parametrize("change", list(CHANGES))
def test_rows_at_half_hour_change_are_in_one_window(
    tmp_path: Path, clock: Clock, change: str, subtests: pytest.Subtests
) -> None:
    instant = CHANGES[change]
    first, last = (instant + sign * timedelta(hours=60) for sign in (-1, 1))
    ticks = [first + number * MINUTE for number in range((last - first) // MINUTE)]
    rows = {"id": range(len(ticks)), "at": pa.array(ticks, pa.timestamp("us", tz="UTC"))}
    clock.now = last
    with embedded(tmp_path / "store", durability="fast") as store:
        store.create_featuregroup(pa.table(rows), "ticks", primary_key=["id"], event_time="at")
        for number, (cron, matches, hours) in enumerate(SCHEDULES):
            schedule_times = list_schedule_times(first, last, matches, is_fixed=number >= 2)
            # Lists of windows begin before the change, and within the half hour.
            for minutes in (-60 * hours, 10):
                start = instant + minutes * MINUTE
                with subtests.test(cron, start=start.isoformat()):
                    name = f"states_{number}_{minutes % 1000}"
                    file = tmp_path / f"{name}.py"
                    mode = "append" if hours > 24 else "replace_window"
                    file.write_text(
                        "import featurestore\nimport pyarrow as pa\n"
                        + JOB.format(name=name, cron=cron, start=start.isoformat(), mode=mode)
                    )
                    store.register_jobs(file)
                    for until in (instant + 12 * MINUTE, instant + hours * 60 * MINUTE):
                        clock.now = until
                        store.run_job(name, due=True)
                    ends = [time for time in schedule_times if start <= time <= until]
                    expected = {
                        tick: window_end
                        for window_start, window_end in pairwise(ends)
                        for tick in ticks
                        if window_start <= tick < window_end
                    }
                    assert expected
                    assert read_windows(store, name) == sorted(expected.items())


def read_windows(store: FeatureStore, group: str) -> list[tuple[datetime, datetime]]:
    """Return the times of all rows, with the ends of their windows."""
    table = store.get_featuregroup(group).to_arrow()
    return sorted(zip(table["at"].to_pylist(), table["ended"].to_pylist(), strict=True))
