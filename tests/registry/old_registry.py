"""Write a registry, and the statements that create its tables, to ``tests/assets/registries``.

Run once at the release of a revision, never for an old one.

python tests/registry/old_registry.py
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.registry import (
    artifacts,
    featuregroups,
    lineage,
    open_registry,
    training_datasets,
)
from featurestore.registry.migrations import creation_statements, head_revision

ASSETS = Path(__file__).parents[1] / "assets" / "registries"
SPEC = FeatureGroupSpec(
    name="speeds",
    version=1,
    schema=pa.schema([("zone", pa.int64()), ("speed", pa.float64())]),
    primary_key=("zone",),
)
REPORT = {
    "name": "speeds",
    "version": 1,
    "policy": "strict",
    "success": True,
    "rows": 3,
    "delta_version": 1,
}


def fill(directory: str) -> None:
    """Store one object of each kind in a registry."""
    registry = open_registry(directory)
    with registry.transaction() as connection:
        featuregroups.add(
            connection,
            SPEC,
            table_id="t-1",
            delta_version=1,
            description="Speeds of roads",
        )
        artifacts.replace_tags(connection, "featuregroup", "speeds", 1, {"team": "roads"})
        lineage.add(
            connection, "featuregroup", "speeds", 1, delta_version=1, job="speeds", run_id="r1",
            inputs=[{"featuregroup": "raw", "version": 1, "delta_version": 4}],
        )  # fmt: skip
        artifacts.add_validation_report(connection, "featuregroup", REPORT)
        dataset = training_datasets.RegisteredDataset(
            "rides", 1, "0" * 64, "tfrecord", 10,
            pins=(training_datasets.Pin("speeds", 1, 1, "t-1"),),
        )  # fmt: skip
        training_datasets.add(connection, dataset)
    registry.close()


def main() -> None:
    target = ASSETS / f"{head_revision()}.db"
    if target.exists():
        sys.exit(f"{target} is there already; a released file is never changed")
    with tempfile.TemporaryDirectory() as directory:
        fill(directory)
        file = Path(directory, "registry.db")
        with sqlite3.connect(file) as connection:
            connection.execute("pragma journal_mode=delete")
        connection.close()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    for dialect in ("sqlite", "postgresql"):
        script = "".join(f"{statement};\n" for statement in creation_statements(dialect))
        (ASSETS / f"{head_revision()}.{dialect}.sql").write_text(script)
    sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    main()
