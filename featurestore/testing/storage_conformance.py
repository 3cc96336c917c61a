"""Conformance suite for storages: the contract of ``Storage`` on every server.

Derive a class that provides the fixture ``storage``, and pytest runs the suite.

    class TestMyStorage(StorageConformance):
        @pytest.fixture
        def storage(self):
            return MyStorage("my://bucket")
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from featurestore.errors import InvalidArgument, StorageError
from featurestore.storage.interface import ObjectStore, Writer

# Names of partition folders that user data may produce.
ODD_NAMES = (
    "city=São Paulo",
    "q=a%20b",
    "q=100%",
    "glob=[a*]?",
    "plus=a+b",
    "quote=\"'",
    "sharp=#1",
    "dots=..a..",
    "tilde=~`{}|^",
)
# Large enough for an upload in several parts, which have at least 5 MiB on S3.
_MULTIPART_BYTES = 20 << 20
# 3 MiB, whose period is prime, so that a range at a wrong offset has other bytes.
_LARGE_OBJECT = bytes(range(251)) * 12_533
_RACERS = 8


class StorageConformance:
    """Tests for one storage; the fixture is an empty storage, or contains only other folders."""

    @pytest.fixture
    def storage(self) -> Iterator[ObjectStore]:
        raise NotImplementedError

    # -- objects ------------------------------------------------------------------------

    def test_read_returns_put_bytes(self, storage: ObjectStore) -> None:
        for data in (b"", b"one", bytes(range(256)) * 40):
            storage.put("folder/object", data)
            assert storage.read("folder/object") == data

    def test_put_replaces_existing_object(self, storage: ObjectStore) -> None:
        storage.put("a", b"old")
        before = storage.find("a")
        storage.put("a", b"new")
        after = storage.find("a")
        assert storage.read("a") == b"new"
        assert before is not None
        assert after is not None
        assert before.etag != after.etag

    def test_missing_object_is_not_found(self, storage: ObjectStore) -> None:
        storage.put("a/b", b"")
        for absent in ("none", "a", "a/b/c"):
            assert storage.find(absent) is None
            assert not storage.remove(absent)
            with pytest.raises(FileNotFoundError, match=absent):
                storage.read(absent)
            with pytest.raises(FileNotFoundError, match=absent):
                storage.ranges(absent, [(0, 1)])

    @pytest.mark.parametrize("name", ["", "/a", "a//b", "a/../b", "./a", "a/", "..", "a\\b", "a\0"])
    def test_names_outside_the_storage_are_refused(self, storage: ObjectStore, name: str) -> None:
        with pytest.raises(InvalidArgument):
            storage.put(name, b"")
        with pytest.raises(InvalidArgument):
            storage.read(name)
        with pytest.raises(InvalidArgument):
            storage.remove(name)
        with pytest.raises(InvalidArgument):
            storage.remove_below(name)

    def test_find_returns_size_and_time(self, storage: ObjectStore) -> None:
        storage.put("sized", b"12345")
        stored_object = storage.find("sized")
        assert stored_object is not None
        assert (stored_object.name, stored_object.size) == ("sized", 5)
        assert [stored_object] == list(storage.list(""))
        assert abs(stored_object.modified - datetime.now(UTC)) < timedelta(minutes=5)

    def test_object_names_can_hold_any_text(self, storage: ObjectStore) -> None:
        for number, folder in enumerate(ODD_NAMES):
            name = f"odd/{folder}/file"
            storage.put(name, str(number).encode())
            assert storage.read(name) == str(number).encode()
        assert storage.children("odd") == sorted(ODD_NAMES)
        assert _names(storage, "odd") == sorted(f"odd/{folder}/file" for folder in ODD_NAMES)
        assert storage.remove_below("odd") == len(ODD_NAMES)
        assert storage.children("odd") == []

    # -- once ---------------------------------------------------------------------------

    def test_put_new_refuses_existing_name(self, storage: ObjectStore) -> None:
        storage.put_new("claims/1", b"mine")
        with pytest.raises(FileExistsError):
            storage.put_new("claims/1", b"yours")
        assert storage.read("claims/1") == b"mine"
        storage.remove("claims/1")
        storage.put_new("claims/1", b"yours")
        assert storage.read("claims/1") == b"yours"

    def test_concurrent_put_new_has_one_winner(self, storage: ObjectStore) -> None:
        # The barrier starts all threads at the same time.
        start = threading.Barrier(_RACERS)

        def race(number: int) -> list[int]:
            won = []
            start.wait()
            for turn in range(10):
                try:
                    storage.put_new(f"race/{turn}", f"{number}".encode())
                except FileExistsError:
                    continue
                won.append(turn)
            return won

        with ThreadPoolExecutor(_RACERS) as pool:
            wins = list(pool.map(race, range(_RACERS)))
        for turn in range(10):
            winners = [number for number, won in enumerate(wins) if turn in won]
            assert [str(number) for number in winners] == [storage.read(f"race/{turn}").decode()]

    # -- ranges -------------------------------------------------------------------------

    def test_ranges_returns_requested_bytes(self, storage: ObjectStore) -> None:
        data = _LARGE_OBJECT
        storage.put("ranged", data)
        ranges = [(5, 10), (0, 1), (len(data) - 7, 7), (1 << 20, 70_000), (8, 3), (2 << 20, 0)]
        contents = storage.ranges("ranged", ranges)
        assert contents == [data[start : start + length] for start, length in ranges]
        assert storage.ranges("ranged", []) == []

    def test_range_beyond_the_object_raises(self, storage: ObjectStore) -> None:
        storage.put("short", b"12345")
        for start, length in ((3, 3), (5, 1), (100, 10)):
            with pytest.raises(StorageError, match="short"):
                storage.ranges("short", [(0, 1), (start, length)])

    def test_read_into_fills_buffers_from_offset(self, storage: ObjectStore) -> None:
        data = _LARGE_OBJECT
        storage.put("filled", data)
        lengths = (7, 1 << 20, 1, 900_000)
        targets = [bytearray(length) for length in lengths]
        storage.read_into("filled", 1000, [memoryview(target) for target in targets])
        assert b"".join(targets) == data[1000 : 1000 + sum(lengths)]
        for start in (len(data) - 3, len(data), 2 * len(data)):
            with pytest.raises(StorageError, match="filled"):
                storage.read_into("filled", start, [memoryview(bytearray(4))])
        with pytest.raises(FileNotFoundError, match="absent"):
            storage.read_into("absent", 0, [memoryview(bytearray(4))])

    # -- streams ------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [0, 3, _MULTIPART_BYTES])
    def test_writer_publishes_object_on_close(self, storage: ObjectStore, size: int) -> None:
        data = bytes(size)
        with storage.writer("written/file") as writer:
            for start in range(0, size, 1 << 20):
                assert writer.write(data[start : start + (1 << 20)]) > 0
            # The object is not visible before the writer is closed.
            assert storage.find("written/file") is None
            assert list(storage.list("written")) == []
        assert storage.read("written/file") == data

    def test_failed_writer_leaves_no_object(self, storage: ObjectStore) -> None:
        storage.put("kept", b"old")
        for name in ("kept", "written/none"):
            with pytest.raises(ZeroDivisionError):
                _fail_in(storage.writer(name))
        assert storage.read("kept") == b"old"
        assert _names(storage, "") == ["kept"]

    def test_remove_unfinished_keeps_open_and_finished_objects(self, storage: ObjectStore) -> None:
        storage.put("left/object", b"1")
        now = datetime.now(UTC)
        with storage.writer("left/new") as writer:
            writer.write(b"2")
            assert storage.remove_unfinished("left", before=now - timedelta(days=1)) == 0
        assert storage.remove_unfinished("left", before=now + timedelta(days=1)) == 0
        assert storage.remove_unfinished("none", before=now + timedelta(days=1)) == 0
        assert _names(storage, "left") == ["left/new", "left/object"]

    def test_files_are_uploaded_and_copied(self, storage: ObjectStore, tmp_path: Path) -> None:
        data = bytes(range(256)) * (_MULTIPART_BYTES // 256)
        (tmp_path / "file").write_bytes(data)
        storage.upload("up/loaded", str(tmp_path / "file"))
        storage.copy("up/loaded", "co/pied")
        assert storage.read("co/pied") == storage.read("up/loaded") == data
        with pytest.raises(FileNotFoundError):
            storage.copy("up/none", "co/none")
        with pytest.raises(StorageError):
            storage.upload("up/none", str(tmp_path / "none"))

    # -- lists --------------------------------------------------------------------------

    def test_list_is_sorted_at_any_depth(self, storage: ObjectStore) -> None:
        # "-" and "." precede "/" in the order of bytes, so listing folder by folder would not be
        # sorted.
        names = ["l/a-b", "l/a.b", "l/a/b", "l/a0", "l/b/c/d", "l/é", "lx", "l0/a"]
        for name in names:
            storage.put(name, name.encode())
        names = sorted(names)
        inside = [name for name in names if name.startswith("l/")]
        assert _names(storage, "l") == inside
        assert _names(storage, "") == names
        for after in ("l/a", "l/a.b", "l/a5", "l/é"):
            later = [name for name in inside if name > after]
            assert _names(storage, "l", after=after) == later
        assert storage.children("l") == ["a", "a-b", "a.b", "a0", "b", "é"]
        assert storage.children("") == ["l", "l0", "lx"]

    def test_list_spans_several_server_pages(self, storage: ObjectStore) -> None:
        with ThreadPoolExecutor(8) as pool:
            # S3 lists at most 1,000 objects per page.
            list(pool.map(lambda n: storage.put(f"many/{n:05d}", b""), range(1_203)))
        names = _names(storage, "many")
        assert names == [f"many/{number:05d}" for number in range(1_203)]
        assert len(list(storage.list("many", after="many/01199"))) == 3
        assert storage.remove_below("many") == 1_203
        assert list(storage.list("many")) == []

    def test_folder_disappears_with_its_last_object(self, storage: ObjectStore) -> None:
        storage.put("top/inner/a", b"")
        storage.put("top2/a", b"")
        assert storage.remove("top/inner/a")
        assert storage.children("") == ["top2"]
        assert storage.children("top") == []
        assert storage.remove_below("top") == 0
        assert storage.remove_below("none") == 0
        assert _names(storage, "") == ["top2/a"]


def _names(storage: ObjectStore, folder: str, *, after: str = "") -> list[str]:
    return [file.name for file in storage.list(folder, after=after)]


def _fail_in(writing: AbstractContextManager[Writer]) -> None:
    with writing as writer:
        writer.write(b"x" * 100)
        raise ZeroDivisionError
