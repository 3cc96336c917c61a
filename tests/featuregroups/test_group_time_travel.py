"""as_of accepts a Delta version or a time, resolved by the commit times of the log."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from featurestore.delta.log import commit_path
from featurestore.errors import InvalidArgument, VersionNotFound
from featurestore.model.times import NaiveTimeWarning
from tests.commit_files import read_actions, write_actions

if TYPE_CHECKING:
    from featurestore.store import FeatureStore


def test_read_as_of_returns_data_of_that_time(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(pa.table({"n": [1]}), "g")
    for number in (2, 3):
        group.insert(pa.table({"n": [number]}))
    history = group.history()[::-1]
    for commit in history:
        assert group.read(as_of=commit.delta_version).count() == commit.rows
        later = [entry for entry in history if entry.timestamp == commit.timestamp]
        assert group.read(as_of=commit.timestamp).count() == later[-1].rows
    assert (
        empty_store.get_featuregroup(
            "g", as_of=history[-1].timestamp + dt.timedelta(days=1)
        ).count()
        == 3
    )
    with pytest.raises(VersionNotFound, match=r"no version at|had no data"):
        group.read(as_of=history[0].timestamp - dt.timedelta(days=1))


def test_read_as_of_distinguishes_commits_within_one_second(empty_store: FeatureStore) -> None:
    """Four commits within a second, two of them within a millisecond.

    The later of those is what there was.
    """
    group = empty_store.create_featuregroup(pa.table({"n": [0]}), "g")
    for number in (1, 2, 3):
        group.insert(pa.table({"n": [number]}))
    second = dt.datetime(2024, 5, 1, 12, 0, 0, tzinfo=dt.UTC)
    millis = {0: 0, 1: 100, 2: 400, 3: 400, 4: 999}
    for version, offset in millis.items():
        set_time(group.path, version, second + dt.timedelta(milliseconds=offset))
    counts = {
        offset: group.read(as_of=second + dt.timedelta(milliseconds=offset)).count()
        for offset in (100, 399, 400, 998, 999)
    }
    assert counts == {100: 1, 399: 1, 400: 3, 998: 3, 999: 4}
    assert group.read(as_of="2024-05-01T12:00:00.400Z").count() == 3
    with pytest.raises(VersionNotFound, match="had no data"):
        group.read(as_of=second + dt.timedelta(milliseconds=99))


def set_time(path: str, version: int, commit_time: dt.datetime) -> None:
    """Change a commit time in the log."""
    commit = Path(commit_path(path, version))
    actions = read_actions(commit)
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = round(commit_time.timestamp() * 1000)
            note = json.loads(action["commitInfo"].get("userMetadata") or "{}")
            note.pop("base_time", None)
            action["commitInfo"]["userMetadata"] = json.dumps(note)
    write_actions(commit, actions)


def test_frame_keeps_version_during_later_writes(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(pa.table({"n": [1]}), "g")
    frame = group.read()
    group.insert(pa.table({"n": [2]}), mode="overwrite")
    assert frame.to_arrow()["n"].to_pylist() == [1]
    assert group.read().to_arrow()["n"].to_pylist() == [2]


@pytest.mark.parametrize(("as_of", "says"), [(0, "had no data"), (9, "Unknown Delta version 9")])
def test_read_as_of_unknown_version_raises(
    flights_store: FeatureStore, as_of: int, says: str
) -> None:
    with pytest.raises(VersionNotFound, match=says):
        flights_store.featuregroup("planes").read(as_of=as_of)


def test_read_as_of_invalid_raises_and_naive_is_utc(flights_store: FeatureStore) -> None:
    group = flights_store.featuregroup("planes")
    for wrong in ("yesterday", True, 1.5):
        with pytest.raises(InvalidArgument):
            group.read(as_of=wrong)  # type: ignore[arg-type]
    with pytest.warns(NaiveTimeWarning):
        assert group.read(as_of="2200-01-01").count() == 4
