"""A bucket or an HDFS folder for each test, and a function that connects to stores in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.storage.connections import object_store_for, use_options
from featurestore.store import FeatureStore
from tests.azure_server import ACCOUNT_KEY
from tests.hdfs_server import HdfsServer
from tests.object_server import ACCESS_KEY, SECRET_KEY, ObjectServer
from tests.storage.stores import (
    SERVERS,
    Connect,
    StoreLocation,
    new_name,
    skip_without_spark_client,
)
from tests.storage.uri_path import UriPath

SECRETS = {"s3": (ACCESS_KEY, SECRET_KEY), "az": (ACCOUNT_KEY,)}


@contextmanager
def connections_to(folder: str, options: Mapping[str, str], directory: Path) -> Iterator[Connect]:
    """Yield a function that connects to stores below a URI; their registries are in a directory.

    ``cache`` names the registry file, and ``store`` the store.
    """
    stores: list[FeatureStore] = []

    def connect(cache: str = "cache", store: str = "store", **overrides: Any) -> FeatureStore:
        arguments = {
            "registry": f"sqlite:///{directory / cache}.db",
            "storage_options": options,
            **overrides,
        }
        stores.append(featurestore.connect(f"{folder}/team a/{store}", **arguments))
        return stores[-1]

    yield connect
    for store in stores:
        store.close()


@pytest.fixture
def bucket(object_server: ObjectServer) -> str:
    """The URI of an empty bucket."""
    return object_server.new_bucket(new_name())


@pytest.fixture
def connect(bucket: str, object_server: ObjectServer, tmp_path: Path) -> Iterator[Connect]:
    """Connect to stores in the bucket."""
    with connections_to(bucket, object_server.options, tmp_path) as call:
        yield call


@pytest.fixture
def hdfs_folder(hdfs_server: HdfsServer) -> str:
    """The URI of an empty folder."""
    return f"{hdfs_server.root}/{new_name()}"


@pytest.fixture
def connect_hdfs(hdfs_folder: str, tmp_path: Path) -> Iterator[Connect]:
    """Connect to stores in the folder."""
    with connections_to(hdfs_folder, {}, tmp_path) as call:
        yield call


@pytest.fixture
def store_location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreLocation]:
    """An empty bucket or folder on a server; the parameter of ``on_servers``."""
    scheme = request.param
    server = request.getfixturevalue(SERVERS[scheme])
    if scheme == "hdfs":
        folder, options, environment = f"{server.root}/{new_name()}", {}, {}
    else:
        folder, options = server.new_bucket(new_name()), server.options
        environment = {key.upper(): value for key, value in options.items()}
        if scheme != "s3":
            environment = server.environment
    with connections_to(folder, options, tmp_path) as connect:
        secrets = SECRETS.get(scheme, ())
        yield StoreLocation(scheme, folder, options, environment, secrets, connect)


@pytest.fixture
def spark_folder(store_location: StoreLocation, spark: Any) -> UriPath:
    """A folder that this process has opened, on a server for which the session has a client."""
    skip_without_spark_client(store_location.scheme)
    use_options(store_location.folder, store_location.options)
    object_store_for(store_location.folder)
    return UriPath(store_location.folder) / "some folder"
