"""Removal of the groups of deleted dbt nodes: what breaks, what blocks it, and the removal itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featurestore.errors import DefinitionsRefused
from featurestore.store import FeatureStore
from tests.dbt.project import MANIFEST
from tests.dbt.test_dbt_projects import SPENDING, without

SELECT = "orders customer_spending"


def names(store: FeatureStore) -> list[str]:
    return [group.name for group in store.get_featuregroups()]


def test_remove_deletes_groups_and_monitors_of_deleted_nodes(
    shop: FeatureStore, edited: Callable[..., Path]
) -> None:
    shop.add_dbt_project(MANIFEST, source="warehouse", select=SELECT)
    manifest = edited(without(SPENDING))
    plan = shop.plan_dbt_project(manifest, source="warehouse", select="orders")
    assert plan.removed == ("customer_spending",)
    assert (plan.changes[-1].breaks, plan.changes[-1].blockers) == ((), ())
    assert "delete_featuregroup('customer_spending') deletes it" in str(plan)
    shop.add_dbt_project(manifest, source="warehouse", select="orders")
    assert names(shop) == ["customer_spending", "orders"]
    result = shop.add_dbt_project(manifest, source="warehouse", select="orders", remove=True)
    assert result.changes[-1].differences == ("the feature group is deleted",)
    assert names(shop) == ["orders"]
    assert shop.get_monitors() == []
    again = shop.add_dbt_project(manifest, source="warehouse", select="orders", remove=True)
    assert (again.is_current, again.removed) == (True, ())


def test_removal_is_refused_while_views_read_the_group(
    shop: FeatureStore, edited: Callable[..., Path]
) -> None:
    shop.add_dbt_project(MANIFEST, source="warehouse", select=SELECT)
    shop.create_feature_view("payers", features=["customer_spending.spent"])
    shop.create_featuregroup([{"customer_id": 1}], "customers")
    comparison = {"column": "customer_id", "feature": "customer_spending.customer_id"}
    expectation = {"type": "expect_column_values_to_be_in_feature", "kwargs": comparison}
    shop.update_featuregroup("customers", expectations=[expectation])
    manifest = edited(without(SPENDING))
    plan = shop.plan_dbt_project(manifest, source="warehouse", select="orders")
    change = plan.changes[-1]
    assert change.blockers == ("feature view 'payers' version 1",)
    assert change.breaks == (
        "the expectations of feature group 'customers' version 1, which compare with it",
    )
    assert "not before feature view 'payers' version 1 is removed" in str(plan)
    assert plan.to_json()["changes"][-1]["blockers"] == ["feature view 'payers' version 1"]
    with pytest.raises(DefinitionsRefused, match="'payers' version 1 must be removed before"):
        shop.add_dbt_project(manifest, source="warehouse", select="orders", remove=True)
    assert names(shop) == ["customer_spending", "customers", "orders"]


def test_remove_option_of_command_line(
    shop: FeatureStore, edited: Callable[..., Path], command_line: Callable[..., Any]
) -> None:
    shop.add_dbt_project(MANIFEST, source="warehouse", select=SELECT)
    manifest = str(edited(without(SPENDING)))
    arguments = ("--location", shop.location, "dbt", "import", manifest, "--source", "warehouse")
    arguments = (*arguments, "--select", "orders")
    command_line(*arguments, "--check")
    command_line(*arguments, "--check", "--remove", code=1)
    command_line(*arguments, "--remove")
    assert names(shop) == ["orders"]
