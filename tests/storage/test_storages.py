"""Every object store passes the shipped conformance suite."""

from __future__ import annotations

import pytest

from featurestore.storage.objects import ObjectStorage
from featurestore.testing.storage_conformance import StorageConformance
from featurestore_connectors.hdfs import HdfsStorage
from tests.hdfs_server import HdfsServer
from tests.object_server import ObjectServer


class TestS3Storage(StorageConformance):
    @pytest.fixture
    def storage(self, bucket: str, object_server: ObjectServer) -> ObjectStorage:
        return ObjectStorage(bucket, object_server.options)


class TestHdfsStorage(StorageConformance):
    @pytest.fixture
    def storage(self, hdfs_server: HdfsServer) -> HdfsStorage:
        storage = HdfsStorage(hdfs_server.root, {})
        for name in storage.children(""):
            storage.remove_below(name)
            storage.remove(name)
        return storage
