"""Thread counts follow the cores available to the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from featurestore.model.runtime import usable_cores
from featurestore_connectors.duckdb_delta.engine import DuckDBEngine
threads = DuckDBEngine().database.rows("SELECT current_setting('threads')")[0][0]
print(usable_cores(), threads)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_process_on_one_core_uses_one_thread() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["1", "1"]


def test_cpu_count_is_called_only_in_runtime() -> None:
    actual = []
    for folder in ("featurestore", "connectors", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            if "cpu_count(" in path.read_text():
                actual.append(str(path.relative_to(ROOT)))
    assert actual == ["featurestore/model/runtime.py"]
