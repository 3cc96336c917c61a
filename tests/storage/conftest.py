"""A bucket or an HDFS folder for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.store import FeatureStore
from tests.hdfs_server import HdfsServer
from tests.object_server import ObjectServer
from tests.storage.stores import Connect, StoreLocation


@pytest.fixture
def bucket(object_server: ObjectServer) -> str:
    """The URI of an empty bucket."""
    return object_server.new_bucket(f"test-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def connect(bucket: str, object_server: ObjectServer, tmp_path: Path) -> Iterator[Connect]:
    """Connect to a store in the bucket; ``cache`` names the registry file."""
    stores: list[FeatureStore] = []

    def call(cache: str = "cache", **options: Any) -> FeatureStore:
        arguments = {
            "registry": f"sqlite:///{tmp_path / cache}.db",
            "storage_options": object_server.options,
            **options,
        }
        store = featurestore.connect(f"{bucket}/team a/store", **arguments)
        stores.append(store)
        return store

    yield call
    for store in stores:
        store.close()


@pytest.fixture
def hdfs_folder(hdfs_server: HdfsServer) -> str:
    """The URI of an empty folder."""
    return f"{hdfs_server.root}/test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def connect_hdfs(hdfs_folder: str, tmp_path: Path) -> Iterator[Connect]:
    """Connect to a store in the folder; ``cache`` names the registry file."""
    stores: list[FeatureStore] = []

    def call(cache: str = "cache", **options: Any) -> FeatureStore:
        arguments = {"registry": f"sqlite:///{tmp_path / cache}.db", **options}
        store = featurestore.connect(f"{hdfs_folder}/team a/store", **arguments)
        stores.append(store)
        return store

    yield call
    for store in stores:
        store.close()


@pytest.fixture(params=["s3", "hdfs"])
def store_location(request: pytest.FixtureRequest) -> StoreLocation:
    """A bucket and an HDFS folder; the test runs once on each."""
    if request.param == "hdfs":
        return StoreLocation(request.getfixturevalue("connect_hdfs"), {})
    options = request.getfixturevalue("object_server").options
    environment = {key.upper(): value for key, value in options.items()}
    return StoreLocation(request.getfixturevalue("connect"), environment)
