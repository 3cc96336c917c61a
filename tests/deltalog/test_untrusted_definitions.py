"""Definitions in table properties are untrusted: they are parsed or refused by name."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from featurestore.errors import TableDamaged
from tests.commit_files import read_actions, write_actions

if TYPE_CHECKING:
    from featurestore.store import FeatureStore


UNREADABLE = ['{"name": "g', "[]", "null", "1", "", "[" * 100_000, '{"tags": [1]}']


def test_unreadable_definition_raises_table_damaged(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    empty_store.create_featuregroup(pa.table({"k": [1]}), "h")
    for number, (name, text) in enumerate(
        product(("featurestore.spec", "featurestore.meta"), UNREADABLE)
    ):
        with subtests.test(name, text=text[:20]):
            group = empty_store.create_featuregroup(pa.table({"k": [1]}), f"g{number}")
            log = Path(group.path, "_delta_log", f"{0:020d}.json")
            actions = read_actions(log)
            for action in actions:
                if "metaData" in action:
                    action["metaData"]["configuration"][name] = text
            write_actions(log, actions)
            with pytest.raises(TableDamaged, match=name):
                empty_store.add_featuregroup_tag(group.name, "team", "rust")
            assert empty_store.get_featuregroup("h").count() == 1
