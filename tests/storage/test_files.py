"""File functions behave equally on local disks and at URIs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from featurestore.errors import StorageError
from featurestore.model.json_object import seal
from featurestore.storage import files, revisions, storage_for
from featurestore.storage.connections import use_options
from featurestore.storage.publication import Publication


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.services)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty directory, or a folder of a bucket."""
    if request.param == "disk":
        yield str(tmp_path / "root")
        return
    bucket = request.getfixturevalue("bucket")
    use_options(bucket, request.getfixturevalue("object_server").options)
    yield f"{bucket}/root"


def test_storage_for_disk_and_uri_differs_in_properties(tmp_path: Path) -> None:
    disk, bucket = storage_for(str(tmp_path)), storage_for("s3://bucket/a")
    assert (disk.is_local, disk.supports_appending) == (True, True)
    assert (disk.prefers_listing, disk.needs_claims) == (False, False)
    assert (bucket.is_local, bucket.supports_appending) == (False, False)
    assert (bucket.prefers_listing, bucket.needs_claims) == (True, True)


def test_files_written_are_read_and_replaced(root: str) -> None:
    storage = storage_for(root)
    path = f"{root}/a/b.json"
    files.write_json(path, {"a": 1})
    assert files.read_json(path) == {"a": 1}
    files.replace_json(path, {"a": 2})
    assert storage.read_text(path) == '{\n  "a": 2\n}\n'
    assert storage.size(path) == len(storage.read_bytes(path))
    assert storage.status(path).size == storage.size(path)
    assert b"".join(storage.read_chunks(path, start=4)) == storage.read_bytes(path)[4:]
    buffers = [bytearray(2), bytearray(3)]
    storage.read_into(path, 1, [memoryview(buffer) for buffer in buffers])
    assert b"".join(buffers) == storage.read_bytes(path)[1:6]
    with pytest.raises(StorageError):
        storage.read_into(path, 10, [memoryview(bytearray(100))])


def test_json_changes_of_racing_writers_are_all_in_the_file(root: str) -> None:
    path = f"{root}/a.json"
    storage_for(root).make_directory(root)
    files.write_json(path, {"count": 0})

    def count(_: int) -> None:
        revisions.change_json(path, lambda content: {"count": content["count"] + 1}, below=root)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(24)))
    assert revisions.read_json(path) == {"count": 24}
    # Old revisions are removed.
    assert len(list(revisions.paths(path))) < 24


def test_json_change_of_a_suspended_writer_is_not_lost(root: str) -> None:
    path = f"{root}/a.json"
    storage_for(root).make_directory(root)
    base = revisions.read_newest(path)
    for number in range(20):
        revisions.change_json(path, lambda _, number=number: {"last": number}, below=root)
    # The number of its revision is free again, since old revisions were removed.
    assert not revisions.write_next(path, base, {"last": "suspended"}, below=root)
    assert revisions.read_json(path) == {"last": 19}


def test_revision_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_json(str(path), {"a": 1})
    revisions.change_json(str(path), lambda _: {"a": 2}, below=str(tmp_path))
    *_, newest = map(Path, revisions.paths(str(path)))
    later = newest.with_name("00000002.json")
    for damaged_file in (newest, later):
        damaged_file.write_text("{")
        with pytest.raises(StorageError, match=damaged_file.name):
            revisions.read_json(str(path))
    # A listed file without content is not waited for.
    later.unlink()
    later.symlink_to(tmp_path / "missing")
    with pytest.raises(StorageError, match="listed, but cannot be read"):
        revisions.read_json(str(path))


def test_changed_bits_of_files_with_checksums_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(seal({"use": "sgd"}))
    assert revisions.read_json(str(path)) == {"use": "sgd"}
    values = [value for value in read_with_changed_bits(path, path) if value is not None]
    # Files of earlier releases have no checksum: a file whose key was changed is read as such a one.
    assert len(values) == 8 * len("checksum") - 8
    assert all(value["use"] == "sgd" for value in values)
    revisions.change_json(str(path), lambda _: {"use": "adam", "n": 1.5}, below=str(tmp_path))
    *_, newest = map(Path, revisions.paths(str(path)))
    assert set(read_with_changed_bits(path, newest)) == {None}


def read_with_changed_bits(path: Path, file: Path) -> Iterator[dict[str, object] | None]:
    """Yield the content for each changed bit of a file, None for an error."""
    data = file.read_bytes()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        try:
            yield revisions.read_json(str(path))
        except StorageError:
            yield None
    file.write_bytes(data)


# On S3 the storage conformance suite has the next two tests.
def test_write_new_of_racing_writers_has_one_winner(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    storage = storage_for(root)
    storage.make_directory(root)
    start = threading.Barrier(6)

    def race(number: int) -> list[int]:
        start.wait()
        return [
            turn
            for turn in range(8)
            if storage_for(root).write_new(f"{root}/{turn}", b"%d" % number)
        ]

    with ThreadPoolExecutor(6) as pool:
        wins = list(pool.map(race, range(6)))
    assert storage.list_directory(root) == [str(turn) for turn in range(8)]
    for turn in range(8):
        winners = [b"%d" % number for number, turns in enumerate(wins) if turn in turns]
        assert winners == [storage.read_bytes(f"{root}/{turn}")]


def test_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    storage = storage_for(root)

    def fail() -> None:
        with storage.writer(f"{root}/x") as writer:
            writer.write(b"part")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(storage_for(root).walk(root)) == []
    with storage.writer(f"{root}/x") as writer:
        writer.write(b"all")
    assert storage_for(root).read_bytes(f"{root}/x") == b"all"


def test_lists_have_files_and_their_statuses(root: str) -> None:
    storage = storage_for(root)
    for name in ("b", "a/2", "a/1", "_log/x"):
        storage.write_atomically(f"{root}/{name}", name.encode())
    assert storage.list_directory(root) == ["_log", "a", "b"]
    assert storage.list_directory(f"{root}/a", after="1") == ["2"]
    assert storage.list_directory(f"{root}/none") == []
    names = sorted(path[len(root) + 1 :] for path in storage.walk(root))
    assert names == ["_log/x", "a/1", "a/2", "b"]
    entered = storage.walk(root, enter=lambda name: name != "_log")
    assert sorted(path[len(root) + 1 :] for path in entered) == ["a/1", "a/2", "b"]
    sizes = {path[len(root) + 1 :]: status.size for path, status in storage.walk_with_status(root)}
    assert sizes == {"_log/x": 6, "a/1": 3, "a/2": 3, "b": 1}
    assert storage.is_directory(f"{root}/a")
    assert storage.is_file(f"{root}/b")
    assert not storage.exists(f"{root}/none")
    now = storage.current_time(root)
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=1)
    write_time = storage.last_write_time(f"{root}/a")
    assert write_time is not None
    assert abs(now - write_time) < timedelta(minutes=1)
    assert storage.last_write_time(f"{root}/none") is None


def test_remove_refuses_paths_outside_and_removes_directories(root: str) -> None:
    storage = storage_for(root)
    storage.write_atomically(f"{root}/a/b/c", b"1")
    storage.write_atomically(f"{root}/a/d", b"1")
    for path in (root, f"{root}/a/../a", f"{root}2/a"):
        with pytest.raises(StorageError, match="Refused"):
            storage_for(path).remove(path, below=root)
    assert storage.remove(f"{root}/a/b", below=root)
    assert not storage.remove(f"{root}/a/b", below=root)
    assert [path[len(root) + 1 :] for path in storage.walk(root)] == ["a/d"]


def test_uploads_and_growing_files_appear_at_their_paths(root: str, tmp_path: Path) -> None:
    storage = storage_for(root)
    (tmp_path / "source").write_bytes(b"source")
    storage.upload_all(
        [(str(tmp_path / "source"), f"{root}/up"), (str(tmp_path / "source"), f"{root}/2")]
    )
    assert storage.read_bytes(f"{root}/up") == storage.read_bytes(f"{root}/2") == b"source"
    with storage.growing_file(f"{root}/log") as path, open(path, "ab") as file:
        file.write(b"line")
    assert storage.read_bytes(f"{root}/log") == b"line"


def test_publication_publishes_once_and_removes_unpublished_files(root: str) -> None:
    storage = storage_for(root)
    for content, wins in ((b"first", True), (b"second", False)):
        with Publication() as publication:
            publication.add(f"{root}/data-{content.decode()}")
            storage.write_atomically(f"{root}/data-{content.decode()}", content)
            assert publication.publish(f"{root}/commit", content) is wins
    assert storage.read_bytes(f"{root}/commit") == b"first"
    assert storage.list_directory(root) == ["commit", "data-first"]
