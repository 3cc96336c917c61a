"""A manifest of dbt from another person: its texts are names, never SQL, Jinja or paths."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import featurestore
from featurestore.dbt.manifest import MAX_MANIFEST_BYTES, read_project
from featurestore.errors import FeatureStoreError, InvalidDbtProject
from tests.dbt.conftest import TABLES
from tests.dbt.project import MANIFEST

CANARY = "canary-4711"
# Values of a manifest that an import does not use, or that only select nodes.
SELECTED = re.compile(r"(model|test)\.shop\.\w*orders|snapshot\.shop\.plans")
IGNORED = {"resource_type", "dbt_schema_version", "dbt_version", "relation_name", "language"}


def hostile_texts(folder: Path) -> list[str]:
    """Return texts that would read or change something else as SQL, Jinja, a path or Python."""
    file, marker = folder / "secret.csv", folder / "marker"
    return [
        "secret",
        "other.secret",
        f"orders\" union all select * from read_csv('{file}') --",
        f"orders; copy (select 1) to '{marker}'; --",
        f"1 = 1); copy (select 1) to '{marker}'; --",
        f"id in (select 1 from read_text('{file}'))",
        "x' or (select count(*) from secret) > 0 or 'x' = '",
        "drop table raw_orders",
        f"{{{{ run_query(\"copy (select 1) to '{marker}'\") }}}}",
        "{{ env_var('HOME') }}",
        "../../secret",
        str(file),
        f"file://{file}",
        f"__import__('os').mkdir({str(marker)!r})",
        "$(touch marker)",
        "<script>alert(1)</script>",
        "\x1b]0;title\x07",
    ]


def texts_of(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield container and key of the strings of a manifest, and of its null values."""
    for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        if isinstance(value, dict | list):
            yield from texts_of(value)
        elif (isinstance(value, str) or value is None) and key not in IGNORED:
            yield data, key


def snapshot_of(path: Path) -> list[Any]:
    """Return the tables of a database with their rows."""
    with duckdb.connect(str(path), read_only=True) as connection:
        tables = connection.execute(
            "select table_schema, table_name from information_schema.tables"
        )
        names = sorted(tables.fetchall())
        rows = [connection.execute(f'from "{a}"."{b}" order by all').fetchall() for a, b in names]
    return [names, rows]


def test_texts_of_a_manifest_read_and_change_nothing_else(tmp_path: Path) -> None:
    """A few texts at a few places are drawn in each run."""
    database, secret = tmp_path / "shop.duckdb", tmp_path / "secret.csv"
    secret.write_text(f"order_id\n{CANARY}\n")
    with duckdb.connect(str(database)) as connection:
        connection.execute(f"{TABLES} create schema other")
        for table in ("secret", "other.secret"):
            connection.execute(f"create table {table} as select '{CANARY}' as order_id")
    before = snapshot_of(database)
    files = set(os.listdir(tmp_path))
    manifest = json.loads(MANIFEST.read_text())
    # Each of these is a setting of its own; most manifests do not have them.
    manifest["nodes"]["model.shop.orders"]["config"]["meta"] = {
        "featurestore": {"primary_key": ["order_id"], "event_time": "ordered_at", "owner": "a"}
    }
    path = tmp_path / "store" / "manifest.json"
    path.parent.mkdir()
    nodes = {name: node for name, node in manifest["nodes"].items() if SELECTED.search(name)}
    places, texts = list(texts_of(nodes)), hostile_texts(tmp_path)
    imported, refusals = 0, []
    with featurestore.connect(tmp_path / "store") as store:
        store.add_source("warehouse", f"duckdb:///{database}")
        for container, key in random.sample(places, 15):
            original, container[key] = container[key], random.choice(texts)
            path.write_text(json.dumps(manifest))
            try:
                result = store.add_dbt_project(path, source="warehouse", select="orders plans")
                imported += 1
                for name in {*result.created, *result.changed}:
                    is_table = container[key] in ("secret", "other.secret")
                    rows = store.featuregroup(name).read().to_arrow().to_pylist()
                    # A manifest may name any table of the source, as its author may.
                    assert is_table or CANARY not in str(rows), (key, container[key])
            except FeatureStoreError as error:
                refusals.append(str(error))
            container[key] = original
    assert imported > 1
    assert CANARY not in "".join(refusals)
    assert snapshot_of(database) == before
    assert set(os.listdir(tmp_path)) - files <= {"store"}


def test_manifests_of_any_size_and_depth_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    manifest = MANIFEST.read_text()
    head, digits = manifest.rstrip().removesuffix("}"), "9" * 100_000
    for text in (
        "[" * 1_000_000,
        '{"nodes":' * 500_000,
        f'{head}, "deep": {"[" * 100_000}{"]" * 100_000}}}',
        f'{head}, "number": {digits}}}',
        f'{head}, "nodes": {{"model.shop.orders": {{"resource_type": {digits}}}}}}}',
        json.dumps({"metadata": {"dbt_schema_version": "x" * 1_000_000}}),
    ):
        path.write_text(text)
        with pytest.raises(InvalidDbtProject) as refused:
            read_project(path)
        assert len(str(refused.value)) < 3000
    # A sparse file is refused before it is read.
    with path.open("wb") as file:
        file.truncate(MAX_MANIFEST_BYTES + 1)
    with pytest.raises(InvalidDbtProject, match="bytes"):
        read_project(path)
