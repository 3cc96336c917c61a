"""Erasure and places that others use: online databases of two stores, and catalogs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.errors import OnlineStoreUnavailable
from featurestore.model.erasure import ErasureCheck, ErasureReport
from featurestore.serving.stores import open_online_store
from featurestore.store import FeatureStore
from tests.serving import redis_server

PERSON = "u-773100"
USERS = ["ada", PERSON, "u-77310"]
CATALOG_JOB = """
import featurestore
tables = featurestore.catalog_job("lake_tables", source="lake", schedule="@hourly", schema="shop")
"""


@pytest.fixture(params=["sqlite", "redis"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/shared.db"
        return
    with redis_server.running() as server:
        yield server.url


def content(store: FeatureStore) -> dict[bytes, bytes | None]:
    """Return all keys of the shared database with their values."""
    with closing(open_online_store(store.session, "cache")) as online:
        keys = sorted({key for batch in online.scan(b"") for key in batch})
        return dict(zip(keys, online.read(keys), strict=True))


def open_store(location: Path, uri: str) -> FeatureStore:
    store = featurestore.connect(location, engine="duckdb")
    rows = [{"user": user, "score": number} for number, user in enumerate(USERS)]
    store.create_featuregroup(rows, "people", primary_key="user")
    store.add_online_store("cache", uri)
    return store


def publish(store: FeatureStore, *views: str) -> dict[bytes, bytes | None]:
    """Publish new views, and return their values."""
    before = content(store)
    for view in views:
        store.create_feature_view(view, features=["people.score"])
        store.publish(view, to="cache")
    return {key: value for key, value in content(store).items() if key not in before}


def scores(store: FeatureStore, view: str) -> list[Any]:
    with store.get_feature_view(view).server(online="cache") as server:
        return [
            vector["score"] for vector in server.get_vectors([{"user": user} for user in USERS])
        ]


def test_values_of_another_store_in_the_database_remain(tmp_path: Path, uri: str) -> None:
    with (
        open_store(tmp_path / "first", uri) as first,
        open_store(tmp_path / "second", uri) as second,
    ):
        assert first.erase({"user": PERSON}).not_searched == ()
        own_keys = publish(first, "scores", "deleted")
        publish(second, "other_scores", "other_deleted", "scores_of_both")
        # The first store has a view of this name and never published it.
        first.create_feature_view("scores_of_both", features=["people.score"])
        first.delete_feature_view("deleted", version=1)
        second.delete_feature_view("other_deleted", version=1)
        with closing(open_online_store(first.session, "cache")) as online:
            encoded = next(key for key in own_keys if key.endswith(PERSON.encode()))[8:]
            online.write([b"\x00" * 8 + encoded], [b"a value of an application"])
        before = content(first)
        planned = first.erase({"user": PERSON})
        assert content(first) == before
        report = first.erase({"user": PERSON}, dry_run=False)
        assert report.complete
        after = content(first)
        erased = {key for key in own_keys if key.endswith(PERSON.encode())}
        assert len(erased) == 2
        assert after == {key: value for key, value in before.items() if key not in erased}
        assert scores(first, "scores") == [0, None, 2]
        assert scores(second, "other_scores") == scores(second, "scores_of_both") == [0, 1, 2]
        check = first.verify_erasure(report.certificate or {})
        assert check.ok
        # The values of other stores are named, before and after the erasure.
        other_keys = 3 * len(USERS) + 1
        expected_line = (
            f"online store 'cache': {other_keys} keys of other feature stores and applications "
            "in its database"
        )
        for result in (planned, report, check):
            assert result.not_searched == (expected_line,)
            assert expected_line in str(result) or isinstance(result, ErasureCheck)
        item = "cache: values without the seal of this store"
        for findings in (planned.findings, report.findings, check.listed):
            assert [(each.action, each.rows) for each in findings if each.item == item] == [
                ("list", 4)
            ]
        assert ErasureReport.from_json(report.to_json()) == report
        assert ErasureCheck.from_json(check.to_json()) == check
        # The erasure of the other store then removes the values of its views.
        assert second.erase({"user": PERSON}, dry_run=False).complete
        remaining = [key for key in content(first) if key.endswith(PERSON.encode())]
        assert remaining == [b"\x00" * 8 + encoded]


def test_catalogs_are_named_as_not_searched(empty_store: FeatureStore, tmp_path: Path) -> None:
    empty_store.create_featuregroup([{"user": PERSON}], "people", primary_key="user")
    empty_store.add_source("files", str(tmp_path))
    for name in ("lake", "other_lake"):
        empty_store.add_source(name, f"iceberg+sqlite:///{tmp_path}/{name}.db")
    (tmp_path / "catalog_job.py").write_text(CATALOG_JOB)
    empty_store.register_jobs(tmp_path / "catalog_job.py")
    text = "descriptions and columns of registered tables"
    expected_lines = (
        f"catalog 'lake': {text} (tables of register_in, schema 'shop' by the job 'lake_tables')",
        f"catalog 'other_lake': {text} (tables of register_in)",
    )
    assert empty_store.erase({"user": PERSON}).not_searched == expected_lines
    report = empty_store.erase({"user": PERSON}, dry_run=False)
    assert report.complete
    assert (
        report.not_searched == tuple((report.certificate or {})["not_searched"]) == expected_lines
    )


def test_unreachable_online_store_refuses_the_erasure(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup([{"user": PERSON}], "people", primary_key="user")
    empty_store.add_online_store("cache", "redis://127.0.0.1:1/0")
    with pytest.raises(
        OnlineStoreUnavailable, match=r"needs all online stores.* 'cache'"
    ) as refusal:
        empty_store.erase({"user": PERSON}, dry_run=False)
    assert empty_store.get_featuregroup("people").count() == 1
    line = (refusal.value.hint or "").rpartition(": ")[2]
    exec(line, {"store": empty_store})
    assert empty_store.erase({"user": PERSON}, dry_run=False).complete
