"""The project of ``project`` built by a real dbt, on DuckDB and on Postgres.

.ci/run installs dbt into ``.venv-dbt`` and runs this file after the PyTorch lane. The tests run with
each version of dbt in ``real.INSTALLED``.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import pytest

import featurestore
from featurestore.dbt.manifest import DbtNode, read_project
from featurestore.dbt.selection import select_nodes
from featurestore.model.validation import IN_FEATURE
from tests.dbt.project import (
    DBT,
    INSTALLED,
    MANIFEST,
    PROJECT,
    copy_project,
    run_dbt,
    strip,
    version_of,
)
from tests.dbt.test_dbt_projects import SELECTIONS
from tests.dbt.test_dbt_snapshots import OPEN, START, read_plans, valid_plan

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not DBT.exists(), reason="dbt is not installed in .venv-dbt"),
]


def comparable(node: DbtNode) -> DbtNode:
    """Return a node with what all versions of dbt state equally.

    The names of some tests, and the file of a snapshot in dbt 1.8, differ.
    """
    tests = [replace(test, name="", tables=tuple(sorted(test.tables))) for test in node.tests]
    ordered = tuple(sorted(tests, key=repr))
    fqn = () if node.resource_type == "snapshot" else node.fqn
    return replace(node, tests=ordered, fqn=fqn, path=str(Path(node.path).with_suffix("")))


@pytest.fixture(scope="module", params=INSTALLED, ids=lambda dbt: dbt.parents[1].name)
def dbt(request: pytest.FixtureRequest) -> Path:
    """The program of an installed version of dbt."""
    return Path(request.param)


@pytest.fixture(scope="module")
def project(dbt: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, built on DuckDB."""
    folder = copy_project(tmp_path_factory.mktemp("dbt") / "shop", dbt)
    run_dbt(folder, "build", dbt=dbt)
    return folder


def test_every_version_gives_same_definitions(project: Path) -> None:
    built = read_project(project / "target/manifest.json").nodes
    stored_nodes = read_project(MANIFEST).nodes
    assert sorted(built) == sorted(stored_nodes)
    for unique_id, node in stored_nodes.items():
        assert comparable(built[unique_id]) == comparable(node)


def test_stored_manifest_is_that_of_dbt(project: Path, dbt: Path) -> None:
    if dbt != DBT:
        pytest.skip("the first version writes the stored manifest")
    built = strip(json.loads((project / "target" / "manifest.json").read_text()))
    stored_manifest = json.loads(MANIFEST.read_text())
    assert set(built["nodes"]) == set(stored_manifest["nodes"])
    name = "model.shop.orders"
    assert built["nodes"][name]["columns"] == stored_manifest["nodes"][name]["columns"]
    assert read_project(MANIFEST).nodes == read_project(project / "target/manifest.json").nodes


def test_selections_are_those_of_dbt(project: Path, dbt: Path) -> None:
    nodes = read_project(project / "target" / "manifest.json")
    resource_types = ("model", "snapshot", "seed", "source")
    options = [
        word for resource_type in resource_types for word in ("--resource-type", resource_type)
    ]
    # One process of dbt takes seconds, so the selectors that differ most are compared.
    selections = [
        "marts",
        "tag:features,path:snapshots",
        "raw_orders+ plans",
        "countries.v1",
        "+orders",
    ]
    assert set(selections) <= set(SELECTIONS)
    for select in selections:
        words = ["--select", *select.split(), *options, "--output", "json"]
        output = run_dbt(project, "--quiet", "ls", *words, "--output-keys", "unique_id", dbt=dbt)
        lines = [line for line in output.splitlines() if line.startswith("{")]
        expected = sorted(json.loads(line)["unique_id"] for line in lines)
        assert [node.unique_id for node in select_nodes(nodes, select)] == expected, select


def test_snapshot_of_dbt_gives_validity_and_exposures_are_parsed(
    project: Path, dbt: Path, tmp_path: Path
) -> None:
    with duckdb.connect(str(project / "shop.duckdb")) as connection:
        connection.execute(
            "update raw_customers set plan = 'plus', updated_at = '2026-02-01' where id = 1"
        )
        connection.execute("delete from raw_customers where id = 2")
    run_dbt(project, "snapshot", dbt=dbt)
    with featurestore.connect(tmp_path / "store") as store:
        store.add_source("warehouse", f"duckdb:///{project / 'shop.duckdb'}")
        manifest = project / "target" / "manifest.json"
        select = "tag:features source:raw raw_customers"
        created = store.add_dbt_project(manifest, source="warehouse", select=select)
        assert len(created.created) == 7
        assert store.add_dbt_project(manifest, source="warehouse", select=select).is_current
        now = datetime.now(UTC)
        times = [(1, datetime(2026, 1, 5, tzinfo=UTC)), (1, datetime(2026, 2, 2, tzinfo=UTC))]
        times += [(2, datetime(2026, 1, 5, tzinfo=UTC)), (2, now)]
        labels = [{"id": key, "at": timestamp} for key, timestamp in times]
        frame = store.get_features(["plans.plan"], labels=labels, label_time="at")
        rows = sorted(frame.to_arrow().to_pylist(), key=lambda row: (row["id"], row["at"]))
        assert [row["plan"] for row in rows] == ["basic", "plus", "plus", None]
        # Customer 2 was deleted, whose order the test relationships of dbt finds.
        (failed,) = store.validate_featuregroup("orders").failed
        assert (failed.expectation["type"], failed.unexpected) == (IN_FEATURE, 1)
        assert failed.samples[0]["customer_id"] == 2
        store.create_training_dataset(frame, "churn", data_format="parquet", progress=False)
        store.write_dbt_exposures(project / "models" / "featurestore_exposures.yml")
    run_dbt(project, "parse", dbt=dbt)
    parsed = json.loads(manifest.read_text())["exposures"]
    exposure = parsed["exposure.shop.featurestore_training_dataset_churn"]
    assert exposure["depends_on"]["nodes"] == ["snapshot.shop.plans"]


# The keys are what happens to them after an update and a deletion; the last update is later.
HISTORY = (
    """create table customers as select id, 'a' as plan, timestamp '2026-01-01' as updated_at
       from unnest(['same', 'newer', 'other plan', 'older', 'updated', 'twice', 'gone']) as keys(id)""",
    "update customers set plan = 'b', updated_at = '2026-02-01'",
    "create table deleted as select * from customers; delete from customers",
    """insert into customers select * from deleted where id in ('same', 'updated', 'twice');
       insert into customers values ('newer', 'c', now()::timestamp),
           ('other plan', 'c', '2026-02-01'), ('older', 'c', '2026-01-15')""",
    """update customers set plan = 'd', updated_at = '2026-03-01' where id = 'updated';
       delete from customers where id = 'twice'""",
    "insert into customers select * from deleted where id = 'twice'",
)
STRATEGIES: dict[str, dict[str, Any]] = {
    "timestamp": {"strategy": "timestamp", "updated_at": "updated_at"},
    "check": {"strategy": "check", "check_cols": ["plan"]},
    "check_times": {"strategy": "check", "check_cols": ["plan"], "updated_at": "updated_at"},
}


def test_reads_of_each_snapshot_equal_its_validity(dbt: Path, tmp_path: Path) -> None:
    if version_of(dbt) < (1, 9):
        pytest.skip("dbt 1.8 has neither hard_deletes nor dbt_valid_to_current")
    snapshots: list[dict[str, Any]] = [
        {
            "name": f"{strategy}_{hard_deletes}_{'marker' if current else 'null'}",
            "relation": "source('main', 'customers')",
            "config": {
                **config,
                "unique_key": "id",
                "hard_deletes": hard_deletes,
                "dbt_valid_to_current": current,
            },
        }
        for strategy, config in STRATEGIES.items()
        for hard_deletes in ("ignore", "invalidate", "new_record")
        for current in (None, "timestamp '9999-12-31'")
    ]
    write_project(tmp_path, snapshots)
    for statements in HISTORY:
        with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
            connection.execute(statements)
        run_dbt(tmp_path, "snapshot", dbt=dbt)
    with featurestore.connect(tmp_path / "store") as store:
        store.add_source("warehouse", f"duckdb:///{tmp_path / 'shop.duckdb'}")
        manifest = tmp_path / "target" / "manifest.json"
        result = store.add_dbt_project(manifest, source="warehouse")
        assert sorted(result.created) == sorted(snapshot["name"] for snapshot in snapshots)
        for name in result.created:
            with duckdb.connect(str(tmp_path / "shop.duckdb"), read_only=True) as connection:
                rows = connection.sql(f"select * from {name}").to_arrow_table().to_pylist()
            times = {row["dbt_valid_from"] for row in rows}
            times |= {row["dbt_valid_to"] or START for row in rows} - {OPEN}
            steps = (timedelta(microseconds=-1), timedelta(0), timedelta(microseconds=1))
            keys = sorted({row["id"] for row in rows})
            cases = [
                (key, start + step) for key in keys for start in sorted(times) for step in steps
            ]
            expected = [valid_plan(rows, key, time) for key, time in cases]
            assert read_plans(store, name, cases) == expected, name


def write_project(folder: Path, snapshots: list[dict[str, Any]]) -> None:
    """Write a dbt project with snapshots of the table ``customers``."""
    source = {"name": "main", "tables": [{"name": "customers"}]}
    files = {
        "dbt_project.yml": {"name": "shop", "version": "1.0", "profile": "shop"},
        "models/sources.yml": {"sources": [source]},
        "snapshots/snapshots.yml": {"snapshots": snapshots},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    shutil.copy(PROJECT / "profiles.yml", folder)


@pytest.mark.postgres
def test_project_on_postgres(dbt: Path, tmp_path: Path, postgres_url: str) -> None:
    folder = copy_project(tmp_path / "shop", dbt)
    address = urlsplit(postgres_url)
    variables = {
        "DBT_HOST": str(address.hostname),
        "DBT_PORT": str(address.port),
        "DBT_USER": str(address.username),
        "DBT_NAME": address.path.strip("/"),
    }
    arguments = ("build", "--exclude", "resource_type:test")
    run_dbt(folder, *arguments, target="postgres", dbt=dbt, **variables)
    with featurestore.connect(tmp_path / "store") as store:
        store.add_source("warehouse", postgres_url)
        manifest = folder / "target" / "manifest.json"
        select = "tag:features raw_customers"
        result = store.add_dbt_project(manifest, source="warehouse", select=select)
        assert len(result.created) == 6
        labels = [
            {"id": 2, "customer_id": 1, "at": datetime(2026, 1, 2, tzinfo=UTC)},
            {"id": 1, "customer_id": 1, "at": datetime(2026, 1, 4, tzinfo=UTC)},
        ]
        frame = store.get_features(
            ["plans.plan", "customer_spending.spent"], labels=labels, label_time="at"
        )
        rows = sorted(frame.to_arrow().to_pylist(), key=lambda row: row["id"])
        assert [(row["plan"], row["spent"]) for row in rows] == [("basic", 52.5), ("plus", 12.5)]
        assert store.validate_featuregroup("orders").success
