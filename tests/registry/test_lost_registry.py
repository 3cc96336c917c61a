"""A lost or incomplete registry is found, and a rebuild restores what it reports."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

import featurestore
from featurestore import experiments
from featurestore.cli.doctor import run_checks
from featurestore.cli.state import GlobalOptions
from featurestore.errors import (
    FeatureGroupNotFound,
    FeatureViewNotFound,
    OnlineStoreNotFound,
    RegistryDamaged,
    RegistryWarning,
    RunNotFound,
    SourceNotFound,
    TrainingDatasetNotFound,
)
from featurestore.jobs.recovery import restore_runs
from featurestore.recovery.rebuild import NOT_RESTORED, RESTORATIONS, as_markdown, rebuild
from featurestore.registry import open_registry, schema, tables
from featurestore.registry.stores import index_schema, read_reference
from featurestore.server.access import changes
from featurestore.store import FeatureStore
from tests.server import canaries

pytestmark = [pytest.mark.services, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
State = dict[str, list[dict[str, Any]]]
# Rows refer to groups and datasets by numbers that a rebuild assigns again.
NUMBERED = {"featuregroup_id": "featuregroups", "training_dataset_id": "training_datasets"}


def read_state(connection: sa.Connection) -> State:
    """Return the rows of all tables of a registry."""
    return {
        table.name: [dict(row._mapping) for row in connection.execute(sa.select(table))]
        for table in tables.metadata.sorted_tables
    }


def state_of(location: Path, url: str | None = None) -> State:
    """Return the rows of all tables of a store's registry."""
    registry = open_registry(str(location), url=url)
    try:
        with registry.reading() as connection:
            return read_state(connection)
    finally:
        registry.close()


def comparable_rows(state: State, name: str, columns: set[str]) -> list[str]:
    """Return the values of some columns of a table, with names instead of numbers."""
    titles = {
        table: {row["id"]: f"{row['name']}@v{row['version']}" for row in state[table]}
        for table in NUMBERED.values()
    }
    rows = []
    for row in state[name]:
        values = {column: row[column] for column in columns}
        for column, table in NUMBERED.items():
            if column in values:
                values[column] = titles[table][values[column]]
        rows.append(json.dumps(values, sort_keys=True, default=str))
    return sorted(rows)


def example_row(table: sa.Table) -> dict[str, Any]:
    """Return a row for a table that no call has filled."""
    values: dict[str, Any] = {}
    for column in table.columns:
        if isinstance(column.type, sa.Integer | sa.Float):
            values[column.name] = 1
        elif isinstance(column.type, sa.Boolean):
            values[column.name] = False
        else:
            values[column.name] = "x"
    return values


@pytest.fixture(scope="module")
def complete_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, State]:
    """A store with objects of all kinds, and the rows of its registry, none of which is empty."""
    folder = tmp_path_factory.mktemp("complete")
    location = folder / "store"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FEATURESTORE_PROGRESS", "off")
        with featurestore.connect(location) as store:
            canaries.fill_public(store, folder)
            for name in ("created", "derived", "failed", "published", "monitored"):
                canaries.STATES[name](store, folder)
            store.add_source("shop", f"file://{folder}")
            store.add_online_store("cache", "redis://127.0.0.1:1/0")
            canaries.headers_of(store, "rea")
            canaries.headers_of(store, "rea", browser=True)
            with store.session.registry.transaction() as connection:
                for table in tables.metadata.sorted_tables:
                    is_empty = connection.execute(sa.select(table).limit(1)).first() is None
                    if is_empty:
                        assert RESTORATIONS[table.name].source is None, table.name
                        connection.execute(table.insert().values(example_row(table)))
                # An intent of a live process is not resolved.
                state = read_state(connection)
    for file in (location / "_owners").iterdir():
        file.unlink()
    return location, state


def lose_registry(location: Path) -> None:
    """Delete the SQLite files of a registry."""
    for name in ("registry.db", "registry.db-wal", "registry.db-shm"):
        (location / name).unlink(missing_ok=True)


def test_each_table_has_restoration_on_documentation_page() -> None:
    assert set(RESTORATIONS) == set(tables.metadata.tables)
    assert as_markdown() in (ROOT / "docs" / "recovery.md").read_text()
    for name, entry in RESTORATIONS.items():
        assert entry.source or entry.lost, name
        assert entry.columns <= set(tables.metadata.tables[name].columns.keys()), name


@pytest.mark.filterwarnings("ignore:the label")
def test_rebuild_of_lost_registry_restores_what_it_says(
    complete_store: tuple[Path, State],
    tmp_path: Path,
    registry_url: str | None,
    subtests: pytest.Subtests,
) -> None:
    template, before = complete_store
    location = tmp_path / "store"
    shutil.copytree(template, location)
    lose_registry(location)
    with pytest.raises(RegistryDamaged, match="registry rebuild"):
        open_registry(str(location), url=registry_url)
    report = rebuild(str(location), url=registry_url, restore=restore_runs)
    assert (report.unreadable, report.not_restored) == ([], NOT_RESTORED)
    after = state_of(location, registry_url)
    with closing(sqlite3.connect(template / "registry.db")) as original:
        for name, entry in RESTORATIONS.items():
            table = tables.metadata.tables[name]
            numbers = (
                {"id"}
                if isinstance(table.columns.get("id", table.c[0]).type, sa.Integer)
                else set()
            )
            columns = {column.name for column in table.columns} - entry.columns - numbers
            expected: State = {**before, name: before[name] if entry.source else []}
            if entry.condition is not None:
                (key,) = table.primary_key.columns
                query = f"select {key.name} from {name} where {entry.condition}"
                keys = {row[0] for row in original.execute(query)}
                expected[name] = [row for row in before[name] if row[key.name] in keys]
            with subtests.test(name):
                assert before[name]
                assert comparable_rows(after, name, columns) == comparable_rows(
                    expected, name, columns
                )


TABLE = pa.table({"x": [1, 2], "y": [0, 1]})


@pytest.fixture(scope="module")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a group, a dataset, a view, a source and an online store."""
    location = tmp_path_factory.mktemp("small") / "store"
    with featurestore.connect(location, progress=False) as store:
        group = store.create_featuregroup(TABLE, "g", primary_key="x")
        store.create_training_dataset(group.read(), "d", label="y")
        store.create_feature_view("v", features=["g.y"])
        store.add_source("shop", "file:///tmp")
        store.add_online_store("cache", "redis://127.0.0.1:1/0")
    return location


def execute(statements: str) -> Callable[[Path], None]:
    """Return a function that executes statements in a registry."""

    def change(location: Path) -> None:
        with closing(sqlite3.connect(location / "registry.db")) as connection:
            connection.executescript(statements)

    return change


def truncate(size: int) -> Callable[[Path], None]:
    """Return a function that truncates the file of a registry."""

    def change(location: Path) -> None:
        os.truncate(location / "registry.db", size)

    return change


LOSSES: dict[str, tuple[Callable[[Path], None], str]] = {
    "deleted": (lose_registry, "is empty, but"),
    "truncated to nothing": (truncate(0), "is empty, but"),
    "truncated": (truncate(20_000), "malformed"),
    "without a restored table": (execute("drop table tags"), "lacks 'table tags'"),
    "without a lost table": (execute("drop table alert_channels"), "lacks 'table alert_channels'"),
    "without a column": (
        execute("alter table job_states drop column watermark"),
        r"lacks 'column job_states\.watermark'",
    ),
    "without an index": (execute("drop index ix_features_name"), "lacks 'index ix_features_name'"),
    "without a revision": (execute("drop table alembic_version"), "has no revision"),
    "before the first release": (
        execute("update alembic_version set version_num = '0103'"),
        "precedes the first release",
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_lost_or_incomplete_registry_is_refused_until_rebuild(
    small_store: Path, tmp_path: Path, loss: str, command_line: Callable[..., Any]
) -> None:
    location = tmp_path / "store"
    shutil.copytree(small_store, location)
    damage, reason = LOSSES[loss]
    damage(location)
    with pytest.raises(RegistryDamaged, match=rf"(?s)({reason}).*registry rebuild"):
        featurestore.connect(location)
    shown = command_line("--location", str(location), "fg", "list", code=1)
    assert "registry rebuild" in shown.err
    (check,) = [
        check
        for check in run_checks(GlobalOptions(location=str(location)))
        if check.state == "problem"
    ]
    assert "registry" in str(check.hint)
    rebuild(str(location))
    with featurestore.connect(location) as store:
        assert [group.name for group in store.get_featuregroups()] == ["g"]
        assert [dataset.name for dataset in store.get_training_datasets()] == ["d"]
        assert [view.name for view in store.get_feature_views()] == ["v"]
        store.add_alert_channel("ops", "log")


SERVER_LOSSES = {
    "emptied": (
        "drop schema public cascade; create schema public; drop schema {schema} cascade",
        "contains",
    ),
    "without an index": ("drop schema {schema} cascade", "is empty, but"),
    "without locations": ("drop table public.featurestore_stores", "missing in the registry"),
    "without a table": ("drop table tags", "lacks 'table tags'"),
    "without a column": ("alter table job_states drop column watermark", "lacks 'column job_st"),
    "without a revision": ("drop table alembic_version", "has no revision"),
}


@pytest.mark.postgres
def test_lost_database_of_server_is_refused_until_rebuild(
    tmp_path: Path, postgres_url: str, subtests: pytest.Subtests
) -> None:
    import psycopg

    with featurestore.connect(tmp_path, registry=postgres_url, progress=False) as store:
        group = store.create_featuregroup(TABLE, "g", primary_key="x", tags={"team": "a"})
        store.create_training_dataset(group.read(), "d", label="y")
        store.add_alert_channel("ops", "log")
    reference = read_reference(str(tmp_path))
    assert reference is not None
    schema_name = index_schema(reference.store)
    for loss, (statements, reason) in SERVER_LOSSES.items():
        with subtests.test(loss):
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                connection.execute(f"set search_path to {schema_name}")
                connection.execute(statements.format(schema=schema_name))
            with pytest.raises(RegistryDamaged, match=rf"(?s){reason}.*registry rebuild"):
                featurestore.connect(tmp_path, registry=postgres_url)
            rebuild(str(tmp_path), url=postgres_url)
            with featurestore.connect(tmp_path, registry=postgres_url) as store:
                assert store.get_featuregroup_tags("g") == {"team": "a"}
                assert [dataset.name for dataset in store.get_training_datasets()] == ["d"]
                store.add_alert_channel(f"channel {loss}".replace(" ", "_"), "log")


def test_each_missing_table_is_found_and_repaired(
    tmp_path: Path, registry_url: str | None, subtests: pytest.Subtests
) -> None:
    registry = open_registry(str(tmp_path), url=registry_url)
    with registry.upgrade_transaction() as connection:
        assert schema.missing_parts(connection) == []
        for table in tables.metadata.sorted_tables:
            with subtests.test(str(table.name)):
                cascade = " cascade" if registry.dialect == "postgresql" else ""
                connection.exec_driver_sql(f"drop table {table.name}{cascade}")
                assert f"table {table.name}" in schema.missing_parts(connection)
                assert f"table {table.name}" in schema.repair(connection).created
                assert schema.missing_parts(connection) == []
    registry.close()


def test_repaired_table_keeps_rows(tmp_path: Path) -> None:
    registry = open_registry(str(tmp_path))
    with registry.upgrade_transaction() as connection:
        row = example_row(tables.job_states) | {"name": "hourly", "paused": True}
        connection.execute(tables.job_states.insert().values(row))
        connection.exec_driver_sql("alter table job_states drop column watermark")
        assert schema.repair(connection).emptied == frozenset()
        (stored_row,) = connection.execute(sa.select(tables.job_states))
    assert (stored_row.name, stored_row.paused, stored_row.watermark) == ("hourly", True, None)
    registry.close()


def test_rebuild_without_table_of_private_groups_keeps_groups_private(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path) as store:
        store.create_featuregroup(TABLE, "salaries")
        changes.add_user(store.session, canaries.ROOT, "ann", role="admin")
        changes.set_private(store.session, canaries.ROOT, "salaries", True)
    execute("drop table private_groups")(tmp_path)
    assert rebuild(str(tmp_path)).repaired == ["table private_groups"]
    private_groups = state_of(tmp_path)["private_groups"]
    assert [row["featuregroup"] for row in private_groups] == ["salaries"]


def test_objects_of_older_registry_are_named_with_rebuild(
    small_store: Path, tmp_path: Path
) -> None:
    location = tmp_path / "store"
    shutil.copytree(small_store, location)
    execute(
        "delete from features; delete from featuregroups; delete from training_dataset_pins; "
        "delete from training_datasets; delete from feature_views; delete from sources; "
        "delete from online_stores"
    )(location)
    with pytest.warns(RegistryWarning, match="'featuregroup g@v1', .*registry rebuild"):
        store = featurestore.connect(location)
    calls: list[tuple[type[Exception], Callable[[FeatureStore], object]]] = [
        (FeatureGroupNotFound, lambda store: store.get_featuregroup("g")),
        (FeatureGroupNotFound, lambda store: store.get_featuregroup("g", version=1)),
        (FeatureGroupNotFound, lambda store: store.get_features(["g.y"])),
        (FeatureGroupNotFound, lambda store: store.insert_into_featuregroup(TABLE, "g")),
        (TrainingDatasetNotFound, lambda store: store.get_training_dataset("d")),
        (FeatureViewNotFound, lambda store: store.get_feature_view("v")),
        (SourceNotFound, lambda store: store.check_source("shop")),
        (OnlineStoreNotFound, lambda store: store.remove_online_store("cache")),
    ]
    for error, call in calls:
        with pytest.raises(error, match=r"(?s)is in the location, but.*registry rebuild"):
            call(store)
    with pytest.raises(FeatureGroupNotFound, match="Unknown feature group"):
        store.get_featuregroup("other")
    with pytest.raises(RunNotFound, match="Unknown run"):
        experiments.get_run("20130101-000000-000001", store=store)
    store.close()
    rebuild(str(location))
    with featurestore.connect(location) as store:
        assert store.get_featuregroup("g").count() == 2
