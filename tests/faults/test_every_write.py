"""Every public write under every fault.

The store opens, shows the old or the new state, and the call can be repeated.

A preloaded library counts the system calls of a write that change files (create, write, sync, link,
rename, remove). At the n-th one the process is killed, interrupted as by Ctrl-C, or told that the
disk is full. So every prefix of the calls of a write is a case; a run takes some of them by a fixed
seed, and the long run takes all.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.errors import RegistryError

HERE = Path(__file__).parent
SEED = 20_261_122
KILL, INTERRUPT = int(signal.SIGKILL), int(signal.SIGINT)
FULL, BROKEN = -errno.ENOSPC, -errno.EIO
ACTIONS = {
    "stopped": 0,
    "killed": KILL,
    "interrupted": INTERRUPT,
    "on a full disk": FULL,
    "on a bad disk": BROKEN,
}
Ask = Callable[..., dict[str, Any]]
Unharmed = Callable[[str], "Outcome"]


def load(name: str) -> Any:
    """Import a module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(
        f"featurestore_faults_{name}", HERE / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


writes = load("writes")


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Ask the server that forks a process for each trial."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the library that injects faults cannot be built")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = str(HERE / "faults.c")
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), source, "-ldl"], check=True
    )
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    server = subprocess.Popen(
        [sys.executable, str(HERE / "server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    stdin, stdout = server.stdin, server.stdout
    assert stdin is not None
    assert stdout is not None

    def call(
        store: Path, write: str, *, at: int, action: int = 0, stays: bool = False
    ) -> dict[str, Any]:
        asked = {"store": str(store), "write": write, "at": at, "action": action, "stays": stays}
        stdin.write(json.dumps(asked) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer

    def go_on() -> dict[str, Any]:
        stdin.write("go on\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer

    call.go_on = go_on  # type: ignore[attr-defined]
    with server:
        yield call
        stdin.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that has one thing of each kind, to be copied for each trial."""
    folder = tmp_path_factory.mktemp("template")
    writes.prepare(folder / "store")
    return folder


@dataclass(frozen=True)
class Outcome:
    """What a store shows before and after an unharmed write, and how many calls that changed files it took."""

    old: dict[str, Any]
    new: dict[str, Any]
    calls: int


@pytest.fixture(scope="module")
def unharmed(ask: Ask, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Unharmed:
    """Do a write without a fault, once for all its trials."""
    old = writes.visible(template / "store")

    @cache
    def outcome(write: str) -> Outcome:
        if "petastorm" in write:
            pytest.importorskip("petastorm")
        folder = tmp_path_factory.mktemp("unharmed") / "copy"
        shutil.copytree(template, folder)
        told = ask(folder / "store", write, at=0)
        assert told["status"] == 0
        assert told["error"] == ""
        return Outcome(old, writes.visible(folder / "store"), told["calls"])

    return outcome


def trial(
    ask: Ask, template: Path, folder: Path, write: str, outcome: Outcome, *, at: int, action: int
) -> None:
    """Do a write that meets a fault, look at the store as a new process does, and do the write again."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    told = ask(folder / "store", write, at=at, action=action)
    if action < 0:
        assert "Traceback" not in told["error"], told["error"]
    state = writes.visible(folder / "store")
    assert state in (outcome.old, outcome.new)
    if told["status"] == 0 and told["error"] == "":
        assert state == outcome.new  # what was acknowledged is there
    again = ask(folder / "store", write, at=0)
    assert again["error"] == "" or state == outcome.new, again["error"]
    assert writes.visible(folder / "store") == outcome.new


def test_every_public_call_that_writes_is_tried() -> None:
    assert {each.public for each in writes.WRITES.values()} == writes.public_writes()
    assert set(featurestore.__all__) >= writes.READS


@pytest.mark.parametrize("write", writes.WRITES)
def test_a_write_that_meets_a_fault_leaves_the_old_or_the_new_state(
    ask: Ask, unharmed: Unharmed, template: Path, tmp_path: Path, write: str
) -> None:
    chosen = random.Random(f"{SEED}/{write}")
    outcome = unharmed(write)
    for action in (KILL, INTERRUPT, FULL):
        at = chosen.randint(1, outcome.calls)
        trial(ask, template, tmp_path / "trial", write, outcome, at=at, action=action)


def stopped(
    ask: Any, template: Path, folder: Path, write: str, outcome: Outcome, *, at: int
) -> None:
    """Stop a write, look at the store beside it, and let it go on.

    It ends as if nothing had been.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    told = ask(folder / "store", write, at=at, action=int(signal.SIGSTOP))
    if told.get("stopped"):
        with contextlib.suppress(RegistryError):  # stopped in a transaction, it holds the registry
            assert writes.visible(folder / "store", at_work=True) in (outcome.old, outcome.new)
        told = ask.go_on()
    assert (told["status"], told["error"]) == (0, "")
    assert writes.visible(folder / "store") == outcome.new


@pytest.mark.parametrize("write", ["append", "upsert", "export to parquet"])
def test_a_write_that_is_stopped_for_a_while_harms_nothing(
    ask: Ask, unharmed: Unharmed, template: Path, tmp_path: Path, write: str
) -> None:
    outcome = unharmed(write)
    at = random.Random(f"{SEED}/stopped/{write}").randint(1, outcome.calls)
    stopped(ask, template, tmp_path / "trial", write, outcome, at=at)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("fault", ACTIONS)
@pytest.mark.parametrize("write", writes.WRITES)
def test_every_prefix_of_a_write_leaves_the_old_or_the_new_state(
    ask: Ask, unharmed: Unharmed, template: Path, tmp_path: Path, write: str, fault: str
) -> None:
    """All calls of all writes under four faults: about 4,000.

    Prints how many and what went wrong.
    """
    outcome = unharmed(write)
    failed = []
    for at in range(1, outcome.calls + 1):
        try:
            trial(ask, template, tmp_path / "trial", write, outcome, at=at, action=ACTIONS[fault])
        except Exception as error:
            failed.append(f"at call {at}: {type(error).__name__}: {error}"[:500])
    print(f"{write}, {fault}: {outcome.calls} faults, {len(failed)} lost, doubled or unreadable")
    assert failed == []
