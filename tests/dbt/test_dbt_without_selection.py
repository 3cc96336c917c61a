"""An import without ``select=`` takes the tables with a key, and lists the others."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from featurestore.cli.main import app
from featurestore.errors import InvalidDbtProject
from featurestore.store import FeatureStore
from tests.dbt.test_dbt_projects import ORDERS, Edit, of_config, of_node, without

UNIQUE = "test.shop.unique_orders_order_id.fed79b3a6e"
NOT_NULL = "test.shop.not_null_orders_order_id.cf6c17daed"
UNIQUE_AMOUNT = "test.shop.unique_orders_amount.f00a9bce50"
NOT_NULL_AMOUNT = "test.shop.not_null_orders_amount.106140f9fd"
NO_KEY = "has no key: no primary_key constraint, and no column with the tests unique and not_null"


def remove_key(manifest: dict[str, Any]) -> None:
    """Remove the constraint of the model ``orders``, and the test for uniqueness of its key."""
    of_node(ORDERS, constraints=[])(manifest)
    without(UNIQUE)(manifest)


def only_orders(manifest: dict[str, Any]) -> None:
    """Remove all other tables, so that a case is one read."""
    for unique_id, node in list(manifest["nodes"].items()):
        if node["resource_type"] in ("model", "snapshot") and unique_id != ORDERS:
            del manifest["nodes"][unique_id]


def about_customer(manifest: dict[str, Any]) -> None:
    """Let the tests for unique amounts test the customer of all rows instead."""
    for unique_id in (UNIQUE_AMOUNT, NOT_NULL_AMOUNT):
        of_config(unique_id, where=None)(manifest)
        test = manifest["nodes"][unique_id]
        test["column_name"] = test["test_metadata"]["kwargs"]["column_name"] = "customer_id"


def test_table_with_one_key_is_imported(
    shop: FeatureStore, edited: Callable[..., Path], subtests: pytest.Subtests
) -> None:
    settings = (None, {"ttl": "30d"}, {"primary_key": "order_id"})
    flags = (False, True)
    cases = list(itertools.product(settings, flags, flags, flags, flags))
    for setting, *shape in random.sample(cases, 5):
        has_constraint, is_unique, is_not_null, is_customer_unique = shape
        edits: list[Edit] = [only_orders]
        edits += [] if has_constraint else [of_node(ORDERS, constraints=[])]
        edits += [] if is_unique else [without(UNIQUE)]
        edits += [] if is_not_null else [without(NOT_NULL)]
        edits += [about_customer if is_customer_unique else of_config(UNIQUE_AMOUNT, where=None)]
        edits += [] if setting is None else [of_config(ORDERS, meta={"featurestore": setting})]
        tested_keys = {"order_id"} if is_unique and is_not_null else set()
        tested_keys |= {"customer_id"} if is_customer_unique else set()
        keys = {"order_id"} if has_constraint else tested_keys
        has_key = len(keys) == 1 or "primary_key" in (setting or {})
        with subtests.test(setting=setting, shape=shape):
            manifest = edited(*edits)
            if not has_key and setting is not None:
                with pytest.raises(InvalidDbtProject, match=r"'shop\.orders' has"):
                    shop.plan_dbt_project(manifest, source="warehouse")
                continue
            plan = shop.plan_dbt_project(manifest, source="warehouse")
            assert plan.created == (("orders",) if has_key else ())
            # Without another key there is the amount with both tests, but a double is no key.
            reason = "has the key 'amount' of type double"
            if keys:
                reason = "has several possible keys: 'customer_id', 'order_id'"
            assert [skip.reason for skip in plan.skipped] == ([] if has_key else [reason])


def test_import_without_selection_lists_skipped_tables(
    shop: FeatureStore, edited: Callable[..., Path]
) -> None:
    # The table of a model without a key need not exist.
    edits = (remove_key, of_node(ORDERS, alias="not_built"))
    external = of_config("snapshot.shop.plans", materialized="external")
    manifest = edited(*edits, external)
    run = CliRunner().invoke
    words = ["--location", shop.location, "--output", "json", "dbt", "import", str(manifest)]
    words += ["--source", "warehouse"]
    plan = shop.plan_dbt_project(manifest, source="warehouse")
    shown = run(app, [*words, "--check"])
    assert (shown.exit_code, json.loads(shown.stdout)) == (1, plan.to_json())
    result = run(app, words)
    assert (result.exit_code, json.loads(result.stdout)) == (0, plan.to_json())
    assert plan.created == ("countries_v1", "countries", "customer_spending")
    assert {skip.node: skip.reason.partition(":")[0] for skip in plan.skipped} == {
        "model.shop.orders": "has no key",
        "model.shop.stg_orders": "is ephemeral",
        "snapshot.shop.plans": "is external",
    }
    lines = str(plan).splitlines()
    (reason,) = [line for line in lines if line.startswith(f"skipped   {NO_KEY} (meta: {{")]
    assert lines[lines.index(reason) + 1] == "  model.shop.orders"
    assert "3 created, 0 changed, 0 unchanged, 0 removed, 3 skipped" in str(plan)
    # A selection, settings or an earlier import request a table.
    with pytest.raises(InvalidDbtProject, match=r"'shop\.orders' has no key"):
        shop.add_dbt_project(manifest, source="warehouse", select="orders")
    assert shop.add_dbt_project(edited(), source="warehouse").created == ("orders", "plans")
    with pytest.raises(InvalidDbtProject, match=r"2 of 6 nodes .* 'shop\.orders' has no key"):
        shop.add_dbt_project(edited(*edits, external), source="warehouse")
