"""Searches by the trigram index equal full scans, and hide the same objects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.featuregroups.discovery import Match, search
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.window_features import WindowLineage
from featurestore.recovery.groups import unregister
from featurestore.registry import artifacts, featuregroups, lineage, search_documents
from featurestore.registry.database import Registry
from featurestore.registry.filtered import RegistryViews
from featurestore.registry.hidden import HiddenObjects
from featurestore.session import Session

GROUP_TYPE = featuregroups.KIND
NAMES = ["wind", "winds", "rain"]
WORDS = st.text(alphabet='wWiInd_ sßS"%é', min_size=1, max_size=6)
COLUMNS = st.text(alphabet="windSW", min_size=1, max_size=5)


@st.composite
def writes(draw: st.DrawFn) -> dict[str, object]:
    columns = draw(st.lists(COLUMNS, min_size=1, max_size=4, unique_by=str.casefold))
    return {
        "name": draw(st.sampled_from(NAMES)),
        "version": draw(st.integers(1, 2)),
        "removed": draw(st.integers(0, 4)) == 0,
        "columns": columns,
        "description": draw(WORDS),
        "descriptions": draw(st.dictionaries(st.sampled_from(columns), WORDS)),
        "tags": draw(st.dictionaries(WORDS, WORDS, max_size=2)),
        "condition": draw(st.none() | WORDS),
        "has_index": draw(st.integers(0, 3)) > 0,
    }


def write(connection: sa.Connection, record: dict[str, object]) -> None:
    """Write a version from a process whose SQLite may lack trigrams."""
    name, version = record["name"], record["version"]
    if not record["has_index"]:
        connection.info["trigrams"] = False
    unregister(connection, name, version)
    if not record["removed"]:
        schema = pa.schema([pa.field(column, pa.int64()) for column in record["columns"]])
        spec = FeatureGroupSpec(name, version, schema)
        featuregroups.add(connection, spec, table_id=f"{name}{version}", delta_version=1)
        description, descriptions = record["description"], record["descriptions"]
        featuregroups.describe(connection, name, version, description, descriptions=descriptions)
        artifacts.replace_tags(connection, GROUP_TYPE, name, version, record["tags"])
        condition = record["condition"]
        window = WindowLineage("total", "rain", 1, "drops", "sum", None, 0, condition)
        windows = [] if condition is None else [window]
        lineage.replace_windows(connection, GROUP_TYPE, name, version, windows)
    connection.info.pop("trigrams", None)


def scan_records(records: list[dict[str, object]], query: str, hidden: set[str]) -> list[Match]:
    """Return the matches of a full scan over the latest visible version of each group."""
    versions: dict[tuple[object, object], dict[str, object]] = {}
    for record in records:
        versions.pop((record["name"], record["version"]), None)
        if not record["removed"]:
            versions[record["name"], record["version"]] = record
    groups = []
    for name in sorted({name for name, _ in versions} - hidden):
        groups.append(versions[name, max(v for n, v in versions if n == name)])
    candidates = []
    for group in groups:
        candidates.append(("name", group["name"], group["name"], group["name"]))
    for group in groups:
        for column in group["columns"]:
            candidates.append(("feature", group["name"], column, f"{group['name']}.{column}"))
    for group in groups:
        for key in sorted(group["tags"]):
            value = group["tags"][key]
            hit = key if query in key.casefold() else value
            candidates.append(("tag", group["name"], hit, f"{key}={value}"))
    for group in groups:
        candidates.append(("description", group["name"], group["description"], group["name"]))
    for group in groups:
        for column in group["columns"]:
            description = group["descriptions"].get(column, "")
            candidates.append(
                ("description", group["name"], description, f"{group['name']}.{column}")
            )
    numbers = {group["name"]: group["version"] for group in groups}
    matches = []
    for field, name, text, label in candidates:
        if query in text.casefold():
            shown, reference = text, label
            if field == "tag":
                shown, reference = label, name
            matches.append(Match(name, numbers[name], field, shown, reference))
    return matches


@pytest.fixture
def session(tmp_path: Path, registry_url: str | None) -> Iterator[Session]:
    if registry_url is not None:
        engine = sa.create_engine(registry_url.replace("postgresql:", "postgresql+psycopg:"))
        with contextlib.suppress(sa.exc.DBAPIError), engine.begin() as connection:
            connection.exec_driver_sql("create extension pg_trgm")
        engine.dispose()
    with featurestore.connect(tmp_path / "store", registry=registry_url) as store:
        yield store.session


def test_indexed_search_equals_full_scan(session: Session) -> None:
    registry = session.registry
    views = RegistryViews(registry)

    @settings(max_examples=20, deadline=None)
    @given(st.lists(writes(), max_size=8), WORDS, st.sets(st.sampled_from(NAMES), max_size=1))
    def check(records: list[dict[str, object]], text: str, hidden: set[str]) -> None:
        if not text.strip():
            return
        with registry.transaction() as connection:
            for name in NAMES:
                unregister(connection, name, 1)
                unregister(connection, name, 2)
            for record in records:
                write(connection, record)
        query = text.strip().casefold()
        for cut, left_out in ((registry, set()), (cut_by(views, hidden), hidden)):
            matches = []
            for match in search(replace(session, registry=cut), text):
                if match.where != "window":
                    matches.append(match)
            assert sorted(matches, key=str) == sorted(
                scan_records(records, query, left_out), key=str
            )
            assert [match.where for match in matches] == sorted(
                [match.where for match in matches],
                key=["name", "feature", "tag", "description"].index,
            )

    check()


def cut_by(views: RegistryViews, hidden: set[str]) -> Registry:
    return views.registry(HiddenObjects(groups=frozenset(hidden)))


def test_search_index_counts_limits_and_clear(session: Session) -> None:
    with session.registry.transaction() as connection:
        for number in range(40):
            columns = [f"f{number}_of_{index}" for index in range(3)]
            details = {
                "name": f"group_{number:02d}", "version": 1, "removed": False, "columns": columns,
                "description": f"All of {number}", "descriptions": {columns[0]: "in hPa"},
                "tags": {"team": "Straße"}, "condition": "drops > 3", "has_index": True,
            }  # fmt: skip
            write(connection, details)
    texts = ["f7_of_1", "hpa", "STRASSE", "of_9", "drops >", "all of 3", "group_3", "7", "no such"]
    by_index = [search(session, text) for text in texts]
    counts = [len(actual) for actual in by_index]
    assert counts == [1, 40, 40, 0, 40, 11, 10, 20, 0]
    limited = [search(session, text, limit=5) for text in texts]
    assert limited == [actual[:5] for actual in by_index]
    with session.registry.transaction() as connection:
        search_documents.clear(connection)
        assert [search_documents_found(connection, text) for text in texts] == [[]] * len(texts)


def search_documents_found(connection: sa.Connection, text: str) -> list[list[str]]:
    return list(
        search_documents.candidate_names(connection, GROUP_TYPE, search_documents.FEATURE, text)
    )
