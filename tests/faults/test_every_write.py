"""Every public write under every fault.

The store opens, shows the old or the new state, and the call can be repeated.

A preloaded library counts the system calls of a write that change files (create, write, sync, link,
rename, remove). At the n-th one the process is killed, stopped, interrupted as by Ctrl-C, or told
that the disk is full or broken. So every prefix of the calls of a write is a case; a run takes some of them by a fixed
seed, and the long run takes all.
"""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.errors import RegistryError
from tests.faults import writes
from tests.faults.conftest import Server
from tests.store_copies import grant_sources

pytestmark = pytest.mark.services

SEED = 20_261_122
KILL, INTERRUPT = int(signal.SIGKILL), int(signal.SIGINT)
FULL, BROKEN = -errno.ENOSPC, -errno.EIO


@dataclass(frozen=True)
class Fault:
    """A fault of a write: a signal, or an errno (negative) of one call or of all later calls."""

    action: int
    stays: bool = False


FAULTS = {
    "killed": Fault(KILL),
    "interrupted": Fault(INTERRUPT),
    "on a full disk": Fault(FULL),
    "on a disk that stays full": Fault(FULL, stays=True),
    "on a bad disk": Fault(BROKEN),
}
Unharmed = Callable[[str], "Outcome"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store with one object of each kind, copied for each trial."""
    folder = tmp_path_factory.mktemp("template")
    writes.prepare(folder / "store")
    return folder


@dataclass(frozen=True)
class Outcome:
    """The visible state before and after an undisturbed write, and its number of file-changing calls."""

    old: dict[str, Any]
    new: dict[str, Any]
    calls: int


@pytest.fixture(scope="module")
def unharmed(ask: Server, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Unharmed:
    """Run a write without faults, once for all its trials."""
    old = writes.visible(template / "store")

    @cache
    def outcome(write: str) -> Outcome:
        if "petastorm" in write:
            pytest.importorskip("petastorm")
        store = copied(template, tmp_path_factory.mktemp("unharmed") / "copy")
        report = ask(store, write, call_number=0)
        assert report["status"] == 0
        assert report["error"] == ""
        return Outcome(old, writes.visible(store), report["calls"])

    return outcome


def copied(template: Path, folder: Path) -> Path:
    """Return the store of a new copy of the template."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    with featurestore.connect(folder / "store") as store:
        grant_sources(store)
    return folder / "store"


def meet(
    ask: Server, store: Path, write: str, outcome: Outcome, *, call_number: int, fault: Fault
) -> dict[str, Any]:
    """Run a write with a fault, and return the state that a new process sees."""
    outcome_report = ask(
        store, write, call_number=call_number, action=fault.action, stays=fault.stays
    )
    if fault.action < 0:
        assert "Traceback" not in outcome_report["error"], outcome_report["error"]
    state = writes.visible(store)
    assert state in (outcome.old, outcome.new)
    if outcome_report["status"] == 0 and outcome_report["error"] == "":
        assert state == outcome.new  # an acknowledged write must be visible
    return state


def repeat(
    ask: Server, store: Path, write: str, outcome: Outcome, *, state: dict[str, Any]
) -> None:
    """Repeat an interrupted write without faults."""
    again = ask(store, write, call_number=0)
    assert again["error"] == "" or state == outcome.new, again["error"]
    assert writes.visible(store) == outcome.new


def test_public_writes_are_all_listed() -> None:
    assert {write.public for write in writes.WRITES.values()} == writes.public_writes()
    assert set(featurestore.__all__) >= writes.READS


# Their files change by the same code as those of another write; the soak test has them all.
SAME_PATH = {
    "create with partitions", "get or create", "overwrite", "untag", "export to petastorm",
    "tag a dataset", "untag a dataset", "describe a dataset", "backfill", "unpause",
    "remove an alert channel", "remove a source", "import a dbt project",
}  # fmt: skip


@pytest.mark.parametrize("write", [name for name in writes.WRITES if name not in SAME_PATH])
def test_write_under_fault_leaves_old_or_new_state(
    ask: Server, unharmed: Unharmed, template: Path, tmp_path: Path, write: str
) -> None:
    """The write is killed, repeated with another fault, and repeated without faults."""
    rng = random.Random(f"{SEED}/{write}")
    outcome = unharmed(write)
    second_fault = rng.choice([Fault(INTERRUPT), Fault(FULL), Fault(FULL, stays=True)])
    store = copied(template, tmp_path / "trial")
    call_number = rng.randint(1, outcome.calls)
    killed = meet(ask, store, write, outcome, call_number=call_number, fault=Fault(KILL))
    call_number = rng.randint(1, outcome.calls)
    state = meet(ask, store, write, outcome, call_number=call_number, fault=second_fault)
    assert killed == outcome.old or state == outcome.new, "what was done was undone"
    repeat(ask, store, write, outcome, state=state)


def stopped(
    ask: Server, template: Path, folder: Path, write: str, outcome: Outcome, *, call_number: int
) -> None:
    """Stop a write, read the store from another process, and resume the write.

    It ends as if nothing had been.
    """
    store = copied(template, folder)
    outcome_report = ask(store, write, call_number=call_number, action=int(signal.SIGSTOP))
    if outcome_report.get("stopped"):
        with contextlib.suppress(
            RegistryError
        ):  # a process stopped in a transaction locks the registry
            assert writes.visible(store, at_work=True) in (outcome.old, outcome.new)
        outcome_report = ask.go_on()
    assert (outcome_report["status"], outcome_report["error"]) == (0, "")
    assert writes.visible(store) == outcome.new


@pytest.mark.parametrize("write", ["append", "upsert", "export to parquet"])
def test_write_paused_by_sigstop_completes(
    ask: Server, unharmed: Unharmed, template: Path, tmp_path: Path, write: str
) -> None:
    outcome = unharmed(write)
    call_number = random.Random(f"{SEED}/stopped/{write}").randint(1, outcome.calls)
    stopped(ask, template, tmp_path / "trial", write, outcome, call_number=call_number)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("fault", [*FAULTS, "stopped"])
@pytest.mark.parametrize("write", writes.WRITES)
def test_write_fault_at_each_call_leaves_consistent_state(
    ask: Server, unharmed: Unharmed, template: Path, tmp_path: Path, write: str, fault: str
) -> None:
    """All calls of all writes under six faults: about 6,000 cases.

    Prints how many and what went wrong.
    """
    outcome = unharmed(write)
    folder = tmp_path / "trial"
    failed = []
    for call_number in range(1, outcome.calls + 1):
        try:
            if fault == "stopped":
                stopped(ask, template, folder, write, outcome, call_number=call_number)
            else:
                store = copied(template, folder)
                state = meet(
                    ask, store, write, outcome, call_number=call_number, fault=FAULTS[fault]
                )
                repeat(ask, store, write, outcome, state=state)
        except Exception as error:
            failed.append(f"at call {call_number}: {type(error).__name__}: {error}"[:500])
    print(f"{write}, {fault}: {outcome.calls} faults, {len(failed)} lost, doubled or unreadable")
    assert failed == []
