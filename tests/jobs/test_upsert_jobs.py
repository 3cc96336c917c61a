"""Upsert jobs whose windows are computed in any order, again, and with kills, against a model."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from featurestore.delta.history import read_history
from featurestore.jobs import execution, run
from featurestore.store import FeatureStore
from tests.forked_processes import start
from tests.jobs import killed_jobs
from tests.jobs.conftest import START, Clock, clock  # noqa: F401  # fixtures
from tests.sources.test_job_sources import sqlite_of

STEP = timedelta(minutes=20)
KEYS = ("ada", "o'bob", "eve", "joe")
JOB = """
import json
import signal
from datetime import datetime
import featurestore

@featurestore.job(
    featuregroup="states", primary_key="id", event_time="at", schedule="0 * * * *",
    start="2024-01-01T00:00Z", mode="upsert", statistics=False, closed="{closed}",
    inputs={{"customers": featurestore.source("crm", table="customers"{time})}}, {options}
)
def states(window, customers):
    with open({path!r}) as file:
        rows = json.load(file)[window.start.isoformat()]
    return [dict(row, at=datetime.fromisoformat(row["at"])) for row in rows]
"""


@dataclass(frozen=True)
class Case:
    """The options of a job, and the hours of its windows.

    With ``consistent``, windows compute the same rows for the same times, as from one source.
    """

    options: str = ""
    width: int = 1
    lookback: int = 0
    consistent: bool = False
    tombstones: bool = False
    closed: str = "left"


CASES = {
    "rows": Case(),
    "tombstones": Case('tombstone="gone"', tombstones=True, closed="right"),
    "late": Case('tombstone="gone", lookback="2h"', lookback=2, tombstones=True),
    "consistent": Case(
        'tombstone="gone", lookback="2h"', lookback=2, tombstones=True, consistent=True
    ),
    "overlapping": Case('tombstone="gone", window="3h"', width=3, tombstones=True, closed="right"),
    "missing": Case('delete_missing=True, tombstone="gone"', tombstones=True),
}
Row = dict[str, Any]


class Killed(BaseException):
    """Ends a run as a kill does: no handler of the library catches it."""


class History:
    """A random history of one job, and the rows that its windows compute."""

    def __init__(
        self, store: FeatureStore, folder: Path, case: Case, random: Random, *, windows: int
    ) -> None:
        self.store, self.folder, self.case, self.random = store, folder, case, random
        changes = self.random_rows(START, START + timedelta(hours=windows + case.width), 16)
        self.contents = []
        for number in range(windows):
            first, last = self.bounds(number)
            rows = self.random_rows(first, last, random.randint(0, 5))
            if case.consistent:
                rows = [row for row in changes if first <= row["at"] < last]
            self.contents.append(rows)
        self.source_ids = list(KEYS)
        self._write_source()
        store.add_source("crm", f"sqlite:///{folder / 'crm.db'}")
        definition = folder / "jobs.py"
        time = "" if "missing" in case.options else ', time="at"'
        path = str(folder / "contents.json")
        definition.write_text(
            JOB.format(closed=case.closed, time=time, options=case.options, path=path)
        )
        store.register_jobs(definition)

    def bounds(self, number: int) -> tuple[datetime, datetime]:
        """Return the first time of the rows of a window, and the time after them."""
        start = START + timedelta(hours=number)
        shift = STEP if self.case.closed == "right" else timedelta(0)
        end = start + timedelta(hours=self.case.width)
        return start - timedelta(hours=self.case.lookback) + shift, end + shift

    def random_rows(self, first: datetime, last: datetime, count: int) -> list[Row]:
        """Return rows with unique keys and times; some are tombstones."""
        rows = {}
        for _ in range(count):
            event_time = first + self.random.randrange((last - first) // STEP) * STEP
            is_tombstone = self.case.tombstones and self.random.random() < 0.35
            row = {
                "id": self.random.choice(KEYS),
                "at": event_time,
                "value": self.random.randrange(1000),
            }
            rows[row["id"], event_time] = row | {"gone": is_tombstone}
        return list(rows.values())

    def _write_source(self) -> None:
        times = pa.array([START] * len(self.source_ids), pa.timestamp("us", tz="UTC"))
        table = pa.table({"id": self.source_ids, "at": times})
        sqlite_of(self.folder / "crm.db", table, "customers")

    def write_contents(self, contents: Sequence[Sequence[Row]]) -> None:
        by_start = {
            (START + timedelta(hours=number)).isoformat(): [
                row | {"at": row["at"].isoformat()} for row in rows
            ]
            for number, rows in enumerate(contents)
        }
        (self.folder / "contents.json").write_text(json.dumps(by_start))

    def expected(self) -> list[tuple[Any, ...]]:
        """Compute the windows once and in order, in plain Python."""
        table: dict[tuple[str, datetime], int] = {}
        for rows in self.contents:
            table |= {(row["id"], row["at"]): row["value"] for row in rows if not row["gone"]}
            for deleted in rows:
                if deleted["gone"]:
                    table = {
                        (key, event_time): value
                        for (key, event_time), value in table.items()
                        if key != deleted["id"] or event_time > deleted["at"]
                    }
        return sorted(
            (key, event_time, value)
            for (key, event_time), value in table.items()
            if key in self.source_ids
        )

    def actual(self) -> list[tuple[Any, ...]]:
        table = self.store.get_featuregroup("states").to_arrow()
        assert ("gone" in table.schema.names) != self.case.tombstones
        return sorted((row["id"], row["at"], row["value"]) for row in table.to_pylist())

    def compute(self, first: int, count: int) -> None:
        """Compute windows, each of them again if it was computed."""
        start = START + timedelta(hours=first)
        end = start + timedelta(hours=count - 1 + self.case.width)
        self.store.backfill_job("states", start, end, resume=False)

    def play(self, patch: pytest.MonkeyPatch, *, kills: float = 0.3, repeats: int = 5) -> None:
        """Compute all windows in random order, some again, some killed and then computed again."""
        case, random, windows = self.case, self.random, len(self.contents)
        # Late rows of a chunk are those of its first window, if windows agree about them.
        longest = 1 if case.lookback and not case.consistent else 3
        steps = [(number, 1) for number in range(windows)]
        for _ in range(repeats):
            count = random.randint(1, longest)
            steps.append((random.randrange(windows - count + 1), count))
        random.shuffle(steps)
        while steps:
            step = steps.pop()
            if "missing" in case.options and random.random() < 0.2 and len(self.source_ids) > 2:
                self.source_ids.remove(random.choice(self.source_ids))
                self._write_source()
            if random.random() < 0.1:
                with suppress(Exception):
                    self.store.compact_featuregroup("states")
            self.write_contents(self.contents)
            if random.random() >= kills:
                self.compute(*step)
                continue
            self._kill(patch, step)
            steps.insert(random.randint(0, len(steps)), step)

    def _kill(self, patch: pytest.MonkeyPatch, step: tuple[int, int]) -> None:
        """Kill a run after it recorded key versions, or after its commit."""
        module, name = self.random.choice([(execution, "_commit_rows"), (run, "_end_run")])
        if module is execution:
            # What a run computed that was killed before its commit does not count.
            bounds = map(self.bounds, range(len(self.contents)))
            self.write_contents([self.random_rows(*each, 4) for each in bounds])
        with patch.context() as patched:
            patched.setattr(module, name, _die)
            with suppress(Killed):
                self.compute(*step)


def _die(*_: object, **__: object) -> None:
    raise Killed


Play = Callable[..., None]


@pytest.fixture
def play(
    clock: Clock,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    connect: Callable[..., FeatureStore],
) -> Play:
    """Return a function that plays a history in a new store and compares its rows."""
    clock.now = START + timedelta(days=2)

    def play_history(
        name: str, seed: int, *, windows: int = 3, repeats: int = 2, kills: float = 0.3
    ) -> None:
        folder = tmp_path / f"{name}{seed}"
        folder.mkdir()
        with connect(folder / "store", durability="fast") as store:
            history = History(store, folder, CASES[name], Random(seed), windows=windows)
            history.play(monkeypatch, repeats=repeats, kills=kills)
            assert history.actual() == history.expected()

    return play_history


@pytest.mark.parametrize("engine_name", ["duckdb"])
def test_windows_in_any_order_equal_windows_in_order(play: Play, subtests: pytest.Subtests) -> None:
    for name in ("tombstones", "late", "overlapping", "missing"):
        with subtests.test(name):
            play(name, 1)


@pytest.mark.soak
@pytest.mark.parametrize("engine_name", ["duckdb"])
@pytest.mark.parametrize("name", list(CASES))
def test_many_histories_equal_windows_in_order(
    play: Play, name: str, subtests: pytest.Subtests
) -> None:
    for seed in range(2, 40):
        with subtests.test(seed=seed):
            play(name, seed, windows=5, repeats=5)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("engine_name", ["spark"])
def test_windows_on_spark_equal_windows_in_order(play: Play, subtests: pytest.Subtests) -> None:
    for name in ("tombstones", "late", "missing"):
        with subtests.test(name):
            play(name, 1, windows=3, repeats=2)


def test_recomputed_window_restores_no_deleted_key(
    clock: Clock,  # noqa: F811
    tmp_path: Path,
    store: FeatureStore,
) -> None:
    clock.now = START + timedelta(days=2)
    history = History(store, tmp_path, CASES["tombstones"], Random(1), windows=2)
    created = START + STEP
    later = START + timedelta(hours=1) + STEP
    ada = {"id": "ada", "at": created, "value": 1, "gone": False}
    bob = ada | {"id": "o'bob"}
    history.contents = [[ada, bob], [ada | {"at": later}, bob | {"at": later, "gone": True}]]
    history.write_contents(history.contents)
    for first in (0, 1, 0):
        history.compute(first, 1)
    assert history.actual() == [("ada", created, 1), ("ada", later, 1)]
    # The rows and deletes of a window are one commit.
    group = Path(store.session.featuregroup_path("states", 1))
    operations = [commit.operation for commit in read_history(str(group))]
    assert operations[:-1] == ["upsert", "upsert", "create"]
    versions = group / "_key_versions"
    for file in versions.rglob("*"):
        assert not file.is_file() or b"o'bob" not in file.read_bytes()
    if store.engine == "spark":  # the same queries as above, and ten seconds
        return
    # A key that the later window no longer deletes is written by the window before.
    history.contents[1] = [ada | {"at": later}]
    history.write_contents(history.contents)
    for first in (1, 0):
        history.compute(first, 1)
    assert history.actual() == history.expected()


@pytest.mark.parametrize("engine_name", ["duckdb"])
def test_killed_run_leaves_key_versions_without_effect(
    clock: Clock,  # noqa: F811
    tmp_path: Path,
    store: FeatureStore,
) -> None:
    clock.now = START + timedelta(hours=3)
    history = History(store, tmp_path, CASES["late"], Random(3), windows=3)
    history.write_contents([history.random_rows(*history.bounds(n), 5) for n in range(3)])
    crash_point = "featurestore.jobs.execution:_commit_rows"
    process = start(killed_jobs.run_due, store.location, "states", (crash_point,), clock.now)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    history.write_contents(history.contents)
    for number in (2, 0, 1, 0):
        history.compute(number, 1)
    assert history.actual() == history.expected()
