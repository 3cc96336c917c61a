"""A registry with an object of each kind is upgraded completely, also after kills and by several.

``tests/assets/upgrades/<revision>.zip`` are registries of released revisions with groups, datasets,
views, jobs, runs, monitors, alerts, users, roles, tokens, models and sources. They are never changed.
They are upgraded to ``NEXT``, a revision of these tests, because no release follows the first one yet.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from featurestore.registry import migrations, open_registry
from tests.forked_processes import start

ASSETS = Path(__file__).parents[1] / "assets" / "upgrades"
# Tables that no user fills: the revision, and the search index, which is derived from other rows.
DERIVED = ("alembic_version", "search_")
# Tables that have rows in each of the registries.
FILLED = {
    *("users", "tokens", "sign_ins", "group_roles", "private_groups", "sources", "tags"),
    *("featuregroups", "feature_views", "training_datasets", "lineage", "validation_reports"),
    *("job_definitions", "runs", "windows", "monitor_results", "alert_channels", "outbox"),
    *("experiment_runs", "models", "origins", "origin_edges"),
}
NEXT = "9000"
MIGRATION = f'''
import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{migrations.head_revision()}"


def upgrade() -> None:
    op.create_table("next_tags", sa.Column("key", sa.Text, primary_key=True))
    op.execute("insert into next_tags select distinct key from tags")
    op.add_column("models", sa.Column("next", sa.Integer, nullable=False, server_default="0"))
    op.execute("update models set next = version + 1")
    op.create_index("ix_models_next", "models", ["next"])
    op.drop_index("ix_featuregroups_changed", "featuregroups")
    op.create_index("ix_featuregroups_changed", "featuregroups", ["changed"])
'''
Rows = list[tuple[Any, ...]]

pytestmark = [pytest.mark.services]


@pytest.fixture(autouse=True)
def next_release(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A release with one more migration."""
    folder = tmp_path_factory.mktemp("next") / "migrations"
    shutil.copytree(migrations.DIRECTORY, folder)
    (folder / "versions" / f"{NEXT}_next.py").write_text(MIGRATION)
    monkeypatch.setattr(migrations, "DIRECTORY", str(folder))
    migrations.known_revisions.cache_clear()
    yield
    monkeypatch.undo()
    migrations.known_revisions.cache_clear()


@pytest.fixture(params=sorted(ASSETS.glob("*.zip")), ids=lambda path: path.stem)
def archive(request: pytest.FixtureRequest) -> Path:
    result: Path = request.param
    return result


def extract(archive: Path, folder: Path) -> Path:
    """Return a new folder with the registry."""
    with zipfile.ZipFile(archive) as content:
        content.extractall(folder)
    return folder


def table_names(connection: sqlite3.Connection) -> Iterator[str]:
    for (name,) in connection.execute("select name from sqlite_master where type = 'table'"):
        if not name.startswith((*DERIVED, "sqlite_")):
            yield name


def read(folder: Path) -> dict[str, tuple[list[str], Rows]]:
    """Return the columns and rows of each table."""
    connection = sqlite3.connect(folder / "registry.db")
    tables = {}
    for name in table_names(connection):
        cursor = connection.execute(f'select * from "{name}"')
        columns = [column[0] for column in cursor.description]
        tables[name] = (columns, sorted(cursor.fetchall(), key=repr))
    connection.close()
    return tables


def upgrade(
    directory: str, folder: str, last_statement: int | None = None, count_file: str | None = None
) -> None:
    """Open a registry in another process, which is killed before a statement."""
    count = 0
    migrations.DIRECTORY = directory
    migrations.known_revisions.cache_clear()

    def execute(*_: object) -> None:
        nonlocal count
        count += 1
        if count == last_statement:
            os.kill(os.getpid(), signal.SIGKILL)

    sa.event.listen(Engine, "before_cursor_execute", execute)
    open_registry(folder).close()
    if count_file is not None:
        Path(count_file).write_text(str(count))


def test_upgrade_keeps_rows_of_all_tables(archive: Path, tmp_path: Path) -> None:
    before = read(extract(archive, tmp_path))
    filled = {name for name, (_, rows) in before.items() if rows}
    assert filled >= FILLED
    open_registry(str(tmp_path)).close()
    after = read(tmp_path)
    for name, (columns, rows) in before.items():
        new_columns, new_rows = after[name]
        positions = [new_columns.index(column) for column in columns]
        projected = [tuple(row[position] for position in positions) for row in new_rows]
        assert sorted(projected, key=repr) == rows, name
    keys = {(row[3],) for row in before["tags"][1]}
    assert set(after["next_tags"][1]) == keys
    columns, rows = after["models"]
    assert {row[columns.index("next")] - row[columns.index("version")] for row in rows} == {1}


def test_killed_upgrade_is_completed_by_two_processes(archive: Path, tmp_path: Path) -> None:
    reference = extract(archive, tmp_path / "reference")
    counts = tmp_path / "count"
    process = start(upgrade, migrations.DIRECTORY, str(reference), None, str(counts))
    process.join(60)
    expected = read(reference)
    statements = range(1, int(counts.read_text()) + 1)
    numbers = random.sample(statements, 3)
    if os.environ.get("FEATURESTORE_ALL_STATEMENTS"):
        numbers = list(statements)
    for number in numbers:
        folder = extract(archive, tmp_path / str(number))
        process = start(upgrade, migrations.DIRECTORY, str(folder), number)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        both = [start(upgrade, migrations.DIRECTORY, str(folder)) for _ in range(2)]
        for process in both:
            process.join(60)
            assert process.exitcode == 0, number
        assert read(folder) == expected, number
        with sqlite3.connect(folder / "registry.db") as connection:
            (revision,) = connection.execute("select version_num from alembic_version").fetchone()
        connection.close()
        assert revision == NEXT
