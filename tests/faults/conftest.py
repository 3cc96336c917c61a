"""One server for all fault tests; it forks the writing processes and injects faults."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent


class Server:
    """A client of the fault server; requests and answers are lines of JSON."""

    def __init__(self, stdin: Any, stdout: Any, *, injects: bool) -> None:
        self._stdin, self._stdout, self._injects = stdin, stdout, injects

    def several(self, store: Path, *, writers: int, rounds: int) -> list[str]:
        """Run concurrent writers and return their errors."""
        outcome_report = self._ask(store=str(store), writers=writers, rounds=rounds)
        errors: list[str] = outcome_report["errors"]
        return errors

    def __call__(
        self, store: Path, write: str, *, call_number: int, action: int = 0, stays: bool = False
    ) -> dict[str, Any]:
        """Run a write with a fault at its n-th file-changing system call; 0 only counts calls."""
        if not self._injects:
            pytest.skip("no C compiler: the library that injects faults cannot be built")
        return self._ask(store=str(store), write=write, at=call_number, action=action, stays=stays)

    def go_on(self) -> dict[str, Any]:
        """Resume a stopped write and return its result."""
        return self._ask()

    def _ask(self, **request: Any) -> dict[str, Any]:
        self._stdin.write(json.dumps(request) + "\n")
        self._stdin.flush()
        response: dict[str, Any] = json.loads(self._stdout.readline())
        return response


@pytest.fixture(scope="session")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that forks a process for each trial."""
    environment = dict(os.environ)
    compiler = shutil.which("cc")
    if compiler is not None:
        library = tmp_path_factory.mktemp("faults") / "faults.so"
        source = str(FOLDER / "faults.c")
        subprocess.run(
            [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), source, "-ldl"], check=True
        )
        environment["LD_PRELOAD"] = str(library)
    server = subprocess.Popen(
        [sys.executable, str(FOLDER / "server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert server.stdin is not None
    with server:
        yield Server(server.stdin, server.stdout, injects=compiler is not None)
        server.stdin.close()
