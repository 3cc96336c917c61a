"""Erasure of the hashes of deleted keys and late rows of upsert jobs, and its check."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyarrow import parquet

import featurestore
from featurestore.errors import WriteConflict
from featurestore.jobs.key_versions import FOLDER
from featurestore.recovery.in_flight import in_flight
from featurestore.store import FeatureStore

START = datetime(2024, 1, 1, tzinfo=UTC)
PERSON, OTHER_PEOPLE = "u-773100", ["ada", "u-77310", "u-7731001"]
JOB = """
from datetime import timedelta
import featurestore

@featurestore.job(featuregroup="states", primary_key={key!r}, event_time="at", created_time={created!r},
                  schedule="0 * * * *", start="2024-01-01T00:00Z", mode="upsert", tombstone="gone",
                  window="3h", closed="left", statistics=False)
def states(window):
    rows = []
    for number, user in enumerate({users!r}):
        for age in (0, 1, 2):
            at = window.end - timedelta(minutes=9 + number + 60 * age)
            rows.append(dict(user=user, device=age, at=at, seen=at + timedelta(seconds=40 + age),
                             gone=age == 0 and (window.start.hour + number) % 2 == 0, x=number))
    return rows
"""


def fill(folder: Path, users: list[str], *, key: list[str], created: str | None) -> FeatureStore:
    """Compute some windows with deleted keys and late rows of some users."""
    folder.mkdir()
    store = featurestore.connect(folder / "store", engine="duckdb")
    (folder / "states.py").write_text(JOB.format(users=users, key=key, created=created))
    store.register_jobs(folder / "states.py")
    store.backfill_job("states", START, START + timedelta(hours=4))
    return store


def stored_hashes(store: FeatureStore) -> set[tuple[bool, bytes | None, int]]:
    """Return the key versions in all files of the table, also those of old versions."""
    rows = set()
    for file in versions_folder(store).glob("*.parquet"):
        for row in parquet.read_table(file).to_pylist():
            rows.add((row["deleted"], row["key"], row["time"]))
    return rows


def versions_folder(store: FeatureStore) -> Path:
    return Path(store.session.featuregroup_path("states", 1)) / FOLDER


@pytest.mark.parametrize("created", [None, "seen"])
@pytest.mark.parametrize("key", [["user"], ["device", "user"]])
def test_hashes_of_key_versions_are_removed_and_proven_absent(
    tmp_path: Path, key: list[str], created: str | None
) -> None:
    """The hashes that remain are those of a store in which the person never was."""
    # Only the last user is absent, so that the other rows are the same.
    expected = stored_hashes(fill(tmp_path / "others", OTHER_PEOPLE, key=key, created=created))
    store = fill(tmp_path / "all", [*OTHER_PEOPLE, PERSON], key=key, created=created)
    before = stored_hashes(store)
    assert before > expected
    assert {deleted for deleted, _, _ in before - expected} == {True, False}
    if key == ["user"]:
        # The rows of the person are in no data file any more.
        store.delete_from_featuregroup("states", f"user = '{PERSON}'")
        store.vacuum_featuregroup("states", retain="0s")
    backup = tmp_path / "backup"
    shutil.copytree(versions_folder(store), backup)
    report = store.erase({"user": PERSON}, dry_run=False)
    assert report.complete, report.remaining
    assert stored_hashes(store) == expected
    certificate = report.certificate or {}
    # A hash confirms a guess of a value, so the certificate has none in a readable form.
    assert not any(digest.hex() in json.dumps(certificate) for _, digest, _ in before if digest)
    assert store.verify_erasure(certificate).ok
    shutil.rmtree(versions_folder(store))
    shutil.copytree(backup, versions_folder(store))
    check = store.verify_erasure(json.dumps(certificate))
    assert check.problems == ()
    (finding,) = check.findings
    assert (finding.area, finding.rows) == ("key versions", len(before - expected))
    if key == ["user"]:
        # Only the hashes came back. A running job may read and write their files.
        with (
            in_flight(store.session, operation="write", name="states", version=1),
            pytest.raises(WriteConflict, match="is being written"),
        ):
            store.erase({"user": PERSON}, dry_run=False)
    other_certificate = store.erase({"user": OTHER_PEOPLE[0]}, dry_run=False).certificate or {}
    assert store.verify_erasure(other_certificate).ok
    # The hashes of another certificate are not those of this person.
    forged = {**certificate, "key_hashes": other_certificate["key_hashes"]}
    assert store.verify_erasure(forged).findings == ()
