"""The registry is made, upgraded under a lock, and refused when a newer release wrote it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

import featurestore
from featurestore.errors import ConfigurationError, MissingExtra, RegistryError, RegistryTooNew
from featurestore.registry import intents, open_registry
from featurestore.registry.database import head_revision, inspect, revision, upgrade

ASSETS = Path(__file__).parents[1] / "assets" / "registries"


def test_a_new_registry_has_the_newest_revision(tmp_path: Path, registry_url: str | None) -> None:
    assert inspect(str(tmp_path), url=registry_url) is None
    registry = open_registry(str(tmp_path), url=registry_url)
    assert revision(registry) == head_revision()
    registry.close()
    again = open_registry(str(tmp_path), url=registry_url)
    assert upgrade(again) == head_revision()
    again.close()


def test_migrations_make_exactly_the_tables_of_the_code(
    tmp_path: Path, registry_url: str | None
) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from featurestore.registry import tables

    registry = open_registry(str(tmp_path), url=registry_url)
    with registry.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []
    registry.close()


def test_the_chain_of_migrations_has_one_end() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    from featurestore.registry import database

    settings = Config()
    settings.set_main_option("script_location", database._MIGRATIONS)
    assert ScriptDirectory.from_config(settings).get_heads() == [head_revision()]


def test_opening_at_once_makes_one_registry(tmp_path: Path, registry_url: str | None) -> None:
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


def test_a_newer_registry_is_refused(tmp_path: Path, registry_url: str | None) -> None:
    registry = open_registry(str(tmp_path), url=registry_url)
    with registry.transaction() as connection:
        connection.execute(sa.text("update alembic_version set version_num = '9999'"))
    registry.close()
    with pytest.raises(RegistryTooNew, match="revision 9999; this release knows revisions up to"):
        open_registry(str(tmp_path), url=registry_url)


@pytest.mark.parametrize("old", sorted(ASSETS.glob("*.db")), ids=lambda path: path.stem)
def test_old_registries_are_upgraded_with_all_that_they_hold(tmp_path: Path, old: Path) -> None:
    from featurestore.registry import (
        featuregroups,
        intents,
        lineage,
        reports,
        tags,
        training_datasets,
    )

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
        assert tags.of(connection, "featuregroup", "speeds", 1) == {"team": "roads"}
        assert training_datasets.get(connection, "rides").pins[0].featuregroup == "speeds"
        assert lineage.results(connection, "raw")[0].name == "speeds"
        assert len(reports.validations(connection, "featuregroup", "speeds", 1)) == 1
        assert intents.every(connection) == []
    registry.close()


@pytest.mark.parametrize("old", ["0001", "0002"])
def test_writes_that_an_old_release_left_are_settled(tmp_path: Path, old: str) -> None:
    shutil.copy(ASSETS / f"{old}.db", tmp_path / "registry.db")
    with sqlite3.connect(tmp_path / "registry.db") as connection:
        connection.execute(
            "insert into intents values ('r', 'create', 'g', 1, 'anywhere', 'host', 1, 2, 3)"
        )
    connection.close()
    with featurestore.connect(tmp_path) as store:
        with store.session.registry.reading() as reading:
            assert intents.every(reading) == []
        assert store.create_featuregroup(pa.table({"x": [1]}), "g").version == 1


@pytest.mark.postgres
def test_rows_of_an_old_postgres_registry_are_kept(tmp_path: Path, postgres_url: str) -> None:
    from alembic import command
    from alembic.config import Config

    from featurestore.registry import database, featuregroups
    from tests.registry.old_registry import SPEC

    settings = Config()
    settings.set_main_option("script_location", database._MIGRATIONS)
    engine = sa.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        command.upgrade(settings, "0002")
        spec = json.dumps(SPEC.to_json())
        for row in (
            "insert into featuregroups (id, name, version, path, table_id, delta_version, spec, created)"
            " values (7, 'speeds', 1, 'p', 't', 1, :spec, 0)",
            "insert into features values (7, 0, 'zone', 'int64', 'key')",
            "insert into job_states (name, paused, watermark) values ('j', true, 5)",
        ):
            connection.execute(sa.text(row), {"spec": spec} if ":spec" in row else {})
    engine.dispose()
    registry = open_registry(str(tmp_path), url=postgres_url)
    with registry.transaction() as connection:
        assert featuregroups.get(connection, "speeds").spec == SPEC
        assert connection.execute(sa.text("select count(*) from features")).scalar() == 1
        assert connection.execute(sa.text("select paused from job_states")).scalar() is True
        later = replace(SPEC, version=2)
        assert featuregroups.add(connection, later, table_id="u", delta_version=1) == 8
    registry.close()


def test_a_damaged_registry_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(RegistryError, match=r"registry\.db.*cannot be used(.|\n)*registry rebuild"):
        open_registry(str(tmp_path))


@pytest.mark.parametrize(
    ("url", "kind", "says"),
    [
        ("nonsense", ConfigurationError, "not a database URL"),
        ("mysql://u@h/d", (ConfigurationError, MissingExtra), "mysql"),
        ("postgresql://u:secret@127.0.0.1:1/d", RegistryError, r"u:\*\*\*@127"),
    ],
)
def test_urls_that_lead_nowhere(tmp_path: Path, url: str, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        open_registry(str(tmp_path), url=url)


def test_sqlite_waits_for_other_writers(tmp_path: Path) -> None:
    registry = open_registry(str(tmp_path))
    with registry.reading() as connection:
        assert connection.execute(sa.text("pragma journal_mode")).scalar() == "wal"
        assert connection.execute(sa.text("pragma busy_timeout")).scalar() >= 30_000
    other = sqlite3.connect(tmp_path / "registry.db", isolation_level=None)
    other.execute("begin immediate")
    with registry.reading() as connection:  # readers never wait
        assert connection.execute(sa.text("select count(*) from featuregroups")).scalar() == 0
    written = threading.Event()

    def write() -> None:
        with registry.transaction() as connection:
            connection.execute(sa.text("delete from tags"))
        written.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert not written.wait(0.3)
    other.execute("commit")
    assert written.wait(30)
    writer.join()
    other.close()
    registry.close()
