"""The core without the modules and functions that Windows does not have."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.services

HOLDER = """
import sys
from featurestore.storage import locks
locks.fcntl = None
handle = locks.acquire_lock(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""
CHECKER = """
import sys
from featurestore.storage import locks
locks.fcntl = None
print([locks.is_locked(sys.argv[1]) for _ in range(2)])
"""


def test_store_works_without_posix_modules(tmp_path):
    script = Path(__file__).with_name("without_posix.py")
    command = [sys.executable, str(script), str(tmp_path / "store")]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "ok"


def test_filelock_ends_with_its_process(tmp_path):
    path = str(tmp_path / "owner")

    def check() -> str:
        command = [sys.executable, "-c", textwrap.dedent(CHECKER), path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert check() == "[False, False]"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "locked\n"
        assert check() == "[True, True]"
    finally:
        holder.kill()
        holder.communicate()
    assert check() == "[False, False]"
