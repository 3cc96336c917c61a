"""The walks of new users run in an empty folder; `make test-wheel` runs them with the wheel, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_walk_with_own_csv_file_succeeds(tmp_path: Path) -> None:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(
        str(ROOT / folder) for folder in ("", "connectors", "schemas")
    )
    process = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "walks" / "own_csv.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.endswith("walk: ok\n")


def test_test_wheel_runs_every_walk() -> None:
    script = (ROOT / "scripts" / "test-wheel").read_text(encoding="utf-8")
    pages = ("README.md", "docs/index.md", "docs/tutorial.md", "docs/how-to/troubleshoot.md")
    for page in pages:
        assert f'"$root/{page}"' in script, page
