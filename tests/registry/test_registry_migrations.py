"""Registries are created, upgraded under a lock, and refused if newer."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

import featurestore
from featurestore.errors import ConfigurationError, MissingExtra, RegistryError, RegistryTooNew
from featurestore.recovery.rebuild import rebuild
from featurestore.registry import open_registry, search_documents
from featurestore.registry.migrations import head_revision, migrate, upgrade
from featurestore.registry.opening import inspect, revision
from featurestore.registry.schema import revision_table

ASSETS = Path(__file__).parents[1] / "assets" / "registries"


def test_new_registry_has_head_revision(tmp_path: Path, registry_url: str | None) -> None:
    assert inspect(str(tmp_path), url=registry_url) is None
    registry = open_registry(str(tmp_path), url=registry_url)
    assert revision(registry) == head_revision()
    registry.close()
    again = open_registry(str(tmp_path), url=registry_url)
    assert upgrade(again) == head_revision()
    again.close()


@pytest.mark.parametrize("first", [path.stem for path in ASSETS.glob("*.db")])
def test_migrations_equal_new_registry_tables(
    tmp_path: Path, registry_url: str | None, first: str
) -> None:
    registry = open_registry(str(tmp_path), url=registry_url)
    with registry.upgrade_transaction() as connection:
        created = _described(connection)
        everything = sa.MetaData()
        everything.reflect(connection)
        everything.drop_all(connection)
        assert sa.inspect(connection).get_table_names() == []
        script = (ASSETS / f"{first}.{registry.dialect}.sql").read_text()
        for statement in script.split(";\n")[:-1]:
            connection.exec_driver_sql(statement)
        search_documents.create_index(connection)
        connection.execute(revision_table.insert().values(version_num=first))
        migrate(connection)
        migrated = _described(connection)
    registry.close()
    assert len(created) > 20
    assert migrated == created


def _described(connection: sa.Connection) -> dict[str, dict[str, Any]]:
    """Return the definition and row count of each table of a registry."""
    inspector = sa.inspect(connection)
    names = inspector.get_table_names()
    return {name: _described_table(connection, inspector, name) for name in names}


def _described_table(
    connection: sa.Connection, inspector: sa.Inspector, name: str
) -> dict[str, Any]:
    columns = {column["name"]: column for column in inspector.get_columns(name)}
    for column in columns.values():
        column["type"] = str(column["type"])
        column.pop("autoincrement", None)
    rows = connection.execute(sa.select(sa.func.count()).select_from(sa.table(name))).scalar_one()
    indexes = sorted(inspector.get_indexes(name), key=lambda index: str(index["name"]))
    return {
        "columns": columns,
        "primary key": inspector.get_pk_constraint(name),
        "unique": sorted(inspector.get_unique_constraints(name), key=str),
        "foreign keys": inspector.get_foreign_keys(name),
        "indexes": [_described_index(index) for index in indexes],
        "rows": rows,
    }


def _described_index(index: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of an index; the condition of a partial one is a string."""
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return {**index, "dialect_options": options}


def test_migrations_have_single_head() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    from featurestore.registry import migrations

    settings = Config()
    settings.set_main_option("script_location", migrations.DIRECTORY)
    assert ScriptDirectory.from_config(settings).get_heads() == [head_revision()]


def test_concurrent_open_registry_creates_one_registry(
    tmp_path: Path, registry_url: str | None
) -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            open_registry(str(tmp_path), url=registry_url).close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


def test_open_registry_newer_revision_raises(tmp_path: Path, registry_url: str | None) -> None:
    registry = open_registry(str(tmp_path), url=registry_url)
    with registry.transaction() as connection:
        connection.execute(sa.text("update alembic_version set version_num = '9999'"))
    registry.close()
    with pytest.raises(
        RegistryTooNew, match="revision 9999; this release supports revisions up to"
    ):
        open_registry(str(tmp_path), url=registry_url)


@pytest.mark.parametrize("old", sorted(ASSETS.glob("*.db")), ids=lambda path: path.stem)
def test_old_registry_upgrade_keeps_rows(tmp_path: Path, old: Path) -> None:
    from featurestore.registry import artifacts, featuregroups, intents, lineage, training_datasets

    shutil.copy(old, tmp_path / "registry.db")
    assert inspect(str(tmp_path)) == old.stem
    registry = open_registry(str(tmp_path))
    assert revision(registry) == head_revision()
    with registry.reading() as connection:
        group = featuregroups.get(connection, "speeds")
        assert (group.version, group.description, group.spec.primary_key) == (
            1,
            "Speeds of roads",
            ("zone",),
        )
        assert artifacts.tags_of(connection, "featuregroup", "speeds", 1) == {"team": "roads"}
        assert training_datasets.get(connection, "rides").pins[0].featuregroup == "speeds"
        assert lineage.results(connection, "raw")[0].name == "speeds"
        assert len(artifacts.validation_reports_of(connection, "featuregroup", "speeds", 1)) == 1
        assert intents.list_all(connection) == []
    registry.close()


@pytest.mark.parametrize("unreleased", ["0002", "0103"])
def test_unreleased_registry_revision_raises_until_rebuild(tmp_path: Path, unreleased: str) -> None:
    with featurestore.connect(tmp_path) as store:
        store.create_featuregroup(pa.table({"x": [1]}), "g", tags={"team": "roads"})
    with sqlite3.connect(tmp_path / "registry.db") as connection:
        connection.execute(f"update alembic_version set version_num = '{unreleased}'")
    connection.close()
    with pytest.raises(RegistryError, match=rf"revision {unreleased}(.|\n)*registry rebuild"):
        featurestore.connect(tmp_path)
    rebuilt = rebuild(str(tmp_path))
    assert (rebuilt.featuregroups, rebuilt.unreadable) == (["g@v1"], [])
    assert rebuilt.moved_away is not None
    with featurestore.connect(tmp_path) as store:
        assert store.get_featuregroup_tags("g") == {"team": "roads"}


def test_open_registry_damaged_raises_with_hint(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(RegistryError, match=r"registry\.db.*cannot be used(.|\n)*registry rebuild"):
        open_registry(str(tmp_path))


@pytest.mark.parametrize(
    ("url", "error_type", "message"),
    [
        ("nonsense", ConfigurationError, "not a database URL"),
        ("mysql://u@h/d", (ConfigurationError, MissingExtra), "mysql"),
        ("postgresql://u:secret@127.0.0.1:1/d", RegistryError, r"u:\*\*\*@127"),
    ],
)
def test_open_registry_invalid_url_raises(
    tmp_path: Path, url: str, error_type: type[Exception], message: str
) -> None:
    with pytest.raises(error_type, match=message):
        open_registry(str(tmp_path), url=url)


def test_sqlite_waits_for_other_writers(tmp_path: Path) -> None:
    registry = open_registry(str(tmp_path))
    with registry.reading() as connection:
        assert connection.execute(sa.text("pragma journal_mode")).scalar() == "wal"
        assert connection.execute(sa.text("pragma busy_timeout")).scalar() >= 30_000
    lock_holder = sqlite3.connect(tmp_path / "registry.db", isolation_level=None)
    lock_holder.execute("begin immediate")
    with registry.reading() as connection:  # readers never wait
        assert connection.execute(sa.text("select count(*) from featuregroups")).scalar() == 0
    write_event = threading.Event()

    def write() -> None:
        with registry.transaction() as connection:
            connection.execute(sa.text("delete from tags"))
        write_event.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert not write_event.wait(0.3)
    lock_holder.execute("commit")
    assert write_event.wait(30)
    writer.join()
    lock_holder.close()
    registry.close()
