"""Upsert jobs whose windows change their length: new windows supersede those that they replace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from featurestore.errors import JobFailed
from featurestore.registry import runs
from featurestore.store import FeatureStore
from tests.jobs.conftest import START, Clock
from tests.jobs.test_upsert_jobs import KEYS, STEP, Row
from tests.sources.test_job_sources import sqlite_of
from tests.store_copies import embedded

CHANGED_JOB = """
import json
from datetime import datetime, timedelta
import featurestore

@featurestore.job(
    name="{name}", featuregroup="states", primary_key="id", event_time="at", schedule="0 */{hours} * * *",
    start={start!r}, mode="upsert", statistics=False, closed="left", tombstone="gone",
    retries=0, inputs={{"customers": featurestore.source("crm", table="customers", time="at")}},
    lookback={lookback!r}
)
def states(window, customers):
    with open({path!r}) as file:
        contents = json.load(file)
    if window.start.isoformat() in contents["failing"]:
        raise ValueError("bad window")
    rows = [dict(row, at=datetime.fromisoformat(row["at"])) for row in contents["rows"]]
    first = window.start - timedelta(hours=int({lookback!r}[:-1]))
    return [row for row in rows if first <= row["at"] < window.end]
"""
HOURS = 12


class ChangedHistory:
    """A job whose windows change their length over one source, whose rows change, too."""

    def __init__(self, store: FeatureStore, folder: Path, random: Random) -> None:
        self.store, self.folder, self.random = store, folder, random
        self.is_complete, self.name, self.start = True, "states", START
        sqlite_of(folder / "crm.db", pa.table({"id": KEYS, "at": [START] * len(KEYS)}), "customers")
        store.add_source("crm", f"sqlite:///{folder / 'crm.db'}")
        times = [START + number * STEP for number in range(HOURS * 3)]
        self.rows = {(key, time): self.random_row(key, time) for key in KEYS for time in times}

    def random_row(self, key: str, event_time: datetime) -> Row:
        is_tombstone = self.random.random() < 0.08
        value = self.random.randrange(1000)
        return {"id": key, "at": event_time, "value": value, "gone": is_tombstone}

    def change_rows(self, first: int, last: int) -> None:
        """Change rows of a range of hours: their values, and which rows delete their key."""
        for key, event_time in self.rows:
            hour = (event_time - START) / timedelta(hours=1)
            if first <= hour < last and self.random.random() < 0.7:
                self.rows[key, event_time] = self.random_row(key, event_time)

    def write_contents(self, failing: Sequence[int] = ()) -> None:
        rows = [row | {"at": row["at"].isoformat()} for row in self.rows.values()]
        starts = [(START + timedelta(hours=hour)).isoformat() for hour in failing]
        (self.folder / "contents.json").write_text(json.dumps({"rows": rows, "failing": starts}))

    def expected(self) -> list[tuple[Any, ...]]:
        """Return the rows that no tombstone of their key at the same or a later time deletes."""
        last_deleted = {
            key: max(time for (name, time), row in self.rows.items() if name == key and row["gone"])
            for key in {row["id"] for row in self.rows.values() if row["gone"]}
        }
        return sorted(
            (key, event_time, row["value"])
            for (key, event_time), row in self.rows.items()
            if key not in last_deleted or event_time > last_deleted[key]
        )

    def actual(self) -> list[tuple[Any, ...]]:
        table = self.store.get_featuregroup("states").to_arrow()
        return sorted((row["id"], row["at"], row["value"]) for row in table.to_pylist())

    def compute(self, first: int, last: int, *, failing: Sequence[int] = ()) -> None:
        """Compute the windows of a range of hours again; some fail, so that others run singly."""
        self.write_contents(failing)
        bounds = [START + timedelta(hours=hour) for hour in (first, last)]
        with suppress(*([JobFailed] if failing else [])):
            self.store.backfill_job(self.name, *bounds, resume=False)

    def compute_due(self, *, failing: Sequence[int] = ()) -> None:
        """Compute the due windows; some fail."""
        self.write_contents(failing)
        with suppress(*([JobFailed] if failing else [])):
            self.store.run_job(self.name, due=True)

    def register(self, hours: int, lookback: str) -> None:
        # A renamed job has no record of failed windows.
        if self.is_complete:
            self.name = self.random.choice(["states", "renamed"])
        path = str(self.folder / "contents.json")
        # A new start lets the definition replace the windows from there on.
        self.start = START - timedelta(hours=HOURS) if self.start == START else START
        text = CHANGED_JOB.format(
            name=self.name, hours=hours, lookback=lookback, path=path, start=self.start.isoformat()
        )
        (self.folder / "jobs.py").write_text(text)
        self.store.register_jobs(self.folder / "jobs.py")

    def is_replacing(self) -> bool:
        """Return whether the registration replaces windows of the earlier definition."""
        with self.store.session.registry.reading() as connection:
            return bool(runs.find_windows(connection, self.name, states=[runs.REPLACED]))

    def play(self, changes: int) -> Iterator[None]:
        """Change definition and source, and yield when all windows are computed again."""
        random = self.random
        for _ in range(changes):
            hours, lookback = random.choice([2, 3, 4, 6]), random.choice(["0h", "2h"])
            starts = list(range(0, HOURS, hours))
            failing = random.sample(starts, random.randint(1, 2))
            self.register(hours, lookback)
            self.change_rows(0, HOURS)
            if self.is_replacing():
                self.compute_due(failing=failing)
                self.compute_due()
                self.is_complete = True
                yield
                continue
            self.compute(0, HOURS, failing=failing)
            self.is_complete = random.random() < 0.3
            if not self.is_complete:
                continue
            self.change_rows(0, HOURS)
            self.compute(0, HOURS)
            yield
            # The rows of windows that later windows deleted are computed again after these.
            changed = random.choice(starts)
            self.change_rows(changed, changed + hours)
            end = changed + hours + int(lookback[:-1])
            for first in reversed([each for each in starts if each < end]):
                self.compute(first, first + hours)
            yield


def play_changes(store: FeatureStore, folder: Path, seed: int, *, changes: int) -> None:
    """Change the windows and the source of a job, and compare its rows after each recompute."""
    folder.mkdir(exist_ok=True)
    history = ChangedHistory(store, folder, Random(seed))
    for _ in history.play(changes):
        assert history.actual() == history.expected()


def test_windows_of_changed_length_supersede_those_they_replace(
    clock: Clock,
    tmp_path: Path,
) -> None:
    clock.now = START + timedelta(hours=HOURS)
    with embedded(tmp_path / "store", durability="fast") as store:
        play_changes(store, tmp_path, 3, changes=2)


@pytest.mark.soak
def test_many_changed_lengths_supersede_windows_they_replace(
    clock: Clock,
    tmp_path: Path,
    subtests: pytest.Subtests,
) -> None:
    clock.now = START + timedelta(hours=HOURS)
    for seed in range(30):
        with subtests.test(seed=seed), embedded(tmp_path / f"store{seed}") as store:
            play_changes(store, tmp_path / str(seed), seed, changes=4)


def test_windows_being_replaced_delete_no_recomputed_rows(
    clock: Clock,
    tmp_path: Path,
) -> None:
    clock.now = START + timedelta(hours=HOURS)
    store = embedded(tmp_path / "store", durability="fast")
    history = ChangedHistory(store, tmp_path, Random(1))
    created, deleted = START + STEP, START + timedelta(hours=9)
    ada = {"id": "ada", "at": created, "value": 1, "gone": False}
    history.rows = {("ada", created): ada}
    history.rows["ada", deleted] = ada | {"at": deleted, "gone": True}
    history.register(4, "0h")
    history.compute_due(failing=[0])
    # Windows of four hours from 4:00 on are replaced, and the key is not deleted any more.
    history.rows["ada", deleted] = ada | {"at": deleted}
    history.register(6, "0h")
    assert history.is_replacing()
    history.compute_due(failing=[6])
    history.compute_due()
    assert history.actual() == history.expected() == [("ada", created, 1), ("ada", deleted, 1)]
    store.close()
