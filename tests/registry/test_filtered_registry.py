"""The registry of a user: temporary views exclude hidden rows from every query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

import featurestore
from featurestore.errors import (
    FeatureGroupNotFound,
    FeatureNotFound,
    FeatureStoreError,
    NotAllowed,
    TrainingDatasetNotFound,
)
from featurestore.registry import access, overview, tables
from featurestore.registry.filtered import EVERYTHING, VISIBLE_ROWS, RegistryViews
from featurestore.registry.hidden import HiddenObjects, find_hidden_objects
from featurestore.store import FeatureStore
from tests.registry.conftest import new_database

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
JOB = """
import featurestore

raise_pay = featurestore.sql_job(
    "raise_pay",
    sql="select who, seen, 2 * pay as more from salaries",
    inputs={"salaries": "salaries"},
    featuregroup="raises",
    primary_key=["who"],
    event_time="seen",
    schedule="0 * * * *",
    window="1h",
    start="2024-03-01T12:00Z",
)
"""


def fill(store: FeatureStore, folder: Path) -> None:
    """Create a private group, a public group, and everything derived from them."""
    rows = []
    for number, person in enumerate("ab"):
        rows.append({"who": person, "seen": NOON + timedelta(minutes=30), "pay": 10.0 * number})
    for group in ("salaries", "visits"):
        store.create_featuregroup(
            rows, group, primary_key="who", event_time="seen", tags={"of": group},
            descriptions={"pay": f"pay in {group}"},
        )  # fmt: skip
        labels = [
            {"who": person, "at": NOON + timedelta(hours=2), "good": person == "a"}
            for person in "ab"
        ]
        frame = store.get_features([f"{group}.pay"], labels=labels)
        store.create_training_dataset(frame, f"of_{group}", label="good", progress=False)
        store.create_feature_view(f"view_{group}", features=[f"{group}.pay"])
        view = store.get_feature_view(f"view_{group}")
        view.create_training_dataset(f"by_view_{group}", labels=labels)
    (folder / "pay_jobs.py").write_text(JOB)
    store.register_jobs(folder / "pay_jobs.py")
    store.backfill_job("raise_pay", NOON, NOON + timedelta(hours=1))
    with store.session.registry.transaction() as connection:
        access.put_user(connection, "ann", role="reader")
        access.put_user(connection, "bob", role="none")
        access.set_private(connection, "salaries", True)
        access.put_role(connection, "visits", "bob", "reader")


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
)
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FeatureStore]:
    """A filled store that tests do not change."""
    url = None
    if request.param == "postgres":
        url = new_database(request.getfixturevalue("postgres_server"), "filled")
    folder = tmp_path_factory.mktemp("filled")
    with featurestore.connect(folder / "store", registry=url) as store:
        fill(store, folder)
        yield store


def seen_by(
    store: FeatureStore, *, granted: tuple[str, ...] = (), reads_store: bool = True
) -> FeatureStore:
    with store.session.registry.reading() as connection:
        hidden = find_hidden_objects(connection, granted=granted, reads_store=reads_store)
    views = RegistryViews(store.session.registry)
    return FeatureStore(replace(store.session, registry=views.registry(hidden)))


def test_visible_rows_cover_every_table() -> None:
    assert set(VISIBLE_ROWS) == set(tables.metadata.tables)
    unfiltered_tables = {
        name for name, condition in VISIBLE_ROWS.items() if condition == EVERYTHING
    }
    assert unfiltered_tables == {"sources", "online_stores", "owners"}


def test_filtered_registry_rows_omit_private_groups(filled: FeatureStore) -> None:
    full_store, cut = filled, seen_by(filled)
    mentioned = 0
    for table in tables.metadata.sorted_tables:
        with full_store.session.registry.reading() as connection:
            all_rows = [tuple(row) for row in connection.execute(sa.select(table))]
        with cut.session.registry.reading() as connection:
            visible_rows = [tuple(row) for row in connection.execute(sa.select(table))]
        assert set(visible_rows) <= set(all_rows) or table.name == "lineage", table.name
        mentioned += any("salaries" in str(row) for row in all_rows)
        assert not any("salaries" in str(row) for row in visible_rows), table.name
        assert (
            not any("raise_pay" in str(row) for row in visible_rows)
            or table.name == "featuregroups"
        )
    assert mentioned >= 9
    with cut.session.registry.reading() as connection:
        assert connection.execute(sa.select(tables.users)).all() == []


def test_filtered_registry_listings_omit_private_groups(filled: FeatureStore) -> None:
    cut = seen_by(filled)
    assert [group.name for group in cut.get_featuregroups()] == ["visits"]
    assert not any("salaries" in str(match) for match in cut.search("pay"))
    assert len(filled.search("pay")) > len(cut.search("pay")) > 0
    assert [dataset.name for dataset in cut.get_training_datasets()] == [
        "by_view_visits",
        "of_visits",
    ]
    assert [view.name for view in cut.get_feature_views()] == ["view_visits"]
    assert list(cut.get_jobs()) == []
    calls = [
        lambda: cut.featuregroup("salaries"),
        lambda: cut.get_featuregroup("salaries"),
        lambda: cut.get_features(["salaries.pay"]),
        lambda: cut.get_features(["visits.pay"], labels="salaries"),
        lambda: cut.sql("select * from salaries").to_arrow(),
        lambda: cut.get_training_dataset("of_salaries"),
        lambda: cut.get_training_dataset("by_view_salaries"),
        lambda: cut.get_feature_view("view_salaries"),
        lambda: cut.get_featuregroup_statistics("salaries"),
        lambda: cut.get_validation_history("salaries"),
        lambda: cut.get_runs("raise_pay"),
    ]
    for call in calls:
        with pytest.raises(FeatureStoreError) as refused:
            call()
        actual = str(refused.value).replace("'salaries'", "").replace("'salaries.pay'", "")
        assert "pay in" not in actual
    with pytest.raises((FeatureGroupNotFound, FeatureNotFound)):
        cut.get_features(["salaries.pay"])
    with pytest.raises(TrainingDatasetNotFound, match="by_view_visits"):
        cut.get_training_dataset("of_salaries")
    assert cut.get_feature("pay", dataframe_type="python") == [{"pay": 0.0}, {"pay": 10.0}]
    with cut.session.registry.reading() as connection:
        counts = overview.count_objects(connection)
    assert counts["feature groups"] == 1
    assert counts["jobs"] == 0


def test_filtered_registry_without_store_role_lists_granted_groups(filled: FeatureStore) -> None:
    cut = seen_by(filled, granted=("visits",), reads_store=False)
    assert [group.name for group in cut.get_featuregroups()] == ["visits"]
    assert [dataset.name for dataset in cut.get_training_datasets()] == [
        "by_view_visits",
        "of_visits",
    ]
    nothing = seen_by(filled, reads_store=False)
    assert list(nothing.get_featuregroups()) == list(nothing.get_training_datasets()) == []
    owner = seen_by(filled, granted=("salaries",))
    assert len(owner.get_featuregroups()) == 3
    assert len(owner.get_training_datasets()) == 4
    assert len(owner.get_jobs()) == 1


def test_filtered_registries_are_independent_and_read_only(filled: FeatureStore) -> None:
    views = RegistryViews(filled.session.registry)
    first = views.registry(HiddenObjects(groups=frozenset(["salaries"])))
    second = views.registry(HiddenObjects(groups=frozenset(["visits", "raises"])))
    for _ in range(3):
        for registry, expected in ((first, ["raises", "visits"]), (second, ["salaries"])):
            with registry.reading() as connection:
                names = connection.execute(sa.select(tables.featuregroups.c.name)).scalars()
                assert sorted(names) == expected
    for writing in (first.transaction, first.upgrade_transaction):
        with pytest.raises(NotAllowed), writing():
            pass
    cut = FeatureStore(replace(filled.session, registry=first))
    with pytest.raises(NotAllowed):
        cut.insert_into_featuregroup([{"who": "c", "seen": NOON, "pay": 1.0}], "visits")
    assert filled.get_featuregroup("visits").count() == 2
