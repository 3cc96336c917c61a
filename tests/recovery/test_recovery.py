"""Leftovers of dead processes are settled when the store is opened."""

from __future__ import annotations

import datetime as dt
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore.delta.log import commit_path, is_delta_table
from featurestore.errors import (
    FeatureGroupExists,
    FeatureGroupNotFound,
    TrainingDatasetExists,
    WriteConflict,
)
from featurestore.model import times
from featurestore.plugins.engine import TableWrite
from featurestore.recovery import liveness, recover
from featurestore.recovery.in_flight import InFlight, in_flight
from featurestore.registry import featuregroups, intents
from featurestore.store import FeatureStore

pytestmark = pytest.mark.services

TABLE = pa.table({"x": [1, 2]})


def another_owner(store: FeatureStore, *, machine: str | None = None) -> str:
    """Return the owner name of another process on this or another machine."""
    host, pid, this_machine, _ = liveness.owner_of_this_process(store.location).split(".")
    return f"{host}.{pid}.{machine or this_machine}.00000000"


def begin(
    store: FeatureStore,
    operation: str,
    name: str,
    version: int = 1,
    run_id: str = "run",
    owner: str | None = None,
) -> None:
    """Record an intent of ``owner``, by default a dead process of this machine."""
    owner = owner or another_owner(store)
    with store.session.registry.transaction() as connection:
        intents.begin(
            connection, run_id=run_id, kind=operation, name=name, version=version, owner=owner
        )


def left_over(store: FeatureStore) -> list[str]:
    with store.session.registry.reading() as connection:
        return [intent.run_id for intent in intents.list_all(connection)]


def test_recovery_removes_creation_without_rows(empty_store: FeatureStore) -> None:
    store = empty_store
    begin(store, "create", "g")
    path = store.session.featuregroup_path("g", 1)
    store.session.engine.create_table(
        path, schema=TABLE.schema, partition_by=(), properties={}, commit_metadata={}
    )
    stage = Path(store.session.paths.stage("run"))
    stage.mkdir(parents=True)
    again = featurestore.connect(store.location)
    assert not os.path.exists(path)
    assert not stage.exists()
    assert left_over(again) == []
    assert again.create_featuregroup(TABLE, "g").version == 1


def test_recovery_registers_creation_with_rows(empty_store: FeatureStore) -> None:
    store = empty_store
    group = store.create_featuregroup(TABLE, "g", description="Found again", tags={"a": "b"})
    with store.session.registry.transaction() as connection:
        featuregroups.remove(connection, "g", 1)
    begin(store, "create", "g")
    with pytest.raises(FeatureGroupNotFound):
        store.featuregroup("g")
    again = featurestore.connect(store.location)
    assert (again.featuregroup("g").description, again.get_featuregroup_tags("g")) == (
        "Found again",
        {"a": "b"},
    )
    assert again.get_featuregroup("g").count() == 2
    assert left_over(again) == []
    assert group.history()[-1].operation == "create"


def test_recovery_registers_unregistered_commit(empty_store: FeatureStore) -> None:
    store = empty_store
    group = store.create_featuregroup(TABLE, "g")
    begin(store, "write", "g")
    note = {
        "operation": "append",
        "run": "r9",
        "inputs": [{"featuregroup": "raw", "version": 1, "delta_version": 3}],
    }
    rows = store.session.engine.from_arrow(TABLE.to_reader())
    store.session.engine.write(group.path, rows, TableWrite("append", commit_metadata=note))
    again = featurestore.connect(store.location)
    with again.session.registry.reading() as connection:
        assert featuregroups.get(connection, "g").delta_version == 2
        from featurestore.registry import lineage

        assert lineage.results(connection, "raw")[0].run_id == "r9"


def test_recovery_completes_deletion(empty_store: FeatureStore) -> None:
    store = empty_store
    group = store.create_featuregroup(TABLE, "g")
    begin(store, "delete", "g")
    again = featurestore.connect(store.location)
    assert not os.path.exists(group.path)
    assert again.get_featuregroups() == []


def half_created(store: FeatureStore, *, owner: str | None = None) -> str:
    """Leave the state of a creation before its rows are written; return its directory."""
    begin(store, "create", "g", owner=owner)
    path = store.session.featuregroup_path("g", 1)
    store.session.engine.create_table(
        path, schema=TABLE.schema, partition_by=(), properties={}, commit_metadata={}
    )
    return path


def test_recovery_ignores_writes_of_own_process(empty_store: FeatureStore) -> None:
    store = empty_store
    path = half_created(store, owner=liveness.owner_of_this_process(store.location))
    featurestore.connect(store.location)
    assert is_delta_table(path)
    assert left_over(store) == ["run"]
    with pytest.raises(FeatureGroupExists, match="is being created by another process"):
        store.create_featuregroup(TABLE, "g", version=1)


CREATOR = """
import sys, featurestore
from featurestore.recovery.in_flight import in_flight
store = featurestore.connect(sys.argv[1])
with in_flight(store.session, operation="create", name="g", version=1):
    with in_flight(store.session, operation="export", name="d", version=1):
        print("begun", flush=True)
        sys.stdin.read()
"""


def test_recovery_waits_for_death_of_other_process(empty_store: FeatureStore) -> None:
    """Recovery does not use process ids, so it also works for restarted containers."""
    store = empty_store
    with subprocess.Popen(
        [sys.executable, "-c", CREATOR, store.location],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as creator:
        assert creator.stdout is not None
        assert creator.stdout.readline() == b"begun\n"
        featurestore.connect(store.location)
        assert len(left_over(store)) == 2
        with pytest.raises(FeatureGroupExists):
            store.create_featuregroup(TABLE, "g", version=1)
        with pytest.raises(TrainingDatasetExists):
            store.create_training_dataset(TABLE, "d", version=1)
        creator.kill()
    again = featurestore.connect(store.location)
    assert left_over(again) == []
    assert again.create_featuregroup(TABLE, "g", version=1).version == 1
    assert again.create_training_dataset(TABLE, "d", version=1).version == 1
    assert os.listdir(Path(store.location, "_owners")) == [
        liveness.owner_of_this_process(store.location)
    ]


def in_a_container(program: str, location: str, *, boot_id: Path | None) -> subprocess.Popen[bytes]:
    """Start a program with its own process ids, host name and, with ``boot_id``, kernel."""
    steps = ["hostname elsewhere"]
    if boot_id is not None:
        steps.append(f"mount --bind {boot_id} /proc/sys/kernel/random/boot_id")
    steps.append('exec "$@"')
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts"]
    probe = subprocess.run([*unshare, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no namespaces of one's own here: {probe.stderr.decode().strip()}")
    script = ["sh", "-ec", " && ".join(steps), "sh"]
    command = [*unshare, *script, sys.executable, "-c", program, location]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def end_container(container: subprocess.Popen[bytes]) -> None:
    """Kill a container and wait for its program, which dies shortly after ``unshare``."""
    children = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
    programs = [os.pidfd_open(int(child)) for child in children]
    assert programs
    container.kill()
    container.wait(60)
    for program in programs:
        # select() refuses the descriptors above 1,023 that a long test run reaches.
        poll = select.poll()
        poll.register(program, select.POLLIN)
        assert poll.poll(60_000), "the program in the container lives"
        os.close(program)


@pytest.mark.parametrize("same_kernel", [True, False])
def test_recovery_releases_names_of_killed_container(
    empty_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_kernel: bool
) -> None:
    """The creating process has pid 1 in its container, like its successor."""
    store = empty_store
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("0f0f0f0f-0000-4000-8000-000000000000\n")
    container = in_a_container(CREATOR, store.location, boot_id=None if same_kernel else boot_id)
    with container:
        assert container.stdout is not None
        assert container.stdout.readline() == b"begun\n"
        featurestore.connect(store.location)
        assert len(left_over(store)) == 2
        with pytest.raises(FeatureGroupExists, match="is being created by another process"):
            store.create_featuregroup(TABLE, "g", version=1)
        end_container(container)  # its input closes afterwards, or it could exit normally
    if not same_kernel:
        featurestore.connect(store.location)
        assert len(left_over(store)) == 2, "nobody here can tell, so the heartbeat decides"
        now = times.utc_now()
        monkeypatch.setattr(times, "clock", lambda: now + dt.timedelta(seconds=61))
    again = featurestore.connect(store.location)
    assert left_over(again) == []
    assert again.create_featuregroup(TABLE, "g", version=1).version == 1
    assert again.create_training_dataset(TABLE, "d", version=1).version == 1


def test_recovery_of_remote_process_depends_on_heartbeat(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = empty_store
    elsewhere = another_owner(store, machine="ffffffff")
    with store.session.registry.transaction() as connection:
        intents.record_heartbeat(connection, elsewhere)
    path = half_created(store, owner=elsewhere)
    now = times.utc_now()
    monkeypatch.setattr(times, "clock", lambda: now + dt.timedelta(seconds=59))
    featurestore.connect(store.location)
    assert is_delta_table(path)
    monkeypatch.setattr(times, "clock", lambda: now + dt.timedelta(seconds=61))
    again = featurestore.connect(store.location)
    assert not os.path.exists(path)
    assert left_over(again) == []


def test_heartbeat_continues_during_write(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "HEARTBEAT_SECONDS", 0.001)
    beats = threading.Semaphore(0)
    monkeypatch.setattr(intents, "record_heartbeat", lambda connection, name: beats.release())
    with in_flight(empty_store.session, operation="write", name="g", version=1):
        for _ in range(3):
            assert beats.acquire(timeout=60)


def test_write_presumed_dead_publishes_nothing(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = empty_store

    check_intent = InFlight.check_intent

    def taken_over(run: InFlight) -> None:
        monkeypatch.setattr(liveness, "is_alive", lambda *_: False)
        recover(store.session)  # as on another machine without this information
        monkeypatch.undo()
        check_intent(run)

    monkeypatch.setattr(InFlight, "check_intent", taken_over)
    with pytest.raises(WriteConflict, match="considered this write dead"):
        store.create_featuregroup(TABLE, "g")
    assert store.get_featuregroups() == []
    assert left_over(store) == []
    assert store.create_featuregroup(TABLE, "g").version == 1


def test_forked_child_is_separate_owner(empty_store: FeatureStore) -> None:
    location = empty_store.location
    owner = liveness.owner_of_this_process(location)
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, location],
        capture_output=True,
        text=True,
        check=True,
    )
    parent, child = ended.stdout.split()
    assert len({owner, parent, child}) == 3
    assert set(os.listdir(Path(location, "_owners"))) & {parent} == set(), "it left at its end"


FORKING = """
import os, sys
from featurestore.recovery import liveness, recover
from featurestore.recovery.in_flight import in_flight
print(liveness.owner_of_this_process(sys.argv[1]), flush=True)
child = os.fork()
if child == 0:
    print(liveness.owner_of_this_process(sys.argv[1]), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_recovery_unresolvable_write_does_not_block_others(
    empty_store: FeatureStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = empty_store
    group = store.create_featuregroup(TABLE, "damaged")
    begin(store, "write", "damaged", run_id="one")
    path = half_created(store)
    Path(commit_path(group.path, 1)).write_text("{not json")
    again = featurestore.connect(store.location)
    assert not os.path.exists(path)
    assert left_over(again) == ["one"], "it is tried again at the next connect"
    assert "write of damaged version 1 could not be resolved" in caplog.text


def test_recovery_reports_group_without_folder(flights_copy: FeatureStore) -> None:
    import shutil

    shutil.rmtree(flights_copy.featuregroup("planes").path)
    with pytest.raises(featurestore.FeatureStoreError, match="no Delta table at"):
        flights_copy.get_featuregroup("planes")
