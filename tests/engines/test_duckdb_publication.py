"""Publication syncs files before the commit and removes nothing after it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import featurestore
from featurestore.delta.log import commit_path
from featurestore.delta.scan import check_files
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import InvalidArgument, PublicationWarning
from featurestore.plugins.engine import TableWrite
from featurestore.storage.publication import Publication
from featurestore.testing.table_conformance import ids, new_table, rows_with_ids, write
from featurestore_connectors.duckdb_delta import DuckDBEngine

pytestmark = pytest.mark.slow

TRACED_PATHS = ("duckdb_delta", os.path.join("storage", "publication"))


def interrupted(call: Callable[[], Any], *, after: Callable[[], bool], step: int) -> bool:
    """Run a call and interrupt it at a bytecode of the engine after a condition holds.

    False when it ended before.

    A signal is handled between two bytecodes, so this is every moment at which Ctrl-C can arrive.
    """
    steps = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal steps
        if not any(fragment in frame.f_code.co_filename for fragment in TRACED_PATHS):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and (steps or after()):
            steps += 1
            if steps == step:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


WRITES = {
    "append": lambda engine, path: write(engine, path, rows_with_ids(7)),
    "upsert": lambda engine, path: write(
        engine, path, rows_with_ids(1, 7), TableWrite("upsert", key=("id",))
    ),
    "compact": lambda engine, path: engine.compact(path),
}


@pytest.mark.parametrize("name", WRITES)
def test_interrupt_after_commit_removes_nothing(
    engine: DuckDBEngine, tmp_path: Path, name: str
) -> None:
    met, step = 0, 1
    while True:
        folder = tmp_path / str(step)
        path = new_table(engine, folder)
        write(engine, path, rows_with_ids(0, 1))
        write(engine, path, rows_with_ids(2))
        commit = commit_path(path, 3)
        hit = interrupted(
            lambda path=path: WRITES[name](engine, path),
            after=lambda commit=commit: os.path.exists(commit),
            step=step,
        )
        check_files(read_snapshot(path))
        assert read_snapshot(path).version == 3
        assert ids(engine, path)
        if not hit:
            break
        met += 1
        step += 1 if step < 10 else 29
    assert met >= 10


def test_failure_before_commit_removes_written_files(tmp_path: Path) -> None:
    published, lost = tmp_path / "published", tmp_path / "lost"
    for file in (published, lost):
        file.write_text("rows")
    (tmp_path / "commit").write_text("taken")
    with Publication() as publication:
        publication.add(str(lost))
        assert publication.link(str(published), str(tmp_path / "commit")) is False
    assert not lost.exists()
    with suppress(KeyboardInterrupt), Publication() as publication:
        publication.add(str(published))
        assert publication.link(str(published), str(tmp_path / "next"))
        raise KeyboardInterrupt
    assert published.exists()


@pytest.mark.parametrize("operation", ["append", "rewrite"])
def test_concurrent_vacuum_keeps_committed_files(
    engine: DuckDBEngine, tmp_path: Path, operation: str
) -> None:
    path = new_table(engine, tmp_path)
    write(engine, path, rows_with_ids(0))
    writer_done = threading.Event()

    def work() -> None:
        writer = DuckDBEngine(threads=1)
        try:
            for number in range(1, 16):
                if operation == "append":
                    write(writer, path, rows_with_ids(number))
                else:
                    write(writer, path, rows_with_ids(number), TableWrite("upsert", key=("id",)))
                    writer.compact(path)
        finally:
            writer.close()
            writer_done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not writer_done.is_set():
        engine.vacuum(path, keep_versions=[], retain=datetime.now(UTC))
    thread.join()
    assert ids(engine, path) == list(range(16))


def test_files_are_synced_before_commit(
    engine: DuckDBEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, link = os.fsync, os.link

    def synced(handle: int) -> None:
        events.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    def linked(source: str, target: str, **options: Any) -> None:
        link(source, target, **options)
        events.append(f"link {target}")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    path = new_table(engine, tmp_path, partition_by=("zone",))
    write(engine, path, rows_with_ids(0, 1))
    files = [file.path for file in read_snapshot(path).files]
    commit = events.index(f"link {commit_path(path, 1)}")
    for file in files:
        assert file in events[:commit]
        assert os.path.dirname(file) in events[:commit]
    assert path in events[:commit]
    assert os.path.dirname(commit_path(path, 1)) in events[commit:]


def test_fast_durability_leaves_syncing_to_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(handle: int) -> None:
        raise AssertionError("nothing is synced")

    fast = DuckDBEngine(durability="fast")
    monkeypatch.setattr(os, "fsync", refused)
    path = new_table(fast, tmp_path)
    write(fast, path, rows_with_ids(1))
    assert ids(fast, path) == [1]
    fast.close()
    with pytest.raises(InvalidArgument, match="durability='slow'"):
        DuckDBEngine(durability="slow")


def test_failed_sync_after_commit_is_a_warning(
    engine: DuckDBEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = new_table(engine, tmp_path)
    commit = commit_path(path, 1)
    sync = os.fsync

    def failing(handle: int) -> None:
        if os.path.exists(commit):
            raise OSError(5, "Input/output error")
        sync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.warns(PublicationWarning, match="became visible, but"):
        assert write(engine, path, rows_with_ids(1)) == 1
    assert ids(engine, path) == [1]


def test_durability_is_set_by_argument_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def durable(**options: Any) -> bool:
        with featurestore.connect(tmp_path / "store", **options) as store:
            engine = store.session.engine
            assert isinstance(engine, DuckDBEngine)
            with store.session.registry.reading() as connection:
                (synchronous,) = connection.exec_driver_sql("pragma synchronous").one()
            assert engine.database.durable == (synchronous == 2)  # 2: each transaction is synced
            return engine.database.durable

    monkeypatch.delenv("FEATURESTORE_DURABILITY", raising=False)
    assert durable()
    assert not durable(durability="fast")
    monkeypatch.setenv("FEATURESTORE_DURABILITY", "fast")
    assert not durable()
    assert durable(durability="full")
