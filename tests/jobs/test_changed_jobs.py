"""Changed definitions of a job over the same group: each trip is counted once, and none is lost."""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import featurestore
from featurestore.cli import app
from featurestore.errors import (
    FeatureGroupNotFound,
    InvalidArgument,
    InvalidJob,
    JobFailed,
    JobLeased,
)
from featurestore.jobs.recovery import restore_runs
from featurestore.jobs.schedule import windows_between
from featurestore.model.job import Schedule
from featurestore.recovery.liveness import hold_job_lease
from featurestore.recovery.rebuild import rebuild
from featurestore.registry import jobs, runs
from featurestore.store import FeatureStore
from tests.jobs.conftest import Clock
from tests.store_copies import copy_of, open_at_time

HOUR = timedelta(hours=1)
# Clocks in Europe change on the third day.
FIRST = datetime(2024, 3, 29, tzinfo=UTC)
DAYS = 4
TIMES = sorted(
    {FIRST + number * timedelta(minutes=47) for number in range(DAYS * 24 * 60 // 47)}
    | {FIRST + number * HOUR for number in range(0, DAYS * 24, 3)}
)
ROWS_OF_WINDOW = {
    "time": "[left_at for left_at in lefts]",
    "bound": "[window.{bound}] * len(lefts)",
}
FILE = """
import featurestore, pathlib
import pyarrow as pa

@featurestore.job(featuregroup={target!r}, name={name!r}, primary_key=["trip"], event_time="at",
    inputs={{"trips": "trips"}}, input_times={{}}, retries=0, {arguments})
def job(window, trips):
    if window.start.isoformat() in pathlib.Path({broken!r}).read_text().split():
        raise ValueError("bad window")
    table = trips.to_arrow_table()
    lefts = table["left_at"].to_pylist()
    at = pa.array({at}, pa.timestamp("us", tz="UTC"))
    return pa.table({{"trip": table["id"], "at": at}})
"""


@pytest.fixture(scope="session")
def four_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose group ``trips`` has four days of rows, some of them on full hours."""
    location = tmp_path_factory.mktemp("four_days") / "store"
    trips = pa.table(
        {
            "id": pa.array(range(len(TIMES)), pa.int64()),
            "left_at": pa.array(TIMES, pa.timestamp("us", tz="UTC")),
        }
    )
    with open_at_time(location, FIRST + timedelta(days=DAYS)) as store:
        store.create_featuregroup(trips, "trips", primary_key=["id"], event_time="left_at")
    return location


@dataclass(frozen=True)
class Rules:
    """The arguments of a job that decide its windows."""

    schedule: str = "0 * * * *"
    start: str | None = FIRST.isoformat()
    mode: str = "append"
    closed: str = "right"
    timezone: str = "UTC"
    window: str | None = None

    def windows(self, end: datetime) -> list[tuple[datetime, datetime]]:
        """Return the complete windows from the start on."""
        width = None if self.window is None else timedelta(hours=int(self.window[:-1]))
        schedule = Schedule(self.schedule, width, timezone=self.timezone)
        start = datetime.fromisoformat(self.start or FIRST.isoformat())
        return [(each.start, each.end) for each in windows_between(schedule, start, end)]


@dataclass
class City:
    """A store with a job, whose definition changes, and the trips that it has to count."""

    store: FeatureStore
    folder: Path
    clock: Clock
    stamp: str = "bound"
    name: str = "demand"
    rules: Rules = field(default_factory=Rules)
    printed: tuple[str, ...] = ()
    expected_trips: set[int] = field(default_factory=set)

    def register(self, name: str | None = None, **changes: Any) -> None:
        """Register the job with changed rules."""
        rules = replace(self.rules, **changes)
        name = name or self.name
        arguments = ", ".join(f"{key}={value!r}" for key, value in vars(rules).items())
        bound = "end" if rules.closed == "right" else "start"
        self.folder.mkdir(exist_ok=True)
        file = self.folder / "jobs.py"
        file.write_text(
            FILE.format(
                name=name, target="demand", arguments=arguments, broken=str(self.broken),
                at=ROWS_OF_WINDOW[self.stamp].format(bound=bound),
            )
        )  # fmt: skip
        self.broken.touch()
        (job,) = self.store.register_jobs(file)
        self.printed, self.rules, self.name = job.changes, rules, name

    @property
    def broken(self) -> Path:
        """The file with the starts of the windows that fail."""
        return self.folder / "broken.txt"

    def run(self, *, until: datetime, failing: tuple[datetime, ...] = ()) -> None:
        """Compute the due windows at a time; some of them fail."""
        self.clock.now = until
        self.broken.write_text("\n".join(start.isoformat() for start in failing))
        try:
            self.store.run_job(self.name, due=True)
        except JobFailed:
            assert failing
        if failing:
            return
        assert self.store.get_jobs()[0].due == 0
        for start, end in self.rules.windows(until):
            if self.rules.start is not None:
                self.expected_trips |= trips_between(start, end)

    def counts(self) -> Counter[int]:
        """Return how often the group contains each trip."""
        try:
            group = self.store.get_featuregroup("demand")
        except FeatureGroupNotFound:
            return Counter()
        return Counter(group.to_arrow()["trip"].to_pylist())

    def is_complete(self) -> bool:
        """Return whether no rows of earlier schedules are being replaced."""
        with self.store.session.registry.reading() as connection:
            return not runs.find_windows(connection, self.name, states=[runs.REPLACED])

    def check(self) -> None:
        """Compare the rows of the group with the trips."""
        counts = self.counts()
        assert [trip for trip, count in counts.items() if count > 1] == []
        assert self.expected_trips <= set(counts)


def trips_between(start: datetime, end: datetime) -> set[int]:
    """Return the trips in ``[start, end)``."""
    return {trip for trip, left_at in enumerate(TIMES) if start <= left_at < end}


@pytest.fixture
def city(tmp_path: Path, clock: Clock, four_days: Path) -> City:
    """A copy of the store with four days, at the end of the trips."""
    clock.now = FIRST + timedelta(days=DAYS)
    return City(copy_of(four_days, tmp_path / "store"), tmp_path / "definitions", clock)


def test_change_from_hours_to_days_appends_each_trip_once(city: City) -> None:
    city.register()
    city.run(until=FIRST + 48 * HOUR)
    city.register(schedule="0 0 * * *")
    assert city.printed == (
        "48 computed windows stay as they are: 2024-03-29T00:00:00+00:00 to "
        "2024-03-31T00:00:00+00:00",
    )
    city.run(until=FIRST + 72 * HOUR)
    city.check()
    assert len(city.counts()) == len(trips_between(FIRST, FIRST + 72 * HOUR))


DAILY = {"schedule": "0 0 * * *"}
# Changes after the hours of the first day until 10:00 were computed, except for the hour at 03:00:
# the new arguments, the outcome, and the number of windows that are due.
CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], str, int]] = [
    ("same windows", {}, {}, "", 1),
    ("another mode", {}, {"mode": "upsert"}, "9 computed windows stay", 1),
    (
        "an earlier start",
        {},
        {"start": (FIRST - 5 * HOUR).isoformat()},
        "6 windows are due: 2024-03-28T19:00",
        6,
    ),
    ("a later start", {}, {"start": (FIRST + 5 * HOUR).isoformat()}, "1 due window is before", 0),
    ("quarters of the missing hour", {}, {"schedule": "*/15 * * * *"}, "4 windows are due", 4),
    (
        "days that replace hours from their start",
        {},
        DAILY,
        "9 computed windows are replaced by new windows: 2024-03-29T00:00",
        0,
    ),
    (
        "days that replace some hours",
        {"start": (FIRST - 48 * HOUR).isoformat()},
        DAILY,
        "Hint: start='2024-03-29T00:00:00+00:00'",
        0,
    ),
    (
        "days that would append hours twice",
        {"mode": "append"},
        DAILY,
        "Hint: mode='replace_window', start='2024-03-29T00:00:00+00:00'",
        0,
    ),
    (
        "other bounds",
        {},
        {"closed": "left"},
        "Hint: featuregroup='demand_2'",
        1,
    ),
    (
        "overlapping windows",
        {"mode": "append"},
        {"window": "3h"},
        "Hint: featuregroup='demand_2'",
        1,
    ),
]


def test_changed_definition_states_which_windows_stay_and_are_due(
    tmp_path: Path, clock: Clock, four_days: Path, subtests: pytest.Subtests
) -> None:
    for number, (title, first, changes, outcome, due) in enumerate(CHANGES):
        with subtests.test(title):
            folder = tmp_path / f"city{number}"
            folder.mkdir()
            clock.now = FIRST + 10 * HOUR
            city = City(copy_of(four_days, folder / "store"), folder / "definitions", clock)
            city.register(**{"mode": "replace_window", **first})
            city.run(until=clock.now, failing=(FIRST + 3 * HOUR,))
            try:
                city.register(**changes)
                printed = "\n".join(city.printed)
            except InvalidJob as error:
                printed = str(error)
                register_or_follow_hint(city, changes)
            assert outcome in printed if outcome else not printed
            assert city.store.get_jobs()[0].due == due
            city.run(until=FIRST + 26 * HOUR)
            city.check()
            city.store.close()


def test_lost_registry_and_changed_definition_keep_appended_rows(city: City) -> None:
    city.register()
    city.run(until=FIRST + 24 * HOUR)
    location = city.store.location
    city.store.close()
    for name in ("registry.db", "registry.db-wal", "registry.db-shm"):
        (Path(location) / name).unlink(missing_ok=True)
    rebuild(location, restore=restore_runs)
    with featurestore.connect(location, engine="duckdb") as city.store:
        city.register(**DAILY)
        assert city.printed[0].startswith("24 computed windows stay as they are")
        city.run(until=FIRST + 48 * HOUR)
        city.check()


def test_windows_with_gaps_do_not_replace_rows_between_them(city: City) -> None:
    city.register(mode="replace_window", start=(FIRST + 24 * HOUR).isoformat())
    city.run(until=FIRST + 47 * HOUR)
    city.register(schedule="0 0 * * *", window="1h", start=FIRST.isoformat())
    assert city.printed[1].startswith("1 window is due: 2024-03-29T23:00")
    city.run(until=FIRST + 48 * HOUR)
    city.check()
    assert set(city.counts()) == trips_between(FIRST + 23 * HOUR, FIRST + 48 * HOUR)


def test_range_with_a_part_of_an_earlier_window_is_not_computed_again(city: City) -> None:
    city.register(mode="replace_window", **DAILY)
    city.run(until=FIRST + 24 * HOUR)
    city.register(schedule="0 * * * *")
    city.run(until=FIRST + 25 * HOUR)
    for window in (FIRST, FIRST + 12 * HOUR):
        with pytest.raises(InvalidArgument, match="contains only a part") as refused:
            city.store.run_job("demand", window=window)
    start, end = FIRST, FIRST + 24 * HOUR
    assert f"{start.isoformat()!r}, {end.isoformat()!r}, resume=False" in str(refused.value)
    assert city.store.backfill_job("demand", start, end) == []
    city.store.backfill_job("demand", start, end, resume=False)
    city.run(until=FIRST + 26 * HOUR)
    city.check()


def test_running_job_keeps_its_windows(city: City) -> None:
    city.register()
    with hold_job_lease(city.store.session, "demand"):
        thread = ThreadPoolExecutor(1)
        with pytest.raises(JobLeased, match="retry after"):
            thread.submit(city.register, **DAILY).result()
        thread.submit(city.register, name="demand").result()
    city.register(**DAILY)


def test_command_and_project_plan_print_changed_windows(city: City) -> None:
    city.register()
    city.run(until=FIRST + 3 * HOUR)
    city.clock.now = FIRST + 4 * HOUR
    file = city.folder / "jobs.py"
    file.write_text(file.read_text().replace("0 * * * *", "*/30 * * * *"))
    lines = ["3 computed windows stay as they are", "2 windows are due: 2024-03-29T03:00"]
    (change,) = city.store.plan(city.folder, project="city").changes
    assert [line in " ".join(change.details) for line in lines] == [True, True]
    command = ["job", "register", str(file), "--location", city.store.location]
    with city.store.session.registry.reading() as connection:
        assert jobs.get(connection, "demand").version == 1  # the plan has changed nothing
    result = CliRunner().invoke(app, [*command, "--output", "json"])
    (row,) = json.loads(result.output)
    assert [line in " ".join(row["changes"]) for line in lines] == [True, True]
    file.write_text(file.read_text().replace("*/30 * * * *", "0 * * * *"))
    result = CliRunner().invoke(app, command)
    assert "demand: 3 computed windows stay as they are" in result.output
    city.run(until=city.clock.now)
    city.check()


SCHEDULES = ("0 */2 * * *", "0 */3 * * *", "0 */5 * * *", "30 */4 * * *", "0 0 * * *", "0 6 * * *")
STARTS = (FIRST, FIRST + 6 * HOUR, FIRST + 15 * HOUR, FIRST + 30 * HOUR, FIRST - 9 * HOUR)
RULES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "time": st.fixed_dictionaries(
        {
            "schedule": st.sampled_from(SCHEDULES),
            "mode": st.sampled_from(["append", "replace_window", "upsert"]),
            "closed": st.just("left"),
            "timezone": st.sampled_from(["UTC", "Europe/Stockholm", "Asia/Kolkata"]),
            "start": st.sampled_from([each.isoformat() for each in STARTS]),
        }
    ),
    "bound": st.fixed_dictionaries(
        {
            "schedule": st.sampled_from(SCHEDULES),
            "mode": st.sampled_from(["append", "replace_window"]),
            "closed": st.sampled_from(["left", "right"]),
            "timezone": st.sampled_from(["UTC", "Europe/Stockholm", "Asia/Kolkata"]),
            "start": st.sampled_from([None, *[each.isoformat() for each in STARTS]]),
        }
    ),
}


@st.composite
def change_sequences(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]], int]:
    """Return the times of rows, partial changes of a definition, and a seed for failures."""
    stamp = draw(st.sampled_from(["time", "bound"]))
    changes = draw(st.lists(RULES[stamp], min_size=2, max_size=5))
    kept_fields = [draw(st.sets(st.sampled_from(sorted(changes[0])))) for _ in changes]
    partial = [
        {name: value for name, value in rules.items() if number == 0 or name not in fields}
        for number, (rules, fields) in enumerate(zip(changes, kept_fields, strict=True))
    ]
    return stamp, partial, draw(st.integers(0, 2**16))


def apply_changes(city: City, changes: list[dict[str, Any]], seed: int) -> None:
    """Register definitions one after the other, with runs and failures, and check the rows."""
    numbers = random.Random(seed)
    now = FIRST + numbers.randrange(10, 40) * HOUR
    for rules in changes:
        city.clock.now = now
        register_or_follow_hint(city, rules)
        earlier = set(city.counts())
        for failure in (numbers.random() < 0.5, False):
            windows = city.rules.windows(now)
            failing = tuple(start for start, _ in numbers.sample(windows, min(2, len(windows))))
            city.run(until=now, failing=failing if failure else ())
            if city.is_complete():
                city.check()
                assert earlier <= set(city.counts())
            if numbers.random() < 0.4:  # register another definition while windows have failed
                break
        now += numbers.randrange(1, 20) * HOUR
    city.run(until=FIRST + DAYS * 24 * HOUR + 7 * HOUR)
    city.check()


def register_or_follow_hint(city: City, rules: dict[str, Any]) -> None:
    """Register a definition; if it is refused, register the one of the hint."""
    try:
        city.register(**rules)
    except InvalidJob as error:
        hint = eval(f"dict({error.hint})")
        if "featuregroup" in hint:
            hint, rules = {}, {}  # the earlier definition is the only one for this group
        city.register(**{**rules, **hint})


def run_changes(
    folder: Path, store: Path, clock: Clock, example: tuple[str, list[dict[str, Any]], int]
) -> None:
    """Apply a sequence of changes to a copy of a store."""
    stamp, changes, seed = example
    folder.mkdir()
    clock.now = FIRST
    city = City(copy_of(store, folder / "store"), folder / "definitions", clock, stamp)
    try:
        apply_changes(city, changes, seed)
    finally:
        city.store.close()


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(example=change_sequences())
def test_changed_definitions_count_each_trip_once(
    example: tuple[str, list[dict[str, Any]], int],
    tmp_path_factory: pytest.TempPathFactory,
    clock: Clock,
    four_days: Path,
) -> None:
    run_changes(tmp_path_factory.mktemp("change") / "city", four_days, clock, example)


@pytest.mark.soak
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(example=change_sequences())
def test_many_changed_definitions_count_each_trip_once(
    example: tuple[str, list[dict[str, Any]], int],
    tmp_path_factory: pytest.TempPathFactory,
    clock: Clock,
    four_days: Path,
) -> None:
    run_changes(tmp_path_factory.mktemp("change") / "city", four_days, clock, example)
