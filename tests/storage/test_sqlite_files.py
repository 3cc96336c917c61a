"""SQLite files that end within a page are damaged, unless their write-ahead log contains the page."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import featurestore
from featurestore.errors import OnlineStoreError, RegistryError
from featurestore.storage import sqlite_files

PAGE = 4096


def test_file_that_ends_within_page_is_refused(tmp_path: Path) -> None:
    location = tmp_path / "store"
    with featurestore.connect(location, progress=False) as store:
        store.create_featuregroup({"id": range(30), "x": range(30)}, "g", primary_key="id")
        store.create_feature_view("v", features=["g.x"])
        store.publish("v")
    for path in (location / "registry.db", location / "online" / "embedded.db"):
        content = path.read_bytes()
        assert len(content) % PAGE == 0
        for missing_bytes in (1, PAGE - 1, *random.sample(range(1, PAGE), 4)):
            path.write_bytes(content[:-missing_bytes])
            with pytest.raises((RegistryError, OnlineStoreError), match="ends within") as error:
                read_vector(location)
            assert error.value.hint
        path.write_bytes(content)
    assert read_vector(location) == {"x": 29}


def read_vector(location: Path) -> dict[str, object]:
    with (
        featurestore.connect(location, progress=False) as store,
        store.get_feature_view("v").server() as server,
    ):
        (vector,) = server.get_vectors([{"id": 29}])
        return vector


def test_part_of_page_is_accepted_if_log_contains_page(tmp_path: Path) -> None:
    path, copy = tmp_path / "pages.db", tmp_path / "copy.db"
    sqlite_files.create_database(str(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE texts (text)")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.executemany("INSERT INTO texts VALUES (?)", [("a" * 1000,)] * 40)
        shutil.copy(f"{path}-wal", f"{copy}-wal")
        # As after a write of the next page that a full disk has ended.
        copy.write_bytes(path.read_bytes() + b"a" * 100)
    with closing(sqlite3.connect(copy)) as connection:
        sqlite_files.check_last_page(connection)
        assert connection.execute("SELECT count(*) FROM texts").fetchone() == (40,)
    copy.write_bytes(copy.read_bytes()[:-1000])
    with (
        closing(sqlite3.connect(copy)) as connection,
        pytest.raises(sqlite3.DatabaseError, match="ends within page"),
    ):
        sqlite_files.check_last_page(connection)
