"""The project of ``project`` built by a real dbt, on DuckDB and on Postgres.

.ci/run installs dbt into ``.venv-dbt`` and runs this file after the PyTorch lane. The tests run with
each version of dbt in ``real.INSTALLED``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import duckdb
import pytest

import featurestore
from featurestore.dbt.manifest import DbtNode, read_project
from featurestore.dbt.selection import select_nodes
from featurestore.model.validation import IN_FEATURE
from tests.dbt.project import DBT, INSTALLED, MANIFEST, copy_project, run_dbt, strip
from tests.dbt.test_dbt_projects import SELECTIONS

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
    fqn = () if node.kind == "snapshot" else node.fqn
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
