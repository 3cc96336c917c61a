"""Particularities of S3: locations, credentials, faults, stale listings and numbers of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

import pytest

import featurestore
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    ConfigurationError,
    FeatureStoreError,
    InvalidArgument,
    LocationNotWritable,
    StorageError,
    UnsupportedLocation,
)
from featurestore.storage import failures
from featurestore.store import FeatureStore
from tests.object_server import ACCESS_KEY, SECRET_KEY, ObjectServer, free_port, options_for
from tests.storage.faulty_proxy import STALE, faulty
from tests.storage.stores import Connect, rows


def test_connect_invalid_location_raises_with_reason(
    bucket: str,
    object_server: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    monkeypatch.setattr(failures, "_FIRST_PAUSE", 0.002)
    name = bucket.removeprefix("s3://")
    options = object_server.options
    wrong_secret = {**options, "aws_secret_access_key": f"{SECRET_KEY}-wrong"}
    unreachable = options_for(f"http://127.0.0.1:{free_port()}")
    refused = (StorageError, LocationNotWritable)
    for location, overrides, error, words in (
        (bucket, {"registry": None}, ConfigurationError, "needs registry="),
        ("s3://absent-bucket/a", {}, StorageError, "NoSuchBucket"),
        (f"s3://key:secret@{name}/a", {}, UnsupportedLocation, r"s3://\*\*\*@"),
        (f"{bucket}/a/../b", {}, UnsupportedLocation, "s3://bucket/prefix"),
        ("ftp://host/a", {}, UnsupportedLocation, "not a supported location"),
        ("az://c/a", {"engine": "spark"}, UnsupportedLocation, r"support az:.*\nHint: "),
        (f"{bucket}/a", {"storage_options": {"regoin": "x"}}, ConfigurationError, "region"),
        (f"{bucket}/a", {"storage_options": wrong_secret}, refused, "status 403"),
        (f"{bucket}/a", {"storage_options": unreachable}, refused, "cannot be reached"),
        (
            str(tmp_path / "disk"),
            {"storage_options": {"aws_region": "x"}},
            InvalidArgument,
            "requires a URI",
        ),
    ):
        arguments = {"registry": f"sqlite:///{tmp_path}/cache.db", "storage_options": options}
        with subtests.test(words):
            with pytest.raises(error, match=words) as caught:
                featurestore.connect(location, **{**arguments, **overrides})
            for secret in ("key:secret", ACCESS_KEY, SECRET_KEY):
                assert secret not in str(caught.value)
    registry = f"sqlite:///{tmp_path}/cache.db"
    featurestore.connect(tmp_path / "disk", registry=registry, storage_options={}).close()


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
