"""A store at a URI equals a local store; unsupported operations are refused."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pytest

import featurestore
from featurestore import experiments
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    ConfigurationError,
    FeatureGroupExists,
    FeatureGroupNotFound,
    FeatureStoreError,
    InvalidArgument,
    LocationNotWritable,
    RegistryError,
    StorageError,
    UnsupportedLocation,
)
from featurestore.recovery.rebuild import rebuild
from featurestore.storage import failures
from featurestore.store import FeatureStore
from tests.object_server import ACCESS_KEY, SECRET_KEY, ObjectServer, free_port, options_for
from tests.storage.faulty_proxy import STALE, faulty
from tests.storage.stores import Connect, history_of_a_group, rows


def test_s3_groups_equal_local_groups(connect: Connect, tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "disk") as disk:
        expected = history_of_a_group(disk)
    assert history_of_a_group(connect()) == expected


def test_registry_is_rebuilt_from_s3(
    connect: Connect, bucket: str, tmp_path: Path, object_server: ObjectServer
) -> None:
    store = connect()
    store.create_featuregroup(rows(0, 5), "weather", primary_key="id", tags={"a": "b"})
    with pytest.raises(RegistryError, match="registry rebuild"):
        connect("other")
    rebuilt = rebuild(store.location, url=f"sqlite:///{tmp_path / 'other.db'}")
    assert rebuilt.featuregroups == ["weather@v1"]
    other_store = connect("other")
    assert other_store.get_featuregroup("weather").count() == 5
    assert other_store.get_featuregroup_tags("weather") == {"a": "b"}
    memory = (object_server.root / bucket[5:] / "team a/store/registry.json").read_text()
    assert "a cache on each machine" in memory
    assert str(tmp_path) not in memory


def test_two_registries_cannot_create_same_version(connect: Connect, tmp_path: Path) -> None:
    """Neither removes the other's unfinished files as leftovers."""
    first, second = connect("first"), connect("second")

    def half_made() -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"id": [1]})
        with pytest.raises(FeatureGroupExists, match="another registry"):
            second.create_featuregroup(rows(0, 5), "weather", version=1)
        yield pd.DataFrame({"id": [2]})

    first.create_featuregroup(half_made(), "weather", version=1)
    assert first.get_featuregroup("weather").count() == 2


def test_unsupported_operations_on_s3_are_refused_before_writing(
    connect: Connect, object_server: ObjectServer, bucket: str
) -> None:
    store = connect()
    store.create_featuregroup(rows(0, 50), "weather", primary_key="id", event_time="at")

    def objects() -> list[Path]:
        return sorted((object_server.root / bucket[5:]).rglob("*"))

    before = objects()
    with pytest.raises(UnsupportedLocation, match=r"does not support az:.*\nHint: "):
        featurestore.connect("az://bucket/a", engine="spark", registry="sqlite:///cache.db")
    with pytest.raises(
        UnsupportedLocation, match=r"require a store in a directory.*\nHint: store=featurestore"
    ):
        experiments.get_runs("some", store=store)
    assert objects() == before


@pytest.mark.parametrize(
    ("location", "overrides", "error", "words"),
    [
        ("s3://{bucket}", {"registry": None}, ConfigurationError, "needs registry="),
        ("s3://absent-bucket/a", {}, StorageError, "NoSuchBucket"),
        ("s3://key:secret@{bucket}/a", {}, UnsupportedLocation, r"s3://\*\*\*@"),
        ("s3://{bucket}/a/../b", {}, UnsupportedLocation, "s3://bucket/prefix"),
        ("ftp://host/a", {}, UnsupportedLocation, "not a supported location"),
        ("s3://{bucket}/a", {"storage_options": {"regoin": "x"}}, ConfigurationError, "region"),
        ("{folder}", {"storage_options": {}}, None, ""),
        ("{folder}", {"storage_options": {"aws_region": "x"}}, InvalidArgument, "requires a URI"),
    ],
)
def test_connect_invalid_location_raises_with_reason(
    connect: Connect,
    bucket: str,
    tmp_path: Path,
    location: str,
    overrides: dict[str, Any],
    error: type[Exception] | None,
    words: str,
    object_server: ObjectServer,
) -> None:
    uri = location.format(bucket=bucket[5:], folder=tmp_path / "disk")
    arguments = {
        "registry": f"sqlite:///{tmp_path}/cache.db",
        "storage_options": object_server.options,
        **overrides,
    }
    if error is None:
        featurestore.connect(uri, **arguments).close()
        return
    with pytest.raises(error, match=words) as refused:
        featurestore.connect(uri, **arguments)
    assert "key:secret" not in str(refused.value)


def test_s3_credentials_are_read_from_environment_and_profile(
    connect: Connect,
    object_server: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_server.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "team")
    (tmp_path / "credentials").write_text(
        f"[team]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    from_file = connect(storage_options={})
    from_file.create_featuregroup(rows(0, 3), "a")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    assert connect(storage_options={"timeout": "50s"}).get_featuregroup("a").count() == 3


def test_s3_credentials_are_never_stored(
    connect: Connect,
    bucket: str,
    object_server: ObjectServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    store = connect()
    history_of_a_group(store)
    wrong = {**object_server.options, "aws_secret_access_key": f"{SECRET_KEY}-wrong"}
    with pytest.raises((StorageError, LocationNotWritable)) as refused:
        connect(storage_options=wrong)
    with pytest.raises((StorageError, LocationNotWritable)) as unreachable:
        connect(storage_options=options_for(f"http://127.0.0.1:{free_port()}"))
    texts = [caplog.text, repr(store), repr(store.session), str(refused.value)]
    texts += [str(unreachable.value), repr(store.featuregroup("weather"))]
    for folder in (object_server.root / bucket[5:], tmp_path, Path(os.environ["XDG_STATE_HOME"])):
        for file in folder.rglob("*"):
            if file.is_file():
                texts.append(file.read_bytes().decode("latin-1"))
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert not [text[:200] for text in texts if secret in text]


def test_store_on_s3_with_faulty_network_keeps_rows(
    connect: Connect, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_FIRST_PAUSE", 0.002)
    store = connect()
    store.create_featuregroup(rows(0, 10), "weather", primary_key="id")
    landed = 10
    with faulty(object_server.port, rate=0.15, seed=2) as (proxy, endpoint):
        shaky = connect(storage_options=options_for(endpoint))
        for number in range(1, 10):
            try:
                shaky.insert_into_featuregroup(rows(number * 10, 10), "weather")
            except StorageError:
                continue
            landed += 10
            assert shaky.get_featuregroup("weather").count() == landed
        assert proxy.faults.total() >= 20
    again = connect()
    ids = again.get_featuregroup("weather").to_pandas()["id"]
    assert ids.is_unique
    assert len(ids) == landed


@pytest.mark.filterwarnings("ignore::featurestore.errors.PublicationWarning")
def test_stale_s3_listings_keep_each_row_once(
    connect: Connect, object_server: ObjectServer
) -> None:
    """With a stale listing a write fails and can be repeated."""
    store = connect()
    store.create_featuregroup(rows(0, 10), "weather", primary_key="id")
    acknowledged = {0}

    def append(to: FeatureStore, number: int) -> None:
        added = rows(number * 10, 10)
        to.insert_into_featuregroup(added, "weather", transaction=(f"etl/{number}", 1))

    with faulty(object_server.port, rate=0.5, kinds=(STALE,), seed=2) as (proxy, endpoint):
        shaky = connect(storage_options=options_for(endpoint))
        for number in (1, 1, 2, 3, 3, 4, 5, 6, 6, 7):
            with suppress(FeatureStoreError):
                append(shaky, number)
                acknowledged.add(number)
        assert proxy.faults[STALE] > 10
    ids = connect().get_featuregroup("weather").to_pandas()["id"]
    assert ids.is_unique
    assert acknowledged <= set(ids // 10)
    assert len(acknowledged) > 3
    again = connect()
    for number in range(1, 8):
        append(again, number)
    assert sorted(again.get_featuregroup("weather").to_pandas()["id"]) == list(range(80))


def test_s3_request_count_is_independent_of_commits(
    connect: Connect, object_server: ObjectServer
) -> None:
    with faulty(object_server.port, rate=0.0) as (proxy, endpoint):
        store = connect(storage_options=options_for(endpoint))
        store.create_featuregroup(rows(0, 10), "weather", primary_key="id")

        def count(operation: Callable[[], object]) -> Counter[str]:
            proxy.requests.clear()
            operation()
            return Counter(proxy.requests)

        def append(number: int) -> Counter[str]:
            added = rows(number * 10, 10)
            return count(lambda: store.insert_into_featuregroup(added, "weather"))

        appends = [append(number) for number in range(1, 25)]
        totals = [requests.total() for requests in appends]
        # Writes of data, commit and statistics, and a read of the commit. The log is listed
        # when the group is opened, when the rows are there and when they are committed, and the
        # statistics once. Small files are compacted and checkpoints written at times.
        assert median(totals[:8]) <= 8
        assert median(totals[-8:]) <= 8
        assert median([requests["LIST"] for requests in appends]) <= 4
        assert count(lambda: store.get_featuregroup_history("weather"))["LIST"] <= 2
        group = store.get_featuregroup("weather")
        open_requests = count(lambda: store.get_featuregroup("weather"))
        assert open_requests.total() == open_requests["LIST"] == 1
        read = count(group.to_arrow)
        files = len(read_snapshot(store.featuregroup("weather").path).files)
        assert read["LIST"] <= 2
        assert read.total() - read["LIST"] <= 3 * files


def test_deleted_s3_group_version_can_be_recreated(
    connect: Connect, object_server: ObjectServer, bucket: str
) -> None:
    store = connect()
    store.create_featuregroup(rows(0, 3), "weather")
    store.delete_featuregroup("weather", version=1)
    group_folder = object_server.root / bucket[5:] / "team a/store/featuregroups/weather"
    names = [file.name for file in group_folder.rglob("*") if file.is_file()]
    assert names == ["v1.deleted"]
    with pytest.raises(FeatureGroupNotFound):
        store.get_featuregroup("weather")
    store.create_featuregroup(rows(0, 4), "weather", version=1)
    assert store.get_featuregroup("weather").count() == 4
