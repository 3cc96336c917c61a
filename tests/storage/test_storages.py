"""Every object store passes the shipped conformance suite."""

from __future__ import annotations

import pytest

from featurestore.storage.objects import ObjectStorage
from featurestore.testing.storage_conformance import StorageConformance
from featurestore_connectors.hdfs import HdfsStorage
from tests.azure_server import AzureServer
from tests.gcs_server import GcsServer
from tests.hdfs_server import HdfsServer
from tests.object_server import ObjectServer
from tests.storage.stores import new_name


class TestS3Storage(StorageConformance):
    @pytest.fixture
    def storage(self, bucket: str, object_server: ObjectServer) -> ObjectStorage:
        return ObjectStorage(bucket, object_server.options)


class TestAzureStorage(StorageConformance):
    in_soak = ("test_list_spans_several_server_pages",)

    @pytest.fixture
    def storage(self, azure_server: AzureServer) -> ObjectStorage:
        return ObjectStorage(azure_server.new_bucket(new_name()), azure_server.options)


class TestGcsStorage(StorageConformance):
    in_soak = ("test_list_spans_several_server_pages",)

    @pytest.fixture
    def storage(self, gcs_server: GcsServer) -> ObjectStorage:
        return ObjectStorage(gcs_server.new_bucket(new_name()), gcs_server.options)


class TestHdfsStorage(StorageConformance):
    @pytest.fixture
    def storage(self, hdfs_server: HdfsServer) -> HdfsStorage:
        storage = HdfsStorage(hdfs_server.root, {})
        for name in storage.children(""):
            storage.remove_below(name)
            storage.remove(name)
        return storage
