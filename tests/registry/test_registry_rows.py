"""Damaged registry rows raise errors of the library."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

import featurestore
from featurestore.errors import FeatureStoreError, RegistryError
from featurestore.model.times import Window
from featurestore.recovery.rebuild import rebuild
from featurestore.registry import runs
from featurestore.store import FeatureStore
from tests.registry.test_registry_rebuild import DAY

pytestmark = pytest.mark.slow

TABLE = pa.table({"x": [1, 2], "y": [0, 1]})
BROKEN = ("{", "9" * 5000)
COLUMNS = {
    "featuregroups": ("name", "version", "table_id", "delta_version", "spec", "created"),
    "features": ("name", "type", "role"),
    "training_datasets": ("name", "version", "manifest_hash", "format", "rows", "created"),
    "training_dataset_pins": ("featuregroup", "delta_version"),
    "validation_reports": ("report",),
    "intents": ("run_id", "kind", "name", "version", "owner", "created"),
    "owners": ("name", "seen"),
}


@pytest.fixture(scope="module")
def damaged_store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    store = featurestore.connect(tmp_path_factory.mktemp("rows") / "store")
    store.create_featuregroup(TABLE, "g", primary_key="x")
    store.create_training_dataset(store.get_featuregroup("g"), "d", label="y")
    return store


@pytest.mark.filterwarnings("ignore:The training dataset")
# The dataset whose name in the registry is damaged is missing in the registry.
@pytest.mark.filterwarnings("ignore:The registry lacks")
@pytest.mark.parametrize("table", COLUMNS)
def test_damaged_registry_rows_raise_store_errors(
    damaged_store: FeatureStore, table: str, subtests: pytest.Subtests
) -> None:
    calls: list[Callable[[FeatureStore], object]] = [
        lambda store: store.get_featuregroups(),
        lambda store: store.get_featuregroup("g").count(),
        lambda store: store.search("g"),
        lambda store: store.get_validation_history("g"),
        lambda store: store.get_training_datasets(),
        lambda store: store.get_training_dataset("d").read("train").count(),
        lambda store: store.vacuum_featuregroup("g", retain="0s"),
    ]
    for column in COLUMNS[table]:
        with subtests.test(column):
            for text in BROKEN:
                with damaged_store.session.registry.transaction() as connection:
                    for emptied in ("intents", "owners"):
                        connection.execute(sa.text(f"delete from {emptied}"))
                    fill = "insert into intents values ('r', 'write', 'g', 1, 'nobody', 0)"
                    connection.execute(sa.text(fill))
                    connection.execute(sa.text("insert into owners values ('nobody', 0)"))
                    damage = sa.text(f"update {table} set {column} = :text")
                    connection.execute(damage, {"text": text})
                with featurestore.connect(damaged_store.location) as again:
                    for call in calls:
                        with contextlib.suppress(FeatureStoreError):
                            call(again)
                rebuild(damaged_store.location)
            assert damaged_store.get_featuregroup("g").count() == 2
            assert damaged_store.get_training_dataset("d").version == 1


def test_damaged_group_definition_error_names_group(flights_copy: FeatureStore) -> None:
    with flights_copy.session.registry.transaction() as connection:
        connection.execute(sa.text("update featuregroups set spec = '{' where name = 'planes'"))
    with pytest.raises(RegistryError, match="feature group 'planes' version 1"):
        flights_copy.get_featuregroup("planes")


def test_run_log_path_stays_inside_store(empty_store: FeatureStore) -> None:
    registry, location = empty_store.session.registry, empty_store.location
    log = os.path.join(location, "_logs", "j", "r.log")
    run = runs.Run("r", "j", 1, Window(DAY, DAY), 1, runs.RUNNING, "nobody", log=log)
    with registry.transaction() as connection:
        runs.begin(connection, run)
        log_path = connection.execute(sa.text("select log from runs")).scalar_one()
        assert log_path == str(Path("_logs", "j", "r.log"))
        assert runs.get(connection, "r").log == log
        connection.execute(sa.text("update runs set log = '/etc/passwd'"))
        assert runs.get(connection, "r").log is None
