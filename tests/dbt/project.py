"""The dbt project of the tests, built by a real dbt, and the manifest that other tests read.

``python -m tests.dbt.project`` writes the manifest again. dbt is in an environment of its own,
``.venv-dbt``, because the feature store does not depend on it. Further versions of dbt may be
installed in ``.venv-dbt-1.8`` and so on; the tests then run with each of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PROJECT = FOLDER / "project"
MANIFEST = FOLDER / "manifest.json"
ROOT = FOLDER.parents[1]
DBT = ROOT / ".venv-dbt" / "bin" / "dbt"
# The installed versions of dbt; the first one writes the stored manifest.
INSTALLED = (DBT, *sorted(ROOT.glob(".venv-dbt-*/bin/dbt")))
# The snapshot of the project as dbt 1.8 defines it, which does not read it from YAML.
_SNAPSHOT = """
{% snapshot plans %}
{{ config(tags=["features"], target_schema=target.schema, unique_key="id", strategy="timestamp",
          updated_at="updated_at", invalidate_hard_deletes=true) }}
select * from {{ ref("raw_customers") }}
{% endsnapshot %}
"""
# Parts of a manifest that an import reads.
_SECTIONS = ("metadata", "nodes", "sources", "groups", "disabled", "parent_map")
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


def run_dbt(
    folder: Path, *arguments: str, target: str = "duckdb", dbt: Path = DBT, **variables: str
) -> str:
    """Run dbt in a folder and return its output."""
    command = [str(dbt), "--no-use-colors", *arguments, "--profiles-dir", ".", "--target", target]
    variables |= {"DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "DO_NOT_TRACK": "1"}
    process = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-2000:]
    return process.stdout


def version_of(dbt: Path) -> tuple[int, ...]:
    """Return the major and minor version of an installed dbt."""
    (package,) = dbt.parents[1].glob("lib/python*/site-packages/dbt_core-*.dist-info")
    major, minor = package.name.removeprefix("dbt_core-").split(".")[:2]
    return int(major), int(minor)


def copy_project(folder: Path, dbt: Path = DBT) -> Path:
    """Copy the project into a folder, and install its packages, which are local."""
    shutil.copytree(PROJECT, folder, dirs_exist_ok=True)
    version = version_of(dbt)
    if version < (1, 10):
        for file in folder.rglob("*.yml"):
            file.write_text(without_arguments(file.read_text()))
    if version < (1, 9):
        snapshots = folder / "snapshots"
        (snapshots / "plans.sql").write_text(_SNAPSHOT)
        properties = {"name": "plans", "description": "History of the plans."}
        (snapshots / "plans.yml").write_text(json.dumps({"snapshots": [properties]}))
        sources = folder / "models" / "staging" / "sources.yml"
        sources.write_text(with_freshness_of_tables(sources.read_text()))
    run_dbt(folder, "deps", dbt=dbt)
    return folder


def without_arguments(text: str) -> str:
    """Return YAML with the arguments of tests as dbt before 1.10 reads them.

    >>> without_arguments("- accepted_values: {arguments: {values: [1]}}")
    '- accepted_values: {values: [1]}'
    """
    text = re.sub(r"\{arguments: (\{.*\})\}", r"\1", text)
    return re.sub(r"\n +arguments: \{(.*)\}", r" {\1}", text)


def with_freshness_of_tables(text: str) -> str:
    """Return the YAML of sources with freshness as dbt 1.8 reads it, outside of the config."""
    text = text.replace(
        "config:\n          event_time: ordered_at", "config: {event_time: ordered_at}"
    )
    properties = "freshness|warn_after|error_after|loaded_at_field"
    return re.sub(rf"^  ( +(?:{properties}):)", r"\1", text, flags=re.MULTILINE)


def strip(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a manifest that an import reads, without values of the run."""
    sections = {name: manifest[name] for name in _SECTIONS}
    stripped: dict[str, Any] = _strip_values(sections)
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
