"""dbt projects become external feature groups; a second import writes only what changed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from featurestore.cli.main import app
from featurestore.dbt.manifest import read_project
from featurestore.dbt.selection import select_nodes
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    InvalidDbtProject,
    JobFailed,
)
from featurestore.store import FeatureStore
from tests.dbt.project import MANIFEST

ORDERS, SPENDING = "model.shop.orders", "model.shop.customer_spending"
Edit = Callable[[dict[str, Any]], None]


def of_node(node: str, **values: Any) -> Edit:
    """Return an edit that sets values of a node."""

    def edit(manifest: dict[str, Any]) -> None:
        section = "sources" if node.startswith("source.") else "nodes"
        manifest[section][node].update(values)

    return edit


def of_config(node: str, **values: Any) -> Edit:
    return lambda manifest: manifest["nodes"][node]["config"].update(values)


def without(prefix: str) -> Edit:
    """Return an edit that removes nodes."""

    def edit(manifest: dict[str, Any]) -> None:
        for unique_id in [name for name in manifest["nodes"] if name.startswith(prefix)]:
            del manifest["nodes"][unique_id]

    return edit


def day(number: int, hour: int = 12) -> datetime:
    return datetime(2026, 1, number, hour, tzinfo=UTC)


def test_add_dbt_project_defines_groups(shop: FeatureStore) -> None:
    result = shop.add_dbt_project(MANIFEST, source="warehouse", select="tag:features source:raw")
    assert result.created == (
        "countries_v1",
        "countries",
        "customer_spending",
        "orders",
        "plans",
        "payments",
    )
    orders = shop.featuregroup("orders")
    assert (orders.primary_key, orders.event_time) == (("order_id",), "ordered_at")
    assert orders.description == "One row per order."
    assert orders.descriptions == {"order_id": "The number of the order.", "amount": "In euros."}
    assert orders.tags == {
        "dbt_node": ORDERS,
        "dbt_path": "models/marts/orders.sql",
        "dbt_project": "shop",
        "dbt_tags": "features",
        "owner": "finance@example.com",
    }
    expectations = {
        (expectation["type"], expectation["kwargs"]["column"]): expectation
        for expectation in orders.spec.expectations
    }
    assert set(expectations) == {
        ("expect_column_values_to_be_between", "amount"),
        ("expect_column_values_to_be_in_set", "status"),
        ("expect_column_values_to_be_unique", "amount"),
        ("expect_column_values_to_be_unique", "order_id"),
        ("expect_column_values_to_not_be_null", "amount"),
        ("expect_column_values_to_not_be_null", "order_id"),
    }
    severity = expectations["expect_column_values_to_not_be_null", "amount"]["severity"]
    assert severity == "warning"
    assert shop.validate_featuregroup("orders").success
    notes = " ".join(result.notes)
    limited = expectations["expect_column_values_to_be_unique", "amount"]["kwargs"]
    assert limited["row_condition"] == "\"status\" = 'returned'"
    assert "compares with 'seed.shop.raw_customers', which is not imported" in notes
    assert "'assert_payments_are_positive' was not imported: it is SQL" in notes
    spending = shop.featuregroup("customer_spending")
    # The unique combination of columns contains the event time, which is not part of the key.
    assert (spending.primary_key, spending.event_time) == (("customer_id",), "ordered_at")
    assert spending.spec.ttl == timedelta(days=30)
    assert spending.tags["owner"] == "@growth"
    assert spending.tags["team"] == "growth"
    frame = shop.get_features(
        ["customer_spending.spent"],
        labels=[{"customer_id": 1, "at": day(2)}, {"customer_id": 1, "at": day(4)}],
        label_time="at",
    )
    assert frame.to_pandas()["spent"].tolist() == [12.5, 52.5]


def test_relationships_become_comparisons_of_groups(
    shop: FeatureStore, edited: Callable[..., Path], tmp_path: Path
) -> None:
    select = "orders raw_customers"
    result = shop.add_dbt_project(MANIFEST, source="warehouse", select=select)
    assert "relationships" not in " ".join(result.notes)
    comparison = {
        "type": "expect_column_values_to_be_in_feature",
        "kwargs": {"column": "customer_id", "feature": "raw_customers.id"},
    }
    orders = shop.featuregroup("orders")
    assert comparison in orders.spec.expectations
    assert shop.validate_featuregroup("orders").success
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute("insert into orders values (5, 77, 1.0, 'paid', now()::timestamp)")
        connection.execute("insert into orders values (6, null, 1.0, 'paid', now()::timestamp)")
    (failed,) = shop.validate_featuregroup("orders").failed
    assert (failed.expectation, failed.unexpected) == (comparison, 1)
    assert failed.samples[0]["customer_id"] == 77
    # An edited test changes the group in place, with its condition and severity.
    relationships = next(
        key for key in json.loads(MANIFEST.read_text())["nodes"] if "relationships" in key
    )
    config = {"where": "status = 'returned'", "severity": "warn"}
    manifest = edited(of_config(relationships, **config))
    changed = shop.add_dbt_project(manifest, source="warehouse", select=select)
    assert [(change.featuregroup, change.version) for change in changed.changes] == [
        ("raw_customers", 1),
        ("orders", 1),
    ] or changed.changed == ("orders",)
    comparison["kwargs"] |= {  # type: ignore[operator]
        "row_condition": "\"status\" = 'returned'",
        "condition_parser": "sql",
    }
    comparison["severity"] = "warning"
    assert comparison in shop.featuregroup("orders").spec.expectations
    assert shop.validate_featuregroup("orders").success
    # The other table was imported before, and another column or table is noted.
    assert shop.add_dbt_project(manifest, source="warehouse", select="orders").is_current
    for field, tables, note in (
        ("nothing", None, "the feature group 'raw_customers' has no column 'nothing'"),
        (
            "id",
            ["model.shop.orders", "model.shop.gone"],
            "'model.shop.gone', which is not imported",
        ),
    ):

        def edit(manifest: dict[str, Any], field: str = field, tables: Any = tables) -> None:
            test = manifest["nodes"][relationships]
            test["test_metadata"]["kwargs"]["field"] = field
            test["depends_on"]["nodes"] = tables or test["depends_on"]["nodes"]

        plan = shop.plan_dbt_project(edited(edit), source="warehouse", select="orders")
        assert note in " ".join(plan.notes)


def test_snapshot_deletion_gives_nulls(shop: FeatureStore) -> None:
    shop.add_dbt_project(MANIFEST, source="warehouse", select="plans")
    plans = shop.featuregroup("plans")
    assert (plans.event_time, plans.created_time) == ("dbt_valid_from", "dbt_updated_at")
    # dbt_valid_to is set by later runs of dbt, so it would leak the future.
    assert not {"dbt_valid_to", "dbt_scd_id"} & set(plans.schema.names)
    labels = [
        {"id": key, "at": day(day_number)}
        for key, day_number in [(1, 2), (1, 4), (2, 1), (2, 3), (2, 6)]
    ]
    frame = shop.get_features(["plans.plan"], labels=labels, label_time="at")
    actual = frame.to_pandas().sort_values(["id", "at"])["plan"]
    assert [None if value != value else value for value in actual.tolist()] == [
        "basic",
        "plus",
        "plus",
        None,
        "basic",
    ]


def test_snapshot_new_record_gives_nulls(
    shop: FeatureStore, edited: Callable[..., Path], tmp_path: Path
) -> None:
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute("alter table plans add column dbt_is_deleted varchar default 'False'")
        connection.execute(
            "insert into plans select id, plan, country, updated_at, dbt_scd_id, dbt_valid_to,"
            " dbt_valid_to, null, 'True' from plans where id = 2 and dbt_valid_to is not null"
        )
    manifest = edited(of_config("snapshot.shop.plans", hard_deletes="new_record"))
    shop.add_dbt_project(manifest, source="warehouse", select="plans")
    labels = [{"id": 2, "at": day(1)}, {"id": 2, "at": day(3)}]
    frame = shop.get_features(["plans.plan"], labels=labels, label_time="at")
    assert frame.to_arrow().column("plan").to_pylist() == ["plus", None]


def test_second_import_writes_only_changes(shop: FeatureStore, edited: Callable[..., Path]) -> None:
    select = ["orders", "customer_spending", "plans"]
    shop.add_dbt_project(MANIFEST, source="warehouse", select=select)
    shop.add_featuregroup_tag("orders", "reviewed", "yes")
    shop.update_featuregroup("plans", descriptions={"plan": "by hand"})
    before = {group.name: group.delta_version for group in shop.get_featuregroups()}
    again = shop.add_dbt_project(MANIFEST, source="warehouse", select=select)
    assert again.is_current
    assert before == {group.name: group.delta_version for group in shop.get_featuregroups()}

    manifest = edited(
        of_node(ORDERS, description="Orders of the shop."),
        without("test.shop.accepted_values"),
        of_node(SPENDING, tags=["features", "daily"]),
        without("snapshot.shop.plans"),
    )
    plan = shop.plan_dbt_project(manifest, source="warehouse", select=select[:2])
    assert shop.featuregroup("orders").description == "One row per order."
    result = shop.add_dbt_project(manifest, source="warehouse", select=select[:2])
    assert result == plan
    assert (result.changed, result.removed) == (("customer_spending", "orders"), ("plans",))
    spending, orders = result.changes[:2]
    assert spending.differences == ("tag dbt_tags: features -> daily, features",)
    assert spending.version == 1
    assert orders.version == 1  # no rows change
    assert orders.differences == (
        "expectation expect_column_values_to_be_in_set(column='status', "
        "value_set=['paid', 'returned']) was removed",
        "description",
    )
    assert shop.featuregroup("orders").version == 1
    assert shop.featuregroup("orders").tags["reviewed"] == "yes"
    assert shop.featuregroup("plans").descriptions == {"plan": "by hand"}
    assert shop.add_dbt_project(manifest, source="warehouse", select=select[:2]).is_current


def test_freshness_becomes_monitor(shop: FeatureStore, edited: Callable[..., Path]) -> None:
    shop.add_dbt_project(MANIFEST, source="warehouse", select="source:raw customer_spending")
    assert [monitor.name for monitor in shop.get_monitors()] == [
        "customer_spending_freshness",
        "payments_freshness",
    ]
    report = shop.check_monitor("payments_freshness")
    assert report.state == "alarm"
    assert [finding.kind for finding in report.alarms] == ["freshness"]
    manifest = edited(
        of_node("source.shop.raw.payments", freshness=None),
        lambda manifest: manifest["nodes"][SPENDING]["config"]["meta"]["featurestore"].update(
            freshness="10000d"
        ),
    )
    shop.add_dbt_project(manifest, source="warehouse", select="source:raw customer_spending")
    assert shop.check_monitor("customer_spending_freshness").state != "alarm"
    paused = [monitor.job.paused for monitor in shop.get_monitors()]
    assert paused == [False, True]


def test_monitor_runs_after_project_has_another_name(
    shop: FeatureStore, edited: Callable[..., Path]
) -> None:
    shop.add_dbt_project(MANIFEST, source="warehouse", select="customer_spending")
    monitor = "customer_spending_freshness"
    state = shop.check_monitor(monitor).state
    renamed = edited(lambda manifest: manifest["metadata"].update(project_name="boutique"))
    shop.add_dbt_project(renamed, source="warehouse", select="customer_spending")
    assert shop.check_monitor(monitor).state == state
    assert shop.add_dbt_project(renamed, source="warehouse", select="customer_spending").is_current


def test_monitor_of_external_group_needs_freshness_only(shop: FeatureStore, tmp_path: Path) -> None:
    shop.add_dbt_project(MANIFEST, source="warehouse", select="orders")
    (tmp_path / "monitors.py").write_text(
        "import featurestore\n"
        "volume = featurestore.monitor_job('volume', featuregroup='orders', schedule='0 * * * *')\n"
    )
    shop.register_jobs(tmp_path / "monitors.py")
    with pytest.raises(JobFailed, match="nothing but the age of the event time"):
        shop.run_job("volume", window="2026-01-01T00:00Z")


META = "meta.featurestore"
REFUSALS: dict[str, tuple[Edit, str, str]] = {
    "version": (
        lambda manifest: manifest["metadata"].update(
            dbt_schema_version="https://schemas.getdbt.com/dbt/manifest/v11.json"
        ),
        ORDERS,
        r"manifest/v11.json' of dbt 1.12.0; supported is the manifest version v12",
    ),
    "ephemeral": (lambda manifest: None, "stg_orders", "'shop.stg_orders' is ephemeral"),
    "external": (
        of_config(ORDERS, materialized="external"),
        "orders",
        r"'shop\.orders' is external: its rows are in a file outside of the database",
    ),
    "seed": (lambda manifest: None, "raw_orders", "dbt seed 'shop.raw_orders' has no key"),
    "key column": (
        of_node(ORDERS, constraints=[{"type": "primary_key", "columns": ["order_nr"]}]),
        "orders",
        "'shop.orders': the primary_key constraint has 'order_nr'.*did you mean order_id",
    ),
    "event time": (
        of_config(ORDERS, event_time="ordered"),
        "orders",
        "'shop.orders': event_time 'ordered' is not a column.*did you mean ordered_at",
    ),
    "event time type": (
        of_config(ORDERS, event_time="status"),
        "orders",
        "'shop.orders': Time column 'status' has type string",
    ),
    "setting": (
        of_config(ORDERS, meta={"featurestore": {"primary_keys": ["order_id"]}}),
        "orders",
        "'shop.orders': unknown key 'primary_keys' in meta.featurestore",
    ),
    "setting type": (
        of_config(ORDERS, meta={"featurestore": {"ttl": 3}}),
        "orders",
        "model.shop.orders: meta.featurestore.ttl is 3, not a string",
    ),
    "settings type": (
        of_config(ORDERS, meta={"featurestore": ["x"]}),
        "orders",
        r"model.shop.orders: meta.featurestore is \['x'\], not an object",
    ),
    "name": (
        of_config(ORDERS, meta={"featurestore": {"name": "Orders"}}),
        "orders",
        "'shop.orders': .*'Orders'",
    ),
    "same name": (
        of_config(
            SPENDING, meta={"featurestore": {"name": "orders", "primary_key": "customer_id"}}
        ),
        "orders customer_spending",
        "'shop.customer_spending' and dbt model 'shop.orders' both define",
    ),
    "table": (
        of_node(ORDERS, alias="orders_2"),
        "orders",
        "'shop.orders': .*unknown table 'orders_2'",
    ),
    "table name": (
        of_node(ORDERS, alias='x" union select'),
        "orders",
        "'shop.orders': .* is not a supported name of a table",
    ),
    "databases": (
        of_node(ORDERS, database="other"),
        "orders customer_spending",
        "'shop.customer_spending' is in the database 'shop' and dbt model 'shop.orders' in 'other'",
    ),
    "node type": (
        of_node(ORDERS, columns=[1]),
        "plans",
        r"model.shop.orders.columns is \[1\], not an object",
    ),
}


def test_dbt_refusal_names_node(
    shop: FeatureStore, edited: Callable[..., Path], subtests: pytest.Subtests
) -> None:
    for name, (edit, select, message) in REFUSALS.items():
        with subtests.test(name):
            with pytest.raises(InvalidDbtProject, match=message):
                shop.add_dbt_project(edited(edit), source="warehouse", select=select)
            assert shop.get_featuregroups() == []


def test_group_of_another_origin_is_not_replaced(shop: FeatureStore) -> None:
    shop.create_featuregroup([{"order_id": 1}], "orders", primary_key="order_id")
    with pytest.raises(InvalidDbtProject, match=r"'shop.orders': .* exists and is not from dbt"):
        shop.add_dbt_project(MANIFEST, source="warehouse", select="orders plans")
    assert [group.name for group in shop.get_featuregroups()] == ["orders"]


SELECTIONS = {
    "orders": "orders",
    "shop.marts.orders": "orders",
    "marts": "countries countries_v1 customer_spending orders",
    "tag:features": "countries countries_v1 customer_spending orders plans",
    "tag:features,path:snapshots": "plans",
    "path:models/marts": "countries countries_v1 customer_spending orders",
    "models/marts/orders.sql": "orders",
    "orders.sql": "orders",
    "resource_type:snapshot": "plans",
    "source:raw": "payments",
    "source:raw.payments+": "payments",
    "1+customer_spending": "customer_spending orders",
    "+orders": "orders raw_orders stg_orders",
    "stg_orders+1": "orders stg_orders",
    "raw_orders+ plans": "customer_spending orders plans raw_orders stg_orders",
    "cust*": "customer_spending",
    "group:finance": "orders",
    "package:shop,resource_type:seed": "raw_customers raw_orders",
    "countries.v1": "countries_v1",
}


def test_select_chooses_nodes_of_dbt(subtests: pytest.Subtests) -> None:
    from featurestore.dbt.definitions import group_name

    project = read_project(MANIFEST)
    for select, names in SELECTIONS.items():
        with subtests.test(select):
            assert " ".join(sorted(map(group_name, select_nodes(project, select)))) == names


def test_select_refuses_by_name(subtests: pytest.Subtests) -> None:
    project = read_project(MANIFEST)
    for select, message in (
        ("tag:feature", "did you mean tag:features"),
        ("orderss", "did you mean orders"),
        ("closed", "'model.shop.closed' is disabled"),
        ("@orders", "operator @ of dbt is not supported"),
        ("state:modified", "method 'state' of dbt is not supported"),
        ("config.materialized:table", "method 'config.materialized' of dbt is not supported"),
        ("", "is not a selector"),
        ("tag:", "is not a selector"),
        ([3], "is not a selector"),
    ):
        with subtests.test(select=select), pytest.raises(InvalidArgument, match=message):
            select_nodes(project, select)  # type: ignore[arg-type]


def values_of(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield container and key of every value in a JSON document."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(items):
        yield data, key
        if isinstance(value, dict | list):
            yield from values_of(value)


def test_manifest_with_any_value_is_refused_or_read(tmp_path: Path) -> None:
    manifest = json.loads(MANIFEST.read_text())
    path = tmp_path / "manifest.json"
    random.seed(7)
    refused = 0
    for container, key in random.sample(list(values_of(manifest)), 60):
        original = container[key]
        for value in (None, 1, "x", [], {"x": [1]}, ["\ud800"], -1e308):
            container[key] = value
            path.write_text(json.dumps(manifest))
            try:
                select_nodes(read_project(path), None)
            except FeatureStoreError:
                refused += 1
        container[key] = original
    assert refused > 30
    for text in (
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"metadata": 1}',
        "\ud800".encode("utf-8", "replace").decode(),
    ):
        path.write_text(text)
        with pytest.raises(InvalidDbtProject, match=r"manifest\.json"):
            read_project(path)


def test_exposures_reference_dbt_nodes(shop: FeatureStore, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    shop.add_dbt_project(MANIFEST, source="warehouse", select="tag:features source:raw")
    frame = shop.get_features(
        ["customer_spending.spent", "plans.plan", "countries_v1.customers"],
        labels=[
            {"customer_id": 1, "id": 1, "country": "NL", "at": day(4)},
            {"customer_id": 2, "id": 2, "country": "DE", "at": day(4)},
        ],
        label_time="at",
    )
    shop.create_training_dataset(
        frame,
        "churn",
        label="spent",
        data_format="parquet",
        progress=False,
        tags={"owner": "{{ env_var('SECRET') }}{%% x"},
    )
    shop.create_feature_view("payers", features=["payments.amount"])
    project = tmp_path / "project"
    (project / "models").mkdir(parents=True)
    file = project / "models" / "exposures.yml"
    with pytest.raises(InvalidDbtProject, match="not in a dbt project"):
        shop.write_dbt_exposures(file)
    (project / "dbt_project.yml").write_text("name: shop\n")
    names = shop.write_dbt_exposures(file, owner="ml@example.com")
    assert names == ["featurestore_feature_view_payers", "featurestore_training_dataset_churn"]
    view, dataset = yaml.safe_load(file.read_text())["exposures"]
    assert view["owner"] == {"email": "ml@example.com"}
    assert view["depends_on"] == ["source('raw', 'payments')"]
    assert dataset["depends_on"] == [
        "ref('countries', v='1')",
        "ref('customer_spending')",
        "ref('plans')",
    ]
    # dbt renders this file with Jinja.
    assert "{{" not in file.read_text()
    assert "{%" not in file.read_text()
    mtime = file.stat().st_mtime_ns
    shop.write_dbt_exposures(file, owner="ml@example.com")
    assert file.stat().st_mtime_ns == mtime
    (project / "models" / "own.yml").write_text("version: 2\n")
    with pytest.raises(InvalidDbtProject, match="not written by featurestore"):
        shop.write_dbt_exposures(project / "models" / "own.yml")
    with pytest.raises(InvalidArgument, match="not the name of a YAML file"):
        shop.write_dbt_exposures(project / "models" / "own.sql")


def test_cli_dbt_import_shows_changes(shop: FeatureStore, tmp_path: Path) -> None:
    words = ["--location", shop.location, "dbt", "import", str(MANIFEST), "--source", "warehouse"]
    words += ["--select", "orders", "--select", "plans"]
    run = CliRunner().invoke
    planned = run(app, [*words, "--check"])
    assert planned.exit_code == 1, planned.output
    assert "created   orders@v1 (model.shop.orders)" in planned.output
    assert shop.get_featuregroups() == []
    result = run(app, ["--output", "json", *words])
    assert [change["action"] for change in json.loads(result.stdout)["changes"]] == ["created"] * 2
    assert run(app, [*words, "--check"]).exit_code == 0
    (tmp_path / "dbt_project.yml").write_text("name: shop\n")
    exposed = run(app, [*words[:3], "exposures", str(tmp_path / "exposures.yml")])
    assert "0 exposures" in exposed.output
