"""The dbt project of the tests, built by a real dbt, and the manifest that other tests read.

``python -m tests.dbt.real`` writes the manifest again. dbt is in an environment of its own,
``.venv-dbt``, because the feature store does not depend on it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PROJECT = FOLDER / "project"
MANIFEST = FOLDER / "manifest.json"
DBT = FOLDER.parents[1] / ".venv-dbt" / "bin" / "dbt"
# Parts of a manifest that an import reads.
_PARTS = ("metadata", "nodes", "sources", "groups", "disabled", "parent_map")
_UNUSED = frozenset(
    {
        "build_path",
        "checksum",
        "compiled_code",
        "compiled_path",
        "created_at",
        "doc_blocks",
        "docs",
        "extra_ctes",
        "extra_ctes_injected",
        "grants",
        "macro_sql",
        "patch_path",
        "post-hook",
        "pre-hook",
        "quoting",
        "raw_code",
        "root_path",
        "unrendered_config",
        "unrendered_database",
        "unrendered_schema",
    }
)
_RUN = ("generated_at", "invocation_id", "invocation_started_at", "run_started_at", "user_id")


def run_dbt(folder: Path, *arguments: str, target: str = "duckdb", **variables: str) -> str:
    """Run dbt in a folder and return its output."""
    command = [str(DBT), "--no-use-colors", *arguments, "--profiles-dir", ".", "--target", target]
    variables |= {"DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "DO_NOT_TRACK": "1"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def copy_project(folder: Path) -> Path:
    """Copy the project into a folder, and install its packages, which are local."""
    shutil.copytree(PROJECT, folder, dirs_exist_ok=True)
    run_dbt(folder, "deps")
    return folder


def strip(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a manifest that an import reads, without values of the run."""
    parts = {name: manifest[name] for name in _PARTS}
    stripped: dict[str, Any] = _strip_values(parts)
    for name in _RUN:
        stripped["metadata"].pop(name, None)
    return stripped


def _strip_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strip_values(item) for key, item in value.items() if key not in _UNUSED}
    return list(map(_strip_values, value)) if isinstance(value, list) else value


def main() -> None:
    """Write the manifest of the project."""
    with tempfile.TemporaryDirectory() as folder:
        project = copy_project(Path(folder) / "shop")
        run_dbt(project, "parse")
        manifest = json.loads((project / "target" / "manifest.json").read_text())
    MANIFEST.write_text(json.dumps(strip(manifest), indent=1) + "\n")
    sys.stdout.write(f"{MANIFEST}: {MANIFEST.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
